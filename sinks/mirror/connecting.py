"""Opens a connection to a mirror's target, with retries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import Reconnect, Reconnecting
from tidemark.sinks.sink import SinkBusyError
from tidemark.state.errors import SinkUnavailableError, TidemarkError


class Closeable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closeable)
S = TypeVar("S")
E = TypeVar("E", bound=Exception)


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long to wait for a target that is out of reach or accepts no writes."""

    policy: Reconnect
    endpoint: Endpoint

    def to_connect(self) -> Reconnecting:
        return self._begin("the target")

    def to_write(self) -> Reconnecting:
        """An outage of its own: a server that accepts no writes accepts connections."""
        return self._begin("a writable target at")

    def _begin(self, what: str) -> Reconnecting:
        return Reconnecting(self.policy, f"{what} {self.endpoint.host}:{self.endpoint.port}")


def unavailable(error: SinkUnavailableError, attempts: int) -> SinkUnavailableError:
    """Returns the error for a target that stayed away."""
    return SinkUnavailableError(
        f"{error.message} It was tried {attempts} times.",
        "Check that the target's server runs and accepts writes, and that host and port in sink.url are right and reachable "
        "from driver and executors. Then run the job again: it continues.",
    )


def open_session(
    waiting: Waiting,
    connect: Callable[[], C],
    start: Callable[[C], S],
    driver_error: type[E],
    to_sink_error: Callable[[E], TidemarkError],
) -> S:
    """Connects and returns `start`'s session. An error of `connect` that may pass is waited for, then raises
    SinkUnavailableError. If `start` fails, the connection is closed and the error is raised without another attempt.
    """
    retrying = waiting.to_connect()
    while True:
        try:
            connection = connect()
        except driver_error as error:
            refusal = to_sink_error(error)
            if not isinstance(refusal, SinkBusyError):
                raise refusal from error
            if not retrying.failed(refusal.message):
                raise unavailable(refusal, retrying.failures) from error
        else:
            return _started(connection, start, retrying)


def _started(connection: C, start: Callable[[C], S], retrying: Reconnecting) -> S:
    try:
        session = start(connection)
    except BaseException:
        connection.close()
        raise
    retrying.succeeded()
    return session
