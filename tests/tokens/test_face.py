"""The two functions of `vision_attn.tokens`: they agree with each other and with dense matrices."""

import pytest
import torch
from torch import nn
from torchvision.transforms import Compose, Resize, ToTensor

from vision_attn import wrap
from vision_attn.models import ViT
from vision_attn.tokens import probe, record_attention, trace_tokens
from vision_attn.tokens.path.chain import PropagationRule

SIZE = (24, 40)  # 3 x 5 patches of 8 x 8


def vit() -> ViT:
    torch.manual_seed(5)
    return ViT(SIZE, patch_size=8, num_classes=7, dim=12, depth=3, heads=3).double().eval()


def test_a_row_along_the_traced_chain_is_a_product_of_the_recorded_matrices() -> None:
    network, images = vit(), torch.rand(2, 3, *SIZE, dtype=torch.float64)
    path = trace_tokens(network, images)
    with record_attention(network) as record:
        network(images)
    assert [step.module for step in path.steps] == [call.module for call in record.calls]
    product = torch.eye(16, dtype=torch.float64)
    for call in record.calls:
        product = (0.3 * torch.eye(16) + 0.7 * call.weights()[1].mean(0)) @ product
    rule = PropagationRule(lambda _, call, rows, *__: rows @ call.weights().mean(1), 0.3, 0.7)
    chain = path.chain_for(record.calls, None, 2)
    rows = chain.back(chain.seed(2, images.device, images.dtype), rule)
    torch.testing.assert_close(rows[1, 0], product[0])


def test_the_size_is_that_of_the_images_or_of_what_the_model_takes() -> None:
    network = nn.Sequential(vit().float())
    layout = trace_tokens(network, torch.rand(1, 3, *SIZE)).layout
    assert layout is not None
    assert layout.grid == (3, 5)
    transform = Compose([Resize((24, 24)), ToTensor()])
    model = wrap(ViT(24, 8, 7, 12, 1, 3), transform, list("abcdefg"))
    layout = trace_tokens(model).layout
    assert layout is not None
    assert layout.grid == (3, 3)
    assert probe(model) is trace_tokens(model, torch.rand(1, 3, 24, 24))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_cannot_be_traced_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^ViT takes images of 3 channels, got 5$"):
        trace_tokens(vit().float(), torch.rand(1, 5, *SIZE))
    script = torch.jit.trace(nn.Conv2d(3, 5, 3), torch.rand(1, 3, 8, 8))
    with pytest.raises(ValueError, match="cannot be traced: TorchScript hides its modules"):
        trace_tokens(script, torch.rand(1, 3, 8, 8))
