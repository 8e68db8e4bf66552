"""Re-reads the rows of keys, all under one transaction's snapshot.

    BEGIN REPEATABLE READ READ ONLY → lock (read_locks.py) → snapshot, log's end → for each table: shape; SELECT, SELECT, …

All re-reads of an epoch use one snapshot, unless its connection is lost. Changes after that snapshot need no further re-read
in this epoch.
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

import psycopg2
import pyarrow as pa

from tidemark.readers.log.published_rereads import NO_SPLIT
from tidemark.readers.postgres.connect import Connection, error_code, error_text, quote_literal
from tidemark.readers.postgres.keys.key_columns import KeyColumn, TableKey, read_key
from tidemark.readers.postgres.keys.key_text import array_literal, key_expression, key_text, whole_key_text
from tidemark.readers.postgres.session import SqlSession, will_pass
from tidemark.readers.postgres.slot.slot import await_flush
from tidemark.readers.postgres.snapshot.copy_rows import copy_rows
from tidemark.readers.postgres.snapshot.locks import locked_error
from tidemark.readers.postgres.snapshot.read_locks import locked
from tidemark.readers.postgres.snapshot.split_reader import (
    Snapshots,
    SnapshotSource,
    require_shape,
    select_where,
)
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.readers.snapshot.split_reader import RetryingSplitReader
from tidemark.state.errors import TableLockedError, concerning
from tidemark.state.position import Position, WalPosition
from tidemark.state.split import KeyRange, Report, Split
from tidemark.state.table import TableId, TableSchema

_OF_SEVERAL_FORMS = re.compile(r"(?:numeric|interval|jsonb|numrange|nummultirange)(?:\[\])?")
"""Types with equal values that have different texts, and that a copy may have, too: 1.0 and 1.00, 1 mon and 30 days. A column
of numeric with a scale has one text for each value."""


class KeyReader(RetryingSplitReader[Connection]):
    """Re-reads rows of the tables of `schemas`. snapshot.where is ignored: it never limits changes."""

    table_is_gone: ClassVar[frozenset[str]] = frozenset({"42P01", "42703", "3F000"})
    _error_code = staticmethod(error_code)

    def __init__(self, source: SnapshotSource, schemas: Mapping[TableId, TableSchema]) -> None:
        super().__init__(SqlSession(source.connect))
        self._source, self._schemas = source, schemas
        self._snapshots = Snapshots(source, self._session)
        self._wanted = pa.RecordBatch.from_pydict({})
        self._begun: tuple[Connection, WalPosition, int] | None = None
        self._keys: dict[TableId, TableKey] = {}
        self._types: dict[TableId, tuple[KeyColumn, ...]] = {}

    def texts(self, schema: TableSchema, rows: pa.RecordBatch | pa.Table) -> pa.LargeStringArray:
        """Returns one text per row's key. Equal keys have equal texts, byte for byte, also 1.0 and 1.00. A collation may take
        other keys as equal too: a copy keeps them apart."""
        columns = [rows.column(name) for name in schema.key]
        values = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
        if not rows.num_rows or not any(pa.types.is_string(array.type) for array in values):
            return whole_key_text(values)
        several = [
            pa.types.is_string(array.type) and _OF_SEVERAL_FORMS.fullmatch(key.type) is not None
            for key, array in zip(self._columns(schema), values, strict=True)
        ]
        if not any(several):
            return whole_key_text(values)
        keys = [key for key, is_one in zip(self._columns(schema), several, strict=True) if is_one]
        hashed = [array for array, is_one in zip(values, several, strict=True) if is_one]
        with concerning(schema.table):
            answer: str = self._session.query(_hashes_query(keys, hashed))[0][0]
        others = [array for array, is_one in zip(values, several, strict=True) if not is_one]
        return whole_key_text([*others, pa.array(answer.split(","), pa.string())])

    def _columns(self, schema: TableSchema) -> tuple[KeyColumn, ...]:
        if schema.table not in self._types:
            with concerning(schema.table):
                key = self._session.ask(lambda connection: read_key(connection, schema.table, schema.key))
            self._types[schema.table] = key.columns
        return self._types[schema.table]

    def read_again(self, schema: TableSchema, rows: pa.RecordBatch) -> SplitRead:
        """Returns the snapshot's rows with the keys of `rows`, in any order, and with keys that the collation takes as equal.
        Raises the same errors as `read`."""
        self._wanted = rows.select(list(schema.key))
        whole = Split(NO_SPLIT, schema.table, schema.version, schema.key, KeyRange(None, None))
        return self.read(whole, schema, self._source.start)

    def restart(self) -> None:
        """Drops the snapshot: the next read takes a later one."""
        self._session.close()
        self._begun = None

    def _locked(self, table: TableId, text: str) -> TableLockedError:
        others = sorted(other for other in self._schemas if other != table)
        return locked_error(self._session, [table, *others], text)  # all are locked at once

    def _read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        connection = self._session.connection
        high, taken_at_us = self._snapshot(connection)
        if schema.table not in self._keys:
            key = read_key(connection, schema.table, split.columns)
            require_shape(key, schema)
            self._keys[schema.table] = key
        key = self._keys[schema.table]
        query = select_where(schema, key, one_of(key.columns, self._wanted.columns))
        source = self._source
        rows = copy_rows(
            connection, query, schema, in_memory=schema.table in source.masked, bad_values=source.bad_values
        )
        await_flush(connection, high, self._session.another)
        report = Report(split.id, split.table, split.schema_version, high, rows.num_rows, 0)
        return SplitRead(report, rows, taken_at_us)

    def _snapshot(self, connection: Connection) -> tuple[WalPosition, int]:
        """Returns the snapshot of the connection's transaction, and begins the transaction if needed. For the locks see
        split_reader.py."""
        if self._begun is None or self._begun[0] is not connection:
            self._keys.clear()
            try:
                taken = self._snapshots.begin(
                    connection, [schema for _, schema in sorted(self._schemas.items())], self._source.start
                )
            except psycopg2.Error as error:
                if not will_pass(error, connection):
                    self._require_each(connection)
                raise
            self._begun = (connection, *taken)
        return self._begun[1:]

    def _require_each(self, connection: Connection) -> None:
        """Raises SourceNotUsableError for the table that can't be locked: not that whose keys are read."""
        for table, schema in sorted(self._schemas.items()):
            try:
                with connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")
                with locked(connection, self._session.another, [schema]):
                    pass
            except psycopg2.Error as error:
                if will_pass(error, connection):
                    raise
                raise self._refusal(table, error, error_text(error)) from error


def one_of(keys: Sequence[KeyColumn], values: Sequence[pa.Array]) -> str:
    """Returns SQL that is true for the rows with these keys. The server searches the key's index for each."""
    equal = [
        [
            f"{key.sql} OPERATOR({key.operators}.=) {key_expression(array.type, quote_literal(text), key.type)}"
            for text in key_text(array).to_pylist()
        ]
        for key, array in zip(keys, values, strict=True)
    ]
    return " OR ".join(f"({' AND '.join(parts)})" for parts in zip(*equal, strict=True))


def _hashes_query(keys: Sequence[KeyColumn], values: Sequence[pa.Array]) -> str:
    """Returns SQL for two hashes of 64 bits of each key, which are those of all keys that are equal to it. The types must have
    hash functions, as those of several forms do."""
    arrays = ", ".join(array_literal(key_text(array)) for array in values)
    names = ", ".join(f"t{i}" for i in range(len(values)))
    row = ", ".join(key_expression(a.type, f"t{i}", k.type) for i, (k, a) in enumerate(zip(keys, values, strict=True)))
    return (
        "SELECT string_agg(concat_ws(' ', hash_record_extended(key, 0), hash_record_extended(key, 1)), ',' ORDER BY n) "
        f"FROM (SELECT n, ROW({row}) AS key FROM unnest({arrays}) WITH ORDINALITY AS given({names}, n)) AS keys"
    )
