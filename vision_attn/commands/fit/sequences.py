"""fit, validate and test for sequences and questions: the same command line, another kind of run.

A config whose model has a class_path names a `Learner`; one without is of an image classifier.
"""

from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, Trainer

from vision_attn.commands.fit import run as lightning
from vision_attn.commands.fit.run import Run
from vision_attn.commands.fit.words import values_of
from vision_attn.data import ExampleData
from vision_attn.training import Learner, Summary


def main(command: str, words: list[str]) -> int:
    return lightning.main(command, words, ExampleRun if names_a_learner(words) else Run)


def names_a_learner(words: list[str]) -> bool:
    """Whether the config's model is a class of its own; a broken file is somebody else's error."""
    for path in values_of(words, "-c", "--config"):
        try:
            config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            return False
        if isinstance(config, dict) and "class_path" in (config.get("model") or {}):
            return True
    return False


class ExampleSummary(Summary):
    """What came out, with every metric that a learner logs."""

    def _speed(self, trainer: Trainer, pl_module: Any, seconds: float) -> None:
        examples = self._images.total() / seconds
        self.rows["speed"] = f"{examples:.0f} examples/s"
        self.figures["examples/s"] = examples

    def _measured(self, trainer: Trainer, stage: str) -> None:
        for key, value in sorted(trainer.callback_metrics.items()):
            if key.startswith(f"{stage}/"):
                self.rows[key.replace("/", " ")] = f"{value.item():.4f}"
                self.figures[key] = value.item()
        self._write(trainer, "summary" if "trained" in self.rows else stage)


class ExampleRun(Run):
    """A config made into a `Learner`, `ExampleData` and a trainer with a run folder."""

    model_type = Learner
    data_type = ExampleData
    summary_type = ExampleSummary
    any_model = True

    def __init__(self, command: str, words: list[str]):
        if command == "predict":
            raise ValueError(
                "predict names the class of images: the config is of sequences or questions"
            )
        super().__init__(command, words)

    def measures(self) -> list[Callback]:
        return []
