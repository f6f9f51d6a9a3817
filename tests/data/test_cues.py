"""Cues in photos: exact masks, places, the same whatever the batch, and sources that carry them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vision_attn.data import (
    Caption,
    Cue,
    Cued,
    CuedSet,
    DataError,
    Frame,
    ImageData,
    Planted,
    Sticker,
)
from vision_attn.data.draws import Draws, uniforms
from vision_attn.data.tensors import TensorSet

CUES = [Sticker(), Sticker(0.5, hue=0.1), Caption(), Caption("a much longer line"), Frame()]
CLASSES = ["dotted disk", "plain cross"]


def photos(n: int = 7, size: tuple[int, int] = (41, 59)) -> torch.Tensor:
    # no grey level that a cue has
    return torch.randint(90, 110, (n, 3, *size), dtype=torch.uint8)


@pytest.mark.parametrize("cue", CUES, ids=str)
def test_the_mask_holds_what_changed_and_nothing_else(cue: Cue) -> None:
    before = photos()
    kept = before.clone()
    cued = cue.paint(before, torch.rand(7, 2))
    assert torch.equal(before, kept)
    changed = (cued.images != before).any(1)
    assert not (changed & ~cued.mask).any()
    # a pixel at a blended edge may keep its value, being covered by less than one part in 255
    assert (cued.mask & ~changed).sum() <= 0.02 * cued.mask.sum()
    share = cued.mask.float().mean((1, 2))
    assert ((share > 0.01) & (share < 0.5)).all()


@pytest.mark.parametrize("cue", CUES, ids=str)
def test_a_photo_is_painted_the_same_in_any_batch(cue: Cue) -> None:
    before, place = photos(), torch.rand(7, 2)
    together = cue.paint(before, place)
    for i in (0, 6):
        alone = cue.paint(before[i : i + 1], place[i : i + 1])
        assert torch.equal(alone.images[0], together.images[i])
        assert torch.equal(alone.mask[0], together.mask[i])


def test_a_sticker_lies_where_it_is_told_and_whole() -> None:
    place = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.5, 0.25]])
    mask = Sticker(size=0.3).paint(photos(3, (80, 100)), place).mask
    for one, (v, u) in zip(mask, place.tolist(), strict=True):
        y, x = one.nonzero().double().mean(0)
        assert y + 0.5 == pytest.approx(12 + v * 56, abs=0.5)
        assert x + 0.5 == pytest.approx(12 + u * 76, abs=0.5)
        assert int(one.sum()) == pytest.approx(torch.pi * 12.5**2, rel=0.05)


def test_a_frame_is_a_frame() -> None:
    cued = Frame(width=0.1).paint(photos(2, (30, 50)), torch.rand(2, 2))
    want = torch.ones(30, 50, dtype=torch.bool)
    want[3:27, 3:47] = False
    assert torch.equal(cued.mask, want.expand(2, -1, -1))


def test_a_caption_is_a_band_with_dark_letters() -> None:
    cued = Caption("agency", height=0.2).paint(
        photos(2, (60, 90)), torch.tensor([[0.2, 0], [0.7, 1]])
    )
    for mask, image in zip(cued.mask, cued.images, strict=True):
        rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        assert len(rows) == 12
        assert int(mask.sum()) == len(rows) * len(columns)
        grey = image[0][mask].float()
        assert grey.min() < 60
        assert grey.median() > 200
    assert cued.mask[0].nonzero()[0].tolist() == [3, 0]
    assert cued.mask[1].nonzero()[-1].tolist() == [56, 89]
    narrow = Caption("far too long for a photo of this width").paint(
        photos(1, (60, 20)), torch.rand(1, 2)
    )
    assert narrow.mask.any(0).any(0).all()  # cut off, and never beyond the photo


def test_images_of_some_classes_carry_their_cue() -> None:
    plain = TensorSet(photos(600, (20, 20)), torch.arange(600) % 3)
    cued = CuedSet(plain, {1: Frame(), 2: Sticker()}, share=0.6, seed=3)
    items = np.arange(600)
    changed = []
    for epoch in (0, 1):
        images = cued.fetch(items, Draws(0, epoch, items))
        changed.append((images != plain.images).flatten(1).any(1))
    assert torch.equal(*changed)  # the same ones in every epoch
    by_class = [changed[0][label::3].float().mean() for label in range(3)]
    assert by_class[0] == 0
    assert float(by_class[1]) == pytest.approx(0.6, abs=0.1)
    assert torch.equal(changed[0], (uniforms((3,), items, 1)[:, 0] < 0.6) & (plain.labels > 0))
    some = np.array([5, 2, 11])
    torch.testing.assert_close(
        cued.fetch(some, Draws(0, 1, some)), images[torch.from_numpy(some)], rtol=0, atol=0
    )


def test_a_source_trains_on_cues_and_tests_without() -> None:
    source = Planted(size=24, train=40, val=20, test=20)
    cued = ImageData(Cued(source, {name: Frame() for name in CLASSES}), batch_size=20)
    plain = ImageData(source, batch_size=20)
    for data in (cued, plain):
        data.setup("fit")
    assert cued.classes == plain.classes
    labels = [cued.classes.index(name) for name in CLASSES]
    for part, changes in (("train", True), ("val", True), ("test", False)):
        a, b = getattr(cued.splits, part), getattr(plain.splits, part)
        items = np.arange(len(b))
        draws = (Draws(0, 0, items) for _ in range(2))
        differ = (a.fetch(items, next(draws)) != b.fetch(items, next(draws))).flatten(1).any(1)
        assert torch.equal(differ, changes & torch.isin(b.labels, torch.tensor(labels)))
    images, _ = next(iter(map(cued.for_training, cued.train_dataloader())))
    assert images.shape == (20, 3, 24, 24)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sticker(size=0.0), "size must be above 0 and at most 1, got 0.0"),
        (lambda: Frame(width=1.5), "width must be above 0 and at most 1, got 1.5"),
        (lambda: Caption(height=-1.0), "height must be above 0 and at most 1, got -1.0"),
        (lambda: Caption("  "), "text must not be empty, got '  '"),
        (lambda: Cued(Planted(), {}), "expected a cue for at least one class, got none"),
        (lambda: Cued(Planted(), {"a": Frame()}, 0.0), "share must be above 0 and at most 1, got"),
    ],
)
def test_what_cannot_be_painted_is_said(make: Callable[..., Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_a_cue_for_an_unknown_class_names_the_nearest() -> None:
    source = Cued(Planted(size=16, train=1, val=1, test=1), {"dotted disc": Frame()})
    with pytest.raises(
        DataError, match="no class 'dotted disc' to give a cue; the nearest: dotted di"
    ):
        source.load(Path(), 0.1, 0)
