"""Whether the number format decides the accuracy: networks in float32, and rounded to bfloat16.

    python benchmarks/precision.py [CONFIG ...] [--seeds 0 1 2] [--output outputs/precision]

A run of a config in float32, and one with the same seed in which all that autocast computes in
bfloat16 is rounded to it: inputs and weights of convolutions, products and attention, what they and
the layers after them give, and the gradients of all these. Sums stay in float32 within an
operation, as they do in bfloat16 kernels. So a CPU without bfloat16 can tell what rounding does to
an accuracy, if not to minutes. Runs that are done are kept in OUTPUT/rows.jsonl and not run again.
"""

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vision_attn.cli import main as vision_attn
from vision_attn.training import ImageClassifier

PRODUCTS = {torch.conv2d, F.conv2d, F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__}
PRODUCTS |= {torch.bmm, torch.addmm, F.scaled_dot_product_attention}
THEN = {
    F.batch_norm, torch.batch_norm, F.relu, torch.relu, F.sigmoid, torch.sigmoid, Tensor.sigmoid,
    torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, torch.mul, Tensor.mul,
    Tensor.mul_, Tensor.__mul__, torch.mean, Tensor.mean, Tensor.sum, torch.cat, F.avg_pool2d,
    F.adaptive_avg_pool2d, F.gelu,
}  # fmt: skip


class Round(torch.autograd.Function):
    """To bfloat16 and back; the gradient too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.bfloat16().float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.bfloat16().float()


def rounded(x: Any) -> Any:
    return Round.apply(x) if isinstance(x, Tensor) and x.dtype == torch.float32 else x


class AsBfloat16(TorchFunctionMode):
    """Rounds what autocast would compute in bfloat16."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PRODUCTS:
            args = tuple(map(rounded, args))
            kwargs = {key: rounded(value) for key, value in kwargs.items()}
        out = func(*args, **kwargs)
        return rounded(out) if func in PRODUCTS | THEN else out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("configs", nargs="*", default=["senet_planted", "spatial_cnn_planted"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("outputs/precision"))
    parser.add_argument("--train", type=int, help="images, instead of the config's")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = options.output / "rows.jsonl"
    done = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    known = {(row["config"], row["seed"], row["format"], row["train"]) for row in done}
    for config in options.configs:
        for seed in options.seeds:
            for kind in ("float32", "rounded"):
                if (config, seed, kind, options.train) not in known:
                    row = run(config, seed, kind, options)
                    with rows.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(row, flush=True)
    return 0


def run(config: str, seed: int, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train and test once; what the run's own summary says."""
    folder = options.output / f"{config}_{kind}_{seed}"
    words = ["fit", "--config", config, "--seed_everything", str(seed), "--probe", "false"]
    words += ["--trainer.precision", "32-true", "--trainer.default_root_dir", str(folder)]
    words += [] if options.train is None else ["--data.source.train", str(options.train)]
    plain, begun = ImageClassifier.forward, time.perf_counter()

    def forward(self: ImageClassifier, images: Tensor) -> Tensor:
        with AsBfloat16() if kind == "rounded" else nullcontext():
            return plain(self, images)

    ImageClassifier.forward = forward  # type: ignore[method-assign]
    try:
        if status := vision_attn(words):
            raise SystemExit(status)
    finally:
        ImageClassifier.forward = plain  # type: ignore[method-assign]
    summary = json.loads(next(folder.rglob("summary.json")).read_text())
    test = {key: value for key, value in summary.items() if "test" in key}
    about = {"config": config, "seed": seed, "format": kind, "train": options.train}
    return about | {"minutes": (time.perf_counter() - begun) / 60, **test}


if __name__ == "__main__":
    sys.exit(main())
