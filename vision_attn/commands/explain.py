"""`vision-attn explain MODEL IMAGE...`: where a network looks, as pictures.

Light to import, so that its help comes at once: `album` brings torch in.
"""

import argparse
from collections import Counter
from pathlib import Path

from vision_attn.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    options.add_model(parser)
    options.add_images(parser)
    options.add_methods(parser)
    options.add_run(parser, output="outputs/explain")
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
            from vision_attn.commands import alignments

            return alignments.run(args)
    if args.question:
        raise ValueError("--question: expected a checkpoint of questions as MODEL, got another")
    from vision_attn.data.video import is_video

    films = [p for p in args.images if is_video(p) or (args.frames and Path(p).is_dir())]
    paths = [path for path in args.images if path not in films]
    files: list[Path] = []
    problems: list[str] = []
    if paths or not films:
        files, problems = options.find_images(paths, args.limit)
    output = options.output_folder(args.output)
    masks = None if args.masks is None else masks_folder(args.masks, files)

    import torch

    from vision_attn.commands.album import Album
    from vision_attn.commands.explained import Request
    from vision_attn.commands.film import add_film
    from vision_attn.render import ColorMap, Dim

    style = Dim() if args.style == "dim" else ColorMap(args.style)
    torch.manual_seed(args.seed)
    album = Album(output, Request.of(args), style, masks, args.page)
    names = file_names([*files, *map(Path, films)])
    named = list(zip(files, names, strict=False))
    page = None
    try:
        with options.Report("explaining", len(named)) as report:
            for problem in problems:
                report.problem(problem)
            for start in range(0, len(named), args.batch_size):
                batch = named[start : start + args.batch_size]
                for problem in album.add(batch):
                    report.problem(problem)
                report.done(len(batch))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"; {album.done} images are done, in {output}") from None
    finally:
        if args.page:
            page = album.write_page(f"Where {args.model} looks")
    if paths or not films:
        print(f"{album.done} of {len(named)} images explained: {page or output}")
    whole = [
        add_film(Path(path), name, album, args)
        for path, name in zip(films, names[len(files) :], strict=True)
    ]
    return 0 if all(whole) and not report.problems else 1


def masks_folder(path: str, files: list[Path]) -> Path:
    """ValueError where there is no mask of any image in it."""
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"--masks {path}: expected a folder")
    if files and {mask.stem for mask in folder.iterdir()}.isdisjoint(file.stem for file in files):
        raise ValueError(
            f"--masks {path}: expected masks of the images' stems, such as {files[0].stem}.png"
        )
    return folder


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
