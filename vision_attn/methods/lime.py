"""LIME, computed by captum.

Axes: b images, c channels, h height, w width, y x the grid of cells.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.methods.attribution import Attribution, cell_grid
from vision_attn.methods.targets import Target
from vision_attn.tokens.outputs import run
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["LIME"]


@dataclass(frozen=True)
class LIME(Attribution):
    """LIME: a sparse linear model of what the network answers near the image.

    Ribeiro et al. 2016 (arXiv:1602.04938), with captum's defaults: each cell is shown or under the
    mean colour with equal chances, a sample counts exp(-d^2 / 2) where d is its cosine distance
    from the image, and the map holds the weights of a lasso. Cells of a grid stand for superpixels.

    samples: passes of the network an image. cells, seed: as of `MaskedRegression`.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import LIME
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> LIME(samples=8, cells=4)(network, torch.rand(1, 3, 16, 24), target=3).values.shape
        torch.Size([1, 4, 6])
    """

    samples: int = 256
    cells: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 2:
            raise ValueError(f"LIME: samples must be at least 2, got {self.samples}")
        if self.cells < 0 or self.cells == 1:
            raise ValueError(f"LIME: cells must be 0 or at least 2, got {self.cells}")

    def refusal(self, network: nn.Module) -> str | None:
        if any(find_spec(package) is None for package in ("captum", "sklearn")):
            return (
                "LIME needs captum and scikit-learn: pip install captum scikit-learn; "
                "MaskedRegression, which also hides cells, needs neither"
            )
        return None

    def explain(
        self, network: nn.Module, images: Images, target: Target, layout: TokenLayout | None
    ) -> Heatmaps:
        from captum import attr

        target = target.fixed(run(network, images))
        y, x = cell_grid(self, self.cells, images, layout)
        cells = torch.arange(y * x, dtype=torch.long, device=images.device).view(1, 1, y, x)
        mask = F.interpolate(cells.float(), size=images.shape[2:], mode="nearest-exact").long()
        forward, maps = self.forward(network, images), []
        devices = [images.device] if images.device.type == "cuda" else []
        for at, image in enumerate(images):

            def numbers(some: Images, at: int = at) -> Float[Tensor, " r"]:
                return target.at(torch.full((len(some),), at, dtype=torch.long, device="cpu"))(
                    forward(some)
                )

            with torch.random.fork_rng(devices):
                torch.manual_seed(self.seed)
                weights = attr.Lime(numbers).attribute(
                    image[None],
                    feature_mask=mask,
                    n_samples=self.samples,
                    perturbations_per_eval=self.rows,
                    return_input_shape=False,
                )
            maps.append(weights.reshape(y, x).float().to(images.device))
        return Heatmaps(torch.stack(maps), str(self), target.classes(images))
