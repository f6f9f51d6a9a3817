"""`vision-attn live` and `vision_attn.live`, called in this process with tiny networks."""

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vision_attn import live, load_model
from vision_attn.cli import Parser
from vision_attn.commands import live as command
from vision_attn.errors import ModelError
from vision_attn.pages.live import LiveNetwork, Program, live_page
from vision_attn.types import Calibration

EVIL = "</script><script>hacked = 1</script><img src=x onerror='hacked = 1'>"


def run(*words: Any) -> int:
    parser = Parser(prog="vision-attn live")
    command.add_arguments(parser)
    return command.run(parser.parse_intermixed_args([*map(str, words), "--device", "cpu"]))


def data_of(html: str) -> dict[str, Any]:
    return json.loads(re.findall(r'id="data">(.*?)</script>', html)[0])


def test_a_page_of_two_models_and_some_photos(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "page.html"
    assert run(models("vit"), photos, "-o", page, "--versus", models("senet"), "--limit", 2) == 0
    assert f"{page}: " in capsys.readouterr().out
    html = page.read_text()
    data = data_of(html)
    assert [one["model"] for one in data["networks"]] == [models("vit"), models("senet")]
    assert [one["name"] for one in data["photos"]] == ["cat.png", "dog.jpg"]
    vit, senet = data["networks"]
    assert vit["grid"] == [4, 6]
    assert vit["prefix"] == ["class token"]
    assert vit["drops"]
    assert not senet["drops"]
    assert senet["grid"] == [14, 14]
    assert senet["program"]["cam"]
    for at, one in enumerate(data["networks"]):
        text = re.findall(rf'id="weights-{at}">(.*?)</script>', html)[0]
        last = one["program"]["weights"][-1]
        size = np.prod(last["shape"]) * (2 if last["form"] == "matrix" else 4)
        assert len(zlib.decompress(b64decode(text))) >= last["at"] + size


def test_small_files_go_in_as_they_are_and_others_smaller(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    model = load_model(models("vit"))
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1800, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    Image.fromarray(noise[:50, :40]).convert("P").save(tmp_path / "palette.png")
    images: list[Any] = [
        photos / "cat.png",
        tmp_path / "large.png",
        tmp_path / "palette.png",
        noise[:7, :5],
    ]
    kept, smaller, palette, array = (
        one["file"] for one in data_of(live(model, images).html)["photos"]
    )
    assert b64decode(kept["text"]) == (photos / "cat.png").read_bytes()
    assert smaller["type"] == "image/jpeg"
    assert palette["type"] == array["type"] == "image/png"


def test_the_page_knows_what_makes_probabilities(
    models: Callable[[str], str], photos: Path
) -> None:
    model = load_model(models("vit"))
    known = Calibration(temperature=2.0, threshold=0.25, activation="sigmoid")
    page = live((model, replace(model, calibration=known)), photos / "cat.png")
    one, several = data_of(page.html)["networks"]
    assert one["activation"] == "softmax"
    assert {name: several[name] for name in asdict(known)} == asdict(known)


def test_without_photos_those_that_come_along_are_there(models: Callable[[str], str]) -> None:
    page = live(load_model(models("vit")))
    assert len(data_of(page.html)["photos"]) == 12


def test_names_are_never_html_and_nothing_is_fetched(
    models: Callable[[str], str], photos: Path
) -> None:
    page = live(replace(load_model(models("vit")), name=EVIL), photos / "cat.png")
    assert "<img" not in page.html
    assert page.html.count("<script") == page.html.count("</script>") == 5
    policy = re.findall(r"<meta[^>]*Content-Security[^>]*>", page.html)[0]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "http:" not in policy
    assert "https:" not in policy
    assert policy.count("unsafe") == policy.count("'wasm-unsafe-eval'") == 1


def test_an_image_that_cannot_be_read_is_a_line(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    out = tmp_path / "page.html"
    words = [models("vit"), photos / "cat.png", tmp_path / "broken.png", "-o", out]
    assert run(*words) == 1
    assert "broken.png" in capsys.readouterr().err
    assert [one["name"] for one in data_of(out.read_text())["photos"]] == ["cat.png"]
    with pytest.raises(ValueError, match="none of the images could be read"):
        live(load_model(models("vit")), [tmp_path / "broken.png"])


def test_a_network_that_cannot_run_there_is_refused(photos: Path) -> None:
    model = load_model("torchvision:resnet18", pretrained=False)
    with pytest.raises(
        ModelError, match="ResNet cannot run in a page: this kind of network is not"
    ):
        live(model, photos / "cat.png")


def test_a_page_needs_a_network_and_a_photo() -> None:
    network = LiveNetwork("m", Program((8, 8)), ["cat"], {"input": (8, 8)}, grid=(2, 2))
    with pytest.raises(ValueError, match="at least one network for the page"):
        live_page([], [])
    with pytest.raises(ValueError, match="at least one photo for the page"):
        live_page([network], [])
