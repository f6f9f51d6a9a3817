"""The levels of a network: its tokens before the first block and after each, found by a run.

A level is a value that everything in the output goes through: see `graph.py`. In a network that
attends, the levels are the tokens before each attention call and the last ones; in others, what the
stem gives and what each block gives. Of a network that shrinks its grid as it goes, those on the
last grid are taken, from the tokens before the first block there on; of one of features, neither
attending nor of tokens, the last alone. At earlier ones the gradient of a convolutional network is
noise (docs/libra_gradient.md has figures).

Axes: b batch, n tokens, d width of a token, c channels, h height, w width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vision_attn.compat.torch_private import uncompiled
from vision_attn.hooks import Hooks, current_scope
from vision_attn.inference import asked_once, eval_mode, frozen_parameters, infer, modules_of
from vision_attn.tokens.gradients.graph import GraphMode, Value, cuts_of, order_of
from vision_attn.tokens.gradients.mode import CallCounter, Mark, own_weights_held
from vision_attn.tokens.gradients.operations import unknown_operations
from vision_attn.tokens.gradients.windows import ImageWindow, feature_axes
from vision_attn.tokens.layout import layout_of
from vision_attn.tokens.outputs import described, head_given, only_tensor, tensors_of
from vision_attn.tokens.path.cells import KeptCells
from vision_attn.tokens.path.path import find_path
from vision_attn.tokens.path.places import places_of, tokens_in
from vision_attn.tokens.path.traced import follow
from vision_attn.tokens.record.edits import unedited
from vision_attn.tokens.record.log import RecordError
from vision_attn.tokens.trace.tracer import Tracer
from vision_attn.types import Images, TokenLayout

__all__ = ["Level", "Levels", "find_levels", "frozen", "levels_or_none"]

SUMS = {"add", "add_", "__iadd__"}
NORM_NAMES = {"layer_norm", "rms_norm", "group_norm", "batch_norm"}
MOST = 0.75  # of the gradient: patches are read, not a class token


@dataclass(frozen=True)
class Level:
    """One level: which call makes it, and how its tokens or features lie on the image.

    Attributes:
        changed: Whether the network changes it in place afterwards.
        channels: The axis of channels.
        batch: The axis of images.
        order: The token in each place of the grid (h, w), row by row; None: as they come.
        part: Where the grid lies, if the network leaves out some of the image.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.levels import Level
        >>> from vision_attn.tokens.gradients.mode import Mark
        >>> level = Level(Mark("add", (1, 5, 12), 0), False, 2, 0, (2, 2), (1, 2, 3, 4))
        >>> maps, beside = level.shares(torch.ones(3, 5, 12))
        >>> maps.shape, beside.shape
        (torch.Size([3, 2, 2]), torch.Size([3, 1]))
    """

    mark: Mark
    changed: bool
    channels: int
    batch: int
    grid: tuple[int, int]
    order: tuple[int, ...] | None = None
    part: KeptCells | None = None

    def features(self, x: Tensor) -> Float[Tensor, "b c h w"]:
        """Lay a value of the level's shape out on the grid."""
        rows = x.movedim((self.batch, self.channels), (0, 1)).flatten(2)
        rows = rows if self.order is None else rows[:, :, list(self.order)]
        grid: Tensor = rows.unflatten(2, self.grid)
        return grid

    def shares(self, product: Tensor) -> tuple[Float[Tensor, "b h w"], Float[Tensor, "b beside"]]:
        """Sum a product of the level's shape over its channels: on the grid, and beside it."""
        rows = product.sum(self.channels, keepdim=True).transpose(0, self.batch).flatten(1)
        if self.order is None:
            return rows.unflatten(1, self.grid), rows[:, :0]
        on_grid = set(self.order)
        beside = [token for token in range(rows.shape[1]) if token not in on_grid]
        return rows[:, list(self.order)].unflatten(1, self.grid), rows[:, beside]


@dataclass(frozen=True)
class Levels:
    """The levels of a network, from the image on, and its operations without a rule, by a run.

    Attributes:
        refusal: Why there is no level; None: there is one.
        strays: References to tensors that require a gradient and are no parameters; they are held
            constant. Where one is gone, the network has another in its place.
        crops: Whether some of the tokens or features is left out on the way to the logits.
        windows: What the outputs of modules are of, by their names, where it is not all of the
            image.
        readout: The last tokens, as the classifier reads them, in a network that attends and whose
            classifier reads the patches; None in others, such as those that read a class token.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.levels import find_levels
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> [level.grid for level in find_levels(network, torch.rand(1, 3, 16, 16)).levels]
        [(2, 2), (2, 2), (2, 2)]
    """

    levels: Sequence[Level]
    unknown: Sequence[str] = ()
    refusal: str | None = None
    readout: Level | None = None
    strays: Sequence[ref[Tensor]] = ()
    crops: bool = False
    windows: Mapping[str, ImageWindow] = field(default_factory=dict)


def _levels(_network: nn.Module) -> dict[Any, Levels]:
    return {}


def find_levels(network: nn.Module, images: Images, layout: TokenLayout | None = None) -> Levels:
    """Find the levels for images of this size, by one run of the first image.

    layout: how tokens lie on the image, where that is told. What is found is remembered for the
    network as it is, as a path is (`tokens/path/path.py`).
    """
    key = (
        *(tuple(images.shape[1:]), images.dtype, images.device),
        *(head_given(), layout),
    )
    levels = asked_once(network, _levels)
    if key not in levels or any(stray() is None for stray in levels[key].strays):
        with torch.inference_mode(False), torch.enable_grad():
            levels[key] = run_levels(network, images[:1].detach().clone(), layout)
    return levels[key]


def levels_or_none(
    network: nn.Module, images: Images, layout: TokenLayout | None = None
) -> Levels | None:
    """Find the levels as `find_levels` does; None where the network's own code fails under it.

    For methods that can do without: where their own run fails too, that says why.
    """
    try:
        return find_levels(network, images, layout)
    except Exception:
        return None


def run_levels(
    network: nn.Module,
    image: Images,
    layout: TokenLayout | None = None,
    strays: Sequence[Tensor] = (),
) -> Levels:
    """Find the levels by a run, without a cache.

    strays: tensors that are to be held constant; where a run finds some, another follows.
    """
    mode = GraphMode((image.shape[2], image.shape[3]))
    windows: dict[str, ImageWindow] = {}
    with (
        unedited(), uncompiled(), eval_mode(network), frozen_parameters(network), frozen(strays),
    ):  # fmt: skip
        written = image.requires_grad_().clone()  # into which it may write
        with mode, own_weights_held(network, mode.hold), windows_noted(network, mode, windows):
            try:
                out = infer(network, written)
            except NotImplementedError as error:
                if "BatchedTensor" not in str(error):
                    raise
                return Levels([], refusal=UNDER_VMAP)
        image.requires_grad_(False)
    meant = only_tensor(out)
    outputs = tensors_of(out) if meant is None else [meant]
    roots = [x.grad_fn for x in outputs if x.requires_grad]
    if not roots:
        return Levels([], refusal=NO_GRADIENT)
    order = order_of(roots)
    others = [leaf for leaf in leaves_of(order) if leaf is not image]
    if others and not strays:
        return run_levels(network, image, layout, others)
    if others:
        return Levels([], refusal=MADE_LEAVES)
    cuts = cuts_of(order, roots)
    runs = values_on_grids(cuts, mode)
    unknown = unknown_operations(order, mode)
    if not runs:
        several = (
            "" if meant is not None else f"; it gives {described(out)}, if its logits are there"
        )
        return Levels([], unknown, NO_LEVEL + several)
    crops = any(value.window and value.window.crops for run in runs for value in run)
    attends = bool(mode.attention_calls)
    wanted = [*levels_among(runs, mode), *([as_read(runs[-1], mode)] if attends else [])]
    levels = placed(network, image, wanted, layout, attends)
    readout = levels.pop() if attends else None
    if readout is not None and not is_read(readout, mode, outputs):
        readout = None
    on_last_grid = [level for level in dict.fromkeys(levels) if level is not None]
    on_last_grid = [
        level
        for level in on_last_grid
        if (level.grid, level.part) == (on_last_grid[-1].grid, on_last_grid[-1].part)
    ]
    if not attends and on_last_grid and len(on_last_grid[-1].mark.shape) == 4:
        on_last_grid = on_last_grid[-1:]  # of features: before the last, their gradients are noise
    refusal = None
    if not on_last_grid:  # a layout is of the tokens of one image
        of_one = any(value.mark.shape[0] == 1 for values in wanted for value in values)
        refusal = NO_PLACE if of_one else NO_LEVEL
    references = [ref(stray) for stray in strays]
    return Levels(on_last_grid, unknown, refusal, readout, references, crops, windows)


def leaves_of(order: Sequence[Any]) -> list[Tensor]:
    """List the tensors that a graph begins with."""
    leaves = (getattr(node, "variable", None) for node in order)
    return [leaf for leaf in leaves if leaf is not None]


@contextmanager
def frozen(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Have these tensors require no gradient while this is open."""
    for x in tensors:
        x.requires_grad_(False)
    try:
        yield
    finally:
        for x in tensors:
            x.requires_grad_()


@contextmanager
def windows_noted(
    network: nn.Module, mode: GraphMode, windows: dict[str, ImageWindow]
) -> Iterator[None]:
    """Note what the outputs of modules are of, by their names, where it is not all of the image."""

    def note(module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        window = mode.window(output)
        if window is not None and window.crops:
            windows[names[module]] = window

    names = modules_of(network)
    with Hooks() as hooks:
        for module in names:
            hooks.after(module, note)
        yield


def values_on_grids(runs: list[list[Any]], mode: GraphMode) -> list[list[Value]]:
    """Find, of what all paths go through, in runs of nodes, the values that may lie on a grid."""
    values = [[mode.values[node] for node in run if node in mode.values] for run in runs]
    values = [[value for value in run if value.single and value.on_a_grid] for run in values]
    return [run for run in values if run]


def as_read(run: list[Value], mode: GraphMode) -> list[Value]:
    """Choose the last tokens as the classifier reads them: their norm, or what may stand for it."""
    pools = [call for call in mode.attention_calls if call > run[0].call]
    values = [value for value in run if not pools or value.call < pools[0]]
    norms = [value for value in values if value.mark.function in NORM_NAMES]
    return [*norms[-1:], *(values if pools else values[::-1])]


def is_read(level: Level, mode: GraphMode, outputs: Sequence[Tensor]) -> bool:
    """Whether most of the outputs' gradient is on a level's grid, rather than a class token's."""
    node = next(node for node, value in mode.values.items() if value.mark == level.mark)
    score = torch.stack([x.amax() for x in outputs]).sum()  # one logit: gradients of all may cancel
    edge = torch.autograd.graph.GradientEdge(node, 0)
    (gradient,) = torch.autograd.grad(score, [edge], allow_unused=True)
    if gradient is None:
        return False
    on_grid, beside = (share.sum() for share in level.shares(gradient.abs()))
    return bool(on_grid > MOST * (on_grid + beside))


def levels_among(runs: list[list[Value]], mode: GraphMode) -> list[list[Value]]:
    """Choose the levels among what all paths go through, given in runs: one of a run at most.

    Before each attention call what is last, and the tokens that the last run begins with; without
    such calls, what ends the stem and what begins each run. Of each level all that may stand for
    it, the best first: where one lies on the image may not be known.
    """
    last = len(runs) - 1
    chosen = {last: None} if mode.attention_calls else dict.fromkeys(range(last + 1))
    until: dict[int, int] = {}
    for call in mode.attention_calls:
        earlier = [index for index, run in enumerate(runs) if run[0].call < call]
        if earlier:
            chosen[earlier[-1]] = None
            until.setdefault(earlier[-1], call)
    levels = []
    for index in sorted(chosen):
        values = [value for value in runs[index] if value.call < until.get(index, mode.calls)]
        if index == 0:
            values = values[::-1]  # the stem's last, elsewhere the first after a sum
        before = [] if index == 0 or index - 1 in chosen else runs[index - 1][::-1]
        levels.append(values + before)
    return levels


def divides(grid: Sequence[int], size: Sequence[int]) -> bool:
    """Whether a grid may be that of patches or strides of whole pixels, at least two."""
    strides = [round(pixels / cells) for pixels, cells in zip(size, grid, strict=True)]
    return min(strides) > 1 and all(
        pixels // stride <= cells <= -(-pixels // stride)
        for pixels, cells, stride in zip(size, grid, strides, strict=True)
    )


def placed(
    network: nn.Module,
    image: Images,
    levels: Sequence[Sequence[Value]],
    layout: TokenLayout | None,
    attends: bool,
) -> list[Level | None]:
    """Find where the tokens or features of each level lie; None if it cannot be known.

    By the layout that is told, by their axes, by the network's kind, by a run that is followed
    value by value, or by the network's path. Tokens that are mixed by something else than attention
    lie where those of the same shape before them do.
    """
    size = (image.shape[2], image.shape[3])
    hint = layout or known_layout(network, size)
    at_once = {
        value.call: level
        for value in (value for values in levels for value in values)
        if not is_cube(value) and (level := by_shape(value, size, hint, attends)) is not None
    }
    unsettled = [value for values in levels if values[0].call not in at_once for value in values]
    unsettled = [value for value in unsettled if value.call not in at_once]
    watched: dict[int, tuple[Tensor, Tracer]] = {}
    if unsettled:
        marks = [value.mark for value in unsettled]
        with suppress(RecordError):
            follow(network, image, lambda tracer: WatchedCalls(marks, tracer, watched))
    for number, (ids, tracer) in watched.items():
        value = unsettled[number]
        if (level := by_origins(value, ids, tracer, size)) is not None:
            at_once[value.call] = level
    for value in unsettled:  # what the run did not tell, shapes may
        level = by_shape(value, size, hint, attends) if is_cube(value) else None
        if level is not None:
            at_once.setdefault(value.call, level)
    shapes = {level.mark.shape for level in at_once.values()}
    unsettled = [value for value in unsettled if value.mark.shape not in shapes]
    if hint is None and attends and any(len(value.mark.shape) == 3 for value in unsettled):
        path = find_path(network, image)
        hint = path.layout if path.is_ordered else None
        for value in unsettled:
            if (level := by_shape(value, size, hint, attends)) is not None:
                at_once[value.call] = level
    by_level: list[Level | None] = []
    for best, *others in levels:
        level = at_once.get(best.call)
        if level is None:
            level = place_alike(best, [other for other in by_level[::-1] if other is not None])
        if level is None:
            level = next(
                (at_once[other.call] for other in others if other.call in at_once),
                None,
            )
        by_level.append(level)
    begin_last_grid(levels, by_level, at_once)
    windows = {value.mark: value.window for values in levels for value in values}
    return [
        None if level is None else in_window(level, None if layout else windows[level.mark])
        for level in by_level
    ]


def in_window(level: Level, window: ImageWindow | None) -> Level:
    """Return a level with the cells that it is, as its tokens' origins or its window tell.

    Where nothing was left out on the way, it is of all the image: a token that attention makes of
    many lies where its query does, and those between are no loss.
    """
    if window is None or not window.crops:
        return replace(level, part=None)
    part = level.part or window.cells(level.grid)
    return replace(level, part=part)


def begin_last_grid(
    levels: Sequence[Sequence[Value]], by_level: list[Level | None], at_once: dict[int, Level]
) -> None:
    """Have the first level of the last grid be the tokens before the first block there.

    What makes the grid smaller may be in a run with the last tokens of the grid before, or begin a
    run: the tokens are what is last of it.
    """
    on_grids = [level for level in by_level if level is not None]
    if not on_grids or on_grids[0].grid == on_grids[-1].grid:
        return
    alike = [level for level in on_grids if level.grid == on_grids[-1].grid]
    first = by_level.index(alike[0])
    for index in (first - 1, first):
        run = [value for value in levels[index] if value.call >= levels[index][0].call]
        candidates = [at_once.get(value.call) or place_alike(value, alike) for value in run]
        there = [level for level in candidates if level and level.grid == alike[0].grid]
        if there and (index < first or run[0].mark.function not in SUMS):
            by_level[index] = there[-1]
            return


def place_alike(value: Value, alike: Sequence[Level]) -> Level | None:
    """Lay tokens out as those of the same shape among some levels."""
    for level in alike:
        if level.mark.shape == value.mark.shape:
            return replace(level, mark=value.mark, changed=value.changed)
    return None


def known_layout(network: nn.Module, size: tuple[int, int]) -> TokenLayout | None:
    """Find how tokens lie on an image of this (height, width), by the network's kind."""
    with suppress(ValueError):
        return layout_of(network, size)
    return None


def is_cube(value: Value) -> bool:
    """Whether any axis of features may be that of channels."""
    shape = value.mark.shape
    return len(shape) == 4 and len(set(shape[1:])) == 1


def by_shape(
    value: Value, size: tuple[int, int], layout: TokenLayout | None, attends: bool
) -> Level | None:
    """Find where features lie by their axes, or tokens that are as many as a layout's."""
    shape = value.mark.shape
    if shape[0] != 1:  # windows, or tokens as a batch: only one image was run
        return None
    h, w = (value.window or ImageWindow()).pixels(size)
    size = round(h), round(w)
    channels = feature_axes(shape, size)
    if channels is not None:
        h, w = (shape[axis] for axis in (1, 2, 3) if axis != channels)
        if divides((h, w), size) or (channels == 1 and not attends):
            return Level(value.mark, value.changed, channels, 0, (h, w))
    elif layout is not None and len(shape) == 3 and shape[1] == layout.tokens:
        return Level(value.mark, value.changed, 2, 0, layout.grid, tuple(layout.patches))
    return None


class WatchedCalls(TorchFunctionMode):
    """Keep the origins of what marked calls give, by the numbers of their marks."""

    def __init__(
        self, marks: Sequence[Mark], tracer: Tracer, watched: dict[int, tuple[Tensor, Tracer]]
    ):
        super().__init__()
        self.counter, self.tracer, self.kept = CallCounter(marks), tracer, watched
        self.scope = current_scope()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.scope is not current_scope():
            return out
        index = self.counter.index(func.__name__, out)
        if index is not None:
            self.kept[index] = self.tracer.origins_of(out), self.tracer
        return out


def by_origins(value: Value, ids: Tensor, tracer: Tracer, size: tuple[int, int]) -> Level | None:
    """Find where a level's tokens lie by the origins of its elements."""
    laid_out = tokens_in(ids)
    if laid_out is None:
        return None
    tokens, channels = laid_out
    grid_positions = places_of(tracer.origins, tokens, size)
    if grid_positions is None:
        return None
    batch = grid_positions.batch_axis
    if batch and channels == 1:
        return None
    return Level(
        value.mark, value.changed, channels, batch,
        grid_positions.grid, grid_positions.order, grid_positions.part,
    )  # fmt: skip


NO_GRADIENT = (
    "no gradient of its output reaches the image: it runs without gradients, is quantised, or "
    "gives probabilities, which are held constant as weights are: explain its logits"
)
UNDER_VMAP = "torch.func.vmap hides its values: have it run all images at once"
MADE_LEAVES = (
    "it makes tensors that require a gradient as it runs, and gradients of the image alone are "
    "shares: make them without requires_grad"
)
NO_LEVEL = (
    "everything that its logits are made of goes through no tokens or features in one place: "
    "branches side by side, or a grid of one cell"
)
NO_PLACE = (
    "how its tokens lie on the image is not known: give layout=TokenLayout(prefix=class and "
    "register tokens, grid=(rows, columns), pool=..., class_token=whether the first is one)"
)
