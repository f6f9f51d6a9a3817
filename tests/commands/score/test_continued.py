"""Scores that go on: after a stop or damage, with more methods, in shards and processes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vision_attn.runs.loop import TaskResult
from vision_attn.runs.scoring import tasks as score_work
from vision_attn.runs.store import Store

QUICK = "--steps", 4, "--batch-size", 4, "--method", "GradCAM"
BASELINES = {"RandomMap", "CentreGaussian", "EdgeMap"}


@pytest.mark.slow
@pytest.mark.xdist_group("scored")
def test_a_stopped_run_goes_on(
    models: Callable[[str], str],
    planted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
    same: Callable[[dict[str, Any], dict[str, Any]], None],
    complaint: Callable[[], str],
) -> None:
    words = models("vit"), "planted", *QUICK, "--limit", 10, "-o", tmp_path
    do, count = score_work.Work.do, 0

    def interrupted(self: Any, task: Any, read: Any) -> TaskResult:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        return do(self, task, read)

    monkeypatch.setattr(score_work.Work, "do", interrupted)
    assert score(*words) == 130
    assert f"20 scored maps are kept in {tmp_path}" in complaint()
    assert not (tmp_path / "scores.json").exists()
    with Store(tmp_path / "per_image", keeps_others=True) as store:
        store.remove(store.index.ids[-1:])  # as a killed process leaves them
    count = 6
    assert score(*words) == 0
    assert count == 6 + 7 + 1 + 4  # twelve tasks, five done, one image lost; four of maps to draw
    same(scores(tmp_path), scores(planted))


@pytest.mark.xdist_group("scored")
def test_damaged_scores_are_made_again(
    models: Callable[[str], str],
    planted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
    same: Callable[[dict[str, Any], dict[str, Any]], None],
) -> None:
    """Bytes of its rows, here and there: each costs what stands there."""
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "per_image" / "store" / "1-of-1.sqlite"
    content = bytearray(file.read_bytes())
    for offset in range(len(content) - 4096, len(content), 700):
        content[offset] ^= 0x55
    file.write_bytes(content)
    done = []
    do = score_work.Work.do
    monkeypatch.setattr(
        score_work.Work, "do", lambda s, task, read: done.append(task) or do(s, task, read)
    )
    assert score(models("vit"), "planted", *QUICK, "--limit", 10, "-o", tmp_path) == 0
    assert done
    same(scores(tmp_path), scores(planted))


@pytest.mark.xdist_group("scored")
@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000])
def test_damage_of_what_a_run_is_costs_no_score(
    models: Callable[[str], str],
    planted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
) -> None:
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    (tmp_path / "per_image/store/run.json.gz").write_bytes(content)
    monkeypatch.setattr(score_work.Work, "do", lambda *given: 1 / 0)
    assert score(models("vit"), "planted", *QUICK, "--limit", 10, "-o", tmp_path) == 0
    assert scores(tmp_path) == scores(planted)


@pytest.mark.xdist_group("scored")
def test_scores_of_other_settings_do_not_mix(
    models: Callable[[str], str],
    planted: Path,
    score: Callable[..., int],
    complaint: Callable[[], str],
) -> None:
    assert score(models("vit"), "planted", "--steps", 5, "-o", planted) == 2
    assert "it holds scores of other settings (steps 4, now 5)" in complaint()
    assert score(models("senet"), "planted", *QUICK, "-o", planted) == 2
    assert "weights" in complaint()


@pytest.mark.slow
def test_more_methods_and_images_add_to_what_is_there(
    models: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
) -> None:
    words = models("vit"), "planted", "--steps", 2, "--batch-size", 4, "-o", tmp_path
    assert score(*words, "--method", "GradCAM", "--limit", 4) == 0
    done = []
    do = score_work.Work.do

    def seen(work: Any, task: Any, read: Any) -> TaskResult:
        done.append((work.columns[task.columns[0]].kind, work.columns[task.columns[0]].method))
        return do(work, task, read)

    monkeypatch.setattr(score_work.Work, "do", seen)
    assert score(*words, "--method", "GradCAM", "--method", "RawAttention", "--limit", 4) == 0
    assert done == [("maps", "RawAttention"), ("drawn", "RawAttention")]
    assert set(scores(tmp_path)) == {"GradCAM", "RawAttention", *BASELINES}


@pytest.mark.slow
@pytest.mark.xdist_group("scored")
def test_shards_are_put_together(
    models: Callable[[str], str],
    planted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
    same: Callable[[dict[str, Any], dict[str, Any]], None],
) -> None:
    words = models("vit"), "planted", *QUICK, "--limit", 10, "-o", tmp_path
    for shard in ("2/2", "1/2"):
        assert score(*words, "--shard", shard) == 0
        assert f"shard {shard[0]} of 2 is done" in capsys.readouterr().out
        assert not (tmp_path / "scores.json").exists()
    assert score(*words) == 0
    files = sorted(path.name for path in (tmp_path / "per_image/store").glob("*.sqlite"))
    assert files == ["1-of-1.sqlite", "1-of-2.sqlite", "2-of-2.sqlite"]
    same(scores(tmp_path), scores(planted))


@pytest.mark.slow
@pytest.mark.xdist_group("scored")
def test_other_processes_give_the_same(
    models: Callable[[str], str],
    planted: Path,
    tmp_path: Path,
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
    same: Callable[[dict[str, Any], dict[str, Any]], None],
) -> None:
    """One task is left to do, so that one process starts."""
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    with Store(tmp_path / "per_image", keeps_others=True) as store:
        (number,) = [n for n, column in store.columns.items() if column.method == "GradCAM"
                     and column.kind == "maps"]  # fmt: skip
        kept = len(store.index.ids)
        store.remove(store.index.ids[store.index.columns == number])
    words = "--method", "GradCAM", "--steps", 4, "--limit", 10, "--processes", 2
    assert score(models("vit"), "planted", *words, "-o", tmp_path) == 0
    with Store(tmp_path / "per_image", keeps_others=True) as store:
        assert len(store.index.ids) == kept
    same(scores(tmp_path), scores(planted))


def test_scores_are_to_the_bit_whatever_the_load_before_and_after(
    models: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    score: Callable[..., int],
) -> None:
    """The threads are those of the first of all processes and shards."""
    do, seen, before = score_work.Work.do, [], torch.get_num_threads()

    def counted(self: Any, task: Any, read: Any) -> TaskResult:
        seen.append(torch.get_num_threads())
        if len(seen) == stop:
            raise KeyboardInterrupt
        return do(self, task, read)

    def scored(name: str, load: int) -> int:
        monkeypatch.setattr("vision_attn.threads.threads_to_use", lambda most: load)
        words = models("vit"), "planted", *QUICK, "--limit", 5, "--processes", 1
        return score(*words, "-o", tmp_path / name)

    monkeypatch.setattr(score_work.Work, "do", counted)
    torch.set_num_threads(3)
    try:
        stop = -1
        assert scored("whole", load=2) == 0
        assert set(seen) == {2}
        seen, stop = [], 3
        assert scored("broken", load=2) == 130
        stop = -1
        assert scored("broken", load=1) == 0
        assert set(seen) == {2}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    whole, broken = (
        json.loads((tmp_path / name / "scores.json").read_text()) for name in ("whole", "broken")
    )
    for results in (whole, broken):
        for method in results["methods"].values():
            for metric in [name for name in method["scores"] if "second" in name]:
                del method["scores"][metric]
    assert whole == broken
