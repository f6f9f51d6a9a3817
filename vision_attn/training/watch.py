"""Attention as it forms: the heatmaps of a few validation images after every epoch of a run.

Axes: b images, c channels, h height, w width, k classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CometLogger, Logger, MLFlowLogger
from torch import Tensor, nn

from vision_attn.render import (
    ColorMap,
    Panel,
    enlarged,
    heatmap_grid,
    natural,
    overlay,
    save,
    shrunk,
)
from vision_attn.render.picture import Picture
from vision_attn.types import Heatmaps, Images

__all__ = ["WatchHeatmaps", "log_picture"]

COLUMNS = 8  # epochs that the strip shows, the first and the last among them
WIDEST = 2400  # pixels


class WatchHeatmaps(Callback):
    """Heatmaps of the first validation images, drawn before training and after each epoch.

    In the run's folder: heatmaps/epoch_3.png, the images and their maps after three epochs, and
    heatmaps.png, a strip of epochs for each image, all in one scale. Loggers that keep pictures
    (TensorBoard, Weights & Biases, MLflow, Comet, and any that has a `log_image` as `WandbLogger`
    or an experiment with an `add_image` as TensorBoard) get each epoch's too, as "heatmaps".

    Args:
        explainer: Any of `vision_attn.methods`, or any callable (network, images, targets) ->
            Heatmaps; the targets are the images' labels, of several classes the first (of none,
            class 0).
        images: How many are drawn.

    Raises:
        ValueError: `images` is below 1.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.methods import Rollout
        >>> from vision_attn.training import WatchHeatmaps
        >>> trainer = Trainer(callbacks=[WatchHeatmaps(Rollout(), images=3)], logger=False)
    """

    def __init__(self, explainer: Callable[[nn.Module, Images, Tensor], Heatmaps], images: int = 4):
        if images < 1:
            raise ValueError(f"images must be at least 1, got {images}")
        self.explainer = explainer
        self.count = images
        self.photos: list[Picture] = []
        self.names: list[str] = []
        self.found: dict[int, Heatmaps] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = getattr(trainer, "datamodule", None)
        if data is None or not len(data.splits.val):
            raise ValueError(
                "heatmaps are watched on validation images: expected a data module that has some "
                "(val_fraction above 0)"
            )
        images, labels = data.examples(self.count)
        self.names = _named(labels, data.classes)
        labels = labels if labels.ndim == 1 else (labels > 0).int().argmax(1)
        self.images = trainer.precision_plugin.convert_input(images).to(pl_module.device)
        self.labels = labels.to(pl_module.device)
        std, mean = (np.array(values, np.float32) for values in (data.std, data.mean))
        shown = images.permute(0, 2, 3, 1).cpu().numpy() * std + mean
        self.photos = [
            enlarged(np.rint(255 * photo.clip(0, 1)).astype(np.uint8)) for photo in shown
        ]
        self._look(trainer, pl_module, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look(trainer, pl_module, trainer.current_epoch + 1)

    def _look(self, trainer: Trainer, pl_module: Any, epochs: int) -> None:
        """After so many epochs. Every process looks, so that none waits for another; one draws."""
        heatmaps = self.explainer(pl_module.network, self.images, self.labels)
        self.found[epochs] = replace(heatmaps, values=heatmaps.values.cpu())
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # the first process tells all
        if not trainer.is_global_zero:
            return
        (folder / "heatmaps").mkdir(parents=True, exist_ok=True)
        picture = self._epoch(epochs)
        save(picture, folder / "heatmaps" / f"epoch_{epochs}.png")
        save(self._strip(), folder / "heatmaps.png")
        for logger in trainer.loggers:
            log_picture(logger, picture, trainer.global_step)

    def _epoch(self, epochs: int) -> Picture:
        """The photos, and below each its map."""
        photos = [Panel(name, photo) for name, photo in zip(self.names, self.photos, strict=True)]
        maps = [self._panel(i, epochs, [epochs], "") for i in range(len(photos))]
        title = f"{self.found[epochs].method} after {epochs} epochs"
        return shrunk(heatmap_grid([*photos, *maps], title, columns=len(photos)), WIDEST)

    def _strip(self) -> Picture:
        """A row a photo, a column an epoch; the maps of a row share their scale."""
        every = list(self.found)
        indices = np.linspace(0, len(every) - 1, min(len(every), COLUMNS)).round().astype(int)
        epochs = [every[i] for i in indices]
        panels = []
        for i, (name, photo) in enumerate(zip(self.names, self.photos, strict=True)):
            panels.append(Panel(name, photo))
            panels += [self._panel(i, each, epochs, f"epoch {each}") for each in epochs]
        title = f"{self.found[epochs[-1]].method}, epoch by epoch"
        return shrunk(heatmap_grid(panels, title, columns=1 + len(epochs)), WIDEST)

    def _panel(self, image: int, epochs: int, scaled_with: list[int], title: str) -> Panel:
        values = np.stack([self.found[each].values[image].numpy() for each in scaled_with])
        masses = [self.found[each].prefix_mass for each in scaled_with]
        masses_of_image = [float(mass[image]) for mass in masses if mass is not None]
        scale = natural(values, np.array(masses_of_image) if masses_of_image else None)
        shown = self.found[epochs].values[image].numpy()
        style = ColorMap()
        painted = overlay(self.photos[image], shown, style=style, scale=scale)
        return Panel(title, painted, scale=scale, style=style)


def _named(labels: Tensor, classes: Sequence[str]) -> list[str]:
    """The class of each image, or, of labels (b k), all that it has."""
    if labels.ndim == 1:
        return [classes[label] for label in labels.tolist()]
    present = [[name for name, has in zip(classes, row, strict=True) if has > 0] for row in labels]
    return [", ".join(names) or "no class" for names in present]


def log_picture(logger: Logger, picture: Picture, step: int) -> None:
    """Hand the picture to a logger that keeps pictures; pass over others."""
    experiment: Any = getattr(logger, "experiment", None)
    if callable(log_image := getattr(logger, "log_image", None)):  # Weights & Biases and its like
        log_image(key="heatmaps", images=[picture], step=step)
    elif isinstance(logger, MLFlowLogger):
        experiment.log_image(logger.run_id, picture, f"heatmaps/step_{step}.png")
    elif isinstance(logger, CometLogger):
        experiment.log_image(picture, name="heatmaps", step=step)
    elif callable(add_image := getattr(experiment, "add_image", None)):  # TensorBoard's
        add_image("heatmaps", picture, step, dataformats="HWC")
