"""The network's input as the page makes it, in Node, against Pillow and torchvision."""

from typing import Any

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from torch import nn

from vision_attn.data import Preprocess
from vision_attn.evaluate import BlurFill, FilledCells, MeanFill

RNG = np.random.default_rng(0)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Pillow before 13 rounds some pixels the other way: to the next of 256 levels.
LEVELS = 1e-6 if int(PIL.__version__.partition(".")[0]) >= 13 else 1.001 / 255 / min(STD)

PREPARE = """
const { how, size } = job;
return { image: prepare(read("photo.bin"), size, how), box: seenBox(size, how) };
"""
COVER = """
const image = new Float32Array(read("image.bin").buffer);
const cover = (filling) => withCells(image, job.size, job.grid, new Set(job.cells), filling);
return { grey: cover(null), blur: cover(blurred(image, job.size)) };
"""


def how_of(preprocess: Preprocess) -> dict[str, Any]:
    return {
        "input": preprocess.input_size,
        "mean": preprocess.mean,
        "std": preprocess.std,
        "crop": preprocess.crop_pct,
        "fit": preprocess.fit,
        "interpolation": preprocess.interpolation,
    }


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(
    ("size", "input_size", "crop", "fit"),
    [
        ((211, 157), (32, 32), 1.0, "crop"),
        ((101, 307), (40, 24), 0.875, "crop"),
        ((97, 61), (64, 80), 0.9, "squash"),
        ((19, 23), (48, 32), 1.0, "crop"),  # enlarged
        ((32, 48), (48, 32), 1.0, "crop"),  # as it is
        ((32, 64), (48, 32), 1.0, "squash"),  # of one side alone
        ((37, 37), (32, 32), 0.875, "crop"),  # nearly as it is, but cut
        ((36, 36), (32, 32), 0.875, "crop"),  # as it is, but cut
        ((36, 90), (32, 32), 0.875, "crop"),
        ((3, 1400), (400, 400), 1.0, "crop"),  # so long that it is resized in part
    ],
)
def test_pixels_are_pillows(
    in_node: Any,
    size: tuple[int, int],
    input_size: tuple[int, int],
    crop: float,
    fit: str,
    interpolation: str,
) -> None:
    preprocess = Preprocess(input_size, MEAN, STD, crop, interpolation, fit)
    noise = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    opaque = np.concatenate([noise, np.full((*noise.shape[:2], 1), 255, np.uint8)], 2)
    contents = {"photo.bin": opaque.tobytes()}
    found = in_node(["photo.js"], PREPARE, contents, how=how_of(preprocess), size=size)
    assert found["box"] == pytest.approx(preprocess.box(size), abs=1e-9)
    wanted = preprocess(Image.fromarray(noise)).permute(1, 2, 0).flatten()
    torch.testing.assert_close(torch.tensor(found["image"]), wanted, atol=LEVELS, rtol=0)


@pytest.mark.parametrize("size", [(32, 48), (14, 9)])
def test_covered_cells_are_those_that_scores_remove(in_node: Any, size: tuple[int, int]) -> None:
    grid, cells = (4, 3), [0, 5, 7, 11]
    image = torch.randn(1, 3, *size)
    contents = {"image.bin": image[0].permute(1, 2, 0).contiguous().numpy().tobytes()}
    found = in_node(["photo.js"], COVER, contents, size=size, grid=grid, cells=cells)
    kept = [cell for cell in range(12) if cell not in cells]
    order = torch.tensor([kept + cells])
    for name, fill in (("grey", MeanFill()), ("blur", BlurFill())):
        removal = FilledCells(nn.Flatten(), grid, fill)
        wanted = removal.logits(image, order, [len(kept)]).view_as(image)[0]
        shown = torch.tensor(found[name]).view(*size, 3).permute(2, 0, 1)
        torch.testing.assert_close(shown, wanted, atol=2e-6, rtol=0)
