"""The WordNet ids of ImageNet's 1,000 classes, which folders of its photos are named by."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

__all__ = ["imagenet_descriptions"]


@cache
def imagenet_descriptions() -> Mapping[str, str]:
    """The names of each class by its WordNet id, in the order of the classes; read once.

    Examples:
        >>> from vision_attn.data.wordnet import imagenet_descriptions
        >>> imagenet_descriptions()["n01440764"]
        'tench, Tinca tinca'
    """
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo()
    return MappingProxyType(dict(zip(info.label_names(), info.label_descriptions(), strict=True)))
