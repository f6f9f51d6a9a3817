"""The path of a network's tokens, for who asks for it, and why another network has none."""

from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.arguments import checked
from vision_attn.hooks import Hooks, apart
from vision_attn.inference import infer, modules_of
from vision_attn.tokens.inputs import declared_size, images_in_words
from vision_attn.tokens.modules import network_of, why_opaque
from vision_attn.tokens.path.path import Path, find_path
from vision_attn.types import Images, Model, TokenLayout

__all__ = ["blank_image", "probe", "refusal_of", "trace_tokens"]

USUAL = 224  # height and width of images where a network tells nothing


@checked()
def trace_tokens(network: nn.Module | Model, images: Images | None = None) -> Path:
    """Trace every token of a network from the image, through its attention calls, to its logits.

    One run on two copies of an image proves it, mostly without computing a value; names of modules
    play no part. The path is remembered for the network as it is and for the size of the images.

    Args:
        network: A network, or a model for its network.
        images: Images (b, channels, height, width) of the size in question, of which the first is
            run. None: a blank image of the size that the model or the network says it takes.

    Returns:
        The `Path`. Its `steps` are the attention calls, its `layout` says how the tokens lie on the
        image, its `chain` carries a map from the logits back to them, and its `refusal` says why
        there is no map, or is None. Printed, it is a table.

    Raises:
        ValueError: The network hides its modules, or does not take such images.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens import trace_tokens
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=1, heads=3)
        >>> path = trace_tokens(network, torch.rand(1, 3, 16, 24))
        >>> path.layout.grid, path.refusal
        ((2, 3), None)
    """
    size = network.preprocess.input_size if isinstance(network, Model) else None
    network = network_of(network)
    if reason := why_opaque(network):
        raise ValueError(f"the tokens of {type(network).__name__} cannot be traced: {reason}")
    if images is None:
        images = blank_image(network, size)
    with images_in_words(network, images):
        return find_path(network, images)


@checked()
def probe(network: nn.Module | Model, image_size: tuple[int, int] | None = None) -> Path:
    """Trace the tokens of a network on a blank image, to print the path.

    It is a table: every attention call with its heads, queries and keys, windows, what is merged or
    left out between calls, and what the logits read; or why there is no map.

    Args:
        network: A network, or a model for its network.
        image_size: (height, width) in pixels. None: what the model or the network says it takes.

    Returns:
        The `Path` of `trace_tokens`.

    Raises:
        ValueError: The network hides its modules, or does not take images of this size.

    Examples:
        >>> from vision_attn.tokens import probe
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=1, heads=3)
        >>> print(probe(network, (16, 24)))
        7 tokens: 1 beside the image, 2x3 patches of 8x8 pixels
          call  module                heads  queries  keys
             0  blocks.0.attn.attend      3        7     7
        the logits read: the class token
    """
    if image_size is None:
        return trace_tokens(network)
    if min(image_size) < 1:
        raise ValueError(f"image_size must be at least 1 x 1, got {image_size}")
    return trace_tokens(network, blank_image(network_of(network), image_size))


def refusal_of(
    network: nn.Module, images: Images | None = None, layout: TokenLayout | None = None
) -> str | None:
    """Say in one line why no map can be made of this network's attention; None where it can.

    A run decides: on an image of the size of `images`, or of the network's own size. None also
    where it cannot run on such an image. layout: what is told of its tokens, which may settle it.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.tokens.path.support import refusal_of
        >>> refusal_of(nn.Conv2d(3, 5, 3))
        'no attention was found: no matrix product of values with weights that sum to 1'
    """
    if reason := why_opaque(network):
        return reason
    if images is not None:
        path = find_path(network, images)
        return path.refusal if layout is None or path.chain is None else None
    try:
        return find_path(network, blank_image(network)).refusal
    except Exception:  # its own code, on an image that may be of the wrong kind
        return None


def blank_image(network: nn.Module, size: tuple[int, int] | None = None) -> Tensor:
    """Make an image (1 c h w) of a size, by default the one that the network declares, or 224."""
    nothing = torch.zeros((), dtype=torch.float32, device="cpu")
    weight = next((x for x in network.parameters() if x.is_floating_point()), nothing)
    configs: list[Any] = [getattr(module, "pretrained_cfg", None) for module in modules_of(network)]
    declared = [config["input_size"][0] for config in configs if config and "input_size" in config]
    channels = declared[0] if declared else 3
    height, width = size or declared_size(network) or (USUAL, USUAL)
    image = torch.zeros(1, channels, height, width, dtype=weight.dtype, device=weight.device)
    first = next((layer for layer in modules_of(network) if isinstance(layer, nn.Conv2d)), None)
    if first is None or first.in_channels == channels or _fits(network, image, first):
        return image
    return image[:, :1].repeat(1, first.in_channels, 1, 1)


class _Reached(BaseException):
    """A run has reached the module that was waited for."""


def _fits(network: nn.Module, image: Tensor, convolution: nn.Conv2d) -> bool:
    """Whether an image comes to a convolution with as many channels as it takes, cut before say."""

    def stop(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].shape[-3] == convolution.in_channels:
            raise _Reached

    with apart(), Hooks() as hooks:
        hooks.before(convolution, stop)
        try:
            infer(network, image)
        except _Reached:
            return True
        except Exception:  # its own code, on an image that may be of the wrong kind
            return False
    return True
