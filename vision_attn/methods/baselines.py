"""Maps that know nothing of the network: what every method must beat.

Drawn on the layout's grid where one is given, else on `cells` x `cells`.

Axes: b batch, c channels, h height, w width.
"""

from abc import abstractmethod
from dataclasses import dataclass
from zlib import crc32

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.methods.base import Explainer
from vision_attn.methods.targets import Target
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["Baseline", "CentreGaussian", "EdgeMap", "RandomMap"]


@dataclass(frozen=True)
class Baseline(Explainer):
    """A map drawn from the image alone.

    Args:
        cells: Rows and columns of the map, where no layout is given.

    Raises:
        ValueError: `cells` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Baseline, EdgeMap
        >>> maps = EdgeMap(cells=4)(torch.nn.Identity(), torch.rand(2, 3, 16, 16))
        >>> isinstance(EdgeMap(), Baseline), maps.values.shape
        (True, torch.Size([2, 4, 4]))
    """

    cells: int = 14

    class_specific = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cells < 1:
            raise ValueError(f"{type(self).__name__}: cells must be at least 1, got {self.cells}")

    def refusal(self, network: nn.Module) -> str | None:
        return None

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        height, width = layout.grid if layout else (self.cells, self.cells)
        return Heatmaps(self.draw(images, height, width).float(), str(self))

    @abstractmethod
    def draw(self, images: Images, height: int, width: int) -> Float[Tensor, "b {height} {width}"]:
        """Draw the maps.

        Args:
            images: (b c h w).
            height: Rows of a map.
            width: Columns of a map.

        Returns:
            The maps, (b height width).
        """


@dataclass(frozen=True)
class RandomMap(Baseline):
    """Uniform noise in [0, 1), drawn from the seed and the image: the same in every batch.

    Args:
        seed: Another seed gives another map.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import RandomMap
        >>> maps = RandomMap(seed=7)(torch.nn.Identity(), torch.rand(2, 3, 16, 16))
        >>> bool((maps.values[0] != maps.values[1]).any())
        True
    """

    seed: int = 0

    def draw(self, images: Images, height: int, width: int) -> Float[Tensor, "b {height} {width}"]:
        maps = []
        for image in images.float().cpu().contiguous():
            seed = crc32(image.numpy().tobytes(), self.seed & 0xFFFFFFFF)
            random = torch.Generator("cpu").manual_seed(seed)
            size = height, width
            maps.append(torch.rand(size, generator=random, dtype=torch.float32, device="cpu"))
        return torch.stack(maps).to(images.device)


@dataclass(frozen=True)
class CentreGaussian(Baseline):
    """A Gaussian in the centre of the image, where photographers place their objects.

    exp(-(x^2 + y^2) / (2 sigma^2)), x and y from -1 to 1.

    Args:
        sigma: The standard deviation, in halves of the image's width and height, above 0.

    Raises:
        ValueError: `sigma` is not above 0.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import CentreGaussian
        >>> maps = CentreGaussian(cells=3)(torch.nn.Identity(), torch.rand(2, 3, 16, 16))
        >>> int(maps.values[0].argmax())
        4
    """

    sigma: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sigma > 0:
            raise ValueError(f"CentreGaussian: sigma must be above 0, got {self.sigma}")

    def draw(self, images: Images, height: int, width: int) -> Float[Tensor, "b {height} {width}"]:
        y, x = (
            (torch.arange(size, dtype=torch.float32, device=images.device) + 0.5) * 2 / size - 1
            for size in (height, width)
        )
        bump = torch.exp(-(y[:, None] ** 2 + x**2) / (2 * self.sigma**2))
        return bump.expand(len(images), height, width)


@dataclass(frozen=True)
class EdgeMap(Baseline):
    """Mean length of the Sobel gradient of the channels' mean in each cell.

    The edge detector that Adebayo et al. 2018 found many explanations to resemble.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import EdgeMap
        >>> maps = EdgeMap(cells=4)(torch.nn.Identity(), torch.rand(2, 3, 16, 16))
        >>> maps.values.shape
        torch.Size([2, 4, 4])
    """

    def draw(self, images: Images, height: int, width: int) -> Float[Tensor, "b {height} {width}"]:
        grey = F.pad(images.float().mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        rows = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]
        sobel = torch.tensor(rows, dtype=torch.float32, device=images.device) / 8
        slopes = F.conv2d(grey, torch.stack([sobel, sobel.T])[:, None])
        return F.adaptive_avg_pool2d(slopes.norm(dim=1), (height, width))
