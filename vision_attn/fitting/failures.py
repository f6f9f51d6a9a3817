"""What Lightning and the classes of a config raise, as errors of one line for a person."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from vision_attn.models.errors import no_empty_layers

__all__ = ["made", "one_line"]


@contextmanager
def one_line() -> Iterator[None]:
    """Lightning's own complaints about a user's options, as ValueErrors."""
    try:
        yield
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise ValueError(
            f"not enough memory ({' '.join(str(error).split()) or 'MemoryError'}): make the "
            "network, its images or data.batch_size smaller"
        ) from error


@contextmanager
def made() -> Iterator[None]:
    """Whatever a class says of the options that it is made with, as ValueError."""
    try:
        with one_line(), no_empty_layers():
            yield
    except (ValueError, OSError):
        raise
    except Exception as error:  # of a library: a size below 0, a division by 0
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"the classes cannot be made with these options: {message}") from error
