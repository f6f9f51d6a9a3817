"""A model stands for its network, and its layout for images of its input size."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from vision_attn.data import Preprocess
from vision_attn.methods import (
    ChannelGates,
    GradCAM,
    LeGrad,
    LibraGradient,
    MaskedRegression,
    RandomMap,
    Rollout,
    choose_methods,
    fitting_methods,
    gate_values,
    is_trusted,
)
from vision_attn.models import SEResNet, ViT
from vision_attn.tokens import layout_of, record_attention
from vision_attn.types import Model, TokenLayout, Trust

IMAGES = torch.randn(2, 3, 16, 24)
READ_BY_MEAN = TokenLayout(1, (2, 3), "mean")


def model_of(network: nn.Module, layout: TokenLayout | None = None) -> Model:
    preprocess = Preprocess((16, 24), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    return Model(network.eval(), preprocess, [], layout)


def vit() -> ViT:
    return ViT((16, 24), 8, 5, 12, 2, 3)


def test_a_models_network_and_layout_are_taken() -> None:
    network = vit()
    model = model_of(network, READ_BY_MEAN)
    maps = Rollout()(model, IMAGES)
    expected = Rollout()(network, IMAGES, layout=READ_BY_MEAN)
    assert torch.equal(maps.values, expected.values)
    assert not torch.equal(maps.values, Rollout()(network, IMAGES).values)
    rows = Rollout().rows(model, IMAGES)
    assert torch.equal(rows, Rollout().rows(network, IMAGES))
    torch.testing.assert_close(rows[:, 1:, 1:].mean(1), maps.values.flatten(1))


def test_an_explicit_layout_wins() -> None:
    model = model_of(vit(), READ_BY_MEAN)
    found = layout_of(model, (16, 24))
    assert found.pool == "cls"
    maps = Rollout()(model, IMAGES, layout=found)
    assert torch.equal(maps.values, Rollout()(model.network, IMAGES).values)


def test_images_of_another_size_have_a_layout_of_their_own() -> None:
    model = model_of(nn.Identity(), READ_BY_MEAN)
    assert RandomMap(cells=5)(model, IMAGES).values.shape == (2, 2, 3)
    assert RandomMap(cells=5)(model, IMAGES[..., :16]).values.shape == (2, 5, 5)


def test_a_model_without_tokens_and_one_that_is_refused() -> None:
    model = model_of(SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)))
    maps = GradCAM()(model, IMAGES, target=3)
    assert torch.equal(maps.values, GradCAM()(model.network, IMAGES, target=3).values)
    with pytest.raises(ValueError, match="Rollout does not fit SEResNet: no attention was found"):
        Rollout()(model, IMAGES)


def test_the_usual_method_is_the_first_of_a_few_passes_that_is_trusted() -> None:
    names = ("MaskedRegression", "Nothing", "ChannelGates", "LeGrad(smooth=1.0)", "Rollout")
    model = replace(model_of(vit()), trust=Trust(names, 300, "photos"))
    assert choose_methods(None, model) == [LeGrad(smooth=1.0)]
    assert is_trusted(MaskedRegression(), model)
    assert not is_trusted(LeGrad(), model)
    search = replace(model, trust=Trust(("MaskedRegression",), 32, "photos"))
    assert choose_methods(None, search) == [LibraGradient()]
    cnn = model_of(SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)))
    assert choose_methods(None, cnn) == choose_methods(None, cnn.network) == [GradCAM()]


def test_functions_take_a_model_for_its_network() -> None:
    model = model_of(vit())
    assert fitting_methods(model) == fitting_methods(model.network)
    assert choose_methods(None, model) == [LibraGradient()]
    with record_attention(model) as record:
        model.network(IMAGES)
    assert len(record.calls) == 2

    gated = model_of(SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)))
    assert gate_values(gated, IMAGES).keys() == gate_values(gated.network, IMAGES).keys()
    assert ChannelGates() in fitting_methods(gated)
