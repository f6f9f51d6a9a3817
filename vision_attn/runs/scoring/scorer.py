"""Every score of one method on a batch of images: a record an image, of plain values.

Axes: b batch, h, w the network's input, y, x of a map, t thresholds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn
from torchmetrics import MetricCollection

from vision_attn.arguments import checked
from vision_attn.attention import Global, Location, RotaryAttention, Window
from vision_attn.data.faults import apart, reason
from vision_attn.devices import forward_format
from vision_attn.errors import ModelError, quoted
from vision_attn.evaluate import (
    AverageDrop,
    AverageIncrease,
    AveragePrecision,
    BlurFill,
    Deletion,
    DroppedTokens,
    EnergyPointingGame,
    FilledCells,
    GridPointingGame,
    ImageScore,
    Insertion,
    MaxBoxIoU,
    MaxSensitivity,
    MeanFill,
    MeanIoU,
    ModelRandomisation,
    NegativePerturbation,
    NoiseFill,
    PixelAccuracy,
    PointingGame,
    PositivePerturbation,
    Removal,
    SaCo,
    SingleDeletion,
    Sparseness,
)
from vision_attn.methods import Class, Explainer, Target
from vision_attn.methods.targets import model_logits, model_output
from vision_attn.models import TimmModel, ViT
from vision_attn.models.timm_model import vit_from_timm
from vision_attn.runs.explain import Request
from vision_attn.runs.scoring.evidence import Sample
from vision_attn.tokens import layout_of
from vision_attn.tokens.outputs import one_row
from vision_attn.types import Heatmaps, Images, Model, TokenLayout

__all__ = ["FILLS", "GRIDS", "GROUPS", "KeptMap", "Record", "as_plain_vit", "removal"]

Record = dict[str, Any]

ON_OBJECT: dict[str, type[ImageScore]] = {
    "pointing_game": PointingGame,
    "energy_inside": EnergyPointingGame,
}
ON_PIXELS: dict[str, type[ImageScore]] = {
    "average_precision": AveragePrecision,
    "mean_iou": MeanIoU,
    "pixel_accuracy": PixelAccuracy,
}
ON_SHORTCUT = {f"{name}_on_shortcut": metric for name, metric in ON_OBJECT.items()}
GRIDS = {side: f"grid_pointing_{side}x{side}" for side in (2, 3, 4)}  # by photos a side
ON_CELLS: dict[str, type[ImageScore]] = dict.fromkeys(GRIDS.values(), GridPointingGame)
NEAR = 1 / 16  # of the shorter side: how far from the small mark a maximum still points at it
GROUPS: dict[str, dict[str, type[ImageScore]]] = {
    "Does it show what the network uses?": {
        "deletion": Deletion,
        "insertion": Insertion,
        "positive_perturbation": PositivePerturbation,
        "negative_perturbation": NegativePerturbation,
        "average_drop": AverageDrop,
        "average_increase": AverageIncrease,
        "saco": SaCo,
        "single_deletion": SingleDeletion,
    },
    "Does it lie on the object?": {**ON_OBJECT, **ON_PIXELS, "box_iou": MaxBoxIoU},
    "Does it lie on the shortcut?": {**ON_SHORTCUT},
    "In a mosaic, does the map of a class lie on its photo?": {**ON_CELLS},
    "Does it follow the weights, and not the noise? Is it sparse?": {
        "randomisation": ModelRandomisation,
        "sensitivity": MaxSensitivity,
        "sparseness": Sparseness,
    },
}

FILLS = {"mean": MeanFill, "blur": BlurFill, "noise": NoiseFill}


class KeptMap(NamedTuple):
    """One image's map, raw, and its prefix mass, None where the method has none: for a picture.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.runs.scoring.scorer import KeptMap
        >>> KeptMap(np.ones((4, 4)), prefix_mass=None).values.shape
        (4, 4)
    """

    values: Float[ndarray, "y x"]
    prefix_mass: float | None


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """Samples of one kind together, and what each is explained for.

    Attributes:
        predicted: The most probable class; None for a network without a classifier, and for
            mosaics, which show several.
        probability: Of that class; None where there is none.
    """

    samples: Sequence[Sample]
    images: Images
    predicted: Int[Tensor, " b"] | None
    target: Target
    probability: Float[Tensor, " b"] | None = None

    def single(self) -> Iterator["SampleBatch"]:
        """Each image as a batch of its own."""
        for i, sample in enumerate(self.samples):
            one = slice(i, i + 1)
            predicted, probability = (
                None if each is None else each[one] for each in (self.predicted, self.probability)
            )
            target = self.target.at(one_row(i))
            yield SampleBatch([sample], self.images[one], predicted, target, probability)

    def mask(self, of: str) -> Bool[Tensor, "b h w"] | None:
        """The masks of that kind; None where the images have none."""
        if of not in self.samples[0].masks:
            return None
        return torch.stack([sample.masks[of] for sample in self.samples]).to(self.images.device)

    def ignored(self) -> Bool[Tensor, "b h w"] | None:
        """The pixels that count on neither side; None where all count."""
        given = [sample.ignore for sample in self.samples if sample.ignore is not None]
        return torch.stack(given).to(self.images.device) if given else None


@dataclass(frozen=True, eq=False)
class Scorer:
    """How a model's maps are measured.

    Attributes:
        request: The model, and what is explained.
        half: Whether evidence is removed in bfloat16.
    """

    request: Request
    removal: Removal
    steps: int = 16
    seed: int = 0
    half: bool = False

    @property
    def model(self) -> Model:
        """The model whose maps are measured."""
        return self.request.model

    def batches(self, samples: Sequence[Sample]) -> tuple[SampleBatch | None, list[str]]:
        """Make a batch of the samples that the network takes, and a line for each of the others.

        None in place of a batch where it takes none.
        """
        made, lines = apart(self.batch, samples, lambda sample: sample.name)
        if len(made) < 2:
            return (made[0][1] if made else None), lines
        return self.batch([sample for _, batch in made for sample in batch.samples]), lines

    def batch(self, samples: Sequence[Sample]) -> SampleBatch:
        """Make a batch of samples.

        Raises:
            ValueError: The network gives no numbers.
        """
        images = torch.stack([sample.image for sample in samples])
        images = images.to(self.model.device, self.model.dtype)
        if samples[0].cells:  # it may not take images of this size
            return SampleBatch(samples, images, None, Class())
        output = model_output(self.model, images)
        predicted = probability = None
        if self.model.classes:
            logits = Class.of(self.model).logits(output).float()
            chances = probabilities_of(self.model)(logits)
            predicted = logits.argmax(dim=1)
            probability = chances.gather(1, predicted[:, None])[:, 0]
        target = self.request.target_of([sample.label for sample in samples]).fixed(output)
        return SampleBatch(samples, images, predicted, target, probability)

    def explain(
        self, explainer: Explainer, network: nn.Module, images: Tensor, target: Target
    ) -> Heatmaps:
        """The explainer's maps, by the model's layout."""
        model = replace(self.model, network=network)
        return explainer(model, images, target, self.model.layout)

    def drawn(self, explainer: Explainer, batch: SampleBatch) -> dict[str, KeptMap]:
        """Each image's map by its name, to be drawn; none of an image that the method fails on."""
        try:
            maps = self.explain(explainer, self.model.network, batch.images, batch.target)
        except Exception:
            if len(batch.samples) == 1:
                return {}
            each = [self.drawn(explainer, one) for one in batch.single()]
            return {name: one for found in each for name, one in found.items()}
        masses = [None] * len(maps) if maps.prefix_mass is None else maps.prefix_mass.tolist()
        values = maps.values.cpu().numpy().astype(np.float32)
        return {
            sample.name: KeptMap(values[i].copy(), masses[i])
            for i, sample in enumerate(batch.samples)
        }

    def records(self, kind: str, explainer: Explainer | None, batch: SampleBatch) -> list[Record]:
        """Measure each sample of a batch.

        Where it fails, a record that says so of each sample that it fails on.

        Args:
            kind: `maps`, all that is cheap, or `sanity`, many maps an image; `named`, which class
                the network gives a photo; of mosaics `framed`, which of its classes the network
                names, and `mosaic`, where the maps of its classes lie.
        """
        measures: dict[str, Callable[[Any, SampleBatch], list[Record]]] = {
            "maps": self._maps,
            "sanity": self._sanity,
            "named": self._named,
            "framed": self._framed,
            "mosaic": self._mosaic,
        }
        try:
            found = measures[kind](explainer, batch)
        except Exception as error:
            if len(batch.samples) > 1:
                return [r for one in batch.single() for r in self.records(kind, explainer, one)]
            found = [{"problem": reason(error)}]
        method = "" if explainer is None else str(explainer)
        return [
            {"kind": kind, "method": method, "image": sample.name}
            | (self._known(batch, i) if kind in ("maps", "sanity") else {})
            | found[i]
            for i, sample in enumerate(batch.samples)
        ]

    def _known(self, batch: SampleBatch, i: int) -> Record:
        return {
            "label": batch.samples[i].label,
            "predicted": None if batch.predicted is None else int(batch.predicted[i]),
            "target": batch.target.at(one_row(i)).pair()[0],
        }

    def _named(self, explainer: None, batch: SampleBatch) -> list[Record]:
        """The class that the network gives each photo, and how surely."""
        assert batch.predicted is not None
        assert batch.probability is not None
        return [
            {
                "label": sample.label,
                "predicted": int(batch.predicted[i]),
                "probability": round(float(batch.probability[i]), 5),
            }
            for i, sample in enumerate(batch.samples)
        ]

    def _framed(self, explainer: None, batch: SampleBatch) -> list[Record]:
        """The share of a mosaic's classes among as many of highest logit."""
        logits = model_logits(self.model, batch.images).float()
        records = []
        for sample, row in zip(batch.samples, logits, strict=True):
            first = set(row.topk(len(sample.cells)).indices.tolist())
            named = first & {label for _, label in sample.cells}
            records.append({"named": round(len(named) / len(first), 5)})
        return records

    def _mosaic(self, explainer: Explainer, batch: SampleBatch) -> list[Record]:
        """The share of each class's map in the cell of its photo: mean, and cell by cell."""
        cells = batch.samples[0].cells
        side = round(len(cells) ** 0.5)
        layout, images = self.model.layout, batch.images
        if layout is not None:
            layout = layout_of(self.model, (images.shape[2], images.shape[3]))
        classes = [[label for _, label in sample.cells] for sample in batch.samples]
        targets = torch.tensor(classes, dtype=torch.long, device=images.device)
        metric = GridPointingGame(side)
        for cell, maps in enumerate(maps_by_cell(explainer, self.model, images, targets, layout)):
            metric.update(maps, torch.full_like(targets[:, cell], cell))
        shares = metric.per_image().cpu().double().view(side**2, len(images)).T
        return [
            {
                "scores": {GRIDS[side]: round(float(one.mean()), 5)},
                "cells": [round(share, 5) for share in one.tolist()],
                "photos": [name for name, _ in sample.cells],
            }
            for sample, one in zip(batch.samples, shares, strict=True)
        ]

    def _maps(self, explainer: Explainer, batch: SampleBatch) -> list[Record]:
        maps = self.explain(explainer, self.model.network, batch.images, batch.target).values
        scores, curves = self._faithfulness(maps, batch)
        scores |= self._localization(maps, batch) | {"sparseness": scored(Sparseness(), maps)}
        if batch.samples[0].boxes is not None:
            curves["box_ious"] = self._box_ious(maps, batch)
        constant = maps.flatten(1).amax(dim=1) == maps.flatten(1).amin(dim=1)
        return [
            {"constant": bool(constant[i]), **one}
            for i, one in enumerate(plain(len(maps), scores, curves))
        ]

    def _faithfulness(
        self, maps: Float[Tensor, "b y x"], batch: SampleBatch
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Scores, and curves of deletion and insertion; of a target that is no class, no others."""
        logits, chances = partial(model_logits, self.model), probabilities_of(self.model)
        walk = self.removal, self.steps, self.seed, chances
        deletion, insertion = Deletion(*walk), Insertion(*walk)
        metrics: dict[str, ImageScore] = {"deletion": deletion, "insertion": insertion}
        target: Any = batch.target
        if isinstance(batch.target, Class):
            target = batch.target.classes(batch.images)
            metrics = {
                "deletion": deletion,
                "positive_perturbation": PositivePerturbation(*walk),
                "insertion": insertion,
                "negative_perturbation": NegativePerturbation(*walk),
                "average_drop": AverageDrop(logits, probabilities=chances),
                "average_increase": AverageIncrease(logits, probabilities=chances),
            }
        names = list(metrics)
        groups = [names[i : i + 2] for i in (0, 2, 4)] if len(names) > 2 else [[n] for n in names]
        together = MetricCollection(dict(metrics), compute_groups=groups)
        with torch.autocast(batch.images.device.type, torch.bfloat16, enabled=self.half):
            together.update(batch.images, maps, target)
        together.compute()  # hands the shared states to both of a group
        scores = {name: metric.per_image() for name, metric in metrics.items()}
        return scores, {"deletion": deletion.curves(), "insertion": insertion.curves()}

    def _localization(self, maps: Float[Tensor, "b y x"], batch: SampleBatch) -> dict[str, Tensor]:
        scores = {}
        boxed = batch.samples[0].boxes is not None
        if (mask := batch.mask("object")) is not None:
            for name, metric in (ON_OBJECT if boxed else ON_OBJECT | ON_PIXELS).items():
                scores[name] = scored(metric(), maps, mask, batch.ignored())
        if (mask := batch.mask("shortcut")) is not None:
            near = round(min(self.model.preprocess.input_size) * NEAR)
            scores["pointing_game_on_shortcut"] = scored(PointingGame(near), maps, mask)
            scores["energy_inside_on_shortcut"] = scored(EnergyPointingGame(), maps, mask)
        return scores

    def _box_ious(self, maps: Float[Tensor, "b y x"], batch: SampleBatch) -> Float[Tensor, "b t"]:
        """At each threshold; the best one is chosen when all images are known."""
        metric = MaxBoxIoU()
        boxes = [sample.boxes for sample in batch.samples if sample.boxes is not None]
        metric.update(maps, boxes, [self.model.preprocess.input_size] * len(boxes))
        return torch.cat(metric.ious)

    def _sanity(self, explainer: Explainer, batch: SampleBatch) -> list[Record]:
        explain = partial(self.explain, explainer)
        randomisation = ModelRandomisation(self.model.network, explain, self.seed)
        randomisation.update(batch.images, batch.target)
        sensitivity = MaxSensitivity(partial(explain, self.model.network), seed=self.seed)
        sensitivity.update(batch.images, batch.target)
        scores = {
            "randomisation": randomisation.per_image(),
            "sensitivity": sensitivity.per_image(),
            **self._single_removal(explainer, batch),
        }
        return plain(len(batch.samples), scores, randomisation.curves())

    def _single_removal(self, explainer: Explainer, batch: SampleBatch) -> dict[str, Tensor]:
        """Scores by parts that are removed one at a time."""
        maps = self.explain(explainer, self.model.network, batch.images, batch.target).values
        rows, columns = self.removal.grid
        groups, parts = min(SaCo.GROUPS, rows * columns), min(SingleDeletion.PARTS, rows, columns)
        if groups < 2:
            return {}
        chances, target = probabilities_of(self.model), batch.target
        wanted: Any = target.classes(batch.images) if isinstance(target, Class) else target
        metrics = {
            "saco": SaCo(self.removal, groups, self.seed, chances),
            "single_deletion": SingleDeletion(self.removal, parts),
        }
        with torch.autocast(batch.images.device.type, torch.bfloat16, enabled=self.half):
            return {name: scored(one, batch.images, maps, wanted) for name, one in metrics.items()}


def maps_by_cell(
    explainer: Explainer,
    model: Model,
    images: Images,
    classes: Int[Tensor, "b k"],
    layout: TokenLayout | None,
) -> Iterator[Float[Tensor, "b y x"]]:
    """Make the maps of the class of each cell in turn."""
    if explainer.shares_passes:
        cells = classes.shape[1]
        maps = [
            explainer(model, image.expand(cells, -1, -1, -1), wanted, layout).values
            for image, wanted in zip(images.split(1), classes, strict=True)
        ]
        yield from torch.stack(maps, dim=1)
        return
    maps = []
    for column in classes.T:
        if not maps or explainer.class_specific:  # else it is the same for every class
            maps = [explainer(model, images, column, layout).values]
        yield maps[0]


def scored(metric: ImageScore, *given: Tensor | None) -> Float[Tensor, " b"]:
    """What a metric says of each image of one batch."""
    metric.update(*given)
    return metric.per_image()


def plain(count: int, scores: dict[str, Tensor], curves: dict[str, Tensor]) -> list[Record]:
    """Of each image its scores and curves, in five significant digits."""

    def short(values: Tensor) -> list[Any]:
        return [
            [float(f"{v:.5g}") for v in row] if isinstance(row, list) else float(f"{row:.5g}")
            for row in values.cpu().double().tolist()
        ]

    numbers = {name: short(values) for name, values in scores.items()}
    lines = {name: short(values) for name, values in curves.items()}
    return [
        {"scores": {name: v[i] for name, v in numbers.items()}}
        | {name: v[i] for name, v in lines.items()}
        for i in range(count)
    ]


@checked()
def removal(model: Model, how: str = "auto", seed: int = 0) -> Removal:
    """Make a way to take evidence away from the model, for `evaluate.Deletion` and its kin.

    Filled cells are the patches of a ViT, else 1/14 of the sides, or 1/8 of an image of less than
    112 pixels.

    Args:
        model: A model of `load_model` or `wrap`.
        how: As `tokens` of a ViT, filled with the `mean` colour, a `blur` or `noise`, or `auto`:
            tokens where the network is a ViT that does without them, else the mean colour.
        seed: Of the noise.

    Returns:
        The removal.

    Raises:
        ValueError: The network's tokens cannot be dropped.

    Examples:
        >>> import torch, vision_attn
        >>> model = vision_attn.load_model(
        ...     "timm:vit_tiny_patch16_224", pretrained=False, image_size=64, depth=2
        ... )
        >>> images = torch.rand(2, 3, 64, 64)
        >>> maps = vision_attn.methods.Rollout()(model.network, images)
        >>> deletion = vision_attn.evaluate.Deletion(vision_attn.removal(model))
        >>> deletion.update(images, maps, torch.tensor([5, 5]))
        >>> deletion.per_image().shape
        torch.Size([2])
    """
    if how not in ("auto", "tokens", *FILLS):
        known = ", ".join(("auto", "tokens", *FILLS))
        raise ValueError(f"removal must be one of {known}, got {quoted(how)}")
    size = model.preprocess.input_size
    if how in ("auto", "tokens"):
        if vit := as_plain_vit(model):
            return DroppedTokens(vit.forward_kept_tokens, vit.layout(size).grid, reader_of(model))
        if how == "tokens":
            raise ValueError(
                f"removal tokens: {type(model.network).__name__} is not a ViT whose tokens can "
                f"be dropped: expected one of {', '.join(FILLS)}"
            )
    usual = 14 if min(size) >= 112 else 8
    grid = model.layout.grid if model.layout else (min(usual, size[0]), min(usual, size[1]))
    fill = NoiseFill(seed) if how == "noise" else FILLS.get(how, MeanFill)()
    forward = partial(model_output, model)
    channels = len(model.preprocess.mean)
    images = torch.zeros(1, channels, *size, device=model.device, dtype=model.dtype)
    memory_format = forward_format(model.network, images)
    return FilledCells(forward, grid, fill, memory_format=memory_format, read=reader_of(model))


def reader_of(model: Model) -> Callable[[Any], Tensor]:
    """Return what makes the logits of the model's classes of its network's output."""
    return Class.of(model).logits


def probabilities_of(model: Model) -> Callable[[Tensor], Tensor]:
    """Return what makes probabilities of the model's logits, as they are without a temperature."""
    return replace(model.calibration, temperature=1.0).probabilities


def as_plain_vit(model: Model) -> ViT | None:
    """The network as a ViT of ours whose attention does not ask where a token lies, if it is one.

    Then a token that is not there and one that is masked out of every attention are the same.
    """
    network = model.network.network if isinstance(model.network, TimmModel) else model.network
    if not isinstance(network, ViT):
        try:
            network = vit_from_timm(network).to(model.device)
        except ModelError:
            return None
    asks_where = any(
        isinstance(module, Location | RotaryAttention | Window) and not isinstance(module, Global)
        for module in network.modules()
    )
    if asks_where or getattr(network.readout, "attends", True):
        return None
    return network
