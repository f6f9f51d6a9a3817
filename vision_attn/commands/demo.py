"""`vision-attn demo`: where trained networks look in photos, then three that are trained here.

    DIR/index.html                 the page to open, at once with photos, at the end with all of it:
                                   accuracies, scores of the maps, the gallery
    DIR/{vit,senet,spatial_cnn}/   each run: best.ckpt, metrics, learning curves, confusion matrix

Light to import, so that its help comes at once.
"""

import argparse
import gc
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from vision_attn.commands import options
from vision_attn.errors import quoted
from vision_attn.runs.progress import Terminal

if TYPE_CHECKING:
    from vision_attn.pages.demo.page import DemoNetwork


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    options.add_output(parser, "outputs/demo", metavar="DIR")
    parser.add_argument(
        "--minutes",
        type=positive,
        metavar="N",
        help="train for about N minutes, all three networks together: their first steps are "
        "timed, and as many epochs are planned as fit into the time (default: two epochs each)",
    )
    options.add_seed(parser)


def run(args: argparse.Namespace) -> int:
    """Explain photos, then train, test and explain; returns 0."""
    from vision_attn.files import claimed

    folder = options.output_folder(args.output)
    with claimed(folder):
        return show(folder, args)


def show(folder: Path, args: argparse.Namespace) -> int:
    """Explain photos, train into the folder, which no other job writes to, and write the page."""
    from vision_attn.hub import load_model
    from vision_attn.pages.demo.page import ENTRIES, Demo, write_first_page
    from vision_attn.pages.demo.photos import PhotoWall, photo_networks

    console = Terminal(highlight=False)
    photos = []
    if known := photo_networks():
        console.rule("Where trained networks look in photos")
        models = {spec.partition(":")[2]: load_model(spec) for spec in known}
        photos = PhotoWall(folder, models).sections()
        page = write_first_page(folder, photos)
        console.print(
            f"Open {page} in a browser. It is complete when this command ends.\n", soft_wrap=True
        )
    for place, entry in enumerate(ENTRIES, start=1):
        console.rule(f"{place} of {len(ENTRIES)}: {entry.title}")
        minutes = args.minutes and args.minutes * entry.share
        train(console, entry, folder, minutes, args.seed)
    console.rule("Where they look")
    models = {entry.name: load_model(folder / entry.name / "best.ckpt") for entry in ENTRIES}
    demo = Demo(folder, ENTRIES, models, options.Report())
    page = demo.write_page(photos)
    console.print(in_terminal(demo.results()))
    console.print(f"Open {page} in a browser. Then try:\n", style="bold", soft_wrap=True)
    for _, line in demo.next_steps():
        console.print(f"  {line}", soft_wrap=True)
    return 0


def train(
    console: Terminal, entry: "DemoNetwork", folder: Path, minutes: float | None, seed: int
) -> None:
    """A run of the entry's config into folder/NAME, in place of an earlier one when it is done.

    minutes: how long it trains; None for the config's epochs.
    """
    from vision_attn.fitting.making import make_run
    from vision_attn.training import EpochLines

    runs = folder / "running"
    shutil.rmtree(runs, ignore_errors=True)
    words = ["--config", entry.config]
    words += ["--trainer.default_root_dir", str(runs)]
    words += [] if minutes is None else ["--minutes", str(minutes)]
    words += ["--seed_everything", str(seed)]
    run = make_run("fit", words, show=[EpochLines()])
    console.print(run.heading())
    run.fit()
    console.print(run.table())
    place = folder / entry.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(str(run.folder), place)
    shutil.rmtree(runs)
    del run
    gc.collect()  # a trainer and its data hold on to each other: free them before the next


def in_terminal(rows: list[list[str]]) -> Table:
    """The first row is the header."""
    header, *rest = rows
    table = Table(*header)
    for row in rest:
        table.add_row(*row)
    return table


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(
            f"expected a number of minutes above 0, got {quoted(text)}"
        )
    return value
