"""A connection to a PostgreSQL target."""

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import psycopg2
import psycopg2.extensions

from tidemark.conf.endpoint import DatabaseKind, Endpoint
from tidemark.conf.libpq import connection_settings
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.source import Tls
from tidemark.sinks.mirror.connecting import Waiting, open_session
from tidemark.sinks.mirror.enum_labels import enums_of, places
from tidemark.sinks.mirror.ledger import KEY_LOCK_SECONDS, LOCK_WAIT_SECONDS, LedgerSession
from tidemark.sinks.mirror.postgres import errors as postgres_errors
from tidemark.sinks.mirror.postgres.catalog import read_tables
from tidemark.sinks.mirror.postgres.comparing import PostgresComparing
from tidemark.sinks.mirror.postgres.rows import CopyStream, PostgresTableRows
from tidemark.sinks.mirror.postgres.types import (
    MAX_NAME_BYTES,
    PostgresDialect,
    enum_name,
    full_name,
    quoted,
    text_literal,
)
from tidemark.sinks.mirror.target import TableRows, TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import Text
from tidemark.state.errors import SinkError
from tidemark.state.failpoints import failpoint
from tidemark.state.key_order import TEXTS_BY_COLLATION, orders_of_postgres, text_order, text_orders_query
from tidemark.state.table import (
    FENCE_TABLE,
    LEDGER_TABLE,
    REGISTRY_TABLE,
    REJECTS_TABLE,
    Column,
    NamedType,
    TableSchema,
)

Connection: TypeAlias = psycopg2.extensions.connection

IDLE_SECONDS = 600
"""The server ends a transaction of ours after this time without a statement, and so releases the locks of a dead writer."""
COPY_BUFFER_BYTES = 1 << 18
TEMPORARY_BUFFERS = "64MB"
"""A chunk of rows, which waits in a temporary table, fits into it. With the server's 8 MB it goes through files."""

_SESSION = (
    # Texts are read as the source's reader writes them, and written with all digits, whatever the role's settings are.
    "SET TIME ZONE 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET lc_monetary = 'C'; "
    "SET array_nulls = on; SET extra_float_digits = 1; SET quote_all_identifiers = off; "
    f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'; SET statement_timeout = 0; "
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; SET client_min_messages = warning; "
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'; "  # since PostgreSQL 17
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; "
    "SET row_security = off; "  # a policy that hides rows from a DELETE is an error
    # Keys are looked up in the index's order. The planner overestimates the cost of that and would read the whole table for
    # each chunk of keys: 5 to 8 times the work with 200,000 keys of 3 million.
    "SET enable_hashjoin = off; SET enable_mergejoin = off; "
    "SET jit = off; "  # the statements run for less time than they would be compiled
    # A crash of the server must not lose a commit that the checkpoint counts on.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)


class PostgresSession(LedgerSession):
    """A `tidemark.sinks.mirror.target.Session`. `connect` makes it."""

    _INSERT = "INSERT INTO"
    _SKIP_EXISTING = "ON CONFLICT DO NOTHING"
    _LOCK_SHARED = "FOR SHARE"
    rolls_back_ddl = True
    locks_only_rows = True

    def __init__(self, connection: Connection, source_kind: DatabaseKind) -> None:
        self._connection = connection
        self._dialect = PostgresDialect(source_kind)
        self.savepoints = 0
        self.execute(_SESSION)
        ((schema,),) = self.query("SELECT current_schema()")
        self._connection.commit()
        with contextlib.suppress(SinkError):  # a pooler's session that has used temporary tables keeps its size
            self.execute(f"SET temp_buffers = '{TEMPORARY_BUFFERS}'")
        self._connection.commit()
        if schema is None:
            raise SinkError(
                "No schema in the search_path of sink.url's role exists.",
                "Create one, or let the role's search_path have one that exists (ALTER ROLE … SET search_path).",
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

    def inspect_all(self, targets: Iterable[TargetName]) -> dict[TargetName, TargetTable]:
        return read_tables(self.query, targets)

    def key_orders(
        self, target: TargetName, existing: TargetTable, columns: Sequence[str]
    ) -> tuple[frozenset[str], ...]:
        """See `tidemark.sinks.mirror.target.Session`."""
        types = {column.name: column.type_name for column in existing.columns if column.name in columns}
        texts = [name for name, type_name in types.items() if type_name in TEXTS_BY_COLLATION]
        by_collation: dict[str, str | None] = {}
        if texts:
            found = self.query(text_orders_query(self._connection.server_version), (full_name(target), texts))
            by_collation = {name: text_order(*facts) for name, *facts in found}
        return tuple(orders_of_postgres(types.get(name, ""), by_collation.get(name)) for name in columns)

    def is_empty(self, target: TargetName) -> bool:
        return not self.query(f"SELECT 1 FROM {full_name(target)} LIMIT 1")

    def has_row(self, target: TargetName, condition: str) -> bool:
        return bool(self.query(f"SELECT 1 FROM {full_name(target)} WHERE {condition} LIMIT 1"))

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
            "incarnation varchar(64), PRIMARY KEY (target_schema, target_table))",
            doing=doing,
        )
        self._add_incarnation()
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

    def make_types(self, target: TargetName, columns: Sequence[Column], taken: Collection[str] = ()) -> PostgresDialect:
        """See `tidemark.sinks.mirror.target.Session`. Columns of types that can't be had are text."""
        types: dict[tuple[str, str], str] = {}
        for named in dict.fromkeys(column.named_type for column in columns):
            if named is not None:
                found = self._citext() if named.labels is None else self._made_enum(target.schema, named, taken)
                types |= {} if found is None else {(named.schema, named.name): found}
        return replace(self._dialect, types=types)

    def _citext(self) -> str | None:
        found = self.query(
            "SELECT quote_ident(n.nspname) || '.citext' FROM pg_extension x "
            "JOIN pg_depend d ON d.refobjid = x.oid AND d.refclassid = 'pg_extension'::regclass "
            "JOIN pg_type t ON t.oid = d.objid AND d.classid = 'pg_type'::regclass AND t.typname = 'citext' "
            "JOIN pg_namespace n ON n.oid = t.typnamespace "
            "WHERE x.extname = 'citext' AND has_schema_privilege(n.oid, 'USAGE') AND has_type_privilege(t.oid, 'USAGE')"
        )
        return str(found[0][0]) if found else None

    def _made_enum(self, schema: str, named: NamedType, taken: Collection[str]) -> str | None:
        """Returns an enum of the schema that has the source's labels. None if something else has its name, if another role's
        lacks labels, or if it can't have that name or these labels."""
        name, labels = enum_name(named, schema), named.labels or ()
        if name in taken or not self.dialect.name_fits(name) or not all(map(_is_label, labels)):
            return None
        enum = full_name(TargetName(schema, name))
        doing = f"creating type {enum}"
        self.execute("SELECT pg_advisory_xact_lock(hashtext('tidemark'))", doing=doing)  # other jobs may create it
        found = self.query(
            "SELECT t.typtype = 'e' AND has_type_privilege(t.oid, 'USAGE'), pg_has_role(t.typowner, 'USAGE'), "
            "ARRAY(SELECT l.enumlabel::text FROM pg_enum l WHERE l.enumtypid = t.oid) "
            "FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname = %s AND t.typname = %s",
            (schema, name),
        )
        if not found:
            self.execute(f"CREATE TYPE {enum} AS ENUM ({', '.join(map(text_literal, labels))})", doing=doing)
        self.end_transaction(doing)
        failpoint("sink.after_type")
        if not found:
            return enum
        ((usable, owned, there),) = found
        if not usable or not (owned or set(labels) <= set(there)):
            return None
        self.add_labels(enum, labels)
        return enum

    def add_labels(self, enum: str, labels: Sequence[str]) -> None:
        """See `tidemark.sinks.mirror.target.Session`."""
        doing = f"adding labels to {enum}"
        sql = "SELECT enumlabel::text FROM pg_enum WHERE enumtypid = %s::regtype ORDER BY enumsortorder"
        existing = [label for (label,) in self.query(sql, (enum,))]
        for label, before, after in places(existing, labels):
            place = "" if before is None else f" BEFORE {text_literal(before)}"
            place += "" if after is None else f" AFTER {text_literal(after)}"
            self.execute(f"ALTER TYPE {enum} ADD VALUE IF NOT EXISTS {text_literal(label)}{place}", doing=doing)
        self.end_transaction(doing)

    def replace_key(self, target: TargetName, existing: TargetTable, clauses: Sequence[str]) -> None:
        """See `tidemark.sinks.mirror.target.Session`. One transaction, which keeps all others from the table. Its
        TRUNCATE makes the table another one."""
        doing = f"giving {target} another key"
        self.execute(f"SET LOCAL lock_timeout = '{KEY_LOCK_SECONDS}s'", doing=doing)
        self.execute(f"LOCK TABLE {full_name(target)} IN ACCESS EXCLUSIVE MODE", doing=doing)
        now = self.inspect(target)
        if now is None or (now.incarnation, now.key) != (existing.incarnation, existing.key):
            self.rollback()
            return
        self.execute(f"TRUNCATE {full_name(target)}", doing=doing)
        self.execute(self.dialect.alter_table(target, clauses), doing=doing)
        self.end_transaction(doing)

    def dependents(self, target: TargetName, columns: Sequence[str]) -> list[str]:
        """See `tidemark.sinks.mirror.target.Session`. Also of partitions. Constraints and statistics, too: the server would
        drop them with the column."""
        found = self.query(
            "SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid) "
            "FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
            "LEFT JOIN pg_attrdef f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid "
            "LEFT JOIN pg_constraint c ON d.classid = 'pg_constraint'::regclass AND c.oid = d.objid "
            "WHERE d.refclassid = 'pg_class'::regclass AND a.attname = ANY (%s) "
            "AND (d.refobjid = %s OR d.refobjid IN (SELECT relid FROM pg_partition_tree(%s))) "
            "AND f.adnum IS DISTINCT FROM a.attnum "  # the column's own default
            "AND c.contype IS DISTINCT FROM 'n' "  # its NOT NULL, since PostgreSQL 18
            "ORDER BY 1",
            (list(columns), *([self._oid(target)] * 2)),
        )
        return [text for (text,) in found]

    # Writing

    def start_transaction(self) -> None:
        """psycopg2 begins one with the next statement."""
        self.rollback()

    def now(self) -> str:
        sql = """SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"Z"')"""
        return str(self.query(sql)[0][0])

    def rows(
        self,
        target: TargetName,
        schema: TableSchema,
        existing: TargetTable,
        removed: Sequence[Column] = (),
        *,
        repeats: bool = False,
    ) -> TableRows:
        return PostgresTableRows(self, self._dialect, target, schema, existing, removed, repeats=repeats)

    def comparing(
        self, target: TargetName, schema: TableSchema, existing: TargetTable
    ) -> tuple[PostgresComparing, PostgresTableRows]:
        enums = enums_of(schema, existing, self._dialect)
        columns = (_as_text(column) if column.name in enums else column for column in existing.columns)
        rows = PostgresTableRows(self, self._dialect, target, schema, replace(existing, columns=tuple(columns)))
        return PostgresComparing(self, target, enums), rows

    def end_transaction(self, doing: str) -> None:
        self.savepoints = 0
        try:
            self._connection.commit()
        except psycopg2.Error as exc:
            raise postgres_errors.sink_error(exc, doing) from exc

    def rollback(self) -> None:
        self.savepoints = 0
        try:
            self._connection.rollback()
        except psycopg2.Error as exc:
            raise postgres_errors.sink_error(exc, "rolling back") from exc

    def wait_for_locks(self, seconds: int) -> None:
        doing = "setting lock_timeout"
        self.execute(f"SET lock_timeout = '{int(seconds)}s'", doing=doing)
        self.end_transaction(doing)  # a rollback would undo it

    def writers(self, prefix: str) -> dict[int, str]:
        found = self.query(
            "SELECT pid, application_name FROM pg_catalog.pg_stat_activity WHERE datname = current_database() "
            "AND usename = current_user AND pid <> pg_backend_pid() AND starts_with(application_name, %s)",
            (prefix,),
        )
        self.rollback()
        return dict(found)

    def end_session(self, session_id: int) -> None:
        self.query("SELECT pg_catalog.pg_terminate_backend(%s)", (session_id,))
        self.rollback()

    def close(self) -> None:
        """Closes the connection, which rolls back an open transaction."""
        self._connection.close()


def _is_label(text: str) -> bool:
    """False for labels of a source with other encodings that PostgreSQL could not store in UTF-8."""
    return len(text.encode()) <= MAX_NAME_BYTES


def _as_text(column: TargetColumn) -> TargetColumn:
    return replace(column, type_name="text", sql_type="text", value_range=Text())


def connect(
    endpoint: Endpoint,
    tls: Tls | None,
    source_kind: DatabaseKind,
    reconnect: Reconnect = AT_START,
    *,
    name: str = "tidemark mirror",
) -> PostgresSession:
    """`name`: the session's name in the server. Raises SinkError; SinkUnavailableError if the server stays out of reach."""
    doing = f"to let {endpoint.user} in at {endpoint.host}:{endpoint.port}"
    return open_session(
        Waiting(reconnect, endpoint),
        lambda: _open(endpoint, tls, name),
        lambda connection: PostgresSession(connection, source_kind),
        psycopg2.Error,
        lambda error: postgres_errors.sink_error(error, doing),
    )


def _open(endpoint: Endpoint, tls: Tls | None, name: str) -> Connection:
    connection: Connection = psycopg2.connect(**connection_settings(endpoint, tls, name))
    return connection
