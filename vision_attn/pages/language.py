"""The words of the pages in English, Japanese and Chinese.

Python and the scripts write English. words.json has its templates with their translations; a page
holds those that it can need, and language.js shows them. In a template {Name} stands for numbers,
{NAME} for a name without a space, {_name} for words that have a translation, too, {__name} for
several of them with semicolons, {name} for anything else.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["Name", "interface", "stays", "texts", "translations"]

LONGEST = 10_000  # letters: a longer value of a page's data is a picture or numbers
ESCAPED = re.compile(r"\\u[0-9a-f]{4}")
WORD = re.compile("[A-Za-z]+")


class Name(str):
    """Text that stays as it is in every language: a class, a model, an error.

    Examples:
        >>> from vision_attn.pages import Name, Text
        >>> Text("Classes", [Name("right")]).html()
        '<p translate="no">right</p>'
    """

    __slots__ = ()


def stays(text: str) -> str:
    """Write the attribute that keeps a name from being translated; nothing for other text."""
    return ' translate="no"' if isinstance(text, Name) else ""


@cache
def translations() -> dict[str, dict[str, str]]:
    """Read words.json: the Japanese and Chinese of each English template."""
    words = (files("vision_attn.pages") / "words.json").read_text(encoding="utf-8")
    return json.loads(words)


def interface(page: str) -> str:
    """Return the script that shows a page's words in the reader's language.

    page: what is written on it, and the scripts that write more. Only templates of which all words
    occur there come with it.
    """
    occurring = set(WORD.findall(ESCAPED.sub(" ", page)))
    words = {
        english: words
        for english, words in translations().items()
        if occurring.issuperset(WORD.findall(re.sub(r"\{\w+\}", "", english)))
    }
    script = (files("vision_attn.pages") / "language.js").read_text(encoding="utf-8")
    content = json.dumps(words, ensure_ascii=False, separators=(",", ":"))
    return f"const INTERFACE = {content};\n{script}"


def texts(data: Any) -> Iterator[str]:
    """Yield the texts among a page's data, without pictures and numbers."""
    if isinstance(data, str):
        if len(data) <= LONGEST:
            yield data
    elif isinstance(data, dict):
        yield from data
        for value in data.values():
            yield from texts(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from texts(value)
