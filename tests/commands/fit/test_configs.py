"""The configs of the package."""

from pathlib import Path

import pytest
import torch
from PIL import Image

FOLDER = Path(__file__).parents[3] / "configs"
CONFIGS = [
    path for path in sorted(FOLDER.glob("*.yaml")) if "Learner" not in path.read_text()
]  # commands/test_sequences.py


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_read_and_its_network_fits_its_images(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vision_attn.fitting.making import make_run

    words = ["--config", str(config), "--trainer.default_root_dir", str(tmp_path)]
    words += ["--probe", "false"]
    if "timm" in config.stem:
        words += ["--model.network.pretrained", "false", "--model.network.num_classes", "10"]
    if "shelf" in config.stem:
        for name in ("ant/1", "ant/2", "bee/1", "bee/2"):
            photo = tmp_path / "photos" / f"{name}.png"
            photo.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (70, 80)).save(photo)
        words += ["--model.weights", "vision_attn:vit_planted", "--data.root", str(tmp_path)]
        words += ["--data.source.size", "64"]
    run = make_run("fit", words)
    size = getattr(run.datamodule.source, "size", 32)
    size = (size, size) if isinstance(size, int) else size
    with torch.inference_mode():
        logits = run.model.eval()(torch.zeros(1, 3, *size))
    assert logits.shape[0] == 1
    text = config.read_text()
    assert f"vision-attn fit --config configs/{config.name}" in text
    assert "expected:" in text
