"""A video explained: every frame under its heatmap, in one scale from the first to the last.

    NAME.METHOD.mp4   the video under its heatmap
    NAME.METHOD.npy   the maps (frames, h, w), as the method gives them
    results.jsonl     a line for each frame and method

The scale needs all maps, and painting needs the scale: the video is read twice, and only the maps
are kept meanwhile.
"""

import argparse
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vision_attn import render
from vision_attn.commands import options
from vision_attn.data.video import Video
from vision_attn.render import ColorMap, natural
from vision_attn.render.video import VideoWriter
from vision_attn.reports.explain import Explained
from vision_attn.reports.gallery import Album, label
from vision_attn.reports.results import Entry, Results


def add_film(
    path: Path, name: str, album: Album, results: Results, args: argparse.Namespace
) -> bool:
    """Fill the album's folder with a video and say so; whether that went well.

    Ctrl-C ends the video where it is: the frames explained so far are painted.
    """
    try:
        video = Video.folder(path, args.frames) if path.is_dir() else Video.file(path)
        frames = min(video.frames, args.limit or video.frames)
        with options.Report(name, 2 * frames) as report:
            explained, stopped = explain_frames(video, album, args, report)
            for problem in video.skipped.values():
                report.problem(problem)
            results.add(Entry(str(path), paint(video, name, album, explained, report)))
    except (ValueError, OSError) as error:
        with options.Report(name, 0) as report:
            text = str(error)
            report.problem(text if text.startswith(str(path)) else f"{path}: {text}")
        return False
    if stopped:
        raise KeyboardInterrupt(f"; the first {len(explained)} frames are in {album.folder}")
    print(f"{len(explained)} frames of {path} explained: {album.folder}")
    return not video.skipped


def explain_frames(
    video: Video, album: Album, args: argparse.Namespace, report: options.Report
) -> tuple[list[Explained], bool]:
    """What is said of each frame, and whether Ctrl-C came."""
    explained: list[Explained] = []
    frames = islice(video, args.limit)
    try:
        while batch := list(islice(frames, args.batch_size)):
            explained += album.request.explain(batch)
            report.done(len(batch))
    except KeyboardInterrupt:
        return explained, True
    return explained, False


def paint(
    video: Video, name: str, album: Album, explained: list[Explained], report: options.Report
) -> list[dict[str, Any]]:
    """For each method the maps, and the frames under them in one scale; a record for each."""
    if not explained:
        return []
    records: list[dict[str, Any]] = []
    methods = [found.explainer for found in explained[0].maps]
    scales = []
    for at, method in enumerate(methods):
        maps = [frame.maps[at] for frame in explained]
        values = np.stack([found.values for found in maps])
        np.save(album.folder / f"{name}.{label(method)}.npy", values)
        masses = [found.prefix_mass for found in maps if found.prefix_mass is not None]
        scales.append(natural(values, np.array(masses) if masses else None))
    with ExitStack() as files:
        films = [
            files.enter_context(
                VideoWriter(album.folder / f"{name}.{label(method)}.mp4", video.rate)
            )
            for method in methods
        ]
        for number, (image, frame) in enumerate(zip(video, explained, strict=False)):
            photo = render.enlarged(np.asarray(image))
            for found, scale, film in zip(frame.maps, scales, films, strict=True):
                picture = album.painted(photo, replace(found, scale=scale))
                if isinstance(album.style, ColorMap):
                    picture = render.with_colorbar(picture, album.style, scale)
                film.append(picture)
            records += album.records(video.path, name, frame, ending=".mp4", frame=number)
            report.done(1)
    return records
