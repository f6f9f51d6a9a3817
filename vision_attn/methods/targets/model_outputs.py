"""What a model gives that can be explained, and whether it has classes.

Axes: b images, k classes.
"""

from typing import Any

from torch import Tensor, nn

from vision_attn.methods.targets.classes import Class
from vision_attn.tokens.inputs import images_in_words
from vision_attn.tokens.outputs import logits_of, part_of, run
from vision_attn.types import Images, Logits, Model

__all__ = ["has_classifier", "model_logits", "model_output", "no_classifier"]


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
