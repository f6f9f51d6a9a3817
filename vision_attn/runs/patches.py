"""Features of the patches, for any network and above all for encoders without classes.

Axes: b photos, c channels, h height, w width, d width of a feature, rows and columns of the grid,
k components.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.arguments import checked
from vision_attn.errors import quoted
from vision_attn.hooks import Hooks, apart
from vision_attn.inference import infer, modules_of
from vision_attn.methods.base import layout_for
from vision_attn.methods.gradcam import on_grid, places_of_tokens
from vision_attn.runs.explain import Photo, prepare, read, several_photos
from vision_attn.tokens.layout import patch_at
from vision_attn.tokens.modules import LayerLike, attending, module_name, why_opaque
from vision_attn.tokens.path.places import Places
from vision_attn.types import Images, Model

__all__ = [
    "PatchComponents",
    "TooFewComponentsError",
    "components_of",
    "layer_features",
    "patch_components",
    "patch_features",
    "patch_similarity",
    "watched_features",
]

AT_ONCE = 8  # photos
MOST_LAYERS = 13  # of a page: twelve blocks and the last norm
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
    (features, *_), _ = watched_features(model, images, layer)
    return features


def watched_features(
    model: Model, images: Images, layer: LayerLike | None = None
) -> tuple[tuple[Float[Tensor, "b d rows columns"], str], Any]:
    """Return what `patch_features` does with the layer's name, and the network's output."""
    run = _FeatureRun(model, images)
    if layer is None:
        watched = list(modules_of(model.network))
    else:
        name = module_name(model.network, layer)
        if name is None:
            raise ValueError(
                f"layer {quoted(layer)}: {type(model.network).__name__} has no such layer"
            )
        watched = [model.network.get_submodule(name)]
    run.watch(watched, named=layer is not None)
    if not run.found:
        what = "no layer" if layer is None else f"layer {quoted(layer)}: it"
        raise ValueError(f"{what} gives a vector for each place of the image: name another layer")
    module = next(reversed(run.found))
    return (run.on_grid(module), modules_of(model.network)[module]), run.output


def layer_features(
    model: Model, images: Images, most: int = MOST_LAYERS
) -> dict[str, Float[Tensor, "b d rows columns"]]:
    """Lay the features of the patches out on their grid layer by layer, by the layers' names.

    The layers are the outermost parts of a Sequential or ModuleList, which blocks and stages are,
    and what `patch_features` takes by itself. Empty where none gives a vector for each place.

    Args:
        model: A model of `load_model` or `wrap`.
        images: (b c h w), its inputs.
        most: How many at most: evenly spread, with the last.

    Examples:
        >>> import torch
        >>> import vision_attn
        >>> from vision_attn.runs.patches import layer_features
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=0)
        >>> list(layer_features(model, torch.rand(1, 3, 160, 160)))[-3:]
        ['blocks.4', 'blocks.5', 'norm']
    """
    run = _FeatureRun(model, images)
    names = modules_of(model.network)
    members = {
        member
        for module in names
        if isinstance(module, nn.Sequential | nn.ModuleList)
        for member in module.children()
    }
    run.watch(list(names), named=False, kept=members)
    last = next(reversed(run.found), None)
    inside: list[str] = []
    chosen: list[nn.Module] = []
    for module, name in names.items():
        if module in run.found and module in members and not name.startswith(tuple(inside)):
            inside.append(f"{name}.")
            chosen.append(module)
    chosen.sort(key=list(run.found).index)
    if last is not None and run.found[last].ndim == 3:  # the convolutions before are a stem
        chosen = [module for module in chosen if run.found[module].ndim == 3]
    if last is not None and not any(_is_same(run.found[last], run.found[one]) for one in chosen):
        chosen.append(last)
    step = max(1, -(-len(chosen) // most))
    return {names[module]: run.on_grid(module) for module in chosen[::-1][::step][::-1]}


class _FeatureRun:
    """One run of a network, of which the outputs are kept that are a vector for each place."""

    def __init__(self, model: Model, images: Images):
        if reason := why_opaque(model.network):
            raise ValueError(f"{type(model.network).__name__}: {reason}")
        self.network, self.images = model.network, images
        self.layout = layout_for(model, images) or model.layout
        self.found: dict[nn.Module, Tensor] = {}
        self.output: Any = None

    def watch(
        self, modules: Sequence[nn.Module], named: bool, kept: Container[nn.Module] = ()
    ) -> None:
        """Run the network; keep what these modules gave and, of the others, what the last one did.

        named: the modules were asked for, so that they need not have the layout's tokens.
        """
        tokens = None if named or self.layout is None else self.layout.tokens
        of_heads = set() if named else _of_attention(self.network)

        def keep(module: nn.Module, _inputs: tuple[object, ...], out: Any) -> None:
            if isinstance(out, tuple) and out and module is not self.network:
                out = out[0]
            if not isinstance(out, Tensor) or (out.ndim == 4 and module in of_heads):
                return
            if _has_places(out, len(self.images), tokens):
                self.found.pop(module, None)  # the order is that of the last calls
                last = next(reversed(self.found), None)
                if last is not None and last not in kept:
                    del self.found[last]
                self.found[module] = out.detach()

        with apart(), Hooks() as hooks:
            for module in modules:
                hooks.after(module, keep)
            self.output = infer(self.network, self.images)

    def on_grid(self, module: nn.Module) -> Float[Tensor, "b d rows columns"]:
        """Lay what a module gave out on the grid of its places."""
        images, layout, features = self.images, self.layout, self.found[module]
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        places = layout if layout is not None and features.shape[1] == layout.tokens else None
        if features.ndim == 3 and places is None:
            elsewhere = places_of_tokens(self.network, images, features, module)
            if isinstance(elsewhere, Places):
                return elsewhere.to_map(features)
            places = elsewhere
        return on_grid(features, (images.shape[2], images.shape[3]), places)


def _of_attention(network: nn.Module) -> set[nn.Module]:
    """List what attends, and all inside it: there (b head n d) is no map."""
    return {part for module in attending(network) for part in module.modules()}


def _is_same(output: Tensor, other: Tensor) -> bool:
    """Whether two modules gave one tensor, as a block and the stage that ends with it do."""
    return output.data_ptr() == other.data_ptr() and output.shape == other.shape


def _has_places(out: Tensor, images: int, tokens: int | None) -> bool:
    """Whether an output is one vector for each place: (b n d), n the tokens, or a map."""
    if len(out) != images or not out.is_floating_point():
        return False
    if out.ndim == 3:
        return out.shape[1] == tokens or (tokens is None and out.shape[1] > 1)
    return out.ndim == 4 and out.shape[2:].numel() > 1


@checked()
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

    Attributes:
        scores: (b k rows columns), the patches along each component, in the units of the features.
        directions: (k d), of length 1, the number of the largest size above 0.
        mean: (d), which is subtracted first.
        variance: (k), the share of each component in the variance of all features.
        foreground: (b rows columns), the patches that mean, directions and variance are of: all of
            them, unless the background was split off.

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
    foreground: Bool[Tensor, "b rows columns"]

    def colors(self) -> Float[ndarray, "b rows columns 3"]:
        """Show the first three as red, green and blue, 0 to 1: two deviations to either side.

        Scaled alike in all photos; the background is black.

        Raises:
            ValueError: There are fewer than three.
        """
        if len(self.directions) < 3:
            raise ValueError(f"colours need three components, got {len(self.directions)}: k=3")
        scores = self.scores[:, :3]
        inside = self.foreground[:, None]
        squares = scores.pow(2).where(inside, 0).sum((0, 2, 3)) / inside.sum()
        spread = squares.sqrt().clamp(min=1e-12)
        scaled = scores / (SPREAD * spread[:, None, None])
        colors = ((scaled + 1) / 2).clamp(0, 1).where(inside, 0)
        return colors.permute(0, 2, 3, 1).numpy()


class TooFewComponentsError(ValueError):
    """There are fewer components than were asked for.

    Examples:
        >>> from vision_attn.runs.patches import TooFewComponentsError
        >>> str(TooFewComponentsError("k must be from 1 to 2"))
        'k must be from 1 to 2'
    """


@checked(k=1)
def patch_components(
    model: Model,
    images: Photo | Sequence[Photo],
    k: int = 3,
    layer: LayerLike | None = None,
    split_background: bool = False,
) -> PatchComponents:
    """Find the principal components of the patches of one photo, or of several together.

    Args:
        model: A model of `load_model` or `wrap`.
        images: A photo, or a list, as `explain` takes it.
        k: How many components, the largest first.
        layer: As of `patch_features`.
        split_background: Leave the background out, as DINOv2's figures do: the first component of
            each photo's patches is cut in two by Otsu's threshold, and the side that more of the
            patches along the photo's edges are on is its background.

    Returns:
        Each patch along each component, and the share of the variance that the components hold.

    Raises:
        ValueError: There are fewer features or patches than components, or the layer gives no
            vector for each place.
    """
    photos = [read(photo, model.preprocess)[1] for photo in several_photos(images)[1]]
    if not photos:
        raise ValueError("expected at least one photo, got an empty list")
    parts = [
        patch_features(model, prepare(model, photos[at : at + AT_ONCE]), layer).cpu()
        for at in range(0, len(photos), AT_ONCE)
    ]
    return components_of(torch.cat(parts), k, split_background)


def components_of(
    features: Float[Tensor, "b d rows columns"], k: int = 3, split_background: bool = False
) -> PatchComponents:
    """Find the principal components of features on a grid; see `patch_components`.

    Examples:
        >>> import torch
        >>> from vision_attn.runs.patches import components_of
        >>> components_of(torch.randn(2, 7, 3, 5), k=3).directions.shape
        torch.Size([3, 7])
    """
    features = features.double()
    rows = features.movedim(1, -1).flatten(0, 2)
    foreground = torch.ones_like(features[:, 0], dtype=torch.bool)
    if split_background:
        foreground = torch.stack([_foreground(photo) for photo in features])
    among = rows[foreground.flatten()]
    most = min(len(among) - 1, rows.shape[1])
    if not 1 <= k <= most:
        of = " of the foreground" if split_background else ""
        raise TooFewComponentsError(
            f"k must be from 1 to {most}, as there are {most} components{of}, got {k}"
        )
    mean, directions, shares = _principal(among, k)
    grid = len(features), *features.shape[2:]
    scores = ((rows - mean) @ directions.mT).unflatten(0, grid).movedim(-1, 1)
    return PatchComponents(
        scores.float(), directions.float(), mean.float(), shares.float(), foreground
    )


def _foreground(features: Float[Tensor, "d rows columns"]) -> Bool[Tensor, "rows columns"]:
    """Part a photo's patches in two, and take those that are less along its edges."""
    rows = features.flatten(1).mT
    _, (direction,), _ = _principal(rows, 1)
    along = rows @ direction
    inside = (along > _otsu(along)).unflatten(0, features.shape[1:])
    edge = torch.zeros_like(inside)
    edge[[0, -1]], edge[:, [0, -1]] = True, True
    return ~inside if inside[edge].double().mean() > 0.5 else inside


def _principal(
    rows: Float[Tensor, "n d"], k: int
) -> tuple[Float[Tensor, " d"], Float[Tensor, "k d"], Float[Tensor, " k"]]:
    """Return the mean, the first k directions, and the share of each in the variance."""
    mean = rows.mean(0)
    centred = rows - mean
    if len(rows) < rows.shape[1]:  # the smaller of two matrices with the same values
        values, vectors = torch.linalg.eigh(centred @ centred.mT)
        directions = F.normalize(vectors.flip(1)[:, :k].mT @ centred, dim=1)
    else:
        values, vectors = torch.linalg.eigh(centred.mT @ centred)
        directions = vectors.flip(1)[:, :k].mT
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    shares = values.flip(0)[:k].clamp(min=0) / values.clamp(min=0).sum().clamp(min=1e-300)
    return mean, directions * largest.sign(), shares


def _otsu(values: Float[Tensor, " n"]) -> float:
    """Choose the value that parts the others so that they vary least on either side (Otsu 1979)."""
    ordered = values.sort().values
    if len(ordered) < 2:
        return float(ordered[0])
    below = torch.arange(1, len(ordered), device=values.device)
    sums = ordered.cumsum(0)[:-1]
    gap = sums / below - (values.sum() - sums) / (len(ordered) - below)
    at = int((below * (len(ordered) - below) * gap.square()).argmax())
    return float(ordered[at])
