"""Where every value of a run comes from: which token, through which attention calls.

A dispatch mode sees each of torch's operations once and labels its result. A label is a number for
each element: an origin. What is computed from one origin alone keeps it (a norm, a linear layer, an
activation), what is moved keeps it in its new place (windows, shifts, crops), and what is computed
from several gets a new one that remembers them. The output of an attention call at a query is a new
origin that remembers its query, and added to its query's own value it stays what it is: a residual.
An operation that is not known mixes all it was given.

Axes: b batch, head, i queries, j keys, d width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vision_attn.compat.torch_private import DispatchMode, unwatched
from vision_attn.hooks import current_scope
from vision_attn.tokens.trace.labels import (
    AS_STRIDED,
    BEYOND,
    ByTensor,
    Label,
    View,
    compact,
    padded,
    reshaped,
    tight,
    tighter,
)
from vision_attn.tokens.trace.operations import (
    AXES_IN_PLACE,
    BATCH_NORM,
    CHOSEN,
    CONVOLUTION,
    EQUAL,
    FOURIER,
    FRESH,
    LAYER_NORM,
    LINEAR,
    MOVED,
    PAIRED,
    POINTWISE,
    POOLS,
    PRODUCT,
    REDUCED,
    RESHAPED,
    SAME,
    SOFTMAX,
    WRITTEN,
)
from vision_attn.tokens.trace.origins import NOTHING, CallOrigins, Origins
from vision_attn.tokens.trace.shapes import Shapes, tensors_in

__all__ = ["Tracer"]

PRODUCTS = "products of one with another"
TURNED = frozenset({"aten::roll", "aten::flip"})
LARGE = 2**14  # places of a map beyond which only the nearest counts where it changes its size


class Tracer(DispatchMode):  # type: ignore[misc]  # torch has it under a private name alone
    """Label the result of every operation while this mode is on.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.tracer import Tracer
        >>> tracer = Tracer()
        >>> x = tracer.image(torch.rand(1, 3, 4, 6))
        >>> with tracer:
        ...     y = torch.nn.functional.avg_pool2d(x, 2).flatten(2)
        >>> ids = tracer.origins_of(y)[0, 0]
        >>> tracer.origins.box[ids[4], :4].tolist()  # -top, -left, bottom, right
        [-2, -2, 3, 3]
    """

    def __init__(self, shapes: Shapes | None = None) -> None:
        super().__init__()
        self.shapes = shapes
        self.origins = Origins()
        self.calls: dict[int, CallOrigins] = {}
        self._labels: ByTensor[Label | None] = ByTensor()
        self._views: ByTensor[View] = ByTensor()
        self._writes = 0  # in place, so far
        self._last_write: ByTensor[int] = ByTensor()  # into a tensor or its views
        self._labelled_at: ByTensor[int] = ByTensor()  # after how many writes
        self._paused = False
        self._scope = current_scope()
        self._random = False  # whether the run has drawn numbers, which are others in the next

    def image(self, images: Tensor) -> Tensor:
        """Copy one image or two (b c h w), with an origin for each pixel."""
        images = images.clone() if self.shapes is None else self.shapes.blank(images)
        ids = self.origins.pixels(len(images), *images.shape[-2:])
        self._set(images, Label(ids[:, None].expand(images.shape)))
        return images

    def origins_of(self, x: Tensor) -> Tensor:
        """The origin of each element, on the CPU; 0: it depends on no image or token."""
        label = self._get(x)
        return (
            torch.zeros((), dtype=torch.long, device="cpu").expand(x.shape)
            if label is None
            else self.one(label)
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Label nothing while this is open; `attended` labels the result afterwards."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def attended(
        self,
        call: int,
        v: Tensor,
        out: Tensor,
        query: Tensor | None = None,
        weights: Tensor | None = None,
        turned: bool = False,
    ) -> None:
        """Label the output of an attention call, one origin a query.

        Args:
            v: (lead head j e).
            out: (lead head i e), or without heads, or (lead e) of one query.
            query: (lead head i d); where it is not at hand, weights (lead head i j) tell whose they
                are.
            turned: Whether the weights were a softmax over another axis than the last.
        """
        with unwatched():
            self._attended(call, v, out, query, weights, turned)

    def _attended(
        self,
        call: int,
        v: Tensor,
        out: Tensor,
        query: Tensor | None,
        weights: Tensor | None,
        turned: bool,
    ) -> None:
        keys = self._of_tokens(self.origins_of(v))
        label = None if query is None else self._get(query)
        if query is None and weights is not None and (label := self._get(weights)) is not None:
            rows, columns = compact(tight(label.ids)).shape[-2:]
            if label.columns is not None:
                label = Label(label.ids if columns == 1 else label.columns)
            elif rows == 1 and columns > 1:  # it depends on the key alone: the query is learned
                label = None
        if label is None:
            count = out.shape[-2] if out.ndim > 2 else 1
            queries = torch.zeros(len(keys), count, dtype=torch.long, device="cpu")
        else:
            queries = self._of_tokens(self.one(label))
        lead = max(len(queries), len(keys))  # a learned query may be one for all images
        queries, keys = queries.expand(lead, -1), keys.expand(lead, -1)
        ids = self.origins.outputs(queries, call, keys)
        apart = v.shape[1] if turned and v.ndim > 3 and not queries.any() else 1
        self.calls[call] = CallOrigins(queries, keys, ids, apart)
        if out.ndim > 2:  # one an axis 0 and an axis -2 of it
            ids = ids.view(len(ids), *[1] * (out.ndim - 3), -1, 1)
        self._set(out, Label(ids.expand(out.shape)))

    def _of_tokens(self, ids: Tensor) -> Tensor:
        """Merge heads and width: (lead head n d) -> (lead n)."""
        rows = self._reduced(ids, [ids.ndim - 1])[..., 0]
        while rows.ndim > 2:
            rows = self._reduced(rows, [1])[:, 0]
        return rows.contiguous()

    def one(self, label: Label) -> Tensor:
        """The origins of a label; of a product, of both its factors."""
        if label.columns is None:
            return label.ids
        return self._together([label.ids, label.columns], label.ids.shape, PRODUCTS)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused or self._scope is not current_scope():
            return self._run(func, args, kwargs)
        name = func.name().partition(".")[0]
        if name in AXES_IN_PLACE:
            return self._turn(func, name, args, kwargs)
        labelled = [self._get(x) for x in tensors_in(args)]
        out = self._run(func, args, kwargs)
        any_labelled = any(label is not None for label in labelled)
        if torch.Tag.nondeterministic_seeded in func.tags and (name in FRESH or not any_labelled):
            self._random = True
        outs = [out] if isinstance(out, Tensor) else tensors_in([out])
        if func is AS_STRIDED:
            self._set_view(out, self._strided(args[0], args[1:], kwargs))
            return out
        if any_labelled and outs:
            self._take(func, name, args, kwargs, out, outs[0].shape)
        if func.is_view:  # also of what has no label yet: it may be written into
            for number, part in enumerate(outs):
                if part is not args[0]:
                    self._views[part] = View(args[0], func, args[1:], kwargs, number)
        return out

    def _turn(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that gives a tensor other axes in place.

        Another tensor stands for what it was: the tensor looks into that now, and so does what has
        looked into the tensor.
        """
        x, rest = args[0], args[1:]
        before = x.view_as(x)
        tables: list[ByTensor[Any]]
        tables = [self._labels, self._views, self._last_write, self._labelled_at]
        for table in tables:
            if (value := table.get(x)) is not None:
                table[before] = value
        for part, view in self._views.items():
            if view.base is x:
                self._views[part] = view._replace(base=before)
        if name == "aten::as_strided_":
            view = self._strided(before, rest, kwargs)
        else:
            turned = getattr(torch.ops.aten, name.removeprefix("aten::").removesuffix("_"))
            view = View(before, turned, rest, kwargs, 0)
        self._run(func, args, kwargs)
        self._set_view(x, view)
        return x

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs) if self.shapes is None else self.shapes.run(func, args, kwargs)

    def _strided(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> View:
        """The view that as_strided gives: of the memory, so of all that a tensor is a part of."""
        size, stride, *offset = args
        start = offset[0] if offset else kwargs.get("storage_offset")
        start = int(x.storage_offset() if start is None else start)
        whole = self._root(x)
        whole = whole if whole.element_size() == x.element_size() else x
        return View(whole, AS_STRIDED, (size, stride, start), {}, 0)

    def _root(self, x: Tensor) -> Tensor:
        """The tensor that this one looks into, and what that looks into, to the last."""
        while (view := self._views.get(x)) is not None:
            x = view.base
        return x

    def _set_view(self, x: Tensor, view: View) -> None:
        """Label a tensor by what it looks into."""
        self._views[x] = view
        self._set(x, self._seen(view))

    def _seen(self, view: View) -> Label | None:
        """The label of what looks into another tensor, as that is labelled now."""
        base = self._get(view.base)
        if base is None:
            return None
        label = base.moved(view.of)
        if view.func is AS_STRIDED and bool((label.ids == BEYOND).any()):
            mixed = self._all(compact(self.one(base)), "as_strided")
            return Label(mixed.expand(label.ids.shape))
        return label

    def _take(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        shape: torch.Size,
    ) -> None:
        """Label the results of an operation on something that is labelled."""
        inplace = name.endswith("_") and not name.endswith("__")
        label = self._label(
            func, name.removesuffix("_") if inplace else name, args, kwargs, out, shape
        )
        if inplace:
            self._write(args[0], label)
        elif isinstance(kwargs.get("out"), Tensor):
            self._write(kwargs["out"], label)
        elif isinstance(out, Tensor):
            self._set(out, label)
        elif isinstance(label, list):
            for part, own in zip(out, label, strict=True):
                self._set(part, own)
        elif isinstance(out, tuple | list) and out and isinstance(out[0], Tensor):
            self._set(out[0], label)
            for other in out[1:]:
                if isinstance(other, Tensor) and other.shape == out[0].shape:
                    self._set(other, label)

    def _label(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        shape: torch.Size,
    ) -> Any:
        """Find the label of a result; shape: that of its first tensor."""
        first = self._get(args[0]) if args and isinstance(args[0], Tensor) else None
        if name == "aten::copy":
            source = self._get(args[1])
            if source is None:
                return None
            return source.moved(lambda ids: ids.expand(args[0].shape))
        if name in FRESH:
            return None
        if name in SAME:
            return first
        if name in FOURIER and first is not None and self._of_two_images(first, out):
            ids = self.origins.frequencies(len(out), (1, *shape[2:]))
            return Label(ids.expand(shape))
        if name == "aten::col2im" and first is not None:
            return self._folded(func, first, args, out)
        if name == "aten::view_as_complex" and first is not None:  # of a pair each
            return first.moved(lambda ids: self._reduced(ids, [ids.ndim - 1])[..., 0])
        if name == "aten::view_as_real" and first is not None:
            return first.moved(lambda ids: ids.unsqueeze(-1).expand(shape))
        if name in RESHAPED and first is not None:
            return first.moved(lambda ids: reshaped(ids, shape))
        if name == "aten::cat":
            return self._cat(*args, **kwargs)
        if name == "aten::stack":
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            return Label(tight(torch.stack([self.origins_of(x) for x in args[0]], dim)))
        if name == "aten::constant_pad_nd" and first is not None:
            return first.moved(lambda ids: padded(ids, list(args[1])))
        if name in WRITTEN:
            return self._overwritten(func, name, args, kwargs, out)
        if (name in MOVED or func.is_view) and first is not None:
            indices = [x for x in tensors_in(args[1:]) if self._get(x) is not None]
            if name in CHOSEN and self._random:
                return self._mixed(args, out, "a choice of tokens by random numbers")
            if not indices:
                try:
                    return self._moved(func, first, args[1:], kwargs)
                except (RuntimeError, TypeError):  # complex numbers, say
                    return self._mixed(args, out, name)
            return self._mixed(args, out, "a choice of tokens by their content")
        if name in BATCH_NORM and first is not None:
            training = name != "aten::_native_batch_norm_legit_no_training" and args[5]
            return self._mixed(args, out, name) if training else first
        if torch.Tag.pointwise in func.tags or name in POINTWISE:
            if name in PAIRED and (pair := self._pair(args[0], args[1], shape)) is not None:
                return pair
            return self._pointwise([self._get(x) for x in tensors_in(args)], shape)
        if name in PRODUCT:
            left = PRODUCT[name]
            return self._product(args[left], args[left + 1], out)
        if name in LINEAR and first is not None and not self._of_run(args[1]):
            return first.moved(lambda ids: self._reduced(ids, [ids.ndim - 1]).expand(shape))
        if name in SOFTMAX and first is not None:
            return first  # a scale for all places together, which mixes no values
        if name in LAYER_NORM and first is not None:
            dims = range(args[0].ndim - len(args[1]), args[0].ndim)
            return first.moved(lambda ids: self._reduced(ids, dims).expand(ids.shape))
        if name == "aten::native_group_norm" and first is not None:
            return first  # a scale and a shift for all places together
        if name in REDUCED and first is not None:
            return self._reduction(name, first, args, kwargs, out)
        if name == "aten::convolution" and first is not None:
            weight, stride, padding, dilation = args[1], *args[3:6]
            ids = self._reduced(self.one(first), [1])
            if args[6]:
                return Label(self._spread(ids, [
                    reached(n, m, *each)
                    for n, m, *each in zip(
                        args[0].shape[2:], shape[2:], weight.shape[2:], stride, padding, dilation,
                        strict=True,
                    )
                ], shape))  # fmt: skip
            return Label(self._windows(ids, weight.shape[2:], stride, padding, dilation, shape))
        if name in CONVOLUTION and first is not None and args[1].groups() == 1:
            packed = args[1]
            ids, size = self._reduced(self.one(first), [1]), packed.unpack()[0].shape[2:]
            how = packed.stride(), packed.padding(), packed.dilation()
            return Label(self._windows(ids, size, *how, shape))
        if "upsample" in name and first is not None and len(shape) == 4:
            return Label(self._resized(func, first, args, shape))
        if name in POOLS and first is not None:
            size = list(args[1])
            options = [*args[2:], *[()] * 4]
            stride, padding = list(options[0] or size), list(options[1] or [0] * len(size))
            out = out if isinstance(out, Tensor) else out[0]
            equal = "avg" in name
            ids = self.one(first)
            return Label(
                self._windows(ids, size, stride, padding, [1] * len(size), out.shape, equal)
            )
        if name == "aten::_adaptive_avg_pool2d" and first is not None:
            steps = [n // m for n, m in zip(args[0].shape[2:], shape[2:], strict=True)]
            if [s * m for s, m in zip(steps, shape[2:], strict=True)] == list(args[0].shape[2:]):
                ids = self.one(first)
                return Label(self._windows(ids, steps, steps, [0, 0], [1, 1], shape, True))
        return self._mixed(args, out, name)

    def _moved(self, func: Any, label: Label, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def move(ids: Tensor) -> Any:
            try:
                out = func(ids, *args, **kwargs)
            except NotImplementedError:  # some kernels know no whole numbers
                out = func(ids.double(), *args, **kwargs).long()
            return tight(out, ids) if isinstance(out, Tensor) else out

        if func.name() in TURNED:  # an axis on which all are equal stays as it is
            return label.moved(lambda ids: move(compact(ids)).expand(ids.shape))
        moved = move(label.ids)
        columns = None if label.columns is None else move(label.columns)
        if isinstance(moved, Tensor):
            return Label(moved, columns)
        columns = columns or [None] * len(moved)
        return [Label(*each) for each in zip(moved, columns, strict=True)]

    def _overwritten(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Any:
        """Label a tensor of which a part was written over, where no content says which part."""
        source = WRITTEN[name]
        where = tensors_in([x for index, x in enumerate(args) if index not in (0, source)])
        if any(self._get(x) is not None for x in where):
            return self._mixed(args, out, "a choice of tokens by their content")
        if where and self._random:
            return self._mixed(args, out, "a choice of tokens by random numbers")
        adds = name == "aten::index_put" and (kwargs.get("accumulate") or any(args[3:]))
        if adds or "reduce" in kwargs:
            return self._mixed(args, out, name)
        parts = list(args)
        for index in (0, source):
            is_tensor = isinstance(parts[index], Tensor)
            parts[index] = self.origins_of(parts[index]) if is_tensor else NOTHING
        parts[0] = parts[0].clone(memory_format=torch.contiguous_format)
        return Label(tight(func(*parts, **kwargs)))

    def _cat(self, parts: Sequence[Tensor], dim: int = 0) -> Label:
        """Label a concatenation; parameters that join tokens become tokens with own origins."""
        ids = []
        for part in parts:
            ndim = part.ndim
            channels = dim % max(ndim, 1) == ndim - 1 or (ndim == 4 and dim % ndim == 1)
            if self._get(part) is not None or part.shape == (0,) or channels:
                ids.append(self.origins_of(part))
                continue
            fresh = self.origins.new(part.shape[dim])
            around = [1] * part.ndim
            around[dim] = -1
            ids.append(fresh.view(around).expand(part.shape))
            self._set(part, Label(ids[-1]))
        return Label(tight(torch.cat(ids, dim)))

    def _pointwise(self, labels: Sequence[Label | None], shape: Sequence[int]) -> Label:
        present = [label for label in labels if label is not None]
        pairs = [label for label in present if label.columns is not None]
        if not pairs:
            return Label(self._whole(self._together([label.ids for label in present], shape)))
        columns = [label.columns for label in pairs if label.columns is not None]
        return Label(
            self._together([label.ids for label in present], shape), self._together(columns, shape)
        )

    def _folded(self, func: Any, label: Label, args: tuple[Any, ...], out: Tensor) -> Label:
        """Put windows (b c*k n) back on a map (b c h w); where they overlap, an image mixes."""
        ids = self.one(label)
        if list(args[2]) == list(args[5]) and not any(args[4]):  # kernel, stride, padding
            return Label(tight(func(ids.double().contiguous(), *args[1:]).long()))
        own = [self._all(compact(ids[image]), "col2im") for image in range(len(ids))]
        return Label(torch.cat(own).view(-1, 1, 1, 1).expand(out.shape))

    def _of_two_images(self, label: Label, out: Tensor) -> bool:
        newest = int(compact(self.one(label)).max())
        return out.ndim == 4 and len(out) == 2 and newest <= self.origins.pixel_count

    def _pair(self, left: Any, right: Any, shape: Sequence[int]) -> Label | None:
        """Label each of some values with each of others, (i 1 d) and (1 j d); None where not so."""
        a, b = (self._get(x) if isinstance(x, Tensor) else None for x in (left, right))
        if a is None or b is None or a.columns is not None or b.columns is not None:
            return None
        if len(shape) < 4:
            return None
        for find in (compact, tighter):  # the second is right, and slow
            rows, columns = (find(label.ids.expand(shape)) for label in (a, b))
            longer = [i > j for i, j in zip(rows.shape, columns.shape, strict=True)]
            shorter = [i < j for i, j in zip(rows.shape, columns.shape, strict=True)]
            if not any(longer) or not any(shorter):
                return None
        if longer.index(True) > shorter.index(True):
            rows, columns = columns, rows
        return Label(rows.expand(shape), columns.expand(shape))

    def _whole(self, ids: Tensor) -> Tensor:
        """Give all channels of a token its new origin if attention has changed some of them."""
        small = compact(ids)
        if ids.ndim < 3 or small.shape[-1] == 1:
            return ids
        merged = self.origins.one_of(small.flatten(0, -2))
        return ids if merged is None else merged.view(*small.shape[:-1], 1).expand(ids.shape)

    def _together(self, ids: Sequence[Tensor], shape: Sequence[int], operation: str = "") -> Tensor:
        """Merge labels that broadcast to a shape, element by element."""
        whole = compact(ids[0].expand(shape))
        for other in ids[1:]:
            other = compact(other.expand(shape))
            if whole.shape == other.shape and torch.equal(whole, other):
                continue
            whole, other = torch.broadcast_tensors(tighter(whole), tighter(other))
            rows = torch.stack([whole, other]).flatten(1).T
            whole = self.origins.merge(rows, operation=operation, adopt=True).view(whole.shape)
        return whole.expand(shape)

    def _reduced(self, ids: Tensor, dims: Sequence[int], **how: Any) -> Tensor:
        """Merge along some axes, which keep a length of 1."""
        small = compact(ids)
        dims = sorted(dim % ids.ndim for dim in dims)
        whole = [1 if axis in dims else size for axis, size in enumerate(ids.shape)]
        if not ids.numel():
            return torch.zeros(whole, dtype=torch.long, device="cpu")
        if all(small.shape[dim] == 1 for dim in dims):
            return small.expand(whole)
        small = small.movedim(dims, list(range(ids.ndim - len(dims), ids.ndim)))
        lead = small.shape[: ids.ndim - len(dims)]
        merged = self.origins.merge(small.reshape(lead.numel(), -1), **how).view(lead)
        for dim in dims:
            merged = merged.unsqueeze(dim)
        return merged.expand(whole)

    def _reduction(
        self, name: str, label: Label, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Label:
        axes_index = 2 if "norm" in name else 1  # the axes follow the order of a norm
        dims = args[axes_index] if len(args) > axes_index else kwargs.get("dim")
        ndim = args[0].ndim
        dims = range(ndim) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
        shape = (out if isinstance(out, Tensor) else out[0]).shape
        return label.moved(
            lambda ids: self._reduced(
                ids, dims, equal=name in EQUAL, operation="" if name in EQUAL else name[6:]
            ).reshape(shape)
        )

    def _product(self, left: Tensor, right: Tensor, out: Tensor) -> Label:
        shape, a, b = out.shape, self._get(left), self._get(right)
        if a is not None and b is None:
            label = a.moved(lambda ids: self._reduced(ids, [ids.ndim - 1]))
            if right.ndim == 1:  # a vector leaves no axis
                label = label.moved(lambda ids: ids[..., 0])
            return label.moved(lambda ids: ids.expand(shape))
        lengthwise = max(0, right.ndim - 2)
        if a is None and b is not None:
            label = b.moved(lambda ids: self._reduced(ids, [lengthwise]).expand(shape))
            if label.columns is None and compact(label.ids).shape[-1] > 1:  # of a learned query
                nothing = torch.zeros(1, dtype=torch.long, device="cpu").expand(shape)
                return Label(nothing, label.ids)
            return label
        if a is None or b is None:
            return Label(torch.zeros(1, dtype=torch.long, device="cpu").expand(shape))
        rows = self._reduced(self.one(a), [left.ndim - 1], operation=PRODUCTS)
        columns = self._reduced(self.one(b), [lengthwise], operation=PRODUCTS)
        return Label(rows.expand(shape), columns.expand(shape))

    def _windows(
        self, ids: Tensor, size: Any, stride: Any, padding: Any, dilation: Any, shape: Any,
        equal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Merge the origins in each sliding window: (b c *space) -> shape."""
        small, space = compact(ids), len(size)
        ids = small.expand(*small.shape[:2], *ids.shape[2:])  # windows differ where all is equal
        around = [side for pad in reversed(list(padding)) for side in (pad, pad)]
        ids = F.pad(ids, around) if any(around) else ids
        for axis in range(space):
            reach, d = (size[axis] - 1) * dilation[axis] + 1, dilation[axis]
            beyond = (shape[2 + axis] - 1) * stride[axis] + reach - ids.shape[2 + axis]
            if beyond > 0:  # the ragged edge of a pool that rounds up
                ids = F.pad(ids, [0, 0] * (ids.ndim - 3 - axis) + [0, beyond])
            ids = ids.unfold(2 + axis, reach, stride[axis])[..., ::d]
        lead = ids.shape[: 2 + space]
        if all(n == 1 for n in size):
            return ids.reshape(lead).expand(shape)
        columns = ids.movedim(list(range(2 + space, ids.ndim)), list(range(space)))
        rows = columns.reshape(-1, lead.numel()).T  # one place of all windows lies together
        return self.origins.merge(rows, equal).view(lead).expand(shape)

    def _resized(
        self, func: Any, label: Label, args: tuple[Any, ...], shape: Sequence[int]
    ) -> Tensor:
        """Merge the origins behind each element of a resized map; pixels take the nearest one."""
        size = args[0].shape[2:]
        ids = self._reduced(self.one(label), [1])[:, :1].expand(-1, 1, *size)
        if int(ids.max()) <= self.origins.pixel_count or size.numel() > LARGE:
            return F.interpolate(ids.double(), shape[2:]).long().expand(shape)
        around = []
        for axis, n in enumerate(size):
            sides = [1, n, 1, 1]
            sides[2 + axis] = n
            eye = torch.eye(n, dtype=torch.float32, device="cpu")
            weights = func(eye.view(sides).expand(1, n, *size).contiguous(), *args[1:])[0]
            around.append((weights.select(2 - axis, 0) != 0).T)  # place after, place before
        return self._spread(ids, around, shape)

    def _spread(self, ids: Tensor, around: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Merge the origins behind each element of a map (b c *shape), by axis (after, before)."""
        if len(around) != 2:
            own = [self._all(compact(ids[image]), "convolution") for image in range(len(ids))]
            return torch.cat(own).view(-1, *[1] * (len(shape) - 1)).expand(shape)
        size = [of.shape[1] for of in around]
        ids = ids[:, :1].expand(-1, 1, *size)[:, 0]
        indices = []
        for n, of in zip(size, around, strict=True):
            most = int(of.sum(1).max())
            order = of.long().argsort(dim=1, descending=True, stable=True)[:, :most]
            indices.append(order.masked_fill(~of.gather(1, order), n))
        rows, columns = indices
        ids = F.pad(ids, (0, 1, 0, 1), value=NOTHING)
        members = ids[:, rows[:, None, :, None], columns[None, :, None, :]].flatten(3)
        merged = self.origins.merge(members.flatten(0, 2))
        return merged.view(len(ids), 1, *shape[2:]).expand(shape)

    def _mixed(self, args: tuple[Any, ...], out: Any, operation: str) -> Any:
        labelled = [self.origins_of(x) for x in tensors_in(args) if self._get(x) is not None]
        whole = torch.cat([compact(ids).flatten() for ids in labelled])
        name = operation.removeprefix("aten::").strip("_")
        if isinstance(out, Tensor) and all(
            ids.ndim == out.ndim > 1 and len(ids) == len(out) for ids in labelled
        ):  # each image by itself
            rows = [
                torch.cat([compact(ids[image]).flatten() for ids in labelled])
                for image in range(len(out))
            ]
            own = torch.cat([self._all(row, name) for row in rows])
            return Label(own.view(-1, *[1] * (out.ndim - 1)).expand(out.shape))
        mixed = self._all(whole, name)
        if isinstance(out, Tensor):
            return Label(mixed[0].expand(out.shape))
        return Label(mixed[0].expand(tensors_in(out)[0].shape))

    def _all(self, ids: Tensor, operation: str) -> Tensor:
        return self.origins.merge(ids.flatten().unique()[None], operation=operation)

    def _write(self, x: Tensor, label: Label | None) -> None:
        """Label a tensor that was written to in place, and the tensors that it is a view of."""
        self._writes += 1
        self._set(x, label)
        while (view := self._views.get(x)) is not None:
            whole, part = self._get(view.base), self._get(x)
            if whole is None or whole.columns is None or part is None or part.columns is None:
                ids = view.written(self.origins_of(view.base), self.origins_of(x))
                self._set(view.base, Label(ids))
            else:  # rows and columns apart: no origin for each score
                rows = view.written(whole.ids, part.ids)
                self._set(view.base, Label(rows, view.written(whole.columns, part.columns)))
            x = view.base
        self._last_write[x] = self._writes

    def _get(self, x: Tensor) -> Label | None:
        label = self._labels.get(x)
        if not self._writes or (view := self._views.get(x)) is None:
            return label
        last_write = self._last_write.get(self._root(view.base)) or 0
        if last_write <= (self._labelled_at.get(x) or 0):
            return label
        label = self._seen(view)  # something was written into the base since
        self._set(x, label)
        return label

    def _of_run(self, x: Any) -> bool:
        """Whether this is a tensor with origins, rather than a weight, packed ones included."""
        return isinstance(x, Tensor) and self._get(x) is not None

    def _set(self, x: Tensor, label: Label | None) -> None:
        self._labels[x] = label
        if self._writes:
            self._labelled_at[x] = self._writes


def reached(before: int, after: int, size: int, stride: int, padding: int, dilation: int) -> Tensor:
    """Find which inputs reach which outputs of a transposed convolution (after, before)."""
    axes = (torch.arange(n, device="cpu") for n in (after, before))
    offset = next(axes)[:, None] + padding - stride * next(axes)
    return (offset % dilation == 0) & (offset >= 0) & (offset <= dilation * (size - 1))
