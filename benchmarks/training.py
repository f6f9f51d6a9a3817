"""How fast networks train: ours against timm's and vit-pytorch's, in one process.

    python benchmarks/training.py [vit] [compiled] [senet] [memory] [fit] [data]    (default: all)

Networks that are compared have the same weights, and their losses are compared before the clock
starts. They compute in the format that this machine multiplies fastest, bf16 or fp32, beside what
the other package does by default, fp32. A round trains each of them for `--steps` steps, in turns.
Each line: milliseconds a step (fastest, median and slowest round); by the median, GF/s (three
forward passes), percent of the machine's own peak in a matrix product of that number format, and
the ratio to ours.

vit: ViT-Ti/4 at 32 px; compiled: the same by torch.compile, which takes minutes and needs a C++
compiler. senet: SE-ResNet-18 at 32 px, and the same without gates. memory: a wide network's steps
of 1000 images, the memory that they free kept, or given back. fit: `benchmarks/fit.py`. data:
`benchmarks/data.py`.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import data as data_benchmark
import fit
import timm
import torch
from timing import DTYPES, Clock, KeyRatio, milliseconds
from timm.layers import set_fused_attn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from vision_attn.attention import NoGate, SqueezeExcite
from vision_attn.models import FastCNN, SEResNet, vit_from_timm
from vision_attn.training import kept_memory
from vision_attn.training.classifier import as_it_is
from vision_attn.training.cpu.threads import InParts
from vision_attn.training.flops import forward_flops, peak_flops

LAST = torch.channels_last
FORMAT, DTYPE = list(DTYPES.items())[-1]


@dataclass
class Runner:
    """A network in training, in its way: number format, memory format, compiled, in parts."""

    name: str
    network: nn.Module
    dtype: torch.dtype = torch.float32
    layout: torch.memory_format = torch.contiguous_format
    compiled: bool = False
    parts: bool = False

    def __post_init__(self) -> None:
        self.network.to(memory_format=self.layout).train()
        self.optimizer = AdamW(self.network.parameters(), lr=1e-4, fused=True)
        self.run = InParts(torch.get_num_threads(), batch_norms=True) if self.parts else as_it_is
        if self.compiled:
            self.network.compile()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            logits = self.run(self.network, images.contiguous(memory_format=self.layout))
        return F.cross_entropy(logits.float(), labels)

    def step(self, images: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(images, labels).backward()
        self.optimizer.step()

    def seconds(self, images: Tensor, labels: Tensor, steps: int) -> float:
        """A step's."""
        start = time.perf_counter()
        for _ in range(steps):
            self.step(images, labels)
        return (time.perf_counter() - start) / steps


def batch(size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(size, 3, 32, 32), torch.randint(0, 10, (size,))


def check_losses(runners: list[Runner], images: Tensor, labels: Tensor) -> None:
    """All networks, in evaluation, in fp32 and as they are written, have the same loss."""
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        losses = [F.cross_entropy(r.network.eval()(images), labels).item() for r in runners]
    for runner, loss in zip(runners, losses, strict=True):
        runner.network.train()
        if abs(loss - losses[0]) > 1e-4:
            raise SystemExit(f"{runner.name}: loss {loss}, expected {losses[0]}: not the same")
    print(f"{len(losses)} networks of the same weights: loss {losses[0]:.4f}")


def compare(runners: list[Runner], options: argparse.Namespace) -> None:
    """The first one is ours."""
    images, labels = batch(options.batch_size)
    for runner in runners:
        runner.step(images, labels)
    times: list[list[float]] = [[] for _ in runners]
    for _ in range(options.rounds):
        for runner, seen in zip(runners, times, strict=True):
            seen.append(runner.seconds(images, labels, options.steps))
    for runner, seen in zip(runners, times, strict=True):
        seconds = median(seen)
        rate = 3 * forward_flops(runner.network, images[:1]) * len(images) / seconds
        peak = options.peak[runner.dtype]
        ratio = "" if runner is runners[0] else f"{seconds / median(times[0]):.2f}x ours"
        print(
            f"  {runner.name:46} {milliseconds(seen)} {rate / 1e9:6.0f} GF/s"
            f" {rate / peak:5.0%}  {ratio}"
        )


def vit(options: argparse.Namespace, compiled: bool = False) -> None:
    print(f"ViT-Ti/4 at 32 px{', compiled' if compiled else ''}")
    create = partial(timm.create_model, "vit_tiny_patch16_224", img_size=32, patch_size=4)
    theirs = create(num_classes=10)

    def timms(fused: bool) -> nn.Module:
        set_fused_attn(fused)
        network = create(num_classes=10)
        network.load_state_dict(theirs.state_dict())
        return network

    native = partial(Runner, dtype=DTYPE)
    if compiled:
        same = [native(f"ours, {FORMAT}, compiled", vit_from_timm(theirs), compiled=True)]
        same += [native(f"ours, {FORMAT}, not compiled", vit_from_timm(theirs))]
    else:
        same = [native(f"ours, {FORMAT}, a part on each core", vit_from_timm(theirs), parts=True)]
        same += [native(f"ours, {FORMAT}, whole batches", vit_from_timm(theirs))]
        same += [Runner("timm, defaults (fp32)", timms(True))] if FORMAT != "fp32" else []
    same += [
        native(f"timm, {FORMAT}", timms(True), compiled=compiled),
        native(f"timm, {FORMAT}, attention not fused", timms(False), compiled=compiled),
    ]
    set_fused_attn(True)
    check_losses(same, *batch(options.batch_size))
    try:
        from vit_pytorch import ViT as TheirViT
    except ImportError:
        print("  vit-pytorch is not installed: left out")
    else:  # two more norms, no bias of queries, keys and values: its losses are its own
        args = {"image_size": 32, "patch_size": 4, "num_classes": 10}
        network = TheirViT(**args, dim=192, depth=12, heads=3, mlp_dim=768)
        name = f"vit-pytorch, {FORMAT} (same sizes, own weights)"
        same.append(native(name, network, compiled=compiled))
    compare(same, options)


def timms_gate(channels: int) -> SqueezeExcite:
    """As wide inside as timm's, whose widths are multiples of 8."""
    return SqueezeExcite(channels, hidden=max(8, channels // 16))


def timms_senet() -> nn.Module:
    """SE-ResNet-18 with the stem that networks for 32 pixels have."""
    network = timm.create_model("seresnet18", num_classes=10)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network


def senet(options: argparse.Namespace) -> None:
    print("SE-ResNet-18 at 32 px")
    theirs = [timms_senet() for _ in range(3)]
    ours, divided = SEResNet(gate=timms_gate), SEResNet(gate=timms_gate)
    for network in (ours, divided, *theirs[1:]):
        network.load_state_dict(theirs[0].state_dict(), strict=True)
    last = f"{FORMAT}, channels-last"
    same = [
        Runner(f"ours, {last}, a part on each core", divided, DTYPE, LAST, parts=True),
        Runner(f"ours, {last}", ours, DTYPE, LAST),
        Runner(f"timm, {last}", theirs[0], DTYPE, LAST),
        Runner(f"timm, {FORMAT}", theirs[1], DTYPE),
    ]
    same += [Runner("timm, defaults (fp32)", theirs[2])] if FORMAT != "fp32" else []
    check_losses(same, *batch(options.batch_size))
    bare = Runner(f"ours without gates, {last}", SEResNet(gate=NoGate), DTYPE, LAST)
    compare([*same, bare], options)


def memory(options: argparse.Namespace) -> None:
    """The same network in turns, in `kept_memory` and as glibc does it by itself."""
    print("FastCNN, 1000 images a step")
    runner = Runner("FastCNN", FastCNN(), DTYPE, LAST)
    images, labels = batch(1000)
    times: dict[str, list[float]] = {"kept": [], "given back": []}
    for _ in range(options.rounds):
        with kept_memory() as can:
            runner.step(images, labels)
            times["kept"].append(runner.seconds(images, labels, options.steps))
        runner.step(images, labels)
        times["given back"].append(runner.seconds(images, labels, options.steps))
    if not can:
        print("  malloc cannot be told here: the two are the same")
    for name, seen in times.items():
        ratio = f"{median(seen) / median(times['kept']):.2f}x kept"
        print(f"  {name:46} {milliseconds(seen)}  {ratio}")


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """Steps of whole batches of 32 images, on however many threads there are."""
    images, labels = batch(32)
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10)
    timms, ours = timms_senet(), SEResNet(gate=timms_gate)
    ours.load_state_dict(timms.state_dict(), strict=True)
    pairs = {
        "ViT-Ti/4": (Runner("ours", vit_from_timm(theirs), DTYPE), Runner("timm", theirs, DTYPE)),
        "SE-ResNet-18": (Runner("ours", ours, DTYPE, LAST), Runner("timm", timms, DTYPE, LAST)),
    }
    for name, pair in pairs.items():
        check_losses(list(pair), images, labels)
        steps = (partial(runner.step, images, labels) for runner in pair)
        yield clock.ratio(f"training step / timm's, {name}", *steps)


def data(options: argparse.Namespace) -> None:
    """Images a second, ours, torchvision's, and the ratio."""
    print("training images a second, ours and torchvision's")
    data_benchmark.in_memory(options.rounds)
    if options.folder.is_dir():
        data_benchmark.folder(options.folder, torch.get_num_threads(), options.rounds)
    else:
        print(f"  no folder {options.folder}: left out")


def main() -> None:
    compiled = partial(vit, compiled=True)
    parts: dict[str, Callable[[argparse.Namespace], None]] = {
        "vit": vit,
        "compiled": compiled,
        "senet": senet,
        "memory": memory,
    }
    parts |= {"fit": fit.compare, "data": data}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--fit-steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=Path, default=Path(".data/imagenette/train"))
    options = parser.parse_args()
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(f"expected parts of {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    warnings.filterwarnings("ignore", ".*", module="lightning")
    torch.set_num_threads(options.threads)
    options.peak = {kind: peak_flops(torch.device("cpu"), kind, 2048) for kind in DTYPES.values()}
    reached = ", ".join(f"{str(k)[6:]} {v / 1e9:.0f} GF/s" for k, v in options.peak.items())
    print(f"{options.threads} threads, torch {torch.__version__}, peak: {reached}")
    for name in options.parts or parts:
        parts[name](options)


if __name__ == "__main__":
    main()
