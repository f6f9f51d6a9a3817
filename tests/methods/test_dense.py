"""Every family of networks against dense matrices in float64, made without the recorder.

The oracle swaps torch's softmax and attention for plain ones that keep their n x n maps, takes
gradients by those maps, and multiplies whole matrices. Attention is made peaky, so that maps are far
from uniform and mistakes show.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import (
    AttentionGradCAM,
    GradientRollout,
    RawAttention,
    Relevance,
    Rollout,
    WeightedRollout,
)
from vision_attn.methods.attention_explainer import AttentionExplainer
from vision_attn.models import ViT
from vision_attn.tokens import layout_of, record_attention
from vision_attn.tokens.layout import tokens_of_pool
from vision_attn.tokens.path.swin import SwinBlock, swin_plan
from vision_attn.types import TokenLayout

SMALL = {"depth": 2, "num_classes": 5}
SIZE = (64, 96)


def vit(
    name: str, size: tuple[int, int] = SIZE, **options: Any
) -> tuple[Callable[..., nn.Module], Any]:
    return lambda: timm.create_model(name, img_size=size, **SMALL | options), size


def fixed(name: str, size: tuple[int, int], **options: Any) -> tuple[Callable[..., nn.Module], Any]:
    return lambda: timm.create_model(name, num_classes=5, **options), size


def hugging_face(kind: str, **options: Any) -> tuple[Callable[..., Any], tuple[int, int]]:
    def make() -> Any:
        import transformers

        config = getattr(transformers, f"{kind}Config")(
            hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
            patch_size=16, num_labels=5, **{"image_size": list(SIZE), **options},
        )  # fmt: skip
        return getattr(transformers, f"{kind}ForImageClassification")(config)

    return make, SIZE


class HandWritten(nn.Module):
    """A user's network: layers of torch's, attention by einsum, no names that tell."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 24, 16, 16)
        self.first = nn.Parameter(torch.randn(1, 1, 24))
        layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mix = nn.Linear(24, 72)
        self.out = nn.Linear(24, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images).flatten(2).mT
        x = self.layers(torch.cat([self.first.expand(len(x), -1, -1), x], 1))
        q, k, v = self.mix(x).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
        weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        x = x + torch.einsum("bhij,bhjd->bhid", weights, v).transpose(1, 2).flatten(2)
        return self.out(x[:, 0])

    def layout(self, image_size: Any) -> TokenLayout:
        from vision_attn.types import TokenLayout

        return TokenLayout(1, (image_size[0] // 16, image_size[1] // 16), "cls")


NETWORKS = {
    "vit_tiny": vit("vit_tiny_patch16_224", depth=3),
    "vit_small": vit("vit_small_patch16_224"),
    "vit_base": vit("vit_base_patch16_224"),
    "vit_clip": vit("vit_base_patch32_clip_224"),
    "vit_hybrid": vit("vit_tiny_r_s16_p8_224"),
    "deit_distilled": vit("deit_tiny_distilled_patch16_224"),
    "deit3": vit("deit3_small_patch16_224"),
    "dinov2_registers": vit("vit_small_patch14_reg4_dinov2", (56, 84)),
    "gap_registers": vit("vit_medium_patch16_reg4_gap_256"),
    "parallel_scaling": vit("vit_pwee_patch16_reg1_gap_256"),
    "beit": vit("beit_base_patch16_224", embed_dim=96, num_heads=3),
    "beitv2": vit("beitv2_base_patch16_224", embed_dim=96, num_heads=3),
    "eva02": vit("eva02_tiny_patch14_224", (56, 84)),
    "eva_rope": vit("vit_medium_patch16_rope_reg1_gap_256"),
    "dinov3": vit("vit_small_patch16_dinov3"),
    "siglip": vit("vit_base_patch16_siglip_224", embed_dim=96, num_heads=3),
    "siglip_gap": vit("vit_base_patch16_siglip_gap_224", embed_dim=96, num_heads=3),
    "map_with_prefix": vit("test_vit3", depth=3),
    "flexivit": vit("flexivit_small"),
    "relpos": vit("vit_relpos_small_patch16_224"),
    "relpos_cls": vit("vit_relpos_base_patch16_clsgap_224", embed_dim=96, num_heads=3),
    "naflexvit": fixed("naflexvit_base_patch16_gap", SIZE, depth=2, embed_dim=96, num_heads=3),
    "convit": vit("convit_tiny", (64, 64), depth=3, local_up_to_layer=2),
    "cait": vit("cait_xxs24_224", (64, 64)),
    "levit": fixed("levit_128s", (224, 224)),
    "levit_conv": fixed("levit_conv_128s", (224, 224)),
    "swin": fixed(
        "swin_tiny_patch4_window7_224", (68, 100), img_size=(68, 100), embed_dim=24, depths=(2, 2),
        num_heads=(2, 4), window_size=5,
    ),
    "swinv2": fixed(
        "swinv2_tiny_window8_256", (64, 96), img_size=(64, 96), embed_dim=24, depths=(2, 2),
        num_heads=(2, 4), window_size=4,
    ),
    "tv_vit": (
        lambda: torchvision.models.VisionTransformer(64, 16, 2, 3, 24, 48, num_classes=5), (64, 64),
    ),
    "tv_swin": (
        lambda: torchvision.models.SwinTransformer([4, 4], 12, [2, 2], [2, 4], [5, 5], num_classes=5),
        (68, 100),
    ),
    "hf_vit": hugging_face("ViT"),
    "hf_deit": hugging_face("DeiT"),
    "hf_dinov2": hugging_face("Dinov2", image_size=96),
    "hf_dinov2_registers": hugging_face("Dinov2WithRegisters", image_size=96, num_register_tokens=3),
    "ours_cls": (lambda: ViT(SIZE, 16, 5, 24, 2, 3, registers=2), SIZE),
    "ours_mean": (lambda: ViT(SIZE, 16, 5, 24, 2, 3, pool="mean"), SIZE),
    "by_hand": (HandWritten, SIZE),
}  # fmt: skip

METHODS = [
    Rollout(),
    Rollout(fusion="max", discard=0.7, residual=0.3),
    Rollout(fusion="min", start_layer=1),
    WeightedRollout(),
    GradientRollout(),
    GradientRollout(discard=0.5),
    Relevance(),
    RawAttention(),
    AttentionGradCAM(),
]


def peaky(network: Any) -> Any:
    """Queries and keys larger, and branches that matter, so that attention chooses."""
    for name, weight in network.named_parameters():
        if weight.ndim > 1 and re.search(r"\b(qkv?|k|kv|mix)\b|in_proj|query|key|[qk]_proj", name):
            weight.data *= (3 / weight[0].numel()) ** 0.5 / weight.std()
        elif re.search("gamma|ls1|ls2|lambda1", name):
            weight.data.fill_(0.5)
        elif name.endswith("bn.weight"):
            weight.data.fill_(2.0)
        elif weight.ndim == 1 and name.endswith("bias"):
            weight.data += 0.05 * torch.randn_like(weight)
        elif weight.ndim > 1 and name.startswith(("head", "classifier")):
            weight.data.normal_(std=0.3)
    return network


def network_of(name: Any) -> tuple[Any, torch.Tensor]:
    make, size = NETWORKS[name]
    torch.manual_seed(3)
    network, images = peaky(make()), torch.randn(2, 3, *size)
    norms = [
        module
        for module in network.modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    ]
    if norms:  # so that batch norms normalise, and something reaches the attention
        for norm in norms:
            norm.momentum = 1.0
        network.train()
        network(images)
    return network.eval(), images


def dense_maps(
    network: Any, images: torch.Tensor, target: int, monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """All attention maps of the float64 network in order, and the logit's gradient by each."""
    maps, softmax = [], torch.Tensor.softmax

    def kept(x: Any, dim: int = -1, *_: Any, **__: Any) -> torch.Tensor:
        out = softmax(x, dim)
        if x.ndim > 2:
            maps.append(out)
        return out

    def attention(
        q: Any,
        k: Any,
        v: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Any = None,
        **_: Any,
    ) -> Any:
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
        maps.append(softmax(scores, -1))
        return maps[-1] @ v

    def mixed(module: Any, args: Any) -> None:
        made = 2 if type(module).__name__ == "GPSA" else 1  # softmaxes that went into it
        maps[-made:] = [args[0]]

    hooks = [
        module.attn_drop.register_forward_pre_hook(
            lambda _, args, module=module: mixed(module, args)
        )
        for module in network.modules()
        if type(module).__name__ in ("TalkingHeadAttn", "GPSA")
    ]
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", attention)
        patch.setattr(F, "softmax", kept)
        patch.setattr(torch.Tensor, "softmax", kept)
        out = network(images)
    for hook in hooks:
        hook.remove()
    score = getattr(out, "logits", out)[:, target].sum()
    gradients = torch.autograd.grad(score, maps, allow_unused=True)
    return [
        (A.detach(), torch.zeros_like(A) if dA is None else dA)
        for A, dA in zip(maps, gradients, strict=True)
    ]


def shifted(x: torch.Tensor, block: SwinBlock, h: int, w: int, back: bool) -> torch.Tensor:
    """The block's way into windows, `b h w c -> window place c`, and back, on anything."""
    (rows, columns), (down, right) = block.window, block.shift
    H, W = h + -h % rows, w + -w % columns
    if block.pads_first:
        down, right = down * (rows < H), right * (columns < W)
    pad = (0, 0, 0, W - w, 0, H - h)
    if not back:
        if block.pads_first:
            x = F.pad(x, pad).roll((-down, -right), (1, 2))
        else:
            x = F.pad(x.roll((-down, -right), (1, 2)), pad)
        x = x.view(len(x), H // rows, rows, W // columns, columns, -1).transpose(2, 3)
        return x.reshape(-1, rows * columns, x.shape[-1])
    x = x.view(-1, H // rows, W // columns, rows, columns, x.shape[-1]).transpose(2, 3)
    x = x.reshape(len(x), H, W, -1)
    if block.pads_first:
        return x.roll((down, right), (1, 2))[:, :h, :w]
    return x[:, :h, :w].roll((down, right), (1, 2))


def dense_layers(
    network: Any, layout: TokenLayout, shapes: list[Any]
) -> tuple[list[tuple[bool, Any]], Any]:
    """For each link a function (F, keep, take) -> M (b out in); None for F where it has no map."""
    plan = swin_plan(network)
    eye = lambda n: torch.eye(n, dtype=torch.double)[None]  # noqa: E731
    if plan is not None:
        (h, w), links = layout.grid, []
        for block in plan:
            if block is None:
                share = F.pad(eye(h * w).view(h, w, -1), (0, 0, 0, w % 2, 0, h % 2))
                share = share.unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).sum((1, 3)).flatten(0, 1)
                links.append((False, share[None] / share.sum(-1, keepdim=True)))
                h, w = (h + 1) // 2, (w + 1) // 2
                continue

            def windowed(
                fused: Any, keep: Any, take: Any, block: SwinBlock = block, h: Any = h, w: int = w
            ) -> Any:
                inside = shifted(eye(h * w).view(1, h, w, -1), block, h, w, back=False)
                moved = fused.view(-1, *inside.shape[:2], inside.shape[1]) @ inside
                M = shifted(moved.flatten(0, 1), block, h, w, back=True).flatten(1, 2)
                return keep * eye(h * w) + take * M

            links.append((True, windowed))
        return links, h * w
    n, prefix, links = layout.tokens, layout.prefix, []
    for i, j in shapes:

        def layer(fused: Any, keep: Any, take: Any, n: Any = n, i: int = i, j: int = j) -> Any:
            if i == j == n:
                return keep * eye(n) + take * fused
            if i == j == n - prefix:
                M = eye(n).repeat(len(fused), 1, 1)
                M[:, prefix:, prefix:] = keep * eye(i) + take * fused
                return M
            if i == 1 and j == n and layout.pool == "cls":
                M = eye(n).repeat(len(fused), 1, 1)
                M[:, :1] = keep * M[:, :1] + take * fused
                return M
            return F.pad(fused, (layout.tokens - j if layout.pool == "attention" else 0, 0))

        links.append((True, layer))
        n = n if i in (n, n - prefix) or (i == 1 and layout.pool == "cls") else i
    return links, n


def discarded(fused: torch.Tensor, share: float, images: int, spared: int) -> Any:
    if share:
        low = fused.reshape(images, -1).quantile(share, dim=1)
        low = low.repeat_interleave(len(fused) // images)[:, None, None]
        gone = fused < low
        gone[..., :spared] = False
        fused = fused.masked_fill(gone, 0)
    total = fused.sum(-1, keepdim=True)
    if fused.shape[1] == fused.shape[2]:
        fused = torch.where(total == 0, torch.eye(fused.shape[1]).double(), fused)
        total = fused.sum(-1, keepdim=True)
    return fused / total


def fused_map(method: Relevance, A: torch.Tensor, dA: Any, images: Any, spared: int) -> Any:
    both = A * dA
    match method:
        case Rollout():
            fused = {"mean": A.mean(1), "max": A.amax(1), "min": A.amin(1)}[method.fusion]
            return discarded(fused.clamp(min=0), method.discard, images, spared)
        case WeightedRollout():
            share = both.sum((2, 3)).view(images, -1, A.shape[1]).sum(1).clamp(min=0)
            total = share.sum(1, keepdim=True)
            share = torch.where(total > 0, share / total, 1 / A.shape[1])
            share = share.repeat_interleave(len(A) // images, 0)
            return discarded((A * share[:, :, None, None]).sum(1).clamp(min=0), 0, images, spared)
        case GradientRollout():
            return discarded(both.mean(1).clamp(min=0), method.discard, images, spared)
        case Relevance():
            return both.clamp(min=0).mean(1)


def dense_map(
    method: AttentionExplainer, network: Any, layout: TokenLayout, maps: list[Any], images: int
) -> torch.Tensor:
    row = dense_row(method, network, layout, maps, images)
    if isinstance(method, Relevance):  # what the seed keeps of itself is not counted
        nothing = [(torch.zeros_like(A), dA) for A, dA in maps]
        row = row - dense_row(method, network, layout, nothing, images)
    return layout.to_map(row)


def dense_row(
    method: Any,
    network: Any,
    layout: TokenLayout,
    maps: list[tuple[torch.Tensor, Any]],
    images: int,
) -> torch.Tensor:
    links, last = dense_layers(network, layout, [A.shape[-2:] for A, _ in maps])
    seed = torch.zeros(1, last, dtype=torch.double)
    for part, share in tokens_of_pool(layout, last):
        seed[:, part] += share / seed[:, part].numel()
    r, remaining = seed.expand(images, -1)[:, None], list(maps)
    keep, take = (1, 1) if isinstance(method, Relevance) else (0, 1)
    keep, take = (
        (method.residual, 1 - method.residual) if hasattr(method, "residual") else (keep, take)
    )
    single = isinstance(method, RawAttention | AttentionGradCAM)
    for has_map, link in reversed(links):
        if not has_map:
            r = r @ link
            continue
        A, dA = remaining.pop()
        rectangular = A.shape[-2] != A.shape[-1] and not (A.shape[-2] == 1 and layout.pool == "cls")
        spared = layout.prefix if A.shape[-1] == layout.tokens else 0
        at_last = len(remaining) == len(maps) - 1
        if single:
            if not at_last and not rectangular:
                continue
            fused = A.mean(1)
            if at_last and isinstance(method, AttentionGradCAM):
                seen = links_rows(r, link, A)
                weight = torch.einsum("bsi,bhij->bh", seen, dA[..., spared:]) / (
                    A.shape[-1] - spared
                )
                weight = weight.view(images, -1, A.shape[1]).mean(1)
                weight = weight.repeat_interleave(len(A) // images, 0)
                fused = (A * weight[:, :, None, None]).mean(1)
            r = r @ link(fused, 0, 1)
        else:
            if len(remaining) < method.start_layer and not rectangular:
                continue
            r = r @ link(fused_map(method, A, dA, images, spared), keep, take)
    return r[:, 0].clamp(min=0) if isinstance(method, AttentionGradCAM) else r[:, 0]


def links_rows(r: torch.Tensor, link: Any, A: torch.Tensor) -> torch.Tensor:
    """The seed's shares of the queries of this call: as the link would hand them to it."""
    images, size = len(r), A.shape[-2]
    if len(A) == images:
        return r[..., -size:] if size > 1 else r[..., :1]
    closure = dict(zip(link.__code__.co_varnames[3:6], link.__defaults__, strict=True))
    block, h, w = closure["block"], closure["h"], closure["w"]
    return shifted(r.view(images, h, w, 1), block, h, w, back=False).mT


@dataclass
class Compared:
    """Errors are shares of the map's maximum: the worst method's in float64, Rollout's in float32.

    total: what the shares of Rollout sum to, those of prefix tokens included.
    """

    captured: int
    expected: int
    error64: float
    error32: float
    total: float


OF_EACH_KIND = {
    "vit_tiny", "deit_distilled", "gap_registers", "beit", "eva_rope", "siglip", "map_with_prefix",
    "relpos_cls", "naflexvit", "convit", "cait", "swin", "hf_vit", "ours_cls", "by_hand",
}  # fmt: skip


def compared(name: Any, monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Every method of METHODS on this network beside its dense formula."""
    network, images = network_of(name)
    layout = layout_of(network, (images.shape[2], images.shape[3]))
    with torch.no_grad(), record_attention(network) as record:
        network(images)
    exact = copy.deepcopy(network).double()
    maps = dense_maps(exact, images.double(), 1, monkeypatch)
    assert len(maps) == len(record.calls)
    assert max(A.amax().item() for A, _ in maps) > 0.1, "not peaky"
    error64 = 0.0
    for method in METHODS:
        true = dense_map(method, exact, layout, maps, len(images))
        found = method(exact, images.double(), 1).values.double()
        error64 = max(error64, ((found - true).abs().max() / true.max()).item())
    true = dense_map(Rollout(), exact, layout, maps, len(images))
    found = Rollout()(network, images)
    error32 = ((found.values.double() - true).abs().max() / true.max()).item()
    assert found.prefix_mass is not None
    total = found.values.sum((1, 2)) + found.prefix_mass
    off = (total - 1).abs().argmax()
    return Compared(len(record.calls), len(record.expected), error64, error32, total[off].item())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OF_EACH_KIND else pytest.mark.slow)
        for name in NETWORKS
    ],
)
def test_every_method_is_its_dense_formula(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(name, monkeypatch)
    assert found.captured == found.expected or name == "by_hand"
    assert found.error64 < 2e-7
    assert found.error32 < 1e-4
    assert abs(found.total - 1) < 1e-4
