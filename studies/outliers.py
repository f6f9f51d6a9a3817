"""Tokens of outlying norm, and the evidence that a readout of patches adds up.

    python studies/outliers.py [MODEL ...] [--data .data/imagenette160/val] [--images 300]

For each ViT, a row of a table for each level: the tokens before the first block and after each.
A patch is an outlier if its norm is above twice the median of its photo's patches, as for
`Rollout(outliers=False)`. --score scores the map of the readout, and Rollout, on so many photos;
docs/lab/journal/registers.md says what came out.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

import vision_attn
from vision_attn import load_model
from vision_attn.evaluate.sanity import spearman
from vision_attn.inference import infer
from vision_attn.methods import Explainer, Rollout, Target
from vision_attn.models import ViT
from vision_attn.render import markdown_table
from vision_attn.runs.scoring.evidence import open_data
from vision_attn.tokens.outputs import run
from vision_attn.types import Heatmaps, Images, Model, TokenLayout

OUTLIER = 2.0  # times the median
BATCH = 50


@dataclass(frozen=True)
class ReadoutEvidence(Explainer):
    """The share of each patch in a logit at an attention pool: a_i (w . h_i + b).

    h_i: the tokens after the last norm. a_i: their weights in the readout, which sum to 1. For
    networks that read out their patches alone, with one head and no norm behind the readout: there
    the shares sum to the logit.
    """

    class_specific = True

    def refusal(self, network: nn.Module) -> str | None:
        if isinstance(network, ViT) and network.pool == "attention" and not network.prefix:
            return None
        return "it has no attention pool over its patches alone"

    def explain(
        self, network: nn.Module, images: Images, target: Target, layout: TokenLayout | None
    ) -> Heatmaps:
        assert layout is not None  # what `refusal` lets through is a ViT
        kept: list[Tensor] = []
        hook = network.norm.register_forward_hook(lambda *call: kept.append(call[2]))
        try:
            target = target.fixed(run(network, images))
        finally:
            hook.remove()
        classes = target.classes(images)
        weights = network.readout.weights(kept[0], layout=layout)[:, 0]
        evidence = (kept[0] * network.head.weight[classes][:, None]).sum(dim=-1)
        shares = weights * (evidence + network.head.bias[classes][:, None])
        return Heatmaps(layout.to_map(shares).float(), str(self), classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["vision_attn:compact_vit_imagenette"])
    parser.add_argument("--data", default=".data/imagenette160/val")
    parser.add_argument("--images", type=int, default=300, metavar="N")
    parser.add_argument("--score", type=int, default=0, metavar="N", help="photos; 0: none")
    parser.add_argument("--scores", type=Path, default=Path("outputs/outliers"), metavar="DIR")
    args = parser.parse_args()
    for spec in args.models:
        model = load_model(spec)
        network = model.network
        if not isinstance(network, ViT):
            parser.error(f"{spec}: expected a ViT of the package, got {type(network).__name__}")
        batches = images_of(model, args.data, args.images).split(BATCH)
        norms = torch.cat([norms_by_level(network, batch) for batch in batches])
        print(f"\n{spec}, {len(norms)} images\n")
        rows = [row(norms[:, level], level) for level in range(norms.size(1))]
        print(markdown_table(HEADER, rows))
        maps = [Rollout()(model, batch) for batch in batches]
        masses = torch.cat(
            [heatmaps.outlier_mass for heatmaps in maps if heatmaps.outlier_mass is not None]
        )
        alike = spearman(torch.cat([heatmaps.values.flatten(1) for heatmaps in maps]), norms[:, -1])
        print(
            f"Rollout: {masses.mean():.2%} of the map on outliers, rank correlation with the "
            f"last norms {alike.mean():.2f}\n"
        )
        if args.score:
            methods: list[Explainer] = [Rollout(), Rollout(smooth=1.0)]
            evidence = ReadoutEvidence(), ReadoutEvidence(smooth=1.0)
            methods += [method for method in evidence if method.refusal(network) is None]
            folder = args.scores / spec.replace("/", "_").rpartition(":")[2]
            print(vision_attn.score(model, args.data, methods, limit=args.score, output=folder))


def images_of(model: Model, data: str, most: int) -> Images:
    """Images as the network sees them, drawn as `score` draws them."""
    samples = open_data(data, model, Path(".data"))
    return torch.stack([samples.sample(item).image for item in samples.chosen(most)])


def norms_by_level(network: ViT, images: Images) -> Float[Tensor, "b level n"]:
    """The norms of the patches' tokens before the first block, and after each."""
    kept: list[Tensor] = []
    first, *_ = network.blocks
    hooks = [first.register_forward_pre_hook(lambda _, given: kept.append(given[0]))]
    for block in network.blocks:
        hooks.append(block.register_forward_hook(lambda *call: kept.append(call[2])))
    try:
        infer(network, images)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([tokens[:, network.prefix :].norm(dim=-1) for tokens in kept], dim=1)


HEADER = (
    "level",
    "median norm",
    "largest of a photo, times the median",
    "outliers among patches",
    "photos with one",
    "of the outliers, at the border",
)


def row(norms: Float[Tensor, "b n"], level: int) -> list[str]:
    """What is known of the tokens of one level."""
    times = norms / norms.median(dim=1, keepdim=True).values
    outlying = times > OUTLIER
    side = round(norms.shape[1] ** 0.5)
    inner = torch.zeros(side, side, dtype=torch.bool)
    inner[1:-1, 1:-1] = True
    border = outlying[:, ~inner.flatten()].sum() / outlying.sum()
    return [
        str(level),
        f"{norms.median():.1f}",
        f"{times.amax(dim=1).mean():.2f}",
        f"{outlying.float().mean():.2%}",
        f"{outlying.any(dim=1).float().mean():.0%}",
        f"{border:.0%}" if outlying.any() else "",
    ]


if __name__ == "__main__":
    main()
