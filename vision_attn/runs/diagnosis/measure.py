"""One streamed run over photos: sums of what is measured of each, never the photos' own values.

Axes: b images, head and g heads, n tokens of the input, p patches, l and m blocks.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vision_attn.hooks import apart
from vision_attn.inference import infer
from vision_attn.methods import Rollout
from vision_attn.methods.attention_explainer import full_precision
from vision_attn.methods.targets import has_classifier, model_logits, model_output
from vision_attn.runs.diagnosis.heads import (
    Place,
    head_outputs,
    head_values,
    places_of_calls,
)
from vision_attn.runs.diagnosis.results import (
    BlockValues,
    Chances,
    Diagnosis,
    HeadValues,
    Outliers,
)
from vision_attn.runs.diagnosis.stream import MOST, OFTEN, patches_of, similarity, stream_values
from vision_attn.tokens.activation import settled
from vision_attn.tokens.blocks import BlockRun, find_blocks, watch_blocks
from vision_attn.tokens.path.chain import Chain
from vision_attn.tokens.path.path import NO_ATTENTION, find_path
from vision_attn.tokens.path.support import refusal_of
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.tokens.record.record import record_attention
from vision_attn.types import Images, Logits, Model

__all__ = ["Meter"]

BINS = 15  # of confidence


class Sums:
    """Sums over photos by name, in float64, and over how many photos each is.

    Examples:
        >>> import torch
        >>> from vision_attn.runs.diagnosis.measure import Sums
        >>> sums = Sums()
        >>> sums.add("norm", torch.tensor([1.0, 3.0]))
        >>> sums.mean("norm").item()
        2.0
    """

    def __init__(self) -> None:
        self._sums: dict[Any, Tensor] = {}
        self._counts: dict[Any, int] = {}

    def __contains__(self, name: Any) -> bool:
        return name in self._sums

    def add(self, name: Any, values: Tensor) -> None:
        """Add the values of a batch, a row a photo."""
        total = values.detach().cpu().double().sum(0)
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + len(values)

    def totals(self) -> list[Tensor]:
        """List all sums: what is kept, whatever the number of photos."""
        return list(self._sums.values())

    def mean(self, name: Any) -> Tensor:
        """Return the mean over photos."""
        return self._sums[name] / self._counts[name]


class Meter:
    """Measures a model on batches of images and adds it up; memory does not grow with their number.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.runs.diagnosis.measure import Meter
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=2, heads=3, num_classes=2).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> meter = Meter(Model(vit, preprocess, ["cat", "dog"], vit.layout((16, 16))))
        >>> meter.add(torch.rand(3, 3, 16, 16), [0, 1, None])
        >>> found = meter.result(asked=3)
        >>> len(found.heads), len(found.blocks), found.chances.photos
        (6, 2, 2)
    """

    def __init__(self, model: Model, name: str = ""):
        self.model = settled(model)
        self.name = name or model.name or type(model.network).__name__
        self.photos = 0
        self.sums = Sums()
        self.bins = torch.zeros(3, BINS, dtype=torch.float64, device="cpu")
        self.calls: list[tuple[str, int]] = []
        self.blocks: list[tuple[str, int]] = []
        self.layout = model.layout
        self.chain: Chain | None = None
        self.without = ""  # why there is nothing to say of attention
        self._prepared = False

    def add(self, images: Images, labels: Sequence[int | None]) -> None:
        """Run a batch and add what is measured; a label is None where the class is not known."""
        images = images.to(self.model.device, self.model.dtype)
        if not self._prepared:
            self._prepare(images)
        if self.without:
            with torch.no_grad():
                logits = self._run(images)
        else:
            logits = self._measure(images)
        if logits is not None:
            self._count_chances(logits, labels)
        self.photos += len(images)

    def _prepare(self, images: Images) -> None:
        network = self.model.network
        reason = refusal_of(network, images)
        if reason == NO_ATTENTION:
            self.without = reason
        else:
            self.path = find_path(network, images)
            self.found = find_blocks(network, images)
            self.layout = self.layout or self.path.layout
            self.blocks = [(block.name, 0) for block in self.found]
            self.projections = {block.call: block.projection for block in self.found}
        self._prepared = True

    def _run(self, images: Images) -> Logits | None:
        if has_classifier(self.model):
            return model_logits(self.model, images)
        model_output(self.model, images)
        return None

    def _measure(self, images: Images) -> Logits | None:
        network, count = self.model.network, len(images)
        with apart(), torch.no_grad():
            with (
                record_attention(network, keep=("context",)) as record,
                watch_blocks(self.found) as runs,
            ):
                logits = infer(self._run, images)
            with full_precision(images):
                calls, places = self._located(record.calls, images)
                outlying = self._add_stream(runs, count)
                for layer, (call, place) in enumerate(zip(calls, places, strict=True)):
                    self._add_call(layer, call, place, count, outlying)
                if self.chain is not None and outlying is not None:
                    self._add_rollout(calls, outlying, count)
        return logits

    def _located(
        self, calls: Sequence[AttentionCall], images: Images
    ) -> tuple[Sequence[AttentionCall], Sequence[Place | None]]:
        """The calls that count and where their tokens are; all calls where there is no chain."""
        size = self.model.preprocess.input_size
        try:
            counted = self.path.counted(calls, len(images), self.model.network)
            self.chain = self.path.chain_for(counted, self.model.layout, len(images))
        except ValueError:
            whole = None if self.layout is None else Place.whole(self.layout, size)
            fit = (
                whole if whole and call.queries == call.keys == len(whole.spots) - 1 else None
                for call in calls
            )
            return calls, list(fit)
        if not self.calls:
            self.layout = self.chain.layout
            self.places = places_of_calls(self.chain, size)
        return counted, self.places

    def _add_call(
        self,
        layer: int,
        call: AttentionCall,
        place: Place | None,
        images: int,
        outlying: Bool[Tensor, "b n"] | None,
    ) -> None:
        if len(self.calls) <= layer:
            self.calls.append((call.module, call.heads))
        values = head_values(call, place, images)
        outputs = head_outputs(call, self.projections.get(call.module), images)
        if outputs is not None:
            values["output"] = outputs
        received = values.get("received")
        if received is not None and self.layout is not None:
            values["moving"] = received[..., patches_of(self.layout, self.layout.tokens)].amax(-1)
            if outlying is not None:
                values["outliers"] = (received * outlying[:, None].to(received.dtype)).sum(-1)
        for name, value in values.items():
            self.sums.add((layer, name), value)

    def _add_stream(self, runs: Sequence[BlockRun], images: int) -> Bool[Tensor, "b n"] | None:
        """Add what the blocks do; return the outliers of each photo's worst block."""
        layout = self.layout
        masks: list[Tensor] = []
        for at, run in enumerate(runs):
            values, outlying = stream_values(run, layout)
            values["any"] = outlying.any(1).double()
            self.blocks[at] = self.blocks[at][0], outlying.shape[1]
            for name, value in values.items():
                self.sums.add((at, "stream", name), value)
            assert run.after is not None
            if layout is not None and run.after.shape[1] == layout.tokens:
                masks.append(outlying)
        alike = similarity(runs) if runs else None
        if alike is not None:
            self.sums.add("similarity", alike)
        if not masks or layout is None:
            return None
        tokens = masks[0].new_zeros(images, layout.tokens)
        tokens[:, patches_of(layout, layout.tokens)] = _worst(torch.stack(masks, 1))
        return tokens

    def _add_rollout(
        self, calls: Sequence[AttentionCall], outlying: Bool[Tensor, "b n"], images: int
    ) -> None:
        assert self.chain is not None
        seed = self.chain.seed(images, calls[0].device, calls[0].dtype)
        shares = self.chain.back(seed, Rollout().rule())[:, 0]
        self.sums.add("rollout", (shares * outlying.to(shares)).sum(1))

    def _count_chances(self, logits: Logits, labels: Sequence[int | None]) -> None:
        calibration = self.model.calibration
        if calibration.activation not in ("softmax", "identity"):
            return
        known = [at for at, label in enumerate(labels) if label is not None]
        if not known:
            return
        chances = calibration.probabilities(logits[known].detach().double().cpu())
        sure, predicted = chances.max(1)
        true = torch.tensor([labels[at] for at in known], dtype=torch.long, device="cpu")
        right = (predicted == true).double()
        bins = (sure * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
        for row, values in enumerate((torch.ones_like(sure), sure, right)):
            self.bins[row].index_add_(0, bins, values)

    def result(self, asked: int, problems: Iterable[str] = ()) -> Diagnosis:
        """Make the diagnosis of what was added so far, without its verdict.

        Raises:
            ValueError: No photo was added.
        """
        if not self.photos:
            raise ValueError("no photo could be read: there is nothing to diagnose")
        alike = None
        if "similarity" in self.sums:
            alike = tuple(tuple(row) for row in self.sums.mean("similarity").tolist())
        return Diagnosis(
            self.name,
            self.photos,
            asked,
            heads=[row for layer in range(len(self.calls)) for row in self._heads(layer)],
            blocks=[self._block(at) for at in range(len(self.blocks))],
            outliers=self._outliers(),
            similarity=alike,
            chances=self._chances(),
            problems=list(problems),
            layout=self.layout,
            calibration=self.model.calibration,
            warning=self.model.warning,
        )

    def _heads(self, layer: int) -> list[HeadValues]:
        module, heads = self.calls[layer]

        def mean(name: str) -> Tensor | None:
            return self.sums.mean((layer, name)) if (layer, name) in self.sums else None

        entropy, received, output = mean("entropy"), mean("received"), mean("output")
        distance, moving, outliers = mean("distance"), mean("moving"), mean("outliers")
        assert entropy is not None
        nearest, alike = _nearest(self.sums.mean((layer, "alike")))
        if output is not None:
            output = output / output.mean().clamp_min(1e-30)
        layout, rows = self.layout, []
        for head in range(heads):

            def one(values: Tensor | None, head: int = head) -> float | None:
                return None if values is None else float(values[head])

            shares: dict[str, Any] = {}
            if received is not None and layout is not None:
                row = received[head]
                registers = [at for at in layout.beside if at or not layout.class_token]
                at = int(row.argmax())
                shares = {
                    "class_token": float(row[0]) if layout.class_token else None,
                    "registers": float(row[registers].sum()) if registers else None,
                    "sink": float(row[at]),
                    "sink_token": token_words(layout, at),
                }
            rows.append(
                HeadValues(
                    layer, module, head,
                    entropy=float(entropy[head]), distance=one(distance), outliers=one(outliers),
                    moving=one(moving), output=one(output),
                    nearest=nearest[head] if heads > 1 else None,
                    alike=alike[head] if heads > 1 else None,
                    **shares,
                )
            )  # fmt: skip
        return rows

    def _block(self, at: int) -> BlockValues:
        def mean(name: str) -> float:
            return float(self.sums.mean((at, "stream", name)))

        shares: list[float | None] = [None] * 3
        if (at, "stream", "shares") in self.sums:
            shares = self.sums.mean((at, "stream", "shares")).tolist()
        name, patches = self.blocks[at]
        names = ("norm", "largest", "outliers", "any", "alike", "spread", "rank")
        return BlockValues(at, name, patches, *map(mean, names), *shares)

    def _outliers(self) -> Outliers | None:
        layout = self.layout
        if layout is None or not any(count == len(layout.patches) for _, count in self.blocks):
            return None
        patches = len(layout.patches)
        inside = [at for at, (_, count) in enumerate(self.blocks) if count == patches]
        counts = [float(self.sums.mean((at, "stream", "outliers"))) for at in inside]
        photos = [float(self.sums.mean((at, "stream", "any"))) for at in inside]
        few = [at for at in range(len(inside)) if counts[at] <= MOST * patches]
        often = [at for at in few if photos[at] >= OFTEN] or range(len(inside))
        most = max(often, key=lambda at: (counts[at], at))
        first = most
        while first > 0 and counts[first - 1] >= counts[most] / 2:
            first -= 1
        block = inside[most]
        where = self.sums.mean((block, "stream", "where")).view(*layout.grid)
        later = [
            float(self.sums.mean((layer, "outliers")).mean())
            for layer in range(len(self.calls))
            if layer > inside[first] and (layer, "outliers") in self.sums
        ]
        return Outliers(
            counts[most],
            patches,
            photos[most],
            block,
            self.blocks[block][0],
            inside[first],
            sum(later) / len(later) if later else None,
            float(self.sums.mean("rollout")) if "rollout" in self.sums else None,
            tuple(map(tuple, where.tolist())),
        )

    def _chances(self) -> Chances | None:
        counts, sure, right = self.bins
        photos = int(counts.sum())
        if not photos:
            return None
        error = float((sure - right).abs().sum() / photos)
        return Chances(photos, float(right.sum() / photos), float(sure.sum() / photos), error)


def _worst(outlying: Bool[Tensor, "b l p"]) -> Bool[Tensor, "b p"]:
    """Choose each photo's outliers after the block that has most, of those with few if there are.

    Few: at most `MOST` of the patches.
    """
    counts = outlying.sum(2)
    few = counts.where(counts <= MOST * outlying.shape[2], 0)
    counts = few.where(few.any(1, keepdim=True), counts)
    last = outlying.shape[1] - 1 - counts.flip(1).argmax(1)  # of those with as many
    return outlying[torch.arange(len(outlying), device=outlying.device), last]


def _nearest(products: Float[Tensor, "head g"]) -> tuple[list[int], list[float]]:
    """The most similar other head of each, and their correlation; 0 with a head of no structure."""
    sizes = products.diagonal().clamp_min(0)
    scale = (sizes[:, None] * sizes).sqrt()
    alike = (products / scale.clamp_min(1e-30)).masked_fill(scale < 1e-9, 0.0).clamp(-1, 1)
    others = alike.clone().fill_diagonal_(-2.0)
    best = others.max(1)
    return best.indices.tolist(), best.values.tolist()


def token_words(layout: Any, token: int) -> str:
    """Name a token of the input: the class token, a register, or a patch by row and column.

    Examples:
        >>> from vision_attn.runs.diagnosis.measure import token_words
        >>> from vision_attn.types import TokenLayout
        >>> [token_words(TokenLayout(2, (3, 5)), token) for token in (0, 1, 8)]
        ['the class token', 'token 1 (no patch)', 'patch (1, 1)']
    """
    if token == 0 and layout.class_token:
        return "the class token"
    if token in layout.beside:
        return f"token {token} (no patch)"
    row, column = divmod(layout.patches.index(token), layout.grid[1])
    return f"patch ({row}, {column})"
