"""libtiff as Pillow carries it: what it finds wrong in a file goes to stderr and names no file.

Pillow has no setting for that; `PIL._imaging` links libtiff, whose handler is set through it.
Tried with Pillow 13.0. Where the handler cannot be set, stderr itself is caught meanwhile, one
image at a time.
"""

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from PIL import _imaging

__all__ = ["libtiff_errors"]

Handler = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
Errors = threading.local()  # .found: what the decoding of this thread has met
STDERR = threading.Lock()


@contextmanager
def libtiff_errors() -> Iterator[list[str]]:
    """Collect what libtiff finds wrong while this thread decodes; nothing of it is printed."""
    found: list[str] = []
    if not handler_is_set():
        with caught_stderr(found):
            yield found
        return
    Errors.found = found
    try:
        yield found
    finally:
        Errors.found = []


@Handler  # type: ignore[untyped-decorator]  # ctypes has no type for what it makes
def keep(module: bytes | None, text: bytes | None, _: int | None) -> None:
    """Keep an error, without the values that the C format after its first % would print."""
    words = (text or b"").partition(b"%")[0] or module or b"unknown error"
    if hasattr(Errors, "found"):
        Errors.found.append(words.decode(errors="replace").strip())


@cache
def handler_is_set() -> bool:
    """Set libtiff's handler for the whole process; return whether that could be done."""
    try:
        set_handler = ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler
    except (AttributeError, OSError):
        return False
    set_handler.argtypes, set_handler.restype = [Handler], ctypes.c_void_p
    set_handler(keep)
    return True


@contextmanager
def caught_stderr(found: list[str]) -> Iterator[None]:
    """Add the lines that anything prints to file descriptor 2 to `found` instead."""
    with STDERR, tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            found += file.read().decode(errors="replace").splitlines()
