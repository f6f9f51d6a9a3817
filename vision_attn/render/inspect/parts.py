"""What is shown on the page: plain arrays and names, of one photo as one model sees it.

Axes: H, W the photo's height and width, h, w a map's, head, n tokens, d head width, c channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from jaxtyping import Float, Float32, UInt8
from numpy import ndarray


@dataclass(frozen=True, eq=False)
class QueryKeys:
    """A layer whose weights are softmax(q k'): whatever scales the scores is already in q."""

    name: str
    q: Float32[ndarray, "head n d"]
    k: Float32[ndarray, "head n d"]


@dataclass(frozen=True, eq=False)
class Weights:
    """A layer known by its weights alone, such as one with a position bias or a sparsemax."""

    name: str
    weights: Float32[ndarray, "head n n"]


Layer = QueryKeys | Weights


@dataclass(frozen=True, eq=False)
class Map:
    """What a method says, raw: `values` times `factor` are in `unit`.

    method: as it is written on the command line, `Rollout(fusion='max')`. about: what it is, in a
    line. target: the index of the class it explains, None for methods that ask for none.
    prefix_mass: the share that fell on tokens that are not on the photo. scores: how faithful the
    map is, by the name of the measure.
    """

    method: str
    values: Float[ndarray, "h w"]
    about: str = ""
    target: int | None = None
    unit: str = ""
    factor: float = 1.0
    prefix_mass: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ChannelGate:
    """How far one layer's gate opens for each channel, 0 to 1.

    where: a map of the channels that it lets through, in any unit.
    """

    name: str
    values: Float[ndarray, " c"]
    where: Float[ndarray, "h w"] | None = None


@dataclass(frozen=True, eq=False)
class SpatialGate:
    """How far one layer's gate opens in each place, 0 to 1."""

    name: str
    values: Float[ndarray, "h w"]


Gate = ChannelGate | SpatialGate


@dataclass(frozen=True)
class Prediction:
    """One of the classes that the model thinks likeliest."""

    target: int
    name: str
    probability: float


@dataclass(frozen=True, eq=False)
class Inspection:
    """One photo as one model sees it.

    box: the part of the photo that the model sees, (left, top, right, bottom) in 0..1 of it.
    grid, prefix: how tokens lie on the photo, and what the tokens before them are called; only
    needed where there are layers. notes: what is not on the page and why, a line each.
    """

    model: str
    image: str
    photo: UInt8[ndarray, "H W 3"]
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    predictions: Sequence[Prediction] = ()
    grid: tuple[int, int] = (1, 1)
    prefix: Sequence[str] = ()
    layers: Sequence[Layer] = ()
    maps: Sequence[Map] = ()
    gates: Sequence[Gate] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        tokens = len(self.prefix) + prod(self.grid)
        for layer in self.layers:
            came = (layer.q if isinstance(layer, QueryKeys) else layer.weights).shape[1]
            if came != tokens:
                raise ValueError(
                    f"layer {layer.name}: expected {tokens} tokens ({len(self.prefix)} prefix + "
                    f"grid {self.grid[0]}x{self.grid[1]}), got {came}"
                )
        if not (self.layers or self.maps or self.gates):
            raise ValueError(
                f"{self.image}, {self.model}: expected layers, maps or gates to inspect, got none"
            )
        left, top, right, bottom = self.box
        if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
            raise ValueError(f"box must be (left, top, right, bottom) in 0..1, got {self.box}")
