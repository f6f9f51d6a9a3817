"""What the libraries raise while they build or download a model, as one line."""

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from vision_attn.errors import ModelError, quoted

__all__ = ["library_errors", "no_empty_layers", "not_much_larger_than"]

FROM_FILE = (
    "give its weights with --weights FILE (weights=FILE), or take random ones with "
    "--pretrained false (pretrained=False)"
)
UNKNOWN = re.compile(r"got an unexpected keyword argument '(.*)'")
NAMES_ADVICE = ": num_classes=N gives it N classes; wrap(network, transform, classes) names them"
NAMES = "classes", "class_names", "labels", "names"  # for which num_classes is the argument


@contextmanager
def library_errors(model: str, hint: str = "", offline: str = FROM_FILE) -> Iterator[None]:
    """Turn whatever a library raises while it builds or downloads a model into one ModelError.

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
        if unknown := UNKNOWN.search(first):
            advice = NAMES_ADVICE if unknown[1] in NAMES else hint
            raise ModelError(f"{model} takes no argument {quoted(unknown[1])}{advice}") from error
        raise ModelError(f"{model} cannot be built: {first}{hint}") from error


@contextmanager
def no_empty_layers() -> Iterator[None]:
    """Raise ValueError where a layer would have no weights, of which torch only warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Initializing zero-element tensors")
        try:
            yield
        except UserWarning as warning:
            if "zero-element" not in str(warning):
                raise
            raise ValueError("a layer would have no weights: a size is 0") from warning


@contextmanager
def not_much_larger_than(held: int) -> Iterator[None]:
    """Raise ValueError where a network gets far more weights than a file has numbers for.

    It is raised before the rest is drawn, which may be more than the memory holds.
    """
    limit = 4 * held + 10**6  # a constructor may make some in vain
    count, thread = 0, threading.get_ident()

    def add(module: nn.Module, name: str, weights: nn.Parameter | None) -> None:
        nonlocal count
        if weights is not None and threading.get_ident() == thread:
            count += weights.numel()
            if count > limit:
                raise ValueError(
                    f"it would have more than {limit:,} weights, and the file holds {held:,}"
                )

    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()
