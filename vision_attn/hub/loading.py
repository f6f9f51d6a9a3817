"""A model by one word: where it comes from, and its name there.

Axes: none.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from vision_attn.arguments import check_path, checked
from vision_attn.data.preprocess import Preprocess
from vision_attn.data.ranges import ValueRange
from vision_attn.errors import ModelError, did_you_mean, quoted
from vision_attn.hub.checkpoints import from_checkpoint, from_shelf, sequences_of
from vision_attn.hub.libraries import from_huggingface, from_open_clip, from_timm, from_torchvision
from vision_attn.hub.parts import LoadedParts, LoadRequest, Size, check_side, layout_or_none
from vision_attn.inference import usual_defaults
from vision_attn.models.checkpoint import Checkpoint, unpack
from vision_attn.models.image_text import Classes, no_texts, prompts_of
from vision_attn.models.shelf import PREFIX, Shelf
from vision_attn.types import LoadedSequences, Model, Provenance

__all__ = ["load", "load_model", "load_sequences"]

LIBRARIES: dict[str, Callable[[LoadRequest], LoadedParts]] = {
    "vision_attn": from_shelf,
    "timm": from_timm,
    "torchvision": from_torchvision,
    "hf": from_huggingface,
    "open_clip": from_open_clip,
}
WITH_TEXTS = ("hf", "open_clip")  # sources of networks that take classes in words


def load(spec: str | Path, **options: Any) -> Model | LoadedSequences:
    """Load a model of any kind: of classes, as `load_model` does, or a checkpoint of sequences.

    Args:
        spec: As `load_model` takes it.
        options: Those of `load_model`; a checkpoint of sequences or questions takes `value_range`
            of them alone.

    Returns:
        The model, in eval mode, on the CPU.

    Raises:
        ModelError: There is no such model, or its weights do not fit; in one line.
    """
    with usual_defaults():
        return _load(spec, **options)


def _load(spec: str | Path, **options: Any) -> Model | LoadedSequences:
    checkpoint = unpack(spec) if Path(spec).is_file() else None
    if checkpoint is not None and checkpoint.of_sequences:
        sequences = sequences_of(checkpoint)
        value_range = options.get("value_range")
        if value_range is None or not isinstance(sequences.preprocess, Preprocess):
            return sequences
        return replace(sequences, preprocess=replace(sequences.preprocess, value_range=value_range))
    return _load_model(str(spec), checkpoint, **options)


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

    Args:
        spec: Where it comes from, and its name there. vision_attn:NAME is a network of the package
            (`list_models`), calibrated at its input size; a checkpoint is a file.
        weights: A file (.safetensors, .pth, .ckpt) to take the weights from, so nothing is
            downloaded.
        pretrained: The library's own weights, downloaded once; False leaves them random.
        image_size: Another input size than the model's own, in pixels: one side, or (height,
            width).
        value_range: The numbers that are black and white in the photos, such as (0, 4095) for 12
            bits in a TIFF of 16; None: the model's own, else as `read_image` finds them.
        classes: In words, for a network that compares images with texts, such as
            hf:openai/clip-vit-base-patch32, hf:google/siglip-base-patch16-224, open_clip:ViT-B-32
            or open_clip:ViT-B-32:TAG: texts, or a dict of names and the texts of each, whose
            embeddings are averaged.
        templates: Texts with {} in the place of the class, such as "a photo of a {}"; the
            embeddings of all of them are averaged.
        model_args: For the library's own constructor, such as num_classes.

    Returns:
        A model in eval mode, on the CPU.

    Raises:
        ModelError: There is no such model, or its weights do not fit; in one line.
        ValueError: An argument is of another kind.
    """
    if not isinstance(spec, str | PathLike):
        raise ModelError(
            f"expected a checkpoint or SOURCE:NAME, got {quoted(spec)}: a network of your own "
            "goes into vision_attn.wrap(network, transform)"
        )
    check_path(spec)
    with usual_defaults():
        checkpoint = unpack(spec) if Path(spec).is_file() else None
        return _load_model(
            str(spec),
            checkpoint,
            weights=weights,
            pretrained=pretrained,
            image_size=image_size,
            value_range=value_range,
            classes=classes,
            templates=templates,
            **model_args,
        )


def load_sequences(path: str | Path) -> LoadedSequences:
    """Load the network of a checkpoint of sequences or questions; no code of the file is run.

    Args:
        path: The file.

    Returns:
        The network in eval mode, its vocabularies and preprocessing.

    Raises:
        ModelError: It is a checkpoint of another kind, or damaged; in one line.
    """
    with usual_defaults():
        checkpoint = unpack(path)
        if not checkpoint.of_sequences:
            raise ModelError(
                f"{path}: expected a model of sequences or questions, got an image classifier"
            )
        return sequences_of(checkpoint)


@checked(image_size=1)
def _load_model(
    spec: str,
    checkpoint: Checkpoint | None,
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
            check_side(size)
        except ValueError as error:
            raise ModelError(f"image_size: {error}") from None
    source, _, name = spec.partition(":")
    if checkpoint is None and (source not in LIBRARIES or not name):
        raise ModelError(_unknown(spec))
    if weights is not None and not Path(weights).exists():
        raise ModelError(f"{weights}: no such file; expected a checkpoint or a weights file")
    if templates is not None and classes is None:
        raise ModelError("templates: expected classes beside them, got none")
    prompts = None if classes is None else prompts_of(classes, templates)
    if prompts is not None and (checkpoint or source not in WITH_TEXTS):
        raise ModelError(no_texts(spec))
    request = LoadRequest(
        name, str(weights) if weights else None, pretrained, size, model_args, prompts
    )
    network, preprocess, classes, calibration, trust = (
        from_checkpoint(checkpoint, request) if checkpoint else LIBRARIES[source](request)
    )
    if value_range is not None:
        preprocess = replace(preprocess, value_range=value_range)
    network.eval()
    layout = layout_or_none(network, preprocess.input_size)
    provenance = "trained" if checkpoint else _provenance(network, request)
    return Model(network, preprocess, classes, layout, spec, provenance, calibration, trust=trust)


def _provenance(network: Any, request: LoadRequest) -> Provenance:
    """Where the weights of a library's network come from.

    A library leaves a classifier random where the weights that it has are of other classes.
    """
    if request.weights is not None:
        return "trained"
    if not request.pretrained:
        return "random"
    own = getattr(network, "pretrained_cfg", {}).get("num_classes")  # timm's
    other = own is not None and network.num_classes not in (0, own)
    return "random classifier" if other or getattr(network, "missing", None) else "trained"


def _unknown(spec: str) -> str:
    """What to say where a spec is neither a file nor SOURCE:NAME."""
    expected = (
        "expected a checkpoint file, vision_attn:NAME, timm:NAME, torchvision:NAME, hf:NAME or "
        "open_clip:NAME"
    )
    path = Path(spec)
    if path.is_dir():
        checkpoints = ", ".join(map(str, sorted(path.rglob("*.ckpt"))[:3]))
        return f"{spec}: a folder; {expected}" + (
            f"; it holds {checkpoints}" if checkpoints else ""
        )
    from timm import is_model

    if is_model(spec):
        return f"{spec}: no such file; the network of that name is timm:{spec}"
    close_names = get_close_matches(spec, [card.name for card in Shelf()], 1, cutoff=0.8)
    if spec in close_names:
        return f"{spec}: no such file; the network of that name is {PREFIX}{spec}"
    if close_names:
        return f"{spec}: no such file; did you mean {PREFIX}{close_names[0]}?"
    source, colon, name = spec.partition(":")
    if colon and name and path.suffix != ".ckpt" and not path.drive:
        hint = did_you_mean(source, LIBRARIES)
        return f"no source of models named {quoted(source)}{hint}; {expected}"
    return f"{spec}: no such file; {expected}"
