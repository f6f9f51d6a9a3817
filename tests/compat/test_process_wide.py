"""A setting of the whole process outlives no holder and ends with the last."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vision_attn.compat.process_wide import ProcessWide


@pytest.fixture
def switch() -> tuple[dict[str, int], ProcessWide]:
    """A switch as libraries write it: each restores what it saw."""
    state = {"on": False, "entered": 0}

    @contextmanager
    def turned_on() -> Iterator[None]:
        before, state["on"] = state["on"], True
        state["entered"] += 1
        try:
            yield
        finally:
            state["on"] = before

    return state, ProcessWide(turned_on)


def test_the_last_holder_puts_it_back_whoever_came_first(
    switch: tuple[dict[str, int], ProcessWide],
) -> None:
    state, shared = switch
    first, second = shared.held(), shared.held()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert state["on"], "the second still holds it"
    second.__exit__(None, None, None)
    assert not state["on"]
    assert state["entered"] == 1


def test_an_error_inside_puts_it_back(switch: tuple[dict[str, int], ProcessWide]) -> None:
    state, shared = switch
    with pytest.raises(RuntimeError, match="inside"), shared.held():
        raise RuntimeError("inside")
    assert not state["on"]
    with shared.held():
        assert state["on"]
    assert not state["on"]


def test_threads_that_overlap_share_it(switch: tuple[dict[str, int], ProcessWide]) -> None:
    state, shared = switch
    both, seen = threading.Barrier(2, timeout=30), []

    def hold() -> None:
        with shared.held():
            both.wait()
            seen.append(state["on"])
            both.wait()

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True, True]
    assert not state["on"]
    assert state["entered"] == 1
