"""What people see: overlays on photos, sheets of maps, figures of a run, one offline page."""

from vision_attn.render.alignment import alignment, weighed_words
from vision_attn.render.figures import channel_gates, confusion_matrix, learning_curves
from vision_attn.render.markdown import markdown_table
from vision_attn.render.overlay import ColorMap, Dim, Style, overlay
from vision_attn.render.page import (
    Figures,
    Gallery,
    Row,
    Section,
    Shot,
    Table,
    Text,
    shot,
    write_page,
)
from vision_attn.render.picture import enlarged, mark, save, shrunk, with_colorbar
from vision_attn.render.scale import Scale, fit, natural, times_uniform
from vision_attn.render.scores import (
    Curves,
    Ranked,
    best_and_worst,
    outlined,
    small_curves,
)
from vision_attn.render.sheet import Panel, heads_overview, heatmap_grid
