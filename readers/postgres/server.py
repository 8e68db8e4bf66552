"""The server's facts: version, identity, and the settings that matter to a log reader."""

import re
from dataclasses import dataclass

from tidemark.readers.postgres.connect import Connection, sql_errors, version_of
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.remedies import START_OVER

OLDEST_MAJOR = 14
JOBS_SERVER = f"Connect to the server that the job has read. If it is gone, {START_OVER}."
LOGICAL_BY_SLOTS_MAJOR = 19
"""The first version whose log has rows with wal_level = replica, too, while a logical slot exists."""

_SERVER = """
SELECT current_setting('server_version'), current_database(),
       (SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()),
       pg_is_in_recovery(), current_setting('wal_level'),
       coalesce(current_setting('effective_wal_level', true), current_setting('wal_level')),
       current_setting('max_replication_slots')::int,
       (SELECT count(*)::int FROM pg_replication_slots),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0)"""
_IDENTITY = """
SELECT (SELECT system_identifier FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
       pg_is_in_recovery()"""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The server that positions belong to. A new timeline, after a failover or a point-in-time restore, is another log: the
    same LSN may be another position there."""

    system: str
    timeline: int

    def __str__(self) -> str:
        return f"{self.system}/{self.timeline}"

    @classmethod
    def parse(cls, text: str) -> "ServerIdentity":
        """Parses the output of `str`. Raises ValueError."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None:
            raise ValueError(f"not the identity of a PostgreSQL server: {text!r}")
        return cls(match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Facts about the server, read by `read_server`."""

    version: tuple[int, int]
    version_text: str
    identity: ServerIdentity
    database: str
    encoding: str
    in_recovery: bool
    wal_level: str
    effective_wal_level: str
    """PostgreSQL 19 sets `logical` by itself while a logical slot exists. Older servers: the same as `wal_level`."""
    max_replication_slots: int
    replication_slots: int
    """The number of slots that exist, in all databases."""
    max_slot_wal_keep_size_mb: int
    """-1: no limit."""
    idle_replication_slot_timeout_seconds: int
    """0: no limit. Servers before 18 have none."""

    @property
    def name(self) -> str:
        """`PostgreSQL 18.6`, for messages."""
        return f"PostgreSQL {'.'.join(map(str, self.version))}"

    @property
    def has_logical_log(self) -> bool:
        """True if the log has rows as soon as a logical slot exists. A standby gets the log of its primary."""
        by_slots = self.version[0] >= LOGICAL_BY_SLOTS_MAJOR and not self.in_recovery and self.wal_level == "replica"
        return by_slots or self.effective_wal_level == "logical"


def read_server(connection: Connection) -> ServerInfo:
    """Raises SourceNotUsableError for a version that is too old."""
    version = version_of(connection)
    if version[0] < OLDEST_MAJOR:
        raise SourceNotUsableError(
            f"PostgreSQL {version[0]} is too old for Tidemark.", f"Use PostgreSQL {OLDEST_MAJOR} or newer."
        )
    with connection.cursor() as cursor:
        cursor.execute(_SERVER)
        row = cursor.fetchone()
    assert row is not None
    (
        text,
        database,
        encoding,
        in_recovery,
        wal_level,
        effective_wal_level,
        slots_at_most,
        slots,
        keep_mb,
        idle_seconds,
    ) = row
    return ServerInfo(
        version=version,
        version_text=text,
        identity=read_identity(connection),
        database=database,
        encoding=encoding,
        in_recovery=in_recovery,
        wal_level=wal_level,
        effective_wal_level=effective_wal_level,
        max_replication_slots=slots_at_most,
        replication_slots=slots,
        max_slot_wal_keep_size_mb=keep_mb,
        idle_replication_slot_timeout_seconds=idle_seconds,
    )


def read_identity(connection: Connection) -> ServerIdentity:
    return _identity(connection)[0]


def _identity(connection: Connection) -> tuple[ServerIdentity, bool]:
    """Returns the server's identity, and whether it is a standby."""
    with connection.cursor() as cursor:
        cursor.execute(_IDENTITY)
        ((system, timeline, in_recovery),) = cursor.fetchall()
    return ServerIdentity(str(system), int(timeline)), in_recovery


def require_identity(connection: Connection, expected: ServerIdentity) -> None:
    """Raises LogPositionLostError if this is another server: its rows and the job's positions must not be mixed. Also raises
    SourceUnavailableError, SourceNotUsableError: it is asked on new connections, before the first query is repeated.

    A standby follows its primary to a new timeline only if all that it has replayed is from before. It does not say at once on
    which timeline it is, so that is not compared here until it is promoted, but by the planner (timelines.py)."""
    with sql_errors(connection):
        require_same(connection, expected)


def require_same(connection: Connection, expected: ServerIdentity) -> None:
    """The same, with the errors of psycopg2."""
    found, in_recovery = _identity(connection)
    if (in_recovery and found.system == expected.system) or found == expected:
        return
    raise another_identity(found, expected)


def another_identity(found: ServerIdentity, expected: ServerIdentity) -> LogPositionLostError:
    """Returns the error for a server that is not the one of the job's positions."""
    what = (
        f"The server is on timeline {found.timeline}, the job's positions are of timeline {expected.timeline}: it was "
        "restored, or it or its primary was a standby and was promoted"
        if found.system == expected.system
        else f"This is another server: its system identifier is {found.system}, the job's is {expected.system}"
    )
    return LogPositionLostError(
        f"{what}. The job's positions do not belong to its log.",
        JOBS_SERVER,
    )
