"""What is explained: one number an image, made of a network's output.

    GradCAM()(model, images, target="tabby")                          the class's logit
    GradCAM()(model, images, target=["tabby", "collie"])              a class an image
    GradCAM()(model, images, target=Difference("tabby", "collie"))    why one rather than the other
    GradCAM()(encoder, images, target=Similarity(embedding))          an encoder without classes
    GradCAM()(network, images, target=lambda output: output[:, 0])    whatever you compute of it

`as_target` makes a `Target` of each of these, and is the only place that does.

Axes: b images, k classes or numbers of an output, h height, w width, n tokens, q boxes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from numbers import Integral, Real
from typing import Any, cast
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.arguments import argument, check_fields
from vision_attn.errors import ModelError, cut, quoted
from vision_attn.methods.function_key import function_key
from vision_attn.tokens.inputs import images_in_words
from vision_attn.tokens.outputs import (
    described,
    logits_of,
    one_row,
    only_tensor,
    part_of,
    parts_of,
    rows_of,
    run,
    tensors_of,
)
from vision_attn.types import Images, Logits, Model

__all__ = [
    "Box",
    "Channel",
    "Class",
    "Difference",
    "Direction",
    "Function",
    "Odds",
    "PerImage",
    "PixelsOf",
    "Similarity",
    "Target",
    "TargetLike",
    "as_target",
    "has_classifier",
    "model_logits",
    "model_output",
    "name_of",
    "no_classifier",
]

ClassIndex = int | str | None
SAME_BOX = 0.5  # IoU from which a detection is taken for the same object


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
        """Compute the number of each image; output: what the network gave for the images."""

    def fixed(self, output: Any) -> "Target":
        """Decide what depends on the images, such as the predicted class, by their output."""
        return self

    def at(self, images: Int[Tensor, " r"]) -> "Target":
        """Return the target of these images, which are counted as the output's rows are."""
        return self

    def named(self, model: Model) -> "Target":
        """Look the names of classes up in the model."""
        return self

    @property
    def count(self) -> int | None:
        """How many images it is for, if it has something for each; None: for any number."""
        return None

    def check(self, images: int) -> None:
        """Raise ValueError where the target is not one for so many images."""
        if self.count not in (None, images):
            raise ValueError(
                f"target must be one for all images or {images} (one an image), got {self.count}"
            )

    def classes(self, images: Tensor) -> Int[Tensor, " b"] | None:
        """Return the class that each image is explained for; None where that is no class."""
        return None

    def pair(self) -> tuple[int | None, int | None]:
        """Return the class that is explained, and the one that it is contrasted with.

        None for what is no class, or not the same class for every image.
        """
        return None, None

    def label(self, classes: Sequence[str] = ()) -> str:
        """Say in words what is explained; classes: the model's names."""
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
        """Return the class of each image, the predicted one where none is chosen."""
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
        if not all(isinstance(one, int) for one in index):
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


@dataclass(frozen=True, init=False)
class Difference(Target):
    """One target less another: what supports the first rather than the second.

    For two classes logit_i - logit_j; the evidence that both share cancels (the counterfactual of
    Grad-CAM, Selvaraju et al. 2017, generalised).

    Args:
        target: What `as_target` takes; None for each image's predicted class.
        contrast: The same.

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


@dataclass(frozen=True, init=False)
class Odds(Target):
    """The log-odds of a class: its logit less logsumexp of all other logits.

    log p / (1 - p) of the softmax probability p: it grows as the other classes fall, too.

    Args:
        index: The class, as `Class` takes it.

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


@dataclass(frozen=True, eq=False, init=False)
class Direction(Target):
    """How far an output goes in a direction: its dot product with a vector.

    Args:
        vector: (k,), or one an image, (b, k): as long as the output.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Direction
        >>> Direction(torch.tensor([1.0, -1.0]))(torch.tensor([[2.0, 5.0]]))
        tensor([-3.])
    """

    vector: Float[Tensor, "*b k"]

    def __init__(self, vector: "Tensor | ndarray | Sequence[float]"):
        vector = _tensor_of(vector, type(self).__name__, "a vector of floats").detach()
        if vector.ndim not in (1, 2) or not vector.is_floating_point() or not vector.numel():
            raise ValueError(
                f"{type(self).__name__}: expected a vector of floats (k,), or one an image (b, k), "
                f"got {vector.dtype} of shape {tuple(vector.shape)}"
            )
        if not vector.isfinite().all():
            raise ValueError(f"{type(self).__name__}: the vector holds NaN or infinity")
        object.__setattr__(self, "vector", vector)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        features, vector = self._aligned(output)
        return (features * vector).sum(dim=1)

    def _aligned(self, output: Any) -> tuple[Float[Tensor, "b k"], Float[Tensor, "#b k"]]:
        features = logits_of(output)
        if features.shape[1] != self.vector.shape[-1]:
            raise ValueError(
                f"{type(self).__name__}: a vector of {self.vector.shape[-1]} numbers, but the "
                f"network gives {features.shape[1]} an image"
            )
        self.check(len(features))
        return features, self.vector.to(features).reshape(-1, features.shape[1])

    def at(self, images: Int[Tensor, " r"]) -> "Direction":
        if self.vector.ndim == 1:
            return self
        return type(self)(self.vector[images.to(self.vector.device)])

    @property
    def count(self) -> int | None:
        return len(self.vector) if self.vector.ndim == 2 else None

    def key(self) -> str:
        return f"{self} {checksum(self.vector):08x}"

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"a direction of {self.vector.shape[-1]} numbers"

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.vector.shape[-1]} numbers)"


@dataclass(frozen=True, eq=False, init=False)
class Similarity(Direction):
    """Cosine of an output with an embedding: of a photo, a class's mean, or a text.

    Args:
        embedding: (k,), or one an image, (b, k).

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Similarity
        >>> Similarity(torch.tensor([3.0, 4.0]))(torch.tensor([[1.0, 0.0]]))
        tensor([0.6000])
    """

    def __init__(self, embedding: "Tensor | ndarray | Sequence[float]"):
        super().__init__(embedding)
        if not self.vector.any(dim=-1).all():
            raise ValueError("Similarity: the embedding is 0, which has no direction")

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        return F.cosine_similarity(*self._aligned(output), dim=1)

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"similarity to an embedding of {self.vector.shape[-1]} numbers"


@dataclass(frozen=True)
class Channel(Target):
    """One channel of an output: its mean over all places, or its value in one of them.

    Channels are axis 1 of (b, c), (b, c, h, w), and the last axis of tokens (b, n, c).

    Args:
        index: The channel.
        place: A token, or (row, column) of a map; None for the mean over all.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Channel
        >>> Channel(2)(torch.arange(12.0).view(1, 3, 2, 2))
        tensor([9.5000])
    """

    index: int
    place: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        features = only_tensor(output)
        if features is None or not 2 <= features.ndim <= 4:
            raise ValueError(f"{self}: expected one tensor (b, c), (b, c, h, w) or (b, n, c)")
        if features.ndim == 3:
            features = features.mT
        if not 0 <= self.index < features.shape[1]:
            raise ValueError(f"{self}: the output has {features.shape[1]} channels")
        channel = features[:, self.index]
        if self.place is None:
            return channel.flatten(1).mean(dim=1) if channel.ndim > 1 else channel
        place = self.place if isinstance(self.place, tuple) else (self.place,)
        sides = tuple(channel.shape[1:])
        if len(place) != len(sides) or not all(
            0 <= i < n for i, n in zip(place, sides, strict=True)
        ):
            raise ValueError(f"{self}: the output's places are {' x '.join(map(str, sides)) or 1}")
        return channel[(slice(None), *place)]

    def label(self, classes: Sequence[str] = ()) -> str:
        where = "" if self.place is None else f" at {self.place}"
        return f"channel {self.index}{where}"

    def __str__(self) -> str:
        where = "" if self.place is None else f", place={self.place}"
        return f"Channel({self.index}{where})"


@dataclass(frozen=True, eq=False)
class PixelsOf(Target):
    """The logit of a class summed over pixels, for a segmentation (b, k, h, w).

    Vinogradova et al. 2020 (Seg-Grad-CAM).

    Args:
        mask: Bool or 0 and 1, (H, W), or one an image (b, H, W), brought to the output's size by
            nearest pixels; None for the pixels that the network itself gives to the class.
        index: The class.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import PixelsOf
        >>> mask = torch.tensor([[True, False], [True, False]])
        >>> PixelsOf(mask, 1)(torch.arange(8.0).view(1, 2, 2, 2))
        tensor([10.])
    """

    mask: Tensor | ndarray | None
    index: ClassIndex

    def __post_init__(self) -> None:
        if self.index is None:
            raise ValueError("PixelsOf: expected a class, got None")
        object.__setattr__(self, "index", argument("PixelsOf: index", self.index, ClassIndex))
        if self.mask is None:
            return
        mask = _tensor_of(self.mask, "PixelsOf", "a mask")
        if mask.ndim not in (2, 3) or (
            mask.is_floating_point() and not ((mask == 0) | (mask == 1)).all()
        ):
            raise ValueError(
                "PixelsOf: expected a mask of bool or 0 and 1, (H, W) or one an image (b, H, W), "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        object.__setattr__(self, "mask", mask != 0)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        logits = self._logits(output)
        return (logits[:, cast(int, self.index)] * self._mask(logits)).sum(dim=(1, 2))

    def _logits(self, output: Any) -> Float[Tensor, "b k h w"]:
        logits = only_tensor(output)
        if logits is None or logits.ndim != 4:
            found = "several parts" if logits is None else tuple(logits.shape)
            raise ValueError(
                f"PixelsOf: expected a segmentation (b, classes, h, w) of the network, got {found}"
                f"{': give head=' if logits is None else ''}"
            )
        if not isinstance(self.index, int) or not 0 <= self.index < logits.shape[1]:
            raise ValueError(
                f"PixelsOf: class {quoted(self.index)} is out of range: the network has "
                f"{logits.shape[1]} classes, 0 to {logits.shape[1] - 1}"
            )
        return logits

    def _mask(self, logits: Float[Tensor, "b k h w"]) -> Bool[Tensor, "#b h w"]:
        if self.mask is None:
            return logits.argmax(dim=1).eq(cast(int, self.index))
        mask = cast(Tensor, self.mask).to(logits.device)
        self.check(len(logits))
        mask = mask[None] if mask.ndim == 2 else mask
        if mask.shape[1:] == logits.shape[2:]:
            return mask
        sized = F.interpolate(mask[:, None].float(), size=logits.shape[2:], mode="nearest-exact")
        return sized[:, 0] > 0

    def fixed(self, output: Any) -> "PixelsOf":
        if self.mask is not None:
            return self
        logits = self._logits(output)
        mask = self._mask(logits)
        if (absent := (~mask.flatten(1).any(dim=1)).nonzero()).numel():
            raise ValueError(
                f"PixelsOf: the network gives class {self.index} no pixel of image "
                f"{int(absent[0])}: give a mask"
            )
        return PixelsOf(mask, self.index)

    def at(self, images: Int[Tensor, " r"]) -> "PixelsOf":
        if self.mask is None or self.mask.ndim == 2:
            return self
        return PixelsOf(self.mask[images.to(cast(Tensor, self.mask).device)], self.index)

    def named(self, model: Model) -> "PixelsOf":
        return PixelsOf(self.mask, model.class_index(cast(int | str, self.index)))

    @property
    def count(self) -> int | None:
        return len(self.mask) if self.mask is not None and self.mask.ndim == 3 else None

    def key(self) -> str:
        mask = cast(Tensor | None, self.mask)
        return str(self) if mask is None else f"{self} {checksum(mask):08x}"

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"pixels of {name_of(self.index, classes)}"

    def __str__(self) -> str:
        return f"PixelsOf({'None' if self.mask is None else 'mask'}, {self.index!r})"


@dataclass(frozen=True, eq=False)
class Box(Target):
    """The score of one detection of each image.

    Of a detector that gives a list of {boxes, labels, scores}, as torchvision's do: the score of
    detection `index` in the image itself; in a changed image that of the detection of the same
    label that overlaps it most, 0 where none has an IoU of 0.5 (as D-RISE compares, Petsiuk et al.
    2021, by box and class). Of one that gives logits (b, q, k) and pred_boxes, as DETR does: the
    logit of query `index` for the class that it is most sure of; the last class, no object, does
    not count.

    Args:
        index: Which detection, or query; the most certain of torchvision's is 0.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Box
        >>> boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [2.0, 2.0, 9.0, 9.0]])
        >>> found = {"boxes": boxes, "labels": torch.tensor([3, 5]), "scores": torch.rand(2)}
        >>> bool(Box(1)([found]) == found["scores"][1])
        True
    """

    index: int
    objects: tuple[tuple[Tensor, int], ...] = field(default=(), repr=False)  # box and label, fixed
    labels: tuple[int, ...] = field(default=(), repr=False)  # of the query, fixed

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", argument("Box: index", self.index, int, 0))

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        parts = parts_of(output)
        if "pred_boxes" in parts:
            logits = self._query(parts)
            labels = self.labels or self._labels(logits)
            return logits[range(len(logits)), labels]
        images = self._images(output)
        if not self.objects:
            return torch.stack([self._detection(image)[2] for image in images])
        found = zip(images, self.objects, strict=True)
        return torch.stack([nearest_score(image, box, label) for image, (box, label) in found])

    def fixed(self, output: Any) -> "Box":
        if self.objects or self.labels:
            return self
        parts = parts_of(output)
        if "pred_boxes" in parts:
            return Box(self.index, labels=self._labels(self._query(parts)))
        found = [self._detection(image) for image in self._images(output)]
        return Box(self.index, tuple((box.detach(), int(label)) for box, label, _ in found))

    def at(self, images: Int[Tensor, " r"]) -> "Box":
        rows = images.tolist()
        return Box(
            self.index,
            tuple(self.objects[row] for row in rows) if self.objects else (),
            tuple(self.labels[row] for row in rows) if self.labels else (),
        )

    def _query(self, parts: dict[Any, Any]) -> Float[Tensor, "b k"]:
        logits = parts.get("logits", parts.get("pred_logits"))
        if not isinstance(logits, Tensor) or logits.ndim != 3:
            raise ValueError(f"Box: expected logits (b, queries, classes), got {', '.join(parts)}")
        if self.index >= logits.shape[1]:
            raise ValueError(f"Box: there is no query {self.index}: there are {logits.shape[1]}")
        return logits[:, self.index]

    @staticmethod
    def _labels(logits: Float[Tensor, "b k"]) -> tuple[int, ...]:
        return tuple(logits[:, :-1].argmax(dim=1).tolist())

    @staticmethod
    def _images(output: Any) -> list[dict[str, Tensor]]:
        images = list(output) if isinstance(output, list | tuple) else [output]
        if not images or not all({"boxes", "labels", "scores"} <= set(parts_of(x)) for x in images):
            raise ValueError(
                "Box: expected the output of a detector: of each image its boxes, labels and "
                "scores, or logits and pred_boxes"
            )
        return [parts_of(image) for image in images]

    def _detection(self, image: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        if self.index >= len(image["scores"]):
            raise ValueError(
                f"Box: there is no detection {self.index}: the network found {len(image['scores'])}"
            )
        boxes, labels, scores = (image[name] for name in ("boxes", "labels", "scores"))
        return boxes[self.index], labels[self.index], scores[self.index]

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"detection {self.index}"

    def __str__(self) -> str:
        return f"Box({self.index})"


@dataclass(frozen=True)
class Function(Target):
    """A function of the network's output, which gives one number an image.

    It may be called with the output for any number of images, copies of the given ones.

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


@dataclass(frozen=True)
class PerImage(Target):
    """A target of its own for each image.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Class, Odds, PerImage
        >>> PerImage((Class(0), Odds(1)))(torch.zeros(2, 2))
        tensor([0., 0.])
    """

    targets: tuple[Target, ...]

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        count = len(self.targets)
        numbers = [
            target(rows_of(output, one_row(image), count))
            for image, target in enumerate(self.targets)
        ]
        return torch.cat(numbers)

    def fixed(self, output: Any) -> "PerImage":
        count = len(self.targets)
        return PerImage(
            tuple(
                target.fixed(rows_of(output, one_row(image), count))
                for image, target in enumerate(self.targets)
            )
        )

    def at(self, images: Int[Tensor, " r"]) -> "Target":
        chosen = tuple(self.targets[image] for image in images.tolist())
        return chosen[0] if len(chosen) == 1 else PerImage(chosen)

    def named(self, model: Model) -> "PerImage":
        return PerImage(tuple(target.named(model) for target in self.targets))

    @property
    def count(self) -> int | None:
        return len(self.targets)

    def key(self) -> str:
        return "; ".join(target.key() for target in self.targets)

    def label(self, classes: Sequence[str] = ()) -> str:
        return ", ".join(dict.fromkeys(target.label(classes) for target in self.targets))


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
        found = cut(f"raised {type(error).__name__}{': ' if text else ''}{text}", 160)
    else:
        if not isinstance(numbers, Tensor) or numbers.ndim != 1 or len(numbers) != count:
            tensor = isinstance(numbers, Tensor)
            found = f"gave {described(numbers) if tensor else quoted(numbers)}"
        elif not numbers.is_floating_point():
            found = f"gave {numbers.dtype}"
        elif not numbers.isfinite().all():
            found = "gave NaN or infinity"
        else:
            return numbers
    got = described(output).partition(": give head=")[0]
    shape = "b" if count is None else count
    expected = f"expected one float an image, a tensor ({shape},), of {cut(got, 160)}"
    raise ValueError(f"{cut(name)}: {expected}; it {found}") from cause


def as_target(target: TargetLike, model: Model | None = None) -> Target:
    """Make a target of whatever one is given as.

    Args:
        target: A `Target`; None or "predicted" for each image's predicted class; a class, by index
            or, with a model, by name; a list of these, one an image; a vector of floats, a
            direction in the output; or a function of the output that gives one number an image.
        model: Whose classes the names are.

    Raises:
        ValueError: It is none of these, or the model has no such class.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import as_target
        >>> str(as_target([3, 5])), str(as_target(torch.rand(7)))
        ('class 3, class 5', 'Direction(7 numbers)')
    """
    if isinstance(target, type):
        raise ValueError(
            f"target: got the class {target.__name__} itself: make one, {target.__name__}(...)"
        )
    made = _made(target)
    return made if model is None else made.named(model)


def _made(target: Any) -> Target:
    if isinstance(target, Target):
        return target
    if target is None or (isinstance(target, str) and target.strip() == "predicted"):
        return Class()
    if isinstance(target, bool | np.bool_):
        raise ValueError(f"target: expected a class, a vector or a function, got {target}")
    if isinstance(target, str):
        return Class(target)
    if isinstance(target, Integral):
        return Class(int(target))
    if isinstance(target, Tensor | ndarray):
        return _of_numbers(_tensor_of(target, "target", "class indices or a vector of floats"))
    if isinstance(target, list | tuple):
        return _of_list(target)
    if callable(target):
        return Function(target)
    raise ValueError(
        "target: expected a class, one an image, a vector of floats, a function of the output or a "
        f"Target, got a value of type {type(target).__name__}"
    )


def _tensor_of(values: Any, name: str, expected: str) -> Tensor:
    """Make a tensor of numbers, where they are; ValueError, in the words given, of what is none."""
    try:
        if isinstance(values, list | tuple) and any(isinstance(one, ndarray) for one in values):
            values = np.asarray(values)
        return torch.as_tensor(values, device=getattr(values, "device", "cpu"))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name}: expected {expected}, got {quoted(values)}") from None


def _of_numbers(numbers: Tensor) -> Target:
    if numbers.is_floating_point() and numbers.ndim:
        return Direction(numbers)
    whole = not numbers.is_floating_point() and numbers.dtype != torch.bool
    if not whole or numbers.ndim > 1 or numbers.is_complex():
        raise ValueError(
            "target: expected class indices (whole numbers), one or one an image, or a vector of "
            f"floats, got {numbers.dtype} of shape {tuple(numbers.shape)}"
        )
    return Class(tuple(numbers.tolist()) if numbers.ndim else int(numbers))


def _of_list(targets: Sequence[Any]) -> Target:
    if not targets:
        raise ValueError("target: expected one for all or one an image, got an empty list")
    if all(isinstance(one, Real) and not isinstance(one, Integral) for one in targets):
        return Direction(
            torch.tensor([float(one) for one in targets], dtype=torch.float32, device="cpu")
        )
    every = tuple(map(_made, targets))
    if all(isinstance(one, Class) and not isinstance(one.index, tuple) for one in every):
        return Class(tuple(one.index for one in every))  # type: ignore[attr-defined]
    return PerImage(every)


def checksum(values: Tensor) -> int:
    """Compute the CRC-32 of a tensor's values."""
    return crc32(values.cpu().contiguous().numpy().tobytes())


def name_of(index: ClassIndex, classes: Sequence[str]) -> str:
    """Name a class as captions do: by its first synonym, or its number."""
    if index is None:
        return "the predicted class"
    if isinstance(index, int) and 0 <= index < len(classes):
        return classes[index].split(",")[0]
    return f"class {index}"


def nearest_score(image: dict[str, Tensor], box: Tensor, label: int) -> Tensor:
    """Return the score of the detection that a box of that label is in this image, 0 without."""
    from torchvision.ops import box_iou

    same = (image["labels"] == label).nonzero()[:, 0]
    if len(same):
        overlap = box_iou(image["boxes"][same].detach(), box[None].to(image["boxes"]))[:, 0]
        if overlap.max() >= SAME_BOX:
            return image["scores"][same[overlap.argmax()]]
    return image["scores"].new_zeros(())


def model_output(model: Model, images: Images) -> Any:
    """Run a model's network; return its output, or the part that the model's head names."""
    with images_in_words(model.network, images):
        output = run(model.network, images)
    return output if model.head is None else part_of(output, model.head)


def model_logits(model: Model, images: Images) -> Logits:
    """Run a model's network for the logits of its classes.

    Raises:
        ValueError: It gives no logits, not as many as there are classes, or none that are finite.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.methods.targets import model_logits
        >>> from vision_attn.types import Model
        >>> head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 1))
        >>> model = Model(head, Preprocess((4, 4), (0.5,) * 3, (0.5,) * 3), ["cat", "dog"], None)
        >>> model_logits(model, torch.rand(3, 3, 4, 4)).shape
        torch.Size([3, 2])
    """
    logits = Class.of(model).logits(model_output(model, images))
    return logits_of(logits, len(images))


def has_classifier(network: nn.Module | Model) -> bool:
    """Whether an image has a predicted class: False for an encoder alone.

    A model says so by its classes; several values have no predicted class. Of bare networks, those
    of timm with num_classes=0 and those of transformers without a head are encoders.

    Examples:
        >>> import timm
        >>> from vision_attn.methods.targets import has_classifier
        >>> has_classifier(timm.create_model("test_vit", num_classes=0))
        False
    """
    if isinstance(network, Model):
        values = network.calibration.activation == "none" and len(network.classes) > 1
        return bool(network.classes) and not values
    core = _core(network)
    if _of_timm(core):
        return getattr(core, "num_classes", 1) != 0
    return not _of_transformers(core) or "For" in type(core).__name__


def no_classifier(network: nn.Module | Model) -> str:
    """Say what to do where a network has no class to explain."""
    name = type(network.network if isinstance(network, Model) else network).__name__
    if isinstance(network, Model) and network.classes:
        return f"{name} gives several values: give target=, one of {', '.join(network.classes)}"
    return (
        f"{name} has no classifier, and so no class to explain by itself: give target=, such as "
        "Similarity(embedding), Channel(index), a vector, or a function of the output"
    )


def _of_timm(module: nn.Module) -> bool:
    return hasattr(module, "pretrained_cfg") and hasattr(module, "num_classes")


def _of_transformers(module: nn.Module) -> bool:
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.")
        for kind in type(module).__mro__
    )


def _core(network: nn.Module) -> nn.Module:
    """Look through wrappers that add no number of their own."""
    while not (_of_timm(network) or _of_transformers(network)):
        inner = [child for child in network.children() if any(True for _ in child.parameters())]
        own = [*network.parameters(recurse=False), *network.buffers(recurse=False)]
        own += [value for value in vars(network).values() if isinstance(value, Tensor)]
        if own or len(inner) != 1:
            break
        network = inner[0]
    return network
