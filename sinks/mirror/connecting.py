"""Opens a connection to a mirror's target, with retries."""

import random
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from tidemark.state.errors import SinkError

CONNECT_ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.3


class Closeable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closeable)
S = TypeVar("S")
E = TypeVar("E", bound=Exception)


def open_session(
    connect: Callable[[], C],
    start: Callable[[C], S],
    driver_error: type[E],
    retryable: Callable[[E], bool],
    to_sink_error: Callable[[E], SinkError],
) -> S:
    """Connects, with up to CONNECT_ATTEMPTS attempts for `retryable` errors, and returns `start`'s session.

    If `start` fails, the connection is closed and the error is raised without another attempt.
    """
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        try:
            connection = connect()
        except driver_error as error:
            if attempt == CONNECT_ATTEMPTS or not retryable(error):
                raise to_sink_error(error) from error
        else:
            return _started(connection, start)
        time.sleep(FIRST_DELAY_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable")


def _started(connection: C, start: Callable[[C], S]) -> S:
    try:
        return start(connection)
    except BaseException:
        connection.close()
        raise
