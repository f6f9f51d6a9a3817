"""Networks that compare images with texts: CLIP, SigLIP and their kin, as classifiers.

The classes are given in words. Each is one text, or several whose normalised embeddings are
averaged and normalised again (Radford et al. 2021, section 3.1.4). The logits are the scaled
cosines of CLIP, or SigLIP's with their bias: what the libraries call logits per image.

Axes: b batch, k classes, n texts, t tokens of a text, d width of an embedding.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.compat.download import hub_reached_or_left
from vision_attn.errors import ModelError, did_you_mean, quoted
from vision_attn.models.checkpoint import load_weights, read_weights
from vision_attn.models.errors import library_errors
from vision_attn.models.huggingface_model import KINDS_WITH_TEXTS, NO_CODE
from vision_attn.types import Activation, Images, Logits

__all__ = [
    "Classes",
    "ImageTextModel",
    "Texts",
    "create_open_clip",
    "huggingface_with_texts",
    "prompts_of",
]

Classes = Sequence[str] | Mapping[str, str | Sequence[str]]
AT_ONCE = 256  # texts


class Texts(ABC):
    """The tower of a network that makes embeddings of texts.

    Attributes:
        model: The library's own network.

    Examples:
        >>> from vision_attn.models.image_text import Texts
        >>> Texts.__abstractmethods__ == {"tokenize", "encode", "pieces", "embedding"}
        True
    """

    model: Any

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Make the tower's input of texts: `ids` (n t), and what else it takes."""

    @abstractmethod
    def encode(self, inputs: dict[str, Tensor]) -> Float[Tensor, "n d"]:
        """Compute the embeddings, not normalised."""

    @abstractmethod
    def pieces(self, inputs: dict[str, Tensor]) -> list[list[str]]:
        """Name the tokens of each text (n t), padding by an empty word."""

    @property
    @abstractmethod
    def embedding(self) -> nn.Module:
        """The module that makes vectors (n t d) of `ids`."""

    def classes(self, prompts: Mapping[str, Sequence[str]]) -> Float[Tensor, "k d"]:
        """Compute an embedding of length 1 for each class, of all its texts."""
        every = [text for texts in prompts.values() for text in texts]
        with torch.no_grad():
            parts = [
                F.normalize(self.encode(self.tokenize(every[start : start + AT_ONCE])), dim=-1)
                for start in range(0, len(every), AT_ONCE)
            ]
        each = torch.cat(parts).split([len(texts) for texts in prompts.values()])
        return F.normalize(torch.stack([embeddings.mean(0) for embeddings in each]), dim=-1)


class ImageTextModel(nn.Module):
    """Images against classes in words: scale cos(image, class) + bias, (b k).

    Args:
        image: From images to embeddings (b d).
        texts: Makes the classes' embeddings, once, which are kept as the buffer `class_embeddings`
            (k d).
        prompts: The texts of each class.
        scale: What the cosine is multiplied by.
        bias: What is added to that.
        activation: What makes probabilities.
        processor: What the library says of its images.
        image_size: Their size in pixels, as the library says.
        missing: The weights that it did not have, so that they are random.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from vision_attn.models.image_text import ImageTextModel
        >>> class Letters:
        ...     def classes(self, prompts):
        ...         return torch.eye(2)
        >>> image = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
        >>> network = ImageTextModel(image, Letters(), {"a": ["a"], "b": ["b"]}, scale=100.0)
        >>> network(torch.rand(5, 3, 4, 4)).shape
        torch.Size([5, 2])
    """

    class_embeddings: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(
        self,
        image: nn.Module,
        texts: Any,
        prompts: Mapping[str, Sequence[str]],
        scale: float,
        bias: float = 0.0,
        activation: Activation = "softmax",
        processor: dict[str, Any] | None = None,
        image_size: int | None = None,
        missing: Sequence[str] = (),
    ):
        super().__init__()
        self.image = image
        self.tower = (texts,)  # not a part of what maps images to logits
        self.prompts = {name: list(each) for name, each in prompts.items()}
        self.activation: Activation = activation
        self.processor, self.image_size, self.missing = processor or {}, image_size, list(missing)
        embeddings = texts.classes(self.prompts)
        self.register_buffer("class_embeddings", embeddings)
        self.register_buffer("scale", torch.as_tensor(scale).to(embeddings))
        self.register_buffer("bias", torch.as_tensor(bias).to(embeddings))

    @property
    def texts(self) -> Texts:
        """The tower of the texts."""
        return self.tower[0]

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return list(self.prompts)

    def forward(self, images: Images) -> Logits:
        features = self.image(images)
        features = features / features.norm(dim=-1, keepdim=True)
        return self.scale * (features @ self.class_embeddings.mT) + self.bias


def prompts_of(classes: Classes, templates: Sequence[str] | None = None) -> dict[str, list[str]]:
    """List the texts of each class: its own, put into each template in the place of {}.

    Raises ModelError for what is no text, none or the same class twice, a template without {}.

    Examples:
        >>> from vision_attn.models.image_text import prompts_of
        >>> prompts_of(["dog"], ["a photo of a {}", "a drawing of a {}"])
        {'dog': ['a photo of a dog', 'a drawing of a dog']}
    """
    if isinstance(classes, str) or not isinstance(classes, Mapping | Sequence):
        raise ModelError(f"classes: expected a list of texts, got {quoted(classes)}")
    if isinstance(templates, str):
        raise ModelError(f"templates: expected a list of texts with {{}}, got {quoted(templates)}")
    texts_by_name = classes if isinstance(classes, Mapping) else {name: name for name in classes}
    prompts: dict[str, list[str]] = {}
    for name, texts in texts_by_name.items():
        each = [texts] if isinstance(texts, str) else list(texts)
        if not each or not all(isinstance(text, str) and text.strip() for text in (name, *each)):
            raise ModelError(f"classes: expected texts, got {quoted(name)}: {quoted(texts)}")
        prompts[name] = [put.replace("{}", text) for text in each for put in templates or ["{}"]]
    if len(texts_by_name) != len(classes) or not texts_by_name:
        raise ModelError(f"classes: expected one or more, each once, got {quoted(list(classes))}")
    for put in templates or ():
        if "{}" not in put:
            raise ModelError(f"templates: expected {{}} where the class goes, got {quoted(put)}")
    return prompts


class _HuggingFaceImages(nn.Module):
    """The image tower of a network of transformers, with its projection."""

    def __init__(self, model: Any, image_size: int):
        super().__init__()
        self.vision_model = model.vision_model
        self.projection = getattr(model, "visual_projection", nn.Identity())
        self.size = image_size, image_size
        takes = inspect.signature(type(model.vision_model).forward).parameters
        self.resamples = "interpolate_pos_encoding" in takes

    def forward(self, images: Images) -> Float[Tensor, "b d"]:
        options: dict[str, Any] = {}
        if self.resamples and tuple(images.shape[2:]) != self.size:
            options["interpolate_pos_encoding"] = True
        return self.projection(self.vision_model(pixel_values=images, **options).pooler_output)


class _HuggingFaceTexts(Texts):
    def __init__(self, model: Any, tokenizer: Any, longest: int, fills: bool):
        self.model, self.tokenizer, self.longest, self.fills = model, tokenizer, longest, fills

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        tokens = self.tokenizer(
            list(texts),
            padding="max_length" if self.fills else True,
            truncation=True,
            max_length=self.longest,
            return_tensors="pt",
        )
        mask = {"attention_mask": tokens["attention_mask"]} if "attention_mask" in tokens else {}
        return {"ids": tokens["input_ids"]} | mask

    def encode(self, inputs: dict[str, Tensor]) -> Float[Tensor, "n d"]:
        device = next(self.embedding.parameters()).device
        arguments = {"input_ids" if name == "ids" else name: x for name, x in inputs.items()}
        out = self.model.get_text_features(**{name: x.to(device) for name, x in arguments.items()})
        return getattr(out, "pooler_output", out)

    def pieces(self, inputs: dict[str, Tensor]) -> list[list[str]]:
        ids = inputs["ids"]
        seen = inputs.get("attention_mask", ids != self.tokenizer.pad_token_id).bool()
        return [
            [
                self.tokenizer.decode([token]) if real else ""
                for token, real in zip(*row, strict=True)
            ]
            for row in zip(ids.tolist(), seen.tolist(), strict=True)
        ]

    @property
    def embedding(self) -> nn.Module:
        tower, words = self.model.text_model, self.model.config.text_config.vocab_size
        embeddings = [module for module in tower.modules() if isinstance(module, nn.Embedding)]
        return next(module for module in embeddings if module.num_embeddings == words)


class _PatchedImages(nn.Module):
    """The image tower of SigLIP 2 NaFlex, which takes patches of images of any proportions."""

    def __init__(self, model: Any):
        super().__init__()
        self.vision_model = model.vision_model
        self.patch_size = model.config.vision_config.patch_size

    def forward(self, images: Images) -> Float[Tensor, "b d"]:
        side = self.patch_size
        rows, columns = images.shape[2] // side, images.shape[3] // side
        images = images[:, :, : rows * side, : columns * side]
        cells = images.unflatten(3, (columns, side)).unflatten(2, (rows, side))
        patches = cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        grid = torch.tensor([[rows, columns]], dtype=torch.int64, device="cpu")
        out = self.vision_model(
            pixel_values=patches,
            pixel_attention_mask=torch.ones(
                patches.shape[:2], dtype=torch.int64, device=patches.device
            ),
            spatial_shapes=grid.expand(len(images), -1),
        )
        return out.pooler_output


def huggingface_with_texts(
    name: str,
    prompts: Mapping[str, Sequence[str]],
    pretrained: bool = True,
    weights: str | None = None,
    model_args: dict[str, Any] | None = None,
) -> ImageTextModel:
    """Make a classifier of a repository or folder of transformers that compares images with texts.

    Raises ModelError, one line, where it is of another kind, lacks a tokenizer, or is not there.
    """
    try:
        from transformers import CONFIG_MAPPING, AutoConfig, AutoImageProcessor, AutoTokenizer
        from transformers import AutoModelForZeroShotImageClassification as Auto
    except ImportError as error:
        raise ModelError("hf: needs transformers: pip install transformers") from error
    if name in CONFIG_MAPPING:
        raise ModelError(
            f"hf:{name}: a kind of network has no tokenizer for the classes: name a repository, or "
            "a folder that holds one"
        )
    processor: dict[str, Any] = {}
    missing: list[str] = []
    model: Any
    hub = nullcontext() if Path(name).is_dir() else hub_reached_or_left()
    with library_errors(f"hf:{name}", offline="name a folder that holds it"), hub:
        config: Any = AutoConfig.from_pretrained(name, **NO_CODE, **(model_args or {}))
        if config.model_type not in KINDS_WITH_TEXTS:
            raise ModelError(no_texts(f"hf:{name}"))
        with suppress(OSError):  # it need not have one
            processor = AutoImageProcessor.from_pretrained(name, **NO_CODE).to_dict()
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(name, **NO_CODE)
            if tokenizer.vocab_size <= len(tokenizer.all_special_ids):  # made of nothing
                raise ValueError("no word is known to its tokenizer")
        except ImportError as error:
            raise ModelError(
                f"hf:{name}: its tokenizer needs another package: pip install sentencepiece"
            ) from error
        except Exception as error:
            if Path(name).is_dir():
                raise ModelError(
                    f"hf:{name}: no tokenizer can be read there: save one to that folder with "
                    "tokenizer.save_pretrained"
                ) from error
            raise
        if pretrained and weights is None:
            model, report = Auto.from_pretrained(
                name, config=config, output_loading_info=True, **NO_CODE
            )
            missing = list(report["missing_keys"])
        else:
            model = Auto.from_config(config, **NO_CODE)
    if weights is not None:
        load_weights(model, read_weights(weights), weights)
    model.eval()
    bias = getattr(model, "logit_bias", None)
    vision = config.vision_config
    naflex = config.model_type == "siglip2"
    side = vision.patch_size * int(vision.num_patches**0.5) if naflex else vision.image_size
    sigmoid = config.model_type.startswith("siglip")
    return ImageTextModel(
        _PatchedImages(model) if naflex else _HuggingFaceImages(model, side),
        _HuggingFaceTexts(model, tokenizer, _longest(model), fills=sigmoid),
        prompts,
        scale=float(model.logit_scale.detach().exp()),
        bias=0.0 if bias is None else float(bias.detach()),
        activation="sigmoid" if sigmoid else "softmax",
        processor=processor,
        image_size=side,
        missing=missing,
    )


def _longest(model: Any) -> int:
    """Count the tokens that a text may have: where padding has a place, those behind it."""
    positions = model.config.text_config.max_position_embeddings
    counted = (
        positions - module.padding_idx - 1
        for module in model.text_model.modules()
        if isinstance(module, nn.Embedding)
        and module.num_embeddings == positions
        and module.padding_idx is not None
    )
    return next(counted, positions)


class _OpenClipTexts(Texts):
    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        return {"ids": self.tokenizer(list(texts))}

    def encode(self, inputs: dict[str, Tensor]) -> Float[Tensor, "n d"]:
        device = next(self.embedding.parameters()).device
        return self.model.encode_text(inputs["ids"].to(device))

    def pieces(self, inputs: dict[str, Tensor]) -> list[list[str]]:
        real = inputs["ids"].flip(1).cumsum(1).flip(1) > 0  # 0 pads, after the end alone
        return [
            [self.tokenizer.decode([token]).strip() if is_real else "" for token, is_real in pairs]
            for pairs in map(zip, inputs["ids"].tolist(), real.tolist())
        ]

    @property
    def embedding(self) -> nn.Module:
        tower = getattr(self.model, "text", self.model)
        return next(module for module in tower.modules() if isinstance(module, nn.Embedding))


def create_open_clip(
    name: str,
    prompts: Mapping[str, Sequence[str]],
    pretrained: bool = True,
    weights: str | None = None,
    image_size: tuple[int, int] | None = None,
    model_args: dict[str, Any] | None = None,
) -> ImageTextModel:
    """Make a classifier of a network of open_clip, NAME or NAME:TAG of its weights.

    `processor` holds open_clip's own words on its images. Raises ModelError, one line.
    """
    try:
        import open_clip
    except ImportError as error:
        raise ModelError("open_clip: needs open_clip_torch: pip install open_clip_torch") from error
    elsewhere = name.startswith(("hf-hub:", "local-dir:"))
    own, _, tag = (name, "", "") if elsewhere else name.partition(":")
    names, tags = open_clip.list_models(), open_clip.list_pretrained_tags_by_model(own)
    if own not in names and not elsewhere:
        raise ModelError(f"open_clip has no network {quoted(own)}{did_you_mean(own, names)}")
    if tag and tag not in tags:
        raise ModelError(
            f"open_clip:{own} has no weights {quoted(tag)}; it has {', '.join(tags) or 'none'}"
        )
    if not tag and tags:
        tag = "openai" if "openai" in tags else tags[-1]
    own_weights = pretrained and weights is None
    about = open_clip.get_pretrained_cfg(own, tag) if own_weights and tag else {}
    hub = hub_reached_or_left() if own_weights else nullcontext()
    with library_errors(f"open_clip:{name}"), hub:
        model: Any = open_clip.create_model(
            own,
            pretrained=tag if own_weights and tag else None,
            load_weights=own_weights,
            force_quick_gelu=about.get("quick_gelu", False),
            force_image_size=image_size,
            **(model_args or {}),
        )
        tokenizer = open_clip.get_tokenizer(
            own, context_length=getattr(model, "context_length", None)
        )
    if weights is not None:
        load_weights(model, read_weights(weights), weights)
    model.eval()
    bias = getattr(model, "logit_bias", None)
    return ImageTextModel(
        model.visual,
        _OpenClipTexts(model, tokenizer),
        prompts,
        scale=float(model.logit_scale.detach().exp()),
        bias=0.0 if bias is None else float(bias.detach()),
        activation="softmax" if bias is None else "sigmoid",
        processor=dict(open_clip.get_model_preprocess_cfg(model)),
    )


def no_texts(spec: str) -> str:
    """Say that a network takes no classes in words."""
    return (
        f"{spec} does not compare images with texts, and takes no classes: expected CLIP, SigLIP "
        "or the like, such as hf:openai/clip-vit-base-patch32"
    )
