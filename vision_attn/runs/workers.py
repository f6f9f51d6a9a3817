"""Work shared out among processes of this machine.

Light to import: torch comes in with the work.
"""

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from vision_attn.cores import short_waits

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Unpicklable", "answers", "checksum"]

AHEAD = 4  # tasks a process that wait for their turn

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Job = TypeVar("Job")


class Unpicklable(ValueError):
    """The job cannot be sent to other processes; nothing of it has been done.

    Examples:
        >>> from vision_attn.runs.workers import Unpicklable, answers
        >>> try:
        ...     list(answers(lambda job: job, None, [1, 2], processes=2))
        ... except Unpicklable:
        ...     print("one process")
        one process
    """


_do: Callable[[Any], Any]  # of a process of the pool


def answers(
    make: Callable[[Job], Callable[[Task], Answer]],
    job: Job,
    tasks: Iterable[Task],
    processes: int,
) -> Iterator[Answer]:
    """Yield make(job)(task) for each task, in their order; `make` is called once a process.

    Only a few tasks a process are taken ahead of the answers: tasks may be a long iterator.

    job: a value that can be pickled, networks included: each process gets a copy. The processes
    share out the threads of this one, and these `wait_briefly`. Ctrl-C, or closing the iterator,
    ends them.

    Raises Unpicklable where the job cannot be pickled, ValueError where a process was ended from
    outside.
    """
    import torch

    try:
        pickled = pickle.dumps((make, job))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unpicklable(
            f"this model cannot be sent to other processes ({error}): use one process"
        ) from None
    if isinstance(tasks, Sized):
        processes = max(1, min(processes, len(tasks)))
    threads = max(1, torch.get_num_threads() // processes)
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(processes, context, _start, (pickled, threads)) as pool:
            try:
                yield from _in_order(pool, tasks, AHEAD * processes)
            except (KeyboardInterrupt, GeneratorExit):  # stopped: their tasks are lost, no others
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
    except BrokenProcessPool:
        raise ValueError(
            "a process was killed, perhaps for lack of memory: what is done is kept; "
            "run the same command again, with fewer --processes or a smaller --batch-size"
        ) from None


def _in_order(pool: ProcessPoolExecutor, tasks: Iterable[Any], most: int) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    try:
        for task in tasks:
            with short_waits():  # for the process that may start now
                waiting.append(pool.submit(_answer, task))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _start(pickled: bytes, threads: int) -> None:
    global _do
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    make, job = pickle.loads(pickled)
    _do = make(job)


def _end_with_parent() -> None:
    """End this process when the first one is gone, which nobody but the system may have noticed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _answer(task: Any) -> Any:
    return _do(task)


def checksum(network: "nn.Module") -> int:
    """Compute one number of all weights: other weights, another number."""
    import torch

    total = 0
    for weight in network.state_dict().values():
        if isinstance(weight, torch.Tensor):
            bits = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
            total = crc32(bits.numpy().data, total)
    return total
