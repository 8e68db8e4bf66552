"""Waits for other sessions: whoever runs a job is told what it waits for, while it does."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WARN_SECONDS = 10.0
"""How long something is waited for before that is told."""
_log = logging.getLogger("tidemark.waits")


class LongWait:
    """A wait that begins now."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._is_told = False

    def goes_on(self, what: Callable[[], str]) -> None:
        """Tells once what is waited for, if the wait lasts for WARN_SECONDS already."""
        if not self._is_told and time.monotonic() - self._began >= WARN_SECONDS:
            self._is_told = True
            _log.warning("%s", what())


class _Handler(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


@contextmanager
def waits_told_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls `tell` inside the block for each long wait of this process, which is also logged."""
    handler = _Handler(tell)
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)
