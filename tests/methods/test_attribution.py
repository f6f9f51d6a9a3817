"""Integrated gradients, occlusion and LIME: what captum computes, in our terms."""

from typing import Any

import pytest
import torch
from captum import attr
from torch import nn

from vision_attn import devices
from vision_attn.methods import LIME, MaskedRegression
from vision_attn.methods import lime as lime_file
from vision_attn.methods.attribution import Attribution, IntegratedGradients, Occlusion
from vision_attn.types import Heatmaps


@pytest.fixture
def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(20, 7)
    )


IMAGES = torch.randn(3, 3, 14, 21)


def test_integrated_gradients_are_complete(network: nn.Sequential) -> None:
    maps = IntegratedGradients(steps=64, rows=5)(network, IMAGES, [1, 4, 6])
    difference = (network(IMAGES) - network(torch.zeros_like(IMAGES)))[[0, 1, 2], [1, 4, 6]]
    torch.testing.assert_close(maps.values.sum((1, 2)), difference, rtol=0, atol=1e-5)


@pytest.fixture
def rough() -> nn.Sequential:
    """A network of many kinks, whose gradients the quadrature meets at few points only."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(32 * 3 * 6, 40), nn.ReLU(), nn.Linear(40, 7)
    )


class Root(nn.Module):
    """Finite, but with no finite gradient at 0."""

    def forward(self, x: Any) -> Any:
        return x.abs().sqrt()


def gap_of(maps: Heatmaps, network: nn.Sequential, images: torch.Tensor, targets: list[int]) -> Any:
    with torch.no_grad():
        change = (network(images) - network(torch.zeros_like(images)))[range(len(images)), targets]
    return (maps.values.sum((1, 2)) - change).abs() / change.abs()


def test_integrated_gradients_report_their_gap(rough: nn.Sequential) -> None:
    images = torch.randn(3, 3, 14, 21)
    maps = IntegratedGradients(steps=2)(rough, images, [1, 4, 6])
    gap = gap_of(maps, rough, images, [1, 4, 6])
    assert gap.max() > 0.01
    torch.testing.assert_close(maps.completeness_gap, gap, rtol=1e-3, atol=1e-5)
    theirs = attr.IntegratedGradients(rough).attribute(
        images, target=torch.tensor([1, 4, 6]), n_steps=2
    )
    torch.testing.assert_close(maps.values, theirs.sum(1).float())


@pytest.mark.parametrize(("window", "stride"), [(5, 3), (7, 7), (14, 1), (1, 1), (3, 2)])
def test_occlusion_is_captums(network: nn.Sequential, window: int, stride: int) -> None:
    network, images = network.double(), IMAGES.double()
    maps = Occlusion(window=window, stride=stride, rows=11)(network, images, [1, 4, 6])
    theirs = attr.Occlusion(network).attribute(
        images,
        sliding_window_shapes=(3, window, window),
        strides=(3, stride, stride),
        target=torch.tensor([1, 4, 6]),
        perturbations_per_eval=13,
    )
    torch.testing.assert_close(maps.values, theirs.mean(1).float())


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_lime_is_captums(network: nn.Sequential, rows: int) -> None:
    network, images = network.double(), IMAGES.double()
    network[-1].weight.data *= 100  # or the lasso leaves nothing
    maps = LIME(samples=67, cells=4, seed=3, rows=rows)(network, images, [1, 4, 6])
    cells = torch.arange(24).double().view(1, 1, 4, 6)
    mask = nn.functional.interpolate(cells, size=(14, 21), mode="nearest-exact").long()
    for row, target in enumerate([1, 4, 6]):
        torch.manual_seed(3)
        theirs = attr.Lime(network).attribute(
            images[row, None],
            target=target,
            feature_mask=mask,
            n_samples=67,
            perturbations_per_eval=9,
            return_input_shape=False,
        )
        assert (theirs != 0).sum() > 5
        torch.testing.assert_close(maps.values[row], theirs.view(4, 6), rtol=1e-4, atol=1e-5)


def test_the_steps_adapt_to_the_tolerance_image_by_image(rough: nn.Sequential) -> None:
    rows = []
    rough.register_forward_hook(lambda _m, args, _out: rows.append(len(args[0])))
    images = torch.randn(4, 3, 14, 21) * torch.tensor([3, 3, 3, 1e-3]).view(4, 1, 1, 1)
    targets = [1, 4, 6, 2]  # the last image meets no kink on its way
    usual = IntegratedGradients(steps=32)(rough, images, targets)
    assert usual.completeness_gap is not None
    assert usual.completeness_gap[:3].max() > 0.0005 > usual.completeness_gap[3]
    rows.clear()
    found = IntegratedGradients(tolerance=0.0005, most_steps=8192)(rough, images, targets)
    assert found.completeness_gap is not None
    assert (found.completeness_gap <= 0.0005).all()
    assert (gap_of(found, rough, images, targets) <= 0.0006).all()
    torch.testing.assert_close(found.values[3], usual.values[3])
    rows.clear()
    bounded = IntegratedGradients(tolerance=1e-9, most_steps=100)(rough, images, targets)
    assert sum(rows) <= 4 * (3 + 32 + 64) + 2 * 4
    assert bounded.completeness_gap is not None
    assert (bounded.completeness_gap <= usual.completeness_gap).all()


def test_integrated_gradients_of_a_linear_network_are_weight_times_input() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 7, 2))
    images = torch.randn(2, 3, 5, 7)
    expected = (images * network[1].weight[1].view(3, 5, 7)).sum(1)
    torch.testing.assert_close(IntegratedGradients(steps=3)(network, images, 1).values, expected)


def test_occlusion_is_its_definition(network: nn.Sequential) -> None:
    """On tiles that do not overlap: the logit lost with each."""
    maps = Occlusion(window=7, stride=7, rows=7)(network, IMAGES)
    logits = network(IMAGES)
    assert maps.targets is not None
    assert maps.targets.tolist() == logits.argmax(1).tolist()
    hidden = IMAGES.clone()
    hidden[:, :, 7:, 7:14] = 0
    lost = (logits - network(hidden)).gather(1, maps.targets[:, None])
    torch.testing.assert_close(maps.values[:, 7:, 7:14], lost[..., None].expand(3, 7, 7))


@pytest.mark.parametrize("method", [IntegratedGradients(steps=4), Occlusion()])
def test_batches(network: nn.Sequential, method: Attribution) -> None:
    alone = torch.cat([method(network, image[None]).values for image in IMAGES])
    torch.testing.assert_close(method(network, IMAGES).values, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        Occlusion(rows=11),
        MaskedRegression(samples=24, cells=5, rows=11),
        LIME(samples=24, cells=5, rows=11),
    ],
)
def test_copies_of_an_image_in_a_row_are_passed_once_for_all_their_classes(
    network: nn.Sequential, method: Attribution
) -> None:
    network, seen = network.double(), []
    network[-1].weight.data *= 100  # or LIME's lasso leaves nothing
    network.register_forward_hook(lambda module, args, output: seen.append(len(output)))

    def passes(images: torch.Tensor, classes: list[int]) -> tuple[Any, int]:
        seen.clear()
        maps = method(network, images, classes)
        assert maps.targets is not None
        assert maps.targets.tolist() == classes
        return maps.values, sum(seen)

    first, second, third = IMAGES.double()
    order = [first, second, second, second, third, first]
    classes = [1, 4, 0, 4, 6, 2]
    alone = [passes(image[None], [k]) for image, k in zip(order, classes, strict=True)]
    values, together = passes(torch.stack(order), classes)
    torch.testing.assert_close(values, torch.cat([one for one, _ in alone]), rtol=1e-5, atol=1e-6)
    assert not torch.equal(values[1], values[2])
    saved = sum(count for _, count in alone) - together
    assert saved > 0.9 * 2 * alone[1][1]  # two of the six are copies


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("method", [IntegratedGradients(steps=4), Occlusion()])
def test_networks_that_hide_their_modules_are_explained_from_outside(
    network: nn.Sequential, method: Attribution
) -> None:
    expected = method(network, IMAGES, 1).values
    batch = ({0: torch.export.Dim.AUTO},)
    exported = torch.export.export(network, (IMAGES,), dynamic_shapes=batch).module()
    for sealed in (torch.jit.trace(network.eval(), IMAGES), exported):
        torch.testing.assert_close(method(sealed, IMAGES, 1).values, expected)


def test_errors(network: nn.Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"Occlusion\(window=15\): the window does not fit images"):
        Occlusion(window=15)(network, IMAGES)
    with pytest.raises(ValueError, match="a stride of 5 skips pixels between windows of 4"):
        Occlusion(window=4, stride=5)(network, IMAGES)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        IntegratedGradients(steps=0)
    with pytest.raises(ValueError, match="most_steps must be at least 1, got 0"):
        IntegratedGradients(most_steps=0)
    with pytest.raises(ValueError, match=r"tolerance must be above 0, got 0\.0"):
        IntegratedGradients(tolerance=0.0)
    root = nn.Sequential(Root(), nn.Flatten(), nn.Linear(3 * 14 * 21, 7))
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        IntegratedGradients()(root, 0 * IMAGES, 1)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        Occlusion(rows=0)
    monkeypatch.setattr(lime_file, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="LIME needs scikit-learn: pip install scikit-learn"):
        LIME()(network, IMAGES)


@pytest.mark.parametrize(
    "method", [IntegratedGradients(steps=3), Occlusion(window=5), MaskedRegression(cells=3)]
)
def test_convolutions_in_float32_see_their_samples_channels_last(
    method: Attribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Conv2d(5, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    maps, last = {}, {}
    for native in ("32-true", "bf16-mixed"):
        monkeypatch.setattr(devices, "native_precision", lambda kind, native=native: native)
        formats: list[Any] = []
        handle = network.register_forward_pre_hook(
            lambda _, given, formats=formats: formats.append(
                len(given[0]) > 3 and given[0].is_contiguous(memory_format=torch.channels_last)
            )
        )
        maps[native] = method(network, IMAGES, [1, 4, 6]).values
        handle.remove()
        last[native] = any(formats)
    assert last == {"32-true": True, "bf16-mixed": False}
    torch.testing.assert_close(maps["32-true"], maps["bf16-mixed"], rtol=1e-4, atol=1e-5)


def test_a_window_is_a_seventh_of_the_shorter_side_and_moves_by_half() -> None:
    network, images = (
        nn.Sequential(nn.Flatten(), nn.Linear(3 * 29 * 37, 5)),
        torch.randn(2, 3, 29, 37),
    )
    found = Occlusion()(network, images, 3).values
    torch.testing.assert_close(found, Occlusion(window=4, stride=2)(network, images, 3).values)
