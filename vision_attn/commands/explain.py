"""`vision-attn explain MODEL IMAGE...`: where a network looks, as pictures.

Light to import, so that its help comes at once: torch comes in with `run`.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.arguments import launched
from vision_attn.commands import options
from vision_attn.terminal import say

if TYPE_CHECKING:
    from vision_attn.pages.gallery.run import GallerySummary
    from vision_attn.types import LoadedSequences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    options.add_model(parser)
    options.add_images(parser)
    options.add_methods(parser)
    options.add_output(parser, "outputs/explain", metavar="DIR")
    options.add_batch_size(parser, 8)
    options.add_seed(parser)
    group = parser.add_argument_group("processes")
    options.add_processes(group, 1, "1")
    options.add_shard(
        group,
        None,
        "the last shard to finish merges the results",
        "all images; under torchrun, this process's share",
    )
    group = parser.add_argument_group("pictures")
    group.add_argument(
        "--style",
        default="inferno",
        metavar="NAME",
        help="a colour map of matplotlib, or dim: darken what gets no attention (default: inferno)",
    )
    group.add_argument(
        "--save",
        choices=("pictures", "maps", "both", "none"),
        default="pictures",
        help="pictures: a picture and a raw map for each image; maps: all raw maps of a method in "
        "one file, for very many photos (vision-attn pictures draws them later); both; none: only "
        "the records. A run that was stopped continues with what is missing (default: pictures)",
    )
    group.add_argument(
        "--masks",
        metavar="DIR",
        help="masks to show beside the maps, named like the images (cat.png for cat.jpg)",
    )
    group.add_argument(
        "--question", metavar="TEXT", help="the question, for a model that answers questions"
    )
    group.add_argument("--page", action="store_true", help="also write index.html, a gallery")
    group.add_argument(
        "--frames",
        type=options.above_zero,
        metavar="RATE",
        help="treat each folder as a video: its images are the frames, RATE of them a second",
    )


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 where an image or a video could not be explained; the others are."""
    from vision_attn.types import LoadedSequences

    if args.shard is None:
        rank, processes = launched()
        args.shard = rank + 1, processes
    report = options.Report()
    of_library = not Path(args.model).is_file()  # whose models take photos, and time to load
    images = photos(args, report) if of_library else []
    model = options.load_any(args) if images or not of_library else None
    if isinstance(model, LoadedSequences):
        return explain_sequences(model, args)
    if model is not None and not of_library:
        images = photos(args, report)
    if model is None or not images:
        return 1
    from vision_attn.pages.gallery.run import gallery

    with options.as_written("masks", "output", "save"):
        summary = gallery(
            model,
            images,
            args.method,
            output=args.output,
            target=args.target,
            contrast=args.contrast,
            limit=args.limit,
            head=args.head,
            style=options.style(args.style),
            masks=args.masks,
            page=args.page,
            save=args.save,
            frames=args.frames,
            batch_size=args.batch_size,
            processes=args.processes,
            shard=args.shard,
            progress=report,
        )
    if summary.photos:
        place = summary.page or summary.folder
        say(f"{summary.explained} of {summary.photos} images explained: {place}")
    if summary.photos == summary.explained == 1 and Path(images[0]).is_file():
        say_class(summary, Path(images[0]))
        if not args.method and not model.warning:
            from vision_attn.runs.explain import usual_in_words

            say(usual_in_words(model, args.target))
    for path, frames in summary.films.items():
        say(f"{frames} frames of {path} explained: {summary.folder}")
    if model.warning:
        say(model.warning)
    number, shards = args.shard
    if summary.merged:
        say(f"all {shards} shards are done; their results are merged in {summary.folder}")
    elif shards > 1:
        say(f"shard {number} of {shards} is done; the last one to finish merges the results")
    return 1 if summary.problems else 0


def say_class(summary: "GallerySummary", photo: Path) -> None:
    """Print the class of one photo and its probability, where the network gave one."""
    for record in summary.records():
        own = Path(record["file"]).absolute() == photo.absolute()
        if own and record.get("probability") is not None:
            unlike = f"; {record['unlike']}" if record.get("unlike") else ""
            say(f"{photo.name}: {record['predicted']} ({record['probability']:.1%}){unlike}")
            return


def photos(args: argparse.Namespace, report: options.Report) -> list[str]:
    """The paths that are there; ValueError where the words name no photo, or masks that are not."""
    if args.question:
        raise ValueError("--question: expected a MODEL that answers questions, got another kind")
    if not args.images:
        raise ValueError("no image given: name image files or folders after MODEL")
    if args.masks is not None and not Path(args.masks).is_dir():
        raise ValueError(f"--masks {args.masks}: expected a folder")
    return options.existing(args.images, report)


def explain_sequences(model: "LoadedSequences", args: argparse.Namespace) -> int:
    """Explain what a network of sequences or questions writes or answers."""
    if args.processes > 1 or args.shard != (1, 1):
        raise ValueError(
            "--processes, --shard: expected an image classifier, got a model of sequences"
        )
    from vision_attn.sequences.alignments import explain_sequences

    with options.as_written("output"):
        answers = explain_sequences(
            model,
            args.images,
            question=args.question,
            output=args.output,
            page=args.page,
            limit=args.limit,
            progress=options.Report(),
        )
    for answer in answers.answers:
        say(f"{answer.source}: {answer.answer}")
    return 1 if answers.problems else 0
