"""A page on which attention is explored: ask a point of the photo, see what each head answers."""

from vision_attn.render.inspect.page import Page
from vision_attn.render.inspect.parts import (
    ChannelGate,
    Gate,
    Inspection,
    Layer,
    Map,
    Prediction,
    QueryKeys,
    SpatialGate,
    Weights,
)
