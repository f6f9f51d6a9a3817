"""What is known of a network is known as long as it stands; every change is seen at the next call."""

import copy
import gc
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import ref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from vision_attn import standing
from vision_attn.hooks import Hooks
from vision_attn.inference import asked_once, eval_mode, modules_of, unchanging
from vision_attn.methods import GradCAM, MaskedRegression, Rollout
from vision_attn.models import ViT
from vision_attn.standing import MOST_PARTS, standing_of


def counting() -> Callable[..., Any]:
    asked = []

    def question(network: Any) -> int:
        asked.append(network)
        return len(asked)

    return question


class Block(nn.Sequential):
    """A module with attributes of every kind."""

    shift = 1
    steps: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
        self.act, self.size, self.sizes = torch.tanh, (3, 5), [3, 5]
        self.options, self.config = {"width": [3]}, SimpleNamespace(depth=3)
        self.register_buffer("order", torch.tensor([2, 0, 1]))
        self.partial, self.kept, self.dtype = partial(torch.add, 1), None, torch.float32


def block() -> Block:
    torch.manual_seed(1)
    return Block()


def tie(network: Any) -> None:
    network[2].weight = network[0].bias


CHANGES = {
    "a module more": lambda network: network.append(nn.ReLU()),
    "a module less": lambda network: network.pop(1),
    "another module": lambda network: setattr(network, "1", nn.Dropout(0.5)),
    "the order of the modules": lambda network: network.insert(0, network.pop(1)),
    "a number": lambda network: setattr(network[1], "p", 0.25),
    "an attribute more": lambda network: setattr(network[1], "scale", 3),
    "an attribute less": lambda network: delattr(network, "size"),
    "a tuple": lambda network: setattr(network, "size", (3, 7)),
    "a list, in place": lambda network: network.sizes.append(7),
    "a dictionary, in place": lambda network: network.options["width"].append(7),
    "a function": lambda network: setattr(network, "act", torch.relu),
    "a partial function": lambda network: setattr(network, "partial", partial(torch.add, 1)),
    "a dtype": lambda network: setattr(network, "dtype", torch.float64),
    "the network's own forward": lambda network: setattr(network, "forward", network[0].forward),
    "an object's attribute": lambda network: setattr(network.config, "depth", 5),
    "a tensor for nothing": lambda network: setattr(network, "kept", torch.zeros(3)),
    "a buffer that says where tokens go, in place": lambda network: network.order.add_(1),
    "such a buffer, by a state dict": lambda network: network.load_state_dict(block().state_dict()),
    "such a buffer, another": lambda network: setattr(network, "order", torch.arange(3)),
    "a list of the class, in place": lambda network: network.steps.append(3),
    "a class": lambda network: setattr(network[1], "__class__", nn.AlphaDropout),
    "a hook": lambda network: network[0].register_forward_hook(lambda *_: None),
    "a hook before": lambda network: network[0].register_forward_pre_hook(lambda *_: None),
    "a parametrization": lambda network: parametrizations.weight_norm(network[0]),
    "no bias": lambda network: setattr(network[0], "bias", None),
    "a buffer": lambda network: network[0].register_buffer("mask", torch.ones(3)),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_and_taken_back_is_known_again(change: str) -> None:
    network = block()
    before, _ = standing_of(network)
    assert standing_of(network)[0] is before
    CHANGES[change](network)
    after, modules = standing_of(network)
    assert after is not before
    assert list(modules.items()) == [(one, name) for name, one in network.named_modules()]
    assert standing_of(network)[0] is after


@pytest.mark.parametrize("name", ["forward", "shift"])
def test_a_change_of_a_class_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = block()
    before, _ = standing_of(network)
    with monkeypatch.context() as patch:
        patch.setattr(Block, name, lambda self, x: x)
        assert standing_of(network)[0] is not before
    assert standing_of(network)[0] is before


def test_a_hook_for_all_modules_is_seen() -> None:
    network = block()
    before, _ = standing_of(network)
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        assert standing_of(network)[0] is not before
    assert standing_of(network)[0] is before


def keep(network: Any) -> None:
    network.kept, network.options = network[0](torch.rand(3, 2)), {"maps": torch.rand(3)}


STAYS = {
    "weights": lambda network: network[0].weight.data.zero_(),
    "weights by a state dict": lambda network: network[0].load_state_dict(block()[0].state_dict()),
    "tied weights": tie,
    "another dtype": lambda network: network.double(),
    "train mode": lambda network: network.eval(),
    "what it has computed, kept": keep,
    "a long list": lambda network: network.long.append(3),
}


@pytest.mark.parametrize("change", STAYS)
def test_what_changes_no_module_is_none(change: str) -> None:
    network: Any = block()
    network.long = list(range(MOST_PARTS + 1))
    keep(network)
    before, _ = standing_of(network)
    STAYS[change](network)
    assert standing_of(network)[0] is before


def test_temporary_hooks_are_none() -> None:
    network = block()
    with Hooks() as hooks:
        hooks.after(network[0], lambda *_: None)
        before, _ = standing_of(network)
    assert standing_of(network)[0] is before
    network[0].register_forward_hook(lambda *_: None)
    before, _ = standing_of(network)
    with Hooks() as hooks:
        hooks.after(network[0], lambda *_: None)
        hooks.before(network[1], lambda *_: None)
        assert standing_of(network)[0] is before


def test_a_buffer_whose_writes_are_not_counted_is_always_new() -> None:
    with torch.inference_mode():
        network = block()
    assert standing_of(network)[0] is not standing_of(network)[0]


def test_a_module_at_the_place_in_memory_of_another_is_another() -> None:
    network = nn.Sequential(nn.ReLU())
    seen = set()
    for _ in range(20):
        del network[0]  # freed at once, so that the next one may get its place
        network.append(nn.ReLU())
        seen.add(id(standing_of(network)[0]))
        assert list(standing_of(network)[1]) == [network, network[0]]


def test_no_network_is_kept_alive() -> None:
    network: Any = block()
    network.me, network.own = [network], network.forward  # circles
    asked_once(network, lambda _: 3)
    with unchanging(network):
        modules_of(network)
    gone = ref(network)
    del network
    gc.collect()
    assert gone() is None


def test_values_that_cannot_be_compared_are_changes() -> None:
    network: Any = block()
    network.size = torch.zeros(3)
    standing_of(network)
    network.size = 3
    before, _ = standing_of(network)
    network.size = torch.full((2,), 3)  # 3 == this is no truth value
    assert standing_of(network)[0] is not before


def test_without_the_reach_each_question_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "STATE", ("_renamed",))
    network, question = block(), counting()
    assert [asked_once(network, question) for _ in range(2)] == [1, 2]
    assert list(modules_of(network).values()) == ["", "0", "1", "2"]


def test_it_is_asked_once_as_long_as_it_stands() -> None:
    network: Any = block()
    other, question = block(), counting()
    assert [asked_once(network, question) for _ in range(2)] == [1, 1]
    assert asked_once(other, question) == 2
    network[1].p = 0.25
    assert asked_once(network, question) == 3
    network[1].p = 0.5
    assert asked_once(network, question) == 1


def test_a_call_looks_once() -> None:
    network: Any = block()
    question = counting()
    with unchanging(network):
        assert asked_once(network, question) == 1
        network[1].p = 0.25
        assert asked_once(network, question) == 1
        thread = threading.Thread(target=asked_once, args=(network, question))
        thread.start()
        thread.join()
    assert asked_once(network, question) == 2  # as the other thread asked


def test_buffers_of_foreign_forward_passes_are_put_back() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x

    network = nn.Sequential(Counts())
    for _ in range(2):
        with eval_mode(network):
            network(torch.ones(3))
        assert network[0].count == 0


def flip(vit: Any) -> Any:
    def backwards(_module: Any, _args: Any, out: Any) -> torch.Tensor:
        return torch.cat([out[:, :1], out[:, 1:].flip(1)], 1)

    return vit.blocks[0].register_forward_pre_hook(
        lambda _module, args: (backwards(None, None, args[0]), *args[1:])
    )


NETWORKS = {
    "a block more": lambda vit: vit.blocks.append(copy.deepcopy(vit.blocks[0])),
    "another attention": lambda vit: setattr(
        vit.blocks[1], "attn", copy.deepcopy(vit.blocks[0].attn)
    ),
    "a hook that turns the tokens around": flip,
    "tied weights": lambda vit: setattr(vit.blocks[1], "attn", vit.blocks[0].attn),
    "a parametrization": lambda vit: parametrizations.orthogonal(vit.blocks[0].attn.proj),
}


@pytest.mark.parametrize("change", NETWORKS)
def test_a_map_after_a_change_is_that_of_a_network_never_seen(change: str) -> None:
    torch.manual_seed(1)
    vit = ViT(image_size=16, patch_size=4, num_classes=5, dim=12, depth=2, heads=3).eval()
    images = torch.randn(1, 3, 16, 16)
    before = Rollout()(vit, images).values
    NETWORKS[change](vit)
    after = Rollout()(vit, images).values
    assert torch.equal(after, Rollout()(copy.deepcopy(vit), images).values)
    assert not torch.equal(after, before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_network_is_refused_in_a_sentence_by_what_asks_for_modules() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = torch.jit.script(plain.eval())
    images = torch.rand(1, 3, 23, 29)
    whole = MaskedRegression(samples=16)
    assert torch.equal(whole(network, images).values, whole(plain, images).values)
    with pytest.raises(ValueError, match="TorchScript hides its modules"):
        GradCAM()(network, images)
