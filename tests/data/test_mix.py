import numpy as np
import pytest
import torch

from vision_attn.data import CutMix, Mix, Mixup
from vision_attn.data.draws import Draws


def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Image i is the number i everywhere, and its class is i."""
    images = torch.arange(count).float().view(-1, 1, 1, 1).expand(-1, 3, 17, 23).contiguous()
    return images, torch.eye(count)


@pytest.mark.parametrize("count", [1, 2, 101])
@pytest.mark.parametrize("mix", [Mixup(), CutMix(), Mixup(0.2), CutMix(0.4)])
def test_labels_are_mixed_in_the_images_shares(mix: Mix, count: int) -> None:
    images, targets = batch(count)
    mixed, shares = mix(images, targets, Draws(0, 0, np.arange(count)))
    torch.testing.assert_close(shares.sum(1), torch.ones(count))
    expected = (shares * torch.arange(count)).sum(1)  # the mean over an image's pixels
    torch.testing.assert_close(mixed.mean((1, 2, 3)), expected, atol=1e-4, rtol=1e-5)
    assert ((shares > 0).sum(1) <= 2).all()
    partners = [{i, i ^ 1} & set(range(count)) for i in range(count)]
    assert all(
        set(row.nonzero()[:, 0].tolist()) <= partner
        for row, partner in zip(shares, partners, strict=True)
    )


def test_mixup_mixes_pixels_and_cutmix_pastes_a_box() -> None:
    images, targets = batch(100)
    draws = Draws(0, 0, np.arange(100))
    mixed, shares = Mixup()(images, targets, draws)
    assert (mixed.amax((1, 2, 3)) == mixed.amin((1, 2, 3))).all()
    assert len(shares.diagonal().unique()) > 45
    pasted, _ = CutMix()(images, targets, draws)
    foreign = pasted[:, 0] != images[:, 0]
    assert (foreign.any(1).sum(1) * foreign.any(2).sum(1) == foreign.sum((1, 2))).all()
    assert (pasted == pasted.round()).all()


def test_shares_follow_the_beta_distribution() -> None:
    images = torch.zeros(4000, 1, 1, 1)
    targets = torch.eye(2).repeat(2000, 1)
    _, shares = Mixup(0.4)(images, targets, Draws(0, 0, np.arange(4000)))
    own = shares[::2, 0]
    assert own.mean() == pytest.approx(0.5, abs=0.03)
    assert own.var() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.01)


def test_probability() -> None:
    images, targets = batch(1000)
    _, shares = Mixup(p=0.25)(images, targets, Draws(0, 0, np.arange(1000)))
    assert 0.2 < (shares.diagonal() < 1).float().mean() < 0.3
    out, shares = CutMix(p=0.0)(images, targets, Draws(0, 0, np.arange(1000)))
    assert torch.equal(out, images)
    assert torch.equal(shares, targets)


def test_errors() -> None:
    with pytest.raises(ValueError, match="alpha must be positive"):
        Mixup(0.0)
    with pytest.raises(ValueError, match=r"p in 0\.\.1"):
        CutMix(p=2.0)
