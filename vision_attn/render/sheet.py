"""Sheets of many pictures: a photo with its maps by several methods, the heads of every layer.

Axes: H, W a picture's height and width, h, w a map's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image, ImageDraw

from vision_attn.render.fonts import fitted, pil_font, wrapped
from vision_attn.render.overlay import ColorMap, Style, overlay, resize
from vision_attn.render.picture import INK, PAPER, QUIET, WARNING, Picture, bar, place, ticks
from vision_attn.render.scale import Scale, times_uniform

__all__ = ["Panel", "heads_overview", "heatmap_grid"]

PANEL = 400  # pixels: the width of one panel of a grid
GAP = 24
SMALL, LARGE = 16, 24  # pixels: text


@dataclass(frozen=True, eq=False)
class Panel:
    """One picture of a grid; below it the colour bar it was painted with, or else a note.

    Args:
        title: Stands above the picture.
        picture: Bytes, (H W 3).
        note: Stands below it, where there is no scale.
        scale: The colour bar's.
        style: What painted it, and the colour bar.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render import Panel
        >>> Panel("photo", np.zeros((8, 8, 3), np.uint8), note="as the model sees it").title
        'photo'
    """

    title: str
    picture: Picture
    note: str = ""
    scale: Scale | None = None
    style: Style | None = None


def heatmap_grid(
    panels: Sequence[Panel], title: str = "", columns: int = 5, warning: str = ""
) -> Picture:
    """Draw a photo and its maps (and masks) side by side, all of one size, each with its name.

    Args:
        panels: The photo, its maps and masks.
        title: Above the picture.
        columns: At most this many a row.
        warning: Text below the title, in another colour, on several lines where the grid is narrow.

    Returns:
        The picture, uint8 (h w 3).

    Raises:
        ValueError: There is no panel.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> panel = render.Panel("photo", np.zeros((8, 8, 3), np.uint8))
        >>> render.heatmap_grid([panel, panel], columns=2).dtype
        dtype('uint8')
    """
    if not panels:
        raise ValueError("a grid needs at least one panel")
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    height, width = panels[0].picture.shape[:2]
    tall = min(max(round(PANEL * height / width), 40), 3 * PANEL)
    above, below = 2 * SMALL, 3 * SMALL
    under_title = GAP + (3 * LARGE // 2 if title else 0)
    wide = GAP + columns * (PANEL + GAP)
    lines = wrapped(warning, SMALL, wide - 2 * GAP, bold=True) if warning else []
    line, spare = 3 * SMALL // 2, SMALL // 2 if lines else 0
    top = GAP + (2 * LARGE if title else 0) + len(lines) * line + spare
    size = (wide, top + rows * (above + tall + below) + GAP // 2)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    _write(draw, (GAP, GAP), title, LARGE, INK, wide - 2 * GAP, bold=True)
    for number, text in enumerate(lines):
        at = (GAP, under_title + number * line)
        _write(draw, at, text, SMALL, WARNING, wide - 2 * GAP, bold=True)
    for number, panel in enumerate(panels):
        x = GAP + number % columns * (PANEL + GAP)
        y = top + number // columns * (above + tall + below)
        _write(draw, (x, y), panel.title, SMALL, INK, PANEL)
        sheet.paste(Image.fromarray(resize(panel.picture, tall, PANEL)), (x, y + above))
        under = (x, y + above + tall + SMALL // 2)
        if panel.scale and panel.style:
            _legend(sheet, under, PANEL, panel.style, panel.scale)
        else:
            _write(draw, under, panel.note, SMALL, QUIET, PANEL)
    return np.asarray(sheet)


def heads_overview(
    maps: Float[ndarray, "layer head h w"],
    photo: Picture | None = None,
    title: str = "",
    side: int = 120,
) -> Picture:
    """Draw the attention of every head over the photo: a row a layer, a column a head, one scale.

    Args:
        maps: (layer head h w).
        photo: Uint8 (h w 3); None for the maps alone.
        title: Above the picture.
        side: The longer side of each small picture, in pixels.

    Returns:
        The picture, uint8 (h w 3).

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> render.heads_overview(np.full((2, 3, 4, 4), 1 / 16, np.float32), side=16).dtype
        dtype('uint8')
    """
    layers, heads, h, w = maps.shape
    height, width = (round(side * n / max(h, w)) for n in (h, w))
    dark = np.full((height, width, 3), 20, np.uint8)
    under = dark if photo is None else resize(photo, height, width)
    style, scale = ColorMap(), times_uniform(maps)
    gap, left, top = 6, GAP + 3 * SMALL, GAP + 6 * SMALL
    sheet = Image.new(
        "RGB",
        (max(left + heads * (width + gap) + GAP, PANEL), top + layers * (height + gap) + GAP),
        PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    _write(draw, (GAP, GAP), title, LARGE, INK, sheet.width - GAP - PANEL // 2 - 2 * GAP, bold=True)
    _legend(sheet, (sheet.width - GAP - PANEL // 2, GAP), PANEL // 2, style, scale)
    _write(draw, (left, top - round(3 * SMALL)), "head", SMALL, QUIET, width)
    _write(draw, (GAP, top - round(1.6 * SMALL)), "layer", SMALL, QUIET, left)
    font = pil_font("0123456789", SMALL)
    for head in range(heads):
        at = (left + head * (width + gap) + width // 2, top - SMALL // 2)
        draw.text(at, str(head), QUIET, font, anchor="ms")
    for layer in range(layers):
        y = top + layer * (height + gap)
        draw.text((left - SMALL, y + height // 2), str(layer), QUIET, font, anchor="rm")
        for head in range(heads):
            small = overlay(under, maps[layer, head], style=style, scale=scale)
            sheet.paste(Image.fromarray(small), (left + head * (width + gap), y))
    return np.asarray(sheet)


def _write(
    draw: ImageDraw.ImageDraw,
    at: tuple[int, int],
    text: str,
    size: int,
    ink: tuple[int, int, int],
    width: int,
    bold: bool = False,
) -> None:
    text = fitted(text, size, width, bold)
    draw.text(at, text, ink, pil_font(text, size, bold))


def _legend(
    sheet: Image.Image, at: tuple[int, int], width: int, style: Style, scale: Scale
) -> None:
    """Draw a colour bar with its ticks below; the last one names the unit."""
    x, y = at
    sheet.paste(Image.fromarray(bar(style, scale, width, SMALL // 2)), at)
    draw = ImageDraw.Draw(sheet)
    size = SMALL - 2
    labels = ticks(scale, most=4)
    free = float(x + width)  # to the left of here nothing is written yet
    for number, (value, text) in enumerate(reversed(labels)):
        text = f"{text} {scale.unit}".rstrip() if number == 0 else text
        font = pil_font(text, size)
        half = font.getlength(text) / 2
        tick = x + round((width - 1) * place(value, scale))
        middle = max(x + half, min(tick, free - half))
        if middle + half > free:
            continue
        draw.line([(tick, y + SMALL // 2), (tick, y + SMALL // 2 + 3)], QUIET, 1)
        draw.text((middle, y + SMALL), text, QUIET, font, anchor="ma")
        free = middle - half - size
