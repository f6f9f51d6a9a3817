"""Memory that a training step frees is there for the next one."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["KeepMemory", "kept_memory"]

MIB = 2**20
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4  # of glibc's malloc.h
KEEP = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 64 * MIB}  # -1: never
# What glibc comes to by itself in a process that has freed large blocks.
USUAL = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 * MIB, TRIM_THRESHOLD: 64 * MIB, TOP_PAD: MIB // 8}


@contextmanager
def kept_memory() -> Iterator[bool]:
    """Keep freed memory in the process; yield whether that is possible here.

    glibc gives a block of 32 MiB or more, and what is free above 64 MiB, back to the system at
    once; the next step gets new pages, each of which the system clears at its first touch. For
    networks with large activations that is 5 to 20 % of a step on a CPU. What is kept is given back
    at the end. Nothing happens without glibc, and where the environment sets it up already
    (MALLOC_..., GLIBC_TUNABLES: mallopt(3)).

    Examples:
        >>> from vision_attn.training import kept_memory
        >>> with kept_memory() as kept:
        ...     pass  # train here
    """
    libc = _glibc()
    if libc is None:
        yield False
        return
    for option, value in KEEP.items():
        libc.mallopt(option, value)
    try:
        yield True
    finally:
        for option, value in USUAL.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library, if its malloc has these options and the environment sets none of them."""
    set_up = any(name.startswith("MALLOC_") for name in os.environ)
    if set_up or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows has no library of the process itself
        return None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


class KeepMemory(Callback):
    """Keep freed memory in the process while a trainer works on a CPU, by `kept_memory`.

    The command line always adds it.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import KeepMemory
        >>> trainer = Trainer(callbacks=[KeepMemory()], logger=False)
    """

    def __init__(self) -> None:
        self._open = ExitStack()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.strategy.root_device.type == "cpu":
            self._open.enter_context(kept_memory())

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._open.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "")
