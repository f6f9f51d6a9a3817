"""One class against another: a network whose logits are differences.

Axes: b batch, c channels, h height, w width, k classes.
"""

from torch import nn

from vision_attn.methods.base import as_logits
from vision_attn.tokens.modules import network_of
from vision_attn.types import Images, Logits, Model

__all__ = ["Contrast"]


class Contrast(nn.Module):
    """A network whose logits are differences to one class: logit_k - logit_against.

    Explained for k, it shows the evidence for k rather than `against`. Holds the network as it is,
    so that every explainer sees its layers; the evidence that both classes share cancels (the
    contrast of Grad-CAM, Selvaraju et al. 2017, generalised). The forward pass raises ValueError
    where `against` is no class of the network.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Contrast
        >>> Contrast(torch.nn.Flatten(), against=0)(torch.tensor([[[[2.0]], [[5.0]]]]))
        tensor([[0., 3.]])
    """

    def __init__(self, network: nn.Module | Model, against: int):
        super().__init__()
        self.network = network_of(network)
        self.against = against

    def forward(self, images: Images) -> Logits:
        logits = as_logits(self.network(images), self.network, images)
        if not 0 <= self.against < logits.shape[1]:
            raise ValueError(
                f"class {self.against} to contrast with is out of range: the network has "
                f"{logits.shape[1]} classes, 0 to {logits.shape[1] - 1}"
            )
        return logits - logits[:, self.against, None]
