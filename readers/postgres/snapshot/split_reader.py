"""Reads one split of a table, exact under its transaction's snapshot.

    BEGIN REPEATABLE READ READ ONLY → lock (read_locks.py) → snapshot, log's end → the table's shape → SELECT → COMMIT

- The snapshot tells which transactions the rows contain, so nothing is replayed. The log's end is read after the snapshot,
  so it is after every commit that the snapshot contains.
- The lock is the one that a SELECT takes. It comes first: TRUNCATE and a DDL that rewrites the table make it look empty to
  older snapshots. With the lock no DDL can come between snapshot, shape and SELECT.
- A chunk is read under the exported snapshot of its attempt.
- `where` (snapshot.where) limits what the SELECT reads. It never limits changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import psycopg2

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.source import Tls
from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.postgres.connect import Connection, connect, error_code, limit_lock_waits
from tidemark.readers.postgres.keys.key_columns import (
    KeyColumn,
    TableKey,
    literals,
    range_condition,
    read_key,
    under_own_name,
)
from tidemark.readers.postgres.schema.identity import is_another_table
from tidemark.readers.postgres.schema.table_facts import labels_of
from tidemark.readers.postgres.schema.text_orders import certain, text_orders
from tidemark.readers.postgres.schema.types import select_expression
from tidemark.readers.postgres.server import ServerIdentity, require_identity
from tidemark.readers.postgres.session import SqlSession, is_of_storage
from tidemark.readers.postgres.slot.slot import await_flush, require_own_standby
from tidemark.readers.postgres.snapshot.copy_rows import copy_rows
from tidemark.readers.postgres.snapshot.locks import locked_error
from tidemark.readers.postgres.snapshot.pages import SnapshotGoneError, import_snapshot
from tidemark.readers.postgres.snapshot.read_locks import locked
from tidemark.readers.postgres.snapshot.standby import StandbySnapshots
from tidemark.readers.session import AskingSession
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.readers.snapshot.split_reader import Hook, RetryingSplitReader, columns_are_gone, no_hook
from tidemark.state.errors import CheckpointError, TableLockedError, UnreadableRowsError
from tidemark.state.failpoints import failpoint
from tidemark.state.position import Position, WalPosition, wal_position
from tidemark.state.remedies import RESTORE_CHECKPOINT
from tidemark.state.split import KeyRange, Report, SharedSnapshot, Split, StageChunk
from tidemark.state.table import TableId, TableSchema

_CTID = KeyColumn("ctid", "tid", "pg_catalog", None)
# The server evaluates the target list after it takes the snapshot.
_TAKE = """
SELECT pg_current_snapshot()::text,
       (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
"""


@dataclass(frozen=True, slots=True)
class ReadHooks:
    """Functions that each read calls at these points. Tests change the source there."""

    before_snapshot: Hook = no_hook
    after_snapshot: Hook = no_hook
    after_select: Hook = no_hook


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """Where and how splits are read. It is sent to executors. `start`: the job's start position. `where`: snapshot.where.
    `masked`: the tables whose rows must not be written to disk unmasked. `bad_values`: what becomes of values that their Arrow
    type can't hold. `standby_slot`: the job's slot if the server may be a standby (source.standby)."""

    endpoint: Endpoint
    tls: Tls | None
    identity: ServerIdentity
    start: WalPosition
    where: Mapping[TableId, str] = field(default_factory=dict)
    masked: frozenset[TableId] = frozenset()
    bad_values: BadValueRule = STOP
    reconnect: Reconnect = AT_START
    standby_slot: str | None = None

    def connect(self) -> Connection:
        """Connects. Raises LogPositionLostError if the server is not the job's."""
        return connect(
            self.endpoint,
            self.tls,
            reconnect=self.reconnect,
            primary=self.standby_slot is None,
            check=self._check,
        )

    def _check(self, connection: Connection) -> None:
        require_identity(connection, self.identity)
        if self.standby_slot is not None:
            require_own_standby(connection, self.standby_slot)
        limit_lock_waits(connection)


class Snapshots:
    """Begins the transactions of one reader."""

    def __init__(self, source: SnapshotSource, session: AskingSession[Connection]) -> None:
        self._session = session
        self._standby = None if source.standby_slot is None else StandbySnapshots(session.another)

    def begin(
        self, connection: Connection, schemas: Sequence[TableSchema], needed: WalPosition
    ) -> tuple[WalPosition, int]:
        """Begins a transaction with the tables locked, and returns its snapshot as a high, and its time in microseconds since
        1970. The snapshot contains the log up to `needed`, which nobody has read further: a standby is waited for."""
        if self._standby is not None:
            taken = self._standby.begin(connection, schemas, needed)
            return taken.high, taken.at_us
        with locked(connection, self._session.another, schemas):
            return take_snapshot(connection)


class SplitReader(RetryingSplitReader[Connection]):
    """Reads splits whose high is a snapshot. It contains the log up to the anchor: a standby is waited for."""

    table_is_gone: ClassVar[frozenset[str]] = frozenset({"42P01", "42703", "3F000"})
    _error_code = staticmethod(error_code)

    def __init__(self, source: SnapshotSource, *, hooks: ReadHooks | None = None) -> None:
        super().__init__(SqlSession(source.connect))
        self._source = source
        self._hooks = ReadHooks() if hooks is None else hooks
        self._snapshots = Snapshots(source, self._session)

    def text_orders(self, table: TableId, columns: Sequence[str]) -> Mapping[str, str]:
        """`tidemark.readers.source.OrdersTexts`."""
        found = self._session.ask(lambda connection: text_orders(connection, table, columns))
        if set(columns) - found.keys():
            raise columns_are_gone(table, f"{table}, or a column of its key, has another name now, or was dropped.")
        return certain(found)

    def _of_rows(self, table: TableId, error: Any, message: str) -> UnreadableRowsError:
        if not is_of_storage(error):
            return super()._of_rows(table, error, message)
        return UnreadableRowsError(
            message,
            "The table's files are damaged: look at the server's log and disk. REINDEX the table, or restore it from a backup, "
            "and run the job again. Or leave the table out: source.exclude_tables.",
            table,
        )

    def _locked(self, table: TableId, text: str) -> TableLockedError:
        return locked_error(self._session, [table], text)

    def _read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        connection, hooks = self._session.connection, self._hooks
        hooks.before_snapshot()
        shared = split.pages.snapshot if isinstance(split.pages, StageChunk) else None
        if shared is None:
            high, taken_at_us = self._snapshots.begin(connection, [schema], wal_position(anchor))
        else:
            try:
                with locked(connection, self._session.another, [schema]):
                    import_snapshot(connection, schema.table, shared)
            except SnapshotGoneError:
                return self._expired(split, schema, shared)
            high, taken_at_us = shared.high, shared.taken_at_us
        failpoint("snapshot.after_low")
        hooks.after_snapshot()
        key = read_key(connection, schema.table, split.columns)
        require_shape(key, schema)
        require_labels(connection, schema, split.columns)
        if schema.key:
            require_key(connection, schema)
        source = self._source
        try:
            rows = copy_rows(
                connection,
                self._query(split, schema, key),
                schema,
                in_memory=schema.table in source.masked,
                bad_values=source.bad_values,
            )
        except psycopg2.DataError:
            _require_bounds(connection, key, split.range)
            raise
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")
        await_flush(connection, high)
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
            kind="read" if split.pages is None else "staged",
        )
        # Changes that the snapshot lacks may have committed before the high.
        return SplitRead(report, rows, taken_at_us, self._source.start.version_before)

    def _expired(self, split: Split, schema: TableSchema, shared: SharedSnapshot) -> SplitRead:
        with self._session.connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
        report = Report(split.id, split.table, split.schema_version, shared.high, 0, 0, kind="expired")
        return SplitRead(
            report, schema.arrow_schema().empty_table(), shared.taken_at_us, self._source.start.version_before
        )

    def _query(self, split: Split, schema: TableSchema, key: TableKey) -> str:
        if not key.columns:
            key = replace(key, columns=(_CTID,))
        where = self._source.where.get(schema.table)
        if where is None:
            return select_where(schema, key, range_condition(key.columns, split.range))
        key = under_own_name(key, schema.table)
        return select_where(schema, key, f"({range_condition(key.columns, split.range)}) AND (\n{where}\n)")


def _require_bounds(connection: Connection, key: TableKey, split_range: KeyRange) -> None:
    """Raises CheckpointError if a bound of the split is no value of the key: plans are files."""
    for bound in filter(None, (split_range.start, split_range.end)):
        for column, value in zip(key.columns, literals(key.columns, bound.literals), strict=True):
            try:
                with connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")
                    cursor.execute(f"SELECT {value}")
            except psycopg2.DataError as error:
                raise CheckpointError(
                    f"The checkpoint has a split boundary that is not a value of {column.name}.",
                    f"Find out who changed the checkpoint's files. {RESTORE_CHECKPOINT}",
                ) from error


def select_where(schema: TableSchema, key: TableKey, condition: str) -> str:
    columns = ", ".join(select_expression(column) for column in schema.captured)
    return f"SELECT {columns} FROM {key.relation} WHERE {condition}"


def take_snapshot(connection: Connection) -> tuple[WalPosition, int]:
    """Returns the transaction's snapshot as a high, and its time in microseconds since 1970."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE)
        taken = cursor.fetchone()
    assert taken is not None
    snapshot, lsn, taken_at_us = taken
    return WalPosition(lsn, snapshot), taken_at_us


def require_shape(key: TableKey, schema: TableSchema) -> None:
    """Raises SchemaChangedError unless it is still the same table and has the columns of `schema`."""
    if key.oid != schema.oid:
        raise is_another_table(schema.table)
    if key.shape != tuple((c.number, c.name, c.source_type, c.collation) for c in schema.present):
        raise columns_are_gone(
            schema.table, f"{schema.table} no longer has the columns that it had when the job started."
        )


def require_labels(connection: Connection, schema: TableSchema, columns: Sequence[str]) -> None:
    """Raises SchemaChangedError unless the enums of the split key have the labels of `schema` in its order, perhaps among
    others. Otherwise the splits are not those that they were: a renamed label is no value any more, and a type that was made
    again may order its labels otherwise."""
    types = [schema.column(name).named_type for name in columns]
    wanted = {
        (found.schema, found.name): found.labels for found in types if found is not None and found.labels is not None
    }
    if not wanted:
        return
    now = labels_of(connection, wanted)
    for named, labels in wanted.items():
        if tuple(label for label in now.get(named, ()) if label in labels) != labels:
            raise columns_are_gone(
                schema.table,
                f"The enum {'.'.join(named)}, by which {schema.table} is split, no longer has the labels that it had, or "
                "orders them otherwise.",
            )


_KEYS = """
SELECT ARRAY(SELECT a.attname::text FROM generate_series(0, i.indnkeyatts - 1) AS k
             LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k] AND a.attnum > 0)
FROM pg_index AS i WHERE i.indisunique AND i.indpred IS NULL AND i.indrelid = %s"""


def require_key(connection: Connection, schema: TableSchema) -> None:
    """Raises SchemaChangedError unless the columns of the key are still unique. Otherwise rows of a split may have one key, and
    a copy refuses them. The transaction has the table locked."""
    with connection.cursor() as cursor:
        cursor.execute(_KEYS, (schema.oid,))
        found = [set(names) for (names,) in cursor.fetchall()]
    if set(schema.key) not in found:
        raise columns_are_gone(
            schema.table,
            f"The job finds rows of {schema.table} by ({', '.join(schema.key)}), which is not a key any more.",
        )
