"""Runs the notebooks, and turns them into pages of the site.

    python docs/notebooks.py [NAME ...]     run those that have changed since they last ran
    python docs/notebooks.py --again        run all

A notebook that ran is kept in outputs/notebooks, with its pictures, under a fingerprint of its
cells and of the pretrained networks. A run that fails or writes to stderr is not kept. The
notebooks in the repository have no outputs.
"""

import argparse
import base64
import hashlib
import html
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "notebooks"
KEPT = ROOT / "outputs" / "notebooks"
SECONDS = 3600  # for one cell, on a busy machine
SHORT = 14  # lines of code that a page shows at once; longer cells are folded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="01_train_and_look (default: all)")
    parser.add_argument("--again", action="store_true", help="also those that have not changed")
    args = parser.parse_args()
    sources = [SOURCES / f"{name}.ipynb" for name in args.names] or sorted(SOURCES.glob("*.ipynb"))
    for source in sources:
        if args.again or executed(source) is None:
            begun = time.perf_counter()
            print(f"{source.name} ...", end=" ", flush=True)
            run(source)
            print(f"{time.perf_counter() - begun:.0f} s")
    return 0


# ---------------------------------------------------------------- running


def run(source: Path, kept: Path = KEPT) -> NotebookNode:
    """Run a notebook and keep it with its outputs. Raises RuntimeError if it writes to stderr."""
    notebook: NotebookNode = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        coalesce_streams=True,  # what a cell prints is one block
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors alone: not that TCP is local
    )
    client.execute(cwd=str(source.parent))
    if complaint := "".join(complaints(notebook)):
        raise RuntimeError(f"{source.name} wrote to stderr:\n{complaint}")
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
    notebook.metadata["fingerprint"] = fingerprint(source)
    kept.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, kept / source.name)
    return notebook


def complaints(notebook: NotebookNode) -> Iterator[str]:
    """What the cells wrote to stderr."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                yield output.text


def executed(source: Path, kept: Path = KEPT) -> NotebookNode | None:
    """The notebook with its outputs, or None if it has not run since it changed."""
    path = kept / source.name
    if not path.is_file():
        return None
    notebook = nbformat.read(path, as_version=4)
    return notebook if notebook.metadata.get("fingerprint") == fingerprint(source) else None


def fingerprint(source: Path) -> str:
    """A digest of a notebook's cells and of the cards of the pretrained networks."""
    digest = hashlib.sha256()
    for cell in nbformat.read(source, as_version=4).cells:
        digest.update(json.dumps([cell.cell_type, cell.source]).encode())
    for card in sorted((ROOT / "vision_attn" / "shelf").glob("*.json")):
        digest.update(card.read_bytes())
    return digest.hexdigest()


# ---------------------------------------------------------------- pages


@dataclass
class Page:
    """A notebook as Markdown, and the pictures it shows, by file name."""

    name: str
    pictures: dict[str, bytes] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)

    @property
    def markdown(self) -> str:
        return "\n\n".join(self.parts) + "\n"


def page_of(name: str, notebook: NotebookNode) -> Page:
    """Turn a notebook into a page."""
    page = Page(name)
    heading = name
    for number, cell in enumerate(notebook.cells):
        if found := re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE):
            heading = found[-1] if cell.cell_type == "markdown" else heading
        if cell.cell_type == "markdown":
            page.parts.append(linked(cell.source))
        else:
            page.parts.append(code(cell.source))
            page.parts += [shown(output, heading, page) for output in cell.get("outputs", [])]
        if number == 0:
            page.parts.append(lead(name, any(c.get("outputs") for c in notebook.cells)))
    return page


def lead(name: str, ran: bool) -> str:
    """The line below the title."""
    download = f"[Download this notebook]({name}.ipynb){{ download }}"
    if ran:
        return f"{download}, with its outputs. Or [run it yourself](../howto/notebooks.md)."
    return f"{download}. It has not run here: `make docs` runs it and shows its pictures."


def linked(markdown: str) -> str:
    """Names of other notebooks become links to their pages."""
    return re.sub(r"`(\d\d_\w+)\.ipynb`", r"[\1](\1.md)", markdown)


def code(source: str) -> str:
    """A cell of code; a long one is folded."""
    block = f"```python\n{source}\n```"
    lines = source.count("\n") + 1
    if lines <= SHORT:
        return block
    return f'??? example "Code, {lines} lines"\n\n' + indented(block)


def indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def shown(output: NotebookNode, heading: str, page: Page) -> str:
    """An output of a cell: text, a picture, or a table."""
    if output.output_type == "stream":
        return text_block(output.text)
    data: dict[str, Any] = output.get("data", {})
    if "image/png" in data:
        file = f"{page.name}_{len(page.pictures) + 1}.png"
        page.pictures[file] = base64.b64decode(data["image/png"])
        return f"![{heading}: what the code above draws]({file})"
    if "text/html" in data:
        return f'<div class="output" tabindex="0">\n{unmarked(data["text/html"])}\n</div>'
    return text_block(data.get("text/plain", ""))


def text_block(text: str) -> str:
    return f'<pre class="output" tabindex="0">{html.escape(text.rstrip())}</pre>'


def unmarked(markup: str) -> str:
    """HTML that Markdown leaves alone: blank lines would end it."""
    return re.sub(r"\n\s*\n", "\n", markup)


if __name__ == "__main__":
    sys.exit(main())
