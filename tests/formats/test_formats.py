"""Files that earlier versions wrote are read as they were: one folder for each set of formats."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vision_attn
from vision_attn.models.checkpoint import FORMAT as OF_CHECKPOINTS
from vision_attn.runs.database import FORMAT as OF_STORES

sys.path.insert(0, str(Path(__file__).parent))
from write_formats import FOLDER, image

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/expected.json"))


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def expected(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def test_there_are_files_of_the_formats_of_today() -> None:
    assert FOLDER in FOLDERS, (
        f"checkpoints have format {OF_CHECKPOINTS}, stores {OF_STORES}: run tests/formats/write_formats.py, "
        "and read the older ones too"
    )


def test_a_checkpoint_gives_the_logits_that_it_gave(folder: Path, expected: dict[str, Any]) -> None:
    model = vision_attn.load_model(folder / "vit.ckpt")
    with torch.no_grad():
        logits = model.network(image())[0]
    assert list(model.classes) == expected["classes"]
    np.testing.assert_allclose(logits, expected["logits"], rtol=1e-5, atol=1e-6)
    assert model.trust == vision_attn.types.Trust(("LibraGradient",), 3, "photos")


def test_results_give_the_rows_and_maps_that_they_gave(
    folder: Path, expected: dict[str, Any]
) -> None:
    with vision_attn.open_results(folder / "explained") as results:
        rows = [json.loads(json.dumps(dict(row))) for row in results]
        maps = [results.map(row) for row in range(len(results))]
    assert rows == expected["rows"]
    assert len(rows) == 9
    for found, kept in zip(maps, expected["maps"], strict=True):
        np.testing.assert_array_equal(found, np.array(kept, found.dtype))
    lines = (folder / "explained" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows


def test_scores_give_what_they_gave(folder: Path, expected: dict[str, Any]) -> None:
    scores = json.loads((folder / "scored" / "scores.json").read_text(encoding="utf-8"))
    assert scores["format"] == 1
    kept = {method: row["scores"] for method, row in scores["methods"].items()}
    assert kept == expected["scores"]
    with vision_attn.open_results(folder / "scored" / "per_image") as results:
        assert len(results) == expected["per_image"]
