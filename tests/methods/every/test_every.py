"""Networks of every kind, each judged by what it shows when it is disturbed: right, or refused."""

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))
import catalogue
import disturbance
import oracle

from vision_attn.tokens.path.path import find_path

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

RIGHT = [f"by hand:{name}" for name in catalogue.handwritten.WAYS]
RIGHT += [
    "timm:test_vit",
    "timm:test_vit_relpos",
    "torchvision:vit_b_16",
    "transformers:ViT:sdpa",
    "transformers:Beit:cls:sdpa",
    "transformers:Data2VecVision:sdpa",
    "transformers:DeiT:WithTeacher:sdpa",
    "transformers:Dinov2WithRegisters:sdpa",
    "transformers:IJepa:sdpa",
    "transformers:Swin:sdpa",
    "vit-pytorch:look_vit",
    "vit-pytorch:rvt",
]
REFUSED = {
    "by hand:a_loop_over_images": "has a batch of 3 for 2 images",
    "by hand:a_loop_over_images_fused": "has a batch of 1 for 2 images",
    "by hand:heads_first": "mixes the images of a batch",
    "by hand:keys_in_two_parts": "branches side by side",
    "timm:test_byobnet": "no attention was found",
}
# One of each kind of blocks: in a row, side by side, with fewer tokens as they go, with a class
# token that attends alone.
FAMILIES = (
    "timm:vit_tiny_patch16_224",
    "vit-pytorch:parallel_vit",
    "timm:levit_128s",
    "timm:cait_xxs24_224",
)
RIGHT += FAMILIES
# Methods that are compared with their dense formula wherever they fit these.
BY_FORMULA = ("RawAttention", "QueryKey", "AttentionGradCAM", "Relevance", "LeGrad")
NAMES = list(dict.fromkeys([*RIGHT, *REFUSED]))


@cache
def entries() -> dict[str, catalogue.Entry]:
    """The networks of these names, found when the first is tried: to list all takes seconds."""
    return {entry.name: entry for entry in catalogue.every() if entry.name in NAMES}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"every {at % 2}"))
        for at, name in enumerate(NAMES)
    ],
)
def test_its_maps_are_right_or_refused_for_this_reason(name: Any) -> None:
    if name not in entries():
        pytest.skip(f"the library of {name} is not installed, or has no such network")
    found = oracle.tried(entries()[name])
    if name in REFUSED:
        assert found["map"] == "refused"
        assert REFUSED[name] in found["why"]
    else:
        assert (found["map"], found["why"]) == ("right", "")
        if name in FAMILIES:
            assert not [method for method in BY_FORMULA if not asked(found, method)]
    if found["batch"] is not None:
        assert found["batch"] < 1e-5


def asked(found: Any, method: str) -> bool:
    """Whether a method was compared with its formula, or says why it does not fit."""
    compared = [error for name, error in found["formulas"].items() if name.startswith(method)]
    return any(error is not None for error in compared) or found["maps"][method] != "map"


@pytest.mark.parametrize("name", ["timm:test_vit", "vit-pytorch:rvt"])
@pytest.mark.parametrize("order", ["turned by 180 degrees", "one column further"])
def test_a_map_whose_tokens_lie_elsewhere_is_found_wrong(
    name: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in entries():
        pytest.skip(f"the library of {name} is not installed, or has no such network")

    def elsewhere(
        network: Any, image: torch.Tensor, path: Path, chain: Any, matched: Any, verdict: Any
    ) -> None:
        judge_places(network, image, path, with_places(chain, ORDERS[order]), matched, verdict)

    judge_places = oracle.judge_places
    monkeypatch.setattr(oracle, "judge_places", elsewhere)
    found = oracle.tried(entries()[name])
    assert found["map"] == "wrong"
    assert re.search("changes the tokens around .* changes by bands around", found["why"])


def with_places(chain: Any, order: Callable[..., Any]) -> SimpleNamespace:
    """A chain whose tokens are said to lie in another order of a grid's."""
    places = torch.arange(chain.links[0].before)[chain.layout.patches].view(chain.layout.grid)
    layout = SimpleNamespace(grid=chain.layout.grid, patches=order(places).flatten().tolist())
    return SimpleNamespace(links=chain.links, layout=layout)


def swapped(places: Any, axis: int) -> Any:
    """Places (row column) with the second and the third line exchanged."""
    return places.index_select(axis, torch.tensor([0, 2, 1, *range(3, places.shape[axis])]))


ORDERS = {
    "turned by 180 degrees": lambda places: places.flip(0, 1),
    "one column further": lambda places: places.roll(1, 1),
    "rows swapped": lambda places: swapped(places, 0),
    "columns swapped": lambda places: swapped(places, 1),
    "each row shuffled": lambda places: torch.stack(
        [row.roll(3 * at) for at, row in enumerate(places)]
    ),
}


@pytest.mark.parametrize("name", ["timm:test_vit", "vit-pytorch:look_vit"])
def test_bands_of_noise_tell_every_order_of_rows_and_columns(name: str) -> None:
    """In look_vit a spot changes tokens so far off that only the order of all can be asked for."""
    if name not in entries():
        pytest.skip(f"the library of {name} is not installed, or has no such network")
    torch.manual_seed(3)
    network, sizes = entries()[name].build()
    images = torch.randn(2, 3, *sizes[0], dtype=torch.float64)
    network = oracle.sharp(network.double().eval(), images)
    path = find_path(network, images)
    verdict = oracle.Verdict()
    chain, matched = oracle.compared_weights(network, images, path, verdict)

    def fault(chain: SimpleNamespace) -> Any:
        return disturbance.disturb_bands(network, images[:1], path, chain, matched)

    assert fault(chain) is None
    for order, said in {
        "rows swapped": "row 2 changes by bands around",
        "columns swapped": "column 2 changes by bands around",
        "each row shuffled": "column",
    }.items():
        assert fault(with_places(chain, ORDERS[order])).startswith(said)
