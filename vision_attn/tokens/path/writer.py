"""Write the chain of a run that was followed: which tokens each attention call links to which."""

from collections.abc import Sequence
from dataclasses import replace

from vision_attn.tokens.path.chain import Attention
from vision_attn.tokens.path.route import Route
from vision_attn.tokens.path.traced import TracedRun, UnknownPathError
from vision_attn.tokens.path.walk import Walk, order_at_first, walk_calls
from vision_attn.tokens.trace.tracer import PRODUCTS

__all__ = ["ChainWriter"]


class ChainWriter:
    """Choose the calls, the order of the tokens and the grid of a chain, by walks through a run.

    Args:
        run: The run.
        size: (height, width) of the image.

    Attributes:
        walk: The walk that `write` chose.
        used: Its calls.
        aside: The origins of first tokens that lie on the image, but on another grid than the one
            that is shown.
        begins: The call that the chain begins with, and why, where calls before it are left out.
        caveats: What the run does not prove, in sentences.
        unread: The same of what the classifier reads.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.traced import follow
        >>> from vision_attn.tokens.path.writer import ChainWriter
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> run = follow(network, torch.rand(1, 3, 16, 16))
        >>> run.read_steps()
        >>> writer = ChainWriter(run, (16, 16))
        >>> writer.write()
        >>> writer.used, writer.begins, len(writer.walk.links)
        ([0, 1], None, 2)
    """

    walk: Walk

    def __init__(self, run: TracedRun, size: tuple[int, int]):
        self.run, self.origins, self.size = run, run.origins, size
        self.used = sorted(run.used)
        self.begins: tuple[int, str] | None = None
        self.aside: list[int] = []
        self.averages = False  # whether keys that are mixtures of first tokens count as their mean

    def write(self) -> None:
        """Write the chain of all calls, or of the last ones, if something mixes tokens before them.

        Raises:
            UnknownPathError: Tokens mix in no known way, or at the last call of all.
        """
        try:
            self._write_chain()
        except UnknownPathError as error:
            if error.mixed is None:
                raise
            self._write_end(error)
        walk = self.walk
        if walk.copied and (walk.read_by or walk.bypassed):
            raise UnknownPathError(
                "the outputs of attention calls side by side join by "
                f"{', '.join(sorted(walk.read_by)) or 'more than a sum'}, and which part each of "
                "them has is not known: branches side by side, whose maps have no single product"
            )
        if walk.bypassed and PRODUCTS in walk.read_by:
            self._refuse_linear_attention()
        united = walk.with_united_streams()
        if united is not None:
            self.walk = united
        elif not self._on_one_grid():
            self._choose_grid()

    def _refuse_linear_attention(self) -> None:
        """Refuse contexts that belong to no token, and are multiplied by each token afterwards."""
        attentions = [link for link in self.walk.links if isinstance(link, Attention)]
        for link in attentions:
            if link.new is None:
                continue
            call = self.used[link.layer]
            if not any(origin for row in self.run.queries[call] for origin in row):
                raise UnknownPathError(
                    f"the queries of {self.run.name(call)} are no tokens, and its outputs are "
                    "multiplied by other tokens: linear attention, or attention over channels"
                )
        last = attentions[-1]
        if last.new is not None and last.new.shape[-1] > 1:  # one is a gate, whose row is a map
            raise UnknownPathError(
                f"the outputs of {self.run.name(self.used[-1])} are {last.new.shape[-1]} contexts, "
                "which are multiplied by other tokens: linear attention, or a state space"
            )

    def _write_chain(self) -> None:
        begin = 0 if self.begins is None else self.used[0]
        route = Route.of(self.run, self.size, self.used, begin, self.averages)
        order = order_at_first(route)
        if order:
            self.walk = walk_calls(replace(route, sources=order))
            if len(self.walk.sources) == len(order):
                return  # else more have joined later, and the order is known after a walk
        self.walk = walk_calls(route)
        if self.walk.row_major:
            self._walk_from(self.walk.row_major)

    def _walk_from(self, sources: Sequence[int]) -> None:
        """Walk the same route again, from sources in this order."""
        self.walk = walk_calls(replace(self.walk.route, sources=sources))

    def _write_end(self, reason: UnknownPathError) -> None:
        """Write the longest chain of the last calls; reason: why there is none of all."""
        calls, begin, why, walk = self.used, len(self.used) - 1, reason, None
        for position in reversed(range(len(calls))):
            self.used, self.begins = calls[position:], (calls[position], "")
            try:
                self._write_chain()
            except UnknownPathError as error:
                why = error
                break
            begin, walk = position, self.walk
        self.used, self.begins = calls[begin:], (calls[begin], str(why))
        if walk is not None:
            self.walk = walk
        else:
            self.begins, self.averages = (calls[begin], str(reason)), True
            try:
                self._write_chain()
            except UnknownPathError:
                raise reason from None
        if set(calls[:begin]) - self.run.before(self.walk.sources)[0]:
            raise reason  # a call beside those of the chain, in no order with them
        if not self._on_one_grid():
            self._choose_grid()
        if not self._on_one_grid() or len(self.walk.patches) == 1:
            raise reason  # what has no place on the image, or fills it, begins no map
        pixels = slice(1, self.origins.pixel_count + 1)
        if not self.run.beside(self.walk.patches)[pixels].any():
            raise reason  # what is there came by the weights of the calls that are left out

    @property
    def caveats(self) -> list[str]:
        """What the run does not prove of the chain, or the map does not show, in sentences."""
        sentences = []
        if self.averages:
            sentences.append(
                "the keys of the first call shown are mixtures of tokens that lie close together, "
                "by a convolution say: a map counts each as the mean of the tokens it is made of"
            )
        if self.walk.bypassed:
            sentences.append(
                "the classifier also reads what went past the attention calls shown, which is not "
                "in a map"
            )
        if self.aside:
            sentences.append(
                "the tokens lie on several grids: a map shows the finest, and counts the tokens of "
                f"the others ({len(self.aside)}) among those beside the image"
            )
        return sentences

    @property
    def unread(self) -> str | None:
        """The sentence for a classifier whose reading of the tokens the run does not prove."""
        if not self.walk.read_by:
            return None
        how = ", ".join(sorted(self.walk.read_by))
        return (
            f"the classifier reads the tokens by {how}, so they do not count equally, but a map "
            "counts them as if they did"
        )

    def _on_one_grid(self) -> bool:
        aside = set(self.aside)
        shown = [origin for origin in self.walk.patches if origin not in aside]
        return self.walk.route.lie_on_a_grid(shown)

    def _choose_grid(self) -> None:
        """Show the finest of several grids on which the first tokens lie, each a call's."""
        since: dict[int, int] = {}
        for call in self.used:
            for row in self.run.keys[call] + self.run.queries[call]:
                since = dict.fromkeys(row, call) | since
        grids: dict[int | None, list[int]] = {}
        for origin in self.walk.patches:
            grids.setdefault(since.get(origin), []).append(origin)
        by_rows = [self.walk.route.in_rows(grid) for grid in grids.values()]
        regular = [grid for grid in by_rows if self.walk.route.lie_on_a_grid(grid)]
        if len(grids) < 2 or not regular:
            return
        shown = max(regular, key=len)
        patches, on_grid = self.walk.patches, set(shown)
        on_image = set(patches)
        beside = [origin for origin in self.walk.sources if origin not in on_image]
        aside = [origin for origin in patches if origin not in on_grid]
        self._walk_from([*beside, *shown, *aside])
        self.aside = aside
