"""Names of the version before still work, from Python and in configs, and say what they are now."""

import importlib

import pytest

from vision_attn.deprecated import old_names
from vision_attn.reports.runs.making import make_run

RENAMED = [
    ("data", "GrowingSize", "ProgressiveResizing"),
    ("evaluate", "EnergyInside", "EnergyPointingGame"),
    ("evaluate", "cascade", "cascading_randomisation"),
    ("explain", "fitting", "fitting_methods"),
    ("render", "weighed_words", "word_weights"),
    ("training", "FindRate", "LearningRateRangeTest"),
    ("training", "FrozenTrunk", "LinearProbe"),
    ("training", "SeveralViews", "TestTimeAugmentation"),
    ("training", "Trained", "TrainingModule"),
]


@pytest.mark.parametrize(("part", "old", "new"), RENAMED)
def test_an_old_name_leads_to_the_new_one(part: str, old: str, new: str):
    package = importlib.import_module(f"vision_attn.{part}")
    with pytest.warns(DeprecationWarning, match=rf"^{part}\.{old} is now {new}$"):
        assert getattr(package, old) is getattr(package, new)
    assert old not in package.__all__
    assert new in package.__all__


def test_a_name_that_never_was_is_an_attribute_error():
    with pytest.raises(
        AttributeError, match=r"module 'vision_attn\.data' has no attribute 'Nothing'"
    ):
        old_names("vision_attn.data", {})("Nothing")


@pytest.mark.filterwarnings("ignore:(training|data)\\..* is now:DeprecationWarning")
def test_a_config_may_use_old_names(tmp_path):
    config = tmp_path / "old.yaml"
    config.write_text(
        """
model: {network: {class_path: vision_attn.models.ViT, init_args: {image_size: 64}}}
data:
  source: {class_path: vision_attn.data.Planted, init_args: {train: 8, val: 4, test: 4}}
  augment: [{class_path: vision_attn.data.GrowingSize, init_args: {sizes: [64], epochs: [0]}}]
trainer:
  callbacks:
  - class_path: vision_attn.training.SeveralViews
    init_args: {shift: 0}
  - vision_attn.training.FrozenTrunk
  logger: false
"""
    )
    words = [f"--config={config}", f"--trainer.default_root_dir={tmp_path}", "--probe=false"]
    run = make_run("fit", words)
    kinds = {type(callback).__name__ for callback in run.trainer.callbacks}
    assert {"TestTimeAugmentation", "LinearProbe"} <= kinds
