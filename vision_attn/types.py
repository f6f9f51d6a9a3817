"""What the parts hand to each other: images, logits, heatmaps, and how tokens lie on the image.

Axes: b batch, c channels, h height, w width, n tokens, k classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, overload, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from PIL.Image import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.arguments import check_fields, checked
from vision_attn.errors import ModelError, did_you_mean, listed, quoted

if TYPE_CHECKING:
    import vision_attn

__all__ = [
    "PAD",
    "RANDOM_CLASSIFIER",
    "RANDOM_WEIGHTS",
    "START",
    "STOP",
    "Activation",
    "Calibration",
    "Head",
    "Heatmaps",
    "Images",
    "LoadedSequences",
    "Logits",
    "Model",
    "Pool",
    "Preprocessing",
    "Provenance",
    "Symbols",
    "TokenLayout",
    "Trust",
]

Images = Float[Tensor, "b c h w"]
Logits = Float[Tensor, "b k"]
Head = int | str  # which part of a network's output: an index, a key or an attribute
PAD = 0  # of every sequence of symbols: what fills it up, then its two ends; the symbols follow
START = 1
STOP = 2
Pool = Literal["cls", "cls_dist", "cls_mean", "mean", "attention"]
Provenance = Literal["trained", "random", "random classifier", "unknown"]  # of a network's weights
Activation = Literal["softmax", "sigmoid", "identity", "none"]
ACTIVATIONS = get_args(Activation)
RANDOM_WEIGHTS = "Random weights: this model has not been trained"
RANDOM_CLASSIFIER = "Random classifier: this model has not been trained for these classes"


@dataclass(frozen=True)
class TokenLayout:
    """How a sequence of tokens lies on the image.

    The sequence is prefix tokens (class, distillation, registers) and then patch tokens, row by
    row.

    Args:
        prefix: How many tokens come before the patches.
        grid: (h, w), rows and columns of patches.
        pool: What the classifier reads: the first token (`cls`), the first two (`cls_dist`), the
            mean of the patch tokens (`mean`), both `cls` and `mean` (`cls_mean`), or an attention
            pool over the tokens (`attention`).
        class_token: Whether the first of the prefix is a class token rather than a register; None:
            only where `pool` reads one.
        registers: The places in the sequence of further tokens that are no patches, wherever they
            lie: counted from 0, or from the end with -1 for the last.

    Raises:
        ValueError: A number is out of range, or these contradict each other.

    Examples:
        >>> from vision_attn.types import TokenLayout
        >>> layout = TokenLayout(prefix=1, grid=(2, 3), registers=(-2, -1))
        >>> layout.tokens, layout.patches, layout.beside
        (9, [1, 2, 3, 4, 5, 6], [0, 7, 8])
    """

    prefix: int
    grid: tuple[int, int]
    pool: Pool = "cls"
    class_token: bool | None = None
    registers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not torch.compiler.is_compiling():  # torch cannot follow what asks annotations
            check_fields(self)
        if self.prefix < 0:
            raise ValueError(f"prefix must be at least 0, got {self.prefix}")
        if len(self.grid) != 2 or min(self.grid) < 1:
            raise ValueError(f"grid must be (height, width), each at least 1, got {self.grid}")
        least = {"cls": 1, "cls_dist": 2, "cls_mean": 1}.get(self.pool, 0)
        if self.prefix < least:
            raise ValueError(
                f"pool {quoted(self.pool)} reads {least} prefix token(s), but prefix is "
                f"{self.prefix}"
            )
        if self.class_token is None:
            object.__setattr__(self, "class_token", least > 0)
        if self.class_token and self.prefix == 0:
            raise ValueError(
                "class_token is True, but prefix is 0: count the class token in prefix"
            )
        if least and not self.class_token:
            raise ValueError(
                f"pool {quoted(self.pool)} reads the class token, but class_token is False"
            )
        places = [place % self.tokens for place in self.registers if abs(place) < self.tokens]
        if len({*places, *range(self.prefix)}) != self.prefix + len(self.registers):
            raise ValueError(
                f"registers must be places after the prefix of {self.prefix}, each once, in a "
                f"sequence of {self.tokens} tokens, got {self.registers}"
            )
        object.__setattr__(self, "registers", tuple(sorted(places)))

    @property
    def tokens(self) -> int:
        """Length of the whole sequence, prefix and registers included."""
        return self.prefix + prod(self.grid) + len(self.registers)

    @property
    def beside(self) -> list[int]:
        """The places in the sequence of the tokens that are no patches."""
        return [*range(self.prefix), *self.registers]

    @property
    def patches(self) -> list[int]:
        """The places in the sequence of the patches, row by row."""
        beside = set(self.beside)
        return [place for place in range(self.tokens) if place not in beside]

    def to_map(self, row: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead h w"]:
        """Lay the patch part of a row on the grid.

        Args:
            row: A number a token, (... n).

        Returns:
            The part, (... h w).
        """
        if row.shape[-1] != self.tokens:
            registers = f"{len(self.registers)} registers + " if self.registers else ""
            raise ValueError(
                f"expected {self.tokens} tokens ({self.prefix} prefix + {registers}grid "
                f"{self.grid[0]}x{self.grid[1]}), got {row.shape[-1]}"
            )
        patches = self.patches if self.registers else slice(self.prefix, None)
        return row[..., patches].unflatten(-1, self.grid)


@dataclass(frozen=True, eq=False)
class Heatmaps:
    """A map an image, raw: what the method's formula gives, never scaled for display.

    Attributes:
        values: float32, (b, h, w), on the token or feature grid.
        method: The explainer as it is written on the command line.
        targets: The class explained, (b,); None for methods that take no class.
        prefix_mass: The share that fell on tokens that are not on the image, (b,); None where the
            method has no such tokens. Values are not scaled up to make good for it.
        outlier_mass: The share that fell on patches whose tokens have outlying norms, (b,); None
            where that is not known.
        completeness_gap: |sum of the map - what it shares out| over the size of that, (b,), for
            methods that share out a change of the logit by numerical integration, else None.
        left_out: The places of the grid where the network has no token, since it leaves them out on
            its way, (h, w); values are 0 there. None: there are none.

    Raises:
        ValueError: `values` have another shape or dtype, or there is not a number for each of them.
    """

    values: Float[Tensor, "b h w"]
    method: str
    targets: Int[Tensor, " b"] | None = None
    prefix_mass: Float[Tensor, " b"] | None = None
    outlier_mass: Float[Tensor, " b"] | None = None
    completeness_gap: Float[Tensor, " b"] | None = None
    left_out: Bool[Tensor, "rows columns"] | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 3 or self.values.dtype != torch.float32:
            raise ValueError(
                "values must be float32 of shape (batch, height, width), got "
                f"{self.values.dtype} of shape {tuple(self.values.shape)}"
            )
        for name in ("targets", "prefix_mass", "outlier_mass", "completeness_gap"):
            given = getattr(self, name)
            if given is not None and tuple(given.shape) != self.values.shape[:1]:
                raise ValueError(
                    f"{name} must have shape ({self.values.shape[0]},), got {tuple(given.shape)}"
                )
        if self.left_out is not None and self.left_out.shape != self.values.shape[1:]:
            raise ValueError(
                f"left_out must have shape {tuple(self.values.shape[1:])}, got "
                f"{tuple(self.left_out.shape)}"
            )

    def __len__(self) -> int:
        return self.values.shape[0]

    @checked(height=1, width=1)
    def resized(self, height: int, width: int) -> "Heatmaps":
        """The same maps at another size, bilinear, in the same units (values, not mass).

        Args:
            height: In rows of the new maps.
            width: In columns of the new maps.

        Raises:
            ValueError: A size is below 1.
        """
        values = F.interpolate(
            self.values[:, None], size=(height, width), mode="bilinear", align_corners=False
        )
        left_out = self.left_out
        if left_out is not None:
            left_out = F.interpolate(left_out[None, None].float(), size=(height, width))[0, 0] > 0
        return replace(self, values=values[:, 0], left_out=left_out)


@runtime_checkable
class Preprocessing(Protocol):
    """The way from a photo to a network's input, and the way of a map back to the photo.

    `vision_attn.data.Preprocess` is the one that the toolkit uses.
    """

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network's input, in pixels."""

    @property
    def mean(self) -> tuple[float, ...]:
        """What is subtracted from each colour, which runs from 0 to 1."""

    @property
    def std(self) -> tuple[float, ...]:
        """What each colour is then divided by."""

    def __call__(self, image: Image | str | PathLike[str]) -> Float[Tensor, "c h w"]:
        """Make the network's input of a photo.

        Args:
            image: A photo, or an image file.

        Returns:
            Floats, (c h w).
        """

    def read(self, path: str | PathLike[str]) -> Image:
        """Read a file as an upright RGB image."""

    def box(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        """What the network sees of a photo: left, top, right and bottom in its pixels.

        Args:
            size: (W, H) of the photo in pixels.
        """

    def mask(
        self, mask: Bool[ndarray, "H W"] | Image, size: tuple[int, int] | None = None
    ) -> Bool[Tensor, "h w"]:
        """Lay a photo's mask over the network's input.

        Args:
            mask: (H, W) of the photo.
            size: (W, H) of the photo, to check that the mask is as large.
        """

    def boxes(self, boxes: Any, size: tuple[int, int]) -> Float[Tensor, "k 4"]:
        """Lay boxes of a photo over the network's input.

        Args:
            boxes: [left, top, right, bottom] each, in pixels of the photo.
            size: (W, H) of the photo.
        """

    def to_original(
        self, heatmap: Float[ndarray, "h w"], size: tuple[int, int]
    ) -> Float[ndarray, "H W"]:
        """Lay a map over the network's input on the photo; NaN beside it.

        Args:
            heatmap: The map, of any resolution.
            size: (W, H) of the photo.
        """


@dataclass(frozen=True)
class Calibration:
    """What makes probabilities of a network's outputs, and what these are worth.

    Args:
        temperature: The outputs are divided by it first (Guo et al. 2017, from photos that the
            network did not learn from); above 1 for a network that is too sure.
        threshold: The probability of the surest class that 95 % of those photos reach; None where
            that is not known.
        activation: `softmax` of logits of classes of which one is there; `sigmoid`, where each is
            there or not by itself, so that probabilities do not sum to 1; `identity`, where the
            network gives probabilities itself; `none`, where it gives values that have no
            probability, as a regression does. None: not told, a softmax until a run finds out.

    Examples:
        >>> import torch
        >>> from vision_attn.types import Calibration
        >>> Calibration(temperature=2.0).probabilities(torch.tensor([[0.0, 4.0]]))
        tensor([[0.1192, 0.8808]])
    """

    temperature: float = 1.0
    threshold: float | None = None
    activation: Activation | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be above 0 and finite, got {self.temperature}")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be a probability or None, got {self.threshold}")
        if self.activation not in (None, *ACTIVATIONS):
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"activation must be one of {known}, got {quoted(self.activation)}")

    def probabilities(self, logits: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
        """Make probabilities of logits; the order of the classes stays. Values stay as they are.

        Args:
            logits: The network's outputs, (... k).

        Returns:
            The same shape.
        """
        if self.activation in ("identity", "none"):
            return logits
        scaled = logits / self.temperature
        return scaled.sigmoid() if self.activation == "sigmoid" else scaled.softmax(dim=-1)

    def unlike(self, probability: float) -> str:
        """Say that a photo is unlike the network's images, if its top class has so little.

        Args:
            probability: Of the surest class.

        Returns:
            A sentence, or "" for a photo like others, or where that is not known.
        """
        if self.threshold is None or probability >= self.threshold:
            return ""
        return (
            f"Unlike the images that the network knows: the most probable class has "
            f"{probability:.1%}, where 95% of held-out images have at least {self.threshold:.1%}"
        )


@dataclass(frozen=True)
class Trust:
    """Which methods' heatmaps were shown to be trusted for a network, by `vision_attn.score`.

    Args:
        methods: As they are written on the command line, the best mean rank first.
        images: How many images that rests on, of the method that was scored on fewest.
        data: What these are images of.

    Examples:
        >>> from vision_attn.types import Trust
        >>> Trust(("GradCAM",), 300, "imagenette160").methods
        ('GradCAM',)
    """

    methods: tuple[str, ...] = ()
    images: int = 0
    data: str = ""

    @property
    def rests_on(self) -> str:
        """At least how many images of what: of a path its last two folders."""
        path = PurePath(self.data)
        named = [part for part in path.parts[bool(path.anchor) :] if not part.startswith(".")]
        return f"at least {self.images:,} images" + (f" of {'/'.join(named[-2:])}" if named else "")

    def verdict(self, method: str) -> str:
        """Say whether a method passed, and which did.

        Args:
            method: As it is written on the command line.
        """
        if method in self.methods:
            return f"Passed on this network ({self.rests_on})."
        others = f": {', '.join(self.methods)} did" if self.methods else ""
        return f"Did not pass on this network ({self.rests_on}){others}."


@dataclass(frozen=True, eq=False)
class Model:
    """A network in eval mode, and what it takes to use it on photos.

    Args:
        network: The network.
        preprocess: What makes a photo the network's input.
        classes: Their names in the order of the logits; empty where the network has no classifier.
        layout: How its tokens lie on an image of `preprocess.input_size`; None without tokens.
        name: The name in titles, by which it was loaded.
        weights: `random` where they were drawn and never trained, `random classifier` where only
            those of the last layer were, `trained` where they come from a file or a library,
            `unknown` for a network of your own.
        calibration: Of its probabilities, as they are shown; logits and heatmaps are the network's
            own.
        head: Which part of the network's output is meant, by index, key or attribute; None:
            `logits`, or the only tensor.
        trust: Which heatmaps scores have shown to be trusted; None where there are no scores.

    Examples:
        >>> import numpy as np
        >>> import vision_attn
        >>> model = vision_attn.load_model("timm:vit_tiny_patch16_224", pretrained=False)
        >>> found = model.explain(np.zeros((120, 80, 3), np.uint8), "Rollout", target="tabby")
        >>> found.overlay().size
        (80, 120)
    """

    network: nn.Module
    preprocess: Preprocessing
    classes: list[str]
    layout: TokenLayout | None
    name: str = ""
    weights: Provenance = "unknown"
    calibration: Calibration = Calibration()
    head: Head | None = None
    trust: Trust | None = None

    @property
    def warning(self) -> str:
        """A line for titles and captions where weights are random; otherwise empty."""
        random = {"random": RANDOM_WEIGHTS, "random classifier": RANDOM_CLASSIFIER}
        return random.get(self.weights, "")

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype of the network's weights; float32 for a network without such."""
        floats = (
            weight.dtype for weight in self.network.parameters() if weight.is_floating_point()
        )
        return next(floats, torch.float32)

    @property
    def device(self) -> torch.device:
        """The device of the network's weights; the CPU for a network without weights."""
        return next((weight.device for weight in self.network.parameters()), torch.device("cpu"))

    @overload  # a path's text is a sequence too, and taken for one photo
    def explain(  # type: ignore[overload-overlap]
        self,
        images: "vision_attn.runs.explain.Photo",
        methods: "vision_attn.runs.explain.Methods | None" = None,
        *,
        target: "vision_attn.methods.targets.TargetLike" = None,
        contrast: "vision_attn.methods.targets.TargetLike" = None,
        limit: int | None = None,
        output: "str | PathLike[str] | None" = None,
        head: Head | None = None,
        batch_size: int = 8,
    ) -> "vision_attn.Explanation": ...
    @overload
    def explain(
        self,
        images: "Sequence[vision_attn.runs.explain.Photo]",
        methods: "vision_attn.runs.explain.Methods | None" = None,
        *,
        target: "vision_attn.methods.targets.TargetLike" = None,
        contrast: "vision_attn.methods.targets.TargetLike" = None,
        limit: int | None = None,
        output: "str | PathLike[str] | None" = None,
        head: Head | None = None,
        batch_size: int = 8,
    ) -> "vision_attn.Explanations": ...
    def explain(
        self,
        images: Any,
        methods: "vision_attn.runs.explain.Methods | None" = None,
        *,
        target: "vision_attn.methods.targets.TargetLike" = None,
        contrast: "vision_attn.methods.targets.TargetLike" = None,
        limit: int | None = None,
        output: "str | PathLike[str] | None" = None,
        head: Head | None = None,
        batch_size: int = 8,
    ) -> Any:
        """Predict the class of a photo, or of several, and show where the model looks.

        The arguments, result and errors are those of `vision_attn.explain`.
        """
        import vision_attn  # the whole package, which is made of these types

        return vision_attn.explain(
            self,
            images,
            methods,
            target=target,
            contrast=contrast,
            limit=limit,
            output=output,
            head=head,
            batch_size=batch_size,
        )

    @checked()
    def class_index(self, wanted: int | str) -> int:
        """Find a class.

        Args:
            wanted: Its index or its name; any one of the synonyms "tabby, tabby cat" will do.

        Returns:
            The index.

        Raises:
            ModelError: The index is out of range, or no class or more than one class has the name;
                the message says the nearest names.
        """
        names = [[name.strip() for name in (full, *full.split(","))] for full in self.classes]
        word = str(wanted).strip()
        if not names and word.isdecimal():
            return int(word)
        if not names:
            what = f"no class {word}: expected an index from 0"
            what = what if is_number(word) else f"no class named {quoted(word)}"
            raise ModelError(f"{what}: the model has no names of classes")
        found = [i for i, known in enumerate(names) if word.lower() in map(str.lower, known)]
        if len(found) == 1 and isinstance(wanted, str):
            return found[0]
        if is_number(word):
            if 0 <= int(word) < len(names):
                return int(word)
            raise ModelError(f"no class {word}: expected 0 to {len(names) - 1}, or a name")
        if found:
            same = ", ".join(f"{i} ({self.classes[i]})" for i in found)
            raise ModelError(
                f"{len(found)} classes are named {quoted(word)}: give the index of {same}"
            )
        near = did_you_mean(word, [name for known in names for name in known])
        there = f": there are {listed(self.classes, '; ')}"
        raise ModelError(f"no class named {quoted(word)}{near or there}")


def is_number(word: str) -> bool:
    """Whether a word is a whole number, below 0 too, and not absurdly long."""
    return word.removeprefix("-").isdecimal() and len(word) < 20


@runtime_checkable
class Symbols(Protocol):
    """The symbols of one field of a sequence model; `vision_attn.sequences.Vocabulary` is one."""

    symbols: list[str]

    def encode(self, rows: Sequence[Sequence[str]], stop: bool = False) -> Int[Tensor, "b n"]:
        """Write each row of symbols as numbers.

        Args:
            rows: The symbols of each row.
            stop: Whether each row ends with the number that stops, as a target does.
        """

    def decode(self, numbers: Int[Tensor, "b n"]) -> list[list[str]]:
        """Read the symbols of each row of numbers."""


@dataclass(frozen=True, eq=False)
class LoadedSequences:
    """A network of sequences or questions in eval mode, and what it takes to use it.

    Attributes:
        network: The network.
        vocabularies: Of each field (source, target; question, answer).
        preprocess: What makes a photo the network's input; None where its input is text.
    """

    network: nn.Module
    vocabularies: dict[str, Symbols]
    preprocess: Preprocessing | None
