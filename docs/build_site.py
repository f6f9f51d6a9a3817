"""What mkdocs makes anew at each build: the command line, tables, formulas and notebooks.

<!-- table: NAME -->         tables from the parsers, the configs or the shelf, see TABLES
<!-- section: HEADING -->    that section of CONTRIBUTING.md
$...$ and $$...$$            MathML, which a browser shows without a script
notebooks/                   the notebooks, to download
"""

import argparse
import html
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

from vision_attn import cli
from vision_attn.reports.runs.configs import about, shipped_configs
from vision_attn.shelf import list_models

ROOT = Path(__file__).parent.parent


def on_files(files: Any, config: Any) -> Any:
    """Add the notebooks, to download."""
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        path = f"notebooks/{notebook.name}"
        files.append(File.generated(config, path, abs_src_path=str(notebook)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put tables and sections where a page asks for them."""
    return filled(markdown).replace("(../../notebooks/", "(../notebooks/")


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Turn formulas into MathML."""
    return with_formulas(content)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the search dialog, which the theme leaves without a name for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )


# ---------------------------------------------------------------- the command line


class Recorder(cli.Parser):
    """A parser that remembers what was added to it, group by group."""

    def __init__(self, **given: Any):
        self.groups: list[tuple[str, list[argparse.Action]]] = [("", [])]
        super().__init__(**given)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.groups[0][1].append(action)
        return action

    def add_argument_group(self, title: Any = None, *rest: Any, **options: Any) -> Any:
        group = super().add_argument_group(title, *rest, **options)
        if title not in ("positional arguments", "options"):
            added: list[argparse.Action] = []
            self.groups.append((str(title), added))
            add = group.add_argument

            def recorded(*names: Any, **given: Any) -> argparse.Action:
                added.append(add(*names, **given))
                return added[-1]

            group.add_argument = recorded
        return group


def parser_of(command: str) -> Recorder:
    """The parser of one command, with what it has been given."""
    module = importlib.import_module(f"vision_attn.commands.{command}")
    parser = Recorder(prog=f"vision-attn {command}", description=cli.COMMANDS[command])
    module.add_arguments(parser)
    return parser


def written(action: argparse.Action) -> str:
    """An option or a word as it is typed."""
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    if action.nargs == 0:
        return names
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    value = str(value or ("" if action.option_strings else action.dest.upper()))
    value = value or action.dest.upper()
    if not action.option_strings:
        return f"`{value}`" + {"*": " ...", "?": " (may be left out)"}.get(str(action.nargs), "")
    return f"{names} `{value}`"


def commands() -> str:
    """Every command with every option."""
    words = importlib.import_module("vision_attn.commands.fit.words")
    parts = []
    for command, does in cli.COMMANDS.items():
        parser = parser_of(command)
        parts.append(f"## {command}\n\n{does[0].upper()}{does[1:]}.\n")
        parts.append(f"```text\n{parser.format_usage().strip()}\n```\n")
        for title, actions in parser.groups:
            shown = [a for a in actions if a.help != argparse.SUPPRESS and a.dest != "help"]
            if shown:
                heading = [f"**{title[0].upper()}{title[1:]}**\n"] if title else []
                rows = [(written(a), cell(str(a.help or ""))) for a in shown]
                parts += [*heading, table(("option", "meaning"), rows)]
    for command, does in cli.TRAINING.items():
        text = words.help_text(command).partition("configs here:")[0]
        parts.append(
            f"## {command}\n\n{does[0].upper()}{does[1:]}.\n\n```text\n{text.strip()}\n```\n"
        )
    return "\n".join(parts)


# ---------------------------------------------------------------- tables


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Plain text in a cell: what Markdown and HTML would take for their own is escaped."""
    return re.sub(r"([|*_<>\[\]`])", r"\\\1", text.replace("%%", "%"))


def shelf() -> str:
    """The pretrained networks, from their cards."""
    rows = [
        (
            f"[`{row['name']}`](models.md#{row['name']})",
            row["network"],
            row["data"],
            f"{row['accuracy']:.1%}".replace("%", " %"),
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['size'] / 1e6:.1f} MB",
        )
        for row in list_models()
    ]
    return table(("name", "network", "data", "test top-1", "parameters", "file"), rows)


def configs_of(part: str, measured: bool = False) -> str:
    """The configs with this part in their name, and what each reaches, from their header comments.

    measured: only those of which something was.
    """
    rows = [
        (f"`{name}`", *map(cell, about(path)))
        for name, path in shipped_configs().items()
        if part in name and (re.search(r"\d", about(path)[1]) or not measured)
    ]
    return table(("config", "what it trains", "what it reaches"), rows)


PARTS = {
    "planted": "Drawn images, nothing to download",
    "cifar": "CIFAR-10 and CIFAR-100",
    "image": "Photos in folders",
    "dates": "Dates, from text to text",
    "strings": "Rows of objects, named one by one",
    "questions": "Questions about images",
}


def configs() -> str:
    """Every config that comes along, by its data."""
    parts = []
    for part, title in PARTS.items():
        parts.append(f"## {title}\n\n{configs_of(part)}")
    return "\n".join(parts)


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "configs": configs,
    "shelf": shelf,
    **{f"configs {part}": lambda part=part: configs_of(part) for part in PARTS},
    **{f"measured configs {part}": lambda part=part: configs_of(part, True) for part in PARTS},
}


def section(heading: str) -> str:
    """A section of CONTRIBUTING.md, without its heading."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if not found:
        raise ValueError(f"CONTRIBUTING.md has no section {heading!r}")
    return found[1].strip()


def filled(markdown: str) -> str:
    """A page with its tables and sections. Raises for one that there is not."""
    markdown = re.sub(r"<!-- table: (.+?) -->", lambda m: TABLES[m[1]](), markdown)
    return re.sub(r"<!-- section: (.+?) -->", lambda m: section(m[1]), markdown)


# ---------------------------------------------------------------- formulas


def with_formulas(content: str) -> str:
    """HTML whose formulas are MathML."""
    content = re.sub(
        r'<div class="arithmatex">\\\[(.*?)\\\]</div>',
        lambda m: f'<span class="formula" tabindex="0">{mathml(m[1], "block")}</span>',
        content,
        flags=re.DOTALL,
    )
    return re.sub(
        r'<span class="arithmatex">\\\((.*?)\\\)</span>',
        lambda m: mathml(m[1], "inline"),
        content,
        flags=re.DOTALL,
    )


def mathml(formula: str, display: str) -> str:
    """A formula of LaTeX as MathML."""
    return convert(html.unescape(formula).strip(), display=display)
