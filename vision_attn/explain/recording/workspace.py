"""Memory for tiles, and the products that are made in it.

Axes: b batch, head, i queries, j keys, d head width.
"""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor


class Room:
    """Memory that the tiles of a layer take turns in, by the name of what is in it.

    On a CPU a tile in fresh memory takes twice as long: the system hands it out page by page.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def tile(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tile of this shape; what was in the last one of this name is lost."""
        size, held = prod(shape), self._held.get(name)
        if (
            held is None
            or held.numel() < size
            or held.dtype != like.dtype
            or (held.is_inference() and not torch.is_inference_mode_enabled())
        ):
            held = self._held[name] = like.new_empty(size)
        return held[:size].view(*shape)


def product(
    a: Float[Tensor, "b head i d"],
    b: Float[Tensor, "b head d j"],
    name: str,
    room: Room | None,
    alpha: float = 1.0,
    plus: Float[Tensor, "b head i 1"] | None = None,
    beta: float = 1.0,
) -> Float[Tensor, "b head i j"]:
    """alpha a b + beta plus, in the room if one is given."""
    shape = (*a.shape[:3], b.shape[3])
    out = None if room is None else room.tile(name, shape, a).flatten(0, 1)
    if plus is None:
        plus, beta = a.new_empty(1, 1, 1, 1), 0.0
    a, b, plus = a.flatten(0, 1), b.flatten(0, 1), plus.flatten(0, 1)
    return torch.baddbmm(plus, a, b, beta=beta, alpha=alpha, out=out).view(shape)
