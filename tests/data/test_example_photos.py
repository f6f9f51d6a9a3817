"""The photos of the package."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vision_attn
from vision_attn.data import example_photos, read_image


def test_each_is_a_small_photo() -> None:
    for name, path in example_photos().items():
        photo = read_image(path)
        assert min(photo.size) == 160, name
        assert path.stat().st_size < 12_000, name
    assert sum(path.stat().st_size for path in example_photos().values()) < 100_000


def test_none_is_a_training_photo(data_root: Path) -> None:
    root = data_root / "imagenette160"

    def digests(paths: Any) -> set[Any]:
        return {hashlib.sha256(path.read_bytes()).digest() for path in paths}

    ours = digests(example_photos().values())
    assert len(ours & digests(root.glob("val/*/*.JPEG"))) == len(ours) == 12
    assert not ours & digests(root.glob("train/*/*.JPEG"))


def test_a_sample_is_a_photo_of_the_package_by_name() -> None:
    for name, path in example_photos().items():
        assert np.array_equal(np.asarray(vision_attn.sample(name)), np.asarray(read_image(path)))
    with pytest.raises(
        ValueError, match=r"expected one of cassette_player, .* as the sample, got 'cat'"
    ):
        vision_attn.sample("cat")
