"""`vision-attn score MODEL DATA`: which heatmaps to trust, as a table and pictures.

    DIR/scores.csv, .json, .md   every score of every method, and what is better than the baselines
    DIR/curves.png               deletion and insertion
    DIR/sanity.png               how maps change as the weights are lost, where that was asked for
    DIR/best_and_worst.png       the images of each method that score best and worst

Light to import, so that its help comes at once.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.commands import options
from vision_attn.terminal import say

if TYPE_CHECKING:
    from vision_attn.runs.scoring import Scores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    options.add_model(parser)
    what = (
        "planted (masks), planted:shortcut, planted:contradict, cifar10, cifar100, a folder of "
        "images, one with boxes.json, or one with images/ and masks/"
    )
    parser.add_argument("data", metavar="DATA", help=what)
    options.add_bound(parser)
    options.add_value_range(parser)
    options.add_limit(
        parser, "drawn at random (default: of planted 96, else 1000, with --method all 500)"
    )
    options.add_data_root(parser)
    group = parser.add_argument_group("method")
    options.add_method(group, "the fast ones; three baselines are always added")
    options.add_target(
        group,
        "label|predicted|INDEX|NAME",
        "the class that an image shows if known, else predicted",
    )
    group = parser.add_argument_group("scores")
    group.add_argument(
        "--steps",
        type=options.at_least_one,
        default=16,
        metavar="N",
        help="steps of deletion and insertion (default: 16)",
    )
    group.add_argument(
        "--removal",
        choices=("auto", "tokens", "mean", "blur", "noise"),
        default="auto",
        help="how patches are removed: leave out a ViT's tokens, or fill with the mean colour, a "
        "blur or noise (default: tokens for ViTs that allow it, else mean)",
    )
    group.add_argument(
        "--sanity",
        type=options.whole,
        metavar="N",
        help="sanity check on N images: randomise the weights layer by layer, and add noise "
        "(default: 32 with --method all, else 0)",
    )
    group.add_argument(
        "--mosaic",
        type=options.whole,
        action="append",
        metavar="N",
        help="also score mosaics of N x N photos of different classes, those that the model is "
        "most certain of: does a class's map lie on its photo? 2 to 4; may be repeated "
        "(default: none)",
    )
    group = parser.add_argument_group("run")
    options.add_output(
        group,
        "outputs/score",
        "a stopped run continues there",
        metavar="DIR",
    )
    options.add_processes(group, None, "one for each CPU core, at most 4, if there is enough work")
    options.add_shard(
        group,
        (1, 1),
        "when all are done, the same command without --shard merges them",
        "all images",
    )
    options.add_batch_size(group, 50)
    options.add_seed(group)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 where an image or a map could not be scored; the others are."""
    from vision_attn.runs.scoring import score
    from vision_attn.runs.scoring.evidence import check_data

    check_data(args.data)
    output = options.output_folder(args.output)

    number, shards = args.shard
    try:
        with options.as_written("output"):
            scores = score(
                options.load(args),
                args.data,
                args.method,
                target=args.target,
                contrast=args.contrast,
                limit=args.limit,
                output=output,
                head=args.head,
                steps=args.steps,
                removal=args.removal,
                sanity=args.sanity,
                mosaic=args.mosaic,
                processes=args.processes,
                shard=args.shard,
                batch_size=args.batch_size,
                seed=args.seed,
                root=args.root,
                name=args.model,
                progress=options.Report(),
            )
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*(f"; {text}" for text in stop.args)) from None
    if shards > 1:
        say(
            f"shard {number} of {shards} is done, in {output}: when all are, the same command "
            "without --shard merges them"
        )
    else:
        show(scores)
        say(f"Pictures and tables: {output}")
        if (args.target, args.contrast, args.head, args.image_size) == (None,) * 4:
            keep_trust(Path(args.model), scores)
    return 1 if scores.problems else 0


def keep_trust(checkpoint: Path, scores: "Scores") -> None:
    """Write beside a checkpoint which of its heatmaps to trust, for `explain` without --method."""
    if not checkpoint.is_file() or not scores.verdict().of("yes"):
        return
    from vision_attn.models.trust import write_trust

    try:
        path = write_trust(checkpoint, scores.trust())
    except OSError as error:
        say(f"{checkpoint.parent} cannot be written ({error.strerror}): nothing is kept there")
        return
    say(f"{path}: explain takes the best of these methods from now on")


def show(scores: "Scores") -> None:
    """Print the tables to the terminal, the best of each column in green."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from vision_attn.runs.progress import Terminal
    from vision_attn.runs.scoring import tables

    console = Terminal(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(tables.lead(scores.results), soft_wrap=True)
    for title, header, rows in tables.tables(scores.results):
        console.print(f"\n{title}", style="bold")
        table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
        for number, column in enumerate(table.columns):
            column.justify = "right" if number else "left"
            column.no_wrap = number == 0
        before: list[tables.Cell] = []
        for row in rows:
            if row[0].baseline and not (before and before[0].baseline):
                table.add_section()
            before = row
            table.add_row(*(Text(c.text, "bold green" if c.best else "") for c in row))
        console.print(table)
    for line in tables.after(scores.results):
        console.print(line, soft_wrap=True)
