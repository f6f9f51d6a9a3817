"""How much `explain --save maps` costs beside the network and the explainer alone.

    python benchmarks/saving.py [PHOTOS] [--model NAME ...] [--method NAME] [--images N]

PHOTOS is a folder of photos (imagenette160/val in the data of the tests). `ours` explains its files
into a folder, as the command does: it reads, decodes and crops them, predicts their classes, makes
the maps, and keeps maps and records. `alone` predicts and makes the maps of the same images, which
are tensors in memory, in the same batches, and keeps nothing. In turns in one process, after a
round that does not count.

Prints images a second of both and the ratio, smallest, median, largest, for each model.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from machines import photos_of
from timing import Clock, KeyRatio

import vision_attn
from vision_attn.data.images import read_image
from vision_attn.methods.by_name import methods
from vision_attn.pages.gallery.run import gallery
from vision_attn.runs.explain import predict, prepare
from vision_attn.runs.inputs import list_images
from vision_attn.runs.progress import Silent
from vision_attn.types import Model

MODELS = ["vision_attn:compact_vit_imagenette", "vision_attn:senet_imagenette"]


def ours(model: Model, files: list[str], method: str, batch_size: int) -> None:
    """Explain the files into a new folder, and throw it away."""
    folder = Path(tempfile.mkdtemp())
    try:
        gallery(
            model,
            files,
            [method],
            output=folder / "maps",
            page=False,
            save="maps",
            batch_size=batch_size,
            progress=Silent(),
        )
    finally:
        shutil.rmtree(folder)


def alone(model: Model, batches: list[torch.Tensor], method: str) -> None:
    """Predict the classes of batches in memory, and make their maps."""
    explainer = methods()[method]()
    for images in batches:
        targets = predict(model, images).argmax(1)
        explainer(model.network, images, targets, layout=model.layout)


def rate(run: Callable[[], None], images: int) -> float:
    start = time.perf_counter()
    run()
    return images / (time.perf_counter() - start)


def both(
    model: Model, files: list[str], method: str, batch: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Explain files into a folder; explain the same images in memory."""
    read = [read_image(file) for file in files]
    batches = [prepare(model, read[start : start + batch]) for start in range(0, len(read), batch)]
    return partial(ours, model, files, method, batch), partial(alone, model, batches, method)


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """Rollout of the compact ViT over 16 of the package's photos."""
    model = vision_attn.load_model(MODELS[0])
    with tempfile.TemporaryDirectory() as place:
        files = sorted(map(str, photos_of(16, Path(place)).iterdir()))
        yield clock.ratio("explain --save maps / alone", *both(model, files, "Rollout", 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = Path(os.environ.get("VISION_ATTN_DATA", ".data"))
    parser.add_argument("photos", nargs="?", type=Path, default=data / "imagenette160/val")
    parser.add_argument("--model", nargs="*", default=MODELS)
    parser.add_argument("--method", help="default: Rollout, and HiResCAM for a CNN")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found, _ = list_images([str(args.photos)], None)
    files = list(found)[:: max(1, len(found) // args.images)][: args.images]
    for name in args.model:
        model = vision_attn.load_model(name)
        method = args.method or ("Rollout" if "vit" in name else "HiResCAM")
        ways = both(model, files, method, args.batch)
        for way in ways:
            way()
        pairs = [[rate(way, len(files)) for way in ways] for _ in range(args.rounds)]
        ratios = sorted(mine / theirs for mine, theirs in pairs)
        mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(
            f"{name} {method}: {mine:.1f} and {theirs:.1f} images/s, ratio "
            f"{ratios[0]:.2f} / {statistics.median(ratios):.2f} / {ratios[-1]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
