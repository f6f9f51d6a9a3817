"""A class as a target: its logit.

Axes: b images, r of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.arguments import check_fields
from vision_attn.errors import ModelError, quoted
from vision_attn.methods.targets.target import Target
from vision_attn.tokens.outputs import logits_of
from vision_attn.types import Logits, Model

__all__ = ["Class", "ClassIndex", "name_of"]

ClassIndex = int | str | None


@dataclass(frozen=True)
class Class(Target):
    """The logit of a class.

    Args:
        index: The class, by index or, with a model, by name; several, one an image; None for each
            image's predicted class.
        names: How many names of classes a model has; 0 where that is not known. Of one logit and
            two names, the logit is that of the second, and its negative that of the first.
        given: Whether the network gives probabilities: then p and 1 - p take their place.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Class
        >>> Class(1)(torch.tensor([[2.0, 3.0], [5.0, 7.0]]))
        tensor([3., 7.])
    """

    index: ClassIndex | tuple[ClassIndex, ...] = None
    names: int = 0
    given: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, model: Model, index: "ClassIndex | tuple[ClassIndex, ...]" = None) -> "Class":
        """Make the target of a model's class, by its index."""
        return cls(index, len(model.classes), model.calibration.activation == "identity")

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        logits = self.logits(output)
        return logits.gather(1, self.indices(logits)[:, None])[:, 0]

    def logits(self, output: Any) -> Logits:
        """Take the logits of an output, of two classes where one logit stands for them.

        Args:
            output: What the network gave for the images.

        Returns:
            The logits, (b, k).

        Raises:
            ModelError: There are names of more or fewer classes.
        """
        logits = logits_of(output)
        if self.names == 2 and logits.shape[1] == 1:
            other = 1 - logits if self.given else -logits  # whose sigmoid is 1 - p
            return torch.cat([other, logits], dim=1)
        if self.names not in (0, logits.shape[1]):
            raise ModelError(
                f"the network gives {logits.shape[1]} numbers an image, but the model has names of "
                f"{self.names} classes: expected as many"
            )
        return logits

    def indices(self, logits: Logits) -> Int[Tensor, " b"]:
        """Return the class of each image, the predicted one where none is chosen.

        Args:
            logits: Those of the images, (b k).

        Returns:
            The classes, (b).
        """
        count, classes = logits.shape
        self.check(count)
        every = self.index if isinstance(self.index, tuple) else (self.index,) * count
        if (named := next((index for index in every if isinstance(index, str)), None)) is not None:
            raise ValueError(
                f"a class by its name, {quoted(named)}, needs a model, which knows its classes: "
                "give the model for the network, or the class's index"
            )
        predicted = logits.argmax(dim=1)
        chosen: list[Any] = [guess if index is None else index
            for index, guess in zip(every, predicted.tolist(), strict=True)]  # fmt: skip
        wrong = next((index for index in chosen if not 0 <= index < classes), None)
        if wrong is not None:
            raise ValueError(
                f"target class {quoted(wrong)} is out of range: the network has {classes} "
                f"class{'es' if classes > 1 else ''}, 0 to {classes - 1}"
            )
        return torch.tensor(chosen, dtype=torch.long, device=logits.device)

    def fixed(self, output: Any) -> "Class":
        return replace(self, index=tuple(self.indices(self.logits(output)).tolist()))

    def at(self, images: Int[Tensor, " r"]) -> "Class":
        if not isinstance(self.index, tuple):
            return self
        return replace(self, index=tuple(self.index[image] for image in images.tolist()))

    def named(self, model: Model) -> "Class":
        def look_up(index: ClassIndex) -> int | None:
            return None if index is None else model.class_index(index)

        if isinstance(self.index, tuple):
            return Class.of(model, tuple(map(look_up, self.index)))
        return Class.of(model, look_up(self.index))

    @property
    def count(self) -> int | None:
        return len(self.index) if isinstance(self.index, tuple) else None

    def classes(self, images: Tensor) -> Int[Tensor, " b"] | None:
        index = self.index if isinstance(self.index, tuple) else (self.index,) * len(images)
        if not all(isinstance(item, int) for item in index):
            return None
        return torch.tensor(index, dtype=torch.long, device=images.device)

    def pair(self) -> tuple[int | None, int | None]:
        every = set(self.index) if isinstance(self.index, tuple) else {self.index}
        index = every.pop()
        return (index if not every and isinstance(index, int) else None), None

    def key(self) -> str:
        return "predicted" if self.index is None else str(self)

    def label(self, classes: Sequence[str] = ()) -> str:
        every = self.index if isinstance(self.index, tuple) else (self.index,)
        return ", ".join(dict.fromkeys(name_of(index, classes) for index in every))

    def __str__(self) -> str:
        return self.label()


def name_of(index: ClassIndex, classes: Sequence[str]) -> str:
    """Name a class as captions do: by its first synonym, or its number."""
    if index is None:
        return "the predicted class"
    if isinstance(index, int) and 0 <= index < len(classes):
        return classes[index].split(",")[0]
    return f"class {index}"
