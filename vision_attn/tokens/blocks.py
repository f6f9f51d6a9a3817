"""The blocks of a network: where its residual stream goes in and comes out, found by a run.

Axes: b batch, n tokens, d width of a token, head, i queries, e value width.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.hooks import Hooks, apart
from vision_attn.inference import infer, modules_of
from vision_attn.tokens.modules import attends
from vision_attn.tokens.record.record import record_attention
from vision_attn.types import Images

__all__ = ["BlockRun", "TokenBlock", "find_blocks", "watch_blocks"]


@dataclass(frozen=True, eq=False)
class TokenBlock:
    """A module that takes all tokens and gives as many, with one attention call inside.

    Attributes:
        name: The block's.
        module: The block.
        call: The name of the module that attends.
        branch: The name of the block's own child in which that is.
        projection: The linear layer whose input is the attention's output, its heads side by side;
            None where there is none.
        mlp_out: The last linear layer of the MLP, whose input are its neurons; None where there is
            none.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ViT
        >>> from vision_attn.tokens.blocks import find_blocks
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> block = find_blocks(network, torch.rand(1, 3, 16, 16))[1]
        >>> block.name, block.call, block.mlp_out is network.blocks[1].mlp.fc2
        ('blocks.1', 'blocks.1.attn.attend', True)
    """

    name: str
    module: nn.Module
    call: str
    branch: str
    projection: nn.Linear | None
    mlp_out: nn.Linear | None


@dataclass
class BlockRun:
    """The values in a block in one run, detached from the graph.

    Attributes:
        before: The stream that it takes.
        middle: The stream between attention and MLP; None where the block does not normalise first
            and then add, so that it is not known.
        after: The stream that it gives.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.blocks import BlockRun
        >>> BlockRun(torch.zeros(2, 5, 3)).middle is None
        True
    """

    before: Float[Tensor, "b n d"]
    middle: Float[Tensor, "b n d"] | None = None
    after: Float[Tensor, "b n d"] | None = None


def find_blocks(network: nn.Module, images: Images) -> list[TokenBlock]:
    """Find the blocks of a network in the order they run; a call in no block is left out.

    A block is the outermost module with one attention call inside that takes and gives tokens of
    the same shape, (b n d) or (b h w d), and does not itself project to queries and keys.

    Args:
        network: A network that attends.
        images: One is run through it.

    Raises:
        ValueError: No attention call is seen.
    """
    image = images[:1]
    modules = {name: module for module, name in modules_of(network).items()}
    shapes: dict[str, list[bool]] = {}
    linear: dict[str, list[tuple[nn.Linear, Tensor]]] = {}
    runs: list[str] = []

    def took(name: str) -> Callable[..., Any]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
        ) -> None:
            x, y = first_tensor(args, kwargs), first_tensor((out,), {})
            fits = x is not None and y is not None and x.shape == y.shape and x.ndim in (3, 4)
            shapes.setdefault(name, []).append(fits)
            runs.append(name)
            if isinstance(module, nn.Linear) and x is not None:
                linear.setdefault(name, []).append((module, x.detach()))

        return hook

    with apart(), record_attention(network, keep=("context",)) as record, Hooks() as hooks:
        for module, name in modules_of(network).items():
            hooks.after(module, took(name), with_kwargs=True)
        infer(network, image)
    callers = [call.module for call in record.calls]
    inside = Counter(each for caller in callers for each in ancestors(caller))
    blocks = []
    for call in record.calls:
        names = [
            name
            for name in ancestors(call.module)
            if inside[name] == 1 and shapes.get(name) == [True] and not attends(modules[name])
        ]
        if not names:
            continue
        name = names[0]
        rest = call.module.removeprefix(f"{name}.") if name else call.module
        branch = ".".join(filter(None, [name, rest.split(".")[0]]))
        below = [
            (other, layer, x)
            for other in runs
            if within(other, name)
            for layer, x in linear.get(other, [])
        ]
        width = _width(modules[name], below)
        outs = [
            layer for other, layer, _ in below
            if not within(other, branch) and layer.out_features == width
        ]  # fmt: skip
        blocks.append(
            TokenBlock(
                name,
                modules[name],
                call.module,
                branch,
                _projection(
                    modules[call.module], call.context, [(layer, x) for _, layer, x in below]
                ),
                outs[-1] if outs else None,
            )
        )
    return blocks


def _width(module: nn.Module, below: Sequence[tuple[str, nn.Linear, Tensor]]) -> int | None:
    """The width of the stream: what the last linear layer of a block gives."""
    return below[-1][1].out_features if below else None


def _projection(
    caller: nn.Module, context: Tensor | None, below: Sequence[tuple[nn.Linear, Tensor]]
) -> nn.Linear | None:
    """The linear layer that takes the heads' outputs side by side, by the numbers that it took."""
    if isinstance(caller, nn.MultiheadAttention):
        return caller.out_proj
    if context is None or context.ndim != 4:
        return None
    joined = context.detach().transpose(1, 2).flatten(2)
    for layer, x in below:
        fits = x.shape[-1] == joined.shape[-1] and x.numel() == joined.numel()
        if fits and torch.equal(x.reshape(joined.shape), joined):
            return layer
    return None


@contextmanager
def watch_blocks(blocks: Sequence[TokenBlock]) -> Iterator[list[BlockRun]]:
    """Keep what goes through the blocks of a run of this thread, while this is open.

    Yields a list that receives a `BlockRun` for each block as it ends, in order.
    """
    done: list[BlockRun] = []
    state: dict[str, Any] = {}

    def start(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_tensor(args, kwargs)
        assert x is not None
        state.update(
            run=BlockRun(x.detach().flatten(1, -2).clone()), x=x, first=None, attended=False
        )

    def attended(_module: nn.Module, _args: tuple[Any, ...], _out: Any) -> None:
        state["attended"] = True

    def normalises(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, run = first_tensor(args, kwargs), state.get("run")
        if x is None or run is None:
            return
        if state["first"] is None:
            state["first"] = x is state["x"] and not state["attended"]
        elif state["first"] and state["attended"] and run.middle is None:
            same = x.shape == state["x"].shape
            run.middle = x.detach().flatten(1, -2).clone() if same else None

    def end(_module: nn.Module, _args: tuple[Any, ...], out: Any) -> None:
        run, y = state.pop("run"), first_tensor((out,), {})
        assert y is not None
        run.after = y.detach().flatten(1, -2).clone()
        state.clear()
        done.append(run)

    with Hooks() as hooks:
        for block in blocks:
            prefix = f"{block.name}." if block.name else ""
            for module, name in modules_of(block.module).items():
                if f"{prefix}{name}" == block.branch:
                    hooks.after(module, attended)
                inner = within(f"{prefix}{name}", block.branch)
                if name and not inner and "norm" in type(module).__name__.lower():
                    hooks.before(module, normalises, with_kwargs=True)
            hooks.before(block.module, start, with_kwargs=True)
            hooks.after(block.module, end)
        yield done


def ancestors(name: str) -> list[str]:
    """Name a module's ancestors and itself, the outermost first; the network is ''.

    Examples:
        >>> from vision_attn.tokens.blocks import ancestors
        >>> ancestors("blocks.0.attn")
        ['', 'blocks', 'blocks.0', 'blocks.0.attn']
    """
    parts = name.split(".") if name else []
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def within(name: str, outer: str) -> bool:
    """Whether a module is the other one or inside it, by their names."""
    return not outer or f"{name}.".startswith(f"{outer}.")


def first_tensor(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """Find the first tensor that a module was given or gave, inside a tuple too."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value
        if isinstance(value, tuple | list) and value:
            return first_tensor(value, {})
        if hasattr(value, "last_hidden_state"):
            state: Tensor | None = value.last_hidden_state
            return state
    return None
