"""Apply changes to a network as it runs, or keep what another run is to be given.

Axes: b batch (windows count as batch), head, i queries, j keys, n tokens, e value width.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vision_attn.attention import Attend
from vision_attn.attention.masks import both
from vision_attn.hooks import Hooks
from vision_attn.inference import modules_of
from vision_attn.tokens.interventions.anatomy import Anatomy, Frames, Join, Spot
from vision_attn.tokens.modules import attends
from vision_attn.tokens.record.edits import CallEdit, CallEditor, Seen, editing, suspended
from vision_attn.tokens.record.functions import CallMode
from vision_attn.tokens.record.log import CallLog
from vision_attn.tokens.record.sdpa import SDPAInputs

__all__ = ["Changes", "Editor", "Kept", "Kind"]

Kind = Literal["zero", "mean", "uniform", "patch"]
IN_PLACE = {"add_", "__iadd__"}


@dataclass
class Kept:
    """The values of a run where something is to change: outputs of calls, branches, streams.

    Examples:
        >>> from vision_attn.tokens.interventions.editor import Kept
        >>> Kept().contexts
        {}
    """

    contexts: dict[int, Tensor] = field(default_factory=dict)
    spots: dict[Spot, Tensor] = field(default_factory=dict)


@dataclass
class Changes:
    """What to change, by layers: heads, values of tokens, branches, states of tokens.

    Attributes:
        by_row: Whether states are one token for each image of the batch, rather than all for every
            image.

    Examples:
        >>> from vision_attn.tokens.interventions.editor import Changes
        >>> Changes(heads={2: {0: "zero"}}).layers
        [2]
    """

    heads: dict[int, dict[int, Kind]] = field(default_factory=dict)
    values: dict[int, list[int]] = field(default_factory=dict)
    removed: list[Join] = field(default_factory=list)
    patched: list[Join] = field(default_factory=list)
    states: dict[Spot, list[int]] = field(default_factory=dict)
    by_row: bool = False

    @property
    def layers(self) -> list[int]:
        """The attention calls of which something is changed."""
        return sorted({*self.heads, *self.values})

    @property
    def spots(self) -> list[Spot]:
        """The calls of torch functions of which something is changed."""
        joins = [*self.removed, *self.patched]
        return list(dict.fromkeys([*(join.spot for join in joins), *self.states]))

    @property
    def patches(self) -> bool:
        """Whether anything is taken from another run."""
        kinds = [kind for heads in self.heads.values() for kind in heads.values()]
        return "patch" in kinds or bool(self.patched or self.states)


class Editor(CallEditor):
    """Changes a network's runs in this thread while it is open.

    Args:
        source: What patches are taken from; None with `keeps` where they are to be kept, in `kept`.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ViT
        >>> from vision_attn.tokens.interventions.anatomy import anatomy_of
        >>> from vision_attn.tokens.interventions.editor import Changes, Editor
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> images = torch.rand(2, 3, 16, 16)
        >>> changes = Changes(heads={1: {0: "zero"}})
        >>> with Editor(network, anatomy_of(network, images), changes).open():
        ...     changed = network(images)
        >>> bool((changed != network(images)).any())
        True
    """

    def __init__(
        self,
        network: nn.Module,
        anatomy: Anatomy,
        changes: Changes,
        source: Kept | None = None,
        keeps: bool = False,
    ):
        self.network, self.anatomy, self.changes = network, anatomy, changes
        self.source, self.keeps, self.kept = source, keeps, Kept()
        self.opened = False
        self._frames, self._calls = Frames(), Frames()
        self._seen: Counter[str] = Counter()
        self._own: _Edit | None = None
        self._layers: dict[str, list[int]] = {}
        for index, layer in enumerate(anatomy.layers):
            self._layers.setdefault(layer.module, []).append(index)
        self.joins = {join.spot: join for join in [*changes.removed, *changes.patched]}
        self.patched = {join.spot for join in changes.patched}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Apply the changes while this is open; everything is as it was afterwards."""
        names = modules_of(self.network)
        modules = {name: module for module, name in names.items()}
        owners = [modules[spot.module] for spot in (*self.joins, *self.changes.states)]
        inner = [part for module in owners for part in module.modules()]
        attending = [module for module in names if attends(module)]
        with Hooks(everywhere=True) as hooks:
            hooks.before(self.network, self._begin)
            self._calls.watch(self.network, attending, hooks)
            if owners:
                self._frames.watch(self.network, inner, hooks)
            for module in attending:
                if isinstance(module, Attend):
                    hooks.before(module, self._before_attend, with_kwargs=True)
                    hooks.after(module, self._after_attend, with_kwargs=True)
            self.opened = True
            try:
                with editing(self), CallMode(_NoLog(self)), _StreamMode(self, self._frames):
                    yield
            finally:
                self.opened = False

    @property
    def active(self) -> bool:
        """Whether the running code is to be changed."""
        return self.opened and not suspended()

    @property
    def is_running(self) -> bool:
        """Whether the network, or one of its attention modules, runs in this thread."""
        return self.active and bool(self._calls.stack)

    @property
    def in_own_attention(self) -> bool:
        """Whether one of this package's modules attends now, which its hooks take care of."""
        name = self._module
        return name is not None and isinstance(self._of_name(name), Attend)

    @property
    def _module(self) -> str | None:
        """The name of the attention module that runs; None outside the network."""
        return self._calls.stack[-1].name if self._calls.stack else None

    def _of_name(self, name: str) -> nn.Module:
        return self.network.get_submodule(name)

    def next_edit(self) -> CallEdit | None:
        return None if self.in_own_attention else self._edit()

    def _begin(self, _network: nn.Module, _args: tuple[Any, ...]) -> None:
        self._seen.clear()

    def _edit(self) -> "_Edit | None":
        """Count the call of the module that runs, and say how it is changed."""
        name = self._module
        layers = self._layers.get(name) if name is not None and self.active else None
        if name is None or not layers:
            return None
        layer = layers[self._seen[name] % len(layers)]
        self._seen[name] += 1
        changed = layer in self.changes.heads or layer in self.changes.values
        return _Edit(self, layer) if changed else None

    def _before_attend(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        edit = self._edit()
        self._own = edit
        if edit is None:
            return None
        names = ("q", "k", "v", "mask", "layout")
        arguments = dict(zip(names, args, strict=False)) | kwargs
        return (), {**arguments, "v": edit.values(arguments["v"])}

    def _after_attend(
        self, module: Attend, _args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor
    ) -> Any:
        edit, self._own = self._own, None
        if edit is None:
            return None

        def seen() -> Tensor | None:
            own, _ = module.window.terms(kwargs["q"], kwargs["k"], kwargs.get("layout"))
            masks = (kwargs.get("mask"), own)
            wide = [x if x is None else x[(None,) * (4 - x.ndim)] for x in masks]
            return both(*wide)

        return edit.context(out, kwargs["v"], seen)

    def stream(
        self, spot: Spot, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call whose result, or one of whose arguments, is changed."""
        join = self.joins.get(spot)
        if join is not None:
            args = self._joined(join, func, args)
        out = func(*args, **kwargs)
        if spot not in self.changes.states:
            return out
        if self.keeps:
            self.kept.spots[spot] = out.detach().clone()
            return out
        assert self.source is not None
        tokens, source = self.changes.states[spot], self.source.spots[spot]
        changed = out.clone()
        if self.changes.by_row:
            rows = torch.arange(len(out), device=out.device)
            changed[rows, tokens] = source[0, tokens].to(out)
        else:
            changed[:, tokens] = source[:, tokens].to(out)
        return out.copy_(changed) if args and out is args[0] else changed

    def _joined(
        self, join: Join, func: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        branch = args[join.branch]
        if self.keeps:
            self.kept.spots[join.spot] = branch.detach().clone()
            return args
        if join.spot not in self.patched:
            value = torch.zeros_like(branch)
        else:
            assert self.source is not None
            value = self.source.spots[join.spot].to(branch).expand_as(branch)
        if join.branch == 0 and func.__name__ in IN_PLACE:
            value = branch.copy_(value)
        return (*args[: join.branch], value, *args[join.branch + 1 :])


class _Edit(CallEdit):
    """How one attention call is changed."""

    def __init__(self, editor: Editor, layer: int):
        self.editor, self.layer = editor, layer

    def values(self, v: Tensor) -> Tensor:
        tokens = self.editor.changes.values.get(self.layer)
        if not tokens or self.editor.keeps:
            return v
        if max(tokens) >= v.shape[2]:
            raise ValueError(
                f"tokens: no token {max(tokens)} in layer {self.layer}: expected 0 to "
                f"{v.shape[2] - 1}"
            )
        v = v.clone()
        v[:, :, tokens] = 0
        return v

    def context(self, context: Tensor, v: Tensor, seen: Seen) -> Tensor:
        heads = self.editor.changes.heads.get(self.layer)
        if not heads:
            return context
        if self.editor.keeps:
            self.editor.kept.contexts[self.layer] = context.detach().clone()
            return context
        context = context.clone()
        visible = seen() if "uniform" in heads.values() else None
        for head, kind in heads.items():
            context[:, head] = self._replaced(head, kind, context, v, visible)
        return context

    def _replaced(
        self, head: int, kind: Kind, context: Tensor, v: Tensor, visible: Tensor | None
    ) -> Tensor:
        """Make the replacement of a head's output, (b i e) or a shape that broadcasts to it."""
        if kind == "zero":
            return torch.zeros_like(context[:, head])
        if kind == "mean":
            return context[:, head].mean(1, keepdim=True)
        if kind == "uniform":
            values = v[:, head * v.shape[1] // context.shape[1]]
            if visible is None:
                return values.mean(1, keepdim=True)
            weights = visible[:, head if visible.shape[1] > 1 else 0].to(values.dtype)
            return weights @ values / weights.sum(-1, keepdim=True).clamp(min=1)
        assert self.editor.source is not None
        source = self.editor.source.contexts[self.layer][:, head]
        if source.shape[1:] != context[:, head].shape[1:] or len(context) % len(source):
            raise ValueError(
                f"patch_from: its head {head} of layer {self.layer} has {source.shape[1]} tokens, "
                f"that of the images {context.shape[2]}: give a photo of the images' size"
            )
        return source.repeat(len(context) // len(source), 1, 1).to(context)


class _NoLog(CallLog):
    """A log for the mode of calls when nothing is recorded."""

    def __init__(self, editor: Editor):
        super().__init__(frozenset(), None)
        self.editor = editor

    @property
    def in_scope(self) -> bool:
        self.deferred = int(self.editor.in_own_attention)
        return self.editor.is_running

    def attention(self, inputs: SDPAInputs) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(**inputs._asdict())

    def add_fused_map(self) -> bool:
        return True

    def add_explicit(self, *_: Any, **__: Any) -> None:
        pass


class _StreamMode(TorchFunctionMode):
    """Changes branches and streams."""

    def __init__(self, editor: Editor, frames: Frames):
        super().__init__()
        self.editor, self.frames = editor, frames
        self.spots = {*editor.joins, *editor.changes.states}
        self.functions = {spot.function for spot in self.spots}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in self.functions and (spot := self.frames.count(func.__name__)):
            for each in (spot, spot._replace(turn=None)):
                if each in self.spots and self.editor.active:
                    return self.editor.stream(each, func, args, kwargs)
        return func(*args, **kwargs)
