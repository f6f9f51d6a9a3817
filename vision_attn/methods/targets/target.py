"""What is explained: the base class of all targets.

Axes: b images, r of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vision_attn.errors import cut, quoted
from vision_attn.tokens.outputs import described, tensors_of
from vision_attn.types import Model

__all__ = ["Target", "TargetLike", "numbers_by"]


class Target(ABC):
    """What is explained: one number an image, made of a network's output.

    A subclass computes the numbers in `__call__`. The other methods have defaults, for a target
    that is the same for every image.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import GradCAM, Target
        >>> from vision_attn.models import SEResNet
        >>> class Largest(Target):
        ...     def __call__(self, output):
        ...         return output.amax(dim=1)
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> GradCAM()(network, torch.rand(1, 3, 32, 32), target=Largest()).values.shape
        torch.Size([1, 4, 4])
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).get("__call__")
        if own is None or cls.__module__.startswith(f"{__package__}."):
            return

        @wraps(own)
        def checked_call(self: Target, output: Any) -> Tensor:
            return numbers_by(partial(own, self), output, str(self))

        cls.__call__ = checked_call  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        """Compute the number of each image.

        Args:
            output: What the network gave for the images.

        Returns:
            The numbers, (b,).
        """

    def fixed(self, output: Any) -> "Target":
        """Decide what depends on the images, such as the predicted class, by their output.

        Args:
            output: What the network gave for the images as they are.

        Returns:
            The target, which is the same for changed copies of the images.
        """
        return self

    def at(self, images: Int[Tensor, " r"]) -> "Target":
        """Return the target of some of the images.

        Args:
            images: Their indices (r,), counted as the output's rows are; one may come several
                times.
        """
        return self

    def named(self, model: Model) -> "Target":
        """Look the names of classes up in the model.

        Args:
            model: The model whose classes are meant.

        Returns:
            The target with indices for names.
        """
        return self

    @property
    def count(self) -> int | None:
        """How many images it is for, if it has something for each; None: for any number."""
        return None

    def check(self, images: int) -> None:
        """Check that the target is one for so many images.

        Raises:
            ValueError: It has something for each image, and there are more or fewer.
        """
        if self.count not in (None, images):
            raise ValueError(
                f"target must be one for all images or {images} (one an image), got {self.count}"
            )

    def classes(self, images: Tensor) -> Int[Tensor, " b"] | None:
        """Return the class that each image is explained for; None where that is no class.

        Args:
            images: (b c h w), of which the number and the device count.
        """
        return None

    def pair(self) -> tuple[int | None, int | None]:
        """Return the class that is explained, and the one that it is contrasted with.

        None for what is no class, or not the same class for every image.
        """
        return None, None

    def label(self, classes: Sequence[str] = ()) -> str:
        """Say in words what is explained.

        Args:
            classes: The model's names; indices are shown where there are none.
        """
        return str(self)

    def key(self) -> str:
        """Return a text that is another for a target that differs, for what is kept in files."""
        return str(self)

    def __str__(self) -> str:
        return type(self).__name__


TargetLike = (  # what `as_target` takes
    Target
    | int
    | np.integer
    | str
    | None
    | Tensor
    | ndarray
    | Sequence[Any]
    | Callable[[Any], Tensor]
)


def numbers_by(function: Callable[[Any], Any], output: Any, name: str) -> Float[Tensor, " b"]:
    """Call a user's function with an output; ValueError unless it gives a finite float an image.

    The message says what the function got, what it gave or raised, and what it must give.
    """
    several = [tensor for tensor in tensors_of(output) if tensor.ndim]
    count = len(output) if isinstance(output, list) else len(several[0]) if several else None
    cause = None
    try:
        numbers = function(output)
    except Exception as error:  # its own code
        cause = error
        text = next(iter(str(error).splitlines()), "")
        outcome = cut(f"raised {type(error).__name__}{': ' if text else ''}{text}", 160)
    else:
        if not isinstance(numbers, Tensor) or numbers.ndim != 1 or len(numbers) != count:
            tensor = isinstance(numbers, Tensor)
            outcome = f"gave {described(numbers) if tensor else quoted(numbers)}"
        elif not numbers.is_floating_point():
            outcome = f"gave {numbers.dtype}"
        elif not numbers.isfinite().all():
            outcome = "gave NaN or infinity"
        else:
            return numbers
    got = described(output).partition(": give head=")[0]
    shape = "b" if count is None else count
    expected = f"expected one float an image, a tensor ({shape},), of {cut(got, 160)}"
    raise ValueError(f"{cut(name)}: {expected}; it {outcome}") from cause
