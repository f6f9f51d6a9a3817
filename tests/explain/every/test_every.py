"""Networks of every kind, each judged by what it shows when it is disturbed: right, or refused."""

import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.append(str(Path(__file__).parent))
import catalogue
import disturbance
import oracle

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
    "vit-pytorch:rvt",
]
REFUSED = {
    "by hand:a_loop_over_images": "has a batch of 3 for 2 images",
    "by hand:a_loop_over_images_fused": "has a batch of 1 for 2 images",
    "by hand:heads_first": "mixes the images of a batch",
    "by hand:keys_in_two_parts": "branches side by side",
    "timm:test_byobnet": "no attention was found",
}
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
def test_its_maps_are_right_or_refused_for_this_reason(name):
    if name not in entries():
        pytest.skip(f"the library of {name} is not installed, or has no such network")
    found = oracle.tried(entries()[name])
    if name in REFUSED:
        assert found["map"] == "refused"
        assert REFUSED[name] in found["why"]
    else:
        assert (found["map"], found["why"]) == ("right", "")
    if found["batch"] is not None:
        assert found["batch"] < 1e-5


@pytest.mark.parametrize("name", ["timm:test_vit", "vit-pytorch:rvt"])
@pytest.mark.parametrize("order", ["turned by 180 degrees", "one column further"])
def test_a_map_whose_tokens_lie_elsewhere_is_found_wrong(name, order, monkeypatch):
    if name not in entries():
        pytest.skip(f"the library of {name} is not installed, or has no such network")

    def elsewhere(network, image, path, chain, matched, verdict):
        places = torch.arange(chain.links[0].before)[chain.layout.patches].view(chain.layout.grid)
        moved = places.flip(0, 1) if order == "turned by 180 degrees" else places.roll(1, 1)
        layout = SimpleNamespace(grid=chain.layout.grid, patches=moved.flatten().tolist())
        chain = SimpleNamespace(links=chain.links, layout=layout)
        disturbance.disturb_image(network, image, path, chain, matched, verdict)

    monkeypatch.setattr(oracle, "disturb_image", elsewhere)
    found = oracle.tried(entries()[name])
    assert found["map"] == "wrong"
    assert "changes the tokens around" in found["why"]
