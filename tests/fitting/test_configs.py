"""Configs by name, from anywhere."""

from pathlib import Path

import pytest

from vision_attn.cli import main
from vision_attn.fitting.configs import about, find_config, shipped_configs, values_of, without

CONFIGS = Path(__file__).parents[2] / "configs"


def test_every_config_has_a_first_line_and_an_expected_score() -> None:
    found = shipped_configs()
    assert found == {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}
    for path in found.values():
        first, expected = about(path)
        assert 20 < len(first) < 160
        assert "vision-attn" not in first
        assert expected


def test_the_comment_of_a_config(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "# A net, on\n# photos; no download. More.\n#\n#   x\n#\n# expected: 97.9 %\n# b\na: 1\n"
    )
    assert about(path) == ("A net, on photos; no download", "97.9 % b")
    path.write_text("a: 1\n")
    assert about(path) == ("", "")


def test_a_config_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("vit_planted", "vit_planted.yaml"):
        assert find_config(name) == CONFIGS / "vit_planted.yaml"
    Path("vit_planted").write_text("mine")
    assert find_config("vit_planted") == Path("vit_planted")
    for name in ("vit_plantd", "configs/vit_planted", "../configs/vit_planted.yaml"):
        with pytest.raises(
            ValueError, match=f"no such config file: {name}.*did you mean .*vit_planted"
        ):
            find_config(name)


def test_the_command_lists_and_prints_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["configs"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in shipped_configs())
    (line,) = [line for line in out.splitlines() if line.startswith("vit_planted ")]
    assert "A small Vision Transformer on procedural images" in line
    assert "97.8 % of the test images" in line
    assert main(["configs", "vit_planted"]) == 0
    assert capsys.readouterr().out == (CONFIGS / "vit_planted.yaml").read_text()
    assert main(["configs", "vit_plantd"]) == 2
    assert "no config named 'vit_plantd'; did you mean vit_planted" in capsys.readouterr().err


def test_words_and_their_values() -> None:
    words = ["-c", "a", "--x", "1", "--config=b", "--config"]
    assert values_of(words, "-c", "--config") == ["a", "b"]
    assert without(words) == ["--x", "1"]
    assert without(["--allow", "a", "b", "--allow=c"], "--allow") == ["b"]


def test_a_wheel_has_them_inside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vision_attn.fitting import configs

    (tmp_path / "vision_attn/configs").mkdir(parents=True)
    (tmp_path / "vision_attn/configs/inside.yaml").write_text("# One.\n")
    monkeypatch.setattr(configs, "__file__", str(tmp_path / "vision_attn/fitting/configs.py"))
    assert find_config("inside") == tmp_path / "vision_attn/configs/inside.yaml"
    (tmp_path / "vision_attn/configs/inside.yaml").unlink()
    assert shipped_configs() == {}


def test_the_wheel_takes_them_along() -> None:
    import tomllib

    build = tomllib.loads((CONFIGS.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["force-include"] == {"configs": "vision_attn/configs"}
