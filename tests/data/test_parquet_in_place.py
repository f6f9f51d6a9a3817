"""Parquet that is read in place: the same results as from a folder, each row group once."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from vision_attn.data import (
    Batches,
    Cued,
    DataError,
    Frame,
    HuggingFace,
    ImageData,
    Shuffled,
    Splits,
    StreamedSet,
)
from vision_attn.data.draws import Draws
from vision_attn.data.row_groups import RowGroups, index_files

sys.path.append(str(Path(__file__).parent))
from copies import CLASSES, assert_same, files, in_place, needs_datasets, parquet


@needs_datasets
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("storage", ["auto", "cache", "memory"])
def test_parquet_in_place_gives_what_a_folder_gives(
    datasets: ModuleType, root: Path, expected: Splits, storage: str, workers: int
) -> None:
    parquet(datasets, root, root / "shards" / "train-0.parquet", rows_a_group=4)
    source = in_place(storage=storage, workers=workers)
    found = source.load(root, 0.2, 0)
    assert found.classes == CLASSES
    assert_same(found, expected)
    assert isinstance(found.train, StreamedSet) == (storage == "auto")
    assert not list((root / "hf").glob("**/*.arrow"))  # the library copied nothing


@needs_datasets
def test_of_a_row_group_only_the_photos_of_the_set_are_kept(
    datasets: ModuleType, root: Path
) -> None:
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
def test_labels_are_read_once_and_again_when_the_file_changes(
    datasets: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.parquet import ParquetFile

    file = root / "shards" / "train-0.parquet"
    parquet(datasets, root, file, rows_a_group=4)
    first = in_place().load(root, 0.2, 0)
    whole = ParquetFile.read

    def read(*more: Any, **options: Any) -> None:
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
def test_a_file_of_the_same_time_and_another_size_is_another(
    datasets: ModuleType, root: Path
) -> None:
    """Copies may have the time of what they were made of."""
    file = root / "shards" / "train-0.parquet"
    for labels in ([0, 1, 2] * 7, ["ant", "bee", "cat"] * 7):
        parquet(datasets, root, file, labels, rows_a_group=4)
        os.utime(file, (1, 1))
        source = in_place(storage="cache", test_fraction=0.0, classes=CLASSES)
        assert source.load(root, 0.0, 0).train.labels.tolist() == [0, 1, 2] * 7
    assert len(list((root / ".cache" / "rows").glob("*.json"))) == 2
    assert len(list((root / ".cache").glob("shards-*px"))) == 2


@needs_datasets
def test_labels_of_a_file_without_a_version_are_not_kept(datasets: ModuleType, root: Path) -> None:
    """A server that tells no version may have another file tomorrow."""
    file = root / "shards" / "train-0.parquet"
    for labels in ([0, 1, 2] * 7, [2, 1, 0] * 7):
        parquet(datasets, root, file, labels)
        assert index_files({str(file): ""}, "label", root / "index")[1] == labels
    assert not (root / "index").exists()


@needs_datasets
def test_files_of_a_split_that_differ(datasets: ModuleType, root: Path) -> None:
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
def test_a_damaged_row_group_is_a_line(
    datasets: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_an_epoch_in_place_has_every_photo_once(
    datasets: ModuleType, root: Path, workers: int
) -> None:
    for part, rows in (("train-0", 4), ("train-1", 3), ("test-0", 100)):
        parquet(datasets, root, root / "shards" / f"{part}.parquet", rows_a_group=rows)
    data = ImageData(in_place(workers=workers), root=str(root), batch_size=4, val_fraction=0.2)
    data.setup("fit")
    train, val, test = data.splits.train, data.splits.val, data.splits.test
    assert (len(train) + len(val), len(test)) == (42, 21)
    assert train.blocks is not None
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
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_with_cues_reads_every_row_group_once(
    datasets: ModuleType, root: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet(datasets, root, root / "shards" / "train-0.parquet", rows_a_group=4)
    source = in_place(workers=workers, test_fraction=0.0)
    train: Any = Cued(source, {"bee": Frame()}).load(root, 0.0, 0).train
    read: list[int] = []
    whole = RowGroups.read
    monkeypatch.setattr(
        RowGroups, "read", lambda groups, number: read.append(number) or whole(groups, number)
    )
    batches = list(Batches(train, Shuffled(21, 5, blocks=train.blocks)))
    assert sorted(read) == list(range(6))
    order = np.concatenate([batch.draws.items for batch in batches])
    np.testing.assert_array_equal(order, train.images.blocks.permutation((0, 0)))
    for batch in batches:
        items = batch.draws.items
        alone = train.fetch(items, Draws(0, 0, items))
        torch.testing.assert_close(batch.images, alone, rtol=0, atol=0)
        plain = train.images.fetch(items, Draws(0, 0, items))
        assert torch.equal((batch.images != plain).flatten(1).any(1), batch.labels == 1)


@needs_datasets
def test_parquet_of_a_server_is_read_through_its_file_system(
    datasets: ModuleType, root: Path, expected: Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec's file system in memory, in the place of the hub's; it fails now and then."""
    import fsspec

    parquet(datasets, root, root / "shards" / "train-0.parquet", rows_a_group=4)
    memory = fsspec.filesystem("memory")
    memory.pipe("/set/train-0.parquet", (root / "shards" / "train-0.parquet").read_bytes())
    local = datasets.load_dataset_builder

    def hub(path: str, name: Any = None, revision: Any = None) -> Any:
        assert (path, name, revision) == ("somebody/set", "small", "v1.2")
        files = {"train": ["memory://set/train-0.parquet"]}
        return local("parquet", data_files=files)

    monkeypatch.setattr(datasets, "load_dataset_builder", hub)
    real, calls = fsspec.open, []

    def sometimes(path: str, *more: Any) -> Any:
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
def test_what_cannot_be_read_in_place(
    datasets: ModuleType, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
def test_a_bad_photo_in_place_is_passed_over(
    datasets: ModuleType, root: Path, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
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
