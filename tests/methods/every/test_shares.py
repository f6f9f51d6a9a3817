"""Of sixty networks, each of another family: the shares of pixels and constants add up to a logit."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))
import catalogue
import shares

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

NAMES = {
    "timm": (
        "cait_s24_224 convit_tiny convnext_atto deit_tiny_distilled_patch16_224 dla46_c "
        "edgenext_small efficientformerv2_s0 efficientvit_b0 efficientvit_m1 "
        "eva02_tiny_patch14_224 fasternet_t0 fastvit_sa12 hiera_tiny_224 inception_next_atto "
        "lcnetv2_small legacy_seresnet18 levit_128 mobilevit_xxs mobilenetv3_rw nest_tiny "
        "pit_xs_224 pvt_v2_b0 regnetx_002 repghostnet_050 repvit_m0_9 resmlp_12_224 "
        "shvit_s1 skresnet18 starnet_s1 swin_s3_tiny_224 test_byobnet test_efficientnet "
        "test_nfnet test_resnet test_vit test_vit_relpos tiny_vit_5m_224 visformer_tiny "
        "xcit_nano_12_p16_224"
    ),
    "transformers": (
        "Beit:sdpa CLIP:sdpa DINOv3ViTModel:sdpa Dinov2WithRegisters:sdpa FocalNet:eager "
        "PoolFormer:eager PvtV2:eager Segformer:sdpa Siglip:sdpa Swinv2:eager"
    ),
    "vit-pytorch": (
        "ats_vit cct deepvit look_vit normalized_vit parallel_vit rvt scalable_vit "
        "simple_vit_with_sparse_gating twins_svt vit_with_keel_post_ln"
    ),
}
COMPLETE = [f"{source}:{name}" for source, names in NAMES.items() for name in names.split()]


@cache
def entries() -> dict[str, catalogue.Entry]:
    """The networks of these names, found when the first is tried: to list all takes seconds."""
    return {entry.name: entry for entry in catalogue.every() if entry.name in COMPLETE}


def test_there_are_sixty() -> None:
    assert len(set(COMPLETE)) == 60


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"shares {at % 2}"))
        for at, name in enumerate(COMPLETE)
    ],
)
def test_its_shares_add_up(name: Any) -> None:
    if name not in entries():
        pytest.skip(f"the library of {name} is not installed, or has no such network")
    found = shares.shared_out(entries()[name])
    assert (found["map"], found["why"]) == ("complete", "")
    assert found["gap"] <= 1e-10


def test_a_function_without_a_rule_is_named() -> None:
    entry = next(one for one in catalogue.every() if one.name == "timm:sequencer2d_s")
    found = shares.shared_out(entry)
    assert found["map"] == "gap"
    assert "lstm" in found["why"]
    assert found["gap"] > 1e-6
