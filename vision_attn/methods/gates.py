"""The gates of an attention CNN: squeeze-and-excitation, spatial masks, CBAM.

x the features before a gate (b c h w), g the gate in [0, 1]: (b c 1 1) for a channel gate, or
(b c h w) where each channel has a gate in each place, (b 1 h w) for a spatial one; the network goes
on with g x. A gate that selects among branches (selective kernels, split attention) scales each
branch's channels before they are summed: there c runs over the channels of all branches.

Axes: b batch, c channels, h height, w width.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.arguments import checked, hint
from vision_attn.errors import quoted
from vision_attn.hooks import apart
from vision_attn.inference import asked_once, infer
from vision_attn.methods.base import Explainer
from vision_attn.methods.targets import Target
from vision_attn.tokens.gates import GateCall, Gating, Read
from vision_attn.tokens.modules import LayerLike, module_name, network_of, why_opaque
from vision_attn.tokens.outputs import run
from vision_attn.tokens.path.support import blank_image
from vision_attn.types import Heatmaps, Images, Model, TokenLayout

__all__ = ["ChannelGates", "SpatialGates", "find_gates", "gate_values"]

TOGETHER = ("mean", "product")  # of all spatial gates


def _gates(_network: nn.Module) -> dict[Any, list[GateCall]]:
    return {}


@dataclass(frozen=True)
class ChannelGates(Explainer):
    """Feature strength in each place after one layer's channel gates.

    Args:
        layer: Which gate, in the order they run, -1 the last; or its name, or that of a module
            around it, or the module; of a list of these the mean of their maps.
        kind: `passed`, mean_c g_c |x_c|, the strength that remains; or `selected`, mean_c (g_c -
            mean g) |x_c|, how much more remains than if all channels passed alike: positive in
            places of the channels that the gates favour, and 0 everywhere for gates that are all
            alike.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import ChannelGates
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> maps = ChannelGates(kind="selected")(network, torch.rand(1, 3, 32, 32))
        >>> maps.values.shape
        torch.Size([1, 4, 4])
    """

    layer: int | LayerLike | list[int | LayerLike] | tuple[int | LayerLike, ...] = -1
    kind: Literal["passed", "selected"] = "passed"

    class_specific = False

    def refusal(self, network: nn.Module) -> str | None:
        return _refusal(network, None, False, self.layer)

    def refusal_for(
        self, network: nn.Module, images: Images, layout: TokenLayout | None = None
    ) -> str | None:
        return _refusal(network, images, False, self.layer)

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        def read(x: Tensor, g: Tensor) -> Tensor:
            weight = g if self.kind == "passed" else g - g.mean(dim=1, keepdim=True)
            return (weight * x.abs()).mean(dim=1).float()

        gates = [gate for gate in _read(network, images, read) if not gate.spatial]
        index = _index(network, [gate.name for gate in gates], "channel", self.layer)
        return Heatmaps(gates[index].value, str(self))


@dataclass(frozen=True)
class SpatialGates(Explainer):
    """Spatial gates: g itself, of one layer or of all together.

    Args:
        layer: Which gate, as ChannelGates takes it; `mean` over all layers, or `product`, what a
            signal in that place keeps that goes through every gate. Layers are brought to the
            largest grid among them, bilinear.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import SpatialGates
        >>> from vision_attn.models import SpatialCNN
        >>> network = SpatialCNN(num_classes=5)
        >>> maps = SpatialGates()(network, torch.rand(1, 3, 32, 32))
        >>> bool(maps.values.min() >= 0), bool(maps.values.max() <= 1)
        (True, True)
    """

    layer: (
        Literal["mean", "product"]
        | int
        | LayerLike
        | list[int | LayerLike]
        | tuple[int | LayerLike, ...]
    ) = "mean"

    class_specific = False

    def refusal(self, network: nn.Module) -> str | None:
        return _refusal(network, None, True, self.layer)

    def refusal_for(
        self, network: nn.Module, images: Images, layout: TokenLayout | None = None
    ) -> str | None:
        return _refusal(network, images, True, self.layer)

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        read = lambda x, g: g[:, 0].float()  # noqa: E731
        gates = [gate for gate in _read(network, images, read) if gate.spatial]
        masks = [gate.value for gate in gates]
        if self.layer not in TOGETHER:
            index = _index(network, [gate.name for gate in gates], "spatial", self.layer)
            return Heatmaps(masks[index], str(self))
        size = max(mask.shape[1:] for mask in masks)
        stack = torch.stack([_resized(mask, size) for mask in masks])
        return Heatmaps(stack.mean(0) if self.layer == "mean" else stack.prod(0), str(self))


@checked()
def gate_values(network: nn.Module | Model, images: Images) -> dict[str, Float[Tensor, "b ..."]]:
    """Run a network and read its gates, by the module's name, in the order they run.

    Args:
        network: A network or model with gates.
        images: (b c h w), as the network takes them.

    Returns:
        By module: (b c) for a channel gate, (b c h w) for one of each channel in each place,
        (b h w) for a spatial one.

    Raises:
        ValueError: There is no gate.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import gate_values
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> gates = gate_values(network, torch.rand(2, 3, 32, 32))
        >>> gates["layer4.0.se"].shape
        torch.Size([2, 4])
    """
    network = network_of(network)

    def read(x: Tensor, g: Tensor) -> Tensor:
        if g.shape[1] == 1 and (g.shape[2:].numel() > 1 or x.shape[1] > 1):
            return g[:, 0]
        return g[:, :, 0, 0] if g.shape[2:].numel() == 1 else g

    with apart():
        gates = _read(network, images, read)
    if not gates:
        raise ValueError(f"{type(network).__name__} has no channel or spatial gates to read")
    return {gate.name: gate.value for gate in gates}


def find_gates(network: nn.Module, images: Images) -> list[GateCall]:
    """Find the gates of a network by a run on one image of this size, in the order they run.

    They are remembered for the network as it stands; one that has changed is run again.

    Examples:
        >>> import torch
        >>> from vision_attn.methods.gates import find_gates
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> [gate.name for gate in find_gates(network, torch.rand(1, 3, 32, 32))]
        ['layer1.0.se', 'layer2.0.se', 'layer3.0.se', 'layer4.0.se']
    """
    key = tuple(images.shape[1:]), images.dtype, images.device
    calls = asked_once(network, _gates)
    if key not in calls:
        with apart(), Gating(network, lambda x, g: g.new_zeros(0)) as gating:
            infer(network, images[:1].clone())
        calls[key] = gating.calls
    return calls[key]


def _read(network: nn.Module, images: Images, read: Read) -> list[GateCall]:
    with Gating(network, read) as gating:
        run(network, images)
    return gating.calls


def _refusal(network: nn.Module, images: Images | None, spatial: bool, layer: Any) -> str | None:
    """Say why there is no such gate; None also where the network cannot run on a blank image."""
    if reason := why_opaque(network):
        return reason
    try:
        gates = find_gates(network, blank_image(network) if images is None else images)
    except Exception:  # its own code, on an image that may be of the wrong kind
        return None
    names = [gate.name for gate in gates if gate.spatial == spatial]
    kind = "spatial" if spatial else "channel"
    if not names:
        return f"it has no {kind} gates"
    try:
        for name in layer if isinstance(layer, tuple) else [layer]:
            if name not in TOGETHER:
                _index(network, names, kind, name)
    except ValueError as error:
        return str(error)
    return None


def _index(network: nn.Module, names: Sequence[str], kind: str, layer: Any) -> int:
    """Count a gate from 0, given by its index, -1 the last, its name, or a module around it."""
    count = len(names)
    if isinstance(layer, int):
        if not -count <= layer < count:
            raise ValueError(
                f"it has {count} {kind} gates: layer must be -{count} to {count - 1}, got {layer}"
            )
        return layer % count
    path = module_name(network, layer)
    indices = [index for index, name in enumerate(names) if name == layer]
    if not indices and path is not None:
        indices = [
            index
            for index, name in enumerate(names)
            if re.match(rf"{re.escape(path)}([.:]|$)", name)
        ]
    if len(indices) != 1:
        what = layer if isinstance(layer, str) else path or type(layer).__name__
        raise ValueError(
            f"layer {quoted(what)} has {len(indices)} {kind} gates: expected one, such as "
            f"{quoted(names[-1])}{hint(what, names)}"
        )
    return indices[0]


def _resized(maps: Float[Tensor, "b h w"], size: torch.Size) -> Float[Tensor, "b H W"]:
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
