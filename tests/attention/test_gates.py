"""Gates against their formulas and timm's modules; and their way into a CNN that exists."""

import copy
import pickle
from typing import Any

import pytest
import timm
import timm.layers
import torch
import torchvision
from torch import Tensor, nn

from vision_attn.attention import (
    CBAM,
    ChannelGate,
    Gate,
    NoGate,
    SpatialGate,
    SpatialMask,
    SqueezeExcite,
    add_gates,
)
from vision_attn.attention.channels import channel_mean, channel_scale

B, C, H, W = 2, 17, 5, 7
GATES = [SqueezeExcite, ChannelGate, SpatialGate, SpatialMask, CBAM, NoGate]


def features(**options: Any) -> Tensor:
    return torch.randn(B, C, H, W, **options)


def test_squeeze_excite_is_timms() -> None:
    ours = SqueezeExcite(C, hidden=3)
    theirs = timm.layers.SEModule(C, rd_channels=3)
    theirs.load_state_dict(ours.state_dict())
    x, grad = features(requires_grad=True), features()
    torch.testing.assert_close(ours(x), theirs(x))
    inputs = lambda gate: (x, *gate.parameters())  # noqa: E731
    torch.testing.assert_close(
        torch.autograd.grad(ours(x), inputs(ours), grad),
        torch.autograd.grad(theirs(x), inputs(theirs), grad),
    )


@pytest.mark.parametrize("channels", [7, 16, 64, 128, 190, 192, 256, 320, 2048])
def test_squeeze_excite_rounds_its_width_as_timm(channels: int) -> None:
    theirs = timm.layers.SEModule(channels)
    ours = SqueezeExcite(channels, divisor=8)
    assert ours.fc1.out_channels == theirs.fc1.out_channels
    assert SqueezeExcite(channels).fc1.out_channels == max(1, channels // 16)


def test_squeeze_excite_is_the_formula_for_every_element() -> None:
    gate, x = SqueezeExcite(C, reduction=4), features()
    assert gate.fc1.out_channels == 4
    assert gate.fc1.bias is not None
    assert gate.fc2.bias is not None
    w1, w2 = gate.fc1.weight[:, :, 0, 0], gate.fc2.weight[:, :, 0, 0]
    for b in range(B):
        mean = torch.stack([x[b, c].flatten().sum() / (H * W) for c in range(C)])
        s = torch.sigmoid(w2 @ (w1 @ mean + gate.fc1.bias).relu() + gate.fc2.bias)
        torch.testing.assert_close(gate.gate(x)[b, :, 0, 0], s)
        torch.testing.assert_close(gate(x)[b], s[:, None, None] * x[b])


def test_cbam_is_timms() -> None:
    """But for the batch norm behind timm's spatial convolution, which the paper does not have."""
    ours = CBAM(C, reduction=4)
    theirs = timm.layers.cbam.CbamModule(C, rd_channels=4)
    theirs.spatial.conv.bn = nn.Identity()
    theirs.channel.fc1.load_state_dict(ours.channel.fc1.state_dict())
    theirs.channel.fc2.load_state_dict(ours.channel.fc2.state_dict())
    theirs.spatial.conv.conv.load_state_dict(ours.spatial.conv.state_dict())
    x = features()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.channel(x), theirs.channel(x))


def test_spatial_mask_is_the_formula() -> None:
    gate, x = SpatialMask(C, hidden=3), features()
    assert gate.conv2.bias is not None
    hidden = nn.functional.conv2d(x, gate.conv1.weight, gate.conv1.bias, padding=1).relu()
    mask = torch.sigmoid((gate.conv2.weight[0, :, 0, 0, None, None] * hidden).sum(1, keepdim=True))
    bias = torch.logit(mask) + gate.conv2.bias
    torch.testing.assert_close(gate.gate(x), torch.sigmoid(bias))
    torch.testing.assert_close(gate(x), torch.sigmoid(bias) * x)


@pytest.mark.parametrize("make", [g for g in GATES if g is not CBAM])
def test_a_gate_lets_a_share_through(make: type[Gate]) -> None:
    gate, x = make(channels=C), features()
    share = gate.gate(x)
    assert (share >= 0).all()
    assert (share <= 1).all()
    assert share.shape in {(B, C, 1, 1), (B, 1, H, W), (B, 1, 1, 1)}
    torch.testing.assert_close(gate(x), x * share)


@pytest.mark.parametrize("make", GATES)
def test_neutral_gates_let_everything_through_and_still_learn(make: type[Gate]) -> None:
    options = {"reduction": 2} if make in (SqueezeExcite, ChannelGate, CBAM) else {}
    gate, x = make(channels=C, **options), features(requires_grad=True)
    gate.neutralize()
    assert torch.equal(gate(x), x)
    (gate(x) * torch.randn_like(x)).sum().backward()
    last = [part.last() for part in gate.modules() if isinstance(part, Gate)]
    assert all(layer.weight.grad.abs().sum() > 0 for layer in last if layer is not None)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_channel_scaling_gradients(
    layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 2, 3, 2).to(memory_format=layout).requires_grad_()
    scale = torch.rand(3, 2, 1, 1, requires_grad=True)
    for chunk in (1, 1 << 18):
        monkeypatch.setattr("vision_attn.attention.channels.CHUNK", chunk)
        assert torch.autograd.gradcheck(channel_scale, (x, scale))
        assert torch.autograd.gradgradcheck(channel_scale, (x, scale))
    assert torch.autograd.gradcheck(channel_mean, (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_channel_means_are_summed_in_float32(dtype: torch.dtype) -> None:
    x = (500 * torch.rand(2, 3, 64, 64)).to(dtype)
    exact = x.double().mean((2, 3), keepdim=True)
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(channel_mean(x).double(), exact, rtol=tolerance, atol=0)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(C, 19, 1), nn.Conv2d(19, C, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.conv1(x).relu())


NETWORKS = {
    "torchvision resnet": lambda: torchvision.models.resnet18(num_classes=3),
    "timm resnet": lambda: timm.create_model("resnet10t", num_classes=3),
    "timm convnext": lambda: timm.create_model("convnext_atto", num_classes=3),
    "torchvision mobilenet": lambda: torchvision.models.mobilenet_v3_small(num_classes=3),
    "flat": lambda: nn.Sequential(
        nn.Conv2d(3, C, 3), nn.ReLU(), nn.Conv2d(C, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "depthwise": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.Conv2d(6, 7, 3), nn.AdaptiveAvgPool2d(1)
    ).append(nn.Flatten()),
    "own": lambda: nn.Sequential(nn.Conv2d(3, C, 3), Residual(), nn.Sequential(Residual())),
}
COUNTS = {
    "torchvision resnet": 8,
    "timm resnet": 4,
    "timm convnext": 12,
    "torchvision mobilenet": 11,
    "flat": 2,
    "depthwise": 2,
    "own": 2,
}


@pytest.mark.parametrize("gate", [SqueezeExcite, CBAM])
@pytest.mark.parametrize("name", NETWORKS)
def test_gates_go_into_any_cnn_without_changing_its_outputs(name: str, gate: Any) -> None:
    torch.set_default_dtype(torch.float32)
    network = NETWORKS[name]().train()
    names = set(network.state_dict())
    image = torch.randn(2, 3, 32, 32)
    before = network.eval()(image)
    statistics = {name: value.clone() for name, value in network.named_buffers()}
    assert add_gates(network.train(), gate, image_size=(64, 64)) is network
    assert network.training
    for key, value in network.named_buffers():
        assert torch.equal(value, statistics[key])
    gates = [module for module in network.modules() if isinstance(module, gate)]
    assert len(gates) == COUNTS[name]
    torch.testing.assert_close(network.eval()(image), before)

    new = set(network.state_dict()) - names
    assert names < set(network.state_dict())
    assert all("attention_gate" in key for key in new)
    network.train()(image).square().sum().backward()
    assert all(any(p.grad is not None for p in gate.parameters()) for gate in gates)
    with pytest.raises(ValueError, match="already has gates"):
        add_gates(network, gate)


def test_networks_with_gates_can_be_copied_and_stored() -> None:
    network = add_gates(NETWORKS["own"](), SqueezeExcite, image_size=(16, 16))
    gate = network.get_submodule("1.attention_gate")
    nn.init.normal_(gate.fc2.bias)
    image = torch.randn(2, 3, 16, 16)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        torch.testing.assert_close(other(image), network(image))
        other.get_submodule("1.attention_gate").neutralize()
        assert not torch.allclose(other(image), network(image))


def test_gates_that_cannot_be_neutral_are_put_in_as_they_are() -> None:
    class Half(nn.Module):
        def __init__(self, channels: int):
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    network = nn.Sequential(nn.Conv2d(3, C, 3))
    image = torch.randn(1, 3, 8, 8)
    before = network(image)
    torch.testing.assert_close(add_gates(network, Half, image_size=(8, 8))(image), before / 2)


def test_bad_input_is_refused() -> None:
    for make in GATES:
        with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
            make(channels=0)
    for make in (SqueezeExcite, ChannelGate, CBAM):
        with pytest.raises(ValueError, match="reduction must be at least 1, got 0"):
            make(C, reduction=0)
    with pytest.raises(ValueError, match="divisor must be at least 1, got 0"):
        SqueezeExcite(C, divisor=0)
    for make in (SqueezeExcite, ChannelGate, SpatialMask):
        with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
            make(C, hidden=0)
    for make in (SpatialGate, SpatialMask, CBAM):
        for size in (4, 0, -3):
            with pytest.raises(ValueError, match=f"kernel_size must be odd and at l.*got {size}"):
                make(C, kernel_size=size)
    with pytest.raises(ValueError, match="Linear has no convolution to put a gate after"):
        add_gates(nn.Linear(3, 5), SqueezeExcite)
