"""Rollout beside a plain forward pass, a dense rollout and the gradient methods of other packages.

    python benchmarks/rollout.py                          all sections
    python benchmarks/rollout.py 224 1024 paths           these: image sides, or
        paths    one layer's A' r by every way known, over the number of tokens
        exact    the largest error against dense float64 matrices, as a share of the map's maximum
        command  the memory of `vision-attn explain` at 1024 pixels, the whole process

ViT-S/16, one image. Within a section the ways take turns in one process, and the times are medians.
Memory is what each way adds to its process at its peak, measured in a fresh process of its own (on
a GPU: by the allocator). The dense rollout is what public tools do: fused attention off, every
n x n map kept, whole matrices multiplied. A way that does not fit into memory or its time says so.
Peers: pip install grad-cam captum.
"""

import argparse
import gc
import math
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn import explain
from vision_attn.explain import Relevance, Rollout, WeightedRollout
from vision_attn.explain.calls import Fused
from vision_attn.explain.tiles import pull

MIB = 2**20
MODEL = "vit_small_patch16_224"
LONG = 10_000  # tokens above which one round must do, and what keeps the graph is left out
Ways = dict[str, Callable[[], object]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sections = ["224", "1024", "2048", "paths", "exact", "command"]
    parser.add_argument("sections", nargs="*", default=sections, metavar="SECTION")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way (default: 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit", type=float, default=600, help="seconds a section (default: 600)")
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: each that fits")
    parser.add_argument("--only", nargs="+", default=[""], help="ways whose names hold one of these")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must not have run threads
    usual = ["float32", "bfloat16"] if args.device == "cuda" else ["float32"]
    dtypes = [args.dtype] if args.dtype else usual
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads, {MODEL}, one image")
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
        for what in exactness_of:
            answer = alone(exactness, args, what, args.device, dtype)
            words = answer if isinstance(answer, str) else f"{answer[0]:.1e} | {answer[1]:.6f}"
            print(f"| {what} | {words} |", flush=True)
        return
    if section == "paths":
        for tokens in (197, 785, 1025, 4097):
            print(f"\n{tokens} tokens\n")
            timed_and_weighed(paths, (tokens, args.device, dtype), args, args.rounds)
        return
    if not section.isdecimal():
        sys.exit(f"unknown section {section!r}: a side in pixels, paths, exact or command")
    long = tokens_of(int(section)) > LONG
    made = (int(section), args.device, dtype)
    timed_and_weighed(contenders, made, args, 1 if long else args.rounds)


def timed_and_weighed(make: Callable[..., Ways], made: tuple, args: Any, rounds: int) -> None:
    """A table of the ways that `make(*made)` gives: seconds, times the first, MiB added."""
    names = alone(names_of, args, make, made)
    if isinstance(names, str):
        print(names)
        return
    names = [name for at, name in enumerate(names) if not at or any(w in name for w in args.only)]
    added = {name: alone(weighed, args, make, made, name) for name in names}
    fit = [name for name in names if not isinstance(added[name], str)]
    seconds = alone(timed, args, make, made, fit, rounds)
    failed = isinstance(seconds, str)
    print(f"| way | seconds | x {names[0]} | MiB added |\n|---|---|---|---|")
    for name in names:
        if name not in fit or failed:
            print(f"| {name} | {seconds if failed else added[name]} | | |")
            continue
        ratio = seconds[name] / seconds[names[0]]
        print(f"| {name} | {seconds[name]:.3g} | {ratio:.2f} | {added[name]:.0f} |", flush=True)


# ---- processes ----


def alone(job: Callable, args: argparse.Namespace, *given: object) -> Any:
    """What `job` gives in a process of its own, or in words why it gave nothing."""
    context = multiprocessing.get_context("spawn" if args.device == "cuda" else "fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(sender, args.threads, job, given))
    process.start()
    sender.close()
    try:
        if not receiver.poll(args.limit):
            return f"not done after {args.limit:.0f} s"
        return receiver.recv()
    except EOFError:
        process.join()
        return f"ended by signal {-(process.exitcode or 0)}: out of memory?"
    finally:
        process.kill()
        process.join()


def answer(sender: Any, threads: int, job: Callable, given: tuple) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_DATA, (free, free))  # an error, not a machine that dies
    try:
        sender.send(job(*given))
    except (RuntimeError, MemoryError, ValueError, NotImplementedError) as error:
        text = str(error)
        memory = "allocate" in text or isinstance(error, MemoryError)
        sender.send("out of memory" if memory else text.splitlines()[0])


def names_of(make: Callable[..., Ways], made: tuple) -> list[str]:
    return list(make(*made))


def timed(make: Callable[..., Ways], made: tuple, names: list[str], rounds: int) -> dict:
    """Median seconds of each way, run in turn; a first turn, if there are several, warms up."""
    ways, times = make(*made), {name: [] for name in names}
    for turn in range(rounds + (rounds > 1)):
        for name in names:
            start = time.perf_counter()
            ways[name]()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            if turn or rounds == 1:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[name]) for name in names}


def weighed(make: Callable[..., Ways], made: tuple, name: str) -> float:
    """MiB that a way adds at its peak, once its code and its threads are loaded."""
    small = make(64, *made[1:])
    small[name]()
    del small
    way = make(*made)[name]
    gc.collect()
    with Peak(torch.device(made[1])) as peak:
        way()
    return peak.bytes / MIB


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
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated() - self.before
            return
        self.open = False
        self.watch.join()


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- the whole network ----


def network_and_image(side: int, device: str, scale: float = 1.0) -> tuple[nn.Module, Tensor]:
    network = timm.create_model(MODEL, img_size=side).eval().to(device)
    nn.init.normal_(network.head.weight, std=0.2)
    for block in network.blocks:
        block.attn.qkv.weight.data *= scale
    return network, torch.randn(1, 3, side, side, device=device)


def contenders(side: int, device: str, dtype: str) -> Ways:
    network, image = network_and_image(side, device)
    tokens = network.patch_embed.num_patches + network.num_prefix_tokens
    many = torch.randint(0, tokens, (64,))
    methods: Ways = {
        "forward": lambda: without_gradients(network, image),
        "Rollout": lambda: Rollout()(network, image),
        "Rollout, 64 rows": lambda: Rollout().rows(network, image, many),
    }
    if tokens <= LONG:
        for text in (
            *("Rollout(fusion='max')", "Rollout(discard=0.9)", "WeightedRollout", "Relevance"),
            *("GradientRollout", "AttentionGradCAM", "LeGrad", "GradCAM"),
        ):
            method = explain.parse_method(text)
            methods[text] = lambda method=method: method(network, image)
        methods |= peers(network, image)
    methods["dense rollout"] = lambda: dense_rollout(network, image)

    def within(run: Callable[[], object]) -> object:
        half = dtype == "bfloat16"
        with torch.autocast(image.device.type, torch.bfloat16, enabled=half):
            return run()

    return {name: lambda run=run: within(run) for name, run in methods.items()}


def without_gradients(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images)


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


# ---- one layer ----


def paths(tokens: int, device: str, dtype: str) -> Ways:
    """F' r for one layer: by row tiles (ours), the whole map, and two ways of fused kernels."""
    q, k, v = torch.randn(3, 1, 6, tokens, 64, device=device, dtype=getattr(torch, dtype))
    call = Fused("", v=None, context=None, q=q, k=k, scale=0.125, mask=None, causal=False)
    r = torch.rand(1, 1, tokens, device=device)
    many = torch.rand(1, 64, tokens, device=device)
    ways: Ways = {
        "attention itself": lambda: F.scaled_dot_product_attention(q, k, v),
        "row tiles (ours)": lambda: pull(call, r),
        "row tiles, 64 rows": lambda: pull(call, many),
        "whole map": lambda: r @ call.weights().mean(1),
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
    return (out[..., 0].float() * columns.exp()).mean(1)


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
    return error.item(), (found.values.sum() + found.prefix_mass).item()


# ---- the command line ----


def command(args: argparse.Namespace) -> str:
    """What `vision-attn explain` with three methods at 1024 pixels takes in all."""
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.png"
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((1024, 1024)).save(photo)
        words = [
            *("-m", "vision_attn.cli", "explain", f"timm:{MODEL}", "--pretrained", "false"),
            *("--image-size", "1024", str(photo), "-o", folder, "--device", args.device),
            *(word for each in (Rollout, WeightedRollout, Relevance) for word in ("--method", each.__name__)),
        ]  # fmt: skip
        start = time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        process = os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, *words], environment)
        _, status, used = os.wait4(process, 0)
    seconds = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    ended = "" if code == 0 else f" (ended with {code})"
    return (
        "Rollout, WeightedRollout and Relevance: "
        f"{seconds:.0f} s, at most {used.ru_maxrss / 2**20:.2f} GiB in all{ended}"
    )


if __name__ == "__main__":
    main()
