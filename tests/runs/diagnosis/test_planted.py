"""Planted faults are found and named with their places; healthy networks raise no alarm."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import vision_attn
from vision_attn.cli import main
from vision_attn.pages.diagnosis.run import diagnose
from vision_attn.runs.diagnosis.measure import Meter
from vision_attn.runs.diagnosis.results import Chances, Diagnosis
from vision_attn.runs.diagnosis.verdict import Thresholds, judge
from vision_attn.runs.progress import Silent

from .conftest import model_of, vit


def verdict_of(
    network: VisionTransformer, images: torch.Tensor, thresholds: Thresholds | None = None
) -> Diagnosis:
    meter = Meter(model_of(network))
    meter.add(images, [None] * len(images))
    return judge(meter.result(asked=len(images)), thresholds)


class Changed(nn.Module):
    """A block, and what is done to its output."""

    def __init__(self, block: nn.Module, change: Callable[..., Any]) -> None:
        super().__init__()
        self.block, self.change = block, change

    def forward(self, x: Any) -> Any:
        return self.change(self.block(x))


def norm_of_50(y: Any) -> Any:
    """At tokens 4 and 11, of which others have norms of a few."""
    y = y.clone()
    y[:, [4, 11]] *= 50 / y[:, [4, 11]].norm(dim=-1, keepdim=True)
    return y


def smoothed(y: Any) -> Any:
    middle = y.mean(1, keepdim=True)
    return middle * 3 + 0.1 * (y - middle)


def test_a_network_as_it_is_has_no_fault(images: torch.Tensor) -> None:
    found = verdict_of(vit(), images)
    assert found.faults == []
    assert found.title == "a ViT, 7 photos: no fault found"


@torch.no_grad()
def test_planted_outliers(images: torch.Tensor) -> None:
    network = vit()
    network.blocks[1] = Changed(network.blocks[1], norm_of_50)
    found = verdict_of(network, images)
    (fault,) = found.faults
    assert (fault.kind, fault.places) == ("outliers", ((1,),))
    assert fault.text.startswith("2 of 15 patches")
    assert "from block 1 on" in fault.text
    assert found.outliers is not None
    assert found.outliers.first == 1
    assert found.outliers.where[0][3] == found.outliers.where[2][0] == 1.0
    assert "registers in disguise" in verdict_of(
        network, images, Thresholds(register_attention=0.0)
    ).faults[0].text  # fmt: skip


@torch.no_grad()
def test_a_dead_head(images: torch.Tensor) -> None:
    network = vit()
    network.blocks[2].attn.proj.weight[:, 7:14] = 0
    (fault,) = verdict_of(network, images).faults
    assert (fault.kind, fault.places) == ("dead head", ((2, 1),))
    assert fault.text.startswith("Layer 2 head 1 is dead")


@torch.no_grad()
def test_a_copied_head(images: torch.Tensor) -> None:
    network = vit()
    for first in (0, 21):  # queries and keys
        for part in (network.blocks[0].attn.qkv.weight, network.blocks[0].attn.qkv.bias):
            part[first + 14 : first + 21] = part[first : first + 7]
    (fault,) = verdict_of(network, images).faults
    assert (fault.kind, fault.places) == ("equal heads", ((0, 0), (0, 2)))
    assert "layer 0 head 2 (like head 0: 1.000)" in fault.text


@torch.no_grad()
def test_a_uniform_head(images: torch.Tensor) -> None:
    network = vit()
    network.blocks[1].attn.qkv.weight[:7] = 0
    network.blocks[1].attn.qkv.bias[:7] = 0
    (fault,) = verdict_of(network, images).faults
    assert (fault.kind, fault.places) == ("uniform head", ((1, 0),))


@torch.no_grad()
def test_a_block_that_oversmooths(images: torch.Tensor) -> None:
    network = vit(depth=2)
    network.blocks[1] = Changed(network.blocks[1], smoothed)
    (fault,) = verdict_of(network, images).faults
    assert (fault.kind, fault.places) == ("oversmoothing", ((1,),))
    assert fault.text.startswith("Block 1 oversmooths (blocks.1)")


@torch.no_grad()
def test_several_faults_are_all_found(images: torch.Tensor) -> None:
    network = vit()
    network.blocks[2].attn.proj.weight[:, :7] = 0
    network.blocks[1].attn.qkv.weight[:7] = 0
    network.blocks[1].attn.qkv.bias[:7] = 0
    network.blocks[2] = Changed(network.blocks[2], norm_of_50)
    kinds = [fault.kind for fault in verdict_of(network, images).faults]
    assert kinds == ["outliers", "dead head", "uniform head"]


def test_norms_that_follow_the_photo_are_a_remark(images: torch.Tensor) -> None:
    network = vit()
    network.blocks[1] = Changed(
        network.blocks[1], lambda y: torch.cat([y[:, :11], 9 * y[:, 11:]], 1)
    )
    found = verdict_of(network, images)
    assert not [fault for fault in found.faults if fault.kind == "outliers"]
    assert "their norms follow what the photo shows" in found.verdict()


def test_outliers_are_found_though_norms_follow_the_photo_later(images: torch.Tensor) -> None:
    network = vit()
    network.blocks[0] = Changed(network.blocks[0], norm_of_50)

    def by_content(y: Any) -> torch.Tensor:
        y = y / y.norm(dim=-1, keepdim=True)
        return torch.cat([y[:, :11], 9 * y[:, 11:]], 1)

    network.blocks[2] = Changed(network.blocks[2], by_content)
    found = verdict_of(network, images)
    (fault,) = [one for one in found.faults if one.kind == "outliers"]
    assert fault.places == ((0,),)
    assert found.outliers is not None
    assert found.outliers.where[0][3] == found.outliers.where[2][0] == 1.0


@pytest.mark.parametrize(
    ("chances", "words"),
    [
        (Chances(100, 0.7, 0.9, 0.2), "too sure"),
        (Chances(100, 0.9, 0.7, 0.2), "not sure enough"),
        (Chances(100, 0.9, 0.86, 0.1), ""),
        (Chances(20, 0.7, 0.8, 0.2), ""),  # within two standard errors
    ],
)
def test_calibration_in_words(chances: Chances, words: str) -> None:
    (*_, finding) = judge(Diagnosis("a ViT", 100, 100, chances=chances)).findings
    assert finding.kind == "calibration"
    assert not finding.fault
    assert (words in finding.text) if words else ("sure" not in finding.text)


@pytest.mark.parametrize(
    ("name", "data"),
    [("vit_planted", "planted"), ("compact_vit_imagenette", "imagenette160/val"),
     ("compact_vit_cifar10", "cifar10")],
)  # fmt: skip
@pytest.mark.slow
def test_networks_of_the_shelf_raise_no_alarm(
    name: str, data: str, request: pytest.FixtureRequest
) -> None:
    import os
    from pathlib import Path

    root = Path(os.environ.get("VISION_ATTN_DATA", ".data"))
    where = data if data in ("planted", "cifar10") else root / data
    model = vision_attn.load_model(f"vision_attn:{name}")
    try:
        found = diagnose(model, where, limit=24, root=root, progress=Silent())
    except (ValueError, OSError):
        pytest.skip(f"{data} is not there")
    assert found.faults == [], found.verdict()


# the run


def photos(tmp_path: Path, count: int = 5) -> Path:
    for at in range(count):
        colour = tuple(int(v) for v in torch.randint(256, (3,)))
        Image.new("RGB", (31, 23), colour).save(tmp_path / f"{at}.png")
    return tmp_path


def test_ctrl_c_gives_what_there_is(tmp_path: Path) -> None:
    class Stopping(Silent):
        def advance(self, steps: int = 1) -> None:
            raise KeyboardInterrupt

    model = replace(model_of(vit().float()), name="a ViT")
    found = diagnose(model, photos(tmp_path), batch_size=2, progress=Stopping())
    assert (found.photos, found.asked, found.stopped) == (2, 5, True)
    assert "- Measured on 2 of 5 photos." in found.verdict()

    class AtOnce(Silent):
        def start(self, what: str, total: Any, pilot: Any = None) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose(model, tmp_path, progress=AtOnce())


def test_a_photo_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    photos(tmp_path, 2)
    (tmp_path / "2.png").write_bytes(b"no picture")
    found = diagnose(model_of(vit().float()), tmp_path, progress=Silent())
    assert (found.photos, found.stopped, len(found.problems)) == (2, False, 1)
    assert "2.png: expected an image" in found.problems[0]


def test_no_photo_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "2.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="no photo could be read"):
        diagnose(model_of(vit().float()), tmp_path, progress=Silent())


def test_the_command_prints_the_verdict_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["diagnose", "vision_attn:vit_planted", "planted", "--limit", "3", "-o", str(out)]
    assert main([*words, "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "vision_attn:vit_planted, 3 photos: no fault found" in printed
    assert "entropy" in printed
    values = json.loads((out / "diagnosis.json").read_text())
    assert len(values["heads"]) == 12
    page = (out / "index.html").read_text()
    assert "<h2>Every head</h2>" in page
    assert all((out / "page" / f"{name}.png").is_file() for name in ("entropy", "norms", "where"))
    assert 'src="http' not in page


def test_the_command_tries_registers_and_says_what_they_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["diagnose", "vision_attn:vit_planted", "planted", "--limit", "2", "-o", str(out)]
    assert main([*words, "--device", "cpu", "--registers", "3"]) == 0
    printed = capsys.readouterr().out
    assert "With 3 neurons moved to a register at test time:" in printed
    assert "Rollout on them" in printed
    assert json.loads((out / "registers/diagnosis.json").read_text())["layout"]["registers"] == [64]


def test_a_cnn_has_one_true_line(tmp_path: Path) -> None:
    from vision_attn.data import Preprocess
    from vision_attn.models import SEResNet
    from vision_attn.types import Model

    network = SEResNet(2, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
    model = Model(network, Preprocess((16, 16), (0.5,) * 3, (0.5,) * 3), ["a", "b"], None, name="c")
    found = diagnose(model, photos(tmp_path), output=tmp_path / "out", progress=Silent())
    (finding,) = found.findings
    assert finding.text == (
        "c has no attention between tokens: there are no heads, norms of tokens or shares of "
        "Rollout to diagnose, only its accuracy and calibration."
    )
    assert "c has no attention" in (tmp_path / "out/index.html").read_text()
