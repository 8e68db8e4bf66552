"""A connection to a MySQL or MariaDB target."""

import functools
import hashlib
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import ER

from tidemark.conf.endpoint import DatabaseKind, Endpoint
from tidemark.conf.keep_alive import keep_alive
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.source import Tls
from tidemark.conf.tls import client_context, password_plugins, unusable_files
from tidemark.sinks.mirror.connecting import Waiting, open_session
from tidemark.sinks.mirror.ledger import KEY_LOCK_SECONDS, LOCK_WAIT_SECONDS, LedgerSession
from tidemark.sinks.mirror.mysql import errors as mysql_errors
from tidemark.sinks.mirror.mysql.catalog import Catalog
from tidemark.sinks.mirror.mysql.comparing import MySqlComparing
from tidemark.sinks.mirror.mysql.rows import MySqlTableRows
from tidemark.sinks.mirror.mysql.types import Flavour, MySqlDialect, full_name, quoted
from tidemark.sinks.mirror.target import TableRows, TargetName, TargetTable
from tidemark.sinks.sink import SinkBusyError
from tidemark.state.errors import JobFileError, SinkError
from tidemark.state.failpoints import failpoint
from tidemark.state.key_order import orders_of_mysql
from tidemark.state.table import (
    FENCE_TABLE,
    LEDGER_TABLE,
    REGISTRY_TABLE,
    REJECTS_TABLE,
    TRIAL_PREFIX,
    Column,
    TableSchema,
)

Connection: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"

CONNECT_TIMEOUT_SECONDS = 10
READ_TIMEOUT_SECONDS = 3600
IDLE_SECONDS = 600
"""The server closes a connection of ours after this time without a statement, and so releases the locks of a dead writer."""
PACKET_RESERVE_BYTES = 64
REMOVED_AT_ONCE = 10_000
"""Rows that one transaction removes from a copy that gets another key."""

_SESSION = {
    "sql_mode": "'TRADITIONAL,NO_AUTO_VALUE_ON_ZERO'",
    "time_zone": "'+00:00'",
    "innodb_lock_wait_timeout": LOCK_WAIT_SECONDS,
    "lock_wait_timeout": LOCK_WAIT_SECONDS,
    "wait_timeout": IDLE_SECONDS,
    "net_read_timeout": IDLE_SECONDS,
    "net_write_timeout": IDLE_SECONDS,
    "sql_safe_updates": 0,
    "unique_checks": 1,
    "group_concat_max_len": 65536,
    "completion_type": "'NO_CHAIN'",
    "sql_select_limit": 18446744073709551615,
    "sql_big_selects": 1,
}
_SESSION_MYSQL = {"range_optimizer_max_mem_size": 0, "max_execution_time": 0}
_SESSION_MARIADB = {
    "optimizer_max_sel_arg_weight": 0,
    "in_predicate_conversion_threshold": 0,
    "max_statement_time": 0,
    "sql_if_exists": 0,  # with it, CREATE TABLE IF NOT EXISTS fails if the table exists
    "idle_transaction_timeout": 0,  # a part may be read slowly; wait_timeout is enough
    "idle_write_transaction_timeout": 0,
}
_ABSENT = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})
_collations: dict[tuple[str, str], dict[str, str]] = {}


class MySqlSession(LedgerSession):
    """A `tidemark.sinks.mirror.target.Session`. `connect` makes it."""

    _INSERT = "INSERT IGNORE INTO"
    _SKIP_EXISTING = ""
    _LOCK_SHARED = "LOCK IN SHARE MODE"
    rolls_back_ddl = False
    locks_only_rows = False
    """When a page is split, InnoDB makes the lock of the row there one of the gap before it, too, also with READ COMMITTED.
    Then no other transaction inserts rows there."""

    def __init__(self, connection: Connection, home: str, source_kind: DatabaseKind) -> None:
        self._connection = connection
        self.home = home
        self.max_statement_bytes = 0
        self._flavour: Flavour = "mariadb" if "mariadb" in self._server_text.lower() else "mysql"
        self._source_kind: DatabaseKind = source_kind
        self._prepare(_SESSION | (_SESSION_MARIADB if self._flavour == "mariadb" else _SESSION_MYSQL))
        # With gap locks, deletes of absent keys would wait for each other.
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        ((packet_bytes, lower_case),) = self.query("SELECT @@max_allowed_packet, @@lower_case_table_names")
        self.max_statement_bytes = int(packet_bytes) - PACKET_RESERVE_BYTES
        self._fold_names = int(lower_case) != 0

    @functools.cached_property
    def dialect(self) -> MySqlDialect:
        """A process asks each server and version once for its collations: a short epoch takes less time than the answer."""
        server = (str(self._connection.get_host_info()), self._server_text)
        if server not in _collations:
            full_names = self._flavour == "mariadb" and self._version >= (10, 10)
            name = "FULL_COLLATION_NAME" if full_names else "COLLATION_NAME"
            sql = f"SELECT {name}, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
            _collations[server] = dict(self.query(sql))
        return MySqlDialect(
            self._flavour,
            self._version,
            _collations[server],
            fold_names=self._fold_names,
            source_kind=self._source_kind,
        )

    @property
    def _server_text(self) -> str:
        text: str = self._connection.get_server_info()  # type: ignore[no-untyped-call]  # the stub has no types here
        return text

    @property
    def _version(self) -> tuple[int, ...]:
        numbers = self._server_text.removeprefix("5.5.5-").split("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    def full_name(self, target: TargetName) -> str:
        return full_name(target)

    # Statements

    def execute(self, sql: str, arguments: tuple[Any, ...] = (), *, doing: str = "being asked") -> int:
        try:
            with self._connection.cursor() as cursor:
                if self._may_be_too_long(arguments):
                    sql, arguments = cursor.mogrify(sql, arguments), ()
                    if (byte_count := len(sql.encode())) > self.max_statement_bytes:
                        raise mysql_errors.too_long(f"A row takes ({doing})", byte_count)
                return cursor.execute(sql, arguments or None)
        except pymysql.MySQLError as exc:
            raise mysql_errors.sink_error(exc, doing) from exc

    def _prepare(self, settings: Mapping[str, object]) -> None:
        """Applies the settings, of an older server those that it has."""
        try:
            with self._connection.cursor() as cursor:
                try:
                    cursor.execute(_assignments(settings))
                except pymysql.MySQLError as error:
                    if error.args[0] != ER.UNKNOWN_SYSTEM_VARIABLE:
                        raise
                    cursor.execute("SHOW VARIABLES WHERE Variable_name IN %s", (tuple(settings),))
                    offered = {str(name).lower() for name, _ in cursor.fetchall()}
                    cursor.execute(_assignments({name: value for name, value in settings.items() if name in offered}))
        except pymysql.MySQLError as exc:
            raise mysql_errors.sink_error(exc, "being asked") from exc

    def _may_be_too_long(self, arguments: tuple[Any, ...]) -> bool:
        """The server ends the connection of a longer statement, and does not say why. A character has four bytes at most,
        and a letter is escaped by another one."""
        return sum(len(text) for text in arguments if isinstance(text, str)) * 8 > self.max_statement_bytes > 0

    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, arguments or None)
                return list(cursor.fetchall())
        except pymysql.MySQLError as exc:
            raise mysql_errors.sink_error(exc, "being asked") from exc

    def send(self, sql: bytes) -> int:
        """See `tidemark.sinks.mirror.mysql.rows.Runner`."""
        try:
            affected = self._connection.query(sql)
            result: Any = self._connection._result  # type: ignore[attr-defined]
            if result.warning_count:
                self._refuse_warnings()
        except pymysql.MySQLError as exc:
            table = sql[: sql.index(b"(")].decode().split(" WHERE")[0]
            raise mysql_errors.sink_error(exc, f"at {table.strip()}") from exc
        return affected

    def _refuse_warnings(self) -> None:
        (level, code, text) = self._connection.show_warnings()[0]  # type: ignore[no-untyped-call]  # the stub has no types here
        raise mysql_errors.sink_error(pymysql.err.DataError(code, text), f"to store a value unchanged ({level})")

    # The catalog

    def schema_exists(self, schema: str) -> bool:
        return bool(self.query("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (schema,)))

    def exists(self, target: TargetName) -> bool:
        """The catalog hides tables from an account that has lost its rights: they are no reason to start over."""
        try:
            self.query(f"SELECT 1 FROM {full_name(target)} LIMIT 0")
        except SinkError as error:
            cause = error.__cause__
            if isinstance(cause, pymysql.MySQLError) and mysql_errors.error_code(cause) in _ABSENT:
                return False
            raise
        return True

    def inspect_all(self, targets: Iterable[TargetName]) -> dict[TargetName, TargetTable]:
        return Catalog(self.query, self.dialect.same_name).read(targets)

    def key_orders(
        self, target: TargetName, existing: TargetTable, columns: Sequence[str]
    ) -> tuple[frozenset[str], ...]:
        """See `tidemark.sinks.mirror.target.Session`."""
        same = self.dialect.same_column
        found = {same(column.name): column for column in existing.columns}
        orders = []
        for name in columns:
            column = found.get(same(name))
            base = "" if column is None else column.type_name.lower().split("(")[0].split(" ")[0]
            orders.append(orders_of_mysql(self._flavour, base, None if column is None else column.collation))
        return tuple(orders)

    def is_empty(self, target: TargetName) -> bool:
        return not self.query(f"SELECT 1 FROM {full_name(target)} LIMIT 1")

    def has_row(self, target: TargetName, condition: str) -> bool:
        return bool(self.query(f"SELECT 1 FROM {full_name(target)} WHERE {condition} LIMIT 1"))

    def server_problem(self, schemas: Sequence[str]) -> tuple[str, str] | None:
        return None  # MySQL can't be asked for an account's effective rights

    # Preparing

    def create_bookkeeping(self) -> None:
        doing = "creating Tidemark's own tables"
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(TargetName(self.home, LEDGER_TABLE))} ("
            "job_uuid varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, epoch bigint NOT NULL, "
            "part varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, row_count bigint NULL, "
            "written_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), PRIMARY KEY (job_uuid, epoch, part)"
            ") ENGINE=InnoDB",
            doing=doing,
        )
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(TargetName(self.home, FENCE_TABLE))} ("
            "job_uuid varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
            "name varchar(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, value bigint NOT NULL, "
            "PRIMARY KEY (job_uuid, name)) ENGINE=InnoDB",
            doing=doing,
        )
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(TargetName(self.home, REGISTRY_TABLE))} ("
            "target_schema varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
            "target_table varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
            "job_uuid varchar(64) NOT NULL, job_name varchar(64) NOT NULL, source_table varchar(255) NOT NULL, "
            "created tinyint NOT NULL DEFAULT 0, taken_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), "
            "incarnation varchar(64), PRIMARY KEY (target_schema, target_table)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
            doing=doing,
        )
        self._add_incarnation()

    def create_rejects(self) -> None:
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(TargetName(self.home, REJECTS_TABLE))} ("
            "job_uuid varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
            "source_database varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
            "source_table varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
            "row_digest char(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, has_key tinyint NOT NULL, "
            "row_key longtext NOT NULL, change_type varchar(20) NOT NULL, bad_columns text NOT NULL, "
            "row_data longtext NOT NULL, epoch bigint NOT NULL, part varchar(64) NOT NULL, "
            "rejected_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), "
            "PRIMARY KEY (job_uuid, source_database, source_table, row_digest)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
            doing="creating Tidemark's own tables",
        )

    def create_schema(self, schema: str) -> None:
        self.execute(
            f"CREATE DATABASE IF NOT EXISTS {quoted(schema)} CHARACTER SET utf8mb4", doing=f"creating database {schema}"
        )

    def registered_name(self, target: TargetName) -> tuple[str, str]:
        return self.dialect.same_name(target.schema), self.dialect.same_name(target.table)

    def create_table(self, sql: str) -> None:
        self.execute(sql, doing=f"creating a table by {sql.partition('(')[0].strip()}")

    def replace_key(self, target: TargetName, existing: TargetTable, clauses: Sequence[str]) -> None:
        """See `tidemark.sinks.mirror.target.Session`. A statement that writes rows keeps the table from being altered: it
        removes rows of the table as it was found, and of no other."""
        doing = f"giving {target} another key"
        self._try(target, clauses, doing)
        key = (
            "SELECT GROUP_CONCAT(CONCAT(s.COLUMN_NAME, ' ', c.COLUMN_TYPE) ORDER BY s.SEQ_IN_INDEX SEPARATOR ', ') "
            "FROM information_schema.STATISTICS s JOIN information_schema.COLUMNS c "
            "ON c.TABLE_SCHEMA = s.TABLE_SCHEMA AND c.TABLE_NAME = s.TABLE_NAME AND c.COLUMN_NAME = s.COLUMN_NAME "
            "WHERE s.TABLE_SCHEMA = %s AND s.TABLE_NAME = %s AND s.INDEX_NAME = 'PRIMARY'"
        )
        created = "SELECT CREATE_TIME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        types = {column.name: column.type_name for column in existing.columns}
        # A column of which only a prefix is in the key is named with the prefix's length.
        names = [name if name in types else name.rpartition("(")[0] for name in existing.key]
        found = ", ".join(f"{name} {types[name]}" for name in names) or None
        name = (target.schema, target.table)
        remove = (
            f"DELETE FROM {full_name(target).replace('%', '%%')} WHERE ({key}) <=> %s AND ({created}) <=> %s "
            f"LIMIT {REMOVED_AT_ONCE}"
        )
        while self.execute(remove, (*name, found, *name, existing.incarnation), doing=doing):
            self.end_transaction(doing)
        now = self.inspect(target)  # the transaction of the last DELETE keeps it from being altered
        if now is None or (now.incarnation, now.key) != (existing.incarnation, existing.key):
            self.end_transaction(doing)
            return
        if not self.is_empty(target):
            raise SinkError(f"The rows of {target} could not be removed.", "Let nobody else write to it.")
        failpoint("sink.key_replaced")
        self.execute(f"SET SESSION lock_wait_timeout = {KEY_LOCK_SECONDS}", doing=doing)
        try:
            self.execute(self.dialect.alter_table(target, clauses), doing=doing)
        except (SinkError, SinkBusyError) as error:
            raise type(error)(f"{error.message} The rows of {target} were removed before.", error.remedy) from error
        self.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_SECONDS}", doing=doing)

    def dependents(self, target: TargetName, columns: Sequence[str]) -> list[str]:
        """See `tidemark.sinks.mirror.target.Session`. Views and triggers are found by their text, as far as the account may see
        it: the server does not keep which columns they have."""
        name, wanted = (target.schema, target.table), {column.lower() for column in columns}
        indexes = self.query(
            "SELECT INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            name,
        )
        found = [f"index {index}" for index, column in indexes if column is not None and column.lower() in wanted]
        triggers = self.query(
            "SELECT TRIGGER_NAME, ACTION_STATEMENT FROM information_schema.TRIGGERS "
            "WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s",
            name,
        )
        words = re.compile("|".join(rf"(?<!\w){re.escape(column)}(?!\w)" for column in columns), re.IGNORECASE)
        found += [f"trigger {trigger}" for trigger, text in triggers if words.search(text or "")]
        views = self.query(
            "SELECT TABLE_SCHEMA, TABLE_NAME, VIEW_DEFINITION FROM information_schema.VIEWS "
            "WHERE LOCATE(%s, LOWER(VIEW_DEFINITION)) > 0",
            (full_name(target).lower(),),
        )
        found += [
            f"view {schema}.{view}"
            for schema, view, text in views
            if any(quoted(column) in text.lower() for column in wanted)
        ]
        return list(dict.fromkeys(found))

    def _try(self, target: TargetName, clauses: Sequence[str], doing: str) -> None:
        """Alters an empty table like `target`, with its indexes, partitions and checks, and drops it. Raises SinkError if the
        server refuses that: this DDL can't be rolled back, and `target` must be empty before it is altered."""
        digest = hashlib.sha256(target.table.encode()).hexdigest()[:16]
        trial = TargetName(target.schema, f"{TRIAL_PREFIX}{digest}")
        drop = f"DROP TABLE IF EXISTS {full_name(trial)}"
        self.execute(drop, doing=doing)  # a driver that died may have left it
        try:
            self.execute(f"CREATE TABLE {full_name(trial)} LIKE {full_name(target)}", doing=doing)
            failpoint("sink.key_tried")
            self.execute(self.dialect.alter_table(trial, clauses), doing=doing)
        except SinkError:
            self.execute(drop, doing=doing)
            raise
        self.execute(drop, doing=doing)

    # Writing

    def start_transaction(self) -> None:
        self.execute("START TRANSACTION")

    def now(self) -> str:
        return f"{self.query('SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)')[0][0]}Z"

    def rows(
        self,
        target: TargetName,
        schema: TableSchema,
        existing: TargetTable,
        removed: Sequence[Column] = (),
        *,
        repeats: bool = False,
    ) -> TableRows:
        return MySqlTableRows(self, self.dialect, target, schema, existing, removed)

    def comparing(
        self, target: TargetName, schema: TableSchema, existing: TargetTable
    ) -> tuple[MySqlComparing, MySqlTableRows]:
        rows = MySqlTableRows(self, self.dialect, target, schema, existing)
        return MySqlComparing(self, rows, self.dialect, existing), rows

    def end_transaction(self, doing: str) -> None:
        self.execute("COMMIT", doing=doing)

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    def wait_for_locks(self, seconds: int) -> None:
        self.execute("SET SESSION innodb_lock_wait_timeout = %s", (seconds,))

    def writers(self, prefix: str) -> dict[int, str]:
        """MariaDB shows them only with performance_schema = ON. MySQL shows them unless it is OFF."""
        found = self.query(
            "SELECT PROCESSLIST_ID, ATTR_VALUE FROM performance_schema.session_account_connect_attrs "
            "WHERE ATTR_NAME = 'program_name' AND PROCESSLIST_ID <> CONNECTION_ID()"
        )
        return {int(session_id): name for session_id, name in found if name.startswith(prefix)}

    def end_session(self, session_id: int) -> None:
        try:
            self.execute("KILL %s", (session_id,))
        except SinkError:
            if session_id in self.writers(""):
                raise

    def close(self) -> None:
        """Closes the connection, which rolls back an open transaction."""
        if self._connection.open:
            try:
                self._connection.close()
            except pymysql.MySQLError:  # the server has closed it
                return


def _assignments(settings: Mapping[str, object]) -> str:
    return f"SET {', '.join(f'SESSION {name} = {value}' for name, value in settings.items())}"


def connect(
    endpoint: Endpoint,
    tls: Tls | None,
    home: str,
    source_kind: DatabaseKind,
    reconnect: Reconnect = AT_START,
    *,
    name: str = "tidemark mirror",
) -> MySqlSession:
    """`name`: the session's name in the server. Raises SinkError, JobFileError; SinkUnavailableError if the server stays out of
    reach."""
    context = None if tls is None else tls_context(tls)
    doing = f"to let {endpoint.user} in at {endpoint.host}:{endpoint.port}"
    return open_session(
        Waiting(reconnect, endpoint),
        lambda: _open(endpoint, tls, context, name),
        lambda connection: MySqlSession(connection, home, source_kind),
        pymysql.MySQLError,
        lambda error: mysql_errors.sink_error(error, doing),
    )


def _open(endpoint: Endpoint, tls: Tls | None, context: ssl.SSLContext | None, name: str) -> Connection:
    connection = pymysql.connect(
        host=endpoint.host,
        port=endpoint.port,
        user=endpoint.user,
        password=endpoint.password.get_secret_value().encode(),  # a str would be sent as latin1
        charset="utf8mb4",
        autocommit=False,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=READ_TIMEOUT_SECONDS,
        write_timeout=READ_TIMEOUT_SECONDS,
        ssl=context,  # a context means: TLS, or no connection
        ssl_disabled=context is None,
        auth_plugin_map=password_plugins("sink.tls", tls, endpoint.host, SinkError),
        program_name=name,
    )
    keep_alive(connection._sock)  # type: ignore[attr-defined]  # PyMySQL offers no other way
    return connection


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Raises JobFileError where a file of `sink.tls` can't be used."""
    try:
        return client_context(tls)
    except (OSError, ValueError) as error:
        raise JobFileError(*unusable_files("sink.tls", tls, error)) from error
