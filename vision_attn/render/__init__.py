"""Pictures for people: overlays on photos, sheets of maps, figures of a run, one offline page."""

from vision_attn.render.diagnosis import block_curves, interval_curves, number_grid
from vision_attn.render.figures import (
    channel_gates,
    confusion_matrix,
    learning_curve_panels,
    learning_curves,
    show,
)
from vision_attn.render.markdown import markdown_table
from vision_attn.render.overlay import ColorMap, Dim, Style, colored, overlay
from vision_attn.render.picture import (
    enlarged,
    mark,
    save,
    save_within,
    shrunk,
    thumbnail,
    with_caption,
    with_colorbar,
)
from vision_attn.render.scale import Scale, fit, natural, times_uniform
from vision_attn.render.scores import (
    Curves,
    Ranked,
    best_and_worst,
    outlined,
    small_curves,
)
from vision_attn.render.sheet import Panel, heads_overview, heatmap_grid

__all__ = [
    "ColorMap",
    "Dim",
    "Panel",
    "Scale",
    "Style",
    "block_curves",
    "channel_gates",
    "colored",
    "confusion_matrix",
    "enlarged",
    "fit",
    "heads_overview",
    "heatmap_grid",
    "interval_curves",
    "learning_curve_panels",
    "learning_curves",
    "mark",
    "markdown_table",
    "natural",
    "number_grid",
    "outlined",
    "overlay",
    "save",
    "save_within",
    "show",
    "shrunk",
    "thumbnail",
    "times_uniform",
    "with_caption",
    "with_colorbar",
]
