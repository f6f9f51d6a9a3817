"""The notebooks that need no trained network, shortened; the others run in commands/test_demo.py."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        ("03_scores_and_normalisers", 7),
        ("04_windows_and_heads", 7),
        ("05_memory_hierarchy_coattention", 5),
        ("07_from_seq2seq_to_transformer", 4),
        ("08_two_inputs", 4),
    ],
)
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
