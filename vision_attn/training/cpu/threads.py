"""A batch in parts, one on each core: what DataParallel is to the GPUs of a machine.

Axes: b batch, p a part of it, c channels, h height, w width, k classes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from vision_attn.compat.torch_private import is_compiled, without_hooks
from vision_attn.threads import Modes, Threads
from vision_attn.training.classifier import ImageClassifier, as_it_is
from vision_attn.training.flops import forward_flops
from vision_attn.types import Images, Logits

__all__ = ["InParts", "KeepThreads", "ThreadParallel", "copied"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class ThreadParallel(Callback):
    """Batches in parts, one on each core of a CPU, in training and in evaluation.

    The gradients are those of the whole batch, to rounding, and the same in every run; loss and
    optimiser see the whole batch. A network stays undivided where that would not hold, or not pay:
    if it draws random numbers (dropout), is compiled or distributed, has batch norms, or if a
    part's forward pass is too short. The command line always adds one with these defaults.

    Args:
        threads: How many parts; None takes as many as torch has threads.
        batch_norms: Whether to divide networks with batch norms too: each part is then normalised
            by its own statistics, and the running ones become the means of the parts', as in
            distributed training.
        least: The fewest operations of a part's forward pass that pay.

    Raises:
        ValueError: `threads` is below 1, or `least` below 0.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import ThreadParallel
        >>> trainer = Trainer(callbacks=[ThreadParallel(threads=2)], logger=False)
    """

    def __init__(
        self, threads: int | None = None, batch_norms: bool = False, least: float = 1e9
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        if least < 0:
            raise ValueError(f"least must be at least 0 operations, got {least}")
        self.threads, self.batch_norms, self.least = threads, batch_norms, least

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.teardown(trainer, pl_module, stage)
        threads = self.threads or torch.get_num_threads()
        on_cpu = trainer.strategy.root_device.type == "cpu"
        if threads > 1 and on_cpu and isinstance(pl_module, ImageClassifier):
            pl_module.run = InParts(threads, self.batch_norms, self.least)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(pl_module, ImageClassifier):
            if isinstance(pl_module.run, InParts):
                pl_module.run.close()
            pl_module.run = as_it_is

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "")


class KeepThreads(Callback):
    """The number of torch's threads, which checkpoints keep, for a run that goes on.

    Sums that are computed by another number of threads round differently.

    Args:
        threads: The number.

    Examples:
        >>> from vision_attn.training import KeepThreads
        >>> KeepThreads(threads=2).state_dict()
        {'threads': 2}
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def state_dict(self) -> dict[str, Any]:
        return {"threads": self.threads}


class InParts:
    """A way to call a network on images, each thread on its part; see `ThreadParallel`.

    All parts use the same parameters. Each thread has a copy of everything else, since a module
    may change its buffers while it runs.

    Examples:
        >>> import torch
        >>> from vision_attn.training.cpu.threads import InParts
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(147, 2))
        >>> images = torch.randn(5, 3, 7, 7)
        >>> in_parts = InParts(threads=2, least=0.0)
        >>> torch.allclose(in_parts(network, images), network(images))
        True
        >>> in_parts.close()
    """

    def __init__(self, threads: int, batch_norms: bool = False, least: float = 1e9) -> None:
        self.threads, self.batch_norms, self.least = threads, batch_norms, least
        self._pool = Threads(threads)
        self._network: nn.Module | None = None
        self._whole = False  # always: it is distributed
        self._copies: list[nn.Module] = []
        self._changing: list[str] = []  # buffers that a training step changes
        self._divides: bool | None = None  # in training; None: not yet known
        self._operations: dict[torch.Size, int] = {}  # of an image of this shape

    def __deepcopy__(self, memo: dict[int, object]) -> "InParts":
        """Itself: it belongs to the module that runs a network, and is not copied with one."""
        return self

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    def __call__(self, network: nn.Module, images: Images) -> Logits:
        if network is not self._network:
            self._network, self._copies, self._changing, self._divides = network, [], [], None
            self._operations = {}
            self._whole = any(isinstance(parameter, DTensor) for parameter in network.parameters())
        count = 1 if self._whole else self._parts(network, images)
        if count < 2:
            return network(images)
        self._copies += [copied(network) for _ in range(count - 1 - len(self._copies))]
        modules = [network, *self._copies[: count - 1]]
        with self._alike(modules):
            run = _Run(self._pool, modules, images.tensor_split(count), self.threads // count)
            parameters = [p for p in network.parameters() if p.requires_grad]
            if torch.is_grad_enabled() and parameters:
                return _Joined.apply(run, *parameters)
            return torch.cat(run.forward())

    def _parts(self, network: nn.Module, images: Images) -> int:
        """How many, so that each has enough to do; 1 where the batch must stay whole."""
        if images.requires_grad or is_compiled(network):
            return 1
        if (shape := images.shape[1:]) not in self._operations:
            with torch.inference_mode(False):
                self._operations[shape] = forward_flops(network, images[:1].clone())
        operations = self._operations[shape] * len(images)
        most = int(operations / self.least) if self.least else self.threads
        count = min(self.threads, len(images), most)
        if count > 1 and network.training:
            if self._divides is None:
                self._divides = self._can_be_divided(network, images.tensor_split(count)[0])
            return count if self._divides else 1
        return count

    def _can_be_divided(self, network: nn.Module, part: Images) -> bool:
        """Tried out on a copy: no random numbers, and no batch norms unless wanted."""
        before, trial = torch.get_rng_state(), copied(network).train()
        with Modes().on(), torch.no_grad():  # casts without gradients must not be kept
            trial(part)
        draws = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        buffers = dict(network.named_buffers())
        self._changing = [
            name for name, now in trial.named_buffers() if not torch.equal(now, buffers[name])
        ]
        norms = any(isinstance(module, BATCH_NORMS) for module in network.modules())
        return not draws and (self.batch_norms or not (norms or self._changing))

    @contextmanager
    def _alike(self, modules: Sequence[nn.Module]) -> Iterator[None]:
        """The copies in the state of the network, which then has the mean of their statistics.

        By `.data`: the backward pass of a norm holds on to its statistics and does not read them.
        """
        network, *copies = modules
        for copy in copies:
            for module, twin in zip(network.modules(), copy.modules(), strict=True):
                twin.training = module.training
            for buffer, twin_buffer in zip(network.buffers(), copy.buffers(), strict=True):
                twin_buffer.data.copy_(buffer)
        yield
        for name in self._changing if network.training else ():
            buffer, *theirs = (module.get_buffer(name) for module in modules)
            if buffer.is_floating_point():
                buffer.data.copy_(torch.stack([buffer, *theirs]).mean(0))


class _Run:
    """One call of a network in parts, and what its backward pass needs."""

    def __init__(
        self,
        pool: Threads,
        modules: Sequence[nn.Module],
        parts: Sequence[Tensor],
        cores: int,
    ) -> None:
        self.pool, self.modules, self.parts, self.cores = pool, modules, parts, cores
        self.modes = Modes()
        self.outputs: list[Tensor] = []

    def forward(self, gradients: bool = False) -> list[Tensor]:
        """What each part gives."""

        def run(module: nn.Module, part: Tensor) -> Tensor:
            with self.modes.on(), torch.set_grad_enabled(gradients):
                return module(part)

        return self.pool.each(run, self.modules, self.parts, cores=self.cores)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """The sum of the parts' gradients by each parameter."""

        def run(output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(output, parameters, gradient, allow_unused=True)

        sizes = [len(output) for output in self.outputs]
        parts = gradient.split(sizes)
        first, *others = self.pool.each(run, self.outputs, parts, cores=self.cores)
        self.outputs = []
        total = list(first)
        for other in others:
            for index, from_part in enumerate(other):
                if from_part is not None:  # not in place: two parameters may have one gradient
                    total[index] = (
                        from_part if (so_far := total[index]) is None else so_far + from_part
                    )
        return total


class _Joined(torch.autograd.Function):
    """The parts' logits as one tensor, on the graph of the parameters."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *parameters: Tensor) -> Logits:
        run.outputs = run.forward(gradients=True)
        ctx.run, ctx.parameters = run, parameters
        return torch.cat([output.detach() for output in run.outputs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.run.backward(gradient, ctx.parameters)


def copied(network: nn.Module) -> nn.Module:
    """Copy a network: the same parameters, buffers of its own, no hooks."""
    same: dict[int, Any] = {id(parameter): parameter for parameter in network.parameters()}
    with torch.inference_mode(False):
        return deepcopy(network, same | without_hooks(network))
