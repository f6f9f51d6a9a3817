"""LibraGradient: tokens times gradients, with what only normalises or gates held constant.

Axes: b batch, n tokens, d width of a token, h height, w width, l levels.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.methods.attention_explainer import full_precision
from vision_attn.methods.base import Explainer, laid
from vision_attn.methods.targets import Target
from vision_attn.tokens.gradients.completeness import CountedGradients, account_of
from vision_attn.tokens.gradients.levels import Level, Levels, find_levels, frozen
from vision_attn.tokens.gradients.mode import HeldGradients, own_weights_held
from vision_attn.tokens.modules import why_opaque
from vision_attn.tokens.outputs import one_row, run
from vision_attn.tokens.path.support import blank_image
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["LibraGradient"]

MISSED = 1e-3  # of the score: a gap that is worth a warning


@dataclass(frozen=True)
class LibraGradient(Explainer):
    """Shares of the target: tokens times gradients that are made to add up to it.

    mean_l sum_d h_l,d ds / dh_l,d, signed, where h_l are the tokens before the first block and
    after each, and s is what is explained: the class's logit, unless another target is given. In
    the backward pass the divisors of norms, the weights of attention and what gates a value are
    constants (LibraGrad, Mehri et al., CVPR 2025, arXiv:2411.16760), so that at every level the
    shares of all tokens and those of additive parameters together are s, if s is a logit or another
    linear function of the output. One forward pass, and one backward pass from the first tokens on.
    A network that shrinks its grid as it goes has the levels of its last grid, and one of features,
    without tokens or attention, has its last alone.

    Args:
        check: Whether to measure the map's `completeness_gap` before it is smoothed, by one more
            run of each image: |s - sum h . g - sum b . g| / max(|s|, sum |h . g|) at the first
            level, b the additive constants: parameters, and what the network makes as it runs, such
            as the value of a padding. Where a network has an operation without a rule it is
            measured in any case, and a warning names the operation if there is a gap.
        smooth: The standard deviation in cells of the Gaussian that the map is smoothed by; 0
            leaves it as it is.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import LibraGradient
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> maps = LibraGradient(check=True)(network, torch.rand(1, 3, 16, 16), target=3)
        >>> maps.method, maps.values.shape, bool(maps.completeness_gap < 1e-4)
        ('LibraGradient(smooth=1.0, check=True)', torch.Size([1, 2, 2]), True)
    """

    check: bool = False
    smooth: int | float = field(default=1.0, kw_only=True)

    class_specific = True
    needs_gradients = True
    why_empty = "no place of the image has a share in what is explained"

    def __str__(self) -> str:
        """The method, always with `smooth`: smoothing is a prior."""
        return f"LibraGradient(smooth={float(self.smooth)}{', check=True' if self.check else ''})"

    def refusal(self, network: nn.Module) -> str | None:
        if reason := why_opaque(network):
            return reason
        try:
            return find_levels(network, blank_image(network)).refusal
        except Exception:  # its own code, on an image that may be of the wrong kind
            return None

    def refusal_for(
        self, network: nn.Module, images: Images, layout: TokenLayout | None = None
    ) -> str | None:
        if reason := why_opaque(network):
            return reason
        try:
            return find_levels(network, images, layout).refusal
        except ValueError:
            raise
        except Exception as error:  # its own code, on one image or under the rules
            line = str(error).partition("\n")[0]
            return (
                f"a run of one image, which finds its tokens, fails: {type(error).__name__}: {line}"
            )

    def explain(
        self, network: nn.Module, images: Images, target: Target, layout: TokenLayout | None
    ) -> Heatmaps:
        search = find_levels(network, images, layout)
        levels = search.levels
        mode, output = self._run(network, images, search)
        target = target.fixed(output)
        shares = self._shares(levels, mode, target(output))
        values = torch.stack([on_grid for on_grid, _ in shares]).mean(0)
        gaps = None
        if self.check or search.unknown:
            gaps = self._gaps(network, images, target, search)
            least = max(MISSED, 4 * torch.finfo(images.dtype).eps)
            if search.unknown and float(gaps.max()) > least:
                warnings.warn(
                    f"{self}: {type(network).__name__} has no rule for "
                    f"{', '.join(search.unknown)}: up to {float(gaps.max()):.1%} of what is "
                    "explained is in no share (completeness_gap)",
                    stacklevel=2,
                )
        maps = Heatmaps(
            values.float(),
            str(self),
            target.classes(images),
            mass_beside(shares),
            completeness_gap=gaps,
        )
        return laid(maps, levels[-1].part)

    def _run(
        self, network: nn.Module, images: Images, search: Levels, counted: bool = False
    ) -> tuple[HeldGradients, Any]:
        """Run the network under the rules, on a graph that begins at the first level."""
        levels = search.levels
        marks = [(level.mark, level.changed) for level in levels]
        mode = (
            CountedGradients(images, marks, len(images))
            if counted
            else HeldGradients(marks, batch=len(images))
        )
        strays = [stray for reference in search.strays if (stray := reference()) is not None]
        with frozen(strays), mode, own_weights_held(network, mode.hold):
            output = run(network, images)
        mode.closed = True
        if len(mode.kept) != len(levels):
            raise ValueError(
                f"{self}: {len(levels)} levels were found by a run of one image, and "
                f"{len(mode.kept)} for these images: the network runs in another way on them"
            )
        for index, level in enumerate(levels):
            once = mode.kept[index].shape[level.batch] // level.mark.shape[level.batch]
            if once != len(images):
                raise ValueError(
                    f"{self}: the network runs {once} of these {len(images)} images at a time: "
                    f"give {'one image' if once == 1 else f'{once} images'} a call"
                )
        return mode, output

    def _shares(
        self, levels: Sequence[Level], mode: HeldGradients, scores: Float[Tensor, " b"]
    ) -> list[tuple[Tensor, Tensor]]:
        """The shares of each level's tokens, on its grid and beside it."""
        values = [mode.kept[index] for index in range(len(levels))]
        if not scores.requires_grad:
            raise ValueError(f"{self}: what is explained does not depend on the network's tokens")
        try:
            with mode:  # what is computed again in the backward pass follows the same rules
                gradients = torch.autograd.grad(scores.sum(), values, allow_unused=True)
        except RuntimeError as error:
            raise ValueError(f"{self}: {str(error).splitlines()[0]}") from error
        with full_precision(values[0]):
            return [
                level.shares(
                    value.new_zeros(value.shape, dtype=torch.float32)
                    if gradient is None
                    else value.float() * gradient.float()
                )
                for level, value, gradient in zip(levels, values, gradients, strict=True)
            ]

    def _gaps(
        self, network: nn.Module, images: Images, target: Target, search: Levels
    ) -> Float[Tensor, " b"]:
        """The completeness gap of each image, by a run of its own."""
        gaps = []
        for index, image in enumerate(images):
            mode, output = self._run(network, image[None], search, counted=True)
            assert isinstance(mode, CountedGradients)
            scores = target.at(one_row(index))(output)
            gaps.append(account_of(scores[0], mode.kept[0], search.levels[0].channels, mode).gap)
        return torch.tensor(gaps, dtype=torch.float32, device=images.device)


def mass_beside(shares: Sequence[tuple[Tensor, Tensor]]) -> Float[Tensor, " b"] | None:
    """The part of all shares, by their sizes, beside the image; None where no tokens are there."""
    if not any(beside.shape[1] for _, beside in shares):
        return None
    aside = torch.stack([beside.abs().sum(1) for _, beside in shares]).sum(0)
    on_image = torch.stack([on_grid.abs().sum((1, 2)) for on_grid, _ in shares]).sum(0)
    whole = aside + on_image
    return aside / whole.where(whole > 0, 1)
