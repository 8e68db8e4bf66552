"""Timelines: up to where the log of a server that was promoted is that of the server that a job has read before.

A standby that is promoted begins a new timeline. Its history file says at which position each earlier one ended: up to there
both servers have the same log, byte for byte. The file is read over a replication connection, which the job's role may open.

A standby that follows another primary goes on with that one's timeline. SQL does not say at once on which timeline it is;
a replication connection does (docs/adr/0083).
"""

import contextlib
from collections.abc import Iterator

import psycopg2
import psycopg2.extras

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.libpq import connection_settings
from tidemark.conf.reconnect import Reconnect, Reconnecting
from tidemark.conf.source import Tls
from tidemark.readers.postgres.connect import APPLICATION_NAME, Connection, error_text, is_transient
from tidemark.readers.postgres.server import JOBS_SERVER, ServerIdentity, another_identity
from tidemark.readers.postgres.session import SqlSession
from tidemark.state.errors import LogPositionLostError, SourceUnavailableError
from tidemark.state.position import WalPosition
from tidemark.state.remedies import START_OVER

_PAGE_HEADER_BYTES, _SEGMENT_HEADER_BYTES = 24, 40
_SIZES = "SELECT setting::bigint FROM pg_settings WHERE name IN ('wal_block_size', 'wal_segment_size') ORDER BY name"


def shared_until(endpoint: Endpoint, tls: Tls | None, before: ServerIdentity) -> WalPosition:
    """Returns the position up to which the server's log is that of `before`. Raises LogPositionLostError, with the reason, if
    it has no part of that log, or if nobody may ask; SourceUnavailableError if the connection is lost."""
    with _replication_connection(endpoint, tls) as connection, connection.cursor() as cursor:
        now = _identify(connection)
        if now.system != before.system:
            raise _of_another_system(now, before)
        if now.timeline <= before.timeline:
            raise _is_older(now, before)
        cursor.execute(f"TIMELINE_HISTORY {now.timeline}")
        ((_, history),) = cursor.fetchall()
        cursor.execute(_SIZES)
        (page_bytes,), (segment_bytes,) = cursor.fetchall()
    text = history if isinstance(history, str) else bytes(history).decode("utf-8", "replace")
    ends = parse_history(text)
    if before.timeline not in ends:
        raise LogPositionLostError(
            f"The server is on timeline {now.timeline}, which does not come from timeline {before.timeline}, the job's: a "
            "standby was promoted that had not followed the job's server, or the server was restored.",
            JOBS_SERVER,
        )
    return _after_header(ends[before.timeline], int(page_bytes), int(segment_bytes))


def identity_now(endpoint: Endpoint, tls: Tls | None) -> ServerIdentity:
    """Returns the server's identity. A standby's timeline is that of the log that it has replayed last. Raises what
    `shared_until` does."""
    with _replication_connection(endpoint, tls) as connection:
        return _identify(connection)


def timeline_session(endpoint: Endpoint, tls: Tls | None, reconnect: Reconnect) -> SqlSession:
    """Returns a session of replication connections, which answers `require_timeline`."""
    retrying = Reconnecting(reconnect, f"the source {endpoint.host}:{endpoint.port}")

    def connect() -> Connection:
        while True:
            try:
                with _replication_errors():
                    connection = _open(endpoint, tls)
            except SourceUnavailableError as error:
                if not retrying.failed(error.message):
                    raise
            else:
                retrying.succeeded()
                return connection

    return SqlSession(connect)


def require_timeline(connection: Connection, expected: ServerIdentity) -> None:
    """Raises LogPositionLostError if the server's log goes on with another timeline now. `connection`: for replication."""
    found = _identify(connection)
    if found != expected:
        raise another_identity(found, expected)


@contextlib.contextmanager
def _replication_connection(endpoint: Endpoint, tls: Tls | None) -> Iterator[Connection]:
    with _replication_errors(), contextlib.closing(_open(endpoint, tls)) as connection:
        yield connection


def _open(endpoint: Endpoint, tls: Tls | None) -> Connection:
    connection: Connection = psycopg2.connect(
        **connection_settings(endpoint, tls, APPLICATION_NAME),
        connection_factory=psycopg2.extras.LogicalReplicationConnection,
    )
    return connection


@contextlib.contextmanager
def _replication_errors() -> Iterator[None]:
    try:
        yield
    except psycopg2.Error as error:
        if is_transient(error):
            raise SourceUnavailableError(
                f"No replication connection to the source: {error_text(error)}",
                "Check that the server runs, and raise max_wal_senders if all of them are taken. Then run the job again: it "
                "continues.",
            ) from error
        raise LogPositionLostError(
            f"The server does not tell its timeline history: {error_text(error)}.",
            "Let replication connections to the database pass, also where a proxy is in between, and run the job again. "
            f"Otherwise {START_OVER}.",
        ) from error


def _identify(connection: Connection) -> ServerIdentity:
    with connection.cursor() as cursor:
        cursor.execute("IDENTIFY_SYSTEM")
        ((system, timeline, *_),) = cursor.fetchall()
    return ServerIdentity(str(system), int(timeline))


def parse_history(text: str) -> dict[int, int]:
    """Returns at which LSN each earlier timeline ended. `text`: of a timeline history file."""
    ends = {}
    for line in text.splitlines():
        words = line.split()
        if words and not words[0].startswith("#"):
            high, _, low = words[1].partition("/")
            ends[int(words[0])] = int(high, 16) << 32 | int(low, 16)
    return ends


def _after_header(lsn: int, page_bytes: int, segment_bytes: int) -> WalPosition:
    """Returns the last position that has the same log before it: no record begins in the header of a page."""
    if lsn % page_bytes:
        return WalPosition(lsn)
    return WalPosition(lsn + (_PAGE_HEADER_BYTES if lsn % segment_bytes else _SEGMENT_HEADER_BYTES))


def _of_another_system(now: ServerIdentity, before: ServerIdentity) -> LogPositionLostError:
    return LogPositionLostError(
        f"This is another server: its system identifier is {now.system}, the job's is {before.system}.",
        JOBS_SERVER,
    )


def _is_older(now: ServerIdentity, before: ServerIdentity) -> LogPositionLostError:
    return LogPositionLostError(
        f"The server is on timeline {now.timeline}, and the job's is {before.timeline}: a former primary answers.",
        "Connect to the server that was promoted.",
    )
