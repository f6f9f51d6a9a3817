import hashlib
import pickle
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

from vision_attn.data import CIFAR10, CIFAR100, DataError
from vision_attn.data.sources import hold_out


def test_cifar10(data_root: Path) -> None:
    splits = CIFAR10().load(data_root, 0.1, 0)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [
        45_000,
        5_000,
        10_000,
    ]
    assert splits.classes[:3] == ["airplane", "automobile", "bird"]
    assert splits.val.labels.bincount().tolist() == [500] * 10
    official = torchvision.datasets.CIFAR10(data_root, train=False)
    image, label = official[1234]
    test: Any = splits.test
    np.testing.assert_array_equal(test.images[1234].permute(1, 2, 0), np.asarray(image))
    assert splits.test.labels[1234] == label


@pytest.fixture
def tiny_cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-100's file format with 40 + 20 images, its md5s told to torchvision's class."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    rng = np.random.default_rng(0)

    def write(name: str, content: dict[str, Any]) -> list[Any]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def images(count: int) -> dict[str, Any]:
        data = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        return {"data": data, "fine_labels": [i % 4 for i in range(count)]}

    known = torchvision.datasets.CIFAR100
    monkeypatch.setattr(known, "train_list", [write("train", images(40))])
    monkeypatch.setattr(known, "test_list", [write("test", images(20))])
    name, md5 = write("meta", {"fine_label_names": ["ant", "bee", "cat", "dog"]})
    monkeypatch.setattr(known, "meta", {"filename": name, "key": "fine_label_names", "md5": md5})
    return tmp_path


def test_cifar100(tiny_cifar100: Path) -> None:
    splits = CIFAR100().load(tiny_cifar100, 0.2, 0)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [32, 8, 20]
    assert splits.classes == ["ant", "bee", "cat", "dog"]
    with (tiny_cifar100 / "cifar-100-python" / "train").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match="CIFAR100 is not there or a file's md5 is wrong"):
        CIFAR100().load(tiny_cifar100, 0.2, 0)


def test_missing_data_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        CIFAR10().load(tmp_path, 0.1, 0)
    message = str(caught.value)
    assert str(tmp_path / "cifar-10-batches-py") in message
    assert "unpack cifar-10-python.tar.gz" in message
    assert "`download: true` in the config of a training" in message
    assert "\n" not in message


def test_a_download_without_network_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", offline)
    CIFAR10().prepare(tmp_path)  # nothing is fetched unasked
    with pytest.raises(DataError, match=r"CIFAR10 could not be downloaded .*no network.*: fetch"):
        CIFAR10(download=True).prepare(tmp_path)


def test_hold_out_takes_a_share_of_every_class() -> None:
    labels = np.repeat([0, 1, 2, 5], [100, 40, 7, 1])
    rest, part = hold_out(labels, 0.25, 0)
    assert np.bincount(labels[part]).tolist() == [25, 10, 2]
    assert np.sort(np.concatenate([rest, part])).tolist() == list(range(148))
    assert (np.diff(part) > 0).all()
    again = hold_out(labels, 0.25, 0)[1]
    assert again.tolist() == part.tolist()
    assert hold_out(labels, 0.25, 1)[1].tolist() != part.tolist()
    assert len(hold_out(labels, 0.0, 0)[1]) == 0
    assert torch.from_numpy(rest).dtype == torch.int64
