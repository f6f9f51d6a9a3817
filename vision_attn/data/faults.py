"""What goes wrong with one sample: kept to that sample, whatever its type, and named in one line.

Decoders, preprocessing and networks raise nearly anything on damaged or odd input: SyntaxError,
struct.error, KeyError, MemoryError. All of it is of one sample; Ctrl-C is of none.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from vision_attn.errors import cut

__all__ = ["ImageError", "apart", "fault_line", "sample_errors"]

MOST_LETTERS = 300  # of a reason
PLAIN = ValueError, OSError, RuntimeError, SyntaxError  # whose text says enough without their type

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class ImageError(ValueError):
    """An image file that cannot be used; the message is one line and names the file.

    Examples:
        >>> from vision_attn.data import ImageError, read_image
        >>> try:
        ...     read_image("nothere.png")
        ... except ImageError as error:
        ...     print(error)
        nothere.png: no such file: check the path
    """


def reason(error: BaseException) -> str:
    """Say in one line what an error says, with its type where the text alone says too little."""
    text = next(iter(str(error).splitlines()), "").strip()[:MOST_LETTERS]
    if text and isinstance(error, PLAIN):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def fault_line(name: object, error: BaseException) -> str:
    """Name the sample and what is wrong with it, in one line.

    Examples:
        >>> from vision_attn.data.faults import fault_line
        >>> fault_line("a.png", KeyError(274)), fault_line("a.png", ValueError("a.png: damaged"))
        ('a.png: KeyError: 274', 'a.png: damaged')
    """
    text, named = reason(error), cut(str(name), MOST_LETTERS)
    return text if text.startswith((str(name), named)) else f"{named}: {text}"


@contextmanager
def sample_errors(name: object, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn whatever goes wrong with one sample in a `with` block into an ImageError that names it.

    Args:
        name: What the message calls the sample.
        passing: Errors that are no sample's fault and go on as they are. Ctrl-C always does.

    Raises:
        ImageError: For any other exception of the block, whatever its type.

    Examples:
        >>> from vision_attn.data.faults import ImageError, sample_errors
        >>> try:
        ...     with sample_errors("a.png"):
        ...         {}[274]
        ... except ImageError as error:
        ...     print(error)
        a.png: KeyError: 274
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (ImageError, *passing)):
            raise
        raise ImageError(fault_line(name, error)) from error


def apart(
    work: Callable[[Sequence[Item]], Outcome],
    items: Sequence[Item],
    name: Callable[[Item], object],
) -> tuple[list[tuple[Sequence[Item], Outcome]], list[str]]:
    """Work on items together; where that fails, on each alone, so that a failure costs one.

    Args:
        work: What is done with several items at once, and with one.
        items: Samples, or what stands for them.
        name: What lines call an item.

    Returns:
        The calls of `work` that did not fail, as items and outcome, in order; and a line for each
        item on which it fails alone.

    Examples:
        >>> from vision_attn.data.faults import apart
        >>> apart(lambda some: [6 / one for one in some], [3, 0, 2], lambda one: f"item {one}")
        ([([3], [2.0]), ([2], [3.0])], ['item 0: ZeroDivisionError: division by zero'])
    """
    try:
        return [(items, work(items))] if items else [], []
    except Exception as error:
        if len(items) == 1:
            return [], [fault_line(name(items[0]), error)]
    outcomes: list[tuple[Sequence[Item], Outcome]] = []
    lines: list[str] = []
    for item in items:
        alone, problems = apart(work, [item], name)
        outcomes += alone
        lines += problems
    return outcomes, lines
