"""The languages of the site: words of its interface, and what a translation has of its page.

A page in Japanese is NAME.ja.md beside NAME.md; a page that has none is shown in English. Words of
the interface (build_site.py, assets/play.js) are keyed by the English ones in words_ja.json.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify, unique

DOCS = Path(__file__).parent
TRANSLATED = ("ja", "zh")  # beside English
ONLY_ENGLISH = "This page is in English."


@cache
def words(language: str) -> dict[str, str]:
    """Return the words of the interface by the English ones; English has none."""
    if language == "en":
        return {}
    text = (DOCS / f"words_{language}.json").read_text(encoding="utf-8")
    translated: dict[str, str] = json.loads(text)
    return translated


def said(text: str, language: str) -> str:
    """Return words of the interface in a language. Raises KeyError if it lacks them."""
    return text if language == "en" else words(language)[text]


def script(language: str) -> str:
    """Return the words of a language as the script that assets/play.js reads."""
    return f"globalThis.words = {json.dumps(words(language), ensure_ascii=False)};\n"


def is_fallback(page: Any, language: str) -> bool:
    """Return whether a page of mkdocs is shown in English where another language was asked."""
    return language != "en" and getattr(page.file, "localization", None) is None


def headings(markdown: str) -> Iterator[re.Match[str]]:
    """Yield the headings of a page, not the comments of its code."""
    fenced = r"^```.*?^```|^ +```.*?^ +```"
    for found in re.finditer(
        rf"{fenced}|^(#+) +(.+?) *$", markdown, flags=re.MULTILINE | re.DOTALL
    ):
        if found[1]:
            yield found


def joined(translation: str) -> str:
    """Return a translation whose lines of Japanese or Chinese are joined without a space."""
    wide = r"[\u2e80-\u9fff\uff00-\uffef]"
    return re.sub(rf"(?<={wide})\n(?={wide})", "", translation)


def with_anchors(translation: str, english: str) -> str:
    """Return a translation whose headings have the anchors of the English ones."""
    used: set[str] = set()
    anchors = [unique(slugify(heading[2], "-"), used) for heading in headings(english)]
    parts, done = [], 0
    for heading, anchor in zip(headings(translation), anchors, strict=True):
        parts += [translation[done : heading.start()], f"{heading[0].rstrip()} {{#{anchor}}}"]
        done = heading.end()
    return "".join([*parts, translation[done:]])
