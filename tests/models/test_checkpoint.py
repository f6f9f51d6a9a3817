"""Describe and build: nothing is lost on the way, and nothing but our own classes is built."""

import functools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jsonargparse
import pytest
import torch
import yaml
from torch import nn

import vision_attn.models
from vision_attn.attention import Additive, Deep, MultiHeadAttention, SpatialMask, SqueezeExcite
from vision_attn.fitting.configs import shipped_configs
from vision_attn.models import (
    Bottleneck,
    SEResNet,
    SpatialCNN,
    TimmModel,
    ViT,
    build,
    describe,
    seresnet18,
)
from vision_attn.models.checkpoint import Rebuildable

VIT: dict[str, Any] = {"image_size": (16, 24), "dim": 12, "depth": 1, "heads": 3}
ADDITIVE = functools.partial(
    MultiHeadAttention, score=functools.partial(Additive, hidden_dim=5), qkv_bias=False
)


@pytest.mark.parametrize(
    "network",
    [
        ViT(**VIT),
        ViT(**VIT, attention=ADDITIVE, pool="mean", class_token=False, registers=2),
        SEResNet(3, Bottleneck, (1, 1, 1, 1), (8, 8, 8, 8), stem="7x7"),
        seresnet18(7, gate=functools.partial(SqueezeExcite, reduction=4)),
        SpatialCNN(widths=(4, 8), gate=functools.partial(SpatialMask, kernel_size=5)),
        TimmModel("test_vit", num_classes=3, model_args={"img_size": 32}),
    ],
)
def test_what_is_built_again_is_the_same(network: Rebuildable, tmp_path: Path) -> None:
    torch.save({"network": describe(network)}, tmp_path / "a.ckpt")
    description = torch.load(tmp_path / "a.ckpt", weights_only=True)["network"]
    again = build(description)
    again.load_state_dict(network.state_dict(), strict=True)
    assert describe(again) == description
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(again.eval()(images), network.eval()(images))


def test_a_description_is_plain_values_under_public_names() -> None:
    network = SpatialCNN(widths=(4, 8), gate=functools.partial(SpatialMask, kernel_size=5))
    assert describe(network) == {
        "class_path": "vision_attn.models.SpatialCNN",
        "init_args": {
            "num_classes": 10,
            "widths": (4, 8),
            "depth": 1,
            "gate": {
                "class_path": "vision_attn.attention.SpatialMask",
                "init_args": {"kernel_size": 5},
            },
            "stride": 1,
        },
    }


def test_what_jsonargparse_makes_of_a_config_can_be_described() -> None:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(nn.Module, "network")
    score = {"class_path": "vision_attn.attention.Additive", "init_args": {"hidden_dim": 5}}
    attention = {
        "class_path": "vision_attn.attention.MultiHeadAttention",
        "init_args": {"score": score},
    }
    config = {
        "class_path": "vision_attn.models.ViT",
        "init_args": {**VIT, "image_size": [16, 24], "attention": attention},
    }
    network = parser.instantiate(parser.parse_object({"network": config})).network
    described = describe(network)["init_args"]
    assert described["image_size"] == (16, 24)
    given = described["attention"]["init_args"]["score"]
    assert given["class_path"] == score["class_path"]
    assert given["init_args"]["hidden_dim"] == 5
    again = build(describe(network))
    again.load_state_dict(network.state_dict(), strict=True)


def test_options_that_a_part_hands_on_are_described_beside_the_others() -> None:
    """Also where a config names them, and as earlier checkpoints hold them, below `options`."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(nn.Module, "network")
    attention = {
        "class_path": "vision_attn.attention.RotaryAttention",
        "init_args": {"base": 50.0, "qkv_bias": False, "proj_dropout": 0.25},
    }
    sizes = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2}
    config = {
        "class_path": "vision_attn.models.ViT",
        "init_args": {**sizes, "attention": attention},
    }
    network = parser.instantiate(parser.parse_object({"network": config})).network
    description = describe(network)
    given = description["init_args"]["attention"]["init_args"]
    assert {name: given[name] for name in ("base", "qkv_bias", "proj_dropout")} == {
        **{"base": 50.0, "qkv_bias": False, "proj_dropout": 0.25},
    }
    again = build(description)
    again.load_state_dict(network.state_dict(), strict=True)
    images = torch.rand(3, 3, 16, 16)
    torch.testing.assert_close(again.eval()(images), network.eval()(images))
    assert describe(again) == description
    given["options"] = {"qkv_bias": given.pop("qkv_bias")}
    assert build(description).blocks[0].attn.qkv.bias is None
    given["options"] = 3
    with pytest.raises(ValueError, match="unexpected keyword argument 'options'"):
        build(description)


# Of sequences and questions: tests/sequences/test_networks.py. The other has the network of its weights.
APART = re.compile(r".*_(dates|strings|questions)|finetune_shelf_imagefolder")


@pytest.mark.parametrize("name", [n for n in shipped_configs() if not APART.fullmatch(n)])
def test_the_network_of_a_config_is_built_again_from_its_description(name: Any) -> None:
    config = yaml.safe_load(shipped_configs()[name].read_text(encoding="utf-8"))
    config = config["model"]["network"]
    if config["class_path"].endswith("TimmModel"):
        config["init_args"]["pretrained"] = False  # which would be fetched
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(nn.Module, "network")
    network = parser.instantiate(parser.parse_object({"network": config})).network
    build(describe(network)).load_state_dict(network.state_dict(), strict=True)


def test_a_class_in_a_config_can_be_described() -> None:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(nn.Module, "network")
    args = {"block": "vision_attn.models.Bottleneck", "widths": [8, 8, 8, 8]}
    config = {"class_path": "vision_attn.models.SEResNet", "init_args": args}
    network = parser.instantiate(parser.parse_object({"network": config})).network
    assert describe(build(describe(network))) == describe(network)
    assert isinstance(network.layer1[0], Bottleneck)


def test_where_the_weights_came_from_is_not_described(tmp_path: Path) -> None:
    start = tmp_path / "start.pth"
    torch.save(TimmModel("test_vit", 3).state_dict(), start)
    described = describe(TimmModel("test_vit", 3, weights=str(start)))["init_args"]
    assert described["weights"] is None
    assert described["pretrained"] is False


def described(class_path: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": class_path, "init_args": init_args}


@pytest.mark.parametrize(
    "path",
    [
        "timm.models._helpers.os.system",
        "os.system",
        "torch.nn.Linear",
        "vision_attn.models.vit.torch.nn.Linear",
        "vision_attn.models.vit.ViT",  # only public names
        "vision_attn.models.checkpoint.importlib.import_module",
        "vision_attn.models.describe",
        "vision_attn.models.seresnet50",
        "vision_attn.models.ModelError",
        "vision_attn.models.__loader__",
        "vision_attn.models",
        "vision_attn.training.ImageClassifier",
        "vision_attn.attention.NoSuchScore",
        "ViT",
        "",
    ],
)
def test_everything_but_our_public_modules_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="refused to build"):
        build(described(path))
    with pytest.raises(ValueError, match="refused to build"):
        build(described("vision_attn.models.ViT", attention=described(path)))


def test_a_class_imported_from_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision_attn.models, "Linear", nn.Linear, raising=False)
    with pytest.raises(ValueError, match=r"refused to build 'vision_attn.models.Linear'"):
        build(described("vision_attn.models.Linear", in_features=1, out_features=1))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"name": "test_vit", "model_args": {"checkpoint_path": "x.pth"}}, "'checkpoint_path'"),
        ({"name": "test_vit", "model_args": {"pretrained": True}}, "'pretrained'"),
        ({"name": "test_vit", "model_args": {"pretrained_cfg": {"file": "x"}}}, "'pretrained_cfg'"),
        ({"name": "local-dir:/tmp"}, "no network named 'local-dir:/tmp'"),
        ({"name": "hf-hub:timm/vit_tiny"}, "no network named 'hf-hub:timm/vit_tiny'"),
        ({"name": "os.system"}, "no network named 'os.system'"),
    ],
)
def test_a_timm_network_is_a_name_and_arguments_of_the_network(
    args: dict[str, Collection[str] | str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(described("vision_attn.models.TimmModel", **args))


def test_a_network_is_no_part_of_another() -> None:
    inner = described("vision_attn.models.TimmModel", name="test_vit", pretrained=True)
    with pytest.raises(ValueError, match="TimmModel is a network, not a part of one"):
        build(described("vision_attn.models.ViT", pool=inner))


def test_no_weights_are_fetched_whatever_a_description_says(tmp_path: Path) -> None:
    args = {"name": "test_vit", "pretrained": True, "weights": str(tmp_path / "none.pth")}
    build(described("vision_attn.models.TimmModel", **args))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (described("vision_attn.models.ViT", dim=torch.zeros(1)), "got a torch.Tensor"),
        (described("vision_attn.models.ViT", dim={1: 2}), "plain value in a description"),
        (
            {"class_path": "vision_attn.models.ViT", "init_args": {1: 2}},
            "expected a description with",
        ),
        (described("vision_attn.models.ViT", depht=2), "unexpected keyword argument 'depht'"),
        (described("vision_attn.models.Bottleneck"), "a part of a network, not a network"),
        ({"class_path": "vision_attn.models.ViT"}, "expected a description with"),
        ({**described("vision_attn.models.ViT"), "more": 1}, "expected a description with"),
        ("vision_attn.models.ViT", "expected a description with"),
    ],
)
def test_a_broken_description_is_an_error(
    description: str | dict[str, Collection[Any] | str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(description)


class Mine(ViT):
    pass


class Elsewhere(nn.Module):
    def __init__(self, channels: int):
        super().__init__()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Linear(2, 3), "cannot describe a torch.nn.modules.linear.Linear"),
        (Mine(**VIT), "Mine: a checkpoint names only public classes"),
        (SpatialCNN(widths=(4,), gate=Elsewhere), "Elsewhere: a checkpoint names only public"),
        (
            SpatialCNN(widths=(4,), gate=lambda channels: SpatialMask(channels)),
            "cannot describe gate=",
        ),
    ],
)
def test_what_could_not_be_built_again_is_not_described(network: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe(network)


def test_activations_of_torch_are_rebuilt() -> None:
    score = functools.partial(Deep, activation=nn.GELU)
    network = ViT(**VIT, attention=functools.partial(MultiHeadAttention, score=score))
    again = build(describe(network))
    assert isinstance(again.blocks[0].attn.attend.score.activation, nn.GELU)
    linear = {"class_path": "torch.nn.Linear", "init_args": {}}
    with pytest.raises(ValueError, match=r"refused to build 'torch\.nn\.Linear'"):
        build({"class_path": "vision_attn.models.ViT", "init_args": {"pool": linear}})
