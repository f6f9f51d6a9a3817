"""Checkpoints damaged in every way we know: one line each, which says what is wrong with the file."""

import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vision_attn.errors import ModelError
from vision_attn.hub import load_model, load_sequences
from vision_attn.models import ViT, describe
from vision_attn.models.checkpoint import FORMAT, build, pack, unpack

VIT: dict[str, Any] = {
    "image_size": 16,
    "patch_size": 8,
    "num_classes": 3,
    "dim": 12,
    "depth": 1,
    "heads": 2,
}
ABOUT: dict[str, Any] = {
    "classes": ["a", "b", "c"],
    "preprocess": {"input_size": (16, 16), "mean": (0.5,) * 3, "std": (0.25,) * 3},
}


def whole() -> dict[str, Any]:
    network = ViT(**VIT)
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    return {"state_dict": weights, "vision_attn": pack(network, ABOUT)}


def saved(tmp_path: Path, change: Callable[..., None] = lambda contents: None) -> Path:
    contents = whole()
    change(contents)
    torch.save(contents, tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt"


def test_pack_and_unpack_are_opposites(tmp_path: Path) -> None:
    contents = whole()
    torch.save(contents, tmp_path / "a.ckpt")
    found = unpack(tmp_path / "a.ckpt")
    assert found.about == contents["vision_attn"]
    assert found.about["format"] == FORMAT == 1
    assert found.path == tmp_path / "a.ckpt"
    assert not found.of_sequences
    assert describe(found.build()) == contents["vision_attn"]["network"]
    torch.testing.assert_close(found.weights, contents["state_dict"])


def test_a_network_from_elsewhere_is_packed_without_a_description(tmp_path: Path) -> None:
    contents = {"state_dict": {"a": torch.ones(1)}, "vision_attn": pack(nn.Linear(1, 1), ABOUT)}
    torch.save(contents, tmp_path / "a.ckpt")
    found = unpack(tmp_path / "a.ckpt")
    assert found.about["network"] is None
    with pytest.raises(ValueError, match="only your code can build it"):
        found.build()


def test_a_checkpoint_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = saved(tmp_path), []
    original = torch.load

    def counted(*args: Any, **kwargs: Any) -> Any:
        opened.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, "load", counted)
    load_model(path)
    assert len(opened) == 1


def test_a_network_with_an_empty_layer_is_not_built() -> None:
    """torch only warns of it, in three lines that name no file."""
    sizes = {"num_classes": 3, "layers": (1, 1, 1, 1), "widths": (8, 0, 8, 8)}
    with pytest.raises(ValueError, match="a layer would have no weights: a size is 0"):
        build({"class_path": "vision_attn.models.SEResNet", "init_args": sizes})


def test_of_a_network_too_large_for_its_file_little_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for name in ("trunc_normal_", "kaiming_uniform_", "uniform_", "normal_"):
        original = getattr(nn.init, name)

        def counted(tensor: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            drawn.append(tensor.numel())
            return original(tensor, *args, **kwargs)

        monkeypatch.setattr(nn.init, name, counted)
    path = saved(tmp_path, args(depth=1000, dim=1200, heads=2))  # a block: 17 M weights
    drawn.clear()
    with pytest.raises(ModelError, match="and the file holds"):
        load_model(path)
    assert 0 < sum(drawn) < 4e6


def entry(**changes: Any) -> Callable[..., Any]:
    return lambda contents: contents["vision_attn"].update(changes)


def args(**changes: Any) -> Callable[..., Any]:
    return lambda contents: contents["vision_attn"]["network"]["init_args"].update(changes)


def weight(make: Callable[..., Any]) -> Callable[..., Any]:
    def change(contents: dict[Any, Any]) -> None:
        state = contents["state_dict"]
        state["network.head.weight"] = make(state["network.head.weight"])

    return change


def with_nan(tensor: Any) -> Any:
    tensor = tensor.clone()
    tensor[1, 2] = torch.nan
    return tensor


DAMAGES = {
    "int keys": (lambda c: c["state_dict"].update({7: torch.ones(1)}), "a weight has the name 7"),
    "only int keys": (lambda c: c.update(state_dict={7: torch.ones(1)}), "the name 7, expected a"),
    "sparse": (weight(lambda w: w.to_sparse()), "'head.weight' are a sparse tensor"),
    "meta": (weight(lambda w: w.to("meta")), "'head.weight' have a shape and no numbers"),
    "complex": (weight(lambda w: w.to(torch.complex64)), "are complex numbers"),
    "quantised": (
        weight(lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)),
        "are quantised; expected plain numbers",
    ),
    "nan": (weight(with_nan), r"hold NaN \(the run that wrote it diverged\)"),
    "huge by strides": (weight(lambda w: torch.zeros(1).expand(10**12)), "1000000000000 for 3x12"),
    "no tensor": (weight(lambda w: "text"), r"1 missing \(head.weight\)"),
    "no state_dict": (lambda c: c.pop("state_dict"), "holds no weights: its state_dict is nothing"),
    "null state_dict": (lambda c: c.update(state_dict=None), "its state_dict is nothing"),
    "list state_dict": (lambda c: c.update(state_dict=[1]), "its state_dict is a list"),
    "empty state_dict": (lambda c: c.update(state_dict={}), "holds no weights; expected tensors"),
    "negative size": (args(dim=-12), "a.ckpt: its network cannot be rebuilt: "),
    "negative depth": (args(depth=-1), "a.ckpt: "),
    "huge size": (args(dim=10**12), "the size 1000000000000: expected at most 10000000"),
    "huge list": (args(image_size=[16, 10**12]), "the size 1000000000000: expected at most"),
    "too large to hold": (
        args(dim=999_990, patch_size=2, image_size=(4, 4)),  # one block: 12 TB
        "a.ckpt: its network cannot be rebuilt: ",
    ),
    "larger than the file": (args(dim=12_000), "more than 1,[0-9,]+ weights, and the file holds"),
    "deeper than the file": (args(depth=9_990), "it would have more than 1,[0-9,]+ weights"),
    "zero heads": (args(heads=0), "a.ckpt: its network cannot be rebuilt: "),
    "text for a size": (args(dim="wide"), "a.ckpt: its network cannot be rebuilt: "),
    "null for a size": (args(patch_size=None), "a.ckpt: its network cannot be rebuilt: "),
    "no arguments": (
        lambda c: c["vision_attn"]["network"].pop("init_args"),
        "cannot be rebuilt: exp",
    ),
    "int argument": (
        lambda c: c["vision_attn"]["network"]["init_args"].update({3: 4}),
        "a.ckpt: its network cannot be rebuilt: ",
    ),
    "list entry": (lambda c: c.update(vision_attn=[1]), "its entry 'vision_attn' is not a dict"),
    "int entry key": (lambda c: c["vision_attn"].update({1: 2}), "is not a dict of named values"),
    "no format": (lambda c: c["vision_attn"].pop("format"), "in the format of another version"),
    "later format": (
        entry(format=2, version="9.0"),
        "made by vision-attn 9.0, in the format of another version",
    ),
    "no classes": (lambda c: c["vision_attn"].pop("classes"), "rebuilt: it has no 'classes'"),
    "int classes": (entry(classes=3), "a.ckpt: its network cannot be rebuilt: "),
    "fewer classes": (entry(classes=["a"]), "expected 3 class names, one for each output, got 1"),
    "null preprocess": (entry(preprocess=None), "a.ckpt: its network cannot be rebuilt: "),
    "huge input": (
        entry(preprocess={**ABOUT["preprocess"], "input_size": (10**12, 16)}),
        "expected a side of at most 8192 pixels",
    ),
    "a tensor for a mean": (
        entry(preprocess={**ABOUT["preprocess"], "mean": torch.ones(2, 3)}),
        "a.ckpt: its network cannot be rebuilt: ",
    ),
    "text input": (
        entry(preprocess={**ABOUT["preprocess"], "input_size": "ab"}),
        "a.ckpt: its network cannot be rebuilt: ",
    ),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_line_about_the_file(name: str, tmp_path: Path) -> None:
    change, message = DAMAGES[name]
    path = saved(tmp_path, change)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", ["no zip", "cut", "several disks", "a member missing", "empty zip"]
)
def test_a_file_that_is_no_archive_is_one_line(damage: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    if damage == "no zip":
        path.write_bytes(b"PK\x03\x04" + b"\0" * 1000)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "several disks":  # by the locator of the directory's end, zip64
        whole = bytearray(path.read_bytes())
        whole[whole.rindex(b"PK\x06\x07") + 16] = 9
        path.write_bytes(whole)
    else:
        with zipfile.ZipFile(path) as old:
            members = [(name, old.read(name)) for name in old.namelist()]
        with zipfile.ZipFile(path, "w") as new:
            for name, content in members[: 0 if damage == "empty zip" else -4]:
                if not name.endswith("/data/0"):
                    new.writestr(name, content)
    for load in (load_model, load_sequences):
        with pytest.raises(ModelError, match="cut short or damaged; expected a whole PyTorch file"):
            load(path)


def test_a_flipped_byte_is_an_error_of_the_file_or_none(tmp_path: Path) -> None:
    whole = saved(tmp_path).read_bytes()
    with zipfile.ZipFile(tmp_path / "a.ckpt") as file:
        about = next(i for i in file.infolist() if i.filename.endswith("data.pkl"))
    draw, path, lines = random.Random(0), tmp_path / "b.ckpt", []
    for _ in range(150):
        broken = bytearray(whole)
        broken[about.header_offset + draw.randrange(about.file_size)] = draw.randrange(256)
        path.write_bytes(broken)
        try:
            load_model(path)
        except ModelError as error:
            lines.append(str(error))
    assert len(lines) > 30
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in lines)


@pytest.mark.parametrize("part", ["data.pkl", "data/0"])
def test_a_compressed_part_is_refused_before_it_unfolds(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle of 1 GB that deflates to 1 MB filled 2.7 GB of memory."""
    path = saved(tmp_path)
    with zipfile.ZipFile(path) as old:
        members = [(name, old.read(name)) for name in old.namelist()]
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members:
            folded = name.endswith(f"/{part}")
            content += bytes(10**7) if folded else b""
            new.writestr(name, content, zipfile.ZIP_DEFLATED if folded else zipfile.ZIP_STORED)
    monkeypatch.setattr(torch, "load", lambda *args, **options: pytest.fail("it was read"))
    message = rf"a\.ckpt: its part 'a/{part}' is compressed, from 10,0[\d,]+ to [\d,]+ bytes"
    for load in (load_model, load_sequences):
        with pytest.raises(ModelError, match=message) as caught:
            load(path)
        assert "save it again" in str(caught.value)
        assert "\n" not in str(caught.value)
