"""What each Keras snippet of Learn must give: inputs, weights and results of our own classes.

Kept in one .npz, so that compare.py needs neither torch nor this package. Sizes are primes, numbers
float64. Masks are True where a token exists, and hide some tokens of each sequence.

Axes: b batch, i and n queries or tokens, j keys, d width, h rows, w columns, c channels.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vision_attn.attention import (
    Additive,
    AlternatingCoAttention,
    Attend,
    AttentionOverAttention,
    AttentionViaAttention,
    ChannelGate,
    Concat,
    CosineSimilarity,
    Deep,
    Dot,
    General,
    Hard,
    Hierarchical,
    InteractiveAttention,
    KeyOnly,
    LocalMonotonic,
    LocalPredictive,
    Location,
    MaxPoolCoAttention,
    MemoryHops,
    MultiDimAttention,
    MultiDimPool,
    MultiHeadAttention,
    ParallelCoAttention,
    ScaledDot,
    Softmax,
    Sparsemax,
    SpatialGate,
    SpatialMask,
    SqueezeExcite,
    TargetGuided,
    causal_mask,
)
from vision_attn.methods import Rollout
from vision_attn.models import PatchEmbed, ViT
from vision_attn.models.vit import Block

B, I, J, D, HIDDEN = 2, 5, 7, 3, 13
Inputs = Mapping[str, Tensor | list[Tensor]]


@dataclass
class Case:
    """A snippet by its name, what it gets, and our own code, which gets the same.

    inputs: by name; ours takes all but the masks by position. weights: by attribute of the Keras layer. options: of the layer, or of the function.
    """

    name: str
    ours: Callable[..., Tensor | tuple[Tensor, ...]]
    inputs: Inputs
    weights: dict[str, Tensor] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def made(module: nn.Module) -> Any:
    """Return a module of float64 with random parameters, biases too."""
    for weight in module.double().eval().parameters():
        nn.init.normal_(weight, std=0.5)
    return module


def existing(lengths: list[int], longest: int) -> Tensor:
    """Return the mask of sequences of these lengths, whose last tokens are the true ones."""
    return torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]


def kernel(linear: nn.Module) -> Tensor:
    """Return the weights of a linear map or a convolution as Keras has them."""
    if isinstance(linear, nn.Conv2d):
        return linear.weight.permute(2, 3, 1, 0)
    return linear.weight.mT if isinstance(linear, nn.Linear) else linear.weight[0]


def kernels(**layers: nn.Module) -> dict[str, Tensor]:
    """Return kernels and biases by the attributes of a Keras layer; `_` stands for a dot."""
    weights = {}
    for name, layer in layers.items():
        path = name.replace("__", ".")
        weights[f"{path}.kernel"] = kernel(layer)
        if layer.bias is not None:
            weights[f"{path}.bias"] = layer.bias.flatten()
    return weights


def one_head(module: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a score or an attention that takes tensors without an axis of heads."""
    return lambda *tensors: module(*(x[:, None] for x in tensors))[:, 0]


def renamed(module: Callable[..., Any], **names: str) -> Callable[..., Any]:
    """Return a module of ours whose masks have the names of Keras; without names its one `mask`."""
    return lambda *inputs, **masks: module(
        *inputs, **{names.get(name, "mask"): mask for name, mask in masks.items()}
    )


def channels_first(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def cases() -> Iterator[Case]:
    yield from scores()
    yield from weights()
    yield from memory()
    yield from two_inputs()
    yield from heads()
    yield from gates()
    yield from vit()


def scores() -> Iterator[Case]:
    qk = {"q": random(B, I, D), "k": random(B, J, D)}
    eye = torch.eye(J, dtype=torch.float64).expand(B, 1, J, J)
    mask = torch.rand(B, I, J) < 0.5
    mask[1, 2] = False

    def attend(scores: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = None if mask is None else mask[:, None]
        return Attend(Dot(J))(scores[:, None], eye, values[:, None], mask)[:, 0]

    given = {"scores": random(B, I, J), "values": random(B, J, 11)}
    yield Case("attend", attend, given)
    yield Case("attend", attend, {**given, "mask": mask})
    additive = made(Additive(D, hidden_dim=HIDDEN))
    projections = {"query": additive.query_proj, "key": additive.key_proj}
    weights = kernels(**projections, energy=additive.energy)
    yield Case("Additive", one_head(additive), qk, weights, {"hidden": HIDDEN})
    yield Case("dot_product", one_head(Dot(D)), qk)
    yield Case("dot_product", one_head(ScaledDot(D)), qk, options={"scaled": True})
    cosine = made(CosineSimilarity(D))
    yield Case("CosineSimilarity", one_head(cosine), qk, {"beta": cosine.beta.flatten()[0]})
    general = made(General(D))
    yield Case("General", one_head(general), qk, kernels(query=general.query_proj), {"dim": D})
    concat = made(Concat(D, hidden_dim=HIDDEN))
    weights = kernels(pair=concat.pair_proj, energy=concat.energy)
    yield Case("Concat", one_head(concat), qk, weights, {"hidden": HIDDEN})
    location = made(Location(D, positions=11))
    weights = kernels(query=location.query_proj)
    yield Case("Location", one_head(location), qk, weights, {"positions": 11})
    deep = made(Deep(D, hidden_dim=HIDDEN, layers=3))
    rest = {f"rest__{at}": layer for at, layer in enumerate([*deep.hidden, deep.energy])}
    weights = kernels(query=deep.query_proj, key=deep.key_proj, **rest)
    yield Case("Deep", one_head(deep), qk, weights, {"hidden": HIDDEN, "depth": 3})


def weights() -> Iterator[Case]:
    keys = torch.eye(J, dtype=torch.float64).expand(B, 1, J, J)
    near = Attend(Dot(J), window=LocalMonotonic(radius=2))

    def local_monotonic(scores: Tensor) -> Tensor:
        return near.weights(scores[:, None], keys)[:, 0]

    for queries in (J, I):
        given = {"scores": random(B, queries, J)}
        yield Case("local_monotonic", local_monotonic, given, options={"radius": 2})
    window = made(LocalPredictive(D, radius=2))

    def predictive(q: Tensor, scores: Tensor) -> Tensor:
        mask, gain = window.terms(q[:, None], scores.mT[:, None], None)
        return (Softmax()(scores[:, None], mask) * gain)[:, 0]

    given = {"q": random(B, I, D), "scores": random(B, I, J)}
    moved = kernels(hidden=window.hidden, place=window.position)
    yield Case("LocalPredictive", predictive, given, moved, {"dim": D, "radius": 2})
    given = {"scores": random(B, I, J)}
    yield Case("softmax", Softmax(0.7), given, options={"temperature": 0.7})
    yield Case("sparsemax", Sparsemax(), given)
    yield Case("hard", Hard(0.7), given, options={"temperature": 0.7})
    look = Attend(made(Additive(D, hidden_dim=HIDDEN)))

    def photo_attention(word: Tensor, photo: Tensor) -> tuple[Tensor, Tensor]:
        q, k = word[:, None, None], photo.flatten(1, 2)[:, None]
        return look(q, k, k)[:, 0, 0], look.weights(q, k).view(photo.shape[:3])

    score = look.score
    moved = kernels(word=score.query_proj, place=score.key_proj, energy=score.energy)
    given = {"word": random(B, D), "photo": random(B, I, J, D)}
    yield Case("PhotoAttention", photo_attention, given, moved, {"hidden": HIDDEN})


def memory() -> Iterator[Case]:
    hops = made(MemoryHops(D, hops=2))
    given = {"query": random(B, I, D), "memory": random(B, J, D)}
    weights = kernels(
        **{f"keys__{at}": hop.key_proj for at, hop in enumerate(hops.looks)},
        **{f"values__{at}": hop.value_proj for at, hop in enumerate(hops.looks)},
    )
    for masks in ({}, {"memory_mask": existing([3, 7], J)}):
        inputs = {**given, **masks}
        yield Case("MemoryHops", renamed(hops), inputs, weights, {"dim": D, "hops": 2})
    alone = made(KeyOnly(D, hidden_dim=HIDDEN))
    weights = kernels(key=alone.key_proj, energy=alone.energy)
    yield Case(
        "KeyOnly",
        lambda k: alone(k[:, None, :1], k[:, None])[:, 0, 0],
        {"k": random(B, J, D)},
        weights,
        {"hidden": HIDDEN},
    )
    levels = made(Hierarchical(D))
    word, sentence = (pool.attend.score for pool in (levels.inside, levels.across))
    weights = kernels(
        word=word.key_proj,
        word_energy=word.energy,
        sentence=sentence.key_proj,
        sentence_energy=sentence.energy,
    )
    given = {"words": random(B, I, J, D)}
    mask = torch.rand(B, I, J) < 0.6
    mask[1, 2] = False
    for masks in ({}, {"words_mask": mask}):
        yield Case("Hierarchical", renamed(levels), {**given, **masks}, weights)
    via = made(AttentionViaAttention(D))
    coarse, fine = via.over_coarse.score, via.over_fine.score
    weights = kernels(
        to_coarse=coarse.query_proj,
        coarse=coarse.key_proj,
        to_fine=fine.query_proj,
        fine=fine.key_proj,
        both=via.query_proj,
    )
    weights |= {
        "look.scale": coarse.energy.weight.flatten(),
        "look_again.scale": fine.energy.weight.flatten(),
    }
    given = {"q": random(B, I, D), "coarse": random(B, J, D), "fine": random(B, 11, D)}
    masked = {"coarse_mask": existing([3, 7], J), "fine_mask": existing([11, 5], 11)}
    yield Case("AttentionViaAttention", via, given, weights, {"dim": D})
    yield Case("AttentionViaAttention", via, {**given, **masked}, weights, {"dim": D})
    guided = made(TargetGuided(D))
    target, over = guided.over_target.attend.score, guided.over_sentence.score
    weights = kernels(
        word=target.key_proj, energy=target.energy, query=over.query_proj, key=over.key_proj
    )
    weights["look.scale"] = over.energy.weight.flatten()
    given = {"target": random(B, I, D), "sentence": random(B, J, D)}
    masked = {"target_mask": existing([2, 5], I), "sentence_mask": existing([7, 3], J)}
    yield Case("TargetGuided", guided, given, weights)
    yield Case("TargetGuided", guided, {**given, **masked}, weights)


def two_inputs() -> Iterator[Case]:
    pooled, parallel = made(MaxPoolCoAttention(D)), made(ParallelCoAttention(D))
    turns, means = made(AlternatingCoAttention(D)), made(InteractiveAttention(D))
    for_q, for_k = means.over_queries.score, means.over_keys.score
    alone, over_k, over_q = (x.score for x in (turns.alone, turns.over_keys, turns.over_queries))
    kinds = {
        "MaxPoolCoAttention": (pooled, kernels(affinity=pooled.affinity), {"dim": D}),
        "ParallelCoAttention": (
            parallel,
            kernels(
                affinity=parallel.affinity,
                q=parallel.query_proj,
                k=parallel.key_proj,
                a=parallel.query_energy,
                b=parallel.key_energy,
            ),
            {"dim": D},
        ),
        "AlternatingCoAttention": (
            turns,
            kernels(
                alone=alone.key_proj,
                k=over_k.key_proj,
                from_q=over_k.query_proj,
                q=over_q.key_proj,
                from_k=over_q.query_proj,
                energies__0=alone.energy,
                energies__1=over_k.energy,
                energies__2=over_q.energy,
            ),
            {},
        ),
        "InteractiveAttention": (
            means,
            {
                **kernels(to_q=for_q.query_proj, to_k=for_k.query_proj),
                "bias": torch.stack([for_q.bias, for_k.bias]).flatten(),
            },
            {"dim": D},
        ),
        "attention_over_attention": (AttentionOverAttention(D), {}, {}),
    }
    given = {"q": random(B, I, D), "k": random(B, J, D)}
    masked = {"q_mask": existing([2, 5], I), "k_mask": existing([7, 3], J)}
    for name, (module, weights, options) in kinds.items():
        for masks in ({}, masked, {"k_mask": masked["k_mask"]}, {"q_mask": masked["q_mask"]}):
            ours = renamed(module.weights, q_mask="query_mask", k_mask="key_mask")
            yield Case(name, ours, {**given, **masks}, weights, options)


def heads() -> Iterator[Case]:
    width, count = 15, 3
    x, source = random(B, I, width), random(B, J, width)
    causal, some = causal_mask(I).expand(B, I, I), torch.rand(B, 1, I, J) < 0.7
    single = made(MultiHeadAttention(width, heads=1))
    with torch.no_grad():
        single.proj.weight.copy_(torch.eye(width))
        single.proj.bias.zero_()

    def self_attention(x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return single(x, mask=None if attention_mask is None else attention_mask[:, None])

    for masks in ({}, {"attention_mask": causal}):
        given = {"x": x, **masks}
        yield Case("SelfAttention", self_attention, given, cut(single), {"dim": width})
    several = made(MultiHeadAttention(width, heads=count))
    weights = {**cut(several), **kernels(proj=several.proj)}
    options = {"dim": width, "heads": count}
    for masks in ({}, {"attention_mask": some}):
        given = {"x": x, "memory": source, **masks}
        yield Case("MultiHeadAttention", renamed(several), given, weights, options)
    views = made(MultiDimAttention(width, heads=count))
    score = views.attend.score
    weights = cut(views) | kernels(
        proj=views.proj, of_query=score.query_proj, of_key=score.key_proj, energy=score.energy
    )
    yield Case("MultiDimAttention", views, {"x": x}, weights, {"dim": width, "views": count})
    pool = made(MultiDimPool(width, views=count))
    score = pool.attend.score
    weights = kernels(key=score.key_proj, energy=score.energy)
    weights["query"] = score.query_proj(pool.query).flatten()
    for masks in ({}, {"x_mask": existing([2, 5], I)}):
        yield Case("MultiDimPool", renamed(pool), {"x": x, **masks}, weights, {"views": count})


def cut(attention: MultiHeadAttention) -> dict[str, Tensor]:
    """Return the weights of queries, keys and values, which ours keeps in one matrix."""
    names = ("query", "key", "value")
    rows, biases = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
    moved = {f"{name}.kernel": part.mT for name, part in zip(names, rows, strict=True)}
    return moved | {f"{name}.bias": part for name, part in zip(names, biases, strict=True)}


def gates() -> Iterator[Case]:
    given = {"x": random(B, I, J, 11)}
    squeeze = made(SqueezeExcite(11, reduction=3))
    weights = gate_mlp(squeeze)
    options = {"channels": 11, "reduction": 3}
    yield Case("SqueezeExcite", channels_first(squeeze), given, weights, options)
    channel = made(ChannelGate(11, reduction=3))
    weights = gate_mlp(channel)
    yield Case("ChannelGate", channels_first(channel), given, weights, options)
    spatial = made(SpatialGate(11))
    yield Case("SpatialGate", channels_first(spatial), given, kernels(conv=spatial.conv))
    mask = made(SpatialMask(11, hidden=3, kernel_size=5))
    weights = kernels(first=mask.conv1, second=mask.conv2)
    yield Case("SpatialMask", channels_first(mask), given, weights, {"hidden": 3, "size": 5})


def gate_mlp(gate: SqueezeExcite | ChannelGate) -> dict[str, Tensor]:
    """Return the weights of a gate's two 1x1 convolutions as those of linear maps."""
    weights = kernels(squeeze=gate.fc1, excite=gate.fc2)
    return {name: x[0, 0] if name.endswith("kernel") else x for name, x in weights.items()}


def vit() -> Iterator[Case]:
    width, count = 15, 3
    block = made(Block(width, count, 2.0, MultiHeadAttention, layer_scale=None, drop_path=0.0))
    weights = kernels(fc1=block.mlp.fc1, fc2=block.mlp.fc2)
    for name in ("norm1", "norm2"):
        norm = getattr(block, name)
        weights |= {f"{name}.gamma": norm.weight, f"{name}.beta": norm.bias}
    for name, part in cut(block.attn).items():
        shape = (width, count, 5) if name.endswith("kernel") else (count, 5)
        weights[f"attention.{name.replace('.', '_dense.')}"] = part.reshape(shape)
    weights["attention.output_dense.kernel"] = kernel(block.attn.proj).reshape(count, 5, width)
    weights["attention.output_dense.bias"] = block.attn.proj.bias
    options = {"dim": width, "heads": count, "mlp_ratio": 2}
    yield Case("Block", block, {"x": random(B, I, width)}, weights, options)
    embed, positions = made(PatchEmbed(width, patch_size=5)), random(6, width)
    weights = {**kernels(proj=embed.proj), "positions": positions}
    yield Case(
        "PatchEmbed",
        lambda images: embed(images.permute(0, 3, 1, 2)) + positions,
        {"images": random(B, 10, 15, 3)},
        weights,
        {"dim": width, "patch_size": 5, "tokens": 6},
    )
    for pool in ("cls", "mean"):
        network = made(
            ViT(
                (10, 15),
                5,
                3,
                dim=width,
                depth=3,
                heads=count,
                pool=pool,
                class_token=pool == "cls",
            )
        )
        images = random(B, 3, 10, 15)
        with torch.no_grad():
            tokens = network.layout((10, 15)).tokens
            read = torch.full((B, tokens), 1 / tokens, dtype=torch.float64)
            if pool == "cls":
                read = torch.eye(tokens, dtype=torch.float64)[:1].expand(B, -1)
            looks = weights_of(network, images)
            rows = Rollout(residual=0.3)(network, images)
            shares = torch.cat([torch.zeros(B, 0), rows.values.flatten(1)], dim=1).double()
            if pool == "cls":
                assert rows.prefix_mass is not None
                shares = torch.cat([rows.prefix_mass[:, None], shares], dim=1)
        given: dict[str, Any] = {"weights": looks, "read": read}
        yield Case("rollout", lambda *_, shares=shares: shares, given, options={"alpha": 0.3})


def weights_of(network: ViT, images: Tensor) -> list[Tensor]:
    """Return the weights of each block, (b head n n)."""
    seen: list[Tensor] = []
    hooks = [
        block.attn.register_forward_pre_hook(
            lambda attn, given: seen.append(attn.weights(given[0])),
        )
        for block in network.blocks
    ]
    network(images)
    for hook in hooks:
        hook.remove()
    return seen


def write(path: Path) -> list[str]:
    """Compute what ours gives, and its gradients; write all cases, and return their names."""
    torch.manual_seed(0)
    arrays: dict[str, Any] = {}
    names = []
    for number, case in enumerate(cases()):
        hidden = [name for name in case.inputs if name.endswith("mask")]
        key = " ".join([case.name, f"{number}", *hidden])
        names.append(key)
        arrays[f"{key}|options"] = np.array(json.dumps(case.options))
        inputs = {
            name: x.clone().requires_grad_()
            if isinstance(x, Tensor) and x.is_floating_point()
            else x
            for name, x in case.inputs.items()
        }
        masks = {name: x for name, x in inputs.items() if name.endswith("mask")}
        results = case.ours(*(x for name, x in inputs.items() if name not in masks), **masks)
        results = results if isinstance(results, tuple) else (results,)
        loss: Any = sum((result * direction(result)).sum() for result in results)
        if loss.requires_grad:
            loss.backward()
        for name, x in inputs.items():
            parts: dict[str, Any] = (
                {f"{name}.{at}": part for at, part in enumerate(x)} if isinstance(x, list) else {}
            )
            for part_name, part in (parts or {name: x}).items():
                arrays[f"{key}|inputs|{part_name}"] = part.detach().numpy()
            if isinstance(x, Tensor) and x.grad is not None:
                arrays[f"{key}|gradients|{name}"] = x.grad.numpy()
        for name, weight in case.weights.items():
            arrays[f"{key}|weights|{name}"] = weight.detach().numpy()
        for at, result in enumerate(results):
            arrays[f"{key}|outputs|{at}"] = result.detach().numpy()
    np.savez(path, **arrays)
    return names


def direction(result: Tensor) -> Tensor:
    """Return numbers of the result's shape, along which its gradient is taken."""
    return torch.arange(result.numel(), dtype=result.dtype).add(1).cos().view(result.shape)
