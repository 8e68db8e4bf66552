"""A connection to a PostgreSQL target."""

import random
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import psycopg2
import psycopg2.extensions

from conf.endpoint import Endpoint
from conf.libpq import connection_settings
from conf.source import Tls
from sinks.mirror import postgres_faults
from sinks.mirror.postgres_rows import CopyStream, PostgresTableRows
from sinks.mirror.postgres_types import PostgresDialect, full_name, postgres_domain, quoted
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
from state.errors import SinkError
from state.table import TableSchema

Connection: TypeAlias = psycopg2.extensions.connection

CONNECT_ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.3
IDLE_SECONDS = 600
"""After so long without a statement the server ends a transaction of ours, and with it the locks of a writer that is gone."""
LOCK_WAIT_SECONDS = 900
"""Longer than IDLE_SECONDS: a second attempt at a part outwaits a first one that died."""
COPY_BUFFER_BYTES = 1 << 18

_SESSION = (
    f"SET TIME ZONE 'UTC'; SET lock_timeout = '{LOCK_WAIT_SECONDS}s'; SET statement_timeout = 0; "
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; SET client_min_messages = warning; "
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; "
    # The planner overrates lookups by the key, which come in the index's order, and would rather read the whole table
    # for each chunk of keys: 5 to 8 times the work at 200,000 keys of 3 million.
    "SET enable_hashjoin = off; SET enable_mergejoin = off; "
    # A commit that a crash takes back would be forgotten here and remembered in the checkpoint.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
_COLUMNS = """
    SELECT a.attname, t.typname, a.atttypmod, a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '',
           (SELECT c.collname FROM pg_collation c WHERE c.oid = a.attcollation AND NOT c.collisdeterministic)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_KEY = """
    SELECT a.attname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.place"""
_UNIQUE = """
    SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = %s AND (i.indisunique OR i.indisexclusion) AND NOT i.indisprimary ORDER BY 1"""


class PostgresSession:
    """`sinks.mirror.target.Session`. Made by `connect`."""

    def __init__(self, connection: Connection, source_kind: SourceKind) -> None:
        self._connection = connection
        self._dialect = PostgresDialect(source_kind)
        self.execute(_SESSION)
        ((schema,),) = self.query("SELECT current_schema()")
        self._connection.commit()
        if schema is None:
            raise SinkError(
                "The role of sink.url has no schema that its search_path names.",
                'Create one, or name the schema in sink.table, as in "copy.{table}", and in the role\'s search_path.',
            )
        self.home: str = schema

    @property
    def dialect(self) -> PostgresDialect:
        return self._dialect

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
                cursor.execute(sql, arguments or None)
                return cursor.rowcount
        except psycopg2.Error as exc:
            raise postgres_faults.fault(exc, doing) from exc

    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, arguments or None)
                return cursor.fetchall()
        except psycopg2.Error as exc:
            raise postgres_faults.fault(exc, "being asked") from exc

    def copy(self, sql: str, data: CopyStream) -> int:
        """`sinks.mirror.postgres_rows.Runner`."""
        try:
            with self._connection.cursor() as cursor:
                cursor.copy_expert(sql, data, COPY_BUFFER_BYTES)
                return cursor.rowcount
        except psycopg2.Error as exc:
            if data.failure is not None:
                raise data.failure from exc
            raise postgres_faults.fault(exc, f"at {sql.partition(' (')[0]}") from exc

    # The catalog

    def schema_exists(self, schema: str) -> bool:
        return bool(self.query("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)))

    def _oid(self, place: Place) -> int | None:
        found = self.query(
            "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s",
            (place.schema, place.table),
        )
        return found[0][0] if found else None

    def inspect(self, place: Place) -> TargetTable | None:
        oid = self._oid(place)
        if oid is None:
            return None
        ((kind, persistence),) = self.query("SELECT relkind, relpersistence FROM pg_class WHERE oid = %s", (oid,))
        foreign_keys = self.query(
            "SELECT conname FROM pg_constraint WHERE contype = 'f' AND %s IN (conrelid, confrelid)", (oid,)
        )
        return TargetTable(
            columns=tuple(_column(*row) for row in self.query(_COLUMNS, (oid,))),
            key=tuple(name for (name,) in self.query(_KEY, (oid,))),
            unique_indexes=tuple(name for (name,) in self.query(_UNIQUE, (oid,))),
            foreign_keys=tuple(name for (name,) in foreign_keys),
            engine_problem=_kind_problem(kind, persistence),
        )

    def is_empty(self, place: Place) -> bool:
        return not self.query(f"SELECT 1 FROM {full_name(place)} LIMIT 1")

    def owner(self, place: Place) -> Owner | None:
        if self._oid(Place(self.home, REGISTRY_TABLE)) is None:
            return None
        found = self.query(
            f"SELECT job_uuid, job_name, source_table, created FROM {self._registry} "
            "WHERE target_schema = %s AND target_table = %s",
            (place.schema, place.table),
        )
        return next((Owner(JobIdentity(uuid, name), source, created) for uuid, name, source, created in found), None)

    def server_problem(self, schemas: Sequence[str]) -> tuple[str, str] | None:
        if self.query("SELECT pg_is_in_recovery()") == [(True,)]:
            return "The target's server is a standby.", "Name the primary in sink.url."
        for schema in schemas:
            if self.query(
                "SELECT 1 FROM pg_namespace WHERE nspname = %s AND NOT has_schema_privilege(oid, 'CREATE')", (schema,)
            ):
                return (
                    f"The role of sink.url may not create tables in schema {schema}.",
                    f"GRANT CREATE, USAGE ON SCHEMA {quoted(schema)} TO that role.",
                )
        return None

    # Preparing

    def create_bookkeeping(self) -> None:
        doing = "creating Tidemark's own tables"
        # IF NOT EXISTS does not help against another driver that does this at the same moment.
        self.execute("SELECT pg_advisory_xact_lock(hashtext('tidemark'))")
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(Place(self.home, LEDGER_TABLE))} ("
            "job_uuid text NOT NULL, epoch bigint NOT NULL, part text NOT NULL, row_count bigint, "
            "written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job_uuid, epoch, part))",
            doing=doing,
        )
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(Place(self.home, REGISTRY_TABLE))} ("
            "target_schema text NOT NULL, target_table text NOT NULL, "
            "job_uuid text NOT NULL, job_name text NOT NULL, source_table text NOT NULL, "
            "created boolean NOT NULL DEFAULT false, taken_at timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (target_schema, target_table))",
            doing=doing,
        )
        self._commit("creating Tidemark's own tables")

    def create_schema(self, schema: str) -> None:
        self.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}", doing=f"creating schema {schema}")
        self._commit(f"creating schema {schema}")

    def take(self, place: Place, job: JobIdentity, source_table: str) -> Owner:
        self.execute(
            f"INSERT INTO {self._registry} (target_schema, target_table, job_uuid, job_name, source_table) "
            "VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (place.schema, place.table, job.uuid, job.name, source_table),
            doing=f"entering {place} into {REGISTRY_TABLE}",
        )
        self._commit(f"entering {place} into {REGISTRY_TABLE}")
        owner = self.owner(place)
        if owner is None:
            raise SinkError(f"{place} could not be entered into {self._registry}.", "Look into that table.")
        return owner

    def create_table(self, sql: str) -> None:
        doing = f"creating a table by {sql.partition('(')[0].strip()}"
        self.execute(sql, doing=doing)
        self._commit(doing)

    def mark_created(self, place: Place) -> None:
        self.execute(
            f"UPDATE {self._registry} SET created = true WHERE target_schema = %s AND target_table = %s",
            (place.schema, place.table),
        )
        self._commit(f"marking {place} as created")

    def forget_parts(self, job_uuid: str, before_epoch: int) -> None:
        self.execute(f"DELETE FROM {self._ledger} WHERE job_uuid = %s AND epoch < %s", (job_uuid, before_epoch))
        self._commit("tidying the ledger")

    # Writing

    def begin(self, job_uuid: str, epoch: int, part: str) -> int | None:
        self.rollback()
        self._part = (job_uuid, epoch, part)
        entered = self.execute(
            f"INSERT INTO {self._ledger} (job_uuid, epoch, part) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
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
        return PostgresTableRows(self, place, schema, existing)

    def commit(self, row_count: int) -> None:
        self.execute(
            f"UPDATE {self._ledger} SET row_count = %s WHERE job_uuid = %s AND epoch = %s AND part = %s",
            (row_count, *self._part),
        )
        self._commit("committing")

    def _commit(self, doing: str) -> None:
        try:
            self._connection.commit()
        except psycopg2.Error as exc:
            raise postgres_faults.fault(exc, doing) from exc

    def rollback(self) -> None:
        try:
            self._connection.rollback()
        except psycopg2.Error as exc:
            raise postgres_faults.fault(exc, "rolling back") from exc

    def close(self) -> None:
        """Ends the connection, and with it a transaction that is under way."""
        self._connection.close()


def _in_format(name: str) -> str:
    """For SQL with arguments, where the driver takes a percent sign for a place."""
    return name.replace("%", "%%")


def _kind_problem(kind: str, persistence: str) -> str | None:
    if kind not in {"r", "p"}:
        return "it is not a table"
    if persistence != "p":
        return "it is not logged: a crash of the server would empty it"
    return None


def _column(
    name: str, type_name: str, modifier: int, not_null: bool, has_default: bool, generated: bool, collation: str | None
) -> TargetColumn:
    return TargetColumn(
        name=name,
        type_name=type_name,
        domain=postgres_domain(type_name, modifier),
        nullable=not not_null,
        may_be_left_out=has_default or generated or not not_null,
        generated=generated,
        collation=collation,
    )


def connect(endpoint: Endpoint, tls: Tls | None, source_kind: SourceKind) -> PostgresSession:
    """Tries CONNECT_ATTEMPTS times where the failure may pass."""
    for attempt in range(CONNECT_ATTEMPTS):
        try:
            connection = _open(endpoint, tls)
        except psycopg2.Error as exc:
            if attempt + 1 == CONNECT_ATTEMPTS or not postgres_faults.is_transient(exc):
                raise postgres_faults.fault(
                    exc, f"to let {endpoint.user} in at {endpoint.host}:{endpoint.port}"
                ) from exc
        else:
            try:
                return PostgresSession(connection, source_kind)
            except BaseException:
                connection.close()
                raise
        time.sleep(FIRST_DELAY_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable")


def _open(endpoint: Endpoint, tls: Tls | None) -> Connection:
    connection: Connection = psycopg2.connect(**connection_settings(endpoint, tls, "tidemark mirror"))
    return connection
