"""Swin on the page: window attention from a click, beside float64 through timm's own windows.

Axes: head, n and h w tokens of a layer, window, i queries, j keys, c channels.
"""

import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from timm.models import swin_transformer
from torch import nn
from torch.nn import functional as F

from vision_attn.data.preprocess import Preprocess
from vision_attn.methods import Rollout
from vision_attn.models import SEResNet, ViT
from vision_attn.pages.inspect import Windows
from vision_attn.pages.inspect.coding import Rows
from vision_attn.pages.inspect.inspection import Look, inspect
from vision_attn.tokens import layout_of
from vision_attn.types import Model

from .conftest import link_of

RNG = np.random.default_rng(0)
PHOTO = Image.fromarray(RNG.integers(0, 256, (5, 9, 3), dtype=np.uint8)).resize((360, 200))
SMALL: dict[str, Any] = {"embed_dim": 12, "depths": (2, 2), "num_heads": (2, 3), "num_classes": 5}


def timm_swin(name: str, size: tuple[int, int], **options: Any) -> Callable[..., Any]:
    return lambda: (timm.create_model(name, img_size=size, **SMALL, **options), size)


SWIN, SWIN_V2 = "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"
SWINS = {
    "17x25, merged to 9x13": timm_swin(SWIN, (68, 100), window_size=5),
    # timm pads after the shift: the edges meet before the seam of its mask, and attend to each other
    "18x13, where edges meet unmasked": timm_swin(SWIN, (72, 52), window_size=5),
    "windows larger than the grids": timm_swin(SWIN, (28, 44), window_size=7),
    "v2": timm_swin(SWIN_V2, (68, 100), window_size=5),
    "torchvision": lambda: (
        torchvision.models.SwinTransformer([4, 4], 12, [2, 2], [2, 4], [5, 5], num_classes=5),
        (68, 100),
    ),
    "torchvision, windows larger than the grids": lambda: (
        torchvision.models.SwinTransformer([4, 4], 12, [2, 2], [2, 4], [7, 7], num_classes=5),
        (28, 44),
    ),
}


def load(make: Callable[[], tuple[nn.Module, tuple[int, int]]]) -> Model:
    torch.manual_seed(0)
    network, size = make()
    for name, weight in network.named_parameters():
        if weight.ndim > 1 and "scale" not in name:  # so that attention differs from even
            weight.data *= 20 if "bias_table" in name else 4
    half = (0.5, 0.5, 0.5)
    classes = [f"class {at}" for at in range(5)]
    preprocess = Preprocess(size, half, half, crop_pct=0.9)
    try:
        layout = layout_of(network, size)
    except ValueError:
        layout = None
    return Model(network.eval(), preprocess, classes, layout)


def timm_windows(x: torch.Tensor, block: Any) -> torch.Tensor:
    """1 h w c -> window i c, as timm's block does it."""
    rows, columns = block.window_size
    x = x.roll((-block.shift_size[0], -block.shift_size[1]), (1, 2))
    x = F.pad(x, (0, 0, 0, -x.shape[2] % columns, 0, -x.shape[1] % rows))
    return swin_transformer.window_partition(x, (rows, columns)).flatten(1, 2)


def timm_back(windows: torch.Tensor, block: Any, h: int, w: int) -> torch.Tensor:
    rows, columns = block.window_size
    windows = windows.unflatten(1, (rows, columns))
    x = swin_transformer.window_reverse(windows, (rows, columns), h + -h % rows, w + -w % columns)
    return x[:, :h, :w].roll(tuple(block.shift_size), (1, 2))


def torchvision_shift(h: int, w: int, attn: Any) -> tuple[int, ...]:
    return tuple(
        0 if window >= side + -side % window else shift
        for side, window, shift in zip((h, w), attn.window_size, attn.shift_size, strict=True)
    )


def torchvision_windows(x: torch.Tensor, block: Any) -> torch.Tensor:
    (rows, columns), (_, h, w, _) = block.attn.window_size, x.shape
    down, right = torchvision_shift(h, w, block.attn)
    x = F.pad(x, (0, 0, 0, -w % columns, 0, -h % rows)).roll((-down, -right), (1, 2))
    return x.unfold(1, rows, rows).unfold(2, columns, columns)[0].flatten(0, 1).permute(
        0, 2, 3, 1
    ).flatten(1, 2)  # fmt: skip


def torchvision_back(windows: torch.Tensor, block: Any, h: int, w: int) -> torch.Tensor:
    rows, columns = block.attn.window_size
    across = -(-w // columns)
    grid = windows.unflatten(1, (rows, columns)).unflatten(0, (-1, across))
    x = torch.cat([torch.cat(list(line), 1) for line in grid], 0)[None]
    return x.roll(torchvision_shift(h, w, block.attn), (1, 2))[:, :h, :w]


def formula(x: torch.Tensor, block: Any) -> torch.Tensor:
    """softmax(q k' / sqrt(d) + bias + mask) of the normalised tokens 1 h w c: window head i j."""
    attn, tokens = block.attn, timm_windows(x, block)
    q, k, _ = attn.qkv(tokens).unflatten(2, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    bias = attn.relative_position_bias_table[attn.relative_position_index].permute(2, 0, 1)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    if block.attn_mask is not None:
        scores = scores + block.attn_mask[:, None]
    return scores.softmax(-1)


def exact_maps(network: Any, images: torch.Tensor, monkeypatch: Any) -> list[torch.Tensor]:
    """Each layer's maps in float64, n head h w: what each token gives to every other."""
    network = network.double()
    of_torchvision = "torchvision" in type(network).__module__
    into, back = (
        (torchvision_windows, torchvision_back) if of_torchvision else (timm_windows, timm_back)
    )
    blocks = [one for one in network.modules() if "Block" in type(one).__name__]
    inputs: list[torch.Tensor] = []
    made: list[torch.Tensor] = []
    hooks = [
        block.attn.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        if of_torchvision
        else block.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        for block in blocks
    ]
    softmax = F.softmax

    def kept(x: torch.Tensor, dim: int | None = None, **_: Any) -> torch.Tensor:
        made.append(softmax(x, dim))
        return made[-1]

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(F, "softmax", kept)
        network(images.double())
    for hook in hooks:
        hook.remove()
    maps = []
    with torch.no_grad():
        for block, x, own in zip(blocks, inputs, made, strict=True):
            _, h, w, _ = x.shape
            first = type(network) is swin_transformer.SwinTransformer
            weights = formula(block.norm1(x), block) if first else own
            torch.testing.assert_close(weights, own)
            numbers = torch.arange(1.0, h * w + 1).double().view(1, h, w, 1)
            found = torch.zeros(h * w, weights.shape[1], h, w).double()
            for window, places in enumerate(into(numbers, block)[..., 0].long().tolist()):
                for place, number in enumerate(places):
                    if number:  # 0 is padding
                        alone = torch.zeros(len(weights), *weights.shape[:0:-1][1:]).double()
                        alone[window] = weights[window, :, place].mT
                        found[number - 1] = back(alone, block, h, w)[0].permute(2, 0, 1)
            maps.append(found)
    network.float()
    return maps


@pytest.fixture(params=SWINS)
def model(request: pytest.FixtureRequest) -> Model:
    return load(SWINS[request.param])


def test_the_rows_are_window_attention_in_float64(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = Look("swin", model, ["Rollout"]).at(PHOTO).layers
    exact = exact_maps(model.network, model.preprocess(PHOTO)[None], monkeypatch)
    assert len(layers) == len(exact) == 4
    for layer, maps in zip(layers, exact, strict=True):
        assert isinstance(layer, Windows)
        n, heads, h, w = maps.shape
        assert layer.grid == (h, w)
        window, _ = layer.where
        for head in range(heads):
            coded = Rows.of(layer.rows()[head]).weights()  # as the page reads them
            shown = np.zeros((n, n + 1))
            for token in range(n):
                np.add.at(shown[token], layer.places[window[token]], coded[token])
            wanted = maps[:, head].reshape(n, n).numpy()
            padding = 1 - wanted.sum(1)
            assert np.abs(shown[:, n] - padding).max() < 0.02
            largest = np.maximum(wanted.max(1), padding)
            assert (np.abs(shown[:, :n] - wanted).max(1) / largest).max() < 0.006
            assert wanted.max() > 2 * wanted[wanted > 1e-9].mean()  # not even
        neighbours = maps.amax(1).reshape(n, n) > 1e-20
        for token, (at, place) in enumerate(zip(*layer.where, strict=True)):
            same = layer.places[at][layer.regions[at] == layer.regions[at, place]]
            assert sorted(same[same < n]) == neighbours[token].nonzero().flatten().tolist()


def sides(x: float, y: float, layout: Any, merged: int) -> tuple[int, int]:
    return int(y * layout.grid[0]) // merged, int(x * layout.grid[1]) // merged


def click(page: Any, x: float, y: float) -> None:
    """At (x, y) in 0..1 of what the model sees."""
    left, top, right, bottom = page.evaluate("views[0].item.box")
    stage = page.locator(".stage")
    size = stage.bounding_box()
    stage.click(
        position={
            "x": (left + x * (right - left)) * size["width"],
            "y": (top + y * (bottom - top)) * size["height"],
        }
    )
    page.evaluate("new Promise((done) => setTimeout(done, 100))")


HINT = "Click the photo to see what that place attends to"


@pytest.mark.browser
@pytest.mark.slow
def test_a_click_shows_the_window_of_that_place_in_every_layer(
    show: Any, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = show(inspect(model, PHOTO, ["Rollout"]).html)
    page.wait_for_selector("html[data-ready]")
    rollout = Rollout()(model.network, model.preprocess(PHOTO)[None]).values[0]
    exact = exact_maps(model.network, model.preprocess(PHOTO)[None], monkeypatch)
    assert page.inner_text(".hint") == f"{HINT}, inside the window outlined."
    for x, y in [(0.02, 0.02), (0.985, 0.985), (0.55, 0.4)]:
        click(page, x, y)
        assert not page.locator(".hint").is_visible()
        for layer, maps in enumerate(exact):
            head = layer % 2
            page.evaluate(f"changeView(0, {{ layer: {layer}, head: {head} }})")
            page.evaluate("new Promise((done) => setTimeout(done, 60))")
            _, _, h, w = maps.shape
            row, column = sides(x, y, model.layout, 1 if layer < 2 else 2)
            wanted = maps[row * w + column, head].numpy()
            scene = "views[0].scene"
            shown = np.reshape(page.evaluate(f"[...{scene}.map.values]"), (h, w))
            assert np.abs(shown - wanted).max() <= 0.006 * max(wanted.max(), 1 - wanted.sum())
            inside = np.reshape(page.evaluate(f"[...{scene}.map.inside]"), (h, w))
            around = maps[row * w + column].amax(0).numpy() > 1e-20
            assert np.array_equal(inside == 1, around)
            assert_outlined(page, around)
            assert page.evaluate(f"{scene}.place") == [row, column]
            facts = page.inner_text(".readout")
            assert f"from row {row}, column {column}" in facts
            assert f"grid {h} × {w}" in facts
            rows = re.findall(r"rows (.*), columns", facts)[0]
            assert numbers_in(rows) == np.flatnonzero(around.any(1)).tolist()
            assert "QueryKey" not in facts  # from Python it asks a token of the last layer
    page.get_by_role("tab", name="Methods").click()
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    shown = torch.tensor(page.evaluate("[...views[0].scene.map.values]")).view_as(rollout)
    torch.testing.assert_close(shown, rollout, rtol=1e-3, atol=1e-7)


def numbers_in(runs: str) -> list[int]:
    """0–2, 7 -> 0, 1, 2, 7"""
    ends = [list(map(int, run.split("–"))) for run in runs.split(", ")]
    return [number for run in ends for number in range(run[0], run[-1] + 1)]


def assert_outlined(page: Any, inside: np.ndarray) -> None:
    """White on every side between a cell inside and one that is not, and clear elsewhere."""
    h, w = inside.shape
    cell = 20
    drawn = page.evaluate(
        """([width, height]) => {
          const canvas = make("canvas", { width, height });
          const { grid, inside } = views[0].scene.map;
          const all = [0, 0, width, height];
          drawOutline(canvas.getContext("2d"), new Cells(grid, all, all), inside);
          const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
          return btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""));
        }""",  # a list of numbers would take seconds on its way
        [w * cell, h * cell],
    )
    drawn = np.frombuffer(b64decode(drawn), np.uint8).reshape(h * cell, w * cell, 4)
    cells = np.pad(inside, 1).astype(int)
    middle = np.arange(max(h, w)) * cell + cell // 2
    for row in range(h + 1):
        line = drawn[min(row * cell, h * cell - 1), middle[:w]]
        wanted = cells[row, 1:-1] != cells[row + 1, 1:-1]
        assert np.array_equal(line[:, 3] > 200, wanted)
        assert (line[wanted, 0] > 200).all()
    for column in range(w + 1):
        line = drawn[middle[:h], min(column * cell, w * cell - 1)]
        wanted = cells[1:-1, column] != cells[1:-1, column + 1]
        assert np.array_equal(line[:, 3] > 200, wanted)
    assert not drawn[middle[:h]][:, middle[:w], 3].any()


@pytest.mark.browser
def test_the_arrow_keys_move_by_the_tokens_of_the_layer(show: Any) -> None:
    page = show(inspect(load(SWINS["17x25, merged to 9x13"]), PHOTO, ["Rollout"]).html)
    page.wait_for_selector("html[data-ready]")
    page.evaluate("changeView(0, { layer: 3 })")
    page.locator(".stage").focus()
    places = []
    for key in ["ArrowRight"] * 8 + ["ArrowDown"] * 6:
        page.keyboard.press(key)
        page.evaluate("new Promise((done) => setTimeout(done, 60))")
        places.append(page.evaluate("views[0].scene.place"))
    assert places[:8] == [[4, column] for column in (7, 8, 9, 10, 11, 12, 12, 12)]
    assert places[8:] == [[row, 12] for row in (5, 6, 7, 8, 8, 8)]
    assert not page.locator(".hint").is_visible()
    page.get_by_role("button", name="Entropy").click()
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert page.locator("circle.here").count() == 2 * 2 + 2 * 3


@pytest.mark.browser
def test_the_hint_goes_with_the_first_click_and_stays_gone_in_the_link(show: Any) -> None:
    vit = load(lambda: (ViT((32, 48), 8, 5, dim=12, depth=2, heads=2), (32, 48)))
    html = inspect(vit, PHOTO, ["Rollout"]).html
    page = show(html)
    page.wait_for_selector("html[data-ready]")
    assert page.inner_text(".hint") == f"{HINT}."
    page.get_by_role("tab", name="Methods").click()
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert not page.locator(".hint").is_visible()
    page.get_by_role("tab", name="Attention").click()
    click(page, 0.5, 0.5)
    assert not page.locator(".hint").is_visible()
    again = show(html, link_of(page))
    again.wait_for_selector("html[data-ready]")
    assert not again.locator(".hint").is_visible()


CLICKLESS = {
    "a CNN": (
        lambda: (SEResNet(5, widths=(8, 8, 16, 16), layers=(1, 1, 1, 1)), (32, 32)),
        "SEResNet: no attention was found: no matrix product of values with weights that sum to 1",
    ),
    "channels": (
        lambda: (
            timm.create_model("xcit_nano_12_p16_224", img_size=64, depth=2, num_classes=5),
            (64, 64),
        ),
        "Xcit: the keys of attention call 0 (blocks.0.attn) are not one token each (32 of them, made "
        "of 1): linear attention, or attention over channels",
    ),
    "places unknown": (
        lambda: (timm.create_model("swinv2_cr_tiny_224", img_size=(64, 96), **SMALL), (64, 96)),
        "SwinTransformerV2Cr: how its tokens lie on the image is not known",
    ),
}


@pytest.mark.browser
@pytest.mark.parametrize("name", CLICKLESS)
def test_a_network_without_a_click_says_why(show: Any, name: str) -> None:
    make, reason = CLICKLESS[name]
    page = show(inspect(load(make), PHOTO, ["GradCAM"]).html)
    page.wait_for_selector("html[data-ready]")
    assert page.inner_text(".hint") == f"Nothing to click here. {reason}."
    assert "asks" not in page.locator(".stage").get_attribute("class")


def test_other_windows_than_the_blocks_describe_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(SWINS["17x25, merged to 9x13"])
    block = model.network.layers[1].blocks[0]
    monkeypatch.setattr(block, "window_size", (3, 3))
    monkeypatch.setattr(
        block,
        "_attn",
        lambda x: swin_transformer.SwinTransformerBlock._attn(cast(Any, Other(block)), x),
    )
    shown = Look("swin", model, ["GradCAM"]).at(PHOTO)
    assert not shown.layers
    assert "attended in" in shown.no_click
    assert "give the layout" in shown.no_click


class Other:
    """A block as it is, but for its window."""

    window_size, shift_size, window_area = (5, 5), (0, 0), 25

    def __init__(self, block: nn.Module):
        self.block = block

    def __getattr__(self, name: str) -> Any:
        return getattr(self.block, name)
