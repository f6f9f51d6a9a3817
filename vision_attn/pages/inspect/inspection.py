"""From models and photos to the page on which attention is explored.

Axes: b batch, t targets, h height, w width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from PIL.Image import Image
from torch import Tensor

from vision_attn.arguments import argument, checked
from vision_attn.data.faults import fault_line
from vision_attn.inference import infer
from vision_attn.methods import (
    Attribution,
    Baseline,
    CentreGaussian,
    ChannelGates,
    Class,
    Difference,
    EdgeMap,
    Explainer,
    GradCAM,
    PerImage,
    QueryKey,
    RandomMap,
    RawAttention,
    Rollout,
    Target,
    as_target,
    choose_methods,
    fitting_methods,
    gate_values,
    is_trusted,
    usual_method,
)
from vision_attn.methods.attention_explainer import AttentionExplainer
from vision_attn.methods.gates import find_gates
from vision_attn.methods.gradcam import ClassActivationMap
from vision_attn.methods.passes import shared_passes
from vision_attn.methods.targets import (
    TargetLike,
    check_contrast,
    model_output,
    no_classifier,
)
from vision_attn.models.timm_model import TimmModel
from vision_attn.pages import inspect as parts
from vision_attn.pages.inspect.encoding import features_of, with_components, with_nearest
from vision_attn.runs.explain import (
    Methods,
    Photo,
    Request,
    predict,
    prepare,
    read,
    several_photos,
)
from vision_attn.runs.inputs import check_file
from vision_attn.runs.maps import Map
from vision_attn.runs.progress import Bar, Silent
from vision_attn.tokens import record_attention
from vision_attn.tokens.activation import settled
from vision_attn.tokens.path.support import refusal_of
from vision_attn.tokens.path.swin import LayerWindows, layer_windows
from vision_attn.tokens.record.calls import AttentionCall, LazyWeights
from vision_attn.types import Head, Heatmaps, Images, Model, TokenLayout

__all__ = ["Look", "inspect", "named_models"]

LIKELIEST = 5  # classes shown
EXPLAINED = 3  # of them, by the methods that explain a class
CELLS = (14, 14)  # that are removed to score a map, where the network has no tokens
# Left out unless asked for: what the page shows by itself, what takes long, what knows no network.
LEFT_OUT = (
    *(QueryKey, RawAttention),
    Attribution,
    *(RandomMap, CentreGaussian, EdgeMap),
)


@checked(limit=1)
def inspect(
    model: Model | tuple[Model, ...],
    images: Photo | Sequence[Photo],
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    head: Head | None = None,
    score: bool = False,
    progress: Silent | None = None,
) -> parts.Page:
    """Make a page on which the model's attention is explored; in a notebook it shows itself.

        vision_attn.inspect(model, "dog_cat.png", output="page.html")

    Of several images, one on which anything fails is a problem of `progress`, and the rest is
    shown.

    Args:
        model: One, or a tuple of several to compare.
        images: A PIL image or a file, or several.
        methods: As on the command line, `Rollout(fusion=max)`, or "all". None: the quick ones that
            fit.
        target: What to explain besides the likeliest classes, or a list of such targets: each is
            explained in every image.
        contrast: A class, or another target, to subtract from each.
        limit: Only the first images, so many.
        output: The file to write; None writes none.
        head: Which part of the network's output is meant. None: the model's own.
        score: Also measure each map by deletion and insertion, some 34 passes through the network a
            map.
        progress: `Bar()` unless given.

    Returns:
        The page, which shows itself in a notebook.

    Raises:
        ValueError: A method does not fit, there is no such class, or no image can be read.
    """
    models = named_models(model)
    several = several_photos(images)[1][:limit]
    if output is not None:
        check_file(output, [one for one in several if isinstance(one, str | PathLike)])
    if head is not None:
        models = {name: replace(one, head=head) for name, one in models.items()}
    looks = [Look(name, one, methods, target, contrast, score) for name, one in models.items()]
    inspections: list[parts.Inspection] = []
    problems: list[str] = []
    with Bar() if progress is None else progress as shown:
        shown.start("inspecting", len(several))
        for photo in several:
            try:
                inspections += [look.at(photo) for look in looks]
            except Exception as error:  # of this photo
                if len(several) == 1 and progress is None:
                    raise
                problems.append(fault_line(name_of(photo), error))
                shown.problem(problems[-1])
            shown.advance()
    if not several:
        raise ValueError("expected a photo, or several, got an empty list")
    if not inspections:
        raise ValueError(f"none of {len(problems)} images could be shown, the first: {problems[0]}")
    page = parts.Page.of(with_nearest(with_components(inspections)))
    if output is not None:
        page.save(output)
    return page


def named_models(model: Model | tuple[Model, ...]) -> dict[str, Model]:
    """Name models as pages do: as they were loaded, or by their networks' classes, each once."""
    models = model if isinstance(model, tuple) else (model,)
    if not models:
        raise ValueError("expected a model, or a tuple of several, got an empty one")
    for one in models:
        argument("model", one, Model)
    named: dict[str, Model] = {}
    for one in models:
        network = one.network.network if isinstance(one.network, TimmModel) else one.network
        name = stem = one.name or type(network).__name__
        number = 2
        while name in named:
            name, number = f"{stem} ({number})", number + 1
        named[name] = one
    return named


class Look:
    """A model by the name that the page gives it, with the methods and classes to show.

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.pages.inspect.inspection import Look
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=2).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, ["cat", "dog"], vit.layout((16, 16)))
        >>> Look("a ViT", model, ["Rollout"]).name
        'a ViT'
    """

    def __init__(
        self,
        name: str,
        model: Model,
        methods: Methods | None = None,
        target: TargetLike = None,
        contrast: TargetLike = None,
        score: bool = False,
    ):
        self.name = name
        self.model = model = settled(model)
        self.score = score
        self.chosen = None if methods is None else choose_methods(methods, model)
        several = target if isinstance(target, list | tuple) else [target]
        self.contrast = None if contrast is None else as_target(contrast, model)
        predicted = (None, "predicted")
        words = [one for one in several if not isinstance(one, str | None) or one not in predicted]
        asked = [as_target(one, model) for one in words]
        if self.contrast is not None:
            for chosen in asked:
                check_contrast(chosen, self.contrast, model.classes)
        pairs = [one.pair() for one in asked if isinstance(one, Class)]
        self.classes = [index for index, _ in pairs if index is not None]
        self.others = [one for one in asked if not isinstance(one, Class)]
        self.request = Request(model, self.chosen or [])

    def at(self, photo: Photo) -> parts.Inspection:
        """All that the page shows of one photo."""
        name, image = read(photo, self.model.preprocess)
        layout = self.model.layout
        images = prepare(self.model, [image])
        predictions = self.predictions(images)
        surest = max((one.probability or 0.0 for one in predictions), default=1.0)
        left, top, right, bottom = self.model.preprocess.box(image.size)
        width, height = image.size
        known = bool(self.model.classes)
        notes: list[str] = []
        layers: list[parts.Layer] = []
        no_click = ""
        try:
            layers = self.layers(images)
        except ValueError as error:
            no_click = f"{type(self.model.network).__name__}: {error}"
        return parts.Inspection(
            model=self.name,
            image=Path(name).name,
            photo=np.asarray(image),
            box=(left / width, top / height, right / width, bottom / height),
            predictions=predictions,
            grid=layout.grid if layout else (1, 1),
            prefix=prefix_names(layout) if layout else (),
            layers=layers,
            maps=self.maps(images, predictions, notes),
            gates=list(self.gates(images)),
            features=self.features(images),
            notes=notes,
            unlike=self.model.calibration.unlike(surest) if known else "",
            warning=self.model.warning,
            no_click=no_click,
        )

    def predictions(self, images: Images) -> list[parts.Prediction]:
        """Return the likeliest classes, and the targets.

        A target that is no class is numbered after the classes, and has no probability.
        """
        names, listed = self.model.classes, []
        if names:
            chances = self.model.calibration.probabilities(predict(self.model, images))[0]
            likeliest = chances.topk(min(LIKELIEST, len(chances))).indices.tolist()
            listed = [
                self.prediction(target, float(chances[target]))
                for target in dict.fromkeys([*likeliest[:EXPLAINED], *self.classes, *likeliest])
            ]
        else:
            listed = [parts.Prediction(one, f"class {one}", None) for one in self.classes]
        first = max([len(names), *(one + 1 for one in self.classes)])
        return listed + [
            parts.Prediction(first + at, one.label(names), None)
            for at, one in enumerate(self.others)
        ]

    def prediction(self, index: int, chance: float) -> parts.Prediction:
        """Name a class with its probability, or a value, which has none."""
        name = self.model.classes[index]
        if self.model.calibration.activation == "none":
            return parts.Prediction(index, f"{name}: {chance:.4g}", None)
        return parts.Prediction(index, name, chance)

    def layers(self, images: Images) -> list[parts.Layer]:
        """Layers in which the patch under a click attends: to all the others, or in its window.

        Raises:
            ValueError: There are none; the message has the reason.
        """
        network, layout = self.model.network, self.model.layout
        if layout is None:
            reason = refusal_of(network) or "how its tokens lie on the image is not known"
            raise ValueError(reason.partition(": give layout=")[0])  # no option of this page
        with record_attention(network, keep=()) as record:
            infer(network, images)
        windows = layer_windows(network, record.calls, layout)
        if windows is not None:
            return [windows_of(str(at), one) for at, one in enumerate(windows)]
        whole = [
            layer_of(str(at), call)
            for at, call in enumerate(record.calls)
            if call.batch == 1 and call.queries == call.keys == layout.tokens
        ]
        if not whole:
            raise ValueError(
                refusal_of(network)
                or f"no layer attends among all {layout.tokens} tokens at once, and where its "
                "windows lie is not known"
            )
        return whole

    def maps(
        self, images: Images, predictions: Sequence[parts.Prediction], notes: list[str]
    ) -> list[parts.ShownMap]:
        """Every method; the ones of a class for each of the classes explained."""
        explained = self.explained(predictions)
        explainers = self.usual(class_blind=not explained) if self.chosen is None else self.chosen
        shown: dict[Explainer, list[parts.ShownMap]] = {}
        unsmoothed: dict[Explainer, Heatmaps] = {}
        in_groups = sorted(explainers, key=pass_of)  # so that a pass is kept for its group alone
        for _, group in groupby(in_groups, pass_of):
            with shared_passes():
                for explainer in group:
                    maps = self.maps_by(explainer, images, explained, unsmoothed, notes)
                    shown[explainer] = list(maps)
        return [shown_map for explainer in explainers for shown_map in shown[explainer]]

    def usual(self, class_blind: bool) -> list[Explainer]:
        """The quick methods that fit, those first that passed; class_blind: those of no class."""
        quick = [one for one in fitting_methods(self.model) if not isinstance(one, LEFT_OUT)]
        quick.sort(key=lambda one: (not isinstance(one, Rollout), not isinstance(one, GradCAM)))
        if quick:
            quick.insert(0, usual_method(self.model, class_blind=class_blind))
            trusted = [one for one in choose_methods("all", self.model) if self._passed(one)]
            quick = [one for one in trusted if not isinstance(one, LEFT_OUT)] + quick
        quick = list(dict.fromkeys(quick))
        return [variant for explainer in quick for variant in variants(explainer)]

    def maps_by(
        self,
        explainer: Explainer,
        images: Images,
        explained: dict[int, Target],
        unsmoothed: dict[Explainer, Heatmaps],
        notes: list[str],
    ) -> Iterator[parts.ShownMap]:
        """One method's maps; none, and a note, where it fails and was not asked for."""
        targets = list(explained.values()) if explainer.class_specific else [Class()]
        if not targets:
            if self.chosen is not None:
                raise ValueError(f"{explainer}: {no_classifier(self.model)}")
            return
        repeated = images.expand(len(targets), -1, -1, -1)
        together = targets[0] if len(targets) == 1 else PerImage(tuple(targets))
        try:
            maps = list(self.request.maps(explainer, repeated, together, unsmoothed))
        except ValueError as error:
            if self.chosen is not None:
                raise
            notes.append(f"{explainer}: {error}")
            return
        about = (type(explainer).__doc__ or "").split("\n\n")[0]
        about = f"{' '.join(about.split())} {verdict_on(explainer, self.model)}"
        scores = self.scores(images, maps, list(explained.values()))
        numbers = list(explained) if explainer.class_specific else [None]
        for index, own in enumerate(maps):
            mass = own.prefix_mass
            remarks = [f"{remark}." for remark in (own.missing, own.partial) if remark]
            yield parts.ShownMap(
                method=own.method,
                baseline=isinstance(explainer, Baseline),
                values=own.values,
                about=" ".join([about, *remarks]),
                passed=self._passed(explainer),
                target=numbers[index],
                unit=own.scale.unit,
                factor=own.scale.factor,
                prefix_mass=None if mass is None or not isfinite(mass) else mass,
                scores={name: float(each[index]) for name, each in scores.items()},
            )

    def _passed(self, explainer: Explainer) -> bool:
        return is_trusted(explainer, self.model)

    def explained(self, predictions: Sequence[parts.Prediction]) -> dict[int, Target]:
        """List the targets of the methods that take one, by their numbers on the page.

        The contrast, where it is one of the likeliest classes, is explained by itself.
        """
        classes = [one.target for one in predictions if one.probability is not None][:EXPLAINED]
        targets: dict[int, Target] = {
            index: Class.of(self.model, index) for index in dict.fromkeys([*classes, *self.classes])
        }
        others = [one.target for one in predictions[len(predictions) - len(self.others) :]]
        targets |= dict(zip(others, self.others, strict=True))
        if self.contrast is None:
            return targets
        contrast = self.contrast.pair()[0] if isinstance(self.contrast, Class) else None
        return {
            number: target if number == contrast else Difference(target, self.contrast)
            for number, target in targets.items()
        }

    def scores(
        self, images: Images, maps: Sequence[Map], explained: Sequence[Target]
    ) -> dict[str, Float[Tensor, " t"]]:
        """Measure how faithful each map is, by the name of the measure; empty without `score`.

        Maps of no class are measured by the likeliest.
        """
        if not self.score or not explained:
            return {}
        from vision_attn.evaluate import Deletion, FilledCells, Insertion

        values = torch.from_numpy(np.stack([found.values for found in maps])).to(images.device)
        grid = self.model.layout.grid if self.model.layout else CELLS
        reader = Class.of(self.model).logits
        removal = FilledCells(partial(model_output, self.model), grid, read=reader)
        chances = replace(self.model.calibration, temperature=1.0).probabilities
        metrics = {
            kind.__name__.lower(): kind(removal, probabilities=chances)
            for kind in (Deletion, Insertion)
        }
        scores = {}
        for name, metric in metrics.items():
            each = []
            for values_of_one, target in zip(values, explained, strict=False):
                metric.reset()
                asked = target.pair()[0] if isinstance(target, Class) else target
                metric.update(images, values_of_one[None], asked)
                each.append(metric.compute())
            scores[name] = torch.stack(each)
        return scores

    def features(self, images: Images) -> list[parts.Features]:
        """Every layer's features; none where they cannot be seen or laid out on the photo."""
        try:
            return features_of(self.model, images)
        except ValueError:
            return []

    def gates(self, images: Images) -> Iterator[parts.Gate]:
        """Every gate in the order they run; of a channel gate also where its channels are."""
        network = self.model.network
        gates = find_gates(network, images)
        of_channels = [gate.name for gate in gates if not gate.spatial]
        if not gates:
            return
        for name, values in gate_values(network, images).items():
            if values.ndim == 2:
                where = ChannelGates(layer=of_channels.index(name), kind="selected")
                found = where(network, images).values[0]
                yield parts.ShownChannelGate(name, array(values[0]), array(found))
            else:
                yield parts.ShownSpatialGate(name, array(values[0]))


def verdict_on(explainer: Explainer, model: Model) -> str:
    """Say whether scores of the model let a method pass; a baseline is what methods must beat."""
    if isinstance(explainer, Baseline):
        return "A baseline: it knows nothing of the network."
    if model.trust is None:
        return "Not scored on this network."
    return model.trust.verdict(str(explainer))


def variants(explainer: Explainer) -> Iterator[Explainer]:
    """The explainer, and with each option that is one of some words set to each other word."""
    yield explainer
    for name, kind in get_type_hints(type(explainer)).items():
        for word in get_args(kind) if get_origin(kind) is Literal else ():
            if word != getattr(explainer, name):
                yield replace(explainer, **{name: word})


def pass_of(explainer: Explainer) -> int:
    """Number the passes through the network whose results methods share, 0 for none."""
    if isinstance(explainer, ClassActivationMap):
        return 1
    return 2 if isinstance(explainer, AttentionExplainer) and explainer.needs_gradients else 0


def layer_of(name: str, call: AttentionCall) -> parts.Layer:
    """Queries and keys where they say it all, else the weights."""
    if isinstance(call, LazyWeights) and call.mask is None and not call.causal:
        return parts.QueryKeys(name, array(call.q[0] * call.scale), array(call.k[0]))
    return parts.Weights(name, array(call.weights()[0]))


def windows_of(name: str, layer: LayerWindows) -> parts.Windows:
    """The weights in windows, as the page shows them."""
    return parts.Windows(
        name,
        array(layer.call.weights().transpose(0, 1)),
        grid=layer.grid,
        window=layer.window,
        places=layer.places.numpy(),
        regions=layer.regions.numpy(),
        shift=layer.shift,
        merged=layer.merged,
    )


def prefix_names(layout: TokenLayout) -> list[str]:
    """What the tokens before the patches are, as far as the layout tells."""
    known = ["class token"] if layout.class_token else []
    if not layout.pool.startswith("cls"):  # a distillation token may be among them
        return known + [f"prefix token {at}" for at in range(len(known), layout.prefix)]
    known += ["distillation token"] if layout.pool == "cls_dist" else []
    return known + [f"register {at}" for at in range(layout.prefix - len(known))]


def name_of(photo: Photo) -> str:
    """Name a photo in a line about it."""
    if isinstance(photo, ndarray | Tensor):
        return "image"
    return (
        str(getattr(photo, "filename", "") or "image") if isinstance(photo, Image) else str(photo)
    )


def array(values: Tensor) -> ndarray:
    return values.float().cpu().numpy()
