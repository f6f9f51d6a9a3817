import pytest
import torch
from timm import create_model
from torch import nn

from vision_attn.training import parameter_groups


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 5))
        self.pos_embed = nn.Parameter(torch.zeros(1, 7, 5))
        self.stem = nn.Conv2d(3, 5, 2)
        self.norm = nn.LayerNorm(5)
        self.inner = nn.Linear(5, 11)
        self.deep = nn.Linear(11, 5, bias=False)
        self.head = nn.Linear(5, 3)


def names(network, group):
    return {n for n, p in network.named_parameters() if any(p is q for q in group["params"])}


def test_only_matrices_and_kernels_decay():
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
def test_agrees_with_timm_on_what_decays(name):
    from timm.optim import param_groups_weight_decay

    network = create_model(name)
    no_decay = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    theirs, _ = param_groups_weight_decay(network, no_weight_decay_list=no_decay)
    *_, rest = parameter_groups(network)
    assert names(network, rest) == names(network, theirs)
    assert sum(len(g["params"]) for g in parameter_groups(network)) == len([*network.parameters()])


def test_frozen_parameters_are_left_out():
    network = Tokens()
    network.requires_grad_(False)
    network.head.requires_grad_(True)
    weight, bias = parameter_groups(network)
    assert names(network, weight) == {"head.weight"}
    assert names(network, bias) == {"head.bias"}
    network.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter to train: all of them are frozen"):
        parameter_groups(network)
