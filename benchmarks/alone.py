"""Time and memory of ways to do the same thing, each in processes of their own.

So that what one way leaves in the allocator's hands is not taken for another's, and a way that runs
out of memory or time is a line in the table and no crash.
"""

import argparse
import ctypes
import gc
import multiprocessing
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from typing import Any

import torch

MIB = 2**20
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
Ways = dict[str, Callable[[], object]]
Made = tuple[int, str, *tuple[str, ...]]  # what ways are made of: a size, a device, and more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that `alone` and `compare` read."""
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (default: 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit", type=float, default=1800, help="seconds a process (1800)")
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        help="ways of these names, or whose names hold one of them",
    )
    parser.add_argument("--beside", metavar="WAY", help="what ratios are to (default: the first)")
    parser.add_argument(
        "--cpu", action="store_true", help="seconds of CPU time: of a busy machine, with one thread"
    )


def compare(make: Callable[..., Ways], made: Made, args: argparse.Namespace, rounds: int) -> None:
    """A table of the ways that `make(*made)` gives: seconds, times those of one way, MiB added.

    Least, median and most; a ratio is of one turn, so that what else the machine does meets both.
    """
    names = alone(names_of, args, make, made)
    if isinstance(names, str):
        print(names)
        return
    one = args.beside or names[0]
    if one not in names:
        sys.exit(f"--beside {one!r}: there is no such way, only {', '.join(names)}")
    names = [name for name in names if name == one or wanted(name, names, args.only)]
    added = {name: alone(weighed, args, make, made, name) for name in names}
    fit = [name for name in names if not isinstance(added[name], str)]
    seconds = alone(timed, args, make, made, fit, rounds, args.cpu)
    failed = isinstance(seconds, str)
    print(f"| way | seconds | x {one} | MiB added |\n|---|---|---|---|")
    for name in names:
        if name not in fit or failed:
            print(f"| {name} | {seconds if failed else added[name]} | | |")
            continue
        ratios = [a / b for a, b in zip(seconds[name], seconds.get(one, ()), strict=False)]
        words = f"{spread(seconds[name])} | {spread(ratios)} | {added[name]:.0f}"
        print(f"| {name} | {words} |", flush=True)


def wanted(name: str, names: list[str], words: list[str]) -> bool:
    """Whether a word is this name, or no name at all but a part of this one."""
    return any(word == name if word in names else word in name for word in words)


def spread(numbers: list[float]) -> str:
    """Least, median and most; nothing of nothing."""
    if not numbers:
        return ""
    low, middle, high = (of(numbers) for of in (min, statistics.median, max))
    return f"{low:.3g} / {middle:.3g} / {high:.3g}"


def alone(job: Callable[..., object], args: argparse.Namespace, *given: object) -> Any:
    """What `job` gives in a process of its own, or in words why it gave nothing."""
    context: SpawnContext | ForkContext = (
        multiprocessing.get_context("spawn")
        if args.device == "cuda"
        else multiprocessing.get_context("fork")
    )
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(sender, args.threads, job, given))
    process.start()
    sender.close()
    try:
        if not receiver.poll(args.limit):
            return f"not done after {args.limit:.0f} s"
        return receiver.recv()
    except EOFError:
        process.join()
        return f"ended by signal {-(process.exitcode or 0)}: out of memory?"
    finally:
        process.kill()
        process.join()


def answer(
    sender: Any, threads: int, job: Callable[..., object], given: tuple[object, ...]
) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if not torch.cuda.device_count():  # an error, not a machine that dies
        resource.setrlimit(resource.RLIMIT_DATA, (available(), resource.RLIM_INFINITY))
    try:
        sender.send(job(*given))
    except (RuntimeError, MemoryError, ValueError, NotImplementedError) as error:
        text = str(error)
        memory = "allocate" in text or isinstance(error, MemoryError)
        sender.send("out of memory" if memory else text.splitlines()[0])


def names_of(make: Callable[..., Ways], made: Made) -> list[str]:
    return list(make(*made))


def timed(
    make: Callable[..., Ways], made: Made, names: list[str], rounds: int, cpu: bool = False
) -> dict[str, list[float]]:
    """Seconds of each turn of each way, once their code and threads are loaded."""
    clock = time.process_time if cpu else time.perf_counter
    small = make(64, *made[1:])
    for name in names:
        small[name]()
    ways = make(*made)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            start = clock()
            ways[name]()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            times[name].append(clock() - start)
    return times


def weighed(make: Callable[..., Ways], made: Made, name: str) -> float:
    """MiB that a way adds at its peak, once its code and its threads are loaded.

    The allocator is told to give back at once what is freed, from a megabyte on: else what it holds
    ready counts too, which may be as much again, or not, by chance.
    """
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIB)
    small = make(64, *made[1:])
    small[name]()
    del small
    way = make(*made)[name]
    gc.collect()
    with Peak(torch.device(made[1])) as peak:
        way()
    return peak.bytes / MIB


class Peak:
    """The most memory held while open, above what was held on entry."""

    def __init__(self, device: torch.device):
        self.device, self.bytes = device, 0.0

    def __enter__(self) -> "Peak":
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return self
        self.before, self.open = held(), True
        self.watch = threading.Thread(target=self.look, daemon=True)
        self.watch.start()
        return self

    def look(self) -> None:
        while self.open:
            self.bytes = max(self.bytes, held() - self.before)
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated() - self.before
            return
        self.open = False
        self.watch.join()


def available() -> int:
    """Bytes that the machine can still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def held() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
