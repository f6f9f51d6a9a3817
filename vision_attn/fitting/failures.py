"""What Lightning and the classes of a config raise, as errors of one line for a person."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from traceback import clear_frames, walk_tb
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.multiprocessing.spawn import ProcessRaisedException

from vision_attn.models.errors import no_empty_layers

__all__ = ["instantiated", "made", "needs_package", "one_line"]

PLAIN_WORDS = (ValueError, OSError, MisconfigurationException)
_raised: ContextVar[list[ValueError]] = ContextVar("raised")  # by classes of a config


@contextmanager
def one_line() -> Iterator[None]:
    """Lightning's own complaints about a user's options, as ValueErrors."""
    try:
        yield
    except MisconfigurationException as error:
        raise ValueError(_words(error)) from error
    except ModuleNotFoundError as error:
        if not (needed := needs_package(error)):
            raise
        raise ValueError(f"the run {needed}") from error
    except ValueError as error:
        if not (size := re.search(r"more than 1 value per channel.*Size\((.*)\)", str(error))):
            raise
        raise ValueError(
            f"a batch norm has one value a channel to find their mean from (a batch of {size[1]}): "
            "make data.batch_size at least 2, or 2 for each part where ThreadParallel divides it"
        ) from error
    except ProcessRaisedException as error:  # with the whole traceback of that process
        raise RuntimeError(f"in another process: {str(error).strip().splitlines()[-1]}") from error
    except (MemoryError, RuntimeError, TypeError) as error:
        if isinstance(error, MemoryError) or "allocate" in str(error):
            raise ValueError(
                f"not enough memory ({_words(error) or 'MemoryError'}): make the "
                "network, its images or data.batch_size smaller"
            ) from error
        if not _of_option(error):
            raise
        raise ValueError(_words(error) or type(error).__name__) from error


def _of_option(error: Exception) -> bool:
    """Whether Lightning's callbacks, or an optimiser of torch, raised it: it is about an option."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith(("lightning.pytorch.callbacks.", "torch.optim."))


@contextmanager
def made() -> Iterator[None]:
    """Whatever a class says of the options that it is made with, as ValueError."""
    try:
        with one_line(), no_empty_layers():
            yield
    except (ValueError, OSError):
        raise
    except Exception as error:  # of a library: a size below 0, a division by 0
        message = _words(f"{type(error).__name__}: {error}")
        raise ValueError(f"the classes cannot be made with these options: {message}") from error


def instantiated(parser: ArgumentParser, config: Namespace) -> Namespace:
    """Make the classes of a config.

    Raises ValueError, one line, with what a class says of its options: jsonargparse's own error has
    that among all the types that it tried.
    """
    errors: list[ValueError] = []
    token = _raised.set(errors)
    try:
        with made():
            objects: Namespace = parser.instantiate(config, instantiators=[(_call, object, True)])
            return objects
    except ValueError as error:
        raise (errors or [error])[-1] from None
    finally:
        _raised.reset(token)


def _call(cls: type, *args: Any, **options: Any) -> Any:
    """Make an object of a class, and keep what it raises. A function, so that it can be pickled."""
    try:
        return cls(*args, **options)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and "allocate" in str(error):
            raise
        if isinstance(error, UserWarning) and "zero-element" in str(error):
            error = ValueError("a layer would have no weights: a size is 0")
        text = f"{cls.__name__} {needed}" if (needed := needs_package(error)) else _words(error)
        if not needed and not isinstance(error, PLAIN_WORDS):  # a size below 0, and such
            kind = type(error).__name__
            text = f"{cls.__name__} cannot be made with these options: {kind}: {text}"
        line = ValueError(text)
        _raised.get([]).append(line)
        raise line from error


def needs_package(error: Exception) -> str:
    """Say which package is missing and how to install it; nothing for another error."""
    advice = re.search(r"pip install (?:-U )?(?:'([^']+)'|([\w.-]*\w))", str(error))
    if advice:
        package = advice[1] or advice[2]
    elif isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.split(".")[0]
    else:
        return ""
    name = re.split(r"[^\w.-]", package)[0]
    let_go(error)
    return f"needs the package {name}: pip install " + (
        package if name == package else f"'{package}'"
    )


def let_go(error: Exception) -> None:
    """Let go of what an error holds: a profiler of Lightning, half made, raises as it goes."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        clear_frames(error.__traceback__)
    finally:
        sys.unraisablehook = hook


def _words(text: object) -> str:
    return " ".join(str(text).split())
