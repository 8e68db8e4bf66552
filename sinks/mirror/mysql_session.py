"""A connection to a MySQL or MariaDB target."""

import functools
import random
import ssl
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import pymysql

from conf.endpoint import Endpoint
from conf.source import Tls
from sinks.mirror import mysql_faults
from sinks.mirror.domains import Domain, mysql_domain
from sinks.mirror.mysql_rows import MySqlTableRows
from sinks.mirror.mysql_types import Flavour, MySqlDialect, full_name, quoted
from sinks.mirror.target import (
    LEDGER_TABLE,
    REGISTRY_TABLE,
    Owner,
    Place,
    SourceKind,
    TableRows,
    TargetColumn,
    TargetTable,
)
from sinks.sink import JobIdentity
from state.errors import JobFileError, SinkError
from state.table import TableSchema

Connection: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"

CONNECT_ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.3
CONNECT_TIMEOUT_SECONDS = 10
READ_TIMEOUT_SECONDS = 3600
IDLE_SECONDS = 600
"""After so long without a statement the server ends a connection of ours, and with it the locks of a writer that is gone."""
LOCK_WAIT_SECONDS = 900
"""Longer than IDLE_SECONDS: a second attempt at a part outwaits a first one that died."""
PACKET_RESERVE_BYTES = 64

_SESSION = (
    "SET SESSION sql_mode = 'TRADITIONAL,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00', "
    f"innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}, lock_wait_timeout = {LOCK_WAIT_SECONDS}, "
    f"wait_timeout = {IDLE_SECONDS}, net_read_timeout = {IDLE_SECONDS}, net_write_timeout = {IDLE_SECONDS}, "
    "sql_safe_updates = 0, unique_checks = 1, "
)
_SESSION_MYSQL = "range_optimizer_max_mem_size = 0"
_SESSION_MARIADB = "optimizer_max_sel_arg_weight = 0, in_predicate_conversion_threshold = 0, max_statement_time = 0"


class MySqlSession:
    """`sinks.mirror.target.Session`. Made by `connect`."""

    def __init__(self, connection: Connection, home: str, source_kind: SourceKind) -> None:
        self._connection = connection
        self.home = home
        self.max_statement_bytes = 0
        self._flavour: Flavour = "mariadb" if "mariadb" in self._server_text.lower() else "mysql"
        self._source_kind: SourceKind = source_kind
        self.execute(_SESSION + (_SESSION_MARIADB if self._flavour == "mariadb" else _SESSION_MYSQL))
        # Gap locks would make deletes of absent keys wait for one another.
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        ((packet_bytes, lower_case),) = self.query("SELECT @@max_allowed_packet, @@lower_case_table_names")
        self.max_statement_bytes = int(packet_bytes) - PACKET_RESERVE_BYTES
        self._fold_names = int(lower_case) != 0

    @functools.cached_property
    def dialect(self) -> MySqlDialect:
        """Asks the server at its first use."""
        full_names = self._flavour == "mariadb" and self._version >= (10, 10)
        name = "FULL_COLLATION_NAME" if full_names else "COLLATION_NAME"
        collations = self.query(
            f"SELECT {name}, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
        )
        return MySqlDialect(
            self._flavour, self._version, dict(collations), fold_names=self._fold_names, source_kind=self._source_kind
        )

    @property
    def _server_text(self) -> str:
        text: str = self._connection.get_server_info()  # type: ignore[no-untyped-call]  # the stub has no types here
        return text

    @property
    def _version(self) -> tuple[int, ...]:
        numbers = self._server_text.removeprefix("5.5.5-").split("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    @property
    def _ledger(self) -> str:
        return _in_format(full_name(Place(self.home, LEDGER_TABLE)))

    @property
    def _registry(self) -> str:
        return _in_format(full_name(Place(self.home, REGISTRY_TABLE)))

    # Statements

    def execute(self, sql: str, arguments: tuple[Any, ...] = (), *, doing: str = "being asked") -> int:
        """The number of rows affected."""
        try:
            with self._connection.cursor() as cursor:
                return cursor.execute(sql, arguments or None)
        except pymysql.MySQLError as exc:
            raise mysql_faults.fault(exc, doing) from exc

    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, arguments or None)
                return list(cursor.fetchall())
        except pymysql.MySQLError as exc:
            raise mysql_faults.fault(exc, "being asked") from exc

    def send(self, sql: bytes) -> int:
        """`sinks.mirror.mysql_rows.Runner`."""
        try:
            affected = self._connection.query(sql)
            result: Any = self._connection._result  # type: ignore[attr-defined]
            if result.warning_count:
                self._refuse_warnings()
        except pymysql.MySQLError as exc:
            table = sql[: sql.index(b"(")].decode().split(" WHERE")[0]
            raise mysql_faults.fault(exc, f"at {table.strip()}") from exc
        return affected

    def _refuse_warnings(self) -> None:
        (level, code, text) = self._connection.show_warnings()[0]  # type: ignore[no-untyped-call]  # the stub has no types here
        raise mysql_faults.fault(pymysql.err.DataError(code, text), f"to store a value unchanged ({level})")

    # The catalog

    def schema_exists(self, schema: str) -> bool:
        return bool(self.query("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (schema,)))

    def inspect(self, place: Place) -> TargetTable | None:
        arguments = (place.schema, place.table)
        found = self.query(
            "SELECT TABLE_TYPE, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            arguments,
        )
        if not found:
            return None
        columns = self.query(
            "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, EXTRA, COLLATION_NAME "
            "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
            arguments,
        )
        indexes = self.query(
            "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX",
            arguments,
        )
        foreign_keys = self.query(
            "SELECT CONSTRAINT_NAME FROM information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL "
            "AND ((TABLE_SCHEMA = %s AND TABLE_NAME = %s) OR (REFERENCED_TABLE_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s))",
            arguments * 2,
        )
        return TargetTable(
            columns=tuple(_column(*row) for row in columns),
            key=tuple(
                column if prefix is None else f"{column}({prefix})"
                for name, column, prefix in indexes
                if name == "PRIMARY"
            ),
            unique_indexes=tuple(dict.fromkeys(name for name, _, _ in indexes if name != "PRIMARY")),
            foreign_keys=tuple(dict.fromkeys(name for (name,) in foreign_keys)),
            engine_problem=_engine_problem(*found[0]),
        )

    def is_empty(self, place: Place) -> bool:
        return not self.query(f"SELECT 1 FROM {full_name(place)} LIMIT 1")

    def owner(self, place: Place) -> Owner | None:
        known = self.query(
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (self.home, REGISTRY_TABLE),
        )
        if not known:
            return None
        found = self.query(
            f"SELECT job_uuid, job_name, source_table, created FROM {self._registry} "
            "WHERE target_schema = %s AND target_table = %s",
            self._registered(place),
        )
        return next(
            (Owner(JobIdentity(uuid, name), source, bool(created)) for uuid, name, source, created in found), None
        )

    def server_problem(self, schemas: Sequence[str]) -> tuple[str, str] | None:
        return None  # what an account may do can't be asked, only tried

    # Preparing

    def create_bookkeeping(self) -> None:
        doing = "creating Tidemark's own tables"
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(Place(self.home, LEDGER_TABLE))} ("
            "job_uuid varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, epoch bigint NOT NULL, "
            "part varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, row_count bigint NULL, "
            "written_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), PRIMARY KEY (job_uuid, epoch, part)"
            ") ENGINE=InnoDB",
            doing=doing,
        )
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(Place(self.home, REGISTRY_TABLE))} ("
            "target_schema varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
            "target_table varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
            "job_uuid varchar(64) NOT NULL, job_name varchar(64) NOT NULL, source_table varchar(255) NOT NULL, "
            "created tinyint NOT NULL DEFAULT 0, taken_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), "
            "PRIMARY KEY (target_schema, target_table)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
            doing=doing,
        )

    def create_schema(self, schema: str) -> None:
        self.execute(
            f"CREATE DATABASE IF NOT EXISTS {quoted(schema)} CHARACTER SET utf8mb4", doing=f"creating database {schema}"
        )

    def take(self, place: Place, job: JobIdentity, source_table: str) -> Owner:
        self.execute(
            f"INSERT IGNORE INTO {self._registry} (target_schema, target_table, job_uuid, job_name, source_table) "
            "VALUES (%s, %s, %s, %s, %s)",
            (*self._registered(place), job.uuid, job.name, source_table),
            doing=f"entering {place} into {REGISTRY_TABLE}",
        )
        self.execute("COMMIT")
        owner = self.owner(place)
        if owner is None:
            raise SinkError(f"{place} could not be entered into {self._registry}.", "Look into that table.")
        return owner

    def _registered(self, place: Place) -> tuple[str, str]:
        """One spelling for a table, also where the server ignores the case of names."""
        return self.dialect.same_name(place.schema), self.dialect.same_name(place.table)

    def create_table(self, sql: str) -> None:
        self.execute(sql, doing=f"creating a table by {sql.partition('(')[0].strip()}")

    def mark_created(self, place: Place) -> None:
        self.execute(
            f"UPDATE {self._registry} SET created = 1 WHERE target_schema = %s AND target_table = %s",
            self._registered(place),
        )
        self.execute("COMMIT")

    def forget_parts(self, job_uuid: str, before_epoch: int) -> None:
        self.execute(f"DELETE FROM {self._ledger} WHERE job_uuid = %s AND epoch < %s", (job_uuid, before_epoch))
        self.execute("COMMIT")

    # Writing

    def begin(self, job_uuid: str, epoch: int, part: str) -> int | None:
        self._part = (job_uuid, epoch, part)
        self.execute("START TRANSACTION")
        entered = self.execute(
            f"INSERT IGNORE INTO {self._ledger} (job_uuid, epoch, part) VALUES (%s, %s, %s)",
            self._part,
            doing="entering the part into the ledger",
        )
        if entered:
            return None
        found = self.query(
            f"SELECT row_count FROM {self._ledger} WHERE job_uuid = %s AND epoch = %s AND part = %s", self._part
        )
        self.rollback()
        if not found or found[0][0] is None:
            raise SinkError(f"The ledger {self._ledger} can't hold part {part}.", "Look into that table.")
        return int(found[0][0])

    def rows(self, place: Place, schema: TableSchema, existing: TargetTable) -> TableRows:
        return MySqlTableRows(self, self.dialect, place, schema)

    def commit(self, row_count: int) -> None:
        self.execute(
            f"UPDATE {self._ledger} SET row_count = %s WHERE job_uuid = %s AND epoch = %s AND part = %s",
            (row_count, *self._part),
        )
        self.execute("COMMIT", doing="committing")

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    def close(self) -> None:
        """Ends the connection, and with it a transaction that is under way."""
        if self._connection.open:
            try:
                self._connection.close()
            except pymysql.MySQLError:  # the server was faster
                return


def _in_format(name: str) -> str:
    """For SQL with arguments, where the driver takes a percent sign for a place."""
    return name.replace("%", "%%")


def _engine_problem(table_type: str, engine: str | None) -> str | None:
    if table_type != "BASE TABLE":
        return f"it is a {table_type.lower()}, not a table"
    if engine is None or engine.lower() not in {"innodb", "rocksdb"}:
        return f"its engine {engine} has no transactions"
    return None


def _column(
    name: str, type_name: str, nullable: str, default: str | None, extra: str, collation: str | None
) -> TargetColumn:
    generated = "GENERATED" in extra.upper().replace("DEFAULT_GENERATED", "")
    return TargetColumn(
        name=name,
        type_name=type_name,
        domain=_domain(type_name),
        nullable=nullable == "YES",
        may_be_left_out=nullable == "YES" or default is not None or generated or "auto_increment" in extra,
        generated=generated,
        collation=collation,
    )


def _domain(type_name: str) -> Domain | None:
    try:
        return mysql_domain(type_name)
    except ValueError:
        return None


def connect(endpoint: Endpoint, tls: Tls | None, home: str, source_kind: SourceKind) -> MySqlSession:
    """Tries CONNECT_ATTEMPTS times where the failure may pass."""
    context = None if tls is None else tls_context(tls)
    for attempt in range(CONNECT_ATTEMPTS):
        try:
            connection = _open(endpoint, context)
        except pymysql.MySQLError as exc:
            if attempt + 1 == CONNECT_ATTEMPTS or not mysql_faults.is_transient(exc):
                raise mysql_faults.fault(exc, f"to let {endpoint.user} in at {endpoint.host}:{endpoint.port}") from exc
        else:
            try:
                return MySqlSession(connection, home, source_kind)
            except BaseException:
                connection.close()
                raise
        time.sleep(FIRST_DELAY_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable")


def _open(endpoint: Endpoint, context: ssl.SSLContext | None) -> Connection:
    return pymysql.connect(
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
        program_name="tidemark mirror",
    )


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Raises JobFileError where a file of `sink.tls` can't be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        # Python 3.13 asks for RFC 5280's optional parts, which the certificates that MySQL makes for itself lack.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
    except (OSError, ValueError) as exc:
        raise JobFileError(
            f"sink.tls names files that can't be used (ca: {tls.ca}, cert: {tls.cert}, key: {tls.key}): {exc}",
            "Give existing PEM files; the key must have no passphrase and belong to the certificate.",
        ) from exc
    return context
