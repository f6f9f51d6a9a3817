"""Image files: finding them, and reading any kind of them as upright 8-bit RGB."""

import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vision_attn.compat.pillow_private import libtiff_errors

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class ImageError(ValueError):
    """An image file that cannot be used; the message is one line and names the file."""


def read_image(path: str | PathLike[str]) -> Image.Image:
    """The image in RGB, 8 bits a channel, turned upright as its EXIF orientation says.

    Transparent parts show white. 16-bit grey keeps its upper 8 bits. Of an animation, the first
    frame. Raises ImageError where the file is missing, is no image, or is damaged.
    """
    path = Path(path)
    try:
        with Image.open(path) as image:
            _load(image)
            return to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise ImageError(f"{path}: no such file: check the path") from None
    except IsADirectoryError:
        raise ImageError(f"{path}: expected an image file, got a folder") from None
    except PermissionError:
        raise ImageError(f"{path}: may not be read: check the file's permissions") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{path}: expected an image (JPEG, PNG, WebP ...), got {_kind(path)}: "
            "leave it out or convert it"
        ) from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ImageError(
            f"{path}: the image is cut short or damaged ({reason}): replace the file"
        ) from error


def _load(image: Image.Image) -> None:
    """Decode the pixels. Raises OSError with the first thing that libtiff finds wrong, if any."""
    if image.format != "TIFF":
        image.load()
        return
    try:
        with libtiff_errors() as errors:
            image.load()
    except OSError as error:
        raise OSError(errors[0] if errors else error) from error
    if errors:  # Pillow would go on with what was decoded
        raise OSError(errors[0])


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow image in RGB: transparent parts show white, 16-bit grey keeps its upper 8 bits."""
    if image.mode.startswith("I"):  # 16-bit grey, in one of Pillow's several modes for it
        grey = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(grey.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":  # float grey, by convention 0 to 1
        grey = np.nan_to_num(np.asarray(image)).clip(0, 1) * 255
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def find_images(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    """The files among `paths`, and every image below the folders among them, in sorted order.

    A file is taken whatever its name ends in; in a folder the suffix decides. Raises ImageError
    for a path that is not there and for a folder without images.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = images_below(path)
            if not inside:
                raise ImageError(f"{path}: no image in this folder (looked for {_suffixes()})")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise ImageError(f"{path}: no such file or folder: check the path")
    return list(dict.fromkeys(found))


def images_below(folder: Path) -> list[Path]:
    """Every image file below `folder`, at any depth, in sorted order; hidden ones are left out."""
    found = []
    for place, inside, files in os.walk(folder):
        inside[:] = [name for name in inside if not name.startswith(".")]
        found += [
            Path(place, name)
            for name in files
            if os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")
        ]
    return sorted(found)


def _kind(path: Path) -> str:
    head = path.read_bytes()[:512]
    if not head:
        return "an empty file"
    return "other data" if b"\0" in head else "text"


def _suffixes() -> str:
    return " ".join(sorted(SUFFIXES))
