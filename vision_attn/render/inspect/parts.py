"""Parts of the page: plain arrays and names, of one photo as one model sees it.

Axes: H, W the photo's height and width, h, w a map's, head, n tokens, d head width, c channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from jaxtyping import Float, Float32, UInt8
from numpy import ndarray

__all__ = [
    "ChannelGate",
    "Gate",
    "Inspection",
    "Layer",
    "Map",
    "Prediction",
    "QueryKeys",
    "SpatialGate",
    "Weights",
]


@dataclass(frozen=True, eq=False)
class QueryKeys:
    """Layer whose weights are softmax(q k'): whatever scales the scores is already in q.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.inspect import QueryKeys
        >>> q = k = np.zeros((3, 5, 8), np.float32)  # head, token, width
        >>> QueryKeys("blocks.0", q, k).name
        'blocks.0'
    """

    name: str
    q: Float32[ndarray, "head n d"]
    k: Float32[ndarray, "head n d"]


@dataclass(frozen=True, eq=False)
class Weights:
    """Layer known by its weights alone, such as one with a position bias or a sparsemax.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.inspect import Weights
        >>> Weights("blocks.0", np.full((3, 5, 5), 0.2, np.float32)).weights.shape
        (3, 5, 5)
    """

    name: str
    weights: Float32[ndarray, "head n n"]


Layer = QueryKeys | Weights


@dataclass(frozen=True, eq=False)
class Map:
    """Heatmap of one method, raw: `values` times `factor` are in `unit`.

    method: as it is written on the command line, `Rollout(fusion='max')`. about: what it is, in a
    line. target: the index of the class it explains, None for methods without one. prefix_mass: the
    share that fell on tokens that are not on the photo. scores: how faithful the map is, by the
    name of the measure. baseline: whether it knows nothing of the network, and is marked so.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.inspect import Map
        >>> Map("GradCAM()", np.ones((7, 7), np.float32), target=281).target
        281
    """

    method: str
    values: Float[ndarray, "h w"]
    about: str = ""
    target: int | None = None
    unit: str = ""
    factor: float = 1.0
    prefix_mass: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    baseline: bool = False


@dataclass(frozen=True, eq=False)
class ChannelGate:
    """Gate of one layer, 0 to 1 for each channel.

    where: a map of the channels that it lets through, in any unit.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.inspect import ChannelGate
        >>> ChannelGate("layer1", np.array([0.2, 0.9])).values.shape
        (2,)
    """

    name: str
    values: Float[ndarray, " c"]
    where: Float[ndarray, "h w"] | None = None


@dataclass(frozen=True, eq=False)
class SpatialGate:
    """Gate of one layer, 0 to 1 in each place.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.inspect import SpatialGate
        >>> SpatialGate("layer1", np.ones((7, 7))).values.shape
        (7, 7)
    """

    name: str
    values: Float[ndarray, "h w"]


Gate = ChannelGate | SpatialGate


@dataclass(frozen=True)
class Prediction:
    """One of the likeliest classes.

    target: its index. probability: from 0 to 1.

    Examples:
        >>> from vision_attn.render.inspect import Prediction
        >>> Prediction(281, "tabby", 0.83).name
        'tabby'
    """

    target: int
    name: str
    probability: float


@dataclass(frozen=True, eq=False)
class Inspection:
    """One photo as one model sees it.

    box: the part of the photo that the model sees, (left, top, right, bottom) in 0..1 of it. grid,
    prefix: how tokens lie on the photo, and what the tokens before them are called; only needed
    where there are layers. warning: a line for the page's title and the saved picture, such as that
    the weights are random. notes: what is not on the page and why, a line each. ValueError without
    layers, maps and gates, for layers of another number of tokens and for a box beyond 0..1.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render.inspect import Inspection, Weights
        >>> layer = Weights("blocks.0", np.full((1, 5, 5), 0.2, np.float32))
        >>> photo = np.zeros((8, 8, 3), np.uint8)
        >>> seen = Inspection(
        ...     "a model", "photo.jpg", photo, grid=(2, 2), prefix=["class"], layers=[layer]
        ... )
        >>> len(seen.layers)
        1
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
    warning: str = ""

    def __post_init__(self) -> None:
        tokens = len(self.prefix) + prod(self.grid)
        for layer in self.layers:
            length = (layer.q if isinstance(layer, QueryKeys) else layer.weights).shape[1]
            if length != tokens:
                raise ValueError(
                    f"layer {layer.name}: expected {tokens} tokens ({len(self.prefix)} prefix + "
                    f"grid {self.grid[0]}x{self.grid[1]}), got {length}"
                )
        if not (self.layers or self.maps or self.gates):
            raise ValueError(
                f"{self.image}, {self.model}: expected layers, maps or gates to inspect, got none"
            )
        left, top, right, bottom = self.box
        if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
            raise ValueError(f"box must be (left, top, right, bottom) in 0..1, got {self.box}")
