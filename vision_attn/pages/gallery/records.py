"""Section of very many photos by class: a list of classes, and the photos of one a page at a time.

The photos stand in a few files beside the page, which reads the one that it needs when a class is
chosen; the page itself stays small. Nothing is fetched but files of the same folder.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.files import write_text
from vision_attn.pages.page import Section

__all__ = ["ClassCount", "Records", "Thumb", "write_records"]

PER_FILE = 20_000  # photos in one of the files beside the page: about 2 MB
PER_PAGE = 24


class Thumb(NamedTuple):
    """A photo of the list.

    Attributes:
        link: Its file, from the page's folder.
        predicted: Its place in the list of classes, -1 where that is not known.
        label: That of its true class, -1 where it is not known.
        probability: Of the predicted class; None where it is not known.
        pictures: What was drawn of it.

    Examples:
        >>> from vision_attn.pages.gallery.records import Thumb
        >>> Thumb("../photos/a.jpg", 0, -1, 0.75).pictures
        ()
    """

    link: str
    predicted: int = -1
    label: int = -1
    probability: float | None = None
    pictures: Sequence[str] = ()


@dataclass
class ClassCount:
    """What is listed of a class: how many photos, and how many of them are predicted rightly.

    Attributes:
        known: Of how many the true class is known.
        parts: Where its photos stand, as (file, first, how many).

    Examples:
        >>> from vision_attn.pages.gallery.records import ClassCount
        >>> ClassCount("tench").parts
        []
    """

    name: str
    count: int = 0
    known: int = 0
    right: int = 0
    parts: list[tuple[int, int, int]] | None = None

    def __post_init__(self) -> None:
        self.parts = self.parts or []


def write_records(
    folder: Path, names: Sequence[str], photos: Iterable[tuple[int, Thumb]]
) -> list[ClassCount]:
    """Write the photos, which come class by class, into folder/page/records-*.js.

    names: of the classes. photos: each with the class that it is listed under. Returns the classes
    that have a photo, in the order in which they came.
    """
    (folder / "page").mkdir(parents=True, exist_ok=True)
    for old in (folder / "page").glob("records-*.js"):
        old.unlink()
    listed: dict[int, ClassCount] = {}
    number = 0
    rows: list[list[Any]] = []

    def close() -> None:
        text = json.dumps(rows, ensure_ascii=True, separators=(",", ":"))
        write_text(folder / f"page/records-{number}.js", f"records({number}, {text});\n")

    for place, photo in photos:
        if len(rows) == PER_FILE:
            close()
            number, rows = number + 1, []
        name = names[place] if place >= 0 else "no class"
        one = listed.setdefault(place, ClassCount(name))
        assert one.parts is not None
        if not one.parts or one.parts[-1][0] != number:
            one.parts.append((number, len(rows), 0))
        file, first, count = one.parts[-1]
        one.parts[-1] = file, first, count + 1
        one.count += 1
        one.known += photo.label >= 0
        one.right += photo.label >= 0 and photo.label == photo.predicted
        chance = None if photo.probability is None else round(photo.probability, 4)
        rows.append([photo.link, photo.predicted, photo.label, chance, list(photo.pictures)])
    if rows:
        close()
    return list(listed.values())


@dataclass(frozen=True)
class Records(Section):
    """Section of very many photos, listed by class and found by name.

    Attributes:
        names: Of all classes.
        classes: Those that have photos, from `write_records`.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.pages.gallery.records import Records, Thumb, write_records
        >>> names = ["tench", "church"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     photos = [(1, Thumb("a.jpg", 0, 1, 0.5)), (1, Thumb("b.jpg", 1, 1, 0.9))]
        ...     classes = write_records(Path(folder), names, photos)
        >>> classes[0].count, classes[0].right
        (2, 1)
        >>> Records("Photos", names, classes).html().count("<search")
        1
    """

    names: Sequence[str]
    classes: Sequence[ClassCount]

    def html(self) -> str:
        content: dict[str, Any] = {
            "names": [name.split(",")[0] for name in self.names],
            "classes": [[c.name, c.count, c.known, c.right, c.parts] for c in self.classes],
            "perPage": PER_PAGE,
        }
        data = json.dumps(content, ensure_ascii=True).replace("<", "\\u003c")
        script = (files("vision_attn.pages.gallery") / "records.js").read_text(encoding="utf-8")
        total = sum(one.count for one in self.classes)
        find = escape(f"Find a class, or a photo among {total:,}")
        return (
            '<div class="records many">'
            f'<search class="tools"><input type="search" placeholder="{find}" aria-label="{find}">'
            '<button type="button" class="all">Search all photos</button>'
            '<select aria-label="Right or wrong"><option value="">right and wrong</option>'
            '<option value="wrong">wrong</option><option value="right">right</option></select>'
            "</search>"
            "<noscript><p>The list needs JavaScript; results.jsonl has all of it.</p></noscript>"
            '<div class="table"><table class="classes"><thead><tr><th scope="col">class</th>'
            '<th scope="col">photos</th><th scope="col">right</th></tr></thead>'
            "<tbody></tbody></table></div>"
            '<h3 class="chosen" tabindex="-1" translate="no"></h3><p class="quiet hint"></p>'
            '<nav class="pager" aria-label="Pages of photos" hidden>'
            '<button type="button" class="back">‹ Previous</button><output class="range"></output>'
            '<button type="button" class="on">Next ›</button></nav>'
            '<div class="rows"></div></div>'
            f'<script type="application/json" id="listed">{data}</script>'
            f"<script>{script}</script>"
        )
