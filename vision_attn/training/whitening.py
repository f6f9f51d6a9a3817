"""A first layer that is computed from the data instead of learned."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from vision_attn.models import Whitening

__all__ = ["Whiten"]


class Whiten(Callback):
    """A `Whitening` layer fitted to training images before the run starts.

    A run of a network without such a layer raises ValueError.

    Args:
        images: How many, spread evenly over the set, without augmentation.

    Raises:
        ValueError: `images` is below 1.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import Whiten
        >>> trainer = Trainer(callbacks=[Whiten(images=2000)], logger=False)
    """

    def __init__(self, images: int = 5000) -> None:
        if images < 1:
            raise ValueError(f"images must be at least 1, got {images}")
        self.images = images

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fit the layer; the checkpoint of a resumed run is read later, and has its own."""
        data: Any = getattr(trainer, "datamodule", None)
        if stage != "fit" or data is None:
            return
        layers = [m for m in pl_module.modules() if isinstance(m, Whitening)]
        if not layers:
            raise ValueError("Whiten found no Whitening layer in the network: leave it out")
        images, _ = data.examples(self.images, data.splits.train)
        for layer in layers:
            layer.fit(images.to(pl_module.device))
