"""Image files: finding them, and reading any kind of them as upright 8-bit RGB."""

import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from math import ceil
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vision_attn.arguments import checked
from vision_attn.compat.pillow_private import libtiff_errors
from vision_attn.data.faults import MOST_LETTERS, ImageError, reason, sample_errors
from vision_attn.data.kinds import (
    FORMATS,
    HEAD,
    MORE,
    RAW,
    SUFFIXES,
    holds_results,
    image_format,
    is_hidden,
    kind_of_file,
    more_formats,
    opening_flags,
    say_passed_over,
)
from vision_attn.data.ranges import (
    Stored,
    ValueRange,
    bytes_of,
    colours_of,
    curve,
    stored_as,
)
from vision_attn.errors import cut, quoted

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

log = logging.getLogger(__name__)

READ = "vision_attn"  # in the `info` of what was made 8-bit RGB here, so that it is so once
MOST_PIXELS = 100_000_000
MOST_DIGITS = 18
BOUND = "VISION_ATTN_MAX_PIXELS"
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_PILLOW = Lock()
# Formats of several frames or pages; what a phone's MPO holds beside its photo is no other photo.
SEVERAL = frozenset({"GIF", "PNG", "WEBP", "TIFF", "AVIF"})
TURNS = {  # by the orientation of EXIF
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def max_pixels() -> int:
    """The most pixels an image may have: VISION_ATTN_MAX_PIXELS, or 100 million.

    A few kilobytes can hold an image that takes minutes and gigabytes to decode. The bound is
    checked against the size in the file's header. Raises ValueError where the variable holds no
    whole number above 0.
    """
    text = os.environ.get(BOUND, str(MOST_PIXELS))
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) < 1:
        raise ValueError(f"{BOUND}: expected a whole number above 0, got {quoted(text)}")
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

    Only the formats of `FORMATS`, AVIF, JPEG 2000 and HEIF are tried, whatever the name: others,
    such as PostScript, can start programs. Raises ImageError where the file is missing, is a pipe
    or a device, is no image, is damaged, or has more than `max_pixels`.
    """
    path = Path(path)
    if path.suffix.lower() in RAW:
        raise ImageError(
            f"{path}: raw data of a camera, of which only a small preview could be read: convert "
            "it to JPEG, PNG or TIFF"
        )
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
    name = cut(str(name), MOST_LETTERS)
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(
            f"{name}: expected an image ({', '.join(FORMATS + MORE)}), got {kind()}: "
            "leave it out or convert it"
        ) from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes
        raise ImageError(
            f"{name}: the image is cut short or damaged ({reason(error)}): replace the file"
        ) from error


@checked(shorter_side=1)
def read_image(
    path: str | PathLike[str],
    shorter_side: int | None = None,
    value_range: ValueRange | None = None,
) -> Image.Image:
    """Read an image as RGB, 8 bits a channel, turned upright as its EXIF orientation says.

    Transparent parts show white. Of several frames or pages the first is read, and a warning says
    so. Nothing but the pixels is kept: no EXIF, no colour profile.

    Args:
        path: The file.
        shorter_side: Pixels that are enough; a JPEG with more than twice as many is decoded at 1/2,
            1/4 or 1/8 of its size, several times faster.
        value_range: The numbers that are black and white. None: by the file's tags; 8 bits and
            bool by their type; 16 bits whose maximum exceeds 16,383 by the upper 8; floats within
            0 to 1 as they are. Of other numbers the range has to be given.

    Returns:
        A PIL image in mode RGB.

    Raises:
        ImageError: As `open_image` does, and where the range of numbers is not certain.
    """
    with open_image(path) as image:
        return _upright(image, str(path), shorter_side, value_range)


def decode_image(
    data: bytes,
    name: str,
    shorter_side: int | None = None,
    value_range: ValueRange | None = None,
) -> Image.Image:
    """Read the bytes of an image file as `read_image` does; name: what errors call them."""
    with open_encoded(data, name) as image:
        return _upright(image, name, shorter_side, value_range)


def _upright(
    image: Image.Image, name: str, shorter_side: int | None, value_range: ValueRange | None
) -> Image.Image:
    if shorter_side is not None:
        scale = 2 * shorter_side / min(image.size)
        if scale < 1:
            width, height = (ceil(scale * side) for side in image.size)
            image.draft(None, (width, height))  # JPEG alone; others stay as they are
    stored = stored_as(image)
    _load(image)
    rgb = _rgb(image, stored, name, value_range)
    if _has_several(image):  # which may read on, so it is asked at last
        _say_first(name)
    return rgb


def _has_several(image: Image.Image) -> bool:
    """Whether a file has more frames or pages than one, as far as they can be read."""
    try:
        return image.format in SEVERAL and bool(getattr(image, "is_animated", False))
    except Exception:  # of a file that is damaged behind its first frame, whatever its type
        return False


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
    return os.open(path, flags | opening_flags())


def _opened(file: BinaryIO | BytesIO) -> Image.Image:
    """Pillow's image of the file. Its own bound on pixels, a warning first, makes way for ours."""
    with _PILLOW:
        theirs, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=FORMATS)
        except UnidentifiedImageError:
            file.seek(0)
            more = more_formats(file.read(HEAD))
            if not more:
                raise
            file.seek(0)
            return Image.open(file, formats=more)
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


def to_rgb(image: Image.Image, value_range: ValueRange | None = None) -> Image.Image:
    """Make RGB of any Pillow image as `read_image` does of a file; what that gave stays itself.

    Of several frames it is the one that the image is at.

    What was made of that in another mode is made RGB again.

    Raises ImageError, which names the image's file if it has one, where it cannot be decoded or
    the range of its numbers is not certain.
    """
    if READ in image.info and image.mode == "RGB":  # `convert` of Pillow keeps `info`
        return image
    name = str(getattr(image, "filename", "") or "image")
    with sample_errors(name):
        stored = stored_as(image)
        image.load()  # Pillow turns a TIFF itself while it decodes
        return _rgb(image, stored, name, value_range)


def _rgb(
    image: Image.Image, stored: Stored | None, name: str, value_range: ValueRange | None
) -> Image.Image:
    """Make 8-bit RGB of a decoded image, upright, with nothing but its pixels."""
    turn, picture, table = _turn(image, name), image, None
    if stored is not None or value_range is not None:
        with sample_errors(name):
            if stored is None:
                table = curve(value_range) * 3
            elif not stored.colours:
                picture = Image.fromarray(bytes_of(np.asarray(image), stored, value_range))
            elif (scaled := colours_of(np.asarray(image), stored, value_range)) is not None:
                picture, turn = Image.fromarray(scaled), TURNS.get(stored.orientation, turn)
    if turn is not None:
        picture = picture.transpose(turn)
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    rgb = picture.convert("RGB")  # a copy
    if table is not None:
        rgb = rgb.point(table)
    rgb.info = {READ: True}
    return rgb


def turn_of(path: str | Path) -> Image.Transpose | None:
    """Find how EXIF says to turn the image of a file upright; None for not at all."""
    with open_image(path) as image:
        return _turn(image, str(path))


def _turn(image: Image.Image, name: str) -> Image.Transpose | None:
    """How EXIF says to turn an image; None for not at all. What cannot be read turns nothing."""
    try:
        exif = image.getexif()
        if not exif and (header := image.info.get("exif")):
            Image.Exif().load(header)  # of a JPEG Pillow swallows what is wrong with it
        return TURNS.get(exif.get(ExifTags.Base.Orientation, 1))
    except Exception as error:  # of a damaged header, whatever its type
        _say_damaged(name, reason(error))
        return None


@lru_cache(4096)
def _say_first(name: str) -> None:
    """Say it once, however often the photo is read."""
    log.warning("%s: it has several frames or pages: the first is read", name)


@lru_cache(4096)
def _say_damaged(name: str, why: str) -> None:
    """Say it once, however often the photo is read."""
    log.warning("%s: its EXIF header is damaged (%s): shown as it is stored", name, why)


def find_images(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    """Find the files among `paths`, and the images below the folders among them, in order.

    A file is taken whatever it is; in a folder a known suffix decides, else how a file begins.

    Args:
        paths: Files and folders.

    Returns:
        The files, each once.

    Raises:
        ImageError: A path is not there, or a folder has no images.
    """
    images: list[Path] = []
    for path in map(Path, paths):
        try:
            folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            raise ImageError(f"{path}: {_absent(error)}") from None
        if folder:
            inside = images_below(path)
            if not inside:
                raise ImageError(f"{path}: no image in this folder (looked for {_suffixes()})")
            images += inside
        else:
            images.append(path)
    return list(dict.fromkeys(images))


def images_below(folder: Path, quiet: bool = False) -> list[Path]:
    """Find the image files below `folder`, at any depth, in order; hidden ones are left out.

    So are the pictures in folders of results. Unless quiet, a line is logged that counts the files
    that cannot be read as images.
    """
    images = []
    passed: Counter[str] = Counter()
    results = []
    for parent, inside, files in os.walk(folder):
        if parent != os.fspath(folder) and holds_results(parent):
            results.append(parent)
            inside[:] = []
            continue
        inside[:] = [name for name in inside if not is_hidden(name)]
        for name in files:
            is_image, kind = kind_of_file(os.path.join(parent, name), name)
            if is_image:
                images.append(Path(parent, name))
            elif kind:
                passed[kind] += 1
    if not quiet:
        say_passed_over(folder, passed, results)
    return sorted(images)


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
    if image_format(head) == "HEIF":
        return "HEIC (pip install pillow-heif reads it)"
    if (kind := image_format(head)) is not None:
        return f"{kind} of a kind that cannot be read here"
    return "other data" if b"\0" in head else "text"


def _suffixes() -> str:
    return " ".join(sorted(SUFFIXES))
