"""Attention weights in one call.

Axes: b batch (windows count as batch), head, i queries, j keys, c channels, h height, w width.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.arguments import argument, checked
from vision_attn.errors import quoted
from vision_attn.hooks import apart
from vision_attn.inference import infer
from vision_attn.tokens.inputs import images_in_words
from vision_attn.tokens.modules import LayerLike, calls_of_layer, network_of
from vision_attn.tokens.record.record import record_attention
from vision_attn.types import Images, Model

__all__ = ["attention_weights"]


@checked()
def attention_weights(
    network: nn.Module | Model,
    images: Images,
    layers: int | LayerLike | Sequence[int | LayerLike] | None = None,
    heads: int | Sequence[int] | None = None,
) -> dict[str, Float[Tensor, "b head i j"]]:
    """Run a network and return the weights of its attention calls, in eval mode.

    `record_attention` has the same weights in tiles, for long sequences, and with gradients.

    Args:
        network: A network, or a model for its network.
        images: (b c h w), normalised as the network was trained.
        layers: An index among the calls in the order they run, -1 the last; a module or its name
            (`blocks.-1`), for the calls made in it; or a list of these. None: all.
        heads: The index of a head, -1 the last, or a list of them. None: all.

    Returns:
        By the name of the module that attends, in the order they run: the weight that query i gives
        key j, (b head i j), in float32, or float64 if the network runs in it. With windows, those
        of one image lie in a row along b, and i and j count the tokens of a window. A module that
        attends several times has `:2`, `:3`, ... at its name from the second time on.

    Raises:
        ValueError: There is no attention, or no such layer or head.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ViT
        >>> from vision_attn.tokens import attention_weights
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> weights = attention_weights(network, torch.rand(2, 3, 16, 16), layers=-1, heads=[0, 2])
        >>> {name: tuple(each.shape) for name, each in weights.items()}
        {'blocks.1.attn.attend': (2, 2, 5, 5)}
    """
    network = network_of(network)
    with apart(), images_in_words(network, images), record_attention(network, keep=()) as record:
        infer(network, images.clone())
    calls = record.calls
    callers = [call.module for call in calls]
    chosen: Sequence[int] = range(len(calls))
    if layers is not None:
        wanted = [argument("layers", choice, int | LayerLike) for choice in _several(layers)]
        chosen = sorted(
            {index for layer in wanted for index in calls_of_layer(network, callers, layer)}
        )
    weights: dict[str, Tensor] = {}
    times: Counter[str] = Counter()
    for index, call in enumerate(calls):
        times[call.module] += 1
        if index not in chosen:
            continue
        count = times[call.module]
        name = call.module if count == 1 else f"{call.module}:{count}"
        weights[name] = call.weights()[:, _indices(heads, call.heads, call.module)]
    return weights


def _indices(heads: int | Sequence[int] | None, count: int, module: str) -> list[int] | slice:
    if heads is None:
        return slice(None)
    wanted = [argument("heads", head, int) for head in _several(heads)]
    if not wanted or not all(-count <= head < count for head in wanted):
        raise ValueError(
            f"heads must be from {-count} to {count - 1} in {module or 'the network'}, "
            f"got {quoted(heads)}"
        )
    return [head % count for head in wanted]


def _several(value: Any) -> Sequence[Any]:
    """Wrap a single value in a list."""
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
