"""Small whole files, one or more of each kind that the program reads, to be damaged by `mutate`."""

import json
import wave
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from vision_attn.attention import SqueezeExcite
from vision_attn.cli import main
from vision_attn.data.cache import PixelCache
from vision_attn.models import SEResNet, ViT
from vision_attn.models.checkpoint import describe

SCORE = ["--method", "GradCAM", "--steps", "2", "--processes", "1"]
CLASSES = ["ant", "bee", "cat"]
CONFIG = """
seed_everything: 3
model:
  network:
    class_path: vision_attn.models.ViT
    init_args: {image_size: 16, patch_size: 8, num_classes: 10, dim: 8, depth: 1, heads: 2}
  optimizer:
    class_path: torch.optim.AdamW
    init_args: {lr: 0.01}
  schedule:
    class_path: vision_attn.training.CosineDecay
    init_args: {warmup: 0.2}
data:
  source:
    class_path: vision_attn.data.Planted
    init_args: {size: 16, train: 40, val: 20, test: 20}
  augment:
    - class_path: vision_attn.data.Flip
  batch_size: 20
trainer:
  max_epochs: 1
  accelerator: cpu
  enable_progress_bar: false
"""


def photo(seed: int, height: int = 24, width: int = 32) -> Image.Image:
    """A smooth random picture."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def images(folder: Path) -> None:
    """One file a format and mode that people have, and one with each odd feature."""
    picture = photo(0)
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    files: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "plain.png": (picture, {}),
        "alpha.png": (picture.convert("RGBA"), {}),
        "palette.png": (picture.convert("P"), {"transparency": 3}),
        "grey16.png": (Image.fromarray(np.arange(768, dtype=np.uint16).reshape(24, 32)), {}),
        "bit.png": (picture.convert("1"), {}),
        "plain.jpg": (picture, {"exif": exif}),
        "progressive.jpg": (picture, {"progressive": True}),
        "cmyk.jpg": (picture.convert("CMYK"), {}),
        "plain.bmp": (picture, {}),
        "plain.ppm": (picture, {}),
        "plain.webp": (picture, {}),
        "lossless.webp": (picture.convert("RGBA"), {"lossless": True}),
        "raw.tif": (picture, {}),
        "lzw.tif": (picture, {"compression": "tiff_lzw"}),
        "jpeg.tif": (picture, {"compression": "jpeg"}),
        "float.tiff": (
            Image.fromarray(np.linspace(0, 1, 768, dtype=np.float32).reshape(24, 32)),
            {},
        ),
    }
    for name, (image, options) in files.items():
        image.save(folder / name, **options)
    frames = [photo(i).convert("P") for i in range(3)]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])


def checkpoint(network: torch.nn.Module, size: tuple[int, int]) -> dict[str, Any]:
    """What `fit` saves, without the optimizer."""
    return {
        "state_dict": {f"network.{name}": value for name, value in network.state_dict().items()},
        "vision_attn": {
            "format": 1,
            "network": describe(network),
            "classes": CLASSES,
            "preprocess": {"input_size": size, "mean": (0.5,) * 3, "std": (0.25,) * 3},
            "version": "0",
        },
    }


def vit() -> ViT:
    torch.manual_seed(0)
    return ViT(16, 8, 3, dim=8, depth=1, heads=2)


def senet() -> SEResNet:
    torch.manual_seed(0)
    return SEResNet(3, layers=(1, 1, 1, 1), widths=(8, 8, 8, 8), gate=SqueezeExcite)


def models(folder: Path) -> None:
    """Two checkpoints; and the ViT's weights as safetensors and as a plain state dict."""
    torch.save(checkpoint(vit(), (16, 16)), folder / "vit.ckpt")
    torch.save(checkpoint(senet(), (32, 32)), folder / "senet.ckpt")
    save_file(vit().state_dict(), folder / "vit.safetensors")
    torch.save(vit().state_dict(), folder / "vit.pth")


def configs(folder: Path) -> None:
    (folder / "run.yaml").write_text(CONFIG)
    flow = yaml.safe_dump(yaml.safe_load(CONFIG), default_flow_style=True)
    (folder / "flow.yaml").write_text(flow)


def videos(folder: Path) -> None:
    """Eight frames each, in the codecs that OpenCV brings along."""
    fourcc: Any = vars(cv2)["VideoWriter_fourcc"]
    for name, codec in (("plain.avi", "MJPG"), ("plain.mp4", "mp4v"), ("xvid.avi", "XVID")):
        writer = cv2.VideoWriter(str(folder / name), fourcc(*codec), 8.0, (32, 24))
        for i in range(8):
            writer.write(np.asarray(photo(i))[..., ::-1].copy())
        writer.release()


def caches(folder: Path) -> None:
    """Nine photos in three classes, and their cache."""
    for i in range(9):
        place = folder / "photos" / CLASSES[i % 3]
        place.mkdir(parents=True, exist_ok=True)
        photo(i, 20 + i, 40 - i).save(place / f"{i}.png")
    names = sorted(p.relative_to(folder / "photos").as_posix() for p in folder.rglob("*.png"))
    PixelCache(folder / "cache", 16).load(folder / "photos", names)


def others(folder: Path) -> None:
    """Files that are no images, for splicing and as wrong kinds."""
    (folder / "text.txt").write_text("no image\n" * 9)
    (folder / "boxes.json").write_text(json.dumps({"images": [{"file": "a.png", "boxes": []}]}))
    with wave.open(str(folder / "sound.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(500))


def runs(folder: Path) -> None:
    """What a finished `fit` and a finished `score` leave behind."""
    (folder / "run.yaml").write_text(CONFIG)
    (folder / "photos").mkdir()
    for i in range(4):
        photo(i).save(folder / "photos" / f"{i}.png")
    torch.save(checkpoint(vit(), (16, 16)), folder / "vit.ckpt")
    boxes = [{"file": f"{i}.png", "label": i % 3, "boxes": [[4, 4, 28, 20]]} for i in range(4)]
    (folder / "photos" / "boxes.json").write_text(json.dumps({"images": boxes}))
    commands = [
        ["fit", "--config", folder / "run.yaml", "--trainer.default_root_dir", folder],
        ["score", folder / "vit.ckpt", folder / "photos", *SCORE, "-o", folder / "scored"],
        [
            "explain",
            folder / "vit.ckpt",
            folder / "photos",
            "--shard",
            "1/2",
            "-o",
            folder / "half",
        ],
    ]
    with redirect_stdout(StringIO()):
        for words in commands:
            assert main(list(map(str, words))) == 0, words


KINDS: dict[str, Callable[[Path], None]] = {
    "images": images,
    "models": models,
    "configs": configs,
    "videos": videos,
    "caches": caches,
    "others": others,
    "runs": runs,
}


def make(folder: Path) -> Path:
    """Write every kind into a folder of its own below `folder`."""
    for name, write in KINDS.items():
        (folder / name).mkdir(parents=True)
        write(folder / name)
    return folder
