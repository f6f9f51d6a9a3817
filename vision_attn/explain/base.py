"""What every explainer shares: options, checks, and a network left as it was found.

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
from vision_attn.explain.modules import modules_of
from vision_attn.explain.options import conform
from vision_attn.types import Heatmaps, Images, Logits, TokenLayout

Targets = int | Sequence[int] | Tensor


@dataclass(frozen=True)
class Explainer(ABC):
    """A method that draws a map an image of where a network looks; its fields are its options.

    Subclasses are frozen dataclasses whose options all have defaults, and say `refusal` and
    `explain`. An option's annotation is its check: `Literal`, bool, int, float, str, None, tuples
    and unions of these; ranges are checked in `__post_init__`, after `super().__post_init__()`.
    """

    class_specific: ClassVar[bool]
    """Whether the map is of one class, so that `targets` matters."""
    needs_gradients: ClassVar[bool] = False
    """Whether `explain` runs with gradients on (parameters frozen) or under no_grad."""

    def __post_init__(self) -> None:
        for name in self.options():
            object.__setattr__(self, name, self.checked(name, getattr(self, name)))

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The options by name, each with its annotation."""
        kinds = get_type_hints(cls)
        return {field.name: kinds[field.name] for field in fields(cls)}

    @classmethod
    def checked(cls, option: str, value: Any) -> Any:
        """The value as the option's annotation has it, or a ValueError in words."""
        try:
            return conform(value, cls.options()[option])
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: option {option}: {error}") from None

    def __str__(self) -> str:
        """As it is written on the command line, with the options that differ from the defaults."""
        given = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        options = ", ".join(f"{name}={value!r}" for name, value, usual in given if value != usual)
        return f"{type(self).__name__}({options})" if options else type(self).__name__

    @abstractmethod
    def refusal(self, network: nn.Module) -> str | None:
        """Why this network cannot be explained so, in one line; None where it can."""

    @abstractmethod
    def explain(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        """The method itself. The network is in eval mode and refused networks do not come here.

        With `needs_gradients` its parameters are frozen and gradients are on: make a leaf of what
        you differentiate by, and take `torch.autograd.grad`. `class_logits` runs the network and
        `chosen` says which class each image is explained for.
        """

    @final
    def __call__(
        self,
        network: nn.Module,
        images: Tensor,
        targets: Targets | None = None,
        layout: TokenLayout | None = None,
    ) -> Heatmaps:
        """Maps for images (b c h w), normalised as the network was trained.

        targets: the class to explain, one for all or one an image; None takes each image's
        predicted class. layout: how tokens lie on the image; None finds it. The network comes back
        as it was: its train/eval flags, requires_grad, gradients and hooks, after errors too.

        Raises ValueError where the network is refused, an argument does not fit or the result is
        not finite.
        """
        if reason := self.refusal(network):
            raise ValueError(f"{self} does not fit {type(network).__name__}: {reason}")
        check_images(network, images)
        with untouched(network), grads(network) if self.needs_gradients else torch.no_grad():
            wanted = None if targets is None else as_targets(targets, images)
            images = outside_inference(images.detach())
            maps = self.explain(network, images, wanted, layout)
            check_finite(maps.values, f"the map of {self}", network, images)
        return maps


@contextmanager
def untouched(network: nn.Module) -> Iterator[None]:
    """The network in eval mode and as it is written; then every train/eval flag as it was."""
    training = [module for module in modules_of(network) if module.training]
    try:
        if training:
            with suppress(NotImplementedError):  # what torch.export made has one mode
                network.eval()
        with uncompiled():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def grads(network: nn.Module) -> Iterator[None]:
    """Gradients on, even inside no_grad or inference mode, with every parameter frozen.

    Raises ValueError for a network made in inference mode, whose weights no gradient can pass.
    """
    for name, weight in [*network.named_parameters(), *network.named_buffers()]:
        if weight.is_inference():
            raise ValueError(
                f"gradients cannot pass {name!r}: the network was made in torch.inference_mode(); "
                "build or load it outside, or copy it there with copy.deepcopy"
            )
    trainable = [weight for weight in network.parameters() if weight.requires_grad]
    with torch.inference_mode(False), torch.enable_grad():
        try:
            for weight in trainable:
                weight.requires_grad_(False)
            yield
        finally:
            for weight in trainable:
                weight.requires_grad_(True)


def class_logits(network: nn.Module, images: Images) -> Logits:
    """The network's logits (b k), also of a Hugging Face output; ValueError where not finite."""
    output = network(images)
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"expected logits ({len(images)}, classes) of the network, got {came}")
    check_finite(logits, "the network's output", network, images)
    return logits


def chosen(logits: Logits, targets: Int[Tensor, " b"] | None) -> Int[Tensor, " b"]:
    """The classes to explain: the targets, checked against the logits, or the predicted classes."""
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
    """One class index an image, on the images' device."""
    wanted = outside_inference(torch.as_tensor(targets, device=images.device))
    if wanted.is_floating_point() or wanted.dtype == torch.bool:
        raise ValueError(f"targets must be class indices (whole numbers), got {wanted.dtype}")
    if wanted.ndim == 0:
        wanted = wanted.expand(len(images))
    if wanted.shape != (len(images),):
        raise ValueError(
            f"targets must be one class or {len(images)} (one an image), "
            f"got shape {tuple(wanted.shape)}"
        )
    return wanted.long()


def outside_inference(x: Tensor) -> Tensor:
    """x: a copy if made in inference mode, as such a tensor cannot be saved for a gradient."""
    return x.clone() if x.is_inference() else x


def check_images(network: nn.Module, images: Tensor) -> None:
    """ValueError unless images are a batch of floats (b c h w) where the network is."""
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
    """ValueError where `values` holds NaN or infinity, with the first place that explains it."""
    if values.isfinite().all():
        return
    if not images.isfinite().all():
        cause = "the images hold NaN or infinity"
    else:
        weights = [*network.named_parameters(), *network.named_buffers()]
        broken = [name for name, weight in weights if not weight.isfinite().all()]
        cause = (
            f"the network's weights do, first {broken[0]!r} ({len(broken)} of {len(weights)})"
            if broken
            else "images and weights are finite: too large for this dtype?"
        )
    raise ValueError(f"{what} holds NaN or infinity: {cause}")
