"""Draws the rooms of the package from the contract of its imports: docs/pictures/rooms.svg.

    python docs/pictures/rooms.py

A room stands in the picture as high as in the layers of pyproject.toml (`tool.importlinter`), which
the tests hold; here stands only what each is for. What no room is stands in the last row.
"""

import tomllib
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
ROOMS = {
    "commands": "a command line: parse, call, print",
    "fitting": "a config in, a folder out",
    "distillation": "learn from another network",
    "hub": "load_model: from a name to a model",
    "sequences": "encoder-decoders and two inputs",
    "pages": "offline HTML: gallery, inspect, live",
    "runs": "samples × methods → one store",
    "training": "losses, schedules, cores",
    "methods": "explainers",
    "models": "networks",
    "data": "photos in",
    "evaluate": "scores",
    "render": "pictures",
    "tokens": "where every token comes from",
    "attention": "scores, normalisers, windows, gates",
}
INSIDE = {"tokens": ("path", "carry", "record", "trace")}
BASE = "shared by all"
WIDTH, LEFT, GAP, ROW, LINE = 560, 38, 8, 52, 17
STYLE = (
    "text{font-family:system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif;fill:#1b1f3b}"
    ".n{font-size:15px;font-weight:600}.w{font-size:13px;fill:#454a63}"
)


def layers() -> list[list[str]]:
    """The parts of each layer, the highest first."""
    text = (HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    return [layer.split(" | ") for layer in contracts[0]["layers"]]


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
        f'stroke="{stroke}"/>'
    )


def words(x: float, y: float, kind: str, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="middle">{escape(text)}</text>'


def room(name: str, x: float, y: float, width: float) -> list[str]:
    """A box with its name and what it is for, and the folders inside where these have an order."""
    middle, inside = x + width / 2, INSIDE.get(name, ())
    drawn = [box(x, y, width, ROW + 30 * bool(inside), "#eef0ff", "#2b3fb0")]
    drawn += [words(middle, y + 22, "n", name), words(middle, y + 41, "w", ROOMS[name])]
    each = (width - GAP) / max(1, len(inside))
    for number, folder in enumerate(inside):
        left = x + GAP + number * each
        drawn.append(box(left, y + ROW, each - GAP, 22, "#fff", "#8a93c9"))
        arrow = " →" if number + 1 < len(inside) else ""
        drawn.append(words(left + (each - GAP) / 2, y + ROW + 15.5, "w", folder + arrow))
    return drawn


def picture() -> str:
    """The whole picture, as text of SVG."""
    drawn, y, rest = [], GAP, []
    for layer in layers():
        rooms = [name for name in layer if name in ROOMS]
        rest += [name for name in layer if name not in ROOMS and name not in ("__main__", "cli")]
        each = (WIDTH - LEFT) / max(1, len(rooms))
        for number, name in enumerate(rooms):
            drawn += room(name, LEFT + number * each, y, each - GAP)
        if rooms:
            y += ROW + GAP + 30 * any(name in INSIDE for name in rooms)
    half = len(rest) // 2
    drawn.append(box(LEFT, y, WIDTH - LEFT - GAP, ROW + LINE, "#f3f3f5", "#8a8d99"))
    middle = (WIDTH + LEFT - GAP) / 2
    drawn.append(words(middle, y + 22, "n", BASE))
    for line, names in enumerate((rest[:half], rest[half:])):
        drawn.append(words(middle, y + 41 + LINE * line, "w", " · ".join(names)))
    height = y + ROW + LINE + GAP
    beside = f"translate(15 {height / 2:g}) rotate(-90)"
    arrow = (
        f'<path d="M24 {GAP + 4}V{height - GAP - 14}" stroke="#d9480f" stroke-width="2"/>'
        f'<path d="M18 {height - GAP - 15}h12l-6 12z" fill="#d9480f"/>'
        f'<text class="w" text-anchor="middle" transform="{beside}">'
        "a room imports what stands below it</text>"
    )
    title = "The rooms of vision_attn, in the order of their imports"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img"><title>{title}</title><style>{STYLE}</style>\n'
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>\n'
        + "\n".join([arrow, *drawn])
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    (HERE / "rooms.svg").write_text(picture(), encoding="utf-8")
