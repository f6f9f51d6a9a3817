"""A made-up tree of very many JPEGs: ten kinds of noise and of mosaics of photos.

    python benchmarks/tree.py FOLDER [--photos N] [--side PIXELS] [--different N]

Writes FOLDER/train/KIND/0000000.jpg ... and ten photos of each kind in val/ and test/. So many
pictures as `--different` says are drawn and encoded; a file is one of them with a comment of its
own, so that 200,000 files are written in minutes, take 3 GB, and no two have the same bytes.
"""

import argparse
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from vision_attn.data import example_photos

Draw = Callable[[np.random.Generator, int], np.ndarray]  # an image (side, side, 3), 0 to 255
PARTS = {"val": 10, "test": 10}  # photos of each kind


def blurred(sigma: float) -> Draw:
    """Noise without what is finer than `sigma` thousandths of the side."""

    def draw(rng: np.random.Generator, side: int) -> np.ndarray:
        noise = cv2.GaussianBlur(rng.normal(0, 1, (side, side, 3)), (0, 0), sigma * side / 1000)
        image: np.ndarray = 128 + 50 * (noise - noise.mean()) / noise.std()
        return image

    return draw


def power(exponent: float) -> Draw:
    """Noise whose amplitudes fall with the frequency to this power."""

    def draw(rng: np.random.Generator, side: int) -> np.ndarray:
        rows, columns = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)
        amplitudes = np.maximum(np.hypot(rows, columns), 1 / side)[..., None] ** -exponent
        waves = np.fft.rfft2(rng.normal(0, 1, (side, side, 3)), axes=(0, 1))
        noise = np.fft.irfft2(waves * amplitudes, (side, side), axes=(0, 1))
        image: np.ndarray = 128 + 45 * (noise - noise.mean()) / noise.std()
        return image

    return draw


def cells(across: int, down: int) -> Draw:
    """Rectangles of random colours, so many across and down, with a little grain."""

    def draw(rng: np.random.Generator, side: int) -> np.ndarray:
        colours = rng.integers(0, 256, (down, across, 3), dtype=np.uint8)
        flat = cv2.resize(colours, (side, side), interpolation=cv2.INTER_NEAREST)
        return flat + rng.normal(0, 3, (side, side, 3))

    return draw


def pepper(rng: np.random.Generator, side: int) -> np.ndarray:
    """Black and white grains on grey, one pixel in twenty."""
    image = np.full((side, side, 3), rng.integers(60, 196), float)
    image[rng.random((side, side)) < 0.05] = 0
    image[rng.random((side, side)) < 0.05] = 255
    return cv2.GaussianBlur(image, (0, 0), side / 300)


def mosaic(tiles: int) -> Draw:
    """A square of `tiles` x `tiles` pieces of the photos that come along."""
    photos = [np.asarray(Image.open(path).convert("RGB")) for path in example_photos().values()]

    def draw(rng: np.random.Generator, side: int) -> np.ndarray:
        edge = -(-side // tiles)
        return np.vstack(
            [np.hstack([_piece(rng, photos, edge) for _ in range(tiles)]) for _ in range(tiles)]
        )[:side, :side]

    return draw


def _piece(rng: np.random.Generator, photos: list[np.ndarray], edge: int) -> np.ndarray:
    photo = photos[rng.integers(len(photos))]
    extent = int(rng.integers(32, min(photo.shape[:2])))
    top, left = (int(rng.integers(0, room - extent + 1)) for room in photo.shape[:2])
    piece = photo[top : top + extent, left : left + extent]
    piece = piece[:, ::-1] if rng.random() < 0.5 else piece
    return cv2.resize(np.ascontiguousarray(piece), (edge, edge), interpolation=cv2.INTER_AREA)


KINDS: dict[str, Draw] = {
    "fine": blurred(4),
    "coarse": blurred(12),
    "clouds": power(2),
    "pink": power(1.3),
    "pepper": pepper,
    "cells": cells(7, 7),
    "columns": cells(23, 1),
    "rows": cells(1, 23),
    "photos": mosaic(2),
    "tiles": mosaic(5),
}


def encoded(draw: Draw, count: int, side: int, rng: np.random.Generator) -> list[bytes]:
    """Draw so many pictures and encode them as JPEGs."""
    found = []
    for _ in range(count):
        image = draw(rng, side).clip(0, 255).astype(np.uint8)[:, :, ::-1]
        _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 80])
        found.append(jpeg.tobytes())
    return found


def commented(jpeg: bytes, text: str) -> bytes:
    """The same JPEG with a comment after its start: other bytes, the same pixels."""
    comment = text.encode()
    length = (len(comment) + 2).to_bytes(2, "big")
    return jpeg[:2] + b"\xff\xfe" + length + comment + jpeg[2:]


def write_tree(folder: Path, photos: int, side: int = 256, different: int = 2000) -> None:
    """Write the tree, unless a whole one of these sizes is there already."""
    finished = folder / f"whole-{photos}-{side}-{different}"
    if finished.is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    for number, (kind, draw) in enumerate(KINDS.items()):
        rng = np.random.default_rng(number)
        pictures = encoded(draw, max(1, different // len(KINDS)), side, rng)
        for part, count in {"train": -(-(photos - number) // len(KINDS)), **PARTS}.items():
            place = folder / part / kind
            place.mkdir(parents=True)
            for name, jpeg in _copies(pictures, count, f"{part}/{kind}"):
                (place / name).write_bytes(jpeg)
    finished.touch()


def _copies(pictures: list[bytes], count: int, where: str) -> Iterator[tuple[str, bytes]]:
    for item in range(count):
        name = f"{item:07}.jpg"
        yield name, commented(pictures[item % len(pictures)], f"{where}/{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=int, default=200_000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--different", type=int, default=2000)
    args = parser.parse_args()
    write_tree(args.folder, args.photos, args.side, args.different)
    files = list(args.folder.rglob("*.jpg"))
    size = sum(path.stat().st_size for path in files)
    print(f"{len(files):,} JPEGs, {size / 1e9:.2f} GB, below {args.folder}")


if __name__ == "__main__":
    main()
