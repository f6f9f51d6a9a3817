"""Attention beside its peers: the same inputs, in one process, turn by turn.

    python benchmarks/attention.py [--sections sdpa multihead windows sparse gates costs]
                                   [--rounds 15] [--seconds 20] [--threads N] [--quick]

Every row is a pair that is timed in turns: ours, theirs, theirs, ours, and so on. A ratio is ours /
theirs of one round, below 1 where ours is faster; shown are the least, the median and the largest.
`limit` is what the median must not exceed where theirs takes more than a millisecond. Beside it
stands what the machine can do at most: GF/s of one large matrix product for the rows that are
products, GB/s of a copy for the gates.

Needs the peers: pip install entmax timm. --quick: tiny sizes, to see that it runs.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import timm.layers
import torch
from timing import (
    DTYPES,
    Clock,
    KeyRatio,
    Row,
    Run,
    forward,
    peak_memory,
    peaks_of,
    show,
    training,
)
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn import attention as att
from vision_attn.types import TokenLayout

HEADS, WIDTH = 3, 64
Call = Callable[..., Tensor]  # a module is one
Cast = Callable[[str], AbstractContextManager[object]]


def both_ways(
    what: str,
    size: str,
    ours: tuple[Callable[[], Tensor], list[Tensor]],
    theirs: tuple[Callable[[], Tensor], list[Tensor]],
    limit: float | None = None,
    flops: float = 0.0,
) -> Iterator[Row]:
    """The row of the forward pass, and that of a training step, which has 3.5 times its work."""
    yield Row(f"{what}, forward", size, forward(ours[0]), forward(theirs[0]), limit, flops)
    yield Row(f"{what}, training", size, training(*ours), training(*theirs), limit, 3.5 * flops)


def heads_of(b: int, n: int, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v (b head n d), as a model has them: cut from tokens (b n dim)."""
    return [
        torch.randn(b, n, HEADS, WIDTH, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]


def sdpa(options: argparse.Namespace) -> Iterator[Row]:
    """Attend(ScaledDot, Softmax) against torch's scaled_dot_product_attention."""
    attend: Call = att.Attend(att.ScaledDot(WIDTH, HEADS))
    for n in (64, 197) if options.quick else (64, 197, 1025, 4097):
        b = 2 if options.quick else max(1, 8192 // n)
        for name, dtype in DTYPES.items():
            q, k, v = heads_of(b, n, options.device, dtype)
            yield from both_ways(
                "Attend / SDPA",
                f"{b} x {HEADS} x {n} x {WIDTH} {name}",
                (partial(attend, q, k, v), [q, k, v]),
                (partial(F.scaled_dot_product_attention, q, k, v), [q, k, v]),
                limit=1.05,
                flops=4.0 * b * HEADS * n * n * WIDTH,
            )


def multihead(options: argparse.Namespace) -> Iterator[Row]:
    """MultiHeadAttention against torch's and timm's; bf16, where it is native, by autocast."""
    for dim, n in (
        ((192, 64),) if options.quick else ((192, 64), (192, 197), (384, 197), (384, 1025))
    ):
        b, heads = 2 if options.quick else max(1, 6400 // n), dim // WIDTH
        ours = att.MultiHeadAttention(dim, heads).to(options.device)
        torchs = nn.MultiheadAttention(dim, heads, batch_first=True, device=options.device)
        timms = timm.layers.Attention(dim, heads, qkv_bias=True).to(options.device)
        x = torch.randn(b, n, dim, device=options.device, requires_grad=True)
        flops = b * (8.0 * n * dim * dim + 4.0 * n * n * dim)
        peers: dict[str, Call] = {"torch's": partial(attended, torchs), "timm's": timms}
        for dtype in DTYPES:
            cast: Cast = torch.autocast if dtype == "bf16" else nullcontext

            def inside(call: Call, x: Tensor = x, cast: Cast = cast) -> Tensor:
                with cast(options.device):
                    return call(x)

            for name, module in (("torch's", torchs), ("timm's", timms)):
                size = f"{b} x {n} x {dim} {dtype}"
                for mode in (False, True):
                    for network in (ours, torchs, timms):
                        network.train(mode)
                    what = f"MultiHeadAttention / {name}"
                    mine, other = partial(inside, ours), partial(inside, peers[name])
                    if mode:
                        step = training(mine, [x, *ours.parameters()])
                        peer = training(other, [x, *module.parameters()])
                        yield Row(f"{what}, training", size, step, peer, 1.0, 3 * flops)
                    else:
                        yield Row(
                            f"{what}, forward", size, forward(mine), forward(other), 1.0, flops
                        )


def attended(module: nn.MultiheadAttention, x: Tensor) -> Tensor:
    tokens: Tensor = module(x, x, x, need_weights=False)[0]
    return tokens


def windows(options: argparse.Namespace) -> Iterator[Row]:
    """Windows against the masked full matrix, whose mask is made beforehand."""
    for side, dtype in (
        ((8, "fp32"),) if options.quick else ((64, "fp32"), (64, "bf16"), (128, "fp32"))
    ):
        if dtype not in DTYPES:
            continue
        layout = TokenLayout(1, (side, side))
        q, k, v = heads_of(1, layout.tokens, options.device, DTYPES[dtype])
        for name, window in {
            "Local2d(radius=3)": att.Local2d(radius=3),
            "LocalMonotonic(radius=16)": att.LocalMonotonic(radius=16),
        }.items():
            attend: Call = att.Attend(att.ScaledDot(WIDTH, HEADS), window=window)
            mask, _ = window.terms(q, k, layout)
            yield from both_ways(
                f"{name} / masked",
                f"1 x {HEADS} x {layout.tokens} x {WIDTH} {dtype}",
                (partial(attend, q, k, v, layout=layout), [q, k, v]),
                (partial(F.scaled_dot_product_attention, q, k, v, mask), [q, k, v]),
                limit=0.2 if layout.tokens > 16000 else None,
            )


def growth(options: argparse.Namespace, clock: Clock) -> None:
    """Seconds and peak memory of a training step from one length to four times that."""
    sides = (16, 32) if options.quick else (64, 128)
    print("\n| window | tokens | ms | peak MB | times as long | times the memory |")
    print("|---|---|---|---|---|---|")
    makes: dict[str, Callable[..., att.Window]] = {
        "Local2d(radius=3)": partial(att.Local2d, radius=3),
        "LocalMonotonic(radius=16)": partial(att.LocalMonotonic, radius=16),
        "LocalPredictive(radius=3)": partial(att.LocalPredictive, radius=3),
    }
    for name, make in makes.items():
        before: tuple[float, int] | None = None
        for side in sides:
            layout = TokenLayout(1, (side, side))
            q, k, v = heads_of(1, layout.tokens, options.device)
            window = make(head_dim=WIDTH, heads=HEADS).to(options.device)
            attend: Call = att.Attend(att.ScaledDot(WIDTH, HEADS), window=window)
            step = training(partial(attend, q, k, v, layout=layout), [q, k, v])
            step()
            now = (min(clock.seconds(step) for _ in range(3)), peak_memory(step, clock))
            line = f"| {name} | {layout.tokens} | {1e3 * now[0]:.1f} | {now[1] / 1e6:.0f} | "
            if before is not None:
                line += f"{now[0] / before[0]:.1f} | {now[1] / max(before[1], 1):.1f} |"
            else:
                line += " | |"
            print(line, flush=True)
            before = now


def sparse(options: argparse.Namespace) -> Iterator[Row]:
    """Sparsemax and Entmax15 against the entmax package."""
    import entmax

    pairs: dict[str, tuple[Call, Call]] = {
        "Sparsemax": (att.Sparsemax(), entmax.sparsemax),
        "Entmax15": (att.Entmax15(), entmax.entmax15),
    }
    for n in (64,) if options.quick else (64, 197, 1025):
        b = 1 if options.quick else max(1, 2_000_000 // (HEADS * n * n))
        for spread in (1, 5):
            scores = spread * torch.randn(b, HEADS, n, n, device=options.device)
            scores.requires_grad_()
            for name, (ours, theirs) in pairs.items():
                yield from both_ways(
                    f"{name} / entmax",
                    f"{b} x {HEADS} x {n} x {n} fp32, scores of deviation {spread}",
                    (partial(ours, scores), [scores]),
                    (partial(theirs, scores, dim=-1), [scores]),
                    limit=0.8,
                )


def gates(options: argparse.Namespace) -> Iterator[Row]:
    """SqueezeExcite against timm's SEModule, alone and at the end of a residual block."""
    sizes = ((128, 64, 32), (128, 128, 16), (128, 256, 8), (16, 256, 56), (16, 1024, 14))
    name, dtype = list(DTYPES.items())[-1]
    cast = partial(torch.autocast, options.device, torch.bfloat16, enabled=name == "bf16")
    for b, c, side in ((2, 16, 8),) if options.quick else sizes:
        ours = att.SqueezeExcite(c, hidden=max(1, c // 16)).to(options.device)
        theirs = timm.layers.SEModule(c, rd_channels=max(1, c // 16)).to(options.device)
        theirs.load_state_dict(ours.state_dict())
        x, past = (
            torch.randn(b, c, side, side, device=options.device, dtype=dtype)
            .contiguous(memory_format=torch.channels_last)
            .requires_grad_()
            for _ in range(2)
        )

        def alone(gate: Call, x: Tensor = x) -> Tensor:
            with cast():
                return gate(x)

        def in_block(gate: Call, x: Tensor = x, past: Tensor = past) -> Tensor:
            with cast():
                return F.relu(gate(x) + past, inplace=True)

        size = f"{b} x {c} x {side} x {side} {name} channels_last"
        for what, call, leaves in (
            ("SqueezeExcite / SEModule", alone, [x]),
            ("relu(gate(x) + past)", in_block, [x, past]),
        ):
            mine = training(partial(call, ours), [*leaves, *ours.parameters()])
            peer = training(partial(call, theirs), [*leaves, *theirs.parameters()])
            # x is read for the mean, for x s, and in backward; y, dy and dx are moved once.
            yield Row(f"{what}, training", size, mine, peer, 0.6, bytes=6.0 * x.nbytes)


def costs(options: argparse.Namespace) -> Iterator[Row]:
    """Each class in the place of its plain counterpart, a training step."""
    side, b = (4, 2) if options.quick else (14, 8)
    layout = TokenLayout(1, (side, side))
    dim, n = HEADS * WIDTH, layout.tokens
    x = torch.randn(b, n, dim, device=options.device, requires_grad=True)
    other = torch.randn(b, n, dim, device=options.device, requires_grad=True)

    def step(module: nn.Module, *inputs: Tensor, **given: object) -> Run:
        module = module.to(options.device)

        def call() -> Tensor:
            result = module(*inputs, **given)
            return result if isinstance(result, Tensor) else torch.cat(result, dim=-1)

        return training(call, [*inputs, *(p for p in module.parameters() if p.requires_grad)])

    heads = partial(att.MultiHeadAttention, dim, HEADS)
    plain, size = step(heads(), x, layout=layout), f"{b} x {n} x {dim} fp32"
    scores: tuple[Callable[..., att.Score], ...] = (
        att.Dot, att.CosineSimilarity, att.General, att.BiasedGeneral, att.ActivatedGeneral,
        att.KeyOnly, att.Concat, att.Additive, att.Deep, partial(att.Location, positions=n),
    )  # fmt: skip
    for score in scores:
        run = step(heads(score=score), x, layout=layout)
        yield Row(f"{named(score)} / ScaledDot", size, run, plain)
    for normalizer in (att.Sigmoid, att.Sparsemax, att.Entmax15, att.Hard, att.SampledHard):
        run = step(heads(normalizer=normalizer), x, layout=layout)
        yield Row(f"{named(normalizer)} / Softmax", size, run, plain)
    for window in (att.LocalMonotonic, att.LocalPredictive, att.Local2d):
        run = step(heads(window=partial(window, radius=2)), x, layout=layout)
        yield Row(f"{named(window)}(radius=2) / Global", size, run, plain)
    multidim = step(att.MultiDimAttention(dim, 8), x, layout=layout)
    yield Row("MultiDimAttention / MultiHeadAttention", size, multidim, plain)
    mean = step(att.MeanPool(dim), x, layout=layout)
    readouts = (
        att.AttentionPool, att.MultiDimPool, att.FeatureWisePool, att.HopsPool,
        att.HierarchicalPool,
    )  # fmt: skip
    for readout in readouts:
        yield Row(f"{named(readout)} / MeanPool", size, step(readout(dim), x, layout=layout), mean)
    hops = step(att.MemoryHops(dim), x, other)
    cross = step(att.MultiHeadAttention(dim, HEADS), x, other)
    yield Row("MemoryHops(3) / MultiHeadAttention", size, hops, cross)
    via = step(att.AttentionViaAttention(dim), x, other, other)
    yield Row("AttentionViaAttention / MultiHeadAttention", size, via, cross)
    interactive = step(att.InteractiveAttention(dim), x, other)
    pairs = (
        att.AlternatingCoAttention, att.ParallelCoAttention, att.MaxPoolCoAttention,
        att.AttentionOverAttention, att.TargetGuided,
    )  # fmt: skip
    for pair in pairs:
        yield Row(f"{named(pair)} / Interactive", size, step(pair(dim), x, other), interactive)
    features = torch.randn(b, WIDTH, 4 * side, 4 * side, device=options.device, requires_grad=True)
    se, size = step(att.SqueezeExcite(WIDTH), features), f"{tuple(features.shape)} fp32"
    for gate in (att.ChannelGate, att.SpatialGate, att.SpatialMask, att.CBAM):
        yield Row(f"{named(gate)} / SqueezeExcite", size, step(gate(WIDTH), features), se)


def named(factory: Callable[..., object]) -> str:
    name: str = getattr(factory, "func", factory).__name__
    return name


SECTIONS = (sdpa, multihead, windows, sparse, gates, costs)
KEY = (
    (sdpa, "Attend / SDPA, training", "x 197 x"),
    (multihead, "MultiHeadAttention / timm's, training", "32 x 197 x"),
    (sparse, "Entmax15 / entmax, training", "x 197 x"),
    (gates, "SqueezeExcite / SEModule, training", "128 x 128 x"),
)


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """A row of each section: the first of its name at such a size."""
    options = argparse.Namespace(device="cpu", quick=False)
    for section, what, size in KEY:
        rows = section(options)
        row = next(row for row in rows if row.what == what and size in row.size)
        yield clock.ratio(f"{row.what}, {row.size}", row.ours, row.theirs)


def main() -> None:
    names = [section.__name__ for section in SECTIONS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row, at most")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = Clock(options)
    peaks = peaks_of(clock, options.quick)
    print(f"torch {torch.__version__}, {options.device}, {options.threads} threads")
    for section in SECTIONS:
        if section.__name__ in options.sections:
            print(f"\n## {section.__doc__}\n")
            show(section(options), clock, peaks)
            if section is windows:
                growth(options, clock)


if __name__ == "__main__":
    main()
