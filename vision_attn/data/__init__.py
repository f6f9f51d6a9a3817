"""Images in: files, folders and data sets, as batches on the training device.

ImageData is imported on first use: Lightning takes seconds to
import, and reading a photo does not need it.
"""

from typing import TYPE_CHECKING, Any

from vision_attn.data.augment import (
    AlternatingFlip,
    Augment,
    ColorJitter,
    Cutout,
    Flip,
    RandomErasing,
    RandomResizedCrop,
    Translate,
)
from vision_attn.data.cues import Caption, Cue, Cued, CuedPhotos, CuedSet, Frame, Sticker
from vision_attn.data.example_photos import example_photos, sample
from vision_attn.data.folders import ImageFolder
from vision_attn.data.huggingface import HuggingFace
from vision_attn.data.images import ImageError, find_images, read_image
from vision_attn.data.mix import CutMix, Mix, Mixup
from vision_attn.data.planted import Planted, PlantedImages
from vision_attn.data.preprocess import Preprocess
from vision_attn.data.resize import ProgressiveResizing
from vision_attn.data.sources import CIFAR10, CIFAR100, DataError, Source, Splits
from vision_attn.data.streaming import StreamedSet
from vision_attn.data.subset import Subset
from vision_attn.data.tables import ImageTable
from vision_attn.data.tensors import Batch, Batches, ImageSet, InOrder, Shuffled, TensorSet
from vision_attn.data.trivial import TrivialAugment
from vision_attn.data.webdataset import WebDataset

if TYPE_CHECKING:
    from vision_attn.data.module import ImageData


__all__ = [
    "CIFAR10",
    "CIFAR100",
    "AlternatingFlip",
    "Augment",
    "Batch",
    "Batches",
    "Caption",
    "ColorJitter",
    "Cue",
    "Cued",
    "CuedPhotos",
    "CuedSet",
    "CutMix",
    "Cutout",
    "DataError",
    "Flip",
    "Frame",
    "HuggingFace",
    "ImageData",
    "ImageError",
    "ImageFolder",
    "ImageSet",
    "ImageTable",
    "InOrder",
    "Mix",
    "Mixup",
    "Planted",
    "PlantedImages",
    "Preprocess",
    "ProgressiveResizing",
    "RandomErasing",
    "RandomResizedCrop",
    "Shuffled",
    "Source",
    "Splits",
    "Sticker",
    "StreamedSet",
    "Subset",
    "TensorSet",
    "Translate",
    "TrivialAugment",
    "WebDataset",
    "example_photos",
    "find_images",
    "read_image",
    "sample",
]


def __getattr__(name: str) -> Any:
    if name == "ImageData":
        from vision_attn.data.module import ImageData

        return ImageData
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
