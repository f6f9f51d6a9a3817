"""Shapes of tensors that are computed with each other."""

from collections.abc import Sequence

__all__ = ["broadcast_shape"]


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Find the shape to which shapes broadcast, as torch.broadcast_shapes does.

    That one loads torch's symbolic shapes and sympy, which takes half as long as torch itself.
    Raises ValueError for shapes that do not fit.

    Examples:
        >>> from vision_attn.attention.shapes import broadcast_shape
        >>> broadcast_shape((2, 1, 5), (3, 1))
        (2, 3, 5)
    """
    ndim = max(len(shape) for shape in shapes)
    whole = []
    for axis in range(-ndim, 0):
        size = 1
        for shape in shapes:
            own = shape[axis] if len(shape) >= -axis else 1
            if own not in (1, size) and size != 1:
                raise ValueError(f"shapes do not broadcast: {', '.join(map(str, shapes))}")
            size = size if own == 1 else own
        whole.append(size)
    return tuple(whole)
