"""Tiles on threads: workspaces of their own, only where it pays, and errors that end them all."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vision_attn.threads import Threads
from vision_attn.tokens.carry import tiles
from vision_attn.tokens.carry.transpose import (
    apply_fused_transpose,
    apply_raw_transpose,
    apply_transpose,
)
from vision_attn.tokens.record.calls import ExplicitWeights, LazyWeights


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_threads_work_at_once_in_workspaces_of_their_own(
    mode: Callable[..., Any], torch_threads: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_threads(2)
    monkeypatch.setattr(tiles, "SHARE", 50)
    monkeypatch.setattr(tiles, "CPU_TILE", 2 * 10 * 5)
    both, modes = threading.Barrier(2, timeout=60), set()
    q, k = torch.randn(2, 1, 2, 10, 3)
    call = LazyWeights("", None, None, q, k, 1.0, None, False)

    def fuse(call: Any, tile: Any) -> Any:
        modes.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        weights = call.tile_weights(tile)
        both.wait()
        return weights.mean(1)

    r = torch.rand(1, 3, 10)
    with mode():
        found = apply_raw_transpose(call, r, fuse)
        assert modes == {(torch.is_grad_enabled(), torch.is_inference_mode_enabled())}
    torch.testing.assert_close(found.clone(), r @ (q @ k.mT).softmax(-1).mean(1))


def test_tiles_go_to_threads_only_where_each_has_enough(
    torch_threads: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(tiles, "Threads", lambda count: made.append(count) or Threads(count))
    q, k = torch.randn(2, 1, 2, 97, 5)
    call = LazyWeights("", None, None, q, k, 1.0, None, False, (q @ k.mT).logsumexp(-1))
    torch_threads(3)
    monkeypatch.setattr(tiles, "CPU_TILE", 97 * 20)
    elements = 2 * 97 * 97
    for share, expected in ((elements // 3 + 1, []), (elements // 3, [3])):
        monkeypatch.setattr(tiles, "SHARE", share)
        for carried in (1, 5, share // 97 + 1):  # the last would take each thread too much memory
            made.clear()
            r = torch.rand(1, carried, 97)
            true = r @ (q @ k.mT).softmax(-1).mean(1)
            torch.testing.assert_close(apply_transpose(call, r), true)
            assert made == (expected if carried < 6 else [])


def test_an_error_in_a_thread_is_told_and_ends_them_all(
    torch_threads: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_threads(2)
    monkeypatch.setattr(tiles, "SHARE", 7)
    monkeypatch.setattr(tiles, "CPU_TILE", 20)
    running = threading.active_count()

    def broken(call: Any, tile: Any) -> Any:
        if 3 in range(tile.rows.start, tile.rows.stop):
            raise ValueError("no such row")
        return call.tile_weights(tile).mean(1)

    call = ExplicitWeights("", None, None, torch.rand(1, 2, 7, 7).softmax(-1), None)
    with pytest.raises(ValueError, match="no such row"):
        apply_fused_transpose(call, torch.rand(1, 1, 7), broken)
    assert threading.active_count() == running
