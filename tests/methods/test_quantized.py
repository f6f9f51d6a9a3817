"""Networks of whole numbers: what reads attention or the output alone is right, the rest says why not.

The oracle computes in floats what such a layer does: weights as they are stored, inputs rounded as
the layer rounds them.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.ao import quantization
from torch.ao.nn import quantized
from torch.ao.nn.quantized import dynamic
from torch.ao.nn.quantized.dynamic.modules.linear import Linear

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.methods import (
    EdgeMap,
    GradCAM,
    IntegratedGradients,
    MaskedRegression,
    Occlusion,
    QueryKey,
    RandomMap,
    RawAttention,
    Rollout,
    fitting_methods,
)
from vision_attn.methods.by_name import METHODS
from vision_attn.methods.lime import LIME
from vision_attn.models import SEResNet, ViT
from vision_attn.models.huggingface_model import HuggingFaceModel
from vision_attn.runs.progress import Silent
from vision_attn.tokens import probe

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:.*quantize_per_"),
    pytest.mark.filterwarnings("ignore:.*reduce_range"),
]

FROM_OUTSIDE = [Occlusion(), MaskedRegression(samples=8, cells=3), LIME(samples=8, cells=3)]
BASELINES = [RandomMap(), EdgeMap()]


def own_vit() -> ViT:
    return ViT((32, 48), 8, 5, dim=12, depth=2, heads=2)


def timm_vit() -> nn.Module:
    size: dict[str, Any] = {
        "img_size": (32, 48),
        "patch_size": 8,
        "embed_dim": 12,
        "depth": 2,
        "num_heads": 2,
    }
    return timm.create_model("vit_tiny_patch16_224", num_classes=5, **size)


def torchvision_vit() -> Any:
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=12, mlp_dim=20
    )


def huggingface_vit() -> HuggingFaceModel:
    args = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_labels": 5}
    args |= {"num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    return HuggingFaceModel("vit", model_args=args)


def drawn(make: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    network = make().eval()
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.3)
    return network


def images_for(network: Any) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    wide = isinstance(network, ViT | timm.models.VisionTransformer)
    return torch.randn(1, 3, 32, 48 if wide else 32, generator=random)


class Rounded(nn.Linear):
    """What a dynamically quantised layer computes, in floats: of inputs in 7 bits, as on x86."""

    def __init__(self, layer: Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.weight = nn.Parameter(layer.weight().dequantize())
        self.bias = nn.Parameter(layer.bias())

    def forward(self, x: Any) -> torch.Tensor:
        scale, zero = torch._choose_qparams_per_tensor(x, reduce_range=True)
        return super().forward(torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 127))


def in_floats(network: Any) -> Any:
    network = copy.deepcopy(network)
    for name, module in list(network.named_modules()):
        if isinstance(module, dynamic.Linear):
            network.set_submodule(name, Rounded(module))
    return network


@pytest.fixture
def x86() -> Iterator[None]:
    if "x86" not in torch.backends.quantized.supported_engines:
        pytest.skip("needs torch's quantised kernels of x86")
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "x86"
    yield
    torch.backends.quantized.engine = before


MAKERS = [own_vit, timm_vit, torchvision_vit, huggingface_vit]


@pytest.mark.parametrize("make", MAKERS)
def test_attention_beside_dynamically_quantised_layers(make: Callable[..., Any], x86: None) -> None:
    network = drawn(make)
    quantised = quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)
    oracle, images = in_floats(quantised), images_for(network)
    assert sum(isinstance(one, Rounded) for one in oracle.modules()) >= 5
    with torch.no_grad():
        logits = [one.logits if hasattr(one, "logits") else one for one in (quantised(images),)]
        torch.testing.assert_close(logits[0], oracle(images), rtol=0, atol=1e-5)
        assert (logits[0] - network(images)).abs().max() > 1e-3  # whole numbers do differ
    for method in (Rollout(), RawAttention(), QueryKey(), QueryKey(query=(0.3, 0.6))):
        maps = method(quantised, images).values
        torch.testing.assert_close(maps, method(oracle, images).values, rtol=1e-4, atol=1e-6)
        assert not torch.equal(maps, method(network, images).values)


@pytest.mark.parametrize(
    ("make", "kinds"), [(own_vit, [nn.Linear]), (timm_vit, [nn.Linear, nn.Conv2d])]
)
def test_attention_beside_statically_quantised_layers(
    make: Callable[..., Any], kinds: list[Callable[..., nn.Linear] | type[Any]], x86: None
) -> None:
    """Each layer between its own quantisers, also the one that makes tokens of patches."""
    network = drawn(make)
    static = copy.deepcopy(network)
    for module in static.modules():
        if type(module) in kinds:
            module.qconfig = quantization.get_default_qconfig("x86")
    static = quantization.add_quant_dequant(static)
    quantization.prepare(static, inplace=True)
    images = images_for(network)
    with torch.no_grad():
        static(images)
    quantization.convert(static, inplace=True)
    made = {type(module) for module in static.modules()}
    assert {getattr(quantized, kind.__name__) for kind in kinds} <= made
    assert probe(static, (32, 48)).layout == probe(network, (32, 48)).layout
    for method in (Rollout(), RawAttention()):
        maps, expected = method(static, images).values, method(network, images).values
        torch.testing.assert_close(maps, expected, rtol=0, atol=0.05 * float(expected.max()))
        assert not torch.equal(maps, expected)
    with pytest.raises(ValueError, match=r"no gradient passes .* \(Quantize\) is the first"):
        GradCAM()(static, images, 1)


def test_attention_of_a_network_that_trains_to_be_quantised() -> None:
    """Its layers round in floats, and gradients pass."""
    network = drawn(own_vit)
    aware = copy.deepcopy(network).train()
    aware.qconfig = quantization.get_default_qat_qconfig("x86")
    quantization.prepare_qat(aware, inplace=True)
    images = images_for(network)
    aware(images)
    aware.eval().apply(quantization.disable_observer)
    for method in (Rollout(), RawAttention(), GradCAM(), IntegratedGradients(steps=3)):
        maps = (
            method(aware, images, 1).values
            if method.class_specific
            else method(aware, images).values
        )
        assert maps.isfinite().all()
        assert maps.abs().max() > 0


@pytest.mark.parametrize("make", [*MAKERS, lambda: SEResNet(5, layers=(1,) * 4, widths=(4,) * 4)])
def test_methods_that_take_gradients_say_that_none_passes(make: Callable[..., Any]) -> None:
    network = drawn(make)
    quantised = quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)
    images = images_for(network)
    first = next(
        name for name, module in quantised.named_modules() if isinstance(module, dynamic.Linear)
    )
    for method in METHODS:
        if not method.needs_gradients:
            continue
        with pytest.raises(ValueError, match="no gradient passes through its quantised") as caught:
            method()(quantised, images, 1 if method.class_specific else None)
        assert f"of which {first} (Linear) is the first" in str(caught.value)
        assert "\n" not in str(caught.value)
    fitting = fitting_methods(quantised)
    assert not any(method.needs_gradients for method in fitting)
    assert {"Occlusion", "MaskedRegression", "LIME"} <= set(map(str, fitting))


@pytest.mark.parametrize("make", [own_vit, lambda: SEResNet(5, layers=(1,) * 4, widths=(4,) * 4)])
def test_methods_from_outside_are_of_the_network_as_it_is(
    make: Callable[..., Any], x86: None
) -> None:
    quantised = quantization.quantize_dynamic(drawn(make), {nn.Linear}, dtype=torch.qint8)
    images = images_for(quantised)
    hidden = nn.Sequential(quantised, nn.Identity())
    for method in FROM_OUTSIDE + BASELINES:
        target = 3 if method.class_specific else None
        maps = method(quantised, images, target).values
        assert torch.equal(maps, method(hidden, images, target).values)
    window = Occlusion(window=16, stride=16, rows=1)
    covered = images.clone()
    covered[:, :, 16:, :16] = 0
    with torch.no_grad():
        lost = (quantised(images) - quantised(covered))[0, 3]
    torch.testing.assert_close(
        window(quantised, images, 3).values[0, 16:, :16], lost.expand(16, 16)
    )


def test_a_convolutional_network_of_whole_numbers_throughout(x86: None) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        quantization.QuantStub(),
        nn.Conv2d(3, 5, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(20, 7),
        quantization.DeQuantStub(),
    ).eval()
    network.qconfig = quantization.get_default_qconfig("x86")
    quantization.fuse_modules(network, [["1", "2"]], inplace=True)
    quantization.prepare(network, inplace=True)
    images = torch.randn(2, 3, 20, 31)
    network(images)
    quantization.convert(network, inplace=True)
    preprocess = Preprocess((20, 31), (0.5,) * 3, (0.25,) * 3)
    model = vision_attn.wrap(network, preprocess, classes=list("abcdefg"))
    for method in FROM_OUTSIDE + BASELINES:
        assert method(model, images, 2 if method.class_specific else None).values.isfinite().all()
    for method in (GradCAM(), IntegratedGradients()):
        with pytest.raises(ValueError, match="no gradient passes through its quantised layers"):
            method(model, images, 2)
    with pytest.raises(ValueError, match="no attention was found"):
        Rollout()(model, images)
    photo = torch.rand(3, 20, 31)
    assert model.explain(photo, "Occlusion(window=7)").methods == ["Occlusion(window=7)"]


@pytest.mark.parametrize("half", ["bf16-mixed", "32-true"])
def test_scores_of_quantised_networks_are_in_float32(
    half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vision_attn.runs.scoring.tasks.native_precision", lambda kind: half)
    network = quantization.quantize_dynamic(drawn(own_vit), {nn.Linear}, dtype=torch.qint8)
    preprocess = Preprocess((32, 48), (0.5,) * 3, (0.25,) * 3)
    model = vision_attn.wrap(network, preprocess, classes=list("abcde"))
    few: dict[str, Any] = {"steps": 1, "limit": 2, "batch_size": 2, "progress": Silent()}
    table = vision_attn.score(model, "planted", "Rollout", **few).table()
    assert {row["method"] for row in table} >= {"Rollout", "RandomMap"}


def test_a_graph_that_lets_no_gradient_pass_is_told_without_modules() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 7, 2), Step())
    with pytest.raises(ValueError, match="no gradient of what is explained reaches the image"):
        IntegratedGradients(steps=2)(network, torch.randn(1, 3, 5, 7), 1)


class Step(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.detach().round()
