"""SE-ResNet against timm's, and the spatial-attention CNN against its formula."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.models import resnet as timm_blocks
from torch import nn
from torch.nn import functional as F

from vision_attn import models
from vision_attn.attention import CBAM, NoGate, SpatialMask, SqueezeExcite
from vision_attn.models import BasicBlock, Bottleneck, SEResNet, SpatialCNN, seresnet18
from vision_attn.models.senet import TIMM_GATE


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["seresnet18", "seresnet34", "seresnet50", "seresnet101", "seresnet152"]
)
def test_timm_seresnet_weights_give_timm_logits(name: str) -> None:
    theirs = timm.create_model(name).eval()
    for parameter in theirs.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
    for buffer_name, buffer in theirs.named_buffers():
        if buffer_name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    ours = getattr(models, name)().eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = torch.randn(2, 3, 96, 64)
    expected = theirs(images)
    print(f"{name}: max difference {(ours(images) - expected).abs().max():.1e}")
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-4 * float(expected.std()))


@torch.no_grad()
@pytest.mark.parametrize(
    ("ours", "theirs"), [(BasicBlock, timm_blocks.BasicBlock), (Bottleneck, timm_blocks.Bottleneck)]
)
def test_a_deep_stem_and_pooled_shortcuts_are_timms_resnet_d(ours: Any, theirs: Any) -> None:
    reference = timm_blocks.ResNet(
        theirs,
        (1, 2, 1, 2),
        num_classes=7,
        channels=(16, 24, 32, 40),
        stem_type="deep",
        stem_width=8,
        avg_down=True,
        block_args={"attn_layer": "se"},
    ).eval()
    for parameter in reference.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
    network = SEResNet(7, ours, (1, 2, 1, 2), (16, 24, 32, 40), stem="deep", gate=TIMM_GATE)
    network.load_state_dict(reference.state_dict(), strict=True)
    images = torch.randn(2, 3, 96, 71)
    expected = reference(images)
    assert expected.std() > 0.01
    torch.testing.assert_close(network.eval()(images), expected, rtol=1e-4, atol=1e-5)


def test_strides_say_by_how_much_each_stage_shrinks() -> None:
    network = SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4), strides=(1, 2, 2, 1))
    shapes = []
    for stage in stages(network):
        stage.register_forward_hook(lambda _m, _args, out: shapes.append(tuple(out.shape[2:])))
    network.eval()(torch.zeros(1, 3, 64, 96))
    assert shapes == [(64, 96), (32, 48), (16, 24), (16, 24)]


def test_a_checkpoint_from_before_the_squeeze_was_rounded_is_built_as_it_was() -> None:
    gate = {"class_path": "vision_attn.attention.SqueezeExcite", "init_args": {}}
    block = {"class_path": "vision_attn.models.BasicBlock", "init_args": {}}
    args = {"num_classes": 7, "block": block, "layers": (2, 2, 2, 2), "stem": "7x7", "gate": gate}
    args["widths"] = (64, 128, 256, 512)
    before = models.build({"class_path": "vision_attn.models.SEResNet", "init_args": args})
    assert [stage[0].se.fc1.out_channels for stage in stages(before)] == [4, 8, 16, 32]
    now = models.build(models.describe(seresnet18(7)))
    assert [stage[0].se.fc1.out_channels for stage in stages(now)] == [8, 8, 16, 32]


def stages(network: nn.Module) -> tuple[Any, Any, Any, Any]:
    return network.layer1, network.layer2, network.layer3, network.layer4


def test_stem_says_how_much_the_image_shrinks() -> None:
    shapes = []
    for stem in ("3x3", "7x7"):
        network = SEResNet(layers=(1, 1, 1, 1), widths=(4, 4, 4, 4), stem=stem).eval()
        network.layer4.register_forward_hook(lambda _m, _args, out: shapes.append(out.shape[2:]))
        network(torch.zeros(1, 3, 64, 96))
    assert shapes == [(8, 12), (2, 3)]


def test_a_residual_block_starts_as_the_identity() -> None:
    for network in (seresnet18(), SEResNet(block=Bottleneck, widths=(8, 8, 8, 8))):
        block = network.layer1[1].eval()
        x = torch.rand(2, block.conv1.in_channels, 5, 7)
        torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize("gate", [SqueezeExcite, SpatialMask, CBAM, NoGate])
def test_every_gate_goes_into_both_networks(gate: Callable[..., nn.Module]) -> None:
    images = torch.randn(2, 3, 32, 32)
    for network in (
        SEResNet(5, layers=(1, 1, 1, 1), widths=(8, 8, 16, 16), gate=gate),
        SpatialCNN(5, widths=(8, 16), depth=2, gate=gate),
    ):
        gates = [module for module in network.modules() if type(module) is gate]
        assert len(gates) == 4
        assert len({id(parameter) for module in gates for parameter in module.parameters()}) == sum(
            len(list(module.parameters())) for module in gates
        )
        logits = network(images)
        assert logits.shape == (2, 5)
        logits.sum().backward()


def test_a_gated_convolution_is_trunk_times_mask() -> None:
    stages: Any = SpatialCNN(widths=(5,)).stages
    block = stages[0][0].eval()
    x = torch.randn(2, 3, 7, 11)
    trunk = F.relu(block.bn(block.conv(x)))
    mask = torch.sigmoid(block.gate.conv2(F.relu(block.gate.conv1(trunk))))
    assert mask.shape == (2, 1, 7, 11)
    torch.testing.assert_close(block(x), trunk * mask)


def test_spatial_cnn_halves_between_stages() -> None:
    network, shapes = SpatialCNN(widths=(4, 6, 8)), []
    for stage in network.stages:
        stage.register_forward_hook(lambda _m, _args, out: shapes.append(tuple(out.shape[1:])))
    network(torch.zeros(2, 3, 20, 28))
    assert shapes == [(4, 20, 28), (6, 10, 14), (8, 5, 7)]


def test_a_stride_leaves_out_every_other_pixel_of_the_first_convolution() -> None:
    network = SpatialCNN(widths=(4, 6), depth=2, stride=2)
    strides = [m.stride for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert strides.count((2, 2)) == 1
    stages: Any = network.stages
    images, first = torch.randn(2, 3, 19, 29), stages[0][0].conv
    every = F.conv2d(images, first.weight, padding=1)
    torch.testing.assert_close(first(images), every[..., ::2, ::2])
    with pytest.raises(ValueError, match="stride must be at least 1, got 0"):
        SpatialCNN(stride=0)


@pytest.mark.parametrize("network", [SpatialCNN(), SEResNet(widths=(16, 32, 64, 128))])
def test_channels_last_gives_the_same_logits(network: nn.Module) -> None:
    network, images = network.eval(), torch.randn(2, 3, 32, 32)
    expected = network(images)
    last = network.to(memory_format=torch.channels_last)
    actual = last(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
