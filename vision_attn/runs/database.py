"""SQLite files of ours, opened as data: whatever is in one, it runs nothing.

A file is read with its schema compared, its pages checked, no extensions, no trust in its schema
and within limits. It is written by one process, with a rollback journal, as network folders need.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vision_attn.files import naming

__all__ = ["DamagedError", "StoppedError", "connect", "database_errors", "open_limited"]

APPLICATION = 0x76617472
FORMAT = 1
LARGEST = 1 << 26  # bytes of a value
WAIT = 10.0  # seconds for another process that reads or commits
MAGIC = b"SQLite format 3\0"
OTHER_FILE = bytes.fromhex("d9d505f920a163d7")  # ends a journal that names one more file
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LARGEST,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
REASONS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}


class DamagedError(ValueError):
    """A file of the store that is damaged, or is none; the message is one line and names it.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.runs.database import DamagedError, connect
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.sqlite")
        ...     _ = path.write_bytes(b"text")
        ...     try:
        ...         connect(path, [], write=False)
        ...     except DamagedError as error:
        ...         str(error).endswith("a.sqlite: damaged (not a file of the store)")
        True
    """


class StoppedError(DamagedError):
    """A file whose process ended within a commit; the next one that writes it repairs it.

    Examples:
        >>> from vision_attn.runs.database import DamagedError, StoppedError
        >>> issubclass(StoppedError, DamagedError)
        True
    """


def connect(path: Path, schema: Sequence[str], *, write: bool) -> sqlite3.Connection:
    """Open a file of this schema; made if it is to be written and is not there or is empty.

    Raises DamagedError for a damaged file, or one of another kind, ValueError for one of a later
    version or in use, OSError where it cannot be opened.
    """
    journal = Path(f"{path}-journal")
    with database_errors(path):
        if write:
            _roll_back(path, journal)
        new = write and not (path.exists() and path.stat().st_size)
        if not new:
            _check_header(path)
        connection = open_limited(path, write)
        try:
            if new:
                connection.execute(f"PRAGMA application_id={APPLICATION}")
                connection.execute(f"PRAGMA user_version={FORMAT}")
                connection.execute("BEGIN IMMEDIATE")
                for statement in schema:
                    connection.execute(statement)
                connection.execute("COMMIT")
            else:
                _check(connection, path, schema)
        except BaseException:
            connection.close()
            if new:
                path.unlink(missing_ok=True)
                journal.unlink(missing_ok=True)
            raise
    return connection


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors of a `with` block into DamagedError, ValueError or OSError of `path`."""
    with naming(path):
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code == sqlite3.SQLITE_READONLY and Path(f"{path}-journal").exists():
                raise StoppedError(f"{path}: damaged (stopped while it was written)") from None
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise ValueError(
                    f"{path}: another process is writing it: wait for it, or name another folder"
                ) from None
            if code in REASONS:
                raise OSError(REASONS[code], os.strerror(REASONS[code])) from error
            raise DamagedError(f"{path}: damaged ({error})") from None
        except UnicodeDecodeError:  # of what SQLite says of a damaged schema
            raise DamagedError(f"{path}: damaged (its tables have no names)") from None


def open_limited(path: Path, write: bool) -> sqlite3.Connection:
    """Open a file within limits, and without trust in its schema."""
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
    connection = sqlite3.connect(uri, uri=True, timeout=WAIT, isolation_level=None)
    connection.text_factory = _text
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "temp_store=MEMORY", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")
    if not write:
        connection.execute("PRAGMA query_only=ON")
    return connection


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _roll_back(path: Path, journal: Path) -> None:
    """Undo what a stopped process had begun; a journal that names another file is not ours."""
    if not journal.exists():
        return
    with journal.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(OTHER_FILE)))
        foreign = file.read() == OTHER_FILE
    if foreign or not path.exists():
        journal.unlink()
        return
    connection = open_limited(path, write=True)
    with suppress(sqlite3.DatabaseError):
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    connection.close()


def _check_header(path: Path) -> None:
    """Look at the first bytes before SQLite does: no other journal mode, no later version."""
    with path.open("rb") as file:
        head = file.read(100)
    numbers = [int.from_bytes(head[start : start + 4], "big") for start in (60, 68)]
    if len(head) < 100 or head[:16] != MAGIC or head[18:20] != b"\1\1" or numbers[1] != APPLICATION:
        raise DamagedError(f"{path}: damaged (not a file of the store)")
    if numbers[0] != FORMAT:
        raise ValueError(
            f"{path}: format {numbers[0]}, expected {FORMAT}: it was written by another version of "
            "vision_attn: use that one, or name another folder"
        )


def _check(connection: sqlite3.Connection, path: Path, schema: Sequence[str]) -> None:
    kept = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema LIMIT 99")]
    if sorted(map(str, kept)) != sorted(schema):
        raise DamagedError(f"{path}: damaged (its tables are not those of the store)")
    (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise DamagedError(f"{path}: damaged ({' '.join(str(answer).split())})")
