"""The cost of `diagnose` beside plain forward passes of the same photos: ViT-S/16 at 224 pixels.

    python benchmarks/diagnose.py                  16 photos, random weights
    python benchmarks/diagnose.py --photos 200     its memory after 50 photos and after 200, too

Batches take turns in one process: each is run plain and then diagnosed. Reading photos is left out,
as both would do it. CPU seconds of the process, summed over the turns of each, and two ratios: of
wall time and of CPU time, which a busy machine disturbs less. The aim is 1.6. Memory: the largest
that the process had after a quarter of the photos and after all; it should be the same.
"""

import argparse
import resource
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
    walls, cpus, seconds, memory = [], [], [], {}
    turns = max(1, args.photos // args.batch_size)
    for turn in range(1, turns + 1):
        took = []
        for run in (lambda: infer(network, images), lambda: meter.add(images, [0] * len(images))):
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            took.append((time.perf_counter() - wall, time.process_time() - cpu))
        (plain, plain_cpu), (all_of_it, all_cpu) = took
        walls.append(all_of_it / plain)
        cpus.append(all_cpu / plain_cpu)
        seconds.append((plain_cpu, all_cpu))
        if turn in (max(1, turns // 4), turns):
            memory[turn * args.batch_size] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{args.name}, batches of {args.batch_size}, {torch.get_num_threads()} threads")
    print(f"diagnose / forward: wall {median(walls):.2f}, CPU {median(cpus):.2f} (median of "
          f"{len(walls)} batches, CPU {min(cpus):.2f} to {max(cpus):.2f})")  # fmt: skip
    plain, whole = (sum(one) for one in zip(*seconds, strict=True))
    print(f"CPU seconds of {turns * args.batch_size} photos, in turns: forward {plain:.2f}, "
          f"diagnose {whole:.2f}, together {whole / plain:.2f} times")  # fmt: skip
    kept = sum(value.numel() for value in meter.sums.totals())
    largest = ", ".join(f"{size / 1024:.0f} MiB after {at} photos" for at, size in memory.items())
    print(f"largest memory: {largest}; sums that are kept: {kept} numbers")


if __name__ == "__main__":
    main()
