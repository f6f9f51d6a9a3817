"""Each reach into torch is where it was, and without it the results are the same."""

import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from vision_attn.compat import torch_private as reaches
from vision_attn.methods import LeGrad, Relevance, Rollout, WeightedRollout
from vision_attn.methods.attention_explainer import AttentionExplainer
from vision_attn.methods.rollout import FUSIONS
from vision_attn.models import ViT
from vision_attn.tokens.modules import attends
from vision_attn.tokens.record.sdpa import (
    SDPAInputs,
    ShortAttention,
    attention_and_lse,
    multi_head_attention,
)
from vision_attn.training.flops import forward_flops


def gone(name: str, instead: str) -> str:
    return f"torch {torch.__version__} no longer has {name}: {instead}"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Takes reaches away: their constants then name nothing."""

    def take(*constants: Any) -> None:
        for constant in constants:
            monkeypatch.setattr(reaches, constant, "_taken_away")

    return take


def qkv(tokens: int = 13) -> list[Any]:
    """As networks make them: heads cut out of tokens."""
    return [torch.randn(2, tokens, 3, 5).transpose(1, 2) for _ in range(3)]


# operations


@pytest.mark.parametrize("reach", ["LEFT_ALONE", None])
def test_a_mode_of_ours_sees_each_operation_with_and_without_the_compiler(
    reach: str | None, without: Callable[..., Any]
) -> None:
    base = getattr(import_module(reaches.DISPATCH), reaches.DISPATCH_MODE)
    if torch.__version__ >= "2.10":
        assert hasattr(base, reaches.LEFT_ALONE), gone(
            f"{reaches.DISPATCH_MODE}.{reaches.LEFT_ALONE}", "the first map takes seconds longer"
        )
    elif reach:
        pytest.skip("torch 2.9 loads no compiler for a mode")
    if reach:
        without(reach)
    seen = []

    def dispatched(
        self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        seen.append(func.name())
        return func(*args, **(kwargs or {}))

    mode = type("Seeing", (reaches._dispatch_mode(),), {"__torch_dispatch__": dispatched})
    left_alone = vars(mode)["__torch_dispatch__"] is dispatched
    assert left_alone == (reach is None)
    with mode():
        torch.ones(2) + 1
    assert seen == ["aten::ones", "aten::add.Tensor"]


@pytest.mark.parametrize("taken", [False, True])
def test_our_own_arithmetic_is_not_seen_by_a_mode(taken: bool, without: Callable[..., Any]) -> None:
    """Without the reach it is: that takes time alone."""
    if taken:
        without("WITHOUT_MODES")
    seen = []

    class Seeing(reaches.DispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Seeing():
        with reaches.unwatched():
            torch.ones(2)
        torch.zeros(2)
    hidden = gone(f"{reaches.DISPATCH}.{reaches.WITHOUT_MODES}", "the first map takes longer")
    assert seen == ["aten::ones"] * taken + ["aten::zeros"], hidden


def test_operations_say_what_they_write_into(without: Callable[..., Any]) -> None:
    aten = torch.ops.aten
    found = [
        reaches.written_arguments(each) for each in (aten.add.Tensor, aten.add_.Tensor, aten.mm.out)
    ]
    assert found == [[], [0], [2]], gone("OpOverload._schema", "first maps compute values")
    without("SCHEMA")
    assert reaches.written_arguments(aten.add.Tensor) is None


# attention


def test_torch_says_that_it_chooses_flash() -> None:
    q, k, v = qkv()
    assert reaches.chooses_flash(q, k, v, 0.0, None) is True, gone(
        f"torch.{reaches.FLASH_CHOICE}", "short attention runs twice, and no log-sum-exp is kept"
    )
    assert reaches.chooses_flash(q, k, torch.randn(2, 3, 13, 7), 0.0, None) is False
    mask = torch.randn(3, q.shape[2], k.shape[2])  # of three axes, which that kernel does not take
    assert reaches.chooses_flash(q, k, v, 0.0, None, attn_mask=mask[None]) is True
    assert reaches.chooses_flash(q, k, v, 0.0, None, attn_mask=mask) is False
    with sdpa_kernel(SDPBackend.MATH):
        assert reaches.chooses_flash(q, k, v, 0.0, None) is False


@pytest.mark.parametrize("scale", [None, 0.7])
def test_the_flash_kernel_returns_context_and_log_sum_exp(scale: float | None) -> None:
    q, k, v = qkv()
    both = reaches.flash_attention(q, k, v, 0.0, scale)
    assert both is not None, gone(
        f"torch.ops.aten.{reaches.FLASH_KERNEL}", "log-sum-exps are computed from queries and keys"
    )
    scores = q.double() @ k.double().mT * (5**-0.5 if scale is None else scale)
    torch.testing.assert_close(both[1], scores.logsumexp(-1).float())
    torch.testing.assert_close(both[0], (scores.softmax(-1) @ v.double()).float())


@pytest.mark.parametrize("reach", ["FLASH_CHOICE", "FLASH_KERNEL"])
def test_without_its_kernel_attention_is_torchs_own(
    reach: str, without: Callable[..., Any]
) -> None:
    q, k, v = qkv()
    without(reach)
    context, lse = attention_and_lse(SDPAInputs(q, k, v))
    assert lse is None
    torch.testing.assert_close(context, F.scaled_dot_product_attention(q, k, v))


def test_without_its_choice_short_attention_is_laid_out_as_torchs() -> None:
    fusion = FUSIONS["mean"]
    for values in (qkv()[2], torch.randn(2, 3, 13, 7)):
        q, k, _ = qkv()
        given = SDPAInputs(q, k, values)
        with torch.no_grad():
            expected = F.scaled_dot_product_attention(*given[:3])
            known = ShortAttention(fusion)(given)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(reaches, "FLASH_CHOICE", "_taken_away")
                unknown = ShortAttention(fusion)(given)
        assert known is not None
        assert unknown is not None
        for context, made in (known, unknown):
            torch.testing.assert_close(context, expected)
            assert context.stride() == expected.stride()
            torch.testing.assert_close(made, known[1])


@pytest.mark.parametrize("method", [Rollout(), WeightedRollout(), Relevance(), LeGrad()], ids=str)
@pytest.mark.parametrize("tokens_a_side", [4, 12])
def test_maps_are_the_same_without_any_reach_into_attention(
    method: AttentionExplainer, tokens_a_side: int, without: Callable[..., Any]
) -> None:
    torch.manual_seed(0)
    size = 4 * tokens_a_side
    network = ViT(image_size=size, patch_size=4, num_classes=3, dim=12, depth=2, heads=3).eval()
    images = torch.randn(2, 3, size, size)
    expected = method(network, images, 1)
    without("FLASH_CHOICE", "FLASH_KERNEL", "CHILDREN", "PARAMETERS")
    found = method(network, images, 1)
    torch.testing.assert_close(found.values, expected.values)
    torch.testing.assert_close(found.prefix_mass, expected.prefix_mass)


def test_multi_head_attention_takes_what_torchs_does() -> None:
    torchs, ours = (
        list(inspect.signature(f).parameters.values())
        for f in (F.multi_head_attention_forward, multi_head_attention)
    )
    described = [[(p.name, p.kind, p.default) for p in each] for each in (torchs, ours[:-1])]
    assert described[0] == described[1], (
        f"torch {torch.__version__} gives multi_head_attention_forward other arguments: record "
        "refuses networks that use a new one (explain/recording/sdpa.py)"
    )


EACH = {
    "self": {},
    "no bias": {"in_proj_bias": None, "out_proj_bias": None},
    "memory": {"key": torch.randn(5, 2, 12), "value": torch.randn(5, 2, 12)},
    "separate": {
        "key": torch.randn(5, 2, 7), "value": torch.randn(5, 2, 11), "in_proj_weight": None,
        "use_separate_proj_weight": True, "q_proj_weight": torch.randn(12, 12),
        "k_proj_weight": torch.randn(12, 7), "v_proj_weight": torch.randn(12, 11),
    },
    "more": {
        "bias_k": torch.randn(1, 1, 12), "bias_v": torch.randn(1, 1, 12), "add_zero_attn": True,
        "attn_mask": torch.rand(9, 9) < 0.3, "key_padding_mask": torch.arange(9) > torch.tensor([[6], [4]]),
    },
    "a mask for each": {"attn_mask": torch.randn(6, 9, 9)},
    "masks of both": {
        "attn_mask": torch.randn(6, 9, 9), "key_padding_mask": torch.arange(9) > torch.tensor([[6], [4]]),
    },
    "causal": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(9), "is_causal": True},
    "causal, padded": {
        "attn_mask": nn.Transformer.generate_square_subsequent_mask(9), "is_causal": True,
        "key_padding_mask": torch.zeros(2, 9).index_fill(1, torch.tensor([7]), float("-inf")),
    },
    "static": {"static_k": torch.randn(6, 5, 4), "static_v": torch.randn(6, 5, 4)},
    "in evaluation": {"dropout_p": 0.5, "training": False},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask.*")
@pytest.mark.parametrize(
    ("given", "batched"),
    [
        *((given, True) for given in EACH.values()),
        *((EACH[name], False) for name in ("self", "memory", "separate", "more", "causal")),
    ],
)
def test_multi_head_attention_is_torchs(given: Any, batched: bool) -> None:
    x = torch.randn(9, 2, 12)
    arguments = {
        **{"query": x, "key": x, "value": x, "embed_dim_to_check": 12, "num_heads": 3},
        **{"in_proj_weight": torch.randn(36, 12), "in_proj_bias": torch.randn(36)},
        **{"bias_k": None, "bias_v": None, "add_zero_attn": False, "dropout_p": 0.0},
        **{"out_proj_weight": torch.randn(12, 12), "out_proj_bias": torch.randn(12), **given},
    }
    if not batched:
        same = arguments["key"] is x
        for name in ("query", "key", "value"):
            arguments[name] = arguments[name][:, 0]
        if same:
            arguments["key"] = arguments["value"] = arguments["query"]
        if "key_padding_mask" in given:
            arguments["key_padding_mask"] = given["key_padding_mask"][0]
    expected, _ = F.multi_head_attention_forward(**arguments, need_weights=False)
    torch.testing.assert_close(multi_head_attention(**arguments, need_weights=False), expected)


def test_an_argument_that_is_new_is_refused_in_words() -> None:
    module = nn.MultiheadAttention(12, 3)
    given = [*module.parameters()]
    arguments: list[Any] = [torch.randn(9, 2, 12)] * 3
    arguments += [12, 3, given[0], given[1], None, None, False, 0.0, given[2], given[3]]
    plain = multi_head_attention(*arguments)
    torch.testing.assert_close(multi_head_attention(*arguments, rope=None), plain)
    with pytest.raises(ValueError, match=r"of torch .* is given rope, which the recorder does not"):
        multi_head_attention(*arguments, rope=torch.ones(3))


# modules


class Shared(nn.Module):
    """One projection for queries and keys, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.q = self.k = nn.Linear(3, 3)
        self.inner = nn.Sequential(nn.Linear(3, 3))
        self.first = self.second = nn.Parameter(torch.zeros(2))
        self.register_module("none", None)
        self.register_parameter("nothing", None)


def test_own_names_are_those_of_children_and_parameters(without: Callable[..., Any]) -> None:
    names = ("q", "k", "inner", "first", "second")
    for name in (reaches.CHILDREN, reaches.PARAMETERS):
        assert hasattr(nn.Module(), name), gone(
            f"nn.Module.{name}", "each module's whole tree is walked for its own names"
        )
    assert reaches.own_names(Shared()) == names
    without("CHILDREN", "PARAMETERS")
    assert reaches.own_names(Shared()) == names
    assert attends(Shared())
    assert attends(nn.MultiheadAttention(12, 3, kdim=5))


def hooked(calls: list[Any]) -> nn.Sequential:
    """A network with hooks of every public kind, that note their calls."""

    def note(*args: Any, **kwargs: Any) -> None:
        calls.append(args)

    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Linear(7, 3))
    network[1].register_forward_hook(note)
    network[1].register_forward_hook(note, with_kwargs=True, always_call=True)
    network[1].register_forward_pre_hook(note)
    network[1].register_forward_pre_hook(note, with_kwargs=True)
    network[2].register_full_backward_hook(note)
    network[2].register_full_backward_pre_hook(note)
    return network


def test_forward_hooks_are_found_or_nobody_knows(without: Callable[..., Any]) -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    assert reaches.forward_hooks(network.modules()) == []
    network[1].register_forward_pre_hook(print)
    handle = nn.modules.module.register_module_forward_hook(cast(Any, repr))
    found = reaches.forward_hooks(network.modules())
    handle.remove()
    assert found == [print, repr], gone("hooks in nn.Module", "first maps compute values")
    without("FORWARD_HOOKS")
    assert reaches.forward_hooks(network.modules()) is None


def test_a_part_knows_its_whole(without: Callable[..., Any]) -> None:
    whole = torch.zeros(3, 5)
    part = whole[1:, :2]
    lost = gone("torch.Tensor._base", "constants around a part that is written are not counted")
    assert reaches.whole_of(part) is whole, lost
    assert reaches.whole_of(whole) is whole
    without("BASE")
    assert reaches.whole_of(part) is part


class Twice(torch.autograd.Function):
    """A function of somebody's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


def test_a_node_knows_the_function_that_it_is_of(without: Callable[..., Any]) -> None:
    x = torch.ones(2, requires_grad=True)
    own, torchs = Twice.apply(x).grad_fn, (2 * x).grad_fn
    lost = gone("_forward_cls of a node", "functions of torch's names are not named as unknown")
    assert reaches.function_of(own) is Twice, lost
    assert reaches.function_of(torchs) is None
    without("FUNCTION")
    assert reaches.function_of(own) is None


def test_a_node_knows_whether_its_quotient_is_rounded(without: Callable[..., Any]) -> None:
    x = torch.ones(2, requires_grad=True)
    rounded, exact = torch.div(x, 3, rounding_mode="floor").grad_fn, (x / 3).grad_fn
    lost = gone("_saved_rounding_mode of a node", "rounded quotients are not named as unknown")
    assert reaches.is_rounded(rounded), lost
    assert not reaches.is_rounded(exact)
    without("ROUNDING")
    assert not reaches.is_rounded(rounded)


def test_a_copy_has_no_hooks_of_any_kind() -> None:
    calls: list[Any] = []
    network = hooked(calls)
    network(torch.randn(2, 3, 2, 2)).sum().backward()
    assert len(calls) == 6
    copy = deepcopy(network, reaches.without_hooks(network))
    copy(torch.randn(2, 3, 2, 2)).sum().backward()
    assert len(calls) == 6, gone(
        f"one of nn.Module.{', '.join(reaches.HOOKS)}", "copies keep copies of the hooks"
    )


def test_with_hooks_as_many_operations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    network, images = hooked(calls), torch.randn(1, 3, 2, 2)
    expected = forward_flops(network, images)
    assert expected == 2 * (12 * 7 + 7 * 3)
    assert not calls
    monkeypatch.setattr(reaches, "HOOKS", ())
    assert forward_flops(network, images) == expected
    assert calls


# compilation


class Doubled(nn.Linear):
    """torch 2.9 compiles no module whose forward is torch's own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.fixture
def compiled() -> Iterator[tuple[nn.Linear, Callable[..., Any]]]:
    """A module that was compiled in place, and whether a call of it is compiled."""
    seen = []

    def backend(graph: Any, _inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            seen.append(True)
            return graph.forward(*args)

        return run

    module = Doubled(3, 5)
    module.compile(backend=backend)

    def runs_compiled() -> bool:
        seen.clear()
        module(torch.randn(2, 3))
        return bool(seen)

    assert runs_compiled()
    yield module, runs_compiled
    torch.compiler.reset()


def test_modules_know_whether_they_are_compiled(
    compiled: tuple[nn.Linear, Callable[..., Any]],
) -> None:
    module, _ = compiled
    assert hasattr(module, reaches.COMPILED_CALL), gone(
        f"nn.Module.{reaches.COMPILED_CALL}", "a network stays compiled after Compile"
    )
    wrapped: Any = torch.compile(nn.Linear(3, 5), backend="eager")
    assert hasattr(wrapped, reaches.COMPILED_FROM), gone(
        f"{reaches.COMPILED_FROM} in what torch.compile returns", "its class is looked at"
    )
    assert [reaches.is_compiled(each) for each in (module, wrapped, nn.Linear(3, 5))] == [
        True, True, False,
    ]  # fmt: skip


def test_without_the_reach_what_may_be_compiled_counts_as_compiled(
    compiled: tuple[nn.Linear, Callable[..., Any]],
    without: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, _ = compiled
    wrapped: Any = torch.compile(nn.Linear(3, 5), backend="eager")
    without("COMPILED_FROM")
    assert reaches.is_compiled(wrapped)
    assert not reaches.is_compiled(nn.Linear(3, 5))
    without("COMPILED_CALL")
    assert reaches.is_compiled(module)
    assert reaches.is_compiled(nn.Linear(3, 5))
    monkeypatch.setattr(reaches, "_dynamo_is_loaded", lambda: False)
    assert not reaches.is_compiled(nn.Linear(3, 5))


@pytest.mark.compiled
def test_a_module_runs_as_written_and_then_compiled_again(
    compiled: tuple[nn.Linear, Callable[..., Any]],
) -> None:
    module, runs_compiled = compiled
    with reaches.run_as_written(module):
        assert not runs_compiled()
    assert runs_compiled()
    with pytest.raises(RuntimeError, match="inside"), reaches.run_as_written(module):
        raise RuntimeError("inside")
    assert runs_compiled()
    with reaches.uncompiled():
        assert not runs_compiled()
    assert runs_compiled()
    reaches.uncompile(module)
    assert not runs_compiled()


@pytest.mark.compiled
def test_without_the_reach_all_runs_as_written_and_modules_stay_compiled(
    compiled: tuple[nn.Linear, Callable[..., Any]], without: Callable[..., Any]
) -> None:
    module, runs_compiled = compiled
    without("COMPILED_CALL")
    with reaches.run_as_written(module):
        assert not runs_compiled()
    reaches.uncompile(module)
    assert runs_compiled()


@pytest.mark.compiled
def test_what_is_looked_at_by_two_at_once_runs_compiled_afterwards(
    compiled: tuple[nn.Linear, Callable[..., Any]],
) -> None:
    """Each used to put back what it saw: the second, that nothing runs compiled."""
    _, runs_compiled = compiled
    first, second = reaches.uncompiled(), reaches.uncompiled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not runs_compiled(), "the second still looks"
    second.__exit__(None, None, None)
    assert runs_compiled()


@pytest.mark.compiled
def test_a_stance_that_was_taken_before_comes_back(
    compiled: tuple[nn.Linear, Callable[..., Any]],
) -> None:
    _, runs_compiled = compiled
    with torch.compiler.set_stance("force_eager"):
        with reaches.uncompiled():
            assert not runs_compiled()
        assert not runs_compiled()
    assert runs_compiled()


def test_torch_looks_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder

    assert hasattr(cpp_builder, reaches.FIND_COMPILER), gone(
        f"torch._inductor.cpp_builder.{reaches.FIND_COMPILER}",
        "a missing C++ compiler shows at the first step, in torch's words",
    )
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setattr(vars(cpp_builder)["config"].cpp, "cxx", (None, "/nowhere/g++"))
    with pytest.raises(OSError, match=r"needs a C[+][+] compiler, and none was found: install"):
        reaches.check_compiler()
    monkeypatch.delattr(cpp_builder, reaches.FIND_COMPILER)
    reaches.check_compiler()


def test_a_checkpoint_can_be_left_out() -> None:
    """`tests/test_inference.py` has the maps."""
    module = import_module(reaches.CHECKPOINTS)
    lost = gone(reaches.CHECKPOINTS, "gradients of a network that checkpoints by itself fail")
    assert hasattr(module, reaches.REENTRANT), lost
    assert any(hasattr(module, name) for name in reaches.OTHER_CHECKPOINTS), lost
    x, runs = torch.ones(2, requires_grad=True), []

    def square(x: torch.Tensor) -> torch.Tensor:
        runs.append(x)
        return x * x

    for reentrant in (True, False):
        runs.clear()
        with reaches.kept_activations():
            y = module.checkpoint(square, x, use_reentrant=reentrant)
        torch.autograd.grad(y.sum(), x)
        assert len(runs) == 1, lost


@pytest.mark.parametrize("reentrant", [True, False])
def test_without_the_reach_a_checkpoint_is_computed_again(
    reentrant: bool, without: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    without("REENTRANT")
    monkeypatch.setattr(reaches, "OTHER_CHECKPOINTS", ())
    x, runs = torch.ones(2, requires_grad=True), []

    def square(x: torch.Tensor) -> torch.Tensor:
        runs.append(x)
        return x * x

    with reaches.kept_activations():
        checkpoint(square, x, use_reentrant=reentrant).sum().backward()
    assert len(runs) == 2
