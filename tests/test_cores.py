"""Threads keep to what affinity, the quota of a control group and other programs leave them."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vision_attn import cli, cores

NEW, OLD = "0::/a/b\n", "5:memory:/a\n3:cpuset:/\n2:cpu,cpuacct:/a/b\n0::/\n"


@pytest.fixture
def groups(
    control_groups: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Write the control groups of a machine of 8 CPUs, all of which the process may be on."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "_set_by_quota", [])
    for name in cores.THREADS:
        monkeypatch.delenv(name, raising=False)
    return lambda own, **files: control_groups(own, files)


@pytest.mark.parametrize(
    ("own", "files", "usable"),
    [
        (NEW, {"a/b/cpu.max": "max 100000\n"}, 8),
        (NEW, {"a/b/cpu.max": "300000 100000\n"}, 3),
        (NEW, {"a/b/cpu.max": "250000 100000\n"}, 3),  # part of a CPU is one
        (NEW, {"a/b/cpu.max": "1000 100000\n"}, 1),
        (NEW, {"a/b/cpu.max": "1600000 100000\n"}, 8),  # more than there are
        (NEW, {"a/b/cpu.max": "500000 100000", "a/cpu.max": "100000 50000"}, 2),  # of the parent
        (NEW, {"cpu.max": "300000 100000"}, 3),  # a container that sees its own end alone
        (NEW, {"a/b/cpu.max": "five 100000"}, 8),
        (NEW, {"a/b/cpu.max": "100000"}, 8),
        (NEW, {"a/b/cpu.max": "100000 0"}, 8),
        (NEW, {}, 8),
        ("", {"cpu.max": "300000 100000"}, 8),
        ("0::/..\n", {"cpu.max": "300000 100000"}, 3),
        ("nothing of the kind\n", {}, 8),
        (OLD, {"cpu/a/b/cpu.cfs_quota_us": "-1\n", "cpu/a/b/cpu.cfs_period_us": "100000\n"}, 8),
        (OLD, {"cpu/a/b/cpu.cfs_quota_us": "150000\n", "cpu/a/b/cpu.cfs_period_us": "50000"}, 3),
        (OLD, {"cpu,cpuacct/cpu.cfs_quota_us": "9", "cpu,cpuacct/cpu.cfs_period_us": "5"}, 2),
        (OLD, {"memory/a/cpu.cfs_quota_us": "1", "memory/a/cpu.cfs_period_us": "1"}, 8),
    ],
)
def test_a_quota_is_that_of_the_group_or_of_one_around_it(
    groups: Callable[..., Any], own: str, files: dict[str, str], usable: int
) -> None:
    groups(own, **files)
    assert cores.usable_cores() == usable


def test_affinity_counts_too(groups: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    groups(NEW, **{"a/b/cpu.max": "300000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert cores.usable_cores() == 2
    cores.keep_to_quota()
    assert "OMP_NUM_THREADS" not in os.environ  # torch knows of affinity


@pytest.mark.parametrize(("count", "usable"), [(6, 6), (None, 1)])
def test_systems_without_control_groups_and_affinity(
    groups: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, count: int | None, usable: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert cores.usable_cores() == usable
    cores.keep_to_quota()
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize(
    ("name", "value", "threads"),
    [
        ("OMP_NUM_THREADS", "7", "7"),
        ("MKL_NUM_THREADS", "5", None),
        ("OMP_NUM_THREADS", "", "2"),
        ("HOME", "/", "2"),
    ],
)
def test_what_the_environment_says_wins(
    groups: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    threads: str | None,
) -> None:
    groups(NEW, **{"a/b/cpu.max": "150000 100000"})
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # to be as before after the test
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv(name, value)
    cores.keep_to_quota()
    assert os.environ.get("OMP_NUM_THREADS") == threads


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that does not say how threads wait; as it was before, after the test."""
    for name in (*cores.WAITS, cores.POLICY):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_threads_wait_briefly_by_each_runtime(no_waits: None) -> None:
    before = dict(os.environ)
    cores.wait_briefly()
    assert cores.waits_are_set()
    assert dict(os.environ) == before | {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GOMP_SPINCOUNT", "300000"),
        ("OMP_WAIT_POLICY", "active"),
        ("OMP_WAIT_POLICY", "passive"),
        ("KMP_BLOCKTIME", "0"),
    ],
)
def test_threads_wait_as_the_environment_says(
    no_waits: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    before = dict(os.environ)
    cores.wait_briefly()
    assert dict(os.environ) == before
    with cores.short_waits():
        assert dict(os.environ) == before
    assert dict(os.environ) == before


def test_an_empty_variable_says_nothing(no_waits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "")
    with cores.short_waits():
        assert os.environ["GOMP_SPINCOUNT"] == "2000"
    assert os.environ["GOMP_SPINCOUNT"] == ""
    assert "KMP_BLOCKTIME" not in os.environ


@pytest.mark.parametrize(
    ("available", "most", "threads"),
    [
        (2.0, 2, 2),
        (1.8, 2, 2),  # a little is taken by every system
        (1.7, 2, 1),
        (1.33, 2, 1),  # beside one other program
        (0.3, 2, 1),
        (7.1, 8, 7),
        (5.3, 8, 5),
        (8.0, 4, 4),  # cores of two threads each, of which torch uses one
    ],
)
def test_as_many_threads_as_have_a_core_now(
    groups: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    available: float,
    most: int,
    threads: int,
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: available)
    assert cores.threads_to_use(most) == threads


@pytest.mark.parametrize("name", cores.THREADS)
def test_the_number_of_threads_is_the_environments(
    groups: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 0.1)
    assert cores.threads_to_use(7) == 1
    monkeypatch.setenv(name, "7")
    assert cores.threads_to_use(7) == 7


def test_a_quota_is_no_wish_of_the_user(
    groups: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 1.5)
    groups(NEW, **{"a/b/cpu.max": "300000 100000"})
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    cores.keep_to_quota()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert cores.threads_to_use(3) == 1


def test_available_cores_are_the_threads_shares_of_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = threading.local()

    def wall() -> Any:
        clock.now = getattr(clock, "now", 0.0) + 0.01
        return clock.now

    monkeypatch.setattr(cores, "usable_cores", lambda: 5)
    monkeypatch.setattr(cores, "perf_counter", wall)
    monkeypatch.setattr(cores, "thread_time", lambda: 0.3 * getattr(clock, "now", 0.0))
    monkeypatch.setattr(cores, "CHUNK", b"")
    assert cores.available_cores(seconds=1.0) == pytest.approx(5 * 0.3, rel=0.05)


def test_a_process_alone_has_what_it_asks_for_and_not_more() -> None:
    assert 0 < cores.available_cores(seconds=0.05) < cores.usable_cores() + 0.2


def test_the_command_line_starts_so(
    groups: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    monkeypatch.setattr(cores, "keep_to_quota", lambda: done.append("kept"))
    monkeypatch.setattr(cores, "wait_briefly", lambda: done.append("waits"))
    monkeypatch.setattr(cli, "main", lambda: done.append("ran") or 3)
    with pytest.raises(SystemExit) as stop:
        cli.script()
    assert stop.value.code == 3
    assert done == ["kept", "waits", "ran"]


TORCH = """
from pathlib import Path
from vision_attn import cores
cores.OWN, cores.GROUPS = Path("own"), Path("groups")
cores.os.sched_getaffinity = lambda pid: set(range(8))
cores.keep_to_quota()
import torch
print(torch.get_num_threads())
"""


@pytest.mark.slow
def test_torch_has_that_many_threads(groups: Callable[..., Any], tmp_path: Path) -> None:
    groups(NEW, **{"a/b/cpu.max": "100000 100000"})
    words = [sys.executable, "-c", TORCH]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


LOADED = """
import os, sys
before = dict(os.environ)
import vision_attn
for name in vision_attn.__all__:
    getattr(vision_attn, name)
names = ["GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"]
print([name for name in names if os.environ.get(name) != before.get(name)])
"""


def without_waits() -> dict[Any, Any]:
    """The environment of a process, in which nothing says how threads wait."""
    return {k: v for k, v in os.environ.items() if k not in (*cores.WAITS, cores.POLICY)}


@pytest.mark.slow
def test_an_import_sets_no_variable_and_warns_of_nothing() -> None:
    words = [sys.executable, "-W", "error", "-c", "import vision_attn"]
    done = subprocess.run(words, capture_output=True, text=True, env=without_waits(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    words = [sys.executable, "-c", LOADED]
    done = subprocess.run(words, capture_output=True, text=True, env=without_waits(), check=False)
    assert done.stdout == "[]\n", done.stderr
    assert "spin" not in done.stderr.lower()


WAITING = """
from vision_attn import cores
cores.wait_briefly()
import torch
"""


@pytest.mark.slow
@pytest.mark.parametrize("own", [None, "31"])
def test_torch_reads_how_its_threads_wait(own: str | None) -> None:
    """GCC's runtime shows what it has read."""
    environment = without_waits() | {"OMP_DISPLAY_ENV": "verbose"}
    if own:
        environment["GOMP_SPINCOUNT"] = own
    words = [sys.executable, "-c", WAITING]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    if shown := re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr):
        assert set(shown) == {own or "2000"}
    else:
        pytest.skip("torch here is not built with GCC's OpenMP")
