"""`vision-attn pictures FOLDER --class NAME`: draw the heatmaps that `explain --save maps` kept.

Light to import, so that its help comes at once.
"""

import argparse

from vision_attn.commands import options
from vision_attn.terminal import say

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    what = "a folder written by explain --save maps (or both)"
    parser.add_argument("folder", metavar="FOLDER", help=what)
    parser.add_argument(
        "--class",
        dest="classes",
        action="append",
        metavar="INDEX|NAME",
        help="draw photos of this class (the true one if known, else the predicted one); may be "
        "repeated (default: the first photos of any class)",
    )
    options.add_method(parser, "all that were saved")
    parser.add_argument(
        "--limit",
        type=options.at_least_one,
        default=100,
        metavar="N",
        help="at most N images (default: 100)",
    )
    parser.add_argument(
        "--style",
        default="inferno",
        metavar="NAME",
        help="a colour map of matplotlib, or dim: darken what gets no attention (default: inferno)",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="where to write (default: FOLDER/pictures)"
    )


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 where a photo could not be drawn; the others are."""
    from vision_attn.pages.gallery.drawing import draw_pictures

    drawn = draw_pictures(
        args.folder,
        args.classes or (),
        args.method,
        limit=args.limit,
        output=None if args.output is None else options.output_folder(args.output),
        style=options.style(args.style),
        progress=options.Report(),
    )
    for place in drawn:
        say(f"{place / 'index.html'}")
    say(f"{drawn.photos} photos drawn")
    return 1 if drawn.problems else 0
