"""Fine-tuning the classifier alone."""

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

__all__ = ["LinearProbe", "last_layer"]


class LinearProbe(Callback):
    """Training of the last layer alone; all before it keeps its weights and running statistics.

    (`layer_decay` of ImageClassifier is the softer way: everything learns, the deeper the slower.)
    Alain & Bengio 2016 (arXiv:1610.01644).

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.models import seresnet18
        >>> from vision_attn.training import ImageClassifier, LinearProbe
        >>> module = ImageClassifier(seresnet18(10))
        >>> LinearProbe().setup(Trainer(logger=False), module, "fit")
        >>> [name for name, p in module.network.named_parameters() if p.requires_grad]
        ['fc.weight', 'fc.bias']
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
    """Find the module with the last weight matrix: the classifier, in every network known here.

    Raises ValueError where there is none.
    """
    layers = [m for m in network.modules() if getattr(m, "weight", None) is not None]
    matrices = [m for m in layers if isinstance(m.weight, nn.Parameter) and m.weight.ndim >= 2]
    if not matrices:
        raise ValueError("the network has no weight matrix: there is no classifier to train")
    return matrices[-1]
