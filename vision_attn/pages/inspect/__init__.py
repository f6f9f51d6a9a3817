"""Page to explore attention: click a point of the photo, see what each head attends to."""

from vision_attn.pages.inspect.page import Page
from vision_attn.pages.inspect.parts import (
    ChannelGate,
    Features,
    Gate,
    Inspection,
    Layer,
    Map,
    Prediction,
    QueryKeys,
    SpatialGate,
    Weights,
    Windows,
)

__all__ = [
    "ChannelGate",
    "Features",
    "Gate",
    "Inspection",
    "Layer",
    "Map",
    "Page",
    "Prediction",
    "QueryKeys",
    "SpatialGate",
    "Weights",
    "Windows",
]
