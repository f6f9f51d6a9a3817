"""The notebooks that need no trained network, shortened; the others run in commands/test_demo.py.

And what docs/notebooks.py makes of notebooks: runs that are kept, and pages.
"""

import base64
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import (
    new_code_cell,
    new_markdown_cell,
    new_notebook,
    new_output,
)

sys.path.append(str(Path(__file__).parents[1] / "docs"))
notebooks: Any = import_module("notebooks")

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
TWICE = "import time\nprint(2 + 3, flush=True)\ntime.sleep(0.5)\nprint(2 + 5)"


@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        ("03_scores_and_normalisers", 7),
        ("04_windows_and_heads", 7),
        ("05_memory_hierarchy_coattention", 5),
        ("07_from_seq2seq_to_transformer", 4),
        ("08_two_inputs", 4),
        ("09_diagnose", 4),
    ],
)
@pytest.mark.slow
def test_notebook(name: str, pictures: int) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    cell.source = "steps = 3"
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(NOTEBOOKS))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == pictures
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


def test_a_run_is_kept_until_a_cell_changes(tmp_path: Path) -> None:
    source, kept = tmp_path / "sum.ipynb", tmp_path / "kept"
    notebook = new_notebook(cells=[new_markdown_cell("# Sum"), new_code_cell(TWICE)])
    nbformat.write(notebook, source)
    assert notebooks.executed(source, kept) is None
    notebooks.run(source, kept)
    found = notebooks.executed(source, kept)
    assert found is not None
    assert [output.text for output in found.cells[1].outputs] == ["5\n7\n"]  # one block
    notebook.cells[1].source = "print(2 + 7)"
    nbformat.write(notebook, source)
    assert notebooks.executed(source, kept) is None


def test_a_run_that_writes_to_stderr_is_not_kept(tmp_path: Path) -> None:
    source, kept = tmp_path / "loud.ipynb", tmp_path / "kept"
    loud = "import sys; print('careful', file=sys.stderr)"
    nbformat.write(new_notebook(cells=[new_code_cell(loud)]), source)
    with pytest.raises(RuntimeError, match=r"loud\.ipynb wrote to stderr:\ncareful"):
        notebooks.run(source, kept)
    assert not kept.exists()


def test_a_page_has_the_outputs_and_folds_long_code() -> None:
    long = "\n".join(f"x{i} = {i}" for i in range(notebooks.SHORT + 1))
    outputs = [
        new_output("stream", name="stdout", text="a < b\n"),
        new_output("display_data", {"image/png": base64.b64encode(b"PNG").decode()}),
        new_output("execute_result", {"text/html": "<b>1</b>\n\n<i>2</i>", "text/plain": "?"}),
    ]
    cells = [
        new_markdown_cell("# Title\n\nSee `05_memory.ipynb`."),
        new_code_cell("f()", outputs=outputs),
        new_markdown_cell("## Part"),
        new_code_cell(long),
    ]
    page = notebooks.page_of("04_name", new_notebook(cells=cells))
    title, below, *_ = page.parts
    assert title == "# Title\n\nSee [05_memory](05_memory.md)."
    assert "(04_name.ipynb)" in below
    assert '<pre class="output" tabindex="0">a &lt; b</pre>' in page.parts
    assert page.pictures == {"04_name_1.png": b"PNG"}
    assert "![Title: what the code above draws](04_name_1.png)" in page.parts
    assert "<b>1</b>\n<i>2</i>" in page.markdown
    assert page.parts[-1].startswith(f'??? example "Code, {notebooks.SHORT + 1} lines"\n\n    ```')


def test_a_page_of_a_notebook_that_has_not_run_says_so() -> None:
    page = notebooks.page_of("01_name", new_notebook(cells=[new_markdown_cell("# T")]))
    assert "It has not run here" in page.markdown
