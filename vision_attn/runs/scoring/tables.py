"""Scores as tables: plain text, HTML, Markdown, CSV and JSON."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from vision_attn import __version__
from vision_attn.render import markdown_table
from vision_attn.runs.scoring.ranking import trust_of
from vision_attn.runs.scoring.results import METRICS, NAMES, Results, short, signed
from vision_attn.runs.scoring.scorer import GRIDS, GROUPS
from vision_attn.runs.scoring.verdict import ALIKE, FEWEST, LEAST_LEAD, MATTERS, judge

__all__ = [
    *("after", "as_csv", "as_html", "as_json", "as_markdown", "as_text", "lead"),
    *("rows", "tables"),
]

FORMAT = 1  # of scores.json
COMPARED = (
    *("deletion", "insertion", "pointing_game", "energy_inside", "energy_inside_on_shortcut"),
    *GRIDS.values(),
)
LEGEND = (
    "mean ± standard error; ↓ small is good, ↑ large is good; * better than each of "
    f"{', '.join(NAMES)}: the 95 % interval of the paired difference does not contain 0."
)

TRUST = {"yes": "yes", "no": "no", "unknown": "cannot tell"}
RULE = (
    "The rule: yes, if the method beats each baseline by deletion and by insertion, the 95 % "
    "interval of the paired difference lying above 0 and the lead being at least "
    f"{LEAST_LEAD}; no, if it is worse than a baseline by either, or no better by both (the "
    f"interval ends below {MATTERS}), or if its map stays the same with all weights randomised "
    f"(the interval of the mean |rank correlation| lies above {ALIKE}); otherwise, and from fewer "
    f"than {FEWEST} images, cannot tell. Each method is judged by itself: of 40 that are no "
    "better than a baseline, at most one on average passes by chance. A trusted map shows where "
    "the evidence lies that this model uses on these images better than a map of the image alone; "
    "it says nothing about other models or images."
)
ABOUT = {
    "deletion": "the class's mean probability as the map's largest cells are removed first; a "
    "faithful map makes it fall fast",
    "insertion": "the same as they are put back first, into an image without evidence",
    "positive_perturbation": "accuracy as the largest cells are removed first",
    "negative_perturbation": "accuracy as the smallest cells are removed first",
    "average_drop": "how much of the class's probability is lost, on average, where only what the "
    "map shows is left",
    "average_increase": "the share of images whose class becomes more probable there",
    "saco": "with a tenth of the cells removed at a time: how far larger sums of the map go with "
    "larger drops of the probability, from -1 to 1 (SaCo)",
    "single_deletion": "with one of 16 parts removed at a time: the rank correlation of the map's "
    "sums with the drops of the logit",
    "pointing_game": "the share of images in which the map's maximum lies on the object",
    "energy_inside": "the share of the map's sum that lies on the object",
    "average_precision": "how well the map's values tell the object's pixels from the others",
    "mean_iou": "the overlap with the object of the map above its mean, object and background "
    "averaged",
    "pixel_accuracy": "the share of pixels that the map above its mean puts on the right side",
    "box_iou": "the overlap of the best box around the map with the object's box",
    "pointing_game_on_shortcut": "the share of images in which the maximum lies on the shortcut",
    "energy_inside_on_shortcut": "the share of the map's sum that lies on the shortcut",
    **{
        name: f"the share of the map's positive sum in the cell of its class, of "
        f"{side}x{side} photos, the mean over a mosaic's cells; class-blind: the same map for "
        f"every class, which has 1/{side**2}"
        for side, name in GRIDS.items()
    },
    "randomisation": "|rank correlation| with the intact map, the mean over the steps by which the "
    "weights are randomised; 1 is a map that does not depend on them",
    "sensitivity": "the largest relative change of the map under a little noise; a map that never "
    "changes has 0, so that small alone proves nothing",
    "sparseness": "how unevenly the map is spread, 0 for a constant one; not whether it is right",
}


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        best: Whether it is the best of its column.
        baseline: Whether it is in the row of a baseline.
    """

    text: str
    best: bool = False
    baseline: bool = False


def tables(results: Results) -> Iterator[tuple[str, list[str], list[list[Cell]]]]:
    """Title, header and rows of each group of metrics that anything was scored by."""
    for title, group in GROUPS.items():
        metrics = [name for name in group if name in results.metrics]
        if not metrics:
            continue
        counts = {row[m]["n"] for row in results.table.values() for m in metrics}
        n = f"n = {max(counts)}" if len(counts) == 1 else f"n = {min(counts)} to {max(counts)}"
        header = [n, *map(heading, metrics)]
        best = {metric: winners(results, metric) for metric in metrics}
        rows = [
            [
                named(results, method),
                *(cell(results, m, method, method in best[m]) for m in metrics),
            ]
            for method in results.table
        ]
        yield title, header, rows


def columns(results: Results, title: str) -> list[str]:
    """A line for each column of a table: what it measures."""
    return [f"{heading(m)}: {ABOUT[m]}" for m in GROUPS[title] if m in results.metrics]


def named(results: Results, method: str) -> Cell:
    """A method's name, marked where it is a baseline."""
    return Cell(results.titled(method), baseline=method in results.baselines)


def winners(results: Results, metric: str) -> set[str]:
    """The methods with the best mean, as it is printed; the baselines only if they alone have it.

    None where all have it.
    """
    means = {m: row[metric]["mean"] for m, row in results.table.items()}
    printed = {m: short(mean) for m, mean in means.items() if mean is not None}
    first = {m for m, text in printed.items() if text == printed[results.best(metric)]}
    return set() if len(first) == len(printed) else first - results.baselines or first


def heading(metric: str) -> str:
    return f"{metric.replace('_', ' ')} {'↑' if METRICS[metric].higher_is_better else '↓'}"


def cell(results: Results, metric: str, method: str, best: bool) -> Cell:
    score = results.table[method][metric]
    if score["mean"] is None:
        return Cell("-")
    error = "" if score["standard_error"] is None else f" ±{short(score['standard_error'])}"
    star = "*" if results.beats_all(metric, method) else ""
    if results.is_blind(metric, method):
        error = " class-blind"
    won = best and method in results.baselines
    text = f"{short(score['mean'])}{error}{star}" + (" baseline won" if won else "")
    return Cell(text, best, method in results.baselines)


def lead(results: Results) -> str:
    """What was scored, in a sentence."""
    about, right = results.settings, results.accuracy()
    known = f", {right[0]:.1%} of {right[1]} classified right" if right else ""
    explained = results.explained
    if about["target"] == "label":
        every = right is not None and right[1] == len(results.images)
        explained = "the predicted class" if right is None else explained
        explained += "" if every or right is None else " where known, else the predicted class"
    if results.unit is not None:
        explained += (
            f"; deletion and insertion follow this number, in units of {short(results.unit)}, its "
            "mean change from whole images to none of them"
        )
    return (
        f"{about['model']} on {about['data']}: {len(results.images)} images{known}; explained for "
        f"{explained}; {about['steps']} steps, removed: {about['removal']}"
    )


def verdicts(results: Results) -> list[str]:
    """Which methods are better than every baseline, metric by metric."""
    lines = []
    for metric in COMPARED:
        if metric in results.metrics:
            ahead = [method for method in results.methods if results.beats_all(metric, method)]
            names = ", ".join(ahead) or "none"
            lines.append(f"{heading(metric)}: better than every baseline: {names}")
    return lines


def after(results: Results) -> list[str]:
    """What to read below the tables: the legend, what else to know, and the verdict last."""
    return [LEGEND, *verdicts(results), *results.notes(), *judge(results).text.splitlines()]


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
            f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in columns(results, title))}</ul>"
        )
    return "".join([*parts, *(f"<p>{escape(line)}</p>" for line in after(results))])


def in_html(cell: Cell) -> str:
    text = escape(cell.text)
    return f"<td>{f'<b>{text}</b>' if cell.best else text}</td>"


def as_json(results: Results) -> dict[str, Any]:
    """The settings, and the scores and curves by method, as values that JSON knows."""
    right = results.accuracy()
    verdict = judge(results)
    names = ("deletion", "insertion", "rank correlation", "ssim")
    found = {
        method: {name: results.curve(name, method) for name in names} for method in results.table
    }
    return {
        "format": FORMAT,
        "version": __version__,
        "settings": results.settings,
        "weights": results.weights,
        "verdict": {
            "text": verdict.text,
            "trusted": list(trust_of(results).methods),
            "methods": verdict.rows(),
            "rule": {
                "fewest_images": FEWEST,
                "least_lead": LEAST_LEAD,
                "lead_that_matters": MATTERS,
                "rank_correlation": ALIKE,
            },
        },
        "images": len(results.images),
        "accuracy": right[0] if right else None,
        "layers": results.layers if "randomisation" in results.metrics else None,
        "mosaics": [row._asdict() for row in results.mosaics],
        "higher_is_better": {m: METRICS[m].higher_is_better for m in results.metrics},
        "notes": results.notes(),
        "methods": {
            method: {
                "baseline": method in results.baselines,
                "class_specific": method not in results.blind,
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
    verdict = judge(results)
    text = "\n\n".join(map(plain, verdict.text.splitlines()))
    why = [
        [f"**{plain(one.method)}**", TRUST[one.trust], plain("; ".join([one.reason, *one.remarks]))]
        for one in verdict.methods
    ]
    parts = [
        f"# Which heatmap to trust\n\n{text}\n",
        markdown_table(["method", "trust it here?", "why"], why),
        f"{plain(RULE)}\n\n{plain(lead(results))}.\n\n{plain(LEGEND)}\n",
    ]
    for title, header, rows in tables(results):
        body = [[in_markdown(one) for one in row] for row in rows]
        about = "".join(f"- {line}\n" for line in columns(results, title))
        parts.append(f"## {title}\n\n{markdown_table(header, body)}\n{about}")
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
    text = plain(cell.text)
    return f"**{text}**" if cell.best else text


def plain(text: str) -> str:
    """Escape what Markdown would read as bold type or as the edge of a cell."""
    return text.replace("*", "\\*").replace("|", "\\|")


def interval(ahead: dict[str, Any] | None) -> str:
    if ahead is None:
        return "-"
    return f"{signed(ahead['mean'])} [{signed(ahead['low'])}, {signed(ahead['high'])}]"
