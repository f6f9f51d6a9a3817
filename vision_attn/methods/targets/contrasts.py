"""Targets that weigh one thing against others.

Axes: b images, r of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.methods.targets.classes import Class, ClassIndex
from vision_attn.methods.targets.conversion import as_target
from vision_attn.methods.targets.target import Target, TargetLike
from vision_attn.tokens.outputs import logits_of
from vision_attn.types import Model

__all__ = ["Difference", "Odds", "check_contrast"]


@dataclass(frozen=True, init=False)
class Difference(Target):
    """One target less another: what supports the first rather than the second.

    For two classes logit_i - logit_j; the evidence that both share cancels (the counterfactual of
    Grad-CAM, Selvaraju et al. 2017, generalised).

    Args:
        target: What `as_target` takes; None for each image's predicted class.
        contrast: The same, but not None.

    Raises:
        ValueError: `contrast` is None or the class of `target`, or one of them is no target.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Difference
        >>> Difference(1, 0)(torch.tensor([[2.0, 5.0]]))
        tensor([3.])
    """

    target: Target
    subtracted: Target

    def __init__(self, target: "TargetLike", contrast: "TargetLike"):
        if contrast is None:
            raise ValueError("Difference: expected a class or another target to subtract, got None")
        object.__setattr__(self, "target", as_target(target))
        object.__setattr__(self, "subtracted", as_target(contrast))
        check_contrast(self.target, self.subtracted)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        return self.target(output) - self.subtracted(output)

    def fixed(self, output: Any) -> "Difference":
        return Difference(self.target.fixed(output), self.subtracted.fixed(output))

    def at(self, images: Int[Tensor, " r"]) -> "Difference":
        return Difference(self.target.at(images), self.subtracted.at(images))

    def named(self, model: Model) -> "Difference":
        return Difference(self.target.named(model), self.subtracted.named(model))

    @property
    def count(self) -> int | None:
        return self.subtracted.count if self.target.count is None else self.target.count

    def check(self, images: int) -> None:
        self.target.check(images)
        self.subtracted.check(images)

    def classes(self, images: Tensor) -> Int[Tensor, " b"] | None:
        return self.target.classes(images)

    def pair(self) -> tuple[int | None, int | None]:
        return self.target.pair()[0], self.subtracted.pair()[0]

    def key(self) -> str:
        return f"Difference({self.target.key()}, {self.subtracted.key()})"

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"{self.target.label(classes)} rather than {self.subtracted.label(classes)}"

    def __str__(self) -> str:
        return f"Difference({self.target}, {self.subtracted})"


def check_contrast(target: Target, contrast: Target, classes: Sequence[str] = ()) -> None:
    """Check that a class is not contrasted with itself.

    Args:
        target: What is explained.
        contrast: What is subtracted from it.
        classes: The model's names of classes, for the message.

    Raises:
        ValueError: Both are one and the same class.
    """
    if not (isinstance(target, Class) and isinstance(contrast, Class)):
        return
    if target.index == contrast.index and isinstance(target.index, int | str):
        raise ValueError(
            f"contrast: expected another class than the target, got {contrast.label(classes)} for "
            "both: nothing supports a class rather than itself"
        )


@dataclass(frozen=True, init=False)
class Odds(Target):
    """The log-odds of a class: its logit less logsumexp of all other logits.

    log p / (1 - p) of the softmax probability p: it grows as the other classes fall, too.

    Args:
        index: The class, as `Class` takes it.

    Raises:
        ValueError: `index` is no class.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Odds
        >>> logits = torch.tensor([[1.0, 2.0, 4.0]])
        >>> torch.allclose(Odds(2)(logits), logits.softmax(1)[:, 2].logit())
        True
    """

    of: Class

    def __init__(self, index: "Class | ClassIndex | Sequence[ClassIndex] | Tensor" = None):
        of = as_target(index)
        if not isinstance(of, Class):
            raise ValueError(f"Odds: expected a class, got {of}")
        object.__setattr__(self, "of", of)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        logits, chosen = self.of.logits(output), self.of(output)
        if logits_of(output).shape[1] == 1:
            return chosen  # the logit of a sigmoid is the log-odds
        own = F.one_hot(self.of.indices(logits), logits.shape[1]).bool()
        return chosen - logits.masked_fill(own, -torch.inf).logsumexp(dim=1)

    def fixed(self, output: Any) -> "Odds":
        return Odds(self.of.fixed(output))

    def at(self, images: Int[Tensor, " r"]) -> "Odds":
        return Odds(self.of.at(images))

    def named(self, model: Model) -> "Odds":
        return Odds(self.of.named(model))

    @property
    def count(self) -> int | None:
        return self.of.count

    def classes(self, images: Tensor) -> Int[Tensor, " b"] | None:
        return self.of.classes(images)

    def key(self) -> str:
        return f"Odds({self.of.key()})"

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"odds of {self.of.label(classes)}"

    def __str__(self) -> str:
        return f"Odds({self.of})"
