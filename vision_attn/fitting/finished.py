"""Whether a checkpoint leaves a run anything to train."""

from typing import Any

from vision_attn.models.checkpoint import read_file

__all__ = ["finished"]


def finished(path: str, trainer: Any) -> str:
    """Say that a run has trained all that its trainer's options ask for, and how to go on.

    Args:
        path: A last.ckpt.
        trainer: The options of the trainer, `max_epochs` and `max_steps` among them.

    Returns:
        A line; nothing where something is left to train, or the file does not say.
    """
    contents = read_file(path)
    try:
        epochs = int(contents["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])
        steps = int(contents["global_step"])
    except (KeyError, TypeError, ValueError):
        return ""
    if 0 <= trainer.max_steps <= steps:
        return f"all of its {steps} steps are done: to go on, give --trainer.max_steps above that"
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= epochs:
        return (
            f"all of its {epochs} epochs are done: to go on, give --trainer.max_epochs above that"
        )
    return ""
