"""How many CPUs this process may use: what affinity and a container's quota leave of the machine's.

Control groups: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max), and of version 1
https://docs.kernel.org/scheduler/sched-bwc.html (cpu.cfs_quota_us).
"""

import os
from collections.abc import Iterator
from math import ceil, inf
from pathlib import Path

__all__ = ["control_groups", "keep_to_quota", "usable_cores"]

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # of Linux
THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS"  # each is torch's number of threads


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
