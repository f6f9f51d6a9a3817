"""Scores as tables: plain text, HTML, Markdown, CSV and JSON."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from vision_attn.render import markdown_table
from vision_attn.reports.scoring.results import METRICS, NAMES, Results, short
from vision_attn.reports.scoring.scorer import GROUPS

__all__ = [
    *("Cell", "after", "as_csv", "as_html", "as_json", "as_markdown", "as_text", "lead"),
    *("rows", "tables"),
]

COMPARED = ("deletion", "insertion", "pointing_game", "energy_inside", "energy_inside_on_shortcut")
LEGEND = (
    "mean ± standard error; ↓ small is good, ↑ large is good; * better than each of "
    f"{', '.join(NAMES)}, the 95 % interval of the paired difference leaving 0 out."
)


@dataclass(frozen=True)
class Cell:
    """A cell of a table. best: of its column."""

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


def after(results: Results) -> list[str]:
    """What to read below the tables: the legend, which methods to believe, what else to know."""
    return [LEGEND, *verdicts(results), *results.notes()]


def as_text(results: Results) -> str:
    """All tables in columns of plain text."""
    parts = [lead(results)]
    for title, header, rows in tables(results):
        lines = [header, *([one.text for one in row] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        parts.append(f"\n{title}")
        for first, *others in lines:
            cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
            parts.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join([*parts, "", *after(results)])


def as_html(results: Results) -> str:
    """All tables for a notebook, the best of each column in bold."""
    parts = [f"<p>{escape(lead(results))}</p>"]
    for title, header, rows in tables(results):
        head = "".join(f"<th>{escape(text)}</th>" for text in header)
        body = "".join(f"<tr>{''.join(map(in_html, row))}</tr>" for row in rows)
        parts.append(
            f"<p><b>{escape(title)}</b></p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    return "".join([*parts, *(f"<p>{escape(line)}</p>" for line in after(results))])


def in_html(cell: Cell) -> str:
    text = escape(cell.text)
    return f"<td>{f'<b>{text}</b>' if cell.best else text}</td>"


def as_json(results: Results) -> dict[str, Any]:
    """The settings, and the scores and curves by method, as values that JSON knows."""
    right = results.accuracy()
    names = ("deletion", "insertion", "rank correlation", "ssim")
    found = {
        method: {name: results.curve(name, method) for name in names} for method in results.table
    }
    return {
        "settings": results.settings,
        "images": len(results.images),
        "accuracy": right[0] if right else None,
        "layers": results.layers if "randomisation" in results.metrics else None,
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


def rows(results: Results) -> list[dict[str, Any]]:
    """A row for each method and metric; `ahead_of_*` above 0 is better, with its interval."""
    found = []
    for method, scores in results.table.items():
        for metric, score in scores.items():
            row = {
                "method": method,
                "metric": metric,
                "higher_is_better": METRICS[metric].higher_is_better,
                **{name: score[name] for name in ("mean", "standard_error", "n")},
            }
            for name in NAMES:
                ahead = score.get("better_than", {}).get(name) or {}
                row[f"ahead_of_{name}"] = ahead.get("mean")
                row[f"ahead_of_{name}_low"] = ahead.get("low")
                row[f"ahead_of_{name}_high"] = ahead.get("high")
            found.append(row)
    return found


def as_csv(results: Results) -> str:
    """The values of `rows`, a line each."""
    text = io.StringIO()
    found = rows(results)
    lines = csv.DictWriter(text, list(found[0]))
    lines.writeheader()
    lines.writerows(found)
    return text.getvalue()


def as_markdown(results: Results) -> str:
    """All tables, and by how much each method is ahead of the baselines, for scores.md."""
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
