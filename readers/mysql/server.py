"""What the server is: flavour, version, identity, the settings that matter, and how its watermarks are taken."""

from dataclasses import dataclass
from typing import Literal

import pymysql
from pymysql.constants import ER

from readers.mysql.connect import Connection, Flavour, error_code, error_text, flavour_of, server_text, version_of
from state.errors import LogPositionLostError, SourceNotUsableError

WatermarkMethod = Literal["gtid", "log_status", "consistent_snapshot"]

OLDEST: dict[Flavour, tuple[int, int, int]] = {"mysql": (8, 0, 1), "mariadb": (10, 5, 0)}
"""The first versions whose log can name its columns (binlog_row_metadata)."""

NAMES: dict[Flavour, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}
_BINARY_LOG_STATUS_SINCE = (8, 2, 0)

ACCESS_DENIED = frozenset(
    {
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.ACCESS_DENIED_ERROR,
    }
)
"""Codes by which a server says that a grant is missing."""

_VARIABLES = (
    "binlog_expire_logs_seconds",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "expire_logs_days",
    "gtid_mode",
    "innodb_native_foreign_keys",
    "log_bin",
    "log_replica_updates",
    "log_slave_updates",
    "lower_case_table_names",
    "max_allowed_packet",
    "mysql56_temporal_format",
    "read_only",
    "server_id",
    "server_uuid",
    "gtid_slave_pos",
    "wsrep_on",
)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Which server a position belongs to; survives restarts and upgrades, and is not copied by replication.

    `uuid` is MySQL's @@server_uuid. MariaDB has none that survives a move of its data (@@server_uid is made from port
    and network card), so there it is `server_id N`: what tells the servers of one topology apart. Whether the log still is
    the one that a position came from is shown by `BinlogPosition.begun`.
    """

    flavour: Flavour
    uuid: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """As read by `read_server`. Switches that a version does not have are None, texts that it does not have are ""."""

    flavour: Flavour
    version: tuple[int, int, int]
    version_text: str
    identity: ServerIdentity
    server_id: int
    log_bin: bool
    binlog_format: str
    binlog_row_image: str
    binlog_row_metadata: str
    binlog_row_value_options: str
    binlog_expire_seconds: int
    """0: never purged by age."""
    gtid_mode: str
    """MySQL: ON, OFF, ON_PERMISSIVE, OFF_PERMISSIVE; MariaDB: ""."""
    log_replica_updates: bool
    is_replica: bool
    read_only: bool
    galera: bool
    native_foreign_keys: bool | None
    """MySQL since 9.6: False means that the rows which a foreign key changes by CASCADE or SET NULL are logged."""
    lower_case_table_names: int
    max_allowed_packet_bytes: int

    @property
    def name(self) -> str:
        """`MySQL 9.7.4`, for messages."""
        return f"{NAMES[self.flavour]} {'.'.join(map(str, self.version))}"

    @property
    def logs_cascades(self) -> bool:
        return self.native_foreign_keys is False


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The end of the log as the server states it, before it is visible to SELECTs; and what it leaves out."""

    file: str
    pos: int
    only_databases: tuple[str, ...]
    ignored_databases: tuple[str, ...]


def read_server(connection: Connection, expected: Flavour) -> ServerInfo:
    """`expected` is what the job file's URL says. Raises SourceNotUsableError for another server, or one too old."""
    flavour, version = flavour_of(connection), version_of(connection)
    if flavour != expected:
        raise SourceNotUsableError(
            f"source.url says {expected}://, but the server is {NAMES[flavour]} {server_text(connection)}.",
            f"Write {flavour}:// in source.url.",
        )
    if version < OLDEST[flavour]:
        raise SourceNotUsableError(
            f"{NAMES[flavour]} {server_text(connection)} can't name columns in its log.",
            f"Use {NAMES[flavour]} {'.'.join(map(str, OLDEST[flavour]))} or newer.",
        )
    values = _variables(connection)
    return ServerInfo(
        flavour=flavour,
        version=version,
        version_text=server_text(connection),
        identity=_identity(flavour, values),
        server_id=int(values["server_id"]),
        log_bin=_is_on(values["log_bin"]),
        binlog_format=values.get("binlog_format", "ROW").upper(),  # dropped where ROW is all there is
        binlog_row_image=values["binlog_row_image"].upper(),
        binlog_row_metadata=values.get("binlog_row_metadata", "").upper(),
        binlog_row_value_options=values.get("binlog_row_value_options", "").upper(),
        binlog_expire_seconds=_expire_seconds(values),
        gtid_mode=values.get("gtid_mode", "").upper(),
        log_replica_updates=_is_on(values.get("log_replica_updates", values.get("log_slave_updates", "OFF"))),
        is_replica=_is_replica(connection, flavour, version, values),
        read_only=values["read_only"].upper() not in {"OFF", "0"},  # MariaDB 12 has degrees of it
        galera=_is_on(values.get("wsrep_on", "OFF")),
        native_foreign_keys=(
            _is_on(values["innodb_native_foreign_keys"]) if "innodb_native_foreign_keys" in values else None
        ),
        lower_case_table_names=int(values["lower_case_table_names"]),
        max_allowed_packet_bytes=int(values["max_allowed_packet"]),
    )


def read_identity(connection: Connection) -> ServerIdentity:
    """The identity alone, by one short query."""
    return _identity(flavour_of(connection), _variables(connection, ("server_uuid", "server_id")))


def require_identity(connection: Connection, expected: ServerIdentity) -> None:
    """Rows of one server and positions of another must never meet (failover, a proxy, a restored server).

    Raises LogPositionLostError.
    """
    found = read_identity(connection)
    if found != expected:
        raise LogPositionLostError(
            f"This is server {found.uuid} ({NAMES[found.flavour]}); the job's positions are those of "
            f"{expected.uuid} ({NAMES[expected.flavour]}).",
            "Connect to that server itself, not to a proxy or load balancer in front of several. If it is gone, start "
            "the job anew with another checkpoint directory and an empty target.",
        )


def watermark_method(connection: Connection, server: ServerInfo) -> WatermarkMethod:
    """How lows and highs are taken on this server with this account. No transaction may be open.

    Raises SourceNotUsableError, which says what to set or grant, where only file and offset could be had: these run
    ahead of what a SELECT sees.
    """
    if not server.log_bin:
        raise SourceNotUsableError(
            f"The binary log of {server.name} is off, so that changes can't be read.",
            "Start the server with log_bin.",
        )
    if server.flavour == "mariadb":
        return _consistent_snapshot(connection)
    if server.gtid_mode == "ON":
        return "gtid"
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT LOCAL FROM performance_schema.log_status")
            row = cursor.fetchone()
    except pymysql.MySQLError as error:
        raise SourceNotUsableError(
            f"gtid_mode is {server.gtid_mode or 'OFF'}, and performance_schema.log_status can't be read: "
            f"{error_text(error)}. Nothing else shows which transactions a SELECT sees.",
            "Set gtid_mode=ON, or let the account read log_status: GRANT BACKUP_ADMIN ON *.* TO <account>; "
            "GRANT SELECT ON performance_schema.log_status TO <account>.",
        ) from error
    if not row or "binary_log_position" not in str(row[0]):
        raise SourceNotUsableError(
            "performance_schema.log_status shows no position of the binary log.",
            "Set gtid_mode=ON, or performance_schema=ON.",
        )
    return "log_status"


def read_log_status(connection: Connection, server: ServerInfo) -> LogStatus:
    """Needs REPLICATION CLIENT (MariaDB: BINLOG MONITOR). Raises SourceNotUsableError."""
    new_words = server.flavour == "mysql" and server.version >= _BINARY_LOG_STATUS_SINCE
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOG STATUS" if new_words else "SHOW MASTER STATUS")
            row = cursor.fetchone()
    except pymysql.MySQLError as error:
        if error_code(error) not in ACCESS_DENIED:
            raise
        raise SourceNotUsableError(
            f"The account may not ask where the log ends: {error_text(error)}.",
            f"GRANT {status_privilege(server)} ON *.* TO <account>.",
        ) from error
    if row is None:
        raise SourceNotUsableError(f"The binary log of {server.name} is off.", "Start the server with log_bin.")
    only, ignored = (tuple(filter(None, str(text or "").split(","))) for text in (row[2], row[3]))
    return LogStatus(str(row[0]), int(row[1]), only, ignored)


def status_privilege(server: ServerInfo) -> str:
    return "BINLOG MONITOR" if server.flavour == "mariadb" else "REPLICATION CLIENT"


def _consistent_snapshot(connection: Connection) -> WatermarkMethod:
    try:
        with connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            try:
                cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
                shown = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
            finally:
                cursor.execute("ROLLBACK")
    except pymysql.MySQLError as error:
        raise SourceNotUsableError(
            f"No consistent snapshot could be started: {error_text(error)}.",
            "Connect to the server itself, not through a proxy that rewrites statements.",
        ) from error
    if not shown.get("binlog_snapshot_file"):
        raise SourceNotUsableError(
            "The server does not show the log position of a consistent snapshot (Binlog_snapshot_file).",
            "Start the server with log_bin, and connect to it directly, not through a proxy.",
        )
    return "consistent_snapshot"


def _variables(connection: Connection, names: tuple[str, ...] = _VARIABLES) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (names,))
        return {str(name).lower(): str(value) for name, value in cursor.fetchall()}


def _identity(flavour: Flavour, values: dict[str, str]) -> ServerIdentity:
    return ServerIdentity(flavour, values["server_uuid"] if flavour == "mysql" else f"server_id {values['server_id']}")


def _expire_seconds(values: dict[str, str]) -> int:
    """Some versions keep expire_logs_days beside binlog_expire_logs_seconds; the seconds count where they are set."""
    seconds = int(values.get("binlog_expire_logs_seconds", "0"))
    return seconds or round(float(values.get("expire_logs_days", "0")) * 86400)


def _is_replica(
    connection: Connection, flavour: Flavour, version: tuple[int, int, int], values: dict[str, str]
) -> bool:
    """True where replication is set up. Without the privilege to ask: where MariaDB has ever applied a GTID."""
    new_words = flavour == "mysql" and version >= (8, 0, 22)
    statement = "SHOW REPLICA STATUS" if new_words else "SHOW SLAVE STATUS"
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW ALL SLAVES STATUS" if flavour == "mariadb" else statement)
            return cursor.fetchone() is not None
    except pymysql.MySQLError as error:
        if error_code(error) not in ACCESS_DENIED:
            raise
        return bool(values.get("gtid_slave_pos"))


def _is_on(value: str) -> bool:
    return value.upper() in {"ON", "1", "YES"}
