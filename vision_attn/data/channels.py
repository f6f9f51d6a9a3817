"""Photos of one, three, four or more channels: images to look at that keep all their channels.

Axes: c channels, H, W the photo.
"""

from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vision_attn.arguments import article
from vision_attn.data.images import ImageError, to_rgb

__all__ = [
    "channels_of",
    "image_of_array",
    "image_of_channels",
    "image_of_tensor",
    "kept_channels",
]

KEPT = "vision_attn channels"  # in the `info` of an image that stands for an array of channels


def image_of_tensor(tensor: Tensor) -> Image.Image:
    """Make an image of a photo as a tensor (c, H, W), of uint8 or of floats from 0 to 1.

    Raises ValueError for a tensor that is no such photo.

    Examples:
        >>> import torch
        >>> from vision_attn.data.channels import image_of_tensor
        >>> image_of_tensor(torch.rand(3, 20, 30)).size
        (30, 20)
    """
    if tensor.ndim != 3:
        raise ValueError(
            f"a photo as a tensor must be (channels, height, width), got {tuple(tensor.shape)}"
            + ("; give a list of photos: list(images)" if tensor.ndim == 4 else "")
        )
    return image_of_channels(as_bytes(tensor.detach().cpu().numpy(), "tensor"))


def image_of_array(array: ndarray) -> Image.Image:
    """Make an image of a photo as an array (H, W, c) or (H, W), of uint8 or of floats from 0 to 1.

    Raises ValueError for an array that is no such photo.
    """
    if array.ndim not in (2, 3):
        raise ValueError(
            "an image as an array must be (height, width, channels) or (height, width), got "
            f"{tuple(array.shape)}"
        )
    if 0 in array.shape:
        raise ValueError(f"a photo as an array must not be empty, got {array.shape}")
    channels = array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)
    return image_of_channels(as_bytes(channels, "array"))


def as_bytes(channels: ndarray, what: str) -> UInt8[ndarray, "c H W"]:
    """Make bytes of the numbers of a photo; ValueError where their range is not certain."""
    if 0 in channels.shape:
        raise ValueError(f"a photo as {article(what)} must not be empty, got {channels.shape}")
    if channels.dtype == np.uint8:
        return np.ascontiguousarray(channels)
    if not np.issubdtype(channels.dtype, np.floating):
        raise ValueError(
            f"a photo as {article(what)} must be uint8, or floats from 0 to 1, got {channels.dtype}"
        )
    low, high = float(channels.min()), float(channels.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"a photo as {article(what)} of floats must lie from 0 to 1, got {low:.4g} to "
            f"{high:.4g}: give the photo as it is before it is normalised"
        )
    return (channels * 255).round().astype(np.uint8)


def image_of_channels(channels: UInt8[ndarray, "c H W"]) -> Image.Image:
    """Make an image of the first three channels, or the one; all are kept with it."""
    count = len(channels)
    if count == 3:
        return Image.fromarray(np.ascontiguousarray(np.moveaxis(channels, 0, 2)))
    if count < 3:
        image = Image.fromarray(np.ascontiguousarray(channels[0])).convert("RGB")
    else:
        image = Image.fromarray(np.ascontiguousarray(np.moveaxis(channels[:3], 0, 2)))
    image.info[KEPT] = channels
    return image


def channels_of(image: Image.Image, count: int | None = None) -> UInt8[ndarray, "c H W"]:
    """Return the channels of an image: those that it keeps, its bands, or grey of one channel.

    Of an image that was changed since, its own pixels count alone. Raises ImageError where it has
    not `count`; None takes what there is.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.data.channels import channels_of, image_of_array
        >>> channels_of(image_of_array(np.zeros((20, 30, 5), np.uint8))).shape
        (5, 20, 30)
    """
    planes: Any = kept_channels(image)
    if planes is None and count == 4 and image.mode == "RGBA":
        planes = np.moveaxis(np.asarray(image), 2, 0)
    if planes is None and count == 1:
        planes = np.asarray(to_rgb(image).convert("L"))[None]
    if planes is None:
        planes = np.moveaxis(np.asarray(to_rgb(image)), 2, 0)
    if count not in (None, len(planes)):
        raise ImageError(
            f"{getattr(image, 'filename', '') or 'image'}: the network takes {count} channels, the "
            f"photo has {len(planes)}: give an array (height, width, {count})"
        )
    return planes


def kept_channels(image: Image.Image) -> UInt8[ndarray, "c H W"] | None:
    """Return the channels that an image keeps; None without them, or where its pixels are others.

    What Pillow makes of an image keeps its `info`: a crop or a mirrored one has the channels of the
    whole.
    """
    planes: UInt8[ndarray, "c H W"] | None = image.info.get(KEPT)
    if planes is None or image.mode != "RGB" or planes.shape[1:] != image.size[::-1]:
        return None
    shown = planes[:3] if len(planes) > 3 else planes[:1]
    return planes if (np.moveaxis(np.asarray(image), 2, 0) == shown).all() else None
