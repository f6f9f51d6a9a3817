"""What every explainer shares: options, checks, and a network that comes back as it was.

Axes: b batch, c channels, h height, w width, k classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any, ClassVar, final, get_type_hints

import torch
from jaxtyping import Int
from torch import Tensor, nn

from vision_attn.compat.torch_private import uncompiled
from vision_attn.hooks import apart
from vision_attn.inference import eval_mode, frozen_parameters, infer
from vision_attn.methods.options import conform
from vision_attn.tokens.layout import layout_of
from vision_attn.tokens.modules import network_of
from vision_attn.types import Heatmaps, Images, Logits, Model, TokenLayout

__all__ = [
    "Explainer",
    "Targets",
    "as_logits",
    "as_targets",
    "check_finite",
    "check_images",
    "class_logits",
    "outside_inference",
    "target_classes",
]

Targets = int | Sequence[int] | Tensor


@dataclass(frozen=True)
class Explainer(ABC):
    """A method that maps where a network looks in an image; its fields are its options.

    Subclasses are frozen dataclasses whose options all have defaults, and define `refusal` and
    `explain`. An option's annotation is its check: `Literal`, bool, int, float, str, None, tuples
    and unions of these; ranges are checked in `__post_init__`, after `super().__post_init__()`.

    Examples:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from vision_attn.methods import Explainer
        >>> from vision_attn.types import Heatmaps
        >>> @dataclass(frozen=True)
        ... class Brightness(Explainer):
        ...     gain: float = 1.0
        ...     class_specific = False
        ...     def refusal(self, network):
        ...         return None
        ...     def explain(self, network, images, targets, layout):
        ...         return Heatmaps(self.gain * images.mean(1), str(self))
        >>> maps = Brightness(gain=2)(torch.nn.Identity(), torch.ones(1, 3, 2, 2))
        >>> maps.method, maps.values.tolist()
        ('Brightness(gain=2.0)', [[[2.0, 2.0], [2.0, 2.0]]])
    """

    class_specific: ClassVar[bool]
    """Whether the map is of one class, so that `targets` matters."""
    needs_gradients: ClassVar[bool] = False
    """Whether `explain` runs with gradients on (parameters frozen) or under no_grad."""
    shares_passes: ClassVar[bool] = False
    """Whether an image that stands in a batch once for each of several classes, in a row, costs no
    more than one."""
    why_empty: ClassVar[str] = "no place has any effect"
    """What it means where a map is 0 everywhere, for pictures and records."""

    def __post_init__(self) -> None:
        for name in self.options():
            object.__setattr__(self, name, self.convert_option(name, getattr(self, name)))

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Name the options, each with its annotation."""
        annotations = get_type_hints(cls)
        return {field.name: annotations[field.name] for field in fields(cls)}

    @classmethod
    def convert_option(cls, option: str, value: Any) -> Any:
        """Convert a value to the type of an option; ValueError where it does not fit."""
        if isinstance(value, nn.Module | Model):
            raise ValueError(
                f"{cls.__name__}: option {option}: got a network; give it with the images, "
                f"{cls.__name__}()(network, images)"
            )
        try:
            return conform(value, cls.options()[option])
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: option {option}: {error}") from None

    def __str__(self) -> str:
        """The method as on the command line, with the options that differ from their defaults."""
        options = ", ".join(
            f"{field.name}={value!r}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        )
        return f"{type(self).__name__}({options})" if options else type(self).__name__

    @abstractmethod
    def refusal(self, network: nn.Module) -> str | None:
        """Return a line on why this method cannot explain this network; None where it can."""

    def refusal_for(
        self, network: nn.Module, images: Images, layout: TokenLayout | None = None
    ) -> str | None:
        """Return what `refusal` does, for images of this size.

        layout: how the network's tokens lie on them; None if it is not known.
        """
        return self.refusal(network)

    @abstractmethod
    def explain(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        """Compute the maps, for a network in eval mode that is not refused.

        With `needs_gradients` its parameters are frozen and gradients are on: make a leaf of what
        you differentiate by, and take `torch.autograd.grad`. `class_logits` runs the network and
        `target_classes` says which class each image is explained for.
        """

    @final
    def __call__(
        self,
        network: nn.Module | Model,
        images: Tensor,
        targets: Targets | None = None,
        layout: TokenLayout | None = None,
    ) -> Heatmaps:
        """Make maps for images (b c h w), normalised as the network was trained.

        network: a network, or a model, whose network and layout are taken. targets: the class to
        explain, one for all or one an image; None takes each image's predicted class. layout: how
        tokens lie on the image; None takes the model's, for images of its input size, or finds it.
        The network comes back as it was: its train/eval flags, requires_grad, gradients and hooks,
        after errors too.

        Raises ValueError where the network is refused, an argument does not fit or the result is
        not finite.
        """
        with self.prepared(network, images, targets, layout) as arguments:
            network, images, *_ = arguments
            maps = self.explain(*arguments)
            check_finite(maps.values, f"the map of {self}", network, images)
        return maps

    @contextmanager
    def prepared(
        self,
        network: nn.Module | Model,
        images: Tensor,
        targets: Targets | None,
        layout: TokenLayout | None,
    ) -> Iterator[tuple[nn.Module, Images, Int[Tensor, " b"] | None, TokenLayout | None]]:
        """Check the arguments of a call; give those of `explain`, in the state that it expects.

        Raises ValueError where the network is refused or an argument does not fit.
        """
        layout = layout or layout_for(network, images)
        network = network_of(network)
        check_images(network, images)
        if reason := self.refusal_for(network, images, layout):
            raise ValueError(f"{self} does not fit {type(network).__name__}: {reason}")
        with (
            apart(),
            uncompiled(),
            eval_mode(network),
            frozen_parameters(network) if self.needs_gradients else torch.no_grad(),
        ):
            classes = None if targets is None else as_targets(targets, images)
            try:
                yield network, outside_inference(images.detach()), classes, layout
            except NotImplementedError as error:  # FlexAttention's gradient on a CPU, say
                reason = str(error).partition("\n")[0]
                raise ValueError(
                    f"{self} does not fit {type(network).__name__}: {reason}"
                ) from error


def layout_for(model: nn.Module | Model, images: Tensor) -> TokenLayout | None:
    """A model's layout, if the images have its input size; None otherwise.

    None also where it is what the network's kind lets expect: the run itself tells more.
    """
    if not isinstance(model, Model) or tuple(images.shape[2:]) != model.preprocess.input_size:
        return None
    with suppress(ValueError):
        if model.layout == layout_of(model.network, model.preprocess.input_size):
            return None
    return model.layout


def class_logits(network: nn.Module, images: Images) -> Logits:
    """Run a network for its logits (b k), also from a Hugging Face output, in eval mode.

    Without gradients, unless an explainer that needs them runs it. Raises ValueError where it gives
    anything else, or numbers that are not finite.

    Examples:
        >>> import torch
        >>> from vision_attn.methods.base import class_logits
        >>> class_logits(torch.nn.Flatten(), torch.ones(2, 3, 1, 1)).shape
        torch.Size([2, 3])
    """
    return as_logits(infer(network, images), network, images)


def as_logits(output: Any, network: nn.Module, images: Images) -> Logits:
    """Take the logits (b k) of what a network gave for images; errors as of `class_logits`."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        actual = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"expected logits ({len(images)}, classes) of the network, got {actual}")
    check_finite(logits, "the network's output", network, images)
    return logits


def target_classes(logits: Logits, targets: Int[Tensor, " b"] | None) -> Int[Tensor, " b"]:
    """The classes to explain (b,): the targets, or the predicted classes where they are None.

    Raises ValueError for a target that is no class.

    Examples:
        >>> import torch
        >>> from vision_attn.methods.base import target_classes
        >>> target_classes(torch.tensor([[0.1, 0.9]]), targets=None)
        tensor([1])
    """
    if targets is None:
        return logits.argmax(dim=1)
    if targets.min() < 0 or targets.max() >= logits.shape[1]:
        wrong = next(t for t in targets.tolist() if not 0 <= t < logits.shape[1])
        raise ValueError(
            f"target class {wrong} is out of range: the network has {logits.shape[1]} classes, "
            f"0 to {logits.shape[1] - 1}"
        )
    return targets


def as_targets(targets: Targets, images: Tensor) -> Int[Tensor, " b"]:
    """Make one class index an image (b,), on the images' device.

    Raises ValueError where they are not whole numbers, or not as many as images.
    """
    classes = outside_inference(torch.as_tensor(targets, device=images.device))
    if classes.is_floating_point() or classes.dtype == torch.bool:
        raise ValueError(f"targets must be class indices (whole numbers), got {classes.dtype}")
    if classes.ndim == 0:
        classes = classes.expand(len(images))
    if classes.shape != (len(images),):
        raise ValueError(
            f"targets must be one class or {len(images)} (one per image), "
            f"got shape {tuple(classes.shape)}"
        )
    return classes.long()


def outside_inference(x: Tensor) -> Tensor:
    """Copy a tensor made in inference mode, which cannot be saved for a gradient."""
    return x.clone() if x.is_inference() else x


def check_images(network: nn.Module, images: Tensor) -> None:
    """Raise ValueError unless images are a batch of floats (b c h w) on the network's device."""
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(
            "images must be (batch, channels, height, width), none of them 0, "
            f"got shape {tuple(images.shape)}"
            + ("; add the batch axis: images[None]" if images.ndim == 3 else "")
        )
    if not images.is_floating_point():
        raise ValueError(
            f"images must be floats, normalised as the network was trained, got {images.dtype}"
        )
    weight = next(network.parameters(), images)
    if weight.device != images.device:
        raise ValueError(f"the images are on {images.device}, the network is on {weight.device}")


def check_finite(values: Tensor, what: str, network: nn.Module, images: Tensor) -> None:
    """Raise ValueError, with the likely cause, where `values` hold NaN or infinity."""
    if values.isfinite().all():
        return
    if not images.isfinite().all():
        cause = "the images hold NaN or infinity"
    else:
        weights = [*network.named_parameters(), *network.named_buffers()]
        broken = [name for name, weight in weights if not weight.isfinite().all()]
        cause = (
            f"so do the network's weights, first {broken[0]!r} ({len(broken)} of {len(weights)})"
            if broken
            else "images and weights are finite: too large for this dtype?"
        )
    raise ValueError(f"{what} holds NaN or infinity: {cause}")
