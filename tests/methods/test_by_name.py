"""Explainers by name, as people type them."""

from dataclasses import FrozenInstanceError
from inspect import isabstract
from typing import Any

import pytest
from torch import nn

from vision_attn import methods as explain
from vision_attn.methods import (
    Explainer,
    RawAttention,
    choose_methods,
    fitting_methods,
    methods,
    parse_method,
)
from vision_attn.methods.attribution import Occlusion
from vision_attn.methods.by_name import METHODS
from vision_attn.methods.gates import ChannelGates, SpatialGates
from vision_attn.methods.gradcam import GradCAM


@pytest.mark.parametrize(
    ("text", "explainer"),
    [
        ("GradCAM", GradCAM()),
        (" GradCAM() ", GradCAM()),
        ("GradCAM(layer=layer4.2)", GradCAM(layer="layer4.2")),
        ("GradCAM(layer='layer4.2')", GradCAM(layer="layer4.2")),
        ("GradCAM(layer=none)", GradCAM()),
        ("GradCAM(layer=4)", GradCAM(layer="4")),
        ("Occlusion(window=16, stride = 8,)", Occlusion(window=16, stride=8)),
        ("SpatialGates(layer=product)", SpatialGates(layer="product")),
        ("SpatialGates(layer=-2)", SpatialGates(layer=-2)),
        ("GradCAM(layer=blocks.-1.norm1)", GradCAM(layer="blocks.-1.norm1")),
        ("GradCAM(layer=[layer3, layer4.-1])", GradCAM(layer=("layer3", "layer4.-1"))),
        ("GradCAM(layer=('layer3',))", GradCAM(layer=("layer3",))),
        ("RawAttention(layer=[0, blocks.-1])", RawAttention(layer=(0, "blocks.-1"))),
    ],
)
def test_a_method_is_read_as_it_is_typed(text: str, explainer: Explainer) -> None:
    assert parse_method(text) == explainer
    assert parse_method(str(explainer)) == explainer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GradCma", r"unknown method 'GradCma' \(did you mean 'GradCAM'\?\); known: "),
        ("gradcam", r"unknown method 'gradcam' \(did you mean 'GradCAM'\?\)"),
        ("GradCAM(", "expected a method as Name"),
        ("", "expected a method as Name"),
        ("GradCAM(layer4)", r"expected option=value in 'GradCAM\(layer4\)', got 'layer4'"),
        (
            "GradCAM(layr=a)",
            r"no option 'layr' \(did you mean 'layer'\?\); its options: layer, smooth",
        ),
        ("GradCAM(layer=a, layer=b)", "option 'layer' is given twice"),
        ("ChannelGates(kind=pased)", r"expected 'passed' or 'selected', got 'pased' .did you mean"),
        ("Occlusion(window=1.5)", "Occlusion: option window: expected a whole number, got '1.5'"),
        ("Occlusion(window=-1)", "Occlusion: window must be at least 0, got -1"),
        ("Occlusion(window=__import__('os'))", "expected option=value"),
    ],
)
def test_a_mistake_gets_one_line_that_helps(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_method(text)
    assert "\n" not in str(caught.value)


def test_the_methods_are_those_that_are_exported() -> None:
    exported = {name: getattr(explain, name) for name in explain.__all__}
    assert methods() == {
        name: one
        for name, one in exported.items()
        if isinstance(one, type) and issubclass(one, Explainer) and not isabstract(one)
    }
    baselines = [issubclass(one, explain.Baseline) for one in methods().values()]
    assert baselines == sorted(baselines)  # last
    assert sum(baselines) == 3


def test_every_method_has_defaults_and_comes_back_from_its_spelling() -> None:
    assert {"GradCAM", "ChannelGates", "RandomMap", "IntegratedGradients"} <= set(methods())
    for name, method in methods().items():
        assert issubclass(method, Explainer)
        assert isinstance(method.class_specific, bool), name
        assert method.__doc__, name
        assert parse_method(name) == method()
        assert str(method()) in (name, f"{name}(smooth=1.0)")


def test_fitting_leaves_out_what_the_network_refuses() -> None:
    names = {str(explainer) for explainer in fitting_methods(nn.Sequential(nn.Conv2d(3, 5, 3)))}
    assert {"GradCAM", "RandomMap"} <= names
    assert ChannelGates().refusal(nn.Conv2d(3, 5, 3)) == "it has no channel gates"
    assert not names & {"ChannelGates", "SpatialGates"}


def test_modules_become_names_where_a_network_is_known() -> None:
    network: Any = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(5, 7, 3)))
    given = GradCAM(layer=[network[1][1], "0"])
    assert str(given) == "GradCAM(layer=(<Conv2d>, '0'))"
    (chosen,) = choose_methods([given, "GradCAM(layer=[1.1, 0])"], network)
    assert str(chosen) == "GradCAM(layer=('1.1', '0'))"


@pytest.mark.parametrize("method", METHODS)
def test_an_explainer_is_a_value(method: type[Explainer]) -> None:
    """Rows of a store are kept by what it writes of itself: it cannot change later."""
    explainer = method()
    assert hash(explainer) == hash(method())
    with pytest.raises(FrozenInstanceError):
        setattr(explainer, "layer", 3)  # noqa: B010
