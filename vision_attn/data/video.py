"""Videos as RGB frames: a video file, or a folder of images that are its frames.

Axes: H, W height and width in pixels.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import cv2
from PIL import Image

from vision_attn.data.images import ImageError, find_images, read_image, regular_file

__all__ = ["Video", "is_video"]

# AV_LOG_QUIET, which OpenCV takes over at its first video: ImageError says what is wrong with one.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
SUFFIXES = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm"})


@dataclass(frozen=True)
class Video:
    """Frames in order, as often as they are iterated, and how many of them are a second.

    path: a video file, or a folder of images, its frames in the order of their names.
    rate: frames a second; a video file says its own. frames: about how many there are.
    skipped: images of a folder that were left out when it was iterated, and what was wrong.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from vision_attn.data.video import Video
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for i in range(3):
        ...         Image.new("RGB", (8, 8)).save(f"{folder}/{i}.png")
        ...     video = Video.folder(Path(folder), rate=5.0)
        ...     len(list(video)), video.rate
        (3, 5.0)
    """

    path: Path
    rate: float
    frames: int
    skipped: dict[Path, str] = field(default_factory=dict, compare=False)

    @classmethod
    def file(cls, path: Path) -> "Video":
        """Open a video file; ImageError where OpenCV finds no frame in it."""
        capture = _open(path)
        rate, frames = capture.get(cv2.CAP_PROP_FPS), int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        found, _ = capture.read()
        capture.release()
        if not found:
            raise ImageError(
                f"{path}: expected a video (MP4, AVI, WebM ...), found no frame that can be read: "
                "convert or replace the file"
            )
        return cls(path, rate if 0 < rate < 1000 else 25.0, max(frames, 1))

    @classmethod
    def folder(cls, path: Path, rate: float) -> "Video":
        """Take the images of a folder as frames; ImageError where it is none, or has none."""
        if not path.is_dir():
            raise ImageError(f"{path}: expected a folder of frames")
        return cls(path, rate, len(find_images([path])))

    def __iter__(self) -> Iterator[Image.Image]:
        """Leaves out images of a folder that cannot be read; a file that breaks off just ends."""
        if self.path.is_dir():
            for path in find_images([self.path]):
                try:
                    yield read_image(path)
                except ImageError as error:
                    self.skipped[path] = str(error)
            return
        capture = _open(self.path)
        try:
            while (read := capture.read())[0]:
                yield Image.fromarray(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
        finally:
            capture.release()


def is_video(path: str | Path) -> bool:
    """Whether a file's name is that of a video."""
    return Path(path).suffix.lower() in SUFFIXES and not Path(path).is_dir()


def _open(path: Path) -> cv2.VideoCapture:
    try:
        with regular_file(path):
            cv2.utils.logging.setLogLevel(0)
            return cv2.VideoCapture(str(path))
    except OSError:
        raise ImageError(f"{path}: no such file: check the path") from None
