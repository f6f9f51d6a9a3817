"""Page that runs a network in the browser: drop a photo, cover parts of it, see what changes."""

from vision_attn.pages.live.page import LiveNetwork, LivePhoto, live_page
from vision_attn.pages.live.program import Program

__all__ = ["LiveNetwork", "LivePhoto", "Program", "live_page"]
