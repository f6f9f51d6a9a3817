"""MaskedRegression: a linear model of what a network answers where cells of an image are hidden.

Axes: b images, c channels, h height, w width, y x the grid of cells, n = y x, p pairs of samples.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vision_attn.methods.attribution import Attribution, cell_grid
from vision_attn.methods.targets import Target
from vision_attn.tokens.outputs import run
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["MaskedRegression"]

LEVELS = 8  # a sample shows 1/16, 2/16 ... 8/16 of the cells, its complement the others
EACH = 8  # pairs at least that show as many cells, else there are fewer levels
BLOB = 0.25  # of the grid's shorter side: how far hidden cells hang together
ROUGHNESS = 0.3  # of the blobs' edges
OWN = 0.1  # variance of a cell's weight apart from its neighbours, whose common part has 1
# Variances, as multiples of the signal's.
NOISES = torch.logspace(-4, 3, 36, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class MaskedRegression(Attribution):
    """How much each cell of a grid adds to the target, by a regression on masked images.

    The network answers for many samples: the image with some of its cells under the mean colour (0
    in normalised images). The map holds the weights of a linear model of these answers, one a cell,
    and sums to f(x) - f(all cells hidden). It is this package's own; what it has of others:

    A linear model of what is hidden is LIME's idea (Ribeiro et al. 2016, arXiv:1602.04938), which
    weighs its samples by how near they are to the image, and fits a ridge or lasso. Here each
    sample comes with its complement (Covert and Lee 2021, arXiv:2012.01536), and a pair is compared
    with pairs that show as many cells. Cells are hidden in blobs, which changes the answer more (as
    in RISE, Petsiuk et al. 2018, arXiv:1806.07421). And neighbouring cells are expected to have
    similar weights: the more so, the noisier the answers for an image are (a Gaussian process, with
    the likeliest noise of the restricted likelihood).

    Args:
        samples: Passes of the network an image: an even number, at least 4.
        cells: Cells on the shorter side of the grid; 0 takes the grid of tokens if it has at most
            20 on a side, else 14, or 8 for images of less than 112 pixels.
        seed: Of the samples, which are the same for all images.

    Raises:
        ValueError: `samples` is odd or below 4, or `cells` is 1 or below 0.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import MaskedRegression
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> method = MaskedRegression(samples=8, cells=4)
        >>> method(network, torch.rand(1, 3, 16, 24), target=3).values.shape
        torch.Size([1, 4, 6])
    """

    samples: int = 256
    cells: int = 0
    seed: int = 0

    shares_passes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 4 or self.samples % 2:
            raise ValueError(
                f"MaskedRegression: samples must be even and at least 4, got {self.samples}"
            )
        if self.cells < 0 or self.cells == 1:
            raise ValueError(f"MaskedRegression: cells must be 0 or at least 2, got {self.cells}")

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        output = run(network, images)
        target = target.fixed(output)
        hidden = target(run(network, torch.zeros_like(images)))
        change = (target(output) - hidden).cpu().double()
        shown = self.shown(cell_grid(self, self.cells, images, layout))
        pairs = torch.cat([shown, ~shown])
        forward, differences = self.forward(network, images), []
        for image, copies in self.each_once(images):
            answers = [
                self.numbers(target, forward(self.covered(image, part)), copies, len(part))
                for part in pairs.split(self.rows)
            ]
            seen, unseen = torch.cat(answers).cpu().double().chunk(2)
            differences.append((seen - unseen).mT / 2)
        maps = weights(shown, torch.cat(differences))
        missing = change - maps.sum(dim=(1, 2))
        maps += (missing / shown[0].numel())[:, None, None]
        return Heatmaps(maps.float().to(images.device), str(self), target.classes(images))

    def shown(self, grid: tuple[int, int]) -> Bool[Tensor, "p y x"]:
        """Which cells the first sample of each pair shows: at most half of them, in blobs."""
        random = torch.Generator("cpu").manual_seed(self.seed)
        size = (self.samples // 2, *grid)
        fine, coarse = (
            torch.randn(size, generator=random, dtype=torch.float64, device="cpu") for _ in range(2)
        )
        rows, columns = (torch.linalg.cholesky(self._blob(side, min(grid))) for side in grid)
        field = (rows @ coarse @ columns.mT + ROUGHNESS * fine).flatten(1)
        cells = field.shape[1]
        levels = max(1, min(LEVELS, len(field) // EACH))
        order = torch.arange(len(field), dtype=torch.float32, device="cpu")
        shares = (1 + order % levels) / (2 * levels)
        counts = (cells * shares).round().clamp(min=1)
        return (field.argsort(dim=1).argsort(dim=1) < counts[:, None]).unflatten(1, grid)

    @staticmethod
    def _blob(side: int, shorter: int) -> Float[Tensor, "side side"]:
        own = torch.eye(side, dtype=torch.float64, device="cpu")
        return alike(side, max(1.0, BLOB * shorter)) + 1e-4 * own


def alike(side: int, length: float) -> Float[Tensor, "side side"]:
    """How alike the numbers in two places of a line are expected to be: exp(-d^2 / 2 length^2)."""
    positions = torch.arange(side, dtype=torch.float64, device="cpu")
    return torch.exp(-((positions[:, None] - positions) ** 2) / (2 * length**2))


def weights(
    shown: Bool[Tensor, "p y x"], differences: Float[Tensor, "b p"]
) -> Float[Tensor, "b y x"]:
    """Fit each cell's weight to half the differences between the answers to pairs of samples.

    The posterior mean of a Gaussian process of covariance K = alike(rows) x alike(columns) + OWN,
    K A' (A K A' + noise)^-1 d: A says which cells the first sample of a pair shows, and A and d are
    taken as contrasts between pairs that show as many cells. noise: the likeliest of NOISES for
    each image, whatever the scale of its answers (restricted likelihood, Patterson and Thompson
    1971, with the variance profiled out).
    """
    basis = contrasts(shown.flatten(1).sum(dim=1))
    pairs = (basis.mT @ shown.flatten(1).double()).unflatten(1, shown.shape[1:])
    rows, columns = (alike(side, 1.0) for side in shown.shape[1:])
    spread = rows @ pairs @ columns + OWN * pairs  # A K
    values, vectors = torch.linalg.eigh(spread.flatten(1) @ pairs.flatten(1).mT)
    values = values.clamp(min=0)
    noises = NOISES * values.mean().clamp(min=1e-12)
    inverses = 1 / (values + noises[:, None])  # of A K A' + noise, a row for each noise
    answers = differences @ basis @ vectors
    misfits = answers.square() @ inverses.mT  # (b noises)
    unlikeliness = len(values) * misfits.log() - inverses.log().sum(dim=1)
    solved = answers * inverses[unlikeliness.argmin(dim=1)] @ vectors.mT
    return torch.einsum("bp,pyx->byx", solved, spread)


def contrasts(counts: Int[Tensor, " p"]) -> Float[Tensor, "p q"]:
    """An orthonormal basis of what differs among numbers with equal counts."""
    same = (counts[:, None] == counts).double()
    own = torch.eye(len(counts), dtype=torch.float64, device=counts.device)
    among = own - same / same.sum(dim=1)
    values, vectors = torch.linalg.eigh(among)  # a projection
    return vectors[:, values > 0.5]
