"""timm's networks as ours: any of them by name in a config, and its ViTs as our ViT.

timm is imported where it is needed: it takes twice as long as torch.
"""

import functools
import sys
from typing import Any, ClassVar

from torch import Tensor, nn

from vision_attn.arguments import checked
from vision_attn.attention import MultiHeadAttention
from vision_attn.compat.download import hub_reached_or_left
from vision_attn.errors import ModelError, did_you_mean, quoted
from vision_attn.models.checkpoint import Rebuildable, load_weights, read_weights, without_prefix
from vision_attn.models.errors import library_errors
from vision_attn.models.vit import ViT
from vision_attn.types import Images, Logits

__all__ = [
    "TimmModel",
    "create_timm",
    "fit_classifier",
    "is_timm_vit",
    "read_timm_weights",
    "vit_from_timm",
]

# Where weights come from is said by `pretrained` and `weights`, never inside the model arguments.
NOT_MODEL_ARGS = (
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "checkpoint_path",
    "cache_dir",
)


class TimmModel(Rebuildable):
    """The network that timm knows by this name.

    Args:
        name: timm's name of the network.
        num_classes: The size of a new classifier; None: as timm has it.
        pretrained: Whether to start with timm's own weights; else the start is random.
        weights: A file of weights to start with, in the place of timm's.
        model_args: Arguments of timm's constructor, unchanged.

    Raises:
        ModelError: timm has no such network or takes no such arguments, or the file does not fit.

    Examples:
        >>> import torch
        >>> from vision_attn.models import TimmModel
        >>> small = {"embed_dim": 12, "depth": 1, "num_heads": 2}
        >>> network = TimmModel("vit_tiny_patch16_224", num_classes=3, model_args=small)
        >>> network(torch.randn(2, 3, 224, 224)).shape
        torch.Size([2, 3])
    """

    rebuilt_with: ClassVar[dict[str, Any]] = {"pretrained": False, "weights": None}

    def __init__(
        self,
        name: str,
        num_classes: int | None = None,
        pretrained: bool = False,
        weights: str | None = None,
        model_args: dict[str, Any] | None = None,
    ):
        super().__init__()
        args = dict(model_args or {})
        if num_classes is not None:
            args["num_classes"] = num_classes
        self.network = create_timm(name, pretrained=pretrained and weights is None, **args)
        if weights is not None:
            start = read_timm_weights(self.network, weights)
            if num_classes is not None:
                start = _with_new_classifier(self.network, start)
            load_weights(self.network, start, weights)

    def forward(self, images: Images) -> Logits:
        return self.network(images)

    def set_image_size(self, size: tuple[int, int]) -> None:
        """Make a network that is built for one size take another: positions are resampled.

        Args:
            size: (h, w) in pixels.

        Raises:
            ModelError: It can only take the size that it is built for.
        """
        network: Any = self.network
        if not network.pretrained_cfg["fixed_input_size"]:
            return
        if not hasattr(network, "set_input_size"):
            raise ModelError(f"{self.init_args['name']} is built for one image size, not {size}")
        network.set_input_size(img_size=size)


def create_timm(
    name: str,
    *,
    pretrained: bool = False,
    image_size: tuple[int, int] | None = None,
    **model_args: Any,
) -> nn.Module:
    """timm.create_model for a name of timm's own list; ModelError says what is wrong.

    image_size: (h, w), for networks that are built for one size; others take any. Names that make
    timm read a folder or a repository ("local-dir:", "hf-hub:") are refused.
    """
    import timm

    names = timm.list_models() + timm.list_models(include_tags=True)
    if ":" in name or "/" in name or not timm.is_model(name):
        raise ModelError(f"timm has no network named {quoted(name)}{did_you_mean(name, names)}")
    for reserved in NOT_MODEL_ARGS:
        if reserved in model_args:
            raise ModelError(
                f"{quoted(reserved)} is not an argument of a network: use pretrained=True or "
                "weights=FILE"
            )
    about = timm.models.get_pretrained_cfg(name.split(".")[0])
    if image_size is not None and about is not None and about.fixed_input_size:
        model_args["img_size"] = image_size
    with library_errors(f"timm:{name}", "" if name in names else did_you_mean(name, names)):
        if not pretrained:
            return timm.create_model(name, **model_args)
        with hub_reached_or_left():
            return timm.create_model(name, pretrained=True, **model_args)


def read_timm_weights(network: nn.Module, path: str) -> dict[str, Tensor]:
    """Read the weights of a file in this network's names, its positions resampled to fit.

    Files in the format of a model's first publication go through timm's own converter.
    """
    expected = network.state_dict()
    weights = without_prefix(read_weights(path), expected)
    if all(name in weights and weights[name].shape == t.shape for name, t in expected.items()):
        return weights
    convert = vars(sys.modules[type(network).__module__]).get("checkpoint_filter_fn")
    try:
        return convert(weights, network) if convert else weights
    except Exception:  # a converter fails in any way on what it does not know: say what differs
        return weights


def fit_classifier(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give the network as many outputs as the weights have: they may be fine-tuned ones."""
    timm_network: Any = network
    for layer in _classifiers(network)[:1]:
        weight = weights.get(f"{layer}.weight")
        if weight is not None and len(weight) != timm_network.num_classes:
            timm_network.reset_classifier(len(weight))


def _with_new_classifier(network: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights with the network's own classifier where the file's has another size."""
    own = network.state_dict()
    for layer in _classifiers(network):
        for name in (f"{layer}.weight", f"{layer}.bias"):
            if name in own and name in weights and own[name].shape != weights[name].shape:
                weights = {**weights, name: own[name]}
    return weights


def _classifiers(network: Any) -> tuple[str, ...]:
    """Names of the layers that give the logits: two in DeiT's distilled networks."""
    names = network.pretrained_cfg.get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def is_timm_vit(network: nn.Module) -> bool:
    """Whether this is timm's VisionTransformer itself, no class derived from it."""
    if not type(network).__module__.startswith("timm."):
        return False
    from timm.models.vision_transformer import VisionTransformer

    return type(network) is VisionTransformer


@checked()
def vit_from_timm(network: nn.Module) -> ViT:
    """Make our ViT of timm's: the same arguments and weights, and so the same logits.

    Args:
        network: A `VisionTransformer` of timm.

    Returns:
        A network of ours.

    Raises:
        ModelError: It is a ViT that ours does not cover (pre-norm as in CLIP, attention pooling,
            query norm, gated MLPs, other activations).
    """
    block: Any = _plain_block(network)
    vit: Any = network
    ours = ViT(
        image_size=vit.patch_embed.img_size,
        patch_size=vit.patch_embed.patch_size[0],
        num_classes=vit.num_classes,
        dim=vit.embed_dim,
        depth=len(vit.blocks),
        heads=block.attn.num_heads,
        mlp_ratio=block.mlp.fc1.out_features / vit.embed_dim,
        pool="cls" if vit.global_pool == "token" else "mean",
        class_token=vit.has_class_token,
        registers=vit.num_reg_tokens,
        embed_prefix=not vit.no_embed_class,
        norm_after_pool=not isinstance(vit.fc_norm, nn.Identity),
        attention=functools.partial(MultiHeadAttention, qkv_bias=block.attn.qkv.bias is not None),
        layer_scale=None if isinstance(block.ls1, nn.Identity) else 1e-5,
    )
    load_weights(ours, vit.state_dict(), "timm's network")
    return ours.train(vit.training)


def _plain_block(module: nn.Module) -> nn.Module:
    """The first block, once everything is checked that shapes and names of weights do not show."""
    from timm.models.vision_transformer import Block

    network: Any = module
    if not is_timm_vit(network) or type(network.blocks[0]) is not Block:
        raise ModelError(f"expected a plain ViT of timm, got {type(network).__name__}")
    block = network.blocks[0]
    norm = block.norm1
    checks = {
        "token or mean pooling": network.global_pool in ("token", "avg"),
        "no prefix tokens in the mean": not network.pool_include_prefix,
        "exact GELU": type(getattr(block.mlp, "act", None)).__name__ == "GELU",
        "LayerNorm with eps 1e-6": isinstance(norm, nn.LayerNorm) and norm.eps == 1e-6,
        "square patches": len(set(network.patch_embed.patch_size)) == 1,
    }
    if differing := [what for what, fits in checks.items() if not fits]:
        raise ModelError(
            f"vision_attn's ViT has {', '.join(differing)}; this timm network does not"
        )
    return block
