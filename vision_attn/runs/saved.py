"""What `save` of an explanation leaves in a folder: a finished run, to which the next call adds."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from os.path import isfile
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from PIL.Image import Image

from vision_attn.files import replacing
from vision_attn.runs.entries import as_line
from vision_attn.runs.keys import (
    bytes_crc,
    content_number,
    digest,
    file_stamp,
    model_settings,
    sample_numbers,
)
from vision_attn.runs.naming import file_names, label
from vision_attn.runs.results import SavedResults
from vision_attn.runs.rows import Explained, about_model, explained_columns, explained_rows
from vision_attn.runs.runfile import RunFile, read_run, write_run
from vision_attn.runs.store import Store
from vision_attn.types import Model

__all__ = ["ExplainedPhoto", "SavedBefore", "SavedPhoto"]


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
    """What is in a folder of results of the same model.

    Attributes:
        run: The run that `save` wrote, to which the next call adds; None where there is none, or
            that of a command, which the next call replaces.
        photos: The photos of `run`, by their samples.
        rows: All results, by their sample and method.

    Examples:
        >>> from vision_attn.runs.saved import SavedBefore
        >>> SavedBefore().photos
        {}
    """

    run: RunFile | None = None
    photos: dict[str, SavedPhoto] = field(default_factory=dict)
    rows: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, model: Model) -> "SavedBefore":
        """Read what is there, also where a call has failed midway; damaged it counts as nothing."""
        try:
            run = read_run(folder)
            results = None if run is None else SavedResults(folder, run)
        except ValueError:
            return cls()
        if results is None:
            return cls()
        about = json.loads(json.dumps(about_model(model)))
        with results:
            same = all(results.about.get(name) == about[name] for name in about if name != "from")
            saved = results.about.get("saved")  # nothing says so of a command's weights
            if not same or saved not in (None, _number(model)):
                return cls()
            keys = [(row["file"], results.method(place)) for place, row in enumerate(results)]
            rows = dict(zip(keys, results, strict=True))
            if saved is None:
                return cls(rows=rows)
            photos = {
                sample: SavedPhoto(
                    sample,
                    rows[sample, method]["picture"].removesuffix(f".{label(method)}.png"),
                    results.content(place),
                )
                for place, (sample, method) in enumerate(keys)
            }
            return cls(results.run, photos, rows)

    def place(self, folder: Path, explained: Sequence[ExplainedPhoto]) -> list[SavedPhoto]:
        """Name each photo as it was named when it was saved before; a new one, as no other is."""
        samples: list[str] = []
        contents = list(map(_content, explained))
        for photo, content in zip(explained, contents, strict=True):
            sample, count = photo.name, 1
            while sample in samples or self._is_another(sample, content):
                count += 1
                sample = f"{photo.name} ({count})"
            samples.append(sample)
        again = {name: self.photos[name].stem for name in samples if name in self.photos}
        new = [
            Path(photo.name if isfile(photo.name) else name)
            for photo, name in zip(explained, samples, strict=True)
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
        earlier = self.photos.get(sample)
        return earlier is not None and not isfile(sample) and earlier.content != content

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
        run = self._with(model, names, list(explainers), [column.key for column in columns])
        new = {(row.sample, row.column.method): {"file": row.sample} | row.record for row in rows}
        lost = new if self.run else self.rows  # may be replaced by something else
        replaced = Counter(
            method
            for sample, method in lost
            if _target(self.rows.get((sample, method)))
            not in (None, _target(new.get((sample, method))))
        )
        every = (self.rows if self.run else {}) | new
        keys = product(run.samples, run.about["asked"]["methods"])
        with replacing(folder / "results.jsonl") as beside:
            text = "".join(as_line(every[key]) for key in keys if key in every)
            beside.write_bytes(text.encode(errors="replace"))
            with Store(folder, wanted=columns, keeps_others=self.run is not None) as store:
                if not self.rows:  # of another model
                    replaced.update({name: n for name, n in store.replaced.items() if name})
                for column in columns:
                    store.forget(column, sample_numbers(names))
                store.add(rows)
                store.finish(run.number)
            write_run(folder, run)
        return replaced

    def _with(
        self, model: Model, samples: list[str], methods: list[str], columns: list[int]
    ) -> RunFile:
        """The run, with samples and methods that are added."""
        if self.run is not None:
            samples = [*self.run.samples, *samples]
            methods = [*self.run.about["asked"]["methods"], *methods]
            columns = [*self.run.columns, *columns]
        asked = {"save": "pictures", "methods": list(dict.fromkeys(methods))}
        about = about_model(model) | {"saved": _number(model), "asked": asked, "films": []}
        return RunFile(about, list(dict.fromkeys(samples)), columns=tuple(dict.fromkeys(columns)))


def _number(model: Model) -> int:
    """A number of all that maps depend on, the weights included."""
    return digest(model_settings(model))


def _target(row: dict[str, Any] | None) -> tuple[object, ...] | None:
    """What a result explains; None where there is none."""
    names = "target", "target_index", "contrast_index"
    return None if row is None else tuple(row.get(name) for name in names)


def _content(explained: ExplainedPhoto) -> int:
    name, photo = explained.name, explained.photo
    if isfile(name):
        return content_number(file_stamp(name), bytes_crc(name))
    size = repr((photo.mode, photo.size)).encode()
    return content_number(0, crc32(photo.tobytes(), crc32(size)))
