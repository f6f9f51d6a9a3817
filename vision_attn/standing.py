"""How a network stands: what is kept of it to see, at the next call, whether it has changed.

To ask every module anew what it is takes longer than a small network takes to run. What a network
computes follows from its modules, their classes, attributes and forward hooks, and the values of
its weights. All but the values is kept here, and compared at each call, which is quick; of buffers
of whole numbers, which may say where a token goes, it is kept whether they were written.

Axes: none.
"""

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn

from vision_attn.compat.torch_private import (
    BUFFERS,
    CHILDREN,
    FORWARD_HOOKS,
    STATE,
    forward_hooks,
    write_count,
)
from vision_attn.hooks import is_temporary

__all__ = ["PASSING", "Standing", "standing_of"]

# Attributes that change how a network runs, and not what it computes.
PASSING = frozenset({"training", "grad_checkpointing", "gradient_checkpointing"})
TORCHS = PASSING.union(vars(nn.Module()))  # and what every module has of torch's
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial, type)
MOST_PARTS = 64  # of a container that is compared
MOST_STANDINGS = 4  # of one network
DEEPEST = 3


class Standing:
    """A network as it stood at some time; it does not keep the network alive.

    answers: what is known of a network that stands so, by question. No answer may hold a module or
    a tensor of the network's.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.standing import Standing
        >>> network = nn.Sequential(nn.Dropout(0.5), nn.ReLU())
        >>> standing = Standing({network: "", network[0]: "0", network[1]: "1"})
        >>> standing.modules() == {network: "", network[0]: "0", network[1]: "1"}
        True
        >>> network[0].p = 0.25
        >>> standing.modules() is None
        True
    """

    def __init__(self, modules: Mapping[nn.Module, str]) -> None:
        self.answers: dict[Any, Any] = {}
        self._names = list(modules.values())
        kinds = {kind: None for module in modules for kind in type(module).__mro__}
        self._kinds = [(kind, _of_class(kind)) for kind in kinds]
        self._shared = _shared_hooks()
        self._modules = list(map(_kept, modules))

    def modules(self) -> dict[nn.Module, str] | None:
        """Return the modules with their names if all of them stand as they did, or else None."""
        found: list[Any] = []
        try:
            if self._shared != forward_hooks(()):
                return None
            for kind, own in self._kinds:
                if own != vars(kind):
                    return None
            for module_ref, kind, count, select, known in self._modules:
                module: Any = module_ref()
                own = vars(module)
                if type(module) is not kind or len(own) != count:
                    return None
                now = select(own)
                if known != now and known != _without_temporary(now):
                    return None
                found.append(module)
        except Exception:  # gone, or values that cannot be compared
            return None
        return dict(zip(found, self._names, strict=True))


_STANDINGS: WeakKeyDictionary[nn.Module, tuple[Standing, ...]] = WeakKeyDictionary()


def standing_of(network: nn.Module) -> tuple[Standing, dict[nn.Module, str]]:
    """Find how a network stands now, the same as before if it stood so lately; and its modules."""
    lately = _STANDINGS.get(network, ())
    for standing in lately:
        modules = standing.modules()
        if modules is not None:
            if standing is not lately[0]:
                others = (other for other in lately if other is not standing)
                _STANDINGS[network] = (standing, *others)
            return standing, modules
    modules = walk(network)
    standing = Standing(modules)
    _STANDINGS[network] = (standing, *lately[: MOST_STANDINGS - 1])
    return standing, modules


def walk(network: nn.Module) -> dict[nn.Module, str]:
    """Name every module once, in the order of `network.named_modules()`, but faster."""
    names: dict[nn.Module, str] = {}

    def visit(module: nn.Module, name: str) -> None:
        names[module] = name
        for own, child in module.named_children():
            if child not in names:
                visit(child, f"{name}.{own}" if name else own)

    visit(network, "")
    return names


def _kept(module: nn.Module) -> tuple[Any, ...]:
    """Keep of a module what `Standing.modules` compares; what is known comes first there."""
    own = vars(module)
    if not own.keys() >= set(STATE):  # another torch: it never stands as it did
        return ref(module), type(module), None, None, None
    names = [name for name in own if name not in TORCHS]
    select = itemgetter(*STATE, *names)
    held = zip(STATE, _without_temporary(select(own)), strict=False)
    known: list[Any] = [_Held(name, one) if one else {} for name, one in held]
    known += [_attribute(own[name]) for name in names]
    return ref(module), type(module), len(own), select, tuple(known)


def _of_class(kind: type) -> dict[str, Any]:
    """Keep of a class's own attributes which they are, and of containers what they hold."""
    return {
        name: _attribute(value) if isinstance(value, list | set | dict) else value
        for name, value in vars(kind).items()
    }


def _attribute(value: Any) -> Any:
    try:
        return _comparable(value)
    except Exception:  # its own code, or a reference to what is gone
        return _OfKind(value)


def _comparable(value: Any, depth: int = 0) -> Any:
    """Copy what is plain; keep of code which it is, of other objects their plain attributes."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, CODE):
        return _Same(value)
    if isinstance(value, tuple | list | set | frozenset | dict):
        return _container(value, depth)
    if depth or isinstance(value, nn.Module | torch.Tensor) or not hasattr(value, "__dict__"):
        return _OfKind(value)
    return _Attributes(value)


def _container(value: Any, depth: int) -> Any:
    """Copy a small container of what is plain or code; its keys are plain."""
    if len(value) > MOST_PARTS or depth > DEEPEST:
        return _OfKind(value)
    keys = () if isinstance(value, tuple | list) else value
    each = value.values() if isinstance(value, dict) else value
    parts = [_comparable(part, depth + 1) for part in each]
    if not all(isinstance(key, PLAIN) for key in keys) or any(map(_is_of_kind, parts)):
        return _OfKind(value)
    if isinstance(value, dict):
        return dict(zip(value, parts, strict=True))
    if isinstance(value, set | frozenset):
        return frozenset(parts)
    return tuple(parts) if isinstance(value, tuple) else parts


def _is_of_kind(known: Any) -> bool:
    return isinstance(known, _OfKind)


def _without_temporary(held: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave temporary hooks out of what a module holds, by the order of `STATE`."""
    count = len(STATE) - len(FORWARD_HOOKS)
    hooks = [
        {key: hook for key, hook in list(one.items()) if not is_temporary(hook)}
        for one in held[count : len(STATE)]
    ]
    return (*held[:count], *hooks, *held[len(STATE) :])


class _Held:
    """The names of what a module holds, children with who they are, hooks with their numbers."""

    def __init__(self, what: str, held: Any) -> None:
        self._names = partial(_names, what)
        self._known = self._names(held)

    def __eq__(self, other: object) -> bool:
        return self._known == self._names(other)

    __hash__ = None  # type: ignore[assignment]


def _names(what: str, held: Any) -> list[Any]:
    if what == CHILDREN:
        return [*held.keys(), *map(id, held.values())]  # torch.jit has mappings of its own
    names = [name for name, value in held.items() if value is not None]
    if what == BUFFERS:
        names += [_written(buffer) for buffer in held.values() if _is_index(buffer)]
    return names


def _is_index(buffer: torch.Tensor | None) -> bool:
    """Whether a buffer may say where tokens go; one number counts batches."""
    return buffer is not None and buffer.ndim > 0 and not buffer.is_floating_point()


def _written(buffer: torch.Tensor) -> tuple[int, object]:
    """Which buffer it is and how often it was written; not equal to itself if that is not known."""
    count = write_count(buffer)
    return id(buffer), object() if count is None else count


class _Same:
    """The very same object, which this does not keep alive."""

    def __init__(self, value: Any) -> None:
        self._ref = ref(value)

    def __eq__(self, other: object) -> bool:
        return self._ref() is other

    __hash__ = None  # type: ignore[assignment]


class _OfKind:
    """Anything of the same class, as a network may keep what it has just computed."""

    def __init__(self, value: Any) -> None:
        self._kind = type(value)

    def __eq__(self, other: object) -> bool:
        return type(other) is self._kind

    __hash__ = None  # type: ignore[assignment]


class _Attributes(_OfKind):
    """An object of the same class with the same plain attributes, such as a configuration."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._known = {name: _comparable(part, 1) for name, part in vars(value).items()}

    def __eq__(self, other: object) -> bool:
        return type(other) is self._kind and self._known == vars(other)

    __hash__ = None


def _shared_hooks() -> list[Any] | None:
    """Torch's forward hooks for all modules."""
    hooks = forward_hooks(())
    return None if hooks is None else list(map(_Same, hooks))
