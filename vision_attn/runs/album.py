"""Photos explained into a folder, a batch at a time; a bad one costs itself only."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vision_attn.data.faults import ImageError, apart, fault_line, sample_errors
from vision_attn.runs.entries import Entry
from vision_attn.runs.explain import Request
from vision_attn.runs.explanation import Pictures

__all__ = ["Added", "Album", "Batch"]

Batch = Sequence[tuple[Path, str]]  # files, and names for their pictures


@dataclass(frozen=True)
class Added:
    """The photos of a batch that were explained, and a line for each problem.

    Examples:
        >>> from vision_attn.runs.album import Added
        >>> Added([], ["a.png: no such file"]).entries
        []
    """

    entries: list[Entry]
    problems: list[str]


@dataclass(frozen=True)
class Album:
    """Explains photos into a folder, a batch at a time.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import SEResNet
        >>> from vision_attn.runs.album import Album
        >>> from vision_attn.runs.explain import Request
        >>> from vision_attn.runs.explanation import Pictures
        >>> from vision_attn.types import Model
        >>> network = SEResNet(2, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> request = Request.of(Model(network, preprocess, ["cat", "dog"], None))
        >>> Album(request, Pictures(Path("look"))).add([(Path("nothing.png"), "nothing")]).problems
        ['nothing.png: no such file: check the path']
    """

    request: Request
    pictures: Pictures

    def add(self, batch: Batch) -> Added:
        """Explain these files; what fails on a photo costs that photo, or that method, only."""
        photos, problems, entries = [], [], []
        for file, name in batch:
            try:
                with sample_errors(file):
                    photos.append((file, name, self.request.model.preprocess.read(file)))
            except ImageError as error:
                problems.append(str(error))
        explained, lines = apart(
            lambda some: self.request.explain([(str(file), image) for file, _, image in some]),
            photos,
            lambda photo: photo[0],
        )
        problems += lines
        for some, explanations in explained:
            for (file, name, _), explanation in zip(some, explanations, strict=True):
                problems += [f"{file}: {text}" for text in explanation.problems]
                if not explanation.maps:
                    continue
                try:
                    entries.append(self.pictures.write(name, explanation))
                except Exception as error:
                    problems.append(fault_line(file, error))
        return Added(entries, problems)
