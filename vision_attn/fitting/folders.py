"""The folders of runs: NAME/version_0, NAME/version_1, ..., a run's files in each."""

import os
from pathlib import Path, PurePath

from lightning.pytorch.utilities import rank_zero_only

from vision_attn.errors import quoted

__all__ = ["checked_name", "claimed", "leave_nothing", "newest", "versions", "writes_files"]


def versions(runs: Path, name: str) -> list[Path]:
    """Find a file in every version folder that has it, the newest version last."""
    found = {
        path.parent.name.removeprefix("version_"): path for path in runs.glob(f"version_*/{name}")
    }
    return [found[number] for number in sorted(filter(str.isdecimal, found), key=int)]


def newest(runs: Path, name: str) -> Path:
    """Find a file in the newest version folder that has it. Raises ValueError if none has."""
    if found := versions(runs, name):
        return found[-1]
    raise ValueError(
        f"no such checkpoint file: {runs}/version_N/{name}: name one with --ckpt_path FILE"
    )


def leave_nothing(folder: Path | None) -> None:
    """Remove a run's folder if it holds no more than a config."""
    if folder is None or not writes_files() or not folder.is_dir():
        return
    if {path.name for path in folder.iterdir()} <= {"config.yaml"}:
        (folder / "config.yaml").unlink(missing_ok=True)
        folder.rmdir()


def writes_files() -> bool:
    """Whether this process is the first of the run's, before there is a trainer that knows."""
    return getattr(rank_zero_only, "rank", 0) == 0 and os.environ.get("NODE_RANK", "0") == "0"


def claimed(runs: Path) -> Path:
    """Make the next version folder: of several runs that start at once, each has its own.

    Only the process that writes the run's files makes one.
    """
    number = 0
    while True:
        folder = runs / f"version_{number}"
        if not folder.exists():
            if not writes_files():
                return folder
            runs.mkdir(parents=True, exist_ok=True)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
        number += 1


def checked_name(name: str) -> str:
    """The name of a folder inside the output folder; ValueError for one that leads elsewhere."""
    apart = PurePath(name).name != name  # on Windows also where a drive is named, as in C:x
    if name in ("", ".", "..") or not name.isprintable() or {"/", "\\"} & set(name) or apart:
        raise ValueError(f"--name {quoted(name)}: expected the name of a folder, without a path")
    return name
