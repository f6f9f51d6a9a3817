"""What changes attention calls as they run: whichever recorder sees a call first applies it.

A recorder computes a call itself, so that what another mode below it would change is passed by:
all recorders of a thread therefore ask here.

Axes: b batch (windows count as batch), head, i queries, j keys, e value width.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import exp

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vision_attn.tokens.record.sdpa import SDPAInputs

__all__ = [
    "CallEdit",
    "CallEditor",
    "Seen",
    "context_edited",
    "editing",
    "edits_of_call",
    "is_edited",
    "keys_seen",
    "keys_weighed",
    "suspended",
    "unedited",
    "values_edited",
]

# A key that a mask puts so far below the others, in units of the scores, is not seen: -100 is what
# Swin Transformers add, and the least number of the dtype what transformers does.
MASKED = 50.0

_THREAD = threading.local()  # .editors: open ones; .busy: a call is being edited; .off

Seen = Callable[[], Bool[Tensor, "#b #head #i j"] | None]  # which keys a query sees; None: all


class CallEdit(ABC):
    """Changes one attention call.

    Examples:
        >>> from vision_attn.tokens.record.edits import CallEdit
        >>> sorted(CallEdit.__abstractmethods__)
        ['context', 'values']
    """

    @abstractmethod
    def values(self, v: Float[Tensor, "b head j e"]) -> Float[Tensor, "b head j e"]:
        """Return the values that the call is to weigh."""

    @abstractmethod
    def context(
        self, context: Float[Tensor, "b head i e"], v: Float[Tensor, "b vhead j e"], seen: Seen
    ) -> Float[Tensor, "b head i e"]:
        """Return what replaces the call's output."""


class CallEditor(ABC):
    """Says how each attention call of this thread is changed, in the order they run.

    Examples:
        >>> from vision_attn.tokens.record.edits import CallEditor
        >>> sorted(CallEditor.__abstractmethods__)
        ['next_edit']
    """

    @abstractmethod
    def next_edit(self) -> CallEdit | None:
        """Count the call that now runs; None leaves it as it is."""


@contextmanager
def editing(editor: CallEditor) -> Iterator[None]:
    """Let an editor change every attention call of this thread while this is open."""
    editors = _THREAD.__dict__.setdefault("editors", [])
    editors.append(editor)
    try:
        yield
    finally:
        editors.remove(editor)


@contextmanager
def unedited() -> Iterator[None]:
    """Run networks without edits in this thread, for results that are cached."""
    before = suspended()
    _THREAD.off = True
    try:
        yield
    finally:
        _THREAD.off = before


def suspended() -> bool:
    """Whether this thread is inside `unedited`."""
    return getattr(_THREAD, "off", False)


def is_edited() -> bool:
    """Whether an editor is asked for changes of the call that now runs.

    Examples:
        >>> from vision_attn.tokens.record.edits import is_edited
        >>> is_edited()
        False
    """
    editors = getattr(_THREAD, "editors", None)
    return bool(editors) and not suspended() and not getattr(_THREAD, "busy", False)


@contextmanager
def edits_of_call() -> Iterator[Sequence[CallEdit]]:
    """Give the changes of the call that now runs, the outermost first.

    There are none for whoever sees the parts that another computes it by.
    """
    if not is_edited():
        yield ()
        return
    _THREAD.busy = True
    try:
        edits = [editor.next_edit() for editor in _THREAD.editors]
        yield [edit for edit in edits if edit is not None]
    finally:
        _THREAD.busy = False


def values_edited(edits: Sequence[CallEdit], v: Tensor) -> Tensor:
    """Change values (b head j e), or (b j e) of one head."""
    for edit in edits:
        v = edit.values(v) if v.ndim == 4 else edit.values(v.unsqueeze(1)).squeeze(1)
    return v


def context_edited(edits: Sequence[CallEdit], context: Tensor, v: Tensor, seen: Seen) -> Tensor:
    """Change the output (b head i e), or (b i e) of one head."""
    for edit in edits:
        if context.ndim == 4:
            context = edit.context(context, v, seen)
        else:
            context = edit.context(context.unsqueeze(1), v.unsqueeze(1), seen).squeeze(1)
    return context


def keys_seen(inputs: SDPAInputs) -> Bool[Tensor, "#b #head #i j"] | None:
    """Find the keys that the masks of torch's attention let each query see; None: all."""
    mask, seen = inputs.attn_mask, None
    if mask is not None:
        if inputs.query.ndim == mask.ndim == 3:
            mask = mask.unsqueeze(1)
        mask = mask[(None,) * (4 - mask.ndim)]
        seen = mask if mask.dtype == torch.bool else _not_far_below(mask)
        seen = seen.expand(*seen.shape[:3], inputs.key.shape[-2])
    if inputs.is_causal:
        shape = inputs.query.shape[-2], inputs.key.shape[-2]
        past = torch.ones(shape, dtype=torch.bool, device=inputs.query.device).tril()
        seen = past[None, None] if seen is None else seen & past
    return seen


def keys_weighed(weights: Float[Tensor, "b head i j"]) -> Bool[Tensor, "b head i j"]:
    """Find the keys that weights which a network computed itself show to be seen."""
    return weights > exp(-MASKED) * weights.amax(-1, keepdim=True)


def _not_far_below(mask: Tensor) -> Tensor:
    return (mask > mask.amax(-1, keepdim=True) - MASKED) & (mask > -torch.inf)
