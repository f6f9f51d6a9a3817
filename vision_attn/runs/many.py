"""Very many photos explained into a handful of files: maps and records, taken up where they stop.

What each file holds stands in `ledger`. Nothing is kept in memory but the photos' names.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from PIL.Image import Image

from vision_attn.cores import usable_cores
from vision_attn.data.faults import ImageError, apart, fault_line, sample_errors
from vision_attn.files import write_text
from vision_attn.pages.gallery.browsing import write_browser
from vision_attn.runs import workers
from vision_attn.runs.entries import as_line
from vision_attn.runs.explain import Request
from vision_attn.runs.explanation import Explanation, Pictures
from vision_attn.runs.labels import label_of
from vision_attn.runs.ledger import Found, Ledger, map_name, packed
from vision_attn.runs.naming import file_names
from vision_attn.runs.progress import Silent
from vision_attn.types import Model

__all__ = ["SAVES", "Answer", "Explaining", "Save", "about", "explain_many"]

Save = Literal["pictures", "maps", "both", "none"]
SAVES = "pictures", "maps", "both", "none"
Task = Sequence[tuple[int, str, str]]  # places among all, files, and names for their pictures


@dataclass(frozen=True)
class Answer:
    """What was found of the photos of a batch, and a line for each problem.

    Examples:
        >>> from vision_attn.runs.many import Answer
        >>> Answer(count=8).found
        []
    """

    count: int
    found: list[Found] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Explaining:
    """Explains batches of photos; it can be sent to other processes if the model can.

    pictures: what draws them; None draws none. maps: whether maps are kept, in files of this shard.

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import SEResNet
        >>> from vision_attn.runs.explain import Request
        >>> from vision_attn.runs.many import Explaining
        >>> from vision_attn.types import Model
        >>> network = SEResNet(2, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> request = Request.of(Model(network, preprocess, ["cat", "dog"], None))
        >>> Explaining(request).answer([(0, "nothing.png", "")]).problems
        ['nothing.png: no such file: check the path']
    """

    request: Request
    pictures: Pictures | None = None
    maps: bool = True
    shard: tuple[int, int] = (1, 1)

    def answer(self, task: Task) -> Answer:
        """Explain these photos; what fails on one costs that photo, or that method, only."""
        return self.of_read([(*one, self.read(one[1])) for one in task])

    def read(self, file: str) -> Image | str:
        """Read a photo, or say in a line why it cannot be read."""
        try:
            with sample_errors(file):
                return self.request.model.preprocess.read(file)
        except ImageError as error:
            return str(error)

    def of_read(self, photos: Sequence[tuple[int, str, str, Image | str]]) -> Answer:
        """Explain photos that are read already."""
        answer = Answer(len(photos))
        whole = []
        for place, file, name, image in photos:
            if isinstance(image, str):
                answer.problems.append(image)
            else:
                whole.append((place, file, name, image))
        explained, lines = apart(
            lambda some: self.request.explain([(file, image) for _, file, _, image in some]),
            whole,
            lambda photo: photo[1],
        )
        answer.problems.extend(lines)
        for some, explanations in explained:
            for (place, file, name, _), one in zip(some, explanations, strict=True):
                answer.problems.extend(f"{file}: {text}" for text in one.problems)
                if not one.maps:
                    continue
                try:
                    answer.found.append(self.found(place, name, one))
                except OSError:  # of the disk
                    raise
                except Exception as error:
                    answer.problems.append(fault_line(file, error))
        return answer

    def found(self, place: int, name: str, one: Explanation) -> Found:
        """Make a photo's records and maps; draw its pictures if that is asked."""
        classes = one.model.classes
        label = label_of(one.name, classes)
        if self.pictures is not None:
            records = self.pictures.write(name, one).records
        else:
            records = one.records(lambda found: "")
            for record in records:
                del record["picture"]
        maps = {}
        for record, found in zip(records, one.maps, strict=True):
            if label is not None:
                record |= {"label": classes[label], "label_index": label}
            if self.maps:
                file = map_name(found.method, self.shard)
                maps[file], scale = packed(found.values)
                record |= {"map": file, "row": place // self.shard[1]}
                if scale != 1:
                    record["map_scale"] = scale
        return Found(place, one.name, records, maps)


def explain_many(
    request: Request,
    files: Sequence[str],
    folder: Path,
    *,
    save: Save,
    settings: dict[str, Any],
    pictures: Pictures,
    title: str,
    lead: str,
    page: bool,
    batch_size: int,
    processes: int,
    shard: tuple[int, int],
    progress: Silent,
) -> tuple[int, bool]:
    """Explain the files of a shard that are not done yet.

    Returns how many of the shard's photos are explained now, and whether all shards are merged.
    """
    keeps, draws = save in ("maps", "both"), save == "both"
    recorded = settings | {"save": save, "files": len(files), "listed": checksum(files)}
    write_text(folder / "about.json", as_line(about(request.model) | {"asked": recorded}))
    methods = [str(explainer) for explainer in request.explainers] if keeps else []
    ledger = Ledger(folder, files, shard, recorded, methods)
    drawer = Explaining(request, pictures if draws else None, keeps, shard)
    names = file_names([Path(file) for file in files]) if draws else None
    left = int((~ledger.done).sum())
    if left:
        progress.start("explaining", left)
    tasks = _tasks(ledger, names, batch_size)
    try:
        for answer in _answers(drawer, tasks, processes if left > batch_size else 1):
            ledger.add(answer.found)
            for problem in answer.problems:
                progress.problem(problem)
            progress.advance(answer.count)
    except KeyboardInterrupt:
        done = int(ledger.done.sum())
        raise KeyboardInterrupt(
            f"; {done} images are done, in {folder}: the same command continues with the others"
        ) from None
    merged = ledger.end()
    if merged and page:
        write_browser(folder, title, lead, request.model)
    return int(ledger.done.sum()), merged


def about(model: Model) -> dict[str, Any]:
    """What it takes to read and draw results without the network, as plain values."""
    return {
        "format": 1,
        "model": model.name,
        "weights": model.weights,
        "classes": list(model.classes),
        "preprocess": asdict(model.preprocess) if is_dataclass(model.preprocess) else None,
        "layout": None if model.layout is None else asdict(model.layout),
        "calibration": asdict(model.calibration),
        "from": os.getcwd(),  # which the records' files are relative to
    }


def checksum(files: Sequence[str]) -> int:
    """Compute one number of a list of names: other names, or another order, another number."""
    total = 0
    for file in files:
        total = crc32(file.encode(errors="surrogateescape") + b"\0", total)
    return total


def _tasks(ledger: Ledger, names: Sequence[str] | None, size: int) -> Iterator[Task]:
    places = ledger.left()
    while some := list(islice(places, size)):
        yield [(i, ledger.files[i], "" if names is None else names[i]) for i in some]


def _answers(explaining: Explaining, tasks: Iterator[Task], processes: int) -> Iterator[Answer]:
    if processes > 1:
        yield from workers.answers(_answerer, explaining, tasks, processes)
    else:
        yield from _reading_ahead(explaining, tasks)


def _reading_ahead(explaining: Explaining, tasks: Iterator[Task]) -> Iterator[Answer]:
    """Read the next batch's photos in threads while the network explains this one."""
    with ThreadPoolExecutor(min(8, usable_cores())) as threads:

        def begin(task: Task) -> list[tuple[int, str, str, Future[Image | str]]]:
            return [(*one, threads.submit(explaining.read, one[1])) for one in task]

        ahead = (begin(task) for task in tasks)
        now = next(ahead, None)
        while now is not None:
            coming = next(ahead, None)
            yield explaining.of_read([(*one[:3], one[3].result()) for one in now])
            now = coming


def _answerer(explaining: Explaining) -> Callable[[Task], Answer]:
    """Return what explains batches in another process."""
    return explaining.answer
