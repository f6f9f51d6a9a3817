"""The threshold of a map in tiles is torch's quantile of the whole map."""

from collections.abc import Callable

import pytest
import torch

from vision_attn.tokens.carry import tiles
from vision_attn.tokens.carry.quantile import threshold
from vision_attn.tokens.record.calls import ExplicitWeights


@pytest.mark.parametrize("share", [0.001, 0.25, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("threads", [1, 4])
def test_the_threshold_is_the_quantile_of_each_image(
    share: float,
    dtype: torch.dtype,
    windows: int,
    threads: int,
    torch_threads: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch_threads(threads)
    monkeypatch.setattr(tiles, "CPU_TILE", 200)
    monkeypatch.setattr(tiles, "SHARE", 7)
    weights = torch.randn(6, 2, 5, 7, dtype=dtype).softmax(-1)
    weights[1, :, 2] = 0
    call = ExplicitWeights("", None, None, weights, None)
    fuse = lambda call, tile: call.tile_weights(tile).amax(1)  # noqa: E731
    low = threshold(call, fuse, share, windows)[:, None, None]
    fused = weights.amax(1)
    true = fused.view(6 // windows, -1).quantile(share, dim=1).repeat_interleave(windows)
    assert torch.equal(fused < low, fused < true[:, None, None])
