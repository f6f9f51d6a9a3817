"""Attribution by integrated gradients and by occlusion.

Axes: b batch, c channels, h height, w width, t targets of an image, n windows,
y x the grid of cells, s samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.devices import forward_format
from vision_attn.methods.base import Explainer
from vision_attn.methods.targets import Target
from vision_attn.tokens.outputs import run
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["Attribution", "IntegratedGradients", "Occlusion", "cell_grid"]

START = 32  # points of the quadrature to begin with
MAX_TOKEN_GRID = 20  # tokens on a side that are cells of their own


@dataclass(frozen=True)
class Attribution(Explainer):
    """A share of the target's number for every pixel or cell, from many passes through the network.

    Args:
        rows: Images a forward pass at most.

    Raises:
        ValueError: `rows` is below 1.

    Examples:
        >>> from vision_attn.methods import Occlusion
        >>> Occlusion(rows=0)
        Traceback (most recent call last):
        ValueError: Occlusion: rows must be at least 1, got 0
    """

    rows: int = 64

    class_specific = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows < 1:
            raise ValueError(f"{type(self).__name__}: rows must be at least 1, got {self.rows}")

    def refusal(self, network: nn.Module) -> str | None:
        return None

    @staticmethod
    def forward(network: nn.Module, images: Images) -> Callable[[Images], Any]:
        """Return what runs the network on such images in its fastest format."""
        memory_format = forward_format(network, images)
        return lambda some: run(network, some.contiguous(memory_format=memory_format))

    @staticmethod
    def each_once(images: Images) -> Iterator[tuple[Images, range]]:
        """Give each image once, with where its copies in a row stand in the batch.

        Args:
            images: (b c h w).

        Yields:
            An image (1 c h w), and the range of its copies.
        """
        new = [i for i in range(1, len(images)) if not torch.equal(images[i], images[i - 1])]
        for first, end in pairwise([0, *new, len(images)]):
            yield images[first, None], range(first, end)

    @staticmethod
    def covered(image: Float[Tensor, "1 c h w"], shown: Bool[Tensor, "s y x"]) -> Images:
        """Show some cells of an image alone, the others in the mean colour.

        Args:
            image: (1 c h w).
            shown: Which cells, (s y x), one grid a changed copy.

        Returns:
            The changed copies, (s c h w).
        """
        mask = shown[:, None].to(image.device, image.dtype)
        return image * F.interpolate(mask, size=image.shape[2:], mode="nearest-exact")

    @staticmethod
    def numbers(target: Target, output: Any, copies: range, rows: int) -> Float[Tensor, "{rows} t"]:
        """Compute the numbers of one image's changed copies, for each of its targets.

        Args:
            target: The target of the whole batch.
            output: What the network gave for the changed copies.
            copies: Where the image's copies stand in the batch: one target each.
            rows: How many changed copies the output is for.

        Returns:
            The numbers, (rows t).
        """
        every = [
            target.at(torch.full((rows,), image, dtype=torch.long, device="cpu"))(output)
            for image in copies
        ]
        return torch.stack(every, dim=1)


def cell_grid(
    method: Attribution, cells: int, images: Images, layout: TokenLayout | None
) -> tuple[int, int]:
    """Rows and columns of the cells that a method hides on images of this size.

    cells: on the shorter side; 0 takes the grid of tokens if that is small, or a usual number.
    Raises ValueError where pixels are fewer.
    """
    height, width = images.shape[2:]
    if not cells and layout is not None and 2 <= max(layout.grid) <= MAX_TOKEN_GRID:
        return layout.grid
    shorter = min(height, width)
    cells = cells or (14 if shorter >= 112 else 8)
    if cells > shorter:
        raise ValueError(f"{method}: {cells} cells do not fit images of {height}x{width}")
    return round(cells * height / shorter), round(cells * width / shorter)


@dataclass(frozen=True)
class IntegratedGradients(Attribution):
    """Integrated gradients of the target, from the mean colour to the image.

    x * mean over t in (0, 1) of d f(t x) / dx, summed over channels, signed: Sundararajan et al.
    2017, from the mean colour (0 in normalised images), by Gauss-Legendre quadrature. With exact
    integration the map would sum to f(x) - f(0); the heatmaps' `completeness_gap` is how far it is
    off, as a share of that.

    Args:
        steps: Points of the quadrature; None takes 32, and doubles them for images whose gap is
            above `tolerance` as long as they are at most `most_steps`.
        tolerance: The largest gap that needs no more points, above 0.
        most_steps: Points at most, if `steps` is None.

    Raises:
        ValueError: A number of points is below 1, or `tolerance` is not above 0.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import IntegratedGradients
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> IntegratedGradients(steps=2)(network, torch.rand(1, 3, 16, 16), target=3).values.shape
        torch.Size([1, 16, 16])
    """

    steps: int | None = None
    tolerance: float = 0.01
    most_steps: int = 256

    needs_gradients = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "most_steps"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"IntegratedGradients: {name} must be at least 1, got {number}")
        if not self.tolerance > 0:
            raise ValueError(
                f"{type(self).__name__}: tolerance must be above 0, got {self.tolerance}"
            )

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        forward = self.forward(network, images)
        with torch.no_grad():
            output = run(network, images)
            target = target.fixed(output)
            change = (target(output) - target(run(network, torch.zeros_like(images)))).float()
        maps = images.new_zeros(len(images), *images.shape[2:], dtype=torch.float32)
        gaps = torch.full_like(change, torch.nan)
        left = torch.arange(len(images), device="cpu")
        steps = self.steps or min(START, self.most_steps)
        while len(left):
            slopes = self.mean_gradient(forward, images[left], target, left, steps)
            attribution = (slopes * images[left]).sum(dim=1).float()
            off = (attribution.sum(dim=(1, 2)) - change[left]).abs()
            gap = off / change[left].abs().clamp(min=1e-12)
            nearer = ~(gap >= gaps[left])  # a gap that is NaN is not passed over
            maps[left[nearer.cpu()]], gaps[left[nearer.cpu()]] = attribution[nearer], gap[nearer]
            steps *= 2
            if self.steps is not None or steps > self.most_steps:
                break
            left = (gaps > self.tolerance).nonzero()[:, 0].cpu()
        return Heatmaps(maps, str(self), target.classes(images), completeness_gap=gaps)

    def mean_gradient(
        self,
        forward: Callable[[Images], Any],
        images: Images,
        target: Target,
        which: Int[Tensor, " b"],
        steps: int,
    ) -> Images:
        """Average the gradient on the line from 0 to each image, by Gauss-Legendre quadrature.

        Args:
            forward: What runs the network on images.
            images: (b c h w).
            target: What is differentiated.
            which: The images' places in the batch that the target is for.
            steps: Points of the quadrature.

        Returns:
            The mean gradients, (b c h w).
        """
        nodes, weights = np.polynomial.legendre.leggauss(steps)  # from -1 to 1
        points = list(zip((0.5 + 0.5 * nodes).tolist(), (0.5 * weights).tolist(), strict=True))
        total = torch.zeros_like(images, dtype=_wide(images.dtype))
        a_pass = max(1, self.rows // len(images))
        for first in range(0, steps, a_pass):
            some = points[first : first + a_pass]
            scaled = torch.cat([t * images for t, _ in some]).requires_grad_()
            number = target.at(which.repeat(len(some)))(forward(scaled)).sum()
            slopes = None
            if number.requires_grad:
                (slopes,) = torch.autograd.grad(number, scaled, allow_unused=True)
            if slopes is None:
                raise ValueError(
                    f"{self}: no gradient of what is explained reaches the image; Occlusion and "
                    "MaskedRegression need none"
                )
            for (_, weight), slope in zip(some, slopes.split(len(images)), strict=True):
                total += weight * slope
        return total


@dataclass(frozen=True)
class Occlusion(Attribution):
    """Occlusion: how far the target falls if a window of the image is covered.

    f(x) - f(x with a window of the mean colour), the mean over the windows on a pixel: Zeiler and
    Fergus 2014.

    Args:
        window: Side of the window in pixels; 0 takes a seventh of the image's shorter side.
        stride: Pixels from one window to the next; 0 takes half the window.

    Raises:
        ValueError: A number is below 0.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Occlusion
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> Occlusion(window=8)(network, torch.rand(1, 3, 16, 16), target=3).values.shape
        torch.Size([1, 16, 16])
    """

    window: int = 0
    stride: int = 0

    shares_passes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("window", "stride"):
            if getattr(self, name) < 0:
                raise ValueError(f"Occlusion: {name} must be at least 0, got {getattr(self, name)}")

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        height, width = images.shape[2:]
        side = self.window or max(1, min(height, width) // 7)
        step = self.stride or max(1, side // 2)
        if side > min(height, width):
            raise ValueError(f"{self}: the window does not fit images of {height}x{width}")
        if step > side:
            raise ValueError(f"{self}: a stride of {step} skips pixels between windows of {side}")
        target = target.fixed(run(network, images))
        forward, maps = self.forward(network, images), []
        rows, columns = (_windows(size, side, step, images.device) for size in (height, width))
        windows = torch.cartesian_prod(
            *(
                torch.arange(len(some), dtype=torch.long, device=images.device)
                for some in (rows, columns)
            )
        )
        hidden = rows.sum(dim=0)[:, None] * columns.sum(dim=0)  # how often each pixel is
        for image, copies in self.each_once(images):
            whole = self.numbers(target, forward(image), copies, 1)  # (1, t)
            wide = _wide(whole.dtype)
            lost = whole.new_zeros(len(copies), height, width, dtype=wide)
            for some in windows.split(max(1, self.rows // len(copies))):
                window = rows[some[:, 0], :, None] & columns[some[:, 1], None]  # (n h w)
                covered = image.masked_fill(window[:, None], 0)
                answers = self.numbers(target, forward(covered), copies, len(some))
                change = whole.to(wide) - answers.to(wide)
                lost += torch.einsum("nt,nhw->thw", change, window.to(wide))
            maps.append((lost / hidden).float())  # a map a class
        return Heatmaps(torch.cat(maps), str(self), target.classes(images))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to sum numbers of this one in."""
    return torch.promote_types(dtype, torch.float32)


def _windows(length: int, side: int, step: int, device: torch.device) -> Bool[Tensor, "n {length}"]:
    """The places on a line in each window; the last is cut where the line ends."""
    positions = torch.arange(length, dtype=torch.long, device=device)
    starts = torch.arange(0, length - side + step, step, dtype=torch.long, device=device)[:, None]
    return (starts <= positions) & (positions < starts + side)
