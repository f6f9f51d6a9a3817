"""What a config may be, and how large."""

from pathlib import Path

import pytest
import yaml

from vision_attn.fitting.guard import check_yaml


def config(tmp_path: Path, text: str, name: str = "a.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_aliases_are_part_of_yaml(tmp_path: Path) -> None:
    text = "model: &one {a: 1}\ndata: *one\ntrainer: {<<: *one, b: [*one, *one]}\n"
    assert check_yaml(config(tmp_path, text)) == yaml.safe_load(text)


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(9), "more than 100000 values"),
        (bomb(40), "more than 100000 values"),
        ("a: &a [*a]", r"\*a inside its own anchor &a never ends"),
        ("a: &a {b: [1, {c: *a}]}", r"\*a inside its own anchor &a"),
        ("a: " + "[" * 500 + "]" * 500, "more than 100 lists or mappings nested in one another"),
        ("a: *b", "is not YAML: line 1: found undefined alias"),
        ("a: !!python/object/apply:os.system [x]", "is not YAML: line 1: could not determine"),
        ("a: !!timestamp x", "is not YAML: a value is not what its tag"),
        ("[1]", "expected sections such as model, data and trainer"),
        ("a: [", "is not YAML: line"),
        ("trainer: 1", "trainer: expected options by name, got 1"),
        ("model:", "model: expected options by name, got nothing"),
        ("data: [a]", r"data: expected options by name, got \['a'\]"),
    ],
)
def test_a_config_without_an_end_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = config(tmp_path, text)
    with pytest.raises(ValueError, match=message) as caught:
        check_yaml(path)
    assert str(caught.value).startswith(str(path))


def test_as_many_values_as_the_written_out_aliases_have(tmp_path: Path) -> None:
    assert len(check_yaml(config(tmp_path, bomb(4)))) == 4  # 10 + 100 + 1000 + 10000


def test_the_files_that_a_config_names_are_read_too(tmp_path: Path) -> None:
    config(tmp_path, bomb(9), "network.yaml")
    outer = config(tmp_path, "model: {network: network.yaml}", "outer.yaml")
    with pytest.raises(ValueError, match=r"network\.yaml: more than 100000 values"):
        check_yaml(outer)
    config(tmp_path, "model: outer.yaml", "network.yaml")  # a circle
    assert check_yaml(outer)
