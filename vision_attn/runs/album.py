"""Photos explained into a folder, a batch at a time; a bad one costs itself only."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vision_attn.data.images import ImageError, read_image
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
        photos, problems = [], []
        for file, name in batch:
            try:
                photos.append((file, name, read_image(file)))
            except ImageError as error:
                problems.append(str(error))
        if not photos:
            return Added([], problems)
        try:
            explanations = self.request.explain([(str(file), image) for file, _, image in photos])
        except ValueError as error:
            if len(photos) == 1:
                return Added([], [*problems, f"{photos[0][0]}: {error}"])
            each = [self.add([(file, name)]) for file, name, _ in photos]
            entries = [entry for added in each for entry in added.entries]
            return Added(entries, problems + [line for added in each for line in added.problems])
        entries = []
        for (file, name, _), explanation in zip(photos, explanations, strict=True):
            problems += [f"{file}: {text}" for text in explanation.problems]
            if not explanation.maps:
                continue
            try:
                entries.append(self.pictures.write(name, explanation))
            except (ImageError, OSError) as error:
                problems.append(f"{file}: {error}")
        return Added(entries, problems)
