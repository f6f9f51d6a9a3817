"""`vision-attn explain MODEL IMAGE...`: where a network looks, as pictures.

Light to import, so that its help comes at once: `album` brings torch in.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.commands import options
from vision_attn.reports import workers as pool

if TYPE_CHECKING:
    from vision_attn.reports.gallery import Added, Album
    from vision_attn.reports.results import Results

Batch = Sequence[tuple[Path, str]]  # files, and names for their pictures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    options.add_model(parser)
    options.add_images(parser)
    options.add_methods(parser)
    options.add_run(parser, output="outputs/explain")
    options.add_processes(parser)
    group = parser.add_argument_group("pictures")
    group.add_argument(
        "--style",
        default="inferno",
        metavar="NAME",
        help="a colour map of matplotlib, or dim, which darkens the rest (default: inferno)",
    )
    group.add_argument(
        "--masks", metavar="DIR", help="masks to show beside the maps: files of the images' stems"
    )
    group.add_argument("--question", metavar="TEXT", help="for a model that answers questions")
    group.add_argument("--page", action="store_true", help="also write index.html, a gallery")
    group.add_argument(
        "--frames",
        type=options.above_zero,
        metavar="RATE",
        help="each folder is a video, its images the frames, so many a second",
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 where an image or a video could not be explained; the others are."""
    if Path(args.model).is_file():
        from vision_attn.hub import is_of_sequences

        if is_of_sequences(args.model):
            from vision_attn.reports import alignments

            return alignments.run(args)
    if args.question:
        raise ValueError("--question: expected a checkpoint of questions as MODEL, got another")
    from vision_attn.data.video import is_video

    films = [p for p in args.images if is_video(p) or (args.frames and p and Path(p).is_dir())]
    paths = [path for path in args.images if path not in films]
    files: list[Path] = []
    problems: list[str] = []
    if paths or not films:
        files, problems = options.find_images(paths, args.limit)
    output = options.output_folder(args.output)
    if args.masks is not None:
        check_masks(args.masks, files)

    from vision_attn.reports.gallery import Album
    from vision_attn.reports.results import Results
    from vision_attn.reports.video import add_film

    number, shards = args.shard
    every = [*files, *map(Path, films)]
    named = list(zip(every, file_names(every), strict=True))
    photos, filmed = (
        some[number - 1 :: shards] for some in (named[: len(files)], named[len(files) :])
    )
    album = Album.of(args)
    lead = f"{album.style.meaning} What the network did not see is grey. Click to enlarge."
    results = Results(args, [str(file) for file in every], lead if args.page else None)
    whole = explain_photos(photos, args, album, results, problems)
    if photos:
        done = len(results.entries)
        print(f"{done} of {len(photos)} images explained: {results.page or output}")
    for path, name in filmed:
        whole &= add_film(path, name, album, results, args)
    if shards > 1 and results.end():
        print(f"all {shards} shards are done and put together, in {output}")
    elif shards > 1:
        print(f"shard {number} of {shards} is done: the last to end puts them together")
    return 0 if whole else 1


def explain_photos(
    photos: Batch,
    args: argparse.Namespace,
    album: "Album",
    results: "Results",
    problems: Sequence[str],
) -> bool:
    """Fill the album's folder with photos; whether that went well, and nothing had before."""
    try:
        with options.Report("explaining", len(photos)) as report:
            for problem in problems:
                report.problem(problem)
            for batch, added in answers(args, album, photos):
                for entry in added.entries:
                    results.add(entry)
                for problem in added.problems:
                    report.problem(problem)
                report.done(len(batch))
    except KeyboardInterrupt:
        done = len(results.entries)
        raise KeyboardInterrupt(f"; {done} images are done, in {results.folder}") from None
    finally:
        results.write_page()
    return not report.problems


def answers(
    args: argparse.Namespace, album: "Album", photos: Batch
) -> Iterator[tuple[Batch, "Added"]]:
    """Batches of photos, and what came of each, from as many processes as are asked for."""
    size = args.batch_size
    batches = [photos[start : start + size] for start in range(0, len(photos), size)]
    if args.processes > 1 and len(batches) > 1:
        yield from zip(batches, pool.answers(adder, args, batches, args.processes), strict=True)
    else:
        yield from zip(batches, map(album.add, batches), strict=True)


def adder(args: argparse.Namespace) -> Callable[[Batch], "Added"]:
    """What explains batches in another process."""
    from vision_attn.reports.gallery import Album

    return Album.of(args).add


def check_masks(path: str, files: list[Path]) -> None:
    """ValueError where there is no mask of any image in that folder."""
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"--masks {path}: expected a folder")
    if files and {mask.stem for mask in folder.iterdir()}.isdisjoint(file.stem for file in files):
        raise ValueError(
            f"--masks {path}: expected masks of the images' stems, such as {files[0].stem}.png"
        )


def file_names(files: list[Path]) -> list[str]:
    """What the pictures of each file are called: its stem, or as much more of its path as it takes
    to tell it from the others, in small letters as in capitals."""
    names = [file.stem for file in files]
    paths = [file.resolve().parts[1:] for file in files]
    for length in range(1, max(map(len, paths), default=0) + 1):
        count = Counter(name.casefold() for name in names)
        names = [
            "-".join(path[-length:]) if count[name.casefold()] > 1 else name
            for name, path in zip(names, paths, strict=True)
        ]
    return names
