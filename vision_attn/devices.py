"""What this machine computes on, and the number format that is fastest without losing accuracy."""

import os
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from vision_attn.errors import quoted
from vision_attn.inference import infer

CPU_INFO = Path("/proc/cpuinfo")
# What ONEDNN_MAX_CPU_ISA may hold oneDNN to that knows no bfloat16.
WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"}
Precision = Literal["bf16-mixed", "32-true"]


def native_precision(accelerator: str = "auto") -> Precision:
    """Choose Lightning's precision by what the device multiplies in hardware.

    Emulated bfloat16 is slower than float32, so software support does not count.

    Args:
        accelerator: Lightning's: auto, cpu, gpu, cuda, mps.

    Returns:
        `bf16-mixed` where the device has bfloat16 in hardware, else `32-true`.
    """
    if accelerator == "mps":
        return "32-true"
    if accelerator != "cpu" and torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif accelerator != "cpu" and torch.backends.mps.is_available():
        native = False
    else:
        native = cpu_has_bf16()
    return "bf16-mixed" if native else "32-true"


def cpu_has_bf16() -> bool:
    """Whether this CPU has AVX512-BF16 or AMX-BF16 instructions (x86), or Arm's BF16 ones.

    Not where ONEDNN_MAX_CPU_ISA forbids them to oneDNN, which multiplies matrices for torch.
    """
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_BF16:
        return False
    if hasattr(torch.cpu, "get_capabilities"):
        has = {name for name, value in torch.cpu.get_capabilities().items() if value}
    else:  # torch 2.9 does not know yet, Linux does
        has = set(CPU_INFO.read_text("utf-8").split()) if CPU_INFO.is_file() else set()
    return not has.isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


def forward_format(network: nn.Module, images: Tensor) -> torch.memory_format:
    """The memory format in which a network answers such images (b c h w) fastest.

    Channels last for convolutions in float32 on a CPU: they then take 0.6 to 0.75 of the time. Not
    where the network's own code needs the usual format, as `view` does: it is tried on two copies
    of the first image, since of a single one some views exist in both formats.

    Examples:
        >>> import torch
        >>> from vision_attn.devices import forward_format
        >>> forward_format(torch.nn.Linear(2, 2), torch.zeros(1, 3, 2, 2))
        torch.contiguous_format
    """
    convolutions = sum(isinstance(module, nn.Conv2d) for module in network.modules())
    if convolutions < 2 or images.device.type != "cpu" or native_precision("cpu") != "32-true":
        return torch.contiguous_format
    try:
        with torch.random.fork_rng([]):
            pair = images[:1].expand(2, -1, -1, -1)
            infer(network, pair.contiguous(memory_format=torch.channels_last))
    except Exception:  # if it is for another reason, the run itself says so
        return torch.contiguous_format
    return torch.channels_last


def find_device(name: str = "auto") -> torch.device:
    """The device of that name; auto: the first of cuda, mps and cpu that this machine has.

    Raises ValueError for a device that this machine does not have.
    """
    if name == "auto":
        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float32, device=device).item()  # "meta" holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device {quoted(name)} is not on this machine ({reason}): expected auto, cpu, cuda "
            "or mps"
        ) from None
    return device
