"""Explain photos: the classes that a model predicts, and maps of where it looks.

Axes: b batch, h height, w width, k classes, H, W a photo's height and width.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import overload

import numpy as np
import PIL.Image
import torch
from jaxtyping import Int
from numpy import ndarray
from PIL.Image import Image
from torch import Tensor, nn

from vision_attn.data.faults import reason, sample_errors
from vision_attn.data.images import to_rgb
from vision_attn.methods import (
    Baseline,
    ChannelGates,
    Contrast,
    Explainer,
    QueryKey,
    choose_methods,
    gate_values,
)
from vision_attn.methods.base import class_logits
from vision_attn.methods.by_name import MisfitError
from vision_attn.render import natural
from vision_attn.runs.explanation import Explanation, Explanations
from vision_attn.runs.maps import Map
from vision_attn.types import Images, Logits, Model, Preprocessing

__all__ = ["Photo", "Request", "explain", "predict", "prepare", "query_place", "read"]

Photo = Image | str | PathLike[str] | ndarray


@dataclass(frozen=True, eq=False)
class Request:
    """What to explain of photos, and by which methods.

    target: a class, None for the predicted one. against: the class to contrast it with, if any.
    refused: a line for each requested method that does not fit the model.

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import SEResNet
        >>> from vision_attn.runs.explain import Request
        >>> from vision_attn.types import Model
        >>> network = SEResNet(2, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> request = Request.of(Model(network, preprocess, ["cat", "dog"], None), target="dog")
        >>> [str(method) for method in request.explainers], request.target
        (['GradCAM'], 1)
    """

    model: Model
    explainers: Sequence[Explainer]
    target: int | None = None
    against: int | None = None
    refused: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        model: Model,
        methods: Sequence[str | Explainer] | None = None,
        target: int | str | None = None,
        against: int | str | None = None,
    ) -> "Request":
        """Look up methods and classes by their names; see `explain`.

        Raises ValueError where no requested method fits the model, and for an unknown method or
        class.
        """
        chosen: list[Explainer] = []
        refused: list[str] = []
        for each in [[method] for method in methods] if methods else [None]:
            try:
                chosen += choose_methods(each, model)
            except MisfitError as error:
                refused.append(str(error))
        if not chosen:
            raise MisfitError(refused[0])
        return cls(
            model,
            sorted(dict.fromkeys(chosen), key=lambda one: isinstance(one, Baseline)),
            None if target in (None, "predicted") else model.class_index(target),
            None if against is None else model.class_index(against),
            refused,
        )

    def explain(self, photos: Sequence[tuple[str, Image]]) -> list[Explanation]:
        """Explain named photos as one batch; a method that fails is a problem of its photos.

        Raises ValueError where the network itself gives no numbers.
        """
        images = prepare(self.model, [photo for _, photo in photos])
        logits = predict(self.model, images)
        targets = logits.argmax(dim=1)
        if self.target is not None:
            targets = torch.full_like(targets, self.target)
        shown = self.model.calibration.probabilities(logits)
        probabilities = shown[:, : len(self.model.classes)].cpu().numpy()
        explanations = [
            Explanation(self.model, photo, name, probabilities[i], [], problems=list(self.refused))
            for i, (name, photo) in enumerate(photos)
        ]
        for explainer in self.explainers:
            self._add(explainer, images, targets, explanations)
        self._add_channels(images, explanations)
        return explanations

    def _add(
        self,
        explainer: Explainer,
        images: Images,
        targets: Int[Tensor, " b"],
        explanations: Sequence[Explanation],
    ) -> None:
        """Add one method's maps; where a batch fails, its photos are tried one by one."""
        try:
            maps = list(self.maps(explainer, images, targets))
        except Exception as error:
            if len(images) == 1:
                explanations[0].problems.append(f"{explainer}: {reason(error)}")
                return
            for i, explanation in enumerate(explanations):
                self._add(explainer, images[i : i + 1], targets[i : i + 1], [explanation])
            return
        for explanation, one in zip(explanations, maps, strict=True):
            explanation.maps.append(one)

    def maps(
        self, explainer: Explainer, images: Images, targets: Int[Tensor, " b"]
    ) -> Iterator[Map]:
        """Yield one map for each image. Raises ValueError where the method fails."""
        network: nn.Module = self.model.network
        if self.against is not None and explainer.class_specific:
            network = Contrast(network, self.against)
        start = time.perf_counter()
        heatmaps = explainer(network, images, targets, self.model.layout)
        every = heatmaps.values.cpu().numpy()
        seconds = (time.perf_counter() - start) / len(images)
        for i, values in enumerate(every):
            prefix_mass, outlier_mass, completeness_gap = (
                None if each is None else float(each[i])
                for each in (
                    heatmaps.prefix_mass,
                    heatmaps.outlier_mass,
                    heatmaps.completeness_gap,
                )
            )
            yield Map(
                explainer=explainer,
                values=values,
                scale=natural(values, prefix_mass),
                prefix_mass=prefix_mass,
                outlier_mass=outlier_mass,
                completeness_gap=completeness_gap,
                target=int(targets[i]) if explainer.class_specific else None,
                against=self.against if explainer.class_specific else None,
                seconds=seconds,
                query=query_place(explainer, self.model),
            )

    def _add_channels(self, images: Images, explanations: Sequence[Explanation]) -> None:
        """Add the channel gates' values; where they cannot be read, that is a problem."""
        if not any(isinstance(explainer, ChannelGates) for explainer in self.explainers):
            return
        try:
            values = gate_values(self.model.network, images)
        except Exception as error:
            for explanation in explanations:
                explanation.problems.append(f"ChannelGates: the gates' values: {reason(error)}")
            return
        for name, gates in values.items():
            if gates.ndim == 2:
                for explanation, gate in zip(explanations, gates.cpu().numpy(), strict=True):
                    explanation.channels[name] = gate


@overload
def explain(
    model: Model,
    images: Photo,
    methods: Sequence[str | Explainer] | None = None,
    *,
    target: int | str | None = None,
    against: int | str | None = None,
    batch_size: int = 8,
) -> Explanation: ...
@overload
def explain(
    model: Model,
    images: list[Photo] | tuple[Photo, ...],
    methods: Sequence[str | Explainer] | None = None,
    *,
    target: int | str | None = None,
    against: int | str | None = None,
    batch_size: int = 8,
) -> Explanations: ...
def explain(
    model: Model,
    images: Photo | list[Photo] | tuple[Photo, ...],
    methods: Sequence[str | Explainer] | None = None,
    *,
    target: int | str | None = None,
    against: int | str | None = None,
    batch_size: int = 8,
) -> Explanation | Explanations:
    """Predict the class of a photo, or of several, and show where the model looks.

    images: a path, a PIL image or an array (height, width, 3) of uint8; or a list of these.
    methods: names as on the command line (`Rollout(fusion=max)`, "all") or explainers; None takes
    Rollout, or GradCAM for a network that is not attention throughout. target: the class to
    explain, by name or index; None takes each photo's predicted class. against: a class to contrast
    the target with.

    Returns an Explanation for one image, Explanations for a list. A method that does not fit the
    model is one of their `problems`. Raises ValueError where none fits, for an unknown class, an
    image that cannot be read (ImageError), and a photo on which every method fails.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    request = Request.of(model, methods, target, against)
    several = isinstance(images, list | tuple)
    photos = [
        read(image, model.preprocess)
        for image in (images if isinstance(images, list | tuple) else [images])
    ]
    explanations: list[Explanation] = []
    for start in range(0, len(photos), batch_size):
        explanations += request.explain(photos[start : start + batch_size])
    for explanation in explanations:
        if not explanation.maps:
            raise ValueError(f"{explanation.name}: {'; '.join(explanation.problems)}")
    return Explanations(explanations) if several else explanations[0]


def read(image: Photo, preprocess: Preprocessing) -> tuple[str, Image]:
    """Return a name for a photo, and the photo in upright RGB, as the preprocessing reads it.

    Raises ValueError for an array that is no image, and ImageError for a file that cannot be read.
    """
    value_range = getattr(preprocess, "value_range", None)
    if isinstance(image, Image):
        return str(getattr(image, "filename", "") or "image"), to_rgb(image, value_range)
    if not isinstance(image, ndarray):
        with sample_errors(image):
            return str(image), preprocess.read(image)
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)):
        raise ValueError(
            "an image as an array must be uint8 (height, width, 3) or (height, width), got "
            f"{image.dtype} {tuple(image.shape)}"
        )
    return "image", to_rgb(PIL.Image.fromarray(image), value_range)


def prepare(model: Model, photos: Sequence[Image]) -> Images:
    """Make a batch of the network's inputs, on its device."""
    return torch.stack([model.preprocess(photo) for photo in photos]).to(model.device)


def predict(model: Model, images: Images) -> Logits:
    """Run the network on its inputs. Raises ValueError where a logit is not finite."""
    return class_logits(model.network, images).float()


def query_place(explainer: Explainer, model: Model) -> tuple[float, float] | None:
    """Return the place (x, y) whose attention is shown, as shares of the network's input."""
    query = getattr(explainer, "query", None)
    if query is None and isinstance(explainer, QueryKey) and model.layout:
        return None if model.layout.class_token else (0.5, 0.5)
    if not isinstance(query, tuple):
        return None
    (x, y), (height, width) = query, model.preprocess.input_size
    return (x, y) if isinstance(x, float) else ((x + 0.5) / width, (y + 0.5) / height)
