from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vision_attn.data import Batches, ImageFolder, Planted, Shuffled, Subset
from vision_attn.data.draws import Draws


def test_a_share_and_a_number_of_each_class() -> None:
    whole = Planted(size=16, train=70, val=5, test=5)
    expected = whole.load(Path(), 0.1, 0)
    few: Any = Subset(whole, fraction=0.3).load(Path(), 0.1, 0)
    more: Any = Subset(whole, fraction=0.6).load(Path(), 0.1, 0).train
    assert torch.bincount(few.train.labels).tolist() == [2] * 10
    assert set(few.train.items) < set(more.items)
    one: Any = Subset(whole, per_class=1).load(Path(), 0.1, 0).train
    assert sorted(one.labels.tolist()) == list(range(10))
    items = np.arange(10)
    there = one.items
    torch.testing.assert_close(
        one.fetch(items, Draws(0, 0, items)), expected.train.fetch(there, Draws(0, 0, there))
    )
    assert len(few.test) == 5
    for wrong in ({"fraction": 0.0}, {"per_class": 0}):
        with pytest.raises(ValueError, match="must be"):
            Subset(whole, **wrong)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_some_of_a_stream_have_their_own_labels(tmp_path: Path, workers: int) -> None:
    from PIL import Image

    for label, name in enumerate(("ant", "bee", "cat")):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (30, 30), (80 * label, 9, 9)).save(
                tmp_path / "set" / name / f"{i}.png"
            )
    photos = ImageFolder("set", size=8, storage="stream", workers=workers, test_fraction=0.0)
    train = Subset(photos, fraction=0.5).load(tmp_path, 0.0, 0).train
    seen = [
        (batch.images[:, 0, 4, 4] // 80).tolist() == batch.labels.tolist()
        for batch in Batches(train, Shuffled(len(train), 2))
    ]
    assert len(train) == 9
    assert len(seen) == 5
    assert all(seen)
