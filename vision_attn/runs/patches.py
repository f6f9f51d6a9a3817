"""Features of the patches, for any network and above all for encoders without classes.

Axes: b photos, c channels, h height, w width, d width of a feature, rows and columns of the grid,
k components.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.errors import quoted
from vision_attn.hooks import Hooks, apart
from vision_attn.inference import infer, modules_of
from vision_attn.methods.base import layout_for
from vision_attn.methods.gradcam import on_grid, places_of_tokens
from vision_attn.runs.explain import Photo, prepare, read, several_photos
from vision_attn.tokens.layout import patch_at
from vision_attn.tokens.modules import LayerLike, module_name, why_opaque
from vision_attn.tokens.path.places import Places
from vision_attn.types import Images, Model

__all__ = ["PatchComponents", "patch_components", "patch_features", "patch_similarity"]

AT_ONCE = 8  # photos
SPREAD = 2.0  # standard deviations to either side that colours tell apart


def patch_features(
    model: Model, images: Images, layer: LayerLike | None = None
) -> Float[Tensor, "b d rows columns"]:
    """Run a network, and lay the features of its patches out on their grid.

    Args:
        model: A model of `load_model` or `wrap`.
        images: (b c h w), its inputs.
        layer: The module whose output is taken, or its name, from the end too (`blocks.-2`). None:
            the last that gives a vector for each place, as the final norm of an encoder does.

    Returns:
        In float32, or float64 if the network runs in it; tokens that lie beside the image are left
        out.

    Raises:
        ValueError: There is no such layer, or it gives no vector for each place.

    Examples:
        >>> import torch
        >>> import vision_attn
        >>> from vision_attn.runs.patches import patch_features
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=0)
        >>> patch_features(model, torch.rand(2, 3, 160, 160)).shape
        torch.Size([2, 64, 10, 10])
    """
    network = model.network
    if reason := why_opaque(network):
        raise ValueError(f"{type(network).__name__}: {reason}")
    layout = layout_for(model, images) or model.layout
    tokens = None if layout is None else layout.tokens
    if layer is None:
        watched = list(modules_of(network))
    else:
        name = module_name(network, layer)
        if name is None:
            raise ValueError(f"layer {quoted(layer)}: {type(network).__name__} has no such layer")
        watched = [network.get_submodule(name)]
    found: list[tuple[nn.Module, Tensor]] = []

    def keep(named: bool, module: nn.Module, _inputs: tuple, out: Any) -> None:
        if isinstance(out, Tensor) and _has_places(out, len(images), None if named else tokens):
            found[:] = [(module, out.detach())]

    with apart(), Hooks() as hooks:
        for module in watched:
            hooks.after(module, partial(keep, layer is not None))
        infer(network, images)
    if not found:
        what = "no layer" if layer is None else f"layer {quoted(layer)}: it"
        raise ValueError(f"{what} gives a vector for each place of the image: name another layer")
    module, features = found[0]
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    places = layout if layout is not None and features.shape[1] == layout.tokens else None
    if features.ndim == 3 and places is None:
        elsewhere = places_of_tokens(network, images, features, module)
        if isinstance(elsewhere, Places):
            return elsewhere.to_map(features)
        places = elsewhere
    return on_grid(features, (images.shape[2], images.shape[3]), places)


def _has_places(out: Tensor, images: int, tokens: int | None) -> bool:
    """Whether an output is one vector for each place: (b n d), n the tokens, or a map."""
    if len(out) != images or not out.is_floating_point():
        return False
    if out.ndim == 3:
        return out.shape[1] == tokens or (tokens is None and out.shape[1] > 1)
    return out.ndim == 4 and out.shape[2:].numel() > 1


def patch_similarity(
    model: Model,
    image: Photo,
    place: tuple[int, int] | tuple[float, float],
    other: Photo | None = None,
    layer: LayerLike | None = None,
) -> Float[Tensor, "rows columns"]:
    """Compute the cosine of one patch's features with those of every patch.

    Args:
        model: A model of `load_model` or `wrap`.
        image: A path, PIL image, array or tensor, as `explain` takes it.
        place: (x, y), x to the right and y down: two whole numbers are a pixel of the network's
            input, two fractions are shares of its width and height.
        other: The photo whose patches are compared. None: the same.
        layer: As of `patch_features`.

    Returns:
        On the grid, from -1 to 1; `model.preprocess.to_original` lays it over the photo.

    Raises:
        ValueError: The place lies outside, or the layer gives no vector for each place.

    Examples:
        >>> import numpy as np
        >>> import vision_attn
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=0)
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> vision_attn.patch_similarity(model, photo, (0.5, 0.5)).shape
        torch.Size([10, 10])
    """
    photos = [image] if other is None else [image, other]
    images = prepare(model, [read(photo, model.preprocess)[1] for photo in photos])
    features = F.normalize(patch_features(model, images, layer), dim=1).cpu()
    grid = features.shape[2], features.shape[3]
    query = patch_at(place, grid, (images.shape[2], images.shape[3]))
    return torch.einsum("d,dhw->hw", features[0].flatten(1)[:, query], features[-1]).clamp(-1, 1)


@dataclass(frozen=True, eq=False)
class PatchComponents:
    """The principal components of the features of patches.

    scores: (b k rows columns), the patches along each component, in the units of the features.
    directions: (k d), of length 1, the number of the largest size above 0. mean: (d), which is
    subtracted first. variance: (k), the share of each component in the variance of all features.

    Examples:
        >>> import numpy as np
        >>> import vision_attn
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=0)
        >>> photo = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
        >>> found = vision_attn.patch_components(model, photo, k=3)
        >>> found.scores.shape, found.colors().shape
        (torch.Size([1, 3, 10, 10]), (1, 10, 10, 3))
    """

    scores: Float[Tensor, "b k rows columns"]
    directions: Float[Tensor, "k d"]
    mean: Float[Tensor, " d"]
    variance: Float[Tensor, " k"]

    def colors(self) -> Float[ndarray, "b rows columns 3"]:
        """Show the first three as red, green and blue, 0 to 1: two deviations to either side.

        Scaled alike in all photos. Raises ValueError where there are fewer than three.
        """
        if len(self.directions) < 3:
            raise ValueError(f"colours need three components, got {len(self.directions)}: k=3")
        scores = self.scores[:, :3]
        spread = scores.pow(2).mean((0, 2, 3)).sqrt().clamp(min=1e-12)
        scaled = scores / (SPREAD * spread[:, None, None])
        return ((scaled + 1) / 2).clamp(0, 1).permute(0, 2, 3, 1).numpy()


def patch_components(
    model: Model,
    images: Photo | Sequence[Photo],
    k: int = 3,
    layer: LayerLike | None = None,
) -> PatchComponents:
    """Find the principal components of the patches of one photo, or of several together.

    Args:
        model: A model of `load_model` or `wrap`.
        images: A photo, or a list, as `explain` takes it.
        k: How many components, the largest first.
        layer: As of `patch_features`.

    Raises:
        ValueError: There are fewer features or patches than components, or the layer gives no
            vector for each place.
    """
    photos = [read(photo, model.preprocess)[1] for photo in several_photos(images)[1]]
    parts = [
        patch_features(model, prepare(model, photos[at : at + AT_ONCE]), layer).cpu()
        for at in range(0, len(photos), AT_ONCE)
    ]
    features = torch.cat(parts).double()
    rows = features.movedim(1, -1).flatten(0, 2)
    most = min(len(rows) - 1, rows.shape[1])
    if not 1 <= k <= most:
        raise ValueError(f"k must be from 1 to {most}, as there are {most} components, got {k}")
    mean = rows.mean(0)
    centred = rows - mean
    values, vectors = torch.linalg.eigh(centred.mT @ centred)
    directions = vectors.flip(1)[:, :k].mT
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * largest.sign()
    scores = (centred @ directions.mT).unflatten(0, (len(features), *features.shape[2:]))
    shares = values.flip(0)[:k].clamp(min=0) / values.sum().clamp(min=1e-300)
    return PatchComponents(
        scores.movedim(-1, 1).float(), directions.float(), mean.float(), shares.float()
    )
