"""Networks of full size in the page, in Node: those of the shelf, and a compact ViT for photos."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vision_attn import list_models, live, load_model
from vision_attn.attention import AttentionPool
from vision_attn.data import Preprocess, example_photos, read_image
from vision_attn.methods import GradCAM, Rollout
from vision_attn.models import ConvEmbed, ViT
from vision_attn.types import Model

PHOTOS = ("springer_and_milk", "church")
MOST_BYTES = 12_000_000
SIZE = (160, 160)


def compact_vit() -> Model:
    """2.5 M parameters that know nothing, with attention that is not even, in half precision."""
    torch.manual_seed(0)
    network = ViT(
        image_size=160,
        patch_size=16,
        num_classes=10,
        dim=192,
        depth=6,
        heads=6,
        mlp_ratio=2.0,
        pool=AttentionPool,
        class_token=False,
        embed=partial(ConvEmbed, depth=2, norm=True, strided=True),
    )
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.normal_(0, 0.1)
            assert module.running_var is not None
            module.running_var.uniform_(0.5, 1.5)
    for block in network.blocks:
        block.attn.qkv.weight.data *= 3
    network.head.weight.data *= 20
    for parameter in network.parameters():  # as the shelf stores them
        parameter.data = parameter.data.half().float()
    half = (0.5, 0.5, 0.5)
    classes = [*"abcdefghij"]
    return Model(network.eval(), Preprocess(SIZE, half, half), classes, network.layout(SIZE))


def named(name: str) -> Model:
    return load_model(f"vision_attn:{name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a compact ViT", *(row["name"] for row in list_models())])
def test_the_page_sees_photos_as_python_does(run_in_page: Any, name: str) -> None:
    model = compact_vit() if name == "a compact ViT" else named(name)
    assert len(live(model).html) <= MOST_BYTES
    for photo in PHOTOS:
        image = model.preprocess(read_image(example_photos()[photo]))
        found = run_in_page(model, image)
        with torch.no_grad():
            logits = model.network(image[None])[0]
        shown = torch.tensor(found["logits"])
        torch.testing.assert_close(shown, logits, atol=1e-2, rtol=0)
        assert shown.argmax() == logits.argmax()
        assert logits.std() > 0.5
        if model.layout is None:
            target = int(logits.argmax())
            wanted = GradCAM()(model.network, image[None], target).values[0]
            seen = found["cams"][target]
        else:
            wanted = Rollout()(model.network, image[None]).values[0]
            seen = found["rollout"]["values"]
        apart = np.abs(np.reshape(seen, wanted.shape) - wanted.numpy()).max()
        assert apart <= 0.02 * float(wanted.max())
