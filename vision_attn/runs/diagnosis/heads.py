"""What each head does, reduced from tiles of its attention: no n x n matrix is kept.

Every value is the mean over the queries of one photo; the run averages them over photos. With A the
weights of a head, made to sum to 1 over keys j where they do not:

    entropy    -mean_i sum_j A_ij log A_ij / log(keys): 1 for a uniform head, 0 for one key a query
    distance   mean_i sum_j A_ij |x_i - x_j| / sum_j A_ij over patches, pixels of the input
    received   mean_i A_ij, the attention that token j receives
    alike      sum_ij (A_ij - 1/n) (B_ij - 1/n) over the root of the product of both heads' own: the
               correlation of two heads' weights beyond what uniform attention has in common
    output     mean_i |W_h c_hi|, the norm that a head adds: c its output, W_h its part of the
               projection; shown as its share of the layer's sum times the heads, so 1 is usual

Axes: b images, w windows of an image, head and g heads, i queries, j keys, n tokens, t rows.
"""

from dataclasses import dataclass, replace
from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.tokens.carry.tiles import row_tiles, workspace_for
from vision_attn.tokens.path.chain import Attention, Chain, PropagationRule, Regroup
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.types import TokenLayout

__all__ = ["Place", "head_outputs", "head_values", "places_of_calls"]

TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Place:
    """Which tokens a call's queries and keys are, and where these lie on the image.

    Attributes:
        queries: The token at each place of each window, (w i); the number of tokens where there is
            none.
        keys: The same of the keys, (w j).
        spots: The middle of each token, (n 2) rows and columns in pixels, NaN for one that is no
            patch; a last row of NaN stands for no token.
        origin: The share of each input token in each token, (n tokens); None: they are the input
            tokens.

    Examples:
        >>> from vision_attn.runs.diagnosis.heads import Place
        >>> from vision_attn.types import TokenLayout
        >>> place = Place.whole(TokenLayout(1, (1, 2)), (8, 16))
        >>> place.spots.tolist()[1:3]
        [[4.0, 4.0], [4.0, 12.0]]
    """

    queries: Tensor | None
    keys: Tensor
    spots: Float[Tensor, "n 2"]
    origin: Float[Tensor, "tokens m"] | None = None

    @classmethod
    def whole(cls, layout: TokenLayout, size: tuple[int, int]) -> "Place":
        """All tokens of the image attend to all."""
        every = torch.arange(layout.tokens, device="cpu")[None]
        return cls(every, every, spots_of(layout, size))


def spots_of(layout: TokenLayout, size: tuple[int, int]) -> Float[Tensor, "n 2"]:
    """Find the middle of each token of the layout in pixels, NaN beside; one row more, of NaN."""
    rows, columns = (
        (torch.arange(n, dtype=torch.float32, device="cpu") + 0.5) * side / n
        for n, side in zip(layout.grid, size, strict=True)
    )
    spots = torch.full((layout.tokens + 1, 2), float("nan"), dtype=torch.float32, device="cpu")
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1)
    spots[layout.patches] = grid.flatten(0, 1)
    return spots


def places_of_calls(chain: Chain, size: tuple[int, int]) -> list[Place | None]:
    """Find the place of each attention call of a chain; None where its queries are new tokens."""
    layout, found = chain.layout, dict[int, Place | None]()
    first = spots_of(layout, size)
    for at, link in enumerate(chain.links):
        if not isinstance(link, Attention):
            continue
        queries = None if link.new is not None else link.queries
        before = chain.links[:at]
        moved = any(isinstance(one, Regroup) or one.always for one in before)
        if not moved and link.before == layout.tokens:
            found[link.layer] = Place(queries, link.keys, first)
            continue
        rule = PropagationRule(lambda layer, call, r, *_: r.new_zeros(*r.shape[:2], call.keys),
            residual=1.0, attention=0.0)  # fmt: skip
        every = torch.eye(link.before, dtype=torch.float32, device=_device(chain))
        origin = replace(chain, links=before).back(every[None], rule, ())[0].cpu()
        patches = origin[:, layout.patches]
        mass = patches.sum(1, keepdim=True)
        spots = patches @ first[layout.patches] / mass
        spots[mass[:, 0] < 0.5] = float("nan")
        none = torch.full((1, 2), float("nan"), dtype=torch.float32, device="cpu")
        found[link.layer] = Place(queries, link.keys, torch.cat([spots, none]), origin)
    return [found.get(layer) for layer in range(chain.layers)]


def _device(chain: Chain) -> torch.device:
    calls = (link.call for link in chain.links if isinstance(link, Attention))
    return next((call.device for call in calls if call is not None), torch.device("cpu"))


def head_values(call: AttentionCall, place: Place | None, images: int) -> dict[str, Tensor]:
    """Reduce a call to values of each image (a row) and head; the formulas stand above.

    Returns:
        entropy (b head); alike (b head g), the sums of the products;
        and where the place is known received (b head n), and distance (b head) for patches.
    """
    batch, heads, keys, windows = call.batch, call.heads, call.keys, call.batch // images
    normal, call = call.sums_to_one, call.upcast()
    dtype, device = call.dtype, call.device
    entropy = torch.zeros(batch, heads, dtype=dtype, device=device)
    alike = torch.zeros(batch, heads, heads, dtype=dtype, device=device)
    received = torch.zeros(batch, heads, keys, dtype=dtype, device=device)
    reach = _Reach(call, place, windows)
    workspace = workspace_for(call)
    for tile in row_tiles(call, None, 1):
        weights = call.tile_weights(replace(tile, workspace=workspace))
        if not normal:
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(TINY)
        image = tile.images
        spare = None
        if workspace is not None:
            spare = workspace.buffer("spare", weights.shape, weights)
        received[image] += weights.sum(2)
        flat = weights.flatten(2)
        alike[image].baddbmm_(flat, flat.mT)
        reach.add(weights, tile.images, tile.rows, spare)
        entropy[image] += torch.special.entr(weights, out=spare).sum((-1, -2))
    rows = call.queries * windows
    values = {
        "entropy": of_images(entropy, images) / (rows * max(log(keys), TINY)),
        "alike": of_images(alike, images) - rows / keys,
    }
    if reach.rows is not None:
        values["distance"] = of_images(reach.total, images) / of_images(reach.rows, images)
    if place is not None and place.keys.shape == (windows, keys):
        values["received"] = _on_tokens(received, place, images) / rows
    return values


def of_images(values: Tensor, images: int) -> Tensor:
    """Sum over the windows of each image."""
    return values.view(images, -1, *values.shape[1:]).sum(1)


def _on_tokens(received: Tensor, place: Place, images: int) -> Float[Tensor, "b head n"]:
    """Lay what the keys of each window received on the tokens, and these on the input tokens."""
    tokens = len(place.spots) - 1
    each = received.view(images, len(place.keys), *received.shape[1:]).transpose(1, 2).flatten(2)
    out = each.new_zeros(images, each.shape[1], tokens + 1)
    out.index_add_(2, place.keys.flatten().to(out.device), each)
    out = out[..., :tokens]
    return out if place.origin is None else out @ place.origin.to(out)


class _Reach:
    """The sum over patches of their mean attention distance, tile by tile."""

    def __init__(self, call: AttentionCall, place: Place | None, windows: int):
        self.rows: Tensor | None = None
        self.total = torch.zeros(call.batch, call.heads, dtype=call.dtype, device=call.device)
        shapes = (windows, call.queries), (windows, call.keys)
        if place is None or place.queries is None:
            return
        if (place.queries.shape, place.keys.shape) != shapes:
            return
        spots = place.spots.to(call.device)
        self.windows = windows
        self.of_queries = spots[place.queries.to(call.device)].to(call.dtype)  # w i 2
        self.of_keys = spots[place.keys.to(call.device)].to(call.dtype)
        self.is_query = ~self.of_queries[..., 0].isnan()
        self.is_key = ~self.of_keys[..., 0].isnan()
        if self.is_query.any():
            self.rows = torch.zeros_like(self.total)

    def add(
        self, weights: Tensor, images: slice, rows: slice | Tensor, spare: Tensor | None
    ) -> None:
        if self.rows is None:
            return
        windows = torch.arange(images.start, images.stop, device=weights.device) % self.windows
        windows = windows[:1] if self.windows == 1 else windows
        here, there = self.of_queries[windows][:, rows], self.of_keys[windows]
        apart = (here[:, :, None] - there[:, None]).square_().sum(-1).sqrt_().nan_to_num_(0.0)
        known = self.is_key[windows].to(weights.dtype)  # w j
        far = torch.mul(weights, apart[:, None], out=spare).sum(-1)  # b head t
        among = (weights @ known[:, None, :, None])[..., 0]
        valid = self.is_query[windows][:, None, rows] & (among > TINY)
        self.total[images] += (far / among.clamp_min(TINY)).where(valid, 0).sum(-1)
        self.rows[images] += valid.expand_as(far).sum(-1)


def head_outputs(
    call: AttentionCall, projection: nn.Linear | None, images: int
) -> Float[Tensor, "b head"] | None:
    """Compute the mean norm over queries of what each head adds, W_h c_h; None where c is unknown.

    Without a projection it is the norm of c itself.
    """
    context = call.context
    if context is None or context.ndim != 4 or context.shape[1] != call.heads:
        return None
    context = context.detach().to(call.dtype)
    heads, width = call.heads, context.shape[-1]
    if projection is not None and projection.in_features == heads * width:
        weight = projection.weight.detach().to(call.dtype).unflatten(1, (heads, width))  # o head e
        squares = torch.einsum("ohe,ohf->hef", weight, weight)
        norms = ((context @ squares) * context).sum(-1).clamp_min(0).sqrt()
    else:
        norms = context.norm(dim=-1)
    return of_images(norms.sum(-1), images) / (call.queries * (call.batch // images))
