"""`vision-attn compare MODEL MODEL2 IMAGE...`: where two checkpoints agree, and their maps differ.

    DIR/index.html                    the page: by class, and the photos whose maps differ most
    DIR/comparison.json, .csv         the same as plain values

Light to import, as every command is: torch comes in when it runs.
"""

import argparse

from vision_attn.commands import options
from vision_attn.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("other", metavar="MODEL2", help="the second model, with the same classes")
    options.add_images(parser)
    group = parser.add_argument_group("method")
    options.add_method(group, "the usual one of the first model")
    options.add_target(
        group,
        "label|INDEX|NAME",
        "the class that a photo's folder names, else what the first model predicts",
    )
    group = parser.add_argument_group("page")
    options.add_output(group, "outputs/compare", metavar="DIR")
    group.add_argument(
        "--shown",
        type=options.at_least_one,
        default=96,
        metavar="N",
        help="photos on the page, those whose maps differ most (default: 96)",
    )
    options.add_batch_size(group, 8)
    options.add_seed(group)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 where an image could not be compared; the page shows the others."""
    if not args.images:
        raise ValueError("no image given: name image files or folders after MODEL2")
    output = options.output_folder(args.output)
    from vision_attn.pages.comparison.run import compare

    report = options.Report()
    images = options.existing(args.images, report)
    if not images:
        return 1
    with options.as_written("output"):
        found = compare(
            (options.load(args), options.load(args, args.other)),
            images,
            args.method,
            target=args.target,
            contrast=args.contrast,
            limit=args.limit,
            output=output,
            head=args.head,
            shown=args.shown,
            batch_size=args.batch_size,
            progress=report,
        )
    for line in found.sentences():
        say(line)
    say(f"{output / 'index.html'}: open it in a browser")
    return 1 if found.problems else 0
