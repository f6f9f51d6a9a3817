"""The same photos from a folder, from Parquet, from tar shards and by a table: the same results."""

import csv
import io
import json
import shutil
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vision_attn.compat import download
from vision_attn.compat.huggingface_private import is_offline
from vision_attn.data import DataError, HuggingFace, ImageTable, Splits, WebDataset

sys.path.append(str(Path(__file__).parent))
from copies import CLASSES, SIZES, assert_same, files, needs_datasets, parquet

# datasets


@needs_datasets
@pytest.mark.parametrize("storage", ["cache", "stream"])
def test_parquet_gives_what_a_folder_gives(
    datasets: ModuleType, root: Path, expected: Splits, storage: Any
) -> None:
    parquet(datasets, root, root / "shards" / "train-0.parquet")
    source = HuggingFace("shards/*.parquet", storage=storage, workers=0, **SIZES)
    found = source.load(root, 0.2, 0)
    assert found.classes == CLASSES
    assert_same(found, expected)


@needs_datasets
def test_labels_as_words_as_lists_and_of_another_kind(datasets: ModuleType, root: Path) -> None:
    listed = files(root)
    words = [CLASSES[label] for _, label in listed]
    for name, labels in (
        ("words", words),
        ("lists", [[label, (label + 1) % 3] for _, label in listed]),
        ("floats", [label + 0.5 for _, label in listed]),
        ("numbers", [label for _, label in listed]),
    ):
        parquet(datasets, root, root / name / "train.parquet", labels)
    assert HuggingFace("words", **SIZES).load(root, 0.2, 0).classes == CLASSES
    several = HuggingFace("lists", classes=CLASSES, test_fraction=0.0, **SIZES).load(root, 0.0, 0)
    assert several.train.labels.shape == (21, 3)
    assert several.train.labels[0].tolist() == [1, 1, 0]
    with pytest.raises(DataError, match=r"floats, train, row 0: expected a class .* got 0\.5"):
        HuggingFace("floats", **SIZES).load(root, 0.2, 0)
    with pytest.raises(DataError, match="a label is 2, but there are 2 classes"):
        HuggingFace("numbers", classes=["a", "b"], **SIZES).load(root, 0.2, 0)
    with pytest.raises(DataError, match=r"no column 'img': there are image"):
        HuggingFace("words", image="img", **SIZES).load(root, 0.2, 0)
    with pytest.raises(DataError, match="no split 'val': there are train"):
        HuggingFace("words", val="val", **SIZES).load(root, 0.2, 0)
    cut = root / "words" / "train.parquet"
    cut.write_bytes(cut.read_bytes()[:1000])
    with pytest.raises(DataError, match="words: the data set cannot be opened"):
        HuggingFace("words", **SIZES).load(root, 0.2, 0)


@needs_datasets
@pytest.mark.parametrize(
    ("streaming", "loader"), [(False, "load_dataset"), (True, "load_dataset_builder")]
)
def test_without_a_network_a_data_set_is_looked_for_in_the_cache_alone(
    datasets: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool, loader: str
) -> None:
    parquet(datasets, root, root / "here" / "train.parquet")
    real, offline = getattr(datasets, loader), []
    monkeypatch.setattr(download, "_reachable", lambda url: False)
    monkeypatch.setattr(
        datasets, loader, lambda **what: (offline.append(is_offline()), real(**what))[1]
    )
    with pytest.raises(DataError, match=r"gone: the data set cannot be opened .* on the hub"):
        HuggingFace("gone", streaming=streaming, **SIZES).load(root, 0.2, 0)
    HuggingFace("here", streaming=streaming, **SIZES).load(root, 0.2, 0)
    assert offline == [True, False]
    assert not is_offline()


@needs_datasets
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([[0], None, [2]], None, r"train, row 1: expected a list of classes .*, got None"),
        # the library's own reader refuses splits of different columns
        ([[0], [1, 2], [2]], [0, 1, 2], r"(test, row 0: .* list .*, got 0|cannot be opened)"),
        ([0, None, 2], None, r"train, row 1: expected a class .*, got None"),
        ([0, 1, 2], [-1] * 3, r"test, row 0: .*, got -1: .* a split that has classes with `test`"),
        ([[], [], []], None, "no photo has a class in the column 'label'"),
    ],
)
def test_rows_without_a_class_are_named(
    datasets: ModuleType,
    root: Path,
    streaming: bool,
    train: list[int | list[int] | None],
    test: list[int] | None,
    message: str,
) -> None:
    parquet(datasets, root, root / "shards" / "train-0.parquet", train * 7)
    if test:
        parquet(datasets, root, root / "shards" / "test-0.parquet", test * 7)
    with pytest.raises(DataError, match=rf"^shards[^\n]*{message}[^\n]*$"):
        HuggingFace("shards", streaming=streaming, **SIZES).load(root, 0.2, 0)


@needs_datasets
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", ["shards", "shards/*/*.parquet", "*/*/*.parquet"])
def test_folders_name_splits_as_files_do(
    datasets: ModuleType, root: Path, streaming: bool, path: str
) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        file = root / "shards" / split / "0000.parquet"
        file.parent.mkdir(parents=True)
        parquet(datasets, root, file, [number] * 21)
    source = HuggingFace(path, classes=CLASSES, streaming=streaming, storage="stream", **SIZES)
    parts, _ = source.parts(root)
    assert {name: set(part.labels) for name, part in parts.items()} == {
        "train": {0},
        "val": {1},
        "test": {2},
    }


@needs_datasets
def test_rows_that_are_saved_again_are_decoded_again(datasets: ModuleType, root: Path) -> None:
    """The same files, as many rows, another order: the pixels must follow the labels."""
    how = {"path": "saved", "classes": CLASSES, **SIZES}
    for step in (1, -1):
        rows = files(root)[::step]
        photos = [{"bytes": file.read_bytes(), "path": file.name} for file, _ in rows]
        table = datasets.Dataset.from_dict({"image": photos, "label": [one for _, one in rows]})
        shutil.rmtree(root / "saved", ignore_errors=True)
        table.cast_column("image", datasets.Image()).save_to_disk(str(root / "saved"))
        expected = HuggingFace(storage="stream", workers=0, **how).load(root, 0.2, 0)
        for _ in range(2):
            assert_same(HuggingFace(storage="cache", **how).load(root, 0.2, 0), expected)
    assert len(list((root / ".cache").glob("saved-*"))) == 2


# tar shards


@pytest.fixture
def webdataset() -> ModuleType:
    reason = "needs webdataset: pip install 'vision-attn[webdataset]'"
    return pytest.importorskip("webdataset", reason=reason)


def shards(root: Path, folder: str = "tars", ending: str = "cls") -> Any:
    """Write the photos into three tar shards by hand, as the format's page has it."""
    (root / folder).mkdir()
    listed = files(root)
    for number in range(3):
        with tarfile.open(root / folder / f"train-{number:03}.tar", "w") as tar:
            for file, label in listed[number * 7 : number * 7 + 7]:
                words = json.dumps({"label": label, "more": 1}) if ending == "json" else str(label)
                add(tar, f"{file.stem}.jpg", file.read_bytes())
                add(tar, f"{file.stem}.{ending}", words.encode())
    return root / folder


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def write_shard(path: Path, listed: list[Any]) -> None:
    """Write a shard of (key, file, number of the class)."""
    path.parent.mkdir()
    with tarfile.open(path, "w") as tar:
        for key, file, label in listed:
            add(tar, f"{key}.jpg", file.read_bytes())
            add(tar, f"{key}.cls", str(label).encode())


@pytest.mark.parametrize(
    ("urls", "more"),
    [
        ("tars/train-{000..002}.tar", {}),
        ("tars/*.tar", {"storage": "stream", "workers": 0}),
        (["tars/train-000.tar", "tars/train-00[12].tar"], {"storage": "memory"}),
    ],
)
def test_tar_shards_give_what_a_folder_gives(
    webdataset: ModuleType,
    root: Path,
    expected: Splits,
    urls: str | list[str],
    more: dict[str, Any],
) -> None:
    shards(root)
    source = WebDataset(urls, classes=CLASSES, **SIZES, **more)
    found = source.load(root, 0.2, 0)
    assert found.classes == CLASSES
    assert_same(found, expected)
    assert_same(source.load(root, 0.2, 0), expected)  # from the index


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_librarys_own_writer_and_reader_agree(webdataset: ModuleType, root: Path) -> None:
    listed = files(root)
    (root / "own").mkdir()
    with webdataset.TarWriter(str(root / "own/a.tar")) as tar:
        for file, label in listed:
            tar.write({"__key__": f"x/{file.stem}", "jpg": file.read_bytes(), "cls": label})
    split = WebDataset("own/a.tar", test_fraction=0.0, storage="stream", workers=0, **SIZES)
    train: Any = split.load(root, 0.0, 0).train
    samples = list(
        webdataset.WebDataset(str(root / "own/a.tar"), shardshuffle=False).decode("rgb8")
    )
    assert len(samples) == len(train) == 21
    for item, sample in enumerate(samples):
        assert int(train.labels[item]) == sample["cls"]
        np.testing.assert_array_equal(np.asarray(train.photos.read(item)), sample["jpg"])


def test_shards_of_one_name_in_two_folders_keep_their_own_photos(
    webdataset: ModuleType, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cameras and crawlers number from 0 again: a/000.tar and b/000.tar, with the same keys."""
    listed = files(root)
    for folder, some in (("a", listed[:7]), ("b", listed[7:14])):
        write_shard(root / folder / "000.tar", [(str(i), *one) for i, one in enumerate(some)])
    how = {"classes": CLASSES[:2], **SIZES}
    whole = WebDataset("*/000.tar", storage="stream", workers=0, **how).load(root, 0.2, 0)
    cached = WebDataset("*/000.tar", storage="cache", **how)
    assert_same(cached.load(root, 0.2, 0), whole)
    assert_same(cached.load(root, 0.2, 0), whole)  # from the cache
    (pixels,) = (root / ".cache").glob("shards-*/pixels.bin")
    pixels.write_bytes(bytes(pixels.stat().st_size))
    assert_same(cached.load(root, 0.2, 0), whole)
    assert "(the first: 000.tar/0 (" in caplog.text


def test_shards_of_one_name_for_two_parts_keep_their_own_photos(
    webdataset: ModuleType, root: Path
) -> None:
    listed = files(root)
    for folder, some in (("train", listed[::2]), ("val", listed[1::2])):
        write_shard(root / folder / "000.tar", [(str(i), *one) for i, one in enumerate(some)])
    how = {"train": "train/000.tar", "val": "val/000.tar", "classes": CLASSES, **SIZES}
    expected = WebDataset(storage="stream", workers=0, **how).load(root, 0.0, 0)
    sizes = set()
    for _ in range(2):
        assert_same(WebDataset(storage="cache", **how).load(root, 0.0, 0), expected)
        (pixels,) = (root / ".cache").glob("shards-*/pixels.bin")
        sizes.add(pixels.stat().st_size)
    assert len(sizes) == 1  # decoded once


def test_hidden_files_in_a_shard_are_no_photos(webdataset: ModuleType, root: Path) -> None:
    """macOS's tar puts ._0001.jpg beside 0001.jpg, and ._0001.cls beside 0001.cls."""
    file, _ = files(root)[0]
    write_shard(root / "mac" / "0.tar", [("._0", file, 1), ("0", file, 0), ("x/._1", file, 1)])
    found = WebDataset("mac/0.tar", storage="stream").parts(root)
    assert list(found[0]["train"].photos.names) == ["0.tar/0"]
    assert found[1] == ["0"]


def test_shards_below_a_folder_that_cannot_be_written(
    webdataset: ModuleType, root: Path, expected: Splits
) -> None:
    shards(root)
    how = {"classes": CLASSES, "cache": str(root / "file" / "cache"), **SIZES}
    (root / "file").write_text("no folder")
    found = WebDataset("tars/*.tar", storage="stream", workers=0, **how).load(root, 0.2, 0)
    assert_same(found, expected)


def test_bad_shards(webdataset: ModuleType, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = shards(root)
    whole = (place / "train-001.tar").read_bytes()
    source = {"train": "tars/*.tar", "classes": CLASSES, "storage": "stream", "workers": 0}
    with tarfile.open(place / "train-001.tar") as tar:
        end = tar.getmembers()[7].offset_data + 40
    (place / "train-001.tar").write_bytes(whole[:end])
    with pytest.raises(DataError, match=r"train-001\.tar: the shard is cut short or damaged"):
        WebDataset(**source, corrupt="error", **SIZES).load(root, 0.0, 0)
    splits = WebDataset(**source, test_fraction=0.0, **SIZES).load(root, 0.0, 0)
    assert 14 < len(splits.train) < 21
    assert "train-001.tar: the shard is cut short" in caplog.text
    (place / "train-001.tar").write_bytes(b"no tar at all")
    with pytest.raises(DataError, match=r"train-001\.tar: the shard is cut short or damaged"):
        WebDataset(**source, **SIZES).load(root, 0.0, 0)
    for urls, message in (
        ("tars/train-009.tar", r"train-009\.tar: no such shard"),
        ("gone/*.tar", r"gone/\*\.tar: no shard of this name"),
    ):
        with pytest.raises(DataError, match=message):
            WebDataset(urls).load(root, 0.0, 0)
    (place / "train-001.tar").write_bytes(whole)
    with pytest.raises(DataError, match="a label is 2, expected 0 to 1"):
        WebDataset("tars/*.tar", classes=["ant", "bee"]).load(root, 0.0, 0)
    with pytest.raises(
        DataError, match=r"7 photos have no label, such as ant0: expected ant0\.json"
    ):
        WebDataset("tars/*.tar", label="json").load(root, 0.0, 0)


def test_labels_in_json(webdataset: ModuleType, root: Path, expected: Splits) -> None:
    shards(root, "json", "json")
    found = WebDataset("json/*.tar", label="json", classes=CLASSES, **SIZES).load(root, 0.2, 0)
    assert_same(found, expected)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        if "stall" in self.path:
            server: Any = self.server
            server.stalled.wait(20)
            return
        super().do_GET()

    do_HEAD = do_GET


@pytest.fixture
def server(root: Path) -> Iterator[str]:
    """A web server of the folder; what is called stall gets no answer."""
    from functools import partial

    served: Any = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    served.stalled = threading.Event()
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.stalled.set()
    served.shutdown()
    served.server_close()
    thread.join()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_shards_of_a_server_are_fetched_once(
    webdataset: ModuleType, root: Path, expected: Splits, server: str
) -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp, which fsspec opens http by")
    place = shards(root)
    url = f"{server}/tars/train-{{000..002}}.tar"
    assert_same(WebDataset(url, classes=CLASSES, **SIZES).load(root, 0.2, 0), expected)
    for shard in place.iterdir():
        shard.unlink()
    assert_same(WebDataset(url, classes=CLASSES, **SIZES).load(root, 0.2, 0), expected)
    with pytest.raises(DataError, match=r"gone\.tar: the shard cannot be fetched"):
        WebDataset(f"{server}/tars/gone.tar").load(root, 0.0, 0)
    with pytest.raises(DataError, match=r"stall\.tar: the shard cannot be fetched"):
        WebDataset(f"{server}/tars/stall.tar", timeout=0.5).load(root, 0.0, 0)
    assert not list((root / ".cache/shards").glob("*.part"))


def test_what_a_command_prints_is_a_shard(
    webdataset: ModuleType, root: Path, expected: Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shards(root)
    source = WebDataset(f"pipe:cat {place}/train-{{000..002}}.tar", classes=CLASSES, **SIZES)
    with pytest.raises(DataError, match=r"a pipe runs a command: set VISION_ATTN_PIPES=1 if you"):
        source.load(root, 0.2, 0)
    monkeypatch.setenv("VISION_ATTN_PIPES", "1")
    assert_same(source.load(root, 0.2, 0), expected)
    for shard in place.iterdir():
        shard.unlink()
    assert_same(source.load(root, 0.2, 0), expected)  # each command ran once
    broken = WebDataset("pipe:printf 123; echo no such bucket >&2; exit 3", **SIZES)
    with pytest.raises(DataError, match=r"cannot be fetched .*ended with status 3: no such bucket"):
        broken.load(root, 0.2, 0)
    assert not list((root / ".cache/shards").glob("*.part"))


# tables


def write_table(root: Path, header: list[Any], rows: list[tuple[Any, ...]]) -> None:
    with (root / "set" / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_a_table_gives_what_a_folder_gives(root: Path, expected: Splits) -> None:
    rows = [(f"{CLASSES[label]}/{file.name}", CLASSES[label]) for file, label in files(root)]
    write_table(root, ["image", "kind"], rows)
    found = ImageTable("set", "labels.csv", label="kind", **SIZES).load(root, 0.2, 0)
    assert found.classes == CLASSES
    assert_same(found, expected)


def test_tables_as_spreadsheets_and_competitions_write_them(
    root: Path, expected: Splits, caplog: pytest.LogCaptureFixture
) -> None:
    """Semicolons, tabs, spaces, a mark at the start, Windows' paths, no suffixes, rows without."""
    rows = [(f"{CLASSES[label]}/{file.name}", CLASSES[label]) for file, label in files(root)]
    for divider, path in (
        (";", lambda name: name),
        ("\t", lambda name: name.replace("/", "\\")),
        (",", lambda name: name.rpartition(".")[0]),
        (", ", lambda name: name.rpartition(".")[0].replace("/", "\\")),
    ):
        lines = [f"image{divider}kind", *(f"{path(n)}{divider}{kind} " for n, kind in rows)]
        lines += [f"{path(rows[0][0])}{divider}{nothing}" for nothing in ("", "NaN")]
        text = "\n".join(lines)
        (root / "set" / "labels.csv").write_text(text, encoding="utf-8-sig")
        caplog.clear()
        found = ImageTable("set", "labels.csv", label="kind", **SIZES).load(root, 0.2, 0)
        assert found.classes == CLASSES
        assert_same(found, expected)
        assert "2 of 23 rows have no class: left out" in caplog.text


def test_a_name_without_suffix_that_may_be_two_files_is_refused(root: Path) -> None:
    rows = [(f"{CLASSES[label]}/{file.name}", CLASSES[label]) for file, label in files(root)]
    first = root / "set" / rows[0][0]
    other = first.with_suffix(".bmp")
    Image.open(first).save(other)
    write_table(root, ["image", "kind"], [(n.rpartition(".")[0], kind) for n, kind in rows])
    with pytest.raises(DataError, match=rf"may be .*{other.name}.*: write the suffix"):
        ImageTable("set", "labels.csv", label="kind", **SIZES).load(root, 0.2, 0)


def test_several_classes_a_photo_in_a_column_or_a_column_each(root: Path) -> None:
    names = [f"{CLASSES[label]}/{file.name}" for file, label in files(root)]
    several = [[i % 2, i % 3 == 0] for i in range(21)]
    split = ["train"] * 11 + ["val"] * 4 + ["test"] * 6
    write_table(
        root,
        ["file", "red", "large", "both", "part"],
        [
            (name, red, str(large), ";".join(["red"] * red + ["large"] * large), part)
            for name, (red, large), part in zip(names, several, split, strict=True)
        ],
    )
    how = {"image": "file", "split": "part", "storage": "stream", "workers": 0, **SIZES}
    one = ImageTable("set", "labels.csv", labels=["red", "large"], **how).load(root, 0.0, 0)
    assert [len(part) for part in (one.train, one.val, one.test)] == [11, 4, 6]
    assert one.train.labels.tolist() == [[float(a), float(b)] for a, b in several[:11]]
    other = ImageTable(
        "set", "labels.csv", label="both", separator=";", classes=["red", "large"], **how
    ).load(root, 0.0, 0)
    assert_same(other, one)


def test_bad_tables(root: Path) -> None:
    names = [f"{CLASSES[label]}/{file.name}" for file, label in files(root)]

    def load(**how: Any) -> None:
        ImageTable("set", "labels.csv", **how, **SIZES).load(root, 0.0, 0)

    write_table(root, ["image", "cat", "part"], [(name, 1, "train") for name in names])
    for how, message in (
        ({"label": "kind"}, r"labels\.csv: no column 'kind': there are image, cat, part"),
        ({"label": "cat", "classes": ["2"]}, "no class '2'; the nearest: 1"),
        ({"label": "cat"}, "expected at least two classes, got 1"),
        ({"labels": ["part"]}, "line 2: expected 1 or 0 in the column 'part', got 'train'"),
        ({"labels": ["cat"], "split": "cat"}, "expected train, val or test in the column 'cat'"),
    ):
        with pytest.raises(DataError, match=message):
            load(**how)
    (root / "set" / "labels.csv").write_text("image,cat\na.jpg\n")
    with pytest.raises(DataError, match="line 2: expected 2 cells"):
        load(label="cat")
    (root / "set" / "labels.csv").write_text("image,cat\n")
    with pytest.raises(DataError, match="expected one row for each photo"):
        load(label="cat")
    (root / "set" / "labels.csv").unlink()
    with pytest.raises(DataError, match="no such file: give the path of a CSV"):
        load(label="cat")
    wrong: list[dict[str, Any]] = [{}, {"label": "a", "labels": ["a"]}]
    for how in (*wrong, {"labels": ["a"], "separator": ";"}):
        with pytest.raises(ValueError, match=r"expected either|a separator needs"):
            ImageTable("set", "labels.csv", **how)
