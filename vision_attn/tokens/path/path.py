"""The path of a network's tokens, proven by a run: which call attends over what, to the logits.

A run on two copies of one image is followed value by value (`tokens/trace/origins.py`). What comes
out says which tokens each attention call's queries and keys are, where windows and merged patches
lie, what the classifier reads, and where each token lies on the image; names of modules and layers
play no part. It is done once for a network and a size of image, and remembered.

Axes: b images, n tokens, i queries, j keys, lead images times windows or heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.hooks import Hooks
from vision_attn.inference import asked_once, modules_of
from vision_attn.tokens.layout import layout_of
from vision_attn.tokens.outputs import head_given
from vision_attn.tokens.path.branches import copies_joined
from vision_attn.tokens.path.chain import Attention, Chain, Regroup
from vision_attn.tokens.path.places import Places, layout_found, places_of
from vision_attn.tokens.path.traced import Step, UnknownPathError, follow
from vision_attn.tokens.path.writer import ChainWriter
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.tokens.record.log import RecordError
from vision_attn.tokens.trace.origins import NOWHERE, indices
from vision_attn.tokens.trace.tracer import Tracer
from vision_attn.types import Images, TokenLayout

__all__ = ["Path", "Step", "find_path", "find_places", "found_layout"]


@dataclass(frozen=True)
class Path:
    """How tokens go through a network; printed, a table.

    Attributes:
        steps: The attention calls of a run in their order.
        chain: How a map is carried back through those that count, from what the classifier reads to
            the first tokens; None where it cannot be.
        layout: How the first tokens lie on the image; None: not known.
        refusal: Why there is no map, or none until a layout is given; None: there is one.
        patch: Height and width of a patch in pixels; None: not known.
        left_out: Why the map begins later than the first attention call; None: it does not.
        caveats: Sentences of what the run does not prove, or a map does not show.
        unread: The sentence for a classifier whose reading the run does not prove; a layout that is
            given settles that.
        is_ordered: Whether the network takes the first tokens in the order of the layout.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.path import find_path
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> print(find_path(network, torch.rand(1, 3, 16, 16)))
        5 tokens: 1 beside the image, 2x2 patches of 8x8 pixels
          call  module                heads  queries  keys
             0  blocks.0.attn.attend      3        5     5
             1  blocks.1.attn.attend      3        5     5
        the logits read: the class token
    """

    steps: Sequence[Step]
    chain: Chain | None
    layout: TokenLayout | None
    refusal: str | None
    patch: tuple[int, int] | None = None
    left_out: str | None = None
    caveats: Sequence[str] = ()
    unread: str | None = None
    is_ordered: bool = True

    def __str__(self) -> str:
        lines = [self._tokens()]
        width = max([6, *(len(step.module) for step in self.steps)])
        if self.steps:
            lines.append(f"  call  {'module':{width}}  heads  queries  keys")
        notes = self._notes()
        for index, step in enumerate(self.steps):
            _, heads, queries, keys = step.shape
            line = f"{index:>6}  {step.module:{width}}  {heads * step.heads:>5}"
            lines.append(f"{line}  {queries:>7}  {keys:>4}  {notes[index]}".rstrip())
        lines.append(f"no map: {self.refusal}" if self.refusal else self._read())
        lines += [] if self.refusal else self.warnings()
        return "\n".join(lines)

    def warnings(self, layout: TokenLayout | None = None) -> list[str]:
        """List what the reader of a map must know, in sentences.

        Args:
            layout: The one in use; None: there is none.
        """
        unread = self.unread if layout is None else None
        return [sentence for sentence in (self.left_out, unread, *self.caveats) if sentence]

    def _tokens(self) -> str:
        if self.layout is None:
            return "where the tokens lie on the image is not known"
        beside, (h, w) = len(self.layout.beside), self.layout.grid
        of = f" of {self.patch[0]}x{self.patch[1]} pixels" if self.patch else ""
        return f"{self.layout.tokens} tokens: {beside} beside the image, {h}x{w} patches{of}"

    def _notes(self) -> list[str]:
        notes = [f"in {step.windows} windows" if step.windows > 1 else "" for step in self.steps]
        counted = [index for index, step in enumerate(self.steps) if step.used]
        for link in self.chain.links if self.chain else ():
            index = counted[link.layer]
            if isinstance(link, Regroup):
                after = int(link.made.max()) + 1
                notes[index] += (
                    f"{', ' if notes[index] else ''}from {link.before} tokens to {after}"
                )
            elif isinstance(link, Attention) and link.new is not None:
                new = "its queries are new tokens"
                notes[index] = f"{notes[index]}, {new}" if notes[index] else new
        for index, step in enumerate(self.steps):
            if not step.used:
                notes[index] = "left out: " + (
                    "something else mixes its tokens afterwards"
                    if step.mixed
                    else "its output does not reach the network's output"
                )
        return notes

    def _read(self) -> str:
        if self.chain is None or self.chain.reads is None:
            return "how the last tokens are read is not known: the layout's pool decides"
        pool = self.chain.layout.pool
        words = {
            "cls": "the class token",
            "cls_dist": "the class and distillation tokens, equally",
            "cls_mean": "the class token and the mean of the patches, equally",
            "mean": "the mean of the patches",
            "attention": "the attention pool",
        }
        named = torch.zeros(self.chain.tokens, dtype=torch.float32, device="cpu")
        seed = replace(self.chain, reads=None).seed(1, named.device, named.dtype)[0, 0]
        if torch.allclose(seed, self.chain.reads.float(), atol=1e-6):
            return f"the logits read: {words[pool]}"
        count = int((self.chain.reads > 0).sum())
        return f"the logits read: {count} of the last {self.chain.tokens} tokens"

    def chain_for(
        self, calls: Sequence[AttentionCall], layout: TokenLayout | None, images: int
    ) -> Chain:
        """Make the chain of a run's calls that count.

        Args:
            calls: The run's attention calls.
            layout: What was given of how the tokens lie; it says what the classifier reads. None
                takes the one found.
            images: How many images the run was of.

        Raises:
            ValueError: No map can be carried along this path, or the layout does not fit it.
        """
        if self.chain is None or (self.refusal and layout is None):
            raise ValueError(self.refusal)
        chain = self.chain
        first = chain.links[0].before
        if layout is not None:
            if layout.tokens != first:
                call = calls[0]
                raise ValueError(
                    f"attention call 0 ({call.module}) is {call.queries} x {call.keys}, but "
                    f"the layout has {layout.tokens} tokens ({len(layout.beside)} beside the image "
                    f"+ a grid of {layout.grid[0]}x{layout.grid[1]}) and the network {first}: give "
                    f"a layout= of {first} tokens"
                )
            if reason := self.contradiction(layout):
                raise ValueError(reason)
            pooled = any(isinstance(link, Attention) and link.new is not None
                for link in chain.links)  # fmt: skip
            if layout.pool == "attention" and not pooled:
                raise ValueError(
                    "the layout says that an attention pool reads the tokens, but the queries of "
                    "every attention call are tokens: give another layout="
                )
            chain = replace(chain, layout=layout, reads=None)
        links = [
            link.called(calls[link.layer]) if isinstance(link, Attention) else link
            for link in chain.links
        ]
        return replace(chain, links=links)

    def contradiction(self, layout: TokenLayout, of_model: bool = False) -> str | None:
        """Say in a line how the run contradicts a layout; None: it does not.

        Compared is where tokens lie, not what is read of them.

        Args:
            layout: The one that was given.
            of_model: Whether it is of the first tokens, so that their number is compared too; a
                layer may have others.
        """
        first = self.chain.links[0].before if self.chain is not None else layout.tokens
        if layout.tokens != first and not of_model:
            return None
        if layout.tokens != first:
            return f"the layout has {_in_words(layout)}, but the network has {first}"
        traced = self.layout
        if traced is None or (traced.grid, traced.beside) == (layout.grid, layout.beside):
            return None
        return (
            f"the layout has {_in_words(layout)}, but a run of the network shows "
            f"{_in_words(traced)}: leave layout= out, or correct it"
        )

    def counted(self, of_calls: Sequence[Any], images: int, network: nn.Module) -> list[Any]:
        """Select the values of the calls that count, from one value for each call of a run.

        Args:
            of_calls: Calls, or tensors with their batch; heads that were counted as batch become
                heads.
            images: How many images the run was of.
            network: The network that ran.
        """
        if len(of_calls) != len(self.steps):
            raise ValueError(
                f"{type(network).__name__} made {len(of_calls)} attention calls, and "
                f"{len(self.steps)} for another image of this size: its path changes with the image"
            )
        both = zip(self.steps, of_calls, strict=True)
        return [arranged(value, step, images) for step, value in both if step.used]


def arranged(call: Any, step: Step, images: int) -> Any:
    """Put heads that were counted as batch where heads are, and images before their windows."""
    if step.heads == 1 and step.images_first and step.order is None:
        return call
    each = step.heads * step.windows

    def move(x: Tensor, has_heads: bool) -> Tensor:
        if x.ndim < 3 or len(x) != images * each:
            return x
        x = x if has_heads else x.unsqueeze(1)
        x = x.unflatten(0, (images, each) if step.images_first else (each, images))
        x = x if step.images_first else x.transpose(0, 1)
        x = x if step.order is None else x[:, list(step.order)]
        x = x.unflatten(1, (step.windows, step.heads)).flatten(2, 3)
        return x.flatten(0, 1)

    if isinstance(call, Tensor):
        return move(call, has_heads=call.ndim == 4)
    values = {name: value for name, value in vars(call).items() if isinstance(value, Tensor)}
    moved = {
        name: move(value, has_heads=value.ndim == 4 or name == "lse")
        for name, value in values.items()
    }
    return replace(call, **moved)


def find_path(network: nn.Module, images: Images) -> Path:
    """Find the path of the tokens of images of this size, by one run of the first image.

    It is remembered for the network as it stands; one that has changed is run again.
    """
    key = (tuple(images.shape[1:]), images.dtype, images.device, head_given())
    paths = asked_once(network, _paths)
    if key not in paths:
        paths[key] = run_path(network, images)
    return paths[key]


def _paths(_network: nn.Module) -> dict[Any, Path]:
    return {}


def found_layout(network: nn.Module, images: Images, tokens: int | None = None) -> TokenLayout:
    """Find how the tokens of images of this size lie on them: as the network's kind says, or a run.

    tokens: how many there are, where that is known. Raises ValueError where nothing tells.
    """
    layout = find_path(network, images).layout
    if layout is None or tokens not in (None, layout.tokens):
        layout = layout_of(network, (images.shape[2], images.shape[3]))
    return layout


def find_places(network: nn.Module, images: Images, module: nn.Module) -> Places:
    """Find where the tokens of a module's output (b n d) or (n b d) lie on images of this size.

    As the network's kind says, or by a run, which is remembered as a path is. Raises ValueError
    where nothing tells.
    """
    name = modules_of(network)[module]
    key = (tuple(images.shape[1:]), images.dtype, images.device, name)
    places_by_key = asked_once(network, _places)
    if key not in places_by_key:
        outputs: list[Tensor] = []
        places_by_key[key] = None
        with suppress(RecordError):
            run = follow(network, images[:1], partial(watching, module, outputs))
            if outputs:
                size = (images.shape[2], images.shape[3])
                places_by_key[key] = places_of(run.origins, outputs[-1], size)
    positions = places_by_key[key]
    if positions is None:
        raise ValueError(
            "where the tokens of this layer lie on the image is not known: name another layer, or "
            "give layout="
        )
    return positions


def _places(_network: nn.Module) -> dict[Any, Places | None]:
    return {}


@contextmanager
def watching(module: nn.Module, outputs: list[Tensor], tracer: Tracer) -> Iterator[None]:
    """Keep the origins of what a module gives while this is open."""

    def keep(_module: nn.Module, _args: tuple[Any, ...], out: Any) -> None:
        if isinstance(out, Tensor):
            outputs.append(tracer.origins_of(out))

    with Hooks() as hooks:
        hooks.after(module, keep)
        yield


def run_path(network: nn.Module, images: Images) -> Path:
    """Find a path by a run, without a cache."""
    try:
        run = follow(network, images[:1])
    except RecordError as error:
        return Path([], None, None, str(error))
    if not run.calls:
        return Path([], None, None, NO_ATTENTION)
    size = (images.shape[2], images.shape[3])
    writer = ChainWriter(run, size)
    try:
        run.read_steps()
        if not run.used:
            raise UnknownPathError("the logits depend on no attention call")
        writer.write()
    except UnknownPathError as error:
        return Path(run.steps + run.unread(), None, None, str(error))
    walk = writer.walk
    sources = indices(walk.sources)
    boxes, centres = run.origins.box[sources, :4], run.origins.centres(sources)
    if writer.aside:
        boxes[-len(writer.aside) :] = NOWHERE
    chain = copies_joined(Chain(walk.links, UNPLACED, walk.tokens, walk.reads))
    layout, patch, part = layout_found(
        network, size, chain.links, boxes, centres, walk.ranks, chain.reads
    )
    refusal = UNKNOWN_PLACES.format(walk.links[0].before) if layout is None else None
    chain = replace(chain, layout=layout or UNPLACED, part=part)
    remarks: dict[str, Any] = {
        "caveats": writer.caveats,
        "unread": writer.unread,
        "is_ordered": walk.ranks == sorted(walk.ranks),
    }
    if writer.begins is None or len(writer.used) == len(run.used):
        return Path(run.steps, chain, layout, refusal, patch, **remarks)
    begin, reason = writer.begins
    steps = [
        replace(step, used=False, mixed=True) if index < begin and step.used else step
        for index, step in enumerate(run.steps)
    ]
    counted = sum(step.used for step in steps)
    left_out = f"a map shows the last {counted} of {len(run.used)} attention calls alone: {reason}"
    return Path(steps, chain, layout, refusal, patch, left_out, **remarks)


def _in_words(layout: TokenLayout) -> str:
    """Say where the tokens of a layout lie."""
    h, w = layout.grid
    beside = ", ".join(map(str, layout.beside[:6])) + ", ..." * (len(layout.beside) > 6)
    positions = f" in place {beside}" if beside else ""
    count = len(layout.beside)
    return f"{layout.tokens} tokens ({count} beside the image{positions} + a grid of {h}x{w})"


NO_ATTENTION = "no attention was found: no matrix product of values with weights that sum to 1"
UNKNOWN_PLACES = (
    "how its {} tokens lie on the image is not known: give layout=TokenLayout(prefix=class and "
    "register tokens, grid=(rows, columns), pool=..., class_token=whether the first is one)"
)
UNPLACED = TokenLayout(0, (1, 1), "mean")
