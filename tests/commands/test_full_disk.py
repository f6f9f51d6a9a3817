"""Every command on a disk that runs full: one line with the path, and no file that is half there."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vision_attn.cli import main
from vision_attn.files import append_text, claimed
from vision_attn.hub import load_model
from vision_attn.render.video import VideoWriter
from vision_attn.runs.results import open_results
from vision_attn.runs.runfile import read_run
from vision_attn.runs.shard import ShardFile, shard_path
from vision_attn.runs.store import Store

COMMANDS = {
    "explain": ["--method", "EdgeMap", "--page"],
    "score": ["--method", "EdgeMap", "--sanity", "0", "--steps", "2"],
    "inspect": ["--method", "Rollout"],
    "live": [],
    "export": [],
}


def whole(path: Path) -> None:
    """Read a file to its end; whatever is cut short raises."""
    if path.suffix in (".png", ".webp", ".jpg"):
        with Image.open(path) as image:
            image.load()
    elif path.suffix in (".npy", ".npz"):
        dict(np.load(path)) if path.suffix == ".npz" else np.load(path)
    elif path.suffix == ".sqlite":
        with ShardFile(path.parent.parent) as shard:
            shard.check()
    elif path.name == "run.json.gz":
        assert read_run(path.parent.parent) is not None
    elif path.suffix in (".jsonl", ".json"):
        for line in (
            path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        ):
            json.loads(line)
    elif path.suffix == ".html":
        assert path.read_text().rstrip().endswith("</html>")
    else:
        assert path.name == "a.txt", path


@pytest.mark.parametrize("room", [pytest.param(0, marks=pytest.mark.slow), 20_000])
@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "export")) for name in COMMANDS],
)
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    full_disk: Path,
    models: Callable[[str], str],
    photos: Path,
    capsys: pytest.CaptureFixture[str],
    command: Any,
    room: int,
) -> None:
    (full_disk / "a.txt").write_bytes(b"x" * (65_536 - 4096 - room))
    output = {"export": "m.onnx", "inspect": "page.html", "live": "live.html"}.get(command, "out")
    data = [] if command == "export" else [photos]
    words = [command, models("vit"), *data, *COMMANDS[command], "-o", full_disk / output]
    assert main([str(word) for word in words]) in (1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    for line in lines:
        assert line.startswith("vision-attn: error: ")
        assert str(full_disk) in line
        assert "No space left on device" in line
    for path in full_disk.rglob("*"):
        if path.is_file():
            whole(path)
    assert unexplained(full_disk / "out") == []


def unexplained(folder: Path) -> list[str]:
    """Files of `explain` in a folder, by name, whose photo has no row in the store."""
    done: set[str] = set()
    if shard_path(folder, (1, 1)).is_file():
        with ShardFile(folder) as shard:
            done = {file for row in shard.kept() for file in row.record.get("files", ())}
    drawn = [p for p in folder.rglob("*") if p.suffix in (".png", ".npy", ".jpg", ".mp4")]
    kept = folder / "maps"
    names = {path.relative_to(folder).as_posix() for path in drawn if kept not in path.parents}
    return sorted(names - done)


@pytest.fixture
def results_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has room for pictures, but for the rows of no more than one file."""
    add, there = Store.add, iter(range(1))

    def once(store: Any, rows: Any) -> None:
        if rows and next(there, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device", str(store.path))
        add(store, rows)

    monkeypatch.setattr(Store, "add", once)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("data", ["photos", "film"])
@pytest.mark.slow
def test_no_picture_without_its_line(
    results_full: None,
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    data: str,
    processes: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [photos]
    if data == "film":
        paths = [photos / "cat.png", tmp_path / "film.mp4"]
        with VideoWriter(tmp_path / "film.mp4", 10.0) as film:
            film.append(np.zeros((32, 48, 3), np.uint8))
    words = ["explain", models("vit"), *paths, "--method", "EdgeMap", "--method", "Rollout"]
    words += ["--page", "--batch-size", 1, "--processes", processes, "-o", tmp_path / "out"]
    assert main([str(word) for word in words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (2 if data == "photos" else 1)
    assert all("No space left on device" in line for line in lines)
    assert unexplained(tmp_path / "out") == []
    assert len((tmp_path / "out/results.jsonl").read_text().splitlines()) == 2
    assert len(list((tmp_path / "out").rglob("cat.*"))) == 8  # 2 maps, 2 pictures, grid, 3 thumbs


def test_a_photo_is_drawn_whole_or_not_at_all(
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from vision_attn.runs import explanation

    def full(sheet: Any, path: Any, *more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    render: Any = vars(explanation)["render"]
    monkeypatch.setattr(render, "heatmap_grid", lambda *args, **more: None)
    saved = render.save
    monkeypatch.setattr(
        render, "save", lambda image, path: full(image, path) if image is None else saved(image, path)
    )  # fmt: skip
    words = ["explain", models("vit"), str(photos), "--method", "EdgeMap", "--method", "Rollout"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"store", "results.jsonl"}
    assert (tmp_path / "out/results.jsonl").read_text() == ""


@pytest.mark.parametrize("name", ["Store", "write_run"])
def test_saved_from_python_it_is_whole_or_not_there(
    name: str,
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vision_attn.runs import saved

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    model, out = load_model(models("vit")), tmp_path / "out"
    model.explain([photos / "cat.png"], "Rollout").save(out)
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    monkeypatch.setattr(saved, name, full)
    with pytest.raises(OSError, match="No space left"):
        model.explain([photos / "dog.jpg"], "Rollout").save(out)
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    monkeypatch.undo()
    model.explain([photos / "dog.jpg"], "Rollout").save(out)
    with open_results(out) as results:
        assert len(results) == len((out / "results.jsonl").read_text().splitlines()) == 2


def test_a_fit_on_a_full_disk_says_where(
    full_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (full_disk / "a.txt").write_bytes(b"x" * (65_536 - 12_288))
    words = ["fit", "--config", "vit_planted", "--data.source.train=8", "--data.source.val=4"]
    words += ["--data.source.test=4", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
    words += [f"--trainer.default_root_dir={full_disk}", "--trainer.enable_progress_bar=false"]
    assert main(words) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert str(full_disk) in line
    assert "No space left on device" in line
    assert not list(full_disk.rglob("*.part"))


@pytest.mark.slow
def test_measuring_on_a_full_disk_says_where(
    full_disk: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--data.source.train=8", "--data.source.val=4", "--data.source.test=4"]
    small += ["--model.network.depth=1", "--trainer.accelerator=cpu"]
    quiet = ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"]
    words = ["fit", "--config", "vit_planted", *small, *quiet]
    assert main([*words, f"--trainer.default_root_dir={tmp_path}"]) == 0
    (full_disk / "best.ckpt").symlink_to(tmp_path / "vit_planted/version_0/best.ckpt")
    (full_disk / "a.txt").write_bytes(b"x" * 65_536)
    start = ["--ckpt_path", f"{full_disk}/best.ckpt"]
    table = ["--trainer.accelerator=cpu", "--images", str(photos), "--output", f"{full_disk}/t.csv"]
    for words in (
        ["validate", "--config", "vit_planted", *small, *start],
        ["test", "--config", "vit_planted", *small, *start],
        ["predict", *start, *table],
    ):
        capsys.readouterr()
        assert main([*words, "--trainer.enable_progress_bar=false"]) == 2
        (line,) = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("Seed set")]
        assert line.startswith(f"vision-attn: error: {full_disk}/")
        assert "No space left on device" in line
        assert {path.name for path in full_disk.iterdir()} == {"best.ckpt", "a.txt"}


def test_the_demo_on_a_full_disk_says_where(
    full_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (full_disk / "a.txt").write_bytes(b"x" * 65_536)
    assert main(["demo", "--minutes", "0.02", "-o", str(full_disk / "demo")]) == 2
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if not line.startswith("Seed set")]
    assert line.startswith("vision-attn: error: ")
    assert str(full_disk) in line
    assert "No space left on device" in line


def test_what_is_added_to_a_file_is_added_whole_or_not_at_all(full_disk: Path) -> None:
    path = full_disk / "results.jsonl"
    append_text(path, "one\n")
    with pytest.raises(OSError, match=r"results.jsonl: cannot be written \(No space left"):
        append_text(path, "x" * 100_000)
    append_text(path, "two\n")
    assert path.read_text() == "one\ntwo\n"


def test_a_folder_that_another_job_writes_to_is_refused(
    tmp_path: Path, models: Callable[[str], str], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", models("vit"), str(photos), "--method", "EdgeMap", "-o", str(tmp_path)]
    with claimed(tmp_path):
        assert main(["demo", "-o", str(tmp_path)]) == 2
        assert "another job is writing there" in capsys.readouterr().err
        assert main(words) == 2
    message = f"{tmp_path}: another job is writing there: wait for it, or name another folder"
    assert capsys.readouterr().err == f"vision-attn: error: {message}\n"
    assert main(words) == 0
    assert not (tmp_path / ".lock").exists()


def test_shards_share_a_folder_but_with_nobody_else(tmp_path: Path) -> None:
    with claimed(tmp_path, (1, 3)), claimed(tmp_path, (2, 3)):
        for other in [(1, 1), (2, 3)]:
            with pytest.raises(ValueError, match="another job"), claimed(tmp_path, other):
                pass
        with claimed(tmp_path, (3, 3)):
            pass
    with (
        claimed(tmp_path),
        pytest.raises(ValueError, match="another job"),
        claimed(tmp_path, (1, 3)),
    ):
        pass
    with claimed(tmp_path):
        pass


def test_what_a_killed_job_left_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    left = [tmp_path / ".cat.Rollout.0123abcd.part.png", tmp_path / "page/.cat.ffffffff.part.jpg"]
    kept = [tmp_path / ".cat.part.png", tmp_path / "cat.png", tmp_path / ".0123abcd.png"]
    for path in [*left, *kept]:
        path.touch()
    with claimed(tmp_path, (1, 2)):  # the other shard may be writing
        assert all(path.exists() for path in left)
    with claimed(tmp_path):
        assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)
