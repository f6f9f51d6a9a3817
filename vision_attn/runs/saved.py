"""What `save` of an explanation leaves in a folder: a finished run, to which the next call adds."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from os.path import isfile
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from PIL.Image import Image

from vision_attn.runs.keys import bytes_crc, content_number, file_stamp, sample_numbers
from vision_attn.runs.naming import file_names, label
from vision_attn.runs.results import open_results
from vision_attn.runs.rows import Explained, about_model, explained_columns, explained_rows
from vision_attn.runs.runfile import RunFile, write_run
from vision_attn.runs.store import Store
from vision_attn.types import Model

__all__ = ["ExplainedPhoto", "SavedBefore", "SavedPhoto"]

APART = ("from", "asked", "films")  # what two calls of one model may differ in


class ExplainedPhoto(Explained, Protocol):
    """What is saved: an `Explanation`.

    Examples:
        >>> from vision_attn.runs.saved import ExplainedPhoto
        >>> "photo" in vars(ExplainedPhoto)
        True
    """

    @property
    def photo(self) -> Image:
        """The photo itself."""


@dataclass(frozen=True)
class SavedPhoto:
    """A photo in a folder of results.

    Attributes:
        sample: Its name among the samples: the file, or "image" with a number if need be.
        stem: What the names of its pictures begin with.
        content: A number of its bytes, or of its pixels where it is no file.

    Examples:
        >>> from vision_attn.runs.saved import SavedPhoto
        >>> SavedPhoto("photos/cat.jpg", "cat", 0).stem
        'cat'
    """

    sample: str
    stem: str
    content: int


@dataclass(frozen=True)
class SavedBefore:
    """What earlier calls have saved in a folder, with the same model.

    Attributes:
        run: Their run; None where there is none, or one of another model or of a command, which the
            next call replaces.
        photos: Its photos, by their samples.
        targets: What each result explains, by its sample and method.

    Examples:
        >>> from vision_attn.runs.saved import SavedBefore
        >>> SavedBefore().photos
        {}
    """

    run: RunFile | None = None
    photos: dict[str, SavedPhoto] = field(default_factory=dict)
    targets: dict[tuple[str, str], tuple[object, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, model: Model) -> "SavedBefore":
        """Read what is there. What is damaged or not finished counts as nothing."""
        try:
            results = open_results(folder)
        except ValueError:
            return cls()
        about = json.loads(json.dumps(about_model(model) | {"saved": True}))
        with results:
            kept = results.about
            if any(kept.get(name) != about[name] for name in about if name not in APART):
                return cls()
            photos: dict[str, SavedPhoto] = {}
            targets: dict[tuple[str, str], tuple[object, ...]] = {}
            for place, row in enumerate(results):
                sample, method = row["file"], results.method(place)
                stem = row["picture"].removesuffix(f".{label(method)}.png")
                photos[sample] = SavedPhoto(sample, stem, results.content(place))
                targets[sample, method] = _target(row)
            return cls(results.run, photos, targets)

    def place(self, folder: Path, explained: Sequence[ExplainedPhoto]) -> list[SavedPhoto]:
        """Name each photo: as it was if it was saved before, else as no other there is."""
        samples: list[str] = []
        contents = [_content(one) for one in explained]
        for one, content in zip(explained, contents, strict=True):
            sample, count = one.name, 1
            while sample in samples or self._is_another(sample, content):
                count += 1
                sample = f"{one.name} ({count})"
            samples.append(sample)
        again = {name: self.photos[name].stem for name in samples if name in self.photos}
        new = [
            Path(one.name if isfile(one.name) else name)
            for one, name in zip(explained, samples, strict=True)
            if name not in again
        ]
        taken = [photo.stem for photo in self.photos.values()]
        names = file_names([*map(Path, self.photos), *new], folder, taken)
        stems = iter(names[len(self.photos) :])
        return [
            SavedPhoto(name, again[name] if name in again else next(stems), content)
            for name, content in zip(samples, contents, strict=True)
        ]

    def _is_another(self, sample: str, content: int) -> bool:
        """Whether a name is that of another image; a file is one photo, whatever it holds."""
        known = self.photos.get(sample)
        return known is not None and not isfile(sample) and known.content != content

    def add(
        self,
        folder: Path,
        photos: Sequence[SavedPhoto],
        explained: Sequence[tuple[Explained, Sequence[dict[str, Any]]]],
    ) -> Counter[str]:
        """Write photos with the records of their maps as results of a finished run.

        Returns:
            How many other results they replace, by their methods: those of a command or of another
            model, and of the same photo and method with another target.

        Raises:
            OSError: They cannot be written.
        """
        model = explained[0][0].model
        explainers = {found.method: found.explainer for one, _ in explained for found in one.maps}
        columns = explained_columns(model, list(explainers.values()), None, saved=True)
        names = [photo.sample for photo in photos]
        rows = [
            row._replace(sample=photo.sample)
            for photo, (one, records) in zip(photos, explained, strict=True)
            for row in explained_rows(one, records, columns, photo.content, keeps=False)
        ]
        methods = list(self.run.about["asked"]["methods"]) if self.run else []
        samples = [*self.run.samples, *names] if self.run else names
        keys = [*(self.run.columns if self.run else ()), *(column.key for column in columns)]
        asked = {"save": "pictures", "methods": list(dict.fromkeys([*methods, *explainers]))}
        about = about_model(model) | {"saved": True, "asked": asked, "films": []}
        run = RunFile(about, list(dict.fromkeys(samples)), columns=tuple(dict.fromkeys(keys)))
        replaced = Counter(
            row.column.method
            for row in rows
            if self.targets.get((row.sample, row.column.method), _target(row.record))
            != _target(row.record)
        )
        with Store(folder, wanted=columns, keeps_others=self.run is not None) as store:
            replaced.update({name: count for name, count in store.replaced.items() if name})
            for column in columns:
                store.forget(column, sample_numbers(names))
            store.add(rows)
            store.finish(run.number)
        write_run(folder, run)
        return replaced


def _target(record: dict[str, Any]) -> tuple[object, ...]:
    """What a result explains."""
    return tuple(record.get(name) for name in ("target", "target_index", "contrast_index"))


def _content(one: ExplainedPhoto) -> int:
    if isfile(one.name):
        return content_number(file_stamp(one.name), bytes_crc(one.name))
    size = repr((one.photo.mode, one.photo.size)).encode()
    return content_number(0, crc32(one.photo.tobytes(), crc32(size)))
