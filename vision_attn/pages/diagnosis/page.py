"""The offline page of a diagnosis: the verdict, then what it rests on, by head and by block.

DIR/index.html       the page, its pictures beside it in page/
DIR/diagnosis.json   everything as plain values
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from vision_attn import render
from vision_attn.files import write_text
from vision_attn.pages.page import (
    Figures,
    Name,
    Section,
    Shot,
    Table,
    Text,
    figure_shot,
    write_page,
)
from vision_attn.render.picture import Picture
from vision_attn.runs.diagnosis.results import Diagnosis, HeadValues, short
from vision_attn.runs.diagnosis.verdict import number, percent

__all__ = ["save", "sections"]

HEADS: list[tuple[str, str, str, float | None]] = [  # attribute, title, unit, last colour's value
    ("entropy", "Entropy: 0 one key, 1 all keys alike", "", 1.0),
    ("distance", "Mean attention distance", "pixels", None),
    ("class_token", "Attention on the class token", "share", None),
    ("registers", "Attention on registers", "share", None),
    ("outliers", "Attention on patches with outlying norms", "share", None),
    ("moving", "Largest share that one patch receives", "share", 1.0),
    ("output", "Output: 1 for the mean head of its layer", "", None),
    ("alike", "Correlation with the most similar head", "", 1.0),
]
WORDS = [
    "Entropy: -sum over keys of A log A, divided by the log of the number of keys, the mean over "
    "queries.",
    "Distance: from each patch to where it attends, weighted by attention (Dosovitskiy et al. "
    "2021), in pixels of the network's input.",
    "Outlying norms: above twice the median of the patches of a photo, after Darcet et al. 2024.",
    "Output: the norm of what a head adds to the stream, by its part of the projection.",
    "Correlation: of two heads' weights beyond what uniform attention has in common.",
    "Shares of a block: the norms of the stream and of what attention and MLP add to it, over "
    "their sum (after Kobayashi et al. 2021).",
    "Alike: the mean cosine of two patches (Gong et al. 2021). Spread: the share of the patches' "
    "energy that is not their mean (Dong et al. 2021). Rank: the participation ratio of their "
    "directions.",
    "Calibration error: the mean gap between confidence and accuracy in 15 bins (Guo et al. 2017); "
    "above 0 by chance with few photos.",
]


@dataclass(frozen=True)
class VerdictSection(Section):
    """Section of the findings, faults first and in another colour.

    Examples:
        >>> from vision_attn.pages.diagnosis.page import VerdictSection
        >>> from vision_attn.runs.diagnosis.results import Diagnosis, Finding
        >>> finding = Finding("sink", False, "Sink: patch (1, 1).")
        >>> VerdictSection("Verdict", Diagnosis("a ViT", 50, 50, findings=[finding])).html()
        '<p>No fault was found.</p><p>Sink: patch (1, 1).</p>'
    """

    found: Diagnosis

    def html(self) -> str:
        lines = [
            f'<p class="wrong">✗ {escape(one.text)}</p>'
            if one.fault
            else f"<p>{escape(one.text)}</p>"
            for one in self.found.findings
        ]
        return (
            "".join(lines) if self.found.faults else f"<p>No fault was found.</p>{''.join(lines)}"
        )


def save(found: Diagnosis, folder: Path) -> Path:
    """Write the page and diagnosis.json into a folder; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found.to_dict(), indent=1, allow_nan=False)
    write_text(folder / "diagnosis.json", text + "\n")
    parts = {"photo": found.photos, "head": len(found.heads), "block": len(found.blocks)}
    lead = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in parts.items())
    return write_page(
        folder, f"Diagnosis of {found.model}", sections(found, folder), lead, found.warning
    )


def sections(found: Diagnosis, folder: Path) -> list[Section]:
    """Make the sections of the page; their pictures go to folder/page."""
    made: list[Section] = [VerdictSection("Verdict", found)]
    if found.heads:
        made.append(Figures("Heads", list(head_shots(found, folder))))
    if found.blocks:
        made.append(Figures("Blocks", list(block_shots(found, folder))))
    if found.heads:
        header = [
            *("layer", "head", "entropy", "distance", "class token", "registers", "outliers"),
            *("largest patch", "output", "most like", "correlation"),
        ]
        made.append(Table("Every head", header, [head_row(head) for head in found.heads]))
    if found.blocks:
        header = [
            *("block", "median norm", "largest norm", "outliers a photo", "photos with outliers"),
            *("alike", "spread", "rank", "residual", "attention", "MLP"),
        ]
        rows = [
            [
                str(one.block), short(one.norm), short(one.largest), number(one.outliers),
                percent(one.photos_with), *map(short, (one.alike, one.spread, one.rank)),
                *map(short, (one.residual, one.attention, one.mlp)),
            ]
            for one in found.blocks
        ]  # fmt: skip
        made.append(Table("Every block", header, rows))
    if found.problems:
        made.append(Text("Photos that were left out", list(map(Name, found.problems))))
    if found.heads:
        made.append(Text("What the numbers are", WORDS))
    return made


def head_row(head: HeadValues) -> list[str]:
    """Write a head's numbers, with a dash where one is not known."""
    nearest = "–" if head.nearest is None else f"head {head.nearest}"
    numbers = (
        *(head.entropy, head.distance, head.class_token, head.registers, head.outliers),
        *(head.moving, head.output),
    )
    return [
        f"layer {head.layer}", str(head.head), *map(short, numbers), nearest, short(head.alike)
    ]  # fmt: skip


def head_shots(found: Diagnosis, folder: Path) -> Iterator[Shot]:
    """Draw a grid of layers and heads for each number that is known of any head."""
    layers = 1 + max(head.layer for head in found.heads)
    width = 1 + max(head.head for head in found.heads)
    for name, title, unit, high in HEADS:
        values = np.full((layers, width), np.nan)
        for head in found.heads:
            value = getattr(head, name)
            values[head.layer, head.head] = np.nan if value is None else value
        if np.isfinite(values).any():
            picture = render.number_grid(values, title, unit=unit, high=high)
            caption = f"{title}{f' ({unit})' if unit else ''}, by layer and head"
            yield figure_shot(picture, folder, name, caption, caption)


def block_shots(found: Diagnosis, folder: Path) -> Iterator[Shot]:
    """Draw norms, outliers, shares and how alike tokens are, block by block."""
    blocks = found.blocks

    def lines(title: str, file: str, names: dict[str, str]) -> Iterator[Shot]:
        values = {label: [getattr(one, name) for one in blocks] for label, name in names.items()}
        known = {k: v for k, v in values.items() if any(one is not None for one in v)}
        if known:
            picture = render.block_curves(known, title)
            caption = f"{title}, over the blocks"
            yield figure_shot(picture, folder, file, caption, caption)

    yield from lines("Norms of patches", "norms", {"median": "norm", "largest": "largest"})
    yield from lines("Outlying patches of a photo", "counts", {"outliers": "outliers"})
    shares = {"residual": "residual", "attention": "attention", "MLP": "mlp"}
    yield from lines("Shares of each block", "shares", shares)
    title = "Patches: alike and spread out"
    yield from lines(title, "smooth", {"cosine of two patches": "alike", "spread": "spread"})
    yield from lines("Rank: directions of the patches", "rank", {"rank": "rank"})
    grid: Callable[..., Picture] = render.number_grid
    if found.outliers is not None and found.outliers.count:
        title = f"Where outliers lie after block {found.outliers.block}"
        where = np.array(found.outliers.where)
        picture = grid(where, title, x="column", y="row", unit="share of photos")
        yield figure_shot(picture, folder, "where", title, title)
    if found.similarity is not None and len(found.similarity) > 1:
        title = "A token after two blocks: cosine"
        picture = grid(np.array(found.similarity), title, x="block", y="block", low=None, high=1.0)
        yield figure_shot(picture, folder, "similarity", title, title)
