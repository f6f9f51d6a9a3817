"""Many photos and videos explained into a folder: pictures, raw maps, records and a page.

    NAME.METHOD.png    the photo under its heatmap
    NAME.METHOD.npy    the map as the method gives it
    NAME.METHOD.mp4    a video under its heatmap; its .npy is (frames, h, w)
    NAME.grid.png      all methods side by side, where there are several
    NAME.channels.png  how far each channel's gate is open, for ChannelGates
    index.html, page/  the gallery and its pictures, JPEG: less than 60 KB a photo,
                       or 5 KB a picture where there are many methods
    store/, maps/      what a run that goes on reads, and raw maps: see `store`
    results.jsonl      an export: a line for each photo (or frame) and method

With save="maps" there are a handful of files however many photos there are.

Axes: h height, w width.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, SupportsIndex, SupportsInt, overload

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from vision_attn.arguments import checked
from vision_attn.data.faults import fault_line
from vision_attn.data.video import Video, clips, is_video
from vision_attn.files import claimed
from vision_attn.methods import choose_methods, is_trusted
from vision_attn.methods.by_name import method_list
from vision_attn.methods.targets import TargetLike
from vision_attn.pages.gallery.browsing import write_browser
from vision_attn.pages.gallery.rows import page_row
from vision_attn.pages.page import Gallery, write_page
from vision_attn.render import ColorMap, Style
from vision_attn.runs.explain import Methods, Request
from vision_attn.runs.explanation import Pictures
from vision_attn.runs.inputs import (
    check_apart,
    check_shard,
    checked_masks,
    find_films,
    list_images,
    output_folder,
    path_list,
)
from vision_attn.runs.keys import content_number, file_stamp, sample_numbers
from vision_attn.runs.loop import RunTask, fill
from vision_attn.runs.naming import file_names, folded
from vision_attn.runs.parquet import write_parquet
from vision_attn.runs.photos import ExplainPhotos, NamedPhoto, stamp_of
from vision_attn.runs.progress import Bar, Silent
from vision_attn.runs.results import SavedResults, export_lines, unfinished_shards
from vision_attn.runs.rows import (
    DRAWN,
    FILM,
    MAP,
    NOTHING_NEW,
    about_model,
    explained_columns,
    replaced_line,
)
from vision_attn.runs.runfile import RunFile, agree, mark_merged, read_run
from vision_attn.runs.shard import Column, ShardFile, StoreRow
from vision_attn.runs.store import Store
from vision_attn.runs.video import Film
from vision_attn.threads import computing_with, threads_of_job
from vision_attn.types import Head, Model, Trust

__all__ = ["SAVES", "GallerySummary", "Save", "film", "gallery", "page_title"]

log = logging.getLogger(__name__)

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Save = Literal["pictures", "maps", "both", "none"]
SAVES = "pictures", "maps", "both", "none"


@dataclass(frozen=True)
class GallerySummary:
    """What `gallery` or `film` wrote.

    Attributes:
        folder: Where it lies.
        photos: How many photos there were.
        explained: How many of them were explained.
        films: The frames of each video that were explained.
        page: The gallery, None without one.
        problems: A line for each photo or method that failed.
        merged: Whether this was the last of several shards to finish, and merged all results.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.pages.gallery.run import GallerySummary
        >>> summary = GallerySummary(Path("look"), photos=3, explained=2, problems=["c.png"])
        >>> summary.page is None
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


@checked(limit=1, batch_size=1, processes=1)
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
) -> GallerySummary:
    """Explain photos and videos into a folder, with a page to look through.

    A run that was stopped goes on: only what is missing, or whose photo, weights or options are
    others, is explained. An image that cannot be read or explained is a line of the summary's
    problems, and the rest is done. Ctrl-C keeps what is done.

    Args:
        model: A model of `load_model` or `wrap`.
        images: Files, folders of images, and videos.
        methods: As `explain` takes them.
        target: As `explain` takes it, one for all.
        contrast: As `explain` takes it.
        limit: At most so many photos, and frames of each video.
        output: The folder; None takes outputs/explain.
        head: Which part of the network's output is meant.
        style: `ColorMap()` unless given.
        masks: A folder of masks of the images' stems, shown beside the maps.
        page: Whether to write the gallery; where a photo's folder is named for a class, that is its
            true class there.
        save: `pictures`, with a raw map (.npy) beside each; `maps`, all raw maps in one file a
            method, for very many photos (`open_results` reads them, `draw_pictures` draws them);
            `both`; or `none`, the records alone.
        frames: Each folder is a video, its images the frames, so many a second.
        batch_size: Photos at once.
        processes: At once on this machine.
        shard: (number, of how many): only every N-th image; the last shard to finish merges the
            results.
        progress: `Bar()` unless given.

    Returns:
        The folder, and what it holds in short.

    Raises:
        ValueError: There is no such method or class, a path of masks is none, or the output cannot
            be written, or another job writes to it.
    """
    check_shard(shard)
    if frames is not None and not 0 < frames < float("inf"):
        raise ValueError(f"frames must be a number above 0, images a second, got {frames}")
    request = Request.of(model, methods, target, contrast, head)
    model, output = request.model, "outputs/explain" if output is None else output
    request.check_same_for_all()
    paths = path_list(images)
    of_films = [p for p in paths if is_video(p) or (frames and p and Path(p).is_dir())]
    photos = [path for path in paths if path not in of_films]
    if save != "pictures" and of_films:
        raise ValueError(f"save {save}: expected photos, got the video {of_films[0]}")
    if save in ("maps", "none") and masks is not None:
        raise ValueError(
            f"masks are drawn on pictures: expected save to be pictures or both, got {save}"
        )
    files, problems = list_images(photos, limit) if photos or not of_films else ([], [])
    films, without_frames = find_films(of_films)
    folder = output_folder(output)
    check_apart(folder, files, photos)
    with claimed(folder, shard), Bar() if progress is None else progress as shown:
        found = None if masks is None else checked_masks(Path(masks), files, photos)
        request.say_of_target(files)
        for problem in problems + without_frames + ([] if found is None else found.problems):
            shown.problem(problem)
        of_page = page and save == "pictures"
        pictures = Pictures(folder, style or ColorMap(), found, of_page, raw=save == "pictures")
        run = GalleryRun(request, pictures, save, page, _first(request, methods), shard, shown)
        clip = {str(path): (frames, limit, images) for path, images in films.items()}
        return run.explain(files, clip, batch_size, processes)


@dataclass(frozen=True)
class PhotoList(Sequence[NamedPhoto]):
    """Photos and the names of their pictures, if any are drawn: a million takes little memory.

    Examples:
        >>> from vision_attn.pages.gallery.run import PhotoList
        >>> PhotoList(["in/a.png"], ["a"])[0].name
        'a'
    """

    files: list[str]
    names: list[str] | None = None

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, item: SupportsIndex) -> NamedPhoto: ...
    @overload
    def __getitem__(self, item: slice) -> Sequence[NamedPhoto]: ...
    def __getitem__(self, item: SupportsIndex | slice) -> NamedPhoto | Sequence[NamedPhoto]:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        return NamedPhoto(self.files[item], self.names[item] if self.names else "")


@dataclass
class GalleryRun:
    """One shard of a gallery: what it explains, draws and keeps, and how all shards are merged.

    Attributes:
        page: Whether there is one.
        first: The method that it shows first.

    Examples:
        >>> from vision_attn.pages.gallery.run import GalleryRun
        >>> GalleryRun.__dataclass_fields__["page"].type
        <class 'bool'>
    """

    request: Request
    pictures: Pictures
    save: Save
    page: bool
    first: str
    shard: tuple[int, int]
    progress: Silent

    def explain(
        self,
        files: Sequence[str],
        films: dict[str, tuple[float | None, int | None, tuple[Path, ...]]],
        batch_size: int,
        processes: int,
    ) -> GallerySummary:
        """Explain what is missing of this shard's photos and films; if it is the last, merge all.

        Args:
            films: The rate, the most frames and the frames of each.
        """
        folder, (number, shards) = self.pictures.folder, self.shard
        if not files and not films and (folder / "results.jsonl").is_file():
            log.warning("%s: %s", folder, NOTHING_NEW)
            return GallerySummary(folder, 0, 0, {}, None, list(self.progress.problems))
        columns = self.columns(films)
        about = about_model(self.request.model) | {"asked": self.asked(), "films": list(films)}
        about["threads"] = self._threads(about["asked"])
        run, lines = agree(
            folder,
            RunFile(about, [*files, *films], shards, tuple(column.key for column in columns)),
        )
        for line in lines:
            self.progress.problem(line)
        names = file_names([Path(name) for name in run.samples], folder) if self.draws else None
        mine = run.numbers(number)
        of_films = set(run.about.get("films", ()))
        still = [i for i in mine if run.samples[i] not in of_films] if of_films else mine
        photos = PhotoList(
            [run.samples[i] for i in still], [names[i] for i in still] if names else None
        )
        for export in ("results.jsonl", "results.parquet", "index.html"):
            (folder / export).unlink(missing_ok=True)
        filmed: dict[str, int] = {}
        done = 0
        with Store(folder, self.shard, columns) as store:
            if lost := {name: count for name, count in store.replaced.items() if name}:
                log.warning("%s: %s", folder, replaced_line(lost))
            try:
                with computing_with(threads_of_job(run.about)):
                    self._explain_photos(store, columns, photos, batch_size, processes)
                for i in mine:
                    if run.samples[i] in of_films:
                        assert names is not None
                        film = self._film(run.samples[i], names[i], films, batch_size)
                        if count := self._explain_film(store, columns[-1], film):
                            filmed[run.samples[i]] = count
                store.finish(run.number)
            except KeyboardInterrupt as stop:
                done = self._explained(store, columns, photos)
                store.close()
                if self.save == "pictures" and shards == 1:
                    self._export(SavedResults(folder, run))
                words = f"; {done} images are done, in {folder}: the same command continues"
                raise KeyboardInterrupt(*stop.args or [words]) from None
            done = self._explained(store, columns, photos)
        merged = self._merge(run)
        return GallerySummary(
            folder,
            len(photos),
            done,
            filmed,
            folder / "index.html" if merged and self.page else None,
            list(self.progress.problems),
            merged and shards > 1,
        )

    def _threads(self, asked: dict[str, Any]) -> int:
        """Return how many threads this job, or another shard of it, began with; else choose now."""
        try:
            known = read_run(self.pictures.folder)
        except ValueError:
            known = None
        same = known is not None and known.about.get("asked") == json.loads(json.dumps(asked))
        return threads_of_job(known.about if known is not None and same else None)

    @property
    def draws(self) -> bool:
        """Whether pictures are drawn."""
        return self.save in ("pictures", "both")

    def columns(self, films: Sequence[str] | dict[str, Any]) -> list[Column]:
        """What is computed of each photo: a map by each method, what is drawn; and of films."""
        request, keeps = self.request, self.save in ("maps", "both")
        more: dict[str, Any] = {"keeps": keeps}
        if self.draws:
            more["drawn"] = {
                "methods": [str(explainer) for explainer in request.explainers],
                "style": repr(self.pictures.style),
                "masks": None if self.pictures.masks is None else str(self.pictures.masks),
                "page": self.pictures.page,
                "raw": self.pictures.raw,
            }
        columns = explained_columns(request.model, request.explainers, request.key(), **more)
        every = {column.method: column.key for column in columns}
        if self.draws:
            columns.append(Column(DRAWN, "", every))
        if films:
            columns.append(Column(FILM, "", every))
        return columns

    def asked(self) -> dict[str, Any]:
        """List what a person asked for, as plain values."""
        return {
            "save": self.save,
            "methods": [str(explainer) for explainer in self.request.explainers],
            "target": self.request.key(),
            "head": self.request.model.head,
            "style": repr(self.pictures.style),
            "page": self.page,
        }

    def _explain_photos(
        self,
        store: Store,
        columns: Sequence[Column],
        photos: PhotoList,
        batch_size: int,
        processes: int,
    ) -> None:
        of_photos = [column for column in columns if column.kind != FILM]
        missing = self._missing(store, of_photos, photos)
        left = int(missing.any(axis=1).sum())
        if left:
            self.progress.start("explaining", left)
        else:  # no photo says it
            for line in self.request.refused:
                self.progress.problem(line)
        pictures = self.pictures if self.draws else None
        job = ExplainPhotos(self.request, of_photos, pictures, self.save in ("maps", "both"))
        tasks = _tasks(photos, missing, batch_size)
        fill(store, job, tasks, processes if left > batch_size else 1, self.progress)

    def _missing(
        self, store: Store, columns: Sequence[Column], photos: PhotoList
    ) -> Bool[ndarray, "n c"]:
        """Say of which photos which columns are missing; rows of other photos are removed.

        A photo that is drawn is drawn whole: if anything of it is missing, all of it is.
        """
        numbers = sample_numbers(photos.files)
        found = [store.find(column, numbers) for column in columns]
        ids = np.stack([ids for ids, _ in found], axis=1)
        missing = ids < 0
        for i in np.flatnonzero(~missing.all(axis=1)):
            now = content_number(stamp_of(photos[i], self.pictures.masks)) >> 32
            for c, (_, contents) in enumerate(found):
                missing[i, c] |= contents[i] >> 32 != now
            if self.draws and not missing[i].any():
                missing[i] = not self._drawn(store, ids[i, -1])
        if self.draws:
            missing[missing.any(axis=1)] = True
            store.remove(drawn_over(store, columns[-1], photos))
        store.remove(ids[missing & (ids >= 0)])
        return missing

    def _drawn(self, store: Store, row_id: SupportsInt) -> bool:
        """Whether the pictures of a photo are still there."""
        files = store.record(row_id).get("files", [""])
        return all((self.pictures.folder / file).is_file() for file in files)

    def _explained(self, store: Store, columns: Sequence[Column], photos: PhotoList) -> int:
        """Count the photos that have a map."""
        numbers = sample_numbers(photos.files)
        has = np.zeros(len(photos), bool)
        for column in columns:
            if column.kind == MAP:
                has |= store.find(column, numbers)[0] >= 0
        return int(has.sum())

    def _merge(self, run: RunFile) -> bool:
        """Put the results of all shards together if all have finished; say whether they have."""
        folder = self.pictures.folder
        if run.shards > 1:
            if unfinished_shards(folder, run):
                return False
            for number in range(1, run.shards + 1):
                if number != self.shard[0]:
                    with ShardFile(folder, (number, run.shards)) as shard:
                        shard.check()
        self._export(SavedResults(folder, run))
        if run.shards > 1:
            mark_merged(folder, run)
        return True

    def _export(self, results: SavedResults) -> None:
        """Write results.jsonl, results.parquet and the page."""
        model, folder = self.request.model, self.pictures.folder
        title = page_title(model.name or type(model.network).__name__)
        with results:
            export_lines(results)
            if self.save != "pictures":
                write_parquet(folder)
                if self.page:
                    lead = "Photos by class: the true class if it is known, else the predicted one."
                    write_browser(results, title, lead, model)
            elif self.page:
                meaning = self.pictures.style.meaning
                lead = f"{meaning} What the network did not see is grey. Click to enlarge."
                explainers = self.request.explainers
                trusted = [method for method in explainers if is_trusted(method, model)]
                if model.trust and trusted:
                    lead += f" “passed”: tested by covering, on {model.trust.rests_on}."
                shown = Gallery("Photos", list(map(page_row, results.drawn())), self.first)
                write_page(folder, title, [shown], lead, model.warning)

    def _film(self, path: str, name: str, films: dict[str, Any], batch_size: int) -> Film:
        rate, most, images = films.get(path, (None, None, ()))
        return Film(Path(path), name, rate, most, batch_size, images)

    def _explain_film(self, store: Store, column: Column, film: Film) -> int:
        """Explain a video into the folder; return how many of its frames are explained."""
        name = str(film.path)
        state = file_stamp(film.path, *film.files, more=[film.name, film.rate, film.most])
        content = content_number(state)
        ids, contents = store.find(column, sample_numbers([name]))
        if ids[0] >= 0:
            known = store.record(ids[0])
            frames = known.get("frames", 0)
            if frames and contents[0] == content and self._drawn(store, ids[0]):
                for line in known.get("problems", ()):
                    self.progress.problem(line)
                return int(frames)
            store.remove(ids)
        before = len(self.progress.problems)
        try:
            entry, count, whole = film.explain(self.request, self.pictures, self.progress)
        except Exception as error:  # of this film
            self.progress.problem(fault_line(name, error))
            return 0
        folder = self.pictures.folder
        files = [path.relative_to(folder).as_posix() for path in entry.written]
        records = [{k: v for k, v in one.items() if k != "file"} for one in entry.records]
        lines = list(self.progress.problems)[before:]  # said again by a run that goes on
        record = {"files": files, "frames": count, "records": records, "problems": lines}
        try:
            if records:
                store.add([StoreRow(column, name, record, content if whole else 0)])
                store.commit()
        except OSError as error:
            for path in entry.written:
                path.unlink(missing_ok=True)
            self.progress.problem(f"{name}: {error}")
            return 0
        if not whole:
            raise KeyboardInterrupt(f"; the first {count} frames are in {folder}")
        return count


def drawn_over(store: Store, column: Column, photos: PhotoList) -> list[int]:
    """List the rows of other photos whose pictures have the names of those of these photos.

    column: that of what is drawn.
    """
    index, names = store.index, {folded(name) for name in photos.names or ()}
    own = np.isin(index.columns, [n for n, key in store.keys.items() if key == column.key])
    others = index.ids[own & ~np.isin(index.samples, sample_numbers(photos.files))]
    rows = []
    for row_id in others.tolist():
        for file in store.record(row_id).get("files", ()):
            parts = folded(file).split(".")  # NAME.METHOD.png, and dots may be in both
            if names.intersection(".".join(parts[:end]) for end in range(1, len(parts))):
                rows.append(row_id)
                break
    return rows


def _tasks(photos: PhotoList, missing: Bool[ndarray, "n c"], size: int) -> Iterator[RunTask]:
    """Cut what is missing into batches of the same columns, in the photos' order."""
    batch: list[NamedPhoto] = []
    wanted = np.zeros(missing.shape[1], bool)
    for i in np.flatnonzero(missing.any(axis=1)):
        if batch and (len(batch) == size or (missing[i] != wanted).any()):
            yield RunTask(tuple(batch), tuple(np.flatnonzero(wanted).tolist()))
            batch = []
        batch.append(photos[i])
        wanted = missing[i]
    if batch:
        yield RunTask(tuple(batch), tuple(np.flatnonzero(wanted).tolist()))


@checked(limit=1, batch_size=1)
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
) -> GallerySummary:
    """Explain a video: write it once for each method, under its heatmap, in one scale throughout.

    Args:
        model: A model of `load_model` or `wrap`.
        images: A video file, or a folder of images with `frames`.
        methods: As `gallery` takes them.
        target: As `gallery` takes it.
        contrast: As `gallery` takes it.
        limit: At most so many frames.
        output: The folder; None takes outputs/explain.
        head: As of `gallery`.
        style: `ColorMap()` unless given.
        frames: How many images of a folder are a second.
        batch_size: Frames at once.
        progress: None shows a bar where there is a terminal.

    Returns:
        What was written, and the problems.

    Raises:
        ValueError: The path is no video, a method does not fit the model, or there is no such
            class.
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


def _first(request: Request, methods: Methods | None) -> str:
    """Name the method that a page of all methods shows first; empty where they were chosen.

    That is the best of those that scores have shown to be trusted, else the usual one.
    """
    words = [one.strip().lower() for one in method_list(methods) if isinstance(one, str)]
    if "all" not in words:
        return ""
    usual = [*(request.model.trust or Trust()).methods]
    usual += map(str, choose_methods(None, request.model))
    known = [str(explainer) for explainer in request.explainers]
    return next((name for name in usual if name in known), "")


def page_title(model: str) -> str:
    """Title a gallery by its model's name; of a checkpoint's path the end says which it is."""
    short = "/".join(Path(model).parts[-3:]) if Path(model).is_file() else model
    return f"Where {short} looks"
