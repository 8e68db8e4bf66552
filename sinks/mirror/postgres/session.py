"""A connection to a PostgreSQL target."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import psycopg2
import psycopg2.extensions

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.libpq import connection_settings
from tidemark.conf.source import Tls
from tidemark.sinks.mirror.connecting import open_session
from tidemark.sinks.mirror.ledger import LedgerSession
from tidemark.sinks.mirror.postgres import errors as postgres_errors
from tidemark.sinks.mirror.postgres.rows import CopyStream, PostgresTableRows
from tidemark.sinks.mirror.postgres.types import PostgresDialect, full_name, postgres_value_range, quoted
from tidemark.sinks.mirror.target import SourceKind, TableRows, TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import PostgresType, is_kept_type
from tidemark.state.errors import SinkError
from tidemark.state.table import FENCE_TABLE, LEDGER_TABLE, REGISTRY_TABLE, REJECTS_TABLE, TableSchema

Connection: TypeAlias = psycopg2.extensions.connection

IDLE_SECONDS = 600
"""The server ends a transaction of ours after this time without a statement, and so releases the locks of a dead writer."""
LOCK_WAIT_SECONDS = 900
"""Longer than IDLE_SECONDS, so that a second attempt at a part waits until the locks of a dead first one are released."""
COPY_BUFFER_BYTES = 1 << 18

_SESSION = (
    # Texts are read as the source's reader writes them.
    "SET TIME ZONE 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET lc_monetary = 'C'; "
    f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'; SET statement_timeout = 0; "
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; SET client_min_messages = warning; "
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; "
    # Keys are looked up in the index's order. The planner overestimates the cost of that and would read the whole table for
    # each chunk of keys: 5 to 8 times the work with 200,000 keys of 3 million.
    "SET enable_hashjoin = off; SET enable_mergejoin = off; "
    # A crash of the server must not lose a commit that the checkpoint counts on.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
_COLUMNS = """
    SELECT a.attname, t.typname, format_type(t.oid, a.atttypmod), a.atttypmod, a.attnotnull,
           a.atthasdef OR a.attidentity <> '', a.attgenerated <> '',
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

_KIND = """
    SELECT relkind, relpersistence, NOT relhasrules
           AND NOT EXISTS (SELECT 1 FROM pg_index WHERE indrelid = c.oid AND indisprimary AND NOT indimmediate)
           AND NOT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = c.oid AND attidentity = 'a' AND NOT attisdropped)
    FROM pg_class c WHERE oid = %s"""
"""ON CONFLICT takes no table with rules and no deferrable key. GENERATED ALWAYS refuses an UPDATE."""
_TRIGGERS = """
    SELECT tgname FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal AND tgenabled IN ('O', 'A')
    UNION ALL SELECT rulename FROM pg_rewrite WHERE ev_class = %s AND rulename <> '_RETURN' AND ev_enabled IN ('O', 'A')
    ORDER BY 1"""


class PostgresSession(LedgerSession):
    """A `tidemark.sinks.mirror.target.Session`. `connect` makes it."""

    _INSERT = "INSERT INTO"
    _SKIP_EXISTING = "ON CONFLICT DO NOTHING"
    _LOCK_SHARED = "FOR SHARE"

    def __init__(self, connection: Connection, source_kind: SourceKind) -> None:
        self._connection = connection
        self._dialect = PostgresDialect(source_kind)
        self.execute(_SESSION)
        ((schema,),) = self.query("SELECT current_schema()")
        self._connection.commit()
        if schema is None:
            raise SinkError(
                "No schema in the search_path of sink.url's role exists.",
                'Create one, or name the schema in sink.table, as in "copy.{table}", and in the role\'s search_path.',
            )
        self.home: str = schema

    @property
    def dialect(self) -> PostgresDialect:
        return self._dialect

    def full_name(self, target: TargetName) -> str:
        return full_name(target)

    def registered_name(self, target: TargetName) -> tuple[str, str]:
        return target.schema, target.table

    # Statements

    def execute(self, sql: str, arguments: tuple[Any, ...] = (), *, doing: str = "being asked") -> int:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, arguments or None)
                return cursor.rowcount
        except psycopg2.Error as exc:
            raise postgres_errors.sink_error(exc, doing) from exc

    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, arguments or None)
                return cursor.fetchall()
        except psycopg2.Error as exc:
            raise postgres_errors.sink_error(exc, "being asked") from exc

    def copy(self, sql: str, data: CopyStream) -> int:
        """See `tidemark.sinks.mirror.postgres.rows.Runner`."""
        try:
            with self._connection.cursor() as cursor:
                cursor.copy_expert(sql, data, COPY_BUFFER_BYTES)
                return cursor.rowcount
        except psycopg2.Error as exc:
            if data.failure is not None:
                raise data.failure from exc
            raise postgres_errors.sink_error(exc, f"at {sql.partition(' (')[0]}") from exc

    # The catalog

    def schema_exists(self, schema: str) -> bool:
        return bool(self.query("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)))

    def _oid(self, target: TargetName) -> int | None:
        found = self.query(
            "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s",
            (target.schema, target.table),
        )
        return found[0][0] if found else None

    def exists(self, target: TargetName) -> bool:
        return self._oid(target) is not None

    def inspect(self, target: TargetName) -> TargetTable | None:
        oid = self._oid(target)
        if oid is None:
            return None
        ((kind, persistence, updatable),) = self.query(_KIND, (oid,))
        foreign_keys = self.query(
            "SELECT conname FROM pg_constraint WHERE contype = 'f' AND %s IN (conrelid, confrelid)", (oid,)
        )
        return TargetTable(
            columns=tuple(_column(*row) for row in self.query(_COLUMNS, (oid,))),
            key=tuple(name for (name,) in self.query(_KEY, (oid,))),
            unique_indexes=tuple(name for (name,) in self.query(_UNIQUE, (oid,))),
            foreign_keys=tuple(name for (name,) in foreign_keys),
            engine_problem=_kind_problem(kind, persistence),
            triggers=tuple(name for (name,) in self.query(_TRIGGERS, (oid, oid))),
            updatable=updatable,
        )

    def is_empty(self, target: TargetName) -> bool:
        return not self.query(f"SELECT 1 FROM {full_name(target)} LIMIT 1")

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
        # Two concurrent CREATE TABLE IF NOT EXISTS of one name can fail: another driver may be doing the same.
        self.execute("SELECT pg_advisory_xact_lock(hashtext('tidemark'))")
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(TargetName(self.home, LEDGER_TABLE))} ("
            "job_uuid text NOT NULL, epoch bigint NOT NULL, part text NOT NULL, row_count bigint, "
            "written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job_uuid, epoch, part))",
            doing=doing,
        )
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(TargetName(self.home, FENCE_TABLE))} ("
            "job_uuid text NOT NULL, name text NOT NULL, value bigint NOT NULL, PRIMARY KEY (job_uuid, name))",
            doing=doing,
        )
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(TargetName(self.home, REGISTRY_TABLE))} ("
            "target_schema text NOT NULL, target_table text NOT NULL, "
            "job_uuid text NOT NULL, job_name text NOT NULL, source_table text NOT NULL, "
            "created boolean NOT NULL DEFAULT false, taken_at timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (target_schema, target_table))",
            doing=doing,
        )
        self.end_transaction("creating Tidemark's own tables")

    def create_rejects(self) -> None:
        doing = "creating Tidemark's own tables"
        self.execute("SELECT pg_advisory_xact_lock(hashtext('tidemark'))")
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {full_name(TargetName(self.home, REJECTS_TABLE))} ("
            "job_uuid text NOT NULL, source_database text NOT NULL, source_table text NOT NULL, row_digest text NOT NULL, "
            "has_key boolean NOT NULL, row_key text NOT NULL, change_type text NOT NULL, bad_columns text NOT NULL, "
            "row_data text NOT NULL, epoch bigint NOT NULL, part text NOT NULL, "
            "rejected_at timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (job_uuid, source_database, source_table, row_digest))",
            doing=doing,
        )
        self.end_transaction(doing)

    def create_schema(self, schema: str) -> None:
        self.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}", doing=f"creating schema {schema}")
        self.end_transaction(f"creating schema {schema}")

    def create_table(self, sql: str) -> None:
        doing = f"creating a table by {sql.partition('(')[0].strip()}"
        self.execute(sql, doing=doing)
        self.end_transaction(doing)

    # Writing

    def start_transaction(self) -> None:
        """psycopg2 begins one with the next statement."""
        self.rollback()

    def rows(self, target: TargetName, schema: TableSchema, existing: TargetTable) -> TableRows:
        return PostgresTableRows(self, self._dialect, target, schema, existing)

    def end_transaction(self, doing: str) -> None:
        try:
            self._connection.commit()
        except psycopg2.Error as exc:
            raise postgres_errors.sink_error(exc, doing) from exc

    def rollback(self) -> None:
        try:
            self._connection.rollback()
        except psycopg2.Error as exc:
            raise postgres_errors.sink_error(exc, "rolling back") from exc

    def close(self) -> None:
        """Closes the connection, which rolls back an open transaction."""
        self._connection.close()


def _kind_problem(kind: str, persistence: str) -> str | None:
    if kind not in {"r", "p"}:
        return "it is not a table"
    if persistence != "p":
        return "it is not logged: a crash of the server would empty it"
    return None


def _column(
    name: str,
    type_name: str,
    sql_type: str,
    modifier: int,
    not_null: bool,
    has_default: bool,
    generated: bool,
    collation: str | None,
) -> TargetColumn:
    value_range = postgres_value_range(type_name, modifier)
    if value_range is None and is_kept_type(sql_type):
        value_range = PostgresType(sql_type)
    return TargetColumn(
        name=name,
        type_name=type_name,
        value_range=value_range,
        sql_type=sql_type,
        nullable=not not_null,
        may_be_left_out=has_default or generated or not not_null,
        generated=generated,
        collation=collation,
    )


def connect(endpoint: Endpoint, tls: Tls | None, source_kind: SourceKind) -> PostgresSession:
    """Raises SinkError. A connection that fails for a passing reason is tried again."""
    doing = f"to let {endpoint.user} in at {endpoint.host}:{endpoint.port}"
    return open_session(
        lambda: _open(endpoint, tls),
        lambda connection: PostgresSession(connection, source_kind),
        psycopg2.Error,
        postgres_errors.is_transient,
        lambda error: postgres_errors.sink_error(error, doing),
    )


def _open(endpoint: Endpoint, tls: Tls | None) -> Connection:
    connection: Connection = psycopg2.connect(**connection_settings(endpoint, tls, "tidemark mirror"))
    return connection
