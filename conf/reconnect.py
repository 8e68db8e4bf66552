"""The job file's `reconnect` section: how long a connection that broke is tried again. One policy for all connections."""

import logging
import random
import time
from typing import Annotated

import annotated_types
from pydantic import Field, StrictInt

from tidemark.conf.redaction import redact
from tidemark.conf.section import Seconds, Section

FIRST_DELAY_SECONDS = 0.5

_log = logging.getLogger("tidemark.reconnect")


class Reconnect(Section):
    """What happens if a connection to the source or the target breaks, or can't be opened while a job runs. When the attempts
    are used up, the run ends with exit code 7; the next run continues. A job's start makes only some attempts."""

    attempts: Annotated[StrictInt, annotated_types.Ge(0)] = Field(
        60,
        description="Number of consecutive attempts, with increasing delays, before the job stops; 0: none. With the "
        "defaults a server may be away for about 25 minutes. The metrics count the log's.",
    )
    max_delay_seconds: Seconds = Field(30.0, description="Longest delay between two attempts.")


AT_START = Reconnect(attempts=4, max_delay_seconds=8.0)
"""For the first connections of a run: a wrong address must be told soon."""


class Reconnecting:
    """Counts the failures in a row of one connection, waits between attempts, and tells when it broke and when it is back.

    `what`: the connection, for people, without secrets."""

    def __init__(self, policy: Reconnect, what: str) -> None:
        self._policy = policy
        self._what = what
        self._since = 0.0
        self.failures = 0

    def failed(self, cause: str) -> bool:
        """Waits before the next attempt. Returns False at once if the policy allows none."""
        self.failures += 1
        if self.failures > self._policy.attempts:
            return False
        if self.failures == 1:
            self._since = time.monotonic()
            _log.warning(
                "%s: no connection (%s); it is tried again up to %d times",
                redact(self._what),
                redact(cause),
                self._policy.attempts,
            )
        longest = min(FIRST_DELAY_SECONDS * 2 ** min(self.failures - 1, 20), self._policy.max_delay_seconds)
        time.sleep(longest * random.uniform(0.5, 1.0))
        return True

    def succeeded(self) -> None:
        if self.failures:
            seconds = time.monotonic() - self._since
            _log.warning("%s: connected again after %.1f s and %d attempts", redact(self._what), seconds, self.failures)
        self.failures = 0
