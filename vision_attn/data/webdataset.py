"""Photos in tar shards, in the layout of the library WebDataset: KEY.jpg beside KEY.cls.

The members of each shard are listed once, by an index; after that any photo is read from its place,
so that an epoch is shuffled as a whole, and resumed to the sample, as of a folder.

Axes: n photos, k classes.
"""

import hashlib
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int64
from PIL import Image

from vision_attn.data.faults import ImageError
from vision_attn.data.images import decode_image, open_encoded
from vision_attn.data.kinds import ENCODED
from vision_attn.data.photo_sets import Part, PhotoSource
from vision_attn.data.photos import Names, Photos
from vision_attn.data.sources import DataError
from vision_attn.errors import quoted
from vision_attn.files import write_text

__all__ = ["TarPhotos", "WebDataset"]

FORMAT = 2
PIPE = "pipe:"
ALLOW = "VISION_ATTN_PIPES"
Urls = str | list[str]


class Member(NamedTuple):
    """A photo in a shard: its key, where its bytes lie, and its label as it is written."""

    key: str
    start: int
    length: int
    label: str


class TarPhotos(Photos):
    """Photos in tar files, each read from its place.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from vision_attn.data.webdataset import TarPhotos
        >>> photos = TarPhotos([Path("0.tar")], np.array([[0, 1536, 100]]), ["0.tar/a"])
        >>> len(photos)
        1
    """

    def __init__(
        self, shards: Sequence[Path], table: Int64[np.ndarray, "n 3"], names: Iterable[str]
    ) -> None:
        self.shards, self.table = list(shards), table
        self.names = names if isinstance(names, Names) else Names(names)

    def read(self, item: int, shorter_side: int | None = None) -> Image.Image:
        return decode_image(self._bytes(item), self.names[item], shorter_side, self.value_range)

    def jpeg(self, item: int) -> bytes | None:
        return self._bytes(item)

    def side(self, item: int) -> tuple[int, int]:
        with open_encoded(self._bytes(item), self.names[item]) as image:
            return image.size

    def stamp(self, item: int) -> tuple[int, int]:
        shard, _, length = self.table[item].tolist()
        try:
            return length, self.shards[shard].stat().st_mtime_ns
        except OSError:
            return 0, 0

    def cached_as(self) -> Sequence[str]:
        addresses = [_address(shard) for shard in self.shards]
        shards = self.table[:, 0].tolist()
        return [f"{name} ({addresses[i]})" for name, i in zip(self.names, shards, strict=True)]

    def _bytes(self, item: int) -> bytes:
        shard, start, length = self.table[item].tolist()
        try:
            with self.shards[shard].open("rb") as file:
                file.seek(start)
                data = file.read(length)
        except OSError as error:
            raise ImageError(f"{self.names[item]}: cannot be read ({error.strerror})") from None
        if len(data) < length:
            raise ImageError(f"{self.names[item]}: its shard is cut short: fetch it again")
        return data


@dataclass(eq=False)
class WebDataset(PhotoSource):
    """Tar shards in WebDataset's layout: `pip install 'vision-attn[webdataset]'`.

    A photo is the member KEY.jpg (or .png, .webp ...), its label KEY.cls, a number or a word, or
    the entry `label` of KEY.json. Of a shard that is cut short the whole photos are used, with a
    warning; with corrupt="error" it stops the run, with a line that names it. The options by
    keyword that are not listed are those of `ImageFolder`.

    Args:
        train: The shards, as paths below the root folder (or absolute), with `*` and `{000..146}`,
            or as URLs that fsspec opens (http, s3, gs ...), which are fetched once into the folder
            of the cache, as is what COMMAND of `pipe:COMMAND` prints, if VISION_ATTN_PIPES=1 allows
            commands.
        val: Shards of validation images; None: they are held out of `train`.
        test: Shards of test images; None: they are held out of `train`.
        label: The ending that has the label, `cls` or `json`.
        classes: The names of the numbers, in their order.
        timeout: Seconds that a server of http may take to connect, and to send the next bytes.

    Raises:
        ValueError: An option is out of range.

    Examples:
        >>> from vision_attn.data import WebDataset
        >>> shards = WebDataset("train-{000..146}.tar", val="val-*.tar", size=224)  # reads nothing
    """

    train: Urls
    val: Urls | None = None
    test: Urls | None = None
    label: Literal["cls", "json"] = "cls"
    classes: list[str] | None = None
    timeout: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        by_part = {"train": self.train, "val": self.val, "test": self.test}
        self.urls = {part: urls for part, urls in by_part.items() if urls is not None}

    def place(self, root: Path) -> Path:
        text = json.dumps(self.urls, sort_keys=True)
        return root / f"shards-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def prepare(self, root: Path) -> None:
        for urls in self.urls.values():
            self._shards(root, urls)

    def parts(self, root: Path) -> tuple[dict[str, Part], list[str]]:
        listed: dict[str, tuple[list[Path], list[list[Member]]]] = {}
        for part, urls in self.urls.items():
            shards = self._shards(root, urls)
            listed[part] = shards, [self._members(root, shard) for shard in shards]
        words = {member.label for _, every in listed.values() for some in every for member in some}
        names = self.classes or _names(words)
        numbered = all(word.lstrip("-").isdigit() for word in words)
        class_indices = {
            word: int(word) if numbered else names.index(word)
            for word in words
            if numbered or word in names
        }
        parts = {}
        for part, (shards, every) in listed.items():
            rows = [
                (number, member)
                for number, some in enumerate(every)
                for member in some
                if member.label in class_indices
            ]
            if not rows:
                raise DataError(f"{self.urls[part]}: no photo of any class in these shards")
            labels = np.array([class_indices[member.label] for _, member in rows])
            if labels.min() < 0 or labels.max() >= len(names):
                worst = labels.max() if labels.min() >= 0 else labels.min()
                raise DataError(
                    f"{self.urls[part]}: a label is {worst}, expected 0 to {len(names) - 1}"
                )
            table = np.array(
                [(number, member.start, member.length) for number, member in rows], np.int64
            )
            named = (f"{shards[number].name}/{member.key}" for number, member in rows)
            parts[part] = Part(TarPhotos(shards, table, named), labels, str(self.urls[part]))
        return parts, names

    def _shards(self, root: Path, urls: Urls) -> list[Path]:
        """The shards as files of this machine; what lies elsewhere is fetched, once."""
        shards: list[Path] = []
        for url in self._expanded(root, urls):
            shards.append(self._fetched(root, url) if _elsewhere(url) else Path(url))
        for shard in shards:
            if not shard.is_file():
                raise DataError(f"{shard}: no such shard: check the path")
        return shards

    def _expanded(self, root: Path, urls: Urls) -> list[str]:
        try:
            from webdataset.shardlists import expand_urls
        except ImportError:
            raise DataError(
                "WebDataset needs the library webdataset: pip install 'vision-attn[webdataset]'"
            ) from None
        expanded: list[str] = []
        for url in [urls] if isinstance(urls, str) else urls:
            for name in expand_urls(url if _elsewhere(url) else str(root / url)):
                if _elsewhere(name) or not any(sign in name for sign in "*?["):
                    expanded.append(name)
                    continue
                path = Path(name)
                anchor = Path(path.anchor) if path.is_absolute() else Path()
                matching = sorted(map(str, anchor.glob(str(path.relative_to(anchor)))))
                if not matching:
                    raise DataError(f"{name}: no shard of this name: check the path")
                expanded += matching
        return expanded

    def _fetched(self, root: Path, url: str) -> Path:
        from filelock import FileLock

        folder = Path(self.cache or root / ".cache") / "shards"
        name = re.sub(r"[^\w.-]", "_", Path(url).name)[-80:]
        target = folder / f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if target.is_file():
                return target
            beside = target.with_suffix(".part")
            try:
                if url.startswith(PIPE):
                    _run(url.removeprefix(PIPE), beside)
                else:
                    self._get(url, beside)
                os.replace(beside, target)
            except Exception as error:  # of whichever library opens such a URL
                beside.unlink(missing_ok=True)
                what = " ".join(str(error).split()) or type(error).__name__
                raise DataError(
                    f"{url}: the shard cannot be fetched ({what[:200]}): check the address, or "
                    "fetch it yourself and give its path"
                ) from error
        return target

    def _get(self, url: str, target: Path) -> None:
        """Fetch a URL by fsspec."""
        import fsspec

        options = {"client_kwargs": {"timeout": _timeout(self.timeout)}}
        http = url.startswith(("http://", "https://"))
        system, path = fsspec.core.url_to_fs(url, **(options if http else {}))
        system.get_file(path, str(target))

    def _members(self, root: Path, shard: Path) -> list[Member]:
        """The photos of a shard, from its index if that is of the shard as it is now."""
        folder = Path(self.cache or root / ".cache") / "shards"
        index = folder / f"{shard.name}-{_address(shard)}.{self.label}.index.json"
        about = [FORMAT, shard.stat().st_size, shard.stat().st_mtime_ns]
        try:
            content = json.loads(index.read_bytes())
            if content["about"] == about:
                return [Member(*fields) for fields in content["members"]]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            pass
        members, whole = self._listed(shard)
        if whole:
            with suppress(OSError):  # a start without an index only takes longer
                folder.mkdir(parents=True, exist_ok=True)
                write_text(index, json.dumps({"about": about, "members": members}))
        return members

    def _listed(self, shard: Path) -> tuple[list[Member], bool]:
        """Go through a shard; whether it is whole. Raises DataError where it may not be cut."""
        photos: dict[str, tuple[int, int]] = {}
        labels: dict[str, str] = {}
        problem = ""
        end = shard.stat().st_size
        try:
            with tarfile.open(shard, "r:") as tar:
                for entry in tar:
                    if not entry.isfile():
                        continue
                    if entry.offset_data + entry.size > end:
                        problem = f"{entry.name} is incomplete"
                        break
                    folder, _, last = entry.name.rpartition("/")
                    stem, _, ending = last.partition(".")
                    if not stem:
                        continue  # a hidden file, such as those of macOS beside others: ._0001.jpg
                    key = f"{folder}/{stem}" if folder else stem
                    if f".{ending.rpartition('.')[2].lower()}" in ENCODED:
                        photos[key] = entry.offset_data, entry.size
                    elif ending == self.label:
                        file = tar.extractfile(entry)
                        assert file is not None
                        labels[key] = self._read_label(shard, key, file.read())
        except (tarfile.TarError, EOFError) as error:
            problem = str(error) or type(error).__name__
        absent = sorted(photos.keys() - labels.keys())
        if absent and not problem:
            raise DataError(
                f"{shard}: {len(absent)} photos have no label, such as {absent[0]}: expected "
                f"{absent[0]}.{self.label} beside it"
            )
        if problem:
            text = f"{shard}: the shard is cut short or damaged ({problem})"
            if self.corrupt == "error" or not photos:
                raise DataError(f"{text}: fetch it again")
            from vision_attn.data.photo_sets import log

            log.warning("%s: the %d photos before that are used", text, len(photos))
        members = [
            Member(key, *extent, labels[key]) for key, extent in photos.items() if key in labels
        ]
        return members, not problem

    def _read_label(self, shard: Path, key: str, content: bytes) -> str:
        try:
            text = content.decode()
            if self.label == "json":
                value: Any = json.loads(text)["label"]
                if not isinstance(value, int | str):
                    raise ValueError(f"a label is {quoted(value)}")
                text = str(value)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"{shard}: {key}.{self.label}: expected a class, a number or a word ({error})"
            ) from None
        return text.strip()


def _address(shard: Path) -> str:
    """What tells a shard from others of its name, in other folders."""
    return hashlib.sha256(str(shard.resolve()).encode()).hexdigest()[:8]


def _elsewhere(url: str) -> bool:
    """Whether a shard has to be fetched."""
    return "://" in url or url.startswith(PIPE)


def _run(command: str, target: Path) -> None:
    """Write what a shell command prints to a file. Raises OSError where it fails."""
    if os.environ.get(ALLOW) != "1":
        raise OSError(f"a pipe runs a command: set {ALLOW}=1 if you trust it")
    with target.open("wb") as file:
        done = subprocess.run(command, shell=True, stdout=file, stderr=subprocess.PIPE)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        raise OSError(f"the command ended with status {done.returncode}: {last}")


def _timeout(seconds: float) -> Any:
    from aiohttp import ClientTimeout

    return ClientTimeout(total=None, connect=seconds, sock_read=seconds)


def _names(words: set[str]) -> list[str]:
    if all(word.lstrip("-").isdigit() for word in words):
        return [str(number) for number in range(max(map(int, words), default=-1) + 1)]
    return sorted(words)
