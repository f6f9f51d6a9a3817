"""Fine-tuning the classifier alone."""

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn


class LinearProbe(Callback):
    """Trains the network's last layer; all before it keeps its weights and running statistics.

    (`layer_decay` of ImageClassifier is the softer way: everything learns, the deeper the slower.)
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        pl_module.requires_grad_(False)
        last_layer(pl_module).requires_grad_(True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.eval()  # no moving statistics, no dropped branches
        last_layer(pl_module).train()


def last_layer(network: nn.Module) -> nn.Module:
    """The module with the last weight matrix: the classifier, in every network known here."""
    layers = [m for m in network.modules() if getattr(m, "weight", None) is not None]
    matrices = [m for m in layers if isinstance(m.weight, nn.Parameter) and m.weight.ndim >= 2]
    if not matrices:
        raise ValueError("the network has no weight matrix: there is no classifier to train")
    return matrices[-1]
