"""What the user is told when a model cannot be had."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class ModelError(ValueError):
    """A model could not be found, read or built. The message is one line for the user."""


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """`; did you mean a, b, c?`: the nearest names, else those with `given` in them, or nothing."""
    by_lower = {name.lower(): name for name in names}
    near = [by_lower[name] for name in get_close_matches(given.lower(), by_lower, n=3)]
    near = near or [name for lower, name in by_lower.items() if given.lower() in lower][:5]
    return f"; did you mean {', '.join(near)}?" if near else ""


FROM_FILE = (
    "give its weights with --weights FILE (weights=FILE), or take random ones with "
    "--pretrained false (pretrained=False)"
)


@contextmanager
def library_errors(model: str, hint: str = "", offline: str = FROM_FILE) -> Iterator[None]:
    """Whatever a library raises while it builds or downloads a model, as one ModelError.

    hint: what to add to its own words. offline: what to do where a download fails.
    """
    try:
        yield
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(
            f"{model}: could not be downloaded and is not in the cache; {offline}"
        ) from error
    except Exception as error:  # a constructor can say anything of arguments it does not take
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(f"{model} cannot be built: {first}{hint}") from error
