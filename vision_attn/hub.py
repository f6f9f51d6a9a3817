"""Any model by one word: one of the package, a checkpoint, or one of timm, torchvision, HF.

    model = load_model("vision_attn:vit_planted")
    logits = model.network(model.preprocess("photo.jpg")[None])

Axes: b batch, k classes.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import nn

from vision_attn.arguments import check_path, checked
from vision_attn.data.measured import MeasuredTransform
from vision_attn.data.preprocess import Preprocess
from vision_attn.data.ranges import ValueRange
from vision_attn.errors import ModelError, did_you_mean, listed, quoted
from vision_attn.inference import usual_defaults
from vision_attn.methods.base import contradiction
from vision_attn.methods.targets import Class, has_classifier, model_output
from vision_attn.models.checkpoint import Checkpoint, load_weights, read_weights, unpack
from vision_attn.models.huggingface_model import HuggingFaceModel, no_classes
from vision_attn.models.image_text import (
    Classes,
    ImageTextModel,
    create_open_clip,
    huggingface_with_texts,
    no_texts,
    prompts_of,
)
from vision_attn.models.shelf import PREFIX, Shelf, shelved
from vision_attn.models.timm_model import (
    TimmModel,
    create_timm,
    fit_classifier,
    read_timm_weights,
)
from vision_attn.models.torchvision_model import create_torchvision
from vision_attn.models.trust import read_trust, trust_of
from vision_attn.models.vit import ViT
from vision_attn.sequences.data.pairs import Vocabulary
from vision_attn.tokens.activation import settled
from vision_attn.tokens.inputs import channels_of
from vision_attn.tokens.outputs import logits_of
from vision_attn.types import (
    Activation,
    Calibration,
    Head,
    LoadedSequences,
    Model,
    Preprocessing,
    Provenance,
    Symbols,
    TokenLayout,
    Trust,
)

LARGEST_SIDE = 8192  # pixels of a network's input
Size = tuple[int, int]  # height, width


__all__ = ["load", "load_model", "load_sequences", "wrap"]


@dataclass(frozen=True)
class LoadRequest:
    """The arguments of `load_model`, without the word that says where the model comes from."""

    name: str
    weights: str | None
    pretrained: bool
    size: Size | None
    model_args: dict[str, Any]
    prompts: dict[str, list[str]] | None = None


class LoadedParts(NamedTuple):
    """What a source gives: `Model` is made of it."""

    network: nn.Module
    preprocess: Preprocess
    classes: list[str]
    calibration: Calibration = Calibration(activation="softmax")
    trust: Trust | None = None


def load(spec: str | Path, **options: Any) -> Model | LoadedSequences:
    """Load a model of any kind: of classes, as `load_model` does, or a checkpoint of sequences.

    options: those of `load_model`; a checkpoint of sequences or questions takes `value_range` of
    them alone.
    """
    with usual_defaults():
        return _load(spec, **options)


def _load(spec: str | Path, **options: Any) -> Model | LoadedSequences:
    saved = unpack(spec) if Path(spec).is_file() else None
    if saved is not None and saved.of_sequences:
        sequences = _sequences(saved)
        value_range = options.get("value_range")
        if value_range is None or not isinstance(sequences.preprocess, Preprocess):
            return sequences
        return replace(sequences, preprocess=replace(sequences.preprocess, value_range=value_range))
    return _load_model(str(spec), saved, **options)


def load_model(
    spec: str | Path,
    *,
    weights: str | Path | None = None,
    pretrained: bool = True,
    image_size: int | Size | None = None,
    value_range: ValueRange | None = None,
    classes: Classes | None = None,
    templates: Sequence[str] | None = None,
    **model_args: Any,
) -> Model:
    """Load a model: vision_attn:NAME, a checkpoint, or timm:, torchvision:, hf: or open_clip:NAME.

    vision_attn:NAME is a network of the package (`list_models`), calibrated at its input size.
    weights: a file (.safetensors, .pth, .ckpt) to take the weights from, so nothing is downloaded.
    pretrained: the library's own weights, downloaded once; False leaves them random.
    image_size: another input size than the model's own, one side or (height, width).
    value_range: the numbers that are black and white in the photos, such as (0, 4095) for 12 bits
    in a TIFF of 16; None: the model's own, else as `read_image` finds them.
    classes: in words, for a network that compares images with texts, such as
    hf:openai/clip-vit-base-patch32, hf:google/siglip-base-patch16-224, open_clip:ViT-B-32 or
    open_clip:ViT-B-32:TAG: texts, or a dict of names and the texts of each, whose embeddings are
    averaged. templates: texts with {} in the place of the class, such as "a photo of a {}"; the
    embeddings of all of them are averaged.
    model_args: for the library's own constructor, such as num_classes.

    Raises ModelError, one line, where there is no such model or its weights do not fit; ValueError
    where an argument is of another kind.
    """
    if not isinstance(spec, str | PathLike):
        raise ModelError(
            f"expected a checkpoint or SOURCE:NAME, got {quoted(spec)}: a network of your own "
            "goes into vision_attn.wrap(network, transform)"
        )
    check_path(spec)
    with usual_defaults():
        saved = unpack(spec) if Path(spec).is_file() else None
        return _load_model(
            str(spec),
            saved,
            weights=weights,
            pretrained=pretrained,
            image_size=image_size,
            value_range=value_range,
            classes=classes,
            templates=templates,
            **model_args,
        )


@checked()
def wrap(
    network: nn.Module,
    transform: Callable[[Any], Any],
    classes: Sequence[str] | None = None,
    layout: TokenLayout | None = None,
    *,
    head: Head | None = None,
    activation: Activation | None = None,
    name: str = "",
    weights: Provenance = "unknown",
) -> Model:
    """Make a model of a network of your own and the transform that it takes its images from.

    The transform is run on images whose pixels are their own coordinates: so it is known where what
    the network sees lies on a photo, whatever the transform crops, stretches, pads, turns or tilts.

    Args:
        network: Any module.
        transform: A `Preprocess`, or the transform for evaluation, such as torchvision's and
            timm's: from a PIL image, or a tensor (channels, height, width) of uint8 or of floats
            from 0 to 1, to a tensor of one size.
        classes: Their names in the order of the outputs; two for a network with one logit, the
            second for the logit itself. () for a network without a classifier. None: numbers, as
            many as it has outputs.
        layout: How its tokens lie on the input, which a run checks. None: as its kind says, or a
            run finds.
        head: Which part of its output is meant, by index, key or attribute.
        activation: What makes probabilities of its outputs; `none` for the values of a regression.
            None: as a run finds, a softmax, a sigmoid of one logit, or nothing where it ends in
            one.
        name: What titles call it.
        weights: Where its weights come from; titles warn of random ones.

    Raises:
        ModelError: The transform, the network, the classes and the layout do not fit, in one line.
        ValueError: An argument is of another kind.

    Examples:
        >>> import vision_attn
        >>> from torchvision.transforms import Compose, Resize, ToTensor
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(2, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> transform = Compose([Resize((32, 48)), ToTensor()])
        >>> model = vision_attn.wrap(network, transform, classes=["cat", "dog"])
        >>> model.preprocess.input_size, model.calibration.activation
        ((32, 48), 'softmax')
    """
    try:
        channels = next(iter(channels_of(network)), 3)
        preprocess: Preprocessing = (
            transform
            if isinstance(transform, Preprocessing)
            else MeasuredTransform(transform, channels)
        )
    except ValueError as error:
        raise ModelError(f"wrap: {error}") from None
    calibration = Calibration(activation=activation)
    known = list(classes or ())
    model = Model(network, preprocess, known, layout, name, weights, calibration, head)
    try:
        shape = 1, len(preprocess.mean), *preprocess.input_size
        blank = torch.zeros(shape, dtype=model.dtype, device=model.device)
        output = model_output(model, blank)
        if classes is None and has_classifier(network):
            with suppress(ValueError):  # it gives something else than logits
                known = _names([], logits_of(output, 1).shape[1])
        model = settled(replace(model, classes=known))
        if known:
            Class.of(model).logits(output)
        if layout is not None and (reason := contradiction(network, blank, layout, of_model=True)):
            raise ValueError(reason)
    except ValueError as error:
        raise ModelError(f"wrap: {error}") from None
    return replace(model, layout=layout or _layout(network, preprocess.input_size))


@checked(image_size=1)
def _load_model(
    spec: str,
    saved: Checkpoint | None,
    *,
    weights: str | Path | None = None,
    pretrained: bool = True,
    image_size: int | Size | None = None,
    value_range: ValueRange | None = None,
    classes: Classes | None = None,
    templates: Sequence[str] | None = None,
    **model_args: Any,
) -> Model:
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if size is not None and min(size) < 1:
        raise ModelError(f"image_size must be at least 1, got {image_size}")
    if size is not None:
        try:
            _check_side(size)
        except ValueError as error:
            raise ModelError(f"image_size: {error}") from None
    source, _, name = spec.partition(":")
    if saved is None and (source not in LIBRARIES or not name):
        raise ModelError(_unknown(spec))
    if weights is not None and not Path(weights).exists():
        raise ModelError(f"{weights}: no such file; expected a checkpoint or a weights file")
    if templates is not None and classes is None:
        raise ModelError("templates: expected classes beside them, got none")
    prompts = None if classes is None else prompts_of(classes, templates)
    if prompts is not None and (saved or source not in WITH_TEXTS):
        raise ModelError(no_texts(spec))
    ask = LoadRequest(
        name, str(weights) if weights else None, pretrained, size, model_args, prompts
    )
    network, preprocess, classes, calibration, trust = (
        _checkpoint(saved, ask) if saved else LIBRARIES[source](ask)
    )
    if value_range is not None:
        preprocess = replace(preprocess, value_range=value_range)
    network.eval()
    layout = _layout(network, preprocess.input_size)
    provenance = "trained" if saved else _provenance(network, ask)
    return Model(network, preprocess, classes, layout, spec, provenance, calibration, trust=trust)


def _shelf(ask: LoadRequest) -> LoadedParts:
    """A network of the package; without its own weights, or at another size, not calibrated."""
    saved = unpack(f"{PREFIX}{ask.name}")
    found = _checkpoint(saved if ask.pretrained else replace(saved, weights={}), ask)
    own_size = ask.size in (None, tuple(saved.about["preprocess"]["input_size"]))
    own = ask.pretrained and ask.weights is None and own_size
    if own:
        card = shelved(f"{PREFIX}{ask.name}")
        return found._replace(trust=trust_of(card.values.get("trust")))
    return found._replace(calibration=Calibration(activation=found.calibration.activation))


def _provenance(network: Any, ask: LoadRequest) -> Provenance:
    """Where the weights of a library's network come from.

    A library leaves a classifier random where the weights that it has are of other classes.
    """
    if ask.weights is not None:
        return "trained"
    if not ask.pretrained:
        return "random"
    own = getattr(network, "pretrained_cfg", {}).get("num_classes")  # timm's
    other = own is not None and network.num_classes not in (0, own)
    return "random classifier" if other or getattr(network, "missing", None) else "trained"


def _checkpoint(saved: Checkpoint, ask: LoadRequest) -> LoadedParts:
    """Rebuild a network from the entry "vision_attn" alone; no code of the file is run."""
    path = saved.path
    if ask.model_args:
        raise ModelError(
            f"{path}: a checkpoint takes no model arguments, got {listed(ask.model_args)}"
        )
    about = saved.about
    try:
        if saved.of_sequences:
            raise ValueError("it is a model of sequences or questions, not an image classifier")
        network = saved.build()
        preprocess = Preprocess(**about["preprocess"])
        _check_side(preprocess.input_size)
        classes = [str(name) for name in about["classes"]]
        outputs = about["network"]["init_args"].get("num_classes") or len(classes)
        if outputs != len(classes):
            raise ValueError(
                f"expected {outputs} class names, one for each output, got {len(classes)}"
            )
        calibration = Calibration(**{"activation": "softmax", **(about.get("calibration") or {})})
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: its network cannot be rebuilt: {_in_words(error)}") from error
    weights = read_weights(ask.weights) if ask.weights else saved.weights
    if weights:  # else they stay as they are drawn
        load_weights(network, weights, ask.weights or path)
    if ask.size is not None:
        preprocess = replace(preprocess, input_size=ask.size)
        if isinstance(network, TimmModel):
            network.set_image_size(ask.size)
    scored = ask.weights is None and ask.size is None
    trust = read_trust(Path(path)) if scored else None
    return LoadedParts(network, preprocess, classes, calibration, trust)


def load_sequences(path: str | Path) -> LoadedSequences:
    """Load the network of a checkpoint of sequences or questions; no code of the file is run.

    Raises ModelError, one line, for a checkpoint of another kind or a damaged one.
    """
    with usual_defaults():
        saved = unpack(path)
        if not saved.of_sequences:
            raise ModelError(
                f"{path}: expected a model of sequences or questions, got an image classifier"
            )
        return _sequences(saved)


def _sequences(saved: Checkpoint) -> LoadedSequences:
    path, about = saved.path, saved.about
    try:
        network = saved.build()
        vocabularies: dict[str, Symbols] = {
            name: Vocabulary(symbols) for name, symbols in about["vocabularies"].items()
        }
        preprocess = Preprocess(**about["preprocess"]) if about["preprocess"] else None
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: its network cannot be rebuilt: {_in_words(error)}") from error
    load_weights(network, saved.weights, path)
    return LoadedSequences(network.eval(), vocabularies, preprocess)


def _in_words(error: Exception) -> str:
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())


def _check_side(size: Size) -> None:
    """ValueError for a size that no photo has, and that no memory holds."""
    if max(size) > LARGEST_SIDE:
        height, width = size
        raise ValueError(f"expected a side of at most {LARGEST_SIDE} pixels, got {height}x{width}")


def _timm(ask: LoadRequest) -> LoadedParts:
    args = dict(ask.model_args)
    network: Any = create_timm(
        ask.name, pretrained=ask.pretrained and ask.weights is None, image_size=ask.size, **args
    )
    if ask.weights is not None:
        weights = read_timm_weights(network, ask.weights)
        if "num_classes" not in args:
            fit_classifier(network, weights)
        load_weights(network, weights, ask.weights)
    if not hasattr(network, "num_classes"):
        raise ModelError(
            f"timm:{ask.name}: expected a network that gives logits, got {quoted(network)} of "
            "features: wrap(network, transform, classes=(), head=INDEX) takes one of its outputs"
        )
    from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_model_data_config

    config = resolve_model_data_config(network)
    preprocess = _timm_preprocess(config, ask.size or args.get("img_size"))
    subset = infer_imagenet_subset({"num_classes": network.num_classes})
    names = ImageNetInfo(subset).label_descriptions() if subset else []
    activation = usual_activation(network.num_classes)
    return LoadedParts(network, preprocess, _names(list(names), network.num_classes), activation)


def _timm_preprocess(config: dict[str, Any], size: int | Size | None) -> Preprocess:
    """What timm's data config says; size: another input size than its own."""
    size = size or config["input_size"][1:]
    return Preprocess(
        input_size=(size, size) if isinstance(size, int) else tuple(size),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        crop_pct=min(1.0, config["crop_pct"]),
        interpolation=config["interpolation"],
        fit="squash" if config["crop_mode"] == "squash" else "crop",
    )


def _torchvision(ask: LoadRequest) -> LoadedParts:
    from torchvision.models import get_model_weights

    size = ask.size or _torchvision_size(ask.name)
    network = create_torchvision(
        ask.name,
        pretrained=ask.pretrained,
        weights=ask.weights,
        image_size=size,
        **ask.model_args,
    )
    about = get_model_weights(ask.name).DEFAULT
    transform = about.transforms()
    side = transform.crop_size[0]
    preprocess = Preprocess(
        input_size=size or (side, side),
        mean=tuple(transform.mean),
        std=tuple(transform.std),
        crop_pct=side / transform.resize_size[0],
        interpolation=transform.interpolation.value,
    )
    classes = _names(about.meta["categories"], ask.model_args.get("num_classes", 1000))
    return LoadedParts(network, preprocess, classes, usual_activation(len(classes)))


def _torchvision_size(name: str) -> Size | None:
    """The input size of a classifier's own weights; None for a name that torchvision lacks."""
    from torchvision import models

    if name not in models.list_models(module=models):
        return None
    side = models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
    return side, side


def _huggingface(ask: LoadRequest) -> LoadedParts:
    given = ask.pretrained, ask.weights, ask.model_args
    network: HuggingFaceModel | ImageTextModel = (
        HuggingFaceModel(ask.name, *given)
        if ask.prompts is None
        else huggingface_with_texts(ask.name, ask.prompts, *given)
    )
    options, side = network.processor, network.image_size or 224
    calibration = Calibration(activation=network.activation)
    if "data_config" in options:  # a network of timm, inside one of transformers
        preprocess = _timm_preprocess(options["data_config"], ask.size)
        return LoadedParts(network, preprocess, network.classes, calibration)
    if options.get("do_flip_channel_order"):
        raise ModelError(
            f"hf:{ask.name}: expected a network of RGB images, got one of BGR images "
            "(do_flip_channel_order is true): in a copy, reverse the input channels of its first "
            "layer and set that to false in preprocessor_config.json"
        )
    resize = options.get("size") or {"height": side, "width": side}
    crop = options.get("crop_size") if options.get("do_center_crop") else None
    whole = _sides(ask.name, "size", resize)
    size = _sides(ask.name, "crop_size", crop) if crop else whole
    mean, std = _normalization(options)
    preprocess = Preprocess(
        input_size=ask.size or size,
        mean=mean,
        std=std,
        crop_pct=min(1.0, size[0] / whole[0] * options.get("crop_pct", 1.0)),
        interpolation=Image.Resampling(options.get("resample", 2)).name.lower(),
        fit="squash" if isinstance(resize, int) or not resize.get("shortest_edge") else "crop",
    )
    return LoadedParts(network, preprocess, network.classes, calibration)


def _open_clip(ask: LoadRequest) -> LoadedParts:
    if ask.prompts is None:
        raise ModelError(no_classes(f"open_clip:{ask.name}"))
    network = create_open_clip(
        ask.name, ask.prompts, ask.pretrained, ask.weights, ask.size, ask.model_args
    )
    about = network.processor
    side = about["size"]
    preprocess = Preprocess(
        input_size=ask.size or ((side, side) if isinstance(side, int) else tuple(side)),
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        interpolation=about.get("interpolation", "bicubic"),
        fit="squash" if about.get("resize_mode") == "squash" else "crop",
    )
    return LoadedParts(
        network, preprocess, network.classes, Calibration(activation=network.activation)
    )


def usual_activation(outputs: int) -> Calibration:
    """Return what makes probabilities of so many logits: a softmax, of one a sigmoid."""
    return Calibration(activation="sigmoid" if outputs == 1 else "softmax")


def _sides(name: str, option: str, size: Any) -> Size:
    """Height and width of a size of Hugging Face's image processors."""
    if isinstance(size, int):
        return size, size
    height, width, edge = (size.get(key) for key in ("height", "width", "shortest_edge"))
    if edge:
        return edge, edge
    if not height or not width:
        raise ModelError(
            f"hf:{name}: expected {option} to be a number, height and width, or shortest_edge, "
            f"got {dict(size)}: in a copy, set it to one of these in preprocessor_config.json"
        )
    return height, width


def _normalization(options: dict[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of Hugging Face's image processor; ViT's where there is none.

    A processor subtracts nothing where do_normalize is false, null or absent.
    """
    if not options:
        return (0.5,) * 3, (0.5,) * 3
    mean, std = options.get("image_mean"), options.get("image_std")
    if not options.get("do_normalize") or mean is None:
        return (0.0,) * 3, (1.0,) * 3
    return _three(mean), _three(1.0 if std is None else std)


def _three(values: float | Sequence[float]) -> tuple[float, ...]:
    return (values,) * 3 if isinstance(values, int | float) else tuple(values)


LIBRARIES: dict[str, Callable[[LoadRequest], LoadedParts]] = {
    "vision_attn": _shelf,
    "timm": _timm,
    "torchvision": _torchvision,
    "hf": _huggingface,
    "open_clip": _open_clip,
}
WITH_TEXTS = ("hf", "open_clip")  # sources of networks that take classes in words


def _names(names: list[str], count: int) -> list[str]:
    """The names where there are as many as outputs, else numbers."""
    return names if len(names) == count else [f"class {i}" for i in range(count)]


def _layout(network: nn.Module, size: Size) -> TokenLayout | None:
    from vision_attn.tokens.layout import layout_of

    try:
        return layout_of(network, size)
    except ValueError as error:
        if isinstance(network, ViT):  # it has tokens, but not at this size
            raise ModelError(f"image_size: {error}") from error
        return None  # a run tells, where there is attention


def _unknown(spec: str) -> str:
    """What to say where a spec is neither a file nor SOURCE:NAME."""
    expected = (
        "expected a checkpoint file, vision_attn:NAME, timm:NAME, torchvision:NAME, hf:NAME or "
        "open_clip:NAME"
    )
    path = Path(spec)
    if path.is_dir():
        found = ", ".join(map(str, sorted(path.rglob("*.ckpt"))[:3]))
        return f"{spec}: a folder; {expected}" + (f"; it holds {found}" if found else "")
    from timm import is_model

    if is_model(spec):
        return f"{spec}: no such file; the network of that name is timm:{spec}"
    named = get_close_matches(spec, [card.name for card in Shelf()], 1, cutoff=0.8)
    if spec in named:
        return f"{spec}: no such file; the network of that name is {PREFIX}{spec}"
    if named:
        return f"{spec}: no such file; did you mean {PREFIX}{named[0]}?"
    source, colon, name = spec.partition(":")
    if colon and name and path.suffix != ".ckpt":
        near = did_you_mean(source, LIBRARIES)
        return f"no source of models named {quoted(source)}{near}; {expected}"
    return f"{spec}: no such file; {expected}"
