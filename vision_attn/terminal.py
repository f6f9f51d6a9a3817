"""The terminal: lines that cannot steer it, in any encoding, on streams that may be closed."""

import io
import os
import re
import select
import sys
import warnings
from contextlib import suppress

__all__ = ["complain", "log_lines", "printable", "say"]

# Control characters, marks that turn the direction of writing, bytes that are no text.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

PACKAGE = os.path.join(os.path.dirname(__file__), "")
PYTHONS_FORMAT = warnings.formatwarning


def printable(text: str) -> str:
    r"""Escape what would steer a terminal, such as ESC in a file's name; keep \n and \t.

    Examples:
        >>> printable("a\x1b[31m.png")
        'a\\x1b[31m.png'
    """
    return UNPRINTABLE.sub(_escaped, text)


def say(text: str) -> None:
    """Print one line to stdout, whatever names it holds; a line break in it is escaped too."""
    print(_line(text))


def complain(text: str) -> None:
    """Print one line to stderr, `vision-attn: TEXT`; nothing where stderr cannot be written."""
    with suppress(OSError):
        print(f"vision-attn: {_line(text)}", file=sys.stderr, flush=True)


def _line(text: str) -> str:
    return re.sub(r"[\n\t]", _escaped, printable(text))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def log_lines() -> None:
    """Print what the package logs, and its warnings, on stderr: `vision-attn: error: TEXT`."""
    import logging

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complain(f"{record.levelname.lower()}: {record.getMessage()}")

    log = logging.getLogger("vision_attn")
    if not log.handlers:
        log.addHandler(Lines())
    warnings.formatwarning = _warning_line
    for name in ("storage", "split_names"):
        logging.getLogger(f"vision_attn.data.{name}").setLevel(logging.INFO)
    # It warns where there is no home for its cache.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


def _warning_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Write a warning of the package as a line, without the code that gave it."""
    if filename.startswith(PACKAGE):
        return f"vision-attn: warning: {_line(str(message))}\n"
    return PYTHONS_FORMAT(message, category, filename, lineno, line)


def open_streams() -> None:
    """Give the null device to stdin, stdout and stderr where they are closed.

    Otherwise the next file opened would take their number, and receive what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def take_any_text() -> None:
    """Escape what the encoding of stdout and stderr lacks, where it would raise an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_broken() -> bool:
    """Send what nobody reads any more to the null device; whether stdout or stderr was such."""
    broken = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
            if not _reader_is_gone(stream.fileno()):
                continue
        except io.UnsupportedOperation:  # no stream of the process
            continue
        except OSError:
            pass
        broken = True
        with suppress(OSError), open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
    return broken


def _reader_is_gone(number: int) -> bool:
    """Whether the other end of a pipe is closed; Windows says so only when it is written to."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(number, select.POLLERR)
    return bool(poll.poll(0))
