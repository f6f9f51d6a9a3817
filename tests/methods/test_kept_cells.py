"""Maps of networks that leave some of the image out on their way, where their tokens lie.

The oracle is the same network given an image that is made of the kept patches alone.

Axes: b batch, d width, h rows and w columns of patches.
"""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.methods import (
    Explainer,
    GradCAM,
    HiResCAM,
    LibraGradient,
    QueryKey,
    RawAttention,
    Rollout,
)
from vision_attn.methods.smoothing import smoothed
from vision_attn.pages.gallery.drawing import _map
from vision_attn.render import Scale
from vision_attn.runs.maps import Map
from vision_attn.tokens.gradients.levels import find_levels
from vision_attn.tokens.gradients.windows import takes_parts
from vision_attn.types import Heatmaps, Model, TokenLayout

PATCH, H, W, D = 5, 5, 7, 14
IMAGES = torch.rand(2, 3, H * PATCH, W * PATCH, generator=torch.Generator().manual_seed(0))
Cut = Callable[[Any], Any]
ROWS, COLUMNS = range(H), range(W)
KEPT: dict[str, tuple[Cut, list[int], list[int]]] = {
    "every second column": (lambda x: x[:, :, :, ::2], [*ROWS], [0, 2, 4, 6]),
    "the other columns": (lambda x: x[:, :, :, 1::2], [*ROWS], [1, 3, 5]),
    "no border": (lambda x: x[:, :, 1:-1, 1:-1], [1, 2, 3], [1, 2, 3, 4, 5]),
    "the top": (lambda x: x[:, :, :3], [0, 1, 2], [*COLUMNS]),
    "the right half": (lambda x: x.narrow(3, 3, 4), [*ROWS], [3, 4, 5, 6]),
    "some rows": (lambda x: x.index_select(2, torch.tensor([1, 3, 4])), [1, 3, 4], [*COLUMNS]),
    "every second of both": (lambda x: x[:, :, ::2, 1::2], [0, 2, 4], [1, 3, 5]),
    "a negative padding": (lambda x: F.pad(x, (-1, 0, 0, -2)), [0, 1, 2], [1, 2, 3, 4, 5, 6]),
}
CROPS = [name for name, (_, rows, columns) in KEPT.items() if "second" not in name]
METHODS: list[Explainer] = [
    LibraGradient(smooth=0),
    LibraGradient(),
    Rollout(),
    RawAttention(),
    HiResCAM(),
    GradCAM(smooth=1.0),
]


def whole(x: Any) -> Any:
    return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = nn.MultiheadAttention(D, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(D, 11), nn.GELU(), nn.Linear(11, D))

    def forward(self, x: Any) -> Any:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Cropping(nn.Module):
    """A transformer without positions that keeps some patches before or between its blocks."""

    def __init__(self, before: Cut = whole, between: Cut = whole, pixels: Cut = whole) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.before, self.between, self.pixels = before, between, pixels
        self.stem = nn.Conv2d(3, D, PATCH, PATCH)
        self.first, self.second = Block(), Block()
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 3)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=1.5 / weight[0].numel() ** 0.5)

    def forward(self, images: torch.Tensor) -> Any:
        patches = self.before(self.stem(self.pixels(images)))
        x = self.first(patches.flatten(2).mT)
        x = self.between(x.mT.unflatten(2, tuple(patches.shape[2:])))
        return self.head(self.norm(self.second(x.flatten(2).mT)).mean(1))


def kept_pixels(rows: list[int], columns: list[int]) -> torch.Tensor:
    cells = IMAGES.unflatten(3, (W, PATCH)).unflatten(2, (H, PATCH))
    return cells[:, :, rows][:, :, :, :, columns].flatten(4, 5).flatten(2, 3)


def laid(part: torch.Tensor, rows: list[int], columns: list[int]) -> torch.Tensor:
    values = torch.zeros(len(part), H, W)
    values[:, torch.tensor(rows)[:, None], columns] = part
    return values


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("name", KEPT)
def test_a_map_lies_where_the_kept_tokens_lie(name: str, method: Explainer) -> None:
    cut, rows, columns = KEPT[name]
    expected = method(Cropping().eval(), kept_pixels(rows, columns), 1)
    assert expected.left_out is None
    maps = method(Cropping(before=cut).eval(), IMAGES, 1)
    torch.testing.assert_close(maps.values, laid(expected.values, rows, columns))
    kept = laid(torch.ones_like(expected.values[:1]), rows, columns)[0]
    assert maps.left_out is not None
    assert torch.equal(maps.left_out, kept == 0)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("name", ["no border", "the top", "the right half"])
def test_an_image_that_the_network_crops_itself(name: str, method: Explainer) -> None:
    _, rows, columns = KEPT[name]
    top, left = PATCH * rows[0], PATCH * columns[0]
    height, width = PATCH * len(rows), PATCH * len(columns)
    network = Cropping(pixels=lambda x: x[:, :, top : top + height, left : left + width])
    expected = method(Cropping().eval(), kept_pixels(rows, columns), 1)
    maps = method(network.eval(), IMAGES, 1)
    torch.testing.assert_close(maps.values, laid(expected.values, rows, columns))


@pytest.mark.parametrize("name", KEPT)
def test_tokens_dropped_between_blocks_leave_the_one_patch_that_matters(name: str) -> None:
    """Nothing is mixed and nothing is added: a black patch has no share."""
    cut, rows, columns = KEPT[name]
    network = Cropping(between=cut).eval()
    for parameter, weight in network.named_parameters():
        if "bias" in parameter or "out_proj" in parameter:
            nn.init.zeros_(weight)
    for row, column in ((rows[1], columns[-1]), (4, 2)):
        image = torch.zeros(1, 3, H * PATCH, W * PATCH)
        here = (slice(PATCH * i, PATCH * (i + 1)) for i in (row, column))
        image[(slice(None), slice(None), *here)] = 1.0
        values = LibraGradient(smooth=0)(network, image, 1).values[0]
        alone = torch.zeros_like(values).bool()
        alone[row, column] = row in rows and column in columns
        assert torch.equal(values.abs() > 1e-6, alone)
        values = HiResCAM()(network, image, 1).values[0]
        assert not values[~alone].any()


class Convolutions(nn.Module):
    """Without biases, so that the features of a black image are 0; strides of 8 pixels."""

    def __init__(self, cut: Cut, of: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cut, self.of = cut, of
        sizes = [(3, 8, 2), (8, 8, 2), (8, 12, 2), (12, 12, 1)]
        self.layers = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride, 1, bias=False) for before, after, stride in sizes
        )
        self.head = nn.Linear(12, 3)
        for layer in self.layers:
            nn.init.uniform_(layer.weight)

    def forward(self, x: Any) -> Any:
        for index, layer in enumerate(self.layers):
            x = F.relu(layer(self.cut(x) if index == self.of else x))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("of", [0, 1, 2, 3])
@pytest.mark.parametrize("method", [LibraGradient(smooth=0), HiResCAM()], ids=str)
@pytest.mark.parametrize("edges", [(0.25, 0.75, 0.25, 0.75), (0, 0.5, 0, 1), (0, 1, 0.5, 1)])
def test_features_of_a_crop_lie_in_it(
    edges: tuple[float, float, float, float], method: Explainer, of: int
) -> None:
    def crop(x: Any) -> Any:
        h, w = x.shape[2:]
        top, bottom, left, right = edges
        return x[:, :, int(top * h) : int(bottom * h), int(left * w) : int(right * w)]

    network = Convolutions(crop, of).eval()
    image = torch.zeros(1, 3, 64, 96)
    row, column = 3, 7
    image[:, :, 8 * row - 1 : 8 * row + 2, 8 * column - 1 : 8 * column + 2] = 1.0
    maps = method(network, image, lambda logits: logits.abs().sum(1))
    assert maps.values.shape == (1, 8, 12)
    assert divmod(int(maps.values.abs().argmax()), 12) == (row, column)
    assert maps.left_out is not None
    assert int((~maps.left_out).sum()) == round(96 * (edges[1] - edges[0]) * (edges[3] - edges[2]))


def test_windows_are_looked_for_only_where_a_part_of_a_value_is_taken() -> None:
    plain, cropping = Convolutions(whole, 1), Convolutions(lambda x: x[:, :, 1:], 1)
    for network in (plain, cropping):
        assert takes_parts(network, IMAGES)  # as far as is known before a run
        GradCAM()(network, IMAGES)
    assert not takes_parts(plain, IMAGES)
    assert takes_parts(cropping, IMAGES)
    assert takes_parts(plain, IMAGES[:, :, :-1])  # another size may be cropped


def test_a_layout_that_is_given_is_of_the_tokens_alone() -> None:
    network = Cropping(between=KEPT["no border"][0]).eval()
    layout = TokenLayout(0, (H, W), "mean")
    assert Rollout()(network, IMAGES, layout=layout).left_out is None
    network = Cropping(before=KEPT["no border"][0]).eval()
    layout = TokenLayout(0, (3, 5), "mean")
    maps = LibraGradient()(network, IMAGES, 1, layout=layout)
    assert (maps.values.shape, maps.left_out) == ((2, 3, 5), None)


def test_a_query_is_in_a_cell_that_has_a_token() -> None:
    cut, rows, columns = KEPT["no border"]
    network = Cropping(before=cut).eval()
    pixel = (PATCH * columns[3] + 2, PATCH * rows[1] + 1)
    within = (PATCH * 3 + 2, PATCH * 1 + 1)
    expected = QueryKey(query=within)(Cropping().eval(), kept_pixels(rows, columns))
    maps = QueryKey(query=pixel)(network, IMAGES)
    torch.testing.assert_close(maps.values, laid(expected.values, rows, columns))
    message = r"row 0 and column 2 of the image, and the network takes rows 1 to 3 and columns 1 to"
    with pytest.raises(ValueError, match=message):
        QueryKey(query=(PATCH * 2, 0))(network, IMAGES)


def test_nothing_is_left_out_where_tokens_are_of_all_of_it() -> None:
    """LeViT's queries are every second token, of all keys; others pad maps, and cut that off."""
    for name in ("levit_128s", "nest_tiny", "halonet26t"):
        network = timm.create_model(name, num_classes=3).eval()
        size = network.default_cfg["input_size"][-1]
        levels = find_levels(network, torch.rand(1, 3, size, size)).levels
        assert levels
        assert not any(level.part for level in levels)
    network = Cropping(pixels=lambda x: F.pad(x, (0, PATCH))[:, :, :, :-PATCH]).eval()
    assert LibraGradient()(network, IMAGES, 1).left_out is None
    network = Cropping(pixels=lambda x: x[:, :, 2:-3, :]).eval()  # half a cell on either side
    assert LibraGradient()(network, IMAGES, 1).values.shape == (2, 4, 7)


def test_smoothing_stays_among_the_rows_and_columns_that_are_there() -> None:
    left_out = torch.ones(H, W).bool()
    left_out[1:4, ::2] = False
    values = torch.rand(2, H, W).masked_fill(left_out, 0)
    smooth = smoothed(values, 1.0, left_out)
    part = smoothed(values[:, 1:4, ::2], 1.0)
    torch.testing.assert_close(smooth[:, 1:4, ::2], part)
    assert not smooth[:, left_out].any()
    torch.testing.assert_close(smooth.sum((1, 2)), values.sum((1, 2)))


def test_a_caption_says_what_was_left_out() -> None:
    cut = KEPT["no border"][0]
    maps = Rollout()(Cropping(before=cut).eval(), IMAGES)
    assert maps.left_out is not None
    values, left_out = maps.values[0].numpy(), maps.left_out.numpy()
    found = Map(Rollout(), values, Scale(top=1.0), left_out=left_out)
    assert found.caution == "Rollout: the network leaves out 20 of 35 cells, where the map is 0"
    again = found.heatmaps().left_out
    assert again is not None
    assert torch.equal(again, maps.left_out)
    assert Map(Rollout(), values, Scale(top=1.0)).caution == ""
    with pytest.raises(ValueError, match=r"left_out must have shape \(5, 7\), got \(3, 5\)"):
        Heatmaps(maps.values, "Rollout", left_out=maps.left_out[1:4, 1:6])
    coarse = maps.resized(10, 14).left_out
    assert coarse is not None
    assert int(coarse.sum()) == 4 * 20


def cropping_model() -> Model:
    preprocess = Preprocess((H * PATCH, W * PATCH), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    return vision_attn.wrap(Cropping(before=KEPT["no border"][0]).eval(), preprocess)


def photo_in(folder: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    return folder / "photo.png"


def test_a_page_to_inspect_says_what_was_left_out(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    vision_attn.inspect(cropping_model(), photo_in(tmp_path), ["Rollout", "EdgeMap"], output=page)
    said = "the network leaves out 20 of 35 cells, where the map is 0."
    assert page.read_text(encoding="utf-8").count(said) == 1


def test_results_keep_what_was_left_out(tmp_path: Path) -> None:
    model, photo = cropping_model(), photo_in(tmp_path)
    (explained,) = model.explain(photo, Rollout()).maps
    vision_attn.gallery(
        model, tmp_path, ["Rollout", "EdgeMap"], output=tmp_path / "out", save="maps"
    )
    with vision_attn.open_results(tmp_path / "out") as results:
        row, whole = results
        inside = {W * y + x for y in (1, 2, 3) for x in (1, 2, 3, 4, 5)}
        assert row["left_out"] == sorted({*range(H * W)} - inside)
        assert "left_out" not in whole
        again = _map(Rollout(), results.map(0), model, row)
        assert again.caution == explained.caution != ""
        if find_spec("pyarrow"):
            assert json.loads(results.table().to_pylist()[0]["left_out"]) == row["left_out"]
