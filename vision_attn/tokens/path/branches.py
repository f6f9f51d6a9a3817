"""Attention calls side by side: the copies of a token, of which each call has its own.

Where the outputs of several calls are added to the same tokens, a chain has a copy of each token
for each call, and joins them afterwards. Copies are told by labels: a token keeps its own through
attention calls, its copies have it too, and what is made of several tokens gets a new one.

Axes: n and m tokens before and after a link.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import torch

from vision_attn.tokens.path.chain import Attention, Chain, Link, Regroup

__all__ = ["calls_side_by_side", "copies_joined", "of_one_call", "without_readout"]

Members = list[tuple[int, float]]  # the tokens before a link that one is made of, and their parts


def copies_joined(chain: Chain) -> Chain:
    """Let a chain end with one token for all copies of it, each with the part that is read of it.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.branches import copies_joined
        >>> from vision_attn.tokens.path.chain import Chain, Regroup
        >>> from vision_attn.types import TokenLayout
        >>> copied = torch.arange(4), torch.tensor([0, 1, 0, 1]), torch.ones(4)
        >>> reads = torch.tensor([0.5, 0.0, 0.5, 0.0])
        >>> chain = Chain([Regroup(0, 2, *copied)], TokenLayout(1, (1, 1)), 4, reads)
        >>> joined = copies_joined(chain)
        >>> joined.tokens, joined.reads.tolist()
        (2, [1.0, 0.0])
    """
    if not _may_copy(chain):
        return chain
    labels = [*range(chain.links[0].before)]
    for _, _, after in labelled(chain.links):
        labels = after
    copies = _by_label([(token, 1.0) for token in range(chain.tokens)], labels)
    if len(copies) == chain.tokens:
        return chain
    reads = chain.reads
    read = [1.0] * chain.tokens if reads is None else reads.tolist()
    groups: list[Members] = []
    for of in copies:
        total = sum(read[token] for token, _ in of)
        groups.append([(token, read[token] / total if total else 1 / len(of)) for token, _ in of])
    if reads is not None:
        reads = torch.stack([reads[[token for token, _ in of]].sum() for of in copies])
    end = made_of(groups, chain.links[-1].layer, chain.tokens)
    return replace(chain, links=[*chain.links, end], tokens=len(copies), reads=reads)


def without_readout(chain: Chain) -> Chain:
    """Drop the attention pool that reads the last layer's tokens, if any.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.branches import without_readout
        >>> from vision_attn.tokens.path.path import find_path
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> chain = find_path(network, torch.rand(1, 3, 16, 16)).chain
        >>> without_readout(chain) is chain  # it has none
        True
    """
    links, tokens = list(chain.links), chain.tokens
    while chain.layout.pool == "attention" and links and links[-1].always:
        tokens = links.pop().before
    if tokens == chain.tokens or not links:
        return chain
    return copies_joined(Chain(links, chain.layout, tokens))


def of_one_call(chain: Chain, layer: int) -> Chain:
    """Join only the copies of a token that went through one call, where there are some.

    Then a row of this call is not shared with the calls beside it.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.branches import of_one_call
        >>> from vision_attn.tokens.path.path import find_path
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> chain = find_path(network, torch.rand(1, 3, 16, 16)).chain
        >>> of_one_call(chain, layer=1) is chain  # no call is beside another
        True
    """
    if not _may_copy(chain):
        return chain
    links: list[Link] = []
    went = [False] * chain.links[0].before  # through this call
    for link, labels, _ in labelled(chain.links):
        if isinstance(link, Regroup):
            groups: list[Members] = []
            for members in members_of(link):
                groups.append([])
                for alike in _by_label(members, labels):
                    own = [pair for pair in alike if went[pair[0]]] or alike
                    times = sum(part for _, part in alike) / sum(part for _, part in own)
                    groups[-1] += [(token, part * times) for token, part in own]
            went = [any(went[token] for token, _ in members) for members in groups]
            if groups != members_of(link):
                link = made_of(groups, link.layer, link.before)
        elif isinstance(link, Attention) and link.new is None:
            for token in link.queries.flatten().tolist():
                if token < link.before:
                    went[token] |= link.layer == layer
        elif isinstance(link, Attention):
            waiting = link.before if link.kept else 0
            new = _tokens_after(link) - waiting
            went = went[:waiting] + [link.layer == layer] * new
        links.append(link)
    return replace(chain, links=links)


def calls_side_by_side(chain: Chain) -> dict[int, float]:
    """Find how many calls are side by side, for each call of which there are several.

    More exactly the part of the tokens that all of them have together, by the part that is its own.
    Runs side by side, of several calls each, are none.
    """
    times: dict[int, float] = {}
    if not any(isinstance(link, Regroup) and link.copies for link in chain.links):
        return times
    # The calls that a token went through since it was copied; None: it is no copy.
    calls: list[set[int] | None] = [None] * chain.links[0].before
    for link, labels, _ in labelled(chain.links):
        if isinstance(link, Regroup):
            groups = members_of(link)
            uses = [token for members in groups for token, _ in members]
            for members in groups:
                for alike in _by_label(members, labels):
                    of_calls = [(of, part) for token, part in alike if (of := calls[token])]
                    total = sum(part for _, part in of_calls)
                    if len(of_calls) > 1 and all(len(of) == 1 for of, _ in of_calls):
                        times |= {call: total / part for of, part in of_calls for call in of}
            calls = [
                None
                if len(members) > 1
                else set()
                if link.copies and uses.count(members[0][0]) > 1
                else calls[members[0][0]]
                for members in groups
            ]
        elif isinstance(link, Attention) and link.new is None:
            for token in link.queries.flatten().tolist():
                if token < link.before and (of := calls[token]) is not None:
                    calls[token] = of | {link.layer}
        elif isinstance(link, Attention):
            waiting = link.before if link.kept else 0
            calls = calls[:waiting] + [None] * (_tokens_after(link) - waiting)
    return times


def labelled(links: Sequence[Link]) -> Iterator[tuple[Link, list[int], list[int]]]:
    """Give each link with the labels of the tokens before and after it."""
    labels = [*range(links[0].before)]
    fresh = count(len(labels))
    for link in links:
        before = labels
        if isinstance(link, Regroup):
            labels = []
            for members in members_of(link):
                of = _by_label(members, before)
                labels.append(before[members[0][0]] if len(of) == 1 else next(fresh))
        elif isinstance(link, Attention) and link.new is not None:
            labels = before[: link.before if link.kept else 0]
            labels = labels + [next(fresh) for _ in range(_tokens_after(link) - len(labels))]
        yield link, before, labels


def members_of(link: Regroup) -> list[Members]:
    """List the tokens that each token after a link is made of."""
    groups: list[Members] = [[] for _ in range(int(link.made.max()) + 1)]
    rows = zip(link.made.tolist(), link.of.tolist(), link.part.tolist(), strict=True)
    for new, old, part in rows:
        groups[new].append((old, part))
    return groups


def made_of(groups: Sequence[Members], layer: int, before: int) -> Regroup:
    """Make a link of the tokens that each token after it is made of."""
    rows = [(new, old, part) for new, of in enumerate(groups) for old, part in of]
    new, old, part = zip(*rows, strict=True)
    new_ids, of = (torch.tensor(x, dtype=torch.long, device="cpu") for x in (new, old))
    parts = torch.tensor(part, dtype=torch.float64, device="cpu")
    return Regroup(layer, before, new_ids, of, parts)


def _may_copy(chain: Chain) -> bool:
    """Whether a token goes into several others somewhere, without which there are no copies."""
    regroups = [link for link in chain.links if isinstance(link, Regroup)]
    return any(len(link.of.unique()) < len(link.of) for link in regroups)


def _by_label(members: Members, labels: Sequence[int]) -> list[Members]:
    """Group members by label: each group has the copies of one token."""
    by_label: dict[int, Members] = {}
    for token, part in members:
        by_label.setdefault(labels[token], []).append((token, part))
    return list(by_label.values())


def _tokens_after(link: Attention) -> int:
    assert link.new is not None
    return int(link.new.max()) + 1
