"""Networks as files that run without this package; run without run-time type checks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from vision_attn.attention import RotaryAttention
from vision_attn.cli import main
from vision_attn.models import (
    ConvEmbed,
    FastCNN,
    SEResNet,
    SpatialCNN,
    TimmModel,
    ViT,
    WideEmbed,
    describe,
)
from vision_attn.models.checkpoint import Rebuildable

NETWORKS = {
    "vit": lambda: ViT(16, 4, 5, dim=12, depth=2, heads=3, registers=1),
    "compact": lambda: ViT(16, 4, 5, 12, 1, pool="mean", class_token=False, embed=ConvEmbed),
    "rotary": lambda: ViT(16, 4, 5, 16, 1, 2, attention=RotaryAttention, embed=WideEmbed),
    "senet": lambda: SEResNet(5, layers=(1, 1, 1, 1), widths=(8, 8, 8, 8)),
    "fast": lambda: FastCNN(5, widths=(8, 8)),
    "spatial": lambda: SpatialCNN(5, widths=(4, 8)),
    "timm": lambda: TimmModel("resnet10t", 5, model_args={"stem_width": 8}),
}
PREPROCESS = {"input_size": (16, 16), "mean": (0.5,) * 3, "std": (0.25,) * 3}


def checkpoint(path: Path, network: Rebuildable) -> None:
    about = {"network": describe(network), "classes": list("abcde"), "preprocess": PREPROCESS}
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    torch.save({"state_dict": weights, "vision_attn": {"format": 1, **about}}, path)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")  # of what torch's exporters call
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("vit", "senet") else pytest.mark.slow)
        for name in NETWORKS
    ],
)
def test_the_file_gives_the_networks_logits(
    name: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    network = NETWORKS[name]().eval()
    checkpoint(tmp_path / "best.ckpt", network)
    images = torch.randn(7, 3, 16, 16)
    for kind in ("onnx", "pt2"):
        path = tmp_path / f"{name}.{kind}"
        assert main(["export", str(tmp_path / "best.ckpt"), "-o", str(path)]) == 0
        assert "its logits are those of the model within" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx")
    (found,) = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        expected = network(images)
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-4, rtol=1e-4)
    program = torch.export.load(tmp_path / f"{name}.pt2")
    torch.testing.assert_close(program.module()(images), expected, atol=1e-5, rtol=1e-5)


def test_another_kind_of_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "timm:resnet10t", "-o", "model.h5"]) == 2
    assert "expected a name that ends in .onnx or .pt2" in capsys.readouterr().err
