"""fit, validate, test and predict: make the run, have it done, print what came out."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from vision_attn.fitting.making import make_run
from vision_attn.fitting.run import TrainingRun
from vision_attn.runs.progress import Terminal
from vision_attn.terminal import say
from vision_attn.training import EpochLines

__all__ = ["main"]


def main(command: str, words: Sequence[str], allow: Sequence[str]) -> int:
    """Return 0, or 1 where an image could not be read; each such image has had its line."""
    run = make_run(command, words, allow=allow, show=[EpochLines()])
    return COMMANDS[command](run)


def fit(run: TrainingRun) -> int:
    """Train, test, and print where the run went and what came out."""
    _say(run, Text(run.heading(), style="bold"))
    if start := getattr(run.model, "start", ""):
        _say(run, Text(start))
    for note in run.notes:
        _say(run, Text(f"note: {note}"))
    run.fit()
    if table := run.table():
        _say(run, table)
    return 0


def validate(run: TrainingRun) -> int:
    """Measure the checkpoint on the validation images."""
    run.validate()
    _say(run, run.table())
    return 0


def test(run: TrainingRun) -> int:
    """Measure the checkpoint on the test images."""
    run.test()
    _say(run, run.table())
    return 0


def predict(run: TrainingRun) -> int:
    """Name the class of each image, and print where the names are."""
    done = run.predict()
    if run.trainer.is_global_zero:
        say(f"{len(run.predictions.rows)} predictions: {run.predictions.path}")
    return 0 if done else 1


COMMANDS = {"fit": fit, "validate": validate, "test": test, "predict": predict}


def _say(run: TrainingRun, what: RenderableType | None) -> None:
    """Of several processes, one speaks."""
    if run.trainer.is_global_zero and what is not None:
        Terminal().print(what)
