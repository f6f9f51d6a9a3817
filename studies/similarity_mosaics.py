"""Where the map of a similarity lies in mosaics: writes a table into docs/howto/encoders.md.

    python studies/similarity_mosaics.py [--data .data/imagenette160] [--mosaics 100] [--photos 50]

The network is vision_attn:compact_vit_imagenette without its classifier. A class is its mean
embedding, over photos of `train`; a mosaic joins 2x2 photos of `val`, of four classes, drawn at
random, each used once, whether the network knows them or not. For each of the four, LibraGradient
explains the cosine of the mosaic's embedding with the class's. The score is the share of the map,
as far as it is positive, that lies on the class's photo: .25 for a map that knows nothing.

What the network sees of a mosaic, each photo at its own size or shrunk, is chosen on mosaics of
training photos: the frame in which it names more of their classes. Nothing else is chosen.
"""

import argparse
import copy
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

import vision_attn
from vision_attn.data.draws import permutation
from vision_attn.evaluate import GridPointingGame
from vision_attn.inference import infer
from vision_attn.methods import Class, Explainer, LibraGradient, Similarity, Target
from vision_attn.render import markdown_table
from vision_attn.runs.scoring.evidence import Samples, open_folder
from vision_attn.runs.scoring.mosaics import FRAMES, Mosaic, MosaicSamples
from vision_attn.tokens.layout import layout_of
from vision_attn.types import Images, Logits, Model

PAGE = Path(__file__).parent.parent / "docs/howto/encoders.md"
BEGIN, END = "<!-- study: similarity_mosaics -->", "<!-- end of study -->"
NAME = "vision_attn:compact_vit_imagenette"
SIDE, SEED, BATCH = 2, 0, 8
FRAMED = 20  # mosaics of training photos


@dataclass(frozen=True)
class Question:
    """What is explained of a mosaic for one of its classes."""

    words: str
    model: Model
    targets: list[Target]  # by class


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".data/imagenette160"))
    parser.add_argument("--mosaics", type=int, default=100, metavar="N")
    parser.add_argument("--photos", type=int, default=50, metavar="N", help="of a class's mean")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    start = time.perf_counter()
    model = vision_attn.load_model(NAME)
    encoder = without_classifier(model)
    train, val = (open_folder(str(args.data / part), model) for part in ("train", "val"))
    means = class_means(encoder, train, len(model.classes), args.photos)
    questions = [
        Question("cosine with the class's mean", encoder, [Similarity(mean) for mean in means]),
        Question("the class's logit", model, [Class(at) for at in range(len(model.classes))]),
    ]
    print(f"means: {time.perf_counter() - start:.0f} s", flush=True)
    frame = best_frame(model, train, FRAMED)
    size = "each at its own size" if frame == "full" else "shrunk into the input of one"
    note = textwrap.fill(
        f"`{NAME}`; its mean embeddings are of {args.photos} photos of `train` a class; the "
        f"mosaics are of 2x2 photos of `val` drawn at random, {size}; seed {SEED}. The means are "
        "over mosaics, with 95 % bootstrap intervals. A map that knows nothing has .25. Measured "
        "on one core of an AMD EPYC with AVX512.",
        132,
        break_on_hyphens=False,
    )
    mosaics, rows = drawn(val, args.mosaics), []
    header = ["what LibraGradient explains", "mosaics", "share on the right photo"]
    for question in questions:
        shares = shares_of(question, val, mosaics, frame)
        low, high = interval(shares)
        share = f"{shares.mean():.3f} [{low:.3f}, {high:.3f}]"
        rows.append([question.words, str(len(mosaics)), share])
        print(*rows[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
        write(args.page, f"{markdown_table(header, rows).rstrip()}\n\n{note}")


def without_classifier(model: Model) -> Model:
    """The same network as an encoder: its output is what the classifier read."""
    network = copy.deepcopy(model.network)
    network.head = nn.Identity()
    return replace(model, network=network, classes=[], trust=None)


def class_means(encoder: Model, data: Samples, classes: int, photos: int) -> Tensor:
    """The mean of each class's embeddings, each of length 1, over photos drawn by the seed."""
    means = []
    for label in range(classes):
        items = [item for item in data.chosen(len(data), SEED) if data.label(item) == label]
        vectors = torch.cat(list(outputs(encoder, data, items[:photos])))
        means.append(nn.functional.normalize(vectors, dim=1).mean(0))
    return torch.stack(means)


def outputs(model: Model, data: Samples, items: list[int]) -> Iterator[Logits]:
    """What the network gives for photos, a batch at a time."""
    for at in range(0, len(items), BATCH):
        images = torch.stack([data.sample(item).image for item in items[at : at + BATCH]])
        with torch.no_grad():
            yield infer(model.network, images)


def drawn(data: Samples, count: int) -> list[Mosaic]:
    """Mosaics of four photos of four classes, each drawn at random and used once."""
    left: dict[int, list[int]] = {}
    for item in data.chosen(len(data), SEED):
        label = data.label(item)
        assert label is not None  # the folders are named like the classes
        left.setdefault(label, []).append(item)
    mosaics = []
    for number in range(count):
        classes = tuple(permutation((SEED, SIDE, number), len(left))[: SIDE**2])
        items = tuple(left[label].pop() for label in classes)
        mosaics.append(Mosaic(f"mosaic {number}", SIDE, items, classes))
    return mosaics


def best_frame(model: Model, train: Samples, count: int) -> str:
    """The frame in which the network names more of the classes in mosaics of training photos."""
    mosaics = drawn(train, count)

    def named(frame: str) -> float:
        hits = 0
        for images, classes in batches(model, train, mosaics, frame):
            first = infer(model.network, images).topk(SIDE**2).indices
            hits += int((first[:, :, None] == classes[:, None]).any(2).sum())
        return hits / (len(mosaics) * SIDE**2)

    with torch.no_grad():
        shares = {frame: named(frame) for frame in FRAMES}
    print("classes named in mosaics of training photos:", shares, flush=True)
    return max(shares, key=lambda frame: shares[frame])


def batches(
    model: Model, data: Samples, mosaics: list[Mosaic], frame: str
) -> Iterator[tuple[Images, Int[Tensor, "b 4"]]]:
    """Images of mosaics, and the classes of their cells, (b 4)."""
    samples = MosaicSamples(model, data, mosaics, frame)
    for at in range(0, len(mosaics), BATCH):
        some = [samples[item] for item in range(at, min(at + BATCH, len(mosaics)))]
        classes = torch.tensor([[label for _, label in sample.cells] for sample in some])
        yield torch.stack([sample.image for sample in some]), classes


def shares_of(question: Question, data: Samples, mosaics: list[Mosaic], frame: str) -> Tensor:
    """The share of each mosaic's maps on the right photo, the mean over its four classes."""
    explainer: Explainer = LibraGradient()
    model, shares = question.model, []
    for images, classes in batches(model, data, mosaics, frame):
        layout = layout_of(model, (images.shape[2], images.shape[3]))
        cells = []
        for cell in range(SIDE**2):
            targets = [question.targets[label] for label in classes[:, cell].tolist()]
            maps = explainer(model, images, targets, layout)
            metric = GridPointingGame(SIDE)
            metric.update(maps.values, torch.full((len(images),), cell))
            cells.append(metric.per_image())
        shares.append(torch.stack(cells).mean(0))
    return torch.cat(shares).double()


def interval(shares: Tensor, draws: int = 10_000) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean over mosaics."""
    generator = torch.Generator("cpu").manual_seed(SEED)
    chosen = torch.randint(len(shares), (draws, len(shares)), generator=generator)
    low, high = shares[chosen].mean(1).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return low, high


def write(page: Path, text: str) -> None:
    """Put the table between its marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
