"""`vision-attn inspect MODEL IMAGE...`: one page on which attention is explored.

Light to import, as every command is: torch comes in when it runs.
"""

import argparse
from pathlib import Path

from vision_attn.commands import options
from vision_attn.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_images(parser)
    group = parser.add_argument_group("page")
    options.add_output(group, "outputs/inspect.html")
    group.add_argument(
        "--versus", metavar="MODEL", help="a second model, to compare with the first"
    )
    options.add_method(group, "the fast ones; attention itself is always shown")
    options.add_more_targets(group, "a class to explain besides the three most likely")
    options.add_contrast(group)
    options.add_head(group)
    group.add_argument(
        "--score",
        action="store_true",
        help="also measure each map by deletion and insertion; takes a minute or more",
    )
    options.add_seed(group)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 where an image could not be read; the page shows the others."""
    if not args.images:
        raise ValueError("no image given: name image files or folders after MODEL")
    output = Path(args.output)
    options.output_folder(str(output.parent))
    from vision_attn.pages.inspect.inspection import inspect
    from vision_attn.runs.inputs import check_file, find_images

    specs = [args.model] if args.versus is None else [args.model, args.versus]
    with options.Report() as report:
        images = options.existing(args.images, report)
        files, problems = find_images(images, args.limit) if images else ([], [])
        for problem in problems:
            report.problem(problem)
        if not files:
            return 1
        with options.as_written("output"):
            check_file(output, files)
        inspect(
            tuple(options.load(args, spec) for spec in specs),
            files,
            args.method,
            target=args.target,
            contrast=args.contrast,
            output=output,
            head=args.head,
            score=args.score,
            progress=report,
        )
    say(f"{output}: {output.stat().st_size / 1e6:.1f} MB, open it in a browser")
    return 1 if report.problems else 0
