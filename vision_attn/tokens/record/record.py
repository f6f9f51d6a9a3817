"""Record every attention call of a network as it runs, with the fused kernels on.

Three things see the calls. A `TorchFunctionMode`, which is thread-local and leaves nothing behind,
sees `scaled_dot_product_attention`, and follows the output of a softmax until it multiplies values:
that is attention written out by hand. The same mode sees `nn.MultiheadAttention`, whose fast path
it turns off, and runs what it computes with itself switched on. Forward hooks on the modules
that have query and key projections check that each of them was seen exactly once a run. Where only
the fused weights of the heads are wanted, those of short sequences are computed as the network
runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

from torch import nn

from vision_attn.arguments import checked
from vision_attn.compat.torch_private import uncompiled
from vision_attn.tokens.modules import network_of, why_opaque
from vision_attn.tokens.record.calls import Fusion
from vision_attn.tokens.record.functions import CallMode
from vision_attn.tokens.record.hooks import ModuleHooks
from vision_attn.tokens.record.log import CallLog, Part, Record
from vision_attn.tokens.trace.tracer import Tracer
from vision_attn.types import Model

__all__ = ["Recorder", "record_attention"]


@checked()
@contextmanager
def record_attention(
    network: nn.Module | Model,
    keep: Sequence[Part] | None = None,
    fusion: Fusion | None = None,
    detach: bool = True,
) -> Iterator[Record]:
    """Record the attention calls of every run of `network` in this thread, while this is open.

    It never gives a partial record in silence; a run that ends in an exception leaves no calls.

    Args:
        network: A network, or a model for its network.
        keep: Parts wanted besides q and k, or the weights where the network itself computes them.
            None: "v", "context" and "scores"; with `fusion`, nothing.
        fusion: How to fuse the heads where nothing else is wanted: short sequences are then
            recorded with one head if that is less work.
        detach: Whether what is recorded is off the autograd graph. False leaves queries, keys,
            values, masks and weights on it, so that a loss may be made of `call.weights()`, whose
            gradient is that of the weights before the dropout of a fused kernel.

    Yields:
        A `Record`. Its `calls` are those of the last run in their order, an `AttentionCall` each: q
        (b, heads, queries, width), k (b, heads, keys, width), where windows count as batch.

    Raises:
        ValueError: The network hides its modules; a fusion with parts to keep, or without
            detaching; a module that has query and key projections ran without exactly one call
            seen; or, on leaving without an error, there was no call at all.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens import record_attention
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> with record_attention(network) as record:
        ...     logits = network(torch.rand(2, 3, 16, 16))
        >>> record.calls[0].q.shape
        torch.Size([2, 3, 5, 4])
        >>> record.calls[0].weights(rows=slice(0, 1)).shape
        torch.Size([2, 3, 1, 5])
    """
    if keep is None:
        keep = () if fusion else get_args(Part)
    if keep and fusion:
        raise ValueError(
            f"no part is kept if heads are fused: got both keep={keep} and a fusion; give one"
        )
    if fusion and not detach:
        raise ValueError("heads are fused off the graph: got detach=False and a fusion; give one")
    network = network_of(network)
    if reason := why_opaque(network):
        raise ValueError(f"{type(network).__name__} cannot be recorded: {reason}")
    recorder = Recorder(frozenset(keep), fusion, detach=detach)
    with recorder.watching(network):
        yield recorder.record
    if not recorder.record.calls:
        raise ValueError(
            f"no attention call was seen in {type(network).__name__}: it has no attention, was not "
            "run inside `record_attention`, or attends by a kernel that is not torch's"
        )


class Recorder:
    """Record the attention calls of a network: a mode sees the calls, hooks count them.

    Args:
        keep: As of `record_attention`, which also checks that there was a call at all.
        fusion: As of `record_attention`.
        tracer: Told of every call's output, which its own operations have mixed.
        detach: As of `record_attention`.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.record import Recorder
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

        Raises:
            ValueError: An attention module ran without exactly one call seen.
        """
        with self._hooks.attached(network), self._mode, uncompiled():
            yield
