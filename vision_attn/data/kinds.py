"""Which files are images: by a known suffix, else by how they begin.

A camera, a browser or an export names files as it likes: photo.jfif, photo.avif, 3f2a without any
suffix. What is passed over is counted, so that a line can name it.
"""

import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from PIL import Image

__all__ = [
    "ENCODED",
    "FORMATS",
    "RAW",
    "SUFFIXES",
    "holds_results",
    "image_format",
    "is_hidden",
    "kind_of_file",
    "more_formats",
    "opening_flags",
    "say_passed_over",
]

log = logging.getLogger(__name__)

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # of every Pillow
MORE = ("AVIF", "JPEG2000", "HEIF")  # where Pillow, or another package, has them
SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm"}
    | {".tif", ".tiff", ".webp"}
)
RAW = frozenset(  # of cameras: TIFF by their first bytes, whose first picture is a small preview
    {".3fr", ".arw", ".cr2", ".dng", ".erf", ".iiq", ".kdc", ".mrw", ".nef", ".nrw", ".orf"}
    | {".pef", ".rw2", ".sr2", ".srf", ".srw"}
)
SYSTEM = frozenset(  # folders that a system or a disk leaves among others
    {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)
ENCODED = SUFFIXES | {".avif", ".heic", ".heif", ".j2k", ".jp2"}  # in archives, by name alone
BESIDE = frozenset(  # what lies beside images and is none
    {".cfg", ".csv", ".db", ".html", ".ini", ".json", ".jsonl", ".log", ".md", ".npy", ".npz"}
    | {".parquet", ".toml", ".tsv", ".txt", ".xml", ".yaml", ".yml"}
)
RESULTS = (  # what lies in a folder of results, whose pictures are no photos
    "results.jsonl",
    "scores.json",
    os.path.join("store", "run.json.gz"),
)
HEAD = 32  # bytes that tell what a file is
HEIF_READER = "pillow_heif"
BEGINNINGS = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "WEBP": rb"RIFF....WEBP",
    "GIF": rb"GIF8[79]a",
    "BMP": rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0",  # the length of its second header
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "PPM": rb"P[1-6]\s+[#\d]",
    "AVIF": rb"....ftypavi[fs]",
    "HEIF": rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)",
    "JPEG2000": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
}
BEGINS = {kind: re.compile(start, re.DOTALL) for kind, start in BEGINNINGS.items()}


def image_format(head: bytes) -> str | None:
    """Name the format of an image file by its first bytes; None for anything else.

    Examples:
        >>> from vision_attn.data.kinds import image_format
        >>> image_format(b"GIF89a..."), image_format(b"GIF is a format")
        ('GIF', None)
    """
    return next((kind for kind, start in BEGINS.items() if start.match(head)), None)


def more_formats(head: bytes) -> tuple[str, ...]:
    """Name the format of a file's first bytes if it is one of MORE that can be read here."""
    kind = image_format(head)
    if kind == "HEIF" and find_spec(HEIF_READER) is not None:
        import pillow_heif

        pillow_heif.register_heif_opener()
    if kind not in MORE:
        return ()
    Image.init()
    return (kind,) if kind in Image.OPEN else ()


def readable(kind: str | None) -> bool:
    """Whether images of that format can be read here."""
    if kind == "HEIF":
        return find_spec(HEIF_READER) is not None
    if kind in MORE:
        Image.init()
        return kind in Image.OPEN
    return kind is not None


def kind_of_file(path: str, name: str) -> tuple[bool, str]:
    """Decide by its name, or else its first bytes, whether a file is an image.

    Args:
        path: The file.
        name: The last part of the path.

    Returns:
        Whether it is an image that can be read; and, where it is passed over and a line should
        say so, what it is counted as: its suffix. Hidden files and what usually lies beside
        images are passed over without a word.
    """
    if name.startswith("."):
        return False, ""
    suffix = os.path.splitext(name)[1].lower()
    if suffix in SUFFIXES:
        return True, ""
    if suffix in BESIDE:
        return False, ""
    if suffix in RAW:
        return False, suffix
    kind = image_format(_first_bytes(path))
    if readable(kind):
        return True, ""
    return False, f"{kind} ({suffix or 'no suffix'})" if kind in MORE else suffix or "no suffix"


def is_hidden(name: str) -> bool:
    """Whether a folder of that name is hidden, or one that a system leaves among others.

    Examples:
        >>> from vision_attn.data.kinds import is_hidden
        >>> [is_hidden(name) for name in (".ipynb_checkpoints", "__MACOSX", "cat")]
        [True, True, False]
    """
    return name.startswith(".") or name.casefold() in SYSTEM


def holds_results(folder: str) -> bool:
    """Whether a folder is one that results were written to, whose pictures are no photos."""
    return any(os.path.exists(os.path.join(folder, name)) for name in RESULTS)


def say_passed_over(where: object, counts: Mapping[str, int], results: Sequence[str] = ()) -> None:
    """Log a line that says which files of a folder are passed over, with a count a suffix.

    results: folders of results, which are passed over too.
    """
    if results:
        names = ", ".join(results[:3]) + (", ..." if len(results) > 3 else "")
        log.warning("%s: pictures of earlier results are passed over: %s", where, names)
    if not counts:
        return
    counted = [f"{count} {suffix}" for suffix, count in Counter(counts).most_common(8)]
    more = f" and {len(counts) - 8} more kinds" if len(counts) > 8 else ""
    total = sum(counts.values())
    heif = any(suffix.startswith("HEIF") for suffix in counts)
    advice = ": pip install pillow-heif reads HEIC and HEIF" if heif else ""
    log.warning(
        "%s: %d %s passed over, which cannot be read as images: %s%s%s",
        *(where, total, "file is" if total == 1 else "files are", ", ".join(counted), more, advice),
    )


def opening_flags() -> int:
    """The flags of this system that open a pipe without waiting, and read line ends as they are."""
    return getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def _first_bytes(path: str) -> bytes:
    """The first bytes of a regular file; none of a pipe, which might block, or of what is shut."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        number = os.open(path, os.O_RDONLY | opening_flags())
    except OSError:
        return b""
    try:
        return os.read(number, HEAD)
    except OSError:
        return b""
    finally:
        os.close(number)
