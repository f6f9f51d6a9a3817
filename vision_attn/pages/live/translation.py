"""From a network to the list of operations that a page runs: exactly, or not at all.

Each kind of module has its translation here. Classes must be these classes themselves: of a
subclass nobody knows what it computes.

Axes: b batch, c channels, d width of a token, n tokens, k inputs, out outputs of a layer.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from vision_attn.attention import (
    CBAM,
    Additive,
    Attend,
    AttentionPool,
    ChannelGate,
    ClassToken,
    Dot,
    DotProduct,
    Gate,
    Global,
    KeyOnly,
    MeanPool,
    MultiHeadAttention,
    NoGate,
    RotaryAttention,
    ScaledDot,
    Softmax,
    SpatialGate,
    SpatialMask,
    SqueezeExcite,
)
from vision_attn.attention.gates import ChannelMLP
from vision_attn.errors import ModelError
from vision_attn.hooks import is_temporary
from vision_attn.models import FastCNN, SEResNet, SpatialCNN, ViT, WideEmbed
from vision_attn.models.layers import LayerScale, Mlp, resampled_positions
from vision_attn.models.senet import BasicBlock, Bottleneck
from vision_attn.models.timm_model import TimmModel, is_timm_vit, vit_from_timm
from vision_attn.models.vit import Block, ConvEmbed, PatchConv, PatchEmbed
from vision_attn.pages.live import Program
from vision_attn.types import Model, TokenLayout

__all__ = ["translate"]

RUNS = (
    "vision_attn's ViT with softmax attention, timm's plain ViTs, SEResNet, FastCNN and SpatialCNN"
)


def translate(model: Model) -> Program:
    """Write a model's network as a program for its input size.

    Raises ModelError, with the reason, for a network that a page cannot run exactly.
    """
    network = model.network
    try:
        if isinstance(network, TimmModel):
            network = network.network
        if is_timm_vit(network):
            network = vit_from_timm(network)
        kind = NETWORKS.get(type(network))
        if kind is None:
            raise ModelError("this kind of network is not translated")
        refuse_hooks(model.network)
        program = Program(model.preprocess.input_size)
        kind(Translation(program, network), network)
    except ValueError as error:
        name = type(network).__name__
        raise ModelError(f"{name} cannot run in a page: {error}. A page runs {RUNS}") from error
    return program


class Translation:
    """One network on its way into a program; a method a kind of module.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.pages.live import Program
        >>> from vision_attn.pages.live.translation import Translation
        >>> layer = nn.Linear(3, 5)
        >>> translation = Translation(Program((2, 2)), layer)
        >>> translation.linear(translation.program.image, layer)
        1
    """

    def __init__(self, program: Program, network: nn.Module):
        self.program = program
        self.add = program.add
        self.names = {module: name for name, module in network.named_modules()}
        self.layout: TokenLayout | None = None

    def linear(self, x: int, layer: nn.Module, scale: Tensor | None = None) -> int:
        """Add x W' + b, each output times `scale`."""
        known: Any = expect(layer, nn.Linear)
        bias = None if known.bias is None else known.bias.detach().double()
        if bias is not None and scale is not None:
            bias = bias * scale.double()
        return self.product(x, known.weight.detach().T.double(), bias, scale)

    def product(
        self,
        x: int,
        weight: Float[Tensor, "k out"],
        bias: Float[Tensor, " out"] | None = None,
        scale: Float[Tensor, " out"] | None = None,
    ) -> int:
        """Add x W + b, W's columns times `scale`."""
        return self.add("linear", x, **self.weights(weight, bias, scale))

    def weights(
        self,
        weight: Float[Tensor, "k out"],
        bias: Float[Tensor, " out"] | None,
        scale: Float[Tensor, " out"] | None = None,
    ) -> dict[str, int | None]:
        """Add a matrix with a scale of its columns, and its bias, as options.

        The scale stays apart: weights that are numbers in half precision are kept exactly.
        """
        return {
            "weight": self.program.matrix(array(weight), None if scale is None else array(scale)),
            "bias": None if bias is None else self.program.table(array(bias)),
        }

    def conv(self, x: int, layer: nn.Conv2d, norm: nn.Module | None = None) -> int:
        """Add a convolution, and fold the batch norm after it into its scale and its bias."""
        known: Any = expect(layer, nn.Conv2d, PatchConv)
        kernel, stride, pad = (
            sides[0] if isinstance(sides, tuple) and len(set(sides)) == 1 else None
            for sides in (known.kernel_size, known.stride, known.padding)
        )
        plain = known.dilation == (1, 1) and known.groups == 1 and known.padding_mode == "zeros"
        if None in (kernel, stride, pad) or not plain:
            raise ModelError(f"{known} is not a plain square convolution")
        weight = known.weight.detach().double()
        bias = None if known.bias is None else known.bias.detach().double()
        scale = None
        if norm is not None:
            scale, shift = scale_and_shift(norm)
            bias = shift if bias is None else bias * scale + shift
        flat = weight.permute(2, 3, 1, 0).flatten(0, 2)  # rows, columns, channels of a patch
        sizes = {"kernel": kernel, "stride": stride, "pad": pad}
        return self.add("conv", x, **self.weights(flat, bias, scale), **sizes)

    def batch_norm(self, x: int, norm: nn.Module) -> int:
        """Add a batch norm by itself, for one that does not follow a convolution."""
        scale, shift = map(array, scale_and_shift(norm))
        return self.add(
            "affine", x, scale=self.program.table(scale), shift=self.program.table(shift)
        )

    def layer_norm(self, x: int, norm: nn.Module) -> int:
        """Add a layer norm; nothing for an identity."""
        if type(norm) is nn.Identity:
            return x
        known: Any = expect(norm, nn.LayerNorm)
        weight, bias = (self.program.table(array(each)) for each in (known.weight, known.bias))
        return self.add("norm", x, weight=weight, bias=bias, eps=known.eps)

    def max_pool(self, x: int, kernel: int, stride: int, pad: int = 0) -> int:
        return self.add("maxpool", x, kernel=kernel, stride=stride, pad=pad)

    # Vision Transformers

    def vit(self, network: ViT) -> None:
        self.layout = layout = network.layout(self.program.input_size)
        self.program.layout = {
            "prefix": layout.prefix,
            "grid": layout.grid,
            "pool": layout.pool,
            "class_token": layout.class_token,
        }
        embeds = {
            PatchEmbed: self.patches,
            ConvEmbed: self.convolutions,
            WideEmbed: self.wide_convolutions,
        }
        x = self.tokens(choose(embeds, network.patch_embed)(network.patch_embed), network)
        for i, block in enumerate(network.blocks):
            x = self.block(x, block, str(i))
        x = self.layer_norm(x, network.norm)
        readouts: dict[type, Any] = {
            ClassToken: self.first,
            MeanPool: self.mean,
            AttentionPool: self.attention_pool,
        }
        x = choose(readouts, network.readout)(x, network.readout)
        self.linear(self.layer_norm(x, network.fc_norm), network.head)

    def patches(self, embed: Any) -> int:
        return self.conv(self.program.image, embed.proj)

    def convolutions(self, embed: Any) -> int:
        x = self.program.image
        for i, (conv, norm) in enumerate(zip(embed.convs, embed.norms, strict=True)):
            batch_norm = None if type(norm) is nn.Identity else norm
            if embed.strided or i % embed.depth:
                x = self.conv(x, conv, batch_norm)
            else:  # a maximum is taken in between, which a negative scale would turn round
                x = self.max_pool(self.conv(x, conv), 3, 2, 1)
                x = x if batch_norm is None else self.batch_norm(x, batch_norm)
            x = self.add("relu", x)
        return x

    def wide_convolutions(self, embed: Any) -> int:
        padded = self.add("mirror", self.program.image)
        x = self.add("gelu", self.conv(padded, embed.whitening.conv))
        return self.wide_blocks(x, embed.blocks)

    def wide_blocks(self, x: int, blocks: Iterable[nn.Module]) -> int:
        for each in blocks:
            block: Any = each
            x = self.batch_norm(self.max_pool(self.conv(x, block.conv1), 2, 2), block.bn1)
            x = self.add("gelu", self.conv(self.add("gelu", x), block.conv2, block.bn2))
            x = self.gate(x, block.gate)
        return x

    def tokens(self, patches: int, network: ViT) -> int:
        """Add positions to the patches, and the prefix tokens before them."""
        grid = network.layout(self.program.input_size).grid
        embedded = network.pos_embed.shape[1] - network.grid[0] * network.grid[1]
        with torch.no_grad():
            positions = resampled_positions(network.pos_embed, embedded, network.grid, grid)[0]
            first = [each[0] for each in (network.cls_token, network.reg_token) if each is not None]
            prefix = torch.cat(first) if first else None
            if prefix is not None and embedded:
                prefix = prefix + positions[:embedded]
        return self.add(
            "tokens",
            patches,
            prefix=None if prefix is None else self.program.table(array(prefix)),
            positions=self.program.table(array(positions[embedded:])),
        )

    def block(self, x: int, block: nn.Module, name: str) -> int:
        known: Any = expect(block, Block)
        attended = self.attention(self.layer_norm(x, known.norm1), known.attn, known.ls1, name)
        x = self.add("add", x, attended)
        mlp: Any = expect(known.mlp, Mlp)
        if type(mlp.act) is not nn.GELU or mlp.act.approximate != "none":
            raise ModelError(f"an MLP's activation must be the exact GELU, got {mlp.act}")
        hidden = self.add("gelu", self.linear(self.layer_norm(x, known.norm2), mlp.fc1))
        return self.add("add", x, self.linear(hidden, mlp.fc2, layer_scale(known.ls2)))

    def attention(self, x: int, attention: nn.Module, scale: nn.Module, name: str) -> int:
        known: Any = expect(attention, MultiHeadAttention, RotaryAttention)
        attend = plain_attend(known.attend)
        if type(attend.score) not in (ScaledDot, Dot):
            raise ModelError(f"attention by {type(attend.score).__name__} is not translated")
        factor = attend.score.scale / attend.normalizer.temperature
        qkv = self.linear(x, known.qkv)
        if type(known) is RotaryAttention:
            qkv = self.turn(qkv, known)
        heads = self.add("attention", qkv, name=name, heads=known.heads, scale=factor)
        return self.linear(heads, known.proj, layer_scale(scale))

    def turn(self, qkv: int, attention: RotaryAttention) -> int:
        """Turn queries and keys by the places of their patches."""
        assert self.layout is not None
        prefix = self.layout.prefix
        angles = attention.angles(self.layout, torch.float64)[prefix:]
        cosine, sine = (self.program.table(array(each)) for each in (angles.cos(), angles.sin()))
        options = {"heads": attention.heads, "prefix": prefix, "cosine": cosine, "sine": sine}
        return self.add("turn", qkv, **options)

    def first(self, x: int, _readout: nn.Module) -> int:
        return self.add("first", x)

    def mean(self, x: int, _readout: nn.Module) -> int:
        assert self.layout is not None
        return self.add("mean", x, skip=self.layout.prefix)

    def attention_pool(self, x: int, pool: Any) -> int:
        """Add the scores of the tokens, whose query is constant, and the mean by their softmax."""
        attend: Any = plain_attend(pool.attend)
        score = attend.score
        query = pool.query.detach()[0, :, 0].double()  # (head d)
        if isinstance(score, DotProduct) and type(score) in (ScaledDot, Dot):
            scores = self.product(x, beside(query[..., None] * score.scale))
        elif type(score) in (Additive, KeyOnly):
            scores = self.additive(x, score, query)
        else:
            raise ModelError(f"a pool by {type(score).__name__} is not translated")
        if attend.normalizer.temperature != 1:
            raise ModelError("a pool's softmax with a temperature is not translated")
        return self.add("weigh", scores, x)

    def additive(self, x: int, score: Any, query: Float[Tensor, "head d"]) -> int:
        """Add v' tanh(W k + b) of each head, where b holds what the query gives."""
        with torch.no_grad():
            nothing = score.key_proj.weight.new_zeros(1, *query.shape)[:, :, None]
            bias = score.key_proj(nothing)[0, :, 0].double()  # (head hidden)
            if type(score) is Additive:
                projected = score.query_proj(query[None, :, None].to(nothing))
                bias = bias + projected[0, :, 0].double()
        hidden = self.product(x, beside(score.key_proj.weight.detach().double()), bias.flatten())
        energy: Any = score.energy
        vector = beside(energy.weight.detach().double())
        shift = None if energy.bias is None else energy.bias.detach().double().flatten()
        return self.product(self.add("tanh", hidden), vector, shift)

    # Convolutional networks

    def sequence(self, x: int, modules: Iterable[nn.Module]) -> int:
        """Add modules one after the other; a batch norm is folded into a convolution before it."""
        rest = list(modules)
        while rest:
            module: Any = rest.pop(0)
            if type(module) is nn.Conv2d:
                norm = rest.pop(0) if rest and type(rest[0]) is nn.BatchNorm2d else None
                x = self.conv(x, module, norm)
            elif type(module) is not nn.Identity:
                x = choose(self.simple, module)(x, module)
        return x

    @property
    def simple(self) -> dict[type, Callable[[int, Any], int]]:
        """Layers that need nothing but their sizes."""
        return {
            nn.ReLU: lambda x, _layer: self.add("relu", x),
            nn.MaxPool2d: self.max_pool_layer,
            nn.AvgPool2d: self.mean_pool_layer,
        }

    def max_pool_layer(self, x: int, layer: nn.MaxPool2d) -> int:
        sizes = layer.kernel_size, layer.stride, layer.padding
        if not all(isinstance(size, int) for size in sizes) or layer.ceil_mode:
            raise ModelError(f"{layer} is not translated")
        return self.max_pool(x, *sizes)  # type: ignore[arg-type]

    def mean_pool_layer(self, x: int, layer: nn.AvgPool2d) -> int:
        """Add means of squares side by side, the last ones of what is left of them."""
        whole = layer.ceil_mode and not layer.count_include_pad and layer.padding == 0
        if not whole or layer.kernel_size != layer.stride or not isinstance(layer.stride, int):
            raise ModelError(f"{layer} is not translated")
        return self.add("meanpool", x, size=layer.stride)

    def senet(self, network: SEResNet) -> None:
        stem = network.conv1
        convs = [*stem] if isinstance(stem, nn.Sequential) else [stem]
        x = self.sequence(self.program.image, [*convs, network.bn1, nn.ReLU(), network.maxpool])
        for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
            for block in stage:
                x = self.residual(x, block)
        self.classify(x, "mean", network.fc)

    def residual(self, x: int, block: nn.Module) -> int:
        known: Any = expect(block, BasicBlock, Bottleneck)
        past = x if known.downsample is None else self.sequence(x, known.downsample)
        convs = 2 if type(known) is BasicBlock else 3
        for i in range(1, convs + 1):
            x = self.conv(x, getattr(known, f"conv{i}"), getattr(known, f"bn{i}"))
            x = self.add("relu", x) if i < convs else self.gate(x, known.se)
        return self.add("relu", self.add("add", x, past))

    def fast_cnn(self, network: FastCNN) -> None:
        x = self.add("gelu", self.conv(self.program.image, network.whitening.conv))
        x = self.wide_blocks(x, network.blocks)
        self.classify(x, "peak", network.fc, network.gain)

    def spatial_cnn(self, network: SpatialCNN) -> None:
        x = self.program.image
        for i, stage in enumerate(network.stages):
            x = self.max_pool(x, 2, 2) if i else x
            for each in stage:  # type: ignore[attr-defined]
                block: Any = each
                x = self.gate(self.add("relu", self.conv(x, block.conv, block.bn)), block.gate)
        self.classify(x, "mean", network.fc)

    def classify(self, x: int, pool: str, layer: nn.Linear, gain: float = 1.0) -> None:
        """Add the logits of the last features; a class activation map is made of both."""
        pooled = self.add(pool, x, **({"skip": 0} if pool == "mean" else {}))
        weight = self.weights(layer.weight.detach().T.double() * gain, scaled(layer.bias, gain))
        self.add("linear", pooled, **weight)
        self.program.cam = {"features": x, "weights": weight["weight"] or 0}

    # Gates

    def gate(self, x: int, gate: nn.Module) -> int:
        gates: dict[type, Callable[[int, Any], int]] = {
            NoGate: lambda x, _gate: x,
            nn.Identity: lambda x, _gate: x,
            SqueezeExcite: self.squeeze_excite,
            ChannelGate: self.channel_gate,
            SpatialGate: self.spatial_gate,
            SpatialMask: self.spatial_mask,
            CBAM: self.cbam,
        }
        return choose(gates, gate)(x, gate)

    def cbam(self, x: int, gate: CBAM) -> int:
        return self.gate(self.gate(x, gate.channel), gate.spatial)

    def squeeze_excite(self, x: int, gate: SqueezeExcite) -> int:
        return self.pass_through(
            x, self.excite(self.add("mean", x, skip=0), gate), gate, "channels"
        )

    def channel_gate(self, x: int, gate: ChannelGate) -> int:
        pooled = self.add("mean", x, skip=0), self.add("peak", x)
        both = self.add("add", *(self.excite(each, gate) for each in pooled))
        return self.pass_through(x, both, gate, "channels")

    def excite(self, x: int, gate: ChannelMLP) -> int:
        return self.conv_row(self.add("relu", self.conv_row(x, gate.fc1)), gate.fc2)

    def conv_row(self, x: int, conv: nn.Conv2d) -> int:
        """Add a 1x1 convolution of one row of features."""
        bias = None if conv.bias is None else conv.bias.detach().double()
        return self.product(x, conv.weight.detach().flatten(1).T.double(), bias)

    def spatial_gate(self, x: int, gate: SpatialGate) -> int:
        return self.pass_through(x, self.conv(self.add("extent", x), gate.conv), gate, "places")

    def spatial_mask(self, x: int, gate: SpatialMask) -> int:
        hidden = self.add("relu", self.conv(x, gate.conv1))
        return self.pass_through(x, self.conv(hidden, gate.conv2), gate, "places")

    def pass_through(self, x: int, before: int, gate: Gate, of: str) -> int:
        """Add the features times their gate: the sigmoid of what was computed before."""
        opened = self.add("sigmoid", before)
        return self.add("gate", x, opened, name=self.names[gate], of=of, gain=gate.gain)


NETWORKS: dict[type, Callable[[Translation, Any], None]] = {
    ViT: Translation.vit,
    SEResNet: Translation.senet,
    FastCNN: Translation.fast_cnn,
    SpatialCNN: Translation.spatial_cnn,
}


def refuse_hooks(network: nn.Module) -> None:
    """Raise ModelError where a module has forward hooks: no class says what those compute."""
    for name, module in network.named_modules():
        if has_hooks(module):
            where = f"{type(module).__name__} {name}".rstrip()
            raise ModelError(
                f"{where} has a forward hook, as after add_gates, and hooks are not translated"
            )


def has_hooks(module: nn.Module) -> bool:
    """Whether anything runs before or after the module's own forward, seen beside hooks of ours."""
    ours = module.register_forward_pre_hook(nothing), module.register_forward_hook(nothing)
    try:
        return any(
            not is_temporary(each)
            for handle in ours
            for key, each in dict(handle.hooks_dict_ref() or {}).items()
            if key != handle.id
        )
    finally:
        for hook in ours:
            hook.remove()


def nothing(*_args: object) -> None:
    """Leave what a module takes and returns as it is."""


def expect(module: nn.Module, *kinds: type) -> nn.Module:
    """Return the module. Raises ModelError where it is not of one of these very classes."""
    if type(module) not in kinds:
        raise ModelError(
            f"expected {' or '.join(kind.__name__ for kind in kinds)}, got {type(module).__name__}"
        )
    return module


def choose(kinds: dict[type, Any], module: nn.Module) -> Callable[..., int]:
    """Return the translation of a module's class. Raises ModelError where there is none."""
    if type(module) not in kinds:
        raise ModelError(f"{type(module).__name__} is not translated")
    return kinds[type(module)]


def plain_attend(attend: nn.Module) -> Any:
    """Return softmax attention over all tokens. Raises ModelError for any other."""
    known: Any = expect(attend, Attend)
    if type(known.normalizer) is not Softmax or type(known.window) is not Global:
        names = type(known.normalizer).__name__, type(known.window).__name__
        raise ModelError(f"attention by {' and '.join(names)} is not translated")
    return known


def layer_scale(module: nn.Module) -> Tensor | None:
    """Return what each output is multiplied by, None where it is not."""
    if type(module) is nn.Identity:
        return None
    known: Any = expect(module, LayerScale)
    return known.gamma.detach()


def scale_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return a batch norm in eval mode as x scale + shift."""
    known: Any = expect(norm, nn.BatchNorm2d)
    scale = known.weight.detach().double() / (known.running_var.double() + known.eps).sqrt()
    return scale, known.bias.detach().double() - known.running_mean.double() * scale


def scaled(values: Tensor | None, factor: float) -> Tensor | None:
    return None if values is None else values.detach().double() * factor


def beside(blocks: Float[Tensor, "head k out"]) -> Float[Tensor, "k_ out_"]:
    """Put each head's matrix on the diagonal of one large one."""
    return torch.block_diag(*blocks)


def array(values: Tensor) -> ndarray:
    return values.detach().cpu().float().numpy()
