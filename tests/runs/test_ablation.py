"""What units are worth against networks changed one at a time, and what is run again for it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from torch import nn

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.models import ViT
from vision_attn.runs.ablation import Unit, units_of
from vision_attn.runs.scoring.evidence import Sample, Samples
from vision_attn.tokens.interventions.anatomy import anatomy_of
from vision_attn.tokens.interventions.resume import Resumable
from vision_attn.types import Calibration, Model

CLASSES = ["cat", "dog", "fox", "hen", "owl"]


class Drawn(Samples):
    """Images of noise with labels, at one of which the keyboard may be pressed."""

    def __init__(
        self, model: Model, count: int, stop: int | None = None, labelled: bool = True
    ) -> None:
        super().__init__(model)
        self.images = torch.randn(count, 3, *self.size)
        self.names, self.stop, self.labelled = [f"image {i}" for i in range(count)], stop, labelled

    def __getitem__(self, item: Any) -> Sample:
        if item == self.stop:
            raise KeyboardInterrupt
        return Sample(self.names[item], self.images[item], self.label(item))

    def label(self, item: Any) -> int | None:
        return item % 5 if self.labelled else None

    def chosen(self, most: Any, seed: int = 0) -> list[int]:
        return list(range(len(self)))[:most]


def model_of(network: ViT, size: int) -> Model:
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    preprocess = Preprocess((size, size), (0.5,) * 3, (0.5,) * 3)
    return Model(
        network.eval(), preprocess, CLASSES, None, calibration=Calibration(activation="softmax")
    )


@pytest.fixture
def vit() -> Model:
    torch.manual_seed(1)
    network = ViT(image_size=24, patch_size=8, num_classes=5, dim=12, depth=3, heads=2)
    return model_of(network, 24)


def logits(model: Model, images: torch.Tensor) -> Any:
    with torch.no_grad():
        out = model.network(images)
    return getattr(out, "logits", out)


def test_drops_are_those_of_networks_changed_one_at_a_time(vit: Model) -> None:
    data = Drawn(vit, 13)
    found = vision_attn.ablate(vit, data, batch_size=5, prune=2)
    labels = torch.arange(13) % 5
    before = logits(vit, data.images)
    assert list(found.after) == [
        *(Unit("heads", layer, head) for layer in range(3) for head in range(2)),
        *(Unit("mlps", layer) for layer in range(3)),
        *(Unit("blocks", layer) for layer in range(3)),
    ]
    for unit, row in zip(found.after, found.table(), strict=True):
        places = [(unit.layer, unit.head)] if unit.part == "heads" else [unit.layer]
        changes: dict[str, Any] = {unit.part: places}
        with vision_attn.intervene(vit, **changes):
            after = logits(vit, data.images)
        drop = (before - after).gather(1, labels[:, None]).mean()
        assert row["value_drop"] == pytest.approx(float(drop), abs=1e-5)
        hits = [(one.argmax(1) == labels).double().mean() for one in (before, after)]
        assert row["hit_drop"] == pytest.approx(float(hits[0] - hits[1]))
        assert row["value_drop_low"] <= row["value_drop"] <= row["value_drop_high"]
        assert (row["n"], row["unit"]) == (13, str(unit))
    assert found.whole is None
    assert found.hit_word == "accuracy"
    assert {row["n"] for row in found.table("fox")} == {3}  # images 2, 7 and 12


def test_the_curve_is_of_the_other_half_of_the_images(vit: Model) -> None:
    data = Drawn(vit, 13, labelled=False)
    found = vision_attn.ablate(vit, data, ["heads"], batch_size=4, prune=3, replacement="mean")
    before = logits(vit, data.images)
    assert found.hit_word == "agreement"
    drops = {}
    for layer in range(3):
        for head in range(2):
            with vision_attn.intervene(vit, heads={(layer, head): "mean"}):
                own = (before - logits(vit, data.images))[::2]
            drops[layer, head] = float(own.gather(1, before.argmax(1)[::2, None]).mean())
    order = sorted(drops, key=drops.__getitem__)
    assert [(unit.layer, unit.head) for unit in found.order] == order
    for row, count in zip(found.curve(), (0, 2, 4, 6), strict=True):
        with vision_attn.intervene(vit, heads=dict.fromkeys(order[:count], "mean")):
            same = (logits(vit, data.images).argmax(1) == before.argmax(1))[1::2]
        assert (row["heads"], row["n"]) == (count, 6)
        assert row["share"] == pytest.approx(float(same.double().mean()))


def test_only_what_lies_behind_a_head_is_run_again(vit: Model) -> None:
    runs: Counter[int] = Counter()
    for at, block in enumerate(vit.network.blocks):
        block.mlp.fc1.register_forward_hook(lambda *_, at=at: runs.update([at]))
    anatomy_of(vit.network, torch.zeros(1, 3, 24, 24))
    runs.clear()
    vision_attn.ablate(vit, Drawn(vit, 4), ["heads"], batch_size=4, prune=0)
    # The first run, once more to prove it, and for two heads of each layer the blocks from it on.
    assert runs == {0: 2 + 2, 1: 2 + 4, 2: 2 + 6}


def huggingface(kind: str) -> tuple[Any, int]:
    config_of: Any = transformers.ViTConfig
    config = config_of(
        hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=24,
        image_size=24, patch_size=8, num_labels=5, attn_implementation=kind,
    )  # fmt: skip
    return transformers.ViTForImageClassification._from_config(config), 24


NETWORKS = {
    "timm": lambda: (timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=5), 32),
    "timm swin": lambda: (
        timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=56, window_size=7, depths=(2, 2),
            num_heads=(2, 3), embed_dim=12, num_classes=5,
        ),
        56,
    ),
    "torchvision": lambda: (torchvision.models.VisionTransformer(24, 8, 3, 3, 12, 24, num_classes=5), 24),
    "torchvision swin": lambda: (
        torchvision.models.SwinTransformer([4, 4], 12, [2, 1], [2, 3], [7, 7], num_classes=5), 56
    ),
    "transformers sdpa": lambda: huggingface("sdpa"),
    "transformers eager": lambda: huggingface("eager"),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_the_end_alone_gives_what_the_whole_gives(name: str) -> None:
    torch.manual_seed(6)
    network, size = NETWORKS[name]()
    model = model_of(network, size)
    images = torch.randn(2, 3, size, size)
    anatomy = anatomy_of(network, images)
    resumable = Resumable(network, anatomy)
    run: Callable[[], Any] = lambda: getattr(resumable.network(images), "logits", None)  # noqa: E731
    if not name.startswith("transformers"):
        run = lambda: resumable.network(images)  # noqa: E731
    with torch.no_grad():
        plain = resumable.first(run)
        assert plain is not None
        resumable.prove(run, plain)
        torch.testing.assert_close(plain, logits(model, images))
        assert resumable.whole is None
        for unit in units_of(anatomy, ["heads", "mlps", "blocks"]):
            changes = unit.changes(anatomy, "uniform")
            assert resumable.start_of(changes) > 0
            changed = resumable.again(changes, run)
            places = {(unit.layer, unit.head): "uniform"} if unit.head is not None else [unit.layer]
            changes_by_hand: dict[str, Any] = {unit.part: places}
            with vision_attn.intervene(model, **changes_by_hand):
                torch.testing.assert_close(changed, logits(model, images))
            assert changed is not None
            assert not torch.equal(changed, plain)


class Counting(nn.Module):
    """Gives more each time it runs."""

    runs = 0

    def forward(self, x: Any) -> Any:
        self.runs += 1
        return x * self.runs


def test_a_network_that_is_no_function_is_run_whole_and_says_so(vit: Model) -> None:
    vit.network.blocks[2].mlp = nn.Sequential(vit.network.blocks[2].mlp, Counting())
    found = vision_attn.ablate(vit, Drawn(vit, 4), ["mlps"], prune=0)
    assert found.whole == "it gives other numbers when its end is run a second time"
    assert "the whole network was run for each unit: it gives" in str(found)


def test_the_keyboard_stops_it_with_what_there_is(vit: Model) -> None:
    found = vision_attn.ablate(vit, Drawn(vit, 11, stop=9), ["mlps"], batch_size=4)
    assert found.images == [f"image {i}" for i in range(4)] or len(found.images) == 8
    assert found.problems == [f"stopped: measured on {len(found.images)} of 11 images"]
    with pytest.raises(KeyboardInterrupt):
        vision_attn.ablate(vit, Drawn(vit, 11, stop=0), ["mlps"], batch_size=4)


def test_files_and_problems(vit: Model, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (30, 20), (99, 9, 50)).save(tmp_path / name / "a.png")
    (tmp_path / "dog" / "b.png").write_bytes(b"no image")
    found = vision_attn.ablate(vit, tmp_path, ["blocks"], output=tmp_path / "out", target="owl")
    assert found.labels == [0, 1] or found.labels == [1, 0]
    assert "dog/b.png" in found.problems[0]
    lines = (tmp_path / "out" / "ablation.csv").read_text().splitlines()
    assert (len(lines), lines[1][:16]) == (4, "block 0,blocks,0")
    assert "the logit of owl falls by" in (tmp_path / "out" / "ablation.md").read_text()
    assert vision_attn.ablate(vit, tmp_path, ["mlps"], limit=3, prune=0).to_dict()["curve"] == []


def test_what_does_not_fit_is_told_in_a_line(vit: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="parts: expected one of heads, mlps, blocks at least"):
        vision_attn.ablate(vit, Drawn(vit, 3), [])
    with pytest.raises(ValueError, match=r"parts: expected .*got \['tails'\]"):
        vision_attn.ablate(vit, Drawn(vit, 3), ["tails"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="limit must be at least 2, got 1"):
        vision_attn.ablate(vit, Drawn(vit, 3), limit=1)
    convolutional = Model(nn.Sequential(nn.Conv2d(3, 5, 3)), vit.preprocess, CLASSES, None)
    with pytest.raises(ValueError, match="no attention call was seen"):
        vision_attn.ablate(convolutional, Drawn(vit, 3))
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"at least 2 images that can be read, got fewer: .*a.png"):
        vision_attn.ablate(vit, tmp_path)


def test_states_of_one_token_are_patched_as_by_intervene(vit: Model) -> None:
    photos = [Image.effect_noise((24, 24), sigma).convert("RGB") for sigma in (20, 90)]
    found = vision_attn.patch_states(vit, *photos, target=1, contrast="hen", batch_size=3)
    assert found.recovered.shape == (3, 10)
    images = [vit.preprocess(photo)[None] for photo in photos]
    low, high = (float(logits(vit, one)[0, 1] - logits(vit, one)[0, 3]) for one in images)
    for layer, token in ((0, 0), (0, 9), (1, 4), (2, 0), (2, 7)):
        with vision_attn.intervene(vit, tokens=[(layer, token)], patch_from=photos[1]):
            changed = logits(vit, images[0])[0]
        wanted = (float(changed[1] - changed[3]) - low) / (high - low)
        assert float(found.recovered[layer, token]) == pytest.approx(wanted, abs=1e-4)
    assert found.table()[11] == {"layer": 1, "token": 1, "recovered": float(found.recovered[1, 1])}
    assert found.photo == pytest.approx(low)
    assert found.other == pytest.approx(high)
    with pytest.raises(ValueError, match=r"both photos are predicted to show the same class"):
        vision_attn.patch_states(vit, photos[0], photos[0])
    with pytest.raises(ValueError, match=r"dog is .* for both photos: nothing can be recovered"):
        vision_attn.patch_states(vit, photos[0], photos[0], target="dog")
