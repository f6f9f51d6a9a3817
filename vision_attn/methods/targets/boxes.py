"""A detection as a target.

Axes: b images, r of them, q queries, k classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.arguments import argument
from vision_attn.methods.targets.target import Target
from vision_attn.tokens.outputs import parts_of

__all__ = ["Box"]

SAME_BOX = 0.5  # IoU from which a detection is taken for the same object


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
        objects: The box and label of each image's detection; `fixed` sets them.
        labels: The label of each image's query; `fixed` sets them.

    Raises:
        ValueError: `index` is below 0.

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
        pairs = zip(images, self.objects, strict=True)
        return torch.stack([nearest_score(image, box, label) for image, (box, label) in pairs])

    def fixed(self, output: Any) -> "Box":
        if self.objects or self.labels:
            return self
        parts = parts_of(output)
        if "pred_boxes" in parts:
            return Box(self.index, labels=self._labels(self._query(parts)))
        detections = [self._detection(image) for image in self._images(output)]
        return Box(self.index, tuple((box.detach(), int(label)) for box, label, _ in detections))

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


def nearest_score(image: dict[str, Tensor], box: Tensor, label: int) -> Tensor:
    """Return the score of the detection that a box of that label is in this image, 0 without."""
    from torchvision.ops import box_iou

    same = (image["labels"] == label).nonzero()[:, 0]
    if len(same):
        overlap = box_iou(image["boxes"][same].detach(), box[None].to(image["boxes"]))[:, 0]
        if overlap.max() >= SAME_BOX:
            return image["scores"][same[overlap.argmax()]]
    return image["scores"].new_zeros(())
