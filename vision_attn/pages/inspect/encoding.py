"""Features of patches for the page: of every layer, with components over all of its photos."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from vision_attn.pages.inspect.parts import Features, Inspection
from vision_attn.runs.patches import components_of, layer_features
from vision_attn.types import Images, Model

__all__ = ["features_of", "with_components"]

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
    together = defaultdict(list)
    for at, inspection in enumerate(inspections):
        for layer, one in enumerate(inspection.features):
            together[inspection.model, one.name, one.vectors.shape].append((at, layer))
    features = [list(inspection.features) for inspection in inspections]
    for places in together.values():
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
