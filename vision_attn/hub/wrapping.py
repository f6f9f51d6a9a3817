"""A model of a network of your own.

Axes: none.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vision_attn.arguments import checked
from vision_attn.data.measured import MeasuredTransform
from vision_attn.errors import ModelError
from vision_attn.hub.parts import layout_or_none, names_or_numbers
from vision_attn.methods.base import contradiction
from vision_attn.methods.targets import Class, has_classifier, model_output
from vision_attn.tokens.activation import settled
from vision_attn.tokens.inputs import channels_of
from vision_attn.tokens.outputs import logits_of
from vision_attn.types import (
    Activation,
    Calibration,
    Head,
    Model,
    Preprocessing,
    Provenance,
    TokenLayout,
)

__all__ = ["wrap"]


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

    Returns:
        The model.

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
    names = list(classes or ())
    model = Model(network, preprocess, names, layout, name, weights, calibration, head)
    try:
        shape = 1, len(preprocess.mean), *preprocess.input_size
        blank = torch.zeros(shape, dtype=model.dtype, device=model.device)
        output = model_output(model, blank)
        if classes is None and has_classifier(network):
            with suppress(ValueError):  # it gives something else than logits
                names = names_or_numbers([], logits_of(output, 1).shape[1])
        model = settled(replace(model, classes=names))
        if names:
            Class.of(model).logits(output)
        if layout is not None and (reason := contradiction(network, blank, layout, of_model=True)):
            raise ValueError(reason)
    except ValueError as error:
        raise ModelError(f"wrap: {error}") from None
    return replace(model, layout=layout or layout_or_none(network, preprocess.input_size))
