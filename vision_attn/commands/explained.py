"""What a model says of photos: their class, and maps of where it looks.

Axes: b batch, h height, w width, k classes.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from PIL.Image import Image
from torch import Tensor, nn

from vision_attn.commands import options
from vision_attn.explain import ChannelGates, Contrast, Explainer, QueryKey, gate_values
from vision_attn.explain.base import class_logits
from vision_attn.hub import LoadedModel
from vision_attn.render import Scale, natural
from vision_attn.types import Images


@dataclass(frozen=True, eq=False)
class Map:
    """A photo explained by one method. target and against: classes, where the method asks for any.

    seconds: what the method took, a photo's share of its batch. query: the place (x, y) that is
    asked, where there is one, as shares of the network's input. completeness_gap: see `Heatmaps`.
    """

    explainer: Explainer
    values: Float[ndarray, "h w"]
    prefix_mass: float | None
    outlier_mass: float | None
    scale: Scale
    target: int | None
    against: int | None
    seconds: float
    query: tuple[float, float] | None
    completeness_gap: float | None = None


@dataclass(frozen=True, eq=False)
class Explained:
    """A photo's class and maps.

    chances: of each class, none where the network has no classifier. channels: the gates of each
    layer, where ChannelGates was asked for.
    """

    chances: Float[ndarray, " k"]
    maps: list[Map]
    channels: dict[str, Float[ndarray, " _"]]


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked of a model.

    target: a class, None for the predicted one. against: the class to contrast it with, if any.
    """

    model: LoadedModel
    explainers: Sequence[Explainer]
    target: int | None = None
    against: int | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Request":
        """As the command line has it. Raises ValueError for what does not fit the model."""
        model = options.load(args)
        explainers = options.explainers(args.method, model.network)
        target = None if args.target == "predicted" else model.class_index(args.target)
        against = None if args.contrast is None else model.class_index(args.contrast)
        return cls(model, explainers, target, against)

    def explain(self, photos: Sequence[Image]) -> list[Explained]:
        """Each photo's class and maps. Raises ValueError where the network gives no numbers."""
        network = self.model.network
        device = next(network.parameters()).device
        images = torch.stack([self.model.preprocess(photo) for photo in photos]).to(device)
        with torch.no_grad():
            logits = class_logits(network, images).float()
        targets = logits.argmax(dim=1)
        if self.target is not None:
            targets = torch.full_like(targets, self.target)
        maps = [self._maps(explainer, images, targets) for explainer in self.explainers]
        chances = logits.softmax(dim=1)[:, : len(self.model.classes)].cpu().numpy()
        channels = self._channels(images)
        return [
            Explained(chance, list(found), {name: gate[i] for name, gate in channels.items()})
            for i, (chance, *found) in enumerate(zip(chances, *maps, strict=True))
        ]

    def _maps(
        self, explainer: Explainer, images: Images, targets: Int[Tensor, " b"]
    ) -> Iterator[Map]:
        """One map an image."""
        network: nn.Module = self.model.network
        if self.against is not None and explainer.class_specific:
            network = Contrast(network, self.against)
        start = time.perf_counter()
        found = explainer(network, images, targets, self.model.layout)
        maps = found.values.cpu().numpy()
        seconds = (time.perf_counter() - start) / len(images)
        for i, values in enumerate(maps):
            mass, outlying, gap = (
                None if each is None else float(each[i])
                for each in (found.prefix_mass, found.outlier_mass, found.completeness_gap)
            )
            yield Map(
                explainer=explainer,
                values=values,
                prefix_mass=mass,
                outlier_mass=outlying,
                scale=natural(values, mass),
                target=int(targets[i]) if explainer.class_specific else None,
                against=self.against if explainer.class_specific else None,
                seconds=seconds,
                query=place(explainer, self.model),
                completeness_gap=gap,
            )

    def _channels(self, images: Images) -> dict[str, Float[ndarray, "b _"]]:
        if not any(isinstance(explainer, ChannelGates) for explainer in self.explainers):
            return {}
        gates = gate_values(self.model.network, images)
        return {name: gate.cpu().numpy() for name, gate in gates.items() if gate.ndim == 2}


def place(explainer: Explainer, model: LoadedModel) -> tuple[float, float] | None:
    """The place of the image that is asked about, if one is, as shares of the network's input."""
    query = getattr(explainer, "query", None)
    if query is None and isinstance(explainer, QueryKey) and model.layout:
        return None if model.layout.class_token else (0.5, 0.5)
    if not isinstance(query, tuple):
        return None
    (x, y), (height, width) = query, model.preprocess.input_size
    return (x, y) if isinstance(x, float) else ((x + 0.5) / width, (y + 0.5) / height)
