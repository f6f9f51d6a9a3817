"""What gates let through: ours, timm's and torchvision's, by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torchvision
from timm.layers.cbam import CbamModule, LightCbamModule
from timm.layers.coord_attn import CoordAttn, EfficientLocalAttn, SimpleCoordAttn, StripAttn
from timm.layers.eca import CecaModule, EcaModule
from timm.layers.gather_excite import GatherExcite
from timm.layers.global_context import GlobalContext
from timm.layers.selective_kernel import SelectiveKernel
from timm.layers.split_attn import SplitAttn
from timm.layers.squeeze_excite import EffectiveSEModule, SqueezeExciteCl
from timm.models.hgnet import EseModule
from timm.models.senet import SEModule
from torch import nn

from vision_attn.attention.gates import CBAM, NoGate, SpatialMask, SqueezeExcite
from vision_attn.methods.gates import (
    ChannelGates,
    SpatialGates,
    find_gates,
    gate_values,
)
from vision_attn.models import SEResNet, SpatialCNN

IMAGES = torch.randn(2, 3, 10, 14)
LARGER = torch.randn(2, 3, 64, 96)


def cnn(*gates: Any) -> nn.Sequential:
    """conv, gate, pool by two, conv, gate, ..., logits."""
    layers = []
    for i, gate in enumerate(gates):
        layers += [nn.Conv2d(5 if i else 3, 5, 3, padding=1), gate, nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 7)).eval()


def test_gate_values_are_what_the_gates_multiply_by() -> None:
    network = cnn(SqueezeExcite(5), NoGate(5), CBAM(5)).eval()
    values = gate_values(network, IMAGES)
    assert list(values) == ["1", "7.channel", "7.spatial"]
    x = network[0](IMAGES)
    torch.testing.assert_close(x * values["1"][:, :, None, None], network[1](x))
    x = network[7].channel(network[:7](IMAGES))
    torch.testing.assert_close(x * values["7.spatial"][:, None], network[7](network[:7](IMAGES)))


def test_channel_maps_by_hand() -> None:
    network = cnn(SqueezeExcite(5), SqueezeExcite(5))
    x = network[:4](IMAGES)
    gate = network[4].gate(x)[:, :, 0, 0]
    passed = torch.einsum("bchw,bc->bhw", x.abs(), gate) / 5
    torch.testing.assert_close(ChannelGates()(network, IMAGES).values, passed)
    torch.testing.assert_close(ChannelGates(layer=1)(network, IMAGES).values, passed)
    assert ChannelGates(layer=0)(network, IMAGES).values.shape == (2, 10, 14)
    centred = gate - gate.mean(1, keepdim=True)
    selected = torch.einsum("bchw,bc->bhw", x.abs(), centred) / 5
    torch.testing.assert_close(ChannelGates(kind="selected")(network, IMAGES).values, selected)


def test_gates_that_do_not_choose_select_nothing() -> None:
    network = cnn(SqueezeExcite(5))
    nn.init.zeros_(network[1].fc2.weight)
    nn.init.zeros_(network[1].fc2.bias)
    maps = ChannelGates(kind="selected")(network, IMAGES).values
    torch.testing.assert_close(maps, torch.zeros(2, 10, 14))


def test_spatial_maps_by_hand() -> None:
    network = cnn(SpatialMask(5), SpatialMask(5))
    first = network[1].gate(network[0](IMAGES))
    second = network[4].gate(network[:4](IMAGES))
    grown = nn.functional.interpolate(second, size=(10, 14), mode="bilinear")
    mean = ((first + grown) / 2)[:, 0]
    torch.testing.assert_close(SpatialGates()(network, IMAGES).values, mean)
    product = SpatialGates(layer="product")(network, IMAGES).values
    torch.testing.assert_close(product, (first * grown)[:, 0])
    torch.testing.assert_close(SpatialGates(layer=-1)(network, IMAGES).values, second[:, 0])


@pytest.mark.parametrize(
    ("network", "channel", "spatial"),
    [
        (lambda: timm.create_model("seresnet18", num_classes=5), 8, 0),
        (lambda: timm.create_model("efficientnet_b0", num_classes=5), 16, 0),
        (lambda: torchvision.models.mobilenet_v3_small(num_classes=5), 9, 0),
        (lambda: cnn(CbamModule(5), EcaModule(5)), 2, 1),
        (lambda: cnn(SEModule(5, 2), EseModule(5)), 2, 0),
        (lambda: cnn(GlobalContext(5), GlobalContext(5, fuse_add=True, fuse_scale=False)), 1, 0),
        (lambda: timm.create_model("vit_tiny_patch16_224", num_classes=5), 0, 0),
    ],
    ids=["seresnet", "efficientnet", "torchvision", "cbam_eca", "se_ese", "gc", "vit"],
)
def test_gates_of_other_libraries(network: Callable[..., Any], channel: int, spatial: int) -> None:
    network = network().eval()
    images = torch.zeros(2, 3, 224, 224) if not channel else LARGER
    gates = find_gates(network, images)
    spatial_names = [gate.name for gate in gates if gate.spatial]
    assert (len(gates) - len(spatial_names), len(spatial_names)) == (channel, spatial)
    seen = {}
    for gate in gates:
        network.get_submodule(gate.name).register_forward_hook(
            lambda _m, x, y, name=gate.name: seen.update({name: (x[0], y.clone())})
        )
    values = gate_values(network, images) if gates else {}
    assert list(values) == list(seen)
    for name, (x, y) in seen.items():
        value = values[name]
        value = value[:, None] if name in spatial_names else value[:, :, None, None]
        torch.testing.assert_close(x * value, y)


def activations_of(
    network: nn.Sequential, names: tuple[str, str] = ("gate", "sigmoid")
) -> list[Any]:
    """What each activation named so gave in a run, as a list."""
    given = []
    hooks = [
        module.register_forward_hook(lambda _m, _x, y: given.append(y.detach().clone()))
        for name, module in network.named_modules()
        if name.rpartition(".")[2] in names and not list(module.parameters())
    ]
    network(IMAGES)
    for hook in hooks:
        hook.remove()
    return given


@pytest.mark.parametrize(
    "gate",
    [
        SEModule(5, 2), EseModule(5), EffectiveSEModule(5), EcaModule(5), CecaModule(5),
        EcaModule(5, use_mlp=True, rd_channels=3), GlobalContext(5), GlobalContext(5, fuse_add=True),
        GlobalContext(5, use_attn=False), GatherExcite(5, extent=0, use_mlp=False),
        GatherExcite(5, extent=2, use_mlp=False), CbamModule(5), SimpleCoordAttn(5),
        SimpleCoordAttn(5, has_skip=True), StripAttn(5),
    ],
    ids=lambda gate: type(gate).__name__,
)  # fmt: skip
def test_what_is_recorded_is_what_the_activation_gives(gate: nn.Module) -> None:
    network = cnn(gate)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    expected, found = activations_of(network), gate_values(network, IMAGES)
    assert expected
    assert len(expected) == len(found)
    for one, value in zip(expected, found.values(), strict=True):
        assert one.std() > 0
        torch.testing.assert_close(value.flatten(), one.flatten())
    if not isinstance(gate, CbamModule):
        x, values = network[0](IMAGES), expected[0].reshape(2, 5, *value.shape[2:] or (1, 1))
        expected = (values * x.abs()).mean(1)
        torch.testing.assert_close(ChannelGates()(network, IMAGES).values, expected)


@pytest.mark.parametrize("gate", [CoordAttn(5), EfficientLocalAttn(5)])
def test_gates_along_rows_and_columns_are_one_gate_of_each_place(gate: nn.Module) -> None:
    network = cnn(gate)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    first, second = activations_of(network)
    found = gate_values(network, IMAGES)["1"]
    torch.testing.assert_close(found, first * second)
    assert {first.shape[2:], second.shape[2:]} == {(10, 1), (1, 14)}


def test_a_gate_without_a_module_for_its_activation_is_read() -> None:
    gate = LightCbamModule(5)
    network = cnn(gate)
    found = gate_values(network, IMAGES)
    x = network[0](IMAGES)
    torch.testing.assert_close(x * found["1.channel"][:, :, None, None], gate.channel(x))
    x = gate.channel(x)
    torch.testing.assert_close(x * found["1.spatial"][:, None], gate.spatial(x))


@pytest.mark.parametrize(
    ("gate", "name"),
    [(SelectiveKernel(6, 5), "1.attn"), (SplitAttn(6, 5, norm_layer=nn.BatchNorm2d), "1"),
     (SplitAttn(6, 5, radix=3, groups=1, norm_layer=nn.BatchNorm2d), "1")],
    ids=["kernels", "splits", "three splits"],
)  # fmt: skip
def test_gates_among_branches_weigh_their_channels(gate: nn.Module, name: str) -> None:
    """The channels of the branches times their gates, summed over the branches, are the output."""
    layers = [nn.Conv2d(3, 6, 3, padding=1), gate, nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Linear(5, 7)).eval()
    branches = []
    if isinstance(gate, SplitAttn):
        gate.act0.register_forward_hook(lambda _m, _x, y: branches.append(y.detach().clone()))
    else:
        gate.attn.register_forward_hook(lambda _m, x, _y: branches.append(x[0].detach().clone()))
    values = gate_values(network, IMAGES)[name]
    x = branches[0].view(2, -1, 5, 10, 14)
    weights = values.view(2, -1, 5, 1, 1)
    torch.testing.assert_close(weights.sum(1), torch.ones(2, 5, 1, 1))
    torch.testing.assert_close((x * weights).sum(1), network[:2](IMAGES))
    expected = (x.abs() * weights).mean((1, 2))
    torch.testing.assert_close(ChannelGates()(network, IMAGES).values, expected)


def test_gates_of_maps_with_channels_last() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.se = SqueezeExciteCl(5, rd_channels=3)

        def forward(self, x: Any) -> Any:
            return self.se(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    network = cnn(Turned())
    (expected,) = activations_of(network)
    torch.testing.assert_close(gate_values(network, IMAGES)["1.se"], expected[:, 0, 0])
    assert ChannelGates()(network, IMAGES).values.shape == (2, 10, 14)


def test_features_that_a_gate_overwrites_are_read_before() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Sigmoid()

        def forward(self, x: Any) -> Any:
            return x.mul_(self.gate(x.mean((2, 3), keepdim=True)))

    network = cnn(InPlace())
    x = network[0](IMAGES)
    expected = (x.mean((2, 3), keepdim=True).sigmoid() * x.abs()).mean(1)
    torch.testing.assert_close(ChannelGates()(network, IMAGES).values, expected)


def test_an_identity_named_gate_is_none() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Identity()

        def forward(self, x: Any) -> Any:
            return self.gate(x)

    assert ChannelGates().refusal(cnn(Plain())) == "it has no channel gates"


def test_batches_are_the_images_one_by_one() -> None:
    network = cnn(CBAM(5), CBAM(5))
    for method in [ChannelGates(), SpatialGates()]:
        alone = torch.cat([method(network, image[None]).values for image in IMAGES])
        torch.testing.assert_close(method(network, IMAGES).values, alone)


def test_gates_of_our_networks() -> None:
    images = torch.randn(2, 3, 32, 32)
    senet = SEResNet(num_classes=3, layers=(1, 1, 1, 1), widths=(4, 4, 4, 6))
    assert list(gate_values(senet, images)) == [f"layer{i}.0.se" for i in range(1, 5)]
    assert ChannelGates()(senet, images).values.shape == (2, 4, 4)
    spatial = SpatialCNN(num_classes=3, widths=(4, 4, 6))
    assert [v.shape[1:] for v in gate_values(spatial, images).values()] == [
        (32, 32),
        (16, 16),
        (8, 8),
    ]
    assert SpatialGates()(spatial, images).values.shape == (2, 32, 32)
    assert SpatialGates().refusal(SpatialCNN(gate=NoGate)) == "it has no spatial gates"


def test_errors() -> None:
    network = cnn(SqueezeExcite(5))
    assert SpatialGates().refusal(network) == "it has no spatial gates"
    assert ChannelGates().refusal(cnn(SpatialMask(5))) == "it has no channel gates"
    with pytest.raises(ValueError, match="1 channel gates: layer must be -1 to 0, got 1"):
        ChannelGates(layer=1)(network, IMAGES)
    with pytest.raises(ValueError, match="Identity has no channel or spatial gates to read"):
        gate_values(nn.Identity(), IMAGES)
    layer: Any
    for layer, message in [
        ("0", "layer '0' has 0 channel gates: expected one, such as '1'"),
        (nn.ReLU(), "the ReLU that is given as a layer is no part of this network"),
        ((0, 3), "1 channel gates: layer must be -1 to 0, got 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            ChannelGates(layer=layer)(network, IMAGES)
    twice = cnn(CBAM(5), CBAM(5))
    with pytest.raises(ValueError, match="layer 'mena' has 0 spatial gates: expected one"):
        SpatialGates(layer="mena")(twice, IMAGES)


def test_gates_are_chosen_by_index_name_or_module_and_averaged() -> None:
    network = cnn(CBAM(5), CBAM(5))
    first, second = (ChannelGates(layer=at)(network, IMAGES) for at in (0, 1))
    for layer in ("4", "-5", "4.channel", network[4], network[4].channel, -1):
        assert torch.equal(ChannelGates(layer=layer)(network, IMAGES).values, second.values)
    both = ChannelGates(layer=[network[1], 1])(network, IMAGES)
    assert both.method == "ChannelGates(layer=('1', 1))"
    mean = (first.values + second.resized(10, 14).values) / 2
    torch.testing.assert_close(both.values, mean)
    spatial = SpatialGates(layer=["1.spatial", network[4]])(network, IMAGES).values
    torch.testing.assert_close(spatial, SpatialGates(layer="mean")(network, IMAGES).values)


# gates as people write them: what is multiplied decides, whatever it is called


class SequentialSE(nn.Module):
    """The whole branch in one Sequential, as in many repositories."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(5, 5, 3, padding=1)
        self.branch = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(5, 3, 1), nn.ReLU(), nn.Conv2d(3, 5, 1), activation
        )

    def forward(self, x: Any) -> torch.Tensor:
        y = self.conv(x)
        return nn.functional.relu(y * self.branch(y) + x)


class HardSigmoid(nn.Module):
    def forward(self, x: Any) -> torch.Tensor:
        return nn.functional.relu6(x + 3.0) / 6.0


class LinearSE(nn.Module):
    """Squeezed to (b c), back by a view, as in the first repository of SENet in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 5), nn.Sigmoid())

    def forward(self, x: Any) -> Any:
        b, c, _, _ = x.size()
        y = nn.functional.adaptive_avg_pool2d(x, 1).view(b, c)
        return x * self.fc(y).view(b, c, 1, 1).expand_as(x)


class Functional(nn.Module):
    """A spatial gate of torch.sigmoid, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Conv2d(5, 1, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = x.clone()
        x *= torch.sigmoid(self.score(x))
        return x


class ByHandCBAM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ca = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Conv2d(5, 5, 1), nn.Sigmoid())
        self.sa = nn.Sequential(nn.Conv2d(5, 1, 3, padding=1), nn.Sigmoid())

    def forward(self, x: Any) -> Any:
        x = self.ca(x) * x
        return self.sa(x) * x


class Coordinate(nn.Module):
    """Hou et al. 2021, with its hard swish inside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act = nn.Conv2d(5, 8, 1), nn.Hardswish()
        self.conv_h, self.conv_w = nn.Conv2d(8, 5, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Any) -> Any:
        h, w = x.shape[2:]
        rows, columns = x.mean(3, keepdim=True), x.mean(2, keepdim=True).permute(0, 1, 3, 2)
        y = self.conv1(torch.cat([rows, columns], dim=2))
        y = y * nn.functional.relu6(y + 3) / 6
        rows, columns = torch.split(y, [h, w], dim=2)
        self.a_h = self.conv_h(rows).sigmoid()
        self.a_w = self.conv_w(columns.permute(0, 1, 3, 2)).sigmoid()
        return x * self.a_w * self.a_h


@pytest.mark.parametrize(
    ("gate", "name", "shape"),
    [
        (lambda: SequentialSE(nn.Sigmoid()), "1.branch", (2, 5)),
        (lambda: SequentialSE(nn.Hardsigmoid()), "1.branch", (2, 5)),
        (lambda: SequentialSE(nn.Hardsigmoid(inplace=True)), "1.branch", (2, 5)),
        (lambda: SequentialSE(HardSigmoid()), "1.branch", (2, 5)),
        (LinearSE, "1", (2, 5)),
        (Functional, "1", (2, 10, 14)),
        (Coordinate, "1", (2, 5, 10, 14)),
    ],
    ids=["sigmoid", "hard", "hard in place", "relu6", "linear", "spatial", "coordinate"],
)
def test_gates_are_known_by_what_is_multiplied(
    gate: Callable[..., nn.Module], name: str, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    network = cnn(gate())
    found = gate_values(network, IMAGES)
    assert {key: tuple(values.shape) for key, values in found.items()} == {name: shape}
    module, x = network[1], network[0](IMAGES)
    if isinstance(module, SequentialSE):
        expected = module.branch(module.conv(x))[:, :, 0, 0]
    elif isinstance(module, LinearSE):
        expected = module.fc(x.mean((2, 3)))
    elif isinstance(module, Functional):
        expected = module.score(x).sigmoid()[:, 0]
    else:
        expected = module.a_w * module.a_h
    torch.testing.assert_close(found[name], expected)
    kind = SpatialGates if isinstance(module, Functional) else ChannelGates
    features = module.conv(x) if isinstance(module, SequentialSE) else x
    every = expected[:, :, None, None] if expected.ndim == 2 else expected
    wanted = expected if kind is SpatialGates else (every * features.abs()).mean(1)
    torch.testing.assert_close(kind()(network, IMAGES).values, wanted)


def test_gates_one_after_the_other_are_two_and_are_named_for_what_makes_them() -> None:
    network = cnn(ByHandCBAM())
    found = gate_values(network, IMAGES)
    x = network[0](IMAGES)
    channels = network[1].ca(x)
    assert list(found) == ["1.ca", "1.sa"]
    torch.testing.assert_close(found["1.ca"], channels[:, :, 0, 0])
    torch.testing.assert_close(found["1.sa"], network[1].sa(channels * x)[:, 0])


class Swish(nn.Module):
    """x sigmoid(beta x), by hand in several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.beta = way, nn.Parameter(torch.full((5,), 1.5))

    def forward(self, x: Any) -> Any:
        return {
            "sigmoid": lambda: x * torch.sigmoid(x),
            "quick gelu": lambda: x * torch.sigmoid(1.702 * x),
            "learned": lambda: x * torch.sigmoid(self.beta.view(1, -1, 1, 1) * x),
            "hard": lambda: x * (nn.functional.relu6(x + 3) / 6),
            "in place": lambda: x.mul_(x.sigmoid()),
            "of weights": lambda: x * torch.sigmoid(self.beta)[None, :, None, None],
            "relu6": lambda: nn.functional.relu6(x),
            "silu": lambda: nn.functional.silu(x),
        }[self.way]()


@pytest.mark.parametrize(
    "way", ["sigmoid", "quick gelu", "learned", "hard", "in place", "of weights", "relu6", "silu"]
)
def test_an_activation_is_no_gate(way: str) -> None:
    network = cnn(Swish(way))
    assert ChannelGates().refusal_for(network, IMAGES) == "it has no channel gates"
    assert SpatialGates().refusal_for(network, IMAGES) == "it has no spatial gates"


def test_attention_from_token_to_token_is_no_gate() -> None:
    for name in ("test_vit", "convit_tiny"):
        network = timm.create_model(name, num_classes=5).eval()
        assert ChannelGates().refusal(network) == "it has no channel gates"
