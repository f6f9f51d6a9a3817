"""Any model by one word: one of the package, a checkpoint, or one of timm, torchvision, HF.

    model = load_model("vision_attn:vit_planted")
    logits = model.network(model.preprocess("photo.jpg")[None])

Axes: b batch, k classes.
"""

from vision_attn.hub.loading import load, load_model, load_sequences
from vision_attn.hub.wrapping import wrap

__all__ = ["load", "load_model", "load_sequences", "wrap"]
