"""Every number of a diagnosis beside a dense float64 computation, photo by photo."""

from math import hypot, log
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vision_attn.runs.diagnosis.measure import Meter
from vision_attn.runs.diagnosis.results import Diagnosis
from vision_attn.tokens.record.record import record_attention

from .conftest import model_of, vit


def measured(
    network: VisionTransformer, images: torch.Tensor, labels: list[int | None] | None = None
) -> Diagnosis:
    meter = Meter(model_of(network))
    labels = [None] * len(images) if labels is None else labels
    for part in (slice(0, 4), slice(4, None)):  # two batches
        meter.add(images[part], labels[part])
    return meter.result(asked=len(images))


class Dense:
    """One photo through a timm ViT by hand: all weights, the streams, what heads add."""

    def __init__(self, network: VisionTransformer, image: Any) -> None:
        x = network.patch_embed(image[None])
        x = network.norm_pre(network._pos_embed(x))
        self.weights, self.added, self.streams, self.middles, self.befores = [], [], [], [], []
        for block in network.blocks:
            self.befores.append(x[0])
            attn = block.attn
            qkv = attn.qkv(block.norm1(x)).reshape(x.shape[1], 3, 3, 7)
            q, k, v = qkv.permute(1, 2, 0, 3)
            weights = torch.softmax(q @ k.mT * 7**-0.5, -1)
            context = weights @ v
            parts = [context[h] @ attn.proj.weight[:, 7 * h : 7 * h + 7].T for h in range(3)]
            x = x + sum(parts) + attn.proj.bias
            self.weights.append(weights)
            self.added.append(torch.stack([part.norm(dim=-1).mean() for part in parts]))
            self.middles.append(x[0])
            x = x + block.mlp(block.norm2(x))
            self.streams.append(x[0])


@pytest.fixture
def network() -> VisionTransformer:
    return vit(depth=2, registers=1)  # 17 tokens: class, register, 15 patches


@pytest.fixture
def dense(network: VisionTransformer, images: torch.Tensor) -> list[Any]:
    with torch.no_grad():
        return [Dense(network, image) for image in images]


def close(found: float | None, expected: torch.Tensor) -> None:
    assert found is not None
    assert float(found) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


def mean(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in values]).mean(0)


def places() -> list[Any]:
    return [((row + 0.5) * 4, (column + 0.5) * 4) for row in range(3) for column in range(5)]


def test_heads(network: VisionTransformer, images: torch.Tensor, dense: list[Any]) -> None:
    found = measured(network, images)
    for head in found.heads:
        each = [one.weights[head.layer][head.head] for one in dense]
        close(head.entropy, mean([-(w * w.log()).sum(1).mean() / log(17) for w in each]))
        close(head.class_token, mean([w[:, 0].mean() for w in each]))
        close(head.registers, mean([w[:, 1].mean() for w in each]))
        close(head.moving, mean([w.mean(0)[2:].max() for w in each]))
        received = mean([w.mean(0) for w in each])
        close(head.sink, received.max())
        apart = [[hypot(a - c, b - d) for c, d in places()] for a, b in places()]
        apart = torch.tensor(apart, dtype=torch.float64)
        among = [w[2:, 2:] for w in each]
        close(head.distance, mean([((w * apart).sum(1) / w.sum(1)).mean() for w in among]))
        added = mean([one.added[head.layer] for one in dense])
        close(head.output, added[head.head] / added.mean())
        others = [g for g in range(3) if g != head.head]
        flat = [torch.cat([(one.weights[head.layer][g] - 1 / 17).flatten() for one in dense])
            for g in range(3)]  # fmt: skip
        cosines = {
            g: float(torch.cosine_similarity(flat[head.head], flat[g], dim=0)) for g in others
        }
        best = max(cosines, key=cosines.__getitem__)
        assert head.nearest == best
        close(head.alike, torch.tensor(cosines[best], dtype=torch.float64))
    assert {head.sink_token for head in found.heads} <= {
        *("the class token", "token 1 (no patch)"),
        *(f"patch ({row}, {column})" for row in range(3) for column in range(5)),
    }


def test_blocks(network: VisionTransformer, images: torch.Tensor, dense: list[Any]) -> None:
    found = measured(network, images)
    for block in found.blocks:
        each = [one.streams[block.block][2:] for one in dense]
        norms = [y.norm(dim=1) for y in each]
        close(block.norm, mean([n.sort().values[7] for n in norms]))
        close(block.largest, mean([n.max() for n in norms]))
        close(block.outliers, mean([sum(v > 2 * n.sort().values[7] for v in n) for n in norms]))
        cosines = [torch.cosine_similarity(y[:, None], y[None], dim=-1) for y in each]
        close(block.alike, mean([(c.sum() - 15) / (15 * 14) for c in cosines]))
        centred = [y - y.mean(0) for y in each]
        close(
            block.spread,
            mean([(c**2).sum() / (y**2).sum() for c, y in zip(centred, each, strict=True)]),
        )
        squares = [torch.linalg.svdvals(c) ** 2 for c in centred]
        close(block.rank, mean([s.sum() ** 2 / (s**2).sum() for s in squares]))
        parts = [
            torch.stack([b.norm(dim=1), (m - b).norm(dim=1), (y - m).norm(dim=1)], 1)
            for one in dense
            for b, m, y in [
                (one.befores[block.block], one.middles[block.block], one.streams[block.block])
            ]
        ]
        shares = mean([(p / p.sum(1, keepdim=True)).mean(0) for p in parts])
        for value, share in zip((block.residual, block.attention, block.mlp), shares, strict=True):
            close(value, share)


def test_layers_are_compared_token_by_token(
    network: VisionTransformer, images: torch.Tensor, dense: list[Any]
) -> None:
    found = measured(network, images)
    cosine: Any = torch.cosine_similarity
    each = [cosine(*one.streams, dim=1).mean() for one in dense]
    assert found.similarity is not None
    assert found.similarity[0][1] == pytest.approx(float(mean(each)), rel=1e-5)  # in float32


def test_attention_and_rollout_on_outliers() -> None:
    network = vit(depth=2)
    with torch.no_grad():
        assert network.pos_embed is not None
        network.pos_embed[:, 5] *= 60  # token 5, patch (0, 4)
    images = torch.randn(5, 3, 12, 20, dtype=torch.float64)
    found = measured(network, images)
    assert found.outliers is not None
    assert found.outliers.count == 1
    with torch.no_grad():
        dense = [Dense(network, image) for image in images]
    for head in found.heads:
        share = [one.weights[head.layer][head.head][:, 5].mean() for one in dense]
        close(head.outliers, mean(share))
    rolls = []
    for one in dense:
        first, second = (0.5 * torch.eye(16) + 0.5 * w.mean(0) for w in one.weights)
        rolls.append((second @ first)[0, 5])
    close(found.outliers.rollout, mean(rolls))
    assert found.outliers.where[0][4] == 1.0
    assert sum(map(sum, found.outliers.where)) == 1.0


def test_accuracy_and_calibration(network: VisionTransformer, images: torch.Tensor) -> None:
    labels = [0, 1, 2, None, 4, 0, 1]
    found = measured(network, images, labels).chances
    with torch.no_grad():
        chances = network(images).softmax(1)
    known = [at for at, label in enumerate(labels) if label is not None]
    sure, right = zip(
        *((chances[at].max().item(), chances[at].argmax().item() == labels[at]) for at in known),
        strict=True,
    )
    gaps: dict[Any, Any] = {}
    for confidence, hit in zip(sure, right, strict=True):
        index = next(i for i in range(15) if i / 15 < confidence <= (i + 1) / 15)
        gaps[index] = gaps.get(index, 0.0) + confidence - hit
    assert found is not None
    assert found.photos == 6
    close(found.accuracy, sum(right) / 6)
    close(found.confidence, sum(sure) / 6)
    close(found.error, sum(map(abs, gaps.values())) / 6)


def test_windows_and_merged_patches_have_their_distances_in_pixels() -> None:
    from timm.models.swin_transformer import SwinTransformer

    from vision_attn.data import Preprocess
    from vision_attn.types import Model

    torch.manual_seed(0)
    network = SwinTransformer(
        img_size=32, patch_size=4, window_size=2, embed_dim=6, depths=(2, 2), num_heads=(1, 2),
        num_classes=5,
    ).eval()  # fmt: skip
    preprocess = Preprocess((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    meter = Meter(Model(network, preprocess, [f"{i}" for i in range(5)], None))
    images = torch.randn(3, 3, 32, 32)
    meter.add(images, [None] * 3)
    heads = meter.result(asked=3).heads
    assert [head.layer for head in heads] == [0, 1, 2, 2, 3, 3]
    with record_attention(network) as record, torch.no_grad():
        network(images)
    for head in (heads[0], heads[2]):  # windows of 2 x 2 that are not shifted: pixels apart
        side = 4 * 2 ** (head.layer // 2)
        spots = [(0, 0), (0, side), (side, 0), (side, side)]
        apart = torch.tensor([[hypot(a - c, b - d) for c, d in spots] for a, b in spots])
        weights = record.calls[head.layer].weights()[:, head.head]
        assert head.distance == pytest.approx((weights * apart).sum(-1).mean().item(), rel=1e-5)


def test_what_is_kept_does_not_grow_with_the_photos(
    network: VisionTransformer, images: torch.Tensor
) -> None:
    meter = Meter(model_of(network))
    sizes = []
    for _ in range(3):
        meter.add(images, [0] * 7)
        sizes.append(sum(value.numel() for value in meter.sums._sums.values()))
    assert len(set(sizes)) == 1
    assert sizes[0] < 17 * 17 * 6  # less than one map of each head


def test_a_network_is_left_as_it_was(network: VisionTransformer, images: torch.Tensor) -> None:
    network.train()
    measured(network, images)
    assert network.training
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )


def test_a_network_without_norms_first_has_no_shares(images: torch.Tensor) -> None:
    class Post(nn.Module):
        def __init__(self, block: Any) -> None:
            super().__init__()
            self.attn, self.norm1, self.norm2, self.mlp = (
                block.attn, block.norm1, block.norm2, block.mlp
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + self.mlp(x))

    network = vit(depth=2)
    network.blocks = nn.Sequential(*map(Post, network.blocks))
    found = measured(network, images)
    assert [(block.name, block.mlp) for block in found.blocks] == [
        ("blocks.0", None),
        ("blocks.1", None),
    ]
