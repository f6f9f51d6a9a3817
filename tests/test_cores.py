"""Threads keep to what affinity and the quota of a control group leave, on any system."""

import os
import subprocess
import sys

import pytest

from vision_attn import cli, cores

NEW, OLD = "0::/a/b\n", "5:memory:/a\n3:cpuset:/\n2:cpu,cpuacct:/a/b\n0::/\n"


@pytest.fixture
def groups(control_groups, monkeypatch):
    """Write the control groups of a machine of 8 CPUs, all of which the process may be on."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
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
def test_a_quota_is_that_of_the_group_or_of_one_around_it(groups, own, files, usable):
    groups(own, **files)
    assert cores.usable_cores() == usable


def test_affinity_counts_too(groups, monkeypatch):
    groups(NEW, **{"a/b/cpu.max": "300000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert cores.usable_cores() == 2
    cores.keep_to_quota()
    assert "OMP_NUM_THREADS" not in os.environ  # torch knows of affinity


@pytest.mark.parametrize(("count", "usable"), [(6, 6), (None, 1)])
def test_systems_without_control_groups_and_affinity(groups, monkeypatch, count, usable):
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
def test_what_the_environment_says_wins(groups, monkeypatch, name, value, threads):
    groups(NEW, **{"a/b/cpu.max": "150000 100000"})
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # to be as before after the test
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv(name, value)
    cores.keep_to_quota()
    assert os.environ.get("OMP_NUM_THREADS") == threads


def test_the_command_line_starts_so(groups, monkeypatch):
    done = []
    monkeypatch.setattr(cores, "keep_to_quota", lambda: done.append("kept"))
    monkeypatch.setattr(cli, "main", lambda: done.append("ran") or 3)
    with pytest.raises(SystemExit) as stop:
        cli.script()
    assert stop.value.code == 3
    assert done == ["kept", "ran"]


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
def test_torch_has_that_many_threads(groups, tmp_path):
    groups(NEW, **{"a/b/cpu.max": "100000 100000"})
    words = [sys.executable, "-c", TORCH]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr
