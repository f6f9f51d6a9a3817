"""How many threads torch computes with; threads that each keep to their own part of the work.

A thread that works through its part alone never waits for the others inside an operation, and what
one operation wrote is still in its core's cache when the next one reads it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from vision_attn.cores import threads_to_use


class Modes:
    """torch's gradient, autocast and inference modes where it is made, for a thread to take on."""

    def __init__(self) -> None:
        self.gradients = torch.is_grad_enabled()
        self.enabled = torch.is_autocast_enabled("cpu")
        self.dtype = torch.get_autocast_dtype("cpu")
        self.inference = torch.is_inference_mode_enabled()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Without a cache of casts, which all threads would share."""
        with (
            torch.inference_mode(self.inference),
            torch.set_grad_enabled(self.gradients),
            torch.autocast("cpu", self.dtype, self.enabled, cache_enabled=False),
        ):
            yield


def threads_of_job(settings: Any) -> int:
    """Read from a job's kept settings how many threads it began with; else choose them now.

    Another number would round differently: a job that is continued, and the shards of one, keep to
    the first. Chosen are as many as have a core now, of those that torch has.

    Examples:
        >>> from vision_attn.threads import threads_of_job
        >>> threads_of_job({"threads": 3, "seed": 0})
        3
    """
    threads = settings.get("threads") if isinstance(settings, dict) else None
    if type(threads) is int and threads > 0:
        return threads
    return threads_to_use(torch.get_num_threads())


@contextmanager
def computing_with(threads: int | None) -> Iterator[None]:
    """Have torch compute with so many threads in this block; None leaves as many as there are.

    Examples:
        >>> import torch
        >>> from vision_attn.threads import computing_with
        >>> with computing_with(threads=1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Threads:
    """So many threads, until `close`, or the end of a `with`."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "part")

    def each(self, run: Callable[..., Any], *given: Sequence[Any], cores: int = 1) -> list[Any]:
        """What run(*one) gives for each one of the given; an operation of it has so many cores."""
        # A thread that is new to torch has as many cores as were set last, by whichever thread: so
        # this one asks before the others set theirs, and sets its own again after them.
        here = torch.get_num_threads()

        def alone(*one: Any) -> Any:
            if torch.get_num_threads() != cores:  # the setting is a thread's own, too
                torch.set_num_threads(cores)
            return run(*one)

        try:
            return list(self._pool.map(alone, *given))
        finally:
            torch.set_num_threads(here)

    def close(self) -> None:
        self._pool.shutdown()

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
