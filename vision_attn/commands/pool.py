"""Work shared out among processes of this machine.

Light to import: torch comes in with the work.
"""

import argparse
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")

_do: Callable[[Any], Any]  # of a process of the pool


def answers(
    make: Callable[[argparse.Namespace], Callable[[Task], Answer]],
    args: argparse.Namespace,
    tasks: Sequence[Task],
    processes: int,
) -> Iterator[Answer]:
    """make(args)(task) of each task, in their order; `make` is called once a process.

    The processes share out the threads of this one. Ctrl-C, or closing the iterator, ends them.
    Raises ValueError where one was ended from outside.
    """
    import torch

    processes = min(processes, len(tasks))
    threads = max(1, torch.get_num_threads() // processes)
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(processes, context, _start, (make, args, threads)) as pool:
            try:
                yield from pool.map(_answer, tasks)
            except (KeyboardInterrupt, GeneratorExit):  # stopped: their tasks are lost, no others
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
    except BrokenProcessPool:
        raise ValueError(
            "a process was ended from outside, perhaps for want of memory: what is done is kept; "
            "run the same command again, with fewer --processes or a smaller --batch-size"
        ) from None


def _start(
    make: Callable[[argparse.Namespace], Callable[[Any], Any]],
    args: argparse.Namespace,
    threads: int,
) -> None:
    global _do
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
    torch.set_num_threads(threads)
    _do = make(args)


def _answer(task: Any) -> Any:
    return _do(task)
