"""A remedy for registers in disguise: a model with registers at test time."""

from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch

from vision_attn.arguments import checked
from vision_attn.data.faults import ImageError
from vision_attn.methods.targets import model_output
from vision_attn.runs.diagnosis.stream import outliers_of, patches_of
from vision_attn.runs.scoring.evidence import Data, as_data, open_data
from vision_attn.tokens.blocks import BlockRun, find_blocks, watch_blocks
from vision_attn.tokens.path.path import found_layout
from vision_attn.tokens.registers import TestTimeRegisters, neuron_scores
from vision_attn.types import Images, Model

__all__ = ["add_registers"]


@checked(limit=1, neurons=1, batch_size=1, block=0)
def add_registers(
    model: Model,
    images: Data,
    *,
    neurons: int = 10,
    block: int | None = None,
    limit: int = 50,
    batch_size: int = 16,
    seed: int = 0,
    root: str | PathLike[str] = ".data",
) -> Model:
    """Move what patches with outlying norms hold to a token of its own, without training.

    Jiang et al. 2025 (arXiv:2506.08010); formulas in `vision_attn.tokens.registers`. The model is
    explained, scored and diagnosed as any other: `diagnose` on both says what it changes.

    Args:
        model: A model of `load_model` or `wrap`, a ViT with patches as they were to its last block.
        images: Photos to find the neurons on, as for `diagnose`.
        neurons: How many are moved: those most active where outliers are.
        block: The last block whose MLP is searched. None: the one after which the mean photo has
            the most outliers.
        limit: At most so many photos, drawn evenly.
        batch_size: Photos at once.
        seed: Which photos are drawn.
        root: The folder of cifar10 and cifar100.

    Returns:
        The model with a network that has the register; the network itself is shared.

    Raises:
        ValueError: No photo has outliers, or the network takes no further token.

    Examples:
        >>> import vision_attn
        >>> model = vision_attn.load_model(
        ...     "timm:vit_tiny_patch16_224", pretrained=False, image_size=64, depth=2
        ... )
        >>> vision_attn.add_registers(model, "planted", limit=2)
        Traceback (most recent call last):
        ValueError: no photo has a patch whose norm is above twice the median: nothing to move
    """
    samples = open_data(as_data(images), model, Path(root))
    network = model.network

    def batches() -> Iterator[Images]:
        chosen = samples.chosen(limit, seed)
        for start in range(0, len(chosen), batch_size):
            read = []
            for item in chosen[start : start + batch_size]:
                try:
                    read.append(samples.sample(item).image)
                except ImageError:
                    continue  # `diagnose` names it
            if read:
                yield torch.stack(read).to(model.device, model.dtype)

    every = list(batches()) if limit <= batch_size else None
    first = next(iter(every or batches()), None)
    if first is None:
        raise ValueError("no photo could be read: there is nothing to find neurons on")
    layout = model.layout or found_layout(network, first)
    blocks = find_blocks(network, first)
    inside = [one for one in blocks if one.mlp_out is not None]
    if not inside:
        raise ValueError(f"{type(network).__name__}: no block with an MLP was found")
    patches = patches_of(layout, layout.tokens)
    names = {id(module): name for name, module in network.named_modules()}
    runs: list[BlockRun] = []

    def run(images: Images) -> None:
        nonlocal runs
        with watch_blocks(inside) as runs:
            model_output(model, images)

    def stream_after(index: int) -> torch.Tensor:
        stream = runs[index].after
        assert stream is not None  # the block has run
        return stream

    if block is None:
        counts = torch.zeros(len(inside), dtype=torch.float64, device="cpu")
        with torch.no_grad():
            for batch in every or batches():
                run(batch)
                for index in range(len(runs)):
                    norms = stream_after(index)[:, patches].norm(dim=-1)
                    counts[index] += outliers_of(norms).sum().cpu()
        block = int(counts.argmax())
    if block >= len(inside):
        raise ValueError(f"block must be from 0 to {len(inside) - 1}, got {block}")

    def outliers() -> torch.Tensor:
        after = stream_after(block)
        where = torch.zeros(after.shape[:2], dtype=torch.bool, device=after.device)
        where[:, patches] = outliers_of(after[:, patches].norm(dim=-1))
        return where

    searched = inside[: block + 1]
    scores = neuron_scores(run, every or batches(), searched, outliers)
    if not scores:
        raise ValueError(
            "no photo has a patch whose norm is above twice the median: nothing to move"
        )
    ranked = sorted(
        ((score, names[id(one.mlp_out)], at) for one in searched
         for at, score in enumerate(scores[one.name].tolist())),
        reverse=True,
    )  # fmt: skip
    chosen = [(name, at) for _, name, at in ranked[:neurons]]
    moved = TestTimeRegisters(network, blocks[0].name, blocks[-1].name, chosen, layout)
    found = replace(model, network=moved, layout=moved.layout(model.preprocess.input_size))
    try:
        with torch.no_grad():
            model_output(found, first[:1])
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{type(network).__name__} takes no further token: {str(error).splitlines()[0]}"
        ) from None
    name = f"{model.name} with a test-time register".strip()
    return replace(found, name=name, trust=None)  # scores were of the network without it
