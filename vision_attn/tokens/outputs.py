"""What a network gives: one tensor or several, which of them is meant, and the images' own rows.

Axes: b batch, k classes.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from vision_attn.errors import quoted
from vision_attn.hooks import Hooks
from vision_attn.inference import infer
from vision_attn.types import Head, Images, Logits

__all__ = [
    "check_finite",
    "class_logits",
    "giving",
    "head_given",
    "logits_of",
    "one_row",
    "only_tensor",
    "part_of",
    "parts_of",
    "rows_of",
    "run",
    "tensors_of",
]


def run(network: nn.Module, images: Images) -> Any:
    """Run a network in eval mode; return its output, whatever it is made of.

    Without gradients, unless an explainer that needs them runs it.

    Raises:
        ValueError: A number of the output is not finite.
    """
    output = infer(network, images.clone())  # into which it may write
    for tensor in tensors_of(output):
        check_finite(tensor, "the network's output", network, images)
    return output


def class_logits(network: nn.Module, images: Images, head: Head | None = None) -> Logits:
    """Run a network for its logits (b, k).

    Args:
        network: A network.
        images: Its inputs, (b, c, h, w).
        head: Which part of the output they are; None as in `logits_of`.

    Raises:
        ValueError: It gives anything else, or numbers that are not finite.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.outputs import class_logits
        >>> class_logits(torch.nn.Flatten(), torch.ones(2, 3, 1, 1)).shape
        torch.Size([2, 3])
    """
    output = run(network, images)
    return logits_of(output if head is None else part_of(output, head), len(images))


def logits_of(output: Any, images: int | None = None) -> Logits:
    """Take the logits (b, k) of a network's output: itself, its `logits`, or its only tensor.

    Args:
        output: What a network gave. One number an image, (b,), counts as (b, 1).
        images: How many images it gave this for; None does not check.

    Raises:
        ValueError: There are several tensors, or it is not (b, k).

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.outputs import logits_of
        >>> logits_of({"logits": torch.ones(2, 5), "tokens": torch.ones(2, 7, 3)}).shape
        torch.Size([2, 5])
    """
    logits = only_tensor(output)
    if logits is None:
        raise ValueError(f"expected logits of the network, got {described(output)}")
    if logits.ndim == 1:
        logits = logits[:, None]
    if logits.ndim != 2 or images not in (None, len(logits)):
        raise ValueError(
            f"expected logits ({'b' if images is None else images}, classes) of the network, got "
            f"{tuple(logits.shape)}: give a target of such an output, Channel, PixelsOf or a "
            "function, or head="
        )
    return logits


def only_tensor(output: Any) -> Tensor | None:
    """Return the tensor that an output is, that is called `logits`, or that is alone in it."""
    if isinstance(output, Tensor):
        return output
    parts = parts_of(output)
    if "logits" in parts:
        return only_tensor(parts["logits"])
    tensors = [part for part in parts.values() if isinstance(part, Tensor)]
    return tensors[0] if len(tensors) == len(parts) == 1 else None


def part_of(output: Any, head: Head) -> Any:
    """Take one part of an output, by its index, key or attribute.

    Raises:
        ValueError: There is no such part.

    Examples:
        >>> from vision_attn.tokens.outputs import part_of
        >>> part_of((3, 5), 1), part_of({"out": 7}, "out")
        (5, 7)
    """
    parts = parts_of(output)
    if head in parts:
        return parts[head]
    if isinstance(head, int) and not isinstance(head, bool):
        if -len(parts) <= head < len(parts) and not isinstance(output, Tensor):
            return list(parts.values())[head]
    elif isinstance(head, str) and not head.startswith("_") and hasattr(output, head):
        part = getattr(output, head)
        if not callable(part) or isinstance(part, Tensor):
            return part
    raise ValueError(f"head {quoted(head)}: the network gives {described(output)}")


_HEAD: ContextVar[Head | None] = ContextVar("head", default=None)


@contextmanager
def giving(network: nn.Module, head: Head | None) -> Iterator[None]:
    """Let a network give that part of its output alone while this is open, in this thread."""
    if head is None:
        yield
        return

    def take(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
        return part_of(output, head)

    before = _HEAD.set(head)
    try:
        with Hooks() as hooks:
            hooks.after(network, take)
            yield
    finally:
        _HEAD.reset(before)


def head_given() -> Head | None:
    """Return the part of the output that `giving` takes around this call."""
    return _HEAD.get()


def parts_of(output: Any) -> dict[Any, Any]:
    """Name the parts of an output: by key, by field or by index; {} for what has none."""
    if isinstance(output, Tensor):
        return {}
    if isinstance(output, Mapping):
        return dict(output)
    if is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in fields(output)}
    if isinstance(output, Sequence) and not isinstance(output, str):
        return dict(enumerate(output))
    return dict(getattr(output, "__dict__", {}))


def tensors_of(output: Any) -> list[Tensor]:
    """List the tensors in whatever a network gives."""
    if isinstance(output, Tensor):
        return [output]
    return [tensor for part in parts_of(output).values() for tensor in tensors_of(part)]


def one_row(row: int) -> Int[Tensor, "1"]:
    """Make the index of one image, as `rows_of` and the `at` of a target take it.

    Examples:
        >>> from vision_attn.tokens.outputs import one_row
        >>> one_row(3)
        tensor([3])
    """
    return torch.tensor([row], dtype=torch.long, device="cpu")


def rows_of(output: Any, rows: Int[Tensor, " r"], images: int) -> Any:
    """Select the images of these rows from an output of so many images.

    Every tensor whose first axis has one row an image is cut, and a list of one thing an image.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.outputs import rows_of
        >>> rows_of({"logits": torch.arange(6).view(3, 2)}, torch.tensor([2, 0]), 3)
        {'logits': tensor([[4, 5],
                [0, 1]])}
    """
    if isinstance(output, Tensor):
        whole = output.ndim and len(output) == images
        return output[rows.to(output.device)] if whole else output
    tensors = isinstance(output, list) and any(isinstance(part, Tensor) for part in output)
    if isinstance(output, list) and len(output) == images and not tensors:
        return [output[row] for row in rows.tolist()]
    parts = {name: rows_of(part, rows, images) for name, part in parts_of(output).items()}
    if isinstance(output, Mapping):
        return type(output)(**parts) if is_dataclass(output) else parts
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*parts.values())
    if isinstance(output, tuple | list):
        return type(output)(parts.values())
    if not parts:
        return output
    cut = copy.copy(output)
    for name, part in parts.items():
        object.__setattr__(cut, name, part)
    return cut


def described(output: Any) -> str:
    """Say what an output is made of, and how one part of it is chosen."""
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    parts = parts_of(output)
    if not parts:
        return f"a value of type {type(output).__name__}"
    listed = [
        f"{name!r} {tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__}"
        for name, part in list(parts.items())[:8]
    ]
    more = ", ..." if len(parts) > 8 else ""
    return f"{type(output).__name__} of {', '.join(listed)}{more}: give head={next(iter(parts))!r}"


def check_finite(values: Tensor, what: str, network: nn.Module, images: Tensor) -> None:
    """Raise ValueError, with the likely cause, where `values` hold NaN or infinity."""
    if values.isfinite().all():
        return
    if not images.isfinite().all():
        cause = "the images hold NaN or infinity"
    else:
        weights = [*network.named_parameters(), *network.named_buffers()]
        broken = [name for name, weight in weights if not weight.isfinite().all()]
        cause = (
            f"so do the network's weights, first {broken[0]!r} ({len(broken)} of {len(weights)})"
            if broken
            else "images and weights are finite: too large for this dtype?"
        )
    raise ValueError(f"{what} holds NaN or infinity: {cause}")
