"""Rollout beside a plain forward pass, a dense rollout and the gradient methods of other packages.

    python benchmarks/rollout.py [--image-size 224 1024] [--model vit_small_patch16_224] [--quick]
    python benchmarks/rollout.py --paths        one layer by every way known, over the tokens

Everything runs interleaved in one process; the times are medians. Memory is the peak of the process
above what it held before the call (on a GPU, of its allocator). The dense rollout is what public
tools do: fused attention off, every n x n map kept, whole matrices multiplied; sizes at which it
would need more than --dense-limit GiB are left out. Peers: pip install grad-cam captum.
"""

import argparse
import copy
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.explain import (
    AttentionGradCAM,
    GradCAM,
    GradientRollout,
    LeGrad,
    Relevance,
    Rollout,
    WeightedRollout,
)
from vision_attn.explain.calls import Fused
from vision_attn.explain.tiles import pull

MIB = 2**20
Ways = dict[str, Callable[[], object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--image-size", type=int, nargs="+", default=[224, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dense-limit", type=float, default=8.0, help="GiB")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--quick", action="store_true", help="224 pixels, 2 rounds")
    parser.add_argument("--paths", action="store_true", help="ways through one layer")
    args = parser.parse_args()
    sizes, rounds = ([224], 2) if args.quick else (args.image_size, args.rounds)
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    print(f"torch {torch.__version__}, {device}, {args.dtype}, {torch.get_num_threads()} threads")
    if args.paths:
        for side in sizes:
            print(f"\none layer, 6 heads of 64, {(side // 16) ** 2 + 1} tokens, one row carried")
            show(measured(paths((side // 16) ** 2 + 1, device, dtype), rounds, device))
        return
    for side in sizes:
        network = timm.create_model(args.model, img_size=side).eval().to(device)
        nn.init.normal_(network.head.weight, std=0.2)
        images = torch.randn(1, 3, side, side, device=device)
        tokens = network.patch_embed.num_patches + network.num_prefix_tokens
        print(f"\n{args.model}, {side} x {side}, {tokens} tokens")
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            ways = contenders(network, images, tokens, args.dense_limit)
            show(measured(ways, 1 if tokens > 10_000 else rounds, device))


def contenders(network: nn.Module, images: Tensor, tokens: int, dense_limit: float) -> Ways:
    heads, depth = network.blocks[0].attn.num_heads, len(network.blocks)
    many = torch.randint(0, tokens, (64,))
    ways: Ways = {
        "forward": lambda: without_gradients(network, images),
        "Rollout": lambda: Rollout()(network, images),
        "Rollout, 64 rows": lambda: Rollout().rows(network, images, many),
        "Rollout(fusion='max')": lambda: Rollout(fusion="max")(network, images),
        "Rollout(discard=0.9)": lambda: Rollout(discard=0.9)(network, images),
        "WeightedRollout": lambda: WeightedRollout()(network, images),
        "AttentionGradCAM": lambda: AttentionGradCAM()(network, images),
        "Relevance": lambda: Relevance()(network, images),
        "GradientRollout": lambda: GradientRollout()(network, images),
        "LeGrad": lambda: LeGrad()(network, images),
        "GradCAM": lambda: GradCAM()(network, images),
    }
    if 4 * depth * heads * tokens**2 < dense_limit * 2**30:
        plain = copy.deepcopy(network)
        for block in plain.blocks:
            block.attn.fused_attn = False
        ways["dense rollout"] = lambda: dense_rollout(plain, images)
    ways |= peers(network, images)
    return ways


def without_gradients(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images)


def dense_rollout(network: nn.Module, images: Tensor) -> Tensor:
    """Every map kept by hooks, identity added, rows normalised, all matrices multiplied."""
    maps: list[Tensor] = []
    hooks = [
        block.attn.attn_drop.register_forward_hook(lambda _m, _args, out: maps.append(out))
        for block in network.blocks
    ]
    without_gradients(network, images)
    for hook in hooks:
        hook.remove()
    joint = torch.eye(maps[0].shape[-1], device=images.device)
    for weights in maps:
        fused = weights.float().mean(1)
        fused = 0.5 * fused + 0.5 * torch.eye(fused.shape[-1], device=images.device)
        joint = fused / fused.sum(-1, keepdim=True) @ joint
    return joint[:, 0, 1:]


def peers(network: nn.Module, images: Tensor) -> Ways:
    """Grad-CAM at the last block by the two packages, which need the grid told."""
    from captum.attr import LayerGradCam
    from pytorch_grad_cam import GradCAM as PackageGradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    layer = network.blocks[-1].norm1

    def on_grid(tokens: Tensor) -> Tensor:
        return tokens[:, 1:].unflatten(1, network.patch_embed.grid_size).permute(0, 3, 1, 2)

    def package() -> object:
        with PackageGradCAM(network, [layer], reshape_transform=on_grid) as cam:
            return cam(images, [ClassifierOutputTarget(0)])

    return {
        "grad-cam GradCAM": package,
        "captum LayerGradCam": lambda: LayerGradCam(network, layer).attribute(images, target=0),
    }


def paths(tokens: int, device: torch.device, dtype: torch.dtype) -> Ways:
    """F' r for one layer: by row tiles (ours), the whole map, and two ways of fused kernels."""
    q, k, v = torch.randn(3, 1, 6, tokens, 64, device=device, dtype=dtype)
    call = Fused("", v=None, context=None, q=q, k=k, scale=0.125, mask=None, causal=False)
    r = torch.rand(1, 1, tokens, device=device)
    many = torch.rand(1, 64, tokens, device=device)
    ways: Ways = {
        "attention itself": lambda: F.scaled_dot_product_attention(q, k, v),
        "row tiles": lambda: pull(call, r),
        "row tiles, 64 rows": lambda: pull(call, many),
        "gradient by v": lambda: by_gradient(q, k, r),
        "fused, transposed": lambda: transposed(q, k, r),
    }
    if tokens < 6000:
        ways["whole map"] = lambda: r @ call.weights().mean(1)
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
    if q.device.type != "cpu":
        raise ValueError("only the CPU's kernel takes a bias and returns its lse")
    (_, lse), rows = kernel(q, k, k), F.pad(r[..., None], (0, 63)).to(q.dtype).expand_as(q)
    bias = (-lse)[:, :, None].to(q.dtype).expand(-1, -1, k.shape[2], -1)
    out, columns = kernel(k, q, rows, attn_mask=bias)
    return (out[..., 0].float() * columns.exp()).mean(1)


def measured(ways: Ways, rounds: int, device: torch.device) -> dict[str, tuple[float, float]]:
    """Median seconds and peak MiB of each, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    memory: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, run in list(ways.items()):
            with Peak(device) as peak:
                try:
                    start = time.perf_counter()
                    run()
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                except (ValueError, NotImplementedError) as error:
                    print(f"{name}: {error}")
                    ways.pop(name), times.pop(name)
                    continue
            if turn or rounds == 1:  # the first round warms up, and is where memory peaks
                times[name].append(time.perf_counter() - start)
            memory[name] = max(memory.get(name, 0), peak.bytes / MIB)
    return {name: (statistics.median(times[name]), memory[name]) for name in times}


class Peak:
    """The most memory held while open, above what was held on entry."""

    def __init__(self, device: torch.device):
        self.device, self.bytes = device, 0.0

    def __enter__(self) -> "Peak":
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return self
        self.before, self.open = held(), True
        self.watch = threading.Thread(target=self.look, daemon=True)
        self.watch.start()
        return self

    def look(self) -> None:
        while self.open:
            self.bytes = max(self.bytes, held() - self.before)
            time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated() - self.before
            return
        self.open = False
        self.watch.join()


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def show(results: dict[str, tuple[float, float]]) -> None:
    base, base_memory = next(iter(results.values()))
    print(f"{'':24}{'seconds':>9}{'ratio':>8}{'MiB':>8}{'above the first':>17}")
    for name, (seconds, mebibytes) in results.items():
        extra = mebibytes - base_memory
        print(f"{name:24}{seconds:9.3f}{seconds / base:8.2f}{mebibytes:8.0f}{extra:17.0f}")


if __name__ == "__main__":
    main()
