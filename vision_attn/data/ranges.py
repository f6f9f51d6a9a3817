"""Which stored numbers are black and which are white: from any numbers of an image to 8 bits.

One rule, in this order: the range that is given; the file's own tags; the type's range for 8 bits
and bool; and for wider numbers only what is certain, floats within 0 to 1 and unsigned 16-bit
numbers of which one exceeds 16,383. Of all else the range is refused, with what was found.

Axes: h height, w width, c colours.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image

from vision_attn.errors import quoted

__all__ = [
    "Stored",
    "ValueRange",
    "bytes_of",
    "checked_value_range",
    "colours_of",
    "curve",
    "stored_as",
]

ValueRange = tuple[float | int, float | int]

FULL_SCALE_ABOVE = 16_383  # of 16 bits: 14-bit numbers, the widest that cameras leave unscaled, end
BITS, PHOTOMETRIC, DESCRIPTION, FORMAT, ORIENTATION = 258, 262, 270, 339, 274  # tags of TIFF
LOWEST, HIGHEST = (340, 280), (341, 281)  # SMinSampleValue, MinSampleValue, and of the maximum
KINDS = {1: "unsigned", 2: "signed", 3: "float"}  # of SampleFormat
COLOURS = "RGB", "RGBA", "RGBX", "LA"  # modes whose numbers grow with the light
CODESTREAM = b"\xff\x4f\xff\x51"  # of JPEG 2000; 42 bytes on stands the precision
FULL_16: ValueRange = (0, 65_535)


@dataclass(frozen=True)
class Stored:
    """How an image's numbers are stored, where they are more than plain 8 bits.

    Attributes:
        kind: Unsigned, signed or float.
        own: The range that the file's header says.
        shown: Whether that range is one to show, which numbers may exceed; else they would
            contradict it.
        inverted: Whether 0 is white.
        colours: Whether they are several a pixel, and Pillow keeps the upper 8 of their 16 bits;
            `encoded` is then the whole file.
        orientation: Of a TIFF, which Pillow turns while it decodes.

    Examples:
        >>> from vision_attn.data.ranges import Stored
        >>> Stored("unsigned", 16).own is None
        True
    """

    kind: str
    bits: int
    own: ValueRange | None = None
    shown: bool = False
    inverted: bool = False
    colours: bool = False
    encoded: bytes = b""
    orientation: int = 1


def checked_value_range(value_range: Any) -> ValueRange | None:
    """Check the numbers of black and white, and return them as two floats; None stays None.

    Raises ValueError for anything but two finite numbers, the smaller first.
    """
    if value_range is None:
        return None
    try:
        low, high = (float(number) for number in value_range)
    except (TypeError, ValueError):
        low = high = 0.0
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ValueError(
            "value_range: expected the numbers of black and of white, the smaller first, such as "
            f"(0, 4095), got {quoted(value_range)}"
        )
    return low, high


def stored_as(image: Image.Image) -> Stored | None:
    """Find how the numbers of an image are stored that is not decoded yet; None: plain 8 bits."""
    wide = image.mode.startswith("I") or image.mode == "F"
    if image.format == "TIFF":
        return _of_tiff(image, wide)
    if image.format == "JPEG2000":
        bits = _precision(image)
        own = FULL_16 if bits < 16 else None  # Pillow scales them up
        if wide:
            return Stored("unsigned", 16, own)
        return Stored("unsigned", 16, colours=True, encoded=_whole(image)) if bits == 16 else None
    if wide and image.format == "PPM":
        return Stored("unsigned", 16, FULL_16)  # Pillow scales them to it, from their header
    if image.mode.startswith("I;16") or (wide and image.format == "PNG"):
        return Stored("unsigned", 16)
    if wide:
        return Stored("float" if image.mode == "F" else "signed", 32)
    if image.format == "PNG" and _colours_of_16_bits(image):
        return Stored("unsigned", 16, colours=True, encoded=_whole(image))
    return None


def _of_tiff(image: Any, wide: bool) -> Stored | None:
    tags = image.tag_v2
    colours = not wide and _colours_of_16_bits(image)
    kind = KINDS.get(_first(tags.get(FORMAT), 1), "unsigned")
    bits = int(_first(tags.get(BITS), 1))
    if not wide and not colours and not (kind == "signed" and bits == 8):
        return None
    own, shown = _own_range(tags, kind, bits)
    return Stored(
        kind,
        bits,
        own,
        shown,
        inverted=wide and tags.get(PHOTOMETRIC) == 0,  # of 8 bits Pillow inverts them
        colours=colours,
        encoded=_whole(image) if colours else b"",
        orientation=int(_first(tags.get(ORIENTATION), 1)) if colours else 1,
    )


def _own_range(tags: Any, kind: str, bits: int) -> tuple[ValueRange | None, bool]:
    """The range that a TIFF's tags say, and whether it is one to show.

    A maximum that is all that the type can hold is what a tag says where nobody set it.
    """
    if kind == "unsigned" and bits not in (8, 16, 32, 64):
        return (0, 2**bits - 1), False
    text = str(tags.get(DESCRIPTION, ""))
    shown = re.search(r"^min=(\S+)\s+max=(\S+)", text, re.MULTILINE)
    if text.startswith("ImageJ=") and shown:
        return _ordered(shown[1], shown[2]), True
    significant = re.search(r'\bSignificantBits="(\d+)"', text)
    if significant and kind == "unsigned" and 0 < int(significant[1]) < bits:
        return (0, 2 ** int(significant[1]) - 1), False
    high = next((max(_numbers(tags[tag])) for tag in HIGHEST if tags.get(tag)), None)
    low = next((min(_numbers(tags[tag])) for tag in LOWEST if tags.get(tag) is not None), 0.0)
    most = 2**bits - 1 if kind == "unsigned" else 2 ** (bits - 1) - 1
    if high is None or (kind != "float" and high >= most):
        return None, False
    return _ordered(low, high), False


def _ordered(low: Any, high: Any) -> ValueRange | None:
    try:
        return checked_value_range((low, high))
    except ValueError:
        return None


def _numbers(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)


def _first(value: Any, usual: int) -> Any:
    return usual if value is None else _numbers(value)[0]


def _colours_of_16_bits(image: Any) -> bool:
    return image.mode in COLOURS and any(
        ";16" in str(tile[3]) for tile in getattr(image, "tile", ())
    )


def _whole(image: Any) -> bytes:
    """All bytes of an image's file, whose place stays where it is."""
    if image.fp is None:
        return b""
    position = image.fp.tell()
    image.fp.seek(0)
    content: bytes = image.fp.read()
    image.fp.seek(position)
    return content


def _precision(image: Any) -> int:
    """Bits of the numbers of a JPEG 2000; 8 where its header does not say."""
    head = _whole(image)[:65_536]
    start = head.find(CODESTREAM)
    if start < 0 or len(head) <= start + 42:
        return 8
    return (head[start + 42] & 0x7F) + 1


def bytes_of(
    values: ndarray, stored: Stored, value_range: ValueRange | None
) -> UInt8[ndarray, "*shape"]:
    """Scale numbers to 8 bits, black to white. Raises ValueError where the range is not certain."""
    if stored.kind == "unsigned" and stored.bits == 32:
        values = values.view(np.uint32)  # Pillow has no mode for them
    if stored.kind == "signed" and stored.bits == 8:
        values = values.view(np.int8)
    span = value_range or _uncontradicted(values, stored)
    upper = span == FULL_16 or (span is None and values.max() > FULL_SCALE_ABOVE)
    if stored.kind == "unsigned" and stored.bits == 16 and upper:
        scaled = (values >> 8).clip(0, 255).astype(np.uint8)
    elif span is not None:
        scaled = _scaled(values, span)
    else:
        low, high = _extremes(values)
        if not (stored.kind == "float" and low >= 0 and high <= 1):
            raise ValueError(_question(low, high, stored))
        scaled = _scaled(values, (0, 1))
    return 255 - scaled if stored.inverted else scaled


def _uncontradicted(values: ndarray, stored: Stored) -> ValueRange | None:
    """The file's own range, unless numbers lie beyond what it says that there are."""
    if stored.own is None or stored.shown:
        return stored.own
    low, high = _extremes(values)
    return stored.own if stored.own[0] <= low and high <= stored.own[1] else None


def _scaled(values: ndarray, span: ValueRange) -> UInt8[ndarray, "*shape"]:
    if values.dtype.kind in "iu" and values.dtype.itemsize <= 2:  # by a table
        about = np.iinfo(values.dtype)
        table = _scaled(np.arange(about.min, about.max + 1, dtype=np.int64), span)
        return table[values.astype(np.int64) - about.min]
    low, high = span
    numbers = np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low)
    numbers -= low
    numbers /= high - low
    numbers *= 255
    return numbers.round(out=numbers).clip(0, 255, out=numbers).astype(np.uint8)


def _extremes(values: ndarray) -> ValueRange:
    """The smallest and the largest number that is finite. Raises ValueError where none is."""
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
        if not values.size:
            raise ValueError("no number of it is finite: replace the file")
    return float(values.min()), float(values.max())


def _question(low: float, high: float, stored: Stored) -> str:
    """Say which numbers there are, and what to give."""
    words = {"unsigned": "", "signed": "signed ", "float": "float "}[stored.kind]
    if low < 0 or stored.kind == "float":
        tops = [top for top in (1, 255, 4095, 65_535) if low >= 0 and high <= top]
        usual = (0.0, float(tops[0])) if tops else (low, high)
    else:
        usual = 0.0, float(max(255, 2 ** int(high).bit_length() - 1))
    black, white = (f"{number:.10g}" for number in usual)
    return (
        f"its {words}{stored.bits}-bit numbers run from {low:.10g} to {high:.10g}, and which are "
        f"black and white is not certain: give both, such as --value-range {black} {white} "
        f"(value_range=({black}, {white}) of Preprocess or of a data source)"
    )


def colours_of(
    shown: UInt8[ndarray, "h w c"], stored: Stored, value_range: ValueRange | None
) -> UInt8[ndarray, "h w c"] | None:
    """Scale colours of 16 bits to 8, each number as `bytes_of` does; alpha is kept.

    shown: their upper 8 bits, as Pillow decodes them, with alpha last if there are 2 or 4.
    Returns None where these are right as they are. Raises ValueError where the range is not
    certain, or the numbers cannot be read in full.
    """
    opaque = shown if shown.shape[2] in (1, 3) else shown[..., :-1]
    if value_range is None and stored.own is None and opaque.max() > FULL_SCALE_ABOVE >> 8:
        return None
    import cv2  # takes a fifth of a second, and few photos need it

    whole: Any = cv2.imdecode(np.frombuffer(stored.encoded, np.uint8), cv2.IMREAD_UNCHANGED)
    if whole is None or whole.dtype != np.uint16 or whole.ndim != 3:
        low, high = int(opaque.min()) << 8, (int(opaque.max()) << 8) + 255
        raise ValueError(
            f"its 16-bit colours, of {low} to {high}, cannot be read in full: convert it to 8 bits"
        )
    colours = whole[..., :3][..., ::-1]
    scaled = bytes_of(colours, Stored("unsigned", 16, stored.own, stored.shown), value_range)
    if whole.shape[2] == 3:
        return scaled
    return np.concatenate([scaled, (whole[..., 3:] >> 8).astype(np.uint8)], axis=2)


def curve(value_range: ValueRange | None) -> list[int]:
    """Give each of the 256 numbers of 8 bits its own, black to white; None: as they are.

    Raises ValueError for a range of numbers that 8 bits do not hold.
    """
    low, high = value_range or (0, 255)
    if low < 0 or high > 255:
        raise ValueError(
            f"its 8-bit numbers run from 0 to 255, the value range from {low:.10g} to "
            f"{high:.10g}: read it without a value range, or give one of 8 bits"
        )
    table: list[int] = _scaled(np.arange(256), (low, high)).tolist()
    return table
