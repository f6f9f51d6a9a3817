"""A first layer that is computed from the data instead of learned."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from vision_attn.models import Whitening


class Whiten(Callback):
    """Fits the network's `Whitening` layer to training images before a run starts.

    images: how many, spread evenly over the set, without augmentation.
    """

    def __init__(self, images: int = 5000) -> None:
        if images < 1:
            raise ValueError(f"images must be at least 1, got {images}")
        self.images = images

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """A checkpoint to start from is read after this, and has the layer as it was."""
        data: Any = getattr(trainer, "datamodule", None)
        if stage != "fit" or data is None:
            return
        layers = [m for m in pl_module.modules() if isinstance(m, Whitening)]
        if not layers:
            raise ValueError("Whiten found no Whitening layer in the network: leave it out")
        images, _ = data.examples(self.images, data.splits.train)
        for layer in layers:
            layer.fit(images.to(pl_module.device))
