"""Scores that go on: after a stop or damage, with more methods, in shards and processes."""

import shutil

import pytest

from vision_attn.runs.scoring import tasks as score_work

QUICK = "--steps", 4, "--batch-size", 4, "--method", "GradCAM"
BASELINES = {"RandomMap", "CentreGaussian", "EdgeMap"}


@pytest.mark.slow
@pytest.mark.xdist_group("scored")
def test_a_stopped_run_goes_on(
    models, planted, tmp_path, monkeypatch, score, scores, same, complaint
):
    words = models("vit"), "planted", *QUICK, "--limit", 10, "-o", tmp_path
    do, count = score_work.Work.do, 0

    def interrupted(self, task):
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        return do(self, task)

    monkeypatch.setattr(score_work.Work, "do", interrupted)
    assert score(*words) == 130
    assert f"20 scored maps are kept in {tmp_path}" in complaint()
    assert not (tmp_path / "scores.json").exists()
    lines = tmp_path / "per_image" / "all.jsonl"
    lines.write_text(lines.read_text()[:-40])  # as a killed process leaves them
    count = 6
    assert score(*words) == 0
    assert count == 6 + 7 + 1 + 4  # twelve tasks, five done, one image lost; four of maps to draw
    same(scores(tmp_path), scores(planted))


@pytest.mark.xdist_group("scored")
def test_damaged_scores_are_made_again(models, planted, tmp_path, monkeypatch, score, scores, same):
    """A digit, a name, bytes that are no text, brackets without an end: each costs its image."""
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "per_image" / "all.jsonl"
    lines = file.read_bytes().splitlines()
    digit = max(
        i for i, c in enumerate(lines[0]) if chr(c).isdigit() and i < lines[0].index(b"checksum")
    )
    lines[0] = (
        lines[0][:digit]
        + (b"1" if lines[0][digit : digit + 1] != b"1" else b"2")
        + lines[0][digit + 1 :]
    )
    lines[1] = lines[1].replace(b'"kind"', b'"kynd"')
    lines[2] = b"\xff\xfe" + lines[2]
    lines[3] = b"[" * 100_000
    lines[4] = b"[1]"
    file.write_bytes(b"\n".join(lines) + b"\n")
    done = []
    do = score_work.Work.do
    monkeypatch.setattr(score_work.Work, "do", lambda s, task: done.append(task) or do(s, task))
    assert score(models("vit"), "planted", *QUICK, "--limit", 10, "-o", tmp_path) == 0
    assert done
    same(scores(tmp_path), scores(planted))


@pytest.mark.parametrize("text", ["", "{", "3", "[1]", "[" * 100_000])
def test_damaged_settings_are_named(models, tmp_path, text, score, complaint):
    (tmp_path / "settings.json").write_text(text)
    assert score(models("vit"), "planted", *QUICK, "--limit", 2, "-o", tmp_path) == 2
    assert "settings.json: damaged: the settings of its scores are unknown" in complaint()


@pytest.mark.xdist_group("scored")
def test_scores_of_other_settings_do_not_mix(models, planted, score, complaint):
    assert score(models("vit"), "planted", "--steps", 5, "-o", planted) == 2
    assert "it holds scores of other settings (steps 4, now 5)" in complaint()
    assert score(models("senet"), "planted", *QUICK, "-o", planted) == 2
    assert "weights" in complaint()


@pytest.mark.slow
def test_more_methods_and_images_add_to_what_is_there(models, tmp_path, monkeypatch, score, scores):
    words = models("vit"), "planted", "--steps", 2, "--batch-size", 4, "-o", tmp_path
    assert score(*words, "--method", "GradCAM", "--limit", 4) == 0
    done = []
    do = score_work.Work.do
    monkeypatch.setattr(score_work.Work, "do", lambda s, task: done.append(task) or do(s, task))
    assert score(*words, "--method", "GradCAM", "--method", "RawAttention", "--limit", 4) == 0
    assert [task[:2] for task in done] == [("maps", "RawAttention"), ("drawn", "RawAttention")]
    assert set(scores(tmp_path)) == {"GradCAM", "RawAttention", *BASELINES}


@pytest.mark.slow
@pytest.mark.xdist_group("scored")
def test_shards_are_put_together(models, planted, tmp_path, capsys, score, scores, same):
    words = models("vit"), "planted", *QUICK, "--limit", 10, "-o", tmp_path
    for shard in ("2/2", "1/2"):
        assert score(*words, "--shard", shard) == 0
        assert f"shard {shard[0]} of 2 is done" in capsys.readouterr().out
        assert not (tmp_path / "scores.json").exists()
    assert score(*words) == 0
    files = sorted(path.name for path in (tmp_path / "per_image").glob("*.jsonl"))
    assert files == ["1-of-2.jsonl", "2-of-2.jsonl"]
    same(scores(tmp_path), scores(planted))


@pytest.mark.slow
@pytest.mark.xdist_group("scored")
def test_other_processes_give_the_same(models, planted, tmp_path, score, scores, same):
    """One task is left to do, so that one process starts."""
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    lines = tmp_path / "per_image" / "all.jsonl"
    kept = [line for line in lines.read_text().splitlines() if '"GradCAM"' not in line]
    lines.write_text("\n".join(kept))
    words = "--method", "GradCAM", "--steps", 4, "--limit", 10, "--processes", 2
    assert score(models("vit"), "planted", *words, "-o", tmp_path) == 0
    assert len(lines.read_text().splitlines()) == len(kept) + 10
    same(scores(tmp_path), scores(planted))
