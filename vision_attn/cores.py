"""How many CPUs this process may use, how many other programs leave it, and how its threads wait.

Control groups: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max), and of version 1
https://docs.kernel.org/scheduler/sched-bwc.html (cpu.cfs_quota_us). Waiting threads:
https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html, and of LLVM and Intel
https://openmp.llvm.org/design/Runtimes.html (KMP_BLOCKTIME).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil, inf
from pathlib import Path
from threading import Thread
from time import perf_counter, thread_time
from zlib import crc32

__all__ = [
    "available_cores",
    "control_groups",
    "keep_to_quota",
    "short_waits",
    "threads_to_use",
    "usable_cores",
    "wait_briefly",
    "waits_are_set",
]

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # of Linux
THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS"  # each is torch's number of threads
# How long a thread of OpenMP looks out for the others before it sleeps, by GCC's runtime (turns of
# a loop: about 25 microseconds) and by LLVM's and Intel's (milliseconds).
WAITS = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
POLICY = "OMP_WAIT_POLICY"  # of all of them: active or passive
SPARE = 0.25  # of a core that other programs may take before a thread is left out
CHUNK = bytes(2**23)  # what a checksum is computed of at a time, without Python's lock


def usable_cores() -> int:
    """Count the CPUs whose time this process can have, at least 1; part of one counts as one.

    Examples:
        >>> from vision_attn.cores import usable_cores
        >>> usable_cores() >= 1
        True
    """
    return max(1, ceil(min(_allowed(), _quota())))


def keep_to_quota() -> None:
    """Have torch, not yet imported, start as many threads as a container's quota lets run.

    torch itself starts one for each core of the machine that the process may be on; more than the
    quota has time for stop each other. What the environment says already wins, and without a quota
    torch chooses.
    """
    quota = _quota()
    if quota < _allowed() and not any(os.environ.get(name) for name in THREADS):
        os.environ["OMP_NUM_THREADS"] = str(max(1, ceil(quota)))
        _set_by_quota.append("OMP_NUM_THREADS")


_set_by_quota: list[str] = []  # variables of `THREADS` that the user has not set


def wait_briefly() -> None:
    """Have the threads of torch, not yet imported, sleep soon while they wait for each other.

    Each operation ends when its last thread is done. OpenMP's threads look out for that moment for
    milliseconds, and so hold cores that other programs, or that last thread, could use: beside one
    other program a training on two cores takes 4 to 8 times as long. What the environment says
    already wins: GOMP_SPINCOUNT, KMP_BLOCKTIME or OMP_WAIT_POLICY.
    """
    if not waits_are_set():
        os.environ.update(WAITS)


def waits_are_set() -> bool:
    """Whether the environment says how the threads of OpenMP wait."""
    return any(os.environ.get(name) for name in (*WAITS, POLICY))


@contextmanager
def short_waits() -> Iterator[None]:
    """Have processes that start in this block `wait_briefly`; the environment is then as before.

    Examples:
        >>> import os
        >>> from vision_attn.cores import short_waits, waits_are_set
        >>> before = dict(os.environ)
        >>> with short_waits():
        ...     waits_are_set()
        True
        >>> os.environ == before
        True
    """
    before = {name: os.environ.get(name) for name in WAITS}
    wait_briefly()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def threads_to_use(most: int) -> int:
    """Count the threads that have a core now, at most so many and at least 1.

    One that shares its core with another program keeps all others waiting, at each operation: less
    threads are then faster. What the environment says of the number of threads wins.

    Examples:
        >>> from vision_attn.cores import threads_to_use
        >>> threads_to_use(1)
        1
    """
    chosen = any(os.environ.get(name) for name in THREADS if name not in _set_by_quota)
    if most < 2 or chosen:
        return most
    return max(1, min(most, int(available_cores() + SPARE)))


def available_cores(seconds: float = 0.2) -> float:
    """Measure how many CPUs' time this process gets now if it asks for all that it may use.

    Beside programs that are busy it is less than `usable_cores`: by how much depends on how many
    they are, and on what the system gives to each.

    Examples:
        >>> from vision_attn.cores import available_cores, usable_cores
        >>> 0 < available_cores(seconds=0.05) < usable_cores() + 0.5
        True
    """
    shares: list[float] = []

    def work() -> None:
        start, used = perf_counter(), thread_time()
        while perf_counter() < start + seconds:
            crc32(CHUNK)
        shares.append((thread_time() - used) / (perf_counter() - start))

    threads = [Thread(target=work, daemon=True) for _ in range(usable_cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(shares)


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups of cpu or memory, and of those around.

    In a container a group's path may be the machine's, of which the container sees the end alone:
    as /. Not all of the folders need to be there.

    Examples:
        >>> from vision_attn.cores import control_groups
        >>> files = [folder / "memory.max" for folder in control_groups("memory")]
    """
    try:
        lines = OWN.read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for line in lines:  # NUMBER:CONTROLLERS:PATH
        _, controllers, path = [*line.split(":", 2), "none", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        for top in [GROUPS / controllers, GROUPS / controller] if controllers else [GROUPS]:
            group = top / path.lstrip("/")
            yield from (one for one in [group, *group.parents] if one.is_relative_to(top))


def _allowed() -> int:
    """The CPUs that this process may be on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Windows and macOS have none
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _quota() -> float:
    """How many CPUs' time the control groups of this process leave to it; infinity for all."""
    return min(map(_limit, control_groups("cpu")), default=inf)


def _limit(folder: Path) -> float:
    """The CPUs that the files of one control group allow, by version 2 or 1."""
    try:
        if (file := folder / "cpu.max").is_file():
            quota, period = file.read_text(encoding="utf-8").split()
        else:
            quota, period = (
                (folder / name).read_text(encoding="utf-8")
                for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            )
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 else inf
    except (OSError, ValueError, ZeroDivisionError):
        return inf
