"""The words of a command line, and its configs, made into a run."""

import json
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback

from vision_attn.arguments import launched
from vision_attn.fitting.configs import find_config, values_of, without
from vision_attn.fitting.described import from_checkpoint, from_weights, names
from vision_attn.fitting.failures import one_line
from vision_attn.fitting.guard import check_yaml
from vision_attn.fitting.kinds import only_packages
from vision_attn.fitting.run import TrainingRun
from vision_attn.fitting.sequences import ExampleRun

__all__ = ["make_run"]


def make_run(
    command: str, words: Sequence[str], *, allow: Sequence[str] = (), show: Sequence[Callback] = ()
) -> TrainingRun:
    """Make the run that the words of a command line describe; nothing is trained yet.

    command: fit, validate, test or predict. allow: packages whose classes and functions the
    config may name too. show: callbacks that report on the training.

    Without a config, the network is that of --ckpt_path; validate and test then need a
    --data.source, unless the network is of the shelf, whose card names it. A fit whose config names
    no network takes that of --model.weights. Raises ValueError, one line, for whatever is wrong
    with the words.
    """
    launched()
    configs = [str(find_config(name)) for name in values_of(words, "-c", "--config")]
    contents: list[dict[str, Any]] = [check_yaml(config) for config in configs]
    words = [word for name in configs for word in ("--config", name)] + without(words)
    if not configs:
        contents = [from_checkpoint(command, words)]
        words = ["--config", json.dumps(contents[0]), *words]
    elif command == "fit" and (start := from_weights(contents, words)):
        words = ["--config", json.dumps(start), *words]
    of_class = any("class_path" in (content.get("model") or {}) for content in contents)
    named = names(contents, "num_classes") or any("num_classes" in word for word in words)
    kind = ExampleRun if of_class else TrainingRun
    with one_line(), only_packages(allow):
        return kind(command, words, infer_classes=not named, show=show, allow=allow)
