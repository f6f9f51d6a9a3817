"""How many files a reader crosses: no more than docs/architecture.md says, so that none spreads."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

WALKS = Path(__file__).parent / "walks.py"
PAGE = WALKS.parents[1] / "docs/architecture.md"
SLACK = 2  # other machines take other ways: more cores, no bf16


def said() -> dict[str, int]:
    """How many files each walk crosses, by the page."""
    pattern = r"(\d+) files for Rollout.*?(\d+) for `score`, (\d+) for `fit`"
    sentence = re.search(pattern, PAGE.read_text(encoding="utf-8"))
    assert sentence is not None
    return dict(zip(("Rollout", "score", "fit"), map(int, sentence.groups()), strict=True))


@pytest.mark.parametrize(
    "walk",
    [
        "Rollout",
        pytest.param("score", marks=pytest.mark.slow),
        pytest.param("fit", marks=pytest.mark.slow),
    ],
)
def test_a_walk_crosses_no_more_files_than_the_page_says(walk: str, tmp_path: Path) -> None:
    words = [sys.executable, str(WALKS), walk]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout[done.stdout.index("{\n") :])[walk]
    assert {"Rollout": "methods/rollout.py"}.get(walk, "arguments.py") in files
    assert len(files) <= said()[walk] + SLACK, f"{len(files)} files: {files}"
