"""Scores as people read them: tables in the terminal, Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vision_attn import render
from vision_attn.reports.scoring.pictures import curves, layers, ranked, sanity
from vision_attn.reports.scoring.results import METRICS, NAMES, Results, short
from vision_attn.reports.scoring.scorer import GROUPS
from vision_attn.reports.scoring.tasks import Work

COMPARED = ("deletion", "insertion", "pointing_game", "energy_inside", "energy_inside_on_shortcut")
LEGEND = (
    "mean ± standard error; ↓ small is good, ↑ large is good; * better than each of "
    f"{', '.join(NAMES)}, the 95 % interval of the paired difference leaving 0 out."
)


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False


def tables(results: Results) -> Iterator[tuple[str, list[str], list[list[Cell]]]]:
    """Title, header and rows of each group of metrics that anything was scored by."""
    for title, group in GROUPS.items():
        metrics = [name for name in group if name in results.metrics]
        if not metrics:
            continue
        counts = {row[m]["n"] for row in results.table.values() for m in metrics}
        n = f"n = {max(counts)}" if len(counts) == 1 else f"n = {min(counts)} to {max(counts)}"
        header = [n, *map(heading, metrics)]
        best = {metric: results.best(metric) for metric in metrics}
        rows = [
            [Cell(method), *(cell(results, m, method, method == best[m]) for m in metrics)]
            for method in results.table
        ]
        yield title, header, rows


def heading(metric: str) -> str:
    return f"{metric.replace('_', ' ')} {'↑' if METRICS[metric].higher_is_better else '↓'}"


def cell(results: Results, metric: str, method: str, best: bool) -> Cell:
    score = results.table[method][metric]
    if score["mean"] is None:
        return Cell("-")
    error = "" if score["standard_error"] is None else f" ±{short(score['standard_error'])}"
    star = "*" if results.beats_all(metric, method) else ""
    return Cell(f"{short(score['mean'])}{error}{star}", best)


def lead(results: Results) -> str:
    """What was scored, in a sentence."""
    about, right = results.settings, results.accuracy()
    known = f", {right[0]:.1%} of {right[1]} classified right" if right else ""
    explained = "the predicted class"
    if right and about["target"] == "label":
        every = right[1] == len(results.images)
        explained = "the true class" if every else f"the true class where known, else {explained}"
    return (
        f"{about['model']} on {about['data']}: {len(results.images)} images{known}; explained for "
        f"{explained}; {about['steps']} steps, removed: {about['removal']}"
    )


def verdicts(results: Results) -> list[str]:
    """Which methods are better than every baseline, metric by metric."""
    said = []
    for metric in COMPARED:
        if metric in results.metrics:
            ahead = [method for method in results.methods if results.beats_all(metric, method)]
            names = ", ".join(ahead) or "none"
            said.append(f"{heading(metric)}: better than every baseline: {names}")
    return said


def show(results: Results) -> None:
    """Everything but the pictures, in the terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(lead(results), markup=False, soft_wrap=True)
    for title, header, rows in tables(results):
        console.print(f"\n[bold]{title}")
        table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
        for number, column in enumerate(table.columns):
            column.justify = "right" if number else "left"
            column.no_wrap = number == 0
        for row in rows:
            if row[0].text == NAMES[0]:
                table.add_section()
            table.add_row(*(Text(c.text, "bold green" if c.best else "") for c in row))
        console.print(table)
    for line in [LEGEND, *verdicts(results), *results.notes()]:
        console.print(line, markup=False, soft_wrap=True)


def write(results: Results, work: Work, folder: Path) -> None:
    """All files, tables and pictures."""
    (folder / "scores.json").write_text(json.dumps(as_json(results, work), indent=1) + "\n")
    (folder / "scores.csv").write_text(as_csv(results))
    (folder / "scores.md").write_text(as_markdown(results), encoding="utf-8")
    render.save(curves(results), folder / "curves.png")
    if "randomisation" in results.metrics:
        render.save(sanity(results, work), folder / "sanity.png")
    render.save(ranked(results, work), folder / "best_and_worst.png")


def as_json(results: Results, work: Work) -> dict[str, Any]:
    right = results.accuracy()
    names = ("deletion", "insertion", "rank correlation", "ssim")
    found = {
        method: {name: results.curve(name, method) for name in names} for method in results.table
    }
    return {
        "settings": results.settings,
        "images": len(results.images),
        "accuracy": right[0] if right else None,
        "layers": layers(work) if "randomisation" in results.metrics else None,
        "higher_is_better": {m: METRICS[m].higher_is_better for m in results.metrics},
        "notes": results.notes(),
        "methods": {
            method: {
                "baseline": method in NAMES,
                "scores": scores,
                "curves": {n: c.tolist() for n, c in found[method].items() if c is not None},
            }
            for method, scores in results.table.items()
        },
    }


def as_csv(results: Results) -> str:
    """A line for each method and metric; `ahead_of_*` above 0 is better, with its interval."""
    text = io.StringIO()
    lines = csv.writer(text)
    header = ["method", "metric", "higher_is_better", "mean", "standard_error", "n"]
    ahead = [f"ahead_of_{name}{end}" for name in NAMES for end in ("", "_low", "_high")]
    lines.writerow(header + ahead)
    for method, scores in results.table.items():
        for metric, score in scores.items():
            differences = (score.get("better_than", {}).get(name) or {} for name in NAMES)
            lines.writerow(
                [method, metric, METRICS[metric].higher_is_better]
                + [score["mean"], score["standard_error"], score["n"]]
                + [d.get(key) for d in differences for key in ("mean", "low", "high")]
            )
    return text.getvalue()


def as_markdown(results: Results) -> str:
    parts = [f"# Which heatmap to trust\n\n{lead(results)}.\n\n{LEGEND}\n"]
    for title, header, rows in tables(results):
        body = [[in_markdown(one) for one in row] for row in rows]
        parts.append(f"## {title}\n\n{markdown_table(header, body)}")
    body = [
        [method, heading(metric), *(interval(row[metric]["better_than"][name]) for name in NAMES)]
        for metric in COMPARED
        if metric in results.metrics
        for method, row in results.table.items()
        if method not in NAMES
    ]
    header = ["method", "by", *(f"ahead of {name}" for name in NAMES)]
    parts.append(f"## By how much (95 % interval)\n\n{markdown_table(header, body)}")
    if notes := results.notes():
        parts.append("## To know\n\n" + "".join(f"- {note}\n" for note in notes))
    return "\n".join(parts)


def in_markdown(cell: Cell) -> str:
    text = cell.text.replace("*", "\\*").replace("|", "\\|")
    return f"**{text}**" if cell.best else text


def interval(ahead: dict[str, Any] | None) -> str:
    if ahead is None:
        return "-"
    return f"{ahead['mean']:+.3f} [{ahead['low']:+.3f}, {ahead['high']:+.3f}]"


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
