"""Facts about the server: flavour, version, identity, relevant settings, and the method for watermarks."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import pymysql
from pymysql.constants import ER

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.source import Tls
from tidemark.readers.mysql.connect import (
    READ_TIMEOUT_SECONDS,
    Connection,
    Flavour,
    Purpose,
    connect,
    error_code,
    error_text,
    flavour_of,
    lacks_generated,
    server_text,
    version_of,
)
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.gtid import GtidSet
from tidemark.state.remedies import START_OVER

WatermarkMethod = Literal["gtid", "log_status", "consistent_snapshot"]

GroupApplies = Literal["later", "perhaps", "never"]
"""`later`: it has received transactions and not applied them yet, it can't reach half of its group or more (it sees itself as
online, without end), or it is not online and accepts no writes. `perhaps`: it is online. What was sent to it may not be noted
yet as received, and members that are gone not as unreachable. `never`: it has left its group, and accepts writes."""

OLDEST: dict[Flavour, tuple[int, int, int]] = {"mysql": (8, 0, 1), "mariadb": (10, 5, 0)}
"""The first versions with binlog_row_metadata, for messages."""

NAMES: dict[Flavour, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}
READ_LOG_STATUS = (
    "Set gtid_mode=ON, or let the account read log_status: GRANT BACKUP_ADMIN ON *.* TO <account>; "
    "GRANT SELECT ON performance_schema.log_status TO <account>."
)
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
"""Error codes for a missing grant."""

_NOT_IN_STEP = frozenset({ER.LOCK_WAIT_TIMEOUT, ER.UNKNOWN_COM_ERROR})
"""A Galera node's errors for a SELECT that waits for the cluster."""

_VARIABLES = (
    "binlog_expire_logs_seconds",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "expire_logs_days",
    "gtid_domain_id",
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
    "group_replication_group_name",
    "gtid_slave_pos",
    "wsrep_gtid_domain_id",
    "wsrep_gtid_mode",
    "wsrep_on",
    "wsrep_provider",
)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Identifies the server of a position. It survives restarts and upgrades, and replication does not copy it.

    `uuid`: MySQL's @@server_uuid. MariaDB has no uuid that survives a move of its data (@@server_uid depends on port and
    network card), so there it is `server_id N`, which is unique among the servers of a topology. `BinlogPosition.begun`
    tells whether the log is still the same.

    `node`: which node of a Galera cluster it is, because they may have the same server_id. It is compared within a run, and not
    stored: a node's host may get another name.
    """

    flavour: Flavour
    uuid: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Result of `read_server`. A setting that the version does not have is None (switches) or "" (texts)."""

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
    """0: the log is never purged by age."""
    gtid_mode: str
    """MySQL: ON, OFF, ON_PERMISSIVE, OFF_PERMISSIVE; MariaDB: ""."""
    log_replica_updates: bool
    is_replica: bool
    read_only: bool
    galera: bool
    own_numbers: str
    """Why GTIDs of a Galera node are not the cluster's, "" if they are. Then each node numbers transactions itself, also those
    of others."""
    is_group_member: bool
    """MySQL: group replication is set up. It may be stopped."""
    native_foreign_keys: bool | None
    """MySQL since 9.6. False: the row changes of CASCADE and SET NULL are logged."""
    lower_case_table_names: int
    max_allowed_packet_bytes: int

    @property
    def name(self) -> str:
        """`MySQL 9.7.4`, for messages."""
        return f"{NAMES[self.flavour]} {'.'.join(map(str, self.version))}"

    @property
    def logs_cascades(self) -> bool:
        return self.native_foreign_keys is False

    @property
    def lacks_generated(self) -> bool:
        return lacks_generated(self.flavour, self.version)


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The end of the log, which SELECTs may not see yet, and the databases that the log omits."""

    file: str
    pos: int
    only_databases: tuple[str, ...]
    ignored_databases: tuple[str, ...]


def read_server(connection: Connection, expected: Flavour) -> ServerInfo:
    """Reads the server's facts. `expected`: from the job file's URL. Raises SourceNotUsableError for a different or too old
    server."""
    flavour, version = flavour_of(connection), version_of(connection)
    if flavour != expected:
        raise SourceNotUsableError(
            f"source.url says {expected}://, but the server is {NAMES[flavour]} {server_text(connection)}.",
            f"Write {flavour}:// in source.url.",
        )
    values = _variables(connection)
    if "binlog_row_metadata" not in values:
        raise SourceNotUsableError(
            f"{NAMES[flavour]} {server_text(connection)} can't name columns in its log: it has no binlog_row_metadata.",
            f"Use {NAMES[flavour]} {'.'.join(map(str, OLDEST[flavour]))} or newer.",
        )
    identity = _identity(flavour, values)
    return ServerInfo(
        flavour=flavour,
        version=version,
        version_text=server_text(connection),
        identity=replace(identity, node=_node(connection)) if is_galera(values) else identity,
        server_id=int(values["server_id"]),
        log_bin=_is_on(values["log_bin"]),
        binlog_format=values.get("binlog_format", "ROW").upper(),  # removed from versions that have only ROW
        binlog_row_image=values["binlog_row_image"].upper(),
        binlog_row_metadata=values.get("binlog_row_metadata", "").upper(),
        binlog_row_value_options=values.get("binlog_row_value_options", "").upper(),
        binlog_expire_seconds=_expire_seconds(values),
        gtid_mode=values.get("gtid_mode", "").upper(),
        log_replica_updates=_is_on(values.get("log_replica_updates", values.get("log_slave_updates", "OFF"))),
        is_replica=_is_replica(connection, flavour, version, values),
        read_only=_is_read_only(values),
        galera=is_galera(values),
        own_numbers=own_numbers(flavour, values),
        is_group_member=bool(values.get("group_replication_group_name")),
        native_foreign_keys=(
            _is_on(values["innodb_native_foreign_keys"]) if "innodb_native_foreign_keys" in values else None
        ),
        lower_case_table_names=int(values["lower_case_table_names"]),
        max_allowed_packet_bytes=int(values["max_allowed_packet"]),
    )


def read_identity(connection: Connection) -> ServerIdentity:
    """Only the identity, in one short query."""
    return _identity(flavour_of(connection), _identifying(connection))


def require_identity(connection: Connection, expected: ServerIdentity) -> None:
    """Raises LogPositionLostError unless the server is `expected`.

    Rows of one server must never be combined with positions of another (failover, a proxy, a restored server).
    """
    _require_same(read_identity(connection), expected)


def connect_to(
    endpoint: Endpoint,
    tls: Tls | None,
    expected: ServerIdentity,
    *,
    accepted_writes: bool,
    purpose: Purpose = "sql",
    read_timeout_seconds: float | None = READ_TIMEOUT_SECONDS,
    reconnect: Reconnect = AT_START,
) -> Connection:
    """Connects to the job's server. Raises LogPositionLostError if another one answers. `accepted_writes`: that server did, at
    the run's start. Then a failover is under way if a read-only one answers: it is waited for, as `reconnect` says."""

    def check(connection: Connection) -> str | None:
        values = _identifying(connection)
        found = _identity(flavour_of(connection), values)
        if expected.node:
            found = replace(found, node=_node(connection))
        if found != expected and accepted_writes and _is_read_only(values):
            return f"another server answers ({found.uuid}), and accepts no writes"
        _require_same(found, expected)
        return None

    return connect(
        endpoint, tls, purpose=purpose, read_timeout_seconds=read_timeout_seconds, reconnect=reconnect, check=check
    )


def _require_same(found: ServerIdentity, expected: ServerIdentity) -> None:
    if found.node != expected.node and found.uuid == expected.uuid:
        raise another_node()
    if found != expected:
        raise LogPositionLostError(
            f"This is server {found.uuid} ({NAMES[found.flavour]}); the job's positions belong to {expected.uuid} "
            f"({NAMES[expected.flavour]}).",
            "Connect to that server itself, not to a proxy or load balancer. If the server no longer exists, "
            f"{START_OVER}.",
        )


def another_node() -> LogPositionLostError:
    return LogPositionLostError(
        "The source's log is a different one. Probably another node of the Galera cluster answers, which has the same "
        "server_id.",
        "Connect to the node that the job has read, or give each node a server_id of its own: then the job continues at "
        f"another one, if wsrep_gtid_mode is ON. If the node's log was reset, {START_OVER}.",
    )


def watermark_method(connection: Connection, server: ServerInfo) -> WatermarkMethod:
    """The method for lows and highs on this server with this account. No transaction may be open.

    Raises SourceNotUsableError, with the setting or grant that is missing, if only file and offset are available: a SELECT
    does not yet see the log up to them.
    """
    if not server.log_bin:
        raise SourceNotUsableError(
            f"The binary log of {server.name} is off, so changes can't be read.",
            "Start the server with log_bin.",
        )
    if server.flavour == "mariadb":
        return _consistent_snapshot(connection)
    if server.gtid_mode == "ON":
        return "gtid"
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT LOCAL FROM performance_schema.log_status")
            cursor.fetchone()
    except pymysql.MySQLError as error:
        raise SourceNotUsableError(
            f"gtid_mode is {server.gtid_mode or 'OFF'}, and performance_schema.log_status can't be read: "
            f"{error_text(error)}. Without one of them Tidemark can't know which transactions a SELECT sees.",
            READ_LOG_STATUS,
        ) from error
    return "log_status"


def read_log_status(connection: Connection, server: ServerInfo) -> LogStatus:
    """The log's end. Needs REPLICATION CLIENT (MariaDB: BINLOG MONITOR). Raises SourceNotUsableError."""
    has_new_statement = server.flavour == "mysql" and server.version >= _BINARY_LOG_STATUS_SINCE
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOG STATUS" if has_new_statement else "SHOW MASTER STATUS")
            row = cursor.fetchone()
    except pymysql.MySQLError as error:
        if error_code(error) not in ACCESS_DENIED:
            raise
        raise SourceNotUsableError(
            f"The account may not read the log's status: {error_text(error)}.",
            f"GRANT {status_privilege(server.flavour)} ON *.* TO <account>.",
        ) from error
    if row is None:
        raise SourceNotUsableError(f"The binary log of {server.name} is off.", "Start the server with log_bin.")
    only, ignored = (tuple(filter(None, str(text or "").split(","))) for text in (row[2], row[3]))
    return LogStatus(str(row[0]), int(row[1]), only, ignored)


def binary_logs(connection: Connection) -> list[tuple[str, int]]:
    """The files that the server still has, oldest first, and their bytes. Raises SourceNotUsableError."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            return [(str(row[0]), int(row[1])) for row in cursor.fetchall()]
    except pymysql.MySQLError as exc:
        if error_code(exc) not in ACCESS_DENIED:
            raise
        raise SourceNotUsableError(
            f"The account may not list the log's files: {error_text(exc)}.",
            f"GRANT {status_privilege(flavour_of(connection))} ON *.* TO <account>.",
        ) from exc


def status_privilege(flavour: Flavour) -> str:
    return "BINLOG MONITOR" if flavour == "mariadb" else "REPLICATION CLIENT"


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


def _variables(connection: Connection) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (_VARIABLES,))
        return {str(name).lower(): str(value) for name, value in cursor.fetchall()}


def _identifying(connection: Connection) -> dict[str, str]:
    """The variables that each new connection asks for. The server evaluates all of its variables for SHOW, which takes it
    milliseconds."""
    names = ["server_id", "read_only", *(["server_uuid"] if flavour_of(connection) == "mysql" else [])]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in names)}")
        return dict(zip(names, map(str, cursor.fetchone() or ()), strict=True))


def _node(connection: Connection) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT CONCAT_WS(' ', @@hostname, @@port, @@wsrep_node_name)")
        ((node,),) = cursor.fetchall()
        return str(node)


def is_galera(values: dict[str, str]) -> bool:
    """True if the server is a node of a Galera cluster. With wsrep_on=ON alone, and no provider, it is a server of its own."""
    return _is_on(values.get("wsrep_on", "OFF")) and values["wsrep_provider"].lower() not in {"", "none"}


def own_numbers(flavour: Flavour, values: dict[str, str]) -> str:
    """ServerInfo.own_numbers. MySQL's nodes have no wsrep_gtid_mode: if they have GTIDs, these are the cluster's."""
    if flavour == "mysql":
        return ""
    if not _is_on(values.get("wsrep_gtid_mode", "OFF")):
        return "wsrep_gtid_mode is OFF: each node numbers transactions itself"
    domain = values["wsrep_gtid_domain_id"]
    if values["gtid_domain_id"] != domain:
        return ""
    return (
        f"gtid_domain_id and wsrep_gtid_domain_id are {domain}: what one node alone logs has a number of the cluster's"
    )


def _identity(flavour: Flavour, values: dict[str, str]) -> ServerIdentity:
    return ServerIdentity(flavour, values["server_uuid"] if flavour == "mysql" else f"server_id {values['server_id']}")


def _is_read_only(values: dict[str, str]) -> bool:
    return values["read_only"].upper() not in {"OFF", "0"}  # MariaDB 12 has more values than ON and OFF


def _expire_seconds(values: dict[str, str]) -> int:
    """Some versions have both expire_logs_days and binlog_expire_logs_seconds. The seconds take precedence if set."""
    seconds = int(values.get("binlog_expire_logs_seconds", "0"))
    return seconds or round(float(values.get("expire_logs_days", "0")) * 86400)


def _is_replica(
    connection: Connection, flavour: Flavour, version: tuple[int, int, int], values: dict[str, str]
) -> bool:
    """True if replication is set up. Without the privilege to ask: True if MariaDB has ever applied a GTID."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(_replica_status(flavour, version))
            return cursor.fetchone() is not None
    except pymysql.MySQLError as error:
        if error_code(error) not in ACCESS_DENIED:
            raise
        return bool(values.get("gtid_slave_pos"))


def group_applies(connection: Connection, gtids: GtidSet) -> GroupApplies:
    """Whether this member of a replication group is going to have some of these transactions, which it has not. Raises
    SourceNotUsableError if the account may not ask."""
    try:
        with connection.cursor() as cursor:
            # MySQL 8.0: after a restart, the server's own row has no MEMBER_ID until it joins its group again.
            cursor.execute(
                "SELECT COALESCE(MAX(MEMBER_ID = @@GLOBAL.server_uuid AND MEMBER_STATE = 'ONLINE'), 0), "
                "COALESCE(SUM(MEMBER_STATE = 'UNREACHABLE') * 2 >= COUNT(*), 0), @@GLOBAL.super_read_only "
                "FROM performance_schema.replication_group_members"
            )
            online, lacks_majority, read_only = map(bool, cursor.fetchone() or (0, 0, 0))
            if lacks_majority or (read_only and not online):
                return "later"
            cursor.execute(
                "SELECT RECEIVED_TRANSACTION_SET FROM performance_schema.replication_connection_status "
                "WHERE CHANNEL_NAME = 'group_replication_applier' AND SERVICE_STATE = 'ON'"
            )
            if any(gtids.common(GtidSet.parse(str(row[0]))).intervals for row in cursor.fetchall()):
                return "later"
            return "perhaps" if online else "never"
    except pymysql.MySQLError as error:
        if error_code(error) not in ACCESS_DENIED:
            raise
        raise SourceNotUsableError(
            "The server is a member of a replication group and lacks transactions that the job has read. The account may not "
            f"ask whether it has received them: {error_text(error)}.",
            "GRANT SELECT ON performance_schema.replication_group_members TO <account> and GRANT SELECT ON "
            "performance_schema.replication_connection_status TO <account>.",
        ) from error


def sync_problem(connection: Connection) -> str | None:
    """Lets a node of a Galera cluster apply what the cluster has committed up to now. Returns why it could not: not in the time
    that it gives itself for that (repl.causal_read_timeout), or it is not in step with its cluster."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION wsrep_dirty_reads = OFF, SESSION wsrep_sync_wait = 1")
        problem = None
        try:
            cursor.execute("SELECT 1")
        except pymysql.MySQLError as error:
            if error_code(error) not in _NOT_IN_STEP:
                raise  # such as a lost connection, which is told as that
            problem = error_text(error)
        cursor.execute("SET SESSION wsrep_dirty_reads = DEFAULT, SESSION wsrep_sync_wait = DEFAULT")
    return problem


def replica_lag_seconds(connection: Connection, server: ServerInfo) -> float | None:
    """How far a replica is behind its sources, None if the server is no replica. Infinite while replication is stopped. Raises
    SourceNotUsableError if the account may not ask."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(_replica_status(server.flavour, server.version))
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
    except pymysql.MySQLError as error:
        if error_code(error) not in ACCESS_DENIED:
            raise
        privilege = "SLAVE MONITOR" if server.flavour == "mariadb" else "REPLICATION CLIENT"
        raise SourceNotUsableError(
            f"The account may not ask how far the replica lags behind (snapshot.max_replica_lag_seconds): {error_text(error)}.",
            f"GRANT {privilege} ON *.* TO <account>.",
        ) from error
    place = next(at for at, name in enumerate(names) if name in {"Seconds_Behind_Source", "Seconds_Behind_Master"})
    return max((math.inf if row[place] is None else float(row[place]) for row in rows), default=None)


def _replica_status(flavour: Flavour, version: tuple[int, int, int]) -> str:
    if flavour == "mariadb":
        return "SHOW ALL SLAVES STATUS"
    return "SHOW SLAVE STATUS" if version < (8, 0, 22) else "SHOW REPLICA STATUS"


def _is_on(value: str) -> bool:
    return value.upper() in {"ON", "1", "YES"}
