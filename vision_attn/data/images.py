"""Image files: finding them, and reading any kind of them as upright 8-bit RGB."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vision_attn.compat.pillow_private import libtiff_errors

__all__ = [
    "SUFFIXES",
    "ImageError",
    "check_pixels",
    "decode_image",
    "find_images",
    "images_below",
    "max_pixels",
    "open_encoded",
    "open_image",
    "read_image",
    "regular_file",
    "to_rgb",
]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MOST_PIXELS = 100_000_000
BOUND = "VISION_ATTN_MAX_PIXELS"
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_PILLOW = Lock()
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class ImageError(ValueError):
    """An image file that cannot be used; the message is one line and names the file.

    Examples:
        >>> from vision_attn.data import ImageError, read_image
        >>> try:
        ...     read_image("nothere.png")
        ... except ImageError as error:
        ...     print(error)
        nothere.png: no such file: check the path
    """


def max_pixels() -> int:
    """The most pixels an image may have: VISION_ATTN_MAX_PIXELS, or 100 million.

    A few kilobytes can hold an image that takes minutes and gigabytes to decode. The bound is
    checked against the size in the file's header. Raises ValueError where the variable holds no
    whole number above 0.
    """
    text = os.environ.get(BOUND, str(MOST_PIXELS))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{BOUND}: expected a whole number above 0, got {text!r}")
    return int(text)


def check_pixels(path: str | Path, width: int, height: int) -> None:
    """Raise ImageError for an image, or the frames of a video, of more than `max_pixels`."""
    if width * height > (most := max_pixels()):
        raise ImageError(
            f"{path}: {width} x {height} pixels are more than the {most:,} allowed: "
            f"scale it down, or allow more (--max-pixels, {BOUND})"
        )


@contextmanager
def open_image(path: str | PathLike[str]) -> Iterator[Image.Image]:
    """Open an image file in a `with` block, not yet decoded.

    Only the formats of `FORMATS` are tried, whatever the name: others, such as PostScript, can
    start programs. Raises ImageError where the file is missing, is a pipe or a device, is no
    image, is damaged, or has more than `max_pixels`.
    """
    path = Path(path)
    with (
        _image_errors(path, lambda: _kind_of_file(path)),
        regular_file(path) as file,
        _opened(file) as image,
    ):
        check_pixels(path, *image.size)
        yield image


@contextmanager
def open_encoded(data: bytes, name: str) -> Iterator[Image.Image]:
    """Open the bytes of an image file as `open_image` does; name: what errors call them."""
    with _image_errors(name, lambda: _kind(data[:512])), _opened(BytesIO(data)) as image:
        check_pixels(name, *image.size)
        yield image


@contextmanager
def _image_errors(name: str | Path, kind: Callable[[], str]) -> Iterator[None]:
    """Turn whatever goes wrong with an image into an ImageError; kind: what it is, if no image."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(
            f"{name}: expected an image ({', '.join(FORMATS)}), got {kind()}: "
            "leave it out or convert it"
        ) from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ImageError(
            f"{name}: the image is cut short or damaged ({reason}): replace the file"
        ) from error


def read_image(path: str | PathLike[str], shorter_side: int | None = None) -> Image.Image:
    """Read an image as RGB, 8 bits a channel, turned upright as its EXIF orientation says.

    Transparent parts show white. 16-bit grey keeps its upper 8 bits. Of an animation, the first
    frame. shorter_side: pixels that are enough; a JPEG with more than twice as many is decoded at
    1/2, 1/4 or 1/8 of its size, several times faster. Raises ImageError as `open_image` does.
    """
    with open_image(path) as image:
        return _upright(image, shorter_side)


def decode_image(data: bytes, name: str, shorter_side: int | None = None) -> Image.Image:
    """Read the bytes of an image file as `read_image` does; name: what errors call them."""
    with open_encoded(data, name) as image:
        return _upright(image, shorter_side)


def _upright(image: Image.Image, shorter_side: int | None) -> Image.Image:
    if shorter_side is not None:
        scale = 2 * shorter_side / min(image.size)
        if scale < 1:
            width, height = (ceil(scale * side) for side in image.size)
            image.draft(None, (width, height))  # JPEG alone; others stay as they are
    _load(image)
    return to_rgb(image)


@contextmanager
def regular_file(path: Path, buffering: int = -1) -> Iterator[BinaryIO]:
    """Open a file for reading; `buffering` as for `open`.

    Raises ImageError where it is missing or may not be read, and for a folder, a pipe, a socket or
    a device, which might block.
    """
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:
            raise ImageError(f"{path}: expected a file, got {KINDS.get(kind, 'something else')}")
        file = open(path, "rb", buffering, opener=_without_waiting)  # noqa: SIM115
    except FileNotFoundError:
        raise ImageError(f"{path}: no such file: check the path") from None
    except PermissionError:
        raise ImageError(f"{path}: may not be read: check the file's permissions") from None
    with file:
        yield file


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; one that has become a pipe meanwhile, without waiting for its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _opened(file: BinaryIO | BytesIO) -> Image.Image:
    """Pillow's image of the file. Its own bound on pixels, a warning first, makes way for ours."""
    with _PILLOW:
        theirs, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = theirs


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
    """Make RGB of any Pillow image, turned upright as its EXIF orientation says.

    Transparent parts are white, 16-bit grey keeps its upper 8 bits.
    """
    image.load()  # Pillow turns a TIFF itself while it decodes
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
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
    """Find the files among `paths`, and the images below the folders among them, in order.

    A file is taken whatever its name ends in; in a folder the suffix decides. Raises ImageError
    for a path that is not there and for a folder without images.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        try:
            folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            raise ImageError(f"{path}: {_absent(error)}") from None
        if folder:
            inside = images_below(path)
            if not inside:
                raise ImageError(f"{path}: no image in this folder (looked for {_suffixes()})")
            found += inside
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def images_below(folder: Path) -> list[Path]:
    """Find the image files below `folder`, at any depth, in order; hidden ones are left out."""
    found = []
    for place, inside, files in os.walk(folder):
        inside[:] = [name for name in inside if not name.startswith(".")]
        found += [
            Path(place, name)
            for name in files
            if os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")
        ]
    return sorted(found)


def _absent(error: OSError) -> str:
    """What is wrong with a path that has no status."""
    if isinstance(error, FileNotFoundError):
        return "no such file or folder: check the path"
    return f"cannot be reached ({error.strerror}): check the path"


def _kind_of_file(path: Path) -> str:
    with regular_file(path) as file:
        return _kind(file.read(512))


def _kind(head: bytes) -> str:
    if not head:
        return "an empty file"
    return "other data" if b"\0" in head else "text"


def _suffixes() -> str:
    return " ".join(sorted(SUFFIXES))
