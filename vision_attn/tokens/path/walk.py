"""Walk through a run's attention calls in their order, and write a link for each.

Axes: n tokens, i queries, j keys.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vision_attn.tokens.path.chain import Attention, Regroup
from vision_attn.tokens.path.places import grid_of, rounded, rows_apart
from vision_attn.tokens.path.traced import TracedRun, UnknownPathError

__all__ = ["Walk"]

FAR = 50  # origins that are looked through for tokens that went into others


def indices(numbers: Sequence[Any]) -> Tensor:
    """Whole numbers, or rows of them, as a tensor on the CPU."""
    return torch.tensor(numbers, dtype=torch.long, device="cpu")


class Token(NamedTuple):
    """A token in the state between two calls: its origin now, and that of the token it was."""

    origin: int
    first: int


class Walk:
    """One walk through some of a run's attention calls, with the tokens of each.

    calls: the numbers of the calls. initial: the origins of the first tokens; None: as they come.
    late: whether calls before these are left out. averages: whether keys of the first call that
    are mixtures of tokens count as their mean. size: (height, width) of the image. After `go`:
    links; reads, the share of each of the last tokens in the logits; first, the origins of the
    first tokens; state, the last tokens; better, an order of the first tokens that is better.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.traced import follow
        >>> from vision_attn.tokens.path.walk import Walk
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> run = follow(network, torch.rand(1, 3, 16, 16))
        >>> run.read_steps()
        >>> walk = Walk(run, (16, 16), sorted(run.used))
        >>> walk.go()
        >>> len(walk.links), walk.reads.tolist()
        (2, [1.0, 0.0, 0.0, 0.0, 0.0])
    """

    def __init__(
        self,
        run: TracedRun,
        size: tuple[int, int],
        calls: Sequence[int],
        initial: Sequence[int] | None = None,
        late: bool = False,
        averages: bool = False,
    ):
        self.run, self.origins, self.size, self.calls = run, run.origins, size, calls
        self.begin = calls[0] if late else 0
        self.ordered, self.averages = initial is not None, averages
        self.last_use: dict[int, int] = {}
        self.state: list[Token] = [Token(one, one) for one in initial or ()]
        self.place: dict[int, int] = {one: at for at, one in enumerate(initial or ())}
        self.before: dict[int, int] = {}  # the call that replaced an origin
        self.was: dict[int, int] = {}  # where it was in the state, while places do not change
        self.link_of: dict[int, int] = {}  # by the call
        self.stream = [0] * len(initial or ())  # of each first token: 0, or of a later run
        self.links: list[Attention | Regroup] = []
        self.first: list[int] = list(initial or ())
        self.read_by: set[str] = set()  # operations by which the classifier reads tokens
        self.bypassed = False  # whether it reads what went through no call of the chain
        self.copied = False  # whether calls lie side by side
        self.came: dict[int, int] = {}  # where an origin stands in the order of the calls' tokens
        self.better: list[int] | None = None

    def go(self) -> None:
        """Write a link for each call; raises UnknownPathError where tokens mix in no known way."""
        for at in self.calls:
            for row in self._rows(at):
                self.last_use |= dict.fromkeys(row, at)
        late: list[int] | None = None
        for layer, at in enumerate(self.calls):
            ids = list(dict.fromkeys(one for row in self._rows(at) for one in row if one))
            self.came |= {
                one: len(self.came) + n for n, one in enumerate(ids) if one not in self.came
            }
            joined = self._join(layer, at, ids)
            apart = len(set(self.stream)) > 1 and any(
                self.origins.box[one, 2] >= 0 and stream
                for one, stream in zip(self.first, self.stream, strict=True)
            )
            if apart:
                late = None
            elif joined and not self.ordered and len(self.run.keys[at]) == 1:
                order = [self.state[self.place[one]].first for one in self.run.keys[at][0] if one]
                if set(order) == set(self.first) and len(order) == len(self.first):
                    late = order if order != self.first else late
            elif joined and not self.ordered and layer == 0:
                order = self._by_centre(self.first)
                late = order if order != self.first else late
            self._attend(layer, at)
        self.reads = self._readout()
        if not self.ordered:
            self.better = late or self._by_rows()

    @property
    def patches(self) -> list[int]:
        """The origins of the first tokens that lie on the image."""
        on_image = (self.origins.box[self.first, 2] >= 0).tolist()
        return [one for one, here in zip(self.first, on_image, strict=True) if here]

    def _rows(self, at: int) -> list[list[int]]:
        """The tokens of a call that its map depends on: queries only where outputs join them."""
        return self.run.keys[at] + (self.run.queries[at] if self._joins(at) else [])

    def _joins(self, at: int) -> bool:
        """Whether the outputs of a call are added to its queries, not new tokens."""
        queries = [one for row in self.run.queries[at] for one in row if one]
        learned = bool(queries) and all(  # class tokens: nothing tells that they are added to
            self.origins.call[one] < 0 and self.origins.box[one, 2] < 0 for one in queries
        )
        return learned or bool(self.origins.residual[self._with_aliases(at)].any())

    def _by_rows(self) -> list[int] | None:
        """The first tokens with their patches row by row; None where they are, or have no grid."""
        patches = self.patches
        in_rows = self.in_rows(patches)
        if in_rows == patches or len(set(self.stream)) > 1:
            return None
        if not self.lie_on_a_grid(in_rows):
            return None
        following = iter(in_rows)
        among = set(patches)
        return [next(following) if one in among else one for one in self.first]

    def in_rows(self, patches: Sequence[int]) -> list[int]:
        """Sort origins of patches row by row."""
        in_rows = self._by_centre(patches)
        if not self.lie_on_a_grid(in_rows):
            about = rows_apart(self.origins.centre[list(patches)])
            in_rows = in_rows if about is None else [patches[at] for at in about[1]]
        return in_rows

    def lie_on_a_grid(self, patches: Sequence[int]) -> bool:
        """Whether patches lie in rows and columns, in their order."""
        box, centre = self.origins.box[patches, :4], self.origins.centre[patches]
        return grid_of(box, centre, [self.came[one] for one in patches])[0] is not None

    def _by_centre(self, origins: Sequence[int]) -> list[int]:
        """Sort origins by rounded centres; those of one centre stay in their order."""
        places = rounded(self.origins.centre[list(origins)])
        return [origins[at] for at in sorted(range(len(origins)), key=places.__getitem__)]

    def _join(self, layer: int, at: int, ids: Sequence[int]) -> bool:
        """Bring the tokens of a call into the state; return whether there were new first ones."""
        unknown = [one for one in ids if one not in self.place]
        if not unknown:
            return False
        if again := [one for one in unknown if one in self.was]:
            self._copy(layer, again)
            unknown = [one for one in unknown if one not in again]
        calls = self.origins.call[unknown].tolist()  # -1: through no attention call
        early = [one for one, call in zip(unknown, calls, strict=True) if call < self.begin]
        first = {*early, *self.first}
        oldest = min(first, default=0)
        sources = [
            one
            for one in early
            if self.origins.made_with(one) <= oldest or not self._made_of(one, first)
        ]
        if sources and self.links:
            self._widen(len(sources))
        self._add(sources)
        self.first += sources
        self.stream += [int(bool(self.links))] * len(sources)
        known: dict[int, dict[int, float]] = {}
        added = set(sources)
        unknown = [one for one in unknown if one not in added]
        if not (self.averages and layer == 0):
            self._refuse_mixtures(at, unknown[:2])
        groups = self._renamed(unknown, at, known)
        if groups:
            self._regroup(layer, at, groups, known)
        return bool(sources)

    def _refuse_mixtures(self, at: int, pair: Sequence[int]) -> None:
        """Refuse tokens of which two are each made of several, some of them the same.

        `_regroup` would come to this too, after the parts of all: long, behind many convolutions.
        """
        places = dict(self.place)
        places |= {out: places[one] for out, one in self.run.aliases.items() if one in places}
        ids = indices([*places])
        ends = torch.zeros(self.origins.count, dtype=torch.bool, device="cpu")
        ends[ids] = True
        of_each = []
        for one in pair:
            found = ids[self.origins.behind([one], ends=ends)[ids]].tolist()
            of_each.append({places[each] for each in found})
        if len(of_each) == 2 and min(map(len, of_each)) > 1 and of_each[0] & of_each[1]:
            raise self._mixtures(at, len(of_each[1]))

    def _mixtures(self, at: int, count: int) -> UnknownPathError:
        return UnknownPathError(
            f"the tokens of {self.run.name(at)} are mixtures of the tokens before it (the first of "
            f"{count}), by something other than a recorded attention from token to token: a "
            "convolution, a pool, linear or channel attention",
            mixed=at,
        )

    def _renamed(
        self, groups: Sequence[int], at: int, known: dict[int, dict[int, float]]
    ) -> list[int]:
        """Let tokens that are one token each, its heads joined, keep its place; list the others."""
        others, among = [], set(groups)
        for one in groups:
            (place, part), *more = self._parts(one, at, known).items()
            old = self.state[place]
            if more or part < 1 or old.origin in among or self.last_use.get(old.origin, -1) >= at:
                others.append(one)
                continue
            del self.place[old.origin]
            self.state[place] = Token(one, old.first)
            self.place[one] = place
        return others

    def _add(self, origins: Iterable[int]) -> None:
        for one in origins:
            self.place[one] = len(self.state)
            self.state.append(Token(one, one))

    def _copy(self, layer: int, again: Sequence[int]) -> None:
        """Tokens that a call has changed and another reads as they were: branches side by side.

        The other has copies, made before the first. What comes of both is one token again, to which
        each adds a half.
        """
        self.copied = True
        since = min(self.link_of[self.before[one]] for one in again)
        n = len(self.state)
        places = [self.was[one] for one in again]
        self._widen(len(again), since)
        made = torch.arange(n + len(again), device="cpu")
        of = torch.cat([made[:n], indices(places)])
        part = torch.ones(len(made), dtype=torch.float64, device="cpu")
        copied = Regroup(self.links[since].layer, n, made, of, part, copies=True)
        self.links.insert(since, copied)
        self.link_of = {at: link + (link >= since) for at, link in self.link_of.items()}
        self._add(again)
        for one in again:
            del self.was[one]

    def _made_of(self, origin: int, tokens: set[int]) -> bool:
        """Whether one of these tokens, another one, went into an origin before any attention."""
        pixels = 2 * self.size[0] * self.size[1]
        seen, stack = {origin}, [origin]
        while stack and len(seen) < FAR:
            members = self.origins.members(stack.pop())
            more = set(members[bisect_right(members, pixels) :])
            if not tokens.isdisjoint(more):
                return True
            stack += sorted(more - seen)
            seen |= more
        return False

    def _widen(self, more: int, since: int = 0) -> None:
        """Let tokens that come later wait, after those that came before, from a link on."""
        if any(isinstance(link, Attention) and link.new is not None for link in self.links[since:]):
            raise UnknownPathError("tokens join after others were pooled")
        self.links[since:] = [link.widened(more) for link in self.links[since:]]

    def _regroup(
        self, layer: int, at: int, groups: Sequence[int], known: dict[int, dict[int, float]]
    ) -> None:
        """Make new tokens of old ones between two calls; known: as of `_parts`."""
        kept = [
            place
            for place, token in enumerate(self.state)
            if self.last_use.get(token.origin, -1) >= at
        ]
        parts: dict[int, dict[int, float]] = {}
        times: dict[int, int] = {}  # that a token went into others
        for one in groups:
            parts[one] = self._parts(one, at, known)
            for place in parts[one]:
                times[place] = times.get(place, 0) + 1
                if times[place] > 1 and not (self.averages and layer == 0):
                    raise self._mixtures(at, len(parts[one]))
        made = self._by_centre(sorted(groups))
        pairs = [(new, old, 1.0) for new, old in enumerate(kept)]
        state = [self.state[old] for old in kept]
        for one in made:
            pairs += [(len(state), old, part) for old, part in parts[one].items()]
            state.append(Token(one, one))
        new, old, part = zip(*pairs, strict=True)
        shares = torch.tensor(part, dtype=torch.float64, device="cpu")
        self.links.append(
            Regroup(max(0, layer - 1), len(self.state), indices(new), indices(old), shares)
        )
        self.was = {}
        self.state = state
        self.place = {token.origin: place for place, token in enumerate(state)}

    def _parts(
        self, origin: int, at: int | None, known: dict[int, dict[int, float]]
    ) -> dict[int, float]:
        """The tokens of the state that an origin is made of, each with its part of the whole.

        known: those of origins that were asked for before.
        """
        if origin not in known:
            known[origin] = self._new_parts(origin, at, known)
        return known[origin]

    def _new_parts(
        self, origin: int, at: int | None, known: dict[int, dict[int, float]]
    ) -> dict[int, float]:
        origin = self.run.aliases.get(origin, origin)
        if origin in self.place:
            return {self.place[origin]: 1.0}
        reader = "the classifier" if at is None else self.run.name(at)
        if at is None and origin not in self.before:
            call = int(self.origins.call[origin])
            past = self.run.owner.get(origin, self.calls[0]) not in self.calls
            if past or call < self.calls[0]:
                self.bypassed |= call >= 0 or bool(self.origins.box[origin, 2] >= 0)
                return {}
            if operation := self.origins.operation.get(origin):
                self.read_by.add(operation)
        if origin in self.before or origin in self.run.owner:
            later = self.before.get(origin)
            what = "" if later is None else f", which {self.run.name(later)} has changed since"
            raise UnknownPathError(
                f"{reader} reads tokens as they were before{what}: branches side by side, or a "
                "connection that skips calls, whose maps have no single product",
                mixed=at,
            )
        members = self.origins.branches(origin)
        if not members:
            raise UnknownPathError(
                f"{reader} reads tokens mixed with something that went through no attention call "
                "before it",
                mixed=at,
            )
        of = [own for one in members if (own := self._parts(one, at, known))]
        parts: dict[int, float] = {}
        for own in of:
            for place, part in own.items():
                parts[place] = parts.get(place, 0) + part / len(of)
        return parts

    def _attend(self, layer: int, at: int) -> None:
        queries, keys, outputs = self.run.queries[at], self.run.keys[at], self.run.outputs[at]
        before = len(self.state)
        name = self.run.name(at)
        joins = self._joins(at)
        places = [[self.place.get(one, before) for one in row] for row in queries]
        of_keys = indices([[self.place[one] if one else before for one in row] for row in keys])
        patches: list[int] | None = None
        if len(keys) == 1:
            patches = (self.origins.box[keys[0], 2] >= 0).nonzero()[:, 0].tolist()
            patches = None if len(patches) == len(keys[0]) else patches
        flat = [one for row in outputs for one in row]
        for what, rows in (("keys", keys), ("queries", queries)):
            for row in rows:
                real = [one for one in row if one]
                if len(set(real)) == 1 < len(real) and what == "queries" and len(rows) > 1:
                    raise UnknownPathError(
                        f"one token alone gives the weights of {len(real)} queries of {name} "
                        "(outlook attention?), and which token each query is, is not known",
                        mixed=self._following(at),
                    )
                if len(set(real)) < len(real) and (joins or what == "keys"):
                    if mixer := self._operation_of(real):
                        raise UnknownPathError(
                            f"the {what} of {name} come of {mixer}, which mixes tokens or chooses "
                            "among them, and which of them is where is not known"
                        )
                    raise UnknownPathError(
                        f"the {what} of {name} are not one token each ({len(real)} of them, made "
                        f"of {len(set(real))}): linear attention, or attention over channels"
                    )
        link = Attention(
            layer, before, indices(places), of_keys, patches=patches,
            foreign=at in self.origins.foreign,
        )  # fmt: skip
        if joins:
            real = [place for row in places for place in row if place < before]
            if len(set(real)) != len(real):
                raise UnknownPathError(f"{name} has one token as a query in several windows")
            for row, made in zip(places, outputs, strict=True):
                for place, one in zip(row, made, strict=True):
                    if place < before:
                        old = self.state[place]
                        self.before[old.origin] = at
                        self.was[old.origin] = place
                        self.place.pop(old.origin)
                        self.place[one] = place
                        self.state[place] = Token(one, old.first)
            self.link_of[at] = len(self.links)
            self.links.append(link)
            every = [one for row in queries for one in row]
            again = zip(every, self.run.read_of[every].tolist(), strict=True)
            if read := [one for one, is_read in again if is_read and one in self.was]:
                self._copy(layer, read)  # the classifier reads them as they were, too
            return
        alive = [
            token
            for token in self.state
            if self._later(token.origin, at) or self.run.read_of[token.origin]
        ]
        start = before if alive else 0
        new = torch.arange(start, start + len(flat), device="cpu").view(len(outputs), -1)
        self.links.append(replace(link, new=new, kept=bool(alive)))
        if not alive:
            self.before |= {token.origin: at for token in self.state}
            self.state, self.place, self.was = [], {}, {}
        self._add(flat)

    def _operation_of(self, origins: Sequence[int]) -> str | None:
        """The operation that gave several tokens one origin, if it is known."""
        shared = [one for one, times in Counter(origins).items() if times > 1]
        stack, seen = list(shared), set(shared)
        while stack and len(seen) < FAR:
            one = stack.pop()
            if one in self.origins.operation:
                return self.origins.operation[one]
            more = [each for each in self.origins.members(one) if each not in seen]
            stack += more
            seen.update(more)
        return None

    def _with_aliases(self, at: int) -> Tensor:
        """All origins of a call's outputs, those of its other heads too."""
        return self.run.tracer.calls[at].outputs.flatten()

    def _following(self, at: int) -> int | None:
        """The call after this, if any, with which a chain may begin."""
        return next((one for one in self.calls if one > at), None)

    def _later(self, origin: int, at: int) -> bool:
        return self.last_use.get(origin, -1) > at

    def _readout(self) -> Tensor | None:
        """The share of each token of the state in the logits."""
        if self.run.read is None:
            return None
        known: dict[int, dict[int, float]] = {}
        of_classes = [self._parts(one, None, known) for one in self.run.read]
        reads = torch.zeros(len(self.state), dtype=torch.float64, device="cpu")
        for parts in of_classes:
            for place, part in parts.items():
                reads[place] += part / len(of_classes)
        if not reads.any():
            raise UnknownPathError("the classifier reads no token of the attention calls")
        return reads / reads.sum() if self.bypassed else reads

    def unite_streams(self) -> bool:
        """Let the patches of a later run lie where those of the first do (a flipped image, say).

        Returns whether there are any.
        """
        places = rounded(self.origins.centre[self.first])
        boxes = [
            (*box, *place)
            for box, place in zip(self.origins.box[self.first, :4].tolist(), places, strict=True)
        ]
        there = {
            box: at
            for at, (box, stream) in enumerate(zip(boxes, self.stream, strict=True))
            if stream == 0 and box[2] >= 0
        }
        kept: list[int] = []
        of: list[int] = []
        for at, (box, stream) in enumerate(zip(boxes, self.stream, strict=True)):
            if stream and box in there:
                of.append(there[box])
            else:
                of.append(len(kept))
                kept.append(at)
        if len(kept) == len(of):
            return False
        made = torch.arange(len(of), device="cpu")
        part = torch.ones(len(of), dtype=torch.float64, device="cpu")
        layer = self.links[0].layer
        self.links.insert(0, Regroup(layer, len(kept), made, indices(of), part))
        self.first = [self.first[at] for at in kept]
        return True
