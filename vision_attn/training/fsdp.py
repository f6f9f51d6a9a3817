"""Networks too large for one device: every process holds a share of the weights."""

from functools import partial
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from vision_attn.compat.lightning_private import share_among

__all__ = ["FSDP2", "shard"]


class FSDP2(ModelParallelStrategy):
    """`--trainer.strategy fsdp2`: `torch.distributed.fsdp.fully_shard` over all processes.

    Weights, gradients and optimiser states lie in equal shares on the devices, and a block's
    weights are whole only while it computes (ZeRO 3, Rajbhandari et al. 2020). A checkpoint is one
    file, as of one process. On GPUs and, with gloo, on CPUs.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> import vision_attn.training  # registers the strategy's name
        >>> type(Trainer(strategy="fsdp2", logger=False).strategy).__name__
        'FSDP2'
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        share_among(self, self.num_nodes * self.num_processes)
        super().setup_environment()
        module: Any = self.lightning_module
        # A hook of the class would have weight averaging warn in every run, sharded or not.
        module.configure_model = partial(shard, module.network, self.device_mesh["data_parallel"])


StrategyRegistry.register("fsdp2", FSDP2, description=FSDP2.__doc__ or "")


def shard(network: nn.Module, mesh: DeviceMesh) -> None:
    """Share out the weights of `network`, block by block, unless they are already."""
    blocks: Any = getattr(network, "blocks", ())
    for module in (*blocks, network):
        if not isinstance(module, FSDPModule):
            fully_shard(module, mesh=mesh)
