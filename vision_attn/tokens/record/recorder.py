"""The recorder of a network's attention: what it watches by, and the record of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from vision_attn.compat.torch_private import uncompiled
from vision_attn.tokens.record.calls import Fusion
from vision_attn.tokens.record.functions import CallMode
from vision_attn.tokens.record.hooks import ModuleHooks
from vision_attn.tokens.record.log import CallLog, Part, Record
from vision_attn.tokens.trace.tracer import Tracer

__all__ = ["Recorder"]


class Recorder:
    """Record the attention calls of a network: a mode sees the calls, hooks count them.

    keep, fusion, detach: as of `record_attention`, which also checks that there was a call at all.
    tracer: told of every call's output, which its own operations have mixed.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.recorder import Recorder
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> recorder = Recorder(keep=frozenset({"v"}))
        >>> with recorder.watching(network):
        ...     logits = network(torch.rand(2, 3, 16, 16))
        >>> len(recorder.record.calls)
        2
    """

    def __init__(
        self,
        keep: frozenset[Part],
        fusion: Fusion | None = None,
        tracer: Tracer | None = None,
        detach: bool = True,
    ):
        self._log = CallLog(keep, fusion, tracer, detach)
        self._mode = CallMode(self._log)
        self._hooks = ModuleHooks(self._log)

    @property
    def record(self) -> Record:
        """The calls so far."""
        return self._log.record

    @contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Record the runs of `network` in the thread that made this recorder, while this is open.

        Raises ValueError where an attention module ran without exactly one call seen.
        """
        with self._hooks.attached(network), self._mode, uncompiled():
            yield
