"""Where decoded photos are kept: in memory, in a cache on the disk, or nowhere.

Axes: n photos.
"""

import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal

import numpy as np

from vision_attn.compat.native_stderr import native_stderr_dropped
from vision_attn.cores import control_groups, usable_cores
from vision_attn.data.cache import CachedPixels
from vision_attn.data.faults import ImageError, sample_errors
from vision_attn.data.photos import Photos
from vision_attn.data.sources import DataError

__all__ = ["STORAGES", "Room", "Storage", "choose", "in_memory", "pixel_bytes", "room", "say"]

log = logging.getLogger(__name__)

Storage = Literal["auto", "memory", "cache", "stream"]
STORAGES = "auto", "memory", "cache", "stream"
MEMORY_INFO = Path("/proc/meminfo")  # of Linux
SAMPLED = 64  # photos whose sizes are looked at
WORTH_A_LINE = 2**30  # bytes
GROUP_FILES = (  # of control groups of version 2 and 1: limit, use, and what begins the counts
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


@dataclass(frozen=True)
class Room:
    """Bytes that are free, in memory and on the disk of the cache.

    Attributes:
        processes: Of this run on this machine, which share them.

    Examples:
        >>> from vision_attn.data.storage import Room
        >>> Room(memory=8 * 2**30, disk=100 * 2**30).half_the_disk
        53687091200
    """

    memory: int
    disk: int
    processes: int = 1

    @property
    def half_the_disk(self) -> int:
        """What a cache may take."""
        return self.disk // 2

    @property
    def half_the_memory(self) -> int:
        """What a process may keep for itself; the pixels of a cache are shared."""
        return self.memory // (2 * self.processes)


def room(folder: Path) -> Room:
    """Look how much is free in memory, and on the disk of `folder`, which need not be there yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return Room(_free_memory(), shutil.disk_usage(folder).free, _processes())


def choose(needed: int, existing: int, free: Room) -> tuple[Storage, str]:
    """Choose by size, and say why: `cache` if possible, then `memory`, else `stream`.

    A cache pays where the pixels fit in free memory, from which they are read after the first time,
    and in half of the free disk.

    Args:
        needed: Bytes of all decoded pixels.
        existing: Bytes of them that the cache holds already.
        free: What memory and disk have left.

    Returns:
        The storage, and the sizes that decided, in words.

    Examples:
        >>> from vision_attn.data.storage import Room, choose
        >>> gib = 2**30
        >>> choose(250 * gib, 0, Room(memory=24 * gib, disk=80 * gib))[0]
        'stream'
    """
    left = max(0, needed - existing)
    sizes = f"{_size(needed)} of pixels; free: {_size(free.memory)} of memory, "
    sizes += f"{_size(free.disk)} of disk"
    sizes += f", shared by {free.processes} processes" if free.processes > 1 else ""
    if left <= free.half_the_disk and needed <= free.memory:
        return "cache", sizes
    if needed <= free.half_the_memory:
        return "memory", sizes
    return "stream", sizes


def pixel_bytes(photos: Photos, shorter_side: int) -> int:
    """Estimate the bytes of all photos, decoded and reduced, by the sizes of some of them."""
    sizes = []
    for item in np.unique(np.linspace(0, len(photos) - 1, SAMPLED).round().astype(int)):
        try:
            with sample_errors(photos.names[int(item)], passing=(DataError,)):
                width, height = photos.side(int(item))
        except ImageError:
            continue
        scale = min(1.0, shorter_side / min(width, height))
        sizes.append(3 * scale * width * scale * height)
    return round(len(photos) * float(np.mean(sizes))) if sizes else 0


def in_memory(photos: Photos, shorter_side: int) -> tuple[CachedPixels, dict[int, str]]:
    """Decode all photos into memory; with them, by number, what is wrong with each unreadable one.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data.photos import FilePhotos
        >>> from vision_attn.data.storage import in_memory
        >>> in_memory(FilePhotos(Path("photos"), ["a.jpg"]), 64)[1]
        {0: 'photos/a.jpg: no such file: check the path'}
    """

    def read(item: int) -> np.ndarray | str:
        try:
            return photos.pixels(item, shorter_side)
        except ImageError as error:
            return str(error)

    errors: dict[int, str] = {}
    flat: list[np.ndarray] = []
    table = np.zeros((len(photos), 3), np.int64)
    end = 0
    with native_stderr_dropped(), ThreadPoolExecutor(usable_cores()) as threads:
        for item, image in enumerate(threads.map(read, range(len(photos)))):
            if isinstance(image, str):
                errors[item] = image
                continue
            flat.append(image.ravel())
            table[item] = end, image.shape[0], image.shape[1]
            end += image.size
    pixels = np.concatenate(flat) if flat else np.empty(0, np.uint8)
    return CachedPixels(pixels, *table.T), errors


def say(storage: Storage, why: str, needed: int) -> None:
    """Log the choice where it is worth a line."""
    if needed >= WORTH_A_LINE or storage != "cache":
        log.info("storage %s: %s (the option `storage` of this source overrides it)", storage, why)


def _processes() -> int:
    """Count the processes of this run on this machine, where its launcher (torchrun) says so."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(count)) if count.isdecimal() else 1


def _free_memory() -> int:
    """Bytes of memory that programs can have; what files are cached in counts as free.

    A container's control group may leave less than the machine.
    """
    return int(min([_free_of_machine(), *map(_free_of_group, control_groups("memory"))]))


def _free_of_group(folder: Path) -> float:
    """Bytes of memory that one control group leaves, by version 2 or 1; infinity for any number."""
    for limit, used, prefix in GROUP_FILES:
        try:
            left = _number(folder / limit) - _number(folder / used)
        except (OSError, ValueError):  # no such group, or "max"
            continue
        return float(max(0, left + _of_files(folder / "memory.stat", prefix)))
    return inf


def _number(file: Path) -> int:
    return int(file.read_text(encoding="utf-8"))


def _of_files(stat: Path, prefix: str) -> int:
    """Bytes in which a control group's files are cached: in use, but free when they are needed."""
    try:
        counts = dict(line.split() for line in stat.read_text(encoding="utf-8").splitlines())
        return sum(int(counts.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    except (OSError, ValueError):
        return 0


def _free_of_machine() -> int:
    try:
        for line in MEMORY_INFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):  # no such thing on this system
        return 4 * 2**30


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
