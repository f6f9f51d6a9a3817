"""Figures of scored heatmaps: curves of each method against the baselines, best and worst images.

Axes: H, W a picture's height and width, h, w a mask's, s points of a curve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import cv2
import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray
from PIL import Image, ImageDraw

from vision_attn.render.figures import BLUE, INK, QUIET, RED, _drawn, _figure, _look
from vision_attn.render.fonts import fitted, pil_font, printable
from vision_attn.render.overlay import resize
from vision_attn.render.picture import PAPER, Picture

__all__ = ["Curves", "Ranked", "best_and_worst", "outlined", "small_curves"]

Colour = tuple[int, int, int]
Curve = Float[ndarray, " s"]
COLOURS = RED, BLUE
FAINT = "#ecb8a2", "#adc0f0"  # the same, of references
OUTLINES: tuple[Colour, ...] = (255, 255, 255), (255, 214, 10)  # white, yellow
COLUMNS = 4  # of small figures
MOST_TICKS = 12  # with names


@dataclass(frozen=True, eq=False)
class Curves:
    """Curves of one method: the name of each line, and its values at even steps from 0 to 1.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.scores import Curves
        >>> Curves("Rollout", {"deletion": np.linspace(1, 0, 5)}, note="0.50").title
        'Rollout'
    """

    title: str
    lines: Mapping[str, Curve]
    note: str = ""


def small_curves(
    panels: Sequence[Curves],
    references: Sequence[Curves],
    title: str,
    x: str,
    ticks: Sequence[str] | None = None,
) -> Picture:
    """Draw a small figure a method, all on one scale, the references faint behind each.

    x: the name of the axis. ticks: names of the points along x, shares of the whole if None.
    ValueError without a panel.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.scores import Curves, small_curves
        >>> panel = Curves("Rollout", {"deletion": np.linspace(1, 0, 5)})
        >>> small_curves([panel], [], "The class's probability", "share removed").dtype
        dtype('uint8')
    """
    if not panels:
        raise ValueError("expected the curves of at least one method, got none")
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    names = list(panels[0].lines)
    every = np.concatenate([c for panel in [*panels, *references] for c in panel.lines.values()])
    low, high = min(0.0, float(np.nanmin(every))), max(1.0, float(np.nanmax(every)))
    with _look():
        figure = _figure(3.1 * columns + 0.4, 2.35 * rows + (1.6 if ticks else 1.0))
        figure.suptitle(printable(title, 160), x=0.01, ha="left", size=13)
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for place in axes[len(panels) :]:
            place.set_visible(False)
        for place, panel in zip(axes, panels, strict=False):
            place.set_title(printable(panel.title, 34), size=10.5, pad=16)
            place.text(
                0, 1.02, printable(panel.note, 60), size=8, color=QUIET, transform=place.transAxes
            )
            place.grid(True)
            place.set(xlim=(0, 1), ylim=(low * 1.05, high * 1.02))
            for reference in references:
                for name, colour in zip(names, FAINT, strict=False):
                    line = reference.lines[name]
                    place.plot(np.linspace(0, 1, len(line)), line, color=colour, linewidth=0.9)
            for name, colour in zip(names, COLOURS, strict=False):
                line = panel.lines[name]
                place.plot(np.linspace(0, 1, len(line)), line, color=colour)
            if ticks:
                step = -(-len(ticks) // MOST_TICKS)
                at = np.linspace(0, 1, len(ticks))[::step]
                place.set_xticks(at, ticks[::step], rotation=60, ha="right")
            else:
                place.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])  # short: panels are close
        labelled = (rows - 1) * columns if ticks else max(0, len(panels) - columns)
        for number, place in enumerate(axes[: len(panels)]):
            place.tick_params(labelbottom=number >= labelled)
            place.set_xlabel(x if number >= labelled else "")
        handles = [axes[0].plot([], [], color=c)[0] for c in COLOURS[: len(names)]]
        labels = list(names)
        if references:
            handles += [
                axes[0].plot([], [], color=c, linewidth=0.9)[0] for c in FAINT[: len(names)]
            ]
            labels += [f"{name} of the baselines" for name in names]
        figure.legend(
            handles, labels, loc="outside lower left", ncols=4, labelcolor=INK, fontsize=9
        )
        return _drawn(figure)


@dataclass(frozen=True, eq=False)
class Ranked:
    """A method and its images, best first: pictures, each with a line to go below it.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.scores import Ranked
        >>> photo = np.zeros((8, 8, 3), np.uint8)
        >>> Ranked("Rollout", "deletion", best=[(photo, "0.1")], worst=[(photo, "0.9")]).title
        'Rollout'
    """

    title: str
    note: str
    best: Sequence[tuple[Picture, str]]
    worst: Sequence[tuple[Picture, str]]


def best_and_worst(rows: Sequence[Ranked], title: str, side: int = 176) -> Picture:
    """Draw a row a method: its best images to the left, its worst to the right.

    side: the width of each image, in pixels. ValueError without a row.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.scores import Ranked, best_and_worst
        >>> photo = np.zeros((8, 8, 3), np.uint8)
        >>> row = Ranked("Rollout", "deletion", best=[(photo, "0.1")], worst=[(photo, "0.9")])
        >>> best_and_worst([row], "Best and worst by deletion").dtype
        dtype('uint8')
    """
    if not rows:
        raise ValueError("expected the images of at least one method, got none")
    gap, name, line = 12, 220, 22
    top = 92
    each = max(len(side) for row in rows for side in (row.best, row.worst))
    height, width = next(
        picture.shape[:2] for row in rows for picture, _ in [*row.best, *row.worst]
    )
    tall = round(side * height / width)
    wide = 2 * gap + name + 2 * each * (side + gap) + 2 * gap
    sheet = Image.new("RGB", (wide, top + len(rows) * (tall + line + gap) + gap), PAPER)
    draw = ImageDraw.Draw(sheet)
    ink, quiet = (38, 38, 42), (110, 110, 118)

    def write(
        x: int,
        y: int,
        text: str,
        size: int,
        room: int,
        colour: tuple[int, int, int] = ink,
        bold: bool = False,
    ) -> None:
        text = fitted(text, size, room, bold)
        draw.text((x, y), text, colour, pil_font(text, size, bold))

    left, right = gap + name, gap + name + each * (side + gap) + 2 * gap
    write(gap, gap, title, 22, wide - 2 * gap, bold=True)
    write(left, top - 30, "best", 16, side, (29, 78, 216), bold=True)
    write(right, top - 30, "worst", 16, side, (194, 65, 12), bold=True)
    for number, row in enumerate(rows):
        y = top + number * (tall + line + gap)
        write(gap, y, row.title, 16, name - gap, bold=True)
        write(gap, y + 24, row.note, 14, name - gap, quiet)
        for start, pictures in ((left, row.best), (right, row.worst)):
            for place, (picture, note) in enumerate(pictures):
                x = start + place * (side + gap)
                sheet.paste(Image.fromarray(resize(picture, tall, side)), (x, y))
                write(x, y + tall + 3, note, 13, side, quiet)
    return np.asarray(sheet)


def outlined(
    picture: Picture, *masks: Bool[ndarray, "h w"], colours: Sequence[Colour] = OUTLINES
) -> Picture:
    """Draw the outline of each mask on the picture, dark under its colour to show on any ground.

    Args:
        picture: Uint8 (h w 3).
        masks: Bool (h w) each.
        colours: White for the first mask and yellow for the second; others go round.

    Returns:
        A picture of the same size.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.scores import outlined
        >>> photo, mask = np.zeros((32, 32, 3), np.uint8), np.zeros((4, 4), bool)
        >>> mask[1:3, 1:3] = True
        >>> bool(outlined(photo, mask).any())
        True
    """
    height, width = picture.shape[:2]
    drawn = picture.copy(order="C")
    line = max(1, min(height, width) // 160)
    for mask, colour in zip(masks, cycle(colours), strict=False):
        large = cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST)
        contours, _ = cv2.findContours(large, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        for tone, thickness in (((20, 20, 20), 3 * line), (colour, line)):
            cv2.drawContours(drawn, contours, -1, tone, thickness, cv2.LINE_AA)
    return drawn
