"""A connection that streams the binary log from a position: COM_BINLOG_DUMP, its settings, its errors.

The dump does not block at the log's end. A range ends before the log's end, so reaching the log's end is an error.
 https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_binlog_dump.html
"""

import contextlib
import socket
import ssl
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol, TypeVar

import pymysql

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.redaction import redact
from tidemark.conf.source import Tls
from tidemark.readers.mysql.binlog.events import FILE_START, header
from tidemark.readers.mysql.connect import Connection, Flavour, error_text, is_transient
from tidemark.readers.mysql.schema import table_effects
from tidemark.readers.mysql.server import ServerIdentity, ServerInfo, binary_logs, connect_to
from tidemark.readers.mysql.session import SqlSession
from tidemark.state.errors import (
    LogPositionLostError,
    SourceNotUsableError,
    SourceUnavailableError,
    TidemarkError,
)
from tidemark.state.remedies import START_OVER, START_OVER_NOW
from tidemark.state.table import TableId

Answer = TypeVar("Answer")

SILENCE_SECONDS = 60.0
"""After this time without a byte the connection counts as lost. A dump that does not block has no reason to pause."""
HEARTBEAT_SECONDS = 15
_HEARTBEAT = f"{HEARTBEAT_SECONDS * 1_000_000_000}"

CHECK_LOG_CONNECTION = (
    "Check the network and the source's error log; widen source.server_ids if other readers use the same ids."
)

_ATTEMPTS = 5
_COM_BINLOG_DUMP = 0x12
_NON_BLOCK = 1
_SEND_ANNOTATIONS = 2
"""Without this flag MariaDB leaves annotations out, and event positions would have gaps."""
MAX_START = 0xFFFFFFFF
"""The highest start position: the command has four bytes for it."""


class LogSource(Protocol):
    """A log that can be read. `server_ids` are tried in turn: a server ends a dump when another one uses the same id."""

    @property
    def flavour(self) -> Flavour: ...

    @property
    def lower_case_names(self) -> bool:
        """True if the server's table names are case-insensitive."""

    @property
    def server_ids(self) -> tuple[int, ...]: ...

    @property
    def logs_cascades(self) -> bool:
        """True if the log has the row changes of foreign keys with CASCADE or SET NULL."""

    @property
    def lacks_generated(self) -> bool:
        """True if the log lacks generated columns, so that the catalog's schemas do not capture them."""

    def is_isolated(self, table: TableId) -> bool:
        """True if a write to the table certainly changes no other table. Raises TidemarkError."""

    def primary_key(self, table: TableId) -> tuple[str, ...]:
        """The columns of the table's primary key now; () for none. Raises TidemarkError."""

    def default_charset(self, table: TableId) -> str:
        """The character set of the table's new columns now; "" if there is no such table. Raises TidemarkError."""

    def file_names(self) -> list[str]:
        """The names of the log's files, oldest first. Raises TidemarkError."""

    def open(self) -> Connection:
        """Connects to the server that the positions belong to. Raises LogPositionLostError for a different server."""


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The log of a real server."""

    endpoint: Endpoint
    tls: Tls | None
    flavour: Flavour
    identity: ServerIdentity
    lower_case_names: bool
    server_ids: tuple[int, ...]
    logs_cascades: bool
    lacks_generated: bool
    reconnect: Reconnect = AT_START
    accepted_writes: bool = False

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        tls: Tls | None,
        server: ServerInfo,
        server_ids: tuple[int, ...],
        reconnect: Reconnect = AT_START,
    ) -> "ServerLog":
        names = server.lower_case_table_names != 0
        return cls(
            endpoint,
            tls,
            server.flavour,
            server.identity,
            names,
            server_ids,
            server.logs_cascades,
            server.lacks_generated,
            reconnect,
            not server.read_only,
        )

    def is_isolated(self, table: TableId) -> bool:
        return self._ask(lambda connection: table_effects.is_isolated(connection, table))

    def primary_key(self, table: TableId) -> tuple[str, ...]:
        return self._ask(lambda connection: table_effects.primary_key(connection, table))

    def default_charset(self, table: TableId) -> str:
        return self._ask(lambda connection: table_effects.default_charset(connection, table))

    def file_names(self) -> list[str]:
        return self._ask(lambda connection: [name for name, _ in binary_logs(connection)])

    def _ask(self, question: Callable[[Connection], Answer]) -> Answer:
        session = SqlSession(self.open)
        try:
            return session.ask(question)
        finally:
            session.close()

    def open(self) -> Connection:
        return connect_to(
            self.endpoint,
            self.tls,
            self.identity,
            accepted_writes=self.accepted_writes,
            purpose="log",
            read_timeout_seconds=SILENCE_SECONDS,
            reconnect=self.reconnect,
        )


def file_begun(source: LogSource, file: str) -> int:
    """The creation time of the file, from its FORMAT_DESCRIPTION, in seconds since 1970.

    Raises LogPositionLostError if the source no longer has the file, SourceUnavailableError.
    """
    return header(_events_at(source, file, FILE_START, 2)[1])[0]


def _events_at(source: LogSource, file: str, pos: int, count: int) -> list[bytes]:
    """The first events that the server sends from there on: a ROTATE, the FORMAT_DESCRIPTION, then those of the file."""
    for attempt, server_id in enumerate(source.server_ids, 1):
        connection = source.open()
        dump = None
        try:
            dump = open_dump(connection, source.flavour, file, pos, server_id=server_id)
            return dump.receive_events(count)
        except ConnectionLostError as error:
            if attempt in {_ATTEMPTS, len(source.server_ids)}:
                if isinstance(error, LogUnreadableError):
                    raise unreadable(error) from error
                raise SourceUnavailableError(
                    f"The log connection broke {attempt} times at the start of {file}: {error}",
                    CHECK_LOG_CONNECTION,
                ) from error
        finally:
            if dump is not None:
                dump.close()
    raise AssertionError("no server ids")


def different_log(file: str, known: int, found: int) -> LogPositionLostError:
    """The error for a file that has the name in the job's position but a different creation time."""
    return LogPositionLostError(
        f"The source's log is a different one: its {file} was created at {_time(found)}, but the {file} that the job has "
        f"read was created at {_time(known)}.",
        f"If the source's log was reset, or the server was restored or replaced: {START_OVER}.",
    )


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


class ConnectionLostError(Exception):
    """The stream broke. A new connection may help."""


class LogUnreadableError(ConnectionLostError):
    """The server can't read its own log, or what it sends has wrong checksums. If a new connection does not help, the server's
    files are damaged."""


class ServerIdTakenError(ConnectionLostError):
    """Another reader uses the same server id. Connect with a different one."""


class Dump:
    """An open stream. It ends only by closing the socket: the server notices at its next write."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock  # type: ignore[attr-defined]  # PyMySQL offers no other way

    def receive(self, into: memoryview) -> int:
        """Receives at least one byte into `into` and returns the count. Raises ConnectionLostError."""
        try:
            size = self._socket.recv_into(into)
        except (OSError, ssl.SSLError) as exc:
            raise ConnectionLostError(redact(str(exc))) from exc
        if size == 0:
            raise ConnectionLostError("the server closed the connection")
        return size

    def receive_events(self, count: int) -> list[bytes]:
        """The first `count` events with headers and checksums. Raises ConnectionLostError, TidemarkError."""
        events: list[bytes] = []
        data = bytearray()
        chunk = memoryview(bytearray(1 << 16))
        while len(events) < count:
            size = int.from_bytes(data[:3], "little")
            if len(data) < 4 or len(data) < 4 + size:
                data += chunk[: self.receive(chunk)]
                continue
            if data[4] == 0xFF:
                raise error_of(bytes(data[5 : 4 + size]), "the start of a file")
            events.append(bytes(data[5 : 4 + size]))
            del data[: 4 + size]
        return events

    def close(self) -> None:
        # Not Connection.close(): COM_QUIT would go to a server that is busy sending.
        with contextlib.suppress(OSError):
            self._socket.close()
        self._connection._force_close()  # type: ignore[attr-defined]  # as above


def open_dump(connection: Connection, flavour: Flavour, file: str, pos: int, *, server_id: int) -> Dump:
    """Starts the stream at file:pos. Takes over the connection. Raises ConnectionLostError, SourceNotUsableError."""
    if pos > MAX_START:
        raise ValueError(f"a dump can't start at {pos}")
    try:
        with connection.cursor() as cursor:
            for statement in _SETTINGS[flavour]:
                cursor.execute(statement)
            if flavour == "mysql":
                # The server ends a dump when another one has the same uuid. So each stream gets its own.
                cursor.execute("SET @replica_uuid = %s, @slave_uuid = @replica_uuid", (str(uuid.uuid4()),))
        dump = Dump(connection)
        name = file.encode()
        head = struct.pack("<I", len(name) + 11)[:3] + bytes([0, _COM_BINLOG_DUMP])
        dump._socket.settimeout(SILENCE_SECONDS)
        dump._socket.sendall(head + struct.pack("<IHI", pos, _FLAGS[flavour], server_id) + name)
    except pymysql.MySQLError as exc:
        connection.close()
        if is_transient(exc):
            raise ConnectionLostError(error_text(exc)) from exc
        raise SourceNotUsableError(
            f"The source refuses the settings of a log connection: {error_text(exc)}",
            "Connect to the server itself, not through a proxy.",
        ) from exc
    except OSError as exc:
        connection.close()
        raise ConnectionLostError(redact(str(exc))) from exc
    return dump


_FLAGS: Mapping[Flavour, int] = {"mysql": _NON_BLOCK, "mariadb": _NON_BLOCK | _SEND_ANNOTATIONS}
_SETTINGS: Mapping[Flavour, tuple[str, ...]] = {
    "mysql": (
        "SET @source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'",
        f"SET @source_heartbeat_period = {_HEARTBEAT}, @master_heartbeat_period = {_HEARTBEAT}",
    ),
    "mariadb": (
        "SET @master_binlog_checksum = 'CRC32'",
        f"SET @master_heartbeat_period = {_HEARTBEAT}",
        "SET @mariadb_slave_capability = 4",  # GTID events as they are, instead of BEGIN
    ),
}
"""Old and new names: a server uses those it knows. CRC32 tells the server that we understand checksums; each file names
its own algorithm. We do not register for semi-synchronous acknowledgement."""


def unreadable(error: LogUnreadableError) -> LogPositionLostError:
    """The error for a log that stays unreadable at one place."""
    return LogPositionLostError(
        str(error),
        "Check the source's disk and network. If there is a whole copy of the file, put it in its place, and run the job "
        f"again: nothing is lost. Otherwise {START_OVER}.",
    )


def error_of(payload: bytes, where: str) -> Exception:
    """The error for an error packet (without its 0xFF): ConnectionLostError or a TidemarkError. `where`: for the message."""
    code = int.from_bytes(payload[:2], "little")
    text = payload[2:].decode("utf-8", "replace")
    if text.startswith("#"):
        text = text[6:]
    text = redact(text)
    if code == _FATAL_READING:
        return _reading_error(text, where)
    if code in _SERVER_ID_TAKEN:
        return ServerIdTakenError(text)
    if code in _PASSING:
        return ConnectionLostError(f"({code}) {text}")
    if code in _DENIED:
        return SourceNotUsableError(
            f"The account may not read the log: ({code}) {text}.", "GRANT REPLICATION SLAVE ON *.* TO <account>."
        )
    return SourceNotUsableError(
        f"The source can't send its log from {where}: ({code}) {text}.",
        "Correct what the server complains about, then start the job again.",
    )


def _reading_error(text: str, where: str) -> TidemarkError | ConnectionLostError:
    """Error 1236. Only its English text says what went wrong (log_event and rpl_binlog_sender of both servers)."""
    lower = text.lower()
    if "same server_uuid" in lower or "same server_id" in lower or "same server-id" in lower:
        return ServerIdTakenError(text)
    if any(sign in lower for sign in _LOST):
        return LogPositionLostError(
            f"The source no longer has its log at {where}: {text}.",
            f"{START_OVER_NOW} Let the server keep its log longer: binlog_expire_logs_seconds.",
        )
    return LogUnreadableError(f"The source can't read its own log at {where}: {text}.")


_FATAL_READING = 1236
_LOST = ("could not find", "purged", "position > file size", "impossible position", "find first log", "not found")
_SERVER_ID_TAKEN = frozenset({4052})
_PASSING = frozenset(
    {1053, 1077, 1078, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 2006, 2013, 3168, 3169, 4031}
)
"""Server shutdown, network errors, killed connections."""
_DENIED = frozenset({1044, 1045, 1142, 1227})
