"""The recorder: every call, all of its parts, exactly once, and nothing left behind."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.methods.rollout import FUSIONS
from vision_attn.models import ViT
from vision_attn.tokens import AttentionCall, record_attention
from vision_attn.tokens.record.calls import ExplicitWeights, Fusion, LazyWeights, Tile, Workspace


def hooks_of(network: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


@pytest.mark.parametrize("fusion", FUSIONS)
def test_short_sequences_are_on_record_as_one_head_where_heads_are_fused(
    fusion: str,
    recorded: Callable[..., Any],
    attending: Callable[..., Any],
    qkv: Callable[..., Any],
) -> None:
    module = attending(F.scaled_dot_product_attention)
    q, k, v = qkv()
    record, out = recorded(module, q, k, v, fusion=FUSIONS[fusion])
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))
    (call,) = record.calls
    assert isinstance(call, ExplicitWeights)
    assert (call.heads, call.normalized) == (1, fusion == "mean")
    weights = torch.softmax(q @ k.mT / 11**0.5, -1)
    true = {"mean": weights.mean(1), "max": weights.amax(1), "min": weights.amin(1)}[fusion]
    torch.testing.assert_close(call.weights()[:, 0], true)


def test_other_sequences_are_on_record_as_if_nothing_was_fused(
    attending: Callable[..., Any], qkv: Callable[..., Any]
) -> None:
    def kind(grad: Any, *args: Any, **options: Any) -> tuple[type[AttentionCall], int]:
        module = attending(partial(F.scaled_dot_product_attention, **options))
        with torch.set_grad_enabled(grad), record_attention(module, (), FUSIONS["max"]) as record:
            module(*args)
        return type(record.calls[0]), record.calls[0].heads

    assert kind(False, *qkv(i=83, j=83)) == (LazyWeights, 3)
    assert kind(True, *qkv()) == (LazyWeights, 3)
    assert kind(False, *qkv(h=6)[:1], *qkv()[1:], enable_gqa=True) == (LazyWeights, 6)


@pytest.mark.parametrize("empty", [{"b": 0}, {"j": 0}, {"i": 0}])
def test_nothing_to_attend_to_is_nobodys_fault(
    empty: dict[str, int],
    recorded: Callable[..., Any],
    attending: Callable[..., Any],
    qkv: Callable[..., Any],
) -> None:
    module = attending(F.scaled_dot_product_attention)
    record, out = recorded(module, *qkv(**empty), fusion=FUSIONS["max"])
    assert (len(record.calls), out.shape) == (1, (empty.get("b", 2), 3, empty.get("i", 5), 11))


@pytest.mark.parametrize("fusion", [None, FUSIONS["max"]])
def test_keys_and_values_that_all_heads_share(
    fusion: Fusion | None,
    recorded: Callable[..., Any],
    attending: Callable[..., Any],
    qkv: Callable[..., Any],
) -> None:
    (q, _, _), (_, k, v) = qkv(h=6), qkv(h=1)
    module = attending(F.scaled_dot_product_attention)
    record, out = recorded(module, q, k, v, keep=() if fusion else ("v",), fusion=fusion)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))
    weights = torch.softmax(q @ k.mT / 11**0.5, -1)
    if fusion:
        weights = weights.amax(1, keepdim=True)
    torch.testing.assert_close(record.calls[0].weights(), weights)


def test_runs_in_inference_mode_and_outside_of_it_in_one_record(
    attending: Callable[..., Any], qkv: Callable[..., Any]
) -> None:
    module = attending(F.scaled_dot_product_attention)
    q, k, v = qkv()
    with record_attention(module, fusion=FUSIONS["mean"]) as record:
        with torch.inference_mode():
            module(q, k, v)
        with torch.no_grad():
            module(q, k, v)
    weights = torch.softmax(q @ k.mT / 11**0.5, -1).mean(1, keepdim=True)
    for call in record.calls:
        torch.testing.assert_close(call.weights(), weights)


def test_no_part_is_kept_beside_a_fusion(
    recorded: Callable[..., Any], attending: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match="got both keep=\\('v',\\) and a fusion; give one"):
        recorded(attending(None), keep=("v",), fusion=FUSIONS["mean"])


def test_parts_of_a_timm_network_in_layer_order(recorded: Callable[..., Any]) -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3).eval()
    wanted = []
    for block in network.blocks:
        block.attn.qkv.register_forward_hook(lambda _m, _args, out: wanted.append(out))
    record, _ = recorded(network, torch.randn(2, 3, 64, 64))
    assert record.expected == [f"blocks.{i}.attn" for i in range(3)]
    assert [call.module for call in record.calls] == record.expected
    for call, made in zip(record.calls, wanted, strict=True):
        q, k, v = made.unflatten(-1, (3, 3, 64)).permute(2, 0, 3, 1, 4)
        for found, true in ((call.q, q), (call.k, k), (call.v, v)):
            torch.testing.assert_close(found, true)
        assert call.scale == 64**-0.5
        assert call.mask is None
        assert (call.heads, call.queries, call.keys, call.batch) == (3, 17, 17, 2)
        torch.testing.assert_close(call.context, F.scaled_dot_product_attention(q, k, v))
        torch.testing.assert_close(call.weights() @ v, call.context)


MASKS = {
    "none": {},
    "bool": {"attn_mask": torch.tensor([[True] * 4 + [False] * 3] * 2 + [[True] * 7] * 3)},
    "added": {"attn_mask": torch.randn(2, 1, 5, 7, dtype=torch.float64)},
    "one row": {"attn_mask": torch.randn(2, 3, 1, 7, dtype=torch.float64)},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.37},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_masks_and_scales(
    options: dict[str, Any],
    recorded: Callable[..., Any],
    attending: Callable[..., Any],
    qkv: Callable[..., Any],
) -> None:
    q, k, v = qkv()
    attend = attending(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options))
    record, out = recorded(attend, q, k, v)
    (call,) = record.calls
    torch.testing.assert_close(call.weights() @ v, out)
    tile = call.weights(slice(1, 2), slice(0, 2), torch.tensor([4, 1]))
    torch.testing.assert_close(tile, call.weights()[1:2, :2, [4, 1]])


def test_one_head_without_its_axis_and_grouped_queries(
    recorded: Callable[..., Any], attending: Callable[..., Any], qkv: Callable[..., Any]
) -> None:
    q, k, v = (x[:, 0] for x in qkv())
    record, out = recorded(attending(F.scaled_dot_product_attention), q, k, v)
    torch.testing.assert_close((record.calls[0].weights() @ v[:, None])[:, 0], out)

    q, k, v = qkv(h=6)
    grouped = attending(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    record, out = recorded(grouped, q, k[:, :2], v[:, :2])
    torch.testing.assert_close(record.calls[0].weights() @ record.calls[0].v, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_denominators_that_the_kernel_tells(
    dtype: torch.dtype,
    recorded: Callable[..., Any],
    attending: Callable[..., Any],
    qkv: Callable[..., Any],
) -> None:
    q, k, v = (4 * x for x in qkv(i=130, j=135, dtype=dtype))
    record, out = recorded(attending(partial(F.scaled_dot_product_attention, scale=0.5)), q, k, v)
    (call,) = record.calls
    true = (0.5 * q @ k.mT).softmax(-1)
    torch.testing.assert_close(call.lse, (0.5 * q @ k.mT).logsumexp(-1))
    torch.testing.assert_close(call.weights(), true, rtol=1e-4, atol=1e-7)
    part = (slice(1, 2), slice(0, 2), slice(3, 70), slice(40, 90))
    tile = call.tile_weights(Tile(*part, Workspace()))
    torch.testing.assert_close(call.weights(*part), tile)
    torch.testing.assert_close(tile, true[1:2, :2, 3:70, 40:90], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, scale=0.5))


def test_gradients_pass_as_if_not_recorded() -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2).eval()
    network.head.weight.data.normal_()
    images = torch.randn(2, 3, 64, 64, requires_grad=True)
    (true,) = torch.autograd.grad(network(images)[:, 1].sum(), images)
    with record_attention(network):
        (found,) = torch.autograd.grad(network(images)[:, 1].sum(), images)
    torch.testing.assert_close(found, true)


def test_half_precision_is_kept_as_it_came_and_weighed_in_float32(
    recorded: Callable[..., Any],
) -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2).eval()
    with torch.autocast("cpu", torch.bfloat16):
        record, _ = recorded(network, torch.randn(1, 3, 64, 64))
    call = record.calls[1]
    assert call.q.dtype == torch.bfloat16
    true = (call.q.double() @ call.k.double().mT * call.scale).softmax(-1)
    torch.testing.assert_close(call.weights().double(), true, rtol=0, atol=1e-6)


def test_only_what_is_asked_for_is_kept_and_it_keeps_no_more_alive(
    recorded: Callable[..., Any],
) -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2).eval()
    made = []
    for block in network.blocks:
        block.attn.qkv.register_forward_hook(lambda _m, _args, out: made.append(out))
    record, _ = recorded(network, torch.randn(90, 3, 64, 64), keep=())
    theirs = {qkv.untyped_storage().data_ptr() for qkv in made}
    for call, qkv in zip(record.calls, made, strict=True):
        assert call.v is None
        assert call.context is None
        q, k, _ = qkv.unflatten(-1, (3, 3, 64)).permute(2, 0, 3, 1, 4)
        for part, true in ((call.q, q), (call.k, k)):
            assert torch.equal(part, true)
            assert part.is_contiguous()
            assert part.untyped_storage().data_ptr() not in theirs


def test_memory_grows_with_the_number_of_tokens(recorded: Callable[..., Any]) -> None:
    def held(size: int) -> Any:
        patches_only: dict[str, Any] = {"global_pool": "avg", "class_token": False}
        network = timm.create_model("test_vit", img_size=size, **patches_only).eval()
        record, _ = recorded(network, torch.randn(1, 3, size, size), keep=())
        return sum(part.nbytes for call in record.calls for part in (call.q, call.k))

    assert held(128) == 4 * held(64)


def test_nothing_is_left_behind_also_after_an_error(recorded: Callable[..., Any]) -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2).eval()
    recorded(network, torch.randn(1, 3, 64, 64))
    with pytest.raises(ZeroDivisionError), record_attention(network):
        raise ZeroDivisionError
    with pytest.raises(AssertionError, match="height"):
        recorded(network, torch.randn(1, 3, 32, 32))
    assert hooks_of(network) == 0
    assert not torch._C._is_torch_function_mode_enabled()
    record, _ = recorded(network, torch.randn(1, 3, 64, 64))
    assert len(record.calls) == 2


@pytest.mark.parametrize("fusion", [None, FUSIONS["mean"]])
@pytest.mark.parametrize("name", ["attn", "attend", "mlp"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_run_that_failed_leaves_no_calls_to_the_next(
    name: str, fusion: Fusion | None, grad: bool
) -> None:
    network = ViT(image_size=32, patch_size=8, dim=24, heads=3, depth=2, num_classes=5).eval()
    images, others = torch.randn(2, 2, 3, 32, 32)
    with torch.set_grad_enabled(grad), record_attention(network, fusion=fusion) as record:
        network(others)
    faulty = [m for n, m in network.named_modules() if n.endswith(f".{name}")][-1]

    def fails(*_: Any) -> None:
        raise ArithmeticError

    def run_in_vain(hook: Any) -> None:
        with pytest.raises(ArithmeticError), torch.no_grad():
            network(images)
        hook.remove()

    before_ours = faulty.register_forward_pre_hook(fails)
    with torch.set_grad_enabled(grad), record_attention(network, fusion=fusion) as again:
        run_in_vain(before_ours)
        run_in_vain(faulty.register_forward_pre_hook(fails))
        run_in_vain(faulty.register_forward_hook(fails))
        network(others)
    assert again.expected == record.expected
    assert [c.module for c in again.calls] == [c.module for c in record.calls]
    for call, expected in zip(again.calls, record.calls, strict=True):
        torch.testing.assert_close(call.weights(), expected.weights())


@pytest.mark.parametrize("fusion", [None, FUSIONS["mean"]])
def test_what_a_kernel_told_before_a_failure_is_not_taken_for_another_calls(
    fusion: Fusion | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = ViT(image_size=32, patch_size=8, dim=24, heads=3, depth=1, num_classes=5).eval()
    images, others = torch.randn(2, 2, 3, 32, 32)
    attend = network.blocks[0].attn.attend
    made = attend._context

    def fails_after_its_kernel(*args: Any) -> None:
        made(*args)
        raise ArithmeticError

    def by_products(images: Any) -> None:  # in bfloat16, where no kernel of torch's attention runs
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            network(images)

    with record_attention(network, fusion=fusion) as record:
        by_products(others)
    with record_attention(network, fusion=fusion) as again:
        monkeypatch.setattr(attend, "_context", fails_after_its_kernel)
        with pytest.raises(ArithmeticError), torch.no_grad():
            network(images)
        monkeypatch.undo()
        by_products(others)
    (call,), (expected,) = again.calls, record.calls
    assert isinstance(call, LazyWeights)
    assert call.lse is None
    torch.testing.assert_close(call.weights(), expected.weights())


def test_threads_record_their_own() -> None:
    networks = [
        timm.create_model("vit_tiny_patch16_224", img_size=64, depth=d).eval() for d in (2, 3)
    ]
    found, ready = {}, threading.Barrier(2)

    def work(index: Any) -> None:
        with torch.no_grad(), record_attention(networks[index]) as record:
            for _ in range(5):
                ready.wait()
                networks[index](torch.randn(1, 3, 64, 64))
        found[index] = [call.module for call in record.calls]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for index, depth in enumerate((2, 3)):
        assert found[index] == [f"blocks.{i}.attn" for i in range(depth)] * 5


def test_another_thread_on_the_same_network_is_not_recorded() -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2).eval()
    with torch.no_grad(), record_attention(network) as record:
        other = threading.Thread(target=network, args=(torch.randn(1, 3, 64, 64),))
        other.start()
        other.join()
        assert not record.calls
        network(torch.randn(1, 3, 64, 64))
    assert len(record.calls) == 2


class Linearised(nn.Module):
    """Attention without a softmax, by no function of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(12, 36)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return q.relu() @ (k.relu().mT @ v)


class Differential(nn.Module):
    """Attention that attends twice over the same values."""

    def forward(self, x: Any) -> Any:
        return sum(F.scaled_dot_product_attention(y, y, x) for y in (x, -2 * x))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Linear(12, 5), "no attention call was seen in Linear"),
        (nn.Sequential(Linearised()), "0 .Linearised. ran, but no attention call of it was seen"),
        (
            Differential(),
            "attends twice over the same values",
        ),
    ],
    ids=["no attention", "another kernel", "differential"],
)
def test_what_cannot_be_recorded_is_an_error(
    network: nn.Module, message: str, recorded: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=message):
        recorded(network, torch.randn(2, 7, 12))
    assert hooks_of(network) == 0


def test_a_network_that_does_not_run_is_an_error() -> None:
    network = timm.create_model("vit_tiny_patch16_224", depth=1)
    with pytest.raises(ValueError, match="was not run"), record_attention(network):
        pass
