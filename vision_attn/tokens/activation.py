"""What a network's outputs are: logits of a softmax, one of a sigmoid, or probabilities already.

A run tells: on noise of several strengths the logits of a network leave the range from 0 to 1 or do
not sum to 1; what ends in a softmax or a sigmoid does neither, and says so in its graph.

Axes: b batch, k classes.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vision_attn.inference import eval_mode, infer
from vision_attn.tokens.outputs import logits_of, part_of
from vision_attn.types import Activation, Head, Images, Logits, Model

__all__ = ["activation_of", "settled"]

STRENGTHS = (0.0, 0.5, 1.0, 2.0, 4.0)  # standard deviations of the noise
MANY = 16  # outputs that do not all lie between 0 and 1 by chance
TOLERANCE = 1e-3  # of a sum of probabilities, in half precision too
SQUASHING = ("Softmax", "SafeSoftmax", "Sigmoid", "Hardsigmoid")
# Names of what changes no number, as torch's graph has them.
MOVING = (
    *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "T", "Transpose", "Permute"),
    *("Alias", "Clone", "ToCopy", "Slice", "Select", "Expand", "AsStrided"),
)

_SETTLED: WeakKeyDictionary[nn.Module, dict[Any, Activation]] = WeakKeyDictionary()


def settled(model: Model) -> Model:
    """Fill in the model's output activation by a run, if its calibration does not have it.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.tokens.activation import settled
        >>> from vision_attn.types import Model
        >>> head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 1))
        >>> model = Model(head, Preprocess((4, 4), (0.5,) * 3, (0.5,) * 3), ["cat", "dog"], None)
        >>> settled(model).calibration.activation
        'sigmoid'
    """
    if model.calibration.activation is not None or not model.classes:
        return model
    activations = _SETTLED.setdefault(model.network, {})
    key = model.head, tuple(model.preprocess.input_size), len(model.classes)
    if key not in activations:
        weight = next((x for x in model.network.parameters() if x.is_floating_point()), None)
        channels, size = len(model.preprocess.mean), model.preprocess.input_size
        generator = torch.Generator("cpu").manual_seed(0)
        shape = len(STRENGTHS), channels, *size
        noise = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        strengths = torch.tensor(STRENGTHS, dtype=torch.float32, device="cpu")
        images = noise * strengths[:, None, None, None]
        images = images.to(model.device, torch.float32 if weight is None else weight.dtype)
        activations[key] = "softmax"
        with suppress(Exception):  # the network's own code, on noise: what it gives is unknown
            activations[key] = activation_of(model.network, images, model.head)
    calibration = replace(model.calibration, activation=activations[key])
    return replace(model, calibration=calibration)


def activation_of(network: nn.Module, images: Images, head: Head | None = None) -> Activation:
    """Find the function that turns a network's outputs into probabilities, by a run on noise.

    Raises ValueError where it gives no logits.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.activation import activation_of
        >>> ends = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Softmax(dim=1))
        >>> activation_of(ends, torch.randn(5, 3, 1, 1))
        'identity'
    """
    with torch.inference_mode(False), eval_mode(network), torch.enable_grad():
        output = infer(network, images.clone().requires_grad_())
        logits = logits_of(output if head is None else part_of(output, head), len(images))
        squashed = ends_squashed(logits)
    if gives_probabilities(logits.detach().float(), squashed):
        return "identity"
    return "sigmoid" if logits.shape[1] == 1 else "softmax"


def gives_probabilities(outputs: Logits, squashed: bool) -> bool:
    """Whether outputs are probabilities: from 0 to 1, and squashed, or summing to 1, or many."""
    if outputs.min() < 0 or outputs.max() > 1:
        return False
    sums_to_one = (outputs.sum(dim=1) - 1).abs().max() < TOLERANCE and outputs.shape[1] > 1
    return squashed or bool(sums_to_one) or outputs.shape[1] >= MANY


def ends_squashed(outputs: Tensor) -> bool:
    """Whether the last operation that made these numbers is a softmax or a sigmoid."""
    node: Any = outputs.grad_fn
    while node is not None:
        name = type(node).__name__.partition("Backward")[0]
        if name in SQUASHING:
            return True
        if name not in MOVING or not node.next_functions:
            return False
        node = node.next_functions[0][0]
    return False
