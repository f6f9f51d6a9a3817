"""From a model and images to what each of its parts is worth, as values and as a page."""

from collections.abc import Sequence
from pathlib import Path

from vision_attn.arguments import checked
from vision_attn.methods.targets import TargetLike
from vision_attn.pages.ablation.page import write
from vision_attn.runs.ablation import PARTS, Ablation, AblationJob, Part, Replacement
from vision_attn.runs.inputs import output_folder
from vision_attn.runs.progress import Bar, Silent
from vision_attn.runs.scoring.evidence import Data, as_data, open_data
from vision_attn.types import Head, Model

__all__ = ["ablate"]


@checked(limit=2, batch_size=1, prune=0)
def ablate(
    model: Model,
    images: Data,
    parts: Sequence[Part] = PARTS,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | Path | None = None,
    head: Head | None = None,
    replacement: Replacement = "zero",
    prune: int = 8,
    batch_size: int = 25,
    seed: int = 0,
    root: str | Path = ".data",
    progress: Silent | None = None,
) -> Ablation:
    """Measure what each head, MLP and block of a network is worth, one taken away at a time.

    A unit is worth by how much the accuracy, and the number of the target, fall without it, on the
    same images. What ran before a unit is not run again: taking away a head of layer l costs the
    blocks from l on. Ctrl-C gives what was measured so far.

    Args:
        model: A model of `load_model` or `wrap`, whose attention can be recorded.
        images: As `score` takes them: a folder, a list of files and PIL images, planted, cifar10.
        parts: What is taken away: heads, mlps, blocks, one or several. A head's output is replaced,
            MLPs and blocks add nothing, as `intervene` has it.
        target: The number that is followed, as `explain` takes it. None: the logit of the class
            that an image shows where that is known ("label"), else of the predicted one.
        contrast: What is subtracted from it.
        limit: At most so many images, drawn evenly; None: 100.
        output: A folder for the page (index.html), ablation.json, .csv and .md; None writes none.
        head: Which part of the network's output is meant.
        replacement: What stands in the place of a head's output: zero, mean or uniform.
        prune: Steps of the curve of pruned heads; 0 measures none.
        batch_size: Images at once.
        seed: Which images are drawn.
        root: The folder of cifar10 and cifar100.
        progress: None shows a bar where there is a terminal.

    Returns:
        What each unit is worth.

    Raises:
        ValueError: The network's attention cannot be recorded, no branches of it can be told apart,
            or fewer than two images could be read.

    Examples:
        >>> import vision_attn
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=10)
        >>> ablation = vision_attn.ablate(model, "planted", ["mlps"], limit=3)
        >>> [str(unit) for unit in ablation.after][:2]
        ['MLP 0', 'MLP 1']
    """
    if not parts:
        raise ValueError(f"parts: expected one of {', '.join(PARTS)} at least, got none")
    folder = None if output is None else output_folder(output)
    data = open_data(as_data(images), model, Path(root))
    work = AblationJob(model, data, parts, target, contrast, head, replacement, prune)
    chosen = data.chosen(100 if limit is None else limit, seed)
    progress = progress or Bar()
    with progress:
        work.measure(chosen, batch_size, progress)
    found = work.ablation(progress.problems)
    if folder is not None:
        found.save(folder)
        write(found, folder, model.warning)
    return found
