"""What Hugging Face keeps to itself: the switch for working offline, a config's attention.

Tried with huggingface_hub 2.4.0.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from huggingface_hub import constants

from vision_attn.compat.process_wide import ProcessWide

OFFLINE = "HF_HUB_OFFLINE"  # of huggingface_hub.constants


def attention_of(config: object) -> str | None:
    """The attention that a config of transformers asks for, or the repository of its kernel.

    It has no public name once the config is made. Without the reach nothing is known, and
    transformers decides.
    """
    return getattr(config, "_attn_implementation", None)


def is_offline() -> bool:
    """Whether the user has switched downloads off."""
    return getattr(constants, OFFLINE, False)


def offline() -> AbstractContextManager[None]:
    """Have Hugging Face's client look in its cache alone.

    The public switch is an environment variable that is read once, at import, and timm passes no
    `local_files_only`. Threads share the setting, and what it was before comes back when the last
    of them is done. Without the reach the client itself finds out that there is no network, which
    takes it a minute of retries.
    """
    return _OFFLINE.held()


@contextmanager
def _switched_off() -> Iterator[None]:
    if not hasattr(constants, OFFLINE):
        yield
        return
    before = getattr(constants, OFFLINE)
    setattr(constants, OFFLINE, True)
    try:
        yield
    finally:
        setattr(constants, OFFLINE, before)


_OFFLINE = ProcessWide(_switched_off)
