"""Training with several operations in one kernel."""

from contextlib import ExitStack

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from vision_attn.compat.torch_private import check_compiler, run_as_written, uncompile
from vision_attn.errors import quoted

__all__ = ["Compile"]

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Compile(Callback):
    """Training with the network as `torch.compile` makes it, with the same weights and checkpoints.

    The first step takes a minute or so, and the first batch of another size once more. Validation
    and tests run as without. The inductor needs a C++ compiler on a CPU: without one the start of
    training raises OSError.

    Args:
        backend: As of `torch.compile`.
        mode: As of `torch.compile`.

    Raises:
        ValueError: torch does not know one of them.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import Compile
        >>> trainer = Trainer(callbacks=[Compile(mode="reduce-overhead")], logger=False)
    """

    def __init__(self, backend: str = "inductor", mode: str | None = None) -> None:
        if backend not in (backends := torch.compiler.list_backends(exclude_tags=())):
            raise ValueError(f"backend must be one of {', '.join(backends)}, got {quoted(backend)}")
        if mode not in (None, *MODES):
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {quoted(mode)}")
        self.backend, self.mode = backend, mode
        self._paused = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compile the network.

        Raises:
            OSError: No compiler is found.
        """
        if self.backend == "inductor" and trainer.strategy.root_device.type == "cpu":
            check_compiler()
        network_of(pl_module).compile(backend=self.backend, mode=self.mode)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._paused.enter_context(run_as_written(network_of(pl_module)))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._paused.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give back the network as it was, for what comes after the fit."""
        self._paused.close()
        uncompile(network_of(pl_module))

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "")


def network_of(module: LightningModule) -> nn.Module:
    """Find the network that a module trains; a LightningModule from elsewhere is its own."""
    network = getattr(module, "network", module)
    return network if isinstance(network, nn.Module) else module
