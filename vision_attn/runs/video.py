"""A video explained: every frame under its heatmap, in one scale from the first to the last.

    NAME.METHOD.mp4   the video under its heatmap
    NAME.METHOD.npy   the maps (frames, h, w), as the method gives them
    results.jsonl     a line for each frame and method

The scale needs all maps, and painting needs the scale: the video is read twice, and only the maps
are kept meanwhile.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from vision_attn import render
from vision_attn.data.faults import apart
from vision_attn.data.video import Video
from vision_attn.files import kept_together, replacing
from vision_attn.render import ColorMap, natural
from vision_attn.render.video import VideoWriter
from vision_attn.runs.entries import Entry
from vision_attn.runs.explain import Request
from vision_attn.runs.explanation import Explanation, Pictures
from vision_attn.runs.maps import Map
from vision_attn.runs.naming import label
from vision_attn.runs.progress import Silent

__all__ = ["Film"]

NO_PHOTO = PIL.Image.new("RGB", (1, 1))  # frames are read again to be painted


@dataclass(frozen=True)
class Film:
    """A video to explain: a file, or the images that are its frames.

    Attributes:
        path: The file, or the folder of the frames.
        name: What its results are called.
        rate: Frames a second, of images.
        most: Frames at the most.
        batch_size: Frames explained at a time.
        files: The images, in order; none for a file.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.runs.video import Film
        >>> Film(Path("clip.mp4"), "clip").batch_size
        8
    """

    path: Path
    name: str
    rate: float | None = None
    most: int | None = None
    batch_size: int = 8
    files: tuple[Path, ...] = ()

    def open(self) -> Video:
        """Open the video.

        Raises:
            ImageError: No frame of it can be read.
        """
        if self.files:
            return Video.of_frames(self.path, self.files, self.rate or 0)
        return Video.file(self.path)

    def explain(
        self, request: Request, pictures: Pictures, progress: Silent
    ) -> tuple[Entry, int, bool]:
        """Write the video under each heatmap; return its entry, its frames, whether it is whole.

        A frame that cannot be explained by every method is left out, with a line of the problems.
        Ctrl-C ends the video where it is: the frames explained so far are painted.

        Raises:
            ImageError: No frame can be read.
            ValueError: None can be explained.
        """
        video = self.open()
        progress.start(self.name, 2 * min(video.frames, self.most or video.frames))
        explanations, whole = self._explain(video, request, progress)
        for problem in video.skipped.values():
            progress.problem(problem)
        with kept_together() as written:
            records = self._paint(video, pictures, explanations, progress, written)
        done = sum(one is not None for one in explanations)
        return Entry(str(self.path), records, None, tuple(written)), done, whole

    def _explain(
        self, video: Video, request: Request, progress: Silent
    ) -> tuple[list[Explanation | None], bool]:
        """Explain each frame, None where that fails; the second value is False where Ctrl-C came.

        Raises ValueError where it fails on all of them.
        """
        explanations: list[Explanation | None] = []
        frames = enumerate(islice(video, self.most))
        lines: list[str] = []
        whole = True
        try:
            while batch := list(islice(frames, self.batch_size)):
                explained, problems = apart(
                    lambda some: request.explain([(str(self.path), frame) for _, frame in some]),
                    batch,
                    lambda numbered: f"{self.path}, frame {numbered[0]}",
                )
                lines += problems
                found: dict[int, Explanation] = {}
                for some, several in explained:
                    for (number, _), one in zip(some, several, strict=True):
                        if one.problems:  # a film needs every map of a frame
                            lines.append(f"{self.path}, frame {number}: {one.problems[0]}")
                        else:
                            found[number] = replace(one, photo=NO_PHOTO)
                explanations += [found.get(number) for number, _ in batch]
                progress.advance(len(batch))
        except KeyboardInterrupt:
            whole = False
        if lines and not any(explanations):
            raise ValueError(lines[0])
        for line in lines:
            progress.problem(line)
        return explanations, whole

    def _paint(
        self,
        video: Video,
        pictures: Pictures,
        explanations: Sequence[Explanation | None],
        progress: Silent,
        written: list[Path],
    ) -> list[dict[str, Any]]:
        """Write each method's maps, and the frames under them in one scale; return the records.

        written: where the files' paths are added before each is written.
        """
        explained = [frame for frame in explanations if frame is not None]
        if not explained:
            return []
        records: list[dict[str, Any]] = []
        films = [pictures.folder / self._picture(found) for found in explained[0].maps]
        written += [*films, *(film.with_suffix(".npy") for film in films)]
        scales = []
        for at in range(len(films)):
            maps = [frame.maps[at] for frame in explained]
            values = np.stack([found.values for found in maps])
            with replacing(films[at].with_suffix(".npy")) as file:
                np.save(file, values)
            masses = [found.prefix_mass for found in maps if found.prefix_mass is not None]
            scales.append(natural(values, np.array(masses) if masses else None))
        with ExitStack() as files:
            writers = [files.enter_context(VideoWriter(film, video.rate)) for film in films]
            pairs = zip(video, explanations, strict=False)
            frames = ((image, frame) for image, frame in pairs if frame is not None)
            for number, (image, frame) in enumerate(frames):
                photo = render.enlarged(np.asarray(image))
                for found, scale, writer in zip(frame.maps, scales, writers, strict=True):
                    picture = frame.painted(photo, replace(found, scale=scale), pictures.style)
                    if isinstance(pictures.style, ColorMap):
                        picture = render.with_colorbar(picture, pictures.style, scale)
                    writer.append(render.with_caption(picture, frame.model.warning))
                records += frame.records(self._picture, frame=number)
                progress.advance(1)
        return records

    def _picture(self, found: Map) -> str:
        return f"{self.name}.{label(found.method)}.mp4"
