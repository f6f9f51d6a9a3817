"""`vision-attn probe MODEL`: how tokens go through a network, or why there is no map.

Light to import, so that its help comes at once: torch comes in with `run`.
"""

import argparse

from vision_attn.commands import options
from vision_attn.terminal import say

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's words and options."""
    options.add_model(parser)


def run(args: argparse.Namespace) -> int:
    """Print the path of the tokens as a table; ValueError for a network that hides its modules."""
    from vision_attn.tokens import probe

    for line in str(probe(options.load(args))).splitlines():
        say(line)
    return 0
