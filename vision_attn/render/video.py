"""Pictures written as a video file."""

from pathlib import Path
from types import TracebackType

import cv2
import numpy as np

from vision_attn.render.picture import Picture


class VideoWriter:
    """An MP4 file that pictures of one size are appended to; whole once the `with` block ends.

    rate: pictures a second. Sides are made even, as the codec asks, by repeating an edge.
    """

    def __init__(self, path: Path, rate: float):
        self.path, self.rate = path, rate
        self.writer: cv2.VideoWriter | None = None
        self.size = (0, 0)

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.writer is not None:
            self.writer.release()

    def append(self, picture: Picture) -> None:
        """Raises ValueError for another size than the first one's, OSError if it cannot write."""
        height, width = picture.shape[:2]
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self.writer is None:
            self.size = (height, width)
            code = cv2.VideoWriter.fourcc(*"mp4v")
            self.writer = cv2.VideoWriter(str(self.path), code, self.rate, even.shape[1::-1])
            if not self.writer.isOpened():
                raise OSError(f"{self.path}: OpenCV cannot write this video")
        if (height, width) != self.size:
            raise ValueError(
                f"{self.path}: expected pictures of one size, {self.size[1]} x {self.size[0]} "
                f"as the first, got {width} x {height}"
            )
        self.writer.write(np.ascontiguousarray(even[..., ::-1]))
