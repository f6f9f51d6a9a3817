"""The store of a run: what a row depends on, damage, kills, full disks, shards, files of others."""

import gzip
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vision_attn.runs.database import FORMAT, DamagedError, StoppedError, connect
from vision_attn.runs.keys import bytes_crc, content_number, file_stamp
from vision_attn.runs.mapfile import MapFile, map_name, open_maps, packed, saved_map
from vision_attn.runs.results import unfinished_shards
from vision_attn.runs.runfile import RunFile, agree, mark_merged, read_run, write_run
from vision_attn.runs.shard import SCHEMA, Column, ShardFile, StoreRow, shard_path
from vision_attn.runs.store import Store

ROLLOUT, EDGES = Column("map", "Rollout", {"target": None}), Column("map", "EdgeMap")
NAMES = [f"photos/{i}.png" for i in range(7)]


def a_map(seed: int, shape: tuple[int, int] = (3, 5)) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def rows(
    column: Column = ROLLOUT, numbers: range | list[int] = range(7), content: int = 0
) -> list[StoreRow]:
    return [
        StoreRow(column, NAMES[i], {"place": i, "word": "é\udcff"}, content, a_map(i))
        for i in numbers
    ]


def fill(folder: Path, **more: Any) -> None:
    with Store(folder, wanted=[ROLLOUT], **more) as store:
        store.add(rows())


def missing(folder: Path, column: Column = ROLLOUT) -> list[int]:
    with Store(folder, wanted=[ROLLOUT, EDGES]) as store:
        return np.flatnonzero(~store.has(column, NAMES)).tolist()


def assert_whole(folder: Path, column: Column = ROLLOUT) -> None:
    """Every row is there, with its own record and its own map."""
    with Store(folder, wanted=[ROLLOUT, EDGES]) as store:
        ids, _ = store.find(column, np.array([_number(name) for name in NAMES]))
        assert (ids >= 0).all()
        for i, row_id in enumerate(ids):
            assert store.record(row_id) == {"place": i, "word": "é\udcff"}
            np.testing.assert_allclose(store.map(row_id), a_map(i), rtol=2**-10)


def _number(name: str) -> int:
    from vision_attn.runs.keys import sample_number

    return sample_number(name)


def test_rows_and_maps_are_read_back(tmp_path: Path) -> None:
    fill(tmp_path)
    assert_whole(tmp_path)
    with ShardFile(tmp_path) as shard:
        assert [row.record["place"] for row in shard.kept()] == list(range(7))
        assert list(shard.columns.values()) == [ROLLOUT]
        shard.check()
    assert np.load(tmp_path / "maps/Rollout.1-of-1.npy", mmap_mode="r").shape == (7, 3, 5)
    assert not list((tmp_path / "store").glob("*-journal"))


@pytest.mark.parametrize("half", [True, False])
def test_float32_maps_are_kept_to_the_bit_and_float16_to_eleven(tmp_path: Path, half: bool) -> None:
    values = a_map(3) * np.float32(1e-7)
    with Store(tmp_path, wanted=[ROLLOUT], half=half) as store:
        store.add([StoreRow(ROLLOUT, "a", {}, map=values)])
        found = store.map(store.index.ids[0])
    near = {"rtol": 2**-11, "atol": float(values.max()) * 2**-24} if half else {"rtol": 0}
    np.testing.assert_allclose(found, values, **near)


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(-3e-9, 7e-9, 35),
        np.linspace(0, 9e7, 35),
        np.linspace(0, 1 / 35, 35),
        np.zeros(35),
    ],
)
def test_float16_with_a_power_of_two_holds_maps_of_any_size(
    values: np.ndarray,
) -> None:
    values = values.reshape(5, 7).astype(np.float32)
    half, exponent = packed(values)
    largest = float(abs(values).max())
    back = half.astype(np.float64) * 2.0**exponent
    np.testing.assert_allclose(back, values, rtol=2**-11, atol=largest * 2**-24)
    assert (exponent == 0) == (largest == 0 or 2**-10 <= largest <= 2**15)


@pytest.mark.parametrize(
    "other",
    [
        Column("map", "Rollout", {"target": 1}),
        Column("map", "Rollout(fusion='max')", {"target": None}),
        Column("sanity", "Rollout", {"target": None}),
    ],
)
def test_rows_of_other_settings_are_not_taken_for_these(tmp_path: Path, other: Column) -> None:
    fill(tmp_path)
    with Store(tmp_path, wanted=[other]) as store:
        assert not store.has(other, NAMES).any()
    assert missing(tmp_path) == list(range(7))  # and they are gone, with their maps
    assert not list((tmp_path / "maps").iterdir())


def test_rows_of_other_columns_are_kept_where_that_is_wanted(tmp_path: Path) -> None:
    fill(tmp_path)
    with Store(tmp_path, wanted=[EDGES], keeps_others=True) as store:
        store.add(rows(EDGES))
    assert missing(tmp_path) == missing(tmp_path, EDGES) == []
    assert_whole(tmp_path)
    assert_whole(tmp_path, EDGES)


def test_another_version_of_the_package_computes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    monkeypatch.setattr("vision_attn.runs.shard.__version__", "999")
    fresh = Column("map", "Rollout", {"target": None})
    with Store(tmp_path, wanted=[fresh]) as store:
        assert not store.has(fresh, NAMES).any()


def test_a_photo_of_other_bytes_or_another_time_has_another_content(tmp_path: Path) -> None:
    photo = tmp_path / "a.png"
    photo.write_bytes(b"abc")
    first = file_stamp(photo)
    assert file_stamp(photo) == first
    assert file_stamp(photo, more="cat") != first
    os.utime(photo, ns=(1, 1))
    timed = file_stamp(photo)
    assert timed != first
    photo.write_bytes(b"abcd")
    os.utime(photo, ns=(1, 1))
    assert file_stamp(photo) != timed
    assert bytes_crc(photo) == 0xED82CD11
    number = content_number(0xFFFFFFFF, 0xED82CD11)
    assert -(1 << 63) <= number < 1 << 63
    assert number & 0xFFFFFFFF == 0xED82CD11
    assert (number >> 32) & 0xFFFFFFFF == 0xFFFFFFFF


def test_the_slot_of_a_removed_row_is_written_again(tmp_path: Path) -> None:
    fill(tmp_path)
    with Store(tmp_path, wanted=[ROLLOUT]) as store:
        store.remove(store.find(ROLLOUT, np.array([_number(NAMES[2])]))[0])
    with Store(tmp_path, wanted=[ROLLOUT]) as store:
        assert np.flatnonzero(~store.has(ROLLOUT, NAMES)).tolist() == [2]
        store.add(rows(numbers=[2]))
    assert_whole(tmp_path)
    assert len(open_maps(tmp_path / map_name("Rollout", (1, 1)))) == 7


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from vision_attn.runs import mapfile, store
kept = store.Store(Path(sys.argv[1]), wanted=[store.Column("map", "Rollout", {"target": None})])
step, write = int(sys.argv[2]), mapfile.MapFile._write_at
def killed(*words):
    global step
    step -= 1
    if not step:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*words)
mapfile.MapFile._write_at = killed
sys.path.insert(0, sys.argv[3])
import test_store
for i in range(7):
    kept.add(test_store.rows(numbers=[i]))
    kept.commit()
kept.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 5, 8, 11])
def test_a_kill_leaves_whole_rows_only_and_the_rest_is_missing(tmp_path: Path, step: int) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(step), str(Path(__file__).parent)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = missing(tmp_path)
    assert left == list(range(7 - len(left), 7))
    with Store(tmp_path, wanted=[ROLLOUT]) as store:
        store.add(rows(numbers=left))
    assert_whole(tmp_path)


def test_rows_that_were_not_committed_are_not_there(tmp_path: Path) -> None:
    store = Store(tmp_path, wanted=[ROLLOUT])
    store.add(rows(numbers=[0]))
    store.commit()
    store._next_commit = float("inf")
    store.add(rows(numbers=[1]))
    for maps in store._files.values():
        maps.close()
    store._connection.close()  # as a kill does: what was not committed is lost
    assert missing(tmp_path) == list(range(1, 7))


def change(path: Path, offset: int, byte: int = 0xFF) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= byte
    path.write_bytes(content)


@pytest.mark.slow
def test_every_byte_of_a_store_that_is_damaged_costs_its_rows_only(tmp_path: Path) -> None:
    """Whatever byte is turned, no row is read wrongly: it is whole, or computed again."""
    fill(tmp_path)
    rng = np.random.default_rng(0)
    files = [shard_path(tmp_path, (1, 1)), tmp_path / "maps/Rollout.1-of-1.npy"]
    content = {path: path.read_bytes() for path in files}
    for path in files:
        for offset in rng.integers(0, len(content[path]), 60):
            for each, original in content.items():
                each.write_bytes(original)
            change(path, int(offset))
            if path.suffix == ".sqlite" and 60 <= offset < 64:
                continue  # another version, which is said
            left = missing(tmp_path)
            with Store(tmp_path, wanted=[ROLLOUT]) as store:
                store.add(rows(numbers=left))
            assert_whole(tmp_path)


@pytest.mark.parametrize("what", ["lost", "cut", "another shape"])
def test_maps_that_are_lost_or_cut_are_computed_again(tmp_path: Path, what: str) -> None:
    fill(tmp_path)
    path = tmp_path / "maps/Rollout.1-of-1.npy"
    if what == "lost":
        path.unlink()
    elif what == "cut":
        path.write_bytes(path.read_bytes()[: 128 + 30 * 4 + 7])
    else:
        path.write_bytes(path.read_bytes().replace(b"7, 3, 5", b"7, 5, 3"))
    assert missing(tmp_path) == ([4, 5, 6] if what == "cut" else list(range(7)))


def test_a_damaged_shard_of_others_is_named_with_its_repair(tmp_path: Path) -> None:
    for number in (1, 2):
        with Store(tmp_path, (number, 2), wanted=[ROLLOUT]) as store:
            store.add(rows(numbers=range(number - 1, 7, 2)))
    path = shard_path(tmp_path, (2, 2))
    place = path.read_bytes().rindex(b"CREATE TABLE rows") + 3
    change(path, place)
    with pytest.raises(DamagedError, match=r"2-of-2\.sqlite: damaged .*: run --shard 2/2 again"):
        ShardFile(tmp_path, (2, 2))
    change(path, place)
    change(tmp_path / "maps/Rollout.2-of-2.npy", 140)
    with ShardFile(tmp_path, (2, 2)) as shard:
        assert shard.record(shard.index.ids[0])["place"] == 1
        with pytest.raises(
            DamagedError, match=r"the map of row 1: its CRC is wrong\): run --shard"
        ):
            shard.map(shard.index.ids[0])
        with pytest.raises(DamagedError, match=r"damaged \(row 1\)"):
            shard.check()


def test_a_file_of_many_pages_with_a_lost_page_keeps_the_rows_of_the_others(tmp_path: Path) -> None:
    names = [f"{i}" for i in range(3000)]
    with Store(tmp_path, wanted=[ROLLOUT]) as store:
        store.add([StoreRow(ROLLOUT, name, {"noise": str(hash(name))}) for name in names])
    path = shard_path(tmp_path, (1, 1))
    content = bytearray(path.read_bytes())
    half = len(content) // 8192 * 4096
    content[half : half + 4096] = os.urandom(4096)
    path.write_bytes(content)
    with Store(tmp_path, wanted=[ROLLOUT]) as store:
        kept = int(store.has(ROLLOUT, names).sum())
        assert 2700 < kept < 3000
        store.add([StoreRow(ROLLOUT, name, {}) for name in names])
    with ShardFile(tmp_path) as shard:
        shard.check()


def foreign(path: Path, statements: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id={0x76617472}")
    connection.execute(f"PRAGMA user_version={FORMAT}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE rows(id)"],
        [*SCHEMA, "CREATE VIEW more AS SELECT load_extension('x')"],
        [*SCHEMA, "CREATE TRIGGER t AFTER DELETE ON finished BEGIN DELETE FROM rows; END"],
        [SCHEMA[0], "CREATE VIEW rows AS SELECT * FROM columns", SCHEMA[2]],
    ],
)
def test_a_file_with_another_schema_is_not_read(tmp_path: Path, statements: list[str]) -> None:
    foreign(shard_path(tmp_path, (1, 1)), statements)
    with pytest.raises(DamagedError, match="its tables are not those of the store"):
        ShardFile(tmp_path)
    assert missing(tmp_path) == list(range(7))  # a new one takes its place


def test_a_file_that_asks_for_a_write_ahead_log_is_not_opened(tmp_path: Path) -> None:
    fill(tmp_path)
    path = shard_path(tmp_path, (1, 1))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    with pytest.raises(DamagedError, match="not a file of the store"):
        ShardFile(tmp_path)
    assert {p.name for p in path.parent.iterdir()} == {path.name}


def test_a_journal_that_names_another_file_removes_nothing(tmp_path: Path) -> None:
    """SQLite would delete the file that a journal's end names."""
    fill(tmp_path)
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    name = str(victim).encode()
    header = bytes.fromhex("d9d505f920a163d7") + bytes(4) + os.urandom(4)
    header += (2).to_bytes(4, "big") + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    end = (1).to_bytes(4, "big") + name + len(name).to_bytes(4, "big")
    end += sum(name).to_bytes(4, "big") + bytes.fromhex("d9d505f920a163d7")
    Path(f"{shard_path(tmp_path, (1, 1))}-journal").write_bytes(header.ljust(512, b"\0") + end)
    assert missing(tmp_path) == []
    assert victim.read_text() == "precious"


def test_a_later_format_is_said_and_left_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    path = shard_path(tmp_path, (1, 1))
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    connection.close()
    content = path.read_bytes()
    message = f"format {FORMAT + 1}, expected {FORMAT}: it was written by another version"
    for opened in (ShardFile, Store):
        with pytest.raises(ValueError, match=message):
            opened(tmp_path)
    assert path.read_bytes() == content


def test_two_processes_do_not_write_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vision_attn.runs.database.WAIT", 0.1)
    with Store(tmp_path, wanted=[ROLLOUT]) as store:
        store.add(rows(numbers=[0]))
        store._next_commit = float("inf")
        store.add(rows(numbers=[1]))
        with pytest.raises(ValueError, match="another process is writing it: wait for it"):
            Store(tmp_path, wanted=[ROLLOUT])


def test_a_value_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    path = shard_path(tmp_path, (1, 1))
    fill(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE rows SET record=zeroblob(70000000) WHERE id=3")
    connection.commit()
    connection.close()
    assert 2 in missing(tmp_path)


def test_maps_of_two_sizes_are_refused(tmp_path: Path) -> None:
    with Store(tmp_path, wanted=[ROLLOUT]) as store:
        store.add(rows(numbers=[0]))
        other = StoreRow(ROLLOUT, "b", {}, map=a_map(0, (5, 3)))
        with pytest.raises(ValueError, match=r"expected a map of \(3, 5\), .* got \(5, 3\)"):
            store.add([other])
        store.add(rows(numbers=range(1, 7)))
    assert_whole(tmp_path)


def test_a_full_disk_stops_with_a_line_and_loses_nothing(full_disk: Path) -> None:
    one, names = np.ones((32, 32), np.float32), [f"{i}" for i in range(64)]
    (full_disk / "a.txt").write_bytes(bytes(16_384))
    store = Store(full_disk, wanted=[EDGES])

    def add(some: list[str]) -> None:
        for name in some:
            store.add([StoreRow(EDGES, name, {}, map=one)])
            store.commit()

    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\): free space"):
        add(names)
    store.close()
    (full_disk / "a.txt").unlink()
    with Store(full_disk, wanted=[EDGES]) as store:
        done = int(store.has(EDGES, names).sum())
        assert 0 < done < 64
        assert store.has(EDGES, names[:done]).all()
        assert all((store.map(row_id) == 1).all() for row_id in store.index.ids)


def test_what_cannot_be_added_leaves_what_was_added_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MapFile._write_at

    def full(self: Any, offset: Any, content: Any) -> None:
        if offset > 128 + 30:
            raise OSError(28, "No space left on device")
        write(self, offset, content)

    store = Store(tmp_path, wanted=[ROLLOUT])
    store._next_commit = float("inf")
    monkeypatch.setattr(MapFile, "_write_at", full)
    store.add(rows(numbers=[0, 1]))
    with pytest.raises(OSError, match="No space left"):
        store.add(rows(numbers=[2]))
    monkeypatch.undo()
    store.close()
    assert missing(tmp_path) == [2, 3, 4, 5, 6]


def test_connect_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"a\.sqlite: cannot be written"):
        connect(tmp_path / "file" / "a.sqlite", SCHEMA, write=True)


def test_a_shard_that_is_being_written_is_read_and_has_not_finished(tmp_path: Path) -> None:
    run = RunFile({"what": "explain"}, NAMES, 2, (ROLLOUT.key,))
    with (
        Store(tmp_path, (1, 2), wanted=[ROLLOUT]) as first,
        Store(tmp_path, (2, 2), wanted=[ROLLOUT]) as second,
    ):
        first.add(rows(numbers=[0]))
        first.commit()
        first._next_commit = float("inf")
        first.add(rows(numbers=[2]))
        second.finish(run.number)
        assert unfinished_shards(tmp_path, run) == [1]
        with ShardFile(tmp_path, (1, 2)) as shard:
            assert [row.record["place"] for row in shard.kept()] == [0]
    with ShardFile(tmp_path, (1, 2)) as shard:
        assert [row.record["place"] for row in shard.kept()] == [0, 2]


def test_a_shard_that_was_killed_within_a_commit_has_not_finished_and_is_repaired(
    tmp_path: Path,
) -> None:
    run = RunFile({"what": "explain"}, NAMES, 2, (ROLLOUT.key,))
    here, killed = tmp_path / "here", tmp_path / "killed"
    with Store(here, (1, 2), wanted=[ROLLOUT]) as store:
        store.add(rows())
        store.commit()
    path = shard_path(here, (1, 2))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size=1")
    writer.execute("BEGIN")
    writer.execute("UPDATE rows SET record=zeroblob(9000), crc=0")  # does not fit into the cache
    shutil.copytree(here, killed)  # as the disk is within a commit
    writer.execute("ROLLBACK")
    writer.close()
    with Store(killed, (2, 2), wanted=[ROLLOUT]) as store:
        store.finish(run.number)
    with pytest.raises(
        StoppedError, match=r"stopped while it was written\): run --shard 1/2 again"
    ):
        ShardFile(killed, (1, 2))
    assert unfinished_shards(killed, run) == [1]
    with Store(killed, (1, 2), wanted=[ROLLOUT]) as store:
        assert store.has(ROLLOUT, NAMES).all()


def test_a_list_of_samples_that_is_damaged_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, RunFile({}, NAMES))
    path = tmp_path / "store" / "run.json.gz"
    content = path.read_bytes()
    for damaged in (b"", content[:-9], content[:40] + b"?" + content[41:], b"[" * 99):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"run\.json\.gz: damaged .*run the same command"):
            read_run(tmp_path)
    path.write_bytes(
        gzip.compress(gzip.decompress(content).replace(b'"format": 1', b'"format": 2'))
    )
    with pytest.raises(ValueError, match="format 2, expected 1: it was written by another version"):
        read_run(tmp_path)


def test_shards_that_begin_at_once_agree_on_one_list(tmp_path: Path) -> None:
    first, second = RunFile({}, ["a", "b"], 2), RunFile({}, ["b", "c"], 2)
    assert agree(tmp_path, first) == (first, [])
    shared, (line,) = agree(tmp_path, second)
    assert shared == first
    assert line.startswith("1 new since the first shard began (c): left out")
    mark_merged(tmp_path, first)
    assert agree(tmp_path, second) == (second, [])


HEADERS = [
    b"{'descr': '<f2', 'fortran_order': False, 'shape': (7, 3, 5",  # numpy's reader: TokenError
    b"{'descr': '<f2', 'fortran_order': False, 'shape': (7, 3L, 5), }",  # of Python 2: a warning
    b"(" * 117,
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (7, 3, 5), }",
    b"{'descr': '<f2', 'fortran_order': False, 'shape': (7, -3, -5), }",
    b"{'descr': '<f2', 'fortran_order': False, 'shape': (7, 0, 5), }",
    b"\0" * 117,
]


@pytest.mark.parametrize("text", HEADERS)
def test_a_file_of_maps_with_another_header_is_damaged(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "Rollout.npy"
    first = b"\x93NUMPY\x01\x00v\x00" + text.ljust(117) + b"\n"
    path.write_bytes(first + bytes(500))
    with pytest.raises(ValueError, match=r"Rollout\.npy: damaged \(") as raised:
        open_maps(path)
    assert len(str(raised.value)) < 300
    if b"<f8" not in text:  # a map of a photo may be of float64
        with pytest.raises(ValueError, match=r"Rollout\.npy: damaged \("):
            saved_map(path)


def test_what_numpy_writes_is_a_file_of_maps(tmp_path: Path) -> None:
    values = np.random.default_rng(3).random((7, 3, 5)).astype(np.float16)
    np.save(tmp_path / "a.npy", values)
    np.testing.assert_array_equal(open_maps(tmp_path / "a.npy"), values)
    np.testing.assert_array_equal(saved_map(tmp_path / "a.npy"), values)
