from typing import Any

import pytest
import torch
from timm import create_model
from torch import nn

from vision_attn.training import parameter_groups
from vision_attn.training.parameters import layer_numbers


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 5))
        self.pos_embed = nn.Parameter(torch.zeros(1, 7, 5))
        self.stem = nn.Conv2d(3, 5, 2)
        self.norm = nn.LayerNorm(5)
        self.inner = nn.Linear(5, 11)
        self.deep = nn.Linear(11, 5, bias=False)
        self.head = nn.Linear(5, 3)


def names(network: nn.Module, group: dict[str, Any]) -> set[Any]:
    return {n for n, p in network.named_parameters() if any(p is q for q in group["params"])}


def test_only_matrices_and_kernels_decay() -> None:
    network = Tokens()
    hidden, ends, rest = parameter_groups(network)
    assert names(network, hidden) == {"inner.weight", "deep.weight"}
    assert names(network, ends) == {"stem.weight", "head.weight"}
    assert names(network, rest) == {
        "cls_token", "pos_embed", "stem.bias", "norm.weight", "norm.bias", "inner.bias", "head.bias"
    }  # fmt: skip
    assert rest["weight_decay"] == 0.0
    assert "weight_decay" not in hidden
    assert "weight_decay" not in ends


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "seresnet50"])
def test_agrees_with_timm_on_what_decays(name: str) -> None:
    from timm.optim import param_groups_weight_decay

    network = create_model(name)
    no_decay = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    theirs, _ = param_groups_weight_decay(network, no_weight_decay_list=no_decay)
    *_, rest = parameter_groups(network)
    assert names(network, rest) == names(network, theirs)
    assert sum(len(g["params"]) for g in parameter_groups(network)) == len([*network.parameters()])


def test_frozen_parameters_are_left_out() -> None:
    network = Tokens()
    network.requires_grad_(False)
    network.head.requires_grad_(True)
    weight, bias = parameter_groups(network)
    assert names(network, weight) == {"head.weight"}
    assert names(network, bias) == {"head.bias"}
    network.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter to train: all of them are frozen"):
        parameter_groups(network)


def test_layer_decay_is_that_of_beit() -> None:
    """decay to the power of depth + 1 - layer: the stem is layer 0, block i is layer i + 1."""
    network = create_model("vit_tiny_patch16_224", depth=3)
    layers = {"cls_token": 0, "pos_embed": 0, "patch_embed": 0, "norm": 4, "head": 4}
    groups = parameter_groups(network, 0.7)
    found = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    for name, p in network.named_parameters():
        first, second, *_ = f"{name}.".split(".")
        layer = int(second) + 1 if first == "blocks" else layers[first]
        assert found[id(p)] == pytest.approx(0.7 ** (4 - layer)), name
    assert all("lr_scale" not in group for group in parameter_groups(network))


def test_layers_are_numbered_blocks_between_stem_and_head() -> None:
    names = ["cls", "stem.0.w", "layers.3.blocks.1.w", "layers.3.blocks.2.w", "layers.4.w", "fc1.w"]
    assert layer_numbers(names) == [0, 1, 2, 2, 3, 4]
    assert layer_numbers(["0.weight", "0.bias", "2.weight"]) == [1, 1, 2]
    with pytest.raises(ValueError, match="layer_decay must be above 0 and at most 1, got 0"):
        parameter_groups(Tokens(), layer_decay=0.0)


def test_a_frozen_stem_is_still_the_stem() -> None:
    network = Tokens()
    network.stem.requires_grad_(False)
    hidden, ends, _ = parameter_groups(network)
    assert names(network, hidden) == {"inner.weight", "deep.weight"}
    assert names(network, ends) == {"head.weight"}


def test_a_module_may_keep_its_parameters_apart() -> None:
    network: Any = Tokens()
    network.inner.orthogonal = False
    hidden, ends, apart, rest, apart_too = parameter_groups(network)
    assert names(network, hidden) == {"deep.weight"}
    assert names(network, ends) == {"stem.weight", "head.weight"}
    assert names(network, apart) == {"inner.weight"}
    assert apart["apart"]
    assert "weight_decay" not in apart
    assert names(network, apart_too) == {"inner.bias"}
    assert (apart_too["apart"], apart_too["weight_decay"]) == (True, 0.0)
    assert "inner.bias" not in names(network, rest)
