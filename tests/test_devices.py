from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vision_attn import devices as precision
from vision_attn.methods import MaskedRegression
from vision_attn.training import native_precision


def test_the_cpu_that_runs_this_is_known() -> None:
    expected = "bf16-mixed" if precision.cpu_has_bf16() else "32-true"
    assert native_precision("cpu") == expected


@pytest.fixture(autouse=True)
def _unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)


def test_bf16_follows_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, expected in [
        ({"avx512_bf16": True}, "bf16-mixed"),
        ({"amx_bf16": True}, "bf16-mixed"),
        ({"bf16": True}, "bf16-mixed"),
        ({"avx2": True, "avx512_bf16": False}, "32-true"),
    ]:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: has, raising=False)
        assert native_precision("cpu") == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("AVX2", "32-true"), ("avx512_core", "32-true"), ("AVX512_CORE_BF16", "bf16-mixed")],
)
def test_bf16_that_onednn_may_not_use_does_not_count(
    limit: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = {"avx512_bf16": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert native_precision("cpu") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512_bf16 amx_tile\n", "bf16-mixed"),
        ("Features\t: fp asimd i8mm bf16\n", "bf16-mixed"),
        ("flags\t\t: fpu avx2 avx512f\n", "32-true"),
        (None, "32-true"),
    ],
)
def test_an_older_torch_leaves_it_to_linux(
    text: str | None, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert native_precision("cpu") == expected


def test_torch_and_linux_know_the_same_of_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (hasattr(torch.cpu, "get_capabilities") and precision.CPU_INFO.is_file()):
        pytest.skip("needs Linux and torch.cpu.get_capabilities")
    known = precision.cpu_has_bf16()
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert precision.cpu_has_bf16() == known


def test_emulated_bf16_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    assert native_precision("auto") == "32-true"
    assert native_precision("mps") == "32-true"


@pytest.mark.parametrize("name", ["meta", "cuda:77", "tpu", "", "cpu:x"])
def test_a_device_that_is_not_here_is_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=f"device '{name}' is not on this machine") as caught:
        precision.find_device(name)
    assert "expected auto, cpu, cuda or mps" in str(caught.value)
    assert "\n" not in str(caught.value)


class Folded(nn.Module):
    """Views images and channels as one axis: with channels last only a single image allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 3))

    def forward(self, images: torch.Tensor) -> Any:
        features = self.convolutions(images)
        b, c, h, w = features.shape
        return features.view(b * c, h, w).mean((1, 2)).view(b, c)


@pytest.mark.parametrize("native", ["32-true", "bf16-mixed"])
def test_the_format_of_forward_passes_is_one_that_every_batch_takes(
    native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "native_precision", lambda kind: native)
    folded, one = Folded(), torch.randn(1, 3, 11, 13)
    last = torch.channels_last
    folded(one.contiguous(memory_format=last))  # a single image does not show it
    with pytest.raises(RuntimeError, match="view"):
        folded(one.repeat(2, 1, 1, 1).contiguous(memory_format=last))
    assert precision.forward_format(folded, one) == torch.contiguous_format
    usual = last if native == "32-true" else torch.contiguous_format
    assert precision.forward_format(folded.convolutions, one) == usual
    assert precision.forward_format(folded.convolutions[:1], one) == torch.contiguous_format
    assert MaskedRegression(samples=16, cells=3)(folded, one, [2]).values.shape == (1, 3, 4)
