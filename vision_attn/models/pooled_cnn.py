"""A CNN that shows which places of its last features its answer comes from.

Axes: b batch, c channels, h height, w width, k classes.
"""

from collections.abc import Callable
from math import ceil
from typing import Any, ClassVar

from torch import nn

from vision_attn.attention import AttentionPool
from vision_attn.errors import ModelError
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.models.timm_model import create_timm
from vision_attn.types import Images, Logits, TokenLayout

__all__ = ["PooledCNN"]


class PooledCNN(Rebuildable):
    """The CNN that timm knows by this name, its last features read out by attention.

    A linear classifier follows. A call raises ModelError where the last features are not a map (b c
    h w).

    Args:
        name: timm's name of the CNN.
        num_classes: How many classes.
        pool: A readout, called as `pool(dim=c)` and then on the places as tokens (b h*w c).
        pretrained: Whether the CNN starts with timm's weights.
        model_args: More arguments of timm's constructor: `output_stride=8` keeps the places small.

    Raises:
        ModelError: timm has no such network, or takes no such arguments.

    Examples:
        >>> import torch
        >>> from vision_attn.models import PooledCNN
        >>> network = PooledCNN("resnet10t", 3, model_args={"channels": [8, 8, 16, 16]})
        >>> network(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 3])
        >>> network.layout((64, 96)).grid
        (2, 3)
    """

    rebuilt_with: ClassVar[dict[str, Any]] = {"pretrained": False}

    def __init__(
        self,
        name: str,
        num_classes: int = 10,
        pool: Callable[..., nn.Module] = AttentionPool,
        pretrained: bool = False,
        model_args: dict[str, Any] | None = None,
    ):
        super().__init__()
        self.trunk: Any = create_timm(
            name, pretrained=pretrained, num_classes=0, **(model_args or {})
        )
        readout: Any = pool(dim=self.trunk.num_features)
        self.readout = readout
        self.head = nn.Linear(readout.out_dim, num_classes)

    def layout(self, image_size: tuple[int, int]) -> TokenLayout:
        """How the places of an image lie.

        Args:
            image_size: (height, width) in pixels.
        """
        stride = self.trunk.feature_info[-1]["reduction"]
        height, width = image_size
        return TokenLayout(0, (ceil(height / stride), ceil(width / stride)), "attention")

    def forward(self, images: Images) -> Logits:
        features = self.trunk.forward_features(images)
        if features.ndim != 4 or features.shape[1] != self.trunk.num_features:
            raise ModelError(
                f"expected a CNN whose last features are (b {self.trunk.num_features} h w), "
                f"{self.init_args['name']} gives {tuple(features.shape)}"
            )
        height, width = features.shape[2:]
        layout = TokenLayout(0, (height, width), "attention")
        return self.head(self.readout(features.flatten(2).mT, layout=layout))
