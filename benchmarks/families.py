"""Every family of attention in the same network, at the same short budget, beside the plain one.

    python benchmarks/families.py [--data planted cifar10] [--only vit_hops ...] [--epochs 2]
                                  [--images 20000] [--output outputs/families] [--quick]

A family is a config, configs/NAME_planted.yaml: what it says of attention, pool and gate is put
into the plain network's config, so that rows differ in that alone. For CIFAR-10 it is the same
network, a ViT with patches of 4 pixels, on the data of configs/vit_cifar10.yaml and the like. All
see the same number of images. Time per step is measured turn by turn with the plain network, before
training. Rows done are kept in OUTPUT/rows.json and not run again; the table lands in
OUTPUT/table.md and on the screen.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from torch.nn import functional as F

from vision_attn.fitting.making import make_run
from vision_attn.fitting.run import TrainingRun
from vision_attn.models import ViT
from vision_attn.training import native_precision

CONFIGS = Path(__file__).parent.parent / "configs"

# The plain network first, then the families that are compared with it.
FAMILIES = {
    "vit": (
        "vit_additive", "vit_sparsemax", "vit_local2d", "vit_local_predictive", "vit_multidim",
        "vit_keyonly_pool", "vit_additive_pool", "vit_hard_pool", "vit_multidim_pool", "vit_hops",
        "vit_hierarchical",
    ),
    "resnet": ("senet", "senet_cbam", "senet_spatial"),
    "plain_cnn": ("spatial_cnn", "spatial_cnn_cbam"),
}  # fmt: skip
CIFAR10 = {"vit": "vit_cifar10", "resnet": "senet_cifar10", "plain_cnn": "senet_cifar10"}
PARTS = ("attention", "pool", "gate")


def network_of(config: str) -> dict[str, Any]:
    options: dict[str, Any] = read(config)["model"]["network"]["init_args"]
    return options


def read(config: str) -> dict[str, Any]:
    options: dict[str, Any] = yaml.safe_load((CONFIGS / f"{config}.yaml").read_text())
    return options


def config_of(name: str, plain: str, data: str, options: argparse.Namespace) -> dict[str, Any]:
    """The family's parts in the plain network's config for these data."""
    config = read(f"{plain}_planted")
    if data == "cifar10":
        config["data"] |= read(CIFAR10[plain])["data"] | {"root": options.root}
        if plain == "vit":
            config["model"]["network"]["init_args"] |= {"image_size": 32, "patch_size": 4}
    given = network_of(f"{name}_planted")
    parts = {part: given[part] for part in PARTS if part in given}
    network = config["model"]["network"]
    kept = {k: v for k, v in network["init_args"].items() if k not in PARTS}
    network["init_args"] = kept | parts
    config["trainer"] |= {
        "max_epochs": options.epochs,
        "limit_train_batches": max(1, options.images // config["data"]["batch_size"]),
        "default_root_dir": str(options.output),
        "enable_progress_bar": False,
    }
    if options.quick:
        config["trainer"] |= {"limit_val_batches": 1, "limit_test_batches": 1}
    if data == "planted":
        config["data"]["source"]["init_args"]["train"] = options.images
    return config


def run_of(name: str, plain: str, data: str, options: argparse.Namespace) -> TrainingRun:
    path = options.output / "configs" / f"{name}_{data}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config_of(name, plain, data, options), sort_keys=False))
    return make_run("fit", ["--config", str(path)])


def step_ratio(run: TrainingRun, plain: TrainingRun, rounds: int) -> float:
    """A training step's time over the plain network's: the median of interleaved rounds."""
    size = getattr(run.datamodule.source, "size", (32, 32))  # CIFAR-10's
    images = torch.randn(run.datamodule.batch_size, 3, *size)
    if not isinstance(run.model.network, ViT):
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (len(images),))
    networks = [run.model.network, plain.model.network]
    states = [{k: v.clone() for k, v in n.state_dict().items()} for n in networks]

    def seconds(network: nn.Module) -> float:
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, native_precision("cpu") == "bf16-mixed"):
            loss = F.cross_entropy(network(images).float(), labels)
        loss.backward()
        network.zero_grad()
        return time.perf_counter() - start

    times = [[seconds(network.train()) for network in networks] for _ in range(rounds + 1)][1:]
    for network, state in zip(networks, states, strict=True):
        network.load_state_dict(state)  # batch norm has counted
    return statistics.median(ours / theirs for ours, theirs in times)


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| data | network | test accuracy | step, times the plain one | minutes |"]
    lines += ["|---|---|---|---|---|"]
    for key, row in rows.items():
        data, name = key.split("/")
        figures = f"{row['accuracy']:.1%} | {row['step']:.2f} | {row['minutes']:.1f}"
        lines.append(f"| {data} | {name} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=("planted", "cifar10"), default=["planted"])
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=20_000, help="a training epoch")
    parser.add_argument("--rounds", type=int, default=7, help="of timing")
    parser.add_argument("--root", default=".data")
    parser.add_argument("--output", type=Path, default=Path("outputs/families"))
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.epochs, options.images, options.rounds = 1, 256, 1
    options.output.mkdir(parents=True, exist_ok=True)
    kept = options.output / "rows.json"
    rows = json.loads(kept.read_text()) if kept.is_file() else {}
    for data in options.data:
        for plain, others in FAMILIES.items():
            for name in (plain, *others):
                key = f"{data}/{name}"
                if key in rows or (options.only and name not in options.only):
                    continue
                run, other = (run_of(which, plain, data, options) for which in (name, plain))
                step = step_ratio(run, other, options.rounds)
                run.fit()
                assert run.folder is not None
                results = json.loads((run.folder / "summary.json").read_text())
                rows[key] = {
                    "accuracy": results["test/top1"],
                    "step": step,
                    "minutes": results["minutes"],
                }
                kept.write_text(json.dumps(rows, indent=1))
                (options.output / "table.md").write_text(table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
