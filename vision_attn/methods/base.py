"""What every explainer shares: options, checks, and a network that comes back as it was.

Axes: b batch, c channels, h height, w width, k classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, final, get_type_hints

import torch
from torch import Tensor, nn

from vision_attn.arguments import checked, conform
from vision_attn.compat.torch_private import uncompiled
from vision_attn.errors import cut
from vision_attn.hooks import apart
from vision_attn.inference import eval_mode, frozen_parameters, unchanging
from vision_attn.methods.options import spelt, takes
from vision_attn.methods.smoothing import smoothed
from vision_attn.methods.targets import (
    Class,
    Target,
    TargetLike,
    as_target,
    has_classifier,
    no_classifier,
)
from vision_attn.tokens.inputs import images_in_words
from vision_attn.tokens.layout import layout_of
from vision_attn.tokens.modules import module_name, network_of, why_no_gradient, why_opaque
from vision_attn.tokens.outputs import check_finite, giving
from vision_attn.tokens.path.cells import KeptCells
from vision_attn.tokens.path.path import find_path
from vision_attn.types import Head, Heatmaps, Images, Model, TokenLayout

__all__ = [
    "Explainer",
    "check_images",
    "contradiction",
    "laid",
    "outside_inference",
]

MOST_CELLS = 1000  # of `smooth`: no grid has as many rows


@dataclass(frozen=True)
class Explainer(ABC):
    """A method that maps where a network looks in an image; its fields are its options.

    Subclasses are frozen dataclasses whose options all have defaults, and define `refusal` and
    `explain`. An option's annotation is its check: `Literal`, bool, int, float, str, None, tuples
    and unions of these; ranges are checked in `__post_init__`, after `super().__post_init__()`.

    Args:
        smooth: The standard deviation, in cells of the map's grid, of a Gaussian that every map is
            smoothed by; its total stays what it is. 0 leaves a map as it is.

    Attributes:
        class_specific: Whether maps differ by the target; without, it is not used.
        needs_gradients: Whether the target is differentiated.

    Raises:
        ValueError: An option has another type than its annotation, or is out of range.

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
        ...     def explain(self, network, images, target, layout):
        ...         return Heatmaps(self.gain * images.mean(1), str(self))
        >>> maps = Brightness(gain=2)(torch.nn.Identity(), torch.ones(1, 3, 2, 2))
        >>> maps.method, maps.values.tolist()
        ('Brightness(gain=2.0)', [[[2.0, 2.0], [2.0, 2.0]]])
    """

    smooth: int | float = field(default=0.0, kw_only=True)

    class_specific: ClassVar[bool]
    """Whether the map is of a class or another target, rather than the same for all of them."""
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
        if not 0 <= self.smooth <= MOST_CELLS:
            raise ValueError(
                f"{type(self).__name__}: smooth must be a number of cells, at least 0 and at most "
                f"{MOST_CELLS}, got {self.smooth}"
            )

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Name the options, each with its annotation; what every method has comes last."""
        return dict(_options(cls))

    @classmethod
    def convert_option(cls, option: str, value: Any) -> Any:
        """Convert a value to the type of an option.

        Args:
            option: The option's name.
            value: A value, such as the command line or a config gives it.

        Returns:
            The value, of the type of the option's annotation.

        Raises:
            ValueError: The value does not fit.
        """
        kind = cls.options()[option]
        if isinstance(value, Model) or (
            isinstance(value, nn.Module) and not takes(kind, nn.Module)
        ):
            raise ValueError(
                f"{cls.__name__}: option {option}: got a network; give it with the images, "
                f"{cls.__name__}()(network, images)"
            )
        try:
            value = conform(value, kind)
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: option {option}: {error}") from None
        if value in ([], ()):
            raise ValueError(f"{cls.__name__}: option {option}: expected one or more, got none")
        return tuple(value) if isinstance(value, list) else value

    def __str__(self) -> str:
        """The method as on the command line, with the options that differ from their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        options = ", ".join(
            f"{name}={float(value) if isinstance(defaults[name], float) else spelt(value)}"
            for name in self.options()
            if (value := getattr(self, name)) != defaults[name]
        )
        return f"{type(self).__name__}({options})" if options else type(self).__name__

    def named_in(self, network: nn.Module | Model) -> "Explainer":
        """Return the same method with the modules among its options by their names in a network.

        Raises:
            ValueError: A module is none of the network's.
        """

        def name(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(name, value))
            if not isinstance(value, nn.Module):
                return value
            path = module_name(network_of(network), value)
            if not path:
                what = "is the network itself" if path == "" else "is no part of this network"
                raise ValueError(
                    f"{self}: the {type(value).__name__} that is given as a layer {what}: give one "
                    "of its modules, or the name of one"
                )
            return path.removeprefix("_orig_mod.")

        options = {option: getattr(self, option) for option in self.options()}
        named = {option: name(value) for option, value in options.items()}
        return self if named == options else replace(self, **named)

    def of_each_layer(self) -> "Sequence[Explainer]":
        """Return the method for each of the layers that its option `layer` lists."""
        layer = getattr(self, "layer", None)
        return (
            [replace(self, **{"layer": each}) for each in layer]
            if isinstance(layer, tuple)
            else [self]
        )

    @abstractmethod
    def refusal(self, network: nn.Module) -> str | None:
        """Return a line on why this method cannot explain this network; None where it can.

        Args:
            network: The network to explain.
        """

    def refusal_for(
        self, network: nn.Module, images: Images, layout: TokenLayout | None = None
    ) -> str | None:
        """Return what `refusal` does, for images of this size.

        Args:
            network: The network to explain.
            images: (b c h w), as the network takes them.
            layout: How the network's tokens lie on them; None if it is not known.

        Returns:
            A line on why this method cannot explain the network; None where it can.
        """
        return self.refusal(network)

    @final
    def misfit(
        self,
        network: nn.Module,
        images: Images | None = None,
        layout: TokenLayout | None = None,
    ) -> str | None:
        """Return a line on why this method cannot explain this network; None where it can.

        That is what `refusal_for` says, or `refusal` where no images are given, and what holds for
        every method that needs gradients.

        Args:
            network: The network to explain.
            images: (b c h w); None where their size is not known.
            layout: How the network's tokens lie on them; None if it is not known.

        Returns:
            The line, or None.
        """
        if self.needs_gradients and (reason := why_no_gradient(network)):
            return reason
        return (
            self.refusal(network) if images is None else self.refusal_for(network, images, layout)
        )

    @abstractmethod
    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        """Compute the maps, for a network in eval mode that is not refused.

        With `needs_gradients` its parameters are frozen and gradients are on: make a leaf of what
        you differentiate by, and take `torch.autograd.grad`. `run` gives the network's output,
        `target.fixed(output)` decides on the predicted class if that is explained, and
        `target(output)` is the number of each image (b,).

        Args:
            network: The network.
            images: (b c h w), checked.
            target: What to explain.
            layout: How tokens lie on the image; None: it is to be found from a run.

        Returns:
            The maps, one an image, before they are smoothed.
        """

    @final
    @checked()
    def __call__(
        self,
        network: nn.Module | Model,
        images: Tensor,
        target: TargetLike = None,
        layout: TokenLayout | None = None,
        head: Head | None = None,
    ) -> Heatmaps:
        """Make maps for images, normalised as the network was trained.

        The network comes back as it was: its train/eval flags, requires_grad, gradients and hooks,
        after errors too.

        Args:
            network: A network, or a model, whose network, classes, head and layout are taken.
            images: (b, c, h, w).
            target: What to explain, for all images or a list of one an image: a class, a vector, a
                function of the output or a `Target`. None: each image's predicted class.
            layout: How tokens lie on the image. None: the model's, for images of its input size, or
                as it is found.
            head: Which part of the network's output is meant, by index, key or attribute. None: the
                model's, or `logits`, or the only tensor.

        Returns:
            One map an image, (b, rows, columns) on the method's own grid.

        Raises:
            ValueError: The network is refused, an argument does not fit, a run shows other tokens
                than the layout, the network has no classifier and no target is given, or the result
                is not finite.
        """
        method = self.named_in(network)
        with method.prepared(network, images, target, layout, head) as arguments:
            network, images, *_ = arguments
            maps = mean_of(
                [explainer.explain(*arguments) for explainer in method.of_each_layer()], str(method)
            )
            check_finite(maps.values, f"the map of {method}", network, images)
        return replace(self.smoothed(maps), method=maps.method) if self.smooth else maps

    @final
    def smoothed(self, maps: Heatmaps) -> Heatmaps:
        """Smooth maps that are not yet smoothed as this method smooths them.

        Args:
            maps: As the method gives them with `smooth=0`.

        Returns:
            The maps as the method gives them.
        """
        values = smoothed(maps.values, self.smooth, maps.left_out)
        return replace(maps, values=values, method=str(self))

    @contextmanager
    def prepared(
        self,
        network: nn.Module | Model,
        images: Tensor,
        target: TargetLike,
        layout: TokenLayout | None,
        head: Head | None,
    ) -> Iterator[tuple[nn.Module, Images, Target, TokenLayout | None]]:
        """Check the arguments of a call; give those of `explain`, in the state that it expects.

        Arguments: as of a call.

        Raises:
            ValueError: The network is refused or an argument does not fit.
        """
        layout = layout or layout_for(network, images)
        model = network if isinstance(network, Model) else None
        head = model.head if model is not None and head is None else head
        if self.class_specific and target is None and not has_classifier(network):
            raise ValueError(no_classifier(network))
        network = network_of(network)
        check_images(network, images)
        chosen = as_target(target, model) if self.class_specific else Class()
        chosen.check(len(images))
        with (
            unchanging(network),
            apart(),
            images_in_words(network, images),
            giving(network, head),
        ):
            if layout is not None and (reason := contradiction(network, images, layout)):
                raise ValueError(f"{cut(str(self))}: {reason}")
            if reason := self.misfit(network, images, layout):
                raise ValueError(
                    f"{cut(str(self))} does not fit {type(network).__name__}: {reason}"
                )
            with (
                uncompiled(),
                eval_mode(network),
                frozen_parameters(network) if self.needs_gradients else torch.no_grad(),
            ):
                try:
                    yield network, outside_inference(images.detach()), chosen, layout
                except NotImplementedError as error:  # FlexAttention's gradient on a CPU, say
                    reason = str(error).partition("\n")[0]
                    raise ValueError(
                        f"{cut(str(self))} does not fit {type(network).__name__}: {reason}"
                    ) from error


@cache
def _options(method: type[Explainer]) -> dict[str, Any]:
    annotations = get_type_hints(method)
    shared = {field.name for field in fields(Explainer)}
    names = sorted((field.name for field in fields(method)), key=shared.__contains__)
    return {name: annotations[name] for name in names}


def mean_of(maps: Sequence[Heatmaps], method: str) -> Heatmaps:
    """Average the maps of several layers, brought to the finest grid among them, bilinear.

    Examples:
        >>> import torch
        >>> from vision_attn.methods.base import mean_of
        >>> from vision_attn.types import Heatmaps
        >>> maps = [Heatmaps(torch.full((1, n, n), float(n)), "") for n in (2, 4)]
        >>> mean_of(maps, "both").values.shape, mean_of(maps, "both").values.unique().tolist()
        (torch.Size([1, 4, 4]), [3.0])
    """
    first = maps[0]
    if len(maps) == 1:
        return first
    height, width = max(
        (heatmaps.values.shape[1:] for heatmaps in maps), key=lambda grid: grid.numel()
    )

    def mean(name: str) -> Tensor | None:
        parts = [part for heatmaps in maps if (part := getattr(heatmaps, name)) is not None]
        return torch.stack(parts).mean(0) if len(parts) == len(maps) else None

    resized = [heatmaps.resized(height, width) for heatmaps in maps]
    left_out = [each.left_out for each in resized if each.left_out is not None]
    return Heatmaps(
        torch.stack([each.values for each in resized]).mean(0),
        method,
        first.targets,
        prefix_mass=mean("prefix_mass"),
        outlier_mass=mean("outlier_mass"),
        left_out=torch.stack(left_out).all(0) if len(left_out) == len(maps) else None,
    )


def laid(maps: Heatmaps, part: KeptCells | None) -> Heatmaps:
    """Lay maps of the cells that a network keeps over all of the image: 0 in the others."""
    if part is None:
        return maps
    values = part.lay(maps.values)
    return replace(maps, values=values, left_out=part.left_out(values.device))


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


def contradiction(
    network: nn.Module, images: Images, layout: TokenLayout, of_model: bool = False
) -> str | None:
    """Say how a run contradicts a layout that was given; None where it does not, or cannot tell.

    of_model: the layout is of the network's first tokens, and not of a layer's.
    """
    if why_opaque(network):
        return None
    try:
        path = find_path(network, images)
    except Exception:  # its own code: the run itself says so
        return None
    return path.contradiction(layout, of_model)


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
    if images.layout != torch.strided:
        raise ValueError(f"images must be dense, got {images.layout}: images.to_dense() makes them")
    if not images.is_floating_point():
        raise ValueError(
            f"images must be floats, normalised as the network was trained, got {images.dtype}"
        )
    weight = next(network.parameters(), images)
    if weight.device != images.device:
        raise ValueError(f"the images are on {images.device}, the network is on {weight.device}")
