"""The maps that know nothing of the network."""

import pytest
import torch
from torch import nn

from vision_attn.methods.baselines import CentreGaussian, EdgeMap, RandomMap
from vision_attn.types import TokenLayout

NETWORK = nn.Identity()
IMAGES = torch.randn(3, 3, 30, 42)


def test_the_grid_is_the_layouts_where_there_is_one() -> None:
    for baseline in [RandomMap(), CentreGaussian(), EdgeMap()]:
        assert baseline(NETWORK, IMAGES).values.shape == (3, 14, 14)
        maps = baseline(NETWORK, IMAGES, layout=TokenLayout(1, (5, 7)))
        assert maps.values.shape == (3, 5, 7)
        assert maps.targets is None


def test_random_maps_depend_on_seed_and_image_alone() -> None:
    maps = RandomMap(seed=3)(NETWORK, IMAGES).values
    torch.testing.assert_close(maps[1], RandomMap(seed=3)(NETWORK, IMAGES[1:2]).values[0])
    assert not torch.equal(maps[0], maps[1])
    for seed in (2, 4):  # in the lowest bit, and in others
        assert not torch.equal(maps, RandomMap(seed=seed)(NETWORK, IMAGES).values)
    assert maps.min() >= 0
    assert maps.max() < 1


def test_the_gaussian_is_its_formula() -> None:
    maps = CentreGaussian(sigma=0.3)(NETWORK, IMAGES, layout=TokenLayout(1, (5, 7))).values
    y, x = 2 * (4 + 0.5) / 5 - 1, 2 * (1 + 0.5) / 7 - 1
    expected = torch.exp(torch.tensor(-(x**2 + y**2) / (2 * 0.3**2)))
    torch.testing.assert_close(maps[2, 4, 1], expected)
    assert maps[0].argmax() == 2 * 7 + 3


def test_edges_are_the_slope() -> None:
    """A ramp of slope (0.1 down, 0.2 right) has that length everywhere but at the border."""
    y, x = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    ramp = (0.1 * y + 0.2 * x).expand(1, 3, 40, 40)
    maps = EdgeMap(cells=10)(NETWORK, ramp).values[0]
    torch.testing.assert_close(maps[1:-1, 1:-1], torch.full((8, 8), 0.05**0.5))


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="EdgeMap: cells must be at least 1, got 0"):
        EdgeMap(cells=0)
    with pytest.raises(ValueError, match=r"CentreGaussian: sigma must be above 0, got 0.0"):
        CentreGaussian(sigma=0.0)
