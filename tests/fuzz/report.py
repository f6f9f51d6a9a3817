"""Put the counts of outputs/fuzz into docs/reliability.md.

    python tests/fuzz/report.py [OUTPUT_FOLDER]

Reads summary.json (of run.py) and, where it is there, kills.json (of kills.py).
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from cases import CORPORA

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
GOOD = ("done", "partly", "refused")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/fuzz")
    text = PAGE.read_text(encoding="utf-8")
    text = placed(text, "counts", counts(json.loads((folder / "summary.json").read_text())))
    if (folder / "kills.json").is_file():
        text = placed(text, "kills", kills(json.loads((folder / "kills.json").read_text())))
    PAGE.write_text(text, encoding="utf-8")


def placed(text: str, name: str, content: str) -> str:
    """The page with `content` between the two comments of that name."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    found = re.compile(f"{re.escape(start)}.*{re.escape(end)}", re.DOTALL)
    if not found.search(text):
        raise SystemExit(f"{PAGE}: expected {start} and {end}")
    return found.sub(lambda _: f"{start}\n{content}\n{end}", text)


def counts(summary: dict[str, Any]) -> str:
    """A row for each corpus, and what the failures were."""
    rows = [
        "| damaged | cases | done | done, bad file named | refused | failed |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    total = dict.fromkeys((*GOOD, "failed"), 0)
    for corpus, found in summary["cases"].items():
        row = {name: found.get(name, 0) for name in GOOD}
        row["failed"] = sum(found.values()) - sum(row.values())
        total = {name: total[name] + row[name] for name in total}
        what = (CORPORA[corpus].__doc__ or "").splitlines()[0].rstrip(".")
        rows.append(f"| {corpus}: {what} | {sum(row.values())} | " + cells(row))
    rows.append(f"| all | {sum(total.values())} | " + cells(total))
    lines = [
        f"{summary['minutes']:.0f} minutes on one core, seed {summary['seed']}, "
        f"{sum(total.values())} cases, {total['failed']} failed:",
        "",
        *rows,
    ]
    alike: dict[tuple[str, str, str], list[int]] = {}
    for failure in summary["failures"]:
        text = re.sub(r"\S*/site-packages/", "", failure["text"]).replace("`", "'")[:160]
        alike.setdefault((failure["corpus"], failure["outcome"], text), []).append(
            failure["number"]
        )
    for (corpus, outcome, text), numbers in alike.items():
        others = f" and {len(numbers) - 1} more" if numbers[1:] else ""
        lines.append(f"\n- {corpus} {numbers[0]}{others}, {outcome}: `{text}`")
    return "\n".join(lines)


def cells(row: dict[str, int]) -> str:
    return " | ".join(map(str, row.values())) + " |"


def kills(table: dict[str, Any]) -> str:
    rows = ["| job | rounds | kills | same result as an uninterrupted run |", "|---|--:|--:|--:|"]
    rows += [
        f"| {job} | {row['rounds']} | {row['kills']} | {row['right']} |"
        for job, row in table.items()
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    main()
