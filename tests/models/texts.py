"""Tiny networks of images and texts, saved to a folder with their tokenizers."""

import json
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["a", "photo", "drawing", "of", "dog", "cat", "tree", "red", "small", ".", "the"]
VISION = {
    "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "image_size": 48, "patch_size": 16,
}  # fmt: skip
TEXT = {
    "hidden_size": 10, "intermediate_size": 14, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": 17, "max_position_embeddings": 11,
}  # fmt: skip


def tokenizer(ends: bool = True) -> transformers.TokenizersBackend:
    """Words by spaces; `ends`: a start and an end token, as CLIP has."""
    special = ["<pad>", "<unk>", "<start>", "<end>"]
    known = {word: at for at, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    pairs = [(word, known[word]) for word in ("<start>", "<end>")]
    single = "<start> $A <end>" if ends else "$A <end>"
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=pairs)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<start>",
        eos_token="<end>",
        model_max_length=TEXT["max_position_embeddings"],
        model_input_names=["input_ids", "attention_mask"] if ends else ["input_ids"],
    )


def processor(folder: Any, kind: str) -> None:
    about = {
        "image_processor_type": kind, "size": {"height": 48, "width": 48}, "do_resize": True,
        "do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4],
        "resample": 3, "do_center_crop": True, "crop_size": {"height": 48, "width": 48},
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(about))


def spread(model: transformers.PreTrainedModel) -> Any:
    """Weights that differ enough for logits to, and biases that are not 0."""
    for parameter in model.parameters():
        if parameter.ndim:
            parameter.data.normal_(0, 0.3)
    return model.eval()


def clip(folder: Any) -> Any:
    eos = {"eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0}
    config = transformers.CLIPConfig(text_config=TEXT | eos, vision_config=VISION, projection_dim=7)
    model = spread(transformers.CLIPModel(config))
    return saved(model, folder, tokenizer(), "CLIPImageProcessor")


def siglip(folder: Any) -> Any:
    text = TEXT | {"projection_size": 12, "pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 2}
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
    model = spread(transformers.SiglipModel(config))
    model.logit_bias.data.fill_(-3.5)
    model.logit_scale.data.fill_(1.5)
    return saved(model, folder, tokenizer(ends=False), "SiglipImageProcessor")


def metaclip_2(folder: Any) -> Any:
    eos = {"eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0}
    config = transformers.MetaClip2Config(
        text_config=TEXT | eos | {"projection_dim": 7},
        vision_config=VISION | {"projection_dim": 7},
        projection_dim=7,
    )
    model = spread(transformers.MetaClip2Model(config))
    return saved(model, folder, tokenizer(), "CLIPImageProcessor")


def altclip(folder: Any) -> Any:
    """Positions of its texts are counted from behind the padding's, as RoBERTa's."""
    own = {"eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0, "project_dim": 8}
    config = transformers.AltCLIPConfig(
        text_config=TEXT | own, vision_config=VISION, projection_dim=7
    )
    model = spread(transformers.AltCLIPModel(config))
    return saved(model, folder, tokenizer(), "CLIPImageProcessor")


def chinese_clip(folder: Any) -> Any:
    config = transformers.ChineseCLIPConfig(
        text_config=TEXT | {"pad_token_id": 0}, vision_config=VISION, projection_dim=7
    )
    model = spread(transformers.ChineseCLIPModel(config))
    return saved(model, folder, tokenizer(), "ChineseCLIPImageProcessor")


def naflex(folder: Any) -> Any:
    """SigLIP 2 of images in any proportions."""
    text = TEXT | {"projection_size": 12, "pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 2}
    vision = {name: size for name, size in VISION.items() if name != "image_size"}
    config = transformers.Siglip2Config(text_config=text, vision_config=vision | {"num_patches": 9})
    return saved(spread(transformers.Siglip2Model(config)), folder, tokenizer(ends=False), None)


def saved(model: Any, folder: Any, words: transformers.TokenizersBackend, kind: str | None) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    if kind is not None:
        processor(folder, kind)
    return model
