"""Change what a network computes, from Python: `intervene`.

Axes: b batch, c channels, h height, w width.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from torch import Tensor, nn

from vision_attn.arguments import checked
from vision_attn.errors import quoted
from vision_attn.inference import infer
from vision_attn.runs.explain import Photo, prepare, read
from vision_attn.tokens.inputs import images_in_words
from vision_attn.tokens.interventions.anatomy import Anatomy, Layer, anatomy_of
from vision_attn.tokens.interventions.editor import Changes, Editor, Kept, Kind
from vision_attn.tokens.modules import network_of, why_opaque
from vision_attn.tokens.path.support import blank_image
from vision_attn.types import Images, Model

__all__ = ["Heads", "Tokens", "changes_of", "intervene", "kept_of"]

Head = tuple[int, int]
Heads = Mapping[Any, Any] | Sequence[Any]  # (layer, head), with a Kind or without
Tokens = Sequence[int | tuple[int, int]]
KINDS: tuple[Kind, ...] = get_args(Kind)


@checked()
@contextmanager
def intervene(
    model: Model | nn.Module,
    *,
    heads: Heads = (),
    tokens: Tokens = (),
    mlps: Sequence[int] = (),
    blocks: Sequence[int] = (),
    patch_from: Photo | Images | None = None,
) -> Iterator[None]:
    """Change what a network computes while this is open, in this thread.

    Layers and heads are counted as `record_attention` counts them, from 0; -1 is the last. Every
    run of the network in this thread is changed, also one inside `explain` or `record_attention`,
    and with gradients. Only what is named is computed anew: torch's fused attention stays on.
    Several of these may be open: the inner one changes what the outer one gives. Afterwards the
    network is as it was, also after an error. Weights on record inside are those that the network
    computed, before its heads were replaced; values and outputs are the changed ones.

    Args:
        model: A model of `load_model` or `wrap`, or a network whose attention can be recorded.
        heads: By (layer, head), what stands in the place of the head's output, before the output
            projection. `"zero"`: zeros. `"mean"`: for every query the mean of the head's outputs
            over all queries of the same image (of the same window, where it attends in windows).
            `"uniform"`: the mean of the values over the keys that the query may see, so that each
            of its n weights is 1/n; a key is not seen where a mask is 50 or more below the largest
            of its row (-inf, and the -100 of Swin Transformers) and, in attention that a network
            writes out itself, where its weight is below e^-50 of the largest. `"patch"`: the
            head's output for the photo `patch_from`. A list of (layer, head) means "patch" with
            `patch_from`, else "zero".
        tokens: A token for all layers, or (layer, token), counted as the keys of the layer (the
            class token is 0). Its value vector is zero: others still give it weight, and get
            nothing from it. With `patch_from`: its state in the residual stream where the layer
            begins is that of the other photo.
        mlps: Layers. The branches that follow the layer's attention (its MLP) add nothing to the
            residual stream; with `patch_from` they add what they add for the other photo.
        blocks: Layers whose attention and MLP both add nothing, or what they add for the other
            photo.
        patch_from: Another photo as `explain` takes it, or its tensor (c h w) or (1 c h w), ready
            for the network, where that is given instead of a model. It is run once, as this opens.

    Yields:
        None: what it changes holds while the `with` is open.

    Raises:
        ValueError: The network's attention cannot be recorded; there is no such layer, head or
            token; a branch of it is not added to one stream; or `patch_from` does not fit.

    Examples:
        >>> import torch
        >>> import vision_attn
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> images = torch.rand(2, 3, 16, 16)
        >>> with vision_attn.intervene(network, heads={(1, 0): "zero", (1, 2): "mean"}, mlps=[0]):
        ...     changed = network(images)
        >>> changed.shape, bool((changed == network(images)).any())
        (torch.Size([2, 5]), False)
    """
    if not isinstance(heads, Mapping) and not _is_list(heads):
        raise ValueError(f"heads: expected a list or a dict of (layer, head), got {quoted(heads)}")
    named = {"tokens": (tokens, "tokens or (layer, token)"), "mlps": (mlps, "layers")}
    for word, (given, what) in (named | {"blocks": (blocks, "layers")}).items():
        if not _is_list(given):
            raise ValueError(f"{word}: expected a list of {what}, got {quoted(given)}")
    network = network_of(model)
    if reason := why_opaque(network):
        raise ValueError(f"{type(network).__name__} cannot be changed: {reason}")
    source = None if patch_from is None else _source(model, patch_from)
    image = source
    if image is None:
        size = model.preprocess.input_size if isinstance(model, Model) else None
        image = blank_image(network, size)
    with images_in_words(network, image):
        anatomy = anatomy_of(network, image)
    changes = changes_of(anatomy, heads, tokens, mlps, blocks, patch=source is not None)
    if changes.patches and source is None:
        raise ValueError('"patch" needs the photo that it is taken from: give patch_from')
    kept = None if source is None else kept_of(network, anatomy, changes, source)
    with Editor(network, anatomy, changes, kept).open():
        yield


def kept_of(network: nn.Module, anatomy: Anatomy, changes: Changes, source: Images) -> Kept:
    """Run a network for what its patches are taken from."""
    editor = Editor(network, anatomy, changes, keeps=True)
    with editor.open():
        infer(network, source)
    return editor.kept


def _source(model: Model | nn.Module, photo: Any) -> Images:
    if isinstance(model, Model):
        return prepare(model, [read(photo, model.preprocess)[1]])
    if not isinstance(photo, Tensor) or photo.ndim not in (3, 4) or photo.shape[:-3].numel() != 1:
        raise ValueError(
            "patch_from: expected the tensor (c, h, w) of one image, ready for the network, got "
            f"{tuple(photo.shape) if isinstance(photo, Tensor) else quoted(photo)}; a model of "
            "load_model or wrap takes photos"
        )
    weight = next(model.parameters(), photo)
    return photo.reshape(1, *photo.shape[-3:]).to(weight.device, weight.dtype)


def changes_of(
    anatomy: Anatomy,
    heads: Heads = (),
    tokens: Tokens = (),
    mlps: Sequence[int] = (),
    blocks: Sequence[int] = (),
    patch: bool = False,
) -> Changes:
    """Look up what is named in a network; ValueError, in a line, for what it does not have.

    patch: whether places without a kind are patched.
    """
    changes = Changes()
    usual: Kind = "patch" if patch else "zero"
    kinds = heads.items() if isinstance(heads, Mapping) else [(one, usual) for one in heads]
    for place, kind in kinds:
        at, head = _head(anatomy, place)
        if kind not in KINDS:
            raise ValueError(f"heads: expected {', '.join(KINDS)}, got {quoted(kind)}")
        changes.heads.setdefault(at, {})[head] = kind
    for token in tokens:
        _add_token(anatomy, token, patch, changes)
    joins = changes.patched if patch else changes.removed
    for word, layers in (("mlps", mlps), ("blocks", blocks)):
        for index in layers:
            layer = anatomy.layers[_layer(anatomy, word, index)]
            joins += [join for join in _branches(anatomy, word, layer) if join not in joins]
    return changes


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _layer(anatomy: Anatomy, word: str, index: Any) -> int:
    count = len(anatomy.layers)
    if not _is_index(index) or not -count <= index < count:
        raise ValueError(f"{word}: no layer {quoted(index)}: there are {anatomy.words}")
    return int(index) % count


def _pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and all(map(_is_index, given))


def _head(anatomy: Anatomy, place: Any) -> Head:
    if not _pair(place):
        raise ValueError(
            f"heads: expected (layer, head), got {quoted(place)}: there are {anatomy.words}"
        )
    at, head = _layer(anatomy, "heads", place[0]), place[1]
    layer = anatomy.layers[at]
    if not -layer.heads <= head < layer.heads:
        raise ValueError(f"heads: no head {head} in layer {at}: there are {anatomy.words}")
    if not layer.replaces:
        raise ValueError(f"heads: layer {at}, {layer.module}, gives no output for each head")
    return at, head % layer.heads


def _add_token(anatomy: Anatomy, token: Any, patch: bool, changes: Changes) -> None:
    """Add a token of one layer, or of all in which it may be told from others."""
    if not _is_index(token) and not _pair(token):
        raise ValueError(f"tokens: expected a token or (layer, token), got {quoted(token)}")
    everywhere = _is_index(token)
    index = token if everywhere else token[1]
    layers = range(len(anatomy.layers)) if everywhere else [_layer(anatomy, "tokens", token[0])]
    for at in layers:
        layer = anatomy.layers[at]
        count = layer.tokens if patch else layer.keys
        if layer.windows > 1 or not layer.replaces or (patch and layer.enters is None):
            why = "it attends in windows" if layer.windows > 1 else f"of {layer.module}"
            if patch and layer.windows == 1:
                why = "the stream (batch, tokens, width) that it begins with was not found"
            raise ValueError(f"tokens: those of layer {at} cannot be changed: {why}")
        if not 0 <= index < count:
            raise ValueError(f"tokens: no token {index} in layer {at}: expected 0 to {count - 1}")
        if patch and layer.enters is not None:
            changes.states.setdefault(layer.enters, []).append(index)
        else:
            changes.values.setdefault(at, []).append(index)


def _branches(anatomy: Anatomy, word: str, layer: Layer) -> list[Any]:
    at = anatomy.layers.index(layer)
    branches = [*layer.mlps]
    if word == "blocks":
        branches += [] if layer.attention is None else [layer.attention]
    missing = not layer.mlps if word == "mlps" else layer.attention is None
    if missing:
        known = [
            str(n)
            for n, one in enumerate(anatomy.layers)
            if (one.mlps if word == "mlps" else one.attention is not None)
        ]
        raise ValueError(
            f"{word}: layer {at} has no such branch that is added to one residual stream; "
            f"layers with one: {', '.join(known) or 'none'}"
        )
    return branches
