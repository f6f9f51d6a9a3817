"""What is imported for what: libraries that take seconds to load are loaded where they are needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Of torch, its compiler and its symbolic shapes; sympy comes with these.
HEAVY = {
    *("cv2", "lightning", "matplotlib", "pandas", "scipy", "sympy", "timm", "torchmetrics"),
    *("torch._dynamo", "torch._inductor", "torchvision", "transformers"),
}
START = "import json, sys, torch\nbefore = set(sys.modules)\n"
END = "\nprint(json.dumps(sorted(set(sys.modules) - before)))"
EXPLAINER = """
from vision_attn.methods import Rollout
from vision_attn.models import ViT
Rollout()(ViT(16, 8, 3, dim=12, depth=1, heads=2), torch.randn(1, 3, 16, 24))
"""
SHELF = """
import vision_attn
from vision_attn.data import example_photos
from vision_attn.methods import GradCAM, Rollout
photo = next(iter(example_photos().values()))
for name, explainer in (("compact_vit_imagenette", Rollout()), ("senet_imagenette", GradCAM())):
    model = vision_attn.load_model(f"vision_attn:{name}")
    explainer(model.network, model.preprocess(photo)[None])
"""
COMMAND = """
from vision_attn.cli import main
from vision_attn.data import example_photos
photo = str(next(iter(example_photos().values())))
words = ["vision_attn:compact_vit_imagenette", photo, "-o", "out"]
assert main(["explain", *words, "--page"]) == 0
"""


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        (EXPLAINER, set()),
        (SHELF, set()),
        pytest.param(COMMAND, {"cv2", "matplotlib"}, marks=pytest.mark.slow),
    ],
)
def test_what_takes_seconds_to_import_is_left_out(
    code: str, needed: set[str], tmp_path: Path
) -> None:
    words = [sys.executable, "-c", START + code + END]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert imported & HEAVY == needed
    assert "vision_attn.methods.rollout" in imported
    assert not any(name.startswith("matplotlib.axes") for name in imported)
