"""LeGrad: attention to which patches would raise the target, layer by layer.

Axes: b batch, l layers, n tokens, head, i queries, j keys, e value width.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.compat.torch_private import write_count
from vision_attn.hooks import Hooks
from vision_attn.methods.attention_explainer import (
    AttentionExplainer,
    PerHead,
    full_precision,
    gradients_of,
    heatmaps_of,
    kept_cells,
)
from vision_attn.methods.rollout import weight_gradients
from vision_attn.methods.targets import Target
from vision_attn.tokens.carry.transpose import apply_raw_transpose
from vision_attn.tokens.modules import attends, calls_attention
from vision_attn.tokens.outputs import rows_of, run
from vision_attn.tokens.path.branches import calls_side_by_side
from vision_attn.tokens.path.chain import Attention
from vision_attn.tokens.path.path import Path, find_path, found_layout
from vision_attn.tokens.path.support import blank_image
from vision_attn.tokens.record.calls import AttentionCall, Tile
from vision_attn.tokens.record.log import Record
from vision_attn.tokens.record.record import record_attention
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["LeGrad"]


@dataclass(frozen=True)
class LeGrad(AttentionExplainer):
    """LeGrad: positive gradients of the target by attention weights, over all layers.

    mean_l mean_h mean_i (d s_l / d A_lhij)+, Bousselham et al. 2024. s_l is the target if the
    tokens after block l were the last: read by the network's own norm, pool and classifier. The
    ends of all blocks run side by side as one batch, and each s_l is differentiated by the weights
    of block l alone: one forward pass, one short backward pass. With an attention pool, A_l is the
    pool's map of the tokens after block l; of calls side by side in a block, all heads count.

    Args:
        start_layer: The first block that counts, from 0.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import LeGrad
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> LeGrad(start_layer=1)(network, torch.rand(1, 3, 16, 16), target=3).values.shape
        torch.Size([1, 2, 2])
    """

    start_layer: int = 0

    class_specific = True
    needs_gradients = True

    def refusal(self, network: nn.Module) -> str | None:
        if reason := super().refusal(network) or self._refusal_of_blocks(network):
            return reason
        try:
            return refusal_of_calls(find_path(network, blank_image(network)), blocks_of(network))
        except Exception:  # its own code, on an image that may be of the wrong kind
            return None

    def _refusal_of_blocks(self, network: nn.Module) -> str | None:
        blocks = blocks_of(network)
        if not blocks:
            return "its attention layers are not all in one list of blocks"
        if any(attends(block) for block in blocks):
            return (
                f"its list holds {type(blocks[0]).__name__}, attention layers alone, not "
                "blocks with their residual connections"
            )
        return None

    def refusal_for(
        self, network: nn.Module, images: Images, layout: TokenLayout | None = None
    ) -> str | None:
        reason = super().refusal_for(network, images, layout) or self._refusal_of_blocks(network)
        if reason:
            return reason
        return refusal_of_calls(find_path(network, images), blocks_of(network))

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        layout = layout or found_layout(network, images)
        blocks = blocks_of(network)
        if not 0 <= self.start_layer < len(blocks):
            raise ValueError(
                f"start_layer must be from 0 to {len(blocks) - 1}, got {self.start_layer}"
            )
        copies = len(blocks)
        steps = find_path(network, images).steps
        sizes = {size for step in steps for size in step.shape}
        while copies * len(images) in sizes:  # or positions of each head were one of each image
            copies += 1
        try:
            record, output = run_ends(network, blocks, images, copies, once=True)
        except Exception:  # of code that needs the whole batch
            record, output = run_ends(network, blocks, images, copies, once=False)
        spare = (copies - len(blocks)) * len(images)
        rows = torch.arange(spare, copies * len(images), device="cpu").split(len(images))
        ends = [rows_of(output, of_block, copies * len(images)) for of_block in rows]
        target = target.fixed(ends[-1])  # the last block's end is the network's
        score = torch.stack([target(end).sum() for end in ends]).sum()
        used = [call for call, step in zip(record.calls, steps, strict=True) if step.used]
        calls, gradients = gradients_of(score, used)
        check_calls(calls, len(blocks), layout)
        side_by_side = len(calls) // len(blocks)  # calls of a block
        with full_precision(images):
            if layout.pool == "attention":
                maps = positive_gradients(calls[-1], gradients[-1], layout)[spare:].unflatten(
                    0, (len(blocks), -1)
                )
            else:
                of_calls = torch.stack(
                    [
                        positive_gradients(*each, layout)
                        for each in zip(calls, gradients, strict=True)
                    ]
                )
                maps = of_calls.unflatten(0, (-1, side_by_side)).mean(1)
            part = kept_cells(network, images, find_path(network, images))
            shares = maps[self.start_layer :].mean(0)
            return heatmaps_of(shares, layout, self, target.classes(images), part=part)


def positive_gradients(
    call: AttentionCall, gradient: PerHead, layout: TokenLayout
) -> Float[Tensor, "b n"]:
    """Compute mean_h mean_i (dA_hij)+ for each token j."""

    def fuse(call: AttentionCall, tile: Tile) -> Tensor:
        return weight_gradients(call, gradient, tile).clamp_(min=0).mean(1)

    uniform = torch.full(
        (call.batch, 1, call.queries), 1 / call.queries, dtype=call.dtype, device=call.device
    )
    tokens = apply_raw_transpose(call, uniform, fuse)[:, 0]
    return torch.nn.functional.pad(tokens, (layout.tokens - call.keys, 0))


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """List the blocks that hold attention; [] if they are not elements of one list.

    Where each has a list of its own, of branches side by side, those around them are the blocks.
    """
    modules = dict(network.named_modules())
    elements: list[list[tuple[str, str]]] = []  # of each attention the lists and elements around it
    for path, module in modules.items():
        if not attends(module) and not calls_attention(module):
            continue
        parts = path.split(".")
        around = [
            (".".join(parts[: depth - 1]), ".".join(parts[:depth]))
            for depth in range(len(parts), 0, -1)
        ]
        elements.append(
            [each for each in around if isinstance(modules[each[0]], nn.ModuleList | nn.Sequential)]
        )
    in_lists = [each for each in elements if each]
    outermost: list[nn.Module] = []
    for level in range(min(map(len, in_lists), default=0)):
        paths = dict.fromkeys(each[level][1] for each in in_lists)
        blocks = [modules[path] for path in paths]
        run = not any(isinstance(block, nn.ModuleList | nn.ModuleDict) for block in blocks)
        if len({each[level][0] for each in in_lists}) == 1 and run:
            outermost = outermost or blocks
            if not any(attends(block) for block in blocks):
                return blocks
    return outermost


def refusal_of_calls(path: Path, blocks: list[nn.Module]) -> str | None:
    """Say why blocks have no gradient of their own; None where each makes one call over all tokens.

    Or several side by side, as many as the others.
    """
    assert path.chain is not None
    links = [link for link in path.chain.links if isinstance(link, Attention)]
    pools = sum(link.new is not None for link in links)
    count, rest = divmod(len(links) - pools, len(blocks))
    tokens, times = path.chain.links[0].before, calls_side_by_side(path.chain)
    whole = [_among(tokens, link) and round(times.get(link.layer, 1), 6) == count for link in links]
    if rest or not count or not all(whole[: count * len(blocks)]) or pools > 1:
        return (
            f"its {len(blocks)} blocks make {len(links)} attention calls; expected one call over "
            "all tokens in each, or as many side by side, and at most one pool after them"
        )
    return None


def _among(tokens: int, link: Attention) -> bool:
    """Whether a call is one among so many tokens, each a query and a key, added to itself."""
    shape = link.queries.shape == link.keys.shape == (1, tokens)
    return link.new is None and shape and torch.equal(link.queries, link.keys)


def run_ends(
    network: nn.Module, blocks: list[nn.Module], images: Images, copies: int, once: bool
) -> tuple[Record, Any]:
    """Run a network with the ends of all blocks side by side; return its calls and its output.

    once: whether what is before the blocks runs on the images alone.
    """
    with (
        before_blocks_once(network, blocks, len(images), copies) if once else nullcontext(),
        ends_side_by_side(blocks, len(images), copies),
        record_attention(network, ("v", "context")) as record,
    ):
        return record, run(network, images.repeat(copies, 1, 1, 1))


class NotOnceError(Exception):
    """What is before the blocks cannot run on the images alone."""


@contextmanager
def before_blocks_once(
    network: nn.Module, blocks: list[nn.Module], images: int, copies: int
) -> Iterator[None]:
    """Run the modules before the blocks on the first `images` of the batch, whose copies are equal.

    The batch holds so many copies of the images. Modules beside the blocks, and beside modules
    around these, are given the rows of the first and give them as many times. Raises NotOnceError
    where one gives anything but a tensor of the batch, or writes into what it is given.
    """
    cuts: list[list[tuple[Tensor, int | None]]] = []  # what running modules have cut, times written
    reached: list[nn.Module] = []  # the first of the blocks

    def enter(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if reached:
            return None
        cut: list[tuple[Tensor, int | None]] = []

        def own(x: Any) -> Any:
            if not isinstance(x, Tensor) or not x.ndim or len(x) != images * copies:
                return x
            if not torch.equal(x[:images], x[images : 2 * images]):
                return x  # of as many positions, say
            cut.append((x, write_count(x)))
            return x[:images]

        arguments = tuple(map(own, args)), {name: own(x) for name, x in kwargs.items()}
        cuts.append(cut)
        return arguments if cut else None

    def leave(module: nn.Module, _args: tuple[object, ...], out: Any) -> Tensor | None:
        if reached or not (cut := cuts.pop()):
            return None
        of_batch = isinstance(out, Tensor) and out.ndim > 1 and len(out) == images != out.shape[1]
        if not of_batch or any(write_count(x) != times for x, times in cut):
            raise NotOnceError(f"{type(module).__name__} has to run on the whole batch")
        whole: Tensor = out.repeat(copies, *[1] * (out.ndim - 1))
        return whole

    with Hooks() as hooks:
        hooks.before(blocks[0], lambda block, _args: reached.append(block))
        for module in beside(network, blocks) if copies > 1 else ():
            hooks.before(module, enter, with_kwargs=True)
            hooks.after(module, leave)
        yield


def beside(network: nn.Module, blocks: list[nn.Module]) -> Iterator[nn.Module]:
    """Yield the modules beside blocks, and beside those around them, that run by themselves."""
    for child in network.children():
        inside = set(child.modules())
        if any(block in inside for block in blocks):
            if child not in blocks:
                yield from beside(child, blocks)
        elif isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from beside(child, blocks)
        else:
            yield child


@contextmanager
def ends_side_by_side(blocks: list[nn.Module], images: int, copies: int) -> Iterator[None]:
    """Run blocks on the first `images` of the batch, and what follows them on every block's output.

    The batch holds so many copies of the images: one a block, and before them what is not needed.

    Each block gets its tokens off the graph, so that its output depends on its own weights alone;
    what else it is given (rotary positions) is cut only where there is one for each of the batch.
    What follows the blocks sees as many batches as there are blocks, in their order.
    """
    ends: list[Tensor] = []

    def enter(
        _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def own(x: Any) -> Any:
            if type(x) in (tuple, list):  # the cosines and sines of a rotation, say
                return type(x)(map(own, x))
            if not isinstance(x, Tensor):
                return x
            if x is tokens:
                return x[:images].detach().requires_grad_()
            return x[:images] if x.ndim > 2 and len(x) == images * copies else x

        every = [*args, *kwargs.values()]
        tokens = next((x for x in every if isinstance(x, Tensor) and x.ndim > 2), None)
        return tuple(map(own, args)), {name: own(x) for name, x in kwargs.items()}

    def leave(block: nn.Module, _args: tuple[object, ...], out: Any) -> Tensor | None:
        if not isinstance(out, Tensor) or (ends and out.shape != ends[0].shape):
            raise ValueError(
                f"the tokens after {type(block).__name__} are not those before it: LeGrad needs "
                "blocks that all have the same tokens"
            )
        ends.append(out)
        spare = [ends[0].detach()] * (copies - len(blocks))
        return torch.cat([*spare, *ends]) if block is blocks[-1] else None

    with Hooks() as hooks:
        for block in blocks:
            hooks.before(block, enter, with_kwargs=True)
            hooks.after(block, leave)
        yield


def check_calls(calls: list[AttentionCall], blocks: int, layout: TokenLayout) -> None:
    """Raise ValueError unless each block made its calls over all tokens, and a pool one more."""
    pools = int(layout.pool == "attention")
    count, rest = divmod(len(calls) - pools, blocks)
    whole = all(call.queries == call.keys == layout.tokens for call in calls[: blocks * count])
    if rest or not count or not whole:
        raise ValueError(
            f"LeGrad needs one attention call over {layout.tokens} tokens in each of the {blocks} "
            f"blocks{', and one pool' if pools else ''}; got "
            f"{', '.join(f'{call.queries} x {call.keys}' for call in calls)}"
        )
