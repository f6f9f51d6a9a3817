"""LIME: a lasso of what a network answers where cells of an image are hidden.

Axes: b images, c channels, h height, w width, y x the grid of cells, s samples.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.methods.attribution import Attribution, cell_grid
from vision_attn.methods.targets import Target
from vision_attn.tokens.outputs import run
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["LIME"]

ALPHA = 0.01  # of the lasso: how much a weight costs


@dataclass(frozen=True)
class LIME(Attribution):
    """LIME: a sparse linear model of what the network answers near the image.

    Ribeiro et al. 2016 (arXiv:1602.04938), with the defaults of captum: each cell is shown or under
    the mean colour with equal chances, a sample counts exp(-d^2 / 2) where d is its cosine distance
    from the image, and the map holds the weights of a lasso. Cells of a grid stand for superpixels.

    Args:
        samples: Passes of the network an image, at least 2.
        cells: Cells on the shorter side of the grid; 0 takes what `MaskedRegression` does.
        seed: Of the samples, which are the same for all images.

    Raises:
        ValueError: `samples` is below 2, or `cells` is 1 or below 0.

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

    shares_passes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 2:
            raise ValueError(f"LIME: samples must be at least 2, got {self.samples}")
        if self.cells < 0 or self.cells == 1:
            raise ValueError(f"LIME: cells must be 0 or at least 2, got {self.cells}")

    def refusal(self, network: nn.Module) -> str | None:
        if find_spec("sklearn") is None:
            return (
                "LIME needs scikit-learn: pip install scikit-learn; "
                "MaskedRegression, which also hides cells, needs nothing more"
            )
        return None

    def explain(
        self, network: nn.Module, images: Images, target: Target, layout: TokenLayout | None
    ) -> Heatmaps:
        from sklearn.linear_model import Lasso

        target = target.fixed(run(network, images))
        shown = self.shown(cell_grid(self, self.cells, images, layout))
        forward, maps = self.forward(network, images), []
        for image, copies in self.each_once(images):
            near, answers = [], []
            for some in shown.split(self.rows):
                covered = self.covered(image, some)
                near.append(_nearness(image, covered))
                answers.append(self.numbers(target, forward(covered), copies, len(some)))
            shares = torch.cat(near).float().cpu().numpy()
            for numbers in torch.cat(answers).float().cpu().numpy().T:
                lasso = Lasso(alpha=ALPHA, random_state=0)  # else it draws from numpy's own
                lasso.fit(shown.flatten(1).float().numpy(), numbers, sample_weight=shares)
                maps.append(torch.from_numpy(lasso.coef_).float().view(shown.shape[1:]))
        return Heatmaps(torch.stack(maps).to(images.device), str(self), target.classes(images))

    def shown(self, grid: tuple[int, int]) -> Bool[Tensor, "s y x"]:
        """Draw which cells each sample shows."""
        random = torch.Generator("cpu").manual_seed(self.seed)
        chances = torch.full((self.samples, *grid), 0.5, dtype=torch.float32, device="cpu")
        return torch.bernoulli(chances, generator=random).bool()


def _nearness(
    image: Float[Tensor, "1 c h w"], samples: Float[Tensor, "s c h w"]
) -> Float[Tensor, " s"]:
    """Weigh samples by their cosine distance d from the image: exp(-d^2 / 2)."""
    original, others = image.flatten(1).float(), samples.flatten(1).float()
    return (-((1 - F.cosine_similarity(original, others)) ** 2) / 2).exp()
