"""Whole files or none: write beside the place, then rename.

A full disk, an error or Ctrl-C leaves what was there before, and nothing half written.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["append_text", "claimed", "kept_together", "naming", "replacing", "write_text"]

LEFT = re.compile(r"\..*\.[0-9a-f]{8}\.part(\..*)?")  # names of files that a kill left behind
ADVICE = {
    errno.ENOSPC: "free space on that disk, or write to another",
    errno.EDQUOT: "free space in your quota, or write to another disk",
    errno.EROFS: "write to another disk",
}


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """Give a `with` block an empty file to write to, which becomes `path` when the block ends.

    It lies in the same folder and has the same suffix, and gets the mode that the umask allows,
    whatever wrote it. If the block fails or is interrupted it is removed, and `path` stays as it
    was. Through a symbolic link the file that it leads to is replaced; a device is written to.

    Raises OSError, one line that names `path`, for an OSError of the block that names no other
    file.
    """
    target = Path(os.path.realpath(path))
    device = target.exists() and not target.is_file()  # or a folder, which says so
    name = f".{target.stem[:32]}.{secrets.token_hex(4)}.part{target.suffix[-16:]}"
    written = target if device else target.with_name(name)
    try:
        if device:
            yield written
        else:
            yield from _renamed(written, target)
    except OSError as error:
        if error.filename is None or os.fspath(error.filename) == str(written):
            raise _named(error, path) from error
        raise  # about another file


def write_text(path: str | PathLike[str], text: str) -> None:
    """Write text as UTF-8 by `replacing`; what UTF-8 has no bytes for becomes a question mark.

    Line ends stay as they are, on Windows too.
    """
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8", errors="replace", newline="")


def append_text(path: str | PathLike[str], text: str) -> None:
    """Add text as UTF-8 to the end of a file: all of it, or, after an error, nothing.

    Raises OSError, one line that names `path`.
    """
    content = text.encode("utf-8", errors="replace")
    with naming(path), open(path, "ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
        except BaseException:
            os.truncate(path, end)
            raise


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """Name `path` in an OSError of a `with` block, in one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise _named(error, path) from error


@contextmanager
def kept_together() -> Iterator[list[Path]]:
    """Give a `with` block a list for the files that it writes; if it fails, they are removed."""
    files: list[Path] = []
    try:
        yield files
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise


@contextmanager
def claimed(folder: str | PathLike[str], shard: tuple[int, int] = (1, 1)) -> Iterator[None]:
    """Claim a folder for what a `with` block writes; only the shards of a job share one.

    shard: (number, of how many). The claim ends with the block, or with the process, however that
    ends. Raises ValueError, one line, where another job writes there, or the same shard.
    """
    number, shards = shard
    whole, own = Path(folder, ".lock"), Path(folder, f".lock.{number}-of-{shards}")
    with _locked(whole if shards == 1 else own, keep=False):
        others = sorted(Path(folder).glob(".lock.*")) if shards == 1 else [whole]
        for other in filter(Path.exists, others):
            with _locked(other, keep=True):
                pass  # left by a job that was killed
        if shards == 1:
            for path in Path(folder).rglob(".*.part*"):
                if LEFT.fullmatch(path.name):
                    path.unlink()
        yield


@contextmanager
def _locked(path: Path, keep: bool) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)  # others hold it for a moment to see whether it is free
    except Timeout:
        raise ValueError(
            f"{path.parent}: another job is writing there: wait for it, or name another folder"
        ) from None
    try:
        yield
    finally:
        if not keep:
            with suppress(OSError):  # Windows keeps files that are open
                path.unlink()
        lock.release()


def _renamed(beside: Path, target: Path) -> Iterator[Path]:
    """Give an empty file, which is then renamed to `target`, or removed after an error."""
    try:
        with beside.open("xb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        yield beside
        if stat.S_IMODE(beside.stat().st_mode) != mode:
            beside.chmod(mode)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _named(error: OSError, path: str | PathLike[str]) -> OSError:
    """An error of the same kind, in words about `path`."""
    reason = error.strerror or str(error) or type(error).__name__
    advice = ADVICE.get(error.errno or 0, "check the disk, the folder and its permissions")
    text = f"{os.fspath(path)}: cannot be written ({reason}): {advice}"
    named = type(OSError(error.errno or 0, ""))(text)
    named.errno = error.errno
    return named
