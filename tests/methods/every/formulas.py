"""Dense formulas of the methods that read attention, from weights that no recorder kept.

A chain says which tokens each call's queries and keys are; `disturbance.py` shows that it is right.
Here rows over the input tokens are carried forward through it, from the first link to the last, where
the package carries one row back. Copies of a token, which calls side by side have each, are told by
what they were made of.

Axes: b images, m tokens now, n tokens of the input, head, i queries, j keys.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from plain import Plain
from torch import nn

from vision_attn.tokens.layout import tokens_of_pool
from vision_attn.tokens.path.chain import Attention


@dataclass
class Maps:
    """Weights and scores of the calls of a chain, and the gradient of a logit by the weights."""

    weights: dict[str, Any]
    gradients: dict[str, Any]
    scores: dict[str, Any]


def plain_maps(
    network: Any, images: torch.Tensor, chain: Any, matched: Any, target: int = 1
) -> Maps:
    """The maps of all calls of a chain, each (b*windows head i j), as plain softmaxes have them."""
    plain = Plain()
    with torch.enable_grad(), plain.running(network):
        logits = class_logits_on_the_graph(network, images)
    places = [place for place, _ in matched.values()]
    tracked = [plain.tracked[place] for place in places]
    found = [None] * len(tracked)
    if logits.requires_grad and any(x.requires_grad for x in tracked):
        found = torch.autograd.grad(logits[:, target].sum(), tracked, allow_unused=True)
    calls = {link.layer: link.call for link in chain.links if isinstance(link, Attention)}
    shapes = {layer: call.shape for layer, call in calls.items() if call is not None}
    maps = Maps({}, {}, {})
    for (call, (place, order)), dA in zip(matched.items(), found, strict=True):
        weights = plain.weights[place]
        dA = torch.zeros_like(weights) if dA is None else dA
        maps.weights[call] = weights.permute(order).reshape(shapes[call]).double()
        maps.gradients[call] = dA.permute(order).reshape(shapes[call]).double()
        scores = plain.scores[place]
        if scores.shape == weights.shape:
            maps.scores[call] = scores.permute(order).reshape(shapes[call]).double()
    return maps


def class_logits_on_the_graph(network: Any, images: torch.Tensor) -> Any:
    """Logits that gradients can be taken of."""
    out = network(images.clone().requires_grad_())
    return getattr(out, "logits", out)


def groups_of(link: Any) -> list[Any]:
    """The tokens before a link that each token after it is made of, with their parts."""
    groups: dict[Any, Any] = {}
    for made, of, part in zip(
        link.made.tolist(), link.of.tolist(), link.part.tolist(), strict=True
    ):
        groups.setdefault(made, []).append((of, part))
    return [groups[made] for made in range(len(groups))]


class Copies:
    """Which tokens are copies of one, by a number that copies share."""

    def __init__(self, count: Any) -> None:
        self.same, self.fresh = list(range(count)), itertools.count(count)

    def regroup(self, groups: Any) -> None:
        before = self.same
        self.same = []
        for members in groups:
            of = {before[at] for at, _ in members}
            self.same.append(of.pop() if len(of) == 1 else next(self.fresh))

    def attend(self, link: Any) -> None:
        if link.new is not None:
            kept = self.same[: link.before] if link.kept else []
            self.same = kept + [next(self.fresh) for _ in range(link.new.numel())]

    def together(self, members: Any) -> list[Any]:
        """Members in lists of copies of one token."""
        lists: dict[Any, Any] = {}
        for at, part in members:
            lists.setdefault(self.same[at], []).append((at, part))
        return list(lists.values())


def attended(link: Attention, fused: torch.Tensor, X: torch.Tensor) -> Any:
    """What each query of a call gets: (b window i n), from fused maps (b*windows i j)."""
    images = len(X)
    windows = len(link.queries)
    padded = torch.cat([X, X.new_zeros(images, 1, X.shape[2])], 1)
    of_keys = padded[:, link.keys]  # b window j n
    return fused.unflatten(0, (images, windows)) @ of_keys


def places(link: Attention) -> torch.Tensor:
    """Where the outputs of a call are among the tokens after it (window i); -1: nowhere."""
    if link.new is not None:
        return link.new
    return link.queries.masked_fill(link.queries == link.before, -1)


def of_one_call(
    chain: Any,
    layer: Any,
    fused: Any,
    others: dict[Any, Any],
    images: int,
    slots: bool = False,
) -> torch.Tensor:
    """Each last token's row of one call over the input tokens (b m n), all other calls passed by.

    fused: of this call (b*windows i j). others: those of calls whose outputs are new tokens. slots:
    give the share of each of its queries (b m window*i) instead.
    """
    n = chain.links[0].before
    X = torch.eye(n, dtype=torch.float64).expand(images, n, n).clone()
    went, copies = [False] * n, Copies(n)
    for link in chain.links:
        if isinstance(link, Attention):
            own = link.layer == layer
            if not own and link.new is None:
                continue
            rows = attended(link, fused if own else others[link.layer], X).flatten(1, 2)
            if own and slots:  # from here on, rows are shares of the call's queries
                X = X.new_zeros(images, X.shape[1], rows.shape[1])
                rows = torch.eye(rows.shape[1], dtype=torch.float64).expand(images, -1, -1)
            at = places(link).flatten()
            if link.new is not None:
                kept = link.before if link.kept else 0
                X = torch.cat([X[:, :kept], X.new_zeros(images, len(at), X.shape[2])], 1)
                went = went[:kept] + [own] * len(at)
            real = at >= 0
            X = X.clone()
            X[:, at[real]] = rows[:, real]
            for place in at[real].tolist():
                went[place] |= own
            copies.attend(link)
            continue
        groups, made = groups_of(link), []
        for members in groups:
            row: Any = 0
            for alike in copies.together(members):
                chosen = [pair for pair in alike if went[pair[0]]] or alike
                share = sum(part for _, part in alike) / sum(part for _, part in chosen)
                row = row + sum(share * part * X[:, at] for at, part in chosen)
            made.append(row)
        X = torch.stack(made, 1)
        went = [any(went[at] for at, _ in members) for members in groups]
        copies.regroup(groups)
    return X


def relevance(chain: Any, fused: dict[Any, torch.Tensor], images: int) -> torch.Tensor:
    """R of each last token (b m n); fused: mean_h (A dA)+ of each call."""
    n = chain.links[0].before
    R = torch.eye(n, dtype=torch.float64).expand(images, n, n).clone()
    for link in chain.links:
        if isinstance(link, Attention):
            rows = attended(link, fused[link.layer], R).flatten(1, 2)
            at = places(link).flatten()
            if link.new is not None:
                kept = link.before if link.kept else 0
                R = torch.cat([R[:, :kept], R.new_zeros(images, len(at), n)], 1)
                R[:, at] = rows
            else:
                real = at >= 0
                R = R.index_add(1, at[real], rows[:, real])
            continue
        made = [sum(part * R[:, at] for at, part in members) for members in groups_of(link)]
        R = torch.stack(made, 1)
    return R


def read(chain: Any, X: torch.Tensor) -> torch.Tensor:
    """What the classifier reads of rows of the last tokens (b n)."""
    reads = chain.reads
    if reads is None:
        reads = torch.zeros(chain.tokens, dtype=torch.float64)
        for part, share in tokens_of_pool(chain.layout, chain.tokens):
            reads[part] += share / reads[part].numel()
    return torch.einsum("m,bmn->bn", reads.double(), X)


def raw_attention(chain: Any, maps: Any, layer: Any, images: int) -> torch.Tensor:
    means = {at: A.mean(1) for at, A in maps.weights.items()}
    return read(chain, of_one_call(chain, layer, means[layer], means, images))


def attention_grad_cam(chain: Any, maps: Any, layer: Any, images: int) -> torch.Tensor:
    means = {at: A.mean(1) for at, A in maps.weights.items()}
    A, dA = maps.weights[layer], maps.gradients[layer]
    link = next(one for one in chain.links if isinstance(one, Attention) and one.layer == layer)
    slots = read(chain, of_one_call(chain, layer, means[layer], means, images, slots=True))
    seen = slots.view(len(A), -1)  # of each window's queries
    keys = dA[..., list(link.patches)] if link.patches else dA
    weight = torch.einsum("bi,bhij->bh", seen, keys) / keys.shape[-1]
    weight = weight.view(images, -1, A.shape[1]).mean(1)
    weight = weight.repeat_interleave(len(A) // images, 0)
    fused = (A * weight[:, :, None, None]).mean(1)
    return read(chain, of_one_call(chain, layer, fused, means, images)).clamp(min=0)


def relevance_map(chain: Any, maps: Any, images: int) -> torch.Tensor:
    fused = {at: (A * maps.gradients[at]).clamp(min=0).mean(1) for at, A in maps.weights.items()}
    nothing = {at: torch.zeros_like(one) for at, one in fused.items()}
    return read(chain, relevance(chain, fused, images) - relevance(chain, nothing, images))


def tokens_given(_module: Any, args: Any, kwargs: Any, out: Any) -> tuple[Any, ...] | torch.Tensor:
    """The tokens that a block was given: what it would give if it were not there."""
    every = [*args, *kwargs.values()]
    tokens = next(x for x in every if isinstance(x, torch.Tensor) and x.ndim in (3, 4))
    return (tokens, *out[1:]) if isinstance(out, tuple) else tokens


def token_asked_for(chain: Any, size: tuple[int, int]) -> Any:
    """The last layer's token that a query of none stands for: the class token, or the centre's."""
    layout = chain.layout
    if layout.class_token:
        return 0
    (h, w), places = layout.grid, layout.patches
    while layout.prefix + h * w > chain.tokens:
        h, w = (h + 1) // 2, (w + 1) // 2
    at = min(int(0.5 * h), h - 1) * w + min(int(0.5 * w), w - 1)
    return places[at] if chain.tokens == layout.tokens else layout.prefix + at


def before_the_pool(chain: Any) -> tuple[list[Any], Any]:
    """The links of a chain without an attention pool at its end, and how many tokens come out."""
    links = list(chain.links)
    tokens = chain.tokens
    if chain.layout.pool == "attention":
        while links and (not isinstance(links[-1], Attention) or links[-1].new is not None):
            tokens = links.pop().before
    return links, tokens


def legrad(
    network: Any,
    images: torch.Tensor,
    blocks: Any,
    chain: Any,
    matched: Any,
    last: Any,
    target: int = 1,
) -> torch.Tensor:
    """mean over the last blocks of mean_h mean_i (d s_l / d A_l)+, s_l with the later ones left out."""
    pooled = chain.layout.pool == "attention"
    tokens, maps = chain.layout.tokens, []
    calls = {link.layer: link.call for link in chain.links if isinstance(link, Attention)}
    shapes = {layer: call.shape for layer, call in calls.items() if call is not None}
    of_place = {place: (call, order) for call, (place, order) in matched.items()}
    attending = [matched[call][0] for call in shapes]
    for number in range(len(blocks) - last, len(blocks)):
        hooks = [
            later.register_forward_hook(tokens_given, with_kwargs=True)
            for later in blocks[number + 1 :]
        ]
        inside: list[Any]
        inside, plain = [], Plain()
        hooks.append(
            blocks[number].register_forward_pre_hook(
                lambda *_, plain=plain, inside=inside: inside.append(len(plain.tracked))
            )
        )
        hooks.append(blocks[number].register_forward_hook(
            lambda *_, plain=plain, inside=inside: inside.append(len(plain.tracked))))  # fmt: skip
        try:
            with torch.enable_grad(), plain.running(network):
                logits = class_logits_on_the_graph(network, images)
        finally:
            for hook in hooks:
                hook.remove()
        of = attending[-1:] if pooled else [at for at in attending if at in range(*inside)]
        tracked = [plain.tracked[at] for at in of]
        gradients = torch.autograd.grad(logits[:, target].sum(), tracked)
        each = []
        for at, dA in zip(of, gradients, strict=True):
            call, order = of_place[at]
            heads = dA.permute(order).reshape(shapes[call])
            each.append(heads.clamp(min=0).mean((1, 2)))
        row = torch.stack(each).mean(0)
        maps.append(nn.functional.pad(row, (tokens - row.shape[-1], 0)))
    return torch.stack(maps).mean(0)
