"""Video files made of pictures.

OpenCV's own FFmpeg has no encoder for H.264. VP9 plays in browsers; where it is missing, MPEG-4
plays in most players and in no browser.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import cv2
import numpy as np

from vision_attn.files import replacing
from vision_attn.render.picture import Picture

__all__ = ["VideoWriter"]


class VideoWriter:
    """MP4 file that pictures of one size are appended to; it appears as the `with` block ends.

    Sides are made even, as the codec asks, by repeating an edge. The end of the block raises
    OSError where the video could not be written whole.

    Args:
        path: The file.
        rate: Pictures a second.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> from vision_attn.render.video import VideoWriter
        >>> with TemporaryDirectory() as folder:
        ...     with VideoWriter(Path(folder, "film.mp4"), rate=12.0) as video:
        ...         video.append(np.zeros((32, 32, 3), np.uint8))
        ...     Path(folder, "film.mp4").stat().st_size > 0
        True
    """

    def __init__(self, path: Path, rate: float):
        self.path, self.rate = path, rate
        self.writer: cv2.VideoWriter | None = None
        self.size = (0, 0)
        self.pictures = 0
        self._files = ExitStack()

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.writer is None:
            return
        self.writer.release()
        if error is None:
            with self._files:
                self._check()
        else:
            self._files.__exit__(kind, error, at)

    def append(self, picture: Picture) -> None:
        """Append a picture.

        Raises:
            ValueError: It has another size than the first one.
            OSError: It cannot be written.
        """
        height, width = picture.shape[:2]
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self.writer is None:
            self.size = (height, width)
            self.writer = self._opened(even.shape[1::-1])
        if (height, width) != self.size:
            raise ValueError(
                f"{self.path}: expected pictures of one size, {self.size[1]} x {self.size[0]} "
                f"as the first, got {width} x {height}"
            )
        self.writer.write(np.ascontiguousarray(even[..., ::-1]))
        self.pictures += 1

    def _check(self) -> None:
        """OpenCV is silent about a full disk: count the pictures in the file."""
        capture = cv2.VideoCapture(str(self._part))
        found = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        capture.release()
        if found != self.pictures:
            raise OSError(f"only {found} of {self.pictures} pictures were written")

    def _opened(self, size: tuple[int, ...]) -> cv2.VideoWriter:
        """Open a writer of pictures of that width and height."""
        self._part = self._files.enter_context(replacing(self.path))
        for codec in ("vp09", "mp4v"):
            code = cv2.VideoWriter.fourcc(*codec)
            writer = cv2.VideoWriter(str(self._part), code, self.rate, size)
            if writer.isOpened():
                return writer
        raise OSError(f"{self.path}: OpenCV cannot write this video")
