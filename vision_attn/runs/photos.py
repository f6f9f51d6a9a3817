"""Photos explained, a batch at a time: rows of the store, and pictures where they are asked for.

A bad photo costs itself only, and a method that fails on it that method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from PIL.Image import Image

from vision_attn.data.faults import ImageError, apart, fault_line, sample_errors
from vision_attn.data.masks import Masks
from vision_attn.runs.explain import Request
from vision_attn.runs.explanation import Explanation, Pictures
from vision_attn.runs.keys import bytes_crc, content_number, file_stamp
from vision_attn.runs.loop import Job, RunTask, TaskResult
from vision_attn.runs.rows import DRAWN, explained_rows
from vision_attn.runs.shard import Column, StoreRow

__all__ = ["ExplainPhotos", "NamedPhoto", "ReadPhoto", "stamp_of"]


class NamedPhoto(NamedTuple):
    """A photo to explain.

    Attributes:
        name: Begins the names of its pictures; empty where none are drawn.

    Examples:
        >>> from vision_attn.runs.photos import NamedPhoto
        >>> NamedPhoto("photos/cat.png", "cat").name
        'cat'
    """

    file: str
    name: str = ""


class ReadPhoto(NamedTuple):
    """A photo that was read, and the number of its content.

    Examples:
        >>> from PIL import Image
        >>> from vision_attn.runs.photos import ReadPhoto
        >>> ReadPhoto(Image.new("RGB", (2, 2)), 7).content
        7
    """

    image: Image
    content: int


def stamp_of(photo: NamedPhoto, masks: Masks | None) -> int:
    """The stamp of a photo: of its size and time, its pictures' name, and its mask's."""
    mask = None if masks is None else masks.of(photo.file)
    if mask is None:
        return file_stamp(photo.file, more=photo.name)
    return file_stamp(photo.file, mask, more=[photo.name, str(mask)])


@dataclass(frozen=True)
class ExplainPhotos(Job):
    """Explains photos; it can be sent to other processes if the model can.

    Attributes:
        columns: Those of the request's methods, and of what is drawn.
        pictures: What draws them; None draws none.
        keeps: Whether raw maps are kept in the store.

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import SEResNet
        >>> from vision_attn.runs.explain import Request
        >>> from vision_attn.runs.loop import RunTask
        >>> from vision_attn.runs.photos import ExplainPhotos, NamedPhoto
        >>> from vision_attn.types import Model
        >>> network = SEResNet(2, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> request = Request.of(Model(network, preprocess, ["cat", "dog"], None))
        >>> job = ExplainPhotos(request, [])
        >>> job.read(NamedPhoto("nothing.png"))
        'nothing.png: no such file: check the path'
    """

    request: Request
    columns: Sequence[Column]
    pictures: Pictures | None = None
    keeps: bool = False

    def read(self, sample: NamedPhoto) -> ReadPhoto | str:
        """Read a photo, or say in a line why it cannot be read."""
        masks = None if self.pictures is None else self.pictures.masks
        stamp = stamp_of(sample, masks)  # first: of a photo that changes now, it is the older one
        try:
            with sample_errors(sample.file):
                image = self.request.model.preprocess.read(sample.file)
                return ReadPhoto(image, content_number(stamp, bytes_crc(sample.file)))
        except ImageError as error:
            return str(error)

    def do(self, task: RunTask, read: Sequence[ReadPhoto | str]) -> TaskResult:
        """Explain photos that are read, by the methods of the task's columns."""
        result = TaskResult(len(read))
        photos = []
        for sample, photo in zip(task.samples, read, strict=True):
            if isinstance(photo, str):
                result.problems.append(photo)
            else:
                photos.append((sample, photo))
        methods = {self.columns[number].method for number in task.columns}
        chosen = [one for one in self.request.explainers if str(one) in methods]
        self._explain(replace(self.request, explainers=chosen), photos, result)
        return result

    def _explain(
        self, request: Request, photos: Sequence[tuple[NamedPhoto, ReadPhoto]], result: TaskResult
    ) -> None:
        """Explain photos as one batch; if that fails, one by one. Whatever one raises is named."""
        explained, lines = apart(
            lambda some: request.explain([(sample.file, photo.image) for sample, photo in some]),
            photos,
            lambda named: named[0].file,
        )
        result.problems += lines
        for some, explanations in explained:
            for (sample, photo), explanation in zip(some, explanations, strict=True):
                result.problems += [f"{sample.file}: {text}" for text in explanation.problems]
                if not explanation.maps:
                    continue
                try:
                    self._add(sample, photo, explanation, result)
                except Exception as error:  # of this photo
                    result.problems.append(fault_line(sample.file, error))

    def _add(
        self, sample: NamedPhoto, photo: ReadPhoto, explanation: Explanation, result: TaskResult
    ) -> None:
        """Add a photo's rows, and draw its pictures if that is asked."""
        drawn = []
        if self.pictures is None:
            records = explanation.records(lambda found: "")
            for record in records:
                del record["picture"]
        else:
            entry = self.pictures.write(sample.name, explanation)
            records = entry.records
            result.files += entry.written
            folder = self.pictures.folder
            files = [path.relative_to(folder).as_posix() for path in entry.written]
            (column,) = (column for column in self.columns if column.kind == DRAWN)
            values = {"files": files, "row": entry.row}
            drawn = [StoreRow(column, sample.file, values, photo.content)]
        result.rows += explained_rows(explanation, records, self.columns, photo.content, self.keeps)
        result.rows += drawn
