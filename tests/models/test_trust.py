"""What scores have shown of a checkpoint's heatmaps is kept beside it, for that checkpoint alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from vision_attn.models.trust import read_trust, trust_of, trust_path, write_trust
from vision_attn.types import Trust

TRUST = Trust(("LeGrad(smooth=1.0)", "GradCAM"), 37, "photos")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "best.ckpt"
    path.write_bytes(b"weights of 3 layers")
    return path


def test_it_is_read_as_it_was_written(checkpoint: Path) -> None:
    assert read_trust(checkpoint) is None
    assert write_trust(checkpoint, TRUST) == checkpoint.with_name("best.trust.json")
    assert read_trust(checkpoint) == TRUST


def test_it_is_not_of_other_weights(checkpoint: Path) -> None:
    write_trust(checkpoint, TRUST)
    checkpoint.write_bytes(b"weights of 5 layers")
    assert read_trust(checkpoint) is None


@pytest.mark.parametrize("damage", ["", "[]", "{", "3", "[" * 9999, '{"checkpoint": 1}'])
def test_a_damaged_file_says_nothing(damage: str, checkpoint: Path) -> None:
    write_trust(checkpoint, TRUST)
    trust_path(checkpoint).write_text(damage)
    assert read_trust(checkpoint) is None


@pytest.mark.parametrize(
    "changed",
    [
        *({"methods": "GradCAM"}, {"methods": [3]}, {"images": "many"}, {"images": None}),
        *({"images": float("inf")}, {"images": float("nan")}, {"images": -3}, {"images": True}),
    ],
)
def test_values_of_other_kinds_say_nothing(changed: dict[str, Any]) -> None:
    values = json.loads(json.dumps(vars(TRUST)))
    assert trust_of(values) == TRUST
    assert trust_of(values | changed) is None
    assert trust_of({"methods": []}) is trust_of(None) is None
