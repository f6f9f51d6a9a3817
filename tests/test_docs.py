"""The documentation builds without a warning, and its commands are ones that exist."""

import ast
import importlib
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from vision_attn.cli import COMMANDS, TRAINING
from vision_attn.render.video import VideoWriter
from vision_attn.reports.runs.guard import PACKAGES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.ja.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_site_builds_without_a_warning(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/reference/attention.html").read_text()
    assert "normalise_j(score(q_i, k_j))" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_files_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"^vision-attn (\w+)", text, re.MULTILINE):
        assert command in {**COMMANDS, **TRAINING}
    for file in re.findall(r"\b(?:configs|notebooks|benchmarks)/[a-z0-9]\w*\.\w+", text):
        assert (ROOT / file).is_file(), f"{page.name} names {file}"
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["README.md", "docs/reliability.md"])
def test_what_is_code_and_what_is_data_is_said_in_a_sentence(page):
    """What is said holds: tests/reports/runs/test_run.py and tests/models/test_weights.py."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    sentences = [one for one in text.split(". ") if " configs are data" in one]
    assert len(sentences) == 1
    named = re.search(r"a config can name only classes of ([\w, ]+);", sentences[0])
    assert named
    assert named[1].replace(" and ", ", ").split(", ") == list(PACKAGES)
    assert "only a package that you name with `--allow PACKAGE` is code" in sentences[0]
    assert "No command reads the `config.yaml` beside a checkpoint" in text


def imports_of(page: Path) -> list[tuple[str, str]]:
    """The (module, name) pairs of ours that a script or a notebook imports."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        lines = "\n".join(sources).splitlines()
        source = "\n".join(
            "pass" if line.lstrip().startswith(("%", "!")) else line for line in lines
        )
    else:
        source = page.read_text(encoding="utf-8")
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vision_attn")
        for alias in node.names
    ]


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("docs/*.py"), *ROOT.glob("docs/*/*.py"), *ROOT.glob("notebooks/*.ipynb")],
    ids=lambda page: page.name,
)
def test_studies_pictures_and_notebooks_use_public_names(page):
    private = []
    for module, name in imports_of(page):
        home = importlib.import_module(module)
        is_module = hasattr(home, "__path__") and find_spec(f"{module}.{name}") is not None
        if name not in home.__all__ and not is_module:
            private.append(f"{module}.{name}")
    assert not private


def walks() -> dict[str, list[str]]:
    """The files that each walk of the architecture page names, in their order."""
    _, *parts = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("\n## ")
    return {
        part.splitlines()[0]: re.findall(r"`([\w/]+\.py)`", part.partition("\n1. ")[2])
        for part in parts
    }


@pytest.mark.parametrize("walk", walks())
def test_a_walk_enters_no_file_twice(walk):
    files = walks()[walk]
    assert len(files) > 10
    assert len(set(files)) == len(files)
    missing = [file for file in files if not (ROOT / "vision_attn" / file).is_file()]
    assert not missing


WALKED = """
import sys, threading
from pathlib import Path
import vision_attn
from vision_attn.cli import main
root, entered = Path(vision_attn.__file__).parent, set()
def note(frame, event, _):
    if event == "call" and frame.f_code.co_name[0].islower():
        entered.add(frame.f_code.co_filename)
sys.setprofile(note)
threading.setprofile(note)
status = main(sys.argv[1:])
sys.setprofile(None)
print([str(Path(file).relative_to(root)) for file in entered if file.startswith(str(root))])
sys.exit(status)
"""


FIT = "fit --config vit_planted --data.source.train 40 --data.source.val 20 --data.source.test 20 "
FIT += "--trainer.max_epochs 1 --trainer.accelerator cpu --trainer.default_root_dir OUT"


@pytest.mark.parametrize(
    ("walk", "words", "others"),
    [
        ("A photo through `explain`", "explain MODEL PHOTOS --page --device cpu -o OUT", set()),
        (
            "A config through `fit`",
            FIT,
            {
                "reports/runs/messages.py",
                "data/sources.py",
                "data/folders.py",
            },  # errors, others' data
        ),
        (
            "A folder through `score`",
            "score MODEL PHOTOS --method Rollout --steps 2 --sanity 1 --device cpu -o OUT",
            {"evaluate/localization.py", "evaluate/boxes.py"},  # where there are masks or boxes
        ),
    ],
)
def test_a_walk_is_the_way_that_is_gone(walk, words, others, models, photos, tmp_path):
    values = {"MODEL": models("vit"), "PHOTOS": str(photos), "OUT": str(tmp_path / "out")}
    words = [values.get(word, word) for word in words.split()]
    done = subprocess.run(
        [sys.executable, "-c", WALKED, *words], capture_output=True, text=True, check=True
    )
    entered = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert set(walks()[walk]) - others <= entered


# What the examples of the pages need, so that each runs offline and in seconds.
LIMITS = {
    'load_model("timm:vit_small_patch16_224")': 'load_model("timm:vit_tiny_patch16_224", '
    "pretrained=False, image_size=64, depth=2)",
    "images=200": "images=2, steps=2",
    'fit("vit_planted", max_epochs=2)': 'fit("vit_planted", LITTLE, max_epochs=1)',
    'fit("vit_cifar10", {"data.batch_size": 64}, max_epochs=2, data_root=".data")': "fit("
    '"vit_planted", LITTLE, max_epochs=1)',
    'load_model("outputs/demo/vit/best.ckpt")': "load_model(DEMO)",
}
LITTLE = {"data.source.train": 40, "data.source.val": 20, "data.source.test": 20}


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "README.ja.md", ROOT / "docs/tutorial.md"],
    ids=lambda page: page.name,
)
def test_the_python_of_a_page_runs(page, models, photos, tmp_path, monkeypatch):
    frames = np.random.default_rng(0).integers(0, 256, (3, 64, 96, 3), dtype=np.uint8)
    with VideoWriter(tmp_path / "clip.mp4", 10.0) as video:
        for frame in frames:
            video.append(frame)
    (photos / "cat.png").rename(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    q, k, v = torch.rand(3, 1, 2, 5, 32)
    names = {"LITTLE": LITTLE, "DEMO": models("vit"), "q": q, "k": k, "v": v}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        for text, limited in LIMITS.items():
            block = block.replace(text, limited)
        exec(compile(block, page.name, "exec"), names)
    if page.name == "README.md":
        written = {path.name for path in (tmp_path / "outputs").iterdir()}
        assert {"look", "gallery", "score", "inspect.html", "model.onnx", "vit_planted"} <= written
