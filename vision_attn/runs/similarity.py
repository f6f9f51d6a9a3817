"""Why two photos are alike, for any network with features on a grid; the nearest of many photos.

The cosine of mean-pooled features is a sum over pairs of patches: with f_i of one photo, g_j of the
other and their means f and g, sum_ij f_i . g_j / (n m |f| |g|). The map of each photo is what each
of its patches adds, with all of the other's (Stylianou, Souvenir and Pless 2019).

Axes: d width of a feature, rows and columns of the grid, n and m patches.
"""

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor
from torch.nn import functional as F

from vision_attn.arguments import checked
from vision_attn.data.faults import fault_line
from vision_attn.methods.targets import has_classifier
from vision_attn.runs.explain import Photo, prepare, read
from vision_attn.runs.inputs import list_images, path_list
from vision_attn.runs.patches import watched_features
from vision_attn.runs.progress import Bar, Silent
from vision_attn.tokens.layout import patch_at
from vision_attn.tokens.modules import LayerLike
from vision_attn.tokens.outputs import only_tensor, part_of
from vision_attn.types import Images, Model

__all__ = ["Neighbour", "PhotoSimilarity", "nearest_photos", "photo_similarity"]


@dataclass(frozen=True, eq=False)
class PhotoSimilarity:
    """The cosine of the mean-pooled features of two photos, shared out among their patches.

    Attributes:
        cosine: From -1 to 1.
        maps: Of each photo, what its patches add to the cosine: each map sums to it.
        vectors: Of each photo (d rows columns), scaled so that patch i of the first and j of the
            second add the dot product of their vectors.
        embedding: The cosine of what the network itself gives for the photos; None for a
            classifier. It is `cosine` where the network's embedding is the mean of these features,
            and another number where it is the class token, say.

    Examples:
        >>> import numpy as np
        >>> import vision_attn
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=0)
        >>> photos = np.random.default_rng(0).integers(0, 256, (2, 60, 80, 3), np.uint8)
        >>> found = vision_attn.photo_similarity(model, *photos)
        >>> found.maps[0].shape, found.row((0.5, 0.5)).shape
        (torch.Size([10, 10]), torch.Size([10, 10]))
        >>> abs(float(found.maps[0].sum()) - found.cosine) < 1e-9
        True
    """

    cosine: float
    maps: tuple[Float[Tensor, "rows columns"], Float[Tensor, "_ _"]]
    vectors: tuple[Float[Tensor, "d rows columns"], Float[Tensor, "d _ _"]]
    embedding: float | None

    @classmethod
    def of(
        cls,
        first: Float[Tensor, "d rows columns"],
        second: Float[Tensor, "d _ _"],
        embedding: float | None = None,
    ) -> "PhotoSimilarity":
        """Share out the cosine of the means of two photos' features, in float64."""
        vectors = [_pooled(features.double().cpu()) for features in (first, second)]
        sums = [each.sum((1, 2)) for each in vectors]
        maps = [
            torch.einsum("dhw,d->hw", each, other)
            for each, other in zip(vectors, sums[::-1], strict=True)
        ]
        return cls(
            float(sums[0] @ sums[1]), (maps[0], maps[1]), (vectors[0], vectors[1]), embedding
        )

    def row(
        self, place: tuple[float, float], second: bool = False
    ) -> Float[Tensor, "rows columns"]:
        """Lay what one patch and each patch of the other photo add on the other's grid.

        Its sum is the value of `maps` at that patch.

        Args:
            place: (x, y), shares of the width and height of what the network sees, from 0.0 to 1.0.
            second: The patch is one of the second photo, and the row lies on the first.

        Raises:
            ValueError: The place lies outside.
        """
        own, other = self.vectors[::-1] if second else self.vectors
        x, y = map(float, place)
        patch = patch_at((x, y), (own.shape[1], own.shape[2]), (1, 1))
        return torch.einsum("d,dhw->hw", own.flatten(1)[:, patch], other)

    def __repr__(self) -> str:
        own = "" if self.embedding is None else f", embedding={self.embedding:.4f}"
        return f"PhotoSimilarity(cosine={self.cosine:.4f}{own})"


def _pooled(features: Float[Tensor, "d rows columns"]) -> Float[Tensor, "d rows columns"]:
    """Scale features so that their sum is their mean at length 1."""
    size = features.mean((1, 2)).norm().clamp(min=torch.finfo(features.dtype).tiny)
    return features / (size * features[0].numel())


def photo_similarity(
    model: Model, image: Photo, other: Photo, layer: LayerLike | None = None
) -> PhotoSimilarity:
    """Compute the cosine of two photos' mean-pooled features, and which patches make it.

    A network whose embedding is its class token is compared by the mean of its patches all the
    same: the token of the last layer is no sum over patches. `embedding` has the cosine of the
    class tokens beside it. `explain` with the target `Similarity(embedding)` maps that one.

    Args:
        model: A model of `load_model` or `wrap`.
        image: A path, PIL image, array or tensor, as `explain` takes it.
        other: The photo that it is compared with.
        layer: As of `patch_features`.

    Returns:
        The cosine, and a map of each photo of what its patches add to it.

    Raises:
        ValueError: The layer gives no vector for each place.
    """
    images = prepare(model, [read(photo, model.preprocess)[1] for photo in (image, other)])
    (features, _), output = watched_features(model, images, layer)
    return PhotoSimilarity.of(features[0], features[1], _embedding_cosine(model, output))


def _embedding_cosine(model: Model, output: Any) -> float | None:
    """Compute the cosine of the vectors that a network gives for two photos; None of logits."""
    if has_classifier(model) or model.classes:
        return None
    vectors = only_tensor(output if model.head is None else part_of(output, model.head))
    if vectors is None or vectors.ndim != 2 or len(vectors) != 2:
        return None
    first, second = vectors.double().cpu()
    return float(F.cosine_similarity(first, second, dim=0))


@dataclass(frozen=True, eq=False)
class Neighbour:
    """A photo that is like another one.

    Attributes:
        file: The photo.
        similarity: Which patches of both make it so.

    Examples:
        >>> import torch
        >>> from vision_attn.runs.similarity import Neighbour, PhotoSimilarity
        >>> alike = PhotoSimilarity.of(torch.ones(7, 2, 3), torch.ones(7, 5, 3))
        >>> Neighbour("cat.png", alike)
        Neighbour(file='cat.png', similarity=PhotoSimilarity(cosine=1.0000))
    """

    file: str
    similarity: PhotoSimilarity


@checked(k=1, batch_size=1)
def nearest_photos(
    model: Model,
    image: Photo,
    among: str | PathLike[str] | Sequence[str | PathLike[str]],
    k: int = 5,
    layer: LayerLike | None = None,
    batch_size: int = 8,
    progress: Silent | None = None,
) -> list[Neighbour]:
    """Find the photos of a folder that are most like one photo, and which patches make them so.

    Photos are read a batch at a time, and only the best are kept: a folder may be of any size. The
    photo itself is left out where it lies in the folder. One that cannot be read is a problem of
    `progress`, and left out.

    Args:
        model: A model of `load_model` or `wrap`.
        image: A path, PIL image, array or tensor, as `explain` takes it.
        among: Files and folders, one or several.
        k: How many, the most alike first.
        layer: As of `patch_features`.
        batch_size: Photos at once.
        progress: `Bar()` unless given.

    Returns:
        At most `k`, by the cosine of their mean-pooled features, as `photo_similarity` has it.

    Raises:
        ValueError: There is no photo to compare with, or the layer gives no vector for each place.

    Examples:
        ```python
        model = vision_attn.load_model("timm:vit_small_patch14_dinov2.lvd142m", num_classes=0)
        for found in vision_attn.nearest_photos(model, "photo.jpg", "folder/", k=3):
            print(found.file, found.similarity.cosine, found.similarity.maps)
        ```
    """
    name, photo = read(image, model.preprocess)
    query = _means(model, prepare(model, [photo]), layer)[0]
    own = os.path.realpath(name) if name != "image" else None
    files, problems = list_images(path_list(among), None)
    files = [file for file in files if os.path.realpath(file) != own]
    best: list[tuple[float, int, str]] = []  # the least alike first, of equal ones the last
    with Bar() if progress is None else progress as shown:
        for problem in problems:
            shown.problem(problem)
        shown.start("comparing", len(files))
        for at in range(0, len(files), batch_size):
            batch = list(_readable(model, files[at : at + batch_size], shown))
            if batch:
                means = _means(model, prepare(model, [photo for _, photo in batch]), layer)
                for order, ((file, _), cosine) in enumerate(zip(batch, means @ query, strict=True)):
                    heapq.heappush(best, (float(cosine), -at - order, file))
                    if len(best) > k:
                        heapq.heappop(best)
            shown.advance(len(files[at : at + batch_size]))
        if not best:
            raise ValueError(
                f"found no other photo to compare {name} with: name a folder of photos"
            )
        return [
            Neighbour(file, photo_similarity(model, photo, file, layer))
            for _, _, file in sorted(best, reverse=True)
        ]


def _readable(model: Model, files: Sequence[str], shown: Silent) -> Iterator[tuple[str, Image]]:
    for file in files:
        try:
            yield file, read(file, model.preprocess)[1]
        except Exception as error:  # of this photo
            shown.problem(fault_line(file, error))


def _means(model: Model, images: Images, layer: LayerLike | None) -> Float[Tensor, "b d"]:
    """Compute the mean-pooled features, at length 1, in float64."""
    (features, _), _ = watched_features(model, images, layer)
    return F.normalize(features.double().mean((2, 3)), dim=1).cpu()
