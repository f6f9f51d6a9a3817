"""Parts of the page: plain arrays and names, of one photo as one model sees it.

Axes: H, W the photo's height and width, h, w a map's, head, n tokens, d head width, c channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8
from numpy import ndarray

__all__ = [
    "Features",
    "Gate",
    "Inspection",
    "Layer",
    "Prediction",
    "QueryKeys",
    "ShownChannelGate",
    "ShownMap",
    "ShownSpatialGate",
    "Weights",
    "Windows",
]


@dataclass(frozen=True, eq=False)
class QueryKeys:
    """Layer whose weights are softmax(q k'): whatever scales the scores is already in q.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect import QueryKeys
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
        >>> from vision_attn.pages.inspect import Weights
        >>> Weights("blocks.0", np.full((3, 5, 5), 0.2, np.float32)).weights.shape
        (3, 5, 5)
    """

    name: str
    weights: Float32[ndarray, "head n n"]


@dataclass(frozen=True, eq=False)
class Windows:
    """Layer in which tokens attend inside windows alone (Swin).

    Args:
        name: What the page calls it.
        weights: (head window i j).
        grid: The tokens of this layer, each of which spans merged x merged patches of the
            inspection's grid.
        window: (h, w) of a window in tokens.
        places: The token in each place of each window, counted row by row, the number of tokens
            where there is padding.
        regions: Two places of a window attend to each other where these numbers are equal.
        shift: Of the windows in tokens, (h, w).
        merged: See `grid`.

    Raises:
        ValueError: A token is not in one place.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect import Windows
        >>> layer = Windows(
        ...     "0",
        ...     np.full((3, 2, 4, 4), 0.25, np.float32),  # head, window, query, key
        ...     grid=(2, 4),
        ...     window=(2, 2),
        ...     places=np.array([[0, 1, 4, 5], [2, 3, 6, 7]]),
        ...     regions=np.zeros((2, 4), int),
        ... )
        >>> layer.rows().shape  # head, token, place
        (3, 8, 4)
    """

    name: str
    weights: Float32[ndarray, "head _ _ _"]  # window i j, checked below
    grid: tuple[int, int]
    window: tuple[int, int]
    places: Int[ndarray, "window j"]
    regions: Int[ndarray, "window j"]
    shift: tuple[int, int] = (0, 0)
    merged: int = 1

    def __post_init__(self) -> None:
        tokens = prod(self.grid)
        inside = np.sort(self.places[self.places != tokens])
        if not np.array_equal(inside, np.arange(tokens)):
            raise ValueError(
                f"layer {self.name}: expected each of the {tokens} tokens of a grid of "
                f"{self.grid[0]}x{self.grid[1]} in one place of a window (and {tokens} for "
                f"padding), got {len(inside)} places from {self.places.min()} to "
                f"{self.places.max()}"
            )
        if self.weights.shape[1:] != (*self.places.shape, prod(self.window)):
            raise ValueError(
                f"layer {self.name}: expected weights (head, {len(self.places)} windows, "
                f"{prod(self.window)} queries, {prod(self.window)} keys), got {self.weights.shape}"
            )

    @property
    def where(self) -> tuple[Int[ndarray, " n"], Int[ndarray, " n"]]:
        """The window of each token, and its place there."""
        order = self.places.ravel().argsort(kind="stable")[: prod(self.grid)]
        return np.divmod(order, self.places.shape[1])

    def rows(self) -> Float32[ndarray, "head n j"]:
        """List each token's weights for the places of its window."""
        window, place = self.where
        return self.weights[:, window, place]


Layer = QueryKeys | Weights | Windows


@dataclass(frozen=True, eq=False)
class ShownMap:
    """Heatmap of one method, raw: `values` times `factor` are in `unit`.

    Attributes:
        method: As it is written on the command line, `Rollout(fusion='max')`.
        about: What it is, in a line.
        target: The index of the class it explains, None for methods without one.
        prefix_mass: The share that fell on tokens that are not on the photo.
        scores: How faithful the map is, by the name of the measure.
        baseline: Whether it knows nothing of the network, and is marked so.
        passed: Whether scores have shown that the method's maps can be trusted, which is marked,
            too.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect import ShownMap
        >>> ShownMap("GradCAM()", np.ones((7, 7), np.float32), target=281).target
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
    passed: bool = False


@dataclass(frozen=True, eq=False)
class ShownChannelGate:
    """Gate of one layer, 0 to 1 for each channel.

    Attributes:
        where: A map of the channels that it lets through, in any unit.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect import ShownChannelGate
        >>> ShownChannelGate("layer1", np.array([0.2, 0.9])).values.shape
        (2,)
    """

    name: str
    values: Float[ndarray, " c"]
    where: Float[ndarray, "h w"] | None = None


@dataclass(frozen=True, eq=False)
class ShownSpatialGate:
    """Gate of one layer, 0 to 1 in each place.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect import ShownSpatialGate
        >>> ShownSpatialGate("layer1", np.ones((7, 7))).values.shape
        (7, 7)
    """

    name: str
    values: Float[ndarray, "h w"]


Gate = ShownChannelGate | ShownSpatialGate


@dataclass(frozen=True, eq=False)
class Features:
    """Features of the patches after one layer.

    Attributes:
        name: The module's.
        vectors: One of each patch.
        colors: The first three principal components as red, green and blue, over all photos of the
            page.
        foreground: The patches that these are of.
        variance: The share of each of the three.
        nearest: The page's other photos of this model, by their numbers, with the cosine of the
            mean features, the most similar first.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect import Features
        >>> Features("blocks.0", np.zeros((3, 5, 8), np.float32)).grid
        (3, 5)
    """

    name: str
    vectors: Float32[ndarray, "rows columns d"]
    colors: UInt8[ndarray, "rows columns 3"] | None = None
    foreground: Bool[ndarray, "rows columns"] | None = None
    variance: Sequence[float] = ()
    nearest: Sequence[tuple[int, float]] = ()

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.vectors.shape[0], self.vectors.shape[1]


@dataclass(frozen=True)
class Prediction:
    """One of the likeliest classes, or another target.

    Attributes:
        target: Its index; of what is no class, a number after those of the classes.
        probability: From 0 to 1, None where it has none.

    Examples:
        >>> from vision_attn.pages.inspect import Prediction
        >>> Prediction(281, "tabby", 0.83).name
        'tabby'
    """

    target: int
    name: str
    probability: float | None


@dataclass(frozen=True, eq=False)
class Inspection:
    """One photo as one model sees it.

    Attributes:
        model: Its name.
        image: The photo's name.
        photo: Its pixels, (H W 3).
        box: The part of the photo that the model sees, (left, top, right, bottom) in 0..1 of it;
            beyond where the model sees a padding.
        predictions: The likeliest classes.
        grid: (rows, columns) of tokens on the photo; only needed where there are layers.
        prefix: What the tokens before them are called; only needed where there are layers.
        layers: The weights of each attention layer.
        maps: Heatmaps.
        gates: How far each gate is open.
        features: Of the patches, after some layers.
        notes: What else is to know, a line each.
        unlike: A line where the photo is unlike what the model knows.
        warning: A line for the page's title and the saved picture, such as that the weights are
            random.
        no_click: Why a click on the photo shows no attention, where there are no layers.

    Raises:
        ValueError: There are no layers, maps, gates and features, a layer has another number of
            tokens, or the box shows nothing of the photo.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect import Inspection, Weights
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
    maps: Sequence[ShownMap] = ()
    gates: Sequence[Gate] = ()
    features: Sequence[Features] = ()
    notes: Sequence[str] = ()
    unlike: str = ""
    warning: str = ""
    no_click: str = ""

    def __post_init__(self) -> None:
        tokens = len(self.prefix) + prod(self.grid)
        for layer in self.layers:
            if isinstance(layer, Windows):
                grid = tuple(-(-side // layer.merged) for side in self.grid)
                if layer.grid != grid or self.prefix:
                    raise ValueError(
                        f"layer {layer.name}: expected windows of a grid of {grid[0]}x{grid[1]} "
                        f"and no prefix, as {layer.merged}x{layer.merged} of "
                        f"{self.grid[0]}x{self.grid[1]} patches are a token, got "
                        f"{layer.grid[0]}x{layer.grid[1]} and {len(self.prefix)} prefix tokens"
                    )
                continue
            length = (layer.q if isinstance(layer, QueryKeys) else layer.weights).shape[1]
            if length != tokens:
                raise ValueError(
                    f"layer {layer.name}: expected {tokens} tokens ({len(self.prefix)} prefix + "
                    f"grid {self.grid[0]}x{self.grid[1]}), got {length}"
                )
        if not (self.layers or self.maps or self.gates or self.features):
            raise ValueError(
                f"{self.image}, {self.model}: expected layers, maps, gates or features to inspect, "
                "got none"
            )
        left, top, right, bottom = self.box
        on_photo = left < min(right, 1) and right > 0 and top < min(bottom, 1) and bottom > 0
        if not (on_photo and all(map(isfinite, self.box))):
            raise ValueError(
                "box must be (left, top, right, bottom) in shares of the photo, 0..1 or beyond, of "
                f"which it shows a part, got {self.box}"
            )
