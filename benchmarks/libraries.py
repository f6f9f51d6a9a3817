"""Where a library could do what this package does itself: Muon, and photos in Parquet and tar.

    python benchmarks/libraries.py muon      a step beside torch's and timm's; with
        ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
                                             before it, as on a CPU without bfloat16
    python benchmarks/libraries.py rows      bytes of photos beside datasets, and what becomes of
                                             an epoch that is stopped, or divided among processes

CPU seconds of one thread, in turns. What came of it is docs/adr/0018-one-house.md. rows needs
torchdata: pip install torchdata.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import loading
import timm.optim
import torch
from timing import cpu_seconds
from torch import Tensor, nn

from vision_attn.data import WebDataset
from vision_attn.data.block_photos import BlockPhotos, read_ahead
from vision_attn.data.draws import Draws
from vision_attn.data.photos import Photos
from vision_attn.data.row_splits import ParquetSplit, file_version
from vision_attn.data.tensors import Shuffled
from vision_attn.devices import native_precision
from vision_attn.hub import load_model
from vision_attn.models import FastCNN
from vision_attn.training import MuonAdamW, parameter_groups

BATCH = 50
Row = dict[str, Any]


def in_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each way, after a turn that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, rounds):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            start = cpu_seconds()
            ways[name]()
            if turn >= 0:
                seconds[name].append(cpu_seconds() - start)
    return seconds


def table(seconds: dict[str, list[float]], unit: float, of: int = 1) -> None:
    """Median of each way for one of `of`, and the first way's time in times of it."""
    first = next(iter(seconds.values()))
    for name, times in seconds.items():
        ratios = sorted(ours / theirs for ours, theirs in zip(first, times, strict=True))
        spread = " / ".join(f"{x:.2f}" for x in (ratios[0], median(ratios), ratios[-1]))
        print(f"  {name:12} {unit * median(times) / of:10.1f}   ours / it {spread}", flush=True)


def copies(originals: Iterable[Tensor], flat: bool = False) -> list[nn.Parameter]:
    """Weights with gradients; flat: each a matrix, as torch's Muon takes no kernels."""
    weights = [nn.Parameter((w.flatten(1) if flat else w).detach().clone()) for w in originals]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return weights


def all_step(optimizers: list[torch.optim.Optimizer]) -> None:
    for each in optimizers:
        each.step()


def muon(rounds: int) -> None:
    """Milliseconds of a step, matrices by Muon and the rest by AdamW."""
    print(f"{native_precision('cpu')}, {torch.backends.cpu.get_cpu_capability()}")
    compact = load_model("vision_attn:compact_vit_imagenette").network
    for name, network in {"compact ViT": compact, "FastCNN": FastCNN()}.items():
        groups = parameter_groups(network)
        hidden = [w for group in groups if group.get("hidden") for w in group["params"]]
        rest = [w for group in groups if not group.get("hidden") for w in group["params"]]
        ours = MuonAdamW(
            [{"params": copies(hidden), "hidden": True}, {"params": copies(rest), "hidden": False}]
        )
        torchs: list[torch.optim.Optimizer] = [
            torch.optim.Muon(copies(hidden, flat=True), lr=0.02, weight_decay=0.01),
            torch.optim.AdamW(copies(rest), fused=True),
        ]
        mine: list[dict[str, Any]] = [
            {"params": copies(hidden)},
            {"params": copies(rest), "use_fallback": True},
        ]
        timms = timm.optim.Muon(mine, lr=0.02)
        ways: dict[str, Callable[[], object]] = {
            "ours": ours.step,
            "torch": partial(all_step, torchs),
            "timm": timms.step,
        }
        numbers = sum(w.numel() for w in hidden) / 1e6
        print(f"{name}: {len(hidden)} matrices of {numbers:.1f} M numbers; ms a step")
        table(in_turns(ways, rounds), 1e3)


def rows(rounds: int, photos: int = 1500) -> None:
    """Microseconds for the bytes of a photo; then the promises."""
    import datasets
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        loading.write_tree(root, photos, 128)
        files = sorted(map(str, loading.write_parquet(root).glob("*.parquet")))
        shards = sorted(map(str, (root / "shards").glob("*.tar")))

        def our_parquet() -> int:
            versions = {file: file_version(file) for file in files}
            split = ParquetSplit(versions, None, root / "index", 2048)
            split.labels("label")
            held = split.photos("image", "photos")
            assert isinstance(held, BlockPhotos)
            batches = Shuffled(photos, 64, seed=0, blocks=held.blocks).batches()
            wanted = ((items, Draws(0, 0, items)) for items in batches)
            return sum(length(b, int(i)) for items, _, b in read_ahead(held, wanted) for i in items)

        def our_tar() -> int:
            source = WebDataset(shards, cache=str(root / "cache"))
            held = source.parts(root)[0]["train"].photos
            batches = Shuffled(photos, 64, seed=0).batches()
            return sum(length(held, int(i)) for items in batches for i in items)

        def streamed(kind: str) -> tuple[Any, str, Callable[[Row], str]]:
            column = "image" if kind == "parquet" else "jpg"
            name = (lambda row: row["image"]["path"]) if kind == "parquet" else _key
            stream = datasets.load_dataset(
                kind, data_files=files if kind == "parquet" else shards, split="train",
                streaming=True,
            )  # fmt: skip
            stream = stream.cast_column(column, datasets.Image(decode=False))
            return stream.shuffle(seed=0, buffer_size=1000), column, name

        def theirs(kind: str) -> int:
            stream, column, _ = streamed(kind)
            return sum(len(row[column]["bytes"]) for row in stream)

        def names(kind: str, state: Any = None) -> Iterator[tuple[list[str], Any]]:
            stream, _, name = streamed(kind)
            loader = StatefulDataLoader(stream, BATCH, collate_fn=lambda some: [*map(name, some)])
            if state is not None:
                loader.load_state_dict(state)
            for batch in loader:
                yield batch, loader

        for kind, ours in (("parquet", our_parquet), ("webdataset", our_tar)):
            print(f"{kind}: microseconds for the bytes of a photo")
            table(in_turns({"ours": ours, "datasets": partial(theirs, kind)}, rounds), 1e6, photos)
            whole = [name for batch, _ in names(kind) for name in batch]
            before: list[str] = []
            for batch, loader in names(kind):
                before += batch
                if len(before) == 7 * BATCH:
                    state = loader.state_dict()
                    break
            after = [name for batch, _ in names(kind, state) for name in batch]
            lost = len({*whole} - {*before} - {*after})
            alike = before + after == whole
            print(f"  stopped after {len(before)}: goes on alike {alike}, {lost} lost")
        for world in (2, 3):
            stream = streamed("parquet")[0]
            shares = [len([*split_dataset_by_node(stream, rank, world)]) for rank in range(world)]
            print(f"{world} processes: {shares} photos")


def length(photos: Photos, item: int) -> int:
    """Bytes of a photo that is a JPEG."""
    jpeg = photos.jpeg(item)
    assert jpeg is not None
    return len(jpeg)


def _key(row: Row) -> str:
    key: str = row["__key__"]
    return key


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"muon": muon, "rows": rows}
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.parts or parts:
        parts[name](args.rounds)


if __name__ == "__main__":
    main()
