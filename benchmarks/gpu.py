"""What a GPU makes of the package: one table, in ten minutes at most, and more in the next ten.

    python benchmarks/gpu.py [PART ...] [--minutes 10] [--output outputs/gpu] [--data.root DIR]

Parts: rollout (Rollout and LibraGradient at 224, 1024 and 2048 pixels, up to 16,385 tokens, beside
a dense rollout and fast-vit-rollout: seconds and memory), exact (maps against the same in float64
on the CPU), training (images/s beside timm's, on drawn images of CIFAR's size), explain (photos/s,
from the package's JPEGs), accuracy (only with --data.root, a folder with CIFAR-10). Nothing is
downloaded.

Rows that are done are kept in OUTPUT/rows.json, by device and version of torch, and not run again;
none begins after --minutes. The table is in OUTPUT/table.md. A peer that is absent, and what does
not fit into memory, is named there. Without a GPU all runs on the CPU, small, which shows that the
script works and says nothing of a GPU.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from rollout import dense_rollout
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from vision_attn import load_model
from vision_attn.data import CIFAR10, TensorSet, example_photos
from vision_attn.methods import LibraGradient, Rollout
from vision_attn.models import SEResNet, vit_from_timm

Row = dict[str, Any]
Item = tuple[str, Callable[[], Row]]
PARTS = ("rollout", "exact", "training", "explain", "accuracy")
ROUNDS = 5
SLOW = 5  # seconds, above which one more run must do
LONG = 1024  # pixels, above which a peer that multiplies whole matrices on the CPU takes too long
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=10, help="after which none is begun")
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu"))
    parser.add_argument("--data.root", dest="root", type=Path, help="a folder with CIFAR-10")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"expected parts of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")
    args.small = args.device == "cpu"
    end = time.monotonic() + 60 * args.minutes
    name = "CPU, small: no figure of a GPU" if args.small else torch.cuda.get_device_name()
    machine = f"{name}, torch {torch.__version__}"
    args.output.mkdir(parents=True, exist_ok=True)
    kept = args.output / "rows.json"
    rows = json.loads(kept.read_text()) if kept.is_file() else {}
    mine = rows.setdefault(machine, {})
    left = []
    for part in args.parts or PARTS:
        for what, run in ITEMS[part](args):
            key = f"{part}: {what}"
            if key in mine and not {"absent", "failed"} & mine[key].keys():
                continue
            if time.monotonic() > end:
                left.append(key)
                continue
            mine[key] = tried(run)
            print(f"{key}: {in_words(mine[key])}", flush=True)
            write(kept, rows)
    (args.output / "table.md").write_text(table(rows))
    print(f"\n{table({machine: mine})}")
    if left:
        print(f"{len(left)} rows are left, run it again: {', '.join(left)}")


def tried(run: Callable[[], Row]) -> Row:
    """What a row holds, or in a line why it has no figures."""
    try:
        return run()
    except ImportError as error:
        return {"absent": str(error).splitlines()[0]}
    except torch.OutOfMemoryError:
        return {"failed": "does not fit into the device's memory"}
    except Exception as error:  # the other rows are of use all the same
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def write(path: Path, rows: dict[str, dict[str, Row]]) -> None:
    """At once or not at all: a run may end at any moment."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(rows, indent=1))
    part.replace(path)


def table(rows: dict[str, dict[str, Row]]) -> str:
    lines = []
    for machine, of in rows.items():
        lines += [f"## {machine}", "", "| what | figures |", "|---|---|"]
        lines += [f"| {key} | {in_words(row)} |" for key, row in of.items()] + [""]
    return "\n".join(lines)


def in_words(row: Row) -> str:
    return ", ".join(
        f"{value:.4g} {name}" if isinstance(value, float) else f"{name}: {value}"
        for name, value in row.items()
    )


# ---- time and memory ----


def measured(run: Callable[[], object], device: str, rounds: int = ROUNDS) -> Row:
    """Median seconds of some runs after the first, which counts apart; MiB added, on a GPU."""
    gpu = device != "cpu"

    def seconds() -> float:
        start = time.perf_counter()
        run()
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    before = torch.cuda.memory_allocated() if gpu else 0
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    first = seconds()
    times = [seconds() for _ in range(rounds if first < SLOW else 1)]
    row: Row = {"s": median(times), "s the first": first}
    if gpu:
        row["MiB"] = (torch.cuda.max_memory_allocated() - before) / MIB
    return row


def network_and_image(side: int, device: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    name = "vit_tiny_patch16_224" if device == "cpu" else "vit_small_patch16_224"
    network = timm.create_model(name, img_size=side).eval().to(device)
    nn.init.normal_(network.head.weight, std=0.2)
    return network, torch.randn(1, 3, side, side, device=device)


# ---- the parts ----


def rollout(args: argparse.Namespace) -> Iterator[Item]:
    sides = (64, 96) if args.small else (224, 1024, 2048)

    def forward(network: nn.Module, image: Tensor) -> object:
        with torch.no_grad():
            return network(image)

    ways: dict[str, Callable[[nn.Module, Tensor], object]] = {
        "forward": forward,
        "Rollout": Rollout(),
        "LibraGradient": LibraGradient(),
        "dense matrices": dense_rollout,
    }

    def timed(side: int, way: Callable[[nn.Module, Tensor], object]) -> Row:
        network, image = network_and_image(side, args.device)
        return measured(lambda: way(network, image), args.device)

    def peer(side: int) -> Row:
        from fast_vit_rollout import ViTAttentionRollout

        network, image = network_and_image(side, args.device)
        for block in network.blocks:
            block.attn.fused_attn = False
        explainer = ViTAttentionRollout(network)
        return measured(lambda: explainer(image), args.device)

    for side in sides:
        for name, way in ways.items():
            yield f"{name}, {side} px", partial(timed, side, way)
        if side <= LONG:
            yield f"fast-vit-rollout, {side} px", partial(peer, side)


def exact(args: argparse.Namespace) -> Iterator[Item]:
    """The largest difference of a map from that of the same weights in float64 on the CPU."""

    def error(method: Any, side: int) -> Row:
        network, image = network_and_image(side, args.device)
        found = method(network, image, target=3).values.double().cpu()
        true = method(network.double().cpu(), image.double().cpu(), target=3).values
        return {"of the map's maximum": float((found - true).abs().max() / true.abs().max())}

    for side in (64,) if args.small else (224, 512):
        for method in (Rollout(), LibraGradient()):
            yield f"{method}, {side} px", partial(error, method, side)


def training(args: argparse.Namespace) -> Iterator[Item]:
    """Images a second of a step in the device's fast format, ours and timm's in turns."""
    size, dtype = (16, torch.float32) if args.small else (512, torch.bfloat16)

    def timms_vit() -> nn.Module:
        return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10)

    def timms_senet() -> nn.Module:
        network = timm.create_model("seresnet18", num_classes=10)
        network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
        return network

    def compact() -> nn.Module:
        return load_model("vision_attn:compact_vit_cifar10").network

    pairs: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module] | None]] = {
        "ViT-Ti/4": (lambda: vit_from_timm(timms_vit()), timms_vit),
        "SE-ResNet-18": (SEResNet, timms_senet),
        "compact ViT": (compact, None),
    }

    def in_turns(ours: Callable[[], nn.Module], theirs: Callable[[], nn.Module] | None) -> Row:
        torch.manual_seed(0)
        images = torch.randn(size, 3, 32, 32, device=args.device)
        labels = torch.randint(0, 10, (size,), device=args.device)
        steps = {
            name: step_of(make().to(args.device).train(), images, labels, dtype)
            for name, make in (("images/s", ours), ("images/s of timm", theirs))
            if make is not None
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for at in range(ROUNDS + 2):
            for name, step in steps.items():
                seconds = measured(step, args.device, rounds=1)["s"]
                if at > 1:  # the first are slower
                    times[name].append(seconds)
        return {name: size / median(each) for name, each in times.items()}

    for name, (ours, theirs) in pairs.items():
        yield name, partial(in_turns, ours, theirs)


def step_of(
    network: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype
) -> Callable[[], None]:
    optimizer = AdamW(network.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        half = dtype != torch.float32
        with torch.autocast(images.device.type, dtype, enabled=half):
            loss = F.cross_entropy(network(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def explain(args: argparse.Namespace) -> Iterator[Item]:
    """Photos a second, from JPEGs to maps."""
    photos = list(example_photos().values()) * (1 if args.small else 8)

    def rate(method: str) -> Row:
        model = load_model("vision_attn:compact_vit_imagenette")
        model.network.to(args.device)
        few = photos[: 3 if args.small else len(photos)]
        seconds = measured(lambda: model.explain(few, method), args.device, rounds=2)["s"]
        return {"photos/s": len(few) / seconds}

    for method in ("Rollout", "LibraGradient", "GradCAM"):
        yield method, partial(rate, method)


def accuracy(args: argparse.Namespace) -> Iterator[Item]:
    """The share of CIFAR-10's test images that shelf networks name rightly."""
    if args.root is None:
        return

    def right(name: str) -> Row:
        test = CIFAR10().load(args.root, 0.1, 0).test
        assert isinstance(test, TensorSet)
        count = 256 if args.small else len(test)
        model = load_model(f"vision_attn:{name}")
        network, found = model.network.to(args.device).eval(), 0
        mean, std = (
            torch.tensor(each, device=args.device)[:, None, None]
            for each in (model.preprocess.mean, model.preprocess.std)
        )
        for at in range(0, count, 256):
            images = test.images[at : at + 256].to(args.device).float() / 255
            with torch.no_grad():
                answers = network((images - mean) / std).argmax(1).cpu()
            found += int((answers == test.labels[at : at + 256]).sum())
        return {"right": found / count}

    for name in ("compact_vit_cifar10", "senet_cifar10"):
        yield name, partial(right, name)


ITEMS = {
    "rollout": rollout, "exact": exact, "training": training, "explain": explain,
    "accuracy": accuracy,
}  # fmt: skip

if __name__ == "__main__":
    main()
