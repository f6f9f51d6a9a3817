"""Write one of each kind of file that a later version must read, as this version writes it.

    python tests/formats/write_formats.py

The folder is named after the formats: it is made once, and never written again.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vision_attn
from vision_attn.models.checkpoint import FORMAT as OF_CHECKPOINTS
from vision_attn.models.trust import write_trust
from vision_attn.runs.database import FORMAT as OF_STORES
from vision_attn.types import Trust

HERE = Path(__file__).parent
FOLDER = HERE / f"checkpoint_{OF_CHECKPOINTS}_store_{OF_STORES}"
METHODS = ["Rollout", "LibraGradient", "QueryKey(layer=0)"]
LIGHT = ["--trainer.enable_progress_bar", "false", "--trainer.callbacks", "[]"]


def image() -> torch.Tensor:
    """One image, 1 3 16 16, that needs no random numbers."""
    return torch.linspace(-1, 1, 3 * 16 * 16).reshape(1, 3, 16, 16)


def photo() -> np.ndarray:
    rows, columns = np.mgrid[:16, :16]
    return np.stack([rows * 16, columns * 16, (rows + columns) * 8], -1).astype(np.uint8)


def make(folder: Path) -> None:
    folder.mkdir()
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        config = HERE.parent / "tiny.yaml"
        command = ["fit", "--config", str(config), "--output", str(run), *LIGHT]
        subprocess.run([sys.executable, "-m", "vision_attn", *command], check=True)
        (checkpoint,) = run.rglob("last.ckpt")
        shutil.copy(checkpoint, folder / "vit.ckpt")
        photos = Path(temporary) / "photos"
        photos.mkdir()
        for number, pixels in enumerate((photo(), photo()[::-1], photo().transpose(1, 0, 2))):
            Image.fromarray(pixels).save(photos / f"{number}.png")
        model = vision_attn.load_model(folder / "vit.ckpt")
        vision_attn.gallery(model, photos, METHODS, output=folder / "explained", save="maps")
        scores = vision_attn.score(model, photos, METHODS[:2], limit=3, output=folder / "scored")
    write_trust(folder / "vit.ckpt", Trust(("LibraGradient",), 3, "photos"))
    for path in [*folder.rglob("*.png"), folder / "explained" / "index.html"]:
        path.unlink()  # to look at, and never read
    shutil.rmtree(folder / "explained" / "page")
    logits = model.network(image())[0].tolist()
    results = vision_attn.open_results(folder / "explained")
    expected = {
        "logits": logits,
        "classes": list(model.classes),
        "rows": [dict(row) for row in results],
        "maps": [results.map(row).tolist() for row in range(len(results))],
        "scores": {method: dict(row) for method, row in scores.results.table.items()},
        "per_image": len(vision_attn.open_results(folder / "scored" / "per_image")),
    }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if FOLDER.exists():
        raise SystemExit(f"{FOLDER}: it is there: a file of a format is written once")
    make(FOLDER)
