"""Plain JPEGs decoded at once by OpenCV: the pixels of Pillow in half the time.

Both use libjpeg-turbo, with its accurate transform and its smooth upsampling. Pillow opens a file
in several steps and hands out its pixels by a copy; OpenCV fills one array. What Pillow does more
(turning photos upright, other colours than YCbCr, several pictures in a file, finding that a file
was cut short) is left to it: a JPEG that could need it is not plain.

Axes: h height, w width.
"""

import os
from math import ceil
from pathlib import Path
from struct import error, unpack_from

import numpy as np
from jaxtyping import UInt8

from vision_attn.data.images import max_pixels, regular_file

__all__ = ["jpeg_bytes", "jpeg_size", "plain_jpeg"]

MAGIC, END = b"\xff\xd8\xff", b"\xff\xd9"
MOST_BYTES = 2**26  # of a file that is read at once
SCAN = 0xDA  # the picture itself begins
FRAMES = {0xC0, 0xC1, 0xC2}  # its size; coded by Huffman's trees, at once or progressively
# Tables (quantisation, Huffman's, restarts), and JFIF's, Photoshop's and Adobe's headers, comments.
IDLE = {0xDB, 0xC4, 0xDD, 0xE0, 0xED, 0xEE, 0xFE}
RGB = "IMREAD_COLOR_RGB"  # of OpenCV, whose 4.9 decodes to BGR alone
REDUCED = {
    1: "IMREAD_COLOR",
    2: "IMREAD_REDUCED_COLOR_2",
    4: "IMREAD_REDUCED_COLOR_4",
    8: "IMREAD_REDUCED_COLOR_8",
}


def jpeg_bytes(path: Path) -> bytes | None:
    """Read a whole file if it is a JPEG of at most 64 MiB; None for any other.

    Raises ImageError as `regular_file` does; what else is wrong, decoding will say.
    """
    try:
        with regular_file(path, buffering=0) as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES or file.read(len(MAGIC)) != MAGIC:
                return None
            file.seek(0)
            return file.read()
    except OSError:
        return None


def plain_jpeg(data: bytes, shorter_side: int | None = None) -> UInt8[np.ndarray, "h w 3"] | None:
    """Decode a plain JPEG to the pixels of `decode_image`.

    None for any other bytes, for more than `max_pixels`, and for what OpenCV finds damaged.
    shorter_side: pixels that are enough, as in `read_image`.
    """
    size = jpeg_size(data)
    if size is None or size[0] * size[1] > max_pixels():
        return None
    import cv2

    scale = 1 if shorter_side is None else _reduction(size, shorter_side)
    straight = getattr(cv2, RGB, None) if scale == 1 else None
    how = getattr(cv2, REDUCED[scale]) if straight is None else straight
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), how)
    except cv2.error:
        return None
    if image is None or straight is not None:
        return image
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Find width and height of a plain JPEG in its header; None for any other bytes.

    Plain: three channels of 8 bits, nothing beside them that could turn the picture upright or
    hold another one, and the end of a whole JPEG.
    """
    if not (data.startswith(MAGIC) and data.endswith(END)):
        return None
    offset, size = 2, None
    try:
        while True:
            start, marker, length = unpack_from(">BBH", data, offset)
            if start != 0xFF:
                return None
            if marker == SCAN:
                return size
            if marker in FRAMES:
                bits, height, width, channels = unpack_from(">BHHB", data, offset + 4)
                if bits != 8 or channels != 3:
                    return None
                size = width, height
            elif marker not in IDLE and not data.startswith(b"ICC_PROFILE", offset + 4):
                return None
            offset += 2 + length
    except error:
        return None


def _reduction(size: tuple[int, int], shorter_side: int) -> int:
    """By what a photo's sides may be divided so that more than twice the pixels stay; 1 to 8."""
    scale = 2 * shorter_side / min(size)
    if scale >= 1:
        return 1
    most = min(side // ceil(scale * side) for side in size)
    return max(factor for factor in REDUCED if factor <= most)
