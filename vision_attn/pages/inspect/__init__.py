"""Page to explore attention: click a point of the photo, see what each head attends to."""

from vision_attn.pages.inspect.page import Page
from vision_attn.pages.inspect.parts import (
    Features,
    Gate,
    Inspection,
    Layer,
    Prediction,
    QueryKeys,
    ShownChannelGate,
    ShownMap,
    ShownSpatialGate,
    Weights,
    Windows,
)

__all__ = [
    "Features",
    "Gate",
    "Inspection",
    "Layer",
    "Page",
    "Prediction",
    "QueryKeys",
    "ShownChannelGate",
    "ShownMap",
    "ShownSpatialGate",
    "Weights",
    "Windows",
]
