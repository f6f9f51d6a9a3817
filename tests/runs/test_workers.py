"""The processes of a job end with the first one, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JOB = """
import os, sys, time
from vision_attn.runs.workers import answers

def make(folder):
    def work(task):
        with open(os.path.join(folder, str(os.getpid())), "w"):
            time.sleep(600)
    return work

if __name__ == "__main__":
    list(answers(make, sys.argv[1], [1, 2], processes=2))
"""


WAITS = """
import os
from vision_attn.runs.workers import answers

def make(name):
    return lambda task: os.environ.get(name)

if __name__ == "__main__":
    print(list(answers(make, "GOMP_SPINCOUNT", range(5), processes=2)), os.environ.get("GOMP_SPINCOUNT"))
"""


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def within(seconds: float, condition: Callable[..., bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads /proc, which Linux has")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_first_process(how: Any, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    pids = tmp_path / "pids"
    pids.mkdir()
    first = subprocess.Popen([sys.executable, tmp_path / "job.py", pids])
    assert within(120, lambda: len(list(pids.iterdir())) == 2), "the workers did not start"
    workers = [int(path.name) for path in pids.iterdir()]
    first.send_signal(how)
    assert first.wait(60) != 0
    assert within(30, lambda: not any(map(is_running, workers)))


@pytest.mark.slow
@pytest.mark.parametrize(("own", "theirs"), [(None, "2000"), ("31", "31")])
def test_threads_of_workers_wait_briefly(own: str | None, theirs: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(WAITS)
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    if own:
        environment["GOMP_SPINCOUNT"] = own
    words = [sys.executable, str(tmp_path / "job.py")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"{[theirs] * 5} {own}\n"
