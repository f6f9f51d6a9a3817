"""One HTML file from inspections: no server, no network, nothing but the file.

Axes: H, W the photo's height and width, h, w a map's, i queries, j keys.
"""

import base64
import hashlib
import html
import io
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image

from vision_attn.files import write_text
from vision_attn.pages.inspect.coding import Coded, Rows, Vectors, encode, softmax
from vision_attn.pages.inspect.parts import (
    Features,
    Gate,
    Inspection,
    Layer,
    QueryKeys,
    ShownChannelGate,
    Windows,
)
from vision_attn.pages.language import Name, interface, stays, texts
from vision_attn.render.overlay import AGAINST

__all__ = ["Additions", "Page", "asset", "distance", "document", "entropy", "in_script"]

SCRIPTS = (  # in the order they are joined; then comes where the items are from, then page.js
    *("inflate", "words", "attention", "features", "paint", "stage", "bar", "panels", "alike"),
    "view",
    *("link", "save"),
)
COLOUR_MAPS = ("inferno", "magma", "viridis", "cividis")
LARGEST = 1024  # pixels: a larger photo is made smaller for the page


@dataclass(frozen=True)
class Page:
    """Page of inspections, as HTML; in a notebook it shows itself.

    Attributes:
        html: The page.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect import Inspection, ShownMap, Page
        >>> heatmap = ShownMap("Rollout()", np.ones((2, 2), np.float32))
        >>> photo = np.zeros((8, 8, 3), np.uint8)
        >>> page = Page.of([Inspection("a model", "photo.jpg", photo, maps=[heatmap])])
        >>> "photo.jpg" in page.html
        True
    """

    html: str = field(repr=False)

    @classmethod
    def of(cls, inspections: Sequence[Inspection]) -> "Page":
        """Make the page that shows these inspections, any two of them side by side.

        Raises:
            ValueError: There is no inspection.
        """
        if not inspections:
            raise ValueError("expected at least one inspection, got none")
        photos = _named([one.image for one in inspections], "photos")
        models = _named([one.model for one in inspections], "models")
        return cls(
            document(
                photos,
                models,
                warning=_warning(inspections),
                source=asset("js/recorded.js"),
                data={"items": [_item(inspection) for inspection in inspections]},
            )
        )

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the page, one file that needs nothing beside it, and return its path."""
        write_text(path, self.html)
        return Path(path)

    def _repr_html_(self) -> str:
        """Show the page in a frame of its own, apart from the notebook's styles and scripts."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            'title="Attention" style="width: 100%; height: 820px; border: 0"></iframe>'
        )


@dataclass(frozen=True)
class Additions:
    """What a page has beyond the inspector's.

    Attributes:
        above: HTML before the views.
        below: HTML before the script.
        script: Runs last.
        worker: Another script, whose words the page may show.
        style: More CSS.
        images: More of the content security policy's sources of images.
        code: More of its sources of scripts.
        policy: More of the policy.

    Examples:
        >>> from vision_attn.pages.inspect.page import Additions
        >>> Additions(images=" blob:").above
        ''
    """

    above: str = ""
    below: str = ""
    script: str = ""
    worker: str = ""
    style: str = ""
    images: str = ""
    code: str = ""
    policy: str = ""


def document(
    heading: str,
    models: str,
    *,
    warning: str,
    source: str,
    data: dict[str, Any],
    added: Additions | None = None,
) -> str:
    """Put the page together: the inspector's parts, and a script that says where items are from.

    heading, models, warning: HTML. source: JavaScript that defines openSource(data), whose result
    has `items`, descriptions of them, and open(at), a promise of an Item.
    """
    added = added or Additions()
    scripts = [asset(f"js/{name}.js") for name in SCRIPTS]
    script = "\n".join([*scripts, source, asset("js/page.js"), added.script])
    written = [asset("inspect.html"), added.above, heading, models, warning, script, added.worker]
    script = f"{script}\n{interface(' '.join([*written, *texts(data)]))}"
    style = asset("inspect.css") + added.style
    shared = {
        "colours": {name: _base64(_colours(name).tobytes()) for name in COLOUR_MAPS},
        "against": AGAINST,
    }
    return Template(asset("inspect.html")).substitute(
        title=f"{heading} · {models}",
        photos=_breakable(heading),
        photos_stay=stays(heading),
        models=_breakable(models),
        models_stay=stays(models),
        warning=warning,
        script=script,
        script_hash=_hash(script),
        style=style,
        style_hash=_hash(style),
        data=in_script(shared | data),
        above=added.above,
        below=added.below,
        images=added.images,
        code=added.code,
        policy=added.policy,
    )


def _breakable(text: str) -> str:
    """Let a name in HTML go on in the next line after a colon, a slash or an underscore."""
    return re.sub(r"(?<=[:/_])(?=\w)", "<wbr>", text)


def in_script(data: dict[str, Any]) -> str:
    """Write JSON that nothing in it can end the script element of."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


class _Numbers:
    """Arrays one after the other; `add` returns where each begins, on a boundary of 4 bytes."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def add(self, data: bytes) -> int:
        at = len(self.bytes)
        self.bytes += data + bytes(-len(data) % 4)
        return at

    def floats(self, values: Float[ndarray, "..."]) -> int:
        return self.add(np.ascontiguousarray(values, "<f4").tobytes())

    def text(self) -> str:
        return _base64(zlib.compress(self.bytes))


def _item(inspection: Inspection) -> dict[str, Any]:
    """Describe an inspection as attention.js and view.js read it."""
    numbers = _Numbers()
    return {
        "model": inspection.model,
        "image": inspection.image,
        "warning": inspection.warning,
        "photo": _photo(inspection.photo),
        "box": inspection.box,
        "predictions": [vars(prediction) for prediction in inspection.predictions],
        "grid": inspection.grid,
        "prefix": list(inspection.prefix),
        "layers": [_layer(layer, inspection, numbers) for layer in inspection.layers],
        "maps": [
            vars(one)
            | {
                "values": numbers.floats(one.values),
                "grid": one.values.shape,
                "scores": dict(one.scores),
            }
            for one in inspection.maps
        ],
        "gates": [_gate(gate, numbers) for gate in inspection.gates],
        "features": [_features(one, numbers) for one in inspection.features],
        "notes": list(inspection.notes),
        "unlike": inspection.unlike,
        "noClick": inspection.no_click,
        "bytes": numbers.text(),
    }


def _gate(gate: Gate, numbers: _Numbers) -> dict[str, Any]:
    where = gate.where if isinstance(gate, ShownChannelGate) else gate.values
    return {
        "name": gate.name,
        "values": numbers.floats(gate.values),
        "shape": gate.values.shape,
        "where": None if where is None else numbers.floats(where),
        "grid": None if where is None else where.shape,
    }


def _features(features: Features, numbers: _Numbers) -> dict[str, Any]:
    """Describe the features of one layer as features.js reads them."""
    rows = features.vectors.reshape(-1, features.vectors.shape[-1])
    coded = Vectors.of(rows)
    found = {
        "name": features.name,
        "grid": features.grid,
        "width": rows.shape[1],
        "code": coded.codes.dtype.name,
        "at": numbers.add(coded.tobytes()),
        "error": coded.error(coded.exact(rows)),
        "nearest": [[at, round(cosine, 4)] for at, cosine in features.nearest],
        "colors": None,
    }
    if features.colors is None or features.foreground is None:
        return found
    return found | {
        "colors": numbers.add(features.colors.tobytes()),
        "foreground": numbers.add(features.foreground.astype(np.uint8).tobytes()),
        "variance": list(features.variance),
    }


def _layer(layer: Layer, inspection: Inspection, numbers: _Numbers) -> dict[str, Any]:
    if isinstance(layer, Windows):
        return _windows(layer, numbers)
    known = (layer.q, layer.k) if isinstance(layer, QueryKeys) else (layer.weights,)
    heads = []
    for arrays in zip(*known, strict=True):
        exact = softmax(arrays[0] @ arrays[1].T) if isinstance(layer, QueryKeys) else arrays[0]
        coded = encode(exact, *(arrays if isinstance(layer, QueryKeys) else ()))
        heads.append(_head(coded, exact, distance(exact, inspection.grid), numbers))
    return {"name": layer.name, "width": known[0].shape[-1], "heads": heads}


def _windows(layer: Windows, numbers: _Numbers) -> dict[str, Any]:
    """Code rows over the keys of a window, and once for all heads where the windows lie."""
    apart = _apart_in_windows(layer)
    return {
        "name": layer.name,
        "heads": [
            _head(Rows.of(rows), rows, _mean_distance(rows * (apart >= 0), apart), numbers)
            for rows in layer.rows()
        ],
        "windows": {
            "grid": layer.grid,
            "merged": layer.merged,
            "size": layer.window,
            "shift": layer.shift,
            "places": numbers.add(np.ascontiguousarray(layer.places, "<i4").tobytes()),
            "regions": numbers.add(np.ascontiguousarray(layer.regions, "u1").tobytes()),
            "count": len(layer.places),
        },
    }


def _head(
    coded: Coded, exact: Float[ndarray, "i j"], reach: float, numbers: _Numbers
) -> dict[str, Any]:
    return {
        "code": coded.code,
        "at": numbers.add(coded.tobytes()),
        "error": coded.error(exact),
        "entropy": entropy(exact),
        "distance": reach,
    }


def entropy(weights: Float[ndarray, "i j"]) -> float:
    """Compute -sum_j w_ij log2 w_ij in bits, the mean over queries.

    Rows are first made to sum to 1.
    """
    shares = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return float(-(shares * np.log2(np.where(shares > 0, shares, 1))).sum(axis=1).mean())


def distance(weights: Float[ndarray, "i j"], grid: tuple[int, int]) -> float:
    """Compute the mean attention distance in patches: sum_j w_ij |place_i - place_j| / sum_j w_ij.

    Over patches alone, the mean over queries (Dosovitskiy et al. 2021, figure 7).
    """
    apart = _apart(grid)
    among = weights[-len(apart) :, -len(apart) :]
    return _mean_distance(among, apart)


def _mean_distance(weights: Float[ndarray, "i j"], apart: Float[ndarray, "i j"]) -> float:
    total = np.maximum(weights.sum(axis=1), np.finfo(np.float32).tiny)
    return float(((weights * apart).sum(axis=1) / total).mean())


def _apart_in_windows(layer: Windows) -> Float[ndarray, "n j"]:
    """Measure how far each token is from each place of its window, in tokens; -1 of padding."""
    keys = layer.places[layer.where[0]]
    rows, columns = np.divmod(np.arange(len(keys)), layer.grid[1])
    key_rows, key_columns = np.divmod(keys, layer.grid[1])
    apart = np.hypot(key_rows - rows[:, None], key_columns - columns[:, None])
    return np.where(keys == len(keys), -1, apart).astype(np.float32)


@lru_cache(maxsize=1)
def _apart(grid: tuple[int, int]) -> Float[ndarray, "i j"]:
    """Measure how far each patch is from each other, in patches."""
    rows, columns = np.indices(grid, dtype=np.float32).reshape(2, -1)
    return np.hypot(rows[:, None] - rows, columns[:, None] - columns)


def _named(names: Sequence[str], many: str) -> str:
    """Return the one name, or how many there are, as HTML."""
    different = set(names)
    if len(different) > 1:
        return f"{len(different)} {many}"
    return Name(html.escape(names[0].encode("utf-8", "replace").decode()))


def _warning(inspections: Sequence[Inspection]) -> str:
    """Return each model's warning once, as HTML, with its name where models differ."""
    several = len({one.model for one in inspections}) > 1
    lines = dict.fromkeys(
        f"{one.model}: {one.warning}" if several else one.warning
        for one in inspections
        if one.warning
    )
    return "".join(f'<p class="warning">{html.escape(line)}</p>' for line in lines)


def _photo(photo: UInt8[ndarray, "H W 3"]) -> str:
    """Encode a photo as a data URL."""
    image = Image.fromarray(photo)
    image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{_base64(file.getvalue())}"


def _colours(name: str) -> UInt8[ndarray, "256 3"]:
    return np.rint(255 * matplotlib.colormaps[name](np.arange(256))[:, :3]).astype(np.uint8)


def _hash(text: str) -> str:
    """Hash a script or style as a content security policy names one that may run."""
    return f"sha256-{_base64(hashlib.sha256(text.encode()).digest())}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def asset(name: str) -> str:
    """Read one of the page's own files."""
    return (files("vision_attn.pages.inspect") / name).read_text(encoding="utf-8")
