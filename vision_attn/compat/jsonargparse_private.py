"""A parser's types, put right where Python's own cache of them turned them around.

`Optional[Union[int, float]]` is the same to Python as `Optional[Union[float, int]]`, so whichever
of the two a process wrote first stands for both. jsonargparse tries types in order: if float comes
first, `--trainer.limit_val_batches 1`, one batch, is read as 1.0, all of them. Tried with
jsonargparse 4.53.0. Without `_typehint` nothing is changed.
"""

from functools import reduce
from operator import or_
from typing import Any, get_args

__all__ = ["whole_numbers_first"]


def whole_numbers_first(parser: Any) -> None:
    """Have each option that takes int or float read a whole number as an int."""
    for action in getattr(parser, "_actions", ()):
        kinds = get_args(getattr(action, "_typehint", None))
        if int in kinds and float in kinds and kinds.index(float) < kinds.index(int):
            rest = [kind for kind in kinds if kind is not int]
            action._typehint = reduce(or_, rest, int)
