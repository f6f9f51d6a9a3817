"""The same photos from a folder, from Parquet, from tar shards and by a table: the same results."""

import csv
import io
import json
import os
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data import (
    Batches,
    DataError,
    HuggingFace,
    ImageData,
    ImageFolder,
    ImageTable,
    Shuffled,
    StreamedSet,
    WebDataset,
)
from vision_attn.data.draws import Draws
from vision_attn.data.row_groups import index_files

CLASSES = ["ant", "bee", "cat"]
SIZES = {"size": 16, "shorter_side": 20}


@pytest.fixture
def root(tmp_path):
    """Seven photos of each of three classes in set/CLASS/."""
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(7):
            small = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
            photo = Image.fromarray(small).resize((70 + i, 50), Image.Resampling.BICUBIC)
            photo.save(tmp_path / "set" / name / f"{name}{i}.jpg", quality=90)
    return tmp_path


def files(root):
    """(path, number of the class) of each photo, in order."""
    return [
        (path, label)
        for label, name in enumerate(CLASSES)
        for path in sorted((root / "set" / name).iterdir())
    ]


def content(splits):
    found = []
    for images in (splits.train, splits.val, splits.test):
        items = np.arange(len(images))
        found += [images.labels, images.fetch(items, Draws(0, 2, items))]
    return found


def assert_same(found, expected):
    for one, other in zip(content(found), content(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.fixture
def expected(root):
    return ImageFolder("set", **SIZES).load(root, 0.2, 0)


# datasets

needs_datasets = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    reason = "needs datasets: pip install 'vision-attn[datasets]'"
    found = pytest.importorskip("datasets", reason=reason)
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    found.disable_progress_bars()
    return found


def parquet(datasets, root, path, labels=None, rows_a_group=None):
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


@needs_datasets
@pytest.mark.parametrize("storage", ["cache", "stream"])
def test_parquet_gives_what_a_folder_gives(datasets, root, expected, storage):
    parquet(datasets, root, root / "shards" / "train-0.parquet")
    source = HuggingFace("shards/*.parquet", storage=storage, workers=0, **SIZES)
    found = source.load(root, 0.2, 0)
    assert found.classes == CLASSES
    assert_same(found, expected)


@needs_datasets
def test_labels_as_words_as_lists_and_of_another_kind(datasets, root):
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
def test_rows_without_a_class_are_named(datasets, root, streaming, train, test, message):
    parquet(datasets, root, root / "shards" / "train-0.parquet", train * 7)
    if test:
        parquet(datasets, root, root / "shards" / "test-0.parquet", test * 7)
    with pytest.raises(DataError, match=rf"^shards[^\n]*{message}[^\n]*$"):
        HuggingFace("shards", streaming=streaming, **SIZES).load(root, 0.2, 0)


@needs_datasets
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", ["shards", "shards/*/*.parquet", "*/*/*.parquet"])
def test_folders_name_splits_as_files_do(datasets, root, streaming, path):
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


# Parquet, read in place


def in_place(path="shards", **more):
    more = {"storage": "auto", "workers": 0, **more}
    return HuggingFace(path, streaming=True, window=5, **more, **SIZES)


@needs_datasets
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("storage", ["auto", "cache", "memory"])
def test_parquet_in_place_gives_what_a_folder_gives(datasets, root, expected, storage, workers):
    parquet(datasets, root, root / "shards" / "train-0.parquet", rows_a_group=4)
    source = in_place(storage=storage, workers=workers)
    found = source.load(root, 0.2, 0)
    assert found.classes == CLASSES
    assert_same(found, expected)
    assert isinstance(found.train, StreamedSet) == (storage == "auto")
    assert not list((root / "hf").glob("**/*.arrow"))  # the library copied nothing


@needs_datasets
def test_of_a_row_group_only_the_photos_of_the_set_are_kept(datasets, root):
    """A hundredth of a set opens a hundred times as many groups: whole ones would not fit."""
    parquet(datasets, root, root / "shards" / "train-0.parquet", rows_a_group=4)
    whole = in_place(test_fraction=0.0).load(root, 0.0, 0).train.photos
    places = np.array([13, 2, 20, 3, 12, 2])
    some = whole.chosen(places)
    blocks = {block: some.read_block(block) for block in (0, 3, 5)}
    assert {block: len(column) for block, column in blocks.items()} == {0: 2, 3: 2, 5: 1}
    kept = sum(column.get_total_buffer_size() for column in blocks.values())
    assert kept < 0.5 * sum(whole.read_block(block).get_total_buffer_size() for block in range(6))
    held = some.held(np.arange(6), blocks)
    for item, place in enumerate(places.tolist()):
        encoded = files(root)[place][0].read_bytes()
        assert held.jpeg(item) == some.jpeg(item) == whole.jpeg(place) == encoded


@needs_datasets
def test_labels_are_read_once_and_again_when_the_file_changes(datasets, root, monkeypatch):
    from pyarrow.parquet import ParquetFile

    file = root / "shards" / "train-0.parquet"
    parquet(datasets, root, file, rows_a_group=4)
    first = in_place().load(root, 0.2, 0)
    whole = ParquetFile.read

    def read(*more, **options):
        raise AssertionError("read again")

    monkeypatch.setattr(ParquetFile, "read", read)
    again = in_place().load(root, 0.2, 0)
    assert_same(again, first)
    monkeypatch.setattr(ParquetFile, "read", whole)
    parquet(datasets, root, file, labels=[0, 1, 2] * 7, rows_a_group=4)
    os.utime(file, (1, 1))
    other = in_place(classes=CLASSES, test_fraction=0.0).load(root, 0.0, 0)
    assert other.train.labels.tolist() == [0, 1, 2] * 7
    index = next((root / ".cache" / "rows").glob("*.json"))
    index.write_text("{")  # damaged: looked into again
    again = in_place(classes=CLASSES, test_fraction=0.0).load(root, 0.0, 0)
    assert torch.equal(again.train.labels, other.train.labels)


@needs_datasets
def test_labels_of_a_file_without_a_version_are_not_kept(datasets, root):
    """A server that tells no version may have another file tomorrow."""
    file = root / "shards" / "train-0.parquet"
    for labels in ([0, 1, 2] * 7, [2, 1, 0] * 7):
        parquet(datasets, root, file, labels)
        assert index_files({str(file): ""}, "label", root / "index")[1] == labels
    assert not (root / "index").exists()


@needs_datasets
def test_files_of_a_split_that_differ(datasets, root):
    from pyarrow import parquet as pq

    file = root / "shards" / "train-0.parquet"
    parquet(datasets, root, file, rows_a_group=4)
    train = in_place(test_fraction=0.0).load(root, 0.0, 0).train
    rows = pq.read_table(file)
    for shorter in (rows.slice(0, 19), rows.slice(0, 16)):  # the last group is shorter, or gone
        pq.write_table(shorter, file, row_group_size=4)
        with pytest.raises(DataError, match=r"train-0\.parquet: it was replaced since the run beg"):
            train.fetch(np.array([20]), Draws(0, 0, np.array([20])))
    parquet(datasets, root, file, rows_a_group=4)
    other = root / "shards" / "train-1.parquet"
    for column in ("label", "image"):
        pq.write_table(rows.drop_columns(column), other)
        with pytest.raises(
            DataError, match=rf"train-1\.parquet: no column '{column}', which other"
        ):
            in_place().load(root, 0.2, 0).train.fetch(np.arange(20), Draws(0, 0, np.arange(20)))


@needs_datasets
def test_a_damaged_row_group_is_a_line(datasets, root, monkeypatch):
    monkeypatch.setattr("vision_attn.data.row_groups.PAUSES", ())
    file = root / "shards" / "train-0.parquet"
    parquet(datasets, root, file, rows_a_group=4)
    train = in_place(test_fraction=0.0).load(root, 0.0, 0).train
    content = bytearray(file.read_bytes())
    content[4:400] = bytes(396)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"^\S*train-0\.parquet: (cut short|cannot be read)[^\n]*$"):
        train.fetch(np.array([0]), Draws(0, 0, np.array([0])))


@needs_datasets
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_in_place_has_every_photo_once(datasets, root, workers):
    for part, rows in (("train-0", 4), ("train-1", 3), ("test-0", 100)):
        parquet(datasets, root, root / "shards" / f"{part}.parquet", rows_a_group=rows)
    data = ImageData(in_place(workers=workers), root=str(root), batch_size=4, val_fraction=0.2)
    data.setup("fit")
    train, val, test = data.splits.train, data.splits.val, data.splits.test
    assert (len(train) + len(val), len(test)) == (42, 21)
    assert len(set(train.blocks.numbers.tolist())) > 9
    loader = data.train_dataloader()
    order = np.concatenate([batch.draws.items for batch in loader])
    np.testing.assert_array_equal(order, train.blocks.permutation((0, 0)))
    for batch in loader:
        items = batch.draws.items
        alone = train.fetch(items, Draws(0, loader.sampler.epoch, items))
        torch.testing.assert_close(batch.images, alone, rtol=0, atol=0)
        assert torch.equal(batch.labels, train.labels[torch.from_numpy(items)])
    sums = torch.zeros(2, 3, dtype=torch.float64)
    for item in range(len(train)):
        values = train.fetch(np.array([item]), Draws(0, 0, np.array([item]))).double() / 255
        sums += torch.stack([values.mean((0, 2, 3)), (values**2).mean((0, 2, 3))])
    mean, square = sums / len(train)
    torch.testing.assert_close(torch.tensor(data.mean).double(), mean)
    torch.testing.assert_close(torch.tensor(data.std).double(), (square - mean**2).sqrt())


@needs_datasets
def test_parquet_of_a_server_is_read_through_its_file_system(datasets, root, expected, monkeypatch):
    """fsspec's file system in memory, in the place of the hub's; it fails now and then."""
    import fsspec

    parquet(datasets, root, root / "shards" / "train-0.parquet", rows_a_group=4)
    memory = fsspec.filesystem("memory")
    memory.pipe("/set/train-0.parquet", (root / "shards" / "train-0.parquet").read_bytes())
    local = datasets.load_dataset_builder

    def hub(path, name=None, revision=None):
        assert (path, name, revision) == ("somebody/set", "small", "v1.2")
        files = {"train": ["memory://set/train-0.parquet"]}
        return local("parquet", data_files=files)

    monkeypatch.setattr(datasets, "load_dataset_builder", hub)
    real, calls = fsspec.open, []

    def sometimes(path, *more):
        calls.append(path)
        if len(calls) % 3:
            raise ConnectionResetError("the server hung up")
        return real(path, *more)

    monkeypatch.setattr("vision_attn.data.row_groups.PAUSES", (0.0, 0.0))
    monkeypatch.setattr(fsspec, "open", sometimes)
    found = in_place("somebody/set", name="small", revision="v1.2").load(root, 0.2, 0)
    assert_same(found, expected)
    assert len(calls) >= 9
    monkeypatch.setattr(fsspec, "open", lambda *more: sometimes("none"))
    calls.clear()
    monkeypatch.setattr("vision_attn.data.row_groups.PAUSES", (0.0,))
    message = r"train-0\.parquet: cannot be read \(ConnectionResetError: the server hung up\)"
    with pytest.raises(DataError, match=message):
        found.train.fetch(np.array([0]), Draws(0, 0, np.array([0])))
    memory.rm("/set/train-0.parquet")
    monkeypatch.setattr(fsspec, "open", real)
    with pytest.raises(DataError, match=r"train-0\.parquet: no such file: it was there when"):
        found.train.fetch(np.array([0]), Draws(0, 0, np.array([0])))


@needs_datasets
def test_what_cannot_be_read_in_place(datasets, root, caplog):
    (root / "csv").mkdir()
    (root / "csv" / "train.csv").write_text("image,label\na.jpg,0\n")
    with pytest.raises(DataError, match=r"csv: `streaming` reads Parquet, got .*train\.csv: leave"):
        in_place("csv").load(root, 0.0, 0)
    parquet(datasets, root, root / "shards" / "train-0.parquet", rows_a_group=4)
    table = datasets.load_dataset("parquet", data_files=str(root / "shards" / "train-0.parquet"))
    table.save_to_disk(str(root / "saved"))
    with pytest.raises(DataError, match="saved: a folder of save_to_disk is read in place anyway"):
        in_place("saved").load(root, 0.0, 0)
    with pytest.raises(DataError, match=r"no column 'img': there are image"):
        in_place(image="img").load(root, 0.0, 0)
    with pytest.raises(DataError, match="gone: the data set cannot be opened"):
        in_place("gone").load(root, 0.0, 0)
    with pytest.raises(ValueError, match="window must be at least 0, got -1"):
        HuggingFace("shards", streaming=True, window=-1)
    cut = root / "shards" / "train-0.parquet"
    cut.write_bytes(cut.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"train-0\.parquet: cut short or no Parquet .* fetch it"):
        in_place().load(root, 0.0, 0)


@needs_datasets
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_photo_in_place_is_passed_over(datasets, root, caplog, workers):
    files(root)[4][0].write_bytes(b"no photo")
    parquet(datasets, root, root / "shards" / "train-0.parquet", rows_a_group=4)
    source = in_place(workers=workers, test_fraction=0.0, max_corrupt=1)
    train = source.load(root, 0.0, 0).train
    found = list(Batches(train, Shuffled(21, 5, blocks=train.blocks)))
    assert sum(map(len, found)) == 21
    assert "shards train row 4: " in caplog.text
    assert "Another photo of its class takes its place" in caplog.text
    strict = in_place(workers=workers, test_fraction=0.0).load(root, 0.0, 0).train
    with pytest.raises(DataError, match=r"1 photos cannot be read, 0 are allowed"):
        list(Batches(strict, Shuffled(21, 5, blocks=train.blocks)))


# tar shards


@pytest.fixture
def webdataset():
    reason = "needs webdataset: pip install 'vision-attn[webdataset]'"
    return pytest.importorskip("webdataset", reason=reason)


def shards(root, folder="tars", ending="cls"):
    """Write the photos into three tar shards by hand, as the format's page has it."""
    (root / folder).mkdir()
    listed = files(root)
    for number in range(3):
        with tarfile.open(root / folder / f"train-{number:03}.tar", "w") as tar:
            for file, label in listed[number * 7 : number * 7 + 7]:
                words = json.dumps({"label": label, "more": 1}) if ending == "json" else str(label)
                for name, data in (
                    (f"{file.stem}.jpg", file.read_bytes()),
                    (f"{file.stem}.{ending}", words.encode()),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return root / folder


@pytest.mark.parametrize(
    ("urls", "more"),
    [
        ("tars/train-{000..002}.tar", {}),
        ("tars/*.tar", {"storage": "stream", "workers": 0}),
        (["tars/train-000.tar", "tars/train-00[12].tar"], {"storage": "memory"}),
    ],
)
def test_tar_shards_give_what_a_folder_gives(webdataset, root, expected, urls, more):
    shards(root)
    source = WebDataset(urls, classes=CLASSES, **SIZES, **more)
    found = source.load(root, 0.2, 0)
    assert found.classes == CLASSES
    assert_same(found, expected)
    assert_same(source.load(root, 0.2, 0), expected)  # from the index


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_librarys_own_writer_and_reader_agree(webdataset, root):
    listed = files(root)
    (root / "own").mkdir()
    with webdataset.TarWriter(str(root / "own/a.tar")) as tar:
        for file, label in listed:
            tar.write({"__key__": f"x/{file.stem}", "jpg": file.read_bytes(), "cls": label})
    split = WebDataset("own/a.tar", test_fraction=0.0, storage="stream", workers=0, **SIZES)
    train = split.load(root, 0.0, 0).train
    samples = list(
        webdataset.WebDataset(str(root / "own/a.tar"), shardshuffle=False).decode("rgb8")
    )
    assert len(samples) == len(train) == 21
    for item, sample in enumerate(samples):
        assert int(train.labels[item]) == sample["cls"]
        np.testing.assert_array_equal(np.asarray(train.photos.read(item)), sample["jpg"])


def test_bad_shards(webdataset, root, caplog):
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


def test_labels_in_json(webdataset, root, expected):
    shards(root, "json", "json")
    found = WebDataset("json/*.tar", label="json", classes=CLASSES, **SIZES).load(root, 0.2, 0)
    assert_same(found, expected)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def do_GET(self):
        if "stall" in self.path:
            self.server.stalled.wait(20)
            return
        super().do_GET()

    do_HEAD = do_GET


@pytest.fixture
def server(root):
    """A web server of the folder; what is called stall gets no answer."""
    from functools import partial

    served = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
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
def test_shards_of_a_server_are_fetched_once(webdataset, root, expected, server):
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


# tables


def write_table(root, header, rows):
    with (root / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_a_table_gives_what_a_folder_gives(root, expected):
    rows = [(f"{CLASSES[label]}/{file.name}", CLASSES[label]) for file, label in files(root)]
    write_table(root, ["image", "kind"], rows)
    found = ImageTable("set", "labels.csv", label="kind", **SIZES).load(root, 0.2, 0)
    assert found.classes == CLASSES
    assert_same(found, expected)


def test_several_classes_a_photo_in_a_column_or_a_column_each(root):
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


def test_bad_tables(root):
    names = [f"{CLASSES[label]}/{file.name}" for file, label in files(root)]

    def load(**how):
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
    (root / "labels.csv").write_text("image,cat\na.jpg\n")
    with pytest.raises(DataError, match="line 2: expected 2 cells"):
        load(label="cat")
    (root / "labels.csv").write_text("image,cat\n")
    with pytest.raises(DataError, match="expected one row for each photo"):
        load(label="cat")
    (root / "labels.csv").unlink()
    with pytest.raises(DataError, match="no such file: give the path of a CSV"):
        load(label="cat")
    for how in ({}, {"label": "a", "labels": ["a"]}, {"labels": ["a"], "separator": ";"}):
        with pytest.raises(ValueError, match=r"expected either|a separator needs"):
            ImageTable("set", "labels.csv", **how)
