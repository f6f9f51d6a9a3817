"""`vision_attn.export`: a file that is right, or none."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.models import SpatialCNN
from vision_attn.models import export as module
from vision_attn.types import Model


@pytest.fixture
def model() -> Model:
    network = SpatialCNN(5, widths=(4, 8))
    return Model(network, Preprocess((16, 16), (0.5,) * 3, (0.25,) * 3), list("abcde"), None)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")  # of what torch's exporters call
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_the_file_gives_the_networks_logits(suffix: str, model: Model, tmp_path: Path) -> None:
    if suffix == "onnx":
        pytest.importorskip("onnxruntime")
    model.network.train()
    found = vision_attn.export(model, tmp_path / f"new/m.{suffix}")
    assert found.path == tmp_path / f"new/m.{suffix}"
    assert found.path.is_file()
    assert 0 <= found.difference < 1e-4
    assert [path.name for path in found.path.parent.iterdir()] == [f"m.{suffix}"]
    assert model.network.training
    assert all(weight.requires_grad for weight in model.network.parameters())
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        expected = model.network.eval()(images)
    if suffix == "pt2":
        torch.testing.assert_close(torch.export.load(found.path).module()(images), expected)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(found.path)
        (logits,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-4, rtol=1e-4)


def test_another_kind_of_name_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"m\.h5: expected a name that ends in \.onnx or \.pt2"):
        vision_attn.export(model, tmp_path / "m.h5")


@pytest.mark.parametrize("difference", [0.1, float("nan")])
def test_a_file_with_other_logits_is_not_kept(
    difference: float, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(network: Any, images: torch.Tensor, path: Path) -> float:
        path.write_bytes(b"wrong")
        return difference

    monkeypatch.setitem(module.WRITERS, ".pt2", wrong)
    (tmp_path / "m.pt2").write_bytes(b"earlier")
    with pytest.raises(ValueError, match=r"m\.pt2: its logits differ by .* of the largest"):
        vision_attn.export(model, tmp_path / "m.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt2"]
    assert (tmp_path / "m.pt2").read_bytes() == b"earlier"


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
def test_a_full_disk_is_one_line_and_leaves_no_half_file(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(content: Any, path: Path) -> None:
        path.write_bytes(bytes(content)[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(OSError, match=r"m\.pt2: cannot be written \(No space left on device\)"):
        vision_attn.export(model, tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


def test_the_difference_is_relative_to_the_largest_logit() -> None:
    found, expected = torch.tensor([[1.0, -8.0]]), torch.tensor([[1.5, -10.0]])
    assert module.relative_difference(found, expected) == pytest.approx(0.2)
