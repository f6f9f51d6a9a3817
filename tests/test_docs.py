"""The documentation builds without a warning, and its commands are ones that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vision_attn.cli import COMMANDS, TRAINING

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.ja.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_site_builds_without_a_warning(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/reference/attention.html").read_text()
    assert "normalise_j(score(q_i, k_j))" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_files_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"^vision-attn (\w+)", text, re.MULTILINE):
        assert command in {**COMMANDS, **TRAINING}
    for file in re.findall(r"\b(?:configs|notebooks|benchmarks)/[a-z0-9]\w*\.\w+", text):
        assert (ROOT / file).is_file(), f"{page.name} names {file}"
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
