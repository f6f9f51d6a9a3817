"""Videos as RGB frames: a video file, or a folder of images that are its frames.

Axes: H, W height and width in pixels.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from vision_attn.data.images import (
    ImageError,
    check_pixels,
    find_images,
    read_image,
    regular_file,
)

if TYPE_CHECKING:
    import cv2

__all__ = ["Video", "clips", "is_video"]

# AV_LOG_QUIET, which OpenCV takes over at its first video: ImageError says what is wrong with one.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
# How the files of known containers begin. FFmpeg goes by content, whatever the name, and would open
# the files that a playlist names.
CONTAINERS = re.compile(
    rb"[\0-\x08]...(ftyp|moov|mdat|wide|free|skip|pnot)"  # MP4, QuickTime
    rb"|RIFF....AVI |\x1aE\xdf\xa3|OggS\0|FLV\x01|0&\xb2u\x8ef\xcf\x11"  # AVI, WebM, Ogg, FLV, ASF
    rb"|\0\0\1[\xb0\xb3\xba]|G.{187}G",  # MPEG: video alone, programs, transport streams
    re.DOTALL,
)
SUFFIXES = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm"})


@dataclass(frozen=True)
class Video:
    """Frames in order, as often as they are iterated, and how many of them are a second.

    Attributes:
        path: A video file, or the folder of its frames, with what their names begin with where
            there are several clips.
        rate: Frames a second; a video file says its own.
        frames: About how many there are.
        files: The images that are its frames, in order; none for a video file.
        skipped: Images of a folder that were left out when it was iterated, and what was wrong.

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
    files: tuple[Path, ...] = ()
    skipped: dict[Path, str] = field(default_factory=dict, compare=False)

    @classmethod
    def file(cls, path: Path) -> "Video":
        """Open a video file.

        Raises:
            ImageError: It is of no known container, OpenCV finds no frame in it, or its frames have
                more than `max_pixels`.
        """
        import cv2

        capture = _open(path)
        rate, frames = capture.get(cv2.CAP_PROP_FPS), int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        has_frame, _ = capture.read()
        capture.release()
        if not has_frame:
            raise ImageError(
                f"{path}: expected a video (MP4, AVI, WebM ...), found no frame that can be read: "
                "convert or replace the file"
            )
        return cls(path, rate if 0 < rate < 1000 else 25.0, max(frames, 1))

    @classmethod
    def folder(cls, path: Path, rate: float) -> "Video":
        """Take the images of a folder as frames.

        Raises:
            ImageError: There is no such folder, no image in it, or several clips.
        """
        by_clip = clips(path)
        if len(by_clip) > 1:
            names = ", ".join(str(clip) for clip in list(by_clip)[:3])
            raise ImageError(
                f"{path}: expected the frames of one clip, got {len(by_clip)}: {names}"
            )
        return cls.of_frames(*next(iter(by_clip.items())), rate)

    @classmethod
    def of_frames(cls, path: Path, files: tuple[Path, ...], rate: float) -> "Video":
        """Make a video of images, in this order; see `clips`."""
        return cls(path, rate, len(files), files)

    def __iter__(self) -> Iterator[Image.Image]:
        """Leave out images that cannot be read or are of another size than the first.

        A file that breaks off just ends.
        """
        size: tuple[int, int] | None = None
        if self.files:
            for path in self.files:
                try:
                    image = read_image(path)
                except ImageError as error:
                    self.skipped[path] = str(error)
                    continue
                size = image.size if size is None else size
                if image.size == size:
                    yield image
                else:
                    width, height = image.size
                    self.skipped[path] = (
                        f"{path}: {width} x {height} pixels, the first frame has "
                        f"{size[0]} x {size[1]}: scale it to the same size"
                    )
            return
        import cv2

        capture = _open(self.path)
        try:
            while (read := capture.read())[0]:
                yield Image.fromarray(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
        finally:
            capture.release()


def clips(folder: Path) -> dict[Path, tuple[Path, ...]]:
    """Sort the images below a folder into clips: their frames by the path that names each clip.

    Images of one folder are of one clip if their names are alike up to the last number, such as
    a_0001.png and a_0002.png; those without a number are together. Numbers count as numbers: 2
    comes before 10. The only clip of a folder has the folder's path. Raises ImageError where there
    is no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise ImageError(f"{folder}: expected a folder of frames")
    by_clip: dict[Path, list[Path]] = {}
    for file in sorted(find_images([folder]), key=_natural):
        numbered = re.fullmatch(r"(.*?)\d+", file.stem)
        by_clip.setdefault(
            file.parent / (numbered[1].rstrip(" _-.") if numbered else ""), []
        ).append(file)
    if len(by_clip) == 1:
        return {folder: tuple(*by_clip.values())}
    return {clip: tuple(files) for clip, files in by_clip.items()}


def _natural(path: Path) -> list[list[str | int]]:
    """Order paths by their parts, and the numbers in these by their values."""
    return [
        [int(text) if text.isdecimal() else text for text in re.split(r"(\d+)", part)]
        for part in path.parts
    ]


def is_video(path: str | Path) -> bool:
    """Whether a file's name is that of a video."""
    return Path(path).suffix.lower() in SUFFIXES and not Path(path).is_dir()


def _open(path: Path) -> "cv2.VideoCapture":
    """Open a video, which has no frame where it is of no known container."""
    import cv2

    with regular_file(path) as file:
        head = file.read(189)
    set_level = getattr(cv2, "setLogLevel", None)  # OpenCV 4
    (set_level or cv2.utils.logging.setLogLevel)(0)
    capture = cv2.VideoCapture()
    if CONTAINERS.match(head):
        capture.open(
            str(path), cv2.CAP_FFMPEG
        )  # other readers write to stderr, or open other files
    sides = (capture.get(side) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    check_pixels(path, *map(int, sides))
    return capture
