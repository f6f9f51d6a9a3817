"""Features of patches for the page: of every layer, with what they say of all photos together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from vision_attn.pages.inspect.parts import Features, Inspection
from vision_attn.runs.patches import components_of, layer_features
from vision_attn.types import Images, Model

__all__ = ["features_of", "with_components", "with_nearest"]

COLORS = 3
MOST_PATCHES = 4096  # of a layer: finer ones, the first of a CNN, would fill the page


def features_of(model: Model, images: Images) -> list[Features]:
    """Lay out the features of one image layer by layer; none where no layer has places.

    Layers of very many patches, or of numbers that are not finite, are left out.
    """
    return [
        Features(name, features[0].movedim(0, -1).float().cpu().contiguous().numpy())
        for name, features in layer_features(model, images).items()
        if features[0, 0].numel() <= MOST_PATCHES and features.isfinite().all()
    ]


def with_components(inspections: Sequence[Inspection]) -> list[Inspection]:
    """Add to features their components as colours, over all photos of a model together.

    A layer with fewer components than colours goes without.
    """
    features = [list(inspection.features) for inspection in inspections]
    for places in layers_alike(inspections):
        vectors = np.stack([features[at][layer].vectors for at, layer in places])
        try:
            found = components_of(
                torch.from_numpy(vectors).movedim(-1, 1), COLORS, split_background=True
            )
        except ValueError:
            continue
        colors = np.rint(255 * found.colors()).astype(np.uint8)
        for (at, layer), color, foreground in zip(places, colors, found.foreground, strict=True):
            features[at][layer] = replace(
                features[at][layer],
                colors=color,
                foreground=foreground.numpy(),
                variance=found.variance.tolist(),
            )
    return [
        replace(inspection, features=each)
        for inspection, each in zip(inspections, features, strict=True)
    ]


def with_nearest(inspections: Sequence[Inspection]) -> list[Inspection]:
    """Add to features the model's other photos, those with the most similar mean features first."""
    features = [list(inspection.features) for inspection in inspections]
    for places in layers_alike(inspections):
        means = np.stack(
            [features[at][layer].vectors.mean((0, 1), dtype=np.float64) for at, layer in places]
        )
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(float).tiny)
        cosines = means @ means.T
        for own, (at, layer) in enumerate(places):
            order = [other for other in np.argsort(-cosines[own], kind="stable") if other != own]
            features[at][layer] = replace(
                features[at][layer],
                nearest=[(places[other][0], float(cosines[own, other])) for other in order],
            )
    return [
        replace(inspection, features=each)
        for inspection, each in zip(inspections, features, strict=True)
    ]


def layers_alike(inspections: Sequence[Inspection]) -> list[list[tuple[int, int]]]:
    """The same layer of one model in several photos, as numbers of the photo and of the layer."""
    together = defaultdict(list)
    for at, inspection in enumerate(inspections):
        for layer, one in enumerate(inspection.features):
            together[inspection.model, one.name, one.vectors.shape].append((at, layer))
    return list(together.values())
