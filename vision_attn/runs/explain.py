"""Explain photos: the classes that a model predicts, and maps of where it looks.

Axes: b batch, h height, w width, k classes, H, W a photo's height and width.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import overload

import numpy as np
import PIL.Image
import torch
from numpy import ndarray
from PIL.Image import Image
from torch import Tensor

from vision_attn.arguments import check_path, checked
from vision_attn.data.channels import (
    channels_of,
    image_of_array,
    image_of_channels,
    image_of_tensor,
    kept_channels,
)
from vision_attn.data.faults import ImageError, fault_line, reason, sample_errors
from vision_attn.data.images import to_rgb
from vision_attn.errors import quoted
from vision_attn.methods import (
    Baseline,
    ChannelGates,
    Class,
    Difference,
    Explainer,
    QueryKey,
    Target,
    as_target,
    choose_methods,
    gate_values,
    is_trusted,
    usual_method,
)
from vision_attn.methods.by_name import MisfitError, method_list
from vision_attn.methods.targets import (
    TargetLike,
    check_contrast,
    has_classifier,
    model_logits,
    model_output,
    no_classifier,
)
from vision_attn.render import natural
from vision_attn.runs.explanation import Explanation, Explanations
from vision_attn.runs.inputs import output_folder
from vision_attn.runs.labels import label_of
from vision_attn.runs.maps import ITS_OWN_CONTRAST, NOT_SHOWN, Map
from vision_attn.tokens.activation import settled
from vision_attn.tokens.outputs import one_row
from vision_attn.types import Head, Heatmaps, Images, Logits, Model, Preprocessing

__all__ = [
    "Methods",
    "Photo",
    "Request",
    "explain",
    "predict",
    "prepare",
    "query_place",
    "read",
    "several_photos",
]

log = logging.getLogger(__name__)

Photo = Image | str | PathLike[str] | ndarray | Tensor
Methods = str | Explainer | Sequence[str | Explainer]


@dataclass(frozen=True, eq=False)
class Request:
    """What to explain of photos, and by which methods.

    Attributes:
        model: The model.
        explainers: The methods.
        target: As `Explainer` takes it.
        by_label: Whether to explain the class that a photo's folder is named for, and the predicted
            one where there is none.
        contrast: What is subtracted from it, if anything.
        refused: A line for each requested method that does not fit the model.
        unproven: Whether the method was not asked for, and no scores have shown that its maps can
            be trusted for this model.

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import SEResNet
        >>> from vision_attn.runs.explain import Request
        >>> from vision_attn.types import Model
        >>> network = SEResNet(2, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> request = Request.of(Model(network, preprocess, ["cat", "dog"], None), target="dog")
        >>> [str(method) for method in request.explainers], request.words
        (['GradCAM'], 'dog')
    """

    model: Model
    explainers: Sequence[Explainer]
    target: Target = field(default_factory=Class)
    by_label: bool = False
    contrast: Target | None = None
    refused: Sequence[str] = ()
    unproven: bool = False

    def __post_init__(self) -> None:
        if self.contrast is not None and not self.by_label:
            check_contrast(self.target, self.contrast, self.model.classes)

    @classmethod
    def of(
        cls,
        model: Model,
        methods: Methods | None = None,
        target: TargetLike = None,
        contrast: TargetLike = None,
        head: Head | None = None,
    ) -> "Request":
        """Look up methods and classes by their names; see `explain`.

        Raises:
            ValueError: No requested method fits the model, or a method or class is unknown.
        """
        model = settled(model if head is None else replace(model, head=head))
        by_label = isinstance(target, str) and target.strip() == "label"
        request = cls(
            model,
            [],
            as_target(None if by_label else target, model),
            by_label,
            None if contrast is None else as_target(contrast, model),
        )
        words = method_list(methods)
        chosen: list[Explainer] = []
        refused: list[str] = []
        if not words:
            chosen.append(usual_method(model, class_blind=request.unasked))
        for each in words:
            try:
                chosen += choose_methods([each], model)
            except MisfitError as error:
                refused.append(str(error))
        if request.unasked:
            specific = [one for one in chosen if one.class_specific]
            chosen = [one for one in chosen if not one.class_specific]
            if specific:
                refused.append(f"{', '.join(map(str, specific))}: {no_classifier(model)}")
        if not chosen:
            raise MisfitError(refused[0])
        explainers = sorted(dict.fromkeys(chosen), key=lambda one: isinstance(one, Baseline))
        shown = words or model.warning or all(is_trusted(one, model) for one in chosen)
        return replace(request, explainers=explainers, refused=refused, unproven=not shown)

    @property
    def unasked(self) -> bool:
        """Whether the predicted class is to be explained, of a network without a classifier."""
        predicted = isinstance(self.target, Class) and self.target.index is None
        return predicted and not has_classifier(self.model)

    @property
    def words(self) -> str:
        """What is explained, in words."""
        label = self.target.label(self.model.classes)
        label = "the true class" if self.by_label else label
        return label if self.contrast is None else f"{label} rather than {self.contrast_words}"

    @property
    def contrast_words(self) -> str | None:
        """What it is contrasted with, in words."""
        return None if self.contrast is None else self.contrast.label(self.model.classes)

    def key(self) -> str:
        """Return a text that is another for another question, for what is kept in files."""
        key = "label" if self.by_label else self.target.key()
        return key if self.contrast is None else f"{key} - {self.contrast.key()}"

    def check(self, photos: int) -> None:
        """Raise ValueError where there is a target for each of another number of photos."""
        for target in (self.target, self.contrast):
            if target is not None:
                target.check(photos)

    def check_same_for_all(self) -> None:
        """Raise ValueError where there is a target for each photo, not one for all."""
        if any(one is not None and one.count is not None for one in (self.target, self.contrast)):
            raise ValueError(
                "target: expected one for all images, got one an image: name them by folder "
                "(target='label'), or call explain"
            )

    @property
    def asks_for_class(self) -> bool:
        """Whether a method explains the target; the maps of others are the same for all."""
        return any(explainer.class_specific for explainer in self.explainers)

    def say_of_target(self, names: Sequence[str]) -> None:
        """Log which methods show no target, and how many photos lie in no folder of a class.

        Args:
            names: The file of each photo, or "image".
        """
        default = isinstance(self.target, Class) and self.target.index is None
        blind = [one for one in self.explainers if not one.class_specific]
        blind = [one for one in blind if not isinstance(one, Baseline)]
        if blind and (self.by_label or self.contrast is not None or not default):
            log.warning(
                "%s: the same for every class, whatever the target", ", ".join(map(str, blind))
            )
        if not self.by_label or not self.asks_for_class:
            return
        count = sum(label_of(name, self.model.classes) is None for name in names)
        if count:
            log.warning(
                "%d of %d %s in no folder that is named for a class: the predicted class is "
                "explained there",
                *(count, len(names), "photos lies" if count == 1 else "photos lie"),
            )

    def at(self, photos: Sequence[int]) -> "Request":
        """Return the request for these photos, where there is a target for each."""
        places = torch.tensor(photos, dtype=torch.long, device="cpu")
        contrast = None if self.contrast is None else self.contrast.at(places)
        return replace(self, target=self.target.at(places), contrast=contrast)

    def explain(self, photos: Sequence[tuple[str, Image]]) -> list[Explanation]:
        """Explain named photos as one batch; a method that fails is a problem of its photos.

        Raises:
            ValueError: The network itself gives no numbers.
        """
        images = prepare(self.model, [photo for _, photo in photos])
        target = self.target_of([label_of(name, self.model.classes) for name, _ in photos])
        with torch.no_grad():
            output = model_output(self.model, images)
        known = self.model.classes and self.asks_for_class
        if known or not isinstance(target, Class):
            target.check(len(photos))
            target = target.fixed(output)
        if self.contrast is not None and self.asks_for_class:
            for i, (name, _) in enumerate(photos):
                index, contrast = target.at(one_row(i)).pair()
                if index is not None and index == contrast:
                    log.warning("%s: %s", name, ITS_OWN_CONTRAST)
        probabilities = np.zeros((len(photos), 0), np.float32)
        if self.model.classes:
            logits = Class.of(self.model).logits(output).float()
            probabilities = self.model.calibration.probabilities(logits).cpu().numpy()
        explanations = [
            Explanation(self.model, photo, name, probabilities[i], [], problems=list(self.refused))
            for i, (name, photo) in enumerate(photos)
        ]
        for explainer in self.explainers:
            self._add(explainer, images, target, explanations)
        self._add_channels(images, explanations)
        return explanations

    def target_of(self, labels: Sequence[int | None]) -> Target:
        """Make the target of photos of these classes; None for one whose class is not known."""
        target = self.target
        if self.by_label:
            target = Class.of(self.model, tuple(labels))
        return target if self.contrast is None else Difference(target, self.contrast)

    def _add(
        self,
        explainer: Explainer,
        images: Images,
        target: Target,
        explanations: Sequence[Explanation],
    ) -> None:
        """Add one method's maps; where a batch fails, its photos are tried one by one."""
        try:
            maps = list(self.maps(explainer, images, target))
        except Exception as error:
            if len(images) == 1:
                explanations[0].problems.append(fault_line(explainer, error))
                return
            for i, explanation in enumerate(explanations):
                self._add(explainer, images[i : i + 1], target.at(one_row(i)), [explanation])
            return
        for explanation, one in zip(explanations, maps, strict=True):
            explanation.maps.append(one)

    def maps(
        self,
        explainer: Explainer,
        images: Images,
        target: Target,
        unsmoothed: dict[Explainer, Heatmaps] | None = None,
    ) -> Iterator[Map]:
        """Yield one map for each image.

        Args:
            explainer: The method.
            images: (b, c, h, w).
            target: What to explain.
            unsmoothed: What methods gave for the same images and target with `smooth=0`. What is
                there is smoothed and not made again, its seconds left out; what is made is added.

        Yields:
            The maps.

        Raises:
            ValueError: The method fails.
        """
        start = time.perf_counter()
        if unsmoothed is None:
            heatmaps = explainer(self.model, images, target, self.model.layout)
        else:
            plain = replace(explainer, smooth=0.0)
            if plain not in unsmoothed:
                unsmoothed[plain] = plain(self.model, images, target, self.model.layout)
            heatmaps = explainer.smoothed(unsmoothed[plain])
        every, cells = heatmaps.values.cpu().numpy(), heatmaps.left_out
        left_out = None if cells is None else cells.cpu().numpy()
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
            own = target.at(one_row(i))
            index, contrast = own.pair() if explainer.class_specific else (None, None)
            yield Map(
                explainer=explainer,
                values=values,
                scale=natural(values, prefix_mass),
                prefix_mass=prefix_mass,
                outlier_mass=outlier_mass,
                completeness_gap=completeness_gap,
                target=index,
                contrast=contrast,
                explained=own.label(self.model.classes) if explainer.class_specific else "",
                unproven=self.unproven,
                left_out=left_out,
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
                for explanation, gate in zip(
                    explanations, gates.float().cpu().numpy(), strict=True
                ):
                    explanation.channels[name] = gate


def usual_in_words(model: Model, target: str | None) -> str:
    """Name the method that is taken where none is asked for, and say if its maps are trusted."""
    unasked = target in (None, "predicted") and not has_classifier(model)
    method = usual_method(model, class_blind=unasked)
    trusted = model.trust is not None and is_trusted(method, model)
    words = model.trust.verdict(str(method)) if model.trust and trusted else NOT_SHOWN
    return f"{method}: {words}"


@overload  # a path's text is a sequence too, and taken for one photo
def explain(  # type: ignore[overload-overlap]
    model: Model,
    images: Photo,
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    head: Head | None = None,
    batch_size: int = 8,
) -> Explanation: ...


@overload
def explain(
    model: Model,
    images: Sequence[Photo],
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    head: Head | None = None,
    batch_size: int = 8,
) -> Explanations: ...
@checked(limit=1, batch_size=1)
def explain(
    model: Model,
    images: Photo | Sequence[Photo],
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    head: Head | None = None,
    batch_size: int = 8,
) -> Explanation | Explanations:
    """Predict the class of a photo, or of several, and show where the model looks.

    Args:
        model: A model of `load_model` or `wrap`.
        images: A path, a PIL image, an array (height, width, channels) or a tensor (channels,
            height, width) of uint8 or of floats from 0 to 1; or a list of these.
        methods: Names as on the command line (`Rollout(fusion=max)`, "all") or explainers, one or
            several. None: the best method of at most two passes that scores have shown to be
            trusted for this network; where there is none, LibraGradient for networks of tokens and
            GradCAM for others, which the caption says.
        target: What to explain: a class by name or index, a vector, a function of the network's
            output, or a `Target`; a list has one for each photo; "label" is the class that the
            photo's folder is named for, or the predicted one where it is named for none, which a
            line counts. None: each photo's predicted class.
        contrast: A class, or another target, to subtract: what supports the target rather than it.
        limit: Only the first photos, so many.
        output: A folder to write the pictures, raw maps and records to; None writes none.
        head: Which part of the network's output is meant, by index, key or attribute. None: the
            model's own.
        batch_size: Photos at once.

    Returns:
        An Explanation for one image, Explanations for a list. A method that does not fit the model
        is one of their `problems`.

    Raises:
        ValueError: No method fits, there is no such class, an image cannot be read (ImageError),
            every method fails on a photo, or the output cannot be written to.
    """
    request = Request.of(model, methods, target, contrast, head)
    several, every = several_photos(images)
    request.check(len(every))
    photos = [read(image, model.preprocess) for image in every[:limit]]
    if output is not None:
        output_folder(output)
    request.say_of_target([name for name, _ in photos])
    explanations: list[Explanation] = []
    for start in range(0, len(photos), batch_size):
        places = range(start, min(start + batch_size, len(photos)))
        explanations += request.at(places).explain([photos[place] for place in places])
    for explanation in explanations:
        if not explanation.maps:
            raise ValueError(f"{explanation.name}: {'; '.join(explanation.problems)}")
    explained = Explanations(explanations) if several else explanations[0]
    if output is not None:
        explained.save(output)
    return explained


def several_photos(images: Photo | Sequence[Photo]) -> tuple[bool, list[Photo]]:
    """Return whether these are several photos, and a list of them; a batch of tensors counts."""
    if isinstance(images, Image | str | PathLike):
        return False, [images]
    if isinstance(images, ndarray | Tensor) and images.ndim < 4:
        return False, [images]
    if isinstance(images, bytes | Mapping | type) or not isinstance(images, Iterable):
        raise ValueError(not_a_photo(images))
    return True, list(images)


def not_a_photo(value: object) -> str:
    """Say that a value is no photo, and what is one."""
    return (
        "expected a photo: a path, a PIL image, an array (height, width, channels) or a tensor "
        f"(channels, height, width), got {quoted(value)}"
    )


def read(image: Photo, preprocess: Preprocessing) -> tuple[str, Image]:
    """Return a name for a photo, and the photo in upright RGB, as the preprocessing reads it.

    Raises ValueError for what is no image, and ImageError for a file that cannot be read.
    """
    value_range = getattr(preprocess, "value_range", None)
    if isinstance(image, Image):
        name = str(getattr(image, "filename", "") or "image")
        if len(preprocess.mean) == 4 and image.mode == "RGBA":  # else transparent parts are white
            return name, image_of_channels(channels_of(image, 4))
        if len(preprocess.mean) != 3 and kept_channels(image) is not None:
            return name, image
        return name, to_rgb(image, value_range)
    if isinstance(image, Tensor):
        return "image", _of_colours(image_of_tensor(image), image, preprocess)
    if isinstance(image, ndarray):
        return "image", _of_colours(image_of_array(image), image, preprocess)
    if not isinstance(image, str | PathLike):
        raise ValueError(not_a_photo(image))
    if not os.fspath(image):
        raise ImageError("'': expected the path of a photo, got an empty one")
    check_path(image)
    if os.path.isdir(image):
        raise ImageError(
            f"{image}: expected a photo, got a folder: vision_attn.gallery takes folders"
        )
    with sample_errors(image):
        return str(image), preprocess.read(image)


def _of_colours(photo: Image, given: ndarray | Tensor, preprocess: Preprocessing) -> Image:
    """The photo; ValueError where it has channels that a network of colours would not see.

    Four channels are red, green, blue and alpha to it; transparent parts are white, as of a file.
    """
    count = len(channels := channels_of(photo))
    if count == 4 and len(preprocess.mean) == 3:
        return to_rgb(PIL.Image.fromarray(np.moveaxis(channels, 0, 2).copy()))
    if count > 4 and len(preprocess.mean) == 3:
        kind, order = (
            ("a tensor", "(channels, height, width)")
            if isinstance(given, Tensor)
            else ("an array", "(height, width, channels)")
        )
        raise ValueError(
            f"a photo as {kind} must be {order}: of {tuple(given.shape)} it has {count} channels, "
            "and the network takes 3"
        )
    return photo


def prepare(model: Model, photos: Sequence[Image]) -> Images:
    """Make a batch of the network's inputs, on its device and in its dtype."""
    images = [model.preprocess(photo) for photo in photos]
    return torch.stack(images).to(model.device, model.dtype)


def predict(model: Model, images: Images) -> Logits:
    """Run the network on its inputs. Raises ValueError where a logit is not finite."""
    return model_logits(model, images).float()


def query_place(explainer: Explainer, model: Model) -> tuple[float, float] | None:
    """Return the place (x, y) whose attention is shown, as shares of the network's input."""
    query = getattr(explainer, "query", None)
    if query is None and isinstance(explainer, QueryKey) and model.layout:
        return None if model.layout.class_token else (0.5, 0.5)
    if not isinstance(query, tuple):
        return None
    (x, y), (height, width) = query, model.preprocess.input_size
    return (x, y) if isinstance(x, float) else ((x + 0.5) / width, (y + 0.5) / height)
