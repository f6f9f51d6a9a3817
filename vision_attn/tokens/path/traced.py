"""The attention calls of a run that was followed: their tokens, batches and windows.

Axes: b images, n tokens, i queries, j keys, lead images times windows or heads.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.hooks import apart, has_hooks
from vision_attn.inference import eval_mode, infer, modules_of
from vision_attn.tokens.modules import attending
from vision_attn.tokens.outputs import only_tensor, tensors_of
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.tokens.record.edits import unedited
from vision_attn.tokens.record.log import RecordError
from vision_attn.tokens.record.record import Recorder
from vision_attn.tokens.trace.origins import CallOrigins, Origins
from vision_attn.tokens.trace.shapes import Shapes
from vision_attn.tokens.trace.tracer import Tracer
from vision_attn.types import Images

__all__ = ["Step", "TracedRun", "UnknownPathError", "follow"]

Watch = Callable[[Tracer], AbstractContextManager[Any]]


class UnknownPathError(ValueError):
    """No map can be carried along the path, for this reason.

    Args:
        mixed: The attention call whose tokens something else has mixed of those before; None: it is
            another reason.

    Examples:
        >>> from vision_attn.tokens.path.traced import UnknownPathError
        >>> str(UnknownPathError("no attention was found"))
        'no attention was found'
    """

    def __init__(self, reason: str, mixed: int | None = None):
        super().__init__(reason)
        self.mixed = mixed


@dataclass(frozen=True)
class Step:
    """One attention call of a path: its place in the record, and how its batch is made up.

    Attributes:
        module: The name of the module that attends.
        shape: (batch, heads, queries, keys) as it ran.
        heads: How many of the batch are heads of one image.
        windows: How many are windows of it.
        images_first: Whether those of one image follow each other.
        order: In which to take them, so that the heads of a window follow each other; None: as they
            are.
        used: Whether it counts, as its output reaches the network's.
        mixed: Whether it does not as something else, such as a convolution, mixes its tokens
            afterwards.

    Examples:
        >>> from vision_attn.tokens.path.traced import Step
        >>> Step("blocks.0.attn", (2, 3, 5, 5)).windows
        1
    """

    module: str
    shape: tuple[int, int, int, int]
    heads: int = 1
    windows: int = 1
    images_first: bool = True
    order: Sequence[int] | None = None
    used: bool = True
    mixed: bool = False


class TracedRun:
    """The attention calls of a traced run; origins are those of `tokens/trace/origins.py`.

    read: the origins of the logits. used: the calls that the logits depend on. For each of them,
    after `read_steps`: queries, keys, outputs, the origins in each window; aliases: outputs of a
    head that counts as batch, by the first head's.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.traced import follow
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> run = follow(network, torch.rand(1, 3, 16, 16))
        >>> run.read_steps()
        >>> sorted(run.used), len(run.keys[0][0])
        ([0, 1], 5)
    """

    def __init__(self, tracer: Tracer, calls: Sequence[AttentionCall], out: Any):
        self.tracer, self.calls = tracer, calls
        self.origins: Origins = tracer.origins
        self.owner: dict[int, int] = {}
        for index, call in tracer.calls.items():
            if index < len(calls):
                self.owner |= dict.fromkeys(call.outputs.flatten().tolist(), index)
        count = self.origins.count
        added = self.origins.residual[:count] & ~self.origins.output[:count]
        beside = [
            branch
            for origin in added.nonzero()[:, 0].tolist()
            for branch in self.origins.branches(origin)
        ]
        self.origins.residual[beside] = True  # of branches side by side
        logits = only_tensor(out)
        self.read: list[int] | None = None
        results = tensors_of(out)
        if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == 2:
            self.read = self._distinct(tracer.origins_of(logits)[0])
            results = [logits]
        reached = [self._distinct(tracer.origins_of(x)) for x in results]
        self.used, self.reaching = self.before({origin for ids in reached for origin in ids})
        self.steps: list[Step] = []
        self.aliases: dict[int, int] = {}  # outputs of a head in the batch: those of the first
        self.queries: dict[int, list[list[int]]] = {}
        self.keys: dict[int, list[list[int]]] = {}
        self.outputs: dict[int, list[list[int]]] = {}

    @cached_property
    def read_of(self) -> Tensor:
        """Whether the logits are made of an origin (origins,), through no attention call."""
        return self.origins.behind(self.read or ())

    def read_steps(self) -> None:
        """Find the tokens and the windows of each call in turn, and list it in `steps`.

        Raises:
            UnknownPathError: The batch of a call is not understood.
        """
        for index in range(len(self.calls)):
            self.steps.append(self._step(index))

    def unread(self) -> list[Step]:
        """List the calls that `read_steps` did not come to."""
        return [
            Step(call.module, call.shape, used=index in self.used)
            for index, call in enumerate(self.calls)
            if index >= len(self.steps)
        ]

    def _distinct(self, ids: Tensor) -> list[int]:
        return [origin for origin in ids.flatten().unique().tolist() if origin]

    def before(self, ids: Iterable[int]) -> tuple[set[int], Tensor]:
        """Find the attention calls whose output reaches these origins, and all origins that do."""
        calls = {
            index: call for index, call in self.tracer.calls.items() if index < len(self.calls)
        }
        reaching = self.origins.behind(ids, calls.values())
        return {index for index, call in calls.items() if reaching[call.outputs].any()}, reaching

    def beside(self, ids: Iterable[int]) -> Tensor:
        """Find the origins that reach these through no attention weights: (origins,) bool.

        An attention's outputs count as made of what they are added to alone.
        """
        added_to = []
        for call in self.tracer.calls.values():
            outputs = call.outputs.flatten()
            outputs = outputs[self.origins.residual[outputs]]
            if len(outputs):
                tokens = self.origins.query[outputs][None]
                added_to.append(CallOrigins(tokens, tokens, outputs[None]))
        return self.origins.behind(ids, added_to)

    def _step(self, index: int) -> Step:
        """Find what the batch of a call is made of: images, and windows or heads of each."""
        call, traced = self.calls[index], self.tracer.calls.get(index)
        if index not in self.used:
            return Step(call.module, call.shape, used=False)
        assert traced is not None
        name = self.name(index)
        every = torch.cat([traced.queries, traced.keys], 1)
        inside = self.origins.box[:, 4:][every].amax(1) >= 0  # lead, image
        if inside.all(1).any():
            raise UnknownPathError(f"{name} mixes the images of a batch")
        count = len(every)
        half, images_first = count // 2, True
        if count % 2 == 0 and not inside[:half, 1].any() and not inside[half:, 0].any():
            first = slice(half)
        elif count % 2 == 0 and not inside[::2, 1].any() and not inside[1::2, 0].any():
            first, images_first = slice(0, count, 2), False
        else:
            raise UnknownPathError(f"{name} has a batch of {count} for 2 images")
        keys, outputs = traced.keys[first], traced.outputs[first]
        queries = self.origins.query[outputs]  # also those that are no tokens, but added to one
        if traced.apart > 1:
            raise UnknownPathError(
                f"{name} has {traced.apart} heads whose queries are no tokens, and which of them "
                "is read where is not known: linear attention, or attention over channels"
            )
        order = windows_of(torch.cat([queries, keys], 1))
        windows, heads = order.shape
        if heads > 1 and not queries.any():
            raise UnknownPathError(
                f"{name} has {len(keys)} heads or windows whose queries are not tokens: where "
                "each is read is not known"
            )
        self.aliases |= first_heads(outputs[order])
        keys, queries, outputs = (x[order[:, 0]] for x in (keys, queries, outputs))
        constant = torch.zeros_like(keys, dtype=torch.bool)
        if windows == 1 and keys.shape == outputs.shape:  # what is only padded is cut off again
            constant = (keys == 0) & self.reaching[outputs]
        if constant.any():
            fresh = self.origins.new(int(constant.sum()))  # a token of zeros is one all the same
            keys, queries = keys.clone(), queries.clone()
            keys[constant] = fresh
            queries[constant & (queries == 0)] = fresh[(queries == 0)[constant]]
        self.keys[index], self.queries[index] = keys.tolist(), queries.tolist()
        self.outputs[index] = outputs.tolist()
        _, of_heads, i, j = call.shape
        turns = tuple(order.flatten().tolist())
        as_they_are = turns == tuple(range(len(turns)))
        return Step(
            call.module, (1, of_heads, i, j), heads, windows, images_first,
            None if as_they_are else turns,
        )  # fmt: skip

    def name(self, index: int) -> str:
        """Name a call in an error message."""
        return f"attention call {index} ({self.calls[index].module or 'of the network itself'})"


def windows_of(rows: Tensor) -> Tensor:
    """Sort a batch (lead n) by its tokens: (window head), heads being those with the same tokens.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.traced import windows_of
        >>> windows_of(torch.tensor([[5, 6], [3, 4], [5, 6], [3, 4]])).tolist()
        [[0, 2], [1, 3]]
    """
    each = torch.arange(len(rows), device="cpu")[:, None]
    if len(rows[:, 0].unique()) == len(rows):
        return each
    window = rows.unique(dim=0, return_inverse=True)[1]
    counts = window.bincount()
    if len(counts.unique()) > 1:  # of padding alone, say
        return each
    order = window.argsort(stable=True).view(len(counts), -1)
    by_first: Tensor = order[order[:, 0].argsort()]
    return by_first


def first_heads(outputs: Tensor) -> dict[int, int]:
    """Map the outputs (window head i) of each head but the first to the first head's."""
    others = outputs[:, 1:]
    first = outputs[:, :1].expand_as(others)
    pairs = zip(others.flatten().tolist(), first.flatten().tolist(), strict=True)
    return {output: own for output, own in pairs if output != own}


def follow(
    network: nn.Module,
    image: Images,
    watch: Watch | None = None,
) -> TracedRun:
    """Run a network on two copies of an image (1 c h w), and follow every value.

    watch: makes, of the tracer, a context to run in, for who wants to see more than the result.
    Raises RecordError for a run whose calls no record holds.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.traced import follow
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> [call.module for call in follow(network, torch.rand(1, 3, 16, 16)).calls]
        ['blocks.0.attn.attend', 'blocks.1.attn.attend']
    """
    with (
        apart(), unedited(), torch.inference_mode(False), torch.no_grad(), eval_mode(network)
    ):  # fmt: skip
        image = image.clone()
        if watch is None and not attending(network):
            alone = Recorder(frozenset())  # to follow convolutions in vain takes long
            with alone.watching(network):
                out = infer(network, image)
            if not alone.record.calls:
                return TracedRun(Tracer(), [], out)
        two = image.repeat(2, 1, 1, 1)
        return by_shapes(network, two, watch) or followed(network, two, watch, Tracer())


def by_shapes(network: nn.Module, two: Images, watch: Watch | None) -> TracedRun | None:
    """Follow a run that computes no values; None where the network needs them, or may keep them."""
    if has_hooks(modules_of(network)):
        return None
    shapes = Shapes()
    try:
        run = followed(network, two, watch, Tracer(shapes))
    except Exception:  # with values it says what it means
        return None
    return None if shapes.asked or shapes.left_in(modules_of(network)) else run


def followed(network: nn.Module, two: Images, watch: Watch | None, tracer: Tracer) -> TracedRun:
    """Follow the values of a run on two images by a tracer."""
    recorder = Recorder(frozenset(), None, tracer)
    images = tracer.image(two)
    around = nullcontext() if watch is None else watch(tracer)
    with refused_in_words(), recorder.watching(network), tracer, around:
        out = infer(network, images)
    return TracedRun(tracer, recorder.record.calls, out)


@contextmanager
def refused_in_words() -> Iterator[None]:
    """Say it in words where torch runs what no mode can follow, such as FlexAttention."""
    try:
        yield
    except NotImplementedError as error:
        operator = re.search(r"HigherOrderOperator (\w+)", str(error))
        if operator is None:
            raise
        raise RecordError(
            f"it runs torch's {operator[1]}, which hides its weights: if it offers a choice, "
            "choose torch's scaled_dot_product_attention; or use GradCAM"
        ) from error
