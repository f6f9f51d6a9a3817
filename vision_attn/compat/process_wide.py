"""Settings that a library keeps once for the whole process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class ProcessWide:
    """A process-wide setting that several threads may hold at the same time.

    Two context managers that each restore what they saw would leave the setting on for good when
    they overlap: the second saw what the first had set. Here the first holder enters the context
    of `make` and the last one leaves it.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._holders = 0
        self._setting = ExitStack()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the setting while this is open."""
        with self._lock:
            if not self._holders:
                self._setting.enter_context(self._make())
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._setting.close()
