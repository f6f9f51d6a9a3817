"""Configs by name: the files here, and those that come with the package.

Light to import: YAML is read when a file is.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

__all__ = [
    "NEWEST",
    "about",
    "find_config",
    "local_configs",
    "shipped_configs",
    "values_of",
    "without",
]

# As --ckpt_path: that file of the newest run of the config's name; auto: last, if there is one.
NEWEST = ("best", "last", "auto")


def local_configs() -> list[str]:
    """List the YAML files in the folder configs/ of the current folder."""
    return sorted(str(path) for path in Path("configs").glob("*.yaml"))


def shipped_configs() -> dict[str, Path]:
    """List the configs that come with vision_attn, by name: in a wheel, or beside the sources."""
    package = Path(__file__).parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if found := sorted(folder.glob("*.yaml")):
            return {path.stem: path for path in found}
    return {}


def find_config(name: str | Path) -> Path:
    """Find a config: a file, or the name of one that comes with vision_attn.

    Raises ValueError, with the nearest names, where there is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_configs()
    if path.parent == Path(".") and path.suffix in ("", ".yaml") and path.stem in shipped:
        return shipped[path.stem]
    close = get_close_matches(str(name), [*local_configs(), *shipped], n=3, cutoff=0.5)
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(f"no such config file: {name}{hint}")


def about(path: Path) -> tuple[str, str]:
    """Read the comment at the top of a config: its first sentence, and what to expect of it."""
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("#").strip())
    first = " ".join(comment).split(". ")[0].split(" vision-attn ")[0].strip().rstrip(".")
    paragraphs = " ".join(line or "\n" for line in comment).split("\n")
    expected = [p.strip() for p in paragraphs if p.strip().startswith("expected:")]
    return first, expected[0].removeprefix("expected:").strip() if expected else ""


def values_of(words: Sequence[str], *options: str) -> list[str]:
    """List the values given to an option, as `--option value` or `--option=value`."""
    spaced = [words[i + 1] for i, word in enumerate(words[:-1]) if word in options]
    joined = [w.partition("=")[2] for w in words if w.partition("=")[0] in options and "=" in w]
    return spaced + joined


def without(words: Sequence[str], *options: str) -> list[str]:
    """Leave out these options and their values; --config and -c by default."""
    options = options or ("-c", "--config")
    kept, words = [], list(words)
    while words:
        word = words.pop(0)
        if word in options:
            del words[:1]
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept
