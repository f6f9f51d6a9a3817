"""Class activation maps against the grad-cam package, and layers found by themselves."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import pytorch_grad_cam
import timm
import torch
from pytorch_grad_cam.utils.image import scale_cam_image
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from timm.models.crossvit import CrossVit
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from timm.models.swin_transformer import SwinTransformer
from timm.models.tnt import TNT
from timm.models.vgg import VGG
from torch import nn
from torch.nn import functional as F

from vision_attn import methods as explain
from vision_attn.methods.gradcam import ClassActivationMap, find_layers
from vision_attn.models import SEResNet, SpatialCNN, ViT
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.types import TokenLayout

FAMILY = ["GradCAM", "GradCAMPlusPlus", "XGradCAM", "HiResCAM", "LayerCAM"]


def magnified(network: nn.Module) -> nn.Module:
    """Large logits, so that the 1e-7 which the package adds to each maximum does not show."""
    network.get_classifier().weight.data *= 1000
    return network.eval()


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torch.manual_seed(0)
    return magnified(timm.create_model("test_resnet", num_classes=11))


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    torch.manual_seed(0)
    return magnified(timm.create_model("test_vit", img_size=(64, 96), num_classes=11))


class Equation19(pytorch_grad_cam.GradCAMPlusPlus):
    """The package's, without the 1e-6 that it adds to the denominator."""

    def get_cam_weights(
        self, _input: Any, _layers: Any, _category: Any, activations: Any, grads: Any
    ) -> Any:
        grads, total = grads.astype(np.float64), activations.sum((2, 3), keepdims=True)
        alpha = grads**2 / (2 * grads**2 + total * grads**3)
        return (np.maximum(grads, 0) * alpha).sum((2, 3))


def package_maps(
    name: str,
    network: Any,
    layer: Any,
    images: torch.Tensor,
    targets: list[Any],
    reshape: Callable[..., Any] | None = None,
) -> torch.Tensor:
    kind = Equation19 if name == "GradCAMPlusPlus" else getattr(pytorch_grad_cam, name)
    method = kind(network, [layer], reshape_transform=reshape)
    with method:
        return torch.from_numpy(
            method(images.clone(), [ClassifierOutputTarget(target) for target in targets])
        )


def as_the_package_shows(values: Any, images: torch.Tensor) -> torch.Tensor:
    """Its display, which we leave to rendering: 0 to 1, enlarged to the images, 0 to 1 again."""
    enlarged = scale_cam_image(values.numpy(), (images.shape[3], images.shape[2]))
    return torch.from_numpy(scale_cam_image(enlarged))


@pytest.mark.parametrize("name", FAMILY)
def test_a_cnn_against_the_package(resnet: nn.Module, name: str) -> None:
    images = torch.randn(2, 3, 96, 160)
    maps = getattr(explain, name)()(resnet, images, [3, 7])
    assert maps.values.shape == (2, 3, 5)
    expected = package_maps(name, resnet, resnet.layer4, images, [3, 7])
    torch.testing.assert_close(
        as_the_package_shows(maps.values, images), expected, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("name", FAMILY)
def test_a_vit_against_the_package(vit: nn.Module, name: str) -> None:
    images = torch.randn(2, 3, 64, 96)
    maps = getattr(explain, name)()(vit, images, [3, 7], layout=TokenLayout(1, (4, 6)))
    expected = package_maps(
        name,
        vit,
        vit.blocks[-1].norm1,
        images,
        [3, 7],
        lambda tokens: tokens[:, 1:].unflatten(1, (4, 6)).permute(0, 3, 1, 2),
    )
    torch.testing.assert_close(
        as_the_package_shows(maps.values, images), expected, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("scale", [1e3, 1, 1e-3, 1e-6, 1e-12, 1e-20])
def test_small_gradients_and_features_change_no_proportions(scale: float) -> None:
    """The formulas as published, in float64: no epsilon is large beside a small gradient."""
    features = torch.rand(2, 7, 3, 5) + 0.1
    gradient = torch.randn(2, 7, 3, 5) * scale

    def maps_of(name: str, features: torch.Tensor, gradient: torch.Tensor) -> Any:
        return getattr(explain, name)().contribution(features, gradient).sum(1)

    A, G = features.double(), gradient.double()
    total = A.sum((2, 3), keepdim=True)
    alpha = G**2 / (2 * G**2 + total * G**3)
    expected = ((alpha * G.relu()).sum((2, 3), keepdim=True) * A).sum(1)
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6 * float(expected.abs().max())}
    found = maps_of("GradCAMPlusPlus", features, gradient).double()
    torch.testing.assert_close(found, expected, **close)
    weights = (torch.ones_like(G) * A / total).sum((2, 3), keepdim=True)  # G = 1: sum A / sum A
    torch.testing.assert_close(weights, torch.ones_like(weights))
    small = features * scale if scale < 1 else features  # XGradCAM divides by the features
    found = maps_of("XGradCAM", small, torch.ones_like(G).float()).double()
    torch.testing.assert_close(found, small.double().sum(1), rtol=1e-4, atol=0)


def test_a_denominator_of_zero_counts_for_nothing() -> None:
    features, gradient = torch.tensor([[[[-1.0, -1.0]]]]), torch.tensor([[[[1.0, 0.5]]]])
    found = explain.GradCAMPlusPlus().contribution(features, gradient)  # 2 - 2 = 0, 2 - 1 = 1
    torch.testing.assert_close(found, 0.5 * features)
    found = explain.XGradCAM().contribution(torch.tensor([[[[-1.0, 1.0]]]]), gradient)
    torch.testing.assert_close(found, torch.zeros_like(found))


def test_hirescam_before_mean_pooling_is_the_class_evidence(resnet: nn.Module) -> None:
    """With a linear head after the mean, the logit is the sum of G A, plus the bias."""
    images = torch.randn(1, 3, 96, 96)
    features: dict[Any, Any] = {}
    hook = resnet.layer4.register_forward_hook(lambda _m, _i, out: features.update(a=out.detach()))
    resnet(images)
    hook.remove()
    weight = resnet.fc.weight[5].detach()
    expected = torch.einsum("bchw,c->bhw", features["a"], weight).relu() / 9
    torch.testing.assert_close(explain.HiResCAM()(resnet, images, 5).values, expected)


def test_batches_order_and_target(resnet: nn.Module) -> None:
    images = torch.randn(3, 3, 64, 64)
    method = explain.GradCAM()
    together = method(resnet, images, [1, 2, 3]).values
    alone = [
        method(resnet, image[None], target).values
        for image, target in zip(images, [1, 2, 3], strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-7)
    assert not torch.allclose(together, method(resnet, images, [4, 5, 6]).values)


class Wrapped(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> Any:
        return self.network(images)


def test_layers_by_name_through_wrappers(resnet: nn.Module) -> None:
    assert find_layers(Wrapped(resnet), "layer4.0") == [resnet.layer4[0]]
    assert explain.GradCAM(layer="layer5").refusal(resnet) == (
        "it has no layer 'layer5' (did you mean 'layer4'?)"
    )
    early = explain.GradCAM(layer="layer2")(Wrapped(resnet), torch.randn(1, 3, 64, 64))
    assert early.values.shape == (1, 8, 8)
    assert early.method == "GradCAM(layer='layer2')"


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("test_resnet", "layer4"),
        ("test_byobnet", "stages"),
        ("test_efficientnet", "bn2"),
        ("test_convnext", "stages"),
        ("test_vit", "blocks.5.norm1"),
        ("swin", "norm"),
        ("test_maxvit", "norm"),
    ],
)
def test_the_last_stage_is_found(name: str, layer: str) -> None:
    if name == "swin":
        network = SwinTransformer(
            (64, 96), embed_dim=16, depths=(1, 2), num_heads=(1, 2), window_size=4, num_classes=5
        )
    else:
        options: dict[str, Any] = {"img_size": (64, 96)} if "vit" in name else {}
        network = timm.create_model(name, num_classes=5, **options)
    nn.init.normal_(network.get_classifier().weight)
    images = torch.randn(2, 3, 64, 96)
    layout = TokenLayout(1, (4, 6))
    found = explain.GradCAM()(network, images, layout=layout)
    named = explain.GradCAM(layer=layer)(network, images, layout=layout)
    torch.testing.assert_close(found.values, named.values)
    height, width = found.values.shape[1:]
    assert height * 6 == width * 4
    assert found.values.amax() > 0


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        (SEResNet(num_classes=3, layers=(1, 1, 1, 1), widths=(4, 4, 4, 6)), "layer4"),
        (SpatialCNN(num_classes=3, widths=(4, 4, 6)), "stages.2"),
        (ViT((32, 48), dim=12, depth=2, heads=2), "blocks.1.norm1"),
    ],
    ids=["senet", "spatial_cnn", "vit"],
)
def test_our_networks(network: Rebuildable, layer: str) -> None:
    images = torch.randn(2, 3, 32, 48)
    found = explain.GradCAM()(Wrapped(network), images, 2).values
    torch.testing.assert_close(found, explain.GradCAM(layer=layer)(network, images, 2).values)
    height, width = found.shape[1:]
    assert height * 48 == width * 32


def test_an_in_place_activation_after_the_layer_does_no_harm() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 5, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(5 * 5 * 7, 3)]
    images = torch.randn(2, 3, 7, 9)
    in_place = explain.GradCAM()(nn.Sequential(*layers), images).values
    layers[1] = nn.ReLU()
    torch.testing.assert_close(explain.GradCAM()(nn.Sequential(*layers), images).values, in_place)


def test_what_cannot_be_read_is_said(resnet: nn.Module) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    assert explain.GradCAM().refusal(linear) == (
        "it has no convolution, and no norm before an attention was found: name a layer"
    )
    with pytest.raises(ValueError, match="no map larger than 1x1 for images of 32x32: use larger"):
        explain.GradCAM()(resnet, torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"this layer gives no map .*: name one inside it"):
        explain.GradCAM(layer="fc")(resnet, torch.randn(1, 3, 64, 64))
    unused: Any = Wrapped(resnet)
    unused.forward = lambda images: resnet(images).detach()
    with pytest.raises(ValueError, match="class 3 does not depend on this layer's output"):
        explain.GradCAM()(unused, torch.randn(1, 3, 64, 64))
    assert not any(module._forward_hooks for module in resnet.modules())


def test_the_default_layer_of_a_network_with_a_conv_head_gives_its_class_activation_map() -> None:
    torch.manual_seed(0)
    network = timm.create_model("efficientnet_b0", num_classes=5).double().eval()
    images = torch.randn(2, 3, 96, 64, dtype=torch.float64)
    with torch.no_grad():
        features = network.forward_features(images)
    weights = network.classifier.weight[3]
    true = torch.einsum("c,bchw->bhw", weights, features).relu() / features[0, 0].numel()
    found = explain.GradCAM()(network, images, 3).values
    torch.testing.assert_close(found, true.detach().float())


def test_a_transformer_whose_norms_follow_its_attention_is_read_before_its_last_block() -> None:
    class PostNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut, self.first = nn.Conv2d(3, 24, 8, 8), nn.Parameter(torch.randn(1, 1, 24))
            layer = nn.TransformerEncoderLayer(24, 3, 48, 0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(24, 5)

        def forward(self, images: torch.Tensor) -> Any:
            x = self.cut(images).flatten(2).mT
            return self.head(
                self.encoder(torch.cat([self.first.expand(len(x), -1, -1), x], 1))[:, 0]
            )

    torch.manual_seed(0)
    maps = explain.HiResCAM()(PostNorm().eval(), torch.randn(2, 3, 32, 48), 1).values
    assert maps.shape == (2, 4, 6)
    assert (maps.amax((1, 2)) > 0).all()


def test_hirescam_is_read_after_the_norm_of_each_place() -> None:
    torch.manual_seed(0)
    network = timm.create_model(
        "swin_tiny_patch4_window7_224", num_classes=5, img_size=56, embed_dim=12, depths=(1, 1),
        num_heads=(1, 2),
    ).double().eval()  # fmt: skip
    network.head.fc.weight.data.normal_()
    images = torch.randn(2, 3, 56, 56, dtype=torch.float64)
    with torch.no_grad():
        features = network.forward_features(images)
    true = (features * network.head.fc.weight[3]).sum(-1).relu() / 49
    found = explain.HiResCAM()(network, images, 3).values
    torch.testing.assert_close(found, true.detach().float())


class TurnedNorm(nn.Module):
    """A convolution, then a norm that is given the channels last, as NesT's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 7, 3), nn.LayerNorm(7), nn.Linear(7, 5)

    def features(self, images: torch.Tensor) -> Any:
        return self.norm(self.conv(images).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.features(images).mean((2, 3)))


def test_hirescam_is_read_after_a_norm_that_is_given_the_channels_last() -> None:
    torch.manual_seed(0)
    network, images = TurnedNorm().eval(), torch.randn(2, 3, 7, 9)
    with torch.no_grad():
        evidence = network.head.weight[1, :, None, None] * network.features(images) / (5 * 7)
    found = explain.HiResCAM()(network, images, 1).values
    torch.testing.assert_close(found, evidence.sum(1).relu(), rtol=1e-4, atol=1e-6)


class NormedMap(nn.Module):
    """Attention between the places of a map, then a batch norm, as Visformer's."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.block = nn.Conv2d(3, 6, 4, 4), nn.Module()
        self.block.norm1 = nn.BatchNorm2d(6)
        self.block.attn = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(6, 5)

    def features(self, images: torch.Tensor) -> Any:
        x = self.cut(images)
        tokens = self.block.norm1(x).flatten(2).mT
        return self.norm(x + self.block.attn(tokens, tokens, tokens)[0].mT.reshape(x.shape))

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.features(images).mean((2, 3)))


@pytest.mark.parametrize("method", [explain.GradCAM, explain.HiResCAM])
def test_a_map_is_read_after_the_batch_norm_that_follows_the_last_attention(
    method: Callable[..., ClassActivationMap],
) -> None:
    torch.manual_seed(0)
    network = NormedMap().double().eval()
    for norm in (network.norm, network.block.norm1):
        nn.init.normal_(norm.bias)
        assert norm.running_mean is not None
        nn.init.uniform_(norm.running_mean, -1, 1)
    images = torch.randn(2, 3, 20, 28, dtype=torch.float64)
    with torch.no_grad():
        evidence = network.head.weight[1, :, None, None] * network.features(images) / (5 * 7)
    found = method()(network, images, 1).values.double()
    torch.testing.assert_close(found, evidence.sum(1).relu(), rtol=1e-4, atol=1e-6)


class WrittenMap(nn.Module):
    """A batch norm, then a ReLU that is no module and writes into its map, as DenseNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.Linear(7, 5)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.norm(self.conv(images)), inplace=True)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.features(images).mean((2, 3)))


@pytest.mark.parametrize("method", [explain.GradCAM, explain.HiResCAM])
def test_a_relu_that_writes_into_the_last_map_is_a_part_of_it(
    method: Callable[..., ClassActivationMap],
) -> None:
    torch.manual_seed(0)
    network, images = WrittenMap().eval(), torch.randn(2, 3, 7, 9)
    with torch.no_grad():
        evidence = network.head.weight[1, :, None, None] * network.features(images) / (5 * 7)
    found = method()(network, images, 1).values
    torch.testing.assert_close(found, evidence.sum(1).relu(), rtol=1e-4, atol=1e-6)


class Encoder(nn.Module):
    """torch's own encoder on patches: tokens first or images first, patches by rows or by columns."""

    def __init__(self, batch_first: bool, by_columns: bool) -> None:
        super().__init__()
        self.batch_first, self.by_columns = batch_first, by_columns
        self.cut, self.head = nn.Conv2d(3, 24, 8, 8), nn.Linear(24, 5)
        layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=batch_first, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images)
        x = (x.mT if self.by_columns else x).flatten(2).mT
        x = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return self.head(x.mean(1 if self.batch_first else 0))


@pytest.mark.parametrize(("batch_first", "by_columns"), [(True, True), (False, False)])
@pytest.mark.parametrize("count", [2, 24])  # as many images as tokens, too
@pytest.mark.parametrize(
    "method",
    [explain.GradCAM(), explain.GradCAM("encoder.layers.1.norm1"), explain.LibraGradient()],
)
def test_tokens_lie_where_the_run_says(
    batch_first: bool, by_columns: bool, count: int, method: explain.Explainer
) -> None:
    usual = Encoder(batch_first=True, by_columns=False).eval()
    other = Encoder(batch_first, by_columns).eval()
    other.load_state_dict(usual.state_dict())
    images = torch.randn(count, 3, 32, 48)
    expected = method(usual, images, 3, layout=TokenLayout(0, (4, 6), "mean")).values
    assert expected.std() > 0
    torch.testing.assert_close(method(other, images, 3).values, expected)


def test_a_classifier_of_convolutions_and_the_pool_before_it_are_no_maps() -> None:
    """VGG: the last map is that of the last activation before the last pool."""
    torch.manual_seed(0)
    network = VGG([4, "M", 6, "M"], num_classes=3, mlp_ratio=0.01).eval()
    images = torch.randn(2, 3, 28, 28)
    found = explain.GradCAM()(network, images, 1).values
    assert found.shape == (2, 14, 14)
    assert found.amax() > 0
    torch.testing.assert_close(
        found, explain.GradCAM(layer="features.4")(network, images, 1).values
    )


class OwnNorm(nn.Module):
    """Attention that normalises its tokens itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.to_qkv = nn.LayerNorm(12), nn.Linear(12, 36)
        self.q_norm = nn.LayerNorm(12)

    def forward(self, x: Any) -> torch.Tensor:
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, -1)
        return F.scaled_dot_product_attention(self.q_norm(q), k, v)


class Normed(nn.Module):
    """Tokens normalised, then anything."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.layer_norm_1, self.fn = nn.LayerNorm(12), fn

    def forward(self, x: Any) -> Any:
        return self.fn(self.layer_norm_1(x))


class NoNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.k_norm = nn.LayerNorm(12)

    def forward(self, x: Any) -> torch.Tensor:
        key = self.k_norm(self.key(x))
        return F.scaled_dot_product_attention(self.query(x), key, self.value(x))


class Attending(nn.Module):
    def __init__(self, *attentions: Any) -> None:
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, 12, 8, 8), nn.Parameter(torch.randn(1, 1, 12))
        self.layers = nn.ModuleList([nn.ModuleList([attention]) for attention in attentions])
        self.head = nn.Linear(12, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images).flatten(2).mT
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        layers: Any = self.layers
        for (attention,) in layers:
            x = x + attention(x)
        return self.head(x[:, 0])


@pytest.mark.parametrize(
    ("attention", "norm"),
    [(OwnNorm, "layers.1.0.norm"), (lambda: Normed(NoNorm()), "layers.1.0.layer_norm_1"),
     (lambda: nn.Sequential(nn.RMSNorm(12), NoNorm()), "layers.1.0.0")],
    ids=["its own", "around it", "before it"],
)  # fmt: skip
def test_the_norm_before_the_last_projection_is_found_whatever_its_name(
    attention: Callable[..., nn.Module], norm: str
) -> None:
    torch.manual_seed(0)
    network = Attending(attention(), attention()).eval()
    images = torch.randn(2, 3, 32, 48)
    layout = TokenLayout(1, (4, 6))
    found = explain.GradCAM()(network, images, 1)
    assert found.values.amax() > 0
    named = explain.GradCAM(layer=norm)(network, images, 1, layout=layout)
    torch.testing.assert_close(found.values, named.values)


def mvit() -> MultiScaleVit:
    strides: Any = ((1, 1), (2, 2))
    config = MultiScaleVitCfg(depths=(1, 2), embed_dim=12, num_heads=1, stride_q=strides)
    return MultiScaleVit(config, img_size=(64, 64), num_classes=5)


def tnt() -> TNT:
    return TNT(
        img_size=(64, 96), num_classes=5, embed_dim=24, inner_dim=12, depth=2, num_heads_inner=2,
        num_heads_outer=3,
    )  # fmt: skip


def crossvit() -> CrossVit:
    return CrossVit(
        img_size=96, num_classes=5, img_scale=(1.0, 2 / 3), patch_size=(8, 16), embed_dim=(12, 24),
        depth=((1, 1, 0),), num_heads=(2, 2), mlp_ratio=(2.0, 2.0, 1.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("network", "size", "layer", "prefix", "grid"),
    [
        (tnt, (64, 96), "blocks.1.norm_out", 1, (4, 6)),
        (mvit, (64, 64), "norm", 0, (8, 8)),
        (crossvit, (96, 96), "blocks.0.fusion.1.norm1", 1, (12, 12)),
    ],
)
def test_transformers_of_timm_with_several_grids(
    network: Callable[..., Any],
    size: tuple[int, int],
    layer: str,
    prefix: int,
    grid: tuple[int, int],
) -> None:
    torch.manual_seed(0)
    network = network().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    images = torch.randn(2, 3, *size)
    found = explain.GradCAM()(network, images).values
    assert found.shape == (2, *grid)
    assert found.amax() > 0
    layout = TokenLayout(prefix, grid, "cls" if prefix else "mean")
    named = explain.GradCAM(layer=layer)(network, images, layout=layout).values
    torch.testing.assert_close(found, named)


@pytest.mark.parametrize(
    ("method", "network"),
    [
        *((name, "gates of channels") for name in (*FAMILY, "ChannelGates")),
        *((name, "gates of places") for name in ("GradCAM", "SpatialGates")),
    ],
)
def test_another_thread_may_ask_the_network_meanwhile(method: str, network: str) -> None:
    """It explains images of its own, from end to end, once the layer of the map has run."""
    torch.manual_seed(0)
    if network == "gates of places":
        net = SpatialCNN(num_classes=3, widths=(5, 7, 11)).eval()
    else:
        net = SEResNet(num_classes=3, layers=(1, 1, 1, 1), widths=(5, 7, 11, 13)).eval()
    images, others = torch.randn(2, 3, 64, 64), torch.randn(3, 3, 64, 64)
    explainer = getattr(explain, method)()
    alone = [explainer(net, batch, 0).values for batch in (images, others)]
    found = []

    def meanwhile(_module: Any, _inputs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            ask = lambda: found.append(explainer(net, others, 0).values)  # noqa: E731
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()

    hook = net.fc.register_forward_pre_hook(meanwhile)
    values = explainer(net, images, 0).values
    hook.remove()
    assert torch.equal(values, alone[0])
    assert found
    assert all(torch.equal(one, alone[1]) for one in found)


def test_layers_as_modules_from_the_end_and_several_at_once(resnet: nn.Module) -> None:
    images = torch.randn(2, 3, 64, 96)
    last, early = (explain.GradCAM(layer=name)(resnet, images, 5) for name in ("layer4", "layer2"))
    for layer in (resnet.layer4, "layer4.-1", [resnet.layer4]):
        found = explain.GradCAM(layer=layer)(resnet, images, 5)
        torch.testing.assert_close(found.values, last.values)
    assert explain.GradCAM(layer=resnet.layer4)(resnet, images, 5).method == last.method
    wrapped = explain.GradCAM(layer=resnet.layer4)(Wrapped(resnet), images, 5)
    assert wrapped.method == "GradCAM(layer='network.layer4')"
    both = explain.GradCAM(layer=[resnet.layer2, "layer4.-1"])(resnet, images, 5)
    assert both.method == "GradCAM(layer=('layer2', 'layer4.-1'))"
    coarse = F.interpolate(last.values[:, None], early.values.shape[1:], mode="bilinear")[:, 0]
    torch.testing.assert_close(both.values, (early.values + coarse) / 2)
    assert both.targets is not None
    assert last.targets is not None
    assert torch.equal(both.targets, last.targets)


def test_a_module_that_is_no_layer_gets_one_line(resnet: nn.Module) -> None:
    images = torch.randn(2, 3, 64, 64)
    layer: Any
    for layer, message in [
        (nn.ReLU(), "the ReLU that is given as a layer is no part of this network"),
        (resnet, "the ResNet that is given as a layer is the network itself"),
        (["layer4", "layer9"], "it has no layer 'layer9' .did you mean 'layer4'"),
        ("layer4.-9", "it has no layer 'layer4.-9'"),
    ]:
        with pytest.raises(ValueError, match=message):
            explain.GradCAM(layer=layer)(resnet, images, 5)
    with pytest.raises(ValueError, match="option layer: expected one or more, got none"):
        explain.GradCAM(layer=[])
