"""What is asked of a network during a call is asked once; between calls every change is seen."""

import copy
import threading
from contextlib import suppress

import pytest
import torch
from torch import nn

from vision_attn.inference import asked_once, modules_of, unchanging
from vision_attn.methods import Rollout
from vision_attn.models import ViT
from vision_attn.tokens.path.path import state_of


def counting():
    asked = []

    def question(network):
        asked.append(network)
        return len(asked)

    return question


def test_it_is_asked_once_inside_and_anew_outside():
    network, other, question = nn.Linear(2, 3), nn.Linear(2, 3), counting()
    assert [asked_once(network, question) for _ in range(2)] == [1, 2]
    with unchanging(network):
        assert [asked_once(network, question) for _ in range(2)] == [3, 3]
        assert asked_once(other, question) == 4
        with unchanging(network):  # another call, inside a hook of this one
            assert asked_once(network, question) == 5
        assert asked_once(network, question) == 3
    assert asked_once(network, question) == 6


def test_another_thread_asks_for_itself():
    network, question, found = nn.Linear(2, 3), counting(), []
    with unchanging(network):
        asked_once(network, question)
        thread = threading.Thread(target=lambda: found.append(asked_once(network, question)))
        thread.start()
        thread.join()
    assert found == [2]


def test_an_error_ends_it():
    network, question = nn.Linear(2, 3), counting()
    with suppress(KeyError), unchanging(network):
        asked_once(network, question)
        raise KeyError
    assert asked_once(network, question) == 2


CHANGES = {
    "a module more": lambda vit: vit.blocks.append(copy.deepcopy(vit.blocks[0])),
    "another module": lambda vit: setattr(vit.blocks[1], "attn", copy.deepcopy(vit.blocks[0].attn)),
    "a plain attribute": lambda vit: setattr(vit.blocks[0], "size", 3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_calls_is_seen(change):
    torch.manual_seed(1)
    vit = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3).eval()
    images = torch.randn(1, 3, 16, 16)
    before = Rollout()(vit, images).values
    state, modules = state_of(vit), list(modules_of(vit))
    CHANGES[change](vit)
    assert state_of(vit) != state
    assert (list(modules_of(vit)) == modules) == (change == "a plain attribute")
    after = Rollout()(vit, images).values
    assert torch.equal(after, before) == (change == "a plain attribute")
