"""argparse's private state: why it is needed, and what happens without it.

Tried with Python 3.11.
"""

import re
from argparse import SUPPRESS, ArgumentParser

ACTIONS = "_actions"  # of ArgumentParser


def options_of(parser: ArgumentParser) -> list[str]:
    """Every spelling of every option, once; not those that are hidden from the help.

    argparse lists them in its help alone, which is what is read without the reach.
    """
    actions = getattr(parser, ACTIONS, None)
    if actions is not None:
        shown = [action for action in actions if action.help != SUPPRESS]
        return [option for action in shown for option in action.option_strings]
    entries = re.findall(r"^ {2,8}(-.*?)(?:  |$)", parser.format_help(), re.MULTILINE)
    return re.findall(r"(?<![\w-])--?\w[\w.-]*", "\n".join(entries))
