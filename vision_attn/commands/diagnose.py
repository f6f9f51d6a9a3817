"""`vision-attn diagnose MODEL DATA`: what is wrong with a network, as a verdict, a table, a page.

    DIR/index.html       the page: the verdict and what it rests on
    DIR/diagnosis.json   everything as plain values
    DIR/registers/       the same with registers at test time, with --registers N

Light to import, so that its help comes at once.
"""

import argparse
from typing import TYPE_CHECKING

from vision_attn.commands import options
from vision_attn.terminal import say

if TYPE_CHECKING:
    from vision_attn.runs.diagnosis.results import Diagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    options.add_model(parser)
    what = "a folder of images, in folders of classes or not; planted, cifar10 or cifar100"
    parser.add_argument("data", metavar="FOLDER", help=what)
    options.add_bound(parser)
    options.add_value_range(parser)
    options.add_limit(parser, "drawn at random (default: 200)")
    parser.add_argument(
        "--data.root",
        dest="root",
        default=".data",
        metavar="DIR",
        help="the folder of cifar10 and cifar100 (default: .data)",
    )
    group = parser.add_argument_group("run")
    options.add_output(group, "outputs/diagnosis", "the page and diagnosis.json", metavar="DIR")
    options.add_batch_size(group, 16)
    options.add_seed(group)
    group.add_argument(
        "--registers",
        type=options.at_least_one,
        metavar="N",
        help="also move N neurons of the MLPs that write outlying norms to a register at test time "
        "(Jiang et al. 2025), and diagnose that: DIR/registers/ (default: not)",
    )


def run(args: argparse.Namespace) -> int:
    """Return 0, 1 where an image could not be read, 130 where the run was stopped."""
    from vision_attn.pages.diagnosis.run import diagnose
    from vision_attn.runs.diagnosis.results import short
    from vision_attn.runs.scoring.evidence import check_data

    check_data(args.data)
    output = options.output_folder(args.output)
    report = options.Report()
    model = options.load(args)
    how = {"limit": args.limit, "batch_size": args.batch_size, "seed": args.seed, "root": args.root}
    with options.as_written("output"):
        found = diagnose(
            model, args.data, output=output, name=args.model, progress=report, **how
        )  # fmt: skip
    show(found)
    say(f"{output / 'index.html'}: every head and block, open it in a browser")
    if args.registers is not None and not found.stopped:
        from vision_attn.runs.diagnosis.remedy import add_registers

        what = {"limit": found.photos, "seed": args.seed, "root": args.root}
        moved = add_registers(model, args.data, neurons=args.registers, **what)
        name = f"{args.model} with a test-time register"
        after = diagnose(
            moved, args.data, output=output / "registers", name=name, progress=options.Report(),
            **how,
        )  # fmt: skip
        say(f"With {args.registers} neurons moved to a register at test time:")
        for words, before, then in found.changes(after):
            say(f"  {words:<37} {short(before):>7} -> {short(then)}")
        say(f"{output / 'registers/index.html'}: the diagnosis after it")
    if found.stopped:
        return 130
    return 1 if found.problems else 0


def show(found: "Diagnosis") -> None:
    """Print the verdict, and a table of the layers: the mean of their heads, and their blocks."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from vision_attn.runs.progress import Terminal

    console = Terminal(highlight=False)
    if not console.is_terminal:
        console.width = 140
    header, rows = found.layer_table()
    if rows:
        table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
        for column in table.columns:
            column.justify = "right"
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(found.title, style="bold", soft_wrap=True)
    for one in found.findings:
        style = "bold red" if one.fault else ""
        console.print(Text(f"{'!' if one.fault else '-'} {one.text}", style), soft_wrap=True)
