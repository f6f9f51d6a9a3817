"""How a network is computed in training on a CPU: the fastest way, measured on the network itself.

A number format, a memory format, and whole batches or parts change no result beyond rounding, but
which is fastest depends on the CPU, on the network and on the batch.
"""

import json
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from platformdirs import user_cache_path
from torch import nn

from vision_attn.compat.torch_private import without_hooks
from vision_attn.devices import CPU_INFO
from vision_attn.errors import quoted
from vision_attn.files import write_text
from vision_attn.training.cpu.threads import BATCH_NORMS, InParts
from vision_attn.training.flops import forward_flops
from vision_attn.types import Images

__all__ = ["ExecutionPlan", "Planned", "candidates", "fastest"]

MEMORY_FORMATS = "contiguous", "channels_last"
WORK = 1e10  # operations of a step that is timed, for each thread
CLEARLY = 0.95  # of the first plan's time, for another to be taken
LIMITS = "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"  # the environment's, on instructions
DTYPES = {"bf16-mixed": torch.bfloat16, "32-true": torch.float32}


@dataclass(frozen=True)
class ExecutionPlan:
    """How training computes.

    Args:
        precision: Lightning's, "bf16-mixed" or "32-true".
        memory_format: Of the convolutions' kernels, "contiguous" or "channels_last".
        parts: Into how many a batch is divided, one a thread; 1 leaves it whole, and every
            operation has all threads. As in `ThreadParallel`, fewer parts or one where the network
            or the batch is not to be divided.

    Raises:
        ValueError: One of them is unknown, or `parts` below 1.

    Examples:
        >>> from vision_attn.training import ExecutionPlan
        >>> str(ExecutionPlan("32-true", "channels_last", parts=2))
        '32-true, channels_last, in up to 2 parts'
    """

    precision: str = "32-true"
    memory_format: str = "contiguous"
    parts: int = 1

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            raise ValueError(
                f"precision must be one of {', '.join(DTYPES)}, got {quoted(self.precision)}"
            )
        if self.memory_format not in MEMORY_FORMATS:
            formats = ", ".join(MEMORY_FORMATS)
            raise ValueError(
                f"memory_format must be one of {formats}, got {quoted(self.memory_format)}"
            )
        if self.parts < 1:
            raise ValueError(f"parts must be at least 1, got {self.parts}")

    def __str__(self) -> str:
        batch = f"in up to {self.parts} parts" if self.parts > 1 else "whole batches"
        return f"{self.precision}, {self.memory_format}, {batch}"


def candidates(
    network: nn.Module,
    precisions: Sequence[str],
    memory_formats: Sequence[str] = MEMORY_FORMATS,
    parts: Sequence[int] = (1,),
) -> list[ExecutionPlan]:
    """List the plans worth timing for a network, the usual one first.

    Memory formats concern networks with several convolutions. A batch that batch norms normalise is
    not divided: that would change the result.

    Examples:
        >>> import torch
        >>> from vision_attn.training.cpu.plan import candidates
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(147, 2))
        >>> [str(plan) for plan in candidates(network, ["32-true"], parts=(2, 1))]
        ['32-true, contiguous, in up to 2 parts', '32-true, contiguous, whole batches']
    """
    convolutions = sum(isinstance(module, nn.Conv2d) for module in network.modules())
    if convolutions < 2:
        memory_formats = memory_formats[:1]
    if any(isinstance(module, BATCH_NORMS) for module in network.modules()):
        parts = (1,)
    return [ExecutionPlan(*choice) for choice in product(precisions, memory_formats, parts)]


def fastest(
    network: nn.Module,
    images: Images,
    plans: Sequence[ExecutionPlan],
    seconds: float = 4.0,
    in_parts: Callable[[int], InParts] = InParts,
) -> tuple[ExecutionPlan, dict[ExecutionPlan, float]]:
    """Time a training step by each plan, in turns; return the fastest, and images/s by each.

    A plan takes the least time of its steps: what else the machine does only adds to it. The first
    plan is taken unless another takes clearly less time. seconds: about how long the timing may
    take, after a first step by each. in_parts: how a batch is divided into so many parts. Network
    and random numbers stay as they are. Raises ValueError without a plan.

    Examples:
        >>> import torch
        >>> from vision_attn.training.cpu.plan import ExecutionPlan, fastest
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(147, 2))
        >>> plans = [ExecutionPlan(parts=1), ExecutionPlan(parts=2)]
        >>> best, speeds = fastest(network, torch.randn(5, 3, 7, 7), plans, seconds=0.1)
        >>> best in plans, len(speeds)
        (True, 2)
    """
    if not plans:
        raise ValueError("no plan to time: expected at least one ExecutionPlan")
    devices = [images.device] if images.is_cuda else []
    times: dict[ExecutionPlan, list[float]] = {plan: [] for plan in plans}
    with torch.random.fork_rng(devices), torch.enable_grad(), ExitStack() as ends:
        copies = {
            memory_format: _copy(network, memory_format)
            for memory_format in {plan.memory_format for plan in plans}
        }
        steps = {
            plan: ends.enter_context(TimedPass(copies[plan.memory_format], images, plan, in_parts))
            for plan in plans
        }
        for step in steps.values():
            step()  # the first one makes kernels and room
        end = perf_counter() + seconds
        while len(times[plans[0]]) < 2 or perf_counter() < end:
            for plan, step in steps.items():
                times[plan].append(step())
            if len(times[plans[0]]) == 9:
                break
    took = {plan: min(times[plan]) for plan in plans}
    best = min(plans, key=lambda plan: took[plan])
    if took[best] > CLEARLY * took[plans[0]]:
        best = plans[0]
    return best, {plan: len(images) / took[plan] for plan in plans}


class Planned(Callback):
    """Convolutions in the memory format of a plan, which checkpoints keep, for a run that goes on.

    Args:
        plan: The plan.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import ExecutionPlan, Planned
        >>> planned = Planned(ExecutionPlan("32-true", "channels_last"))
        >>> planned.state_dict()["memory_format"]
        'channels_last'
        >>> trainer = Trainer(callbacks=[planned], logger=False)
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.plan.memory_format == "channels_last":
            in_channels_last(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.plan)


class TimedPass:
    """A forward and a backward pass of a network by a plan; calling it gives seconds."""

    def __init__(
        self,
        network: nn.Module,
        images: Images,
        plan: ExecutionPlan,
        in_parts: Callable[[int], InParts],
    ) -> None:
        self.network, self.images, self.plan = network, images, plan
        self.parts = in_parts(plan.parts)

    def __enter__(self) -> "TimedPass":
        return self

    def __exit__(self, *error: object) -> None:
        self.parts.close()

    def __call__(self) -> float:
        low = self.plan.precision != "32-true"
        start = perf_counter()
        with torch.autocast(self.images.device.type, DTYPES[self.plan.precision], enabled=low):
            logits = self.parts(self.network, self.images)
        logits.float().square().mean().backward()
        self.network.zero_grad(set_to_none=True)
        return perf_counter() - start


def _copy(network: nn.Module, memory_format: str) -> nn.Module:
    """Copy a network without its hooks, to train in a memory format."""
    copy = deepcopy(network, without_hooks(network)).train()
    if memory_format == "channels_last":
        in_channels_last(copy)
    return copy


def in_channels_last(network: nn.Module) -> None:
    """Put the kernels of convolutions in channels-last memory format, in place."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)


def enough(network: nn.Module, size: Sequence[int], most: int) -> int:
    """How many images of a size (c, h, w) make a step that is worth timing, at most so many."""
    operations = 3 * forward_flops(network, torch.zeros(1, *size))
    wanted = WORK * torch.get_num_threads() / max(1, operations)
    return min(most, max(2, round(wanted)))


def remembered(
    network: nn.Module, size: Sequence[int], batch: int, plans: Sequence[ExecutionPlan]
) -> Path:
    """The file, in the user's cache folder, of the measurement here of these plans."""
    about = [*machine(), str(network), *size, batch, *map(str, plans)]
    name = sha256(json.dumps(about).encode()).hexdigest()[:16]
    return user_cache_path("vision_attn") / "plans" / f"{name}.json"


def machine() -> list[str]:
    """What the speed of torch depends on."""
    names = [line for line in _cpu_info() if line.startswith("model name")]
    processor = names[0].partition(":")[2].strip() if names else platform.processor()
    capability = torch.backends.cpu.get_cpu_capability()
    limits = [os.environ.get(name, "") for name in LIMITS]
    return [processor, capability, *limits, str(torch.get_num_threads()), torch.__version__]


def _cpu_info() -> list[str]:
    return CPU_INFO.read_text("utf-8").splitlines() if CPU_INFO.is_file() else []


def recall(file: Path) -> ExecutionPlan | None:
    """Read the plan of an earlier measurement; None where there is none that can be read."""
    try:
        return ExecutionPlan(**json.loads(file.read_text(encoding="utf-8"))["plan"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remember(file: Path, plan: ExecutionPlan, speeds: dict[ExecutionPlan, float]) -> None:
    """Keep a measurement; where the folder cannot be written, the next run measures again."""
    measured = {str(timed): round(speed, 1) for timed, speed in speeds.items()}
    content: dict[str, Any] = {"plan": asdict(plan), "images/s": measured, "machine": machine()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(content, indent=2) + "\n")
    except OSError:
        pass
