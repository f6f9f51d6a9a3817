"""The interface of the pages in English, Japanese and Chinese."""

import json
from functools import cache
from importlib.resources import files

__all__ = ["interface"]


@cache
def interface() -> str:
    """Return the script that shows the words of words.json in the reader's language."""
    here = files("vision_attn.pages")
    words = json.loads((here / "words.json").read_text(encoding="utf-8"))
    script = (here / "language.js").read_text(encoding="utf-8")
    return f"const INTERFACE = {json.dumps(words, ensure_ascii=False)};\n{script}"
