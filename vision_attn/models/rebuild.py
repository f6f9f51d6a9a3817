"""From a network to plain values and back, so that a checkpoint needs no pickled code.

A description is {"class_path": "vision_attn.models.ViT", "init_args": {...}}. Factories among the
arguments (an attention, a gate, a readout) are descriptions too; all else is plain. `build` calls
nothing but classes of `vision_attn.attention` and `vision_attn.models`, and torch's activations.
"""

import functools
import importlib
import inspect
from typing import Any, ClassVar

from torch import nn

PACKAGES = ("vision_attn.attention", "vision_attn.models")
ACTIVATIONS = "torch.nn.modules.activation"


class Rebuildable(nn.Module):
    """A network that remembers the class and the arguments it was made with.

    `init_class` stays when the network is wrapped in place, as by `fully_shard`.
    `rebuilt_with` fixes the arguments that count only the first time, such as where the starting
    weights come from: a description carries these values, and `build` insists on them.
    """

    init_class: type["Rebuildable"]
    init_args: dict[str, Any]
    rebuilt_with: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        init: Any = cls.__init__
        signature = inspect.signature(init)

        @functools.wraps(init)
        def remember(self: "Rebuildable", *args: Any, **kwargs: Any) -> None:
            if "init_args" not in self.__dict__:  # a parent's __init__ comes second
                bound = signature.bind(self, *args, **kwargs)
                bound.apply_defaults()
                self.__dict__["init_class"] = type(self)
                self.__dict__["init_args"] = dict(list(bound.arguments.items())[1:])
            init(self, *args, **kwargs)

        cls.__init__ = remember  # type: ignore


def describe(network: nn.Module) -> dict[str, Any]:
    """The network's class and arguments as plain values; its weights are not in it.

    Raises ValueError for a network that `build` would refuse: a class from elsewhere, or an
    argument that is neither a plain value nor a factory of vision_attn.
    """
    if not isinstance(network, Rebuildable):
        raise ValueError(
            f"cannot describe a {_path(type(network))}: only the networks of vision_attn.models "
            "can be rebuilt from a checkpoint (TimmModel holds any network of timm)"
        )
    return _described(network.init_class, {**network.init_args, **network.rebuilt_with})


def build(description: Any) -> nn.Module:
    """The network of a description, with fresh weights. The opposite of `describe`.

    Raises ValueError where the description asks for anything but classes of vision_attn that are
    `nn.Module`s, and plain values.
    """
    factory = _factory(description)
    cls: Any = factory.func
    if not issubclass(cls, Rebuildable):
        raise ValueError(f"{description['class_path']} is a part of a network, not a network")
    try:
        return factory(**cls.rebuilt_with)
    except TypeError as error:  # an argument this version does not have
        raise ValueError(f"cannot build {description['class_path']}: {error}") from error


def _described(cls: type, args: dict[str, Any]) -> dict[str, Any]:
    package = ".".join(cls.__module__.split(".")[:2])
    path = f"{package}.{cls.__name__}"  # the public name, which survives a change of files
    if _public(path) is not cls:
        raise ValueError(
            f"cannot describe {_path(cls)}: a checkpoint names only public classes of "
            f"{' and '.join(PACKAGES)}"
        )
    return {"class_path": path, "init_args": {k: _plain(k, v) for k, v in args.items()}}


def _plain(name: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return type(value)(_plain(name, item) for item in value)
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(name, item) for key, item in value.items()}
        case type():
            return _described(value, {})
        case functools.partial():
            return _described_partial(name, value)
    raise ValueError(
        f"cannot describe {name}={value!r}: expected a plain value, a class of vision_attn, or a "
        "functools.partial of one"
    )


def _described_partial(name: str, factory: functools.partial) -> dict[str, Any]:
    """A partial of a class, or jsonargparse's partial of a function that is handed the class."""
    parts = (factory.func, *factory.args)
    at = next((i for i, part in enumerate(parts) if isinstance(part, type)), None)
    if at is None:
        raise ValueError(f"cannot describe {name}={factory!r}: it is not a partial of a class")
    cls: Any = parts[at]
    bound = inspect.signature(cls).bind_partial(*parts[at + 1 :], **factory.keywords)
    return _described(cls, bound.arguments)


def _factory(description: Any) -> functools.partial:
    match description:
        case {"class_path": str(path), "init_args": dict(args), **rest} if not rest:
            return functools.partial(_find(path), **{k: _value(v) for k, v in args.items()})
    raise ValueError(
        f"expected a description with 'class_path' and 'init_args', got {description!r}"
    )


def _value(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return type(value)(_value(item) for item in value)
        case {"class_path": _}:
            factory = _factory(value)
            if issubclass(factory.func, Rebuildable):  # type: ignore[arg-type]
                raise ValueError(f"{value['class_path']} is a network, not a part of one")
            return factory if factory.keywords else factory.func
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _value(item) for key, item in value.items()}
    raise ValueError(f"expected a plain value in a description, got a {_path(type(value))}")


def _find(path: str) -> type[nn.Module]:
    """The class of that public name; ValueError where it is none that may be built."""
    found = _public(path)
    if found is None:
        raise ValueError(
            f"refused to build {path!r}: expected an nn.Module of {' or '.join(PACKAGES)}"
        )
    return found


def _public(path: str) -> type[nn.Module] | None:
    """The class of that name. It must be our own, or an activation: a package also holds what it
    imports."""
    package, _, name = path.rpartition(".")
    known = package in (*PACKAGES, "torch.nn")
    found = vars(importlib.import_module(package)).get(name) if known else None
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        return None
    home = found.__module__
    own = home.startswith(tuple(f"{package}." for package in PACKAGES))
    return found if own or home == ACTIVATIONS else None


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
