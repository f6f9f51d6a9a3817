"""Fonts: which there are, and text that they can draw, in any script, without warnings."""

from contextlib import suppress
from functools import cache

from matplotlib.font_manager import FontProperties, findSystemFonts, fontManager, get_font
from PIL import ImageFont

__all__ = ["families", "fitted", "pil_font", "printable", "wrapped"]

FAMILIES = (  # the first comes with matplotlib, the others draw what it lacks
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Hiragino Sans",
    "Yu Gothic",
    "Meiryo",
    "IPAexGothic",
    "TakaoPGothic",
    "VL Gothic",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Arial Unicode MS",
)


@cache
def families() -> list[str]:
    """List those of FAMILIES that this machine has, in that order."""
    there = {font.name for font in fontManager.ttflist}
    if there.isdisjoint(FAMILIES[1:]):  # matplotlib's list may be older than the fonts
        for path in set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}:
            with suppress(OSError, RuntimeError):  # bitmap fonts and the like
                fontManager.addfont(path)
        there = {font.name for font in fontManager.ttflist}
    return [name for name in FAMILIES if name in there]


def printable(text: str, longest: int = 80) -> str:
    """Put text on one line, cut in the middle if long, with a box for each missing letter."""
    text = " ".join(text.split())
    if len(text) > longest:
        text = f"{text[: longest // 2]}…{text[len(text) - (longest - 1) // 2 :]}"
    return "".join(letter if any(_has(f, letter) for f in families()) else "□" for letter in text)


def fitted(text: str, font_size: int, width: int, bold: bool = False) -> str:
    """Make text printable, and cut it until it is no wider than `width` pixels."""
    longest = 240
    while True:
        short = printable(text, longest)
        if longest <= 3 or pil_font(short, font_size, bold).getlength(short) <= width:
            return short
        longest = min(len(short), longest) - 1


def wrapped(text: str, font_size: int, width: int, bold: bool = False) -> list[str]:
    """Break text between words into lines of at most `width` pixels; a wider word is cut."""
    font = pil_font(text, font_size, bold)
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [fitted(line, font_size, width, bold) for line in lines]


def pil_font(text: str, size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Load a font that has every letter of the text, else the first; only that is ever bold."""
    for name in families():
        if all(_has(name, letter) for letter in text):
            return _load(name, size, bold and name == FAMILIES[0])
    return _load(FAMILIES[0], size, bold)


@cache
def _load(family: str, size: int, bold: bool) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_file(family, bold), size)


@cache
def _has(family: str, letter: str) -> bool:
    return get_font(_file(family)).get_char_index(ord(letter)) != 0


@cache
def _file(family: str, bold: bool = False) -> str:
    wanted = FontProperties(family=[family], weight="bold" if bold else "normal")
    return str(fontManager.findfont(wanted, fallback_to_default=False))
