"""Weights files: read without running code, fitted by name and shape, errors in one line."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from vision_attn.compat import download as download_module
from vision_attn.compat.huggingface_private import is_offline
from vision_attn.models import ModelError, TimmModel
from vision_attn.models.checkpoint import load_weights, read_file, read_weights
from vision_attn.models.timm_model import create_timm, read_timm_weights


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 5))


def save(path: Path, contents: list[Any] | dict[str, Any]) -> Path:
    torch.save(contents, path)
    return path


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("prefix", ["", "network.", "module.network."])
def test_weights_come_back_from_every_file(tmp_path: Path, suffix: str, prefix: str) -> None:
    trained, fresh = network(), network()
    state = {f"{prefix}{name}": tensor for name, tensor in trained.state_dict().items()}
    path = tmp_path / f"a.{suffix}"
    save_file(state, path) if suffix == "safetensors" else save(path, state)
    load_weights(fresh, read_weights(path), path)
    torch.testing.assert_close(fresh.state_dict(), trained.state_dict())


@pytest.mark.parametrize("key", ["state_dict", "model", "state_dict_ema"])
def test_checkpoints_of_others_are_unpacked(tmp_path: Path, key: str) -> None:
    trained, fresh = network(), network()
    contents = {"model": {}, key: {**trained.state_dict()}, "epoch": 3}
    if key == "model":
        contents.pop("state_dict", None)
    path = save(tmp_path / "a.pth", {**contents, key: contents[key]})
    load_weights(fresh, read_weights(path), path)
    torch.testing.assert_close(fresh.state_dict(), trained.state_dict())


def test_a_lightning_checkpoint_gives_the_network_and_leaves_the_rest(tmp_path: Path) -> None:
    trained, fresh = network(), network()
    state = {f"network.{name}": tensor for name, tensor in trained.state_dict().items()}
    path = save(tmp_path / "a.ckpt", {"state_dict": {**state, "loss.weight": torch.ones(5)}})
    load_weights(fresh, read_weights(path), path)
    torch.testing.assert_close(fresh.state_dict(), trained.state_dict())


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the code in the file was run",))


def cut(path: Path) -> Any:
    path.write_bytes(path.read_bytes()[:-200])
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "none.ckpt", "none.ckpt: no such file"),
        (lambda p: p, "no such file"),
        (lambda p: cut(save(p / "a.ckpt", network().state_dict())), "cut short or damaged"),
        (lambda p: cut(save_as_safetensors(p / "a.safetensors")), "a whole safetensors file"),
        (lambda p: write(p / "a.ckpt", b"hello, this is text\n"), "not a checkpoint or weights"),
        (lambda p: write(p / "a.ckpt", b""), "not a checkpoint or weights"),
        (lambda p: write(p / "a.ckpt", pickle.dumps(Evil())), "not a checkpoint or weights"),
        (lambda p: cut(save_as_torch_did(p / "a.pth")), "cut short or damaged"),
        (lambda p: save(p / "a.ckpt", {"state_dict": Evil()}), "holds pickled Python objects"),
        (lambda p: write(p / "a.pkl", pickle.dumps(Evil(), protocol=2)), "pickled Python objects"),
        (lambda p: save(p / "a.pth", [1, 2]), "holds a list; expected a dict"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, make: Callable[..., Any], message: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def write(path: Any, contents: bytes) -> Any:
    path.write_bytes(contents)
    return path


def save_as_torch_did(path: Path) -> Path:
    """The format of torch before 1.6."""
    torch.save(network().state_dict(), path, _use_new_zipfile_serialization=False)
    return path


def test_old_files_of_torch_are_read(tmp_path: Path) -> None:
    assert (
        read_weights(save_as_torch_did(tmp_path / "a.pth")).keys() == network().state_dict().keys()
    )


def save_as_safetensors(path: Path) -> Path:
    save_file(network().state_dict(), path)
    return path


def test_a_file_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no weights"):
        read_weights(save(tmp_path / "a.pth", {"epoch": 3}))


def test_what_does_not_fit_is_named_and_nothing_is_loaded() -> None:
    ours = network()
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    state = {**before, "1.weight": torch.zeros(7, 3), "2.weight": torch.zeros(1)}
    del state["0.bias"]
    message = (
        r"a.pth: its weights do not fit Sequential: 1 missing \(0.bias\); "
        r"1 unexpected \(2.weight\); 1 of another shape \(1.weight 7x3 for 5x3\)"
    )
    with pytest.raises(ModelError, match=message):
        load_weights(ours, state, "a.pth")
    torch.testing.assert_close(ours.state_dict(), before)


def test_a_timm_network_starts_from_a_file_with_a_new_classifier(tmp_path: Path) -> None:
    start = timm.create_model("test_vit", num_classes=7)
    path = save(tmp_path / "start.pth", start.state_dict())
    ours = TimmModel("test_vit", num_classes=3, weights=str(path)).network
    assert ours.head.weight.shape[0] == 3
    torch.testing.assert_close(ours.blocks.state_dict(), start.blocks.state_dict())
    with pytest.raises(ModelError, match=r"head.weight 7x64 for 1000x64"):
        TimmModel("test_vit", weights=str(path))


def test_timm_resamples_the_positions_of_a_file(tmp_path: Path) -> None:
    start = timm.create_model("test_vit")
    path = save(tmp_path / "start.pth", start.state_dict())
    ours = create_timm("test_vit", image_size=(96, 64))
    load_weights(ours, read_timm_weights(ours, str(path)), path)
    start.set_input_size(img_size=(96, 64))
    torch.testing.assert_close(ours.pos_embed, start.pos_embed)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("vit_tiny_patch16_22", {}, "no network named .* did you mean vit_tiny_patch16_224"),
        ("vit_tiny_patch16_224.augreg", {}, "Invalid pretrained tag .* did you mean vit_tiny"),
        ("test_vit", {"img_sized": 3}, "timm:test_vit takes no argument 'img_sized'"),
        ("test_vit", {"checkpoint_path": "a.pth"}, "'checkpoint_path' is not an argument of a"),
    ],
)
def test_what_timm_cannot_build_is_one_line(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        create_timm(name, **args)
    assert "\n" not in str(caught.value)


def test_offline_a_download_fails_at_once_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(download_module, "_reachable", lambda url: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"timm:test_vit: .* --weights FILE .* --pretrained false"):
        TimmModel("test_vit", pretrained=True)
    assert not is_offline()


def test_a_server_that_does_not_answer_is_out_of_reach() -> None:
    assert not download_module._reachable("http://127.0.0.1:9")
