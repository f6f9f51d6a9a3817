"""A function of the user's as a target.

Axes: b images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vision_attn.arguments import check_fields
from vision_attn.methods.function_key import function_key
from vision_attn.methods.targets.target import Target, numbers_by

__all__ = ["Function"]


@dataclass(frozen=True)
class Function(Target):
    """A function of the network's output, which gives one number an image.

    Args:
        function: Called with the output for any number of images, copies of the given ones; gives
            floats, (b,).

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Function
        >>> Function(lambda output: output.square().sum(1))(torch.tensor([[3.0, 4.0]]))
        tensor([25.])
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        return numbers_by(self.function, output, str(self))

    def label(self, classes: Sequence[str] = ()) -> str:
        return str(self)

    def key(self) -> str:
        """Return its name, and the sum of its instructions and of what it refers to."""
        return f"{self} {function_key(self.function)}"

    def __str__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return "a function of the output" if name == "<lambda>" else name
