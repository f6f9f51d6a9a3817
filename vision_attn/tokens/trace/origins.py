"""Origins: numbers for where values come from, and what each was made of.

Axes: b batch, head, i queries, j keys, d width.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["NOTHING", "NOWHERE", "CallOrigins", "NumberedHashes", "Origins"]

NOTHING = 0  # the origin of constants and parameters
NOWHERE = -(2**30)
FORMER = 4  # states of a key, by calls before it, that an output may be added to
MANY = 16  # columns, among which it pays to look for copies
DEDUPLICATED = 2**15  # rows of more elements are not compared with each other


@dataclass(frozen=True)
class CallOrigins:
    """The origins of one attention call's queries (lead i), keys (lead j) and outputs (lead i).

    lead: images, times windows or heads where they count as batch.

    Attributes:
        apart: How many heads have outputs that may go to the same head of the next call alone; 1:
            none has.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.origins import CallOrigins
        >>> CallOrigins(torch.ones(2, 5), torch.ones(2, 7), torch.ones(2, 5)).keys.shape
        torch.Size([2, 7])
    """

    queries: Tensor
    keys: Tensor
    outputs: Tensor
    apart: int = 1


class Origins:
    """The origins of a run and the members that each was computed from; 0 is no origin.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.origins import Origins
        >>> origins = Origins()
        >>> a, b = origins.new(2).tolist()
        >>> merged = origins.merge(torch.tensor([[a, a], [a, b], [b, 0]])).tolist()
        >>> merged[0] == a, merged[2] == b, sorted(origins.members(merged[1])) == [a, b]
        (True, True, True)
    """

    def __init__(self) -> None:
        self.count = 1
        self.query = torch.zeros(
            64, dtype=torch.long, device="cpu"
        )  # of an attention's output: its query
        self.output = torch.zeros(64, dtype=torch.bool, device="cpu")  # of an attention
        self.call = torch.full(
            (64,), -1, dtype=torch.long, device="cpu"
        )  # the last attention call that it went through
        self.residual = torch.zeros(
            64, dtype=torch.bool, device="cpu"
        )  # whether its query was added to it
        self.equal = torch.zeros(
            64, dtype=torch.bool, device="cpu"
        )  # whether its members count alike
        # -top, -left, bottom, right in pixels, and in the first and the second image: at least 0
        self.box = torch.full((64, 6), NOWHERE, dtype=torch.long, device="cpu")
        # where it lies among others: the mean (row, column) of what it was made of, and 1; else 0
        self._centre = torch.zeros(64, 3, dtype=torch.float64, device="cpu")
        self.pixel_count = 0  # the first origins
        self.operation: dict[int, str] = {}  # what mixed the members of an origin
        self.keys: dict[int, Tensor] = {}  # of each call
        self.foreign: set[int] = set()  # calls whose queries are not what their outputs join
        self._first: list[int] = []
        self._end: list[int] = []  # one past the last of as many
        self._listed: dict[int, list[int]] = {}  # members that were asked for
        self._members: list[Tensor] = []
        self._known = NumberedHashes()  # by the hash of their members

    def new(self, count: int) -> Tensor:
        """Make `count` new origins without members (count,)."""
        first, self.count = self.count, self.count + count
        if self.count > len(self.query):
            more = self.count + self.count // 4 + 1024 - len(self.query)
            self.query = F.pad(self.query, (0, more))
            self.call = F.pad(self.call, (0, more), value=-1)
            flags = (self.residual, self.equal, self.output)
            self.residual, self.equal, self.output = (F.pad(x, (0, more)) for x in flags)
            self.box = F.pad(self.box, (0, 0, 0, more), value=NOWHERE)
            self._centre = F.pad(self._centre, (0, 0, 0, more))
        return torch.arange(first, self.count, device="cpu")

    def pixels(self, height: int, width: int, image: int) -> Tensor:
        """Make an origin for each pixel (height width) of the first (0) or second image (1)."""
        ids = self.new(height * width)
        own = slice(self.count - len(ids), self.count)
        indices = (torch.arange(side, device="cpu") for side in (height, width))
        row, column = torch.meshgrid(*indices, indexing="ij")
        self.box[own, :4] = torch.stack([-row, -column, row, column], -1).flatten(0, 1)
        self._centre[own] = (
            torch.stack([row, column, row.new_ones(row.shape)], -1).flatten(0, 1).double()
        )
        self.box[own, 4 + image] = 0
        self.pixel_count = self.count - 1
        return ids.view(height, width)

    def frequencies(self, images: int, shape: Sequence[int]) -> Tensor:
        """Make an origin for each frequency (images *shape) of images: it lies in no place."""
        ids = self.new(images * prod(shape)).view(images, *shape)
        for image in range(images):
            self.box[ids[image].flatten(), 4 + image] = 0
        return ids

    def centres(self, ids: Any) -> Tensor:
        """Find the mean (row, column) in pixels of what origins were made of; NaN: of no pixels.

        Args:
            ids: (*shape), or a list of them.

        Returns:
            (*shape, 2).
        """
        sums = self._centre[ids]
        return sums[..., :2] / sums[..., 2:]

    def outputs(self, queries: Tensor, call: int, keys: Tensor) -> Tensor:
        """Make an origin for the output of an attention call at each of its queries."""
        self.keys[call] = keys.flatten().unique()
        ids = self.new(queries.numel()).view(queries.shape)
        self.query[ids], self.call[ids], self.box[ids] = queries, call, self.box[queries]
        self._centre[ids] = self._centre[queries]
        self.output[ids] = True
        return ids

    def members(self, origin: int) -> list[int]:
        """List the members of an origin: [] for a pixel, a parameter or an attention's output."""
        group = bisect_right(self._first, origin) - 1
        if group < 0 or origin >= self._end[group]:
            return []
        if origin not in self._listed:
            row = self._members[group][origin - self._first[group]].tolist()
            self._listed[origin] = sorted({*row} - {NOTHING})
        return self._listed[origin]

    def made_with(self, origin: int) -> int:
        """Find the oldest origin of the same merge; all members of a merge are older than it."""
        group = bisect_right(self._first, origin) - 1
        return origin if group < 0 or origin >= self._end[group] else self._first[group]

    def branches(self, origin: int, queries: Sequence[int] | None = None) -> list[int]:
        """List the members of an origin; branches that were added in several steps count as one.

        Branches side by side are outputs of calls at one query.

        Args:
            queries: `query` as a list, for who asks for many origins: to take numbers from a tensor
                one by one is slow.
        """
        query = self.query if queries is None else queries
        if not query[origin] > 0:
            return self.members(origin)
        origins: list[int] = []
        stack = self.members(origin)[::-1]
        while stack:
            candidate = stack.pop()
            beside = query[candidate] > 0 and query[candidate] == query[origin]
            of = self.members(candidate) if beside else []
            stack += of[::-1]
            origins += [] if of else [candidate]
        return list(dict.fromkeys(origins))

    def behind(
        self, ids: Iterable[int], through: Iterable[CallOrigins] = (), ends: Tensor | None = None
    ) -> Tensor:
        """Find these origins, their members, the members of those, ...: (origins,) bool.

        Args:
            through: The attention calls whose outputs count as made of all their queries and keys.
            ends: (origins,) bool, of which what they were made of is not asked.
        """
        groups = zip(self._first, self._end, self._members, strict=True)
        steps: list[tuple[int, slice | Tensor, Tensor]] = [
            (first, slice(first, end), rows) for first, end, rows in groups
        ]
        for call in through:
            outputs, of = call.outputs.flatten(), torch.cat([call.queries, call.keys], 1)
            steps.append((int(outputs[0]), outputs, of.flatten()[None]))
        steps.sort(key=lambda step: step[0], reverse=True)  # made of older ones alone
        marked = torch.zeros(self.count, dtype=torch.bool, device="cpu")
        marked[torch.tensor([*ids], dtype=torch.long, device="cpu")] = True
        for _, results, of in steps:
            reached = marked[results] if ends is None else marked[results] & ~ends[results]
            if reached.any():
                marked[of[reached] if isinstance(results, slice) else of] = True
        marked[NOTHING] = False
        return marked

    def merge(
        self, rows: Tensor, equal: bool = False, operation: str = "", adopt: bool = False
    ) -> Tensor:
        """Find the origin of values that are each computed from a row of others (rows k) -> (rows).

        Args:
            equal: Whether those of a row count alike, as in a mean.
            adopt: Whether an attention's output at a query that is no token, where it is added to
                one, becomes that token's.
        """
        if not rows.numel():
            return rows.new_zeros(len(rows))
        size = rows.numel()
        rows = without_copies(rows) if rows.shape[1] >= MANY else rows
        last = rows.amax(1)  # an attention's output is newer than its query
        alike = (rows == last[:, None]) | (rows == NOTHING)
        if self.keys:  # before the first attention call no origin has a query
            if adopt:
                self._adopt(rows, last)
            query = self.query[last]
            own = (rows == query[:, None]) & (rows != NOTHING)
            single = (alike | own).all(1)
            self.residual[last[single & own.any(1)]] = True
        else:
            single = alike.all(1)
        several = ~single
        if not several.any():
            return last
        if several.all():
            return self._groups(rows, equal, operation, size)
        last = last.clone()
        some = rows.T[:, several].T
        last[several] = self._groups(some, equal, operation, size // len(rows) * len(some))
        return last

    def one_of(self, rows: Tensor) -> Tensor | None:
        """Merge rows, if that makes no new origins and an attention's output is in each."""
        last = rows.amax(1)
        if not rows.numel() or not self.output[last].all():
            return None
        older = rows.masked_fill(rows == last[:, None], NOTHING).amax(1)
        query = self.query[last]
        fits = (query == older) | (query == NOTHING) | (older == NOTHING)
        alike = (rows == last[:, None]) | (rows == NOTHING) | (rows == older[:, None])
        if not (fits[:, None] & alike).all():
            return None
        return self.merge(rows, adopt=True)

    def _adopt(self, rows: Tensor, last: Tensor) -> None:
        others = rows.masked_fill(rows == last[:, None], NOTHING).amax(1)
        alike = ((rows == last[:, None]) | (rows == NOTHING) | (rows == others[:, None])).all(1)
        older = self.call[others] < self.call[last]
        free = self.output[last] & (self.query[last] == NOTHING) & (others != NOTHING)
        chosen = alike & older & free
        self.query[last[chosen]] = others[chosen]
        self._adopt_from_mixtures(last, others, alike & older & ~free)

    def _adopt_from_mixtures(self, last: Tensor, others: Tensor, may: Tensor) -> None:
        """Let outputs whose queries are mixtures, by a convolution say, be of the keys they join.

        Of what goes into a map, a query gives the weights alone: the token is what the output is
        added to. It must be, or have been, a key of the call, or be what the query is made of.
        """
        may &= ~self.residual[last] & (others != self.query[last])
        may &= (self.query[last] != NOTHING) & (others != NOTHING)
        for call in self.call[last[may]].unique().tolist():
            chosen = may & (self.call[last] == call)
            keys = states = self.keys[call]
            for _ in range(FORMER):
                keys = self.query[keys].unique()
                states = torch.cat([states, keys])
            fits = torch.isin(others[chosen], states)
            pairs = zip(self.query[last[chosen]].tolist(), others[chosen].tolist(), strict=True)
            own = [other in self.members(query) for query, other in pairs]
            fits |= torch.tensor(own, dtype=torch.bool, device="cpu")
            joined = torch.stack([last[chosen], others[chosen]], 1).unique(dim=0)
            each = len(joined) == len(joined[:, 0].unique())  # not one output for many tokens
            same = torch.isin(self.query[last[chosen]], others[chosen])
            if fits.all() and each and not same.all():
                joins = list(zip(last[chosen].tolist(), others[chosen].tolist(), strict=True))
                joins += [(head, other) for out, other in joins for head in self.members(out)]
                outs, joined = torch.tensor(joins, dtype=torch.long, device="cpu").T
                self.query[outs], self.box[outs] = joined, self.box[joined]
                self._centre[outs] = self._centre[joined]
                self.foreign |= {*self.call[outs].tolist()}

    def _groups(self, rows: Tensor, equal: bool, operation: str, size: int) -> Tensor:
        """Find the origins of rows of several members; size: elements, copies included."""
        if size > DEDUPLICATED:
            return self._group(rows, equal, operation)
        rows = rows.sort(1).values
        rows = rows.masked_fill(F.pad(rows[:, 1:] == rows[:, :-1], (1, 0)), NOTHING)
        mixed = rows * 0x1E3779B97F4A7C15
        how = hash((equal, operation)) & 0xFFFFFFFF
        hashes = ((mixed ^ (mixed >> 31)) * 0x3F58476D1CE4E5B9).sum(1) + how
        unique, inverse = hashes.unique(return_inverse=True)
        example = torch.empty_like(unique).scatter_(
            0, inverse, torch.arange(len(rows), device="cpu")
        )
        ids = self._known.find(unique)
        new = ids < 0
        if new.any():
            ids[new] = self._group(rows[example[new]], equal, operation)
            self._known.add(unique[new], ids[new])
        return ids[inverse]

    def _group(self, rows: Tensor, equal: bool, operation: str) -> Tensor:
        ids = self.new(len(rows))
        if len(rows):
            rows = without_copies(rows)
            self._first.append(self.count - len(rows))
            self._end.append(self.count)
            self._members.append(rows)
            own = slice(self.count - len(rows), self.count)
            flat = rows.T.flatten()  # `index_select` takes half as long as an index
            lead = rows.T.shape
            self.box[own] = self.box.index_select(0, flat).view(*lead, -1).amax(0)
            centre = self._centre.index_select(0, flat).view(*lead, -1).sum(0)
            self._centre[own] = centre / centre[:, 2:].clamp(min=1)
            self.equal[own] = equal
            if self.keys:
                self.call[own] = self.call.index_select(0, flat).view(lead).amax(0)
                queries = self.query.index_select(0, flat).view(lead).T
                queries = queries.masked_fill(rows == NOTHING, 0)
                common = queries.amax(1)  # branches side by side: outputs of calls with one query
                if common.any():
                    beside = ((queries == common[:, None]) | (rows == NOTHING)).all(1)
                    beside &= common > 0
                    self.query[own] = common.where(beside, 0)
                    self.residual[own] = self.residual[rows].any(1) & beside
            if operation:
                self.operation |= dict.fromkeys(ids.tolist(), operation)
        return ids


class NumberedHashes:
    """Numbers by hashes, in sorted runs that double in length.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.origins import NumberedHashes
        >>> known = NumberedHashes()
        >>> known.add(torch.tensor([-5, 2, 7]), torch.tensor([10, 11, 12]))
        >>> known.find(torch.tensor([7, 3, -5])).tolist()
        [12, -1, 10]
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Tensor, Tensor]] = []

    def find(self, hashes: Tensor) -> Tensor:
        """Find the number of each hash; -1 for one that is new."""
        numbers = torch.full_like(hashes, -1)
        for run, own in self._runs:
            index = torch.searchsorted(run, hashes).clamp_(max=len(run) - 1)
            numbers = own[index].where(run[index] == hashes, numbers)
        return numbers

    def add(self, hashes: Tensor, numbers: Tensor) -> None:
        """Keep numbers of new hashes, which are sorted."""
        self._runs.append((hashes, numbers))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            (before, of_before), (after, of_after) = self._runs[-2:]
            together, order = torch.cat([before, after]).sort()
            self._runs[-2:] = [(together, torch.cat([of_before, of_after])[order])]


def without_copies(rows: Tensor) -> Tensor:
    """Keep one of each run of equal columns (rows k), if all runs are of one length."""
    changes = (rows[:, 1:] != rows[:, :-1]).any(0).nonzero()[:, 0] + 1
    length = rows.shape[1] // (len(changes) + 1)
    starts = torch.arange(0, rows.shape[1], max(1, length), device="cpu")
    return rows[:, starts] if length > 1 and torch.equal(starts[1:], changes) else rows
