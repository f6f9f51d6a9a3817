"""The part of a config that a checkpoint, or weights to start from, say themselves."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vision_attn import sequences
from vision_attn.errors import ModelError
from vision_attn.fitting.configs import NEWEST, values_of
from vision_attn.models.checkpoint import describe, unpack
from vision_attn.models.shelf import is_shelved, shelved

__all__ = ["from_checkpoint", "from_weights", "names"]

NETWORK = re.compile(r"--model(\.network)?(=|$)")  # the words that name one


def from_checkpoint(command: str, words: Sequence[str]) -> dict[str, Any]:
    """A config of no more than a checkpoint says of itself: its network, in the class it is of.

    Raises ValueError where that does not do: a checkpoint knows no optimiser and no data set.
    """
    paths = [path for path in values_of(words, "--ckpt_path") if path not in NEWEST]
    own = Path(paths[-1]).with_name("config.yaml") if paths else None
    hint = f" (that of the checkpoint's run is {own})" if own and own.is_file() else ""
    if command == "fit" or not paths:
        raise ValueError(f"{command} needs a config: --config FILE_OR_NAME{hint}")
    names_source = [word.partition("=")[0].removesuffix(".class_path") for word in words]
    has_source = "--data.source" in names_source  # and not an option of it alone
    config: dict[str, Any] = {}
    if is_shelved(paths[-1]):  # measured as its card was, in float32
        card = shelved(paths[-1])
        config = {"name": card.name, "trainer": {"precision": "32-true"}}
        if command != "predict" and not has_source:
            has_source, config["data"] = True, dict(card.values["data"]["config"])
    if command != "predict" and not has_source:
        raise ValueError(
            f"{command} needs the data: --config FILE_OR_NAME{hint}, or --data.source CLASS"
        )
    saved = unpack(paths[-1])
    try:
        built = saved.build()
    except ValueError as error:
        raise ModelError(f"{paths[-1]}: its network cannot be rebuilt: {error}") from error
    network = _described(built)
    if saved.of_sequences:
        answers = isinstance(built, sequences.QuestionAnswerer)
        path = f"vision_attn.sequences.{'QuestionLearner' if answers else 'SequenceLearner'}"
        return {"model": {"class_path": path, "init_args": {"network": network}}}
    config["model"] = {"network": network}
    if not has_source:  # predict reads no data set, yet its data module is made with one
        config["data"] = {"source": {"class_path": "vision_attn.data.Planted"}}
    return config


def _described(network: Any) -> dict[str, Any]:
    """A network as a config writes it: its values are plain, whatever a file held."""
    described = describe(network)
    return described | {"init_args": _as_options(described["init_args"])}


def _as_options(value: Any) -> Any:
    """A description's values as a config writes them: of a class without options, its path alone.

    An option that takes a class itself, such as a block, takes no more than that.
    """
    match value:
        case {"class_path": path, "init_args": {}} if not value["init_args"]:
            return path
        case dict():
            return {key: _as_options(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_options(item) for item in value]
        case _:
            return value


def from_weights(contents: Sequence[dict[str, Any]], words: Sequence[str]) -> dict[str, Any]:
    """What weights to start from say of the network and its input, where no config says so."""
    sections = [content.get("model") or {} for content in contents]
    elsewhere = any(isinstance(section, str) for section in sections)  # in a file of its own
    if elsewhere or names(sections, "network") or any(map(NETWORK.match, words)):
        return {}
    given = [section["weights"] for section in sections if section.get("weights")]
    given += values_of(words, "--model.weights")
    if not given:
        raise ValueError(
            "the config names no network: give --model.weights vision_attn:NAME, or a checkpoint"
        )
    saved = unpack(given[-1])
    try:
        network = _described(saved.build())
    except ValueError as error:
        raise ModelError(f"{given[-1]}: its network cannot be rebuilt: {error}") from error
    network["init_args"].pop("num_classes", None)
    preprocess = saved.about.get("preprocess") or {}
    normalised = {name: preprocess[name] for name in ("mean", "std") if name in preprocess}
    return {"model": {"network": network}, "data": normalised}


def names(content: Any, key: str) -> bool:
    """Whether a mapping in there has this key."""
    if isinstance(content, dict):
        return key in content or any(names(value, key) for value in content.values())
    return isinstance(content, list) and any(names(item, key) for item in content)
