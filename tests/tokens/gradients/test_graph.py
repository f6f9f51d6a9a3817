"""Cuts of a graph beside what is left of it when each node is taken away; values and their marks."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.tokens.gradients.graph import GraphMode, cuts_of, order_of
from vision_attn.tokens.gradients.mode import CallCounter, HeldGradients, Mark


class Node:
    """A node of autograd's, by hand."""

    def __init__(self, parts: list[Any]) -> None:
        self.next_functions = [(part, 0) for part in parts]


def random_graph(seed: int) -> list[Node]:
    """Nodes from the image on, each made of one to three earlier ones; the last is the root."""
    draw = random.Random(seed)
    nodes = [Node([])]
    for _ in range(draw.randrange(3, 30)):
        near = nodes[-draw.randrange(1, 5) :]
        nodes.append(Node(draw.choices(near, k=draw.choice([1, 1, 1, 2, 3]))))
    return nodes


def reaches(root: Node, goal: Node, without: Any) -> bool:
    stack, seen = [root], set()
    while stack:
        node = stack.pop()
        if node is without or node in seen:
            continue
        if node is goal:
            return True
        seen.add(node)
        stack += [part for part, _ in node.next_functions]
    return False


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_is_a_node_without_which_nothing_reaches_the_image(seed: int) -> None:
    nodes = random_graph(seed)
    image, root = nodes[0], nodes[-1]
    order = order_of([root])
    for at, node in enumerate(order):
        assert all(order.index(part) > at for part, _ in node.next_functions)
    runs = cuts_of(order, [root])
    found = [node for run in runs for node in run]
    expected = [
        node for node in order if node in (image, root) or not reaches(root, image, without=node)
    ]
    assert found == expected[::-1]
    for run in runs:
        for before, node in pairwise(run):
            assert [part for part, _ in node.next_functions] == [before]


def test_what_two_outputs_share_is_a_cut_of_both() -> None:
    image = Node([])
    stem = Node([image])
    left, right = Node([stem]), Node([stem])
    runs = cuts_of(order_of([left, right]), [left, right])
    assert [node for run in runs for node in run] == [image, stem]


def test_values_are_known_by_function_shape_and_how_many_came_before() -> None:
    x = torch.rand(1, 5, 12, requires_grad=True)
    with GraphMode() as mode:
        y = x + 1
        y = y.relu()
        y = y + 1
        y += 1
        parts = y.chunk(2, -1)
        z = parts[0] * 1
    marks = {value.mark.function: value for value in mode.values.values()}
    assert marks["relu"].changed is False
    second = mode.values[y.grad_fn]
    assert second.mark == Mark("add_", (1, 5, 12), before=0, calls=0)
    added = [value for value in mode.values.values() if value.mark.function == "add"]
    assert [(value.mark.before, value.changed) for value in added] == [(0, False), (1, True)]
    assert not mode.values[parts[0].grad_fn].single
    assert mode.values[z.grad_fn].single


def test_a_call_of_attention_weighs_values_by_a_softmax() -> None:
    x = torch.rand(1, 5, 12, requires_grad=True)
    talk = torch.rand(3, 3)

    def calls(function: Callable[..., Any]) -> int:
        with GraphMode() as mode:
            function(x)
        return len(mode.attention_calls)

    assert calls(lambda x: (x @ x.mT).softmax(-1) @ x) == 1
    assert calls(lambda x: F.scaled_dot_product_attention(x, x, x)) == 1
    assert calls(lambda x: torch.einsum("bij,bjd->bid", F.dropout((x @ x.mT).softmax(-1)), x)) == 1
    heads = lambda x: (x.unflatten(-1, (3, 4)).transpose(1, 2),) * 2  # noqa: E731
    mixed = lambda x: torch.einsum(  # noqa: E731
        "gh,bhij->bgij", talk, (heads(x)[0] @ heads(x)[1].mT).softmax(-1)
    )
    assert calls(lambda x: mixed(x) @ heads(x)[0]) == 1
    assert calls(lambda x: x * x.softmax(-1)) == 0  # a gate
    assert calls(lambda x: x @ x.mT @ x) == 0
    module = nn.MultiheadAttention(12, 3, batch_first=True).eval().requires_grad_(False)
    assert calls(lambda x: module(x, x, x)) == 1


def test_a_mark_fits_any_number_of_images() -> None:
    mark = Mark("add", (1, 5, 12), 0)
    assert mark.fits((1, 5, 12))
    assert mark.fits((7, 5, 12))
    assert not mark.fits((7, 6, 12))
    assert not mark.fits((5, 12))
    counter = CallCounter([Mark("add", (1, 5, 12), 1), Mark("mul", (1, 5, 12), 0)])
    x = torch.rand(3, 5, 12)
    asked = [("add", x[0]), ("add", x), ("mul", x), ("add", x), ("add", x), ("mul", None)]
    assert [counter.index(*each) for each in asked] == [None, None, 1, 0, None, None]


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_level_is_kept_as_it_was_whatever_happens_to_it_in_place(
    changed: bool, in_place: bool
) -> None:
    x = torch.rand(3, 5, 7)
    weight = torch.rand(5, 7)

    def network(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if in_place:
            x += 1
        else:
            x = x + 1
        if changed:
            x.mul_(3)
        y = x * weight
        y += 1
        return (y * weight).sum((1, 2))

    marks = [(Mark("add_" if in_place else "add", (1, 5, 7), 0), changed)]
    marks += [(Mark("add_", (1, 5, 7), int(in_place)), False)]
    with HeldGradients(marks) as mode:
        out = network(x)
    torch.testing.assert_close(out, network(x))
    first, second = mode.kept[0], mode.kept[1]
    torch.testing.assert_close(first.detach(), 2 * x + 1)
    torch.testing.assert_close(second.detach(), (2 * x + 1) * (3 if changed else 1) * weight + 1)
    gradients = torch.autograd.grad(out.sum(), [first, second])
    factor = 3 if changed else 1
    torch.testing.assert_close(gradients[0], (factor * weight**2).expand(3, -1, -1))
    torch.testing.assert_close(gradients[1], weight.expand(3, -1, -1))
