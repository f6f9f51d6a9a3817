"""Adapters of PEFT: added to the weights of their base, or one line on what is missing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vision_attn import load_model
from vision_attn.errors import ModelError
from vision_attn.methods import GradCAM, Rollout

transformers = pytest.importorskip("transformers")
SIZES = {"image_size": 16, "patch_size": 8, "hidden_size": 12, "intermediate_size": 20}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2}
IMAGES = torch.randn(2, 3, 16, 16)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, num_labels=5))
    network.save_pretrained(tmp_path / "base")
    options = {"image_processor_type": "ViTImageProcessor", "size": 16, "image_mean": [0.1] * 3}
    (tmp_path / "base" / "preprocessor_config.json").write_text(json.dumps(options))
    return tmp_path / "base"


def adapted(base: Path, folder: Path, classes: int = 5, **options: Any) -> Any:
    """Save an adapter whose weights are no zeros; return the network that it makes of the base."""
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    network = transformers.ViTForImageClassification.from_pretrained(
        base, num_labels=classes, ignore_mismatched_sizes=True
    )
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=["q_proj", "v_proj"], **options)
    made = peft.get_peft_model(network, config)
    for name, weight in made.named_parameters():
        if "lora" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.5)
    made.save_pretrained(folder)
    return made.eval()


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize(
    ("classes", "options"), [(5, {}), (3, {"modules_to_save": ["classifier"]})]
)
def test_an_adapter_is_added_to_the_weights_of_its_base(
    base: Path, tmp_path: Path, classes: int, options: dict[str, list[str]]
) -> None:
    theirs = adapted(base, tmp_path / "adapter", classes, **options)
    model = load_model(f"hf:{tmp_path / 'adapter'}")
    with torch.no_grad():
        expected = theirs(IMAGES).logits
        torch.testing.assert_close(model.network(IMAGES), expected, rtol=1e-4, atol=1e-5)
        plain = load_model(f"hf:{base}").network(IMAGES)
    assert classes != 5 or (plain - expected).abs().max() > 0.01
    assert len(model.classes) == classes
    assert model.weights == "trained"
    assert model.preprocess.mean == (0.1,) * 3
    assert not any("lora" in name for name, _ in model.network.named_modules())
    for method in (Rollout(), GradCAM()):
        assert method(model, IMAGES, 1 if method.class_specific else None).values.shape == (2, 2, 2)


def written(folder: Path, options: str) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(options)
    return f"hf:{folder}"


@pytest.mark.filterwarnings("ignore:.*")
def test_what_is_missing_is_told_in_a_line(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(spec: str, message: str, **how: Any) -> None:
        with pytest.raises(ModelError, match=message) as caught:
            load_model(spec, **how)
        assert "\n" not in str(caught.value)
        assert spec in str(caught.value)

    told(written(tmp_path / "a", "{"), "expected the options of a PEFT adapter")
    told(written(tmp_path / "b", "{}"), "a PEFT adapter that names no network: write the folder")
    named = json.dumps({"base_model_name_or_path": str(base), "peft_type": "LORA"})
    told(written(tmp_path / "c", named), "a PEFT adapter of .*base without weights: expected")

    adapted(base, tmp_path / "d")
    spec = f"hf:{tmp_path / 'd'}"
    told(spec, "changes the trained weights of .*base: leave out pretrained", pretrained=False)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "peft", None)
        told(spec, "a PEFT adapter of .*base needs peft: pip install peft")
    base.rename(tmp_path / "elsewhere")
    told(spec, "the base of this PEFT adapter, .*base: could not be downloaded and is not in")
