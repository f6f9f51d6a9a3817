"""What C libraries print to stderr: OpenCV's libjpeg warns of damaged photos there, without a name.

OpenCV has no setting for that. Pillow gives the same pixels of such photos, and no warning.
Tried with OpenCV 5.0.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vision_attn.compat.process_wide import ProcessWide

__all__ = ["drop_native_stderr", "native_stderr_dropped"]


def drop_native_stderr() -> None:
    """Drop what C libraries print from now on, in a process that only decodes."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        own = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
    sys.stderr = os.fdopen(own, "w", buffering=1, errors="backslashreplace")


@contextmanager
def _dropped() -> Iterator[None]:
    before = sys.stderr
    try:
        fits = before.fileno() == 2
    except (AttributeError, OSError, ValueError):  # closed, or somebody's own stream
        fits = False
    if not fits:
        yield
        return
    before.flush()
    drop_native_stderr()
    own = sys.stderr
    try:
        yield
    finally:
        own.flush()
        os.dup2(own.fileno(), 2)
        sys.stderr = before
        own.close()


DROPPED = ProcessWide(_dropped)


@contextmanager
def native_stderr_dropped() -> Iterator[None]:
    """Drop what C libraries print while this is open; what Python prints still appears."""
    with DROPPED.held():
        yield
