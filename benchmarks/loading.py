"""How fast photos come from the disk: ours streamed against decoding alone and other loaders.

    python benchmarks/loading.py [--photos N] [--side PIXELS] [--size PIXELS] [--workers N] [--cpu]

A made-up tree of JPEGs (mosaics of noise, 10 classes) is written once below --root, and tar shards
of the same files. The others are timm, torchvision, WebDataset, and Hugging Face's datasets; and
`decoding` and `pillow`, as many of torch's worker processes that decode and do nothing else, as the
stream does and with Pillow: that ratio says how much of their rate the stream keeps. `parquet`
compares reading Parquet in place, in row groups of 100, with that of datasets. Every loader
gives the same: a random box of 35 to 100 % of each photo, resized to --size by linear
interpolation, flipped at random, normalised, in batches of --batch, decoded by as many worker
processes. Ours crops and resizes in the workers and flips and normalises whole batches; timm (its
fast collate and prefetching, as `create_loader` makes them on a CPU) and the others do it photo by
photo. In turns, after a round that does not count.

Prints how long the first listing takes and a later one, how fast one process decodes alone, then
images a second and the ratio ours / theirs, smallest, median, largest, and what all this takes in
memory. On a machine that does other work beside, --cpu: images for each second of CPU time of all
processes, over whole epochs.
"""

import argparse
import gc
import os
import resource
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timing import Clock, Epoch, KeyRatio, cpu_seconds
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets
from torchvision.transforms import v2 as tv

from vision_attn.data import Flip, HuggingFace, ImageData, ImageFolder
from vision_attn.data.listing import Tree
from vision_attn.data.photo_sets import PhotoSource
from vision_attn.data.photos import FilePhotos, Photos

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE = (0.35, 1.0)


def write_tree(folder: Path, photos: int, side: int) -> None:
    """Write JPEGs of mosaics: 97 different ones, each copy a file of its own."""
    if (folder / f"whole-{photos}-{side}").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng(0)
    encoded = []
    for i in range(97):
        coarse = rng.integers(0, 256, (4 + i % 10 * 4, 5 + i % 7 * 4, 3), dtype=np.uint8)
        wide = Image.fromarray(coarse).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
        grain = rng.normal(0, 6, (side, side * 4 // 3, 3))
        photo = Image.fromarray((np.asarray(wide) + grain).clip(0, 255).astype(np.uint8))
        file = folder / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo.save(file, quality=88)
        encoded.append(file.read_bytes())
        file.unlink()
    for i in range(photos):
        place = folder / "train" / f"class{i % 10}"
        if i < 10:
            place.mkdir(parents=True)
        (place / f"{i:07}.jpg").write_bytes(encoded[i % 97])
    for part in ("val", "test"):
        for name in range(10):
            place = folder / part / f"class{name}"
            place.mkdir(parents=True)
            (place / "0.jpg").write_bytes(encoded[name])
    (folder / "shards").mkdir()
    files = sorted((folder / "train").rglob("*.jpg"), key=lambda file: file.name)
    for number, start in enumerate(range(0, len(files), 1000)):
        with tarfile.open(folder / "shards" / f"{number:05}.tar", "w") as tar:
            for file in files[start : start + 1000]:
                tar.add(file, file.name)
                label = folder / "label"
                label.write_text(file.parent.name.removeprefix("class"))
                tar.add(label, f"{file.stem}.cls")
    (folder / f"whole-{photos}-{side}").touch()


def ours(
    folder: Path, args: argparse.Namespace, kind: Callable[..., PhotoSource] = ImageFolder
) -> Epoch:
    """Our stream, cropped in the workers; flipped and normalised by the batch."""
    source = kind(
        str(folder),
        size=args.size,
        shorter_side=max(args.size, args.side),
        scale=SCALE,
        storage="stream",
        workers=args.workers,
    )
    data = ImageData(source, str(folder), args.batch, [Flip()], mean=MEAN, std=STD)
    data.setup("fit")
    loader = data.train_dataloader()
    return lambda: map(data.for_training, loader)


def of_photo(size: int) -> tv.Compose:
    """torchvision's transforms of one photo."""
    return tv.Compose(
        [
            tv.RandomResizedCrop(size, SCALE, antialias=True),
            tv.RandomHorizontalFlip(),
            tv.ToImage(),
            tv.ToDtype(torch.float32, scale=True),
            tv.Normalize(MEAN, STD),
        ]
    )


def of_torchvision(folder: Path, args: argparse.Namespace) -> Epoch:
    """torchvision's folder and transforms in torch's DataLoader."""
    photos = datasets.ImageFolder(str(folder / "train"), of_photo(args.size))
    return lambda: DataLoader(photos, args.batch, shuffle=True, num_workers=args.workers)


def of_timm(folder: Path, args: argparse.Namespace) -> Epoch:
    """timm's data set and loader, with the transforms that it makes for training."""
    from timm.data import create_dataset, create_loader

    photos = create_dataset("", str(folder / "train"))
    loader = create_loader(
        photos,
        (3, args.size, args.size),
        args.batch,
        is_training=True,
        scale=SCALE,
        hflip=0.5,
        color_jitter=None,  # type: ignore[arg-type]  # timm takes None, for none
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=args.workers,
        use_prefetcher=True,
        device=torch.device("cpu"),
        pin_memory=False,
        persistent_workers=False,
    )
    return lambda: loader


def of_webdataset(folder: Path, args: argparse.Namespace) -> Epoch:
    """WebDataset's pipeline over the shards, with torchvision's transforms."""
    import webdataset

    transform = of_photo(args.size)
    shards = sorted(map(str, (folder / "shards").glob("*.tar")))

    def epoch() -> Iterable[Sequence[Tensor]]:
        photos = webdataset.WebDataset(shards, shardshuffle=100, empty_check=False).shuffle(1000)
        decoded = photos.decode("pil").to_tuple("jpg", "cls").map_tuple(transform, int)
        return DataLoader(decoded.batched(args.batch), None, num_workers=args.workers)

    return epoch


def of_datasets(folder: Path, args: argparse.Namespace) -> Epoch:
    """Hugging Face's datasets over the same files, with torchvision's transforms."""
    import datasets as hugging_face

    transform = of_photo(args.size)
    files = sorted((folder / "train").rglob("*.jpg"))
    columns = {
        "image": [str(file) for file in files],
        "label": [int(file.parent.name.removeprefix("class")) for file in files],
    }
    rows = hugging_face.Dataset.from_dict(columns)
    rows = rows.cast_column("image", hugging_face.Image())
    photos = rows.with_transform(
        lambda some: {
            "image": [transform(image) for image in some["image"]],
            "label": some["label"],
        }
    )

    def batched(samples: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        images = torch.stack([sample["image"] for sample in samples])
        return images, torch.tensor([sample["label"] for sample in samples])

    return lambda: DataLoader(
        photos, args.batch, shuffle=True, num_workers=args.workers, collate_fn=batched
    )


def write_parquet(folder: Path) -> Path:
    """The training photos as Parquet, in row groups of 100."""
    import datasets as hugging_face

    place = folder / "parquet"
    if not (place / "whole").is_file():
        place.mkdir(exist_ok=True)
        files = sorted((folder / "train").rglob("*.jpg"), key=lambda file: file.name)
        for number, start in enumerate(range(0, len(files), 1000)):
            some = files[start : start + 1000]
            columns = {
                "image": [{"bytes": file.read_bytes(), "path": file.name} for file in some],
                "label": [int(file.parent.name.removeprefix("class")) for file in some],
            }
            rows = hugging_face.Dataset.from_dict(columns)
            rows = rows.cast_column("image", hugging_face.Image())
            rows.to_parquet(str(place / f"train-{number:05}.parquet"), batch_size=100)
        (place / "whole").touch()
    return place


def ours_of_parquet(folder: Path, args: argparse.Namespace) -> Epoch:
    """Our stream, of Parquet read in place."""
    place = str(write_parquet(folder))
    return ours(folder, args, lambda _, **more: HuggingFace(place, streaming=True, **more))


def of_parquet(folder: Path, args: argparse.Namespace) -> Epoch:
    """Hugging Face's datasets, streaming Parquet through a buffer of 2,048."""
    import datasets as hugging_face

    transform = of_photo(args.size)
    files = sorted(map(str, write_parquet(folder).glob("*.parquet")))
    rows = hugging_face.load_dataset("parquet", data_files=files, split="train", streaming=True)
    photos = rows.shuffle(seed=0, buffer_size=2048).map(
        lambda row: {"image": transform(row["image"].convert("RGB")), "label": row["label"]}
    )

    def batched(samples: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        images = torch.stack([sample["image"] for sample in samples])
        return images, torch.tensor([sample["label"] for sample in samples])

    return lambda: DataLoader(photos, args.batch, num_workers=args.workers, collate_fn=batched)


class ByPillow(FilePhotos):
    """Photos that Pillow decodes, whatever they are."""

    jpeg = Photos.jpeg


class Decoded(Dataset[int]):
    """Photos that are decoded, and thrown away: a zero for each."""

    def __init__(self, photos: FilePhotos, shorter_side: int):
        self.photos, self.shorter_side = photos, shorter_side

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, item: int) -> int:
        self.photos.pixels(item, self.shorter_side)
        return 0


def of_decoding(
    folder: Path, args: argparse.Namespace, kind: type[FilePhotos] = FilePhotos
) -> Epoch:
    """No more than decoding, in as many processes."""
    photos = kind(folder / "train", Tree(folder / "train").files())
    decoded = Decoded(photos, max(args.size, args.side))
    return lambda: (
        [zeros] for zeros in DataLoader(decoded, args.batch, shuffle=True, num_workers=args.workers)
    )


def rate(epoch: Epoch, most: int) -> float:
    """Images a second from the first batch on, so that starting the workers is left out."""
    count, start = -1, 0.0
    for batch in epoch():
        if count < 0:
            count, start = 0, time.perf_counter()
            continue
        count += len(batch[0])
        if count >= most:
            break
    return count / (time.perf_counter() - start)


def rate_by_cpu(epoch: Epoch, most: int) -> float:
    """Images of a whole epoch a second of CPU time, of this process and of those that it ends."""
    start = cpu_seconds()
    count = sum(len(batch[0]) for batch in epoch())
    gc.collect()  # a loader ends its processes when it goes
    return count / (cpu_seconds() - start)


def decoding_alone(folder: Path, args: argparse.Namespace) -> float:
    """Photos a second that one process decodes to pixels, and does nothing else with."""
    names = Tree(folder / "train").files()[: args.most]
    photos = FilePhotos(folder / "train", names)
    start = time.perf_counter()
    for item in range(len(photos)):
        photos.pixels(item, max(args.size, args.side))
    return len(photos) / (time.perf_counter() - start)


def listing(folder: Path) -> tuple[float, float]:
    """Seconds of the first listing and of a later one."""
    index = folder / "index.json"
    index.unlink(missing_ok=True)
    old = time.time() - 100
    for place in (folder / "train").iterdir():
        os.utime(place, (old, old))
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        tree = Tree(folder / "train", index)
        for name in sorted(place.name for place in (folder / "train").iterdir()):
            tree.files(name)
        tree.keep()
        taken.append(time.perf_counter() - start)
    return taken[0], taken[1]


Build = Callable[[Path, argparse.Namespace], Epoch]
PEERS: dict[str, Build] = {
    "decoding": of_decoding,
    "pillow": partial(of_decoding, kind=ByPillow),
    "timm": of_timm,
    "torchvision": of_torchvision,
    "webdataset": of_webdataset,
    "datasets": of_datasets,
    "parquet": of_parquet,
}
OURS: dict[str, Build] = {
    "parquet": ours_of_parquet
}  # what is compared with a peer, if it is not `ours`


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """Whole epochs of 500 photos, one worker, by CPU seconds of all processes."""
    with tempfile.TemporaryDirectory() as root:
        args = options(["--photos", "500", "--workers", "1"])
        write_tree(Path(root), args.photos, args.side)
        epochs = [build(Path(root), args) for build in (ours, of_timm)]
        mine, theirs = (partial(rate_by_cpu, epoch, args.photos) for epoch in epochs)
        yield clock.rates("a photo loaded / by timm's loader", mine, theirs)


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=".data/loading")
    parser.add_argument("--photos", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=256, help="shorter side of the JPEGs")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=2000, help="images of a turn")
    parser.add_argument("--cpu", action="store_true", help="images a second of CPU time")
    parser.add_argument("--against", nargs="*", choices=PEERS, default=list(PEERS))
    return parser.parse_args(words)


def main() -> None:
    args = options()
    measure = rate_by_cpu if args.cpu else rate
    torch.set_num_threads(1)
    folder = Path(args.root).resolve()
    write_tree(folder, args.photos, args.side)
    first, later = listing(folder)
    print(f"{args.photos:,} photos listed in {first:.2f} s, again in {later:.2f} s")
    alone = decoding_alone(folder, args)
    print(f"decoding alone, one process: {alone:,.0f} images/s")
    print(f"{args.workers} workers{'':20} ours       theirs      ratio")
    for name in args.against:
        mine, theirs = (build(folder, args) for build in (OURS.get(name, ours), PEERS[name]))
        measure(mine, args.batch), measure(theirs, args.batch)
        pairs = np.array(
            [(measure(mine, args.most), measure(theirs, args.most)) for _ in range(args.rounds)]
        )
        ratios, middle = pairs[:, 0] / pairs[:, 1], np.median(pairs, axis=0)
        print(
            f"{name:24} {middle[0]:10,.0f} {middle[1]:12,.0f}"
            f" {ratios.min():8.2f} {np.median(ratios):6.2f} {ratios.max():6.2f}x"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"memory at its highest, workers left out: {peak:.2f} GB")


if __name__ == "__main__":
    main()
