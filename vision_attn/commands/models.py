"""`vision-attn models`: the pretrained networks of the package, with their accuracy."""

import argparse

from rich.table import Table

from vision_attn.models.shelf import list_models
from vision_attn.runs.progress import Terminal

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--shelf",
        metavar="DIR",
        help="another folder of cards and weights (default: the package's)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a table of names, networks, data, accuracies and sizes."""
    table = Table(box=None, pad_edge=False)
    for title in ("name", "network", "data"):
        table.add_column(title)
    for title in ("test top-1", "parameters", "file"):
        table.add_column(title, justify="right")
    for row in list_models(args.shelf):
        table.add_row(
            row["name"],
            row["network"],
            row["data"],
            f"{row['accuracy']:.1%}",
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['size'] / 1e6:.1f} MB",
        )
    console = Terminal(highlight=False)
    if not console.is_terminal:
        console.width = 240
    console.print(table)
    console.print("\nvision-attn explain vision_attn:NAME IMAGE... uses one; cards: docs/models.md")
    return 0
