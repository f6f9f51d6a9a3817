"""Origins: numbers for where values come from, and what each was made of.

Most are made by a few numbers at a time, and there NumPy takes a third of torch's time: so merges
work on its arrays, with the members of an origin in a column.

Axes: b batch, head, i queries, j keys, d width.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["NOTHING", "NOWHERE", "CallOrigins", "NumberedHashes", "Origins", "indices"]

NOTHING = 0  # the origin of constants and parameters
NOWHERE = -(2**30)
FORMER = 4  # states of a key, by calls before it, that an output may be added to
MANY = 16  # columns, among which it pays to look for copies
DEDUPLICATED = 2**15  # rows of more elements are not compared with each other
TABLES = "query", "output", "call", "residual", "box", "_centre"  # a row for each origin
Integers = NDArray[np.int64]


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
        self.query = zeros(64, dtype=np.int64)  # of an attention's output: its query
        self.output = zeros(64, dtype=np.bool_)  # of an attention
        self.call = zeros(64, dtype=np.int64)  # the last attention call that it went through, or -1
        self.residual = zeros(64, dtype=np.bool_)  # whether its query was added to it
        # -top, -left, bottom, right in pixels, and in the first and the second image: at least 0
        self.box = zeros(64, 6, dtype=np.int32)
        # where it lies among others: the mean (row, column) of what it was made of, and 1; else 0
        self._centre = zeros(64, 3, dtype=np.float64)
        self.call[NOTHING], self.box[NOTHING] = -1, NOWHERE
        self.pixel_count = 0  # the first origins
        self.operation: dict[int, str] = {}  # what mixed the members of an origin
        self.keys: dict[int, Integers] = {}  # of each call
        self.foreign: set[int] = set()  # calls whose queries are not what their outputs join
        self._first: list[int] = []
        self._end: list[int] = []  # one past the last of as many
        self._listed: dict[int, list[int]] = {}  # members that were asked for
        self._members: list[Integers] = []
        self._known = NumberedHashes()  # by the hash of their members

    def new(self, count: int) -> Tensor:
        """Make `count` new origins without members (count,)."""
        first, self.count = self.count, self.count + count
        if self.count > len(self.query):
            for name in TABLES:
                table = getattr(self, name)
                wider = zeros(2 * self.count, *table.shape[1:], dtype=table.numpy().dtype)
                wider[:first] = table[:first]
                setattr(self, name, wider)
        own = slice(first, self.count)
        self.call[own], self.box[own] = -1, NOWHERE
        return torch.arange(first, self.count, device="cpu")

    def pixels(self, images: int, height: int, width: int) -> Tensor:
        """Make an origin for each pixel (images height width) of one image or two."""
        ids = self.new(images * height * width).view(images, height, width)
        own = slice(self.count - ids.numel(), self.count)
        row, column = torch.arange(height, device="cpu")[:, None], torch.arange(width, device="cpu")
        box, centre = (of[own].view(*ids.shape, -1) for of in (self.box, self._centre))
        for side, edge in enumerate((-row, -column, row, column)):
            box[..., side] = edge
        for image in range(images):
            box[image, ..., 4 + image] = 0
        centre[..., 0], centre[..., 1], centre[..., 2] = row, column, 1
        self.pixel_count = self.count - 1
        return ids

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
        self.keys[call] = keys.flatten().numpy()
        ids, of = self.new(queries.numel()), queries.flatten()
        own = slice(self.count - len(ids), self.count)
        self.query[own], self.call[own], self.output[own] = of, call, True
        self.box[own], self._centre[own] = self.box[of], self._centre[of]
        return ids.view(queries.shape)

    def members(self, origin: int) -> list[int]:
        """List the members of an origin: [] for a pixel, a parameter or an attention's output."""
        if origin not in self._listed:
            group = bisect_right(self._first, origin) - 1
            if group < 0 or origin >= self._end[group]:
                return []
            self.list_members([origin])
        return self._listed[origin]

    def list_members(self, ids: Iterable[int]) -> None:
        """List the members of many origins at once, which `members` then has at hand."""
        ahead = sorted(ids)
        while ahead:
            group = bisect_right(self._first, ahead[-1]) - 1
            if group < 0:
                return
            start = bisect_left(ahead, self._first[group])
            own = [origin for origin in ahead[start:] if origin < self._end[group]]
            rows = self._members[group][np.array(own, np.int64) - self._first[group]]
            for origin, row in zip(own, rows.tolist(), strict=True):
                self._listed[origin] = sorted({*row} - {NOTHING})
            del ahead[start:]

    def made_with(self, origin: int) -> int:
        """Find the oldest origin of the same merge; all members of a merge are older than it."""
        group = bisect_right(self._first, origin) - 1
        return origin if group < 0 or origin >= self._end[group] else self._first[group]

    def branches(self, origin: int) -> list[int]:
        """List the members of an origin; branches that were added in several steps count as one.

        Branches side by side are outputs of calls at one query.
        """
        query = self.query.numpy()  # whose numbers are taken one by one faster than a tensor's
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
        steps: list[tuple[int, Any, Any]] = [
            (first, slice(first, end), rows) for first, end, rows in groups
        ]
        for call in through:
            outputs, of = call.outputs.flatten(), torch.cat([call.queries, call.keys], 1)
            steps.append((int(outputs[0]), outputs.numpy(), of.flatten().numpy()))
        steps.sort(key=itemgetter(0), reverse=True)  # made of older ones alone
        marked = torch.zeros(self.count, dtype=torch.bool, device="cpu")
        marked[indices([*ids])] = True
        is_marked, is_end = marked.numpy(), None if ends is None else ends.numpy()
        for _, results, of in steps:
            reached = is_marked[results]
            reached = reached if is_end is None else reached & ~is_end[results]
            if reached.any():
                every = not isinstance(results, slice) or reached.all()
                is_marked[of if every else of[reached]] = True
        marked[NOTHING] = False
        return marked

    def merge(
        self, rows: Tensor, equal: bool = False, operation: str = "", adopt: bool = False
    ) -> Tensor:
        """Find the origin of values that are each computed from a row of others (rows k) -> (rows).

        Args:
            equal: Whether those of a row count alike, as in a mean: that is another origin than a
                weighted sum of the same row.
            adopt: Whether an attention's output at a query that is no token, where it is added to
                one, becomes that token's.
        """
        if not rows.numel():
            return rows.new_zeros(len(rows))
        columns, size = rows.numpy().T, rows.numel()
        columns = without_copies(columns) if len(columns) >= MANY else columns
        last = columns.max(0)  # an attention's output is newer than its query
        single = (columns == last) | (columns == NOTHING)
        if self.keys:  # before the first attention call no origin has a query
            if adopt:
                self._adopt(columns, last)
            own = (columns == self.query.numpy()[last]) & (columns != NOTHING)
            single = (single | own).all(0)
            self.residual.numpy()[last[single & own.any(0)]] = True
        else:
            single = single.all(0)
        if not single.all():
            several = ~single
            some = columns[:, several]
            size = size // len(last) * some.shape[1]
            last[several] = self._groups(some, equal, operation, size)
        return torch.from_numpy(last)

    def one_of(self, rows: Tensor) -> Tensor | None:
        """Merge rows, if that makes no new origins and an attention's output is in each."""
        if not rows.numel():
            return None
        columns = rows.numpy().T
        last = columns.max(0)
        if not self.output.numpy()[last].all():
            return None
        older = np.where(columns == last, NOTHING, columns).max(0)
        query = self.query.numpy()[last]
        fits = (query == older) | (query == NOTHING) | (older == NOTHING)
        alike = (columns == last) | (columns == NOTHING) | (columns == older)
        return self.merge(rows, adopt=True) if fits.all() and alike.all() else None

    def _adopt(self, columns: Integers, last: Integers) -> None:
        others = np.where(columns == last, NOTHING, columns).max(0)
        call, query = self.call.numpy(), self.query.numpy()
        may = ((columns == last) | (columns == NOTHING) | (columns == others)).all(0)
        may &= call[others] < call[last]
        if not may.any():
            return
        free = self.output.numpy()[last] & (query[last] == NOTHING) & (others != NOTHING)
        chosen = may & free
        query[last[chosen]] = others[chosen]
        may &= ~free & ~self.residual.numpy()[last] & (others != query[last])
        may &= (query[last] != NOTHING) & (others != NOTHING)
        for number in np.unique(call[last[may]]).tolist():
            chosen = may & (call[last] == number)
            self._adopt_from_mixtures(number, last[chosen], others[chosen])

    def _adopt_from_mixtures(self, call: int, outputs: Integers, others: Integers) -> None:
        """Let outputs whose queries are mixtures, by a convolution say, be of the keys they join.

        Of what goes into a map, a query gives the weights alone: the token is what the output is
        added to. It must be, or have been, a key of the call, or be what the query is made of.
        """
        queries = self.query.numpy()
        keys = states = np.unique(self.keys[call])
        for _ in range(FORMER):
            keys = np.unique(queries[keys])
            states = np.append(states, keys)
        of = queries[outputs]
        apart = ~np.isin(others, states)
        pairs = zip(of[apart].tolist(), others[apart].tolist(), strict=True)
        if not all(other in self.members(query) for query, other in pairs):
            return
        joins = [*zip(outputs.tolist(), others.tolist(), strict=True)]
        if len({*joins}) > len({*outputs.tolist()}):
            return  # one output for many tokens
        if np.isin(of, others).all():
            return
        joins += [(head, other) for out, other in joins for head in self.members(out)]
        outs, joined = indices(joins).T
        self.query[outs], self.box[outs] = joined, self.box[joined]
        self._centre[outs] = self._centre[joined]
        self.foreign |= {*self.call[outs].tolist()}

    def _groups(self, columns: Integers, equal: bool, operation: str, size: int) -> Integers:
        """Find the origins of columns of several members; size: elements, copies included."""
        if size > DEDUPLICATED:
            return self._group(columns, operation)
        if len(columns) > 2:  # two members of a column are not the same
            columns = np.sort(columns, axis=0)
            columns[1:][columns[1:] == columns[:-1]] = NOTHING
        mixed = columns * 0x1E3779B97F4A7C15
        how = hash((equal, operation)) & 0xFFFFFFFF
        hashes = ((mixed ^ (mixed >> 31)) * 0x3F58476D1CE4E5B9).sum(0) + how
        order = hashes.argsort()
        ordered = hashes[order]
        is_first = np.append(True, ordered[1:] != ordered[:-1])
        unique, example = ordered[is_first], order[is_first]
        ids = self._known.find(unique)
        new = ids < 0
        if new.any():
            ids[new] = self._group(columns[:, example[new]], operation)
            self._known.add(unique[new], ids[new])
        of_columns: Integers = np.empty_like(hashes)
        of_columns[order] = ids[is_first.cumsum() - 1]
        return of_columns

    def _group(self, columns: Integers, operation: str) -> Integers:
        """Make origins of columns (k n) of members."""
        ids: Integers = self.new(columns.shape[1]).numpy()
        if not len(ids):
            return ids
        columns = without_copies(columns)
        self._first.append(self.count - len(ids))
        self._end.append(self.count)
        self._members.append(columns.T)
        own = slice(self.count - len(ids), self.count)
        box, centre = self.box.numpy(), self._centre.numpy()
        box[own] = box.take(columns, 0).max(0)
        sums = centre.take(columns, 0).sum(0)
        centre[own] = sums / np.maximum(sums[:, 2:], 1)
        if self.keys:
            call, query, residual = self.call.numpy(), self.query.numpy(), self.residual.numpy()
            call[own] = call.take(columns).max(0)
            queries = np.where(columns == NOTHING, 0, query.take(columns))
            common = queries.max(0)  # branches side by side: outputs of calls with one query
            if common.any():
                beside = ((queries == common) | (columns == NOTHING)).all(0) & (common > 0)
                query[own] = np.where(beside, common, 0)
                residual[own] = residual.take(columns).any(0) & beside
        if operation:
            self.operation |= dict.fromkeys(ids.tolist(), operation)
        return ids


class NumberedHashes:
    """Numbers by hashes, in sorted runs that double in length.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.tokens.trace.origins import NumberedHashes
        >>> numbered = NumberedHashes()
        >>> numbered.add(np.array([-5, 2, 7]), np.array([10, 11, 12]))
        >>> numbered.find(np.array([7, 3, -5])).tolist()
        [12, -1, 10]
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Integers, Integers]] = []

    def find(self, hashes: Integers) -> Integers:
        """Find the number of each hash; -1 for one that is new."""
        numbers = np.full_like(hashes, -1)
        for run, own in self._runs:
            index = run.searchsorted(hashes)
            index[index == len(run)] = 0
            has_it = run[index] == hashes
            numbers[has_it] = own[index[has_it]]
        return numbers

    def add(self, hashes: Integers, numbers: Integers) -> None:
        """Keep numbers of new hashes, which are sorted."""
        self._runs.append((hashes, numbers))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            both = zip(*self._runs[-2:], strict=True)
            hashes, numbers = (np.concatenate(each) for each in both)
            order = hashes.argsort()
            self._runs[-2:] = [(hashes[order], numbers[order])]


def indices(numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    """Whole numbers, or rows of them, as a tensor on the CPU; torch's own way takes long.

    Examples:
        >>> from vision_attn.tokens.trace.origins import indices
        >>> indices([[2, 3], [5, 7]]).tolist(), len(indices([]))
        ([[2, 3], [5, 7]], 0)
    """
    return torch.from_numpy(np.array(numbers, np.int64))


def zeros(*shape: int, dtype: Any) -> Tensor:
    """A table of 0, which takes no memory where nothing is written yet."""
    return torch.from_numpy(np.zeros(shape, dtype))


def without_copies(columns: Integers) -> Integers:
    """Keep one of each run of equal parts (k n) of columns, if all runs are of one length."""
    changes = (columns[1:] != columns[:-1]).any(1).nonzero()[0] + 1
    length = len(columns) // (len(changes) + 1)
    starts = np.arange(0, len(columns), max(1, length))
    return columns[starts] if length > 1 and np.array_equal(starts[1:], changes) else columns
