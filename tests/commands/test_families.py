"""Every kind of attention on a photo, from the command line."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vision_attn import attention as att
from vision_attn.cli import main
from vision_attn.hub import load_model
from vision_attn.models import PooledCNN, ViT
from vision_attn.models.checkpoint import describe

SMALL: dict[str, Any] = {
    "image_size": (32, 48),
    "patch_size": 8,
    "num_classes": 3,
    "dim": 12,
    "depth": 2,
    "heads": 2,
}
WITHOUT: dict[str, Any] = {"class_token": False, "pool": "mean"}
WINDOW = partial(att.MultiHeadAttention, window=partial(att.Local2d, radius=1))
HARD = partial(att.MultiHeadAttention, normalizer=att.Hard)
CASES = {
    "hops": (lambda: ViT(**SMALL, pool=att.HopsPool), [f"RawAttention(head={hop})" for hop in range(3)]),
    "levels": (
        lambda: ViT(**SMALL, pool=partial(att.HierarchicalPool, regions=(2, 2))),
        ["RawAttention(head=0)", "RawAttention(head=1)"],
    ),
    "views": (lambda: ViT(**SMALL, pool=att.MultiDimPool), ["RawAttention", "RawAttention(head=3)"]),
    "window": (
        lambda: ViT(**SMALL, **WITHOUT, attention=WINDOW),
        ["QueryKey(query=(20, 12))", "QueryKey(query=(20, 12), kind=scores)", "RawAttention"],
    ),
    "hard": (lambda: ViT(**SMALL, **WITHOUT, attention=HARD), ["QueryKey(query=(0.5, 0.5), head=1)"]),
    "cnn": (
        lambda: PooledCNN("resnet10t", 3, model_args={"channels": [8, 8, 16, 16], "output_stride": 8}),
        ["RawAttention"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_maps_of_a_photo(name: str, photos: Path, tmp_path: Path) -> None:
    make, methods = CASES[name]
    torch.manual_seed(0)
    network = make()
    for weight in network.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.3)
    checkpoint = tmp_path / "best.ckpt"
    preprocess = {"input_size": (32, 48), "mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 1.0}
    torch.save(
        {
            "state_dict": {f"network.{k}": v for k, v in network.state_dict().items()},
            "vision_attn": {
                "format": 1,
                "network": describe(network),
                "classes": ["a", "b", "c"],
                "preprocess": preprocess,
                "version": "0",
            },
        },
        checkpoint,
    )
    words = [word for method in methods for word in ("--method", method)]
    out = tmp_path / "out"
    photo = str(photos / "cat.png")
    assert main(["explain", str(checkpoint), photo, *words, "--device", "cpu", "-o", str(out)]) == 0
    records = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert len(records) == len(methods)
    maps = [np.load(path) for path in sorted(out.glob("*.npy"))]
    pictures = [path for path in out.glob("*.png") if ".grid." not in path.name]
    assert len(maps) == len(pictures) == len(methods)
    assert all(values.shape == (4, 6) for values in maps)
    if name == "hops":
        assert not np.allclose(maps[0], maps[1])
    if name == "hard":
        assert sorted(set(maps[0].ravel().tolist())) == [0.0, 1.0]


PARTS = {
    "vit": att.ScaledDot,
    "vit_additive": att.Additive,
    "vit_sparsemax": att.Sparsemax,
    "vit_local2d": att.Local2d,
    "vit_local_predictive": att.LocalPredictive,
    "vit_multidim": att.MultiDimAdditive,
    "vit_keyonly_pool": att.KeyOnly,
    "vit_additive_pool": att.AttentionPool,
    "vit_hard_pool": att.Hard,
    "vit_multidim_pool": att.MultiDimPool,
    "vit_hops": att.HopsPool,
    "vit_hierarchical": att.HierarchicalPool,
    "senet": att.SqueezeExcite,
    "senet_cbam": att.CBAM,
    "senet_spatial": att.SpatialMask,
    "resnet": att.NoGate,
    "spatial_cnn": att.SpatialMask,
    "spatial_cnn_cbam": att.CBAM,
    "plain_cnn": att.NoGate,
    "pooled_cnn": att.AttentionPool,
}
OF_EACH_KIND = {"vit", "vit_hops", "senet", "spatial_cnn", "pooled_cnn"}
CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*_planted.yaml"))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(path, marks=() if family in OF_EACH_KIND else pytest.mark.slow, id=family)
        for path in CONFIGS
        for family in [path.stem.removesuffix("_planted")]
    ],
)
def test_every_family_trains_and_is_rebuilt(config: Path, tmp_path: Path) -> None:
    sizes = {"train": 256, "val": 32, "test": 32}
    words = [f"--data.source.{split}={size}" for split, size in sizes.items()]
    words += ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2"]
    words += [f"--trainer.default_root_dir={tmp_path}", "--trainer.enable_progress_bar=false"]
    assert main(["fit", "--config", str(config), *words, "--data.batch_size=16"]) == 0
    run = tmp_path / config.stem / "version_0"
    assert 0 < json.loads((run / "summary.json").read_text())["test/loss"] < 100
    before = torch.load(run / "best.ckpt", weights_only=True)["state_dict"]
    network = load_model(run / "best.ckpt").network
    assert all(torch.equal(before[f"network.{k}"], v) for k, v in network.state_dict().items())
    part = PARTS[config.stem.removesuffix("_planted")]
    assert any(isinstance(module, part) for module in network.modules())
