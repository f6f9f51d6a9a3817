"""Downloads that fail soon where there is no network."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from huggingface_hub import constants as hub_constants


@contextmanager
def hub_reached_or_left() -> Iterator[None]:
    """Offline, Hugging Face's client looks in its cache alone, and does not retry for a minute."""
    before = hub_constants.HF_HUB_OFFLINE
    hub_constants.HF_HUB_OFFLINE = before or not _reachable(hub_constants.ENDPOINT)
    try:
        yield
    finally:
        hub_constants.HF_HUB_OFFLINE = before


def _reachable(url: str) -> bool:
    try:
        urlopen(Request(url, method="HEAD"), timeout=5).close()
    except HTTPError:
        return True  # an answer, whatever it says
    except OSError:
        return False
    return True
