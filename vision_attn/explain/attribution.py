"""Attribution by integrated gradients and by occlusion, computed by captum.

Axes: b batch, c channels, h height, w width.
"""

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from jaxtyping import Int
from torch import Tensor, nn

from vision_attn.explain.base import Explainer, class_logits, target_classes
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["Attribution", "IntegratedGradients", "Occlusion"]


@dataclass(frozen=True)
class Attribution(Explainer):
    """A share of the target's logit for every pixel. rows: images a forward pass at most.

    Examples:
        >>> from vision_attn.explain import Occlusion
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
        if find_spec("captum") is None:
            return f"{type(self).__name__} is computed by captum: pip install captum"
        return None


@dataclass(frozen=True)
class IntegratedGradients(Attribution):
    """Integrated gradients of the class's logit, from the mean colour to the image.

    x * mean over t in (0, 1) of d logit(t x) / dx, summed over channels, signed: Sundararajan et
    al. 2017, from the mean colour (0 in normalised images), `steps` points of Gauss-Legendre
    quadrature. The map sums to logit(x) - logit(0).

    Examples:
        >>> import torch
        >>> from vision_attn.explain import IntegratedGradients
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> IntegratedGradients(steps=2)(network, torch.rand(1, 3, 16, 16), targets=3).values.shape
        torch.Size([1, 16, 16])
    """

    steps: int = 32

    needs_gradients = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ValueError(f"IntegratedGradients: steps must be at least 1, got {self.steps}")

    def explain(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        from captum import attr

        targets = target_classes(class_logits(network, images), targets)
        method = attr.IntegratedGradients(partial(class_logits, network))
        attribution = method.attribute(
            images.requires_grad_(),
            target=targets,
            n_steps=self.steps,
            internal_batch_size=max(self.rows, len(images)),
        )
        return Heatmaps(attribution.sum(dim=1).detach().float(), str(self), targets)


@dataclass(frozen=True)
class Occlusion(Attribution):
    """Occlusion: how far the class's logit falls if a window of the image is covered.

    logit(x) - logit(x with a window of the mean colour), the mean over the windows on a pixel:
    Zeiler and Fergus 2014. window, stride: pixels; 0 takes a seventh of the shorter side, and half
    the window.

    Examples:
        >>> import torch
        >>> from vision_attn.explain import Occlusion
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> Occlusion(window=8)(network, torch.rand(1, 3, 16, 16), targets=3).values.shape
        torch.Size([1, 16, 16])
    """

    window: int = 0
    stride: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("window", "stride"):
            if getattr(self, name) < 0:
                raise ValueError(f"Occlusion: {name} must be at least 0, got {getattr(self, name)}")

    def explain(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        from captum import attr

        channels, height, width = images.shape[1:]
        side = self.window or max(1, min(height, width) // 7)
        step = self.stride or max(1, side // 2)
        if side > min(height, width):
            raise ValueError(f"{self}: the window does not fit images of {height}x{width}")
        if step > side:
            raise ValueError(f"{self}: a stride of {step} leaves pixels out of every {side} window")
        targets = target_classes(class_logits(network, images), targets)
        attribution = attr.Occlusion(partial(class_logits, network)).attribute(
            images,
            sliding_window_shapes=(channels, side, side),
            strides=(channels, step, step),
            target=targets,
            perturbations_per_eval=max(1, self.rows // len(images)),
        )
        return Heatmaps(attribution.mean(dim=1).float(), str(self), targets)
