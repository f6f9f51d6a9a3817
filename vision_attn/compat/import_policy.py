"""jsonargparse's policy of what a config may import, for as long as one parser works.

Tried with jsonargparse 4.53. Its public `set_parsing_settings` changes the settings of the whole
process; they are put back through its private dict. Where that is gone, they stay changed, and
other parsers of the process need `set_parsing_settings(import_path_allowlist=...)`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jsonargparse

try:
    from jsonargparse._common import parsing_settings
except ImportError:
    parsing_settings = {}

__all__ = ["importing_only"]


@contextmanager
def importing_only(packages: Sequence[str]) -> Iterator[None]:
    """Let jsonargparse import nothing but what is defined in these packages.

    Both the name in a config and the place where its object is defined must lie in one of them.
    """
    before = dict(parsing_settings)
    jsonargparse.set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=list(packages),
        instantiate_subclass_spec_in_any=False,
    )
    try:
        yield
    finally:
        parsing_settings.update(before)
