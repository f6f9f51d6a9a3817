"""What a person names: photos, videos and masks to read, and a folder to write to."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any

from PIL.Image import Image

from vision_attn.arguments import check_path
from vision_attn.data.images import ImageError
from vision_attn.data.images import find_images as find
from vision_attn.data.kinds import holds_results
from vision_attn.data.listing import walk
from vision_attn.data.masks import Masks
from vision_attn.data.video import clips
from vision_attn.errors import quoted
from vision_attn.runs.naming import folded, folder_id

__all__ = [
    "check_apart",
    "check_file",
    "check_shard",
    "checked_masks",
    "find_films",
    "find_images",
    "list_images",
    "output_folder",
    "path_list",
]

log = logging.getLogger(__name__)


def path_list(paths: Any) -> list[str]:
    """List paths, given one or several, as strings. Raises ValueError for what is no path."""
    if isinstance(paths, str | PathLike):
        paths = [paths]
    several = isinstance(paths, Iterable) and not isinstance(paths, bytes | Mapping | Image)
    several = several and getattr(paths, "ndim", 1) == 1  # of an array
    for path in (paths := list(paths)) if several else [paths]:
        if not isinstance(path, str | PathLike):
            raise ValueError(
                f"expected the paths of photos, videos and folders, got {quoted(path)}: "
                "vision_attn.explain takes images"
            )
        check_path(path)
    return list(map(os.fspath, paths))


def check_shard(shard: tuple[int, int]) -> None:
    """Raise ValueError unless a shard is (number, of how many), the number from 1."""
    number, shards = shard
    if not 1 <= number <= shards:
        raise ValueError(f"shard must be (number, of how many), such as (1, 4), got {shard}")


def find_images(paths: Sequence[str], limit: int | None) -> tuple[list[Path], list[str]]:
    """List the images of files and folders, and a line for each that is missing or empty.

    Raises ValueError where there is no path at all.
    """
    if not paths:
        raise ValueError("no image given: name image files or folders")
    files: list[Path] = []
    problems = []
    for path in paths:
        if not path:  # which would be the current folder
            problems.append("IMAGE '': expected the path of an image or a folder, got an empty one")
            continue
        try:
            files += find([path])
        except ImageError as error:
            problems.append(str(error))
    once: dict[str, Path] = {}
    for file in files:
        once.setdefault(os.path.realpath(file), file)
    return list(once.values())[:limit], problems


def list_images(paths: Sequence[str], limit: int | None) -> tuple[list[str], list[str]]:
    """List images as `find_images` does, as strings: a folder of a million takes little memory."""
    if len(paths) == 1 and paths[0] and Path(paths[0]).is_dir():
        files = list(islice(walk(paths[0]), limit))
        if files:
            return files, []
    found, problems = find_images(paths, limit)
    return [str(file) for file in found], problems


def find_films(paths: Sequence[str]) -> tuple[dict[Path, tuple[Path, ...]], list[str]]:
    """List videos with the images that are their frames (none of a file), and folders without."""
    films: dict[Path, tuple[Path, ...]] = {}
    problems = []
    for path in map(Path, paths):
        try:
            films |= clips(path) if path.is_dir() else {path: ()}
        except ImageError as error:
            problems.append(str(error))
    return films, problems


def checked_masks(
    folder: Path, files: Sequence[str | Path], paths: Sequence[str | PathLike[str]] = ()
) -> Masks:
    """Find the masks of images in a folder; paths: the folders that the images lie in.

    A line is logged that counts the images without a mask. Raises ValueError where none has one.
    """
    if not folder.is_dir():
        raise ValueError(f"masks {folder}: expected a folder")
    roots = [Path(path) for path in paths if Path(path).is_dir()]
    below = {str(file): _below(Path(file), roots) for file in files}
    masks = Masks(folder, below)
    if below and not len(masks):
        expected = PurePosixPath(next(iter(below.values()))).with_suffix(".png")
        raise ValueError(
            f"masks {folder}: expected masks named like the images, such as {expected}"
        )
    if bare := [file for file in below if masks.of(file) is None and not masks.refusal(file)]:
        log.warning("masks %s: none of %d images, such as %s", folder, len(bare), bare[0])
    return masks


def _below(file: Path, roots: Sequence[Path]) -> str:
    """The path of an image below the folder that it was found in; its name, if it is named."""
    root = next((root for root in roots if file.is_relative_to(root)), file.parent)
    return file.relative_to(root).as_posix()


def check_apart(
    folder: Path, files: Sequence[str | Path], paths: Sequence[str | PathLike[str]]
) -> None:
    """Check that results do not go among the photos: a second run would take them for such.

    Args:
        folder: Where results are written.
        files: The photos.
        paths: The files and folders that were named.

    Raises:
        ValueError: The folder is one of those named, or in one of them and holds photos; or photos
            that lie in it look like pictures of an earlier run, or would be written over.
    """
    real = os.path.realpath(folder)
    inside = _lying_in(folder, files)
    roots = {folder_id(path) for path in paths if path and os.path.isdir(path)}
    above = [Path(real), *(Path(real).parents if inside else [])]
    among = not roots.isdisjoint(map(folder_id, above))
    if inside and not among and holds_results(real):
        stems = {folded(Path(file).stem) for file in inside}
        among = any(_begins(stem, stems) for stem in stems)
    if among or written_over(real, inside):
        raise ValueError(
            f"output {folder}: the photos lie there, and pictures would mix with them: name "
            f"another folder, such as {folder / 'heatmaps'}"
        )


def written_over(folder: str | Path, files: Sequence[str | Path]) -> bool:
    """Whether pictures of photos could be written over others in a folder, before there are any.

    files: the photos, which the names of pictures avoid; they do not know of others that lie there.
    """
    real = os.path.realpath(folder)
    if holds_results(real) or not os.path.isdir(real):
        return False
    inside = _lying_in(folder, files)
    stems = {folded(Path(file).stem) for file in inside}
    named = {os.path.basename(os.path.realpath(file)) for file in inside}
    others = [x for x in os.listdir(real) if x.lower().endswith((".png", ".mp4"))]
    return any(_begins(folded(Path(name).stem), stems) for name in others if name not in named)


def _lying_in(folder: str | Path, files: Sequence[str | Path]) -> list[str | Path]:
    """The files that lie in a folder itself."""
    own, parents = folder_id(folder), cache(folder_id)
    return [file for file in files if parents(os.path.dirname(os.path.realpath(file))) == own]


def _begins(stem: str, stems: set[str]) -> bool:
    """Whether what a stem begins with, up to one of its points, is another stem."""
    return any(stem[:i] in stems for i, letter in enumerate(stem) if letter == ".")


def check_file(path: str | PathLike[str], files: Sequence[str | PathLike[str]]) -> None:
    """Raise ValueError where a file to be written is one of the photos."""
    real = os.path.realpath(path)
    name, there = folded(os.path.basename(real)), os.path.exists(real)
    for photo in map(os.path.realpath, files):
        in_other_capitals = there and folded(os.path.basename(photo)) == name
        if photo == real or (in_other_capitals and os.path.samefile(photo, real)):
            raise ValueError(f"output {path}: it is one of the photos: name another file")


def output_folder(path: str | PathLike[str]) -> Path:
    """Return the folder, made if need be. Raises ValueError where it cannot be written to."""
    folder = Path(path)
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"output {path}: cannot write there ({error.strerror}): name another folder"
        ) from None
    return folder
