"""Record every attention call of a network as it runs, with the fused kernels on.

    with record_attention(network) as record:
        network(images)
    record.calls[0].q, record.calls[0].weights(rows=slice(0, 1))

Three things see the calls. A `TorchFunctionMode`, which is thread-local and leaves nothing behind,
sees `scaled_dot_product_attention`, and follows what a softmax made until it multiplies values:
that is attention written out by hand. The same mode sees `nn.MultiheadAttention`, whose fast path
it turns off, and runs what it computes with itself switched on. Forward hooks on the modules
that have query and key projections check that each of them was seen exactly once a run. Where only
the heads' weights fused are wanted, those of short sequences are made while the network runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import get_args

from torch import nn

from vision_attn.attention import Attend, Readout
from vision_attn.compat.torch_private import own_names, uncompiled
from vision_attn.explain.calls import Fusion
from vision_attn.explain.hooks import Recorder
from vision_attn.explain.modules import modules_of, sealed
from vision_attn.explain.recorder import Part, Record

# What modules call their query and key projections: one name for both, or a pair.
PROJECTIONS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "qkv", "q k", "q kv", "qk", "q_proj k_proj", "q_proj kv_proj", "query key", "to_qkv",
        "to_q to_k", "to_q to_kv", "query_key_value", "Wqkv", "in_proj_weight", "q_lin k_lin",
        "in_proj attn_out_proj", "q_proj_weight k_proj_weight",
    )
)  # fmt: skip


@contextmanager
def record_attention(
    network: nn.Module,
    keep: Sequence[Part] | None = None,
    fusion: Fusion | None = None,
) -> Iterator[Record]:
    """Record the attention calls of every run of `network` in this thread, while this is open.

    keep: parts wanted besides q and k, or the weights where they are written out; by default
    "v", "context" and "scores". fusion: given where none of them is wanted, but the heads' weights
    fused so: short sequences are then written out and have one head, where that is less work
    (`short_attention`). A run that ends in an exception leaves no calls. Never a partial record in
    silence: raises ValueError where a module that has query and key projections ran
    without exactly one call seen and, on leaving without an error, where there was no call at all;
    also for a network that hides its modules, and for parts to keep beside a fusion.
    """
    if keep is None:
        keep = () if fusion else get_args(Part)
    if keep and fusion:
        raise ValueError(
            f"no part is kept where heads are fused: got both keep={keep} and a fusion; give one"
        )
    if reason := sealed(network):
        raise ValueError(f"{type(network).__name__} cannot be recorded: {reason}")
    recorder = Recorder(frozenset(keep), fusion)
    hooks: list = [
        network.register_forward_pre_hook(recorder.begins),
        network.register_forward_hook(recorder.ends, always_call=True),
    ]
    try:
        for module, name in modules_of(network).items():
            if attends(module):
                hooks += [
                    module.register_forward_pre_hook(recorder.enters(name, module)),
                    module.register_forward_hook(
                        recorder.leaves(name), with_kwargs=True, always_call=True
                    ),
                ]
        with recorder, uncompiled():
            yield recorder.record
    finally:
        for hook in hooks:
            hook.remove()
    if not recorder.record.calls:
        raise ValueError(
            f"no attention call was seen in {type(network).__name__}: it has no attention, was not "
            "run inside `record_attention`, or attends by a kernel that is not torch's"
        )


def attends(module: nn.Module) -> bool:
    """Whether a module itself projects to queries and keys."""
    if isinstance(module, Attend | Readout):
        return True
    return _projects(own_names(module))


@cache
def _projects(names: tuple[str, ...]) -> bool:
    return any(projections.issubset(names) for projections in PROJECTIONS)


def calls_attention(module: nn.Module) -> bool:
    """Whether the module's own code names torch's attention."""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "scaled_dot_product_attention" in code.co_names
