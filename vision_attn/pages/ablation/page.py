"""The offline page of an ablation: what each head, MLP and block is worth, with intervals.

DIR/index.html       the page, its pictures beside it in page/

Axes: l layers, head.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vision_attn import render
from vision_attn.evaluate.bootstrap import paired_wilson
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
from vision_attn.runs.ablation import Ablation

__all__ = ["sections", "write"]

NAMED = 3  # units of each part that a sentence names
PART_WORDS = {"heads": "heads", "mlps": "MLPs", "blocks": "blocks"}
WORDS = [
    "Worth: by how much the number falls without the part, in the mean over the images; below 0, "
    "it rises. One part is taken away at a time.",
    "Intervals are of 95 %, by a bootstrap over images, paired: each image is compared with "
    "itself. Of many intervals, 1 in 20 misses by chance. Heads with 0 in theirs have no colour.",
    "The curve of heads that are gone: their order is found on every other image, the curve "
    "measured on the rest; intervals of 95 % (Wilson 1927).",
    "A head without worth by itself may be one of two that do the same: look at the curve before "
    "you prune.",
]


def write(found: Ablation, folder: Path, warning: str = "") -> Path:
    """Write the page into a folder; return its path. warning: of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    title = f"What the parts of {found.model} are worth"
    return write_page(folder, title, sections(found, folder), found.lead, warning)


def sections(found: Ablation, folder: Path) -> list[Section]:
    """Make the sections of the page; their pictures go to folder/page."""
    rows, curve = found.table(), found.curve()
    made: list[Section] = [Text("What was found", list(sentences(found, rows, curve)))]
    heads = [row for row in rows if row["part"] == "heads"]
    if heads:
        made.append(Figures("Heads", list(head_shots(found, heads, folder))))
    rest = [row for row in rows if row["part"] != "heads"]
    if rest:
        title = " and ".join(PART_WORDS[part] for part in dict.fromkeys(r["part"] for r in rest))
        made.append(Figures(title[0].upper() + title[1:], list(part_shots(found, rest, folder))))
    if curve:
        made.append(Figures("Heads that can go", [curve_shot(found, curve, folder)]))
    made.append(Table("Every part", *found.text_rows(rows)))
    if found.problems:
        made.append(Text("Images that were left out", list(map(Name, found.problems))))
    made.append(Text("What the numbers are", WORDS))
    return made


def sentences(
    found: Ablation, rows: Sequence[dict[str, Any]], curve: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """Say which parts are worth most, how many nothing, and how many heads can go."""
    for part, words in PART_WORDS.items():
        own = sorted((r for r in rows if r["part"] == part), key=lambda row: -row["value_drop"])
        if not own:
            continue
        most = ", ".join(
            f"{row['unit']} ({row['value_drop']:.3g}; {interval(row, 'value_drop')})"
            for row in own[:NAMED]
        )
        none = sum(row["value_drop_low"] <= 0 <= row["value_drop_high"] for row in own)
        text = f"Of {len(own)} {words} these are worth most, by {found.explained}: {most}."
        if none:
            text += f" The intervals of {none} hold 0: nothing shows that they are worth something."
        yield text
    if len(curve) > 1:
        yield heads_that_can_go(found, curve)


def heads_that_can_go(found: Ablation, curve: Sequence[dict[str, Any]]) -> str:
    """Say how many of the heads that are worth least can go before fewer images are right."""
    whole, gone = found.pruned[0].double(), 0
    for count, hits in found.pruned.items():
        if paired_wilson(whole, hits.double()).low > 0:
            break
        gone = count
    last, n = curve[-1]["heads"], curve[0]["n"]
    start = f"With all {last} heads the {found.hit_word} is {curve[0]['share']:.1%} ({n} images)"
    if gone == last:
        return f"{start}; nothing shows that it falls without all of them."
    after = next(row for row in curve if row["heads"] > gone)
    what = f"without the {after['heads']} that are worth least it is {after['share']:.1%}, lower"
    kept = f"nothing shows that it falls without the {gone} that are worth least, and " * (gone > 0)
    return f"{start}; {kept}{what} (95 %, paired; Newcombe 1998)."


def interval(row: dict[str, Any], name: str) -> str:
    return f"{row[f'{name}_low']:.3g} to {row[f'{name}_high']:.3g}"


def numbers_of(found: Ablation) -> Iterator[tuple[str, str, float, str]]:
    """The two numbers that fall: key, title, factor and unit."""
    yield "value_drop", f"{found.explained} falls by", 1.0, ""
    yield "hit_drop", f"{found.hit_word} falls by", 100.0, "%"


def head_shots(found: Ablation, rows: Sequence[dict[str, Any]], folder: Path) -> Iterator[Shot]:
    """Draw a grid of layers and heads for each number, with intervals."""
    shape = 1 + max(row["layer"] for row in rows), 1 + max(row["head"] for row in rows)
    for key, words, factor, unit in numbers_of(found):
        grids = [np.full(shape, np.nan) for _ in range(3)]
        for row in rows:
            for grid, end in zip(grids, ("", "_low", "_high"), strict=True):
                grid[row["layer"], row["head"]] = factor * row[f"{key}{end}"]
        title = f"Without a head, {words}"
        caption = f"{title}{f' ({unit})' if unit else ''}, by layer and head"
        picture = render.number_grid(grids[0], title, unit=unit, ends=(grids[1], grids[2]))
        yield figure_shot(picture, folder, f"heads_{key}", caption, caption)


def part_shots(found: Ablation, rows: Sequence[dict[str, Any]], folder: Path) -> Iterator[Shot]:
    """Draw what MLPs and blocks are worth, layer by layer, with intervals."""
    layers = range(1 + max(row["layer"] for row in rows))
    for key, words, factor, unit in numbers_of(found):
        lines: dict[str, list[tuple[float, float, float] | None]] = {}
        for row in rows:
            line = lines.setdefault(PART_WORDS[row["part"]], [None for _ in layers])
            value, low, high = (factor * row[f"{key}{end}"] for end in ("", "_low", "_high"))
            line[row["layer"]] = value, low, high
        title = f"Without it, {words}{f' ({unit})' if unit else ''}"
        picture = render.interval_curves(layers, lines, title, x="layer")
        caption = f"{title}, by layer"
        yield figure_shot(picture, folder, f"parts_{key}", caption, caption)


def curve_shot(found: Ablation, curve: Sequence[dict[str, Any]], folder: Path) -> Shot:
    """Draw the share of hits over the number of heads that are gone."""
    counts = [row["heads"] for row in curve]
    line = [(100 * row["share"], 100 * row["low"], 100 * row["high"]) for row in curve]
    title = f"{found.hit_word.capitalize()} without the heads that are worth least (%)"
    picture = render.interval_curves(counts, {"": line}, title, x="heads that are gone")
    caption = f"{title}, over how many are gone"
    return figure_shot(picture, folder, "curve", caption, caption)
