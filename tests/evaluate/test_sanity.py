"""Sensitivity to noise, and randomised weights."""

from typing import Any

import pytest
import scipy.stats
import torch
from captum.metrics import sensitivity_max
from torch import nn
from torchmetrics.functional.image import structural_similarity_index_measure

from vision_attn import evaluate
from vision_attn.evaluate import (
    MaxSensitivity,
    ModelRandomisation,
    cascading_randomisation,
)
from vision_attn.evaluate.sanity import layers_from_the_top, randomise, spearman, ssim

IMAGES = torch.randn(4, 3, 13, 17)
TARGETS = torch.tensor([2, 0, 6, 2])


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 5, 3)
        self.scale = nn.Parameter(torch.ones(5, 1, 1))
        self.blocks = nn.Sequential(
            *[nn.Sequential(nn.Conv2d(5, 5, 3), nn.Conv2d(5, 5, 1)) for _ in range(2)]
        )
        self.head = nn.Linear(5, 7)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.blocks(self.stem(images) * self.scale).mean((2, 3)))


@torch.enable_grad()
def explain(network: Any, images: torch.Tensor, targets: Any) -> torch.Tensor:
    images = images.clone().requires_grad_()
    score = network(images).gather(1, targets[:, None]).sum()
    (gradient,) = torch.autograd.grad(score, images)
    return (gradient * images).sum(1).detach()


def test_sensitivity_of_known_maps() -> None:
    """map = a x: the change is at most a radius sqrt(pixels), whatever a."""
    metric = MaxSensitivity(lambda images, _: 5 * images.mean(1), radius=0.1, samples=20)
    metric.update(IMAGES, TARGETS)
    bound = 0.1 * (13 * 17) ** 0.5 / IMAGES.mean(1).flatten(1).norm(dim=1)
    assert (metric.per_image() < bound).all()
    assert (metric.per_image() > 0.2 * bound).all()
    steady = MaxSensitivity(lambda images, _: torch.ones(len(images), 3, 3))
    steady.update(IMAGES, TARGETS)
    assert steady.compute() == 0


def test_sensitivity_against_captum() -> None:
    """The same statistic over another draw of noise."""
    metric = MaxSensitivity(lambda images, _: images.mean(1) ** 2, radius=0.05, samples=200)
    metric.update(IMAGES, TARGETS)
    expected = sensitivity_max(
        lambda inputs: (inputs[0].mean(1) ** 2,), IMAGES, perturb_radius=0.05, n_perturb_samples=200
    )
    torch.testing.assert_close(metric.per_image(), expected, rtol=0.15, atol=0)


def test_layers_are_lost_from_the_top() -> None:
    network = Network()
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    names = [name for name, _ in layers_from_the_top(network)]
    assert names == ["head", "blocks.1", "blocks.0", "stem", "(itself)"]
    for name, lost in cascading_randomisation(network, seed=1):
        changed = {k for k, v in lost.state_dict().items() if not torch.equal(v, before[k])}
        done = names[: names.index(name) + 1]
        assert changed == {key for key in before if any(key.startswith(f"{n}.") for n in done)}
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


def test_blocks_of_other_libraries() -> None:
    names = nn.ModuleDict(
        {"encoder_layer_11": nn.Sequential(nn.Linear(2, 2)), "fc": nn.Linear(2, 2)}
    )
    assert [name for name, _ in layers_from_the_top(names)] == ["fc", "encoder_layer_11"]


def test_randomisation_tells_a_map_of_the_network_from_one_of_the_image() -> None:
    network = Network()
    of_network = ModelRandomisation(network, explain)
    of_image = ModelRandomisation(network, lambda _network, images, _targets: images.mean(1))
    for metric in (of_network, of_image):
        metric.update(IMAGES[:3], TARGETS[:3])
        metric.update(IMAGES[3:], TARGETS[3:])
    assert of_network.layers == ["head", "blocks.1", "blocks.0", "stem", "(itself)"]
    curves = of_network.curves()
    assert curves["rank correlation"].shape == curves["ssim"].shape == (4, 5)
    assert of_network.per_image().shape == (4,)
    assert of_network.per_image().mean() < 0.7
    torch.testing.assert_close(of_image.per_image(), torch.ones(4))
    torch.testing.assert_close(of_image.curves()["ssim"], torch.ones(4, 5))
    assert not list(of_network.children())


def test_rank_correlation_is_scipys_with_ties() -> None:
    a, b = torch.randint(9, (3, 5, 7)).float(), torch.randint(9, (3, 5, 7)).float()
    expected = [
        scipy.stats.spearmanr(x, y).statistic
        for x, y in zip(a.flatten(1).numpy(), b.flatten(1).numpy(), strict=True)
    ]
    torch.testing.assert_close(spearman(a, b), torch.tensor(expected).float())
    assert spearman(a, torch.ones(3, 5, 7)).tolist() == [0, 0, 0]


def test_ssim_is_of_scaled_maps() -> None:
    a, b = torch.rand(2, 64, 64), torch.rand(2, 64, 64)
    torch.testing.assert_close(ssim(a, 3 * a + 2), torch.ones(2))
    a[:, 0, 0], a[:, 0, 1], b[:, 0, 0], b[:, 0, 1] = 0, 1, 0, 1
    expected = structural_similarity_index_measure(a[:, None], b[:, None], data_range=1.0)
    torch.testing.assert_close(ssim(a, b).mean(), expected)


def test_sanity_errors() -> None:
    with pytest.raises(ValueError, match="samples must be at least 1 and radius above 0"):
        MaxSensitivity(lambda images, _: images.mean(1), samples=0)
    with pytest.raises(ValueError, match="4 of 4 maps hold NaN"):
        MaxSensitivity(lambda images, _: images.mean(1) * torch.nan).update(IMAGES, TARGETS)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = evaluate.nothing  # type: ignore[attr-defined]


def test_random_weights_have_the_mean_and_deviation_of_the_old() -> None:
    layer = nn.Linear(70, 110)
    with torch.no_grad():
        layer.weight.mul_(3).add_(2)
    before = layer.weight.detach().clone()
    randomise(layer, torch.Generator().manual_seed(0))
    after = layer.weight.detach()
    assert float(after.mean()) == pytest.approx(float(before.mean()), abs=0.02)
    assert float(after.std()) == pytest.approx(float(before.std()), rel=0.03)
    assert float(torch.corrcoef(torch.stack([before, after]).flatten(1))[0, 1]) < 0.1
