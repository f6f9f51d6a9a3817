"""`vision-attn configs`: the configs of the package, and what each of them reaches."""

import argparse

from rich.table import Table

from vision_attn.errors import quoted
from vision_attn.fitting.configs import about, shipped_configs
from vision_attn.runs.progress import Terminal
from vision_attn.terminal import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this config as it is")


def run(args: argparse.Namespace) -> int:
    """Print a table of names, or one config; ValueError for a name that there is not."""
    configs = shipped_configs()
    if args.name is not None:
        if args.name not in configs:
            from vision_attn.errors import did_you_mean

            raise ValueError(
                f"no config named {quoted(args.name)}{did_you_mean(args.name, configs)}"
            )
        print(printable(configs[args.name].read_text(encoding="utf-8")), end="")
        return 0
    table = Table("config", "what it trains", "expected", box=None, pad_edge=False)
    for name, path in configs.items():
        table.add_row(name, *about(path))
    console = Terminal(highlight=False)
    if not console.is_terminal:
        console.width = 240
    console.print(table)
    console.print("\nvision-attn fit --config NAME runs one; vision-attn configs NAME prints it")
    return 0
