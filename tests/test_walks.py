"""How many files a reader crosses: no more than here, so that a part does not spread unseen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WALKS = Path(__file__).parent / "walks.py"


@pytest.mark.parametrize(
    ("walk", "most"),
    [
        ("Rollout", 39),
        pytest.param("score", 106, marks=pytest.mark.slow),
        pytest.param("fit", 106, marks=pytest.mark.slow),
    ],
)
def test_a_walk_crosses_no_more_files(walk, most, tmp_path):
    words = [sys.executable, str(WALKS), walk]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout[done.stdout.index("{\n") :])[walk]
    assert {"Rollout": "methods/rollout.py"}.get(walk, "arguments.py") in files
    assert len(files) <= most, f"{len(files)} files, {most} before: {files}"
