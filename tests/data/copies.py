"""The same photos in several forms, and what compares them."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from vision_attn.data import HuggingFace
from vision_attn.data.draws import Draws

CLASSES = ["ant", "bee", "cat"]
SIZES: dict[str, Any] = {"size": 16, "shorter_side": 20}

needs_datasets = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def files(root: Any) -> list[Any]:
    """(path, number of the class) of each photo, in order."""
    return [
        (path, label)
        for label, name in enumerate(CLASSES)
        for path in sorted((root / "set" / name).iterdir())
    ]


def content(splits: Any) -> list[Any]:
    found = []
    for images in (splits.train, splits.val, splits.test):
        items = np.arange(len(images))
        found += [images.labels, images.fetch(items, Draws(0, 2, items))]
    return found


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(content(found), content(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def parquet(
    datasets: ModuleType, root: Any, path: Any, labels: Any = None, rows_a_group: Any = None
) -> None:
    """Write the photos as Parquet."""
    listed = files(root)
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
    rows = {
        "image": [{"bytes": file.read_bytes(), "path": file.name} for file, _ in listed],
        "label": [label for _, label in listed],
    }
    if labels is not None:
        del features["label"]
        rows["label"] = labels
    table = datasets.Dataset.from_dict({"image": rows["image"], **{"label": rows["label"]}})
    for name, feature in features.items():
        table = table.cast_column(name, feature)
    path.parent.mkdir(exist_ok=True)
    table.to_parquet(str(path), batch_size=rows_a_group)


def in_place(path: str = "shards", **more: Any) -> HuggingFace:
    more = {"storage": "auto", "workers": 0, **more}
    return HuggingFace(path, streaming=True, window=5, **more, **SIZES)
