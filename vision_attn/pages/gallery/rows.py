"""Rows of the gallery, made from what the store of a run has of each photo."""

from typing import Any

from vision_attn.pages.page import Row, Shot

__all__ = ["page_row"]


def page_row(values: dict[str, Any]) -> Row:
    """Make a row of the gallery from its values in a run; see `runs.entries.Entry`."""
    shots = [Shot(**{**shot, "size": tuple(shot["size"])}) for shot in values["shots"]]
    return Row(**{**values, "shots": shots})
