"""What is explained: one number an image, made of a network's output.

    GradCAM()(model, images, target="tabby")                          the class's logit
    GradCAM()(model, images, target=["tabby", "collie"])              a class an image
    GradCAM()(model, images, target=Difference("tabby", "collie"))    why one rather than the other
    GradCAM()(encoder, images, target=Similarity(embedding))          an encoder without classes
    GradCAM()(network, images, target=lambda output: output[:, 0])    whatever you compute of it

`as_target` makes a `Target` of each of these, and is the only place that does.

Axes: b images, k classes or numbers of an output, h height, w width, n tokens, q boxes.
"""

from vision_attn.methods.targets.boxes import Box
from vision_attn.methods.targets.classes import Class, name_of
from vision_attn.methods.targets.contrasts import Difference, Odds, check_contrast
from vision_attn.methods.targets.conversion import as_target
from vision_attn.methods.targets.functions import Function
from vision_attn.methods.targets.model_outputs import (
    has_classifier,
    model_logits,
    model_output,
    no_classifier,
)
from vision_attn.methods.targets.per_image import PerImage
from vision_attn.methods.targets.pixels import PixelsOf
from vision_attn.methods.targets.target import Target, TargetLike
from vision_attn.methods.targets.vectors import Channel, Direction, Similarity

__all__ = [
    "Box",
    "Channel",
    "Class",
    "Difference",
    "Direction",
    "Function",
    "Odds",
    "PerImage",
    "PixelsOf",
    "Similarity",
    "Target",
    "TargetLike",
    "as_target",
    "check_contrast",
    "has_classifier",
    "model_logits",
    "model_output",
    "name_of",
    "no_classifier",
]
