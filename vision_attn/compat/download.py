"""Downloads that fail soon where there is no network."""

from contextlib import AbstractContextManager, nullcontext
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from huggingface_hub import constants

from vision_attn.compat.huggingface_private import is_offline, offline

__all__ = ["hub_reached_or_left"]


def hub_reached_or_left() -> AbstractContextManager[None]:
    """Offline, Hugging Face's client looks in its cache alone, and does not retry for a minute."""
    reached = is_offline() or _reachable(constants.ENDPOINT)
    return nullcontext() if reached else offline()


def _reachable(url: str) -> bool:
    try:
        urlopen(Request(url, method="HEAD"), timeout=5).close()
    except HTTPError:
        return True  # an answer, whatever it says
    except OSError:
        return False
    return True
