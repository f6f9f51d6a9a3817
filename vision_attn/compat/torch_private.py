"""torch's private state: each reach, why it is needed, and what happens without it.

Tried with torch 2.15.0. The names that are reached for are constants at the top, so that a test
can take each away.

Axes: b batch, head, i queries, j keys, d width, e value width.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from vision_attn.compat.process_wide import ProcessWide

DISPATCH, DISPATCH_MODE = "torch.utils._python_dispatch", "TorchDispatchMode"
WITHOUT_MODES = "_disable_current_modes"
SCHEMA = "_schema"  # of torch's operations
LEFT_ALONE = "_should_skip_dynamo"  # of that mode
FLASH_CHOICE = "_fused_sdp_choice"  # of torch
FLASH_KERNEL = "_scaled_dot_product_flash_attention_for_cpu"  # of torch.ops.aten
CHILDREN, PARAMETERS, BUFFERS = "_modules", "_parameters", "_buffers"  # of nn.Module
COMPILED_CALL = "_compiled_call_impl"  # of nn.Module, once `compile` was called
COMPILED_FROM = "_orig_mod"  # of what torch.compile(module) returns
UNSAVED = "_non_persistent_buffers_set"  # of nn.Module
VERSION, BASE = "_version", "_base"  # of Tensor
FUNCTION, ROUNDING = "_forward_cls", "_saved_rounding_mode"  # of nodes of autograd's graph
FIND_COMPILER = "get_cpp_compiler"  # of torch._inductor.cpp_builder
CHECKPOINTS, REENTRANT = "torch.utils.checkpoint", "CheckpointFunction"
OTHER_CHECKPOINTS = (  # where `use_reentrant=False`: one a version
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)
FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
STATE = (CHILDREN, PARAMETERS, BUFFERS, *FORWARD_HOOKS)  # of nn.Module, in its vars
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


# Operations: no public class sees each of them once, whatever called it.


class _NoDispatchMode:
    """Stands for the mode where torch has none of that name: it sees nothing.

    Then no path of tokens is found, and explainers of attention refuse every network.
    """

    def __enter__(self) -> "_NoDispatchMode":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _dispatch_mode() -> Any:
    """Make a base for modes of ours; their code is Python, and torch has nothing to compile in it.

    torch has its compiler leave a mode's code alone, and loads it for that at the first operation,
    which takes as long as torch itself. A network runs `uncompiled` where we watch it, so that no
    compiler comes by. Without this second reach it is loaded.
    """
    try:
        base: Any = getattr(import_module(DISPATCH), DISPATCH_MODE)
    except (ImportError, AttributeError):
        return _NoDispatchMode
    return type(DISPATCH_MODE, (base,), {LEFT_ALONE: classmethod(lambda cls: False)})


DispatchMode: Any = _dispatch_mode()


def default_device() -> torch.device:
    """The device that tensors are made on where none is named.

    torch 2.9 raises an error in `get_default_device` after `set_default_device(None)`.
    """
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


def unwatched() -> AbstractContextManager[Any]:
    """Keep what runs in this thread from all dispatch modes.

    No public function leaves a mode for a while. Without the reach modes see our own arithmetic on
    what they have no label for, which only costs time.
    """
    disabled = getattr(import_module(DISPATCH), WITHOUT_MODES, nullcontext)
    return disabled()


def written_arguments(operation: Any) -> list[int] | None:
    """The places of the arguments that an operation writes into.

    No public attribute tells. None without the reach: nobody knows, and the caller has to run it.
    """
    schema = getattr(operation, SCHEMA, None)
    if schema is None:
        return None
    of_each = [getattr(one, "alias_info", None) for one in schema.arguments]
    return [at for at, alias in enumerate(of_each) if alias is not None and alias.is_write]


# Attention: no public function says which kernel torch chooses, or returns its log-sum-exp.


def chooses_flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, scale: float | None, **others: Any
) -> bool | None:
    """Whether torch would choose its flash kernel for attention.

    others: the other arguments of `scaled_dot_product_attention`, by name.

    None without the reach: nobody knows, and the caller has to let torch's own attention run.
    """
    choice = getattr(torch, FLASH_CHOICE, None)
    if choice is None:
        return None
    chosen = choice(query, key, value, dropout_p=dropout_p, scale=scale, **others)
    return chosen == SDPBackend.FLASH_ATTENTION.value


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, scale: float | None
) -> tuple[Tensor, Tensor] | None:
    """torch's flash kernel on a CPU: context (b head i e), log sum_j exp(score_ij) (b head i).

    None where torch would choose another kernel, and without the reach: the public function gives
    the same context, and whoever needs the sums computes them from queries and keys.
    """
    kernel = getattr(torch.ops.aten, FLASH_KERNEL, None)
    if kernel is None or not chooses_flash(query, key, value, dropout_p, scale):
        return None
    return kernel(query, key, value, dropout_p, scale=scale)


# Modules: the public iterators leave out what is registered under two names, or cost a walk
# through all levels below.


def own_names(module: nn.Module) -> tuple[str, ...]:
    """The names of the module's own children and parameters.

    Without the reach the public walk through the whole tree below gives the same names.
    """
    try:
        own = *getattr(module, CHILDREN).items(), *getattr(module, PARAMETERS).items()
    except AttributeError:
        tree = module.named_modules(remove_duplicate=False)
        parameters = module.named_parameters(recurse=False, remove_duplicate=False)
        own = *((name, child) for name, child in tree if name and "." not in name), *parameters
    return tuple([name for name, value in own if value is not None])


def saved_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The module's own buffers that are part of its state dict, by name.

    No public function says which are. Without the reach all of its own.
    """
    unsaved = getattr(module, UNSAVED, ())
    buffers = module.named_buffers(recurse=False)
    return [(name, buffer) for name, buffer in buffers if name not in unsaved]


def write_count(tensor: Tensor) -> int | None:
    """How often a tensor was written into; None where torch does not count, as in inference mode.

    Without the reach None, and whoever asks has to expect that it was.
    """
    return None if tensor.is_inference() else getattr(tensor, VERSION, None)


def whole_of(x: Tensor) -> Tensor:
    """The tensor that a view is a part of; one that is no view, itself.

    No public attribute tells, and what is written into a part changes the whole. Without the reach
    the part stands for it: constants around it are missing from LibraGradient's account.
    """
    base: Tensor | None = getattr(x, BASE, None)
    return x if base is None else base


def function_of(node: Any) -> type | None:
    """The class of the `torch.autograd.Function` whose node this is; None: it is torch's own.

    No public name tells it. Where torch has none, all functions count as torch's own, and one that
    has the name of a node of torch's is taken for that.
    """
    function: type | None = getattr(node, FUNCTION, None)
    return function


def is_rounded(node: Any) -> bool:
    """Whether a node is of a quotient that is rounded, as the gradient of none tells.

    No public name tells it. Where torch has none, a rounded quotient is taken for one that is not.
    """
    return getattr(node, ROUNDING, None) is not None


def without_hooks(network: nn.Module) -> dict[int, Any]:
    """A memo for `deepcopy` that leaves the copy without hooks, by `id` of the network's own.

    No public function copies a module without its hooks, which belong to whoever set them. Without
    the reach the copy has copies of them.
    """
    found = (vars(module).get(name) for module in network.modules() for name in HOOKS)
    return {id(hooks): OrderedDict() for hooks in found if hooks is not None}


def forward_hooks(modules: Iterable[nn.Module]) -> list[Any] | None:
    """All forward hooks of some modules, and of torch's for all modules.

    No public function lists them. None without the reach: nobody knows, and the caller has to
    expect that there are some.
    """
    shared = import_module(nn.Module.__module__)
    try:
        found = [vars(module)[name] for module in modules for name in FORWARD_HOOKS]
        found += [getattr(shared, f"_global{name}") for name in FORWARD_HOOKS]
    except (KeyError, AttributeError):
        return None
    return [hook for hooks in found for hook in hooks.values()]


# Compilation: `nn.Module.compile` has no opposite, and a stance is one for the whole process.


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` or `nn.Module.compile` made this very module.

    Without the reach into modules, whether anything can have been compiled in this process;
    without that into wrappers, whether the module's class is the compiler's.
    """
    if hasattr(module, COMPILED_FROM) or type(module).__module__.startswith("torch._dynamo."):
        return True
    return getattr(module, COMPILED_CALL, "unknown") is not None and _dynamo_is_loaded()


def uncompile(module: nn.Module) -> None:
    """Undo `module.compile()`. Without the reach the module stays compiled, which only costs time.

    (Each new size of batch is then compiled once more.)
    """
    if hasattr(module, COMPILED_CALL):
        setattr(module, COMPILED_CALL, None)


@contextmanager
def run_as_written(module: nn.Module) -> Iterator[None]:
    """Run a module that was compiled in place as it is written, and nothing else.

    Without the reach all of the process runs as it is written meanwhile, see `uncompiled`.
    """
    if not hasattr(module, COMPILED_CALL):
        with uncompiled():
            yield
        return
    compiled = getattr(module, COMPILED_CALL)
    setattr(module, COMPILED_CALL, None)
    try:
        yield
    finally:
        setattr(module, COMPILED_CALL, compiled)


def uncompiled() -> AbstractContextManager[None]:
    """Run whatever was compiled as it is written, so that hooks and modes see all of it.

    This is public, but torch keeps one stance for the whole process: threads share it here, and
    what it was before comes back when the last of them is done. Another thread that trains
    meanwhile runs uncompiled.
    """
    return _EAGER.held() if _dynamo_is_loaded() else nullcontext()


_EAGER = ProcessWide(lambda: torch.compiler.set_stance("force_eager"))


@contextmanager
def kept_activations() -> Iterator[None]:
    """Have this thread keep what torch's checkpoints would compute again in the backward pass.

    Then hooks and modes see all of a network once, and `torch.autograd.grad` works. torch has no
    switch for it, and a network may have `checkpoint` by a name of its own. Without the reach
    explainers that take gradients fail on a network that calls it.
    """
    with _UNCHECKPOINTED.held():
        _KEEPING.depth = getattr(_KEEPING, "depth", 0) + 1
        try:
            yield
        finally:
            _KEEPING.depth -= 1


_KEEPING = threading.local()  # .depth: how often it is open in this thread


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    module: Any = import_module(CHECKPOINTS)
    names = [name for name in (REENTRANT, *OTHER_CHECKPOINTS) if hasattr(module, name)]
    plain = {name: getattr(module, name) for name in names}
    for name, checkpoint in plain.items():
        replaced = _Reentrant(checkpoint) if name == REENTRANT else _other_checkpoint(checkpoint)
        setattr(module, name, replaced)
    try:
        yield
    finally:
        for name, checkpoint in plain.items():
            setattr(module, name, checkpoint)


class _Reentrant:
    """Stands for torch's function of a checkpoint: `apply` is what is called of it."""

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint = checkpoint

    def apply(self, run: Any, preserve: bool, *args: Any) -> Any:
        if getattr(_KEEPING, "depth", 0):
            return run(*args)
        return self._checkpoint.apply(run, preserve, *args)


def _other_checkpoint(checkpoint: Any) -> Any:
    def around(*args: Any, **kwargs: Any) -> Iterator[Any]:
        """What torch does before the function is run, and after."""
        if getattr(_KEEPING, "depth", 0):
            yield
        else:
            yield from checkpoint(*args, **kwargs)

    return around


_UNCHECKPOINTED = ProcessWide(_without_checkpoints)


def _dynamo_is_loaded() -> bool:
    """False where nothing was compiled: importing the compiler takes a second."""
    return "torch._dynamo" in sys.modules


def check_compiler() -> None:
    """Raise OSError where torch finds no C++ compiler that works.

    Without the reach this passes, and torch itself fails at the first step, in many more words.
    """
    from torch._inductor import cpp_builder

    find = getattr(cpp_builder, FIND_COMPILER, None)
    if find is None:
        return
    try:
        find()
    except Exception as error:
        raise OSError(
            "Compile needs a C++ compiler, and none was found: install g++ or clang++, or name one "
            "in the environment variable CXX, or train without Compile"
        ) from error
