"""What a config may be: YAML of a bounded size."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vision_attn.errors import quoted
from vision_attn.fitting.messages import nearest

__all__ = ["check_yaml"]

MOST_VALUES = 100_000  # in a config, each alias counted with all that it stands for
DEEPEST = 100  # levels of lists and mappings


def check_yaml(path: str | Path) -> dict[str, Any]:
    """Read a config.

    Raises ValueError for one that is not YAML, is too large, or has a misspelt key beside
    class_path.
    """
    content = _loaded(Path(path), set())
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected sections such as model, data and trainer")
    for name in ("model", "data", "trainer"):
        section = content.get(name, {})
        if not isinstance(section, (dict, str)):  # a word is another file's name
            got = "nothing" if section is None else repr(section)
            raise ValueError(f"{path}: {name}: expected options by name, got {got}")
    for where, section in _classes_named(content):
        for key in section.keys() - {"class_path", "init_args", "dict_kwargs"}:
            hint = nearest(str(key), ["class_path", "init_args"])
            raise ValueError(f"{path}: {where}: unknown key {quoted(key)}{hint}")
    return content


def _loaded(path: Path, seen: set[Path]) -> Any:
    """The content of a YAML file, once it and the YAML files that it names are seen to be small."""
    seen.add(path.resolve())
    try:
        text = path.read_text(encoding="utf-8")
        _check_size(text, path)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ValueError(f"{path} is not YAML: line {line}: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    except AttributeError as error:  # of its regular expressions
        raise ValueError(f"{path} is not YAML: a value is not what its tag (!!) says") from error
    for name in _strings(content):
        if name.lower().endswith((".yaml", ".yml", ".json")):
            for part in (Path(name), path.parent / name):
                if part.is_file() and part.resolve() not in seen:
                    _loaded(part, seen)
    return content


def _check_size(text: str, path: Path) -> None:
    """ValueError for text that its aliases make endless or too large, read event by event."""
    sizes: dict[str, int] = {}
    inside: list[tuple[str | None, int]] = []  # the anchor of each open list, its values so far
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((event.anchor, 1))
            if len(inside) > DEEPEST:
                raise ValueError(
                    f"{path}: more than {DEEPEST} lists or mappings nested in one another"
                )
            continue
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in inside):
                raise ValueError(
                    f"{path}: *{event.anchor} inside its own anchor &{event.anchor} never ends"
                )
            anchor, size = None, sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = inside.pop()
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        if inside:
            outer, so_far = inside[-1]
            inside[-1] = (outer, so_far + size)
            if so_far + size > MOST_VALUES:
                raise ValueError(
                    f"{path}: more than {MOST_VALUES} values, its aliases (*{anchor or 'name'}) "
                    "written out: no config is that large"
                )


def _strings(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, (dict, list)):
        for value in content.values() if isinstance(content, dict) else content:
            yield from _strings(value)


def _classes_named(content: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping inside that names a class, with its dotted place."""
    if isinstance(content, dict):
        if "class_path" in content:
            yield where, content
        for key, value in content.items():
            yield from _classes_named(value, f"{where}.{key}" if where else str(key))
    elif isinstance(content, list):
        for item in content:
            yield from _classes_named(item, where)
