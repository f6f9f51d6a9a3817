"""How the package runs a network that it does not train: in eval mode, and left as it was.

Everything that runs a network of the user's goes through `infer`, or is run inside `eval_mode`.
Threads may share a network: what one of them has changed comes back when the last is done.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from vision_attn.compat.process_wide import ProcessWide
from vision_attn.compat.torch_private import (
    default_device,
    kept_activations,
    saved_buffers,
    write_count,
)
from vision_attn.errors import quoted
from vision_attn.standing import Standing, standing_of
from vision_attn.types import Model

__all__ = [
    "eval_mode",
    "frozen_parameters",
    "infer",
    "is_open",
    "modules_of",
    "networks_of",
    "usual_defaults",
]

Output = TypeVar("Output")

# Where a network is told to compute twice what it could keep for the backward pass: hooks would not
# see it again.
CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")
# Forward passes that write no buffer in eval mode; those of others may, as torch's observers do.
READ_ONLY = ("torch.nn.modules.", "torchvision.", "timm.", "transformers.", "vision_attn.")


@dataclass
class _Kept:
    """What a module was before the first of its holders, and how many hold it now.

    Two context managers that each restore what they saw would disturb each other where threads
    overlap: the first to leave would end what the other still needs, and the second would restore
    what the first had set. Here the first holder changes a module, and the last one puts it back.
    """

    training: bool
    checkpointing: Sequence[str]
    buffers: Sequence[tuple[str, Tensor, int | None, Tensor]]  # name, itself, times written, value
    holders: int = 0

    @classmethod
    def of(cls, module: nn.Module) -> "_Kept":
        own, buffers = vars(module), saved_buffers(module)
        if buffers and _writes_nothing(module):
            buffers = []
        return cls(
            module.training,
            [name for name in CHECKPOINTING if own.get(name) is True],
            [
                (name, buffer, write_count(buffer), buffer.detach().clone())
                for name, buffer in buffers
            ],
        )

    def __bool__(self) -> bool:
        """Whether there is anything to put back."""
        return self.training or bool(self.checkpointing or self.buffers)

    def restore(self, module: nn.Module) -> None:
        """Put all of it back but the flag."""
        for name in self.checkpointing:
            setattr(module, name, True)
        for name, buffer, count, value in self.buffers:
            if count is None or write_count(buffer) != count:
                with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                    buffer.copy_(value)
            if getattr(module, name, None) is not buffer:
                setattr(module, name, buffer)


_LOCK = threading.RLock()
_KEPT: dict[nn.Module, _Kept] = {}
_FROZEN: dict[int, int] = {}  # holders of a weight's requires_grad, by its id
_ASKED = threading.local()  # .scopes: networks that do not change, how they stand, their modules
_OPEN = threading.local()  # .modules: those of the networks in eval mode here, one dict a network


@contextmanager
def unchanging(network: nn.Module) -> Iterator[None]:
    """Look once, as this is opened, how a network stands: nothing changes it while this is open.

    That is for the time of one call, in this thread: its modules, attributes and hooks stay.
    """
    scopes = _ASKED.__dict__.setdefault("scopes", [])
    scopes.append((network, *standing_of(network)))
    try:
        yield
    finally:
        scopes.pop()


def _standing(network: nn.Module) -> tuple[Standing, dict[nn.Module, str]]:
    for known, *found in reversed(getattr(_ASKED, "scopes", ())):
        if known is network:
            return found[0], found[1]
    return standing_of(network)


def asked_once(network: nn.Module, question: Callable[[nn.Module], Output]) -> Output:
    """Return what a function says of a network, computed once as long as the network stands so.

    question: of the modules, their classes, attributes and hooks, never of values of weights; what
    it returns may hold none of the network's modules or tensors, which that would keep alive.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.inference import asked_once
        >>> network, answers = nn.Dropout(0.5), iter("ab")
        >>> def question(network):
        ...     return next(answers)
        >>> asked_once(network, question), asked_once(network, question)
        ('a', 'a')
        >>> network.p = 0.25
        >>> asked_once(network, question)
        'b'
    """
    answers = _standing(network)[0].answers
    if question not in answers:
        answers[question] = question(network)
    return cast(Output, answers[question])


def modules_of(network: nn.Module) -> dict[nn.Module, str]:
    """Name every module once, in the order of `network.named_modules()`.

    The same dictionary may be given to others: it is to be read.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.inference import modules_of
        >>> list(modules_of(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))).values())
        ['', '0', '1', '1.0']
    """
    return _standing(network)[1]


def infer(forward: Callable[..., Output], *inputs: Any, **options: Any) -> Output:
    """Call a network, or a function of one, in eval mode and without gradients.

    Inside an `eval_mode` of this thread that holds the network, gradients stay as they are there.

    Args:
        forward: A network or whatever calls one, see `networks_of`.
        inputs: What it is called with.
        options: By name.

    Returns:
        What it returns.

    Examples:
        >>> import torch
        >>> from vision_attn.inference import infer
        >>> network = torch.nn.Dropout(0.5).train()
        >>> infer(network, torch.ones(3)), network.training
        (tensor([1., 1., 1.]), True)
    """
    networks = networks_of(forward)
    if networks and all(map(is_open, networks)):
        return forward(*inputs, **options)
    with eval_mode(*networks), torch.no_grad():
        return forward(*inputs, **options)


def is_open(network: nn.Module) -> bool:
    """Whether this thread is inside an `eval_mode` of a network, alone or as a part of another."""
    return any(network in modules for modules in getattr(_OPEN, "modules", ()))


@contextmanager
def eval_mode(*networks: Callable[..., Any] | Model) -> Iterator[None]:
    """Have networks predict while this is open, then put back all that was changed for it.

    They run in eval mode, and keep what a backward pass needs (no gradient checkpointing). Put back
    are the train/eval flags of each module, by the network's own `train` where it has one, and the
    buffers of its state dict, where it writes them itself. Gradients stay on or off.

    Args:
        networks: Networks, or whatever calls one, see `networks_of`.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.inference import eval_mode
        >>> network = nn.Dropout().train()
        >>> with eval_mode(network):
        ...     inside = network.training
        >>> inside, network.training
        (False, True)
    """
    found = [each for network in networks for each in networks_of(network)]
    with ExitStack() as stack:
        for network in dict.fromkeys(found):
            if not is_open(network):
                stack.enter_context(_eval_mode(network))
        yield


@contextmanager
def _eval_mode(network: nn.Module) -> Iterator[None]:
    modules = modules_of(network)
    opened = _OPEN.__dict__.setdefault("modules", [])
    held: list[nn.Module] = []
    try:
        with _LOCK:
            for module in _to_hold(network, modules):
                kept = _KEPT.get(module) or _Kept.of(module)
                if kept:
                    _KEPT[module] = kept
                    kept.holders += 1
                    held.append(module)
                    for name in kept.checkpointing:
                        setattr(module, name, False)
            if any(module.training for module in held):
                with suppress(NotImplementedError):  # what torch.export made has one mode
                    network.eval()
        opened.append(modules)
        try:
            with kept_activations():
                yield
        finally:
            opened.remove(modules)
    finally:
        with _LOCK:
            _release(modules, held)


def _to_hold(network: nn.Module, modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that may have something to put back, or that somebody else holds."""
    stateful = asked_once(network, _stateful)
    return [
        module
        for at, module in enumerate(modules)
        if module.training or module in _KEPT or at in stateful
    ]


def _stateful(network: nn.Module) -> frozenset[int]:
    """Which modules, by their numbers, have buffers to keep, or can be told to compute twice."""
    return frozenset(
        at
        for at, module in enumerate(modules_of(network))
        if (saved_buffers(module) and not _writes_nothing(module))
        or not vars(module).keys().isdisjoint(CHECKPOINTING)
    )


def _writes_nothing(module: nn.Module) -> bool:
    return f"{getattr(module.forward, '__module__', '')}.".startswith(READ_ONLY)


def _release(modules: Iterable[nn.Module], held: Iterable[nn.Module]) -> None:
    """Take one holder off each; put back those that nobody holds any more."""
    training = []
    for module in held:
        kept = _KEPT[module]
        kept.holders -= 1
        if not kept.holders:
            del _KEPT[module]
            kept.restore(module)
            training += [module] if kept.training else []
    own = [module for module in training if type(module).train is not nn.Module.train]
    if own and not any(module in _KEPT for module in modules):
        flags = [module.training for module in modules]
        for module in own:  # what it does besides, such as to forget what it keeps to predict
            with suppress(NotImplementedError):
                module.train()
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag
    for module in training:
        module.training = True


def _hold_weights(network: nn.Module) -> list[bool]:
    """Which modules have parameters or buffers of their own."""
    return [
        any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))
        for module in modules_of(network)
    ]


@contextmanager
def frozen_parameters(network: nn.Module) -> Iterator[None]:
    """Turn gradients on, even inside no_grad or inference mode, with every parameter frozen.

    Raises ValueError for a network made in inference mode, whose weights no gradient can pass.
    """
    holders = list(compress(modules_of(network), asked_once(network, _hold_weights)))
    own = [weight for module in holders for weight in module.parameters(recurse=False)]
    for weight in [*own, *(weight for module in holders for weight in module.buffers(False))]:
        if weight.is_inference():
            named = [*network.named_parameters(), *network.named_buffers()]
            name = next((name for name, other in named if other is weight), "a weight")
            raise ValueError(
                f"gradients cannot pass {quoted(name)}: the network was made in "
                "torch.inference_mode(); "
                "build it, load it or copy it (copy.deepcopy) outside that mode"
            )
    with _LOCK:
        held = [
            weight
            for weight in {id(weight): weight for weight in own}.values()
            if weight.requires_grad or id(weight) in _FROZEN
        ]
        for weight in held:
            _FROZEN[id(weight)] = _FROZEN.get(id(weight), 0) + 1
            weight.requires_grad_(False)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        with _LOCK:
            for weight in held:
                _FROZEN[id(weight)] -= 1
                if not _FROZEN[id(weight)]:
                    del _FROZEN[id(weight)]
                    weight.requires_grad_(True)


@contextmanager
def usual_defaults() -> Iterator[None]:
    """Make tensors as torch does where nobody has told it otherwise.

    They are float32, on the CPU and outside inference mode, and gradients are on: a network that is
    built here is the same whatever the caller has set.

    Examples:
        >>> import torch
        >>> from vision_attn.inference import usual_defaults
        >>> with torch.device("meta"), torch.inference_mode(), usual_defaults():
        ...     weight = torch.nn.Linear(2, 3).weight
        >>> weight.device.type, weight.is_inference()
        ('cpu', False)
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_FLOAT32.held())
        if default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def _float32_by_default() -> Iterator[None]:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


_FLOAT32 = ProcessWide(_float32_by_default)


def networks_of(forward: Callable[..., Any] | Model) -> list[nn.Module]:
    """Find the networks that a callable calls: itself, or what it holds or refers to.

    Looked through are models, `functools.partial`, methods, the variables of a function that are
    not its own (`lambda images: model.network(images).logits`) and the attributes of an object.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.inference import networks_of
        >>> network = nn.Identity()
        >>> networks_of(lambda images: network(images).flatten(1)) == [network]
        True
    """
    networks: dict[nn.Module, None] = {}
    seen: set[int] = set()

    def look(held: Any) -> None:
        if isinstance(held, nn.Module):
            networks[held] = None
        elif id(held) not in seen:
            seen.add(id(held))
            for inner in _inside(held):
                look(inner)

    look(forward)
    return list(networks)


def _inside(held: Any) -> Iterable[Any]:
    """What a callable or an object refers to, by which it may call a network."""
    if isinstance(held, partial):
        return [held.func, *held.args, *held.keywords.values()]
    if isinstance(held, MethodType):
        return [held.__self__]
    if isinstance(held, FunctionType):
        names = _names(held.__code__)
        return [
            *(cell.cell_contents for cell in held.__closure__ or () if not _is_empty(cell)),
            *(held.__globals__[name] for name in names if name in held.__globals__),
            *(held.__defaults__ or ()),
            *(held.__kwdefaults__ or {}).values(),
        ]
    if isinstance(held, type | ModuleType) or not hasattr(held, "__dict__"):
        return []
    calling = (nn.Module, Model, partial, MethodType, FunctionType)
    return [value for value in vars(held).values() if isinstance(value, calling)]


def _names(code: CodeType) -> set[str]:
    """The names that a function and those inside it look up."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _is_empty(cell: CellType) -> bool:
    """Whether a variable of an outer function has no value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
