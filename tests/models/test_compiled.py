"""Our networks compile without graph breaks and export, with the same logits."""

import pytest
import torch

from vision_attn.models import SEResNet, SpatialCNN, ViT
from vision_attn.models.checkpoint import Rebuildable

NETWORKS = [
    ViT(image_size=16, dim=12, depth=2, heads=3, registers=1),
    SEResNet(layers=(1, 1, 1, 1), widths=(8, 8, 8, 8)),
    SpatialCNN(widths=(4, 8)),
]


@pytest.mark.compiled
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: type(network).__name__)
def test_compiled_and_exported_networks_give_the_same_logits(network: Rebuildable) -> None:
    network, images = network.eval(), torch.randn(2, 3, 16, 24)
    expected = network(images)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), expected)
    exported = torch.export.export(network, (images,)).module()
    torch.testing.assert_close(exported(images), expected)
