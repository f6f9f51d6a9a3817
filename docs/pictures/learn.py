"""Makes the pictures of the Learn pages, docs/pictures/learn: a minute, nothing to download.

    python docs/pictures/learn.py [NAME ...]     those named, or all

Each is computed by the classes that its page is about: fresh ones with drawn weights, a network
that comes along (vision_attn:vit_planted), or, for `gates`, one trained here for a minute.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from vision_attn import attention as attn
from vision_attn import load_model
from vision_attn.data import planted
from vision_attn.tokens import record_attention
from vision_attn.types import TokenLayout

HERE = Path(__file__).parent / "learn"
MODEL = "vision_attn:vit_planted"
SHOWN = 6  # of the planted test images
BLUE, RED, GREY = "#2b3fb0", "#d9480f", "#8a8d99"


def style() -> AbstractContextManager[None]:
    """Set matplotlib's defaults while a picture is drawn."""
    return mpl.rc_context(
        {
            "svg.hashsalt": "vision_attn",  # the same file each time
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 9,
            "axes.titleweight": "bold",
        }
    )


def one_vector() -> Figure:
    """How much each of 40 inputs still moves the last state of a GRU, and an attended mean."""
    length, width = 40, 16
    torch.manual_seed(0)
    encoder = nn.GRU(width, width, batch_first=True)
    attend = attn.Attend(attn.ScaledDot(head_dim=width))

    def last(x: Tensor) -> Tensor:
        state: Tensor = encoder(x)[0][0, -1]
        return state

    def attended(x: Tensor) -> Tensor:
        states = encoder(x)[0][:, None]
        context: Tensor = attend(states[:, :, -1:], states, states)[0, 0, 0]
        return context

    x = torch.randn(1, length, width)
    figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
    for what, name, colour in ((last, "the last state", GREY), (attended, "the context", BLUE)):
        moved = jacobian(what, x)[:, 0].norm(dim=(0, 2))
        axes.semilogy(range(1, length + 1), moved, color=colour, label=name, lw=2)
    axes.set(xlabel="input t of 40", ylabel="size of the derivative by x_t")
    axes.legend(frameon=False)
    return figure


def lookup() -> Figure:
    """A dictionary asked between its keys: the answer as the query turns, by temperature."""
    angles = torch.arange(6) * torch.pi / 3
    keys = torch.stack([angles.cos(), angles.sin()], -1)[None, None]
    values = torch.tensor([1.0, 3.0, 2.0, 5.0, 4.0, 0.0])[None, None, :, None]
    turn = torch.linspace(-0.5, 2 * torch.pi - 0.5, 500)
    query = torch.stack([turn.cos(), turn.sin()], -1)[None, None]
    figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
    for temperature, colour in ((1.0, GREY), (0.2, BLUE), (0.02, RED)):
        attend = attn.Attend(attn.CosineSimilarity(head_dim=2), attn.Softmax(temperature))
        with torch.no_grad():
            answer = attend(query, keys, values)[0, 0, :, 0]
        axes.plot(turn, answer, color=colour, label=f"T = {temperature}")
    axes.plot(angles, values[0, 0, :, 0], "ko", label="keys and values")
    axes.set(xlabel="direction of the query, in radians", ylabel="what comes back")
    axes.legend(frameon=False, ncols=2)
    return figure


def scores() -> Figure:
    """Each score as a field over the plane of keys, for one query."""
    kinds: list[tuple[str, Callable[[], attn.Score]]] = [
        ("CosineSimilarity", lambda: attn.CosineSimilarity(2)),
        ("Dot", lambda: attn.Dot(2)),
        ("ScaledDot", lambda: attn.ScaledDot(2)),
        ("General", lambda: attn.General(2)),
        ("BiasedGeneral", lambda: attn.BiasedGeneral(2)),
        ("ActivatedGeneral", lambda: attn.ActivatedGeneral(2)),
        ("Concat", lambda: attn.Concat(2)),
        ("Additive", lambda: attn.Additive(2)),
        ("Deep", lambda: attn.Deep(2)),
        ("KeyOnly", lambda: attn.KeyOnly(2)),
    ]
    side = torch.linspace(-3, 3, 61)
    keys = torch.cartesian_prod(side, side)[None, None]
    query = torch.tensor([1.2, 1.6]).view(1, 1, 1, 2)
    figure, grid = plt.subplots(2, 5, figsize=(8, 3.6), layout="constrained", dpi=110)
    for axes, (name, make) in zip(grid.flat, kinds, strict=True):
        torch.manual_seed(3)
        with torch.no_grad():
            field = make()(query, keys)[0, 0, 0].view(61, 61).T
        axes.contourf(side, side, field, levels=14, cmap="PuOr")
        axes.annotate("", (1.2, 1.6), (0, 0), arrowprops={"arrowstyle": "->", "lw": 2})
        axes.set(title=name, aspect="equal", xticks=[], yticks=[])
    return figure


def normalisers() -> Figure:
    """The same five scores under each normaliser."""
    given = torch.tensor([2.0, 1.6, 0.9, 0.2, -1.0])
    kinds = {
        "Softmax": attn.Softmax(),
        "Softmax, T = 0.25": attn.Softmax(0.25),
        "Sigmoid": attn.Sigmoid(),
        "Entmax15": attn.Entmax15(),
        "Sparsemax": attn.Sparsemax(),
        "Hard": attn.Hard(),
    }
    figure, grid = plt.subplots(1, 6, figsize=(8, 1.9), sharey=True, layout="constrained")
    for axes, (name, normaliser) in zip(grid, kinds.items(), strict=True):
        weights = normaliser(given)
        axes.bar(range(5), weights, color=BLUE)
        for at, weight in enumerate(weights.tolist()):
            if weight == 0:
                axes.text(at, 0.02, "0", ha="center", color=RED)
        axes.set(title=name, xticks=[], ylim=(0, 1.05))
    return figure


def windows() -> Figure:
    """The weights of 25 queries and 25 keys under each window."""
    torch.manual_seed(4)
    q, k = torch.randn(2, 1, 1, 25, 8)
    layout = TokenLayout(prefix=0, grid=(5, 5), pool="mean")
    kinds = {
        "Global": attn.Global(),
        "LocalMonotonic(3)": attn.LocalMonotonic(radius=3),
        "LocalPredictive(3)": attn.LocalPredictive(head_dim=8, radius=3),
        "Local2d(1), 5 x 5 patches": attn.Local2d(radius=1),
    }
    figure, grid = plt.subplots(1, 4, figsize=(8, 2.3), layout="constrained", dpi=110)
    for axes, (name, window) in zip(grid, kinds.items(), strict=True):
        attend = attn.Attend(attn.ScaledDot(head_dim=8), window=window)
        with torch.no_grad():
            matrix(axes, attend.weights(q, k, layout=layout)[0, 0], name)
        axes.set(xlabel="key", ylabel="query" if axes is grid[0] else "")
    return figure


def self_attention() -> Figure:
    """A layer's matrix of a trained ViT, and three of its rows laid on the image."""
    image, _, weights = asked()
    rows = (8 * 3 + 4, 8 * 1 + 6, 8 * 6 + 1)
    figure, grid = plt.subplots(1, 4, figsize=(8, 2.3), layout="constrained", dpi=110)
    mean = weights[2].mean(0)
    matrix(grid[0], mean, "64 queries, 64 keys")
    for axes, row in zip(grid[1:], rows, strict=True):
        over(axes, image, mean[row], f"row {row + 1}")
        axes.plot(row % 8 * 8 + 4, row // 8 * 8 + 4, "s", mfc="none", mec="w", ms=9, mew=2)
    return figure


def convolution() -> Figure:
    """The nine heads that make a 3 x 3 convolution, sharp and blurred, for the middle pixel."""
    conv = nn.Conv2d(1, 1, 3, padding=1)
    figure, grid = plt.subplots(2, 9, figsize=(8, 2.1), layout="constrained", dpi=110)
    for row, alpha in zip(grid, (40, 1), strict=True):
        attention = attn.QuadraticAttention.from_conv(conv, alpha)
        looks = attention.weights((7, 7)).detach()[:, 24].view(9, 9, 9)[:, 1:8, 1:8]
        for head, axes in enumerate(row):
            matrix(axes, looks[head], f"head {head + 1}" if alpha == 40 else "")
            axes.plot(3, 3, "s", mfc="none", mec=BLUE, ms=7, mew=1)
        row[0].set_ylabel(f"alpha = {alpha}")
    return figure


def heads() -> Figure:
    """What each head of two layers of a trained ViT looks at, averaged over its queries."""
    image, _, weights = asked()
    count = weights[0].size(0)
    figure, grid = plt.subplots(
        2, count + 1, figsize=(1.7 * (count + 1), 3.6), layout="constrained", dpi=110
    )
    for row, layer in zip(grid, (1, 3), strict=True):
        for head, axes in enumerate(row[:-1]):
            over(axes, image, weights[layer][head].mean(0), f"layer {layer + 1}, head {head + 1}")
        over(row[-1], image, weights[layer].mean((0, 1)), "mean of the heads")
    return figure


def views() -> Figure:
    """Three views of multi-dimensional attention: three matrices in one bilinear score."""
    photos = planted.paint(28, 29, split="train")
    tokens = described(photos.images)[..., [*range(8), *range(10, 14)]]
    at = object_place(photos, 0)
    attention = attn.MultiDimAttention(12, heads=3, qkv_bias=False, score=attn.General)
    colour, place = torch.zeros(12, 12), torch.zeros(12, 12)
    colour[:3, :3], place[8:, 8:] = 0.3 * torch.eye(3), torch.eye(4)
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.eye(12).repeat(3, 1))
        attention.attend.score.query_proj.weight.copy_(
            torch.stack([colour, colour + 4 * place, colour - 1.5 * place])
        )
        weights = attention.weights(tokens)[0, :, at]
    names = ("like in colour", "like in colour, and near", "like in colour, and far")
    figure, grid = plt.subplots(1, 4, figsize=(8, 2.3), layout="constrained", dpi=110)
    image = picture(photos, 0)
    grid[0].imshow(image)
    grid[0].set(title="the query is in the ring")
    grid[0].set_axis_off()
    for axes, view, name in zip(grid[1:], weights, names, strict=True):
        over(axes, image, view, name)
    for axes in grid:
        ring(axes, at)
    return figure


def hierarchy() -> Figure:
    """Three modules that attend in levels, taught for some seconds to find the object."""
    photos = planted.paint(0, 512, split="train")
    keys, inside = described(photos.images)[..., :10], on_object(photos)
    first, second = 28, 48  # of the same class
    torch.manual_seed(0)

    pool = attn.HierarchicalPool(10, regions=(4, 4))
    layout = TokenLayout(0, (16, 16), "attention")

    def pool_loss() -> Tensor:
        some = torch.randint(512, (64,))
        return missed(pool.weights(keys[some], layout), inside[some, None])

    via = attn.AttentionViaAttention(10)
    coarse = nn.functional.avg_pool2d(keys.mT.unflatten(2, (16, 16)), 4).flatten(2).mT
    mostly = nn.functional.avg_pool2d(inside.float().unflatten(1, (16, 16)), 4).flatten(1) > 0.5

    def via_loss() -> Tensor:
        some, asked = torch.randint(512, (64,)), torch.randint(256, (64, 4))
        query = keys[some].gather(1, asked[..., None].expand(-1, -1, 10))
        there = inside[some].gather(1, asked)[..., None]
        over_coarse, over_fine = via.weights(query, coarse[some], keys[some])
        fine = missed(over_fine, there == inside[some, None])
        return fine + missed(over_coarse, there == mostly[some, None])

    guided = attn.TargetGuided(10)

    def guided_loss() -> Tensor:
        some = torch.randint(500, (64,))
        other = (some + 10 * torch.randint(1, 40, (64,))) % 500  # every tenth is of the same class
        _, found = guided.weights(keys[some], keys[other], target_mask=inside[some])
        return missed(found, inside[other])

    for module, loss in ((pool, pool_loss), (via, via_loss), (guided, guided_loss)):
        teach(module, loss)
    at = object_place(photos, first)
    one, other = slice(first, first + 1), slice(second, second + 1)
    with torch.no_grad():
        places, regions = pool.weights(keys[one], layout)[0]
        over_coarse, over_fine = via.weights(keys[one, at : at + 1], coarse[one], keys[one])
        target, found = guided.weights(keys[one], keys[other], target_mask=inside[one])
    image, next_image = picture(photos, first), picture(photos, second)
    figure, grid = plt.subplots(3, 3, figsize=(6.4, 6.8), layout="constrained", dpi=110)
    for row in grid:
        row[0].imshow(image)
        row[0].set_axis_off()
    grid[0, 0].set(title="Hierarchical")
    over(grid[0, 1], image, regions, "weights of regions")
    over(grid[0, 2], image, places, "weights of places")
    grid[1, 0].set(title="AttentionViaAttention")
    over(grid[1, 1], image, over_coarse, "first look: regions")
    over(grid[1, 2], image, over_fine, "second look: places")
    for axes in grid[1]:
        ring(axes, at)
    grid[2, 0].set(title="TargetGuided")
    over(grid[2, 1], image, target, "over the target")
    over(grid[2, 2], next_image, found, "over another image")
    return figure


def co_attention() -> Figure:
    """Two sequences that share two items: the affinity, and each side's weights by five kinds."""
    torch.manual_seed(1)
    width = 16
    apart = 3 * torch.linalg.qr(torch.randn(width, width)).Q  # rows that have nothing in common
    keys = apart[None, :12]
    queries = apart[None, [12, 4, 13, 9, 14]]
    kinds = {
        "AttentionOverAttention": attn.AttentionOverAttention(width, score=attn.ScaledDot),
        "MaxPoolCoAttention": attn.MaxPoolCoAttention(width),
        "ParallelCoAttention": attn.ParallelCoAttention(width),
        "AlternatingCoAttention": attn.AlternatingCoAttention(width),
        "InteractiveAttention": attn.InteractiveAttention(width),
    }
    with torch.no_grad():
        kinds["MaxPoolCoAttention"].affinity.weight.copy_(torch.eye(width))
        found = {name: kind.weights(queries, keys)[1][0] for name, kind in kinds.items()}
    figure, axes = plt.subplots(figsize=(6.4, 3), layout="constrained")
    rows = [queries[0] @ keys[0].T / width, *(w[None] / w.max() for w in found.values())]
    names = [f"query {i + 1}" for i in range(5)]
    shown = torch.cat([rows[0] / rows[0].max(), *rows[1:]]).clamp(min=0)
    axes.imshow(shown, cmap="magma_r", aspect="auto", vmin=0, vmax=1)
    axes.axhline(4.5, color="w", lw=4)
    axes.set_yticks(range(10), names + list(found))
    axes.set_xticks(range(12), [str(j + 1) for j in range(12)])
    axes.set_xlabel("key; 5 is query 2, and 10 is query 4")
    return figure


class Gated(nn.Module):
    """A small CNN with both gates, to train here."""

    def __init__(self, classes: int, width: int = 24):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 5, 2, 2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip
        self.squeeze = attn.SqueezeExcite(width, reduction=4)
        self.mask = attn.SpatialMask(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = self.squeeze(self.stem(x))
        mask = self.mask.gate(squeezed)
        logits: Tensor = self.head((squeezed * mask).sum((2, 3)) / mask.sum((2, 3)))
        return logits


def gates() -> Figure:
    """What a spatial mask lets through after a minute of training, and two images' channel gates.

    The features are averaged under the mask, so that closing a place changes the mean.
    """
    data = planted.paint(0, 2048, split="train")
    torch.manual_seed(0)
    network = Gated(len(data.classes))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.005, total_steps=32 * 12)
    for step in range(32 * 12):
        part = slice(step % 32 * 64, step % 32 * 64 + 64)
        loss = nn.functional.cross_entropy(network(scaled(data.images[part])), data.labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    test = planted.paint(0, 10, split="test")
    with torch.no_grad():
        features = network.stem(scaled(test.images))
        squeezed = network.squeeze.gate(features)[:, :, 0, 0]
        masks = network.mask.gate(network.squeeze(features))[:, 0]
    figure, grid = plt.subplots(1, 5, figsize=(8, 2), layout="constrained", dpi=110)
    for pair, at in ((grid[:2], 1), (grid[2:4], 6)):
        pair[0].imshow(test.images[at].permute(1, 2, 0))
        pair[0].set(title=test.classes[int(test.labels[at])])
        pair[1].imshow(masks[at], cmap="inferno", vmin=0)
        pair[1].set(title="its spatial mask")
    for axes in grid[:4]:
        axes.set_axis_off()
    for at, colour in ((1, BLUE), (6, RED)):
        grid[4].step(range(24), squeezed[at], color=colour, where="mid")
    grid[4].set(title="24 channel gates", ylim=(0, 1), xticks=[])
    return figure


def vit() -> Figure:
    """An image, its patches as a sequence, and how near the positions of a trained ViT are."""
    image, _, _ = asked()
    embed = load_model(MODEL).network.pos_embed[0].detach()
    figure = plt.figure(figsize=(8, 2.4), layout="constrained", dpi=110)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 2.2, 1))
    left.imshow(image)
    left.set(title="64 x 64 pixels")
    patches = np.asarray(image).reshape(8, 8, 8, 8, 3).transpose(0, 2, 1, 3, 4).reshape(64, 8, 8, 3)
    strip = np.full((4 * 10, 16 * 10, 3), 255, np.uint8)
    for at, patch in enumerate(patches):
        y, x = at // 16 * 10 + 1, at % 16 * 10 + 1
        strip[y : y + 8, x : x + 8] = patch
    middle.imshow(strip)
    middle.set(title="64 patches of 8 x 8, read as a sequence")
    near = torch.cosine_similarity(embed[8 * 2 + 5], embed, dim=1).view(8, 8)
    right.imshow(near, cmap="PuOr", vmin=-1, vmax=1)
    right.plot(5, 2, "s", mfc="none", mec="k", ms=14, mew=2)
    right.set(title="similar positions")
    for axes in (left, middle, right):
        axes.set_axis_off()
    return figure


def rollout() -> Figure:
    """Each layer's mean weights beside what is followed through all of them."""
    image, mask, weights = asked()
    figure, grid = plt.subplots(1, 7, figsize=(9.6, 1.75), layout="constrained", dpi=110)
    grid[0].imshow(image)
    grid[0].set(title="image")
    for layer, axes in enumerate(grid[1:5]):
        over(axes, image, weights[layer].mean((0, 1)), f"layer {layer + 1} alone")
    found = load_model(MODEL).explain(image, "Rollout")
    over(grid[5], image, torch.as_tensor(found["Rollout"].values).flatten(), "rollout")
    grid[6].imshow(mask, cmap="gray")
    grid[6].set(title="the object")
    for axes in grid:
        axes.set_axis_off()
    return figure


def maps() -> Figure:
    """One image and one class by eight methods."""
    image, _, _ = asked()
    names = (
        *("RawAttention", "Rollout", "WeightedRollout", "GradientRollout"),
        *("Relevance", "LeGrad", "GradCAM", "Occlusion"),
    )
    found = load_model(MODEL).explain(image, names)
    figure, grid = plt.subplots(2, 4, figsize=(8, 4.4), layout="constrained", dpi=110)
    for axes, name in zip(grid.flat, names, strict=True):
        over(axes, image, torch.as_tensor(found[name].values).clamp(min=0).flatten(), name)
    return figure


# ---------------------------------------------------------------- shared


@cache
def asked() -> tuple[Image.Image, Tensor, list[Tensor]]:
    """A planted image, its mask, and the weights (head i j) of each layer of a trained ViT."""
    test = planted.paint(0, SHOWN + 1, split="test")
    image = Image.fromarray(test.images[SHOWN].permute(1, 2, 0).numpy())
    model = load_model(MODEL)
    with torch.no_grad(), record_attention(model) as record:
        model.network(model.preprocess(image)[None])
    weights = [call.weights()[0] for call in record.calls]
    return image, test.object_mask[SHOWN].float(), weights


def described(images: Tensor) -> Tensor:
    """uint8 images (n 3 64 64) -> 14 numbers for each of 16 x 16 places, (n 256 14).

    Mean colour, spread of the colours, roughness across and down, close up and from afar; and the
    place, as angles.
    """
    x = images.float() / 255
    grey = x.mean(1, keepdim=True)
    rough = []
    for reach in (1, 3):
        across = (grey[..., reach:] - grey[..., :-reach]).abs()
        down = (grey[:, :, reach:] - grey[:, :, :-reach]).abs()
        pad = nn.functional.pad
        rough += [pad(across, (0, reach)), pad(down, (0, 0, 0, reach))]
    local = torch.cat([x, x * x, *rough], 1)
    mean = nn.functional.avg_pool2d(local, 12, 4, 4, count_include_pad=False)
    colour, square, rough_there = mean.split([3, 3, 4], 1)
    spread = (square - colour**2).clamp(min=0).sqrt()
    looks = torch.cat([colour, spread, rough_there], 1).flatten(2).mT
    looks = (looks - looks.mean((0, 1))) / looks.std((0, 1))
    y, x = torch.meshgrid(*[torch.linspace(-1.2, 1.2, 16)] * 2, indexing="ij")
    place = torch.stack([x.sin(), x.cos(), y.sin(), y.cos()], -1).flatten(0, 1)
    return torch.cat([looks, place.expand(len(looks), -1, -1)], -1)


def on_object(photos: planted.PlantedImages) -> Tensor:
    """Which of the 16 x 16 places lie on the object, (n 256)."""
    return nn.functional.avg_pool2d(photos.object_mask[:, None].float(), 4).flatten(1) > 0.5


def object_place(photos: planted.PlantedImages, number: int) -> int:
    """A place in the middle of the object."""
    return int(on_object(photos)[number].nonzero().median())


def teach(module: nn.Module, loss_of_a_batch: Callable[[], Tensor], steps: int = 200) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(steps):
        loss = loss_of_a_batch()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def missed(weights: Tensor, wanted: Tensor) -> Tensor:
    """-log of the weight that falls where it should."""
    return -(weights * wanted).sum(-1).clamp(min=1e-6).log().mean()


def picture(photos: planted.PlantedImages, number: int) -> Image.Image:
    return Image.fromarray(photos.images[number].permute(1, 2, 0).numpy())


def ring(axes: Axes, place: int) -> None:
    """Mark one of the 16 x 16 places."""
    axes.plot(place % 16 * 4 + 2, place // 16 * 4 + 2, "o", mfc="none", mec="w", ms=9, mew=2)


def scaled(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


def matrix(axes: Axes, weights: Tensor, title: str) -> None:
    axes.imshow(weights, cmap="magma_r", vmin=0)
    axes.set(title=title, xticks=[], yticks=[])


def over(axes: Axes, image: Image.Image, row: Tensor, title: str) -> None:
    """One row of weights over a square grid of patches, on the grey image."""
    side = round(row.numel() ** 0.5)
    axes.imshow(image.convert("L"), cmap="gray", alpha=0.6)
    axes.imshow(row.view(side, side), cmap="inferno", vmin=0, extent=(0, 64, 64, 0), alpha=0.7)
    axes.set(title=title, xlim=(0, 64), ylim=(64, 0))
    axes.set_axis_off()


PICTURES: dict[str, Callable[[], Figure]] = {
    "one_vector.svg": one_vector,
    "lookup.svg": lookup,
    "scores.png": scores,
    "normalisers.svg": normalisers,
    "windows.png": windows,
    "self_attention.png": self_attention,
    "convolution.png": convolution,
    "heads.png": heads,
    "views.png": views,
    "hierarchy.png": hierarchy,
    "co_attention.png": co_attention,
    "gates.png": gates,
    "vit.png": vit,
    "rollout.png": rollout,
    "maps.png": maps,
}


def main() -> None:
    wanted = sys.argv[1:] or list(PICTURES)
    mpl.use("agg")
    with style():
        for name in wanted:
            if name not in PICTURES:
                sys.exit(f"{name}: expected one of {', '.join(PICTURES)}")
            figure = PICTURES[name]()
            stamp = {"Date": None} if name.endswith(".svg") else {}
            figure.savefig(HERE / name, metadata=stamp)
            plt.close(figure)
            if name.endswith(".png"):  # with 256 colours it is half as large
                with Image.open(HERE / name) as picture:
                    few = picture.convert("RGB").quantize(256)
                few.save(HERE / name, optimize=True)
            print(HERE / name)


if __name__ == "__main__":
    main()
