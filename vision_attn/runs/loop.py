"""The loop of a run: tasks are done here or in other processes, and what they give is kept.

A task is a batch of samples and what to compute of them. While one is done here, the samples of the
next one are read in threads; tasks of the same samples read them once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.cores import usable_cores
from vision_attn.runs import workers
from vision_attn.runs.progress import Silent
from vision_attn.runs.shard import RowKeeper, StoreRow

__all__ = ["Job", "RunTask", "TaskResult", "fill"]

THREADS = 8  # that read, at most


class RunTask(NamedTuple):
    """A batch of samples, and the numbers of the columns to compute of them.

    Examples:
        >>> from vision_attn.runs.loop import RunTask
        >>> RunTask(("a.png", "b.png"), (0,)).columns
        (0,)
    """

    samples: tuple[Any, ...]
    columns: tuple[int, ...] = ()


@dataclass
class TaskResult:
    """What a task gave: rows, the files that were drawn with them, a line for each problem.

    Examples:
        >>> from vision_attn.runs.loop import TaskResult
        >>> TaskResult(count=8).rows
        []
    """

    count: int
    rows: list[StoreRow] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Job(ABC):
    """Does tasks; it can be sent to other processes if its model can.

    threads: how many samples are read at once, ahead of the network; 0 reads them in their turn.

    Examples:
        >>> from vision_attn.runs.loop import Job
        >>> sorted(Job.__abstractmethods__)
        ['do', 'read']
    """

    threads = THREADS

    @abstractmethod
    def read(self, sample: Any) -> Any:
        """Read a sample of a task; what goes wrong with it is returned, not raised."""

    @abstractmethod
    def do(self, task: RunTask, read: Sequence[Any]) -> TaskResult:
        """Do a task, its samples being read; what fails on one costs that one only."""


def fill(
    store: RowKeeper,
    job: Job,
    tasks: Iterable[RunTask],
    processes: int,
    progress: Silent,
    say: Callable[[str], None] | None = None,
) -> None:
    """Do the tasks and keep what they give.

    say: takes a line for each problem, `progress.problem` unless given. However it ends, what was
    done is kept.

    Raises:
        OSError: Rows cannot be written. If files were drawn with them, these are removed, that is
            a problem of their samples, and the others are done.
    """
    say = say or progress.problem
    try:
        for result in results(job, tasks, processes, say):
            _keep(store, result, say)
            for problem in result.problems:
                say(problem)
            progress.advance(result.count)
    finally:
        store.commit()


def results(
    job: Job, tasks: Iterable[RunTask], processes: int, say: Callable[[str], None]
) -> Iterator[TaskResult]:
    """Yield what the tasks give, in their order, from so many processes.

    A job that cannot be sent to other processes is done in this one; `say` gets a line about it.
    """
    if processes > 1:
        try:
            yield from workers.answers(_doer, job, tasks, processes)
            return
        except workers.Unpicklable as error:
            say(f"{error}; so one process does it all")
    yield from _reading_ahead(job, iter(tasks))


def _keep(store: RowKeeper, result: TaskResult, say: Callable[[str], None]) -> None:
    try:
        store.add(result.rows)
        if result.files:  # no picture without its row
            store.commit()
    except OSError as error:
        if not result.files:
            raise
        for file in result.files:
            file.unlink(missing_ok=True)
        for sample in dict.fromkeys(row.sample for row in result.rows):
            say(f"{sample}: {error}")


def _reading_ahead(job: Job, tasks: Iterator[RunTask]) -> Iterator[TaskResult]:
    """Read the next task's samples in threads while this one is done."""
    if not job.threads:
        yield from map(_doer(job), tasks)
        return
    with ThreadPoolExecutor(min(job.threads, usable_cores())) as threads:

        def begin(task: RunTask) -> list[Future[Any]]:
            return [threads.submit(job.read, sample) for sample in task.samples]

        now = next(tasks, None)
        reading = begin(now) if now is not None else []
        while now is not None:
            coming = next(tasks, None)
            same = coming is not None and coming.samples == now.samples
            ahead = reading if same or coming is None else begin(coming)
            yield job.do(now, [future.result() for future in reading])
            now, reading = coming, ahead


def _doer(job: Job) -> Callable[[RunTask], TaskResult]:
    """Return what does tasks in this process, one after the other."""
    samples: tuple[Any, ...] = ()
    read: list[Any] = []

    def do(task: RunTask) -> TaskResult:
        nonlocal samples, read
        if task.samples != samples or not read:
            samples, read = task.samples, [job.read(sample) for sample in task.samples]
        return job.do(task, read)

    return do
