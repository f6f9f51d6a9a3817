"""Options that commands share: how they are written, and what is made of them.

Light to import: torch comes in with the first thing that needs it.
"""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.reports.progress import Bar

if TYPE_CHECKING:
    from vision_attn.hub import LoadedModel


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL and how it is loaded; see `load`."""
    what = "a checkpoint, timm:NAME, torchvision:NAME or hf:NAME"
    parser.add_argument("model", metavar="MODEL", help=what)
    group = parser.add_argument_group("model")
    group.add_argument("--weights", metavar="FILE", help="take the weights from this file")
    group.add_argument(
        "--pretrained",
        type=true_or_false,
        default=True,
        metavar="true|false",
        help="false: random weights, nothing is downloaded (default: true)",
    )
    group.add_argument(
        "--image-size",
        type=image_size,
        metavar="N|HxW",
        help="the network's input: a side, or height x width (default: the model's own)",
    )
    group.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps (default: auto)")


def add_images(parser: argparse.ArgumentParser) -> None:
    """IMAGE..., files and folders; see `find_images`."""
    what = "image files, and folders of them"
    parser.add_argument("images", metavar="IMAGE", nargs="*", help=what)
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="only the first N images")


def add_methods(parser: argparse.ArgumentParser) -> None:
    """Methods and classes; see `explainers` and `LoadedModel.class_index`."""
    group = parser.add_argument_group("method")
    group.add_argument(
        "--method",
        action="append",
        metavar="'NAME(OPTION=VALUE, ...)'",
        help="may be repeated; all: every method that fits the model "
        "(default: Rollout, or GradCAM for a network without attention)",
    )
    group.add_argument(
        "--target",
        default="predicted",
        metavar="predicted|INDEX|NAME",
        help="the class to explain (default: predicted)",
    )
    group.add_argument(
        "--contrast", metavar="INDEX|NAME", help="what speaks for the target rather than for this"
    )


def add_run(parser: argparse.ArgumentParser, output: str) -> None:
    """Where the files land, how many images at once, the seed."""
    what = f"where files land (default: {output})"
    parser.add_argument("-o", "--output", default=output, metavar="DIR", help=what)
    what = "images at once (default: 8)"
    parser.add_argument("--batch-size", type=at_least_one, default=8, metavar="N", help=what)
    what = "the seed of all that is random (default: 0)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=what)


def add_processes(parser: argparse.ArgumentParser) -> None:
    """The images shared out, here and among machines."""
    group = parser.add_argument_group("processes")
    what = "processes at once on this machine (default: 1)"
    group.add_argument("--processes", type=at_least_one, default=1, metavar="N", help=what)
    group.add_argument(
        "--shard",
        type=shard,
        default=shard_of_torchrun(),
        metavar="I/N",
        help="only every N-th image, from the I-th on; the shard that ends last puts all together "
        "(default: all images, or under torchrun the process's share)",
    )


def shard(text: str) -> tuple[int, int]:
    """(number, of how many), the number from 1."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not found or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"expected I/N, such as 1/4 to 4/4, got {text!r}")
    return int(found[1]), int(found[2])


def shard_of_torchrun() -> tuple[int, int]:
    """Which process this is and of how many, as torchrun says in the environment."""
    return int(os.environ.get("RANK", 0)) + 1, int(os.environ.get("WORLD_SIZE", 1))


def true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")
    return text.lower() == "true"


def image_size(text: str) -> tuple[int, int]:
    """(height, width)."""
    found = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"expected a side or HEIGHTxWIDTH, such as 224 or 160x224, got {text!r}"
        )
    return int(found[1]), int(found[2] or found[1])


def at_least_one(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def find_images(paths: Sequence[str], limit: int | None) -> tuple[list[Path], list[str]]:
    """The images of files and folders, and a line for each that is missing, empty or unnamed.

    Raises ValueError where there is no path at all.
    """
    from vision_attn.data.images import ImageError
    from vision_attn.data.images import find_images as find

    if not paths:
        raise ValueError("no image given: name image files or folders after MODEL")
    found: list[Path] = []
    problems = []
    for path in paths:
        if not path:  # which would be the current folder
            problems.append("IMAGE '': expected the path of an image or a folder, got an empty one")
            continue
        try:
            found += find([path])
        except ImageError as error:
            problems.append(str(error))
    once: dict[Path, Path] = {}
    for image in found:
        once.setdefault(image.resolve(), image)
    return list(once.values())[:limit], problems


def output_folder(path: str) -> Path:
    """The folder, made if need be; ValueError where nothing can be written into it."""
    folder = Path(path)
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"--output {path}: cannot write there ({error.strerror}): name another folder"
        ) from None
    return folder


def load(args: argparse.Namespace) -> "LoadedModel":
    """The model that the options name, on their device."""
    from vision_attn.devices import find_device
    from vision_attn.hub import load_model

    try:
        device = find_device(args.device)
    except ValueError as error:
        raise ValueError(f"--device {args.device}: {error}") from None
    model = load_model(
        args.model, weights=args.weights, pretrained=args.pretrained, image_size=args.image_size
    )
    model.network.to(device)
    return model


class Report(Bar):
    """A progress bar on the terminal, and a line on stderr for each thing that went wrong."""

    def __init__(self, what: str = "", total: int = 0):
        super().__init__()
        if what:
            self.start(what, total)

    def done(self, count: int) -> None:
        self.advance(count)

    def problem(self, text: str) -> None:
        super().problem(text)
        line = f"vision-attn: error: {self.problems[-1]}"
        self.console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)
