"""Taking cells away: fills, order, and dropping tokens against masking them."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import nn

from vision_attn.attention import MultiHeadAttention
from vision_attn.evaluate import BlurFill, DroppedTokens, FilledCells, MeanFill, NoiseFill
from vision_attn.models.vit import ViT

IMAGES = torch.randn(3, 3, 12, 20)


def test_fills() -> None:
    assert MeanFill()(IMAGES).abs().max() == 0
    blurred = BlurFill(sigma=2.0)(IMAGES)
    assert blurred.std() < IMAGES.std() / 3
    torch.testing.assert_close(
        BlurFill()(torch.full((1, 3, 9, 7), 0.3)), torch.full((1, 3, 9, 7), 0.3)
    )
    images = 3 * torch.randn(2, 3, 40, 50) + 1
    noise = NoiseFill(seed=1)(images)
    torch.testing.assert_close(noise.mean((2, 3)), images.mean((2, 3)), rtol=0, atol=0.3)
    torch.testing.assert_close(noise.std((2, 3)), images.std((2, 3)), rtol=0.1, atol=0)
    torch.testing.assert_close(NoiseFill(seed=1)(images[1:]), noise[1:])


@pytest.mark.parametrize("rows", [4, 256])
def test_filled_cells_show_the_fill(rows: int) -> None:
    """A network that reads the pixels back out."""
    order = torch.stack([torch.randperm(15) for _ in IMAGES])
    removal = FilledCells(lambda images: images.flatten(1), grid=(3, 5), rows=rows)
    shown = removal.logits(IMAGES, order, [0, 4, 15]).unflatten(2, (3, 12, 20))
    assert shown[:, 0].abs().max() == 0
    torch.testing.assert_close(shown[:, 2], IMAGES)
    kept = order[1, :4].tolist()
    for cell in range(15):
        y, x = cell // 5 * 4, cell % 5 * 4
        original = IMAGES[1, :, y : y + 4, x : x + 4]
        expected = original if cell in kept else torch.zeros_like(original)
        torch.testing.assert_close(shown[1, 1, :, y : y + 4, x : x + 4], expected)


@pytest.mark.parametrize(("side", "most"), [(64, 37), (176, 33), (1100, 1)])
def test_a_forward_pass_on_a_cpu_has_a_limited_number_of_pixels(side: int, most: int) -> None:
    given = []

    def forward(images: torch.Tensor) -> torch.Tensor:
        given.append(len(images))
        return images.mean((2, 3))

    images, counts = torch.rand(1, 3, side, side), list(range(37))
    order = torch.randperm(36)[None]
    logits = FilledCells(forward, (6, 6)).logits(images, order, counts)
    assert (sum(given), max(given)) == (37, most)
    assert logits.shape == (1, 37, 3)
    torch.testing.assert_close(logits[0, -1], images.mean((2, 3))[0])


class Masked(nn.Module):
    """Attention that no query may pay to the removed patches."""

    may_attend: torch.Tensor

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.inner = MultiHeadAttention(dim, heads)

    def forward(self, x: Any, layout: Any = None) -> Any:
        return self.inner(x, mask=Masked.may_attend)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_dropped_tokens_are_tokens_that_nobody_attends_to(pool: Any) -> None:
    vit = ViT((12, 20), patch_size=4, dim=32, depth=3, heads=2, registers=1, pool=pool)
    for weight in vit.parameters():
        nn.init.normal_(weight, std=0.3)
    order = torch.stack([torch.randperm(15) for _ in IMAGES])
    dropped = DroppedTokens(vit.forward_kept_tokens, grid=(3, 5)).logits(IMAGES, order, [1, 4, 15])

    masked = ViT(
        (12, 20), patch_size=4, dim=32, depth=3, heads=2, registers=1, pool=pool, attention=Masked
    )
    weights = {k.replace("attn.", "attn.inner."): v for k, v in vit.state_dict().items()}
    masked.load_state_dict(weights)
    for step, count in enumerate([1, 4, 15]):
        keep = torch.zeros(3, 17, dtype=torch.bool)
        keep[:, :2] = True
        keep.scatter_(1, order[:, :count] + 2, True)
        Masked.may_attend = keep[:, None, None, :]
        if pool == "mean":  # the mean, too, is over the patches that are left
            seen: dict[Any, Any] = {}
            hook = masked.blocks[-1].register_forward_hook(lambda _m, _i, x, s=seen: s.update(x=x))
            masked(IMAGES)
            hook.remove()
            patches = masked.norm(seen["x"])[:, 2:] * keep[:, 2:, None]
            expected = masked.head(masked.fc_norm(patches.sum(1) / count))
        else:
            expected = masked(IMAGES)
        torch.testing.assert_close(dropped[:, step], expected, rtol=1e-4, atol=1e-4)


def test_a_grid_has_at_least_one_row_and_one_column() -> None:
    network = nn.Flatten()
    assert FilledCells(network, (1, 7)).grid == (1, 7)
    for grid in ((0, 7), (7, 0)):
        with pytest.raises(ValueError, match=r"grid must be \(rows, columns\), each at least 1"):
            FilledCells(network, grid)


@pytest.mark.parametrize("fill", [BlurFill(5.0), MeanFill(), NoiseFill()])
def test_a_fill_is_a_value(fill: BlurFill | MeanFill | NoiseFill) -> None:
    """A store knows it by its fields, and a cache by its hash."""
    assert hash(fill) == hash(type(fill)(**vars(fill)))
    with pytest.raises(FrozenInstanceError):
        setattr(fill, "sigma", 3.0)  # noqa: B010
