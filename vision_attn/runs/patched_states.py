"""Where in a network a class is decided: the state of each token, taken from another photo.

Axes: l layers, t tokens.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from vision_attn.methods.targets import Class, TargetLike, model_output
from vision_attn.runs.ablation import blank_for, request_of
from vision_attn.runs.explain import prepare
from vision_attn.runs.interventions import kept_of
from vision_attn.runs.progress import Silent
from vision_attn.tokens.activation import settled
from vision_attn.tokens.interventions.anatomy import anatomy_of
from vision_attn.tokens.interventions.editor import Changes
from vision_attn.tokens.interventions.resume import Resumable
from vision_attn.tokens.path.path import find_path
from vision_attn.types import Head, Model, TokenLayout

__all__ = ["PatchedStates", "measure_states"]


@dataclass(frozen=True, eq=False)
class PatchedStates:
    """How far the state of one token, taken from another photo, brings the other photo's answer.

    Attributes:
        recovered: (l t), for the token's state where the layer begins: the target's number with it,
            from 0 (as for the photo itself) to 1 (as for the other).
        layers: Which they are.
        photo: The target's number for the photo.
        other: The target's number for the other photo.
        explained: What the target is, in words.
        layout: How the tokens lie on the photo, None where that is not known.

    Examples:
        >>> import numpy as np
        >>> import vision_attn
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=10)
        >>> photos = np.random.default_rng(0).integers(0, 256, (2, 60, 80, 3), np.uint8)
        >>> found = vision_attn.patch_states(model, *photos, target=3, contrast=5)
        >>> found.recovered.shape, found.layers[:2]
        (torch.Size([6, 101]), [0, 1])
    """

    recovered: Float[Tensor, "l t"]
    layers: list[int]
    photo: float
    other: float
    explained: str
    layout: TokenLayout | None = None

    def table(self) -> list[dict[str, Any]]:
        """Rows of plain values: layer, token, recovered."""
        rows = self.recovered.tolist()
        return [
            {"layer": layer, "token": token, "recovered": value}
            for layer, row in zip(self.layers, rows, strict=True)
            for token, value in enumerate(row)
        ]


def measure_states(
    model: Model,
    photo: Image,
    other: Image,
    target: TargetLike,
    contrast: TargetLike,
    head: Head | None,
    batch_size: int,
    progress: Silent,
) -> PatchedStates:
    """Patch each token's state, in each layer; the arguments are those of `patch_states`."""
    model = settled(model if head is None else replace(model, head=head))
    network = model.network
    anatomy = anatomy_of(network, blank_for(model))
    layers = [
        number for number, layer in enumerate(anatomy.layers) if layer.enters and layer.windows == 1
    ]
    tokens = max((anatomy.layers[number].tokens for number in layers), default=0)
    layers = [number for number in layers if anatomy.layers[number].tokens == tokens]
    if not layers:
        raise ValueError(
            f"{type(network).__name__}: no layer begins with a stream (batch, tokens, width) whose "
            "tokens could be patched"
        )
    inputs = [prepare(model, [image]) for image in (photo, other)]
    outputs = [model_output(model, image) for image in inputs]
    if target is None:
        classes = [int(Class.of(model).logits(output).argmax(1)) for output in outputs]
        if classes[0] == classes[1]:
            raise ValueError(
                "both photos are predicted to show the same class: give target= and contrast=, or "
                "another photo"
            )
        target, contrast = classes[1], classes[0] if contrast is None else contrast
    request = request_of(model, target, contrast)
    numbers = request.target_of([None])
    low, high = (float(numbers(output).double()) for output in outputs)
    if low == high:
        raise ValueError(f"{request.words} is {low:.3g} for both photos: nothing can be recovered")
    resumable = Resumable(network, anatomy)
    copy = replace(model, network=resumable.network)
    size = min(batch_size, tokens)
    images = inputs[0].expand(size, *inputs[0].shape[1:]).contiguous()
    rows = []
    with progress:
        progress.start("layers x tokens", len(layers) * tokens)
        plain = resumable.first(lambda: model_output(copy, images))
        resumable.prove(lambda: numbers(model_output(copy, images)), numbers(plain))
        for number in layers:
            spot, row = anatomy.layers[number].enters, []
            assert spot is not None
            source = kept_of(network, anatomy, Changes(states={spot: [0]}), inputs[1])
            for first in range(0, tokens, size):
                patched = [min(token, tokens - 1) for token in range(first, first + size)]
                changes = Changes(states={spot: patched}, by_row=True)
                output = resumable.again(changes, lambda: model_output(copy, images), source)
                row.append(numbers(output).detach().double().cpu()[: tokens - first])
                progress.advance(min(size, tokens - first))
            rows.append((torch.cat(row) - low) / (high - low))
    layout = model.layout or find_path(network, inputs[0]).layout
    if layout is not None and layout.tokens != tokens:
        layout = None
    return PatchedStates(torch.stack(rows).float(), layers, low, high, request.words, layout)
