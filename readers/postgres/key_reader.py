"""Reads the rows of some keys again, exactly as one transaction's snapshot has them.

    BEGIN REPEATABLE READ READ ONLY → LOCK TABLE → snapshot, log's end → of each table: shape; SELECT, SELECT, …

All of an epoch's readings are of one snapshot, unless its connection is lost: what is done to rows after it makes no
further reading needed in this epoch.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

from readers.postgres.connect import Connection, error_code, quote_literal, quote_table
from readers.postgres.copy_rows import copy_rows
from readers.postgres.key_columns import KeyColumn, TableKey, read_key
from readers.postgres.key_text import key_expression, key_text, whole_key_text
from readers.postgres.session import SqlSession
from readers.postgres.snapshot import SnapshotSource, require_shape, select_where, take_snapshot
from readers.published_points import NO_SPLIT
from readers.split_read import SplitRead
from readers.split_reader import RetryingSplitReader
from state.position import Position, WalPosition
from state.split import KeyRange, Report, Split
from state.table import TableId, TableSchema


class KeyReader(RetryingSplitReader[Connection]):
    """Of the tables of `schemas`. snapshot.where has no say: it never limits changes."""

    table_is_gone: ClassVar[frozenset[str]] = frozenset({"42P01", "42703", "3F000"})
    _error_code = staticmethod(error_code)

    def __init__(self, source: SnapshotSource, schemas: Mapping[TableId, TableSchema]) -> None:
        super().__init__(SqlSession(source.connect))
        self._source, self._schemas = source, schemas
        self._wanted = pa.RecordBatch.from_pydict({})
        self._begun: tuple[Connection, WalPosition, int] | None = None
        self._keys: dict[TableId, TableKey] = {}

    def texts(self, schema: TableSchema, rows: pa.RecordBatch | pa.Table) -> pa.LargeStringArray:
        """Of the rows' keys: equal for equal ones, byte for byte. A collation may take others for equal, too."""
        columns = [rows.column(name) for name in schema.key]
        return whole_key_text([c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns])

    def read_again(self, schema: TableSchema, rows: pa.RecordBatch) -> SplitRead:
        """What the snapshot has under the keys of `rows`, in any order; under equal ones of a collation, too. Errors as
        `read`."""
        self._wanted = rows.select(list(schema.key))
        whole = Split(NO_SPLIT, schema.table, schema.version, schema.key, KeyRange(None, None))
        return self.read(whole, schema, self._source.start)

    def begin_anew(self) -> None:
        """What is read from now on is of a later snapshot."""
        self._session.close()
        self._begun = None

    def _read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        connection = self._session.connection
        high, taken_at_us = self._snapshot(connection)
        if schema.table not in self._keys:
            key = read_key(connection, schema.table, split.columns)
            require_shape(key, schema)
            self._keys[schema.table] = key
        key = self._keys[schema.table]
        query = select_where(schema, key, one_of(key.columns, self._wanted.columns))
        rows = copy_rows(connection, query, schema, in_memory=schema.table in self._source.masked)
        report = Report(split.id, split.table, split.schema_version, high, rows.num_rows, 0)
        return SplitRead(report, rows, taken_at_us)

    def _snapshot(self, connection: Connection) -> tuple[WalPosition, int]:
        """Of the transaction that is open on this connection; begins it. See `snapshot.SplitReader` for the locks."""
        if self._begun is None or self._begun[0] is not connection:
            self._keys.clear()
            tables = ", ".join(quote_table(table) for table in sorted(self._schemas))
            with connection.cursor() as cursor:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                cursor.execute(f"LOCK TABLE {tables} IN ACCESS SHARE MODE")
            self._begun = (connection, *take_snapshot(connection))
        return self._begun[1:]


def one_of(keys: Sequence[KeyColumn], values: Sequence[pa.Array]) -> str:
    """SQL that is true for the rows with these keys: of each its index is searched."""
    equal = [
        [
            f"{key.sql} OPERATOR({key.operators}.=) {key_expression(array.type, quote_literal(text), key.type)}"
            for text in key_text(array).to_pylist()
        ]
        for key, array in zip(keys, values, strict=True)
    ]
    return " OR ".join(f"({' AND '.join(parts)})" for parts in zip(*equal, strict=True))
