"""Smoothing beside scipy's Gaussian filter, whose borders are mirrors too."""

import pytest
import torch
from scipy.ndimage import gaussian_filter

from vision_attn.methods import EdgeMap, LibraGradient, Rollout, methods
from vision_attn.methods.smoothing import smoothed
from vision_attn.models import ViT


@pytest.mark.parametrize("cells", [0.3, 1.0, 2.5, 9.0])
@pytest.mark.parametrize("size", [(5, 7), (1, 3), (11, 2)])
def test_it_is_a_gaussian_with_mirrors_at_the_borders(cells: float, size: tuple[int, int]) -> None:
    maps = torch.randn(3, *size)
    truth = [
        gaussian_filter(one.double().numpy(), cells, mode="reflect", truncate=8) for one in maps
    ]
    torch.testing.assert_close(
        smoothed(maps, cells).double(),
        torch.stack([*map(torch.tensor, truth)]),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("cells", [0.0, 0.3, 1.0, 40.0])
def test_the_total_stays(cells: float) -> None:
    maps = torch.randn(3, 5, 7, dtype=torch.float64)
    torch.testing.assert_close(smoothed(maps, cells).sum((1, 2)), maps.sum((1, 2)))
    flat = torch.full((1, 5, 7), 2.0, dtype=torch.float64)
    torch.testing.assert_close(smoothed(flat, cells), flat)


def test_every_method_can_be_smoothed_and_says_so() -> None:
    network = ViT((16, 24), 8, 5, 12, 2, 3).eval()
    images = torch.rand(2, 3, 16, 24)
    for method in (Rollout, EdgeMap):
        raw, smooth = method()(network, images), method(smooth=0.7)(network, images)
        again = method(smooth=0.7).smoothed(raw)
        assert torch.equal(again.values, smooth.values)
        assert again.method == smooth.method
        torch.testing.assert_close(smooth.values, smoothed(raw.values, 0.7))
        assert smooth.method == f"{method.__name__}(smooth=0.7)"
        if raw.prefix_mass is not None:
            assert smooth.prefix_mass is not None
            assert torch.equal(smooth.prefix_mass, raw.prefix_mass)
    assert all("smooth" in method.options() for method in methods().values())


def test_the_name_of_libra_gradient_always_says_how_smooth_it_is() -> None:
    assert str(LibraGradient()) == "LibraGradient(smooth=1.0)"
    assert str(LibraGradient(smooth=0)) == "LibraGradient(smooth=0.0)"
    assert str(LibraGradient(check=True)) == "LibraGradient(smooth=1.0, check=True)"


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_smooth_is_a_number_of_cells(value: float) -> None:
    with pytest.raises(ValueError, match="Rollout: smooth must be a number of cells, at least 0"):
        Rollout(smooth=value)
