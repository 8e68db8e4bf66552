"""The job file's `reconnect` section: how long a connection that broke is tried again. One policy for all connections."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import annotated_types
from pydantic import Field, StrictInt

from tidemark.conf.redaction import redact
from tidemark.conf.section import Seconds, Section

FIRST_DELAY_SECONDS = 0.5

_log = logging.getLogger("tidemark.reconnect")
"""Its records have an attribute `outage`: a `Began` or an `Ended`."""


class Reconnect(Section):
    """How often a running job tries to connect again if a connection to the source or the target breaks or can't be opened.
    After the last attempt the run ends with exit code 7, and the next run continues. A job's start makes fewer attempts."""

    attempts: Annotated[StrictInt, annotated_types.Ge(0)] = Field(
        60,
        description="Number of consecutive attempts, with increasing delays, before the job stops; 0: none. With the "
        "defaults an outage may last about 25 minutes. The metric `tidemark_log_reconnects_total` counts those of the log.",
    )
    max_delay_seconds: Seconds = Field(30.0, description="Longest delay between two attempts.")


AT_START = Reconnect(attempts=4, max_delay_seconds=8.0)
"""For the first connections of a run: a wrong address must be reported soon."""


@dataclass(frozen=True, slots=True)
class Began:
    """A server is out of reach. `server`: its name for people, without secrets."""

    server: str
    cause: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The server is back, after so many seconds."""

    server: str
    seconds: float


class _Outages:
    """The outages that this process sees now. Many connections to one server are one outage."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}

    def begin(self, server: str, cause: str, attempts: int) -> None:
        with self._lock:
            is_new = server not in self._since
            self._since.setdefault(server, time.monotonic())
        if is_new:
            text = "%s is out of reach (%s); it is tried again up to %d times"
            _log.warning(text, server, cause, attempts, extra={"outage": Began(server, cause, attempts)})

    def end(self, server: str) -> None:
        with self._lock:
            since = self._since.pop(server, None)
        if since is not None:
            ended = Ended(server, round(time.monotonic() - since, 3))
            _log.warning("%s is back after %.1f s", server, ended.seconds, extra={"outage": ended})

    def forget(self, server: str) -> None:
        """Ends the outage without an event: the attempts are used up. A later outage gets an event of its own."""
        with self._lock:
            self._since.pop(server, None)


_outages = _Outages()


class _OutageHandler(logging.Handler):
    """Calls `tell` when a server goes out of reach of this process, and when it is back."""

    def __init__(self, tell: Callable[[Began | Ended], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        outage = getattr(record, "outage", None)
        if outage is not None:
            self._tell(outage)


@contextmanager
def outages_told_to(tell: Callable[[Began | Ended], None]) -> Iterator[None]:
    handler = _OutageHandler(tell)
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)


class Reconnecting:
    """Counts the failures in a row of one connection, waits between attempts, and tells when the server went and came back.

    `server`: its name for people, such as `the source db:3306`."""

    def __init__(self, policy: Reconnect, server: str) -> None:
        self._policy = policy
        self._server = redact(server)
        self.failures = 0

    def failed(self, cause: str) -> bool:
        """Waits before the next attempt. Returns False at once if the policy allows none."""
        self.failures += 1
        if self.failures > self._policy.attempts:
            _outages.forget(self._server)
            return False
        _outages.begin(self._server, redact(cause), self._policy.attempts)
        longest = min(FIRST_DELAY_SECONDS * 2 ** min(self.failures - 1, 20), self._policy.max_delay_seconds)
        time.sleep(longest * random.uniform(0.5, 1.0))
        return True

    def succeeded(self) -> None:
        _outages.end(self._server)
        self.failures = 0
