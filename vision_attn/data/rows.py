"""Photos in the rows of a table: encoded in the cell itself, or in a file that the cell names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from vision_attn.data.faults import ImageError
from vision_attn.data.images import decode_image, open_encoded, open_image, read_image
from vision_attn.data.jpeg import jpeg_bytes
from vision_attn.data.photos import Photos
from vision_attn.errors import quoted

__all__ = ["RowPhotos"]


class RowPhotos(Photos):
    """Photos in the cells of a column, as the `datasets` library stores them.

    A cell is the bytes of an encoded photo, or a mapping that has them as "bytes", or the name of a
    file as "path".

    Args:
        cells: By the number of the photo.
        names: By the number of the photo, too.
        column: The column's name, for messages.

    Examples:
        >>> from vision_attn.data.rows import RowPhotos
        >>> photos = RowPhotos([{"bytes": b"GIF", "path": "a.gif"}], ["set row 0"], "image")
        >>> photos.jpeg(0)
        b'GIF'
    """

    def __init__(self, cells: Any, names: Any, column: str) -> None:
        self.cells, self.names, self.column = cells, names, column

    def read(self, item: int, shorter_side: int | None = None) -> Image.Image:
        encoded, path = self._content(item)
        if encoded is not None:
            return decode_image(encoded, self.names[item], shorter_side, self.value_range)
        return read_image(path, shorter_side, self.value_range)

    def jpeg(self, item: int) -> bytes | None:
        encoded, path = self._content(item)
        return jpeg_bytes(Path(path)) if encoded is None else encoded

    def side(self, item: int) -> tuple[int, int]:
        encoded, path = self._content(item)
        opened = open_image(path) if encoded is None else open_encoded(encoded, self.names[item])
        with opened as image:
            return image.size

    def stamp(self, item: int) -> tuple[int, int]:
        return 0, 0  # rows stay as they are: files that change are another set, of another cache

    def cell(self, item: int) -> Any:
        """Get the cell of a photo."""
        return self.cells[item]

    def _content(self, item: int) -> tuple[bytes | None, str]:
        """The photo's encoded bytes, or the path of its file."""
        cell = self.cell(item)
        if isinstance(cell, Mapping):
            encoded, path = cell.get("bytes"), cell.get("path")
            if encoded is not None or path:
                return encoded, str(path)
        if isinstance(cell, bytes):
            return cell, ""
        raise ImageError(
            f"{self.names[item]}: expected an encoded image in the column {quoted(self.column)}, "
            f"got {type(cell).__name__}"
        )
