"""The calls that a walk takes, and how the tokens that they read lie on the image.

Axes: none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from vision_attn.tokens.path.places import grid_of, in_order, rows_apart
from vision_attn.tokens.path.traced import TracedRun
from vision_attn.tokens.trace.origins import Origins, indices

__all__ = ["Route"]


@dataclass(frozen=True)
class Route:
    """The calls that a walk takes, and which later calls read which origins.

    Attributes:
        size: (height, width) of the image.
        sources: The origins that a walk begins with, in their order; None: as the calls name them.
        begin: Calls before this one are left out.
        averages: Whether keys of the first call that are mixtures of tokens count as their mean.
        joining: The calls whose outputs are added to their queries.
        last_use: The last call that reads an origin.
        rank: Where an origin stands in the order in which the calls name them.
        read: The origins that the map of a call depends on: queries only where outputs join them.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.traced import follow
        >>> from vision_attn.tokens.path.route import Route
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> run = follow(network, torch.rand(1, 3, 16, 16))
        >>> run.read_steps()
        >>> route = Route.of(run, (16, 16), sorted(run.used))
        >>> sorted(route.joining), len(route.rank)
        ([0, 1], 10)
    """

    run: TracedRun
    size: tuple[int, int]
    calls: Sequence[int]
    sources: Sequence[int] | None
    begin: int
    averages: bool
    joining: frozenset[int]
    last_use: Mapping[int, int]
    rank: Mapping[int, int]
    read: Mapping[int, list[int]]

    @classmethod
    def of(
        cls,
        run: TracedRun,
        size: tuple[int, int],
        calls: Sequence[int],
        begin: int = 0,
        averages: bool = False,
    ) -> "Route":
        """Look ahead at the calls of a run."""
        joining = frozenset(call for call in calls if joins_queries(run, call))
        last_use: dict[int, int] = {}
        read: dict[int, list[int]] = {}
        for call in calls:
            rows = run.keys[call] + (run.queries[call] if call in joining else [])
            named = dict.fromkeys(chain.from_iterable(rows), call)
            last_use |= named  # which leaves those in their place that are there
            read[call] = list(filter(None, named))
        rank = {origin: index for index, origin in enumerate(filter(None, last_use))}
        return cls(run, size, calls, None, begin, averages, joining, last_use, rank, read)

    @property
    def origins(self) -> Origins:
        """The origins of the run."""
        return self.run.origins

    def lives_until(self, origin: int, call: int) -> bool:
        """Whether this call or a later one reads an origin."""
        return self.last_use.get(origin, -1) >= call

    def mixes(self, layer: int) -> bool:
        """Whether tokens may go into several keys of this layer."""
        return self.averages and layer == 0

    def patches_among(self, ids: Sequence[int]) -> list[int]:
        """List the origins that lie on the image."""
        on_image = (self.origins.box[indices(ids), 2] >= 0).tolist()
        return [origin for origin, is_patch in zip(ids, on_image, strict=True) if is_patch]

    def by_centre(self, ids: Sequence[int]) -> list[int]:
        """Sort origins by rounded centres; those of one centre stay in their order."""
        return [ids[index] for index in in_order(self.origins.centres(indices(ids)))]

    def in_rows(self, patches: Sequence[int]) -> list[int]:
        """Sort origins of patches row by row."""
        rows = self.by_centre(patches)
        if not self.lie_on_a_grid(rows):
            about = rows_apart(self.origins.centres(indices(patches)))
            rows = rows if about is None else [patches[index] for index in about[1]]
        return rows

    def lie_on_a_grid(self, patches: Sequence[int]) -> bool:
        """Whether patches lie in rows and columns, in their order."""
        ids = indices(patches)
        box, centre = self.origins.box[ids, :4], self.origins.centres(ids)
        return grid_of(box, centre, [self.rank[origin] for origin in patches])[0] is not None


def joins_queries(run: TracedRun, call: int) -> bool:
    """Whether the outputs of a call are added to its queries, not new tokens."""
    origins = run.origins
    queries = [origin for row in run.queries[call] for origin in row if origin]
    learned = bool(queries) and all(  # class tokens: nothing tells that they are added to
        origins.call[origin] < 0 and origins.box[origin, 2] < 0 for origin in queries
    )
    outputs = run.tracer.calls[call].outputs.flatten()  # those of its other heads too
    return learned or bool(origins.residual[outputs].any())
