"""What changes in a network when all attention weights but one query's are 0, or a spot of its image.

What of the later calls' scores changes, and whether the logits do, must be what the chain says of
that query's token. A spot of the image must change the token that lies there. Where it changes
others farther off, all rows and columns of tokens must still come in the order of the image's.

Axes: b images, head, i queries, j keys, n tokens.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from plain import Plain
from torch.nn import functional as F

from vision_attn.tokens.outputs import class_logits
from vision_attn.tokens.path.chain import Attention

SAMPLES = 12  # queries that are disturbed, over all calls
DRAWS = 2, 8  # of noise in each band of an image: at first, and where that many do not tell


def disturbed_run(
    network: Any,
    image: torch.Tensor,
    matched: Any,
    windows: dict[Any, Any],
    at: int | None = None,
    window: int = 0,
    query: int = 0,
    alone: bool = False,
) -> tuple[dict[Any, Any], torch.Tensor]:
    """Scores of every matched call and the logits, with all weights 0 but one query's of a call.

    alone: the weights of calls that are not matched, before the chain, are 0 too.
    """
    at_place = {place: (call, order) for call, (place, order) in matched.items()}

    def replace(place: Any, weights: Any) -> torch.Tensor:
        if place not in at_place:
            return torch.zeros_like(weights) if alone else weights
        call, order = at_place[place]
        none = torch.zeros_like(weights)
        if call == at:
            inside = none.permute(order)
            shape = inside.shape
            lead = inside.reshape(-1, *shape[-2:]).clone()
            source = weights.permute(order).reshape(-1, *shape[-2:])
            heads = len(lead) // windows[call]
            rows = slice(window * heads, (window + 1) * heads)
            lead[rows, query] = source[rows, query]
            back = [order.index(axis) for axis in range(len(order))]
            none = lead.view(shape).permute(back).contiguous()
        return none

    plain = Plain(replace)
    with torch.no_grad(), plain.running(network):
        logits = class_logits(network, image)
    scores = {
        call: plain.scores[place].permute(order).reshape(windows[call], -1, *[
            plain.scores[place].shape[axis] for axis in order[-2:]])
        for call, (place, order) in matched.items()
        if place < len(plain.scores) and plain.scores[place].ndim == len(order)
    }  # fmt: skip
    return scores, logits


def windows_of(chain: Any) -> dict[Any, Any]:
    """How many windows each attention call of a chain has."""
    return {link.layer: len(link.queries) for link in chain.links if isinstance(link, Attention)}


def changed(after: Any, before: int) -> Any:
    """Where scores (window head i j) differ, over all heads (window i j)."""
    return (after - before).nan_to_num(0).abs().amax(1) > 1e-9


def disturb_queries(
    network: Any, image: torch.Tensor, path: Any, chain: Any, matched: Any, verdict: Any
) -> None:
    links = list(chain.links)
    attentions = {link.layer: link for link in links if isinstance(link, Attention)}
    if len(matched) < len(attentions):
        return
    windows = windows_of(chain)
    base, logits = disturbed_run(network, image, matched, windows)
    random = torch.Generator().manual_seed(1)
    each = max(1, SAMPLES // len(attentions))
    for layer, link in attentions.items():
        for _ in range(min(each, link.queries.numel())):
            window = int(torch.randint(len(link.queries), (1,), generator=random))
            query = int(torch.randint(link.queries.shape[1], (1,), generator=random))
            place = int(link.queries[window, query])
            if link.new is None and place == link.before:
                continue
            reach = torch.zeros(after_of(link), dtype=torch.bool)
            reach[place if link.new is None else int(link.new[window, query])] = True
            scores, out = disturbed_run(network, image, matched, windows, layer, window, query)
            verdict.disturbed += 1
            fault = follow_reach(links, link, reach, scores, base, chain)
            read = reach_end(links, link, reach)
            if chain.reads is not None and fault is None:
                says = bool((read & (chain.reads > 0)).any())
                moved = bool((out - logits).abs().max() > 1e-9 * logits.abs().max())
                if says != moved and (path.unread is None or moved):  # a maximum may not move
                    fault = f"its token {'reaches' if moved else 'does not reach'} the logits"
            if fault:
                verdict.faults.append(f"query {query} of window {window} of call {layer}: {fault}")
                return


def after_of(link: Attention) -> int:
    if isinstance(link, Attention):
        new = 0 if link.new is None else link.new.numel()
        return (link.before if link.new is None or link.kept else 0) + new
    return int(link.made.max()) + 1


def carried(link: Any, reach: torch.Tensor) -> torch.Tensor:
    if isinstance(link, Attention):
        if link.new is None:
            return reach
        kept = reach if link.kept else reach[:0]
        return F.pad(kept, (0, link.new.numel()))
    made = torch.zeros(after_of(link), dtype=torch.bool)
    made[link.made[reach[link.of]]] = True
    return made


def reach_end(links: list[Any], start: Attention, reach: torch.Tensor) -> torch.Tensor:
    for link in links[links.index(start) + 1 :]:
        reach = carried(link, reach)
    return reach


def follow_reach(
    links: list[Any],
    start: Attention,
    reach: torch.Tensor,
    scores: dict[Any, Any],
    base: dict[Any, Any],
    chain: Any,
) -> str | None:
    """Compare what changed in each later call with where the chain says that the token is."""
    for link in links[links.index(start) + 1 :]:
        if isinstance(link, Attention) and link.layer in scores and link.layer not in reused(base):
            there = F.pad(reach, (0, 1))
            expected = there[link.queries][:, :, None] | there[link.keys][:, None, :]
            found = changed(scores[link.layer], base[link.layer])
            seen = (base[link.layer].abs() < 1e30).any(1)  # others are masked
            padding = (link.keys >= link.before)[:, None, :]  # no token: where it is zeros and
            expected = expected & (found | ~padding)  # scores are cosines, no query changes it
            if link.foreign or link.new is not None:  # of rows whose queries are other tokens
                own = link.queries < link.before
                own = (own & (not link.foreign))[:, :, None]
                expected = torch.where(own, expected, there[link.keys][:, None, :] | found)
            if found.shape == expected.shape and (found != (expected & seen)).any():
                return (
                    f"changes {int(found.sum())} scores of call {link.layer}, "
                    f"{int((found & ~expected).sum())} of them not of its token, and "
                    f"{int((expected & seen & ~found).sum())} of its token are the same"
                )
        reach = carried(link, reach)
    return None


def reused(scores: Any) -> set[Any]:
    """The calls whose scores are an earlier call's, turned: they are of tokens as they were then."""
    return {
        at
        for at, own in scores.items()
        for before, other in scores.items()
        if before < at and other.mT.shape == own.shape and torch.equal(other.mT, own)
    }


def disturb_image(
    network: Any, image: torch.Tensor, path: Any, chain: Any, matched: Any
) -> str | None:
    """The token that lies on a spot must change, and the others around it alone: what does not
    hold; None: it does.
    """
    attentions = [link for link in chain.links if isinstance(link, Attention)]
    h, w = chain.layout.grid
    if len(matched) < len(attentions) or min(h, w) < 3:
        return None
    windows, alone = windows_of(chain), path.left_out is not None
    base, _ = disturbed_run(network, image, matched, windows, alone=alone)
    for y, x in {(0, 0), (h // 2, w // 2), (h - 1, w // 3), (h // 3, w - 1)}:
        spot = with_spot(image, (y, x), (h, w))
        scores, _ = disturbed_run(network, spot, matched, windows, alone=alone)
        amounts = moved_tokens(chain, scores, base)
        if amounts.max() <= 1e-9:
            if isinstance(chain.links[0], Attention) and chain.links[0].keys.numel() >= h * w:
                return f"a spot on patch {y, x} changes no score of the first call"
            continue
        row, column = centre_of(amounts)
        reach = 1.0 + 0.2 * max(h, w) * float((amounts > 0.02 * amounts.max()).double().mean())
        if abs(row - y) > reach or abs(column - x) > reach:
            return f"a spot on patch {y, x} changes the tokens around ({row:.1f}, {column:.1f})"
    return None


def disturb_bands(
    network: Any, image: torch.Tensor, path: Any, chain: Any, matched: Any
) -> str | None:
    """The tokens of each row and column must change by parts of the image farther down or to the
    right than those of the one before: what does not hold; None: it does.

    Noise is added to the image band by band: as many as there are rows, then columns. For each
    token the mean place of the bands is taken, weighted by the square of what it changes by.
    Unlike the bound on spots this asks for the order of all tokens, and not how far each reaches.
    """
    windows, alone = windows_of(chain), path.left_out is not None
    base, _ = disturbed_run(network, image, matched, windows, alone=alone)
    for axis, line in enumerate(("row", "column")):
        n = chain.layout.grid[axis]
        amounts = torch.zeros(n, *chain.layout.grid, dtype=torch.float64)
        for draw in range(DRAWS[-1]):
            for band, noisy in enumerate(with_noise(image, 2 + axis, n, draw)):
                scores, _ = disturbed_run(network, noisy, matched, windows, alone=alone)
                amounts[band] += moved_tokens(chain, scores, base)
            fault = disorder(amounts if axis == 0 else amounts.mT, line)
            if fault is None and draw + 1 in DRAWS:
                break
        if fault is not None:
            return fault
    return None


def disorder(amounts: torch.Tensor, line: str) -> str | None:
    """Say which lines (line token) of tokens come too early by what bands (band line token) change;
    None: none does.
    """
    share = amounts.square() / amounts.square().sum(0)
    places = (share * torch.arange(len(amounts))[:, None, None]).sum(0)
    lines = places.mean(1)
    for at in range(1, len(lines)):
        if not lines[at] > lines[at - 1]:
            return (
                f"{line} {at} changes by bands around {lines[at]:.2f}, the {line} before it by "
                f"those around {lines[at - 1]:.2f}"
            )
    ordered = float((places.diff(dim=0) > 0).double().mean())
    if ordered < 0.75:
        return f"{1 - ordered:.0%} of the tokens of each {line} change by earlier bands"
    return None


def with_noise(image: torch.Tensor, axis: int, count: int, seed: int) -> Iterator[torch.Tensor]:
    """The image count times, each with noise in one band across an axis."""
    random = torch.Generator().manual_seed(seed)
    edges = [at * image.shape[axis] // count for at in range(count + 1)]
    for start, end in itertools.pairwise(edges):
        noisy = image.clone()
        band = noisy.narrow(axis, start, end - start)
        band += torch.randn(band.shape, generator=random, dtype=band.dtype)
        yield noisy


def with_spot(image: torch.Tensor, at: tuple[Any, Any], grid: tuple[Any, Any]) -> torch.Tensor:
    """The image, brighter in the middle of one patch."""
    spot = image.clone()
    top, left = (
        int((place + 0.5) * side / n)
        for place, side, n in zip(at, image.shape[2:], grid, strict=True)
    )
    spot[..., max(top - 1, 0) : top + 1, max(left - 1, 0) : left + 1] += 3.0
    return spot


def moved_tokens(chain: Any, scores: dict[Any, Any], base: dict[Any, Any]) -> torch.Tensor:
    """How much each patch of the first tokens (h w) differs, by the scores that it is a key of."""
    size_of = torch.zeros(chain.links[0].before, dtype=torch.float64)
    back = [[at] for at in range(len(size_of))]  # the first tokens that went into each
    for link in chain.links:
        if isinstance(link, Attention):
            moved = (scores[link.layer] - base[link.layer]).nan_to_num(0).abs().amax(1)
            amount = moved.median(1).values  # window j: a changed query changes one of a column
            pairs = zip(link.keys.flatten().tolist(), amount.flatten().tolist(), strict=True)
            for token, value in pairs:
                for one in back[token] if token < len(back) else []:
                    size_of[one] = max(size_of[one], value)
            break
        made_of = [link.of[link.made == at].tolist() for at in range(after_of(link))]
        back = [[one for old in of for one in back[old]] for of in made_of]
    places = chain.layout.patches
    if isinstance(places, slice):
        return size_of[places].view(chain.layout.grid)
    return size_of[torch.tensor(places)].view(chain.layout.grid)


def centre_of(amounts: torch.Tensor) -> tuple[float, float]:
    share = amounts / amounts.sum()
    (h, w), rows, columns = amounts.shape, share.sum(1), share.sum(0)
    return float((rows * torch.arange(h)).sum()), float((columns * torch.arange(w)).sum())
