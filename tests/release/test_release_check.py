"""What the release check looks at: bytes, the wheel's files, and whether a command raised."""

import sys
import tomllib
import zipfile
from pathlib import Path

import yaml

import vision_attn

sys.path.insert(0, str(Path(__file__).parent))
from check import ROOT, differing, missing, said


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "vision_attn/__init__.py"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == vision_attn.__version__


def test_a_file_that_the_wheel_lacks_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    files = [path for path in (ROOT / "vision_attn").rglob("*") if path.is_file()]
    left_out = "vision_attn/models/shelf/vit_planted.safetensors"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in files:
            name = path.relative_to(ROOT).as_posix()
            if name != left_out:
                archive.writestr(name, "")
        for path in (ROOT / "configs").glob("*.yaml"):
            archive.writestr(f"vision_attn/configs/{path.name}", "")
    assert missing(wheel) == [f"{name} is not in the wheel" for name in (left_out, "LICENSE")]


def test_other_bytes_are_seen(tmp_path: Path) -> None:
    for folder, text in (("one", "a"), ("other", "a"), ("third", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.whl").write_text(text)
    assert differing(tmp_path / "one", tmp_path / "other") == []
    assert differing(tmp_path / "one", tmp_path / "third") == ["x.whl differs from the other build"]


def test_a_traceback_is_a_failure_even_with_exit_status_0() -> None:
    code = "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()"
    assert said([sys.executable, "-c", "print('fine')"]) == []
    assert said([sys.executable, "-c", code])[-1] == "ZeroDivisionError: division by zero"
    assert said([sys.executable, "-c", "raise SystemExit('no')"]) == ["exit status 1", "no"]
