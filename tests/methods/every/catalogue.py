"""Every network there is to try: of timm, torchvision, transformers and vit-pytorch, and by hand.

Each with few layers where its library lets them be chosen: what differs between networks is how a
layer is made. Weights are random.
"""

import contextlib
import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import handwritten
import torch
from torch import nn


@dataclass(frozen=True)
class Entry:
    """One network to try. build gives it and the sizes (height, width) to try, the best first."""

    name: str
    source: str
    family: str
    build: Callable[[], tuple[nn.Module, list[tuple[int, int]]]]


class TooLargeError(Exception):
    """The network has more parameters than were asked for."""


def every() -> Iterator[Entry]:
    """List all networks."""
    yield from of_timm()
    yield from of_torchvision()
    yield from of_transformers()
    yield from of_vit_pytorch()
    yield from by_hand()


def one_a_family_first(entries: Iterable[Entry]) -> list[Entry]:
    """Order networks: one of each family, then a second, and so on; those named small first."""
    families: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        families.setdefault((entry.source, entry.family), []).append(entry)
    for members in families.values():
        members.sort(key=lambda entry: size_named(entry.name))
    rounds = itertools.zip_longest(*families.values())
    return [entry for each in rounds for entry in each if entry is not None]


def load_libraries(entries: Iterable[Entry]) -> None:
    """Import what networks of transformers are made of, which it does only when they are asked for."""
    kinds = {entry.family for entry in entries if entry.source == "transformers"}
    if kinds:
        import transformers

        for kind in kinds:
            for end in ("ForImageClassification", "Model"):
                getattr(transformers, kind + end, None)


SIZES = [
    "atto",
    "femto",
    "pico",
    "nano",
    "zepto",
    "xxtiny",
    "xtiny",
    "xxs",
    "xs",
    "tiny",
    "mini",
    "test",
    "small",
    "little",
    "s",
    "base",
    "b",
    "medium",
    "m",
    "large",
    "l",
    "xlarge",
    "xl",
    "huge",
    "h",
    "giant",
    "g",
    "so400m",
    "enormous",
]


def size_named(name: str) -> tuple[int, int, str]:
    """How large a name says that its network is: the word for its size, the first number."""
    words = re.split("[_:.]", name.lower())
    ranks = [SIZES.index(word) for word in words if word in SIZES]
    numbers = [int(word) for word in re.findall(r"\d+", name)]
    return ranks[0] if ranks else SIZES.index("small"), numbers[0] if numbers else 0, name


# timm ------------------------------------------------------------------------------------------

FEW = ("depths", "depth", "stages", "serial_depths", "layers")  # how timm names numbers of layers


def fewer(value: tuple[Any, ...] | list[Any], name: str) -> tuple[Any, ...] | list[Any]:
    """At most two layers a stage; a single stage keeps three."""
    if isinstance(value, int):
        return min(value, 3)
    if isinstance(value, tuple | list) and value:
        return type(value)(
            2
            if isinstance(x, int) and x > 2
            else fewer(x, name)
            if isinstance(x, tuple | list)
            else x
            for x in value
        )
    return value


def of_timm() -> Iterator[Entry]:
    import timm
    from timm.models import _registry

    for name in timm.list_models():
        yield Entry(
            f"timm:{name}",
            "timm",
            _registry._model_to_module[name],
            partial(make_timm, name),
        )


def make_timm(name: str, small: bool = True) -> tuple[nn.Module, list[tuple[int, int]]]:
    import timm
    from timm.models import _registry

    module = import_module(f"timm.models.{_registry._model_to_module[name]}")
    original = module.build_model_with_cfg
    config = timm.get_pretrained_cfg(name)
    size = tuple(config.input_size[1:]) if config else (224, 224)
    half = (max(size[0] // 2, 32), size[1])
    takes_size = bool(config and config.fixed_input_size)
    errors = []

    def shrunk(cls: Any, variant: Any, pretrained: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs |= {key: fewer(kwargs[key], key) for key in FEW if key in kwargs}
        return original(cls, variant, pretrained, *args, **kwargs)

    whole = (84, 112) if re.search(r"p(atch)?14", name) else (96, 128)  # whole patches
    sizes: list[Any] = [whole, half, size]
    for shrink in (True, False):
        for wanted in sizes if takes_size else [None]:
            options: dict[str, Any] = {"img_size": wanted} if takes_size else {}
            changed = patch.object(module, "build_model_with_cfg", shrunk if shrink else original)
            try:
                with changed, warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    network = timm.create_model(name, num_classes=7, **options)
                return network, [running(network.eval(), [wanted] if wanted else sizes)]
            except Exception as error:
                errors.append(error)
    raise errors[0]


def running(network: nn.Module, sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """The first of these sizes on which a network runs; raises what the last raised."""
    for at, size in enumerate(sizes):
        try:
            with torch.no_grad():
                network(torch.zeros(2, 3, *size))
        except Exception:
            if at == len(sizes) - 1:
                raise
        else:
            return size
    raise ValueError("no sizes to try")


def parameters_of_timm(name: str) -> int:
    """How many parameters a network of timm has as it is published."""
    import timm

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):
            return sum(x.numel() for x in timm.create_model(name).parameters())
    return 0


# torchvision -----------------------------------------------------------------------------------


def of_torchvision() -> Iterator[Entry]:
    from torchvision import models

    for name in models.list_models(module=models):
        family = name.rstrip("0123456789").partition("_")[0]

        def build(name: Any = name) -> tuple[Any, list[tuple[int, int]]]:
            options = {"image_size": 64} if name.startswith("vit_") and "14" not in name else {}
            options |= {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
            network = models.get_model(name, weights=None, num_classes=7, **options)
            sizes = [(64, 64)] if options.get("image_size") else [(128, 192), (224, 224)]
            return network, [(299, 299)] if name == "inception_v3" else sizes

        yield Entry(f"torchvision:{name}", "torchvision", family, build)


# transformers ----------------------------------------------------------------------------------

SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "projection_dim": 32}  # fmt: skip
OF_TRANSFORMERS = {  # by the class: (its configuration's, options, size)
    "ViT": ("ViT", {**SMALL, "patch_size": 16, "image_size": (64, 96)}, (64, 96)),
    "ViTMSN": ("ViTMSN", {**SMALL, "patch_size": 16, "image_size": 64}, (64, 64)),
    "DeiT": ("DeiT", {**SMALL, "patch_size": 16, "image_size": (64, 96)}, (64, 96)),
    "DeiT:WithTeacher": ("DeiT", {**SMALL, "patch_size": 16, "image_size": (64, 96)}, (64, 96)),
    "Beit": ("Beit", {**SMALL, "patch_size": 16, "image_size": 64, "use_relative_position_bias": True, "use_mean_pooling": True}, (64, 64)),
    "Beit:cls": ("Beit", {**SMALL, "patch_size": 16, "image_size": 64, "use_mean_pooling": False}, (64, 64)),
    "Data2VecVision": ("Data2VecVision", {**SMALL, "patch_size": 16, "image_size": 64}, (64, 64)),
    "Dinov2": ("Dinov2", {**SMALL, "patch_size": 16, "image_size": 96}, (64, 96)),
    "Dinov2WithRegisters": ("Dinov2WithRegisters", {**SMALL, "patch_size": 16, "image_size": 96}, (64, 96)),
    "IJepa": ("IJepa", {**SMALL, "patch_size": 16, "image_size": 64}, (64, 64)),
    "Swin": ("Swin", {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 64}, (64, 64)),
    "Swinv2": ("Swinv2", {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 64}, (64, 64)),
    "DonutSwin": ("DonutSwin", {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 64}, (64, 64)),
    "Hiera": ("Hiera", {"embed_dim": 24, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8], "image_size": [64, 64], "mlp_ratio": 2.0}, (64, 64)),
    "Cvt": ("Cvt", {"embed_dim": [16, 32, 64], "depth": [1, 2, 3], "num_heads": [1, 2, 4]}, (64, 96)),
    "Levit": ("Levit", {"hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [2, 2, 2], "key_dim": [8, 8, 8], "image_size": 112}, (112, 112)),
    "Levit:WithTeacher": ("Levit", {"hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [2, 2, 2], "key_dim": [8, 8, 8], "image_size": 112}, (112, 112)),
    "MobileViT": ("MobileViT", {"hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 12, 16, 20, 24, 28, 64], "image_size": 128, "initializer_range": 0.3}, (128, 192)),
    "MobileViTV2": ("MobileViTV2", {"image_size": 64}, (64, 96)),
    "Pvt": ("Pvt", {"hidden_sizes": [16, 32, 40, 64], "depths": [1, 1, 1, 2], "image_size": 64}, (64, 64)),
    "PvtV2": ("PvtV2", {"hidden_sizes": [16, 32, 40, 64], "depths": [1, 1, 1, 2], "image_size": 64}, (64, 96)),
    "Segformer": ("Segformer", {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 2]}, (64, 96)),
    "SwiftFormer": ("SwiftFormer", {"embed_dims": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}, (64, 96)),
    "PoolFormer": ("PoolFormer", {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}, (64, 96)),
    "FocalNet": ("FocalNet", {"embed_dim": 24, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3], "image_size": 64}, (64, 96)),
    "Bit": ("Bit", {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "embedding_size": 16, "num_groups": 8}, (64, 96)),
    "ConvNext": ("ConvNext", {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}, (64, 96)),
    "ConvNextV2": ("ConvNextV2", {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}, (64, 96)),
    "EfficientNet": ("EfficientNet", {"width_coefficient": 0.5, "depth_coefficient": 0.3, "hidden_dim": 640}, (64, 96)),
    "HGNetV2": ("HGNetV2", {}, (64, 96)),
    "MobileNetV1": ("MobileNetV1", {}, (64, 96)),
    "MobileNetV2": ("MobileNetV2", {}, (64, 96)),
    "PPLCNet": ("PPLCNet", {}, (64, 96)),
    "RegNet": ("RegNet", {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "groups_width": 8}, (64, 96)),
    "ResNet": ("ResNet", {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}, (64, 96)),
    "TextNet": ("TextNet", {}, (64, 96)),
    "CLIP": ("CLIP", {"vision_config": {**SMALL, "patch_size": 16, "image_size": 64}}, (64, 64)),
    "MetaClip2": ("MetaClip2", {"vision_config": {**SMALL, "patch_size": 16, "image_size": 64}}, (64, 64)),
    "Siglip": ("Siglip", {"vision_config": {**SMALL, "patch_size": 16, "image_size": 64}}, (64, 64)),
}  # fmt: skip
BACKBONES = {  # without a head of their own: a linear layer on what `pooler_output` gives, or the mean
    "CLIPVision": {**SMALL, "patch_size": 16, "image_size": 64},
    "MetaClip2Vision": {**SMALL, "patch_size": 16, "image_size": 64},
    "SiglipVision": {**SMALL, "patch_size": 16, "image_size": 64},
    "Aimv2Vision": {**SMALL, "patch_size": 16, "image_size": 64},
    "Aimv2Vision:head": {**SMALL, "patch_size": 16, "image_size": 64, "use_head": True},
    "DINOv3ViT": {**SMALL, "patch_size": 16, "image_size": 64},
    "ViTMAE": {**SMALL, "patch_size": 16, "image_size": 64, "mask_ratio": 0.0},
    "ViT": {**SMALL, "patch_size": 16, "image_size": 64},
    "IJepa": {**SMALL, "patch_size": 16, "image_size": 64},
    "PixtralVision": {**SMALL, "patch_size": 16, "image_size": 64},
}


class First(nn.Module):
    """The first of what a network gives."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> Any:
        return self.network(images)[0]


class Headed(nn.Module):
    """A backbone of transformers under a linear layer."""

    def __init__(self, backbone: Any, dim: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(dim, 7)

    def forward(self, images: torch.Tensor) -> Any:
        out = self.backbone(images)
        pooled = getattr(out, "pooler_output", None)
        if pooled is None:
            tokens = out.last_hidden_state  # Pixtral's are those of all images in one row
            pooled = tokens.reshape(len(images), -1, tokens.shape[-1]).mean(1)
        return self.head(pooled)


def of_transformers() -> Iterator[Entry]:
    for key, (config, options, size) in OF_TRANSFORMERS.items():
        for attention in ("eager", "sdpa"):
            kind, _, variant = key.partition(":")
            name = f"{kind}ForImageClassification{variant if variant == 'WithTeacher' else ''}"

            def build(
                name: str = name,
                config: str = config,
                options: Any = options,
                size: tuple[int, int] = size,
                attention: str = attention,
            ) -> tuple[nn.Module, list[Any]]:
                import transformers

                made = getattr(transformers, f"{config}Config")(**options, num_labels=7)
                kind = getattr(transformers, name)
                network = kind._from_config(made, attn_implementation=attention)
                return First(network) if config == "PPLCNet" else network, [size]

            yield Entry(f"transformers:{key}:{attention}", "transformers", kind, build)
    for key, options in BACKBONES.items():
        for attention in ("eager", "sdpa"):

            def build_headed(
                key: str = key, options: Any = options, attention: str = attention
            ) -> tuple[nn.Module, list[tuple[int, int]]]:
                import transformers

                kind = key.partition(":")[0]
                made = getattr(transformers, f"{kind}Config")(**options)
                backbone = getattr(transformers, f"{kind}Model")
                network = backbone._from_config(made, attn_implementation=attention)
                return Headed(network, made.hidden_size), [(64, 64)]

            yield Entry(
                f"transformers:{key}Model:{attention}",
                "transformers",
                key.partition(":")[0],
                build_headed,
            )


# vit-pytorch -----------------------------------------------------------------------------------

USUAL = {"image_size": (64, 96), "patch_size": 16, "num_classes": 7, "dim": 48, "depth": 2, "heads": 3, "mlp_dim": 96}  # fmt: skip
SQUARE = {**USUAL, "image_size": 64}
SIMPLE = {**USUAL, "dim_head": 16}
OF_VIT_PYTORCH = {  # module: (class, options, size)
    "vit": ("ViT", {**USUAL, "dim_head": 16}, (64, 96)),
    "vit:mean": ("ViT", {**USUAL, "dim_head": 16, "pool": "mean"}, (64, 96)),
    "simple_vit": ("SimpleViT", SIMPLE, (64, 96)),
    "simple_vit_with_register_tokens": ("SimpleViT", SIMPLE, (64, 96)),
    "simple_vit_with_patch_dropout": ("SimpleViT", SIMPLE, (64, 96)),
    "simple_vit_with_qk_norm": ("SimpleViT", SIMPLE, (64, 96)),
    "simple_vit_with_fft": ("SimpleViT", {**SIMPLE, "freq_patch_size": 16}, (64, 96)),
    "simple_vit_with_value_residual": ("SimpleViT", SIMPLE, (64, 96)),
    "simple_vit_with_hyper_connections": ("SimpleViT", {**SIMPLE, "num_residual_streams": 2}, (64, 96)),
    "simple_flash_attn_vit": ("SimpleViT", {**SIMPLE, "use_flash": True}, (64, 96)),
    "simple_flash_attn_vit:plain": ("SimpleViT", {**SIMPLE, "use_flash": False}, (64, 96)),
    "simple_vit_attn_residual": ("SimpleViTAttnResidual", SIMPLE, (64, 96)),
    "simple_vit_orthog_residual_update": ("SimpleViT", SIMPLE, (64, 96)),
    "simple_vit_with_relative_proj_pos_bias": ("SimpleViT", SIMPLE, (64, 96)),
    "simple_vit_with_sparse_gating": ("SimpleViTWithSparseGating", SIMPLE, (64, 96)),
    "simple_vit_with_specialized_cls": ("SimpleViT", SIMPLE, (64, 96)),
    "simple_uvit": ("SimpleUViT", {**SIMPLE, "num_register_tokens": 2}, (64, 96)),
    "deepvit": ("DeepViT", SQUARE, (64, 64)),
    "vit_with_patch_dropout": ("ViT", {**USUAL, "dim_head": 16}, (64, 96)),
    "vit_with_patch_merger": ("ViT", {**USUAL, "depth": 3, "dim_head": 16, "patch_merge_layer": 2, "patch_merge_num_tokens": 4}, (64, 96)),
    "vit_with_keel_post_ln": ("ViT", {**USUAL, "dim_head": 16}, (64, 96)),
    "vit_with_decorr": ("ViT", {**USUAL, "dim_head": 16}, (64, 96)),
    "vit_detpool": ("ViTDetPool", {**USUAL, "dim_head": 16}, (64, 96)),
    "vit_5": ("ViT", {**SQUARE, "dim_head": 16}, (64, 64)),
    "vit_for_small_dataset": ("ViT", {**SQUARE, "dim_head": 16}, (64, 64)),
    "parallel_vit": ("ViT", {**USUAL, "dim_head": 16, "num_parallel_branches": 2}, (64, 96)),
    "local_vit": ("LocalViT", {**SQUARE, "dim_head": 16}, (64, 64)),
    "rvt": ("RvT", {**SQUARE, "dim_head": 16}, (64, 64)),
    "normalized_vit": ("nViT", SIMPLE, (64, 96)),
    "look_vit": ("LookViT", {"image_size": 64, "patch_size": 16, "num_classes": 7, "dim": 48, "depth": 2, "heads": 3, "dim_head": 16, "highres_patch_size": 8, "highres_patch_crop": 6, "cross_attn_heads": 3}, (64, 64)),
    "jumbo_vit": ("JumboViT", {**SIMPLE, "num_jumbo_cls": 1, "jumbo_cls_k": 2, "jumbo_ff_mult": 1}, (64, 96)),
    "looped_vit": ("LoopedViT", SIMPLE, (64, 96)),
    "cait": ("CaiT", {**SQUARE, "dim_head": 16, "cls_depth": 2}, (64, 64)),
    "t2t": ("T2TViT", {"dim": 48, "image_size": 64, "depth": 2, "heads": 3, "mlp_dim": 96, "num_classes": 7, "t2t_layers": ((7, 4), (3, 2), (3, 2))}, (64, 64)),
    "cct": ("CCT", {"img_size": (64, 96), "embedding_dim": 48, "n_conv_layers": 2, "num_layers": 2, "num_heads": 3, "mlp_ratio": 2.0, "num_classes": 7, "positional_embedding": "learnable"}, (64, 96)),
    "cross_vit": ("CrossViT", {"image_size": 96, "num_classes": 7, "depth": 1, "sm_dim": 36, "lg_dim": 48, "sm_patch_size": 16, "lg_patch_size": 32, "sm_enc_heads": 3, "lg_enc_heads": 3, "cross_attn_heads": 3}, (96, 96)),
    "pit": ("PiT", {"image_size": 64, "patch_size": 8, "num_classes": 7, "dim": 48, "depth": (1, 1), "heads": 3, "mlp_dim": 96}, (64, 64)),
    "levit": ("LeViT", {"image_size": 128, "num_classes": 7, "stages": 2, "dim": (32, 48), "depth": 1, "heads": (2, 3), "mlp_mult": 2}, (128, 128)),
    "cvt": ("CvT", {"num_classes": 7}, (64, 64)),
    "twins_svt": ("TwinsSVT", {"num_classes": 7, "s1_emb_dim": 16, "s2_emb_dim": 24, "s3_emb_dim": 32, "s4_emb_dim": 48, "s1_local_patch_size": 4, "s2_local_patch_size": 4, "s3_local_patch_size": 4, "s3_depth": 1, "s4_local_patch_size": 2, "s4_global_k": 2, "s4_depth": 1}, (128, 128)),
    "crossformer": ("CrossFormer", {"num_classes": 7, "dim": (32, 32, 64, 64), "depth": (1, 1, 1, 1), "global_window_size": (4, 2, 2, 1), "local_window_size": 2}, (128, 128)),
    "regionvit": ("RegionViT", {"dim": (16, 24, 32, 48), "depth": (1, 1, 1, 1), "num_classes": 7, "window_size": 4, "tokenize_local_3_conv": False}, (128, 128)),
    "scalable_vit": ("ScalableViT", {"num_classes": 7, "dim": 16, "heads": (1, 2, 2, 4), "depth": (1, 1, 1, 1), "ssa_dim_key": (8, 8, 8, 8), "reduction_factor": (4, 2, 2, 1), "window_size": (16, 8, None, None)}, (128, 128)),
    "sep_vit": ("SepViT", {"num_classes": 7, "dim": 16, "dim_head": 8, "heads": (1, 2, 2, 4), "depth": (1, 1, 1, 1)}, (224, 224)),
    "max_vit": ("MaxViT", {"num_classes": 7, "dim": 16, "dim_head": 8, "depth": (1, 1), "window_size": 4}, (64, 64)),
    "nest": ("NesT", {"image_size": 64, "patch_size": 4, "num_classes": 7, "dim": 24, "heads": 3, "num_hierarchies": 3, "block_repeats": (1, 1, 1)}, (64, 64)),
    "mobile_vit": ("MobileViT", {"image_size": (128, 128), "dims": [24, 32, 40], "channels": [8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 96], "num_classes": 7}, (128, 128)),
    "xcit": ("XCiT", {"image_size": 64, "patch_size": 16, "num_classes": 7, "dim": 48, "depth": 2, "cls_depth": 1, "heads": 3, "mlp_dim": 96}, (64, 64)),
    "ats_vit": ("ViT", {**SQUARE, "dim_head": 16, "max_tokens_per_depth": (16, 8)}, (64, 64)),
    "vit_nd": ("ViTND", {"ndim": 2, "input_shape": (64, 96), "patch_size": 16, "num_classes": 7, "dim": 48, "depth": 2, "heads": 3, "mlp_dim": 96}, (64, 96)),
    "vit_nd_rotary": ("ViTND", {"ndim": 2, "input_shape": (64, 96), "patch_size": 16, "num_classes": 7, "dim": 48, "depth": 2, "heads": 3, "mlp_dim": 96}, (64, 96)),
    "vit_nd_pope": ("ViTND", {"ndim": 2, "input_shape": (64, 96), "patch_size": 16, "num_classes": 7, "dim": 48, "depth": 2, "heads": 3, "mlp_dim": 96}, (64, 96)),
    "attn_residual_with_dca_simple_vit": ("SimpleViT", SIMPLE, (64, 96)),
}  # fmt: skip


def of_vit_pytorch() -> Iterator[Entry]:
    """None where vit-pytorch is not installed."""
    try:
        import vit_pytorch  # noqa: F401
    except ImportError:
        return
    for key, (kind, options, size) in OF_VIT_PYTORCH.items():

        def build(
            key: str = key, kind: str = kind, options: Any = options, size: tuple[int, int] = size
        ) -> tuple[First, list[Any]]:
            made = getattr(import_module(f"vit_pytorch.{key.partition(':')[0]}"), kind)
            taken = inspect.signature(made).parameters  # they change from version to version
            network = made(**{name: options[name] for name in options if name in taken})
            return First(network) if key == "vit_with_decorr" else network, [size]

        yield Entry(f"vit-pytorch:{key}", "vit-pytorch", key.partition(":")[0], build)


# by hand ---------------------------------------------------------------------------------------


def by_hand_with(attend: Any) -> tuple[nn.Module, list[Any]]:
    return handwritten.Own(attend), [(32, 48)]


def by_hand() -> Iterator[Entry]:
    for name, attend in handwritten.WAYS.items():
        yield Entry(
            f"by hand:{name}", "by hand", "by hand",
            partial(by_hand_with, attend),
        )  # fmt: skip
