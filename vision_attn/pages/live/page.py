"""One HTML file that runs networks: no server, no network, nothing but the file.

Its views are the inspector's (render/inspect); where they show what was recorded, a worker here
computes it.
"""

import base64
import html
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from vision_attn.pages.inspect import Page, ShownMap
from vision_attn.pages.inspect.page import Additions, asset, document
from vision_attn.pages.language import Name
from vision_attn.pages.live.program import Program
from vision_attn.types import Calibration, Trust

__all__ = ["LiveNetwork", "LivePhoto", "live_page"]

COMPUTED = "Rollout", "GradCAM"  # methods, in the page
PAGE_SCRIPTS = ("chances", "live")
LAST_SCRIPTS = ("curves", "controls", "tour")
WORKER_SCRIPTS = ("chances", "kernels", "network", "photo", "worker")


@dataclass(frozen=True, eq=False)
class LiveNetwork:
    """Network that a page runs.

    Attributes:
        classes: Their names, in the order of the logits.
        how: Of the input, as `Preprocess` has it: input, mean, std, crop, fit, interpolation.
        grid: Of the cells that a brush covers, the patches' own where there are some.
        prefix: What the tokens before the patches are called.
        drops: Whether patches can be left out.
        warning: A line for the page's title, such as that weights are random.
        calibration: Of the probabilities.
        asked: Classes to show besides the likeliest.
        trust: Which methods passed `score` on it; None where that was never asked.

    Examples:
        >>> from vision_attn.pages.live import LiveNetwork, Program
        >>> how = {"input": (8, 8), "mean": (0, 0, 0), "std": (1, 1, 1), "crop": 1.0}
        >>> LiveNetwork("a model", Program((8, 8)), ["cat"], how, grid=(2, 2)).drops
        False
    """

    name: str
    program: Program
    classes: Sequence[str]
    how: dict[str, Any]
    grid: tuple[int, int]
    prefix: Sequence[str] = ()
    drops: bool = False
    warning: str = ""
    calibration: Calibration = field(default_factory=Calibration)
    asked: Sequence[int] = ()
    trust: Trust | None = None

    def verdict(self, method: str) -> str:
        """Say whether scores have shown that a method's maps can be trusted."""
        return self.trust.verdict(method) if self.trust else "Not scored on this network."


@dataclass(frozen=True, eq=False)
class LivePhoto:
    """Photo that comes with a page: an image file's bytes, of a kind that browsers read.

    Attributes:
        maps: One for each network, of a method that passed on it and that the page cannot compute;
            None where there is none.

    Examples:
        >>> from vision_attn.pages.live import LivePhoto
        >>> LivePhoto("dog.png", b"...", "image/png").type
        'image/png'
    """

    name: str
    file: bytes
    type: str
    maps: Sequence[ShownMap | None] = ()


def live_page(networks: Sequence[LiveNetwork], photos: Sequence[LivePhoto]) -> Page:
    """Make the page that runs these networks, with photos to begin with.

    ValueError without a network, and without a photo.
    """
    if not networks or not photos:
        what = "network" if not networks else "photo"
        raise ValueError(f"expected at least one {what} for the page, got none")
    models = ", ".join(dict.fromkeys(one.name for one in networks))
    several = len({one.name for one in networks}) > 1
    lines = dict.fromkeys(
        f"{one.name}: {one.warning}" if several else one.warning for one in networks if one.warning
    )
    weights = "".join(
        f'<script type="text/plain" id="weights-{at}">{one.program.text()}</script>\n'
        for at, one in enumerate(networks)
    )
    worker = f"{asset('js/inflate.js')}\n{_scripts(WORKER_SCRIPTS)}"
    kernels = base64.b64encode(zlib.compress((_here() / "kernels.wasm").read_bytes())).decode()
    return Page(
        document(
            "What if?",
            Name(html.escape(models)),
            warning="".join(f'<p class="warning">{html.escape(line)}</p>' for line in lines),
            source=_scripts(PAGE_SCRIPTS),
            data={
                "items": [],
                "networks": [_network(network) for network in networks],
                "photos": [_photo(photo) for photo in photos],
            },
            added=Additions(
                above=_text("live.html"),
                below=f'<script type="text/plain" id="worker">{worker}</script>\n'
                f'<script type="text/plain" id="kernels">{kernels}</script>\n{weights}',
                script=_scripts(LAST_SCRIPTS),
                worker=_scripts(WORKER_SCRIPTS),
                style=_text("live.css"),
                images=" blob:",
                code=" 'wasm-unsafe-eval'",
                policy="; worker-src blob:",
            ),
        )
    )


def _network(network: LiveNetwork) -> dict[str, Any]:
    """Describe a network as js/live.js reads it."""
    return {
        "model": network.name,
        "program": network.program.data(),
        "classes": list(network.classes),
        "how": network.how | {"grid": network.grid},
        "grid": network.grid,
        "prefix": list(network.prefix),
        "drops": network.drops,
        "warning": network.warning,
        "asked": list(network.asked),
        "verdicts": {name: network.verdict(name) for name in COMPUTED},
        "passed": list(network.trust.methods) if network.trust else [],
        "temperature": network.calibration.temperature,
        "threshold": network.calibration.threshold,
        "activation": network.calibration.activation or "softmax",
    }


def _photo(photo: LivePhoto) -> dict[str, Any]:
    text = base64.b64encode(photo.file).decode()
    maps = [None if shown is None else _map(shown) for shown in photo.maps]
    return {"name": photo.name, "file": {"type": photo.type, "text": text}, "maps": maps}


def _map(recorded: ShownMap) -> dict[str, Any]:
    """Describe a recorded map as js/live.js reads it: float32, nine digits each."""
    values = [float(f"{value:.9g}") for value in recorded.values.ravel().tolist()]
    found = {**vars(recorded), "values": values, "grid": recorded.values.shape}
    return found | {"scores": dict(recorded.scores)}


def _scripts(names: Sequence[str]) -> str:
    return "\n".join(_text(f"js/{name}.js") for name in names)


def _text(name: str) -> str:
    return (_here() / name).read_text(encoding="utf-8")


def _here() -> Any:
    return files("vision_attn.pages.live")
