"""Training from Python: what `vision-attn fit` does, as one call."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vision_attn.arguments import checked
from vision_attn.fitting.making import make_run
from vision_attn.hub import load
from vision_attn.inference import usual_defaults
from vision_attn.types import LoadedSequences, Model

__all__ = ["FittedRun", "fit"]


@dataclass(frozen=True)
class FittedRun:
    """What a run of training left in its folder.

    Args:
        folder: The run's folder.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn import FittedRun
        >>> FittedRun(Path("outputs/vit_cifar10/version_0")).best.name
        'best.ckpt'
    """

    folder: Path

    @property
    def best(self) -> Path:
        """The checkpoint with the best weights."""
        return self.folder / "best.ckpt"

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The rows of metrics.csv, each with the metrics that were logged at its epoch and step."""
        with (self.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
            return [
                {name: float(value) for name, value in row.items() if value}
                for row in csv.DictReader(file)
            ]

    @cached_property
    def summary(self) -> dict[str, float]:
        """The figures of summary.json: the test's metrics, minutes, parameters, images a second."""
        summary: dict[str, float] = json.loads(
            (self.folder / "summary.json").read_text(encoding="utf-8")
        )
        return summary

    @cached_property
    def model(self) -> Model | LoadedSequences:
        """The network with its best weights, loaded on first use."""
        return load(self.best)


@checked()
def fit(
    config: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    max_epochs: int | None = None,
    minutes: float | None = None,
    data_root: str | Path | None = None,
    output: str | Path | None = None,
    name: str | None = None,
    seed: int | None = None,
    resume: str | Path | None = None,
    allow: Sequence[str] = (),
) -> FittedRun:
    """Train a network, test its best weights once at the end, and return the run.

    All but `config`, `overrides` and `allow` are short names of the values that are changed most.

    Args:
        config: A YAML file, or the name of a config of the package (`vision-attn configs` lists
            them).
        overrides: Values by the command line's dotted names, {"data.batch_size": 64}.
        max_epochs: trainer.max_epochs.
        minutes: In the place of max_epochs: how many epochs fit into them is measured.
        data_root: data.root, the folder of the data.
        output: trainer.default_root_dir, where runs land.
        name: Of the run's folder there.
        seed: seed_everything.
        resume: ckpt_path, a last.ckpt to go on from.
        allow: Packages beside vision_attn, torch, torchvision, timm and lightning whose classes the
            config may name; their code runs.

    Returns:
        The run's folder, and what it holds: metrics, summary and the network with its best weights.

    Raises:
        ValueError: The config or a value does not fit; in one line.
        OSError: A file cannot be written.

    Examples:
        >>> import tempfile, vision_attn
        >>> small = {"data.source.train": 40, "data.source.val": 20, "data.source.test": 20,
        ...          "trainer.enable_progress_bar": False, "trainer.accelerator": "cpu"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = vision_attn.fit("vit_planted", small, max_epochs=1, output=folder)
        ...     0 <= run.summary["test/top1"] <= 1
        True
    """
    named = {
        "trainer.max_epochs": max_epochs,
        "minutes": minutes,
        "data.root": data_root,
        "trainer.default_root_dir": output,
        "name": name,
        "seed_everything": seed,
        "ckpt_path": resume,
    }
    values = {**(overrides or {}), **{k: v for k, v in named.items() if v is not None}}
    words = ["--config", str(config), *(f"--{key}={_word(v)}" for key, v in values.items())]
    with usual_defaults():
        run = make_run("fit", words, allow=allow)
        run.fit()
    if run.folder is None:
        raise ValueError(
            "fit returns a run, but a fast_dev_run writes no files: use the command vision-attn fit"
        )
    return FittedRun(run.folder)


def _word(value: Any) -> str:
    """A value as it is typed on the command line."""
    return str(value) if isinstance(value, (str, Path)) else json.dumps(value)
