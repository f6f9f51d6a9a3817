"""The cost of `diagnose` beside plain forward passes of the same photos: ViT-S/16 at 224 pixels.

    python benchmarks/diagnose.py                  16 photos, random weights
    python benchmarks/diagnose.py --photos 200

Batches take turns in one process: each is run plain and then diagnosed. Reading photos is left out,
as both would do it. Two ratios: of wall time and of the process's CPU time, which a busy machine
disturbs less. The aim is 1.6.
"""

import argparse
import time
from statistics import median

import timm
import torch

from vision_attn.data import Preprocess
from vision_attn.inference import infer
from vision_attn.runs.diagnosis.measure import Meter
from vision_attn.tokens import layout_of
from vision_attn.types import Model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--name", default="vit_small_patch16_224")
    args = parser.parse_args()
    network = timm.create_model(args.name).eval()
    preprocess = Preprocess((224, 224), mean=(0.5,) * 3, std=(0.5,) * 3)
    classes = [f"{index}" for index in range(network.num_classes)]
    model = Model(network, preprocess, classes, layout_of(network, (224, 224)))
    meter = Meter(model)
    images = torch.randn(args.batch_size, 3, 224, 224)
    meter.add(images, [0] * len(images))  # finds the path and the blocks, once a network
    infer(network, images)
    walls, cpus = [], []
    for _ in range(max(1, args.photos // args.batch_size)):
        took = []
        for run in (lambda: infer(network, images), lambda: meter.add(images, [0] * len(images))):
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            took.append((time.perf_counter() - wall, time.process_time() - cpu))
        (plain, plain_cpu), (all_of_it, all_cpu) = took
        walls.append(all_of_it / plain)
        cpus.append(all_cpu / plain_cpu)
    print(f"{args.name}, batches of {args.batch_size}, {torch.get_num_threads()} threads")
    print(f"diagnose / forward: wall {median(walls):.2f}, CPU {median(cpus):.2f} (median of "
          f"{len(walls)} batches, CPU {min(cpus):.2f} to {max(cpus):.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
