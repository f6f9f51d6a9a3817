from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vision_attn.data import Planted, PlantedImages, painting
from vision_attn.data.canvas import REACH
from vision_attn.data.planted import CLASSES, SHAPES, paint


def same(one: PlantedImages, other: Any) -> bool:
    fields = ("images", "labels", "object_mask", "shortcut_mask")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in fields)


def test_image_i_is_a_function_of_seed_split_and_i() -> None:
    whole = paint(0, 301)
    part = paint(117, 149)
    assert torch.equal(part.images, whole.images[117:149])
    assert torch.equal(part.object_mask, whole.object_mask[117:149])
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    assert same(paint(0, 301), whole)
    torch.set_num_threads(threads)
    for other in (paint(0, 31, seed=1), paint(0, 31, split="val"), paint(0, 31, split="test")):
        assert (other.images != whole.images[:31]).flatten(1).any(1).all()


def test_pictures_never_change() -> None:
    """A checksum over pictures of every class: a change here changes everybody's results."""
    planted = paint(0, 20, size=(48, 80), cue="agree")
    values = planted.images.long().flatten()
    weights = torch.arange(len(values)) % 9973
    assert (values * weights).sum().item() == CHECKSUM
    assert planted.object_mask.sum().item() == MASK_PIXELS


CHECKSUM, MASK_PIXELS = 136762217239, 9562


@pytest.mark.parametrize("size", [(64, 64), (160, 224), (97, 31), (16, 16)])
def test_every_size_and_shape(size: tuple[int, int]) -> None:
    planted = paint(0, 40, size=size)
    assert planted.images.shape == (40, 3, *size)
    assert planted.images.dtype == torch.uint8
    assert planted.object_mask.shape == planted.shortcut_mask.shape == (40, *size)
    assert planted.labels.tolist() == [i % 10 for i in range(40)]
    assert planted.classes == CLASSES
    assert len(CLASSES) == 10
    share = planted.object_mask.float().sum((1, 2)) / min(size) ** 2
    assert share.min() > 0.08
    assert share.max() < 0.3
    assert not planted.shortcut_mask.any()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_shapes_have_area_1_and_fit_their_reach(shape: Callable[..., torch.Tensor]) -> None:
    axis = torch.linspace(-1, 1, 1001)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    distance = shape(x[None], y[None])[0]
    inside = distance <= 0
    assert inside.float().sum().item() * 0.002**2 == pytest.approx(1, abs=5e-3)
    assert (x * x + y * y)[inside].max() <= REACH**2
    # near the outline the distance grows by one a unit, away from corners
    near = distance.abs() < 0.01
    slope_y, slope_x = torch.gradient(distance, spacing=0.002)
    slope = (slope_x**2 + slope_y**2).sqrt()[near]
    assert ((slope - 1).abs() < 0.05).float().mean() > 0.97


def test_the_mask_is_the_object() -> None:
    """Seen without antialiasing: pixels in the mask show the object's two colours and no other."""
    planted = paint(0, 200, size=(128, 128))
    for image, mask in zip(planted.images, planted.object_mask, strict=True):
        inner = torch.nn.functional.avg_pool2d(mask[None].float(), 5, 1, 2)[0] == 1
        colours = image[:, inner].T.double()
        centred = colours - colours.mean(0)
        # both colours and all blends of them lie on one line through colour space
        off_line = torch.linalg.svdvals(centred)[1] / len(colours) ** 0.5
        assert off_line < 1.0
        outer = torch.nn.functional.max_pool2d(mask[None].float(), 5, 1, 2)[0] == 0
        assert image[:, outer].double().std() > 1


def test_same_scene_at_another_size() -> None:
    small, large = paint(0, 50, size=(64, 64)), paint(0, 50, size=(128, 128))
    shrunk = torch.nn.functional.avg_pool2d(large.images.float(), 2)
    assert (shrunk - small.images).abs().mean() < 9
    both = torch.nn.functional.avg_pool2d(large.object_mask.float()[:, None], 2)[:, 0]
    assert ((both > 0.5) != small.object_mask).float().mean() < 0.01


def test_the_cue_changes_the_mark_and_nothing_else() -> None:
    plain, agree, contradict = (
        paint(0, 300, split="test", cue=cue) for cue in ("none", "agree", "contradict")
    )
    for marked in (agree, contradict):
        changed = (marked.images != plain.images).any(1)
        assert not (changed & ~marked.shortcut_mask).any()
        assert torch.equal(marked.labels, plain.labels)
        assert torch.equal(marked.object_mask, plain.object_mask & ~marked.shortcut_mask)
        assert not (marked.object_mask & marked.shortcut_mask).any()
        assert (marked.shortcut_mask.sum((1, 2)) == 64).all()
        # a corner mark: none of it in the middle
        assert not marked.shortcut_mask[:, 16:48, 16:48].any()
        assert len(marked.shortcut_mask.flatten(1).unique(dim=0)) == 4
    assert torch.equal(agree.shortcut_mask, contradict.shortcut_mask)
    shown = {}
    for label in range(10):
        colours = [
            tuple(image[:, mask][:, 0].tolist())
            for image, mask, own in zip(
                agree.images, agree.shortcut_mask, agree.labels, strict=True
            )
            if own == label
        ]
        assert len(set(colours)) == 1
        shown[colours[0]] = label
    assert len(shown) == 10
    wrong = [
        shown[tuple(image[:, mask][:, 0].tolist())]
        for image, mask in zip(contradict.images, contradict.shortcut_mask, strict=True)
    ]
    assert (torch.tensor(wrong) != contradict.labels).all()
    assert (
        len({(own, other) for own, other in zip(contradict.labels.tolist(), wrong, strict=True)})
        > 80
    )


def test_unit_vectors_go_round_once() -> None:
    u = torch.linspace(0, 1, 10_001)[:-1]
    cos, sin = painting.unit_vectors(u)
    torch.testing.assert_close(cos**2 + sin**2, torch.ones_like(u))
    turn = torch.diff(torch.atan2(sin, cos)) % (2 * torch.pi)
    assert turn.min() > 0
    assert turn.sum() == pytest.approx(2 * torch.pi, abs=2e-3)
    assert turn.max() / turn.min() < 1.2


def test_hsv_is_pillows() -> None:
    import colorsys

    hue, saturation, value = torch.rand(3, 101)
    ours = painting.hsv(hue, saturation, value)
    expected = [
        colorsys.hsv_to_rgb(*row) for row in torch.stack([hue, saturation, value], 1).tolist()
    ]
    torch.testing.assert_close(ours, torch.tensor(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(painting.hsv(hue + 3, saturation, value), ours, atol=1e-5, rtol=0)


def test_a_linear_classifier_on_pixels_fails() -> None:
    """Softmax regression on the pixels, early in training and late: far below 40 %."""
    train, test = paint(0, 3000, size=(32, 32)), paint(0, 1000, size=(32, 32), split="test")
    x, tx = (planted.images.flatten(1).float() / 255 - 0.5 for planted in (train, test))
    linear = torch.nn.Linear(x.shape[1], 10)
    optimizer = torch.optim.AdamW(linear.parameters(), 1e-3)
    best = 0.0
    for _ in range(15):
        for items in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(linear(x[items]), train.labels[items]).backward()
            optimizer.step()
        right = (linear(tx).argmax(1) == test.labels).float().mean().item()
        best = max(best, right)
    assert best < 0.25


def test_source() -> None:
    source = Planted(size=(24, 40), train=30, val=20, test=10, shortcut=True, test_cue="contradict")
    splits = source.load(Path("unused"), 0.1, 0)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [30, 20, 10]
    assert splits.train.size == (24, 40)
    assert splits.classes == CLASSES
    masks = source.images("train")
    train: Any = splits.train
    assert torch.equal(masks.images, train.images)
    assert masks.shortcut_mask.any((1, 2)).all()
    assert same(source.images("test"), paint(0, 10, size=(24, 40), split="test", cue="contradict"))
    assert same(source.images("test", "none"), paint(0, 10, size=(24, 40), split="test"))
    with pytest.raises(ValueError, match=r"at least 1 and at most 10000000, got .*1000000000000"):
        Planted(16, test=10**12)
    with pytest.raises(ValueError, match="train, val and test must be at least 1"):
        Planted(val=0)
    with pytest.raises(ValueError, match="at least 16 x 16 pixels, got 8 x 64"):
        Planted((8, 64)).images()
