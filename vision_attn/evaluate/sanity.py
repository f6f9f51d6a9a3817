"""Sanity checks: does the map depend on what it should depend on, and on nothing else?

Axes: b batch, c channels, h, w of the image, y, x of the map, l layers, n images in all.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics.functional.image import structural_similarity_index_measure
from torchmetrics.utilities import dim_zero_cat

from vision_attn.arguments import checked
from vision_attn.evaluate.per_image import ImageScore, Maps, at_size, check_maps, from_0_to_1, raw
from vision_attn.hooks import copied_network
from vision_attn.inference import eval_mode
from vision_attn.types import Heatmaps, Images

__all__ = [
    "MaxSensitivity",
    "ModelRandomisation",
    "cascading_randomisation",
    "layers_from_the_top",
    "spearman",
    "ssim",
]


class MaxSensitivity(ImageScore):
    """Sensitivity to noise: max_d |map(x + d) - map(x)| / |map(x)|, small is good.

    The maximum over random d in [-radius, radius]^pixels, Yeh et al. 2019.

    Args:
        explain: (images, target) -> maps or Heatmaps, so that the image moves and the target does
            not.
        radius: The largest change of a normalised pixel.
        samples: How many d are drawn for an image.
        seed: Of the draws.
        options: torchmetrics' own.

    Raises:
        ValueError: `samples` is below 1, or `radius` not above 0.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import MaxSensitivity
        >>> metric = MaxSensitivity(lambda images, targets: images.mean(1), radius=0.02, samples=3)
        >>> metric.update(torch.ones(2, 3, 4, 4), torch.tensor([0, 1]))
        >>> bool(metric.compute() <= 0.02)
        True
    """

    higher_is_better = False

    def __init__(
        self,
        explain: Callable[[Tensor, Any], Tensor | Heatmaps],
        radius: float = 0.02,
        samples: int = 10,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__(**options)
        if samples < 1 or radius <= 0:
            raise ValueError(
                f"samples must be at least 1 and radius above 0, got {samples} and {radius}"
            )
        self.explain, self.radius, self.samples, self.seed = explain, radius, samples, seed

    def update(self, images: Images, target: Any) -> None:
        """Add a batch.

        Args:
            images: Normalised, (b c h w), in whose units the radius is.
            target: What to explain, as `explain` takes it.

        Raises:
            ValueError: A map is not finite.
        """
        generator = torch.Generator("cpu").manual_seed(self.seed)
        with eval_mode(self.explain):
            maps = raw(self.explain(images, target))
            check_maps(maps)
            size = maps.flatten(1).norm(dim=1).clamp(min=1e-12)
            worst = torch.zeros_like(size)
            for _ in range(self.samples):
                noise = torch.rand(
                    images.shape[1:], generator=generator, dtype=torch.float32, device="cpu"
                )
                noise = noise.to(images) * 2 - 1
                moved = raw(self.explain(images + self.radius * noise, target)) - maps
                worst = torch.maximum(worst, moved.flatten(1).norm(dim=1) / size)
        self.scores.append(worst.float())


class ModelRandomisation(ImageScore):
    """Model randomisation: how similar a map stays as the layers are randomised, last first.

    Cascading randomisation: |Spearman rank correlation| with the original map, the mean over the
    layers; small is good, as a map that stays the same does not show what the network learnt.
    Adebayo et al. 2018.

    Args:
        network: The network whose layers are randomised, in copies.
        explain: (network, images, target) -> maps or Heatmaps, as an explainer is.
        seed: Of the random weights.
        options: torchmetrics' own.

    Attributes:
        layers: The names of the layers in the order they are lost.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from vision_attn.evaluate import ModelRandomisation
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
        >>> metric = ModelRandomisation(network, lambda network, x, targets: x.mean(1))
        >>> metric.layers
        ['2', '0']
        >>> metric.update(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))
        >>> round(float(metric.compute()), 4)  # a map of the image alone: as bad as can be
        1.0
    """

    states = ("rank_correlations", "similarities")
    higher_is_better = False
    rank_correlations: list[Tensor]
    similarities: list[Tensor]

    def __init__(
        self,
        network: nn.Module,
        explain: Callable[[nn.Module, Tensor, Any], Tensor | Heatmaps],
        seed: int = 0,
        **options: Any,
    ):
        super().__init__(**options)
        self.explain = explain
        self.intact = partial(explain, network)  # no submodule: the metric does not own the network
        self.cascade = partial(cascading_randomisation, network, seed)
        self.layers = [name for name, _ in layers_from_the_top(network)]

    def update(self, images: Images, target: Any) -> None:
        """Add a batch.

        Args:
            images: Normalised, (b c h w).
            target: What to explain, whatever the weights, as `explain` takes it.

        Raises:
            ValueError: A map is not finite.
        """
        with eval_mode(self.intact):
            maps = raw(self.intact(images, target))
            check_maps(maps)
            degraded = [raw(self.explain(network, images, target)) for _, network in self.cascade()]
        self.rank_correlations.append(torch.stack([spearman(maps, m) for m in degraded], dim=1))
        self.similarities.append(torch.stack([ssim(maps, m) for m in degraded], dim=1))

    def curves(self) -> dict[str, Float[Tensor, "n l"]]:
        """Return rank correlation and SSIM of each image as each of `layers` is lost."""
        return {
            "rank correlation": dim_zero_cat(self.rank_correlations),
            "ssim": dim_zero_cat(self.similarities),
        }

    def per_image(self) -> Float[Tensor, " n"]:
        return dim_zero_cat(self.rank_correlations).abs().mean(dim=1)


@checked()
def cascading_randomisation(network: nn.Module, seed: int = 0) -> Iterator[tuple[str, nn.Module]]:
    """Yield each layer, last first, and a copy of the network that has lost it and those before.

    The copy is one and the same copy, changed between steps; the network itself is left alone.

    Args:
        network: A network with layers that can be drawn anew.
        seed: Of the weights that are drawn.

    Yields:
        The layer's name, and the copy.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.evaluate import cascading_randomisation
        >>> network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [layer for layer, _ in cascading_randomisation(network)]
        ['2', '0']
    """
    randomised = copied_network(network)
    generator = torch.Generator("cpu").manual_seed(seed)
    for name, modules in layers_from_the_top(randomised):
        for module in modules:
            randomise(module, generator)
        yield name, randomised


def layers_from_the_top(network: nn.Module) -> list[tuple[str, list[nn.Module]]]:
    """List the layers that hold weights, last first.

    All of a numbered block is one (`blocks.11`).
    """
    groups: dict[str, list[nn.Module]] = {}
    for path, module in network.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            block = re.match(r"(?:[^.]+\.)*?[^.]*\d(?=\.|$)", path)
            groups.setdefault(block[0] if block else path or "(itself)", []).append(module)
    return list(groups.items())[::-1]


def randomise(module: nn.Module, generator: torch.Generator) -> None:
    """Replace a module's own parameters by normal ones, with the mean and deviation of the old."""
    with torch.no_grad():
        for weight in module.parameters(recurse=False):
            noise = torch.randn(
                weight.shape, generator=generator, dtype=torch.float32, device="cpu"
            ).to(weight)
            weight.copy_(weight.mean() + weight.std(correction=0) * noise)


def spearman(maps: Maps, others: Maps) -> Float[Tensor, " b"]:
    """Compute the rank correlation of each pair of maps; 0 for a constant map.

    Equal values share their rank.
    """
    a, b = ranks(maps.flatten(1)), ranks(others.flatten(1))
    a, b = a - a.mean(dim=1, keepdim=True), b - b.mean(dim=1, keepdim=True)
    norms = a.norm(dim=1) * b.norm(dim=1)
    correlation = torch.where(norms > 0, (a * b).sum(dim=1) / norms.clamp(min=1e-12), 0.0)
    return correlation.float().to(maps.device)


def ranks(values: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Rank the values, 1 for the smallest; equal values get the mean of the ranks they take up.

    In float64 on the CPU: Apple's GPUs have none.
    """
    values = values.contiguous()
    ordered = values.sort(dim=1).values
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).cpu().double() / 2


def ssim(maps: Maps, others: Maps) -> Float[Tensor, " b"]:
    """Compute the structural similarity of maps at 64 x 64, scaled from 0 to 1.

    Wang et al. 2004.
    """
    a, b = (from_0_to_1(at_size(m.float(), (64, 64)))[:, None] for m in (maps, others))
    similarity = structural_similarity_index_measure(a, b, data_range=1.0, reduction="none")
    return cast(Tensor, similarity).view(-1)
