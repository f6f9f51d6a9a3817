"""From a model and photos to a diagnosis and its page."""

from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from vision_attn.arguments import checked
from vision_attn.data.faults import ImageError
from vision_attn.pages.diagnosis.page import save
from vision_attn.runs.diagnosis.measure import Meter
from vision_attn.runs.diagnosis.results import Diagnosis
from vision_attn.runs.diagnosis.verdict import Thresholds, judge
from vision_attn.runs.inputs import output_folder
from vision_attn.runs.progress import Bar, Silent
from vision_attn.runs.scoring.evidence import Data, as_data, open_data
from vision_attn.types import Model

__all__ = ["diagnose"]

USUAL = 200  # photos


@checked(limit=1, batch_size=1)
def diagnose(
    model: Model,
    images: Data,
    *,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    batch_size: int = 16,
    thresholds: Thresholds | None = None,
    seed: int = 0,
    root: str | PathLike[str] = ".data",
    name: str | None = None,
    progress: Silent | None = None,
) -> Diagnosis:
    """Find what is unusual in a network, in one run over photos; 50 to 500 are enough.

    By head: entropy, distance, what it attends to, what it adds, and which other head is like it.
    By block: norms of tokens and the outliers among them, how alike and how spread out they are,
    and what residual, attention and MLP share. Memory does not grow with the number of photos, and
    no n x n matrix of attention is kept. Of a network without attention there is its accuracy and
    calibration alone. Ctrl-C ends the run with the photos so far.

    Args:
        model: A model of `load_model` or `wrap`.
        images: As for `score`: a folder of photos, in folders of classes or not, a list of files
            and PIL images, or the name of data.
        limit: At most so many photos, drawn evenly. None: 200.
        output: A folder for the page, index.html, and diagnosis.json; None writes none.
        batch_size: Photos at once.
        thresholds: What counts as unusual. None: those of `vision_attn.runs.diagnosis.verdict`.
        seed: Which photos are drawn.
        root: The folder of cifar10 and cifar100.
        name: What the verdict calls the model. None: its own name.
        progress: `Bar()` unless given.

    Returns:
        A Diagnosis; printed, its verdict. A photo that cannot be read is one of its `problems`.

    Raises:
        ValueError: No photo can be read, or the network cannot be recorded.

    Examples:
        >>> import vision_attn
        >>> model = vision_attn.load_model(
        ...     "timm:vit_tiny_patch16_224", pretrained=False, image_size=64, depth=2
        ... )
        >>> found = vision_attn.diagnose(model, "planted", limit=3)
        >>> len(found.heads), len(found.blocks), found.photos
        (6, 2, 3)
    """
    samples = open_data(as_data(images), model, Path(root))
    chosen = samples.chosen(limit or USUAL, seed)
    folder = None if output is None else output_folder(output)
    meter = Meter(model, name or "")
    shown = progress or Bar()
    problems: list[str] = []

    def say(problem: str) -> None:
        problems.append(problem)
        shown.problem(problem)

    with ExitStack() as stack:
        stack.enter_context(shown)
        shown.start("diagnosing", len(chosen))
        try:
            for start in range(0, len(chosen), batch_size):
                read = [_read(samples, item, say) for item in chosen[start : start + batch_size]]
                batch = [sample for sample in read if sample is not None]
                if batch:
                    meter.add(torch.stack([one.image for one in batch]), [s.label for s in batch])
                shown.advance(len(read))
        except KeyboardInterrupt:
            if not meter.photos:
                raise
    found = judge(meter.result(len(chosen) - len(problems), problems), thresholds)
    if folder is not None:
        save(found, folder)
    return found


def _read(samples: Any, item: int, say: Any) -> Any:
    """Read a photo; None, with a line, where it cannot be read."""
    try:
        return samples.sample(item)
    except ImageError as error:
        say(str(error))
        return None
