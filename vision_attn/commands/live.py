"""`vision-attn live MODEL IMAGE...`: one page that runs the network in the browser.

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
    options.add_output(group, "outputs/live.html")
    group.add_argument(
        "--versus", metavar="MODEL", help="a second model, to compare with the first"
    )
    options.add_method(group, "Rollout of a ViT, GradCAM of a CNN; a page computes no others")
    options.add_more_targets(group, "a class to show besides the five most likely")
    options.add_seed(group)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 where an image could not be read; the page begins with the others."""
    output = Path(args.output)
    options.output_folder(str(output.parent))
    from vision_attn.pages.live.report import live
    from vision_attn.runs.inputs import check_file, find_images

    specs = [args.model] if args.versus is None else [args.model, args.versus]
    with options.Report() as report:
        images = options.existing(args.images, report)
        files, problems = find_images(images, args.limit) if images else ([], [])
        for problem in problems:
            report.problem(problem)
        if args.images and not files:
            return 1
        with options.as_written("output"):
            check_file(output, files)
        models = tuple(options.load(args, spec) for spec in specs)
        live(models, files, args.method, target=args.target, output=output, progress=report)
    say(f"{output}: {output.stat().st_size / 1e6:.1f} MB, open it in a browser")
    return 1 if report.problems else 0
