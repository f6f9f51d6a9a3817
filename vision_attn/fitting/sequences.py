"""Runs of sequences and questions."""

from typing import Any

from lightning.pytorch import Callback, Trainer

from vision_attn.fitting.run import TrainingRun
from vision_attn.sequences import ExampleData, Learner
from vision_attn.training import Summary

__all__ = ["ExampleRun"]


class ExampleSummary(Summary):
    """What came out, with every metric that a learner logs."""

    def _compare(self, trainer: Trainer) -> None:
        """Compare with nothing: operations are not counted."""

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


class ExampleRun(TrainingRun):
    """A run of sequences or questions: its config's model names a `Learner`.

    Examples:
        >>> from vision_attn.fitting.sequences import ExampleRun
        >>> ExampleRun.any_model
        True
    """

    model_type = Learner
    data_type = ExampleData
    summary_type = ExampleSummary
    any_model = True

    def __init__(self, command: str, words: list[str], **options: Any):
        if command == "predict":
            raise ValueError(
                "predict needs an image classifier: the config is of sequences or questions"
            )
        super().__init__(command, words, **options)

    def measures(self) -> list[Callback]:
        return []
