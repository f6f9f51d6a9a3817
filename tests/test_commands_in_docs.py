"""Every shell command of the pages, docstrings and studies runs, as written but for limits.

In a folder that holds what the commands name: photos, a film, checkpoints, configs. A command that
this file does not know how to run, or how to keep short, fails with the line where it stands.
"""

import ast
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from vision_attn import list_models
from vision_attn.cli import COMMANDS, TRAINING, main
from vision_attn.commands.fit.words import ABOUT
from vision_attn.data import CIFAR10

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "README.ja.md", "CONTRIBUTING.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "." not in page.stem),
]
SOURCES = [*sorted((ROOT / "vision_attn").rglob("*.py")), *sorted((ROOT / "docs").glob("*.py"))]

# Words that stand for something of the reader's, and what stands in their place here. What else a
# command names (photo.jpg, folder/, film.mp4, YOUR_PHOTOS ...) is there: see `place`.
PLACEHOLDERS = {
    "MODEL": "outputs/demo/vit/best.ckpt",
    "MODEL2": "outputs/demo/vit/best.ckpt",
    "{checkpoint}": "outputs/demo/vit/best.ckpt",
    "{best}": "outputs/demo/vit/best.ckpt",
    "{run}": "outputs/demo/vit/best.ckpt",
    "{known}": "vision_attn:senet_imagenette",
    "IMAGE...": "photo.jpg",
    "DATA": "planted",
    "configs/NAME.yaml": "configs/vit_planted.yaml",
    "NAME": "vit_planted",
    "$c": "configs/additive_dates.yaml",  # of the loop over configs
}
SMALL_DATA = "--data.source.train=16 --data.source.val=8 --data.source.test=8 --data.batch_size=8"
FEW = "--trainer.limit_train_batches=1 --trainer.limit_val_batches=1 --trainer.limit_test_batches=1"
SHORT = (
    f"--trainer.max_epochs=1 --trainer.accelerator=cpu --trainer.enable_progress_bar=false {FEW}"
)
# What keeps a command short and offline, by a pattern of its words; each that fits is added.
LIMITS = {
    r"^(fit|validate|test) ": SHORT,
    r"^fit .*--minutes": "--minutes=0.001",
    r"^predict ": "--trainer.accelerator=cpu --trainer.enable_progress_bar=false",
    r"^(fit|validate|test) (?!.*finetune).*(planted|dates|strings|questions|my_run)": SMALL_DATA,
    r"^(fit|test) .*senet_cifar10": "--data.batch_size=8 --model.network.widths=[8,8,16,16]",
    r"^fit .*spatial_cnn_cifar10": "--data.batch_size=8 --model.network.widths=[8,8,8]",
    r"^fit .*finetune_timm": (
        "--model.network.pretrained=false --data.batch_size=2 "
        """--model.network.model_args='{"depth": 1, "embed_dim": 12, "num_heads": 2}'"""
    ),
    r"^fit .*senet_imagefolder": "--model.network.num_classes=2 --data.batch_size=2",
    r"^fit --config senet_imagenette$": (
        "--data.root=. --data.source.path=path/to/images --data.source.names=folders "
        "--data.val_fraction=0.25 --data.batch_size=2 --model.network.num_classes=2"
    ),
    r"^fit --config (compact_vit|spatial_cnn)_imagenette$": (  # without its teacher, who knows ten classes
        "--data.root=. --data.source.path=path/to/images --data.source.names=folders "
        "--data.val_fraction=0.25 --data.batch_size=2 --model.network.num_classes=2 "
        "--trainer.callbacks=null"
    ),
    r"^fit .*compact_vit_cifar10_(distilled|long)": "--trainer.callbacks=null",  # its teacher knows ten classes
    r"^(fit|validate|test) (?!.*vision_attn:).*(vit_planted|my_run)": "--model.network.depth=1 --model.network.dim=12",
    r"^(ablate|compare|explain|features|inspect|score|export) ": "--device cpu",
    r"^features timm:": "--pretrained false --image-size 64",
    r"^(explain|inspect) (?!.*(dates|questions))": "--limit 1",
    r"^explain timm:": "--pretrained false --image-size 64",
    r"^ablate ": "--limit 4 --part mlps",
    r"^compare ": "--limit 3 --method Rollout",
    r"^diagnose ": "--device cpu --limit 3",
    r"^score ": "--limit 3 --steps 2 --processes 1",
    r"^score .*(--sanity|--method all)": "--sanity 1",  # else nothing is asked of lost weights
    r"^configs|^models|^probe |^live |--help$": "",
}
# Commands that other tests run, in processes of their own or with what they need.
ELSEWHERE = {
    "vision-attn demo": ("tests/commands/test_demo.py", '"demo"'),
    "--trainer.strategy ddp": ("tests/commands/fit/test_run.py", '"ddp"'),
    "vision-attn pictures": ("tests/runs/test_many.py", '"pictures"'),
    "--classes dog cat": ("tests/models/test_image_text.py", '"--classes", "small dog"'),
    "--mosaic 2": ("tests/runs/scoring/test_mosaics.py", '"--mosaic", "2"'),
}
NOT_OURS = ("source", "jupyter")


@dataclass(frozen=True)
class Found:
    """A command as it is written, and where: FILE:LINE."""

    text: str
    where: str

    @property
    def words(self) -> list[str]:
        """The command's words with what stands in the place of its placeholders."""
        words = shlex.split(self.text, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # variables of the environment
            words.pop(0)
        return [PLACEHOLDERS.get(word, word) for word in words]


def spans(text: str, file: str, first: int = 1) -> Iterator[Found]:
    """Commands in a page: lines of its shell blocks, and what stands in backquotes."""
    for block in re.finditer(r"```sh\n(.*?)```", text, re.DOTALL):
        line = first + text[: block.start(1)].count("\n")
        for command in re.sub(r"\\\n", "\\\\\0", block[1]).split("\n"):
            parts = command.replace("\\\0", " ")
            if parts.strip() and not parts.startswith("#"):
                for part in parts.split("&&"):
                    yield Found(part.strip(), f"{file}:{line}")
            line += 1 + command.count("\0")
    outside = re.sub(r"```.*?```", lambda b: "\n" * b[0].count("\n"), text, flags=re.DOTALL)
    for span in re.finditer(
        r"`((?:[A-Z_]+=\S+ )?(?:vision-attn|make|pip install)\s[^`]+)`", outside
    ):
        line = first + outside[: span.start()].count("\n")
        yield Found(" ".join(span[1].split()), f"{file}:{line}")


def indented(text: str, file: str, first: int) -> Iterator[Found]:
    """Commands in a docstring: in backquotes, and indented lines."""
    yield from spans(text, file, first)
    lines = re.sub(r"\\\n\s*", "\0", text).split("\n")
    line = first
    for one in lines:
        if found := re.match(r" {4,}(?:for .*; do )?((?:vision-attn|python) .*?)(?:; done)?$", one):
            yield Found(found[1].replace("\0", ""), f"{file}:{line}")
        line += 1 + one.count("\0")


def of_source(path: Path) -> Iterator[Found]:
    """Commands in a module's docstrings and in what it prints for the reader to copy."""
    file = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield from indented(node.value.value, file, node.lineno)
        elif isinstance(node, ast.JoinedStr):
            text = ast.unparse(node)[2:-1]
            if re.match(rf"vision-attn ({'|'.join(COMMANDS)}) \{{", text):
                yield Found(text, f"{file}:{node.lineno}")


def commands() -> list[Found]:
    """Every command, the first time it is written."""
    found = [
        f for page in PAGES for f in spans(page.read_text("utf-8"), str(page.relative_to(ROOT)))
    ]
    found += [f for path in SOURCES for f in of_source(path)]
    found += [Found(example, f"{command} --help") for command, (_, example) in ABOUT.items()]
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                found += indented("".join(cell["source"]), f"notebooks/{notebook.name}", 1)
    once: dict[str, Found] = {}
    for one in found:
        once.setdefault(" ".join(shlex.split(one.text, comments=True)), one)
    return list(once.values())


def unknown(found: Found, why: str) -> str:
    return f"{found.where}: {why}: {found.text}\nMend the command, or say in {Path(__file__).name} how to run it."


def is_name(words: list[str]) -> bool:
    """Whether no more than a command's name is written, as in a sentence about it."""
    return len(words) == 2 or words[1] == "COMMAND"


def elsewhere(found: Found) -> bool:
    return any(part in found.text for part in ELSEWHERE)


OURS = [found for found in commands() if found.words[0] == "vision-attn"]
WHOLE = ["configs"], ["models"]  # commands that need no more than their name
RUN = [f for f in OURS if f.words[1:] in WHOLE or not (is_name(f.words) or elsewhere(f))]
RUN = list({tuple(found.words): found for found in reversed(RUN)}.values())[::-1]


def needs_a_run(found: Found) -> bool:
    """Whether it trains, or takes what a training run has left behind."""
    return found.words[1] in TRAINING or re.search(r"outputs/\w+/version_", found.text) is not None


# A run that a page takes for granted, before the commands of the pages.
BEFORE = Found("vision-attn fit --config hops_questions", "README.md, a run that a line names")
TRAINED = sorted(filter(needs_a_run, RUN), key=lambda found: found.words[1] != "fit")
GROUPS = {
    "training": [BEFORE, *TRAINED],
    **{name: [f for f in RUN if f.words[1] == name and not needs_a_run(f)] for name in COMMANDS},
}


def limited(found: Found) -> list[str]:
    """The words to run: those written, and limits. Fails where no limit is known."""
    words = found.words[1:]
    text = " ".join(words)
    limits = [limit for pattern, limit in LIMITS.items() if re.search(pattern, text)]
    if not limits:
        pytest.fail(unknown(found, "no limit is known for this command"))
    return words if text.endswith("--help") else words + shlex.split(" ".join(limits))


@pytest.fixture
def place(
    tmp_path: Path, models: Callable[[str], str], photos: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with all that the commands name, as its reader would have it."""
    from vision_attn.render.video import VideoWriter

    here = tmp_path / "here"
    (here / "outputs/demo/vit").mkdir(parents=True)
    shutil.copy(models("vit"), here / "outputs/demo/vit/best.ckpt")
    shutil.copy(models("vit"), here / "best.ckpt")
    for name in ("folder", "photos", "YOUR_PHOTOS", "YOUR_FOLDER/images"):
        shutil.copytree(photos, here / name)
    (here / "YOUR_FOLDER/masks").mkdir()
    for photo in photos.iterdir():
        with Image.open(photo) as image:
            mask = np.zeros(image.size[::-1], np.uint8)
        mask[: len(mask) // 2] = 255
        Image.fromarray(mask).save(here / "YOUR_FOLDER/masks" / f"{photo.stem}.png")
    for folder in ("path/to/images", "YOUR_SET"):
        for part in ("train", "val"):
            for kind in ("cat", "dog"):
                (here / folder / part / kind).mkdir(parents=True)
                for at in range(4):
                    Image.new("RGB", (64, 48), (60 * at, 30 + 9 * at, 99 - at)).save(
                        here / folder / part / kind / f"{at}.png"
                    )
    for name in ("photo.jpg", "YOUR_PHOTO"):
        Image.new("RGB", (120, 90), "green").save(here / name, "JPEG")
    Image.new("RGB", (64, 64), "red").save(here / "board.png")
    with VideoWriter(here / "film.mp4", 10.0) as film:
        for at in range(3):
            film.append(np.full((64, 96, 3), 80 * at, np.uint8))
    (here / "configs").symlink_to(ROOT / "configs")
    of_mine = (ROOT / "configs/vit_planted.yaml").read_text()
    (here / "my_run.yaml").write_text(
        of_mine.replace("vision_attn.models.ViT", "my_networks.MyViT")
    )
    (here / "my_networks.py").write_text(
        "from vision_attn.models import ViT\n\n\nclass MyViT(ViT):\n    pass\n"
    )
    monkeypatch.syspath_prepend(here)
    monkeypatch.chdir(here)
    return here


class FewPhotos:
    """What stands in the place of CIFAR-10, whose files take a second to read."""

    classes: ClassVar = [f"kind {i}" for i in range(10)]

    def __init__(self, root: str, train: bool):
        self.data = np.random.default_rng(train).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
        self.targets = [i % 10 for i in range(40)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", [name for name, found in GROUPS.items() if found])
@pytest.mark.slow
def test_commands_run_as_they_are_written(
    group: Any,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that train share a folder: what the first of them train the others test and explain."""
    if group == "training":
        monkeypatch.setattr(CIFAR10, "dataset", FewPhotos)
    elif any(".data" in f.text or "cifar" in f.text for f in GROUPS[group]):
        (place / ".data").symlink_to(request.getfixturevalue("data_root").resolve())
    wrong = []
    for found in GROUPS[group]:
        words = limited(found)
        shutil.rmtree("outputs/score", ignore_errors=True)  # of the command before: other settings
        if main(words):
            wrong.append(unknown(found, capsys.readouterr().err.strip()))
        capsys.readouterr()
    assert not wrong, "\n".join(wrong)


def test_every_command_has_its_place() -> None:
    """A command is run here or elsewhere, names a target, an extra or a file, or is not ours."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    networks = [network["name"] for network in list_models()]
    listed = [found for group in GROUPS.values() for found in group]
    assert len(listed) - 1 == len(RUN) > 25
    for found in commands():
        program, *words = found.words
        if program == "vision-attn":
            assert words[0] in {**COMMANDS, **TRAINING, "COMMAND": ""}, unknown(found, "no command")
            if found in listed:
                for name in re.findall(r"\bvision_attn:(\w+)(?=\s|$)", " ".join(words)):
                    assert name in networks, unknown(found, f"no pretrained network {name}")
        elif program == "make":
            assert words[0] in targets, unknown(found, "no such target in the Makefile")
        elif program in ("pip", "pre-commit"):
            for extra in re.findall(r"\[(\w+)\]", found.text):
                assert extra in extras, unknown(found, "no such extra in pyproject.toml")
        elif program.endswith(("python", "python3")):
            files = [word for word in words if word.endswith(".py")]
            assert all((ROOT / file).is_file() for file in files), unknown(found, "no such file")
            if words[0] == "-m":
                assert find_spec(words[1]), unknown(found, "no such module")
        else:
            assert program in NOT_OURS, unknown(found, "a program that this test does not know")
    for part, (file, word) in ELSEWHERE.items():
        assert any(part in found.text for found in OURS)
        assert word in (ROOT / file).read_text()


def test_a_command_without_a_limit_is_named_with_its_line() -> None:
    found = Found("vision-attn explode everything", "docs/page.md:7")
    with pytest.raises(pytest.fail.Exception, match=r"docs/page\.md:7: no limit is known"):
        limited(found)


def test_commands_are_found_in_blocks_in_lines_and_in_docstrings() -> None:
    page = "a `make\nx` b\n```sh\nvision-attn a \\\n  --b\nmake y  # why\n```\n`vision-attn c`\n"
    assert [(f.text, f.where) for f in spans(page, "p")] == [
        ("vision-attn a    --b", "p:4"),
        ("make y  # why", "p:6"),
        *(("make x", "p:1"), ("vision-attn c", "p:8")),
    ]
    text = "Title.\n\n    for c in a b; do vision-attn fit --config $c; done\n    vision-attn d \\\n        e\n"
    assert [(f.text, f.where) for f in indented(text, "m", 1)] == [
        ("vision-attn fit --config $c", "m:3"),
        ("vision-attn d e", "m:4"),
    ]
