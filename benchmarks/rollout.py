"""Rollout beside a plain forward pass, a dense rollout and the gradient methods of other packages.

    python benchmarks/rollout.py                          all sections
    python benchmarks/rollout.py 224 1024 paths           these: image sides, or
        paths    one layer's A' r by every way known, over the number of tokens
        exact    the largest error against dense float64 matrices, as a share of the map's maximum
        command  the memory of `vision-attn explain` at 1024 pixels, the whole process

ViT-S/16 or what `--model` names, one image. Within a section the ways take turns in one process:
least, median and most.
Memory is what each way adds to its process at its peak, measured in a fresh process of its own (on
a GPU: by the allocator). The dense rollout is what public tools do: fused attention off, every
n x n map kept, whole matrices multiplied. A way that does not fit into memory or its time says so.
Peers: pip install grad-cam captum.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import captum.attr
import numpy as np
import pytorch_grad_cam
import timm
import torch
from alone import Ways, add_arguments, alone, compare
from PIL import Image
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from timing import Clock, KeyRatio
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn import methods as explain
from vision_attn.methods import Rollout
from vision_attn.tokens.carry.transpose import apply_transpose
from vision_attn.tokens.record.calls import LazyWeights
from vision_attn.tokens.record.sdpa import SDPAInputs, attention_and_lse

MODEL = "vit_small_patch16_224"
SHORT = 1_500  # tokens below which turns take little
LONG = 10_000  # tokens above which one turn must do, and what keeps the graph is left out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sections = ["224", "1024", "2048", "paths", "exact", "command"]
    parser.add_argument("sections", nargs="*", default=sections, metavar="SECTION")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], help="default: float32, both on a GPU"
    )
    parser.add_argument("--model", default=MODEL, help=f"of timm, 224 pixels (default: {MODEL})")
    add_arguments(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must not have run threads
    usual = ["float32", "bfloat16"] if args.device == "cuda" else ["float32"]
    dtypes = [args.dtype] if args.dtype else usual
    print(
        f"torch {torch.__version__}, {args.device}, {args.threads} threads, {args.model}, one image"
    )
    for section in args.sections:
        if section == "command":
            print(f"\n## The command line at 1024 pixels\n\n{command(args)}")
            continue
        for dtype in dtypes:
            print(f"\n## {title(section)}, {dtype}\n", flush=True)
            table(section, dtype, args)


def title(section: str) -> str:
    if section.isdecimal():
        return f"{section} x {section} pixels, {tokens_of(int(section))} tokens"
    return {"paths": "One layer, one row carried", "exact": "Exactness"}.get(section, section)


def tokens_of(side: int) -> int:
    return (side // 16) ** 2 + 1


def table(section: str, dtype: str, args: argparse.Namespace) -> None:
    if section == "exact":
        print("| what | largest error / the map's maximum | sum of the shares |\n|---|---|---|")
        for what in (what for what in exactness_of if any(word in what for word in args.only)):
            answer = alone(exactness, args, what, args.device, dtype)
            words = answer if isinstance(answer, str) else f"{answer[0]:.1e} | {answer[1]:.6f}"
            print(f"| {what} | {words} |", flush=True)
        return
    if section == "paths":
        for tokens in (197, 785, 1025, 4097):
            print(f"\n{tokens} tokens\n")
            compare(paths, (tokens, args.device, dtype), args, turns(tokens, args.rounds))
        return
    if not section.isdecimal():
        sys.exit(f"unknown section {section!r}: a side in pixels, paths, exact or command")
    side = int(section)
    made = side, args.device, dtype, args.model
    compare(contenders, made, args, turns(tokens_of(side), args.rounds))


def turns(tokens: int, rounds: int) -> int:
    """More of what takes little, one of what takes long."""
    return 10 * rounds if tokens < SHORT else 1 if tokens > LONG else rounds


# ---- the whole network ----


def network_and_image(
    side: int, device: str, scale: float = 1.0, model: str = MODEL
) -> tuple[nn.Module, Tensor]:
    network = timm.create_model(model, img_size=side).eval().to(device)
    nn.init.normal_(network.head.weight, std=0.2)
    for block in network.blocks:
        block.attn.qkv.weight.data *= scale
    return network, torch.randn(1, 3, side, side, device=device)


def contenders(side: int, device: str, dtype: str, model: str) -> Ways:
    network, image = network_and_image(side, device, model=model)
    tokens = network.patch_embed.num_patches + network.num_prefix_tokens
    many = torch.randint(0, tokens, (64,))
    methods: Ways = {
        "forward": lambda: without_gradients(network, image),
        "forward and backward": lambda: to_first_tokens(network, image),
        "Rollout": lambda: Rollout()(network, image),
        "Rollout, 64 rows": lambda: Rollout().rows(network, image, many),
    }
    if tokens <= LONG:
        for text in (
            *("Rollout(fusion='max')", "Rollout(discard=0.9)", "WeightedRollout", "Relevance"),
            *("GradientRollout", "AttentionGradCAM", "LeGrad", "GradCAM", "LibraGradient"),
        ):
            method = explain.parse_method(text)
            methods[text] = partial(method, network, image)
        methods |= peers(network, image)
    methods["dense rollout"] = lambda: dense_rollout(network, image)

    def within(run: Callable[[], object]) -> object:
        half = dtype == "bfloat16"
        with torch.autocast(image.device.type, torch.bfloat16, enabled=half):
            return run()

    return {name: partial(within, run) for name, run in methods.items()}


def without_gradients(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = network(images)
    return logits


def to_first_tokens(network: nn.Module, images: Tensor) -> Tensor:
    """Compute the gradient of the predicted logits by the tokens that enter the first block."""
    leaves: list[Tensor] = []

    def leaf(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        leaves.append(args[0].detach().requires_grad_())
        return leaves[0], *args[1:]

    network.requires_grad_(False)
    with network.blocks[0].register_forward_pre_hook(leaf), torch.enable_grad():
        score = network(images).amax(1).sum()
    network.requires_grad_(True)  # as the peers need it
    return torch.autograd.grad(score, leaves)[0]


def dense_rollout(network: nn.Module, images: Tensor) -> Tensor:
    """Every map kept by hooks, identity added, rows normalised, all matrices multiplied."""
    maps: list[Tensor] = []
    hooks = []
    for block in network.blocks:
        block.attn.fused_attn = False
        drop = block.attn.attn_drop
        hooks.append(drop.register_forward_hook(lambda _m, _args, out: maps.append(out)))
    try:
        without_gradients(network, images)
    finally:
        for block, hook in zip(network.blocks, hooks, strict=True):
            block.attn.fused_attn = True
            hook.remove()
    eye = torch.eye(maps[0].shape[-1], device=images.device)
    joint = eye
    for weights in maps:
        fused = 0.5 * weights.float().mean(1) + 0.5 * eye
        joint = fused / fused.sum(-1, keepdim=True) @ joint
    return joint[:, 0, 1:]


def peers(network: nn.Module, images: Tensor) -> Ways:
    """Grad-CAM at the last block by the two packages, which need the grid told."""
    layer = network.blocks[-1].norm1
    gradients = captum.attr.LayerGradCam(network, layer)

    def on_grid(tokens: Tensor) -> Tensor:
        grid: Tensor = tokens[:, 1:].unflatten(1, network.patch_embed.grid_size)
        return grid.permute(0, 3, 1, 2)

    def package() -> object:
        with pytorch_grad_cam.GradCAM(network, [layer], reshape_transform=on_grid) as cam:
            return cam(images, [ClassifierOutputTarget(0)])

    return {
        "grad-cam GradCAM": package,
        "captum LayerGradCam": lambda: gradients.attribute(images, target=0),
    }


# ---- one layer ----


def paths(tokens: int, device: str, dtype: str) -> Ways:
    """F' r for one layer: by tiles (ours), the whole map, and two ways of fused kernels."""
    q, k, v = torch.randn(3, 1, 6, tokens, 64, device=device, dtype=getattr(torch, dtype))
    softmax = LazyWeights("", v=None, context=None, q=q, k=k, scale=0.125, mask=None, causal=False)
    known = replace(softmax, lse=attention_and_lse(SDPAInputs(q, k, v))[1])
    r = torch.rand(1, 1, tokens, device=device)
    many = torch.rand(1, 64, tokens, device=device)
    ways: Ways = {
        "attention itself": lambda: F.scaled_dot_product_attention(q, k, v),
        "tiles, the forward's lse": lambda: apply_transpose(known, r),
        "tiles, softmax": lambda: apply_transpose(softmax, r),
        "tiles, 64 rows": lambda: apply_transpose(known, many),
        "whole map": lambda: r @ softmax.weights().mean(1),
        "gradient by v": lambda: by_gradient(q, k, r),
    }
    if device == "cpu":
        ways["fused, transposed"] = lambda: transposed(q, k, r)
    return ways


def by_gradient(q: Tensor, k: Tensor, r: Tensor) -> Tensor:
    """A' R as the vector-Jacobian product of attention by its values: dV = A' dO."""
    values = torch.zeros_like(k, requires_grad=True)
    rows = F.pad(r[..., None], (0, 63)).to(q.dtype).expand_as(q)
    context = F.scaled_dot_product_attention(q, k, values)
    return torch.autograd.grad(context, values, rows)[0][..., 0].mean(1)


def transposed(q: Tensor, k: Tensor, r: Tensor) -> Tensor:
    """A' R = attention(K, Q, R; bias -lse_i) * exp(lse'_j), lse by the kernel that returns it."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    (_, lse), rows = kernel(q, k, k), F.pad(r[..., None], (0, 63)).to(q.dtype).expand_as(q)
    bias = (-lse)[:, :, None].to(q.dtype).expand(-1, -1, k.shape[2], -1)
    out, columns = kernel(k, q, rows, attn_mask=bias)
    carried: Tensor = (out[..., 0].float() * columns.exp()).mean(1)
    return carried


# ---- exactness ----

exactness_of = [f"{side} pixels, {words}" for side in (224, 1024) for words in ("Rollout", "peaky")]


def exactness(what: str, device: str, dtype: str) -> tuple[float, float]:
    """(largest error / maximum, sum of the shares) of Rollout against whole float64 matrices.

    bfloat16: of the map of what the coarser network attended to, not of the network.
    """
    side, scale = int(what.split()[0]), 4.0 if "peaky" in what else 1.0
    network, image = network_and_image(side, device, scale)
    half = dtype == "bfloat16"
    made: list[Tensor] = []
    with torch.autocast(device, torch.bfloat16, enabled=half):
        found = Rollout()(network, image)
        exact, input_ = (network, image) if half else (network.double(), image.double())
        hooks = [
            block.attn.qkv.register_forward_hook(lambda _m, _args, out: made.append(out))
            for block in network.blocks
        ]
        without_gradients(exact, input_)
    for hook in hooks:
        hook.remove()
    r = torch.zeros(tokens_of(side), dtype=torch.float64, device=device)
    r[0] = 1
    for qkv in reversed(made):
        q, k, _ = qkv[0].double().unflatten(-1, (3, 6, 64)).permute(1, 2, 0, 3)
        pulled = sum(r @ (q[head] @ k[head].T / 8).softmax(-1) for head in range(6)) / 6
        r = 0.5 * r + 0.5 * pulled
    true = r[1:].view(found.values.shape)
    error = (found.values.double() - true).abs().max() / true.max()
    assert found.prefix_mass is not None  # there is a class token
    return error.item(), (found.values.sum() + found.prefix_mass).item()


# ---- what bench.py keeps ----


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """Rollout and GradCAM beside the passes that they need; attention that returns its sums."""
    ways = contenders(224, "cpu", "float32", MODEL)
    yield clock.ratio("Rollout / forward pass", ways["Rollout"], ways["forward"])
    passes = ways["forward and backward"]
    yield clock.ratio("GradCAM / forward and backward pass", ways["GradCAM"], passes)
    q, k, v = torch.randn(3, 1, 6, 785, 64)
    yield clock.ratio(
        "fused attention with log-sum-exp / without, 785 tokens",
        lambda: attention_and_lse(SDPAInputs(q, k, v)),
        lambda: F.scaled_dot_product_attention(q, k, v),
    )


# ---- the command line ----


def command(args: argparse.Namespace) -> str:
    """What `vision-attn explain` with three methods at 1024 pixels takes in all."""
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.png"
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((1024, 1024)).save(photo)
        methods = ["Rollout", "WeightedRollout", "Relevance"]
        words = ["explain", f"timm:{MODEL}", "--pretrained", "false", "--image-size", "1024"]
        words += [str(photo), "--output", folder, "--device", args.device]
        words += [word for method in methods for word in ("--method", method)]
        start_it = "from vision_attn.cli import script; script()"
        words = [sys.executable, "-c", start_it, *words]
        start = time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        process = os.spawnve(os.P_NOWAIT, sys.executable, words, environment)
        _, status, used = os.wait4(process, 0)
    seconds = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    ended = "" if code == 0 else f" (ended with {code})"
    most = used.ru_maxrss / 2**20
    return f"{', '.join(methods)}: {seconds:.0f} s, at most {most:.2f} GiB in all{ended}"


if __name__ == "__main__":
    main()
