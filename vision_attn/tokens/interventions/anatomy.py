"""What there is to change in a network: attention calls, and the branches beside its stream.

The graph of a run tells where every path from the image to the logits goes through one value (see
`gradients/graph.py`). Where such a value is the sum of the one before it and something else, that
else is a branch: of attention if a call lies in it, else an MLP.

Axes: b batch, n tokens, d width of a token.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vision_attn.attention import Attend, Readout
from vision_attn.compat.torch_private import uncompiled
from vision_attn.hooks import Hooks, apart
from vision_attn.inference import (
    asked_once,
    eval_mode,
    frozen_parameters,
    infer,
    modules_of,
)
from vision_attn.tokens.gradients.graph import GraphMode, cuts_of, order_of
from vision_attn.tokens.gradients.mode import own_weights_held
from vision_attn.tokens.outputs import only_tensor, tensors_of
from vision_attn.tokens.record.edits import unedited
from vision_attn.tokens.record.record import record_attention
from vision_attn.types import Images

__all__ = ["Anatomy", "Frames", "Join", "Layer", "Spot", "anatomy_of"]

SUMS = {"add", "add_", "__add__", "__iadd__"}


class Spot(NamedTuple):
    """One call of a torch function, by the module that makes it itself.

    Attributes:
        turn: Which run of the module it is in, from 0, where it runs several times; else None.
        nth: Of the calls of this function that the module makes in a run, from 0.

    Examples:
        >>> from vision_attn.tokens.interventions.anatomy import Spot
        >>> Spot("blocks.3", None, "add", 1).nth
        1
    """

    module: str
    turn: int | None
    function: str
    nth: int


class Join(NamedTuple):
    """Where a branch is added to the stream.

    Attributes:
        branch: Which of the two arguments it is.

    Examples:
        >>> from vision_attn.tokens.interventions.anatomy import Join, Spot
        >>> Join(Spot("blocks.3", None, "add", 1), branch=1).branch
        1
    """

    spot: Spot
    branch: int


@dataclass(frozen=True)
class Layer:
    """An attention call, and the branches that belong to it.

    Attributes:
        module: The name of the module that attends.
        turn: Which of its calls it is, from 0, where it makes several; else None.
        windows: Of an image, 1 where every token sees every other.
        replaces: Whether its heads can be replaced.
        attention: Where its branch joins the stream, None where that is not known.
        mlps: The same of the branches after it, up to the next call.
        enters: What makes the stream (b n d) that it begins with.
        tokens: How many that has.

    Examples:
        >>> from vision_attn.tokens.interventions.anatomy import Layer
        >>> Layer("blocks.0.attn", None, 3, 17, 17, 1).mlps
        ()
    """

    module: str
    turn: int | None
    heads: int
    queries: int
    keys: int
    windows: int
    replaces: bool = True
    attention: Join | None = None
    mlps: tuple[Join, ...] = ()
    enters: Spot | None = None
    tokens: int = 0


@dataclass(frozen=True)
class Anatomy:
    """The layers of a network, in the order in which `record_attention` has its calls.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ViT
        >>> from vision_attn.tokens.interventions.anatomy import anatomy_of
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> layer = anatomy_of(network, torch.rand(1, 3, 16, 16)).layers[1]
        >>> layer.module, layer.heads, len(layer.mlps), layer.tokens
        ('blocks.1.attn.attend', 3, 1, 5)
    """

    layers: tuple[Layer, ...]

    @property
    def words(self) -> str:
        """Say how many layers there are, and how many heads each has."""
        heads = [layer.heads for layer in self.layers]
        count = len(heads)
        layers = f"{count} layers, 0 to {count - 1}," if count > 1 else "1 layer, 0,"
        if len(set(heads)) == 1:
            heads_words = "1 head" if heads[0] == 1 else f"{heads[0]} heads, 0 to {heads[0] - 1}"
            return f"{layers} of {heads_words}"
        return f"{layers} of {', '.join(map(str, heads))} heads"


class RunningModule(NamedTuple):
    """A module that runs: its name, its turn, and how often it has called each function."""

    name: str
    turn: int
    calls: Counter[str]


@dataclass
class Frames:
    """The modules that are running, the innermost last.

    Examples:
        >>> import torch
        >>> from vision_attn.hooks import Hooks
        >>> from vision_attn.tokens.interventions.anatomy import Frames
        >>> network, frames = torch.nn.Sequential(torch.nn.ReLU()), Frames()
        >>> with Hooks() as hooks:
        ...     frames.watch(network, network.modules(), hooks)
        ...     _ = network(torch.rand(3))
        >>> frames.stack, frames.turns["0"]
        ([], 1)
    """

    stack: list[RunningModule] = field(default_factory=list)
    turns: Counter[str] = field(default_factory=Counter)
    _around: list[Counter[str]] = field(default_factory=list)

    def watch(self, network: nn.Module, modules: Iterable[nn.Module], hooks: Hooks) -> None:
        """Watch when these modules run; a run of the network resets all counts."""
        names = modules_of(network)
        for module in dict.fromkeys([network, *modules]):
            hooks.before(module, self._before(names[module]))
            hooks.after(module, self._after(names[module]), always_call=True)

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(_module: nn.Module, _args: tuple[Any, ...]) -> None:
            if not name:
                self._around.append(self.turns)
                self.turns = Counter()
            self.stack.append(RunningModule(name, self.turns[name], Counter()))
            self.turns[name] += 1

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(_module: nn.Module, _args: tuple[Any, ...], _out: Any) -> None:
            if any(frame.name == name for frame in self.stack):
                while self.stack.pop().name != name:  # what was cut short by an error
                    pass
            if not name and self._around:
                around = self._around.pop()
                self.turns = around if self.stack else self.turns

        return hook

    def count(self, function: str) -> Spot | None:
        """Count a call, and say which it is; None outside all modules."""
        if not self.stack:
            return None
        name, turn, calls = self.stack[-1]
        calls[function] += 1
        return Spot(name, turn, function, calls[function] - 1)


class SpotMode(GraphMode):
    """A run's graph, and which call of which module each node is. operands: of a sum, its terms."""

    def __init__(self, frames: Frames):
        super().__init__()
        self.frames = frames
        self.spots: dict[Any, Spot] = {}
        self.operands: dict[Any, list[Any]] = {}
        self.attending: list[tuple[int, list[str]]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        terms = [x.grad_fn if isinstance(x, Tensor) else None for x in args[:2]]
        calls_before = len(self.attention_calls)
        out = super().__torch_function__(func, types, args, kwargs)
        if self._depth:
            return out
        spot = self.frames.count(func.__name__)
        if len(self.attention_calls) > calls_before:
            running = [frame.name for frame in self.frames.stack]
            self.attending.append((self.attention_calls[-1], running))
        if spot is not None and isinstance(out, Tensor) and out.grad_fn is not None:
            self.spots[out.grad_fn] = spot
            if func.__name__ in SUMS:
                self.operands[out.grad_fn] = terms
        return out


def _anatomies(_network: nn.Module) -> dict[Any, Anatomy]:
    return {}


def anatomy_of(network: nn.Module, images: Images) -> Anatomy:
    """Find what there is to change in a network, by two runs of the first image.

    What is found is remembered for the network as it is. Raises ValueError where its attention
    cannot be recorded.
    """
    key = tuple(images.shape[1:]), images.dtype, images.device
    anatomies = asked_once(network, _anatomies)
    if key not in anatomies:
        with torch.inference_mode(False):
            image = images[:1].detach().clone()
        layers = _calls(network, image)
        with suppress(ValueError, RuntimeError):  # where no gradient passes there are heads alone
            layers = _with_branches(network, image, layers)
        anatomies[key] = Anatomy(tuple(layers))
    return anatomies[key]


def _calls(network: nn.Module, image: Images) -> list[Layer]:
    """List the attention calls of a run."""
    with apart(), unedited(), record_attention(network, keep=()) as record:
        infer(network, image)
    modules = {name: module for module, name in modules_of(network).items()}
    times, seen = Counter(call.module for call in record.calls), Counter[str]()
    layers = []
    for call in record.calls:
        turn = seen[call.module] if times[call.module] > 1 else None
        seen[call.module] += 1
        own = modules.get(call.module)
        replaces = not isinstance(own, Readout) or isinstance(own, Attend)
        layers.append(
            Layer(call.module, turn, call.heads, call.queries, call.keys, call.batch, replaces)
        )
    return layers


def _with_branches(network: nn.Module, image: Images, layers: list[Layer]) -> list[Layer]:
    """Add to each attention call the branches that belong to it, by the graph of a run."""
    frames = Frames()
    mode = SpotMode(frames)
    with (
        apart(), unedited(), torch.inference_mode(False), uncompiled(), eval_mode(network),
        frozen_parameters(network), Hooks() as hooks,
    ):  # fmt: skip
        frames.watch(network, modules_of(network), hooks)
        with mode, own_weights_held(network, mode.hold):
            out = infer(network, image.requires_grad_())
    meant = only_tensor(out)
    outputs = tensors_of(out) if meant is None else [meant]
    roots = [x.grad_fn for x in outputs if x.requires_grad]
    if not roots:
        return layers
    runs = cuts_of(order_of(roots), roots)
    calls = _calls_of_layers(mode, layers)
    completed, last = list(layers), None
    for before, run in pairwise(runs):
        node, entry = run[0], before[-1]
        operands = mode.operands.get(node, [])
        if len(operands) != 2 or sum(term in before for term in operands) != 1:
            continue
        branch = 1 if operands[0] in before else 0
        join = Join(_spot(mode, frames, node), branch)
        low, high = mode.values[entry].call, mode.values[node].call
        inside = [
            index for index, call in enumerate(calls) if call is not None and low < call < high
        ]
        if len(inside) == 1:
            last = inside[0]
            shape = mode.values[entry].mark.shape
            enters = None
            if entry in mode.spots and len(shape) == 3 and shape[0] == 1:
                enters = _spot(mode, frames, entry)
            tokens = shape[1] if enters is not None else 0
            completed[last] = replace(completed[last], attention=join, enters=enters, tokens=tokens)
        elif inside:
            last = None
        elif last is not None:
            completed[last] = replace(completed[last], mlps=(*completed[last].mlps, join))
    return completed


def _spot(mode: SpotMode, frames: Frames, node: Any) -> Spot:
    spot = mode.spots[node]
    return spot if frames.turns[spot.module] > 1 else spot._replace(turn=None)


def _calls_of_layers(mode: SpotMode, layers: Sequence[Layer]) -> list[int | None]:
    """Find the number of the first torch call of each attention call."""
    numbers: list[int | None] = []
    left = list(mode.attending)
    for layer in layers:
        own = next((attending for attending in left if layer.module in attending[1]), None)
        numbers.append(None if own is None else own[0])
        if own is not None:
            left.remove(own)
    return numbers
