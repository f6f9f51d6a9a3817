"""The gates of an attention CNN: squeeze-and-excitation, spatial masks, CBAM.

x the features before a gate (b c h w), g the gate in [0, 1]: (b c 1 1) for a channel gate, or
(b c h w) where each channel has a gate in each place, (b 1 h w) for a spatial one; the network goes
on with g x. A gate that selects among branches (selective kernels, split attention) scales each
branch's channels before they are summed: there c runs over the channels of all branches.

Axes: b batch, c channels, h height, w width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vision_attn.attention.gates import Gate, NoGate
from vision_attn.hooks import Hooks, apart, current_scope
from vision_attn.methods.base import Explainer
from vision_attn.methods.targets import Target
from vision_attn.tokens.modules import network_of
from vision_attn.tokens.outputs import run
from vision_attn.types import Heatmaps, Images, Model, TokenLayout

__all__ = [
    "ChannelGates",
    "SpatialGates",
    "channel_gates",
    "gate_values",
    "spatial_gates",
]

Read = Callable[[Tensor, Tensor], Tensor]  # (x, g) -> what to keep of them

# What timm and torchvision call the activation whose output is the gate.
GATE_ACTIVATIONS = ("gate", "scale_activation", "sigmoid")
# What timm calls the last layer of a gate among kernels, and the softmax of one among splits.
KERNEL_GATE, SPLIT_GATE = "fc_select", "rsoftmax"
TIMES = frozenset(
    {torch.mul, torch.multiply, Tensor.mul, Tensor.mul_, Tensor.multiply, Tensor.multiply_,
     Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__}
)  # fmt: skip


@dataclass(frozen=True)
class ChannelGates(Explainer):
    """Feature strength in each place after one layer's channel gates.

    kind: `passed`, mean_c g_c |x_c|, the strength that remains; or `selected`,
    mean_c (g_c - mean g) |x_c|, how much more remains than if all channels passed alike: positive
    in places of the channels that the gates favour, and 0 everywhere for gates that are all alike.
    layer: which gate, in the order they run, -1 the last.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import ChannelGates
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> maps = ChannelGates(kind="selected")(network, torch.rand(1, 3, 32, 32))
        >>> maps.values.shape
        torch.Size([1, 4, 4])
    """

    layer: int = -1
    kind: Literal["passed", "selected"] = "passed"

    class_specific = False

    def refusal(self, network: nn.Module) -> str | None:
        return _refusal(channel_gates(network), "channel", self.layer)

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

        with reading(channel_gates(network), read) as maps:
            run(network, images)
        return Heatmaps(list(maps.values())[self.layer], str(self))


@dataclass(frozen=True)
class SpatialGates(Explainer):
    """Spatial gates: g itself, of one layer or of all together.

    layer: which gate, in the order they run, -1 the last; `mean` over all layers, or `product`,
    what a signal in that place keeps that goes through every gate. Layers are brought to the
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

    layer: int | Literal["mean", "product"] = "mean"

    class_specific = False

    def refusal(self, network: nn.Module) -> str | None:
        return _refusal(spatial_gates(network), "spatial", self.layer)

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        with reading(spatial_gates(network), lambda x, g: g[:, 0].float()) as maps:
            run(network, images)
        masks = list(maps.values())
        if isinstance(self.layer, int):
            return Heatmaps(masks[self.layer], str(self))
        size = max(mask.shape[1:] for mask in masks)
        stack = torch.stack([_resized(mask, size) for mask in masks])
        return Heatmaps(stack.mean(0) if self.layer == "mean" else stack.prod(0), str(self))


def gate_values(network: nn.Module | Model, images: Images) -> dict[str, Float[Tensor, "b ..."]]:
    """Run a network and read its gates, by the module's name, in the order they run.

    (b c) for a channel gate, (b c h w) for one of each channel in each place, (b h w) for a spatial
    one. Raises ValueError where there is no gate.

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
    gates = channel_gates(network) | spatial_gates(network)
    if not gates:
        raise ValueError(f"{type(network).__name__} has no channel or spatial gates to read")

    def read(x: Tensor, g: Tensor) -> Tensor:
        if g.shape[1] == 1:
            return g[:, 0]
        return g[:, :, 0, 0] if g.shape[2:].numel() == 1 else g

    with apart(), reading(gates, read) as values:
        run(network, images)
    return dict(values)


def channel_gates(network: nn.Module) -> dict[str, nn.Module]:
    """Find the modules that scale whole channels, by name.

    Examples:
        >>> from vision_attn.methods.gates import channel_gates
        >>> from vision_attn.models import SEResNet
        >>> list(channel_gates(SEResNet(layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))))
        ['layer1.0.se', 'layer2.0.se', 'layer3.0.se', 'layer4.0.se']
    """
    return {name: gate for name, gate in _gates(network).items() if not _is_spatial(gate)}


def spatial_gates(network: nn.Module) -> dict[str, nn.Module]:
    """Find the modules that scale places, by name."""
    return {name: gate for name, gate in _gates(network).items() if _is_spatial(gate)}


@contextmanager
def reading(gates: dict[str, nn.Module], read: Read) -> Iterator[dict[str, Tensor]]:
    """Keep `read(x, g)` of each gate that runs while this is open, by name, in that order.

    Raises ValueError at the end for a gate that did not run, or not in a known way.
    """
    values: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor, gate: Tensor) -> None:
        values[name] = read(x, gate)

    with Hooks() as hooks, Products() as products:
        for name, module in gates.items():
            _hook(module, partial(keep, name), products, hooks)
        yield values
    if silent := [name for name in gates if name not in values]:
        raise ValueError(f"{len(silent)} of {len(gates)} gates gave no value, first {silent[0]!r}")


@dataclass
class Product:
    """The features that a module was given, what it multiplies them by, and the product so far."""

    features: Tensor
    gate: Tensor | None = None
    so_far: Tensor | None = None


class Products(TorchFunctionMode):
    """Follow what modules multiply their input by, while they run.

    Examples:
        >>> import torch
        >>> from vision_attn.methods.gates import Product, Products
        >>> x = torch.ones(1, 2, 3, 3)
        >>> with Products() as products:
        ...     products.open.append(Product(x))
        ...     _ = torch.full((1, 2, 1, 1), 0.5) * x
        >>> products.open[0].gate.flatten().tolist()
        [0.5, 0.5]
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Product] = []
        self.scope = current_scope()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if (
            not self.open
            or self.scope is not current_scope()
            or func not in TIMES
            or len(args) != 2
        ):
            return func(*args, **kwargs or {})
        inner = self.open[-1]
        pairs = [(x, g) for x, g in (args, args[::-1]) if isinstance(g, Tensor)]
        current = inner.features if inner.so_far is None else inner.so_far
        factor = next((g for x, g in pairs if x is current), None)
        if factor is not None and inner.so_far is None and func.__name__.endswith(("_", "imul__")):
            inner.features = inner.features.clone()  # the product overwrites them
        product = func(*args, **kwargs or {})
        if factor is not None:
            inner.gate = factor if inner.gate is None else inner.gate * factor
            inner.so_far = product
        return product


def _hook(
    module: nn.Module, keep: Callable[[Tensor, Tensor], None], products: Products, hooks: Hooks
) -> None:
    """Hook a module so that `keep` gets its features and gate whenever it runs."""
    if isinstance(module, Gate):
        hooks.after(module, lambda _m, args, _out: keep(args[0], module.gate(args[0])))
        return
    children = dict(module.named_children())
    if KERNEL_GATE in children:  # the branches lie side by side: b branch c h w
        beside = lambda _m, args, out: keep(args[0].flatten(1, 2), out.flatten(1, 2))  # noqa: E731
        hooks.after(module, beside)
        return
    if SPLIT_GATE in children:
        branches: list[Tensor] = []
        gate = lambda _m, _args, out: keep(branches.pop(), out[:, :, None, None])  # noqa: E731
        hooks.after(children["act0"], lambda _m, _args, out: branches.append(out))
        hooks.after(children[SPLIT_GATE], gate)
        return

    def enter(_module: nn.Module, args: tuple) -> None:
        products.open.append(
            Product(args[0] if args else torch.empty(0, dtype=torch.float32, device="cpu"))
        )

    def leave(_module: nn.Module, _args: tuple, _output: object) -> None:
        product = products.open.pop()
        if product.gate is not None:
            keep(*_channels_second(product.features, _narrowed(product.gate)))

    hooks.before(module, enter)
    hooks.after(module, leave, always_call=True)


def _narrowed(gate: Tensor) -> Tensor:
    """Undo an expansion: keep one of what lies in memory once."""
    for axis, stride in enumerate(gate.stride()):
        if stride == 0 and axis:
            gate = gate.narrow(axis, 0, 1)
    return gate


def _channels_second(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Turn features (b h w c) whose gate is (b 1 1 c)."""
    if gate.shape[1:3].numel() == 1 and gate.shape[3] == x.shape[3] > 1:
        return x.movedim(3, 1), gate.movedim(3, 1)
    return x, gate


def _gates(network: nn.Module) -> dict[str, nn.Module]:
    return {
        name: module
        for name, module in network.named_modules()
        if (isinstance(module, Gate) and not isinstance(module, NoGate)) or _is_gate(module)
    }


def _is_gate(module: nn.Module) -> bool:
    """Whether a module of timm or torchvision is a gate, by the names of its layers."""
    children = dict(module.named_children())
    if KERNEL_GATE in children or {SPLIT_GATE, "act0"} <= set(children):
        return True
    if getattr(module, "mlp_scale", module) is None:  # a global context that is added alone
        return False
    return any(
        name in GATE_ACTIVATIONS
        and not any(True for _ in child.parameters())
        and not isinstance(child, Gate | nn.Identity)
        for name, child in children.items()
    )


def _is_spatial(gate: nn.Module) -> bool:
    """Whether a gate's last convolution has one output channel, as a spatial gate's has."""
    convs = [module for module in gate.modules() if isinstance(module, nn.Conv2d)]
    return bool(convs) and convs[-1].out_channels == 1


def _refusal(gates: dict[str, nn.Module], kind: str, layer: int | str) -> str | None:
    if not gates:
        return f"it has no {kind} gates"
    count = len(gates)
    if isinstance(layer, int) and not -count <= layer < count:
        return f"it has {count} {kind} gates: layer must be -{count} to {count - 1}, got {layer}"
    return None


def _resized(maps: Float[Tensor, "b h w"], size: torch.Size) -> Float[Tensor, "b H W"]:
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
