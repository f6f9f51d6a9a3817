"""Options that commands share: how they are written, and what is made of them.

Light to import: torch comes in with the first thing that needs it.
"""

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from vision_attn.errors import quoted
from vision_attn.runs.progress import Bar, Pilot

if TYPE_CHECKING:
    import torch

    from vision_attn.render import Style
    from vision_attn.types import LoadedSequences, Model


@runtime_checkable
class Group(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Add an option; see argparse."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL and how it is loaded; see `load`."""
    what = "vision_attn:NAME (see vision-attn models), a checkpoint, timm:NAME, torchvision:NAME, "
    what += "hf:NAME or open_clip:NAME"
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
        help="size of the network's input: a side, or HEIGHTxWIDTH (default: the model's own)",
    )
    group.add_argument(
        "--classes",
        nargs="+",
        metavar="TEXT",
        help="the classes in words, for a network that compares images with texts (CLIP, SigLIP), "
        "or one file with a class a line; IMAGE comes before",
    )
    group.add_argument(
        "--templates",
        nargs="+",
        metavar="TEXT",
        help="texts that the classes are put into, averaged, such as 'a photo of a {}'",
    )
    group.add_argument(
        "--whole-photo",
        action="store_true",
        help="show the network all of a photo, squeezed into its shape, instead of the middle",
    )
    group.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps (default: auto)")


def add_images(parser: argparse.ArgumentParser) -> None:
    """IMAGE..., files and folders; see `existing`."""
    what = "image files, and folders of them"
    parser.add_argument("images", metavar="IMAGE", nargs="*", help=what)
    add_limit(parser, "the first N (default: all)")
    add_bound(parser)
    add_value_range(parser)


def add_bound(parser: argparse.ArgumentParser) -> None:
    """The most pixels an image may have; see `bounded`."""
    parser.add_argument(
        "--max-pixels",
        type=at_least_one,
        metavar="N",
        help="skip images of more pixels than this (default: 100 million)",
    )


def add_value_range(parser: argparse.ArgumentParser) -> None:
    """Which stored numbers are black and white; see `load`."""
    parser.add_argument(
        "--value-range",
        type=number,
        nargs=2,
        metavar=("BLACK", "WHITE"),
        help="the numbers that are black and white in the files, such as 0 4095 (default: the "
        "file's own tags, else that of its type; asked for where it is not certain)",
    )


@contextmanager
def bounded(args: argparse.Namespace) -> Iterator[None]:
    """Read images of at most --max-pixels, in other processes too."""
    name, most = "VISION_ATTN_MAX_PIXELS", getattr(args, "max_pixels", None)
    before = os.environ.get(name)
    if most is not None:
        os.environ[name] = str(most)
    try:
        yield
    finally:
        if most is not None:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def add_limit(parser: argparse.ArgumentParser, which: str) -> None:
    """--limit; which: which of the images these are."""
    what = f"at most N images: {which}"
    parser.add_argument("--limit", type=at_least_one, metavar="N", help=what)


def add_data_root(parser: argparse.ArgumentParser) -> None:
    """--data.root."""
    parser.add_argument(
        "--data.root",
        dest="root",
        default=".data",
        metavar="DIR",
        help="the folder of cifar10 and cifar100 (default: .data)",
    )


def add_output(group: Group, default: str, what: str = "", *, metavar: str = "FILE") -> None:
    """-o, --output; what: more about the file or the folder that it names."""
    text = f"where to write{f': {what}' if what else ''} (default: {default})"
    group.add_argument("-o", "--output", default=default, metavar=metavar, help=text)


def add_method(group: Group, default: str) -> None:
    """--method; default: what is taken without it, in words."""
    group.add_argument(
        "--method",
        action="append",
        metavar="'NAME(OPTION=VALUE, ...)'",
        help=f"may be repeated; all takes every method that fits the model (default: {default})",
    )


def add_batch_size(group: Group, default: int) -> None:
    """--batch-size."""
    what = f"images at once (default: {default})"
    group.add_argument("--batch-size", type=at_least_one, default=default, metavar="N", help=what)


def add_seed(group: Group) -> None:
    """--seed."""
    what = "the seed of all random numbers (default: 0)"
    group.add_argument("--seed", type=int, default=0, metavar="N", help=what)


def add_methods(parser: argparse.ArgumentParser) -> None:
    """Methods and classes; see `explainers` and `Model.class_index`."""
    group = parser.add_argument_group("method")
    usual = "what the model's scores trust, else LibraGradient, or GradCAM of a CNN"
    add_method(group, usual)
    add_target(group, "predicted|label|INDEX|NAME", "predicted")


def add_more_targets(group: Group, what: str) -> None:
    """--target, which may be repeated; what: what it names."""
    group.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="INDEX|NAME",
        help=f"{what}; may be repeated",
    )


def add_target(group: Group, choices: str, usual: str) -> None:
    """--target, --contrast and --head; usual: the default in words."""
    group.add_argument(
        "--target",
        metavar=choices,
        help="the class to explain; label: the one that an image's folder is named for, or the "
        f"predicted one where it is named for none (default: {usual})",
    )
    add_contrast(group)
    add_head(group)


def add_contrast(group: Group) -> None:
    """--contrast."""
    group.add_argument(
        "--contrast",
        metavar="INDEX|NAME",
        help="another class: show what supports the target rather than this one",
    )


def add_head(group: Group) -> None:
    """--head."""
    group.add_argument(
        "--head",
        type=head,
        metavar="INDEX|NAME",
        help="which part of the network's output is meant, if it gives several (default: the "
        "logits, or the only one)",
    )


def add_processes(group: Group, default: int | None, usual: str) -> None:
    """--processes; usual: the default in words."""
    what = f"parallel processes on this machine (default: {usual})"
    group.add_argument("--processes", type=at_least_one, default=default, metavar="N", help=what)


def add_shard(group: Group, default: tuple[int, int] | None, then: str, usual: str) -> None:
    """--shard; then: how the shards come together. usual: the default in words."""
    what = f"only part I of N of the images; {then} (default: {usual})"
    group.add_argument("--shard", type=shard, default=default, metavar="I/N", help=what)


def shard(text: str) -> tuple[int, int]:
    """(number, of how many), the number from 1."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not found or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"expected I/N, such as 1/4 to 4/4, got {quoted(text)}")
    return int(found[1]), int(found[2])


def head(text: str) -> int | str:
    """An index, or a key or attribute."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected true or false, got {quoted(text)}")
    return text.lower() == "true"


def image_size(text: str) -> tuple[int, int]:
    """(height, width)."""
    found = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"expected a side or HEIGHTxWIDTH, such as 224 or 160x224, got {quoted(text)}"
        )
    return int(found[1]), int(found[2] or found[1])


def at_least_one(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least 1, got {quoted(text)}"
        )
    return int(text)


def whole(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {quoted(text)}")
    return int(text)


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number, got {quoted(text)}")
    return value


def above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {quoted(text)}")
    return number


def existing(paths: Sequence[str], report: "Report") -> list[str]:
    """Leave out the paths that lead nowhere, each with its line; it takes no model to see that."""
    kept = []
    for path in paths:
        if not path:  # which would be the current folder
            report.problem("IMAGE '': expected the path of an image or a folder, got an empty one")
        elif not Path(path).exists():
            report.problem(f"{path}: no such file or folder: check the path")
        else:
            kept.append(path)
    return kept


@contextmanager
def as_written(*names: str) -> Iterator[None]:
    """Name an argument in an error as the option is typed: `--output` for `output`."""
    try:
        yield
    except ValueError as error:
        word, _, rest = str(error).partition(" ")
        if word not in names:
            raise
        raise ValueError(f"--{word} {rest}") from None


def output_folder(path: str) -> Path:
    """Return the folder, made if need be. Raises ValueError where it cannot be written to."""
    from vision_attn.runs.inputs import output_folder

    with as_written("output"):
        return output_folder(path)


def style(name: str) -> "Style":
    """Return the style of a colour map's name, or of the word dim."""
    from vision_attn.render import ColorMap, Dim

    return Dim() if name == "dim" else ColorMap(name)


def load(args: argparse.Namespace, spec: str | None = None) -> "Model":
    """Load the model that the options name, or `spec` with the same options, on their device.

    Random weights are drawn from the option --seed, where the command has it.
    """
    from vision_attn.hub import load_model

    with _loading(args) as (device, how):
        model = load_model(spec or args.model, **how)
        model.network.to(device)
    return _fitted(model, args)


def load_any(args: argparse.Namespace) -> "Model | LoadedSequences":
    """Load the model that the options name: of classes, on their device, or of sequences."""
    from vision_attn import hub, types

    with _loading(args) as (device, how):
        model = hub.load(args.model, **how)
        if isinstance(model, types.Model):
            model.network.to(device)
            return _fitted(model, args)
    return model


def _fitted(model: "Model", args: argparse.Namespace) -> "Model":
    """The model as --whole-photo wants it: what it sees of a photo."""
    if not args.whole_photo:
        return model
    whole = getattr(model.preprocess, "whole", None)
    if whole is None:
        raise ValueError(
            f"--whole-photo: {model.name} has a transform of its own, which decides what is seen"
        )
    return replace(model, preprocess=whole())


@contextmanager
def _loading(args: argparse.Namespace) -> "Iterator[tuple[torch.device, dict[str, Any]]]":
    """The device and what goes to the loader, with random numbers of the option --seed."""
    import torch

    from vision_attn.devices import find_device

    with as_written("device"):
        device = find_device(args.device)
    torch.manual_seed(getattr(args, "seed", 0))
    value_range = getattr(args, "value_range", None)
    yield (
        device,
        {
            "weights": args.weights,
            "pretrained": args.pretrained,
            "image_size": args.image_size,
            "value_range": tuple(value_range) if value_range else None,
            "classes": classes_given(args.classes),
            "templates": args.templates,
        },
    )


def classes_given(texts: Sequence[str] | None) -> Sequence[str] | None:
    """The classes themselves, or the lines of the one file that is named."""
    if texts is None or len(texts) > 1 or not Path(texts[0]).is_file():
        return texts
    try:
        lines = Path(texts[0]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--classes {texts[0]}: cannot be read as text: {error}") from None
    return [line.strip() for line in lines if line.strip()]


class Report(Bar):
    """A progress bar on the terminal, and lines on stderr.

    One for each thing that went wrong, and one that says how long it will take.
    """

    def __init__(self, what: str = "", total: int = 0):
        super().__init__()
        self._what, self._began, self._done = what, perf_counter(), 0
        self._pilot: Pilot | None = None
        if what:
            self.start(what, total)

    def start(self, what: str, total: int, pilot: Pilot | None = None) -> None:
        super().start(what, total, pilot)
        self._what, self._began, self._done, self._pilot = what, perf_counter(), 0, pilot

    def advance(self, steps: int = 1) -> None:
        super().advance(steps)
        self._done += steps
        if self._pilot and (told := self._pilot.told(self._done, perf_counter() - self._began)):
            self._pilot = None
            line = f"vision-attn: {self._what}: {told}"
            self.console.print(line, soft_wrap=True, highlight=False)

    def done(self, count: int) -> None:
        self.advance(count)

    def problem(self, text: str) -> None:
        super().problem(text)
        line = f"vision-attn: error: {self.problems[-1]}"
        self.console.print(line, soft_wrap=True, highlight=False)
