"""Small timm ViTs with attention that is far from uniform, as models."""

from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from vision_attn.data import Preprocess
from vision_attn.tokens import layout_of
from vision_attn.types import Model

SIZE = (12, 20)  # 3 x 5 patches of 4 x 4


def vit(depth: int = 3, registers: int = 0, seed: int = 0, **options: Any) -> VisionTransformer:
    """A ViT of 21 channels and 3 heads whose weights are large enough to matter."""
    torch.manual_seed(seed)
    network = VisionTransformer(
        img_size=SIZE, patch_size=4, embed_dim=21, depth=depth, num_heads=3, num_classes=5,
        reg_tokens=registers, mlp_ratio=11 / 7, **options,
    ).eval()  # fmt: skip
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * (1 / weight[0].numel()) ** 0.5)
        for block in network.blocks:
            block.attn.qkv.weight[:42] *= 1.5
    return network.double()


def model_of(network: torch.nn.Module) -> Model:
    preprocess = Preprocess(SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    classes = [f"class {index}" for index in range(5)]
    return Model(network, preprocess, classes, layout_of(network, SIZE), name="a ViT")


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(7, 3, *SIZE, generator=generator, dtype=torch.float64)
