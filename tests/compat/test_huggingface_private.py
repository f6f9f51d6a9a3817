"""The switch for working offline is where it was, and its loss is survived."""

import huggingface_hub
import pytest
from huggingface_hub import constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled

from vision_attn.compat import download
from vision_attn.compat import huggingface_private as reaches


def test_the_client_heeds_the_switch() -> None:
    with reaches.offline():
        try:
            get_session().get("http://127.0.0.1:9")
        except OfflineModeIsEnabled:
            return
        except Exception as error:
            pytest.fail(
                f"huggingface_hub {huggingface_hub.__version__} no longer heeds "
                f"constants.{reaches.OFFLINE} ({error!r}): without a network vision_attn waits for "
                "the client's own retries"
            )


def test_it_ends_with_the_block() -> None:
    before = getattr(constants, reaches.OFFLINE)
    with reaches.offline():
        assert reaches.is_offline()
    assert getattr(constants, reaches.OFFLINE) == before


def test_without_the_switch_the_client_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(constants, reaches.OFFLINE)
    monkeypatch.setattr(download, "_reachable", lambda url: False)
    assert not reaches.is_offline()
    with download.hub_reached_or_left():
        assert not hasattr(constants, reaches.OFFLINE)
    assert not hasattr(constants, reaches.OFFLINE)


@pytest.mark.parametrize(("offline", "looked"), [(True, 0), (False, 1)])
def test_who_works_offline_is_not_asked_for_a_network(
    offline: bool, looked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(constants, reaches.OFFLINE, offline)
    monkeypatch.setattr(download, "_reachable", lambda url: not looks.append(url))
    with download.hub_reached_or_left():
        assert reaches.is_offline() == offline
    assert len(looks) == looked
