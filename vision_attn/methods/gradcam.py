"""Class activation maps: feature channels weighted by what the target gains from them.

A the features of one layer (b c h w), G = d target / dA. Every method is
relu(sum_c contribution), and differs in how A and G make the contribution.

Axes: b batch, c channels, h height, w width, n tokens, d token width.
"""

import itertools
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.arguments import hint
from vision_attn.errors import quoted
from vision_attn.hooks import Hooks
from vision_attn.inference import asked_once, modules_of
from vision_attn.methods.base import Explainer, laid
from vision_attn.methods.passes import shared
from vision_attn.methods.targets import Target
from vision_attn.tokens.gradients.levels import Level, levels_or_none
from vision_attn.tokens.gradients.mode import HeldGradients
from vision_attn.tokens.gradients.rules import NORM_RULES
from vision_attn.tokens.gradients.windows import ImageWindow, parts_noted, takes_parts
from vision_attn.tokens.layout import layout_of
from vision_attn.tokens.modules import LayerLike, attends, module_name, why_opaque
from vision_attn.tokens.outputs import run
from vision_attn.tokens.path.cells import KeptCells
from vision_attn.tokens.path.path import find_places
from vision_attn.tokens.path.places import Places
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = [
    "ClassActivationMap",
    "GradCAM",
    "GradCAMPlusPlus",
    "HiResCAM",
    "LayerCAM",
    "XGradCAM",
    "find_layers",
]

Features = Float[Tensor, "b c h w"]

# How transformer blocks name the norm before their attention, and the attention.
NORMS = ("norm1", "ln_1", "layernorm_before", "layer_norm1")
ATTENTIONS = ("attn", "self_attention", "attention", "self_attn")


@dataclass(frozen=True)
class ClassActivationMap(Explainer):
    """A class activation map: the contributions of one layer's channels, where they sum above 0.

    relu(sum_c contribution(A, G)).

    Args:
        layer: A module of the network (`network.layer4`), or its name (`layer4.2`,
            `blocks.-1.norm1`, where -1 is the last child); of a list of these the mean of their
            maps, brought to the finest grid among them. None takes the last map that a
            convolutional network makes (pools excepted). In a transformer that classifies by its
            patches, by their mean or an attention pool, it takes the tokens as they are read: what
            the last norm gives, or the last block where the norm follows the mean. The divisors of
            norms behind them are constants in the gradient, which would cancel otherwise. It says
            then which tokens hold evidence at the end, not where attention brought it from. In a
            transformer that classifies by a class token it takes the norm before the last
            attention: there the class token has not yet read the patches, so the gradient reaches
            them; where norms follow the attention (post-norm), the output of the block before the
            last.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import GradCAM
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> GradCAM().refusal(network) is None
        True
        >>> GradCAM(layer="layer5").refusal(network)
        "it has no layer 'layer5' (did you mean 'layer4'?)"
    """

    layer: LayerLike | list[LayerLike] | tuple[LayerLike, ...] | None = None

    class_specific = True
    needs_gradients = True
    why_empty = "no place supports the class in this layer, or no gradient reaches the layer"
    after_norm: ClassVar[bool] = False
    """Whether to read a map after the norm of each place that follows it, if one does."""

    @abstractmethod
    def contribution(self, features: Features, gradient: Features) -> Features:
        """Compute what each channel adds to the map, place by place (b c h w).

        Without writing into what is given: other methods may read it, too.
        """

    def refusal(self, network: nn.Module) -> str | None:
        if reason := why_opaque(network):
            return reason
        try:
            for layer in self.layer if isinstance(self.layer, tuple | list) else [self.layer]:
                find_layers(network, layer)
        except ValueError as error:
            return str(error)
        return None

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        readout = readout_of(network, images, layout) if self.layer is None else None
        features, gradient, target, part = shared(
            ("features and their gradient", self.layer, self.after_norm and readout is None),
            lambda: (
                self._at_layer(network, images, target, layout)
                if readout is None
                else self._at_readout(network, images, target, readout)
            ),
            *(network, images, target, layout),
        )
        with torch.no_grad():
            contribution = self.contribution(features, gradient)
        values = contribution.sum(dim=1).relu()
        return laid(Heatmaps(values, str(self), target.classes(images)), part)

    def _at_readout(
        self, network: nn.Module, images: Images, target: Target, readout: Level
    ) -> tuple[Tensor, Tensor, Target, KeptCells | None]:
        """The tokens as the classifier reads them, their gradient (both b c h w), the fixed target.

        Also the cells of the image that they are, if not all.
        The divisors of the norms that follow are constants: before a norm of the tokens' mean the
        contributions of all tokens would sum to 0.
        """
        marks = [(readout.mark, readout.changed)]
        with HeldGradients(marks, NORM_RULES, len(images)) as mode:
            output = run(network, images)
        tokens = mode.kept.get(0)
        if tokens is None or tokens.shape[readout.batch] != len(images):
            raise ValueError(
                f"{self}: the last tokens were found by a run of one image, and not for these "
                "images, on which the network runs in another way: name a layer"
            )
        target = target.fixed(output)
        gradient = self._gradient(target, output, tokens)
        return (
            readout.features(tokens.detach().float()),
            readout.features(gradient.float()),
            target,
            readout.part,
        )

    def _gradient(self, target: Target, output: Any, features: Tensor) -> Tensor:
        score = target(output).sum()
        gradient = None
        if score.requires_grad:
            (gradient,) = torch.autograd.grad(score, features, allow_unused=True)
        if gradient is None:
            raise ValueError(f"{self}: {target} does not depend on this layer's output")
        return gradient

    def _at_layer(
        self, network: nn.Module, images: Images, target: Target, layout: TokenLayout | None
    ) -> tuple[Tensor, Tensor, Target, KeptCells | None]:
        """The features of a layer, their gradient (both b c h w), the fixed target.

        Also the cells of the image that they are, if not all.
        """
        assert not isinstance(self.layer, tuple | list)  # one of them at a time
        norms = place_norms(network) if self.after_norm and self.layer is None else []
        layers = find_layers(network, self.layer)
        sources: list[nn.Module] = []
        with (
            cut(layers, norms, sources) as leaves,
            linear_by_convolution(layers[0]) as is_linear,
            parts_noted(network, images),
        ):
            output = run(network, images)
        if not leaves and is_linear and self.layer is None:
            layers = find_layers(network, None, before=layers[0])
            with cut(layers, norms, sources) as leaves:
                output = run(network, images)
        target = target.fixed(output)
        if not leaves:
            no_map = f"no map larger than 1x1 for images of {images.shape[2]}x{images.shape[3]}"
            raise ValueError(
                f"{self}: the last convolutional stage gives {no_map}: use larger images or name "
                "an earlier layer"
                if self.layer is None
                else f"{self}: this layer gives {no_map}: name one inside it or an earlier one"
            )
        leaf, tokens_or_map = leaves
        # A ReLU that is no module may write into the last map: it is a part of it (DenseNet).
        features = tokens_or_map if self.layer is None and tokens_or_map.ndim == 4 else leaf
        gradient = self._gradient(target, output, features)
        size = images.shape[2], images.shape[3]
        geometry: TokenLayout | Places | None = layout
        if features.ndim == 3 and layout is None:
            geometry = places_of_tokens(network, images, features, layers[0])
        if len(features) != len(images) and not (
            isinstance(geometry, Places) and features.shape[geometry.batch_axis] == len(images)
        ):
            raise ValueError(
                f"{self}: the layer gives {len(features)} rows for {len(images)} images: "
                "name a layer whose output is one map per image, not one per window"
            )
        with torch.no_grad():
            features, gradient = (
                geometry.to_map(x.float())
                if isinstance(geometry, Places)
                else on_grid(x.float(), size, geometry)
                for x in (features, gradient)
            )
        window = window_of(network, images, sources[0]) if layout is None else None
        part = geometry.part if isinstance(geometry, Places) else None
        if window is not None and part is None:
            part = window.cells((features.shape[2], features.shape[3]))
        return features, gradient, target, part if window is not None else None


@dataclass(frozen=True)
class GradCAM(ClassActivationMap):
    """Grad-CAM: channels weighted by their mean gradient.

    relu(sum_c mean_hw(G_c) A_c), Selvaraju et al. 2017.

    Args:
        layer: The module that makes A, or its name, or a list; None chooses one, as
            `ClassActivationMap` tells.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import GradCAM
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> GradCAM()(network, torch.rand(1, 3, 32, 32), target=3).values.shape
        torch.Size([1, 4, 4])
    """

    def contribution(self, features: Features, gradient: Features) -> Features:
        return gradient.mean(dim=(2, 3), keepdim=True) * features


@dataclass(frozen=True)
class GradCAMPlusPlus(ClassActivationMap):
    """Grad-CAM++: channels weighted by their positive gradients, each place by its share.

    relu(sum_c w_c A_c), w = sum_hw(a relu(G)), a = 1 / (2 + G sum_hw(A)).

    Chattopadhyay et al. 2018, equation 19, whose G^2 / (2 G^2 + G^3 sum_hw(A)) is the same wherever
    G is not 0, but underflows for small G. a is 0 where its denominator is.

    Args:
        layer: The module that makes A, or its name, or a list; None chooses one, as
            `ClassActivationMap` tells.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import GradCAMPlusPlus
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> GradCAMPlusPlus()(network, torch.rand(1, 3, 32, 32), target=3).values.shape
        torch.Size([1, 4, 4])
    """

    def contribution(self, features: Features, gradient: Features) -> Features:
        total = features.sum(dim=(2, 3), keepdim=True)
        alpha = inverse(2 + gradient * total)
        return (alpha * gradient.relu()).sum(dim=(2, 3), keepdim=True) * features


@dataclass(frozen=True)
class XGradCAM(ClassActivationMap):
    """XGrad-CAM: channels weighted by their mean gradient, places by their activation.

    relu(sum_c w_c A_c), w = sum_hw(G A) / sum_hw(A), 0 where sum_hw(A) is 0. Fu et al. 2020.

    Args:
        layer: The module that makes A, or its name, or a list; None chooses one, as
            `ClassActivationMap` tells.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import XGradCAM
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> XGradCAM()(network, torch.rand(1, 3, 32, 32), target=3).values.shape
        torch.Size([1, 4, 4])
    """

    def contribution(self, features: Features, gradient: Features) -> Features:
        total = features.sum(dim=(2, 3), keepdim=True)
        return (gradient * features * inverse(total)).sum(dim=(2, 3), keepdim=True) * features


@dataclass(frozen=True)
class HiResCAM(ClassActivationMap):
    """HiResCAM: activations times gradients, place by place.

    relu(sum_c G_c A_c), Draelos and Carin 2020: exact where the head is pooling and linear. Before
    a norm of each place the sum is 0 by construction, as the logit does not change with the place's
    scale: a map that such a norm follows is read after it.

    Args:
        layer: The module that makes A, or its name, or a list; None chooses one, as
            `ClassActivationMap` tells.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import HiResCAM
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> HiResCAM()(network, torch.rand(1, 3, 32, 32), target=3).values.shape
        torch.Size([1, 4, 4])
    """

    after_norm = True

    def contribution(self, features: Features, gradient: Features) -> Features:
        return gradient * features


@dataclass(frozen=True)
class LayerCAM(ClassActivationMap):
    """LayerCAM: activations times positive gradients, place by place.

    relu(sum_c relu(G_c) A_c), Jiang et al. 2021: fit for early layers too.

    Args:
        layer: The module that makes A, or its name, or a list; None chooses one, as
            `ClassActivationMap` tells.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import LayerCAM
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> LayerCAM(layer="layer4")(network, torch.rand(1, 3, 32, 32), target=3).values.shape
        torch.Size([1, 4, 4])
    """

    def contribution(self, features: Features, gradient: Features) -> Features:
        return gradient.relu() * features


def readout_of(network: nn.Module, images: Images, layout: TokenLayout | None) -> Level | None:
    """Find the tokens as the classifier reads them, where attention ends and patches are read."""
    if not asked_once(network, _ends_in_attention):
        return None
    levels = levels_or_none(network, images, layout)
    return None if levels is None else levels.readout


def places_of_tokens(
    network: nn.Module, images: Images, features: Tensor, layer: nn.Module
) -> TokenLayout | Places:
    """Find where a layer's tokens (b n d) lie: as the network's kind says, or by a run."""
    with suppress(ValueError):
        layout = layout_of(network, (images.shape[2], images.shape[3]))
        if (len(images), layout.tokens) == features.shape[:2]:
            return layout
    return find_places(network, images, layer)


def window_of(network: nn.Module, images: Images, module: nn.Module) -> ImageWindow | None:
    """Find what of the image a module's output is of; None: all, as far as is known."""
    levels = levels_or_none(network, images) if takes_parts(network, images) else None
    return None if levels is None else levels.windows.get(modules_of(network)[module])


def inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 where x is 0."""
    return torch.where(x == 0, 0, 1 / x)


def find_layers(
    network: nn.Module, layer: LayerLike | None, before: nn.Module | None = None
) -> list[nn.Module]:
    """Find the modules to read, inside out: the last of them to give a map is meant.

    layer: one module or its name, as `module_name` takes it. None: the
    norm before the last attention or the last spatial convolution, whichever comes later in the
    network, all modules around it and, after a convolution, all that follow but pools; after an
    attention, the batch norms that follow its block. before: a module, before which to look. Raises
    ValueError where there is none.
    """
    if layer is None and before is None:
        return [network.get_submodule(name) for name in asked_once(network, _usual_layers)]
    modules = {name: module for module, name in modules_of(network).items()}
    if layer is not None:
        name = module_name(network, layer)
        if name is None:
            raise ValueError(
                f"it has no layer {quoted(layer)}{hint(layer, modules)}"
                if isinstance(layer, str)
                else f"the {type(layer).__name__} that is given as a layer is no part of it"
            )
        return [network.get_submodule(name)]
    return [modules[name] for name in _layers_before(modules, before)]


def _usual_layers(network: nn.Module) -> list[str]:
    return _layers_before({name: module for module, name in modules_of(network).items()}, None)


def _ends_in_attention(network: nn.Module) -> bool:
    """Whether no spatial convolution follows the last attention."""
    return _last_map({name: module for module, name in modules_of(network).items()}, None)[1]


def _last_map(modules: dict[str, nn.Module], end: int | None) -> tuple[str, bool]:
    """Name the norm before the last attention or the last spatial convolution among the first `end`
    modules, whichever comes later; and say whether it is the norm.
    """
    order = list(modules)
    norms = [f"{path}.{norm}" for path, block in modules.items() for norm in _norms(block)]
    blocks = [path for path, block in modules.items() if _is_post_norm(block)]
    if len(blocks) > 1 and (not norms or order.index(norms[-1]) < order.index(blocks[-1])):
        norms.append(blocks[-2])
    norms = norms or _norms_by_projection(modules)
    convs = [path for path in order[:end] if isinstance(modules[path], nn.Conv2d)]
    if norms:  # a convolution of queries or keys gives no map of the network's own
        inside = tuple(f"{path}." for path, module in modules.items() if path and attends(module))
        convs = [path for path in convs if not path.startswith(inside)]
    sides: dict[str, Any] = {path: modules[path].kernel_size for path in convs}
    spatial = [path for path in convs if max(sides[path]) > 1] or convs
    last = max([*norms[-1:], *spatial[-1:]], key=order.index, default=None)
    if last is None:
        raise ValueError(
            "it has no convolution, and no norm before an attention was found: name a layer"
        )
    return last, last in norms


def _layers_before(modules: dict[str, nn.Module], before: nn.Module | None) -> list[str]:
    order = list(modules)
    end = len(order) if before is None else list(modules.values()).index(before)
    last, is_norm = _last_map(modules, end)
    parts = last.split(".")
    around = [".".join(parts[:depth]) for depth in range(len(parts), -1, -1)]
    later = order[order.index(last) + 1 : end]
    if is_norm:
        block = last.rpartition(".")[0] + "."
        later = [path for path in later if not path.startswith(block)]
        return around + [path for path in later if isinstance(modules[path], nn.BatchNorm2d)]
    return around + [path for path in later if not _pools(modules[path])]


def _norms_by_projection(modules: dict[str, nn.Module]) -> list[str]:
    """Name the norm before the last module that projects to queries and keys, if there is one.

    The nearest that is registered before its projections: its own, its neighbour, or that of a
    module around it.
    """
    attending = [path for path, module in modules.items() if attends(module)]
    if not attending:
        return []
    path = attending[-1]
    own = itertools.takewhile(
        lambda pair: not isinstance(pair[1], nn.Linear | nn.Conv2d), modules[path].named_children()
    )
    inside = [name for name, child in own if _norms_tokens(name, child)]
    if inside:
        return [f"{path}.{inside[-1]}"]
    while path:
        around, _, child = path.rpartition(".")
        names = list(dict(modules[around].named_children()))
        for name in reversed(names[: names.index(child)]):
            if _norms_tokens(name, modules[around].get_submodule(name)):
                return [f"{around}.{name}" if around else name]
        path = around
    return []


def _norms_tokens(name: str, module: nn.Module) -> bool:
    """Whether a module is a norm of tokens, not of queries or keys."""
    kind = type(module).__name__
    return ("LayerNorm" in kind or "RMSNorm" in kind) and not re.match("q|k", name)


@contextmanager
def linear_by_convolution(module: nn.Module) -> Iterator[list[bool]]:
    """Note whether a module is a convolution whose kernel covers the whole map that it is given.

    Yields a list that holds True once it has run as such: a linear layer, as in VGG's classifier.
    """
    has_run: list[bool] = []

    def note(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        if isinstance(module, nn.Conv2d) and not any(module.padding):
            size = tuple(inputs[0].shape[-2:])
            if size == tuple(module.kernel_size) and max(size) > 1:
                has_run.append(True)

    with Hooks() as hooks:
        hooks.after(module, note)
        yield has_run


def _pools(module: nn.Module) -> bool:
    """Whether a module is named a pool; not what belongs to a PoolFormer."""
    return "pool" in type(module).__name__.lower().replace("poolformer", "")


def _is_post_norm(block: nn.Module) -> bool:
    """Whether it is a transformer block whose norms follow its attention."""
    return getattr(block, "norm_first", None) is False or "PostBlock" in type(block).__name__


def place_norms(network: nn.Module) -> list[nn.Module]:
    """List the norms over the channels of each place."""
    return [
        module
        for module in network.modules()
        if isinstance(module, nn.LayerNorm) or type(module).__name__.startswith("LayerNorm")
    ]


def _norms(block: nn.Module) -> list[str]:
    """Name the norms before a block's attention; none where it is no transformer block."""
    children = dict(block.named_children())
    if _is_post_norm(block):
        return []
    attends = any(name in children for name in ATTENTIONS)
    return [name for name in NORMS if name in children and attends]


@contextmanager
def cut(
    layers: list[nn.Module], norms: Sequence[nn.Module], sources: list[nn.Module]
) -> Iterator[list[Tensor]]:
    """Cut the graph at the last of these layers that gives a map.

    Yields a list that will hold the map, a leaf, and the copy of it that what follows is given.
    norms: modules that take the place of a map that they are given as it is. sources: will hold the
    module that gave the map. Tokens count as a map
    from the first layer alone: after the last attention of a transformer that reads its class
    token, no gradient reaches the others. The output becomes a leaf, so that
    nothing before it is kept for the backward pass; what follows gets a copy, safe from in-place
    operations.
    """
    leaves: list[Tensor] = []
    pooled: list[object] = []  # what the last pool gave: no map of the modules around it

    def take(module: nn.Module, _inputs: tuple[object, ...], output: object) -> Tensor | None:
        if not isinstance(output, Tensor) or not _is_map(output, tokens=module is layers[0]):
            return None
        if pooled and output is pooled[0]:
            return None
        leaf = output.detach().requires_grad_()
        leaves[:], sources[:] = [leaf, leaf.clone()], [module]
        return leaves[1]

    def normed(module: nn.Module, inputs: tuple[object, ...], output: object) -> Tensor | None:
        if not (leaves and inputs and isinstance(inputs[0], Tensor) and leaves[1].ndim == 4):
            return None
        its_view = inputs[0].ndim == 4 and inputs[0].data_ptr() == leaves[1].data_ptr()
        its_view &= inputs[0].numel() == leaves[1].numel()  # the channels may be turned last
        value = take(layers[0], inputs, output) if its_view else None
        if value is not None:
            sources[:] = [module]
        return value

    def pool(_module: nn.Module, _inputs: tuple[object, ...], output: object) -> None:
        pooled[:] = [output]

    within = {module for layer in layers for module in layer.children()}
    with Hooks() as hooks:
        for layer in layers:
            hooks.after(layer, take)
        for module in filter(_pools, within):
            hooks.after(module, pool)
        for norm in norms:
            hooks.after(norm, normed)
        yield leaves


def _is_map(output: Tensor, tokens: bool) -> bool:
    if output.ndim == 3:
        return tokens
    return output.ndim == 4 and output.shape[2:].numel() > 1


def on_grid(
    features: Float[Tensor, "b n d"] | Float[Tensor, "b x y z"],
    size: tuple[int, int],
    layout: TokenLayout | None,
) -> Features:
    """Lay features out as (b c h w): tokens by the layout, channels-last maps turned.

    A map is channels-last where its axes 1 and 2 are nearer to the proportions of the images, whose
    size is (height, width), than its axes 2 and 3 are.
    """
    if features.ndim == 3:
        assert layout is not None
        return layout.to_map(rearrange(features, "b n d -> b d n"))

    def skew(height: int, width: int) -> float:
        ratio = height * size[1] / (width * size[0])
        return max(ratio, 1 / ratio)

    channels_last = skew(*features.shape[1:3]) < skew(*features.shape[2:4])
    return rearrange(features, "b h w c -> b c h w") if channels_last else features
