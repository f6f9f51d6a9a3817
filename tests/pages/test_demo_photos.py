"""The photos that a demo begins with, and their maps."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import torch

from vision_attn.data import Preprocess, example_photos
from vision_attn.models import SEResNet, ViT
from vision_attn.pages import write_page
from vision_attn.pages.demo.page import write_first_page
from vision_attn.pages.demo.photos import PhotoWall
from vision_attn.types import Model

PREPROCESS = Preprocess((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
CLASSES = [f"class {i}" for i in range(10)]


def convolutions() -> Model:
    torch.manual_seed(0)
    network = SEResNet(10, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
    return Model(network, PREPROCESS, CLASSES, None)


def transformer() -> Model:
    torch.manual_seed(0)
    vit = ViT(image_size=32, patch_size=8, dim=12, depth=1, heads=2, num_classes=10).eval()
    return Model(vit, PREPROCESS, CLASSES, vit.layout((32, 32)))


def test_every_photo_has_a_row_with_every_map_and_what_each_network_sees(tmp_path: Path) -> None:
    photos = example_photos()
    models = {"SENet": convolutions(), "ViT": transformer()}
    wall = PhotoWall(tmp_path, models)
    section: Any
    links: Any
    section, links = wall.sections()
    page = (tmp_path / "live.html").read_text()
    assert all(f'"{name}"' in page for name in models)
    assert [link[0] for link in links.links] == ["live.html"]
    assert [row.name for row in section.rows] == [n.replace("_", " ") for n in photos]
    for row, name in zip(section.rows, photos, strict=True):
        captions = ["photo", "GradCAM", "LibraGradient(smooth=1.0)"]
        assert [shot.caption for shot in row.shots] == captions
        for model, (group, maps) in zip(models, row.groups[1:], strict=True):
            logits = models[model].network(PREPROCESS(photos[name])[None]).softmax(1)
            sure = logits.max(1)
            assert group == f"{model}: class {sure.indices.item()} {sure.values.item():.0%}"
            assert maps == 1
    page = write_first_page(tmp_path, [section, links]).read_text()
    assert "are being trained now" in page
    files = re.findall(r'(?:src|href)="\./([^"#]+)"', page)
    assert len(files) > 12 * 2 * 2
    assert all((tmp_path / unquote(file)).is_file() for file in files)
    assert write_page(tmp_path, "again", [section]).is_file()
