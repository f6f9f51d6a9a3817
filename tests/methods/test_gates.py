"""What gates let through: ours, timm's and torchvision's, by hand."""

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
    channel_gates,
    gate_values,
    spatial_gates,
)
from vision_attn.models import SEResNet, SpatialCNN

IMAGES = torch.randn(2, 3, 10, 14)


def cnn(*gates):
    """conv, gate, pool by two, conv, gate, ..., logits."""
    layers = []
    for i, gate in enumerate(gates):
        layers += [nn.Conv2d(5 if i else 3, 5, 3, padding=1), gate, nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 7)).eval()


def test_gate_values_are_what_the_gates_multiply_by():
    network = cnn(SqueezeExcite(5), NoGate(5), CBAM(5)).eval()
    values = gate_values(network, IMAGES)
    assert list(values) == ["1", "7.channel", "7.spatial"]
    x = network[0](IMAGES)
    torch.testing.assert_close(x * values["1"][:, :, None, None], network[1](x))
    x = network[7].channel(network[:7](IMAGES))
    torch.testing.assert_close(x * values["7.spatial"][:, None], network[7](network[:7](IMAGES)))


def test_channel_maps_by_hand():
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


def test_gates_that_do_not_choose_select_nothing():
    network = cnn(SqueezeExcite(5))
    nn.init.zeros_(network[1].fc2.weight)
    nn.init.zeros_(network[1].fc2.bias)
    maps = ChannelGates(kind="selected")(network, IMAGES).values
    torch.testing.assert_close(maps, torch.zeros(2, 10, 14))


def test_spatial_maps_by_hand():
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
def test_gates_of_other_libraries(network, channel, spatial):
    network = network().eval()
    assert (len(channel_gates(network)), len(spatial_gates(network))) == (channel, spatial)
    if not channel:
        return
    seen = {}
    for name, gate in (channel_gates(network) | spatial_gates(network)).items():
        gate.register_forward_hook(
            lambda _m, x, y, name=name: seen.update({name: (x[0], y.clone())})
        )
    values = gate_values(network, torch.randn(2, 3, 64, 96))
    for name, (x, y) in seen.items():
        value = values[name]
        value = value[:, None] if name in spatial_gates(network) else value[:, :, None, None]
        torch.testing.assert_close(x * value, y)


def activations_of(network, names=("gate", "sigmoid")):
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
def test_what_is_recorded_is_what_the_activation_gives(gate):
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
def test_gates_along_rows_and_columns_are_one_gate_of_each_place(gate):
    network = cnn(gate)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    first, second = activations_of(network)
    found = gate_values(network, IMAGES)["1"]
    torch.testing.assert_close(found, first * second)
    assert {first.shape[2:], second.shape[2:]} == {(10, 1), (1, 14)}


def test_a_gate_without_a_module_for_its_activation_is_read():
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
def test_gates_among_branches_weigh_their_channels(gate, name):
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


def test_gates_of_maps_with_channels_last():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.se = SqueezeExciteCl(5, rd_channels=3)

        def forward(self, x):
            return self.se(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    network = cnn(Turned())
    (expected,) = activations_of(network)
    torch.testing.assert_close(gate_values(network, IMAGES)["1.se"], expected[:, 0, 0])
    assert ChannelGates()(network, IMAGES).values.shape == (2, 10, 14)


def test_features_that_a_gate_overwrites_are_read_before():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Sigmoid()

        def forward(self, x):
            return x.mul_(self.gate(x.mean((2, 3), keepdim=True)))

    network = cnn(InPlace())
    x = network[0](IMAGES)
    expected = (x.mean((2, 3), keepdim=True).sigmoid() * x.abs()).mean(1)
    torch.testing.assert_close(ChannelGates()(network, IMAGES).values, expected)


def test_an_identity_named_gate_is_none():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Identity()

        def forward(self, x):
            return self.gate(x)

    assert ChannelGates().refusal(cnn(Plain())) == "it has no channel gates"


def test_batches_are_the_images_one_by_one():
    network = cnn(CBAM(5), CBAM(5))
    for method in [ChannelGates(), SpatialGates()]:
        alone = torch.cat([method(network, image[None]).values for image in IMAGES])
        torch.testing.assert_close(method(network, IMAGES).values, alone)


def test_gates_of_our_networks():
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


def test_errors():
    network = cnn(SqueezeExcite(5))
    assert SpatialGates().refusal(network) == "it has no spatial gates"
    assert ChannelGates().refusal(cnn(SpatialMask(5))) == "it has no channel gates"
    with pytest.raises(ValueError, match="1 channel gates: layer must be -1 to 0, got 1"):
        ChannelGates(layer=1)(network, IMAGES)
    with pytest.raises(ValueError, match="Identity has no channel or spatial gates to read"):
        gate_values(nn.Identity(), IMAGES)
    network.unused = SqueezeExcite(5)
    network.forward = lambda images: nn.Sequential(*list(network)[:-1])(images)
    with pytest.raises(ValueError, match="1 of 2 gates gave no value, first 'unused'"):
        ChannelGates(layer=0)(network, IMAGES)
