"""What the server is: version, identity, and the settings that matter to a reader of its log."""

import re
from dataclasses import dataclass

from readers.postgres.connect import Connection, version_of
from state.errors import LogPositionLostError, SourceNotUsableError

OLDEST_MAJOR = 14

_SERVER = """
SELECT current_setting('server_version'), current_database(),
       (SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()),
       pg_is_in_recovery(), current_setting('wal_level'), current_setting('max_replication_slots')::int,
       (SELECT count(*)::int FROM pg_replication_slots),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0)"""
_IDENTITY = """
SELECT (SELECT system_identifier FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END"""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Which server's log positions belong to. Another timeline, after a failover or a restore to a point in time, is
    another log: the same LSN may be another place there."""

    system: str
    timeline: int

    def __str__(self) -> str:
        return f"{self.system}/{self.timeline}"

    @classmethod
    def parse(cls, text: str) -> "ServerIdentity":
        """Of `str`. Raises ValueError."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None:
            raise ValueError(f"not the identity of a PostgreSQL server: {text!r}")
        return cls(match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """As read by `read_server`."""

    version: tuple[int, int]
    version_text: str
    identity: ServerIdentity
    database: str
    encoding: str
    in_recovery: bool
    wal_level: str
    max_replication_slots: int
    replication_slots: int
    """Those that exist, of any database."""
    max_slot_wal_keep_size_mb: int
    """-1: a slot keeps as much log as it needs."""
    idle_replication_slot_timeout_seconds: int
    """0: no slot is given up for being idle, as before version 18."""

    @property
    def name(self) -> str:
        """`PostgreSQL 18.6`, for messages."""
        return f"PostgreSQL {'.'.join(map(str, self.version))}"


def read_server(connection: Connection) -> ServerInfo:
    """Raises SourceNotUsableError for a version that is too old."""
    version = version_of(connection)
    if version[0] < OLDEST_MAJOR:
        raise SourceNotUsableError(
            f"PostgreSQL {version[0]} is older than what Tidemark reads.", f"Use PostgreSQL {OLDEST_MAJOR} or newer."
        )
    with connection.cursor() as cursor:
        cursor.execute(_SERVER)
        row = cursor.fetchone()
    assert row is not None
    text, database, encoding, in_recovery, wal_level, slots_at_most, slots, keep_mb, idle_seconds = row
    return ServerInfo(
        version=version,
        version_text=text,
        identity=read_identity(connection),
        database=database,
        encoding=encoding,
        in_recovery=in_recovery,
        wal_level=wal_level,
        max_replication_slots=slots_at_most,
        replication_slots=slots,
        max_slot_wal_keep_size_mb=keep_mb,
        idle_replication_slot_timeout_seconds=idle_seconds,
    )


def read_identity(connection: Connection) -> ServerIdentity:
    with connection.cursor() as cursor:
        cursor.execute(_IDENTITY)
        row = cursor.fetchone()
    assert row is not None
    return ServerIdentity(str(row[0]), int(row[1]))


def require_identity(connection: Connection, expected: ServerIdentity) -> None:
    """Rows of one server and positions of another must never meet. Raises LogPositionLostError."""
    found = read_identity(connection)
    if found == expected:
        return
    what = (
        f"The server is on timeline {found.timeline}, the job's positions are of timeline {expected.timeline}: it was "
        "restored, or a standby was promoted"
        if found.system == expected.system
        else f"This is another server: its system identifier is {found.system}, that of the job's is {expected.system}"
    )
    raise LogPositionLostError(
        f"{what}. The job's positions do not belong to its log.",
        "Connect to the server that the job began with. If it is gone, start the job anew with another checkpoint "
        "directory and an empty target.",
    )
