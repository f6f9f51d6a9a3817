"""Hugging Face's image classifiers by name; the package transformers is optional."""

import inspect
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import nn

from vision_attn.compat.download import hub_reached_or_left
from vision_attn.compat.huggingface_private import attention_of
from vision_attn.errors import ModelError, quoted
from vision_attn.models.adapters import Adapter
from vision_attn.models.checkpoint import load_weights, read_weights
from vision_attn.models.errors import library_errors
from vision_attn.types import Activation, Images, Logits

__all__ = ["KINDS_WITH_TEXTS", "NO_CODE", "HuggingFaceModel", "no_classes"]

NO_CODE = {"trust_remote_code": False}
# What makes probabilities of the outputs, by config.problem_type.
PROBLEMS: dict[str | None, Activation] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "none",
}
# Of config.model_type, networks that compare images with texts.
KINDS_WITH_TEXTS = ("clip", "metaclip_2", "altclip", "chinese_clip", "siglip", "siglip2")
PROCESSOR = "preprocessor_config.json"
OF_ADAPTER = "download it, or write its folder into adapter_config.json (base_model_name_or_path)"
OFFLINE = "name a folder that holds it, or a kind of network (hf:vit) with --pretrained false"


class HuggingFaceModel(nn.Module):
    """A classifier of transformers that takes images and gives logits.

    Code that stands beside the weights is never run.

    Args:
        name: A repository, a folder, or, for random weights, a kind of network such as "vit". A
            folder may hold an adapter of PEFT, which is added to the weights of the network that it
            names.
        pretrained: Whether to start with the weights that stand there; else the start is random.
        weights: A file of weights to start with, in their place.
        model_args: Entries of the network's config.

    Attributes:
        processor: The options of its image processor, empty where it has none.
        missing: The weights that a pretrained network does not have, so that they are random.
        activation: What makes probabilities of its outputs, as config.problem_type says.

    Raises:
        ModelError: There is no such network, the arguments do not fit, it needs code of its own, or
            transformers is not installed.

    Examples:
        >>> import torch
        >>> from vision_attn.models.huggingface_model import HuggingFaceModel
        >>> size = {"image_size": 16, "patch_size": 8, "hidden_size": 8, "intermediate_size": 8}
        >>> depth = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}
        >>> HuggingFaceModel("vit", model_args=size | depth)(torch.randn(2, 3, 16, 16)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        name: str,
        pretrained: bool = False,
        weights: str | None = None,
        model_args: dict[str, Any] | None = None,
    ):
        super().__init__()
        try:
            from transformers import CONFIG_MAPPING, AutoConfig, AutoImageProcessor
            from transformers import AutoModelForImageClassification as Auto
        except ImportError as error:
            raise ModelError("hf: needs transformers: pip install transformers") from error
        if "trust_remote_code" in (model_args or {}):
            raise ModelError(
                f"hf:{name}: 'trust_remote_code' would run code that comes with the weights: build "
                "the network in your own code instead"
            )
        self.processor: dict[str, Any] = {}
        self.missing: list[str] = []
        adapter = Adapter.found(name)
        spec, folder = f"hf:{name}", name
        model_args = dict(model_args or {})
        if adapter is not None:
            if not pretrained or weights is not None:
                raise ModelError(
                    f"{spec}: a PEFT adapter changes the trained weights of {adapter.base}: leave "
                    "out pretrained=False (--pretrained false) and weights="
                )
            spec, name = f"{spec}: the base of this PEFT adapter, {adapter.base}", adapter.base
            if adapter.classes is not None:
                model_args.setdefault("num_labels", adapter.classes)
        remote = name not in CONFIG_MAPPING and not Path(name).is_dir()
        hub = hub_reached_or_left() if remote else nullcontext()
        with library_errors(spec, offline=OFFLINE if adapter is None else OF_ADAPTER), hub:
            if name in CONFIG_MAPPING:
                config: Any = AutoConfig.for_model(name, **(model_args or {}))
            else:
                config = AutoConfig.from_pretrained(name, **NO_CODE, **(model_args or {}))
                with suppress(OSError):  # it need not have one
                    own = adapter is not None and (Path(folder) / PROCESSOR).is_file()
                    self.processor = AutoImageProcessor.from_pretrained(
                        folder if own else name, **NO_CODE
                    ).to_dict()
                with_texts = config.model_type in KINDS_WITH_TEXTS and "num_labels" not in (
                    model_args or {}
                )
                if with_texts and not any(
                    "ForImage" in architecture for architecture in config.architectures or ()
                ):
                    raise ModelError(no_classes(f"hf:{name}"))
            kernel = str(attention_of(config))
            if "/" in kernel:
                raise ModelError(
                    f"hf:{name}: attn_implementation {quoted(kernel)} is a repository of "
                    "code, which is not run: expected eager, sdpa or another of transformers' own"
                )
            if pretrained and weights is None:
                self.network, report = Auto.from_pretrained(
                    name,
                    config=config,
                    output_loading_info=True,
                    ignore_mismatched_sizes=adapter is not None,
                    **NO_CODE,
                )
                self.missing = list(report["missing_keys"])
                if adapter is not None:
                    others = [each[0] for each in report["mismatched_keys"]]
                    self.missing = [x for x in self.missing + others if not adapter.supplies(x)]
            else:
                self.network = Auto.from_config(config, **NO_CODE)
        if adapter is not None:
            self.network = adapter.merged(self.network)
        if weights is not None:
            load_weights(self.network, read_weights(weights), weights)
        takes = inspect.signature(self.network.forward).parameters
        self.resamples = "interpolate_pos_encoding" in takes
        self.image_size = getattr(config, "image_size", None)
        self.classes = [config.id2label[i] for i in range(config.num_labels)]
        usual: Activation = "sigmoid" if config.num_labels == 1 else "softmax"
        self.activation = PROBLEMS.get(getattr(config, "problem_type", None), usual)

    def forward(self, images: Images) -> Logits:
        options: dict[str, Any] = {}
        if self.resamples and tuple(images.shape[2:]) != (self.image_size, self.image_size):
            options["interpolate_pos_encoding"] = True
        return self.network(pixel_values=images, **options).logits


def no_classes(spec: str) -> str:
    """Say that a network has no classes of its own, and how they are given."""
    return (
        f"{spec} compares images with texts: give the classes in words, classes=['a photo of a "
        "dog', 'a photo of a cat'] (--classes 'a photo of a dog' 'a photo of a cat')"
    )
