"""Many photos and videos explained into a folder: pictures, raw maps, records and a page.

    NAME.METHOD.png    the photo under its heatmap
    NAME.METHOD.npy    the map as the method gives it
    NAME.METHOD.mp4    a video under its heatmap; its .npy is (frames, h, w)
    NAME.grid.png      all methods side by side, where there are several
    NAME.channels.png  how far each channel's gate is open, for ChannelGates
    results.jsonl      a line for each photo (or frame) and method
    index.html, page/  the gallery and its pictures, JPEG: less than 60 KB a photo
    results.I-of-N.jsonl  of one shard: a line for each photo, and one more when it has ended

With save="maps" there are a handful of files however many photos there are: see `ledger`.

Axes: h height, w width.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from vision_attn.data.faults import fault_line
from vision_attn.data.video import Video, clips, is_video
from vision_attn.files import claimed
from vision_attn.methods import Explainer, choose_methods
from vision_attn.methods.targets import TargetLike
from vision_attn.models.shelf import is_shelved, shelved
from vision_attn.render import ColorMap, Style
from vision_attn.runs import workers
from vision_attn.runs.album import Added, Album, Batch
from vision_attn.runs.entries import Results
from vision_attn.runs.explain import Methods, Request
from vision_attn.runs.explanation import Pictures
from vision_attn.runs.inputs import (
    checked_masks,
    find_films,
    find_images,
    list_images,
    output_folder,
)
from vision_attn.runs.many import SAVES, Save, explain_many
from vision_attn.runs.naming import file_names
from vision_attn.runs.progress import Bar, Silent
from vision_attn.runs.video import Film
from vision_attn.types import Head, Model

__all__ = ["Summary", "film", "gallery", "page_title"]

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


@dataclass(frozen=True)
class Summary:
    """What `gallery` or `film` wrote.

    photos and explained: how many photos there were, and how many of them were explained. films:
    the frames of each video that were explained. page: the gallery, None without one. merged:
    whether this was the last of several shards to finish, and merged all results.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.runs.gallery import Summary
        >>> Summary(Path("look"), photos=3, explained=2, problems=["c.png: ..."]).page is None
        True
    """

    folder: Path
    photos: int = 0
    explained: int = 0
    films: dict[str, int] = field(default_factory=dict)
    page: Path | None = None
    problems: list[str] = field(default_factory=list)
    merged: bool = False

    def records(self) -> list[dict[str, Any]]:
        """Read results.jsonl: plain values of each photo (or frame) and method."""
        with (self.folder / "results.jsonl").open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def gallery(
    model: Model,
    images: Paths,
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    head: Head | None = None,
    style: Style | None = None,
    masks: str | PathLike[str] | None = None,
    page: bool = True,
    save: Save = "pictures",
    frames: float | None = None,
    batch_size: int = 8,
    processes: int = 1,
    shard: tuple[int, int] = (1, 1),
    progress: Silent | None = None,
) -> Summary:
    """Explain photos and videos into a folder, with a page to look through.

    images: files, folders of images, and videos. methods, target, contrast and head: as `explain`
    takes them, one target for all. limit: at most so many photos, and frames of each video. output:
    the folder; None takes outputs/explain. style: `ColorMap()` unless given. masks: a folder of
    masks of the images' stems, shown beside the maps. page: the gallery; where a photo's folder is
    named for a class, that is its true class there. save: `pictures`, with a raw map (.npy) beside
    each; `maps`, all raw maps in one file a method, for very many photos (`open_results` reads
    them, `draw_pictures` draws them); `both`; or `none`, the records alone. All but `pictures` go
    on where a run was stopped. frames: each folder is a video, its images the frames, so many a
    second. processes: at once on this machine. shard: (number, of how many), only every N-th image;
    the last shard to finish merges the results. progress: `Bar()` unless given.

    An image that cannot be read or explained is a line of the summary's problems, and the rest is
    done. Raises ValueError for an unknown method, class, path of masks, or an output that cannot
    be written, or that another job writes to. Ctrl-C keeps what is done.
    """
    if save not in SAVES:
        raise ValueError(f"save must be one of {', '.join(SAVES)}, got {save!r}")
    request = Request.of(model, methods, target, contrast, head)
    model, output = request.model, "outputs/explain" if output is None else output
    request.check_same_for_all()
    listed = [images] if isinstance(images, str | PathLike) else list(images)
    paths = [str(path) for path in listed]
    of_films = [p for p in paths if is_video(p) or (frames and p and Path(p).is_dir())]
    photos = [path for path in paths if path not in of_films]
    if save != "pictures":
        if of_films:
            raise ValueError(f"save {save}: expected photos, got the video {of_films[0]}")
        if masks is not None and save != "both":
            raise ValueError(
                f"masks are drawn on pictures: expected save to be pictures or both, got {save}"
            )
        drawn = style or ColorMap(), masks
        return _many(
            request, paths, save, output, drawn, page, limit, batch_size, processes, shard, progress
        )
    files, problems = find_images(photos, limit) if photos or not of_films else ([], [])
    films, without_frames = find_films(of_films)
    problems += without_frames
    folder = output_folder(output)
    with claimed(folder, shard), Bar() if progress is None else progress as shown:
        found = None if masks is None else checked_masks(Path(masks), files, photos)
        number, shards = shard
        every = [*files, *films]
        named = list(zip(every, file_names(every), strict=True))
        mine, filmed = (
            some[number - 1 :: shards] for some in (named[: len(files)], named[len(files) :])
        )
        album = Album(request, Pictures(folder, style or ColorMap(), found, page))
        meaning = album.pictures.style.meaning
        lead = f"{meaning} What the network did not see is grey. Click to enlarge."
        results = Results(
            folder,
            [str(file) for file in every],
            shard=shard,
            settings=_settings(request, album.pictures, limit, frames) if shards > 1 else None,
            title=page_title(model.name or type(model.network).__name__),
            warning=model.warning,
            lead=lead if page else None,
            first=_first(request, methods) if page else "",
        )
        for problem in problems + ([] if found is None else found.problems):
            shown.problem(problem)
        _add_photos(album, results, mine, batch_size, processes, shown)
        films_done: dict[str, int] = {}
        for path, name in filmed:
            video = Film(path, name, frames, limit, batch_size, films[path])
            if count := _add_film(video, album, results, shown):
                films_done[str(path)] = count
        done = sum(entry.file not in films_done for entry in results.entries)
        merged = shards > 1 and results.end()
        return Summary(
            folder, len(mine), done, films_done, results.page, list(shown.problems), merged
        )


def _many(
    request: Request,
    paths: Sequence[str],
    save: Save,
    output: str | PathLike[str],
    drawn: tuple[Style, str | PathLike[str] | None],
    page: bool,
    limit: int | None,
    batch_size: int,
    processes: int,
    shard: tuple[int, int],
    progress: Silent | None,
) -> Summary:
    """Explain photos into a handful of files; see `many`."""
    files, problems = list_images(paths, limit)
    folder = output_folder(output)
    with claimed(folder, shard), Bar() if progress is None else progress as shown:
        style, masks = drawn
        found = None if masks is None else checked_masks(Path(masks), files, paths)
        pictures = Pictures(folder, style, found, page=False, raw=False)
        for problem in problems + ([] if found is None else found.problems):
            shown.problem(problem)
        model = request.model
        done, merged = explain_many(
            request,
            files,
            folder,
            save=save,
            settings=_settings(request, pictures, limit, None),
            pictures=pictures,
            title=page_title(model.name or type(model.network).__name__),
            lead="Photos by class: the true class if it is known, else the predicted one.",
            page=page,
            batch_size=batch_size,
            processes=processes,
            shard=shard,
            progress=shown,
        )
        number, shards = shard
        mine = len(range(number - 1, len(files), shards))
        return Summary(
            folder,
            mine,
            done,
            page=folder / "index.html" if merged and page else None,
            problems=list(shown.problems),
            merged=merged and shards > 1,
        )


def film(
    model: Model,
    images: str | PathLike[str],
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    head: Head | None = None,
    style: Style | None = None,
    frames: float | None = None,
    batch_size: int = 8,
    progress: Silent | None = None,
) -> Summary:
    """Explain a video: write it once for each method, under its heatmap, in one scale throughout.

    images: a video file, or a folder of images with `frames`, how many are a second. limit: at
    most so many frames. The other arguments are those of `gallery`.

    Raises ValueError where the path is no video, for a method that does not fit the model, and
    for an unknown class.
    """
    path = Path(images)
    if path.is_dir() and not frames:
        raise ValueError(f"{path} is a folder: give frames=RATE, the number of images per second")
    if path.is_dir():
        clips(path)
    else:
        Video.file(path)
    return gallery(
        model,
        str(path),
        methods,
        target=target,
        contrast=contrast,
        limit=limit,
        output=output,
        head=head,
        style=style,
        page=False,
        frames=frames,
        batch_size=batch_size,
        progress=progress,
    )


def _add_photos(
    album: Album,
    results: Results,
    photos: Batch,
    batch_size: int,
    processes: int,
    progress: Silent,
) -> None:
    """Explain photos into the album's folder, and keep their entries as they come."""
    batches = [photos[start : start + batch_size] for start in range(0, len(photos), batch_size)]
    if photos:
        progress.start("explaining", len(photos))
    try:
        for batch, added in _answers(album, batches, processes):
            for entry in added.entries:
                try:
                    results.add(entry)
                except OSError as error:
                    progress.problem(f"{entry.file}: {error}")
            for problem in added.problems:
                progress.problem(problem)
            progress.advance(len(batch))
    except KeyboardInterrupt:
        done = len(results.entries)
        raise KeyboardInterrupt(f"; {done} images are done, in {results.folder}") from None
    finally:
        results.write_page()


def _add_film(film: Film, album: Album, results: Results, progress: Silent) -> int:
    """Explain a video into the album's folder; return how many of its frames were explained."""
    try:
        entry, count, whole = film.explain(album.request, album.pictures, progress)
        results.add(entry)
    except Exception as error:  # of this film
        progress.problem(fault_line(film.path, error))
        return 0
    if not whole:
        raise KeyboardInterrupt(f"; the first {count} frames are in {album.pictures.folder}")
    return count


def _answers(
    album: Album, batches: Sequence[Batch], processes: int
) -> Iterator[tuple[Batch, Added]]:
    """Yield each batch with what came of it, from as many processes as are wanted."""
    if processes > 1 and len(batches) > 1:
        yield from zip(batches, workers.answers(_adder, album, batches, processes), strict=True)
    else:
        yield from zip(batches, map(album.add, batches), strict=True)


def _adder(album: Album) -> Callable[[Batch], Added]:
    """Return what explains batches in another process."""
    return album.add


def _settings(
    request: Request, pictures: Pictures, limit: int | None, frames: float | None
) -> dict[str, Any]:
    """List what all shards of one gallery must share, as plain values."""
    model = request.model
    return {
        "model": model.name,
        "weights": workers.checksum(model.network),
        "input_size": list(model.preprocess.input_size),
        "methods": [str(explainer) for explainer in request.explainers],
        "target": request.key(),
        "head": request.model.head,
        "style": repr(pictures.style),
        "masks": None if pictures.masks is None else str(pictures.masks),
        "page": pictures.page,
        "limit": limit,
        "frames": frames,
    }


def _first(request: Request, methods: Methods | None) -> str:
    """Name the method that a page of all methods shows first; empty where they were chosen.

    That is the method which the card of a pretrained network trusts, else the usual one.
    """
    several = [methods] if isinstance(methods, str | Explainer) else methods or ()
    words = [one.strip().lower() for one in several if isinstance(one, str)]
    if "all" not in words:
        return ""
    usual = [str(one) for one in choose_methods(None, request.model)]
    if is_shelved(request.model.name):
        usual.insert(0, shelved(request.model.name).values.get("heatmap", "").partition(",")[0])
    known = [str(explainer) for explainer in request.explainers]
    return next((name for name in usual if name in known), "")


def page_title(model: str) -> str:
    """Title a gallery by its model's name; of a checkpoint's path the end says which it is."""
    short = "/".join(Path(model).parts[-3:]) if Path(model).is_file() else model
    return f"Where {short} looks"
