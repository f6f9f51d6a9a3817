"""One damaged input a case: which command reads it, and what must hold afterwards.

A corpus is a function of a random number generator, the seeds (see `seeds`) and an empty folder. It
writes its files into that folder and returns the `Case`.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import classes
import mutate
import numpy as np
import seeds
import torch
import yaml

from vision_attn.cli import main
from vision_attn.data import ImageFolder
from vision_attn.data.cache import PixelCache
from vision_attn.data.photos import FilePhotos
from vision_attn.models.checkpoint import read_weights

Check = Callable[[int], str | None]  # of the exit status; what is wrong, or None


@dataclass(frozen=True)
class Case:
    """run: returns the exit status. bad: how many inputs are damaged, so how many lines stderr may
    have. codes: the exit statuses that are documented for it. check: see `Check`."""

    run: Callable[[], int]
    bad: int = 1
    codes: tuple[int, ...] = (0, 2)
    check: Check = lambda code: None
    words: list[str] = field(default_factory=list)


def command(*words: Any, **options: Any) -> Case:
    texts = [str(word) for word in words]
    return Case(lambda: main(texts), words=texts, **options)


def chosen(draw: Random, folder: Path, ending: str = "") -> Path:
    return draw.choice(
        sorted(p for p in folder.iterdir() if p.name.endswith(ending) and p.is_file())
    )


def drawn(folder: Path, stem: str) -> Check:
    """Whether the picture of that photo was made, in all cases but where nothing was done."""

    def check(code: int) -> str | None:
        made = list(folder.rglob(f"{stem}*.png"))
        return None if made or code == 2 else f"no picture of {stem}"

    return check


def unless_too_large(made: Check, weights: Path) -> Check:
    """The check, but where weights are so large (a share of bits makes 10^30) that sums overflow."""

    def check(code: int) -> str | None:
        return None if code == 1 and largest(weights) > 1e6 else made(code)

    return check


def largest(weights: Path) -> float:
    """The largest size of a number in a file of weights that a command has read."""
    floats = [w for w in read_weights(str(weights)).values() if w.is_floating_point() and w.numel()]
    return max((float(w.abs().max()) for w in floats), default=0.0)


def damaged(draw: Random, path: Path, among: Path) -> bytes:
    return mutate.of_bytes(draw, path.read_bytes(), chosen(draw, among).read_bytes())


def images(draw: Random, whole: Path, here: Path) -> Case:
    """Three damaged images beside a good one, explained or predicted."""
    (here / "in").mkdir()
    seeds.photo(1).save(here / "in" / "good.png")
    for i in range(3):
        seed = chosen(draw, whole / "images")
        among = whole / draw.choice(["images", "others"])
        suffix = seed.suffix if draw.random() < 0.8 else chosen(draw, whole / "images").suffix
        (here / "in" / f"bad{i}{suffix}").write_bytes(damaged(draw, seed, among))
    model = whole / "models" / "vit.ckpt"
    if draw.random() < 0.2:
        table = here / "out" / "table.csv"
        table.parent.mkdir()

        def listed(code: int) -> str | None:
            good = table.is_file() and "good.png" in table.read_text()
            return None if good else "good.png is not in the table"

        model = whole / "runs/run/version_0/best.ckpt"
        words = ["predict", "--ckpt_path", model, "--images", here / "in", "--output", table]
        return command(*words, bad=3, codes=(0, 1), check=listed)
    return command(
        *("explain", model, here / "in", "-o", here / "out"),
        bad=3, codes=(0, 1), check=drawn(here / "out", "good"),
    )  # fmt: skip


def videos(draw: Random, whole: Path, here: Path) -> Case:
    """A damaged video beside a good photo, or a folder of frames some of which are damaged."""
    model, out = whole / "models" / "vit.ckpt", here / "out"
    if draw.random() < 0.7:
        seed = chosen(draw, whole / "videos")
        bad = here / f"bad{seed.suffix}"
        bad.write_bytes(damaged(draw, seed, whole / draw.choice(["videos", "others"])))
        seeds.photo(1).save(here / "good.png")
        words = ["explain", model, bad, here / "good.png", "-o", out]
        return command(*words, codes=(0, 1), check=drawn(out, "good"))
    clip = here / "clip"
    clip.mkdir()
    seeds.photo(1, 24, 32).save(clip / "0.png")
    for i in range(1, 4):
        seed = whole / "images" / draw.choice(["plain.png", "plain.jpg", "plain.webp"])
        content = damaged(draw, seed, whole / "images") if i < 3 else seed.read_bytes()
        (clip / f"{i}{seed.suffix}").write_bytes(content)

    def filmed(code: int) -> str | None:
        return None if list(out.glob("*.mp4")) else "no film of the good frames"

    words = ["explain", model, clip, "--frames", "8", "-o", out]
    return command(*words, bad=2, codes=(0, 1), check=filmed)


def reading(draw: Random, whole: Path, here: Path, bad: Path) -> Case:
    """One of the commands that read a checkpoint of classes."""
    seeds.photo(1).save(here / "good.png")
    if draw.random() < 0.8:
        words = ["explain", bad, here / "good.png", "-o", here / "out"]
        return command(
            *words, codes=(0, 1, 2), check=unless_too_large(drawn(here / "out", "good"), bad)
        )
    table = here / "out" / "table.csv"
    table.parent.mkdir()
    words = ["predict", "--ckpt_path", bad, "--images", here / "good.png", "--output", table]
    return command(*words)


def checkpoints(draw: Random, whole: Path, here: Path) -> Case:
    """The bytes of a checkpoint."""
    seed = whole / "models" / draw.choice(["vit.ckpt", "vit.ckpt", "senet.ckpt"])
    (here / "bad.ckpt").write_bytes(damaged(draw, seed, whole / "models"))
    return reading(draw, whole, here, here / "bad.ckpt")


def checkpoint_trees(draw: Random, whole: Path, here: Path) -> Case:
    """Entries, descriptions and weights of a checkpoint, or what a run needs to go on."""
    resumed = draw.random() < 0.25
    seed = whole / ("runs/run/version_0/last.ckpt" if resumed else "models/vit.ckpt")
    contents = torch.load(seed, weights_only=True)
    part = draw.choice(["all", "all", "vision_attn"])
    if part == "all":
        contents = mutate.of_tree(draw, contents)
    else:
        change = draw.choice([mutate.of_tree, mutate.of_number])
        contents = {**contents, part: change(draw, contents[part])}
    try:
        torch.save(contents, here / "bad.ckpt")
    except (RecursionError, RuntimeError, NotImplementedError):  # more than pickle or torch writes
        (here / "bad.ckpt").write_bytes(b"")
    if not resumed:
        return reading(draw, whole, here, here / "bad.ckpt")
    words = ["fit", "--config", whole / "runs/run.yaml", "--ckpt_path", here / "bad.ckpt"]
    words += ["--trainer.max_epochs", "2", "--trainer.default_root_dir", here / "out"]
    return command(*words)


def weights(draw: Random, whole: Path, here: Path) -> Case:
    """Files of weights: safetensors by header and by byte, and state dicts."""
    safe = whole / "models" / "vit.safetensors"
    match draw.randrange(4):
        case 0:
            bad = here / "bad.pth"
            bad.write_bytes(damaged(draw, whole / "models" / "vit.pth", whole / "models"))
        case 1:
            bad = here / "bad.safetensors"
            bad.write_bytes(damaged(draw, safe, whole / "models"))
        case _:
            bad = here / "bad.safetensors"
            bad.write_bytes(mutate.of_safetensors(draw, safe.read_bytes()))
    seeds.photo(1).save(here / "good.png")
    model, out = whole / "models" / "vit.ckpt", here / "out"
    words = ["explain", model, here / "good.png", "--weights", bad, "-o", out]
    return command(*words, codes=(0, 1, 2), check=unless_too_large(drawn(out, "good"), bad))


def configs(draw: Random, whole: Path, here: Path) -> Case:
    """A config for `fit`, or for `test` of a finished run."""
    (here / "bad.yaml").write_bytes(mutate.of_config(draw, seeds.CONFIG))
    run = ["--config", here / "bad.yaml", "--trainer.default_root_dir", here / "out"]
    if draw.random() < 0.8:
        return command("fit", *run, "--trainer.fast_dev_run", "true")
    (here / "out").mkdir()
    shutil.copy(whole / "runs/run/version_0/best.ckpt", here / "out")
    return command("test", *run, "--ckpt_path", here / "out" / "best.ckpt")


def config_classes(draw: Random, whole: Path, here: Path) -> Case:
    """A config that names any class, with any values; beside it a program and a file of others."""
    (here / "bad.yaml").write_text(yaml.safe_dump(classes.config(draw, here)))
    program = here / "canary"
    program.write_text(f"#!/bin/sh\ntouch {here}/started\n")
    program.chmod(0o755)
    (here / "canary.txt").write_text("as it was")
    (here / "out").mkdir()

    def harmless(code: int) -> str | None:
        return "does harm" if code == classes.WRONG else None

    codes = (classes.BUILT, classes.REFUSED, classes.RAISED, classes.WRONG)
    words = ["fit", "--config", str(here / "bad.yaml"), "--trainer.fast_dev_run", "true"]
    run = partial(classes.built, here / "bad.yaml", here)
    return Case(run, bad=10**6, codes=codes, check=harmless, words=words)


def caches(draw: Random, whole: Path, here: Path) -> Case:
    """The cache of an image folder: every image that it gives is that of its photo."""
    photos = shutil.copytree(whole / "caches" / "photos", here / "photos")
    source = ImageFolder(str(photos), size=14, shorter_side=16, cache=str(here / "out"))
    place = source._cache_place(here)
    shutil.copytree(whole / "caches" / "cache", place)
    bad = place / draw.choice(["index.jsonl", "index.jsonl", "pixels.bin"])
    content = bad.read_bytes()
    if bad.suffix == ".jsonl" and draw.random() < 0.5:
        lines = [json.loads(line) for line in content.splitlines()]
        change = draw.choice([mutate.of_tree, mutate.of_number])
        content = "".join(json.dumps(line) + "\n" for line in change(draw, lines)).encode()
    else:
        content = mutate.of_bytes(draw, content, (place / "pixels.bin").read_bytes())
    bad.write_bytes(content)
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))

    def load() -> int:
        return compare(PixelCache(place, 16), photos, names)

    def right(code: int) -> str | None:
        return {0: None, 9: "a wrong image"}.get(code, f"exit status {code}")

    if draw.random() < 0.85:
        return Case(load, codes=(0, 9), check=right, words=["PixelCache", str(place)])
    text = seeds.CONFIG.replace("vision_attn.data.Planted", "vision_attn.data.ImageFolder").replace(
        "{size: 16, train: 40, val: 20, test: 20}",
        json.dumps({"path": str(photos), "size": 14, "shorter_side": 16}),
    )
    (here / "run.yaml").write_text(text.replace("image_size: 16", "image_size: 14").replace("patch_size: 8", "patch_size: 7").replace("num_classes: 10", "num_classes: 3"))  # fmt: skip
    words = ["fit", "--config", str(here / "run.yaml"), "--trainer.fast_dev_run", "true"]
    words += ["--data.source.cache", str(here / "out")]  # a config alone writes nothing there
    return Case(lambda: main(words) or load(), codes=(0, 9), check=right, words=words)


def compare(cache: PixelCache, folder: Path, names: list[str]) -> int:
    """0 where all images are those of their photos, else 9."""
    pixels, errors = cache.load(folder, names)
    right = (
        np.array_equal(pixels[i], FilePhotos(folder, [name]).pixels(0, cache.shorter_side))
        for i, name in enumerate(names)
    )
    return 0 if not errors and all(right) else 9


def stopped(draw: Random, whole: Path, here: Path) -> Case:
    """What a stopped `score` left behind, or the first shard of an `explain`, then the same again."""
    model, photos, out = whole / "runs/vit.ckpt", whole / "runs/photos", here / "out"
    scored = draw.random() < 0.5
    shutil.copytree(whole / "runs" / ("scored" if scored else "half"), out)
    kinds = (".sqlite", ".gz", ".npy")
    files = sorted(p for p in out.rglob("*") if p.suffix in kinds)
    bad = draw.choice(files)
    content = bad.read_bytes()
    if draw.random() < 0.5:
        bad.write_bytes(mutate.of_bytes(draw, content, draw.choice(files).read_bytes()))
    else:  # a few bytes, which SQLite and numpy may take as they are
        changed = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        bad.write_bytes(changed)
    if scored:
        return command("score", model, photos, *seeds.SCORE, "-o", out, codes=(0, 1, 2))
    words = ["explain", model, photos, "--shard", "2/2", "-o", out]
    return command(*words, codes=(0, 1, 2), check=drawn(out, "1"))


def boxes(draw: Random, whole: Path, here: Path) -> Case:
    """The boxes beside a folder of photos."""
    photos = shutil.copytree(whole / "runs" / "photos", here / "photos")
    bad = photos / "boxes.json"
    content = bad.read_bytes()
    if draw.random() < 0.3:
        bad.write_bytes(mutate.of_bytes(draw, content, b"{}"))
    else:
        bad.write_text(json.dumps(mutate.of_tree(draw, json.loads(content), deep=False)))
    words = ["score", whole / "runs/vit.ckpt", photos, *seeds.SCORE, "-o", here / "out"]
    return command(*words, bad=4, codes=(0, 1, 2))


CORPORA: dict[str, Callable[[Random, Path, Path], Case]] = {
    "images": images,
    "videos": videos,
    "checkpoints": checkpoints,
    "checkpoint trees": checkpoint_trees,
    "weights": weights,
    "configs": configs,
    "config classes": config_classes,
    "caches": caches,
    "stopped runs": stopped,
    "boxes": boxes,
}
