"""A connection that streams the binary log from a place on: COM_BINLOG_DUMP, its settings, and what can go wrong.

The dump is asked for without blocking: a range's end lies before the log's end, so reaching the log's end is an error,
not a reason to wait. https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_binlog_dump.html
"""

import contextlib
import socket
import ssl
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

import pymysql

from conf.endpoint import Endpoint
from conf.redaction import redact
from conf.source import Tls
from readers.mysql.connect import Connection, Flavour, connect, error_code, error_text, is_transient
from readers.mysql.log_events import FILE_START, header
from readers.mysql.server import ServerIdentity, ServerInfo, require_identity
from state.errors import (
    DamagedLogError,
    LogPositionLostError,
    SourceNotUsableError,
    SourceUnavailableError,
    TidemarkError,
)

SILENCE_SECONDS = 60.0
"""Without a byte for so long the connection counts as lost; a dump that does not block has no reason to pause."""
HEARTBEAT_SECONDS = 15
_HEARTBEAT = f"{HEARTBEAT_SECONDS * 1_000_000_000}"

_ATTEMPTS = 5
_COM_BINLOG_DUMP = 0x12
_NON_BLOCK = 1
_SEND_ANNOTATIONS = 2
"""MariaDB leaves them out otherwise, and an event could not be told from its place to follow the one before."""
LARGEST_START = 0xFFFFFFFF
"""The command has four bytes for the position."""


class LogSource(Protocol):
    """Where a log is read. `server_ids` are tried in turn: a server ends a dump when another one comes with its id."""

    @property
    def flavour(self) -> Flavour: ...

    @property
    def lower_case_names(self) -> bool:
        """Does the server treat table names that differ in case as one?"""

    @property
    def server_ids(self) -> tuple[int, ...]: ...

    def open(self) -> Connection:
        """A connection with the server that the positions are of. Raises LogPositionLostError for another server."""


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The log of a real server."""

    endpoint: Endpoint
    tls: Tls | None
    flavour: Flavour
    identity: ServerIdentity
    lower_case_names: bool
    server_ids: tuple[int, ...]

    @classmethod
    def of(cls, endpoint: Endpoint, tls: Tls | None, server: ServerInfo, server_ids: tuple[int, ...]) -> "ServerLog":
        names = server.lower_case_table_names != 0
        return cls(endpoint, tls, server.flavour, server.identity, names, server_ids)

    def open(self) -> Connection:
        connection = connect(self.endpoint, self.tls, purpose="log", read_timeout_seconds=SILENCE_SECONDS)
        try:
            require_identity(connection, self.identity)
        except BaseException:
            connection.close()
            raise
        return connection


def file_begun(source: LogSource, file: str) -> int:
    """When the file was begun, by its FORMAT_DESCRIPTION, seconds since 1970.

    Raises LogPositionLostError where the source no longer has it, SourceUnavailableError.
    """
    for attempt, server_id in enumerate(source.server_ids, 1):
        connection = source.open()
        dump = None
        try:
            dump = open_dump(connection, source.flavour, file, FILE_START, server_id=server_id)
            return header(dump.receive_events(2)[1])[0]
        except ConnectionLostError as error:
            if attempt in {_ATTEMPTS, len(source.server_ids)}:
                raise SourceUnavailableError(
                    f"The log connection broke {attempt} times at the start of {file}: {error}",
                    "Check the network and the source's error log; widen source.server_ids if other readers use the same.",
                ) from error
        finally:
            if dump is not None:
                dump.close()
    raise AssertionError("no server ids")


def another_log(file: str, known: int, found: int) -> LogPositionLostError:
    """The file has the name that the job knows, but was begun at another time."""
    return LogPositionLostError(
        f"The source's {file} was begun at {_moment(found)}, the one that the job has read at {_moment(known)}: it is "
        "another log.",
        "If the source's log was reset, or the server restored or replaced, start the job anew with another checkpoint "
        "directory and an empty target.",
    )


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


class ConnectionLostError(Exception):
    """The stream broke; connecting again may help."""


class ServerIdTakenError(ConnectionLostError):
    """Somebody else reads the log with our server id: take another one."""


class Dump:
    """An open stream. Closing it is all that ends it: the server notices when it writes next."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock  # type: ignore[attr-defined]  # PyMySQL offers no other way

    def receive(self, into: memoryview) -> int:
        """At least one byte into `into`; returns how many. Raises ConnectionLostError."""
        try:
            size = self._socket.recv_into(into)
        except (OSError, ssl.SSLError) as exc:
            raise ConnectionLostError(redact(str(exc))) from exc
        if size == 0:
            raise ConnectionLostError("the server closed the connection")
        return size

    def receive_events(self, count: int) -> list[bytes]:
        """The first `count` events, headers and checksums included. Raises ConnectionLostError, TidemarkError."""
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
    """Starts the stream at file:pos. The connection is the dump's from then on. Raises ConnectionLostError."""
    if pos > LARGEST_START:
        raise ValueError(f"a dump can't start at {pos}")
    try:
        with connection.cursor() as cursor:
            for statement in _SETTINGS[flavour]:
                cursor.execute(statement)
            if flavour == "mysql":
                # A dump ends when another one comes with the same uuid; ours are made for one stream each.
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
"""Old names and new ones: a server takes those it knows. CRC32 says that we can take checksums; the log's own
algorithm stands in each file. Semi-synchronous acknowledgement is not asked for."""


def error_of(payload: bytes, place: str) -> Exception:
    """What an error packet (without its 0xFF) that came at `place` means: ConnectionLostError, or a TidemarkError."""
    code = int.from_bytes(payload[:2], "little")
    text = payload[2:].decode("utf-8", "replace")
    if text.startswith("#"):
        text = text[6:]
    text = redact(text)
    if code == _FATAL_READING:
        return _reading_error(text, place)
    if code in _SERVER_ID_TAKEN:
        return ServerIdTakenError(text)
    if code in _PASSING:
        return ConnectionLostError(f"({code}) {text}")
    if code in _DENIED:
        return SourceNotUsableError(
            f"The account may not read the log: ({code}) {text}.", "GRANT REPLICATION SLAVE ON *.* TO <account>."
        )
    return SourceNotUsableError(
        f"The source can't send its log from {place}: ({code}) {text}.", "Correct what it says."
    )


def _reading_error(text: str, place: str) -> TidemarkError | ConnectionLostError:
    """Error 1236, whose kinds differ by their English text only (log_event and rpl_binlog_sender of both servers)."""
    lower = text.lower()
    if "same server_uuid" in lower or "same server_id" in lower or "same server-id" in lower:
        return ServerIdTakenError(text)
    if "max_allowed_packet" in lower:
        return DamagedLogError(
            f"The event at {place} is larger than the source may send: {text}.",
            "Raise replica_max_allowed_packet (MariaDB: slave_max_allowed_packet) and max_allowed_packet on the source.",
        )
    if any(sign in lower for sign in _LOST):
        return LogPositionLostError(
            f"The source no longer has its log at {place}: {text}.",
            "Start the job anew with another checkpoint directory and an empty target; then keep logs longer: "
            "binlog_expire_logs_seconds.",
        )
    return DamagedLogError(
        f"The source can't read its own log at {place}: {text}.",
        "Check the source's disk; then start the job anew with another checkpoint directory.",
    )


_FATAL_READING = 1236
_LOST = ("could not find", "purged", "position > file size", "impossible position", "find first log", "not found")
_SERVER_ID_TAKEN = frozenset({4052})
_PASSING = frozenset({1053, 1077, 1078, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 2006, 2013, 3168, 4031})
"""Shutdown, network, killed."""
_DENIED = frozenset({1044, 1045, 1142, 1227})


def load_charsets(connection: Connection, flavour: Flavour) -> dict[int, str]:
    """The name of the character set of every collation id."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL")
        found = {int(number): str(name) for number, name in cursor.fetchall() if name is not None}
        if flavour == "mariadb":  # since 10.10 collations that fit several character sets have their ids elsewhere
            try:
                cursor.execute(
                    "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
                )
            except pymysql.MySQLError as exc:
                if error_code(exc) != _UNKNOWN_COLUMN:
                    raise
            else:
                found |= {int(number): str(name) for number, name in cursor.fetchall() if number is not None}
    return found


_UNKNOWN_COLUMN = 1054
