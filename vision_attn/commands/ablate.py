"""`vision-attn ablate MODEL DATA`: what each head, MLP and block is worth.

    DIR/index.html                 the page: what falls by how much without each, with intervals
    DIR/ablation.json, .csv, .md   the same as plain values, and the curve of pruned heads

Light to import, so that its help comes at once.
"""

import argparse
from typing import TYPE_CHECKING

from vision_attn.commands import options
from vision_attn.terminal import say

if TYPE_CHECKING:
    from vision_attn.runs.ablation import Ablation

SHOWN = 20  # rows of the table in the terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    options.add_model(parser)
    what = "a folder of images, planted, cifar10 or cifar100"
    parser.add_argument("data", metavar="DATA", help=what)
    options.add_bound(parser)
    options.add_value_range(parser)
    options.add_limit(parser, "drawn at random (default: 100)")
    options.add_data_root(parser)
    group = parser.add_argument_group("what is taken away")
    group.add_argument(
        "--part",
        action="append",
        choices=("heads", "mlps", "blocks"),
        help="may be repeated (default: all three)",
    )
    group.add_argument(
        "--replacement",
        choices=("zero", "mean", "uniform"),
        default="zero",
        help="what stands in the place of a head's output: zero, its mean over the tokens, or the "
        "mean of the values (default: zero)",
    )
    group.add_argument(
        "--prune",
        type=options.whole,
        default=8,
        metavar="N",
        help="steps of the curve of pruned heads; 0: none (default: 8)",
    )
    group = parser.add_argument_group("what is measured")
    options.add_target(
        group,
        "label|predicted|INDEX|NAME",
        "the class that an image shows if known, else predicted",
    )
    group = parser.add_argument_group("run")
    options.add_output(group, "outputs/ablate", metavar="DIR")
    options.add_batch_size(group, 25)
    options.add_seed(group)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 where an image could not be read; the others are measured."""
    from vision_attn.pages.ablation.run import ablate
    from vision_attn.runs.ablation import PARTS
    from vision_attn.runs.scoring.evidence import check_data

    check_data(args.data)
    output = options.output_folder(args.output)
    found = ablate(
        options.load(args),
        args.data,
        args.part or PARTS,
        target=args.target,
        contrast=args.contrast,
        limit=args.limit,
        output=output,
        head=args.head,
        replacement=args.replacement,
        prune=args.prune,
        batch_size=args.batch_size,
        seed=args.seed,
        root=args.root,
        progress=options.Report(),
    )
    show(found)
    say(f"{output / 'index.html'}: open it in a browser; the tables lie beside it")
    return 1 if found.problems else 0


def show(found: "Ablation") -> None:
    """Print what is worth most to the terminal, and the curve."""
    from rich import box
    from rich.table import Table

    from vision_attn.runs.progress import Terminal

    console = Terminal(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(found.lead, soft_wrap=True)
    header, rows = found.text_rows()
    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows[:SHOWN]:
        table.add_row(*row)
    console.print(table)
    if len(rows) > SHOWN:
        console.print(f"The {SHOWN} that are worth most of {len(rows)}.", soft_wrap=True)
    for step in found.curve():
        console.print(f"{step['heads']} heads gone: {step['share']:.1%} {found.hit_word}")
