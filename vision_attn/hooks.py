"""Hooks on modules that see one run of one thread, and leave other runs alone.

Axes: none.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn
from torch.utils.hooks import RemovableHandle

from vision_attn.compat.torch_private import forward_hooks, uncompiled

__all__ = [
    "Hooks",
    "apart",
    "copied_network",
    "current_scope",
    "has_hooks",
    "is_temporary",
    "sharing_copy",
]

Network = TypeVar("Network", bound=nn.Module)

# Torch copies a module's hooks one by one, and reads them while a module runs.
_CHANGING = threading.Lock()
_SCOPE = threading.local()  # .own: what runs in this thread, if anything does


def current_scope() -> object:
    """What is running in this thread: other at each `apart`, and in every thread.

    Examples:
        >>> from vision_attn.hooks import apart, current_scope
        >>> outside = current_scope()
        >>> with apart():
        ...     inside = current_scope()
        >>> inside is outside, current_scope() is outside
        (False, True)
    """
    try:
        return _SCOPE.own
    except AttributeError:
        _SCOPE.own = object()
        return _SCOPE.own


@contextmanager
def apart() -> Iterator[None]:
    """Keep what runs while this is open from the hooks and modes of what runs around it.

    So that one explanation may be made inside a hook of a network that another explains.
    """
    outer = current_scope()
    _SCOPE.own = object()
    try:
        yield
    finally:
        _SCOPE.own = outer


class Hooks:
    """Forward hooks for the length of a `with`, in the thread and the scope that made this alone.

    Two threads can run one network: the hooks of the one must not see the images of the other. As
    torch may call a hook that is just being removed, and then without the keyword arguments that it
    asks for, all hooks go through one function that takes anything. What was compiled runs as it is
    written meanwhile, as it would pass hooks over.

    Args:
        everywhere: Whether they work in all scopes of the thread.

    Examples:
        >>> import torch
        >>> from vision_attn.hooks import Hooks
        >>> network, shapes = torch.nn.Linear(2, 3), []
        >>> with Hooks() as hooks:
        ...     hooks.after(network, lambda module, args, out: shapes.append(tuple(out.shape)))
        ...     _ = network(torch.rand(5, 2))
        >>> _ = network(torch.rand(7, 2))
        >>> shapes
        [(5, 3)]
    """

    def __init__(self, everywhere: bool = False) -> None:
        self._scope = threading.get_ident() if everywhere else current_scope()
        self._handles: list[RemovableHandle] = []
        self._uncompiled = uncompiled()

    def before(self, module: nn.Module, hook: Callable[..., Any], **options: bool) -> None:
        """Call a hook before a module runs; options of `register_forward_pre_hook`."""
        with _CHANGING:
            self._handles.append(
                module.register_forward_pre_hook(_Temporary(hook, self._scope), **options)
            )

    def after(self, module: nn.Module, hook: Callable[..., Any], **options: bool) -> None:
        """Call a hook after a module has run; options of `register_forward_hook`."""
        with _CHANGING:
            self._handles.append(
                module.register_forward_hook(_Temporary(hook, self._scope), **options)
            )

    def __enter__(self) -> "Hooks":
        self._uncompiled.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        with _CHANGING:
            while self._handles:
                self._handles.pop().remove()
        self._uncompiled.__exit__(None, None, None)


class _Temporary:
    """A hook of one scope, or of the thread of a number in all of its scopes."""

    __slots__ = ("hook", "scope")

    def __init__(self, hook: Callable[..., Any], scope: object) -> None:
        self.hook, self.scope = hook, scope

    def __call__(self, *given: Any) -> Any:
        if self.scope is current_scope() or self.scope == threading.get_ident():
            return self.hook(*given)
        return None

    def __deepcopy__(self, memo: dict[int, object]) -> "_Temporary":
        """Itself: in a copy of the network it is called as in vain as in another thread."""
        return self


def is_temporary(hook: object) -> bool:
    """Whether a hook is one of `Hooks`, and so no part of what the network computes."""
    return isinstance(hook, _Temporary)


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether a hook of somebody else sees what one of these modules is given, or gives.

    Examples:
        >>> import torch
        >>> from vision_attn.hooks import has_hooks
        >>> network = torch.nn.Linear(2, 3)
        >>> has_hooks([network])
        False
        >>> handle = network.register_forward_hook(print)
        >>> has_hooks([network])
        True
    """
    found = forward_hooks(modules)
    return found is None or not all(map(is_temporary, found))


def copied_network(network: Network) -> Network:
    """Copy a network with its hooks, although another thread may just put some on it."""
    with _CHANGING:
        return copy.deepcopy(network)


def sharing_copy(network: Network) -> Network:
    """Copy a network's modules and hooks, but not its weights and buffers, which both then have.

    Examples:
        >>> import torch
        >>> from vision_attn.hooks import sharing_copy
        >>> network = torch.nn.Linear(2, 3)
        >>> copied = sharing_copy(network)
        >>> copied is network, copied.weight is network.weight
        (False, True)
    """
    with _CHANGING:
        shared = [*network.parameters(), *network.buffers()]
        return copy.deepcopy(network, {id(one): one for one in shared})
