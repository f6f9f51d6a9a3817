"""The path of a network's tokens, proven by a run: which call attends over what, to the logits.

A run on two copies of one image is followed value by value (`recording/origins.py`). What comes out
says which tokens each attention call's queries and keys are, where windows and merged patches lie,
what the classifier reads, and where each token lies on the image; names of modules and layers play
no part. It is done once for a network and a size of image, and remembered.

Axes: b images, n tokens, i queries, j keys, lead images times windows or heads.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vision_attn.explain.base import in_eval_mode
from vision_attn.explain.contrast import Contrast
from vision_attn.explain.networks.layout import layout_of
from vision_attn.explain.networks.modules import attends, modules_of
from vision_attn.explain.propagation.chain import Attention, Chain, Link, Regroup
from vision_attn.explain.recording.calls import AttentionCall
from vision_attn.explain.recording.origins import Origins, Tracer
from vision_attn.explain.recording.recorder import Recorder, RecordError
from vision_attn.types import Images, Pool, TokenLayout

__all__ = ["Path", "Step", "find_path", "found_layout"]


class UnknownPathError(ValueError):
    """No map can be carried along the path, for this reason."""


@dataclass(frozen=True)
class Step:
    """One attention call of a path: its place in the record, and how its batch is made up.

    heads: how many of the batch are heads of one image; windows: how many are windows of it.
    images_first: whether those of one image follow each other. used: whether its output reaches
    the network's.

    Examples:
        >>> from vision_attn.explain.propagation.path import Step
        >>> Step("blocks.0.attn", (2, 3, 5, 5)).windows
        1
    """

    module: str
    shape: tuple[int, int, int, int]
    heads: int = 1
    windows: int = 1
    images_first: bool = True
    used: bool = True


@dataclass(frozen=True)
class Path:
    """How tokens go through a network; printed, a table.

    steps: the attention calls of a run in their order. chain: how a map is carried back through
    those that count, from what the classifier reads to the first tokens; None where it cannot be,
    and `refusal` says why. layout: how the first tokens lie on the image; None: not known.

    Examples:
        >>> import torch
        >>> from vision_attn.explain.propagation.path import find_path
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> print(find_path(network, torch.rand(1, 3, 16, 16)))
        5 tokens: 1 beside the image, 2x2 patches of 8x8 pixels
          call  module                heads  queries  keys
             0  blocks.0.attn.attend      3        5     5
             1  blocks.1.attn.attend      3        5     5
        the logits read: the class token
    """

    steps: Sequence[Step]
    chain: Chain | None
    layout: TokenLayout | None
    refusal: str | None
    patch: tuple[int, int] | None = None

    def __str__(self) -> str:
        lines = [self._tokens()]
        width = max([6, *(len(step.module) for step in self.steps)])
        if self.steps:
            lines.append(f"  call  {'module':{width}}  heads  queries  keys")
        notes = self._notes()
        for at, step in enumerate(self.steps):
            _, heads, queries, keys = step.shape
            line = (
                f"{at:>6}  {step.module:{width}}  {heads * step.heads:>5}  {queries:>7}  {keys:>4}"
            )
            lines.append(f"{line}  {notes[at]}".rstrip())
        lines.append(f"no map: {self.refusal}" if self.refusal else self._read())
        return "\n".join(lines)

    def _tokens(self) -> str:
        if self.layout is None:
            return "where the tokens lie on the image is not known"
        beside, (h, w) = len(self.layout.beside), self.layout.grid
        of = f" of {self.patch[0]}x{self.patch[1]} pixels" if self.patch else ""
        return f"{self.layout.tokens} tokens: {beside} beside the image, {h}x{w} patches{of}"

    def _notes(self) -> list[str]:
        notes = [f"in {step.windows} windows" if step.windows > 1 else "" for step in self.steps]
        counted = [at for at, step in enumerate(self.steps) if step.used]
        for link in self.chain.links if self.chain else ():
            at = counted[link.layer]
            if isinstance(link, Regroup):
                after = int(link.made.max()) + 1
                notes[at] += f"{', ' if notes[at] else ''}from {link.before} tokens to {after}"
            elif isinstance(link, Attention) and link.new is not None:
                new = "its queries are new tokens"
                notes[at] = f"{notes[at]}, {new}" if notes[at] else new
        for at, step in enumerate(self.steps):
            if not step.used:
                notes[at] = "left out: its output does not reach the network's"
        return notes

    def _read(self) -> str:
        if self.chain is None or self.chain.reads is None:
            return "what is read of the last tokens is not known: the layout's pool says"
        pool = self.chain.layout.pool
        words = {
            "cls": "the class token",
            "cls_dist": "class and distillation token, alike",
            "cls_mean": "the class token, and the mean of the patches, alike",
            "mean": "the mean of the patches",
            "attention": "the attention pool",
        }
        named = torch.zeros(self.chain.tokens)
        seed = replace(self.chain, reads=None).seed(1, named.device, named.dtype)[0, 0]
        if torch.allclose(seed, self.chain.reads.float(), atol=1e-6):
            return f"the logits read: {words[pool]}"
        count = int((self.chain.reads > 0).sum())
        return f"the logits read: {count} of the last {self.chain.tokens} tokens"

    def chain_for(
        self, calls: Sequence[AttentionCall], layout: TokenLayout | None, images: int
    ) -> Chain:
        """Make the chain of a run's calls that count; `layout` None takes the one found.

        A layout that is given says what the classifier reads. Raises ValueError where no map can
        be carried along this path, or the layout does not fit it.
        """
        if self.refusal or self.chain is None:
            raise ValueError(self.refusal)
        chain = self.chain
        first = chain.links[0].before
        if layout is not None:
            if layout.tokens != first:
                call = calls[0]
                raise ValueError(
                    f"attention call 0 ({call.module}) is {call.queries} x {call.keys}, but "
                    f"{layout.tokens} tokens reach it ({len(layout.beside)} beside the image + a "
                    f"grid of {layout.grid[0]}x{layout.grid[1]}) by the layout, and {first} by the "
                    "network's run: give layout= of so many tokens"
                )
            pooled = any(isinstance(link, Attention) and link.new is not None
                for link in chain.links)  # fmt: skip
            if layout.pool == "attention" and not pooled:
                raise ValueError(
                    "the layout says that an attention pool reads the tokens, but no attention "
                    "call has queries that are no tokens: give another layout="
                )
            chain = replace(chain, layout=layout, reads=None)
        elif self.layout is None:
            raise ValueError(
                f"how its {first} tokens lie on the image is not known: give "
                "layout=TokenLayout(prefix=class and register tokens, grid=(rows, columns), "
                "pool=..., class_token=whether the first is one)"
            )
        links = [
            replace(link, call=calls[link.layer]) if isinstance(link, Attention) else link
            for link in chain.links
        ]
        return replace(chain, links=links)

    def counted(self, of_calls: Sequence[Any], images: int, network: nn.Module) -> list[Any]:
        """Of what there is one for each call of a run, take those of the calls that count.

        Calls, or tensors with their batch; heads that were counted as batch become heads.
        """
        if len(of_calls) != len(self.steps):
            raise ValueError(
                f"{type(network).__name__} made {len(of_calls)} attention calls, and "
                f"{len(self.steps)} for another image of this size: its path changes with the image"
            )
        both = zip(self.steps, of_calls, strict=True)
        return [arranged(one, step, images) for step, one in both if step.used]


def arranged(one: Any, step: Step, images: int) -> Any:
    """Put heads that were counted as batch where heads are."""
    if step.heads == 1:
        return one

    def move(x: Tensor) -> Tensor:
        if x.ndim < 3 or len(x) != images * step.heads:
            return x
        x = x if x.ndim == 4 else x.unsqueeze(1)
        sizes = (images, step.heads) if step.images_first else (step.heads, images)
        x = x.unflatten(0, sizes)
        return (x if step.images_first else x.transpose(0, 1)).flatten(1, 2)

    if isinstance(one, Tensor):
        return move(one)
    values = {name: value for name, value in vars(one).items() if isinstance(value, Tensor)}
    return replace(one, **{name: move(value) for name, value in values.items()})


_PATHS: WeakKeyDictionary[nn.Module, dict[Any, Path]] = WeakKeyDictionary()


def find_path(network: nn.Module, images: Images) -> Path:
    """Find the path of the tokens of images of this size, by one run of the first image.

    It is remembered for the network as it is; a network whose modules or their plain attributes
    have changed is run again.
    """
    if isinstance(network, Contrast):  # a new one for each pair of classes
        network = network.network
    key = (tuple(images.shape[1:]), images.dtype, images.device, state_of(network))
    known = _PATHS.setdefault(network, {})
    if key not in known:
        known[key] = run_path(network, images)
    return known[key]


def found_layout(network: nn.Module, images: Images, tokens: int | None = None) -> TokenLayout:
    """Find how the tokens of images of this size lie on them: as the network's kind says, or a run.

    tokens: how many there are, where that is known. Raises ValueError where nothing tells.
    """
    layout = find_path(network, images).layout
    if layout is None or tokens not in (None, layout.tokens):
        layout = layout_of(network, (images.shape[2], images.shape[3]))
    return layout


def state_of(network: nn.Module) -> int:
    """Hash the modules of a network and their plain attributes."""
    plain = (bool, int, float, str, type(None))
    return hash(
        tuple(
            (id(module), name, str(value))
            for module in modules_of(network)
            for name, value in vars(module).items()
            if isinstance(value, plain) and name not in PASSING
        )
    )


def run_path(network: nn.Module, images: Images) -> Path:
    """Find a path by a run, of which nothing is remembered."""
    tracer = Tracer()
    with torch.inference_mode(False), torch.no_grad(), in_eval_mode(network):
        image = images[:1].clone()
        try:
            if not any(attends(module) for module in modules_of(network)):
                alone = Recorder(frozenset())  # to follow convolutions in vain takes long
                with alone.watching(network):
                    network(image)
                if not alone.record.calls:
                    return Path([], None, None, NO_ATTENTION)
            recorder = Recorder(frozenset(), None, tracer)
            two = tracer.image(image.repeat(2, 1, 1, 1))
            with recorder.watching(network), tracer:
                out = network(two)
        except RecordError as error:
            return Path([], None, None, str(error))
    size = (images.shape[2], images.shape[3])
    return Derivation(network, tracer, recorder.record.calls, out, size).path()


class Token(NamedTuple):
    """A token in the state between two calls: its origin now, and that of the token it was."""

    origin: int
    first: int


class Derivation:
    """The path from what was traced."""

    def __init__(
        self,
        network: nn.Module,
        tracer: Tracer,
        calls: Sequence[AttentionCall],
        out: Any,
        size: tuple[int, int],
    ):
        self.network, self.tracer, self.calls, self.size = network, tracer, calls, size
        self.origins: Origins = tracer.origins
        self.owner: dict[int, int] = {}
        for at, call in tracer.calls.items():
            if at < len(calls):
                self.owner |= dict.fromkeys(call.outputs.flatten().tolist(), at)
        for one in self.origins.residual.nonzero()[:, 0].tolist():
            self.origins.residual[self.origins.members(one)] = True  # of branches side by side
        logits = getattr(out, "logits", out)
        self.read: list[int] | None = None
        results = [x for x in everything(out) if isinstance(x, Tensor)]
        if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == 2:
            self.read = self._distinct(tracer.origins_of(logits)[0])
            results = [logits]
        reached = [self._distinct(tracer.origins_of(x)) for x in results]
        self.used, self.reaching = self._reached({one for ids in reached for one in ids})
        self.steps: list[Step] = []
        self.aliases: dict[int, int] = {}  # outputs of a head in the batch: those of the first
        self.queries: dict[int, list[list[int]]] = {}
        self.keys: dict[int, list[list[int]]] = {}
        self.outputs: dict[int, list[list[int]]] = {}

    def path(self) -> Path:
        refusal = None
        chain: Chain | None = None
        layout: TokenLayout | None = None
        patch = None
        try:
            if not self.calls:
                raise UnknownPathError(NO_ATTENTION)
            for at in range(len(self.calls)):
                self.steps.append(self._step(at))
            if not self.used:
                raise UnknownPathError("the logits depend on no attention call")
            initial = self._walk(None)
            initial = self._walk(initial) if initial else None
            self._unite_streams()
            layout, patch = self._layout()
            reads = self.reads
            links = self.links
            chain = Chain(links, layout or UNPLACED, len(self.state), reads)
        except UnknownPathError as error:
            refusal = str(error)
            self.steps += [
                Step(call.module, call.shape, used=at in self.used)
                for at, call in enumerate(self.calls) if at >= len(self.steps)
            ]  # fmt: skip
        return Path(self.steps, chain, layout, refusal, patch)

    def _distinct(self, ids: Tensor) -> list[int]:
        return [one for one in ids.flatten().unique().tolist() if one]

    def _reached(self, ids: Iterable[int]) -> tuple[set[int], set[int]]:
        """The attention calls whose output reaches these origins, and the origins that do."""
        seen, stack, used = set(ids), list(ids), set()

        def add(more: Iterable[int]) -> None:
            fresh = [one for one in more if one not in seen]
            seen.update(fresh)
            stack.extend(fresh)

        while stack:
            one = stack.pop()
            if self.origins.call[one] < 0:
                continue
            call = self.owner.get(one)
            if call is None:
                add(self.origins.members(one))
            elif call not in used:
                used.add(call)
                traced = self.tracer.calls[call]
                add(self._distinct(traced.queries))
                add(self._distinct(traced.keys))
        return used, seen

    def _step(self, at: int) -> Step:
        """Find what the batch of a call is made of: images, and windows or heads of each."""
        call, traced = self.calls[at], self.tracer.calls.get(at)
        if at not in self.used:
            return Step(call.module, call.shape, used=False)
        assert traced is not None
        name = f"attention call {at} ({call.module or 'of the network itself'})"
        every = torch.cat([traced.queries, traced.keys], 1)
        inside = self.origins.box[every][..., 4:].amax(1) >= 0  # lead, image
        if inside.all(1).any():
            raise UnknownPathError(f"{name} mixes the images of a batch")
        count = len(every)
        first = [lead for lead in range(count) if not inside[lead, 1]]
        half, images_first = count // 2, True
        if count % 2 == 0 and not inside[:half, 1].any() and not inside[half:, 0].any():
            first = list(range(half))
        elif count % 2 == 0 and not inside[::2, 1].any() and not inside[1::2, 0].any():
            first, images_first = list(range(0, count, 2)), False
        else:
            raise UnknownPathError(f"{name} has a batch of {count} for 2 images")
        keys, queries = traced.keys[first], traced.queries[first]
        outputs = traced.outputs[first]
        queries = self.origins.query[outputs]  # also those that are no tokens, but added to one
        heads, windows = 1, len(first)
        alike = bool((keys == keys[:1]).all() and (queries == queries[:1]).all())
        if windows > 1 and alike and not queries.any():
            raise UnknownPathError(
                f"{name} has {windows} heads, or windows, whose queries are no tokens: which of "
                "them is read where is not known"
            )
        if windows > 1 and alike:
            heads, windows = windows, 1
            keys, queries = keys[:1], queries[:1]
            alias = dict(zip(outputs.flatten().tolist(), outputs[:1].repeat(heads, 1).flatten()
                .tolist(), strict=True))  # fmt: skip
            self.aliases |= {one: own for one, own in alias.items() if one != own}
            outputs = outputs[:1]
        elif windows > 1 and not images_first:
            raise UnknownPathError(f"{name} has windows of all images between each other")
        constant = torch.zeros_like(keys, dtype=torch.bool)
        if windows == 1 and keys.shape == outputs.shape:  # what is only padded is cut off again
            constant = (keys == 0) & torch.isin(outputs, torch.tensor([*self.reaching]))
        if constant.any():
            fresh = self.origins.new(int(constant.sum()))  # a token of zeros is one all the same
            keys, queries = keys.clone(), queries.clone()
            keys[constant] = fresh
            queries[constant & (queries == 0)] = fresh[(queries == 0)[constant]]
        self.keys[at], self.queries[at] = keys.tolist(), queries.tolist()
        self.outputs[at] = outputs.tolist()
        _, of_heads, i, j = call.shape
        return Step(call.module, (1, of_heads, i, j), heads, windows, images_first)

    def _name(self, at: int) -> str:
        return f"attention call {at} ({self.calls[at].module or 'of the network itself'})"

    def _walk(self, initial: list[int] | None) -> list[int] | None:
        """Go through the calls in order; return a better order of the first tokens, if any.

        initial: the origins of the first tokens; None: as they come.
        """
        used = sorted(self.used)
        self.last_use: dict[int, int] = {}
        for at in used:
            for row in self.keys[at] + self.queries[at]:
                self.last_use |= dict.fromkeys(row, at)
        self.state: list[Token] = [Token(one, one) for one in initial or ()]
        self.place: dict[int, int] = {one: at for at, one in enumerate(initial or ())}
        self.before: dict[int, int] = {}  # the call that replaced an origin
        self.was: dict[int, int] = {}  # where it was in the state, while places do not change
        self.link_of: dict[int, int] = {}  # by the call
        self.stream = [0] * len(initial or ())  # of each first token: 0, or of a later run
        self.links: list[Link] = []
        self.first: list[int] = list(initial or ())
        late: list[int] | None = None
        for layer, at in enumerate(used):
            rows = self.keys[at] + self.queries[at]
            ids = list(dict.fromkeys(one for row in rows for one in row if one))
            joined = self._join(layer, at, ids)
            apart = len(set(self.stream)) > 1 and any(
                self.origins.box[one, 2] >= 0 and stream
                for one, stream in zip(self.first, self.stream, strict=True)
            )
            if apart:
                late = None
            elif joined and initial is None and len(self.keys[at]) == 1:
                order = [self.state[self.place[one]].first for one in self.keys[at][0] if one]
                if set(order) == set(self.first) and len(order) == len(self.first):
                    late = order if order != self.first else late
            elif joined and initial is None and layer == 0:
                order = sorted(self.first, key=lambda one: self._centre(one))
                late = order if order != self.first else late
            self._attend(layer, at)
        self.reads = self._readout()
        return late or (self._by_rows() if initial is None else None)

    def _by_rows(self) -> list[int] | None:
        """The first tokens with their patches row by row; None where they are, or have no grid."""
        boxes = self.origins.box
        patches = [one for one in self.first if boxes[one, 2] >= 0]
        in_rows = sorted(patches, key=self._centre)
        if in_rows == patches or len(set(self.stream)) > 1:
            return None
        if grid_of(boxes[in_rows, :4])[0] is None:
            return None
        following = iter(in_rows)
        return [next(following) if boxes[one, 2] >= 0 else one for one in self.first]

    def _centre(self, origin: int) -> tuple[int, int]:
        top, left, bottom, right = self.origins.box[origin, :4].tolist()
        return bottom - top, right - left

    def _join(self, layer: int, at: int, ids: Sequence[int]) -> bool:
        """Bring the tokens of a call into the state; return whether there were new first ones."""
        unknown = [one for one in ids if one not in self.place]
        if not unknown:
            return False
        if again := [one for one in unknown if one in self.was]:
            self._copy(layer, again)
            unknown = [one for one in unknown if one not in again]
        first = {one for one in unknown if self.origins.call[one] < 0} | set(self.first)
        sources = [
            one for one in unknown if self.origins.call[one] < 0 and not self._made_of(one, first)
        ]
        if sources and self.links:
            self._widen(len(sources))
        self._add(sources)
        self.first += sources
        self.stream += [int(bool(self.links))] * len(sources)
        groups = [one for one in unknown if one not in sources]
        if groups:
            self._regroup(layer, at, groups)
        return bool(sources)

    def _add(self, origins: Iterable[int]) -> None:
        for one in origins:
            self.place[one] = len(self.state)
            self.state.append(Token(one, one))

    def _copy(self, layer: int, again: Sequence[int]) -> None:
        """Tokens that a call has changed and another reads as they were: branches side by side.

        The other has copies, made before the first. What comes of both is one token again, to which
        each adds a half.
        """
        since = min(self.link_of[self.before[one]] for one in again)
        n = len(self.state)
        places = [self.was[one] for one in again]
        self._widen(len(again), since)
        made = torch.arange(n + len(again))
        of = torch.cat([made[:n], torch.tensor(places)])
        part = torch.ones(len(made), dtype=torch.float64)
        self.links.insert(since, Regroup(self.links[since].layer, n, made, of, part))
        self.link_of = {at: link + (link >= since) for at, link in self.link_of.items()}
        self._add(again)
        for one in again:
            del self.was[one]

    def _made_of(self, origin: int, tokens: set[int]) -> bool:
        """Whether one of these tokens, another one, went into an origin before any attention."""
        pixels = 2 * self.size[0] * self.size[1]
        seen, stack = {origin}, [origin]
        while stack and len(seen) < FAR:
            more = [one for one in self.origins.members(stack.pop()) if one > pixels]
            if any(one in tokens for one in more):
                return True
            stack += [one for one in more if one not in seen]
            seen.update(more)
        return False

    def _widen(self, more: int, since: int = 0) -> None:
        """Let tokens that come later wait, after those that came before, from a link on."""
        self.links[since:] = [widened(link, more) for link in self.links[since:]]

    def _regroup(self, layer: int, at: int, groups: Sequence[int]) -> None:
        """Make new tokens of old ones between two calls."""
        kept = [
            place
            for place, token in enumerate(self.state)
            if self.last_use.get(token.origin, -1) >= at
        ]
        parts: dict[int, dict[int, float]] = {}
        times: dict[int, int] = dict.fromkeys(kept, 1)
        known: dict[int, dict[int, float]] = {}
        for one in groups:
            parts[one] = self._parts(one, at, known)
            equal = bool(self.origins.equal[one])
            for place in parts[one]:
                times[place] = times.get(place, 0) + (not equal or place not in kept)
                if times[place] > 1:
                    raise UnknownPathError(
                        f"the tokens of {self._name(at)} are mixtures of the tokens before it (the "
                        f"first of {len(parts[one])}), by something other than a recorded "
                        "attention from token to token: a convolution, a pool, linear or channel "
                        "attention"
                    )
        made = sorted(groups, key=lambda one: (*self._centre(one), one))
        pairs = [(new, old, 1.0) for new, old in enumerate(kept)]
        state = [self.state[old] for old in kept]
        for one in made:
            pairs += [(len(state), old, part) for old, part in parts[one].items()]
            state.append(Token(one, one))
        new, old, part = zip(*pairs, strict=True)
        self.links.append(
            Regroup(max(0, layer - 1), len(self.state), torch.tensor(new), torch.tensor(old),
                    torch.tensor(part, dtype=torch.float64))
        )  # fmt: skip
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
        origin = self.aliases.get(origin, origin)
        if origin in self.place:
            return {self.place[origin]: 1.0}
        reader = "the classifier" if at is None else self._name(at)
        operation = self.origins.operation.get(origin)
        if operation and at is None:
            raise UnknownPathError(
                f"the classifier reads the tokens by {operation}, so that they do not count alike: "
                "give layout= with the pool that is nearest"
            )
        if origin in self.before or origin in self.owner:
            later = self.before.get(origin)
            what = "" if later is None else f", which {self._name(later)} has changed since"
            raise UnknownPathError(
                f"{reader} reads tokens as they were before{what}: branches side by side, or a "
                "connection that skips calls, whose maps have no one product"
            )
        members = self.origins.members(origin)
        if not members:
            raise UnknownPathError(
                f"{reader} reads tokens mixed with something that went through no attention call "
                "before it"
            )
        parts: dict[int, float] = {}
        for one in members:
            for place, part in self._parts(one, at, known).items():
                parts[place] = parts.get(place, 0) + part / len(members)
        return parts

    def _attend(self, layer: int, at: int) -> None:
        queries, keys, outputs = self.queries[at], self.keys[at], self.outputs[at]
        before = len(self.state)
        on_image = self.origins.box[:, 2] >= 0
        name = self._name(at)
        places = [[self.place[one] if one else before for one in row] for row in queries]
        of_keys = torch.tensor(
            [[self.place[one] if one else before for one in row] for row in keys]
        )
        patches: list[int] | None = None
        if len(keys) == 1:
            patches = [j for j, one in enumerate(keys[0]) if bool(on_image[one])]
            patches = None if len(patches) == len(keys[0]) else patches
        flat = [one for row in outputs for one in row]
        for what, rows in (("keys", keys), ("queries", queries)):
            for row in rows:
                real = [one for one in row if one]
                if len(set(real)) < len(real):
                    raise UnknownPathError(
                        f"the {what} of {name} are not one token each ({len(real)} of them, made "
                        f"of {len(set(real))}): linear attention, or from channel to channel"
                    )
        link = Attention(layer, before, torch.tensor(places), of_keys, patches=patches)
        asked = [one for row in queries for one in row if one]
        learned = bool(asked) and all(  # class tokens: nothing tells that they are added to
            self.origins.call[one] < 0 and self.origins.box[one, 2] < 0 for one in asked
        )
        if learned or bool(self.origins.residual[self._with_aliases(at)].any()):
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
            return
        alive = [token for token in self.state if self._later(token.origin, at)]
        start = before if alive else 0
        new = torch.arange(start, start + len(flat)).view(len(outputs), -1)
        self.links.append(replace(link, new=new, kept=bool(alive)))
        if not alive:
            self.before |= {token.origin: at for token in self.state}
            self.state, self.place, self.was = [], {}, {}
        self._add(flat)

    def _with_aliases(self, at: int) -> Tensor:
        """All origins of a call's outputs, those of its other heads too."""
        return self.tracer.calls[at].outputs.flatten()

    def _later(self, origin: int, at: int) -> bool:
        return self.last_use.get(origin, -1) > at

    def _readout(self) -> Tensor | None:
        """The share of each token of the state in the logits."""
        if self.read is None:
            return None
        known: dict[int, dict[int, float]] = {}
        of_classes = [self._parts(one, None, known) for one in self.read]
        reads = torch.zeros(len(self.state), dtype=torch.float64)
        for parts in of_classes:
            for place, part in parts.items():
                reads[place] += part / len(of_classes)
        return reads

    def _unite_streams(self) -> None:
        """Let the patches of a later run lie where those of the first do (a flipped image, say)."""
        boxes = [tuple(box) for box in self.origins.box[self.first, :4].tolist()]
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
        if len(kept) < len(of):
            made, part = torch.arange(len(of)), torch.ones(len(of), dtype=torch.float64)
            layer = self.links[0].layer
            self.links.insert(0, Regroup(layer, len(kept), made, torch.tensor(of), part))
            self.first = [self.first[at] for at in kept]

    def _layout(self) -> tuple[TokenLayout | None, tuple[int, int] | None]:
        """How the first tokens lie on the image, by the pixels that each was computed from."""
        first = self.links[0].before
        boxes = self.origins.box[self.first[:first], :4]
        beside = [place for place, box in enumerate(boxes.tolist()) if box[2] < 0]
        patches = [place for place in range(first) if place not in set(beside)]
        grid, patch = grid_of(boxes[patches])
        hint: TokenLayout | None = None
        with suppress(ValueError):
            hint = layout_of(self.network, self.size)
        if hint is not None and hint.tokens != first:
            hint = None
        if grid is None:
            if hint is None or hint.beside != beside:
                return None, None
            grid = hint.grid
        prefix = next((at for at, place in enumerate(beside) if at != place), len(beside))
        pool, class_token = self._pool(beside, patches, hint)
        return (
            TokenLayout(prefix, grid, pool, class_token, tuple(beside[prefix:])),
            patch,
        )

    def _pool(
        self, beside: list[int], patches: list[int], hint: TokenLayout | None
    ) -> tuple[Pool, bool]:
        """Name what the classifier reads, by the nearest pool there is."""
        named = hint is not None and bool(hint.class_token)
        reads = self.reads
        if reads is None:
            return (hint.pool, named) if hint else ("mean", named)
        if self.links and any(isinstance(x, Attention) and x.new is not None for x in self.links):
            last = [x for x in self.links if isinstance(x, Attention)][-1]
            if last.new is not None:
                return "attention", named
        if len(reads) != len(beside) + len(patches):
            return "mean", named
        read = [place for place, share in enumerate(reads.tolist()) if share]
        if read == [0] and beside[:1] == [0]:
            return "cls", True
        if read == [0, 1] and beside[:2] == [0, 1]:
            return "cls_dist", True
        if beside[:1] == [0] and read == [0, *patches] and abs(float(reads[0]) - 0.5) < 1e-6:
            return "cls_mean", True
        return "mean", named


# Attributes that change how a network runs, and not where its tokens go.
PASSING = frozenset({"training", "grad_checkpointing", "gradient_checkpointing"})
FAR = 50  # origins that are looked through for tokens that went into others
NO_ATTENTION = "no attention was found: nothing that sums to 1 weighs values in a matrix product"
UNPLACED = TokenLayout(0, (1, 1), "mean")


def widened(link: Link, more: int) -> Link:
    """Let so many tokens pass a link by, after the others."""
    n = link.before
    if isinstance(link, Attention):
        if link.new is not None:
            raise UnknownPathError("tokens join after others were pooled")
        places = padded(link.queries, n, more), padded(link.keys, n, more)
        return replace(link, before=n + more, queries=places[0], keys=places[1])
    assert isinstance(link, Regroup)
    after = int(link.made.max()) + 1
    waiting = torch.arange(more)
    return replace(
        link,
        before=n + more,
        made=torch.cat([link.made, after + waiting]),
        of=torch.cat([link.of, n + waiting]),
        part=torch.cat([link.part, torch.ones(more, dtype=torch.float64)]),
    )


def padded(places: Tensor, before: int, more: int) -> Tensor:
    """Move the number that stands for no token."""
    return places.masked_fill(places == before, before + more)


def grid_of(boxes: Tensor) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Find the grid (h, w) on which boxes (n 4) lie row by row, and their size in pixels."""
    rows = [tuple(box) for box in boxes[:, [0, 2]].tolist()]
    columns = [tuple(box) for box in boxes[:, [1, 3]].tolist()]
    tops, lefts = list(dict.fromkeys(rows)), list(dict.fromkeys(columns))
    if not rows or [(y, x) for y in tops for x in lefts] != list(zip(rows, columns, strict=True)):
        return None, None
    middle = boxes[len(boxes) // 2].tolist()
    size = (middle[0] + middle[2] + 1, middle[1] + middle[3] + 1)
    return (len(tops), len(lefts)), size


def everything(out: Any) -> list[Any]:
    """List the tensors in whatever a network gives."""
    if isinstance(out, Tensor):
        return [out]
    values = out.values() if isinstance(out, dict) else out if isinstance(out, list | tuple) else ()
    return [x for value in values for x in everything(value)]
