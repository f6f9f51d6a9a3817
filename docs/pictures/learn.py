"""Makes the pictures of the Learn pages, docs/pictures/learn: a minute, nothing to download.

    python docs/pictures/learn.py [NAME ...]     those named, or all

Each is computed by the classes that its page is about: fresh ones with drawn weights, a network
that comes along (vision_attn:vit_planted), or, for `gates`, one trained here for a minute.
"""

import sys
from collections.abc import Callable
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
from vision_attn.explain import record_attention
from vision_attn.types import TokenLayout

HERE = Path(__file__).parent / "learn"
MODEL = "vision_attn:vit_planted"
SHOWN = 6  # of the planted test images
STYLE = {
    "svg.hashsalt": "vision_attn",  # the same file each time
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
}
BLUE, RED, GREY = "#2b3fb0", "#d9480f", "#8a8d99"


def one_vector() -> Figure:
    """How much each of 40 inputs still moves the last state of a GRU, and an attended mean."""
    length, width = 40, 16
    torch.manual_seed(0)
    encoder = nn.GRU(width, width, batch_first=True)
    attend = attn.Attend(attn.ScaledDot(head_dim=width))

    def last(x: Tensor) -> Tensor:
        return encoder(x)[0][0, -1]

    def attended(x: Tensor) -> Tensor:
        states = encoder(x)[0][:, None]
        return attend(states[:, :, -1:], states, states)[0, 0, 0]

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
        attend = attn.Attend(attn.Similarity(head_dim=2), attn.Softmax(temperature))
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
        ("Similarity", lambda: attn.Similarity(2)),
        ("Dot", lambda: attn.Dot(2)),
        ("ScaledDot", lambda: attn.ScaledDot(2)),
        ("General", lambda: attn.General(2)),
        ("ActivatedGeneral", lambda: attn.ActivatedGeneral(2)),
        ("Additive", lambda: attn.Additive(2)),
        ("Deep", lambda: attn.Deep(2)),
        ("KeyOnly", lambda: attn.KeyOnly(2)),
    ]
    side = torch.linspace(-3, 3, 61)
    keys = torch.cartesian_prod(side, side)[None, None]
    query = torch.tensor([1.2, 1.6]).view(1, 1, 1, 2)
    figure, grid = plt.subplots(2, 4, figsize=(8, 4.2), layout="constrained", dpi=110)
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
        return self.head((squeezed * mask).sum((2, 3)) / mask.sum((2, 3)))


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
    right.imshow(near, cmap="PuOr_r", vmin=-1, vmax=1)
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


def scaled(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


def matrix(axes: Axes, weights: Tensor, title: str) -> None:
    axes.imshow(weights, cmap="magma_r", vmin=0)
    axes.set(title=title, xticks=[], yticks=[])


def over(axes: Axes, image: Image.Image, row: Tensor, title: str) -> None:
    """One row of weights over the 8 x 8 patches, on the grey image."""
    axes.imshow(image.convert("L"), cmap="gray", alpha=0.6)
    axes.imshow(row.view(8, 8), cmap="inferno", vmin=0, extent=(0, 64, 64, 0), alpha=0.7)
    axes.set(title=title, xlim=(0, 64), ylim=(64, 0))
    axes.set_axis_off()


PICTURES: dict[str, Callable[[], Figure]] = {
    "one_vector.svg": one_vector,
    "lookup.svg": lookup,
    "scores.png": scores,
    "normalisers.svg": normalisers,
    "windows.png": windows,
    "self_attention.png": self_attention,
    "heads.png": heads,
    "co_attention.png": co_attention,
    "gates.png": gates,
    "vit.png": vit,
    "rollout.png": rollout,
}


def main() -> None:
    wanted = sys.argv[1:] or list(PICTURES)
    mpl.use("agg")
    with mpl.rc_context(STYLE):
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
