"""Writes docs/sequences.md and its pictures: networks that write, networks that answer.

    for c in configs/*_{dates,strings,questions}.yaml; do vision-attn fit --config $c; done
    vision-attn fit --config configs/parallel_questions.yaml --name questions_blind \\
        --data.source.blind true
    python studies/sequences.py [--runs outputs]

Reads the newest run of each config and tries it on test examples; a config without a run is left
out, with a word on the screen.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch import Tensor

from vision_attn import render
from vision_attn.data.tensors import InOrder
from vision_attn.evaluate import paired_bootstrap
from vision_attn.hub import load_sequences
from vision_attn.render import markdown_table
from vision_attn.sequences import Dates, ExampleSource, PlantedQuestions, PlantedStrings, greedy
from vision_attn.sequences.alignments import of_image, of_question, of_text
from vision_attn.sequences.data.pairs import ExampleBatches
from vision_attn.sequences.learners import same
from vision_attn.types import PAD

DOCS = Path(__file__).parent.parent / "docs"
DATES = ("additive", "general", "transformer", "none")
STRINGS = ("global", "local_monotonic", "local_predictive", "transformer", "vit", "hard")
SHOWN = "global_strings", "transformer_strings"
QUESTIONS = (
    "parallel",
    "alternating",
    "attention_over_attention",
    "interactive",
    "maxpool",
    "hops",
)
DATE = "Tuesday, March 3rd, 1998 until the 5th of January 2004"
QUESTION = "what colour is the one left of the {}"

PAGE = """\
# Sequences and two inputs, trained

Each row, but `questions_blind` (see there), is one run of `vision-attn fit --config
configs/NAME.yaml`, with one seed, on examples that the package makes itself. Minutes are those of
training, on {machine}. The test examples were used once, at the end.
*Exact* is the share of targets written without a mistake from end to end, by greedy decoding.
"""


@dataclass(frozen=True)
class Run:
    """What `fit` left of a config."""

    name: str
    folder: Path

    @cached_property
    def summary(self) -> dict[str, float]:
        figures: dict[str, float] = json.loads((self.folder / "summary.json").read_text())
        return figures

    @cached_property
    def loaded(self) -> Any:
        return load_sequences(self.folder / "best.ckpt")

    def row(self, *metrics: str) -> list[str]:
        """Name, parameters, minutes, and these metrics of the test examples."""
        shares = [
            f"{self.summary[metric]:.1%}" if metric in self.summary else "" for metric in metrics
        ]
        size = f"{self.summary['parameters'] / 1e6:.2f} M"
        return [f"`{self.name}`", size, f"{self.summary['minutes']:.1f}", *shares]


def version(summary: Path) -> int:
    return int(summary.parent.name.removeprefix("version_"))


def runs_of(runs: Path, task: str, names: tuple[str, ...]) -> Iterator[Run]:
    for name in names:
        folders = sorted((runs / f"{name}_{task}").glob("version_*/summary.json"), key=version)
        if folders:
            yield Run(f"{name}_{task}", folders[-1].parent)
        else:
            print(f"no run of configs/{name}_{task}.yaml in {runs}: left out", file=sys.stderr)


def batches(source: ExampleSource) -> ExampleBatches:
    examples: Any = source.examples("test")
    return ExampleBatches(examples, InOrder(len(examples[0]), 250), source.preprocess)


def exact(run: Run, source: ExampleSource) -> Tensor:
    """Which test examples a network writes without a mistake."""
    network = run.loaded.network
    return torch.cat([same(greedy(network, b.source), b.target) for b in batches(source)])


def answered(run: Run, source: ExampleSource) -> Tensor:
    """Which test questions a network answers."""
    network = run.loaded.network
    return torch.cat([network(b.image, b.question).argmax(1) == b.answer for b in batches(source)])


def dates(runs: Path, pictures: Path) -> str:
    found = list(runs_of(runs, "dates", DATES))
    source = Dates(train=1)
    lengths = (source.examples("test").source != PAD).sum(1)
    long = lengths > lengths.float().quantile(2 / 3)
    right = {run.name: exact(run, source).float() for run in found}
    edges = torch.arange(5, 95, 10)
    figure, axes = plt.subplots(figsize=(7, 3.4), dpi=110, layout="constrained")
    rows = []
    for run in found:
        share = right[run.name]
        bins = [(lengths > low) & (lengths <= high) for low, high in pairwise(edges.tolist())]
        points = [
            (at + 5, share[inside].mean())
            for at, inside in zip(edges.tolist(), bins, strict=False)
            if inside.sum() >= 20
        ]
        axes.plot(*zip(*points, strict=True), "o-", label=run.name)
        longest = share[long].mean()
        rows.append([*run.row("test/exact"), f"{longest:.1%}"])
    axes.set(xlabel="length of the source, symbols", ylabel="written without a mistake")
    axes.set_ylim(0, 1.03)
    axes.legend(frameon=False)
    figure.savefig(pictures / "dates.png")
    plt.close(figure)
    _, shown = of_text(found[0].loaded.network, found[0].loaded, DATE)
    render.save(shown["alignment"], pictures / "alignment.png")
    head = ["config", "parameters", "minutes", "exact", "exact, longest third of the sources"]
    return f"""
## Dates into ISO form

{markdown_table(head, rows)}

`none_dates` is the same network without attention: one vector is all it gets of the source.

![Exact match by the length of the source](pictures/dates.png)

![Where {found[0].name} looked at each symbol it wrote](pictures/alignment.png)
"""


def strings(runs: Path, pictures: Path) -> str:
    found = list(runs_of(runs, "strings", STRINGS))
    overlays = "".join(looked(run, pictures) for run in found if run.name in SHOWN)
    head = ["config", "parameters", "minutes", "exact", "middle in the object", "on the object"]
    rows = [run.row("test/exact", "test/pointing", "test/touching") for run in found]
    return f"""
## Rows of objects, named one by one

{markdown_table(head, rows)}

The names are the classes of the planted images: a texture on a disk or on a cross, in any colour.
The last two columns say where the map of step t has its largest cell. *Middle in the object* is the
share of steps where the middle of this cell lies in the mask of object t; *on the object*, where
the cell covers any of that mask. A cell is 4 pixels wide (8 in `vit_strings`), an object about 12.
`hard_strings` reads one cell a step, which sees 14 pixels, so it can read an object from a cell
beside it.
{overlays}"""


def looked(run: Run, pictures: Path) -> str:
    """A picture of where it looked for each word of one row, for the page."""
    row = PlantedStrings(train=1, test=20).examples("test").source[7]
    photo = row.permute(1, 2, 0).numpy()
    loaded = run.loaded
    image = loaded.preprocess(Image.fromarray(photo))[None]
    _, shown = of_image(
        loaded.network, loaded, photo, image,
        lambda values: loaded.preprocess.to_original(values, photo.shape[1::-1]),
    )  # fmt: skip
    render.save(shown["steps"], pictures / f"{run.name}.png")
    return f"\n![Where {run.name} looked for each word it wrote](pictures/{run.name}.png)\n"


def questions(runs: Path, pictures: Path) -> str:
    found = list(runs_of(runs, "questions", QUESTIONS))
    blind = list(runs_of(runs, "blind", ("questions",)))
    kinds = ("colour", "shape", "count", "left", "hops")
    metrics = ["test/top1", *(f"test/top1_{kind}" for kind in kinds)]
    head = ["config", "parameters", "minutes", "right", *kinds]
    page = "\n## Questions about images\n"
    if found and blind:
        page += f"""
{markdown_table(head, [run.row(*metrics) for run in [*found, *blind]])}

`questions_blind` is `parallel_questions` on grey images: what the question alone can answer.
"""
    looks = list(runs_of(runs, "questions", ("one_hop", "two_hops")))
    if len(looks) == 2:
        page += two_hops(looks[0], looks[1], pictures)
    return page


def two_hops(one: Run, two: Run, pictures: Path) -> str:
    source = PlantedQuestions(train=1, kinds=["hops"])
    right = [answered(run, source).double() for run in (one, two)]
    gain = paired_bootstrap(right[1], right[0])
    examples = source.examples("test")
    at = int(right[1].argmax())  # the first
    photo = examples.image[at].permute(1, 2, 0).numpy()
    loaded = two.loaded
    image = loaded.preprocess(Image.fromarray(photo))[None]
    question = " ".join(loaded.vocabularies["question"].decode(examples.question[at : at + 1])[0])
    answer, shown = of_question(
        loaded.network, loaded, photo, image, question,
        lambda values: loaded.preprocess.to_original(values, photo.shape[1::-1]),
    )  # fmt: skip
    render.save(shown["looks"], pictures / "two_hops.png")
    rows = [run.row("test/top1") for run in (one, two)]
    return f"""
### One look or two

*What colour is the one left of the star?* To find that object, one must first find the star. Both
networks see each place separately. One looks once, the other twice.

{markdown_table(["config", "parameters", "minutes", "right"], rows)}

Two looks against one, paired bootstrap: {gain.mean:+.1%}, 95 % interval {gain.low:+.1%} to
{gain.high:+.1%}.

![{question}? {answer}](pictures/two_hops.png)

"{question}?" — {answer}.
"""


@torch.inference_mode()
def study() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("outputs"), metavar="DIR")
    parser.add_argument("--output", type=Path, default=DOCS, help="where the page is written")
    parser.add_argument("--machine", default="one core of a CPU with native bf16")
    args = parser.parse_args()
    pictures = args.output / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    page = PAGE.format(machine=args.machine)
    for part in (dates, strings, questions):
        page += part(args.runs, pictures)
    (args.output / "sequences.md").write_text(page, encoding="utf-8")
    print(args.output / "sequences.md")


if __name__ == "__main__":
    study()
