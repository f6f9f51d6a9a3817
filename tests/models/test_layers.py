"""Layers of Vision Transformers against timm's."""

import pytest
import timm.layers
import torch

from vision_attn.models.layers import DropPath, LayerScale, Mlp, resampled_positions


def test_an_mlp_has_timms_names_weights_and_values() -> None:
    torch.manual_seed(0)
    theirs = timm.layers.Mlp(5, 11).double()
    torch.manual_seed(0)
    ours = Mlp(5, 11).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    assert torch.equal(ours(x), theirs(x))


def test_a_layer_scale_is_timms() -> None:
    ours, theirs = LayerScale(7, 0.25), timm.layers.LayerScale(7, 0.25)
    assert torch.equal(ours.gamma, theirs.gamma)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 7)
    assert torch.equal(ours(x), theirs(x))
    assert LayerScale(3).gamma.tolist() == pytest.approx([1e-5] * 3)


@pytest.mark.parametrize("probability", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("training", [True, False])
def test_paths_are_dropped_as_by_timm(probability: float, training: bool) -> None:
    x = torch.randn(13, 3, 7, dtype=torch.float64)
    ours, theirs = DropPath(probability), timm.layers.DropPath(probability)
    torch.manual_seed(5)
    expected = theirs.train(training)(x)
    after = torch.rand(())
    torch.manual_seed(5)
    assert torch.equal(ours.train(training)(x), expected)
    assert torch.equal(torch.rand(()), after)
    assert str(ours) == f"DropPath({probability:g})"


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("wanted", [(3, 4), (7, 5), (2, 3), (4, 3), (1, 12)])
def test_positions_are_resampled_as_by_timm(prefix: int, wanted: tuple[int, int]) -> None:
    positions = torch.randn(1, prefix + 3 * 4, 11, dtype=torch.bfloat16)
    expected = timm.layers.resample_abs_pos_embed(positions, list(wanted), [3, 4], prefix)
    assert torch.equal(resampled_positions(positions, prefix, (3, 4), wanted), expected)
