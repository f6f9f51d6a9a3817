"""Pages of real networks: what is shown is what `QueryKey` and the other methods say."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vision_attn.data.preprocess import Preprocess
from vision_attn.hub import load_model
from vision_attn.methods import GradCAM, QueryKey
from vision_attn.models import SEResNet, SpatialCNN, ViT
from vision_attn.pages.inspect.inspection import inspect
from vision_attn.tokens import layout_of
from vision_attn.types import Model

pytestmark = pytest.mark.browser

RNG = np.random.default_rng(0)
PHOTO = Image.fromarray(RNG.integers(0, 256, (5, 9, 3), dtype=np.uint8)).resize((360, 200))


def peaky(model: Model) -> Model:
    """With weights so large that attention differs from even."""
    for weight in model.network.parameters():
        if weight.ndim > 1:
            weight.data *= 4
    return model


def loaded(network: nn.Module, size: tuple[int, int], tokens: bool = False) -> Model:
    half = (0.5, 0.5, 0.5)
    preprocess = Preprocess(size, half, half, crop_pct=0.9)
    classes = [f"class {at}" for at in range(10)]
    layout = layout_of(network, size) if tokens else None
    return peaky(Model(network.eval(), preprocess, classes, layout))


VITS = {
    "our ViT, two registers": lambda: loaded(
        ViT((64, 96), 8, dim=32, depth=2, heads=2, registers=2), (64, 96), tokens=True
    ),
    "timm, four registers": lambda: peaky(
        load_model(
            "timm:vit_small_patch14_reg4_dinov2", pretrained=False, image_size=(70, 112), depth=2
        )
    ),
}


@pytest.mark.parametrize("name", VITS)
def test_a_click_is_a_query(show: Any, name: str) -> None:
    model = VITS[name]()
    page = show(inspect(model, PHOTO, ["Rollout"]).html)
    page.wait_for_selector("html[data-ready]")
    assert model.layout is not None
    rows, columns = model.layout.grid
    left, top, right, bottom = page.evaluate("views[0].item.box")
    images = model.preprocess(PHOTO)[None]
    stage = page.locator(".stage")
    size = stage.bounding_box()
    for row, column, layer, head in [(0, 0, 0, 1), (rows - 1, columns - 2, 1, None)]:
        x, y = (column + 0.5) / columns, (row + 0.5) / rows
        page.evaluate(f"changeView(0, {{ layer: {layer}, head: {-1 if head is None else head} }})")
        stage.click(
            position={
                "x": (left + x * (right - left)) * size["width"],
                "y": (top + y * (bottom - top)) * size["height"],
            }
        )
        page.evaluate("new Promise((done) => setTimeout(done, 100))")
        shown = np.reshape(page.evaluate("[...views[0].scene.map.values]"), (rows, columns))
        query = QueryKey(query=(x, y), layer=layer, head=head)
        wanted = query(model.network, images).values[0].numpy()
        assert np.abs(shown - wanted).max() <= 0.01 * wanted.max()
        assert wanted.max() > 1.2 * wanted.mean()


OTHERS = {
    "SENet": lambda: loaded(SEResNet(10, widths=(8, 8, 16, 16), layers=(1, 1, 1, 1)), (32, 32)),
    "spatial CNN": lambda: loaded(SpatialCNN(10, widths=(8, 16)), (32, 48)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_networks_without_whole_attention_show_methods_and_gates(show: Any, name: str) -> None:
    model = OTHERS[name]()
    page = show(inspect(model, PHOTO).html)
    page.wait_for_selector("html[data-ready]")
    tabs = page.locator("[role=tab]").all_inner_texts()
    assert tabs == ["Similarity", "Components", "Methods", "Gates"]
    assert page.inner_text("[role=tab][aria-selected=true]") == "Methods"
    page.get_by_role("button", name="GradCAM", exact=True).click()
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    wanted = GradCAM()(model.network, model.preprocess(PHOTO)[None]).values[0]
    shown = torch.tensor(page.evaluate("[...views[0].scene.map.values]")).view_as(wanted)
    torch.testing.assert_close(shown, wanted, rtol=1e-3, atol=1e-6)
