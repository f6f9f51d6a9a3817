"""What differs by system, reached on any of them by substitution: Windows, macOS, other disks.

Nothing here has run on those systems; each test puts one of their traits in place of ours.
"""

import ast
import builtins
import ctypes
import io
import ntpath
import os
import pickle
from collections.abc import Callable
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn import arguments, files, types
from vision_attn.commands.options import classes_given
from vision_attn.data import kinds, storage, streaming
from vision_attn.data.cache import PixelCache
from vision_attn.data.draws import Draws
from vision_attn.data.folders import CenterCrop
from vision_attn.data.photos import FilePhotos
from vision_attn.data.streaming import StreamedSet
from vision_attn.data.tables import ImageTable
from vision_attn.errors import ModelError
from vision_attn.files import claimed, write_text
from vision_attn.fitting import folders
from vision_attn.fitting import kinds as kinds_of_runs
from vision_attn.hub import load_model, loading
from vision_attn.runs.inputs import check_apart, check_file
from vision_attn.runs.naming import file_names
from vision_attn.runs.runfile import RunFile, agree, read_run
from vision_attn.training.cpu import memory
from vision_attn.types import Trust

PACKAGE = Path(files.__file__).parent


@pytest.fixture
def windows_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files opened as text have Windows' encoding and line ends, unless the code says others."""
    usual = io.open

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        *rest: Any,
    ) -> Any:
        if "b" not in mode:
            encoding = "cp1252" if encoding in (None, "locale") else encoding
            if newline is None and set(mode) & set("wax"):
                newline = "\r\n"
        return usual(file, mode, buffering, encoding, errors, newline, *rest)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(builtins, "open", opened)


def test_what_is_written_has_the_same_bytes_on_windows(windows_text: None, tmp_path: Path) -> None:
    text = "café,1\r\nbee,2\n"  # as csv writes it, and as pages do
    write_text(tmp_path / "a.csv", text)
    assert (tmp_path / "a.csv").read_bytes() == text.encode()
    (tmp_path / "b.csv").write_text(text)  # that it is Windows' way
    assert (tmp_path / "b.csv").read_bytes() == b"caf\xe9,1\r\r\nbee,2\r\n"


def without_encoding(source: str) -> list[str]:
    """The calls that open a file as text, and leave its encoding to the system."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        builtin = getattr(call.func, "id", "") == "open"
        method = getattr(call.func, "attr", "")
        words = {word.arg for word in call.keywords}
        constants = [a.value for a in call.args if isinstance(a, ast.Constant)]
        modes = [c for c in constants if isinstance(c, str) and set(c) <= set("rwaxbt+")]
        as_text = any("b" not in mode for mode in modes) or (builtin and not modes)
        texts = {
            "read_text": not call.args,
            "write_text": len(call.args) == 1 and getattr(call.func, "value", None) is not None,
            "open": as_text,
        }
        if "encoding" not in words and (texts.get(method) or (builtin and as_text)):
            found.append(f"line {call.lineno}: {ast.unparse(call)}")
    return found


def test_every_text_file_says_its_encoding() -> None:
    """Windows' own is not UTF-8."""
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    found = {str(path): without_encoding(source) for path, source in sources.items()}
    assert not {path: calls for path, calls in found.items() if calls}


@pytest.mark.parametrize(
    "code",
    ["open(path)", "open(path, 'w')", "path.open('a')", "p.read_text()", "p.write_text('a')"],
)
def test_the_walk_sees_a_text_file_without_encoding(code: str) -> None:
    assert len(without_encoding(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "open(path, 'rb')",
        "path.open('x+b', buffering=0)",
        "p.read_text('utf-8')",
        "p.write_text('a', encoding='utf-8')",
        "write_text(path, 'a')",
        "open(path, encoding='utf-8')",
    ],
)
def test_the_walk_passes_other_files(code: str) -> None:
    assert without_encoding(code) == []


def test_the_first_bytes_of_a_file_are_read_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows opens files as text unless told: at \\x1a, which is in every PNG, they would end."""
    flags = []
    usual = os.open
    monkeypatch.setattr(os, "open", lambda path, flag: flags.append(flag) or usual(path, flag))
    Image.new("RGB", (3, 5)).save(tmp_path / "a", "PNG")
    assert kinds.kind_of_file(str(tmp_path / "a"), "a")[0]
    assert flags == [os.O_RDONLY | kinds.opening_flags()]


@pytest.mark.parametrize(
    ("there", "flags"),
    [({"O_NONBLOCK": 4}, 4), ({"O_BINARY": 32768}, 32768), ({}, 0)],
    ids=["Linux, macOS", "Windows", "neither"],
)
def test_files_are_opened_with_the_flags_that_a_system_has(
    there: dict[str, int], flags: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("O_NONBLOCK", "O_BINARY"):
        monkeypatch.delattr(os, name, raising=False)
    for name, value in there.items():
        monkeypatch.setattr(os, name, value, raising=False)
    assert kinds.opening_flags() == flags


@pytest.fixture
def windows_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that take paths apart do so as on Windows."""
    for module in (arguments, types, folders, kinds_of_runs):
        monkeypatch.setattr(module, "PurePath", PureWindowsPath)
    monkeypatch.setattr(loading, "Path", WindowsPath)
    monkeypatch.setattr(
        kinds_of_runs, "abspath", lambda path: ntpath.normpath(ntpath.join("C:\\work", path))
    )
    monkeypatch.setattr(kinds_of_runs, "expanduser", ntpath.expanduser)


class WindowsPath(PureWindowsPath):
    """A path of Windows to a file that is not there."""

    def exists(self) -> bool:
        return False

    is_file = is_dir = exists


@pytest.mark.parametrize("name", ["C:", "C:runs", "a:b:c"])
def test_the_name_of_a_run_is_no_drive_and_no_stream(windows_paths: None, name: str) -> None:
    if name == "a:b:c":
        assert PureWindowsPath(name).drive == "a:"
    with pytest.raises(ValueError, match="expected the name of a folder, without a path"):
        folders.checked_name(name)
    assert folders.checked_name("vit-3") == "vit-3"


def test_a_long_path_with_either_slash_is_a_path(windows_paths: None) -> None:
    for path in ("/".join(["a" * 90] * 4), "\\".join(["a" * 90] * 4), "C:\\a/b", ""):
        assert arguments.check_path(path) == path
    with pytest.raises(ValueError, match="has a name of 300 bytes"):
        arguments.check_path("C:\\b/" + "a" * 300)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ("C:\\photos", "photos"),
        ("C:\\sets\\birds\\val", "birds/val"),
        ("\\\\host\\share\\birds", "birds"),
        ("..\\birds", "birds"),
    ],
)
def test_the_data_of_a_verdict_has_no_drive(windows_paths: None, data: str, named: str) -> None:
    assert Trust(("Rollout",), 300, data).rests_on == f"at least 300 images of {named}"


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        ("C:/work/logs", True),
        ("C:\\work\\logs", True),
        ("c:/Work/logs", True),  # capitals are folded there
        ("C:/elsewhere", False),
        ("D:/work/logs", False),
        ("logs/a", True),
        ("..\\logs", False),
        ("s3://bucket/logs", False),
        ("https://host/logs", True),
    ],
)
def test_where_a_config_may_write_on_windows(windows_paths: None, value: str, inside: bool) -> None:
    assert kinds_of_runs._lies_in(value, ["C:\\work"]) == inside


def test_a_drive_is_no_source_of_models(windows_paths: None) -> None:
    with pytest.raises(ModelError, match=r"^C:\\a\.pt: no such file; expected a checkpoint file"):
        load_model("C:\\a.pt")


def test_no_picture_is_named_as_a_device_of_windows() -> None:
    photos = [Path(f"{name}.png") for name in ("CON", "nul.2", "com1", "console", "lpt", "_con")]
    names = file_names(photos)
    assert names[1:5] == ["_nul.2", "_com1", "console", "lpt"]
    assert names[0].startswith("_CON-"), "beside _con it has a number"
    assert len(set(map(str.casefold, names))) == 6


@pytest.fixture
def capitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder `photos` with a.png, and `Photos`, which is the same one as macOS has it.

    There realpath keeps capitals as they were typed; here a link stands for the other name.
    """
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (3, 5)).save(folder / "a.png")
    (folder / "A.PNG").symlink_to(folder / "a.png")
    (tmp_path / "Photos").symlink_to(folder)
    monkeypatch.setattr(os.path, "realpath", os.path.abspath)
    return tmp_path


def test_results_do_not_go_among_photos_in_other_capitals(capitals: Any) -> None:
    photo = capitals / "photos/a.png"
    with pytest.raises(ValueError, match="the photos lie there"):
        check_apart(capitals / "Photos", [photo], [capitals / "photos"])
    below = capitals / "Photos/below"
    below.mkdir()
    inner = capitals / "photos/below/a.png"
    Image.new("RGB", (3, 5)).save(inner)
    with pytest.raises(ValueError, match="the photos lie there"):
        check_apart(below, [inner], [capitals / "photos"])
    check_apart(capitals / "out", [photo], [capitals / "photos"])


def test_a_page_replaces_no_photo_in_other_capitals(capitals: Any) -> None:
    photo = capitals / "photos/a.png"
    for other in ("Photos/a.png", "photos/A.PNG"):
        with pytest.raises(ValueError, match="it is one of the photos"):
            check_file(capitals / other, [photo])
    for other in ("photos/b.png", "photos/a.html"):
        check_file(capitals / other, [photo])


def test_pictures_know_photos_beside_them_in_other_capitals(capitals: Any) -> None:
    files = [capitals / "photos" / name for name in ("a.png", "a.Rollout.png")]
    assert file_names(files, capitals / "Photos")[0] != "a"
    assert file_names(files, capitals / "out")[0] == "a"


def test_a_folder_is_free_again_where_open_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, missing_ok: bool = False) -> None:
        raise PermissionError(13, "used by another process", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    for _ in range(2):
        with claimed(tmp_path):
            pass
    assert (tmp_path / ".lock").exists()


def test_shards_agree_on_a_disk_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    first, second = RunFile({}, ["a", "b"], 2), RunFile({}, ["b", "c"], 2)
    assert agree(tmp_path, first) == (first, [])
    assert read_run(tmp_path) == first
    assert agree(tmp_path, second)[0] == first
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["run.json.gz"]


def test_a_cache_of_old_pixels_that_is_still_mapped_gives_the_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows removes no file that is mapped: the cache goes on with it."""
    photo, cache = tmp_path / "a.png", PixelCache(tmp_path / "cache", 20)

    def refuse(path: Any, missing_ok: bool = False) -> None:
        raise PermissionError(13, "used by another process", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    for turn in range(6):
        Image.new("RGB", (30 + turn, 20), (9 * turn, 2, 3)).save(photo)
        pixels, errors = cache.load(tmp_path, ["a.png"])
        assert not errors
        assert pixels[0].shape == (20, 30 + turn, 3)
        assert (pixels[0] == (9 * turn, 2, 3)).all()


def test_memory_of_a_machine_that_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "meminfo"
    monkeypatch.setattr(storage, "MEMORY_INFO", file)
    file.write_text("MemTotal: 9 kB\nMemAvailable:  7 kB\n")
    assert storage._free_of_machine() == 7 * 1024
    file.write_text("MemTotal: 9 kB\n")
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__, raising=False)
    assert storage._free_of_machine() == 4096 * 500  # macOS: half of all
    file.unlink()
    assert storage._free_of_machine() == 4096 * 500
    monkeypatch.delattr(os, "sysconf")
    assert storage._free_of_machine() == 4 * 2**30  # Windows


@pytest.mark.parametrize("error", [TypeError, OSError])
def test_memory_is_not_kept_where_the_process_has_no_library_of_its_own(
    error: Callable[..., TypeError | OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise error("LoadLibrary() argument 1 must be str, not None")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with memory.kept_memory() as kept:
        assert kept is False


def test_processes_that_are_spawned_get_all_they_need(tmp_path: Path) -> None:
    """Windows and macOS start each process anew, so what it decodes with is pickled."""
    Image.new("RGB", (40, 30), (7, 8, 9)).save(tmp_path / "a.png")
    photos = FilePhotos(tmp_path, ["a.png"])
    images = StreamedSet(photos, np.array([3]), (8, 8), CenterCrop((8, 8), 1.0), 10, workers=2)
    decoding = streaming._Decoding(images, streaming.SharedRing(2, 1, (8, 8)))
    parts = (decoding, streaming._as_it_is, streaming._quiet)
    (again, as_it_is, _) = pickle.loads(pickle.dumps(parts))
    items = np.array([0])
    *_, problems = again[1, (items, Draws(0, 0, items), again.images.photos)]
    assert not problems
    assert as_it_is(problems) is problems
    assert torch.equal(again.ring.images[1, 0, :, 4, 4], torch.tensor([7, 8, 9]).byte())


def test_line_ends_of_windows_in_lists_and_tables(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(b"cat\r\n\r\nbee \r\n")
    assert classes_given([str(tmp_path / "classes.txt")]) == ["cat", "bee"]
    lines = ["image,kind"]
    for number in range(8):
        Image.new("RGB", (20, 16)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{'cat' if number % 2 else 'bee'}")
    (tmp_path / "table.csv").write_bytes("\r\n".join(lines).encode())
    sizes: dict[str, Any] = {"size": (16, 16), "storage": "memory"}
    found = ImageTable(".", "table.csv", label="kind", **sizes).load(tmp_path, 0.25, 0)
    assert found.classes == ["bee", "cat"]
