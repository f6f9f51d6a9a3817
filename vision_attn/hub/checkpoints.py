"""Models of checkpoints, and of the shelf, whose networks are checkpoints too.

Axes: none.
"""

from dataclasses import replace
from pathlib import Path

from vision_attn.data.preprocess import Preprocess
from vision_attn.errors import ModelError, listed
from vision_attn.hub.parts import LoadedParts, LoadRequest, check_side
from vision_attn.models.checkpoint import Checkpoint, load_weights, read_weights, unpack
from vision_attn.models.shelf import PREFIX, shelved
from vision_attn.models.timm_model import TimmModel
from vision_attn.models.trust import read_trust, trust_of
from vision_attn.sequences.data.pairs import Vocabulary
from vision_attn.types import Calibration, LoadedSequences, Symbols

__all__ = ["from_checkpoint", "from_shelf", "sequences_of"]


def from_shelf(request: LoadRequest) -> LoadedParts:
    """Build a network of the package; its calibration is of its own weights and size alone."""
    checkpoint = unpack(f"{PREFIX}{request.name}")
    parts = from_checkpoint(
        checkpoint if request.pretrained else replace(checkpoint, weights={}), request
    )
    own_size = request.size in (None, tuple(checkpoint.about["preprocess"]["input_size"]))
    if request.pretrained and request.weights is None and own_size:
        card = shelved(f"{PREFIX}{request.name}")
        return parts._replace(trust=trust_of(card.values.get("trust")))
    return parts._replace(calibration=Calibration(activation=parts.calibration.activation))


def from_checkpoint(checkpoint: Checkpoint, request: LoadRequest) -> LoadedParts:
    """Rebuild a network from the entry "vision_attn" alone; no code of the file is run."""
    path = checkpoint.path
    if request.model_args:
        raise ModelError(
            f"{path}: a checkpoint takes no model arguments, got {listed(request.model_args)}"
        )
    entry = checkpoint.about
    try:
        if checkpoint.of_sequences:
            raise ValueError("it is a model of sequences or questions, not an image classifier")
        network = checkpoint.build()
        preprocess = Preprocess(**entry["preprocess"])
        check_side(preprocess.input_size)
        classes = [str(name) for name in entry["classes"]]
        outputs = entry["network"]["init_args"].get("num_classes") or len(classes)
        if outputs != len(classes):
            raise ValueError(
                f"expected {outputs} class names, one for each output, got {len(classes)}"
            )
        calibration = Calibration(**{"activation": "softmax", **(entry.get("calibration") or {})})
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: its network cannot be rebuilt: {_in_words(error)}") from error
    weights = read_weights(request.weights) if request.weights else checkpoint.weights
    if weights:  # else they stay as they are drawn
        load_weights(network, weights, request.weights or path)
    if request.size is not None:
        preprocess = replace(preprocess, input_size=request.size)
        if isinstance(network, TimmModel):
            network.set_image_size(request.size)
    scored = request.weights is None and request.size is None
    trust = read_trust(Path(path)) if scored else None
    return LoadedParts(network, preprocess, classes, calibration, trust)


def sequences_of(checkpoint: Checkpoint) -> LoadedSequences:
    """Rebuild a network of sequences or questions, with its vocabularies."""
    path, entry = checkpoint.path, checkpoint.about
    try:
        network = checkpoint.build()
        vocabularies: dict[str, Symbols] = {
            name: Vocabulary(symbols) for name, symbols in entry["vocabularies"].items()
        }
        preprocess = Preprocess(**entry["preprocess"]) if entry["preprocess"] else None
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: its network cannot be rebuilt: {_in_words(error)}") from error
    load_weights(network, checkpoint.weights, path)
    return LoadedSequences(network.eval(), vocabularies, preprocess)


def _in_words(error: Exception) -> str:
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())
