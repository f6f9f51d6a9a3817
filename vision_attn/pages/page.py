"""Offline HTML page of pictures and tables: open it from the disk, nothing is fetched.

`write_page(folder, title, sections)` writes index.html; pictures lie beside it, so the folder can
be moved or sent as a whole. Every text is escaped.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from vision_attn.files import write_text
from vision_attn.pages.language import Name, interface, stays
from vision_attn.render.picture import Picture, save, thumbnail

__all__ = [
    "Commands",
    "Figures",
    "Gallery",
    "Links",
    "Name",
    "Row",
    "Section",
    "Shot",
    "Table",
    "Text",
    "figure_shot",
    "shot",
    "write_page",
]

PER_PAGE = 24  # photos of a gallery that are shown at once
MANY = 13  # from so many photos on a gallery is searched, sorted and folded


@dataclass(frozen=True)
class Shot:
    """Picture on the page, with a caption and an alternative text.

    `shot` makes one with a thumbnail.

    Args:
        thumb: The small picture's file, relative to the page.
        full: The large picture's file; for `Figures` both may be the same.
        size: Of thumb, (w, h) in pixels.
        caption: Stands below it.
        alt: What it shows, for who cannot see it.
        passed: On what scores have shown that the method's maps can be trusted, which gives the
            picture a badge; or empty.

    Examples:
        >>> from vision_attn.pages import Shot
        >>> cat = Shot("page/cat.jpg", "cat.png", (400, 300), "Rollout", "a cat and its heatmap")
        >>> 'href="./cat.png"' in cat.html("cat.png · Rollout")
        True
    """

    thumb: str
    full: str
    size: tuple[int, int]
    caption: str
    alt: str
    passed: str = ""

    def html(self, enlarged_caption: str) -> str:
        """Write the picture's HTML.

        Args:
            enlarged_caption: Stands below it once it is enlarged.
        """
        width, height = self.size
        caption = re.sub(r"(?<=\w)\(", "(<wbr>", _text(self.caption))  # a method may break there
        return (
            f'<figure style="--aspect: {width / height:.3f}; --width: {width}px">'
            f'<a href="{_link(self.full)}" data-caption="{_text(enlarged_caption)}">'
            f'<img src="{_link(self.thumb)}" width="{width}" height="{height}" loading="lazy" '
            f'decoding="async" alt="{_text(self.alt)}"></a>'
            f"<figcaption>{caption}{self._badge()}</figcaption></figure>"
        )

    def _badge(self) -> str:
        if not self.passed:
            return ""
        return f'<span class="badge" title="{_text(self.passed)}">passed</span>'


def shot(
    picture: Picture,
    folder: Path,
    name: str,
    caption: str,
    alt: str,
    full: str | None = None,
    most: int | None = None,
) -> Shot:
    """Save what the page shows of a picture as folder/page/NAME.jpg.

    Args:
        picture: Uint8 (h w 3).
        folder: The page's.
        name: Of the file, without its ending.
        caption: The line below it.
        alt: What a reader hears who does not see it.
        full: The file that opens on a click, relative to the folder. None: the same, which is then
            saved somewhat larger.
        most: How many bytes the picture may take; it is shrunk until it does.

    Returns:
        The shot, for a row or figures of the page.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> from vision_attn import pages
        >>> with TemporaryDirectory() as folder:
        ...     photo = np.zeros((30, 40, 3), np.uint8)
        ...     made = pages.shot(photo, Path(folder), "cat", "Cat", "a cat")
        >>> made.thumb, made.full, made.size
        ('page/cat.jpg', 'page/cat.jpg', (40, 30))
    """
    pictures = folder / "page"
    pictures.mkdir(parents=True, exist_ok=True)
    small = thumbnail(picture, pictures / f"{name}.jpg", most, alone=full is None)
    file = f"page/{name}.jpg"
    return Shot(file, full or file, (small.shape[1], small.shape[0]), caption, alt)


def figure_shot(picture: Picture, folder: Path, name: str, caption: str, alt: str) -> Shot:
    """Save a figure as folder/page/NAME.png, without loss, as its text is small.

    Args:
        picture: The figure, uint8 (h w 3).
        folder: Of the page.
        name: Of the file, without its suffix.
        caption: Below the figure.
        alt: What the figure shows, in words.

    Returns:
        What the page needs to show it.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> from vision_attn import pages
        >>> with TemporaryDirectory() as folder:
        ...     figure = np.zeros((30, 40, 3), np.uint8)
        ...     made = pages.figure_shot(figure, Path(folder), "norms", "Norms", "two lines")
        >>> made.thumb, made.size
        ('page/norms.png', (40, 30))
    """
    file = f"page/{name}.png"
    (folder / "page").mkdir(parents=True, exist_ok=True)
    save(picture, folder / file)
    height, width = picture.shape[:2]
    return Shot(file, file, (width, height), caption, alt)


@dataclass(frozen=True)
class Section(ABC):
    """Base class: a part of the page under a heading.

    Args:
        title: The heading.

    Examples:
        >>> from dataclasses import dataclass
        >>> from vision_attn.pages import Section
        >>> @dataclass(frozen=True)
        ... class Rule(Section):
        ...     def html(self):
        ...         return "<hr>"
        >>> Rule("A line").html()
        '<hr>'
    """

    title: str

    @abstractmethod
    def html(self) -> str:
        """Write the HTML that stands below the heading."""


@dataclass(frozen=True)
class Text(Section):
    """Section of paragraphs.

    Args:
        title: The heading.
        paragraphs: Plain text, one a paragraph.

    Examples:
        >>> from vision_attn.pages import Text
        >>> Text("About", ["One.", "Two & three."]).html()
        '<p>One.</p><p>Two &amp; three.</p>'
    """

    paragraphs: Sequence[str]

    def html(self) -> str:
        return "".join(f"<p{stays(one)}>{_text(one)}</p>" for one in self.paragraphs)


@dataclass(frozen=True)
class Table(Section):
    """Section of rows of text under a header; the first column names the row.

    Args:
        title: The heading.
        header: One name a column.
        rows: As many cells each.

    Examples:
        >>> from vision_attn.pages import Table
        >>> table = Table("Scores", ["method", "deletion"], [["Rollout", "0.21"]])
        >>> '<th scope="row">Rollout</th><td data-column="deletion">0.21</td>' in table.html()
        True
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in self.header)
        body = "".join(
            f'<tr><th scope="row"{stays(first)}>{_text(first)}</th>'
            + "".join(
                f'<td data-column="{_text(name)}"{stays(cell)}>{_text(cell)}</td>'
                for name, cell in zip(self.header[1:], rest, strict=True)
            )
            + "</tr>"
            for first, *rest in self.rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="table">{table}</div>'


@dataclass(frozen=True)
class Figures(Section):
    """Section of large pictures, learning curves and the like, in rows of one height.

    Args:
        title: The heading.
        shots: The pictures.

    Examples:
        >>> from vision_attn.pages import Figures, Shot
        >>> curves = Shot("curves.png", "curves.png", (900, 300), "Curves", "two falling lines")
        >>> Figures("The run", [curves]).html().count("<figure")
        1
    """

    shots: Sequence[Shot]

    def html(self) -> str:
        return f'<div class="wide">{"".join(shot.html(shot.caption) for shot in self.shots)}</div>'


@dataclass(frozen=True)
class Commands(Section):
    """Section of commands to try, each under a line that says what it does.

    Args:
        title: The heading.
        commands: Pairs (the line, the command).

    Examples:
        >>> from vision_attn.pages import Commands
        >>> Commands("Next", [("Again:", "make demo")]).html()
        '<p>Again:</p><pre><code><span>make</span> <span>demo</span></code></pre>'
    """

    commands: Sequence[tuple[str, str]]

    def html(self) -> str:
        return "".join(
            f"<p>{_text(what)}</p><pre><code>{_words(command)}</code></pre>"
            for what, command in self.commands
        )


@dataclass(frozen=True)
class Links(Section):
    """Section of files in the page's folder to open, each with a line that says what it is.

    Args:
        title: The heading.
        links: (the file, the link's words, the line) each.

    Examples:
        >>> from vision_attn.pages import Links
        >>> Links("More", [("live.html", "The network itself", "cover parts of a photo")]).html()
        '<p><a href="./live.html">The network itself</a>: cover parts of a photo</p>'
    """

    links: Sequence[tuple[str, str, str]]

    def html(self) -> str:
        return "".join(
            f'<p><a href="{_link(file)}">{_text(name)}</a>: {_text(about)}</p>'
            for file, name, about in self.links
        )


@dataclass(frozen=True)
class Row:
    """Row of a gallery: a photo's name, what was predicted, and its pictures.

    Every row has the same columns.

    Args:
        name: The photo's.
        note: What was predicted, in words.
        shots: Its pictures.
        predicted: The class that was predicted, to sort and filter by, as far as it is known.
        label: Its true class, for the same.
        probability: Of the predicted class, for the same.
        groups: Names and numbers of pictures that stand together on a line; all do, if it is empty.
        warning: A line above the pictures, in another colour.

    Examples:
        >>> from vision_attn.pages import Row, Shot
        >>> cat = Shot("page/cat.jpg", "cat.png", (400, 300), "Rollout", "a cat and its heatmap")
        >>> Row("cat.png", "tabby 83 %", [cat]).html().count("<figure")
        1
    """

    name: str
    note: str
    shots: Sequence[Shot]
    predicted: str = ""
    label: str = ""
    probability: float | None = None
    groups: Sequence[tuple[str, int]] = ()
    warning: str = ""

    def html(self, folded: bool = False, first: str = "", front: int = 2) -> str:
        """Write the row's HTML.

        Args:
            folded: Whether pictures after the first `front` come out on a click.
            first: The caption of the map that then stands beside the photo; any, if it is empty.
            front: How many are not folded away.
        """
        if self.groups:
            shown = f'<div class="groups">{"".join(self._groups())}</div>'
        else:
            shots = [*self.shots[:1], *sorted(self.shots[1:], key=lambda one: one.caption != first)]
            cells = [shot.html(f"{self.name} · {shot.caption}") for shot in shots]
            front = front if folded and len(cells) > front else len(cells)
            shown = _cells(cells[:front])
            if cells[front:]:
                more = f"<summary>{len(cells) - front} more</summary>{_cells(cells[front:])}"
                shown += f"<details>{more}</details>"
        return (
            f"<article{self._facts()}><header>"
            f'<h3 translate="no">{_text(self.name)}</h3>'
            f'<span class="quiet">{_text(self.note)}</span>{self._verdict()}</header>'
            f"{self._warning()}{shown}</article>"
        )

    def _groups(self) -> Iterator[str]:
        """Write each group under its heading."""
        shots = iter(self.shots)
        for heading, count in self.groups:
            cells = [
                shot.html(f"{self.name} · {heading} · {shot.caption}")
                for shot in islice(shots, count)
            ]
            lines = [f"<span>{_text(line)}</span>" for line in re.split("(?<=:) ", heading)]
            yield (
                f'<div class="group" style="--count: {count}"><h4>{" ".join(lines)}</h4>'
                f"{_cells(cells)}</div>"
            )

    def _warning(self) -> str:
        return f'<p class="wrong">{_text(self.warning)}</p>' if self.warning else ""

    def _verdict(self) -> str:
        """Write whether the prediction is right, where the true class is known."""
        if not self.label:
            return ""
        if self.label == self.predicted:
            return '<span class="right">✓ right</span>'
        return f'<span class="wrong">✗ true class: {_text(self.label)}</span>'

    def _facts(self) -> str:
        """Write what is known of the photo as attributes, for sorting and filters."""
        facts = {"predicted": self.predicted, "label": self.label}
        if self.probability is not None:
            facts["probability"] = f"{self.probability:.6f}"
        return "".join(f' data-{name}="{_text(value)}"' for name, value in facts.items() if value)


@dataclass(frozen=True)
class Gallery(Section):
    """Section of photos as rows, their maps as columns.

    More than a dozen are shown a page at a time, can be found by name, sorted, and filtered by
    class and by right or wrong where that is known; maps after the first come out on a click.
    Without JavaScript the first page stays as it is.

    Args:
        title: The heading.
        rows: One a photo.
        first: The caption of the map that stands beside each photo; any, if it is empty.
        order: What the order of the rows is called.
        front: Pictures that are not folded away; of maps that are to be seen together, which no
            list then chooses from, 3 or more.

    Examples:
        >>> from vision_attn.pages import Gallery, Row
        >>> rows = [Row(f"{i}.png", "", []) for i in range(13)]
        >>> ["search" in Gallery("Photos", some).html() for some in (rows, rows[:3])]
        [True, False]
        >>> Gallery("Photos", rows * 9).html().partition("<template>")[0].count("<article")
        24
    """

    rows: Sequence[Row]
    first: str = ""
    order: str = "in order"
    front: int = 2

    def html(self) -> str:
        if len(self.rows) < MANY:
            return "".join(row.html() for row in self.rows)
        rows = [row.html(True, self.first, self.front) for row in self.rows]
        first, rest = "".join(rows[:PER_PAGE]), "".join(rows[PER_PAGE:])
        without = (
            f"<noscript><p>The first {PER_PAGE} of {len(rows)} photos; the others need JavaScript."
            "</p></noscript>"
        )
        return (
            f'<div class="gallery many" data-per-page="{PER_PAGE}">'
            f'<form class="tools" hidden>{self._tools()}</form>{without if rest else ""}'
            f"{_pager('above', 'output')}"
            f'<div class="rows" tabindex="-1">{first}</div><template>{rest}</template>'
            f"{_pager('below', 'span')}</div>"
        )

    def _tools(self) -> str:
        """Write the field to search by, and the lists to sort and filter by."""
        find = "Find a photo or class"
        tools = f'<input type="search" placeholder="{find}" aria-label="{find}">'
        orders = {"": self.order, "name": "by name"}
        predicted = Counter(row.predicted for row in self.rows if row.predicted)
        labels = Counter(row.label for row in self.rows if row.label)
        if predicted:
            orders["predicted"] = "by predicted class"
        if labels:
            orders |= {"label": "by true class", "wrong": "wrong first"}
        if any(row.probability is not None for row in self.rows):
            orders |= {"least": "least sure first", "most": "surest first"}
        tools += _choice("sort", "Sort", orders)
        for name, about, counts in (
            ("predicted", "Predicted class", predicted),
            ("label", "True class", labels),
        ):
            if counts:
                texts = {value: f"{value} ({counts[value]})" for value in sorted(counts)}
                tools += _choice(name, about, {"": f"{about}: any"} | texts)
        if labels:
            wrong = sum(row.label not in ("", row.predicted) for row in self.rows)
            verdicts = {"": "right and wrong", "right": f"right ({labels.total() - wrong})"}
            tools += _choice("verdict", "Right or wrong", verdicts | {"wrong": f"wrong ({wrong})"})
        captions = dict.fromkeys(shot.caption for row in self.rows for shot in row.shots[1:])
        if len(captions) > 1 and self.front == 2:
            listed = sorted(captions, key=lambda caption: caption != self.first)
            tools += _choice("map", "Map shown", {caption: caption for caption in listed})
        return tools + '<button type="reset">Reset</button>'


def write_page(
    folder: Path, title: str, sections: Sequence[Section], lead: str = "", warning: str = ""
) -> Path:
    """Write folder/index.html.

    Args:
        folder: The page's.
        title: Of the page.
        sections: What it shows, from top to bottom.
        lead: A line below the title.
        warning: Added to the title, in another colour.

    Returns:
        The file.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from vision_attn import pages
        >>> with TemporaryDirectory() as folder:
        ...     page = pages.write_page(Path(folder), "Heatmaps", [pages.Text("About", ["One."])])
        ...     "<p>One.</p>" in page.read_text(encoding="utf-8")
        True
    """
    here = files("vision_attn.pages")
    links = "".join(
        f'<a href="#part{number}">{_text(section.title)}</a>'
        for number, section in enumerate(sections)
    )
    parts = "".join(
        f'<section id="part{number}"><h2>{_text(section.title)}</h2>{section.html()}</section>'
        for number, section in enumerate(sections)
    )
    nav = f"<nav>{links}</nav>" if len(sections) > 1 else ""
    marked = f"<h1><span{stays(title)}>{_text(title)}</span>"
    if warning:
        marked += f' <small class="warning">{_text(warning)}</small>'
        title = f"{title} · {warning}"
    script = (here / "page.js").read_text(encoding="utf-8")
    head = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>
{(here / "page.css").read_text(encoding="utf-8")}</style>
</head>
"""
    body = f"""<body>
<header>{marked}</h1><p>{_text(lead)}</p>{nav}</header>
<main>{parts}</main>
<dialog aria-label="Enlarged picture">
<img alt="">
<footer>
<button class="back" aria-label="Previous">‹</button><p></p>
<button class="on" aria-label="Next">›</button>
<button class="close" aria-label="Close">✕</button>
</footer>
</dialog>
<script>
{script}
"""
    page = folder / "index.html"
    write_text(page, f"{head}{body}{interface(body)}</script>\n</body>\n</html>\n")
    return page


def _words(command: str) -> str:
    """Write each word of a command by itself, so that a narrow page breaks it between words."""
    return " ".join(f"<span>{_text(word)}</span>" for word in command.split(" "))


def _cells(cells: Sequence[str]) -> str:
    """Lay pictures side by side."""
    return f'<div class="cells" style="--count: {len(cells)}">{"".join(cells)}</div>'


def _pager(place: str, element: str) -> str:
    """Write the buttons that turn pages; element: what says which photos are shown."""
    return (
        f'<nav class="pager {place}" aria-label="Pages of photos, {place}" hidden>'
        f'<button type="button" class="back">‹ Previous</button><{element} class="range">'
        f'</{element}><button type="button" class="on">Next ›</button></nav>'
    )


def _choice(name: str, about: str, options: Mapping[str, str]) -> str:
    """Write a list to choose from: values and what each is called."""
    listed = "".join(
        f'<option value="{_text(value)}">{_text(text)}</option>' for value, text in options.items()
    )
    return f'<select name="{name}" aria-label="{about}">{listed}</select>'


def _text(text: str) -> str:
    """Escape text for HTML and attributes; bytes of a file name that are no text become '?'."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def _link(path: str) -> str:
    """Write a relative path as a link; `./` so that a colon in a name is no scheme."""
    return "./" + quote(path, errors="surrogateescape")
