"""`vision-attn explain` on videos and on folders of frames."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from vision_attn.cli import main
from vision_attn.data.images import ImageError
from vision_attn.data.video import Video, clips
from vision_attn.hub import load_model
from vision_attn.methods import GradCAM
from vision_attn.render import ColorMap, natural, overlay
from vision_attn.render.video import VideoWriter
from vision_attn.runs.explanation import Explanation

FRAMES, RATE = 7, 12.0


@pytest.fixture
def frames() -> list[np.ndarray]:
    """A coarse pattern that moves, 321 x 199."""
    coarse = np.random.default_rng(3).integers(0, 256, (4, 9, 3), dtype=np.uint8)
    wide = np.asarray(Image.fromarray(coarse).resize((601, 199), Image.Resampling.BICUBIC))
    return [wide[:, 40 * at : 40 * at + 321] for at in range(FRAMES)]


@pytest.fixture
def film(tmp_path: Path, frames: list[np.ndarray]) -> Path:
    with VideoWriter(tmp_path / "film.mp4", RATE) as video:
        for frame in frames:
            video.append(frame)
    return tmp_path / "film.mp4"


@pytest.fixture
def folder(tmp_path: Path, frames: list[np.ndarray]) -> Path:
    (tmp_path / "still").mkdir()
    for at, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / "still" / f"{at:03}.png")
    return tmp_path / "still"


def explain(*words: Any) -> int:
    return main(["explain", *map(str, words), "--device", "cpu"])


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("vision-attn: error: ")


def test_a_video_is_read_as_it_was_written(film: Path, frames: list[np.ndarray]) -> None:
    video = Video.file(film)
    assert (video.rate, video.frames) == (RATE, FRAMES)
    for _ in range(2):  # as often as one likes
        read = [np.asarray(frame) for frame in video]
        assert [frame.shape for frame in read] == [(200, 322, 3)] * FRAMES  # the codec wants even
        for got, want in zip(read, frames, strict=True):
            assert np.abs(got[:199, :321].astype(int) - want).mean() < 6


def test_frames_of_a_folder_come_by_name(folder: Path, frames: list[np.ndarray]) -> None:
    video = Video.folder(folder, 5.0)
    assert (video.rate, video.frames) == (5.0, FRAMES)
    for got, want in zip(video, frames, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)


def test_each_frame_has_its_map_and_all_have_one_scale(
    models: Callable[[str], str],
    folder: Path,
    frames: list[np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    words = ("--frames", RATE, "--method", "GradCAM", "--method", "Rollout", "--target", "0")
    assert explain(models("vit"), folder, "-o", out, *words, "--batch-size", 3) == 0
    assert f"{FRAMES} frames of {folder} explained: {out}" in capsys.readouterr().out
    assert {path.name for path in out.glob("*.mp4")} == {"still.GradCAM.mp4", "still.Rollout.mp4"}
    maps = np.load(out / "still.GradCAM.npy")
    model = load_model(models("vit"))
    for found, frame in zip(maps, frames, strict=True):
        image = model.preprocess(Image.fromarray(frame))[None]
        want = GradCAM()(model.network, image, 0).values[0].numpy()
        np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-5)
    scale = natural(maps)
    painted = [np.asarray(frame) for frame in Video.file(out / "still.GradCAM.mp4")]
    for picture, found, frame in zip(painted, maps, frames, strict=True):
        laid = model.preprocess.to_original(found, (321, 199))
        want = overlay(frame, laid, style=ColorMap(), scale=scale)
        assert np.abs(picture[:199, :321].astype(int) - want).mean() < 8  # the codec's loss
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [line["frame"] for line in lines if line["method"] == "Rollout"] == [*range(FRAMES)]
    assert {line["picture"] for line in lines} == {"still.GradCAM.mp4", "still.Rollout.mp4"}


def test_videos_and_photos_together_and_a_limit(
    models: Callable[[str], str],
    film: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert explain(models("senet"), photos, film, "-o", out, "--limit", 2) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"2 of 2 images explained: {out}",
        f"2 frames of {film} explained: {out}",
    ]
    assert len(np.load(out / "film.GradCAM.npy")) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file: check the path"),
        (b"no video", "expected a video .*convert or replace"),
    ],
)
def test_a_bad_video_is_one_line_and_the_rest_is_done(
    models: Callable[[str], str],
    film: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    content: bytes | None,
    message: str,
) -> None:
    bad = tmp_path / "bad.mp4"
    if content:
        bad.write_bytes(content)
    with pytest.raises(ImageError, match=message):
        Video.file(bad)
    capfd.readouterr()
    assert explain(models("senet"), bad, film, "-o", tmp_path / "out") == 1
    ours = [line for line in capfd.readouterr().err.splitlines() if "vision-attn" in line]
    assert len(ours) == 1
    assert str(bad) in ours[0]
    assert (tmp_path / "out/film.GradCAM.mp4").is_file()


def test_a_folder_without_frames_is_one_line(
    models: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    assert explain(models("senet"), tmp_path / "none", "--frames", 5, "-o", tmp_path / "out") == 1
    assert "no image in this folder" in complaint(capsys)
    with pytest.raises(ImageError, match="expected a folder of frames"):
        Video.folder(tmp_path / "nowhere", 5.0)


def test_a_bad_frame_is_named_and_the_others_are_done(
    models: Callable[[str], str],
    folder: Path,
    frames: list[np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "001.png").write_bytes(b"no frame")
    out = tmp_path / "out"
    assert explain(models("senet"), folder, "--frames", 5, "-o", out) == 1
    assert f"{folder / '001.png'}: " in complaint(capsys)
    assert len(np.load(out / "still.GradCAM.npy")) == len(frames) - 1
    assert len(list(Video.file(out / "still.GradCAM.mp4"))) == len(frames) - 1


def test_a_wrong_rate_is_one_line(
    models: Callable[[str], str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(models("senet"), folder, "--frames", "0") == 2
    assert "--frames: expected a number above 0, got '0'" in complaint(capsys)


def test_a_frame_of_another_size_is_one_line(
    models: Callable[[str], str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (64, 64)).save(folder / "zzz.png")
    assert explain(models("senet"), folder, "--frames", 5, "-o", tmp_path / "out") == 1
    assert "zzz.png: 64 x 64 pixels, the first frame has 321 x 199" in complaint(capsys)


def test_ctrl_c_paints_what_was_explained(
    models: Callable[[str], str],
    film: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vision_attn.runs.explain import Request

    explain_batch, calls = Request.explain, []

    def stop_at_the_third(self: Any, photos: Any) -> list[Explanation]:
        calls.append(len(photos))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return explain_batch(self, photos)

    monkeypatch.setattr(Request, "explain", stop_at_the_third)
    out = tmp_path / "out"
    assert explain(models("senet"), film, "-o", out, "--batch-size", 2) == 130
    assert f"stopped; the first 4 frames are in {out}" in capsys.readouterr().err
    assert len(list(Video.file(out / "film.GradCAM.mp4"))) == 4


def test_opencv_and_ffmpeg_keep_quiet_about_a_damaged_video(
    models: Callable[[str], str], film: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.avi").write_bytes(b"RIFF\0\1\0\0AVI gen." + bytes(300))
    assert explain(models("vit"), tmp_path / "bad.avi", "-o", tmp_path / "out") == 1
    assert len(capfd.readouterr().err.splitlines()) == 1
    content = bytearray(film.read_bytes())
    for at in range(len(content) // 4, len(content) // 2, 37):
        content[at] ^= 255
    film.write_bytes(content)
    assert explain(models("vit"), film, "-o", tmp_path / "out") in (0, 1)
    lines = capfd.readouterr().err.strip().splitlines()
    assert all(line.startswith("vision-attn: error: ") for line in lines)
    assert len(lines) <= 1


def test_a_playlist_named_as_a_video_opens_no_other_file(film: Path, tmp_path: Path) -> None:
    """FFmpeg goes by content, whatever the name: it would show the film that the list names."""
    lists = {
        "concat": "ffconcat version 1.0\nfile film.mp4\n",
        "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfilm.mp4\n#EXT-X-ENDLIST\n",
    }
    for name, text in lists.items():
        (tmp_path / f"{name}.mp4").write_text(text)
        with pytest.raises(ImageError, match=f"{name}.mp4: expected a video"):
            Video.file(tmp_path / f"{name}.mp4")


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        *(("mp4", "mp4v"), ("m4v", "mp4v"), ("mov", "mp4v"), ("ts", "mp4v"), ("avi", "MJPG")),
        *(("mkv", "MJPG"), ("webm", "VP80"), ("ogv", "VP80"), ("flv", "FLV1"), ("wmv", "WMV1")),
    ],
)
def test_every_container_that_opencv_writes_is_known(
    tmp_path: Path, frames: list[np.ndarray], suffix: str, codec: str
) -> None:
    path = tmp_path / f"film.{suffix}"
    written = cv2.VideoWriter(
        str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), 25.0, (320, 198)
    )
    for frame in frames:
        written.write(frame[:198, :320].copy())
    written.release()
    assert len(list(Video.file(path))) >= FRAMES - 1  # a transport stream may lose its last one


def test_images_are_no_video_whatever_their_names(tmp_path: Path) -> None:
    """OpenCV takes 0.mp4, 1.mp4 ... for the frames of a film if they are images."""
    for number in range(3):
        Image.new("RGB", (32, 24)).save(tmp_path / f"{number}.mp4", "PNG")
    with pytest.raises(ImageError, match=r"0\.mp4: expected a video"):
        Video.file(tmp_path / "0.mp4")


def test_frames_of_a_video_are_bounded_like_images(
    film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", str(322 * 200 - 1))
    with pytest.raises(ImageError, match=r"film\.mp4: 322 x 200 pixels are more than the 64,399"):
        Video.file(film)
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", str(322 * 200))
    assert len(list(Video.file(film))) == FRAMES


@pytest.mark.parametrize(
    ("kind", "message"),
    [("folder", "expected a file, got a folder"), ("pipe", "expected a file, got a named pipe")],
)
def test_what_is_no_file_is_said_to_be_what_it_is(tmp_path: Path, kind: str, message: str) -> None:
    path = tmp_path / "odd.mp4"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(ImageError, match=message):
        Video.file(path)


def test_numbers_of_frames_count_as_numbers(tmp_path: Path) -> None:
    for name in ("f10", "f9", "f2", "f100"):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{name}.png")
    ((path, files),) = clips(tmp_path).items()
    assert path == tmp_path
    assert [file.stem for file in files] == ["f2", "f9", "f10", "f100"]


def test_clips_are_told_apart_by_folder_and_by_name(tmp_path: Path) -> None:
    names = [
        "a_0001",
        "b_0001",
        "a_0002",
        "sub/001",
        "sub/2",
        "day-1_7",
        "cover",
        "other",
        "x/y/c3",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16)).save(tmp_path / f"{name}.png")
    found = {
        str(clip.relative_to(tmp_path)): [file.stem for file in files]
        for clip, files in clips(tmp_path).items()
    }
    assert found == {
        "a": ["a_0001", "a_0002"],
        "b": ["b_0001"],
        "sub": ["001", "2"],
        "day-1": ["day-1_7"],
        ".": ["cover", "other"],
        "x/y/c": ["c3"],
    }
    with pytest.raises(ImageError, match="expected the frames of one clip, got 6"):
        Video.folder(tmp_path, 5.0)


def test_two_clips_of_a_folder_are_two_films(
    models: Callable[[str], str],
    folder: Path,
    frames: list[np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for at, frame in enumerate(frames):
        for clip, picture in (("a", frame), ("b", frame[::-1])):
            Image.fromarray(picture).save(tmp_path / f"{clip}_{at}.png")
    (tmp_path / "clips").mkdir()
    for path in tmp_path.glob("*_*.png"):
        path.rename(tmp_path / "clips" / path.name)
    out = tmp_path / "out"
    options = "--method", "EdgeMap", "--frames", 5, "-o", out
    assert explain(models("senet"), tmp_path / "clips", *options) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{FRAMES} frames of {tmp_path}/clips/a explained: {out}",
        f"{FRAMES} frames of {tmp_path}/clips/b explained: {out}",
    ]
    assert explain(models("senet"), folder, *options) == 0
    alone, a, b = (np.load(out / f"{name}.EdgeMap.npy") for name in ("still", "a", "b"))
    np.testing.assert_array_equal(a, alone)
    assert not np.array_equal(b, alone)
