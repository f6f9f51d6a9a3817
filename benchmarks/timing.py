"""Two ways to the same result, timed in turns, and what they are held against.

`show` prints one row a pair: a ratio is ours / theirs of one round, so that what else the machine
does meets both alike. `bench.py` keeps the ratios of all scripts that have a `key_ratios`.
"""

import argparse
import ctypes
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vision_attn.devices import native_precision

Run = Callable[[], object]
Rate = Callable[[], float]
Epoch = Callable[[], Iterable[Sequence[Tensor]]]  # its batches: images, and more
ALL_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def native_dtypes(device: str = "cpu") -> dict[str, torch.dtype]:
    """The formats that the device multiplies in hardware, the fastest last."""
    native = native_precision(device) == "bf16-mixed"
    return {name: dtype for name, dtype in ALL_DTYPES.items() if name == "fp32" or native}


DTYPES = native_dtypes("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Row:
    """One pair. flops, bytes: the work of one run, as far as it can be counted."""

    what: str
    size: str
    ours: Run
    theirs: Run
    limit: float | None = None
    flops: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class KeyRatio:
    """What one pair costs, ours / theirs, each value of one round: less is better."""

    what: str
    values: list[float]


def cpu_seconds() -> float:
    """Seconds that CPUs gave this process, all its threads, and the processes that it has ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Clock:
    """Times runs on one device. now: what seconds are read from."""

    def __init__(self, options: argparse.Namespace, now: Callable[[], float] = time.perf_counter):
        self.device, self.rounds = torch.device(options.device), options.rounds
        self.budget, self.now = options.seconds, now

    def seconds(self, run: Run, repeats: int = 1) -> float:
        self.wait()
        start = self.now()
        for _ in range(repeats):
            run()
        self.wait()
        return (self.now() - start) / repeats

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def pair(self, ours: Run, theirs: Run) -> tuple[list[float], list[float]]:
        """Seconds of each round; as many rounds as the budget allows, three at least."""
        first = [self.seconds(run) for run in (ours, theirs)]  # warm-up
        if max(first) < 1:
            first = [self.seconds(run) for run in (ours, theirs)]
        repeats = max(1, round(0.01 / min(first)))
        allowed = int(self.budget / (repeats * sum(first)))
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(max(3, min(self.rounds, allowed))):
            for which in (0, 1) if turn % 2 else (1, 0):
                times[which].append(self.seconds((ours, theirs)[which], repeats))
        return times

    def ratio(self, what: str, ours: Run, theirs: Run) -> KeyRatio:
        """Time a pair in turns, and divide round by round."""
        return KeyRatio(what, [a / b for a, b in zip(*self.pair(ours, theirs), strict=True)])

    def rates(self, what: str, ours: Rate, theirs: Rate) -> KeyRatio:
        """The same of runs that return their rate, which is more where they cost less."""
        ours(), theirs()  # warm-up
        values = [theirs() / ours() for _ in range(max(3, self.rounds // 3))]
        return KeyRatio(what, values)


def milliseconds(seconds: list[float]) -> str:
    """The fastest, the median and the slowest."""
    low, middle, high = (1000 * of(seconds) for of in (min, statistics.median, max))
    return f"{low:8.1f} {middle:8.1f} {high:8.1f} ms"


def show(rows: Iterator[Row], clock: Clock, peaks: dict[str, float]) -> None:
    print(
        "| what | size | theirs ms | ours ms | ratio: least | median | largest | limit | of peak |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ours, theirs = clock.pair(row.ours, row.theirs)
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        median, quick = statistics.median(ratios), statistics.median(ours)
        limit = "" if row.limit is None else f"{row.limit:.2f}"
        judged = row.limit is not None and statistics.median(theirs) > 1e-3
        if judged and median > (row.limit or 0):
            limit += " exceeded"
        peak = ""
        if row.flops:
            dtype = "bf16" if "bf16" in row.size else "fp32"
            peak = f"{row.flops / quick / 1e9:.0f} of {peaks[dtype]:.0f} GF/s"
        elif row.bytes:
            peak = f"{row.bytes / quick / 1e9:.1f} of {peaks['copy']:.1f} GB/s"
        print(
            f"| {row.what} | {row.size} | {1e3 * statistics.median(theirs):.2f} | "
            f"{1e3 * quick:.2f} | {min(ratios):.2f} | **{median:.2f}** | {max(ratios):.2f} | "
            f"{limit} | {peak} |",
            flush=True,
        )


def peaks_of(clock: Clock, quick: bool) -> dict[str, float]:
    """GF/s of a square matrix product in each dtype, GB/s read and written by a copy."""
    n, found = 256 if quick else 2048, {}
    for name, dtype in DTYPES.items():
        a, b = (torch.randn(n, n, device=clock.device, dtype=dtype) for _ in range(2))
        found[name] = 2 * n**3 / min(clock.seconds(partial(torch.mm, a, b)) for _ in range(5)) / 1e9
    source = torch.randn(n * n * 8, device=clock.device)
    target = torch.empty_like(source)
    copied = min(clock.seconds(partial(target.copy_, source)) for _ in range(5))
    found["copy"] = 2 * source.nbytes / copied / 1e9
    return found


def forward(call: Callable[[], Tensor]) -> Run:
    def run() -> None:
        with torch.no_grad():
            call()

    return run


def training(call: Callable[[], Tensor], leaves: list[Tensor]) -> Run:
    """Forward, and the gradients of every leaf."""
    with torch.no_grad():
        grad = torch.randn_like(call())

    def run() -> None:
        torch.autograd.grad(call(), leaves, grad)

    return run


def peak_memory(run: Run, clock: Clock) -> int:
    """Bytes that a run needs at most beyond what was in use before it."""
    if clock.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak is now what is in use
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def resident(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(which))
