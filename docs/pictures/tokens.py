"""Makes the picture of docs/tokens.md: seconds, nothing to download.

    python docs/pictures/tokens.py

tokens.svg     the tokens of a ViT of two blocks, the origin of each between calls, and a map's way
               back along them. All numbers are those of a run.
"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from vision_attn.methods import Rollout
from vision_attn.models import ViT
from vision_attn.tokens import record_attention, trace_tokens
from vision_attn.tokens.path.chain import Chain, Patches, PropagationRule
from vision_attn.tokens.path.traced import follow
from vision_attn.tokens.record.calls import AttentionCall

HERE = Path(__file__).parent
BLUE, RED, GREY = "#2b3fb0", "#d9480f", "#8a8d99"
SIZE, PATCH = (16, 24), 8
NAMES = ("tokens", "after call 0", "after call 1")


def tokens() -> Figure:
    """The state ahead of each call, the calls, and the share of each token in the logits."""
    torch.manual_seed(1)
    network = ViT(SIZE, PATCH, num_classes=5, dim=12, depth=2, heads=3).eval()
    with torch.no_grad():
        for block in network.blocks:
            block.attn.qkv.weight.normal_(std=0.9)  # so that weights differ to the eye
    images = torch.rand(1, 3, *SIZE)
    run = follow(network, images)
    run.read_steps()
    states = [run.keys[0][0], run.outputs[0][0], run.outputs[1][0]]
    path = trace_tokens(network, images)
    with record_attention(network) as record, torch.no_grad():
        network(images)
    shares = shares_of(path.chain_for(record.calls, None, 1))
    figure, axes = plt.subplots(figsize=(8.2, 3.7), layout="constrained")
    grid(axes, run.origins.box[states[0], :4].tolist())
    for column, (origins, of_tokens, name) in enumerate(zip(states, shares, NAMES, strict=True)):
        x = 5.2 + 3.3 * column
        axes.text(x, 7.35, name, ha="center", weight="bold")
        if column:
            call(
                axes, x - 3.3, x, record.calls[column - 1].weights()[0].mean(0)[0].tolist(), column
            )
        for at, (origin, share) in enumerate(zip(origins, of_tokens, strict=True)):
            token(axes, x, 6.4 - at, origin, share)
            if column == 0:
                axes.text(
                    x - 0.8, 6.4 - at, str(at or "class"), ha="right", va="center", color=GREY
                )
    read = 5.2 + 3.3 * 3 - 0.9
    axes.annotate(
        "", (read, 6.4), (read - 1.75, 6.4), arrowprops={"arrowstyle": "->", "color": RED}
    )
    axes.text(read + 0.1, 6.4, "logits", va="center", color=RED)
    legend = "number: the token's origin.  Blue: the class token's weights.  Red: a token's share."
    axes.text(8.5, -0.75, legend, ha="center", color=GREY)
    axes.set(xlim=(-0.1, 15.2), ylim=(-1.0, 7.8), aspect="equal")
    axes.set_axis_off()
    return figure


def shares_of(chain: Chain) -> list[list[float]]:
    """The shares of the tokens ahead of each call and after the last, as Rollout carries them."""
    method = Rollout()

    def step(
        layer: int, call: AttentionCall, rows: Tensor, windows: int, patches: Patches
    ) -> Tensor:
        return rows @ call.weights().mean(1)

    rule = PropagationRule(step, method.residual, 1 - method.residual)
    rows = [chain.seed(1, torch.device("cpu"), torch.float32)]
    for link in reversed(chain.links):
        rows.insert(0, link.back(rows[0], rule))
    return [row[0, 0].tolist() for row in rows]


def grid(axes: Axes, boxes: list[list[int]]) -> None:
    """The image in patches, each named by its place among the tokens."""
    axes.text(1.5, 7.35, "image", ha="center", weight="bold")
    for at, (top, left, bottom, _) in enumerate(boxes):
        if bottom < 0:
            continue
        y, x = 5.9 + top / PATCH, -left / PATCH
        side = (bottom + top + 1) / PATCH
        axes.add_patch(Rectangle((x, y - side + 1), side, side, fc="white", ec=GREY))
        axes.text(x + side / 2, y + 0.5, str(at), ha="center", va="center", color=GREY)
    words = "each pixel has an origin;\na patch is made of 64,\nand gets a new one"
    axes.text(1.5, 3.6, words, ha="center", va="top", color=GREY)


def token(axes: Axes, x: float, y: float, origin: int, share: float) -> None:
    """A token with its origin, the darker the more of the map is its."""
    box = Rectangle((x - 0.6, y - 0.38), 1.2, 0.76, fc=RED, ec=GREY, alpha=min(1, share))
    axes.add_patch(box)
    axes.add_patch(Rectangle((x - 0.6, y - 0.38), 1.2, 0.76, fill=False, ec=GREY))
    axes.text(x, y, str(origin), ha="center", va="center")


def call(axes: Axes, left: float, right: float, weights: list[float], number: int) -> None:
    """A call: the keys of the class token's query, and each token's own way past it."""
    top = max(weights)
    for at, weight in enumerate(weights):
        y = 6.4 - at
        axes.plot([left + 0.65, right - 0.65], [y, y], color=GREY, lw=0.6, ls=":", zorder=0)
        axes.plot(
            [left + 0.65, right - 0.65], [y, 6.4], color=BLUE, lw=0.3 + 2.2 * weight / top, zorder=0
        )
    middle = (left + right) / 2
    axes.text(middle, 6.75, "attention, +, MLP", ha="center", color=GREY, size=6.5)
    axes.text(middle, -0.1, f"call {number - 1}", ha="center", color=BLUE)


def main() -> None:
    mpl.use("agg")
    with mpl.rc_context({"svg.hashsalt": "vision_attn", "svg.fonttype": "none", "font.size": 8}):
        figure = tokens()
        figure.savefig(HERE / "tokens.svg", metadata={"Date": None})
    print(HERE / "tokens.svg")


if __name__ == "__main__":
    main()
