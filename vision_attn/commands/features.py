"""`vision-attn features MODEL IMAGE...`: what the features of patches say, as pictures.

Light to import, as every command is: torch comes in when it runs.
"""

import argparse

from vision_attn.commands import options
from vision_attn.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_images(parser)
    group = parser.add_argument_group("what is drawn")
    group.add_argument(
        "--components",
        action="store_true",
        help="the first three principal components of the patches of all images, as colours, the "
        "background split off; also what is drawn where nothing else is asked for",
    )
    group.add_argument(
        "--keep-background",
        action="store_true",
        help="the components of all patches, with those of the background",
    )
    group.add_argument(
        "--similar-to",
        nargs=2,
        type=share,
        metavar=("X", "Y"),
        help="the cosine of every patch with one of the first image: where it is, as shares of the "
        "width and height of what the network sees, such as 0.5 0.4",
    )
    group.add_argument(
        "--compare",
        action="store_true",
        help="why the first image and each other one are alike: the cosine of their mean features, "
        "shared out among their patches",
    )
    group.add_argument(
        "--nearest",
        nargs="+",
        metavar="DIR",
        help="the images of this folder that are most like each IMAGE, and why; IMAGE comes before",
    )
    group.add_argument(
        "--count",
        type=options.at_least_one,
        default=5,
        metavar="N",
        help="how many of --nearest (default: 5)",
    )
    group.add_argument(
        "--layer",
        metavar="NAME",
        help="the module whose output is taken, such as blocks.-2 (default: the last that gives a "
        "vector for each place)",
    )
    options.add_output(parser, "outputs/features", metavar="DIR")
    options.add_batch_size(parser, 8)
    options.add_seed(parser)
    group = parser.add_argument_group("pictures")
    group.add_argument(
        "--style",
        default="inferno",
        metavar="NAME",
        help="a colour map of matplotlib, or dim (default: inferno)",
    )


def share(text: str) -> float:
    value = options.number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, got {text}")
    return value


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 where an image could not be read; the others are drawn."""
    if not args.images:
        raise ValueError("no image given: name image files or folders after MODEL")
    style = options.style(args.style)
    folder = options.output_folder(args.output)
    from vision_attn.runs.feature_pictures import FeaturePictures
    from vision_attn.runs.inputs import check_apart, find_images

    with options.Report() as report:
        images = options.existing(args.images, report)
        among = options.existing(args.nearest or [], report)
        if not images or (args.nearest and not among):
            return 1
        files, problems = find_images(images, args.limit)
        for problem in problems:
            report.problem(problem)
        if not files:
            return 1
        with options.as_written("output"):
            check_apart(folder, files, images)
        pictures = FeaturePictures(options.load(args), folder, args.layer, style)
        files = pictures.readable(files, report)
        if not files:
            return 1
        lines: list[str] = []
        other = args.similar_to or args.compare or args.nearest
        if args.components or args.keep_background or not other:
            lines += pictures.components(files, args.keep_background)
        if args.similar_to:
            lines += pictures.similar_to(files, tuple(args.similar_to))
        if args.compare:
            with options.as_written("compare"):
                lines += pictures.compare(files)
        if among:
            for file in files:
                lines.append(f"most like {file.name}:")
                lines += pictures.nearest(file, among, args.count, args.batch_size, report)
    for line in lines:
        say(line)
    say(f"features of {len(files)} images: {folder}")
    if pictures.model.warning:
        say(pictures.model.warning)
    return 1 if report.problems else 0
