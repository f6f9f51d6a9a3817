"""A network as the page runs it, in Node, against torch: WebAssembly and plain JavaScript."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vision_attn.attention import (
    CBAM,
    Additive,
    AttentionPool,
    CosineSimilarity,
    KeyOnly,
    Local2d,
    MultiDimPool,
    MultiHeadAttention,
    NoGate,
    RotaryAttention,
    Softmax,
    Sparsemax,
    SpatialMask,
    SqueezeExcite,
    add_gates,
)
from vision_attn.attention.scores import Dot
from vision_attn.data import Preprocess
from vision_attn.errors import ModelError
from vision_attn.methods import ChannelGates, GradCAM, Rollout, gate_values
from vision_attn.models import ConvEmbed, FastCNN, SEResNet, SpatialCNN, TimmModel, ViT, WideEmbed
from vision_attn.models.senet import Bottleneck
from vision_attn.pages.inspect.page import distance, entropy
from vision_attn.pages.live.translation import has_hooks, translate
from vision_attn.runs.interventions import intervene
from vision_attn.tokens import record_attention
from vision_attn.types import Model

HALF = (0.5, 0.5, 0.5)


def model_of(network: nn.Module, size: tuple[int, int]) -> Model:
    layout = network.layout(size) if hasattr(network, "layout") else None
    return Model(network.eval(), Preprocess(size, HALF, HALF), [*"abcdefg"], layout)


def vit(size: tuple[int, int] = (24, 40), **options: Any) -> Model:
    """A ViT whose attention is sharp and whose weights are numbers in half precision."""
    usual = {
        "image_size": size,
        "patch_size": 8,
        "num_classes": 7,
        "dim": 20,
        "depth": 3,
        "heads": 2,
    }
    network = ViT(**{**usual, **options})
    for weight in network.parameters():
        weight.data += (
            0.3 * torch.randn_like(weight) * (1 if weight.ndim < 2 else weight.shape[1] ** -0.5)
        )
    for name, weight in network.named_parameters():
        if "qkv" in name:
            weight.data *= 3
    network.half().float()
    return model_of(network, size)


def cnn(network: nn.Module, size: tuple[int, int]) -> Model:
    """A CNN with statistics of its own, scales below 0 among them."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.normal_(0, 0.3)
            assert module.running_var is not None
            module.running_var.uniform_(0.5, 2)
            module.weight.data.normal_(0.7, 0.5)
            module.bias.data.normal_(0, 0.3)
    return model_of(network, size)


VITS = {
    "class token and registers": lambda: vit(registers=2),
    "mean, positions of the patches alone": lambda: vit(
        pool="mean", registers=1, embed_prefix=False
    ),
    "no prefix, dot, temperature": lambda: vit(
        pool="mean",
        class_token=False,
        attention=partial(MultiHeadAttention, score=Dot, normalizer=partial(Softmax, 5.0)),
    ),
    "layer scale, no bias": lambda: vit(
        layer_scale=0.5, attention=partial(MultiHeadAttention, qkv_bias=False)
    ),
    "pool by an additive score": lambda: vit(pool=AttentionPool),
    "pool of two heads by the key alone": lambda: vit(
        pool=partial(AttentionPool, heads=2, score=KeyOnly), norm_after_pool=True
    ),
    "pool by a dot product": lambda: vit(pool=partial(AttentionPool, score=Dot), class_token=False),
    "convolutions": lambda: vit(embed=partial(ConvEmbed, depth=2), patch_size=4),
    "strided convolutions": lambda: vit(
        embed=partial(ConvEmbed, depth=2, strided=True), patch_size=4
    ),
    "rotary positions": lambda: vit(dim=24, registers=2, attention=RotaryAttention),
    "wide convolutions": lambda: vit(
        dim=24,
        patch_size=4,
        pool=AttentionPool,
        class_token=False,
        embed=partial(WideEmbed, widths=(6,)),
        attention=RotaryAttention,
    ),
    "another size": lambda: model_of(vit().network, (32, 24)),
}


def image_of(model: Model) -> torch.Tensor:
    return torch.randn(3, *model.preprocess.input_size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", VITS)
def test_a_vit_in_the_page_is_the_one_in_torch(run_in_page: Any, name: str) -> None:
    """Computed by WebAssembly, and by plain JavaScript."""
    torch.manual_seed(0)
    model = VITS[name]()
    image = image_of(model)
    with torch.no_grad(), record_attention(model.network, keep=()) as record:
        expected = model.network(image[None])[0]
    assert expected.std() > 0.1
    maps = Rollout()(model.network, image[None])
    layers = [call.weights()[0].numpy() for call in record.calls if call.queries == call.keys]
    for kernels in ("WasmKernels", "PlainKernels"):
        found = run_in_page(model, image, plain=kernels == "PlainKernels")
        assert found["kernels"] == kernels
        logits = torch.tensor(found["logits"])
        torch.testing.assert_close(logits, expected, atol=3e-4, rtol=1e-4)
        shown = torch.tensor(found["rollout"]["values"]).view_as(maps.values)
        torch.testing.assert_close(shown, maps.values, atol=1e-6, rtol=1e-3)
        assert maps.prefix_mass is not None
        assert found["rollout"]["prefixMass"] == pytest.approx(float(maps.prefix_mass), abs=1e-5)
        assert len(layers) == len(found["layers"]) == 3
        for weights, layer in zip(layers, found["layers"], strict=True):
            assert model.layout is not None
            assert_attends(layer, weights, model.layout.grid)


def assert_attends(layer: dict[str, Any], weights: np.ndarray, grid: tuple[int, int]) -> None:
    """A layer of the page has these weights (head i j), as its queries and keys and in numbers."""
    shape = weights.shape[0], layer["tokens"], -1
    q, k = (np.reshape(layer[part], shape) for part in "qk")
    scores = q @ k.swapaxes(1, 2)
    shares = np.exp(scores - scores.max(2, keepdims=True))
    np.testing.assert_allclose(shares / shares.sum(2, keepdims=True), weights, atol=2e-4)
    np.testing.assert_allclose(layer["fused"], weights.mean(0).ravel(), atol=2e-4)
    for head, known in enumerate(layer["averages"]):
        assert known["entropy"] == pytest.approx(entropy(weights[head]), abs=2e-3)
        assert known["distance"] == pytest.approx(distance(weights[head], grid), rel=1e-3)


def test_attention_that_is_tested_is_sharp() -> None:
    torch.manual_seed(0)
    model = vit()
    with torch.no_grad(), record_attention(model.network) as record:
        model.network(image_of(model)[None])
    assert record.calls[1].weights().max() > 5 / record.calls[1].keys


def test_timms_vit(run_in_page: Any) -> None:
    torch.manual_seed(0)
    small = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 32}
    network = TimmModel("vit_tiny_patch16_224", num_classes=7, model_args=small)
    model = model_of(network, (32, 32))
    image = image_of(model)
    with torch.no_grad():
        expected = network(image[None])[0]
    logits = torch.tensor(run_in_page(model, image)["logits"])
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=2e-3)


def test_patches_that_do_not_exist(run_in_page: Any) -> None:
    torch.manual_seed(0)
    model = vit(registers=1)
    image, keep = image_of(model), [0, 3, 4, 9, 14]
    found = run_in_page(model, image, keep=keep)
    with torch.no_grad():
        expected = model.network.forward_kept_tokens(image[None], torch.tensor([keep]))[0]
    torch.testing.assert_close(torch.tensor(found["logits"]), expected, atol=3e-4, rtol=1e-4)
    shown = np.array(found["rollout"]["values"])
    assert not np.delete(shown, keep).any()
    assert shown[keep].min() > 0
    assert shown.sum() + found["rollout"]["prefixMass"] == pytest.approx(1, abs=1e-5)


def test_patches_that_are_left_have_their_places_in_rotary_attention(run_in_page: Any) -> None:
    """Without a prefix, scores know distances alone: columns 2 to 4 of 5 are an image of three columns."""
    torch.manual_seed(0)
    model = vit(dim=24, attention=RotaryAttention, pool="mean", class_token=False)
    network, image = model.network, image_of(model)
    network.pos_embed.data.zero_()
    keep = [row * 5 + column for row in range(3) for column in (2, 3, 4)]
    found = run_in_page(model, image, keep=keep)
    with torch.no_grad():
        expected = network(image[None, :, :, 16:])[0]
        assert (network(image[None])[0] - expected).abs().max() > 0.01
    torch.testing.assert_close(torch.tensor(found["logits"]), expected, atol=3e-4, rtol=1e-4)


def test_heads_that_are_switched_off(run_in_page: Any) -> None:
    torch.manual_seed(0)
    model = vit(depth=2, heads=4)
    image = image_of(model)
    attention = model.network.blocks[1].attn

    def silence(_module: Any, inputs: Any) -> tuple[Any]:
        (context,) = inputs
        return (context * torch.tensor([1.0, 1.0, 0.0, 0.0]).repeat_interleave(5),)

    hook = attention.proj.register_forward_pre_hook(silence)
    with torch.no_grad():
        expected = model.network(image[None])[0]
    hook.remove()
    with torch.no_grad(), intervene(model.network, heads=[(1, 2), (1, 3)]):
        torch.testing.assert_close(model.network(image[None])[0], expected)
    found = run_in_page(model, image, off=["1.2", "1.3"])
    torch.testing.assert_close(torch.tensor(found["logits"]), expected, atol=3e-4, rtol=1e-4)


CNNS = {
    "SE-ResNet": (lambda: SEResNet(7, widths=(8, 8, 12, 20), layers=(1, 2, 1, 1)), (32, 40)),
    "bottlenecks, 7x7": (
        lambda: SEResNet(7, Bottleneck, (1, 1, 1, 1), (4, 4, 8, 8), stem="7x7", gate=CBAM),
        (64, 96),
    ),
    "ResNet-D, a last stage that keeps its size": (
        lambda: SEResNet(
            7, widths=(8, 8, 12, 20), layers=(1, 1, 1, 1), stem="deep", strides=(1, 2, 2, 1)
        ),
        (60, 84),
    ),
    "residual without gates": (
        lambda: SEResNet(7, widths=(4, 4, 4, 4), layers=(1, 1, 1, 1), gate=NoGate),
        (32, 40),
    ),
    "spatial masks": (lambda: SpatialCNN(7, widths=(8, 12, 16), depth=2), (24, 36)),
    "fast": (lambda: FastCNN(7, widths=(8, 12, 16), gate=SpatialMask), (33, 47)),
}


@pytest.mark.parametrize("name", CNNS)
def test_a_cnn_in_the_page_is_the_one_in_torch(run_in_page: Any, name: str) -> None:
    """Computed by WebAssembly, and by plain JavaScript."""
    torch.manual_seed(0)
    make, size = CNNS[name]
    model = cnn(make(), size)
    for parameter in model.network.parameters():  # gates that are neutral would hide a mistake
        parameter.data += (0.05 + 0.1 * parameter.abs().mean()) * torch.randn_like(parameter)
    image = image_of(model)
    with torch.no_grad():
        expected = model.network(image[None])[0]
    largest = float(expected.abs().max())
    maps = [GradCAM()(model.network, image[None], at).values[0].flatten() for at in range(7)]
    wanted = torch.stack(maps)
    assert (wanted.amax(1) > 0).sum() > 1  # relu leaves some classes without a map
    gated = NoGate not in {type(module) for module in model.network.modules()}
    gates = gate_values(model.network, image[None]) if gated else {}
    channels = [name for name, values in gates.items() if values.ndim == 2]
    selected = {
        name: ChannelGates(layer=layer, kind="selected")(model.network, image[None]).values[0]
        for layer, name in enumerate(channels)
    }
    for plain in (False, True):
        found = run_in_page(model, image, plain=plain)
        logits = torch.tensor(found["logits"])
        torch.testing.assert_close(logits, expected, atol=5e-3 * largest, rtol=0)
        cams = torch.tensor(found["cams"])
        torch.testing.assert_close(cams, wanted, atol=0.02 * float(wanted.max()), rtol=0)
        assert [gate["name"] for gate in found["gates"]] == list(gates)
        for gate, values in zip(found["gates"], gates.values(), strict=True):
            shown = torch.tensor(gate["values"])
            torch.testing.assert_close(shown, values.flatten(), atol=5e-3, rtol=0)
            assert gate["shape"] == list(values.shape[1:])
            if values.ndim == 2:
                where = torch.tensor(gate["where"], dtype=torch.float32)
                at = selected[gate["name"]].flatten()
                torch.testing.assert_close(
                    where, at, atol=0.02 * float(at.abs().max()) + 1e-6, rtol=0
                )


def half_exact(network: nn.Module) -> nn.Module:
    """Weights that are numbers in half precision; statistics that are not."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.half().float()
    return network


@pytest.mark.parametrize("kind", ["SE-ResNet", "layer scale"])
def test_what_is_folded_costs_no_precision(run_in_page: Any, kind: str) -> None:
    torch.manual_seed(0)
    if kind == "SE-ResNet":
        make, size = CNNS[kind]
        model = cnn(make(), size)
    else:
        model = vit(layer_scale=0.5)
        for block in model.network.blocks:
            block.ls1.gamma.data.uniform_(0.3, 0.7)
            block.ls2.gamma.data.uniform_(0.3, 0.7)
    half_exact(model.network)
    image = image_of(model)
    with torch.no_grad():
        expected = model.network(image[None])[0]
    logits = torch.tensor(run_in_page(model, image)["logits"])
    largest = float(expected.abs().max())
    torch.testing.assert_close(logits, expected, atol=2e-5 * largest, rtol=0)


class Louder(MultiHeadAttention):
    """The same of attention."""


class Doubled(ViT):
    """Of a subclass nobody knows what it computes."""


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (lambda: vit(attention=partial(MultiHeadAttention, normalizer=Sparsemax)), "by Sparsemax"),
        (lambda: vit(attention=partial(MultiHeadAttention, score=Additive)), "by Additive"),
        (
            lambda: vit(attention=partial(MultiHeadAttention, score=CosineSimilarity)),
            "by CosineSimilarity",
        ),
        (
            lambda: vit(attention=partial(MultiHeadAttention, window=partial(Local2d, radius=1))),
            "and Local2d",
        ),
        (lambda: vit(pool=MultiDimPool), "MultiDimPool is not translated"),
        (
            lambda: vit(attention=Louder),
            "expected MultiHeadAttention or RotaryAttention, got Louder",
        ),
        (
            lambda: vit(pool=partial(AttentionPool, score=CosineSimilarity)),
            "a pool by CosineSimilarity",
        ),
        (lambda: vit(num_classes=0), "expected Linear, got Identity"),
        (
            lambda: model_of(Doubled((16, 16), 8, 7, 12, 1, 2), (16, 16)),
            "this kind of network is not translated",
        ),
        (lambda: Model(nn.Flatten(), Preprocess((8, 8), HALF, HALF), [], None), "this kind"),
    ],
)
def test_what_the_page_cannot_run_is_refused(network: Callable[..., Model], reason: str) -> None:
    with pytest.raises(
        ModelError, match=f"cannot run in a page: .*{reason}.*A page runs vision_attn's ViT"
    ):
        translate(network())


def gated() -> nn.Module:
    network = SEResNet(7, widths=(4, 4, 4, 4), layers=(1, 1, 1, 1), gate=NoGate)
    return add_gates(network, SqueezeExcite, image_size=(32, 40))


def test_gates_that_hooks_call_are_refused() -> None:
    """The page would run the network without them."""
    with pytest.raises(
        ModelError, match=r"SEResNet cannot run in a page: BasicBlock layer1\.0 has"
    ):
        translate(model_of(gated(), (32, 40)))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("inside", ["", "network", "network.blocks.1.attn"])
def test_a_network_with_a_forward_hook_is_refused(inside: str, before: bool) -> None:
    small = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 32}
    model = model_of(TimmModel("vit_tiny_patch16_224", 7, model_args=small), (32, 32))
    module = model.network.get_submodule(inside)
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    hook = register(lambda *_: None)
    with pytest.raises(ModelError, match=f"{type(module).__name__} ?{inside} has a forward hook"):
        translate(model)
    hook.remove()
    assert translate(model).data()["ops"]


@pytest.mark.parametrize("network", [gated, lambda: vit().network], ids=["gated", "vit"])
def test_the_search_for_hooks_leaves_none_and_takes_none(network: Callable[..., nn.Module]) -> None:
    model = model_of(network(), (32, 40))
    modules = [*model.network.modules()]
    before = [has_hooks(module) for module in modules]
    x = image_of(model)[None]
    with torch.no_grad():
        expected = model.network(x)
        assert [has_hooks(module) for module in modules] == before
        torch.testing.assert_close(model.network(x), expected)
    assert any(before) == (network is gated)


def test_a_recording_leaves_no_hook() -> None:
    model = vit()
    with torch.no_grad(), record_attention(model.network):
        model.network(image_of(model)[None])
    Rollout()(model.network, image_of(model)[None])
    assert translate(model).data()["ops"]


def test_a_timm_network_that_is_no_plain_vit_is_refused() -> None:
    swin = TimmModel(
        "swin_tiny_patch4_window7_224", 7, model_args={"embed_dim": 24, "depths": (1,) * 4}
    )
    with pytest.raises(ModelError, match="SwinTransformer cannot run in a page"):
        translate(Model(swin, Preprocess((224, 224), HALF, HALF), [], None))


def test_weights_beyond_half_precision_are_refused() -> None:
    model = vit()
    model.network.head.weight.data[0, 0] = 1e5
    with pytest.raises(ModelError, match=r"a weight of 1\.0e\+05 is beyond half precision"):
        translate(model)
