"""Walk through a run's attention calls in their order, and write a link for each.

A map is a row of shares that is carried back through links, so each link must say which of the
tokens ahead of a call its queries and keys are, and which tokens there are after it. The trace has
given every value an origin; a walk keeps a state, the tokens that live between two calls, each by
its origin, and takes each call in two steps. The first lets every origin that the call reads join
the state. It is a token already; or no token went into it, so that it is a source, such as a patch
or a class token, which waits beside the links that are written; or an earlier call has replaced it,
so that the two calls lie side by side, and the state ahead of the earlier one gets a copy of it; or
it is made of tokens, whose parts become a `Regroup`. The second step writes the call as an
`Attention`. Its outputs take the places of the queries that they are added to, or are new tokens.
At last the logits are taken apart in the same way: the parts are the row that a map starts from.
What fits no rule raises `UnknownPathError`, so no map is a guess. A state is a value: each step
makes a new one of it, and walks with other calls or another order of the sources share nothing.

Axes: n tokens, i queries, j keys.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

import torch
from torch import Tensor

from vision_attn.tokens.path.chain import Attention, Regroup
from vision_attn.tokens.path.places import rounded
from vision_attn.tokens.path.route import Route
from vision_attn.tokens.path.traced import UnknownPathError
from vision_attn.tokens.trace.origins import NOTHING, Origins, indices

__all__ = ["State", "Walk", "order_at_first", "walk_calls"]

FAR = 50  # origins that are looked through for tokens that went into others

Parts = dict[int, float]  # tokens of a state by their index, each with its part of the whole


@dataclass(frozen=True)
class State:
    """The tokens between two calls, and what the walk has written so far.

    Attributes:
        origins: The origin of each token.
        roots: The origin of the token with which the place of each began.
        index: The index of each origin among the tokens.
        sources: The origins of the tokens ahead of the first link.
        streams: Of each of them 0, or 1 if it joined after a link was written.
        replaced_by: The call that has replaced an origin.
        former_index: The index that it had, as long as the indices of tokens do not change.
        link_of: The index of a call's link.
        copied: Whether calls lie side by side.

    Examples:
        >>> from vision_attn.tokens.path.walk import State
        >>> State.of([5, 3]).index
        {5: 0, 3: 1}
    """

    origins: Sequence[int]
    roots: Sequence[int]
    index: Mapping[int, int]
    sources: list[int]
    streams: list[int]
    links: Sequence[Attention | Regroup] = ()
    replaced_by: Mapping[int, int] = field(default_factory=dict)
    former_index: Mapping[int, int] = field(default_factory=dict)
    link_of: Mapping[int, int] = field(default_factory=dict)
    copied: bool = False

    @classmethod
    def of(cls, origins: Sequence[int]) -> "State":
        """Begin with these sources."""
        return cls([], [], {}, list(origins), [0] * len(origins)).appended(origins)

    def appended(self, more: Sequence[int]) -> "State":
        """Let tokens of these origins follow the others."""
        origins = [*self.origins, *more]
        roots = [*self.roots, *more]
        return replace(self, origins=origins, roots=roots, index=index_of(origins))


@dataclass(frozen=True)
class Walk:
    """The result of a walk: links, and the tokens ahead of them and after them.

    Attributes:
        sources: The origins of the tokens ahead of the first link.
        tokens: How many come out of the last.
        reads: The share of each of these in the logits; None: not known.
        read_by: Operations by which the classifier reads tokens.
        bypassed: Whether it reads what went through no call of the walk.
        copied: Whether calls lie side by side.
        row_major: An order of the sources in which their patches lie row by row, or as a call takes
            them; None: they are in it, or there is none.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.traced import follow
        >>> from vision_attn.tokens.path.route import Route
        >>> from vision_attn.tokens.path.walk import walk_calls
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> run = follow(network, torch.rand(1, 3, 16, 16))
        >>> run.read_steps()
        >>> walk = walk_calls(Route.of(run, (16, 16), sorted(run.used)))
        >>> len(walk.links), walk.reads.tolist()
        (2, [1.0, 0.0, 0.0, 0.0, 0.0])
    """

    route: Route
    links: Sequence[Attention | Regroup]
    sources: list[int]
    streams: list[int]
    tokens: int
    reads: Tensor | None
    read_by: frozenset[str]
    bypassed: bool
    copied: bool
    row_major: Sequence[int] | None

    @property
    def patches(self) -> list[int]:
        """The sources that lie on the image."""
        return self.route.patches_among(self.sources)

    @property
    def ranks(self) -> list[int]:
        """The rank of each source in the order in which the calls name the origins."""
        return [self.route.rank[origin] for origin in self.sources]

    def with_united_streams(self) -> "Walk | None":
        """Let the patches of a later run lie where those of the first do (a flipped image, say).

        None where there are none.
        """
        if not any(self.streams):
            return None
        origins, sources = self.route.origins, list(self.sources)
        centres = rounded(origins.centres(sources))
        boxes = origins.box[sources, :4].tolist()
        spots = [(*box, *centre) for box, centre in zip(boxes, centres, strict=True)]
        streams = list(zip(spots, self.streams, strict=True))
        index = {
            spot: source
            for source, (spot, stream) in enumerate(streams)
            if not stream and spot[2] >= 0
        }
        distinct: list[int] = []
        united: list[int] = []  # for each source, the one that it is one token with
        for source, (spot, stream) in enumerate(streams):
            if stream and spot in index:
                united.append(index[spot])
            else:
                united.append(len(distinct))
                distinct.append(source)
        if len(distinct) == len(sources):
            return None
        link = Regroup(
            self.links[0].layer, len(distinct), torch.arange(len(united), device="cpu"),
            indices(united), ones(len(united)),
        )  # fmt: skip
        return replace(
            self,
            links=[link, *self.links],
            sources=[sources[source] for source in distinct],
            streams=[self.streams[source] for source in distinct],
        )


def walk_calls(route: Route) -> Walk:
    """Write a link for each call of a route.

    Raises UnknownPathError where tokens mix in no known way.
    """
    state = State.of(route.sources or ())
    order: Sequence[int] | None = None
    for layer, call in enumerate(route.calls):
        joined = join_tokens(route, state, layer, call)
        grown = len(joined.sources) > len(state.sources)
        if route.sources is None:
            order = order_by_call(route, joined, layer, call, grown, order)
        state = take_call(route, joined, layer, call)
    reads, read_by, bypassed = read_logits(route, state)
    if route.sources is None:
        order = order or order_by_rows(route, state)
    return Walk(
        route, state.links, state.sources, state.streams, len(state.origins), reads, read_by,
        bypassed, state.copied, order,
    )  # fmt: skip


def order_at_first(route: Route) -> Sequence[int] | None:
    """Find the order of the sources that a whole walk finds, if all join at the first call.

    None: they are in it, or there is none. What later calls tell is left out.
    """
    state = join_tokens(route, State.of(()), 0, route.calls[0])
    order = order_by_call(route, state, 0, route.calls[0], bool(state.sources), None)
    return order or order_by_rows(route, state)


# The tokens of a call join the state.


def join_tokens(route: Route, state: State, layer: int, call: int) -> State:
    """Let all origins that a call reads be tokens of the state."""
    unknown = [origin for origin in route.read[call] if origin not in state.index]
    if not unknown:
        return state
    replaced = [origin for origin in unknown if origin in state.former_index]
    if replaced:
        state = copy_tokens(state, layer, replaced)
        unknown = [origin for origin in unknown if origin not in state.index]
    sources = sources_among(route, state, unknown)
    state = add_sources(state, sources)
    unknown = [origin for origin in unknown if origin not in state.index]
    if not route.mixes(layer):
        refuse_shared_parts(route, state, call, unknown[:2])
    parts_by_origin: dict[int, Parts] = {}
    state, composed = rename_tokens(route, state, call, unknown, parts_by_origin)
    if not composed:
        return state
    return regroup_tokens(route, state, layer, call, composed, parts_by_origin)


def sources_among(route: Route, state: State, unknown: Sequence[int]) -> list[int]:
    """List the origins into which no token has gone, nor a call of the walk."""
    calls = route.origins.call[indices(unknown)].tolist()  # -1: through no attention call
    early = [origin for origin, call in zip(unknown, calls, strict=True) if call < route.begin]
    roots = {*early, *state.sources}
    oldest = min(roots, default=0)
    return [
        origin
        for origin in early
        if route.origins.made_with(origin) <= oldest or not holds_one_of(route, origin, roots)
    ]


def holds_one_of(route: Route, origin: int, roots: set[int]) -> bool:
    """Whether one of these tokens, another one, went into an origin ahead of any attention."""
    pixels = 2 * route.size[0] * route.size[1]
    seen, stack = {origin}, [origin]
    while stack and len(seen) < FAR:
        members = route.origins.members(stack.pop())
        more = set(members[bisect_right(members, pixels) :])
        if not roots.isdisjoint(more):
            return True
        stack += sorted(more - seen)
        seen |= more
    return False


def add_sources(state: State, sources: Sequence[int]) -> State:
    """Let sources join: in the links that are written they wait, after the other tokens."""
    stream = int(bool(state.links))
    links = widened(state.links, len(sources)) if sources else state.links
    return replace(
        state.appended(sources),
        links=links,
        sources=[*state.sources, *sources],
        streams=[*state.streams, *[stream] * len(sources)],
    )


def widened(links: Sequence[Attention | Regroup], more: int) -> list[Attention | Regroup]:
    """Let `more` tokens pass links unchanged, after the others."""
    if any(isinstance(link, Attention) and link.new is not None for link in links):
        raise UnknownPathError("tokens join after others were pooled")
    return [link.widened(more) for link in links]


def copy_tokens(state: State, layer: int, replaced: Sequence[int]) -> State:
    """Copy tokens that a call has replaced and another reads as they were: calls side by side.

    The other has copies, made ahead of the first. What comes of both is one token again, to which
    each adds a half.
    """
    since = min(state.link_of[state.replaced_by[origin]] for origin in replaced)
    count = len(state.origins)
    outputs = torch.arange(count + len(replaced), device="cpu")
    copied = indices([state.former_index[origin] for origin in replaced])
    link = Regroup(
        state.links[since].layer, count, outputs, torch.cat([outputs[:count], copied]),
        ones(len(outputs)), copies=True,
    )  # fmt: skip
    return replace(
        state.appended(replaced),
        links=[*state.links[:since], link, *widened(state.links[since:], len(replaced))],
        link_of={call: position + (position >= since) for call, position in state.link_of.items()},
        former_index=without(state.former_index, replaced),
        copied=True,
    )


def refuse_shared_parts(route: Route, state: State, call: int, pair: Sequence[int]) -> None:
    """Refuse origins of which two are each made of several tokens, some of them the same.

    `regroup_tokens` would come to this too, after the parts of all: long, behind many convolutions.
    """
    index = {**state.index}
    index |= {out: index[head] for out, head in route.run.aliases.items() if head in index}
    ids = indices([*index])
    ends = torch.zeros(route.origins.count, dtype=torch.bool, device="cpu")
    ends[ids] = True
    tokens = []
    for origin in pair:
        behind = ids[route.origins.behind([origin], ends=ends)[ids]].tolist()
        tokens.append({index[each] for each in behind})
    if len(tokens) == 2 and min(map(len, tokens)) > 1 and tokens[0] & tokens[1]:
        raise mixtures(route, call, len(tokens[1]))


def mixtures(route: Route, call: int, count: int) -> UnknownPathError:
    return UnknownPathError(
        f"the tokens of {route.run.name(call)} are mixtures of the tokens before it (the first of "
        f"{count}), by something other than a recorded attention from token to token: a "
        "convolution, a pool, linear or channel attention",
        mixed=call,
    )


def rename_tokens(
    route: Route,
    state: State,
    call: int,
    composed: Sequence[int],
    parts_by_origin: dict[int, Parts],
) -> tuple[State, list[int]]:
    """Let origins that are one token each, its heads joined, keep its place; list the others."""
    others, wanted = [], set(composed)
    route.origins.list_members(wanted)
    origins, index = list(state.origins), dict(state.index)
    renamed = replace(state, origins=origins, index=index)
    for origin in composed:
        (position, part), *more = parts_of(route, renamed, origin, call, parts_by_origin).items()
        token = origins[position]
        gone = token not in wanted and not route.lives_until(token, call)
        if more or part < 1 or not gone:
            others.append(origin)
            continue
        del index[token]
        index[origin], origins[position] = position, origin
    return renamed, others


def regroup_tokens(
    route: Route,
    state: State,
    layer: int,
    call: int,
    composed: Sequence[int],
    parts_by_origin: dict[int, Parts],
) -> State:
    """Make tokens of others between two calls; those that are read again wait ahead of them."""
    waiting = [
        position for position, origin in enumerate(state.origins) if route.lives_until(origin, call)
    ]
    uses: Counter[int] = Counter()
    for origin in composed:
        parts = parts_of(route, state, origin, call, parts_by_origin)
        uses.update(parts.keys())
        if not route.mixes(layer) and any(uses[position] > 1 for position in parts):
            raise mixtures(route, call, len(parts))
    new_origins = route.by_centre(sorted(composed))
    pairs = [(new, position, 1.0) for new, position in enumerate(waiting)]
    for new, origin in enumerate(new_origins, start=len(waiting)):
        pairs += [(new, position, part) for position, part in parts_by_origin[origin].items()]
    after, ahead, shares = zip(*pairs, strict=True)
    part = torch.tensor(shares, dtype=torch.float64, device="cpu")
    link = Regroup(max(0, layer - 1), len(state.origins), indices(after), indices(ahead), part)
    origins = [*(state.origins[position] for position in waiting), *new_origins]
    roots = [*(state.roots[position] for position in waiting), *new_origins]
    return replace(
        state, origins=origins, roots=roots, index=index_of(origins), links=[*state.links, link],
        former_index={},
    )  # fmt: skip


def parts_of(
    route: Route, state: State, origin: int, call: int | None, parts_by_origin: dict[int, Parts]
) -> Parts:
    """Find the tokens that an origin is made of, for a call or the classifier (None).

    parts_by_origin: those that were found earlier; this origin's are added. Raises
    UnknownPathError for what is not made of tokens alone.
    """
    if origin not in parts_by_origin:
        parts_by_origin[origin] = composition_of(route, state, origin, call, parts_by_origin)
    return parts_by_origin[origin]


def composition_of(
    route: Route, state: State, origin: int, call: int | None, parts_by_origin: dict[int, Parts]
) -> Parts:
    """Find the tokens of an origin that `parts_of` has not met yet."""
    origin = route.run.aliases.get(origin, origin)
    if origin in state.index:
        return {state.index[origin]: 1.0}
    if call is None and passes_by(route, state, origin):
        return {}
    if origin in state.replaced_by or origin in route.run.owner:
        changer = state.replaced_by.get(origin)
        since = "" if changer is None else f", which {route.run.name(changer)} has changed since"
        raise UnknownPathError(
            f"{reader_of(route, call)} reads tokens as they were before{since}: branches side by "
            "side, or a connection that skips calls, whose maps have no single product",
            mixed=call,
        )
    members = route.origins.branches(origin)
    if not members:
        raise UnknownPathError(
            f"{reader_of(route, call)} reads tokens mixed with something that went through no "
            "attention call before it",
            mixed=call,
        )
    of_members = [parts_of(route, state, member, call, parts_by_origin) for member in members]
    of_members = [parts for parts in of_members if parts]
    if len(of_members) == 1:
        return of_members[0]
    total: Parts = {}
    for parts in of_members:
        for position, part in parts.items():
            total[position] = total.get(position, 0) + part / len(of_members)
    return total


def reader_of(route: Route, call: int | None) -> str:
    return "the classifier" if call is None else route.run.name(call)


# A call is taken.


def take_call(route: Route, state: State, layer: int, call: int) -> State:
    """Write the link of a call whose tokens have joined, and the tokens after it."""
    run, count = route.run, len(state.origins)
    queries, keys = run.queries[call], run.keys[call]
    refuse_repeats(route, call)
    patches: list[int] | None = None
    if len(keys) == 1:
        patches = (route.origins.box[keys[0], 2] >= 0).nonzero()[:, 0].tolist()
        patches = None if len(patches) == len(keys[0]) else patches
    index = {**state.index, NOTHING: count}
    of_keys = indices([list(map(index.__getitem__, row)) for row in keys])
    of_queries = of_keys
    if queries != keys:
        of_queries = indices([list(map(index.get, row, repeat(count))) for row in queries])
    link = Attention(
        layer, count, of_queries, of_keys, patches=patches, foreign=call in route.origins.foreign
    )
    if call not in route.joining:
        return add_outputs(route, state, call, link)
    state = replace_queries(route, state, call, link)
    origins = indices(queries).flatten()
    read = origins[run.read_of[origins]].tolist()
    again = [origin for origin in read if origin in state.former_index]
    return copy_tokens(state, layer, again) if again else state  # the classifier reads both


def refuse_repeats(route: Route, call: int) -> None:
    """Refuse a call whose keys or queries are several times one token."""
    run, name = route.run, route.run.name(call)
    for kind, rows in (("keys", run.keys[call]), ("queries", run.queries[call])):
        for row in rows:
            distinct = len({*row} - {NOTHING})
            if distinct == len(row):
                continue
            origins = [origin for origin in row if origin]
            if distinct == 1 < len(origins) and kind == "queries" and len(rows) > 1:
                raise UnknownPathError(
                    f"one token alone gives the weights of {len(origins)} queries of {name} "
                    "(outlook attention?), and which token each query is, is not known",
                    mixed=next((other for other in route.calls if other > call), None),
                )
            if distinct == len(origins) or (kind == "queries" and call not in route.joining):
                continue
            if mixer := operation_behind(route.origins, origins):
                raise UnknownPathError(
                    f"the {kind} of {name} come of {mixer}, which mixes tokens or chooses "
                    "among them, and which of them is where is not known"
                )
            raise UnknownPathError(
                f"the {kind} of {name} are not one token each ({len(origins)} of them, made "
                f"of {distinct}): linear attention, or attention over channels"
            )


def operation_behind(origins: Origins, ids: Sequence[int]) -> str | None:
    """Name the operation that gave several tokens one origin, if it is known."""
    stack = [origin for origin, times in Counter(ids).items() if times > 1]
    seen = set(stack)
    while stack and len(seen) < FAR:
        origin = stack.pop()
        if origin in origins.operation:
            return origins.operation[origin]
        more = [member for member in origins.members(origin) if member not in seen]
        stack += more
        seen.update(more)
    return None


def replace_queries(route: Route, state: State, call: int, link: Attention) -> State:
    """Let the outputs of a call be the tokens that its queries were."""
    positions = link.queries.flatten().tolist()
    outputs = chain.from_iterable(route.run.outputs[call])
    joined = dict(zip(positions, outputs, strict=True))
    joined.pop(link.before, None)  # padding
    if len(joined) != len(positions) - positions.count(link.before):
        raise UnknownPathError(
            f"{route.run.name(call)} has one token as a query in several windows"
        )
    origins = list(state.origins)
    for position, output in joined.items():
        origins[position] = output
    changed = {state.origins[position]: position for position in joined}
    return replace(
        state,
        origins=origins,
        index=index_of(origins),
        links=[*state.links, link],
        replaced_by={**state.replaced_by, **dict.fromkeys(changed, call)},
        former_index={**state.former_index, **changed},
        link_of={**state.link_of, call: len(state.links)},
    )


def add_outputs(route: Route, state: State, call: int, link: Attention) -> State:
    """Let the outputs of a call be new tokens; the others live on if something reads them."""
    outputs = route.run.outputs[call]
    alive = any(
        route.lives_until(origin, call + 1) or route.run.read_of[origin] for origin in state.origins
    )
    flat = [origin for row in outputs for origin in row]
    start = link.before if alive else 0
    new = torch.arange(start, start + len(flat), device="cpu").view(len(outputs), -1)
    links = [*state.links, replace(link, new=new, kept=alive)]
    if not alive:
        replaced = dict.fromkeys(state.origins, call)
        state = replace(
            state, origins=[], roots=[], index={}, former_index={},
            replaced_by={**state.replaced_by, **replaced},
        )  # fmt: skip
    return replace(state.appended(flat), links=links)


# The logits are taken apart.


def read_logits(route: Route, state: State) -> tuple[Tensor | None, frozenset[str], bool]:
    """Find the share of each token in the logits, the operations that read them, and a bypass.

    The bypass: whether the logits are also made of what went through no call of the walk.
    """
    run, origins = route.run, route.origins
    if run.read is None:
        return None, frozenset(), False
    parts_by_origin: dict[int, Parts] = {}
    of_logits = [parts_of(route, state, origin, None, parts_by_origin) for origin in run.read]
    reads = torch.zeros(len(state.origins), dtype=torch.float64, device="cpu")
    for parts in of_logits:
        for position, part in parts.items():
            reads[position] += part / len(of_logits)
    if not reads.any():
        raise UnknownPathError("the classifier reads no token of the attention calls")
    composed = {run.aliases.get(origin, origin) for origin in parts_by_origin} - state.index.keys()
    bypassing = {origin for origin in composed if passes_by(route, state, origin)}
    bypassed = any(
        origins.call[origin] >= 0 or bool(origins.box[origin, 2] >= 0) for origin in bypassing
    )
    operations = (origins.operation.get(origin) for origin in composed - bypassing)
    read_by = frozenset(operation for operation in operations if operation)
    return (reads / reads.sum() if bypassed else reads), read_by, bypassed


def passes_by(route: Route, state: State, origin: int) -> bool:
    """Whether what the classifier reads went through no call of the walk."""
    if origin in state.replaced_by:
        return False
    start = route.calls[0]
    return (
        route.run.owner.get(origin, start) not in route.calls
        or int(route.origins.call[origin]) < start
    )


# The sources are put in order.


def order_by_call(
    route: Route,
    state: State,
    layer: int,
    call: int,
    grown: bool,
    order: Sequence[int] | None,
) -> Sequence[int] | None:
    """Find an order of the sources, other than theirs, as a call among all tokens takes them.

    grown: whether sources have joined for this call. order: what earlier calls told.
    """
    sources = list(state.sources)
    if len(set(state.streams)) > 1 and any(
        stream and route.origins.box[origin, 2] >= 0
        for origin, stream in zip(sources, state.streams, strict=True)
    ):
        return None  # patches of several runs
    if not grown:
        return order
    keys = route.run.keys[call]
    as_taken = route.by_centre(sources)
    if len(keys) == 1:
        as_taken = [state.roots[state.index[origin]] for origin in keys[0] if origin]
        if sorted(as_taken) != sorted(sources):
            return order
    elif layer > 0:
        return order
    return as_taken if as_taken != sources else order


def order_by_rows(route: Route, state: State) -> list[int] | None:
    """Order the sources so that patches lie row by row; None: they do so, or have no grid."""
    patches = route.patches_among(state.sources)
    rows = route.in_rows(patches)
    if rows == patches or len(set(state.streams)) > 1 or not route.lie_on_a_grid(rows):
        return None
    following, among = iter(rows), set(patches)
    return [next(following) if origin in among else origin for origin in state.sources]


def index_of(origins: Sequence[int]) -> dict[int, int]:
    """Map the origin of each token to its index."""
    return dict(zip(origins, range(len(origins)), strict=True))


def without(numbers: Mapping[int, int], keys: Sequence[int]) -> dict[int, int]:
    """Leave keys out of a mapping."""
    left_out = set(keys)
    return {key: number for key, number in numbers.items() if key not in left_out}


def ones(count: int) -> Tensor:
    """Parts of 1 for tokens that pass whole."""
    return torch.ones(count, dtype=torch.float64, device="cpu")
