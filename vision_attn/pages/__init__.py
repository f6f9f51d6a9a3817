"""Offline HTML pages: what they share, and a folder for each kind."""

from vision_attn.pages.page import (
    Commands,
    Figures,
    Gallery,
    Links,
    Name,
    Row,
    Section,
    Shot,
    Table,
    Text,
    figure_shot,
    shot,
    write_page,
)

__all__ = [
    "Commands",
    "Figures",
    "Gallery",
    "Links",
    "Name",
    "Row",
    "Section",
    "Shot",
    "Table",
    "Text",
    "figure_shot",
    "shot",
    "write_page",
]
