"""Photos in memory, in a cache, streamed: the same pixels; a choice by what is free; bad photos."""

import inspect
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data import (
    Batches,
    DataError,
    HuggingFace,
    ImageFolder,
    ImageTable,
    Shuffled,
    Splits,
    StreamedSet,
    WebDataset,
)
from vision_attn.data.draws import Draws
from vision_attn.data.folders import CenterCrop
from vision_attn.data.images import images_below
from vision_attn.data.listing import Tree, walk
from vision_attn.data.photo_sets import PhotoSource
from vision_attn.data.photos import Names
from vision_attn.data.storage import Room, choose, pixel_bytes, room
from vision_attn.data.streaming import SharedRing

CLASSES = "ant", "bee"


def fill(folder: Path, count: int = 7) -> None:
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            small = rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)
            photo = Image.fromarray(small).resize((90 + 11 * i, 75 - i), Image.Resampling.BICUBIC)
            photo.save(folder / name / f"{i}.jpg", quality=90)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "set")
    return tmp_path


def source(storage: Any, **more: Any) -> ImageFolder:
    return ImageFolder("set", size=(16, 24), shorter_side=27, storage=storage, **more)


def everything(splits: Splits, epoch: int = 3) -> list[torch.Tensor]:
    found = []
    for images in (splits.train, splits.val, splits.test):
        for batch in Batches(images, Shuffled(len(images), 3), seed=5):
            found += [batch.images, batch.labels, batch.draws.uniform(2)]
    return found


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_storage_shows_the_same_pixels_and_leaves_the_draws_alike(folder: Path) -> None:
    expected = everything(source("cache").load(folder, 0.25, 0))
    for storage, more in (("memory", {}), ("stream", {"workers": 0}), ("stream", {"workers": 2})):
        found = everything(source(storage, **more).load(folder, 0.25, 0))
        assert len(found) == len(expected) > 6
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_batches_keep_their_pixels_while_more_come_of_any_size(folder: Path) -> None:
    """More batches than there are places for, and some that are larger than the first."""
    train: Any = source("stream", workers=2, test_fraction=0.0).load(folder, 0.0, 0).train
    wanted = [np.arange(14)[i : i + 1 + i % 3] for i in range(12)]
    draws = [Draws(5, 1, items) for items in wanted]
    found = list(train.fetch_all(zip(wanted, draws, strict=True)))
    assert len(found) == 12 > 2 * train.workers + 1
    for items, (same, drawn, images) in zip(wanted, found, strict=True):
        alone = Draws(5, 1, items)
        assert (same == items).all()
        torch.testing.assert_close(images, train.fetch(items, alone), rtol=0, atol=0)
        torch.testing.assert_close(drawn.uniform(1), alone.uniform(1), rtol=0, atol=0)


def test_shared_memory_that_cannot_be_had_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(images: torch.Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory(shm)\nmore")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    message = r"14 MB of shared memory cannot be had \(unable to allocate .*\(shm\)\): expected"
    with pytest.raises(DataError, match=message):
        SharedRing(5, 19, (224, 224))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_epoch_of_processes_goes_on_with_the_next_batch(folder: Path) -> None:
    train: Any = source("stream", workers=2).load(folder, 0.0, 0).train
    whole = list(Batches(train, Shuffled(len(train), 2), seed=5))
    first = Batches(train, Shuffled(len(train), 2), seed=5)
    some: Any = iter(first)
    next(some), next(some)
    state = first.state_dict()
    some.close()
    assert state["batches"] == 2
    again = Batches(train, Shuffled(len(train), 2), seed=5)
    again.load_state_dict(state)
    for one, other in zip(again, whole[2:], strict=True):
        torch.testing.assert_close(one.images, other.images, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_see_together_what_one_sees(folder: Path) -> None:
    train: Any = source("stream", workers=1).load(folder, 0.0, 0).train
    one = list(Batches(train, Shuffled(len(train), 4, seed=1), seed=5))
    two = [
        list(Batches(train, Shuffled(len(train), 2, rank, 2, seed=1), seed=5)) for rank in (0, 1)
    ]
    assert sum(map(len, one)) == len(train)
    for whole, *shares in zip(one, *two, strict=True):
        together = torch.cat([share.images for share in shares])
        torch.testing.assert_close(together, whole.images, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("needed", "kept", "memory", "disk", "expected"),
    [
        (10, 0, 100, 100, "cache"),
        (10, 0, 9, 100, "stream"),  # it would be read from the disk each epoch
        (10, 0, 100, 19, "memory"),
        (10, 9, 100, 3, "cache"),  # most of it is there already
        (10, 0, 19, 19, "stream"),
    ],
)
def test_the_choice_by_what_is_free(
    needed: int, kept: int, memory: int, disk: int, expected: str
) -> None:
    storage, why = choose(needed * 10**9, kept * 10**9, Room(memory * 10**9, disk * 10**9))
    assert storage == expected
    assert why == f"{needed}.0 GB of pixels; free: {memory}.0 GB of memory, {disk}.0 GB of disk"


def test_processes_share_a_cache_and_keep_pixels_of_their_own_in_memory() -> None:
    gb = 10**9
    storage, why = choose(10 * gb, 0, Room(100 * gb, 100 * gb, processes=8))
    assert storage == "cache"
    assert why.endswith("free: 100.0 GB of memory, 100.0 GB of disk, shared by 8 processes")
    assert choose(10 * gb, 0, Room(100 * gb, 0, processes=5))[0] == "memory"
    assert choose(10 * gb, 0, Room(100 * gb, 0, processes=8))[0] == "stream"


@pytest.mark.parametrize(
    ("told", "processes"), [(None, 1), ("4", 4), ("0", 1), ("", 1), ("four", 1)]
)
def test_the_launcher_says_how_many_processes_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, processes: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if told is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert room(tmp_path).processes == processes


NEW, OLD = "0::/a/b\n", "5:memory:/a/b\n2:cpu,cpuacct:/c\n0::/\n"
NO_LIMIT = "9223372036854771712\n"  # of version 1


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        (NEW, {"a/b/memory.max": "max\n", "a/b/memory.current": "50\n"}, None),
        (NEW, {"a/b/memory.max": "500\n", "a/b/memory.current": "200\n"}, 300),
        (NEW, {"a/memory.max": "500", "a/memory.current": "200"}, 300),  # of the parent
        (NEW, {"memory.max": "500", "memory.current": "200"}, 300),  # a container's own end
        (
            NEW,
            {
                "a/b/memory.max": "900", "a/b/memory.current": "100",
                "a/memory.max": "700", "a/memory.current": "650",
            },
            50,
        ),
        (  # what files are cached in is free
            NEW,
            {
                "a/b/memory.max": "500", "a/b/memory.current": "480",
                "a/b/memory.stat": "anon 80\nfile 400\ninactive_file 300\nactive_file 90\n",
            },
            410,
        ),
        (NEW, {"a/b/memory.max": "500", "a/b/memory.current": "600"}, 0),
        (NEW, {"a/b/memory.max": "500"}, None),
        (NEW, {"a/b/memory.max": "five", "a/b/memory.current": "2"}, None),
        (NEW, {}, None),
        ("", {"memory.max": "500", "memory.current": "200"}, None),
        (
            OLD,
            {
                "memory/a/b/memory.limit_in_bytes": NO_LIMIT,
                "memory/a/b/memory.usage_in_bytes": "70",
                "memory/a/memory.limit_in_bytes": "500\n",
                "memory/a/memory.usage_in_bytes": "400\n",
                "memory/a/memory.stat": "inactive_file 7\ntotal_inactive_file 300\n",
            },
            400,
        ),
        (OLD, {"cpu/c/memory.limit_in_bytes": "500", "cpu/c/memory.usage_in_bytes": "1"}, None),
    ],
)  # fmt: skip
def test_a_containers_limit_is_less_than_the_machines_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    control_groups: Callable[..., None],
    own: str,
    files: dict[str, str],
    free: int | None,
) -> None:
    control_groups(own, files)
    monkeypatch.setattr("vision_attn.data.storage._free_of_machine", lambda: 1000)
    assert room(tmp_path).memory == (1000 if free is None else free)


def test_auto_asks_what_is_free_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    splits = source("auto").load(folder, 0.0, 0)
    assert not isinstance(splits.train, StreamedSet)
    train: Any = source("stream").load(folder, 0.0, 0).train
    estimated = pixel_bytes(train.photos, 27)
    exact = sum(train.photos.pixels(i, 27).size for i in range(len(train)))
    assert estimated == pytest.approx(exact, rel=0.05)
    monkeypatch.setattr("vision_attn.data.photo_sets.room", lambda place: Room(1, 1))
    with caplog.at_level(logging.INFO, "vision_attn.data.storage"):
        assert isinstance(ImageFolder("set", size=64).load(folder, 0.0, 0).train, StreamedSet)
    assert "storage stream: 0.0 GB of pixels; free: 0.0 GB of memory" in caplog.text
    assert not list((folder / ".cache").glob("*73px"))


def test_an_unreadable_photo_is_passed_over_as_often_as_is_allowed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "set/ant/3.jpg").write_text("no photo")
    items = np.arange(14)
    for workers in (0, 2):
        strict = source("stream", workers=workers, test_fraction=0.0).load(folder, 0.0, 0).train
        with pytest.raises(DataError, match=r"1 photos cannot be read, 0 are allowed .*ant/3\.jpg"):
            list(strict.fetch_all([(items, Draws(0, 0, items))]))
    photos: Any = source("stream", test_fraction=0.0).load(folder, 0.0, 0).train
    labels, crop = photos.labels.numpy(), CenterCrop((16, 24), 1.0)
    train = StreamedSet(photos.photos, labels, (16, 24), crop, 27, workers=0, max_corrupt=1)
    with caplog.at_level(logging.WARNING):
        images = train.fetch(items, Draws(0, 0, items))
    assert caplog.text.count("ant/3.jpg: expected an image") == 1
    assert "Another photo of its class takes its place" in caplog.text
    torch.testing.assert_close(images[3], images[4], rtol=0, atol=0)  # the next of its class
    assert (images[3] != images[2]).any()
    train.fetch(items, Draws(0, 1, items))  # the same one again counts once
    for i in range(7):
        (folder / f"set/bee/{i}.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="no other photo of its class can be read"):
        train.fetch(items, Draws(0, 0, items))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_ended_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train: Any = source("stream", workers=1).load(folder, 0.0, 0).train
    here = os.getpid()
    read = type(train.photos.photos).jpeg

    def killed(photos: Path, item: Any) -> Any:
        if os.getpid() != here:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        return read(photos, item)

    monkeypatch.setattr(type(train.photos.photos), "jpeg", killed)
    items = np.arange(3)
    with pytest.raises(DataError, match=r"process that decodes photos was killed, .*last\.ckpt"):
        list(train.fetch_all([(items, Draws(0, 0, items))]))


def test_the_index_of_a_tree_notices_what_comes_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "set")
    old = time.time() - 100
    for place in (tmp_path / "set", *(tmp_path / "set").iterdir()):
        os.utime(place, (old, old))
    index = tmp_path / "index.json"

    def files() -> int:
        tree = Tree(tmp_path / "set", index)
        found = tree.files()
        tree.keep()
        assert found == [
            path.relative_to(tmp_path / "set").as_posix() for path in images_below(tmp_path / "set")
        ]
        return tree.read

    assert files() == 3
    assert files() == 0
    (tmp_path / "set/bee/9.jpg").touch()
    assert files() == 1
    assert files() == 1  # it changed just now: a second file might come in the same tick
    os.utime(tmp_path / "set/bee", (old + 9, old + 9))
    assert files() == 1
    assert files() == 0
    (tmp_path / "set/ant/0.jpg").unlink()
    (tmp_path / "set/cow").mkdir()
    assert files() == 3
    index.write_text('{"format": 1, "folders": {"": 3}}')
    assert files() == 4


def test_the_order_of_a_walk_is_that_of_the_list(tmp_path: Path) -> None:
    for name in ("b/1.jpg", "b.jpg", "b-1/x.png", "a/z/q.gif", "a/b.webp", ".h/x.jpg", "B/1.JPG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert list(walk(tmp_path)) == [str(path) for path in images_below(tmp_path)]
    assert len(list(walk(tmp_path))) == 6


def test_names_take_a_few_bytes_each_and_any_sign() -> None:
    names = [f"n{i:08}/ééé\udcff{i}.jpg" for i in range(1000)]
    kept = Names(names)
    assert list(kept) == names
    assert kept[-1] == names[-1]
    assert kept[3:5] == names[3:5]
    assert kept._text.nbytes + kept._ends.nbytes < 40 * 1000


def test_fraction_number_and_list(folder: Path) -> None:
    def names(**more: Any) -> list[Any]:
        train: Any = source("stream", test_fraction=0.0, **more).load(folder, 0.0, 0).train
        return [train.photos.names[i] for i in range(len(train))]

    assert len(names()) == 14
    few, half = names(fraction=0.2), names(fraction=0.5)
    assert [len(few), len(half)] == [2, 8]
    assert set(few) < set(half)
    assert len(names(per_class=3, fraction=0.9)) == 6
    listed = folder / "list.txt"
    listed.write_text("ant/2.jpg\nbee/5\n\nbee/0.jpg\n")
    assert names(subset=str(listed)) == ["ant/2.jpg", "bee/0.jpg", "bee/5.jpg"]
    listed.write_text("ant/2.jpg\nbee/5\n", encoding="utf-8-sig")  # as Windows' editors do
    assert names(subset=str(listed)) == ["ant/2.jpg", "bee/5.jpg"]
    listed.write_text("ant/2.jpg\nbee/55.jpg\n")
    with pytest.raises(DataError, match=r"1 of 2 names are not in .*'bee/55\.jpg'.*'bee/5\.jpg'"):
        names(subset=str(listed))
    listed.write_text("ant/2.jpg\n")
    with pytest.raises(DataError, match=r"no image of 1 of 2 classes \(bee\)"):
        names(subset=str(listed))
    with pytest.raises(DataError, match=r"gone\.txt: the list of photos"):
        names(subset="gone.txt")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("fraction", 0.0, "fraction must be above 0"),
        ("workers", -1, "workers must be at least 0"),
        ("max_corrupt", -1, "max_corrupt must be at least 0"),
        ("per_class", 0, "per_class must be at least 1"),
    ],
)
def test_wrong_options(option: str, value: Any, message: str) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(ValueError, match=message):
        ImageFolder("set", **options)


OPTIONS = [
    *("size", "test_size", "shorter_side", "per_class", "test_fraction", "scale", "ratio"),
    *("corrupt", "cache"),
    *("storage", "workers", "max_corrupt", "fraction", "subset", "value_range"),
]


@pytest.mark.parametrize("kind", [ImageFolder, ImageTable, HuggingFace, WebDataset])
def test_every_source_of_photos_takes_the_same_options_after_its_own(
    kind: Callable[..., PhotoSource],
) -> None:
    parameters = inspect.signature(kind).parameters
    assert list(parameters)[-len(OPTIONS) :] == OPTIONS
    folders = inspect.signature(ImageFolder).parameters
    for name in OPTIONS:
        assert parameters[name].default == folders[name].default
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("second", [64, "cat"])
def test_a_second_argument_that_is_no_list_of_classes(second: int | str) -> None:
    message = f"classes must be a list of folders' names, got {second!r}; give other options by"
    source: Any = ImageFolder("set")
    source.classes = second  # run-time type checks, which are on here, refuse it as an argument
    with pytest.raises(ValueError, match=message):
        source.__post_init__()


def test_a_full_disk_under_the_cache_is_a_line(full_disk: Path, folder: Path) -> None:
    whole = ImageFolder("set", size=64, storage="cache", cache=str(full_disk))
    with pytest.raises(DataError, match="the cache of decoded images cannot be written"):
        whole.load(folder, 0.0, 0)
