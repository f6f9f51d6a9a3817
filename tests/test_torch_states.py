"""Results do not depend on what the caller has set in torch, or around it, and leave it as it was.

Each state of the table is entered around each call, whose result is compared with that of a plain
call: to the bit, or to the tolerance that the state is listed with.
"""

import locale
import os
import random
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import vision_attn
from vision_attn.attention import SqueezeExcite
from vision_attn.compat import torch_private
from vision_attn.data import Preprocess
from vision_attn.evaluate import Deletion, FilledCells, Insertion, PointingGame
from vision_attn.methods import ChannelGates, GradCAM, IntegratedGradients, Occlusion
from vision_attn.methods.by_name import METHODS
from vision_attn.models import SEResNet, ViT
from vision_attn.runs.progress import Silent
from vision_attn.tokens.outputs import class_logits

# the states


@contextmanager
def restored(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Set something for the process, and set it back."""
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[Any]:
    return restored(torch.get_default_dtype, torch.set_default_dtype, dtype)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        if (
            torch.__version__ < "2.10"
        ):  # which then fails in get_default_device, for all that follow
            del torch._GLOBAL_DEVICE_CONTEXT.device_context


@contextmanager
def deterministic(warn_only: bool, fill: bool = True) -> Iterator[None]:
    settings: Any = torch.utils.deterministic
    before = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    settings.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = before


@contextmanager
def flushed() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


@contextmanager
def printed() -> Iterator[None]:
    torch.set_printoptions(precision=1, sci_mode=True, threshold=2)
    try:
        yield
    finally:
        torch.set_printoptions(profile="default")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    yield


class Seen(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def folder_gone() -> Iterator[None]:
    """Stand in a folder that was removed."""
    before = Path.cwd()
    gone = Path(tempfile.mkdtemp())
    os.chdir(gone)
    gone.rmdir()
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


@contextmanager
def saved_hooks() -> Iterator[None]:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        yield


@contextmanager
def module_hook() -> Iterator[None]:
    """A hook of the user on every module there is."""
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def warned() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def c_locale() -> Iterator[None]:
    before = locale.setlocale(locale.LC_ALL)
    try:
        for name in ("de_DE.UTF-8", "C"):
            try:
                locale.setlocale(locale.LC_ALL, name)
                break
            except locale.Error:
                continue
        yield
    finally:
        locale.setlocale(locale.LC_ALL, before)


@contextmanager
def np_errors() -> Iterator[None]:
    with np.errstate(all="raise"):
        yield


@contextmanager
def nested(*states: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for state in states:
            stack.enter_context(state)
        yield


@contextmanager
def quiet(make: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter a state of which torch itself warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entered = make()
        entered.__enter__()
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            entered.__exit__(None, None, None)


@contextmanager
def swapped() -> Iterator[None]:
    """Moving a module swaps its weights, which fails where a graph or a weak reference holds one."""
    get = torch.__future__.get_swap_module_params_on_conversion
    networks = [model(kind).network for kind in ("vit", "cnn")]
    held = [weakref.ref(weight) for network in networks for weight in network.parameters()]
    graphs = [network(images()) for network in networks]
    with restored(get, torch.__future__.set_swap_module_params_on_conversion, True):
        yield
    del held, graphs


@contextmanager
def training() -> Iterator[None]:
    """The networks were left in train mode."""
    found = [model(kind).network for kind in ("vit", "cnn")]
    for network in found:
        network.train()
    try:
        yield
        assert all(network.training for network in found)
    finally:
        for network in found:
            network.eval()


EXACT = 0.0
# Kernels of another order of sums: as far as float32 rounds, after a few layers.
ROUNDED = 1e-4
# bfloat16 has 8 bits: a network's own numbers differ by so much.
COARSE = 0.05

STATES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], float]] = {
    "plain": (nullcontext, EXACT),
    "default dtype float64": (lambda: default_dtype(torch.float64), EXACT),
    "default dtype float16": (lambda: default_dtype(torch.float16), EXACT),
    "default dtype bfloat16": (lambda: default_dtype(torch.bfloat16), EXACT),
    "default device meta": (lambda: default_device("meta"), EXACT),
    "default device cpu": (lambda: default_device("cpu"), EXACT),
    "with torch.device(meta)": (lambda: torch.device("meta"), EXACT),
    "inference mode": (torch.inference_mode, EXACT),
    "no_grad": (torch.no_grad, EXACT),
    "enable_grad": (torch.enable_grad, EXACT),
    "set_grad_enabled(False)": (
        lambda: restored(torch.is_grad_enabled, torch.set_grad_enabled, False),
        EXACT,
    ),
    "enable_grad in inference mode": (
        lambda: nested(torch.inference_mode(), torch.enable_grad()),
        EXACT,
    ),
    "deterministic": (lambda: deterministic(False), EXACT),
    "deterministic, warn only": (lambda: deterministic(True), EXACT),
    "deterministic, no fill": (lambda: deterministic(False, fill=False), EXACT),
    "autocast bfloat16": (lambda: torch.autocast("cpu", torch.bfloat16), COARSE),
    "autocast off": (lambda: torch.autocast("cpu", enabled=False), EXACT),
    "anomaly detection": (lambda: quiet(torch.autograd.detect_anomaly), EXACT),
    "two threads": (lambda: restored(torch.get_num_threads, torch.set_num_threads, 2), ROUNDED),
    "three threads": (lambda: restored(torch.get_num_threads, torch.set_num_threads, 3), ROUNDED),
    "function mode": (Seen, EXACT),
    "dispatch mode": (Dispatched, EXACT),
    "both modes": (lambda: nested(Seen(), Dispatched()), EXACT),
    "flush denormal": (flushed, EXACT),
    "matmul precision medium": (
        lambda: restored(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
        ),
        COARSE,
    ),
    "matmul precision high": (
        lambda: restored(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"
        ),
        COARSE,
    ),
    "sdpa: math": (lambda: sdpa_kernel(SDPBackend.MATH), ROUNDED),
    "sdpa: flash": (lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION), ROUNDED),
    "sdpa: math or efficient": (
        lambda: sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]),
        ROUNDED,
    ),
    "no oneDNN": (lambda: quiet(lambda: torch.backends.mkldnn.flags(enabled=False)), ROUNDED),
    "no fast path": (
        lambda: restored(
            torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, False
        ),
        EXACT,
    ),
    "no einsum plan": (lambda: attribute(torch.backends.opt_einsum, "enabled", False), ROUNDED),
    "seed 5": (lambda: seeded(5), EXACT),
    "fork_rng": (torch.random.fork_rng, EXACT),
    "warnings as errors": (warned, EXACT),
    "numpy errors": (np_errors, EXACT),
    "printed to a digit": (printed, EXACT),
    "saved tensors hooks": (saved_hooks, EXACT),
    "saved tensors on cpu": (torch.autograd.graph.save_on_cpu, EXACT),
    "multithreading off": (lambda: torch.autograd.set_multithreading_enabled(False), EXACT),
    "hooks of all modules": (module_hook, EXACT),
    "a folder that is gone": (folder_gone, EXACT),
    "no stdin": (lambda: attribute(sys, "stdin", None), EXACT),
    "no stdout": (
        lambda: nested(attribute(sys, "stdout", None), attribute(sys, "stderr", None)),
        EXACT,
    ),
    "another locale": (c_locale, EXACT),
    "no home": (lambda: environment(HOME="/nonexistent", XDG_CACHE_HOME="/nonexistent"), EXACT),
    "low recursion limit": (
        lambda: restored(sys.getrecursionlimit, sys.setrecursionlimit, 500),
        EXACT,
    ),
    "weights are swapped": (swapped, EXACT),
    "train mode": (training, EXACT),
}


# the calls

OPTIONS: dict[str, dict[str, Any]] = {
    "IntegratedGradients": {"steps": 3, "rows": 5},
    "Occlusion": {"window": 11},
    "MaskedRegression": {"samples": 8, "cells": 3},
    "LIME": {"samples": 8, "cells": 3},
    "RandomMap": {"cells": 3},
    "CentreGaussian": {"cells": 3},
    "EdgeMap": {"cells": 3},
}


OF_A_CNN = (GradCAM, ChannelGates, IntegratedGradients, Occlusion)
DIFFERENCES = ("IntegratedGradients", "Occlusion", "MaskedRegression", "LIME")


@cache
def model(kind: str) -> vision_attn.Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: nn.Module = (
            ViT((32, 48), 8, 5, dim=12, depth=2, heads=2)
            if kind == "vit"
            else SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 4, 8, 8), gate=SqueezeExcite)
        )
        for weight in network.parameters():
            nn.init.normal_(weight, std=0.3)
        list(network.parameters())[-2].data *= 30  # logits that a lasso sees
    preprocess = Preprocess((32, 48), (0.5,) * 3, (0.25,) * 3)
    return vision_attn.wrap(network.eval(), preprocess, classes=["a", "b", "c", "d", "e"])


@cache
def images() -> Tensor:
    generator = torch.Generator("cpu").manual_seed(1)
    return torch.randn(2, 3, 32, 48, generator=generator, dtype=torch.float32, device="cpu")


@cache
def photo() -> Image.Image:
    pixels = np.random.default_rng(2).integers(0, 256, (41, 53, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def maps_of(kind: str) -> Iterator[tuple[str, Any]]:
    """Every method that fits, on a batch."""
    yield "logits", class_logits(model(kind).network, images()).float()
    for method in METHODS if kind == "vit" else OF_A_CNN:
        explainer = method(**OPTIONS.get(method.__name__, {}))
        if explainer.refusal(model(kind).network) is None:
            maps = explainer(model(kind), images(), [1, 3] if method.class_specific else None)
            yield method.__name__, maps.values
            yield f"{method.__name__}, prefix", maps.prefix_mass


def explained() -> Iterator[tuple[str, Any]]:
    """A photo, from its pixels to the picture."""
    found = model("vit").explain(photo(), ["Rollout", "GradCAM"])
    yield "map", torch.from_numpy(found["Rollout"].values)
    yield "probabilities", torch.from_numpy(found.probabilities)
    yield "picture", np.asarray(found.overlay())


def scored() -> Iterator[tuple[str, Any]]:
    """The scores of a method on planted images."""
    few: dict[str, Any] = {"steps": 1, "batch_size": 2, "limit": 2, "progress": Silent()}
    for row in vision_attn.score(model("vit"), "planted", "Rollout", **few).table():
        yield (
            f"{row['method']}, {row['metric']}",
            torch.tensor(row["mean"], dtype=torch.float64, device="cpu"),
        )


def measured() -> Iterator[tuple[str, Any]]:
    """Metrics of fixed maps."""
    generator = torch.Generator("cpu").manual_seed(3)
    maps = torch.rand(2, 4, 6, generator=generator, dtype=torch.float32, device="cpu")
    classes = torch.tensor([1, 3], device="cpu")
    removal = FilledCells(model("cnn").network, grid=(4, 6))
    for metric in (Deletion(removal, steps=3), Insertion(removal, steps=3)):
        metric.update(images(), maps, classes)
        yield type(metric).__name__, metric.per_image()
    inside = PointingGame()
    inside.update(maps, maps > 0.5)
    yield "PointingGame", inside.per_image()


def loaded() -> Iterator[tuple[str, Any]]:
    """Networks of every source; the weights that are drawn come from a seed."""
    tiny = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "image_size": 16}
    specs: list[tuple[str, dict[str, Any]]] = [
        (f"vision_attn:{vision_attn.list_models()[0]['name']}", {}),
        ("timm:vit_tiny_patch16_224", {"embed_dim": 12, "depth": 1, "num_heads": 2}),
        ("torchvision:shufflenet_v2_x0_5", {"num_classes": 3}),
        ("hf:vit", {**tiny, "patch_size": 8, "num_attention_heads": 2}),
    ]
    for spec, args in specs:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            own: dict[str, Any] = {} if spec.startswith("vision_attn") else {"pretrained": False}
            network = vision_attn.load_model(spec, **own, **args).network
        for name, tensor in network.state_dict().items():
            yield f"{spec} {name}", tensor


CALLS: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
    "maps of a ViT": lambda: maps_of("vit"),
    "maps of a CNN": lambda: maps_of("cnn"),
    "explain": explained,
    "score": scored,
    "metrics": measured,
    "load_model": loaded,
}


@cache
def plain(call: str) -> dict[str, Any]:
    return dict(CALLS[call]())


def settings() -> list[Any]:
    """What the caller may have set, or may draw from."""
    return [
        *(torch.get_default_dtype(), torch_private.default_device(), torch.is_grad_enabled()),
        *(torch.is_inference_mode_enabled(), torch.get_num_threads()),
        *(torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()),
        *(torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision()),
        *(torch.get_rng_state().tolist(), repr(np.random.get_state())),  # noqa: NPY002
    ]


def check(state: str, call: str) -> None:
    expected = plain(call)
    entered, tolerance = STATES[state]
    with entered():
        before = settings()
        found = dict(CALLS[call]())
        assert settings() == before
    assert found.keys() == expected.keys()
    for name, value in found.items():
        reference = expected[name]
        if isinstance(value, Tensor) and value.is_floating_point():
            assert (value.dtype, value.device) == (reference.dtype, reference.device), name
            scale = float(reference.abs().amax())
            if name in DIFFERENCES:  # of logits, which are as near as their own size allows
                scale = float(expected["logits"].abs().amax())
            torch.testing.assert_close(
                value,
                reference,
                rtol=0,
                atol=tolerance * scale,
                msg=f"{name}:\n{value}\n{reference}",
            )
        elif isinstance(value, Tensor | np.ndarray):
            difference = np.abs(np.asarray(value, float) - np.asarray(reference, float))
            assert difference.max() <= 255 * tolerance, name
        else:
            assert value == reference or tolerance == COARSE, name


QUICK = ("explain", "metrics")
# What builds networks or data is asked in the states that say how tensors are made, and of what is
# around a process; it takes longer.
BUILDING = ("load_model", "score")
FOR_BUILDING = (
    "default ",
    "with torch.device",
    "inference",
    "determ",
    "modes",
    "warnings",
    "no ",
    "weights",
)
CASES = [
    pytest.param(
        call, state, id=f"{call}, {state}", marks=[] if call in QUICK else pytest.mark.slow
    )
    for call in CALLS
    for state in STATES
    if call not in BUILDING or state.startswith(FOR_BUILDING)
]


@pytest.mark.parametrize(("call", "state"), CASES)
def test_the_results_are_those_of_a_plain_call(call: Any, state: Any) -> None:
    check(state, call)


def test_a_new_thread_has_the_same_results() -> None:
    """Modes of gradients and defaults of devices are a thread's own."""
    found: dict[str, Any] = {}
    with torch.inference_mode(), torch.device("meta"):
        thread = threading.Thread(target=lambda: found.update(explained()))
        thread.start()
        thread.join()
    for name, value in plain("explain").items():
        assert np.array_equal(found[name], value)


@pytest.mark.slow
def test_a_run_of_training_is_the_same_and_goes_on_the_same(tmp_path: Path) -> None:
    few: dict[str, Any] = {f"data.source.{split}": 20 for split in ("train", "val", "test")}
    few |= {"data.batch_size": 10, "trainer.enable_progress_bar": False}
    few |= {"trainer.accelerator": "cpu"}

    def trained(output: Path) -> Path:
        """Train for an epoch, and go on for another."""
        resume: Any = None
        for epochs in (1, 2):
            run = vision_attn.fit(
                "vit_planted", few, max_epochs=epochs, output=output, seed=3, resume=resume
            )
            resume = run.folder / "last.ckpt"
        return resume

    expected = trained(tmp_path / "plain")
    with default_dtype(torch.float64), default_device("meta"), torch.inference_mode():
        found = trained(tmp_path / "odd")
        assert torch.get_default_dtype() == torch.float64
    ours, theirs = (torch.load(path, weights_only=True)["state_dict"] for path in (found, expected))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert (weight.dtype, weight.device) == (theirs[name].dtype, theirs[name].device), name
        assert torch.equal(weight, theirs[name]), name
