"""Puts trained networks on the shelf, and writes docs/models.md from their cards.

    python docs/models.py                     the page, from the cards that there are
    python docs/models.py add RUN NAME        the best weights of a finished run, measured; the page
    python docs/models.py sized NAME SIZE     the same weights, to ship at another size of photos,
                                              measured anew; the page
    python docs/models.py scored NAME SCORES  which heatmap to trust, by folders of vision-attn
                                              score, into a card that there is; the page

RUN is a folder of `vision-attn fit`, with best.ckpt (averaged weights, if that is what it holds),
config.yaml and summary.json. The weights are rounded to float16, or to bfloat16 where that costs
less accuracy. What is measured is what ships: rounded, in float32 arithmetic, on the test images.
With --size, and by `sized`, it is shown photos at another size than the run's, as networks that
learned from random crops see objects better when these are a little larger (Touvron 2019,
arXiv:1906.06423).
The temperature, and the threshold below which a photo is called unlike what the network knows, are
of the images that the run held out (data.val_fraction).
"""

import argparse
import copy
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
import yaml
from safetensors.torch import save
from torch import Tensor, nn
from torchmetrics.functional.classification import (
    multiclass_calibration_error,
    multiclass_confusion_matrix,
)

from vision_attn import load_model
from vision_attn.data import ImageData
from vision_attn.evaluate import wilson
from vision_attn.files import replacing, write_text
from vision_attn.fitting.configs import shipped_configs
from vision_attn.fitting.making import make_run
from vision_attn.models.checkpoint import Checkpoint, load_weights, pack, unpack, without_prefix
from vision_attn.models.shelf import Card, Shelf
from vision_attn.render import confusion_matrix, markdown_table
from vision_attn.render import save as save_picture
from vision_attn.training import calibrate
from vision_attn.training.flops import forward_flops
from vision_attn.types import Calibration

HERE = Path(__file__).parent
LARGEST = 6_000_000  # bytes of one file of weights
MAY_COST = 0.001  # of the accuracy: what rounding to float16 may take
BINS = 15  # of the calibration error
LICENCES = {
    "planted": "the images are drawn by vision_attn: MIT, as the code",
    "cifar10": "CIFAR-10 (Krizhevsky 2009), photos gathered for research",
    "imagenette160": "Imagenette, of ImageNet's photos, whose terms allow research and teaching, "
    "not commercial use",
}


class Measured(NamedTuple):
    """Logits (b k) of images and their labels (b)."""

    logits: Tensor
    labels: Tensor

    @property
    def hits(self) -> Tensor:
        return self.logits.argmax(1) == self.labels

    @property
    def top1(self) -> float:
        return self.hits.double().mean().item()

    def error(self, calibration: Calibration) -> float:
        """The expected calibration error, by 15 bins."""
        probabilities = calibration.probabilities(self.logits)
        classes = self.logits.shape[1]
        return multiclass_calibration_error(probabilities, self.labels, classes, BINS).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shelf", help="another folder of cards (default: that of the package)")
    parser.add_argument("--docs", type=Path, default=HERE, help="where the page goes")
    commands = parser.add_subparsers(dest="command")
    adding = commands.add_parser("add", help="put a run's best weights on the shelf")
    adding.add_argument("run", type=Path)
    adding.add_argument("name")
    adding.add_argument("--data-root", default=os.environ.get("VISION_ATTN_DATA", ".data"))
    adding.add_argument("--config", help="its config's name (default: the run's)")
    adding.add_argument("--command", dest="words", help="the whole command that trained it")
    adding.add_argument("--hardware", help="what it was trained on (default: this machine's cores)")
    adding.add_argument("--scores", type=Path, nargs="+", help="folders of vision-attn score")
    adding.add_argument("--size", type=int, help="pixels of height and width at which it ships")
    adding.add_argument("--licence", help="of the data, where LICENCES has none")
    sizing = commands.add_parser("sized", help="ship a network at another size of photos")
    sizing.add_argument("name")
    sizing.add_argument("size", type=int, help="pixels of height and width")
    sizing.add_argument("--data-root", default=os.environ.get("VISION_ATTN_DATA", ".data"))
    scoring = commands.add_parser("scored", help="write a card's heatmap to trust")
    scoring.add_argument("name")
    scoring.add_argument("scores", type=Path, nargs="+", help="folders of vision-attn score")
    args = parser.parse_args()
    if args.command == "scored":
        card = Shelf(args.shelf)[args.name]
        write_card(Card(card.path, {**card.values, "trust": trust_in(args.scores)}))
    if args.command in ("add", "sized"):
        card = add(args) if args.command == "add" else sized(args)
        print(f"{card.weights}: {card.values['bytes'] / 1e6:.2f} MB")
        print(f"{card.name}: {share(card.values['test'])} of {card.values['test']['images']}")
    print(write_page(Shelf(args.shelf), args.docs))


def add(args: argparse.Namespace) -> Card:
    """Measure a run's best weights as they ship, and write weights, card and confusion matrix."""
    config = yaml.safe_load((args.run / "config.yaml").read_text(encoding="utf-8"))
    summary = json.loads((args.run / "summary.json").read_text(encoding="utf-8"))
    best = args.run / "best.ckpt"
    saved = unpack(best)
    if args.size:
        at_size(args.size, config["data"], saved.about)
    data = opened(str(best), saved.about, config["data"], args.data_root)
    network = saved.build().eval()
    weights, dtype, exact = rounded(network, saved, data)
    load_weights(network, weights, best)
    calibration, tested = accuracy(network, data)
    file = save(weights)
    if len(file) > LARGEST:
        raise SystemExit(f"{len(file)} bytes of weights: expected at most {LARGEST}")
    about = {
        "classes": named(saved.about["classes"]),
        "preprocess": saved.about["preprocess"],
        "calibration": vars(calibration),
    }
    source = config["data"]["source"]
    folder = source["init_args"].get("path")
    name = Path(folder).name if folder else source["class_path"].rpartition(".")[2].lower()
    config_name = args.config or args.run.resolve().parent.name
    values = {
        "sha256": hashlib.sha256(file).hexdigest(),
        "bytes": len(file),
        "dtype": dtype,
        "network": {
            "class": type(network).__name__,
            "parameters": sum(weight.numel() for weight in network.parameters()),
            "flops": forward_flops(network, data.examples(1, data.splits.test)[0]),
        },
        "data": {
            "name": name,
            "config": {k: config["data"][k] for k in ("source", "val_fraction", "seed")},
            "classes": list(saved.about["classes"]),
            "train": len(data.splits.train),
            "held_out": len(data.splits.val),
            "test": len(data.splits.test),
            "licence": args.licence or LICENCES.get(name, "unknown"),
        },
        "test": tested | {"top1_float32": exact},
        "training": {
            "config": config_name,
            "command": args.words or command(config_name, config["seed_everything"]),
            "seed": config["seed_everything"],
            "epochs": summary["epochs"],
            "minutes": summary["minutes"],
            "hardware": args.hardware or f"{len(os.sched_getaffinity(0))} CPU cores",
            "precision": config["trainer"]["precision"],
            "flops": training_flops(summary, len(data.splits.train)),
            "teacher_flops": summary.get("pflop teacher", 0) * 1e15,
        },
        "trust": trust_in(args.scores),
        "checkpoint": pack(network, about),
    }
    shelf = Shelf(args.shelf)
    card = Card(shelf.folder / f"{args.name}.json", values)
    shelf.folder.mkdir(parents=True, exist_ok=True)
    with replacing(card.weights) as part:
        part.write_bytes(file)
    write_card(card)
    return card


def sized(args: argparse.Namespace) -> Card:
    """Measure what ships at another size of photos, and write it into the card.

    Which heatmap to trust at that size is not known then.
    """
    card = Shelf(args.shelf)[args.name]
    values = copy.deepcopy(card.values)
    spec = f"vision_attn:{card.path}"
    network, about = load_model(spec).network, unpack(spec).about
    at_size(args.size, values["data"]["config"], about)
    data = opened(spec, about, values["data"]["config"], args.data_root)
    calibration, values["test"] = accuracy(network, data)
    values["checkpoint"] |= {
        "preprocess": about["preprocess"],
        "calibration": vars(calibration),
    }
    values["network"]["flops"] = forward_flops(network, data.examples(1, data.splits.test)[0])
    values["trust"] = None
    card = Card(card.path, values)
    write_card(card)
    return card


def at_size(size: int, config: dict[str, Any], about: dict[str, Any]) -> None:
    """Show whole photos at that size, and write it into what ships."""
    sizes = {"size": size, "test_size": None, "shorter_side": size}
    config["source"]["init_args"] |= sizes
    about["preprocess"] |= {"input_size": (size, size), "crop_pct": 1.0}


def accuracy(network: nn.Module, data: ImageData) -> tuple[Calibration, dict[str, Any]]:
    """Calibrate on the held-out images; then what the test images say, for the card."""
    test = measured(network, data, data.test_dataloader())
    held_out = measured(network, data, data.val_dataloader()) if len(data.splits.val) else None
    calibration = calibrate(*held_out) if held_out else Calibration()
    interval = wilson(test.hits)
    confusion = multiclass_confusion_matrix(test.logits, test.labels, test.logits.shape[1])
    return calibration, {
        "images": len(test.labels),
        "top1": test.top1,
        "low": interval.low,
        "high": interval.high,
        "calibration_error": test.error(calibration),
        "calibration_error_before": test.error(Calibration()),
        "confusion": confusion.tolist(),
    }


def write_card(card: Card) -> None:
    """Write its JSON: a list of numbers or names takes a line, not a line each."""
    text = json.dumps(card.values, indent=2)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)
    write_text(card.path, text + "\n")


def opened(weights: str, about: dict[str, Any], config: dict[str, Any], root: str) -> ImageData:
    """The run's data, normalised as they were when it learned."""
    words = [f"--data.{name}={json.dumps(config[name])}" for name in ("val_fraction", "seed")]
    words += [f"--data.source={json.dumps(config['source'])}", f"--data.root={root}"]
    data: ImageData = make_run("test", ["--ckpt_path", weights, *words]).datamodule
    data.prepare_data()
    data.setup("test")
    data.load_state_dict({**{k: about[k] for k in ("classes", "preprocess")}, "place": None})
    return data


def named(classes: list[str]) -> list[str]:
    """Names for people, where the folders are called by ImageNet's numbers, which stay synonyms."""
    imagenet = timm.data.ImageNetInfo()
    numbers = set(imagenet.label_names())
    return [
        f"{imagenet.label_name_to_description(name)}, {name}" if name in numbers else name
        for name in classes
    ]


def rounded(
    network: nn.Module, saved: Checkpoint, data: ImageData
) -> tuple[dict[str, Tensor], str, float]:
    """The weights in half the bytes, the number format, and the test accuracy of those of the run.

    float16, unless it costs more than bfloat16 does on the images that were held out.
    """
    whole = without_prefix(saved.weights, network.state_dict())
    held_out = data.val_dataloader() if len(data.splits.val) else data.test_dataloader()

    def accuracy(weights: dict[str, Tensor], batches: Any) -> float:
        load_weights(network, weights, saved.path)
        return measured(network, data, batches).top1

    found: dict[torch.dtype, tuple[float, dict[str, Tensor]]] = {}
    needed = accuracy(whole, held_out) - MAY_COST
    for dtype in (torch.float16, torch.bfloat16):
        half = {
            name: (weight.to(dtype) if weight.is_floating_point() else weight).contiguous()
            for name, weight in whole.items()
        }
        if all(weight.isfinite().all() for weight in half.values()):  # float16 ends at 65504
            found[dtype] = accuracy(half, held_out), half
            if found[dtype][0] >= needed:
                break
    best = max(found, key=lambda dtype: found[dtype][0])
    return found[best][1], str(best).removeprefix("torch."), accuracy(whole, data.test_dataloader())


@torch.no_grad()
def measured(network: nn.Module, data: ImageData, batches: Any) -> Measured:
    """What the network says of a loader's images."""
    logits, labels = [], []
    for batch in batches:
        normalised, truth = data.for_evaluation(batch)
        logits.append(network(normalised).float())
        labels.append(truth)
    return Measured(torch.cat(logits), torch.cat(labels))


def command(config: str, seed: int) -> str:
    """The command that trains it again, if nothing but the seed differs from the config."""
    if config not in shipped_configs():
        raise SystemExit(f"no config named {config}: give --config NAME, or the whole --command")
    usual = yaml.safe_load(shipped_configs()[config].read_text(encoding="utf-8"))
    words = f"vision-attn fit --config {config}"
    return words if usual["seed_everything"] == seed else f"{words} --seed_everything {seed}"


def training_flops(summary: dict[str, float], images: int) -> float | None:
    """The work as the run counted it; by an earlier run three forward passes for each image."""
    if "pflop" in summary:
        return summary["pflop"] * 1e15
    if "flops/s" not in summary:
        return None
    return summary["flops/s"] / summary["images/s"] * images * summary["epochs"]


def trust_in(folders: Sequence[Path] | None) -> dict[str, Any] | None:
    """What a card keeps of scores: the methods to trust, those of the first folder first.

    In a folder the best mean rank comes first; means of different images do not compare.
    """
    if not folders:
        return None
    reports = [json.loads((folder / "scores.json").read_text("utf-8")) for folder in folders]
    methods = [method for report in reports for method in report["verdict"]["trusted"]]
    return {
        "methods": list(dict.fromkeys(methods)),
        "images": min(report["images"] for report in reports),
        "data": reports[0]["settings"]["data"],
        "scored": sum(len(report["verdict"]["methods"]) for report in reports),
    }


def trust_in_words(trust: dict[str, Any] | None) -> str:
    """Name the first method that a card trusts."""
    if trust is None:
        return "not scored yet"
    first = next(iter(trust["methods"]), "none")
    return f"{first}, of {trust['scored']} scored, on {trust['images']} images or more"


def write_page(shelf: Shelf, docs: Path) -> Path:
    """Write models.md, and the pictures of the confusion matrices, from the cards alone."""
    cards = list(shelf)
    rows = [
        [
            f"[{card.name}](#{card.name})",
            card.values["network"]["class"],
            card.values["data"]["name"],
            share(card.values["test"]),
            f"{card.values['network']['parameters'] / 1e6:.2f} M",
            f"{card.values['bytes'] / 1e6:.1f} MB",
        ]
        for card in cards
    ]
    header = ["name", "network", "data", "test top-1 [95 % interval]", "parameters", "file"]
    page = docs / "models.md"
    write_text(page, "\n".join([LEAD, markdown_table(header, rows), *map(about, cards)]))
    pictures = docs / "pictures" / "models"
    pictures.mkdir(parents=True, exist_ok=True)
    for card in cards:
        counts = torch.tensor(card.values["test"]["confusion"]).numpy()
        classes = [name.split(",")[0] for name in card.values["checkpoint"]["classes"]]
        save_picture(confusion_matrix(counts, classes), pictures / f"{card.name}.png")
    return page


def share(test: dict[str, Any]) -> str:
    """The accuracy with its interval."""
    return f"{percent(test['top1'])} [{100 * test['low']:.1f}, {100 * test['high']:.1f}]"


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def about(card: Card) -> str:
    """One card, as a part of the page."""
    v, test, data, training = (card.values, *(card.values[k] for k in ("test", "data", "training")))
    calibration = Calibration(**v["checkpoint"]["calibration"])
    height, width = v["checkpoint"]["preprocess"]["input_size"]
    flops, teacher = training["flops"], training.get("teacher_flops")
    rows = [
        ["classes", ", ".join(name.split(",")[0] for name in v["checkpoint"]["classes"])],
        [
            "network",
            f"{v['network']['class']}, {v['network']['parameters']:,} parameters, "
            f"{v['network']['flops'] / 1e9:.3f} GFLOP an image of {height} x {width}",
        ],
        [
            "data",
            f"{data['name']}: {data['train']:,} training images, {data['held_out']:,} held out, "
            f"{data['test']:,} test images",
        ],
        ["test top-1", share(test) + before_rounding(test)],
        [
            "calibration error",
            f"{test['calibration_error']:.3f}; {test['calibration_error_before']:.3f} before "
            f"temperature scaling (temperature {calibration.temperature:.3f})"
            if data["held_out"]
            else f"{test['calibration_error']:.3f}; no image was held out to scale it by",
        ],
        [
            "a photo is unlike what it knows",
            "not known: no image was held out"
            if calibration.threshold is None
            else f"if the top class has less than {percent(calibration.threshold)}, as in 5 % of "
            "the held-out images",
        ],
        ["heatmap to trust", trust_in_words(v["trust"])],
        ["trained by", f"`{training['command']}`"],
        [
            "training",
            f"{training['epochs']} epochs, {training['minutes']:.1f} minutes, "
            f"{training['precision']}, {training['hardware']}, seed {training['seed']}"
            + (f", {flops / 1e15:.2f} PFLOP" if flops else "")
            + (f", {teacher / 1e15:.2f} of it the teacher's" if teacher else ""),
        ],
        ["weights", f"{v['dtype']}, {v['bytes']:,} bytes, SHA-256 `{v['sha256']}`"],
        ["licence of the data", data["licence"]],
    ]
    picture = f"![What {card.name} mixes up](pictures/models/{card.name}.png)"
    return f"## {card.name}\n\n{markdown_table(['', ''], rows)}\n{picture}\n"


def before_rounding(test: dict[str, Any]) -> str:
    exact = test.get("top1_float32")
    return "" if exact is None else f"; {percent(exact)} before rounding"


LEAD = """\
# Pretrained networks

They come with the package: nothing is downloaded.

```python
import vision_attn

vision_attn.list_models()
model = vision_attn.load_model("vision_attn:vit_planted")
```

```sh
vision-attn models
vision-attn explain vision_attn:vit_planted photo.jpg
vision-attn test --ckpt_path vision_attn:vit_planted
vision-attn fit --config finetune_shelf_imagefolder --model.weights vision_attn:vit_planted \\
  --data.root . --data.source.path path/to/images
```

Each was trained from scratch, with its config, on the data of its table and no others. The accuracy
is that of the weights as they ship, rounded to half the bytes, on the test images, with Wilson's
interval. Probabilities are shown after temperature scaling (Guo et al. 2017), fitted on images that
were held out of the training data. If the top class of a photo is less probable than in 95 % of
those images, the pictures, the page and `results.jsonl` say that the photo is unlike what the
network knows. Most photos of other things are not noticed, though: of 226, `senet_imagenette`
notices 34 % and, at 160 pixels, `compact_vit_imagenette` 18 %
([journal](lab/journal/other_photos.md)). Heatmaps explain the logits themselves, without
the scaling.

`python docs/models.py` writes this page from the cards in `vision_attn/models/shelf`, and
`python docs/models.py add RUN NAME` puts a run's best weights there.
"""

if __name__ == "__main__":
    main()
