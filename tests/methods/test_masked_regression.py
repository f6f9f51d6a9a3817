"""MaskedRegression: known weights come back, and the fit is the Gaussian process's by formulas written apart."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import MaskedRegression
from vision_attn.methods.attribution import cell_grid
from vision_attn.methods.masked_regression import NOISES, OWN, weights
from vision_attn.types import TokenLayout


class Additive(nn.Module):
    """Class 1 weighs the brightness of each of 5 x 7 cells by a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.Parameter(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = F.adaptive_avg_pool2d(images.mean(1), (5, 7))
        logit = (self.cells * seen).sum((1, 2)) + 3
        return torch.stack([-logit, logit], 1)


IMAGES = torch.rand(3, 3, 15, 21, generator=torch.Generator().manual_seed(1)) + 0.5
LAYOUT = TokenLayout(0, (5, 7), "mean")


def test_of_an_additive_network_each_cell_gets_what_it_adds() -> None:
    network = Additive()
    maps = MaskedRegression(samples=512)(network, IMAGES, 1, LAYOUT)
    expected = network.cells * F.adaptive_avg_pool2d(IMAGES.mean(1), (5, 7))
    torch.testing.assert_close(maps.values, expected.detach(), rtol=0, atol=0.02)
    other = MaskedRegression(samples=512)(network, IMAGES, 0, LAYOUT)
    torch.testing.assert_close(other.values, -maps.values, rtol=0, atol=1e-5)


def test_the_map_sums_to_what_all_cells_add() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(20, 7)
    )
    maps = MaskedRegression(samples=32)(network, IMAGES, [1, 4, 6], LAYOUT)
    change = network(IMAGES) - network(torch.zeros_like(IMAGES))
    torch.testing.assert_close(maps.values.sum((1, 2)), change[[0, 1, 2], [1, 4, 6]])


def covariance(y: int, x: int) -> torch.Tensor:
    places = [(i, j) for i in range(y) for j in range(x)]
    near = [[-((a - c) ** 2 + (b - d) ** 2) / 2 for c, d in places] for a, b in places]
    return torch.tensor(near, dtype=torch.float64).exp() + OWN * torch.eye(y * x)


def test_the_fit_is_the_process_of_the_likeliest_noise() -> None:
    """By generalised least squares with a mean for each count, instead of contrasts."""
    shown = MaskedRegression(samples=2 * 37).shown((3, 5))
    torch.manual_seed(2)
    truth = torch.randn(3, 15, dtype=torch.float64)
    noise = torch.tensor([[0.01], [0.5], [5.0]]) * torch.randn(3, 37, dtype=torch.float64)
    a, k = shown.flatten(1).double(), covariance(3, 5)
    answers = truth @ a.T + noise
    counts = shown.flatten(1).sum(1)
    means = (counts[:, None] == counts.unique()).double()
    assert means.shape == (37, 4)
    found = weights(shown, answers + 7 * counts)  # what the count adds is no cell's

    free = 37 - 4
    within = a - means @ torch.linalg.lstsq(means, a).solution
    unit = (within @ k @ within.T).trace() / free
    chosen = []
    for image in range(3):
        fits, likelihoods = [], []
        for scale in NOISES:
            inverse = torch.linalg.inv(a @ k @ a.T + scale * unit * torch.eye(37))
            weighed = means.T @ inverse @ means
            p = inverse - inverse @ means @ torch.linalg.inv(weighed) @ means.T @ inverse
            fits.append(k @ a.T @ p @ answers[image])
            variance = answers[image] @ p @ answers[image] / free
            logs = free * variance.log() - inverse.logdet() + weighed.logdet()
            likelihoods.append(-logs / 2)
        best = torch.stack(likelihoods).argmax()
        chosen.append(float(NOISES[best]))
        torch.testing.assert_close(found[image].flatten(), fits[best], rtol=1e-5, atol=1e-8)
    assert chosen[0] < chosen[1] < chosen[2]


def test_samples_show_at_most_half_in_blobs() -> None:
    shown = MaskedRegression(samples=600).shown((9, 13))
    assert shown.shape == (300, 9, 13)
    counts = shown.flatten(1).sum(1)
    expected = {round(117 * level / 16) for level in range(1, 9)}
    assert set(counts.tolist()) == expected
    assert (torch.bincount(counts)[sorted(expected)] >= 37).all()
    share = shown.double().mean(0)
    assert share.min() > 0.15  # every cell, 9/32 on average
    assert share.max() < 0.45
    alike = (
        (shown[:, 1:] == shown[:, :-1]).double().mean(),
        (shown == shown.flip(1)).double().mean(),
    )
    assert alike[0] > alike[1] + 0.1
    torch.testing.assert_close(MaskedRegression(samples=600).shown((9, 13)), shown)
    assert not torch.equal(MaskedRegression(samples=600, seed=1).shown((9, 13)), shown)


def test_a_sample_and_its_complement_are_the_image_cell_by_cell() -> None:
    seen = []

    class Watch(Additive):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(images)
            return super().forward(images)

    MaskedRegression(samples=10, rows=3)(Watch(), IMAGES[:1], 1, LAYOUT)
    samples = torch.cat(seen)[-10:]  # after the image, the hidden one, and where its tokens lie
    assert len(torch.cat(seen)) == 10 + 3
    assert all(len(batch) <= 3 for batch in seen)
    torch.testing.assert_close(samples[:5] + samples[5:], IMAGES[:1].expand(5, -1, -1, -1))
    hidden = (samples == 0).all(1).view(10, 5, 3, 7, 3)
    assert (hidden == hidden[:, :, :1, :, :1]).all(), "a cell is hidden whole"
    assert hidden[:5, :, 0, :, 0].sum((1, 2)).tolist() == [17] * 5  # 18 of 35 are shown


@pytest.mark.parametrize(
    ("size", "layout", "cells", "grid"),
    [
        ((224, 224), None, 0, (14, 14)),
        ((112, 168), None, 0, (14, 21)),
        ((64, 32), None, 0, (16, 8)),
        ((64, 32), None, 5, (10, 5)),
        ((160, 160), TokenLayout(1, (10, 10), "cls"), 0, (10, 10)),
        ((160, 160), TokenLayout(1, (10, 10), "cls"), 7, (7, 7)),
        ((518, 518), TokenLayout(1, (37, 37), "cls"), 0, (14, 14)),
    ],
)
def test_cells(
    size: tuple[int, int], layout: TokenLayout | None, cells: int, grid: tuple[int, int]
) -> None:
    assert cell_grid(MaskedRegression(), cells, torch.zeros(1, 3, *size), layout) == grid


def test_batches_give_what_images_alone_give() -> None:
    network, method = Additive(), MaskedRegression(samples=24, rows=5)
    alone = torch.cat([method(network, image[None], 1, LAYOUT).values for image in IMAGES])
    torch.testing.assert_close(method(network, IMAGES, 1, LAYOUT).values, alone)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_networks_that_hide_their_modules_are_explained_from_outside() -> None:
    network, method = Additive().eval(), MaskedRegression(samples=24, cells=5)
    expected = method(network, IMAGES, 1).values
    sealed = torch.jit.trace(network, IMAGES)
    torch.testing.assert_close(method(sealed, IMAGES, 1).values, expected)


def test_errors() -> None:
    for text, options in (
        ("samples must be even and at least 4, got 7", {"samples": 7}),
        ("samples must be even and at least 4, got 2", {"samples": 2}),
        ("cells must be 0 or at least 2, got 1", {"cells": 1}),
        ("cells must be 0 or at least 2, got -3", {"cells": -3}),
        ("MaskedRegression: rows must be at least 1, got 0", {"rows": 0}),
    ):
        with pytest.raises(ValueError, match=text):
            MaskedRegression(**options)
    with pytest.raises(
        ValueError, match=r"MaskedRegression\(cells=16\): 16 cells do not fit images of 15x21"
    ):
        MaskedRegression(cells=16)(Additive(), IMAGES, 1)
