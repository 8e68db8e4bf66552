"""Reads one split of a table, exactly as its transaction's own snapshot has it.

    BEGIN REPEATABLE READ READ ONLY → LOCK TABLE → snapshot, log's end → the table's shape → SELECT → COMMIT

- The snapshot says which transactions the rows contain, so nothing is replayed. The log's end, taken after it, lies behind
  every commit that it contains.
- The lock is the one that a SELECT takes. It comes first because a DDL that rewrites a table, and TRUNCATE, make it look
  empty to snapshots that are older than themselves: no DDL comes between snapshot, shape and SELECT.
- A split by pages is read under the snapshot that it shares with the others of its table.
- `where` (snapshot.where) limits what the SELECT reads. It never limits changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from conf.endpoint import Endpoint
from conf.source import Tls
from readers.postgres.connect import Connection, connect, error_code, quote_table
from readers.postgres.copy_rows import copy_rows
from readers.postgres.key_columns import KeyColumn, TableKey, range_condition, read_key
from readers.postgres.pages import take_over
from readers.postgres.server import ServerIdentity, require_identity
from readers.postgres.session import SqlSession
from readers.postgres.types import select_expression
from readers.split_read import SplitRead
from readers.split_reader import RetryingSplitReader, columns_are_gone
from state.errors import SourceNotUsableError
from state.failpoints import failpoint
from state.position import Position, WalPosition
from state.split import Collect, Report, SharedSnapshot, Split
from state.table import TableId, TableSchema

_PLACE = KeyColumn("ctid", "tid", "pg_catalog", None)
# The target list is evaluated after the snapshot was taken.
_TAKE = """
SELECT pg_current_snapshot()::text,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint END,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
"""


def _nothing() -> None:
    pass


Hook = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ReadHooks:
    """Called at these moments of each read; tests change the source there."""

    before_snapshot: Hook = _nothing
    after_snapshot: Hook = _nothing
    after_select: Hook = _nothing


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """Where and how splits are read; travels to executors. `start` is the job's, `where` snapshot.where,
    `masked` the tables whose rows must not be written as they are."""

    endpoint: Endpoint
    tls: Tls | None
    identity: ServerIdentity
    start: WalPosition
    where: Mapping[TableId, str] = field(default_factory=dict)
    masked: frozenset[TableId] = frozenset()

    def connect(self) -> Connection:
        """Raises LogPositionLostError for another server than the job's."""
        connection = connect(self.endpoint, self.tls)
        try:
            require_identity(connection, self.identity)
        except BaseException:
            connection.close()
            raise
        return connection


class SplitReader(RetryingSplitReader[Connection]):
    """The high of what it reads carries the snapshot; an anchor is not needed."""

    table_is_gone: ClassVar[frozenset[str]] = frozenset({"42P01", "42703", "3F000"})
    _error_code = staticmethod(error_code)

    def __init__(self, source: SnapshotSource, *, hooks: ReadHooks | None = None) -> None:
        super().__init__(SqlSession(source.connect))
        self._source = source
        self._hooks = ReadHooks() if hooks is None else hooks

    def _read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        connection, hooks = self._session.connection, self._hooks
        hooks.before_snapshot()
        with connection.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"LOCK TABLE {quote_table(schema.table)} IN ACCESS SHARE MODE")
        if isinstance(split.pages, Collect):
            shared = split.pages.snapshot
            if not take_over(connection, schema.table, shared):
                return self._void(split, schema, shared)
            high, taken_at_us = shared.high, shared.taken_at_us
        else:
            high, taken_at_us = take_snapshot(connection)
        failpoint("snapshot.after_low")
        hooks.after_snapshot()
        key = read_key(connection, schema.table, split.columns)
        require_shape(key, schema)
        rows = copy_rows(
            connection, self._query(split, schema, key), schema, in_memory=schema.table in self._source.masked
        )
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")
        failpoint("snapshot.after_select")
        hooks.after_select()
        report = Report(
            split.id,
            split.table,
            split.schema_version,
            high,
            rows.num_rows,
            0,
            low=WalPosition(high.lsn),
            kind="read" if split.pages is None else "collected",
        )
        before_the_log = self._source.start.lsn - 1  # what the snapshot lacks may have its commit before the high
        return SplitRead(report, rows, taken_at_us, before_the_log)

    def _void(self, split: Split, schema: TableSchema, shared: SharedSnapshot) -> SplitRead:
        with self._session.connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
        report = Report(split.id, split.table, split.schema_version, shared.high, 0, 0, kind="void")
        return SplitRead(report, schema.arrow_schema().empty_table(), shared.taken_at_us, self._source.start.lsn - 1)

    def _query(self, split: Split, schema: TableSchema, key: TableKey) -> str:
        condition = range_condition(key.columns or (_PLACE,), split.range)
        where = self._source.where.get(schema.table)
        if where is not None:
            condition = f"({condition}) AND (\n{where}\n)"
        return select_where(schema, key, condition)


def select_where(schema: TableSchema, key: TableKey, condition: str) -> str:
    columns = ", ".join(select_expression(column) for column in schema.captured)
    return f"SELECT {columns} FROM {key.relation} WHERE {condition}"


def take_snapshot(connection: Connection) -> tuple[WalPosition, int]:
    """The transaction's own snapshot, and when it was taken, microseconds since 1970."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE)
        taken = cursor.fetchone()
    assert taken is not None
    snapshot, lsn, taken_at_us = taken
    if lsn is None:
        raise _standby()
    return WalPosition(lsn, snapshot), taken_at_us


def require_shape(key: TableKey, schema: TableSchema) -> None:
    """Raises SchemaChangedError unless the table still has the columns of `schema`."""
    if key.shape != tuple((c.name, c.source_type, c.collation) for c in schema.columns):
        raise columns_are_gone(f"{schema.table} no longer has the columns that it had when the job began.")


def _standby() -> SourceNotUsableError:
    return SourceNotUsableError(
        "The server is a standby: its snapshots do not say which transactions are still running.",
        "Name the primary in source.url.",
    )
