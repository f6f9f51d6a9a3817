"""Models of timm, torchvision, Hugging Face and open_clip, and the preprocessing of each.

Axes: none.
"""

from collections.abc import Sequence
from typing import Any

from PIL import Image

from vision_attn.data.preprocess import Preprocess
from vision_attn.errors import ModelError, quoted
from vision_attn.hub.parts import LoadedParts, LoadRequest, Size, names_or_numbers, usual_activation
from vision_attn.models.checkpoint import load_weights
from vision_attn.models.huggingface_model import HuggingFaceModel, no_classes
from vision_attn.models.image_text import ImageTextModel, create_open_clip, huggingface_with_texts
from vision_attn.models.timm_model import create_timm, fit_classifier, read_timm_weights
from vision_attn.models.torchvision_model import create_torchvision
from vision_attn.types import Calibration

__all__ = ["from_huggingface", "from_open_clip", "from_timm", "from_torchvision"]


def from_timm(request: LoadRequest) -> LoadedParts:
    """Make a classifier of timm, with the preprocessing of its data config."""
    args = dict(request.model_args)
    network: Any = create_timm(
        request.name,
        pretrained=request.pretrained and request.weights is None,
        image_size=request.size,
        **args,
    )
    if request.weights is not None:
        weights = read_timm_weights(network, request.weights)
        if "num_classes" not in args:
            fit_classifier(network, weights)
        load_weights(network, weights, request.weights)
    if not hasattr(network, "num_classes"):
        raise ModelError(
            f"timm:{request.name}: expected a network that gives logits, got {quoted(network)} of "
            "features: wrap(network, transform, classes=(), head=INDEX) takes one of its outputs"
        )
    from timm.data.config import resolve_model_data_config
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    config = resolve_model_data_config(network)
    preprocess = _timm_preprocess(config, request.size or args.get("img_size"))
    subset = infer_imagenet_subset({"num_classes": network.num_classes})
    names = ImageNetInfo(subset).label_descriptions() if subset else []
    activation = usual_activation(network.num_classes)
    return LoadedParts(
        network, preprocess, names_or_numbers(list(names), network.num_classes), activation
    )


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


def from_torchvision(request: LoadRequest) -> LoadedParts:
    """Make a classifier of torchvision, with the transform of its default weights."""
    from torchvision.models import get_model_weights

    size = request.size or _torchvision_size(request.name)
    network = create_torchvision(
        request.name,
        pretrained=request.pretrained,
        weights=request.weights,
        image_size=size,
        **request.model_args,
    )
    weights = get_model_weights(request.name).DEFAULT
    transform = weights.transforms()
    side = transform.crop_size[0]
    preprocess = Preprocess(
        input_size=size or (side, side),
        mean=tuple(transform.mean),
        std=tuple(transform.std),
        crop_pct=side / transform.resize_size[0],
        interpolation=transform.interpolation.value,
    )
    classes = names_or_numbers(
        weights.meta["categories"], request.model_args.get("num_classes", 1000)
    )
    return LoadedParts(network, preprocess, classes, usual_activation(len(classes)))


def _torchvision_size(name: str) -> Size | None:
    """The input size of a classifier's own weights; None for a name that torchvision lacks."""
    from torchvision import models

    if name not in models.list_models(module=models):
        return None
    side = models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
    return side, side


def from_huggingface(request: LoadRequest) -> LoadedParts:
    """Make a classifier of transformers, or an encoder compared with texts, with its processor."""
    source = request.pretrained, request.weights, request.model_args
    network: HuggingFaceModel | ImageTextModel = (
        HuggingFaceModel(request.name, *source)
        if request.prompts is None
        else huggingface_with_texts(request.name, request.prompts, *source)
    )
    options, side = network.processor, network.image_size or 224
    calibration = Calibration(activation=network.activation)
    if "data_config" in options:  # a network of timm, inside one of transformers
        preprocess = _timm_preprocess(options["data_config"], request.size)
        return LoadedParts(network, preprocess, network.classes, calibration)
    if options.get("do_flip_channel_order"):
        raise ModelError(
            f"hf:{request.name}: expected a network of RGB images, got one of BGR images "
            "(do_flip_channel_order is true): in a copy, reverse the input channels of its first "
            "layer and set that to false in preprocessor_config.json"
        )
    resize = options.get("size") or {"height": side, "width": side}
    crop = options.get("crop_size") if options.get("do_center_crop") else None
    whole = _sides(request.name, "size", resize)
    size = _sides(request.name, "crop_size", crop) if crop else whole
    mean, std = _normalization(options)
    preprocess = Preprocess(
        input_size=request.size or size,
        mean=mean,
        std=std,
        crop_pct=min(1.0, size[0] / whole[0] * options.get("crop_pct", 1.0)),
        interpolation=Image.Resampling(options.get("resample", 2)).name.lower(),
        fit="squash" if isinstance(resize, int) or not resize.get("shortest_edge") else "crop",
    )
    return LoadedParts(network, preprocess, network.classes, calibration)


def from_open_clip(request: LoadRequest) -> LoadedParts:
    """Make an encoder of open_clip that compares images with texts."""
    if request.prompts is None:
        raise ModelError(no_classes(f"open_clip:{request.name}"))
    network = create_open_clip(
        request.name,
        request.prompts,
        request.pretrained,
        request.weights,
        request.size,
        request.model_args,
    )
    options = network.processor
    side = options["size"]
    preprocess = Preprocess(
        input_size=request.size or ((side, side) if isinstance(side, int) else tuple(side)),
        mean=tuple(options["mean"]),
        std=tuple(options["std"]),
        interpolation=options.get("interpolation", "bicubic"),
        fit="squash" if options.get("resize_mode") == "squash" else "crop",
    )
    return LoadedParts(
        network, preprocess, network.classes, Calibration(activation=network.activation)
    )


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
