"""Split keys of PostgreSQL tables: first and last key, split boundaries, and the splits that changed rows belong to.

A key of one integer column is encoded as in state/key_encoding.py. Only the server can order any other key, by its collation
or its type's rule. Such a boundary is encoded as its ordinal among the table's boundaries, eight bytes, then its literals as
JSON. The server uses the literals to find the split of a changed key.
"""

import json
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import psycopg2
import pyarrow as pa

from tidemark.readers.log.gap_filter import FinishedSplits
from tidemark.readers.postgres.keys.key_columns import (
    KeyColumn,
    TableKey,
    column_list,
    compared,
    range_condition,
    read_key,
)
from tidemark.readers.postgres.keys.key_text import array_literal, key_expression, key_text
from tidemark.readers.postgres.schema.statistics import table_statistics
from tidemark.readers.postgres.session import SqlSession
from tidemark.readers.postgres.slot.open_transactions import still_unseen
from tidemark.readers.postgres.snapshot.pages import SharedSnapshots, page_statistics
from tidemark.state import marks
from tidemark.state.errors import SchemaChangedError, SourceNotUsableError
from tidemark.state.key_encoding import encode_integer
from tidemark.state.key_statistics import IntegerKey, KeyStatistics, PageStatistics, TableSize
from tidemark.state.position import Position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.split import Bound, KeyRange, SharedSnapshot
from tidemark.state.table import TableId, TableSchema

_ORDINAL = struct.Struct(">Q")
_MAX_ORDINAL = (1 << 64) - 1
"""The ordinal of the greatest key at planning, where the table's open tail begins: after all other boundaries."""

_SIGN = 1 << 63


class PostgresKeys:
    """Implements `SharesSnapshots`, and finds the splits of changed rows. `schemas`: those of the job's tables."""

    def __init__(self, session: SqlSession, schemas: Mapping[TableId, TableSchema]) -> None:
        self._session = session
        self._schemas = schemas
        self._shared = SharedSnapshots(session.another)
        self._known: dict[tuple[TableId, tuple[str, ...]], TableKey] = {}
        self._sizes: dict[TableId, TableSize] = {}

    def size(self, table: TableId) -> TableSize:
        """See state/key_source.py."""
        if table not in self._sizes:
            found = self._session.ask(lambda connection: table_statistics(connection, table))
            self._sizes[table] = TableSize(found.row_estimate, found.data_bytes)
        return self._sizes[table]

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        """See state/key_source.py."""
        key = self.key(table, columns)
        greatest = self._end(key, " DESC")
        statistics = self._session.ask(lambda connection: table_statistics(connection, table))
        integers = None
        if greatest is not None and key.is_integer and self._schemas[table].key == columns:
            least = self._end(key, "")
            if least is not None:
                first, last = int(least[0]), int(greatest[0])
                integers = IntegerKey(first, max(first, last), unsigned=False)
        bound = None if greatest is None else _bound(key, greatest, _MAX_ORDINAL)
        return KeyStatistics(bound, integers, statistics.row_estimate, statistics.average_row_bytes)

    def next_bounds(
        self,
        table: TableId,
        columns: tuple[str, ...],
        *,
        after: Bound | None,
        until: Bound | None,
        rows: int,
        count: int,
    ) -> Sequence[Bound]:
        """See state/key_source.py. One round trip per boundary, which reads `rows` entries of the index."""
        if rows < 1:
            raise ValueError(f"{rows} rows between two boundaries")
        key = self.key(table, columns)
        bounds: list[Bound] = []
        ordinal = 0 if after is None or key.is_integer else _ordinal(after) + 1
        while len(bounds) < count:
            texts = self._next(key, KeyRange(bounds[-1] if bounds else after, until), rows)
            if texts is None:
                break
            bounds.append(_bound(key, texts, ordinal + len(bounds)))
        return bounds

    def bounds_of(self, table: TableId, columns: tuple[str, ...], rows: pa.RecordBatch) -> Sequence[Bound] | None:
        """`tidemark.readers.source.BoundsKeys`. The server writes the literals: it knows its types."""
        key, values = self.key(table, columns), [rows.column(name) for name in columns]
        if any(pa.types.is_timestamp(array.type) and marks.too_late(array) is not None for array in values):
            return None
        try:
            texts = self._session.query(_texts_query(key.columns, values))
        except ValueError:  # a text with a NUL, which no text of PostgreSQL has
            return None
        except SourceNotUsableError as error:
            if isinstance(error.__cause__, psycopg2.DataError):  # such as a label of an enum that is gone
                return None
            raise
        return [_bound(key, found, 0) for found in texts]

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        """See state/key_source.py."""
        return not unseen or not self.unseen(unseen)

    def unseen(self, transactions: Sequence[int] | npt.NDArray[np.int64]) -> tuple[int, ...]:
        """Returns those of the committed transactions (32-bit ids) that later SELECTs may not see yet."""
        wanted = {int(xid) for xid in transactions}
        return tuple(sorted(self._session.ask(lambda connection: still_unseen(connection, wanted))))

    def pages(self, table: TableId) -> PageStatistics | None:
        """See state/key_source.py."""
        return self._session.ask(lambda connection: page_statistics(connection, table))

    def share_snapshot(self, table: TableId) -> SharedSnapshot:
        """See state/key_source.py."""
        return self._shared.share(self._schemas[table])

    def is_shared(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        """See state/key_source.py."""
        return self._shared.holds(table, snapshot)

    def release_snapshot(self, table: TableId) -> None:
        """See state/key_source.py."""
        self._shared.release(table)

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, finished_splits: FinishedSplits
    ) -> npt.NDArray[np.int64]:
        """Returns the index in `finished_splits` of each row's split. `rows` has the table's captured columns, as the readers
        deliver them. Unless the key is one integer, one query lets the server sort keys and boundaries together."""
        values = [rows.column(name) for name in columns]
        for name, array in zip(columns, values, strict=True):
            if array.null_count:
                raise ValueError(f"{schema.table} has a null in its key column {name}")
        if not len(finished_splits.boundaries) or not rows.num_rows:
            return np.zeros(rows.num_rows, np.int64)
        key = self.key(schema.table, columns)
        if key.is_integer:
            numbers = values[0].cast(pa.int64()).to_numpy(zero_copy_only=False)
            return finished_splits.owners(numbers.view(np.uint64) ^ np.uint64(_SIGN))
        sql = _owners_query(key.columns, values, finished_splits.boundaries)
        try:
            answer: str = self._session.query(sql)[0][0]
        except SourceNotUsableError as error:
            if isinstance(error.__cause__, psycopg2.DataError):  # such as a label of an enum that was renamed since
                raise SchemaChangedError(
                    f"{schema.table} has keys in the log that the types of its key do not have any more: {error.message}",
                    START_OVER_NOW,
                    schema.table,
                ) from error
            raise
        return np.fromstring(answer, np.int64, sep=",")

    def key(self, table: TableId, columns: tuple[str, ...]) -> TableKey:
        """Reads the key once, then returns it from memory."""
        known = self._known.get((table, columns))
        if known is None:
            known = self._session.ask(lambda connection: read_key(connection, table, columns))
            self._known[table, columns] = known
        return known

    def _end(self, key: TableKey, direction: str) -> list[str] | None:
        order = column_list(key.columns, direction)
        found = self._session.query(f"SELECT {_texts(key.columns)} FROM {key.relation} ORDER BY {order} LIMIT 1")
        return list(found[0]) if found else None

    def _next(self, key: TableKey, key_range: KeyRange, rows: int) -> list[str] | None:
        """Returns the first key after the `rows`th key from key_range.start on; None if there is none."""
        found = self._session.query(next_bound_query(key, key_range, rows))
        return list(found[0]) if found else None


def next_bound_query(key: TableKey, key_range: KeyRange, rows: int) -> str:
    order = column_list(key.columns)
    last = [f"last.c{i}" for i in range(len(key.columns))]
    aliased = ", ".join(f"{column.sql} AS c{i}" for i, column in enumerate(key.columns))
    beyond = f"{compared(key.columns, '>', last)} AND {range_condition(key.columns, KeyRange(None, key_range.end))}"
    return (
        f"SELECT following.* FROM (SELECT {aliased} FROM {key.relation} "
        f"WHERE {range_condition(key.columns, key_range)} ORDER BY {order} LIMIT 1 OFFSET {rows - 1}) AS last, "
        f"LATERAL (SELECT {_texts(key.columns)} FROM {key.relation} WHERE {beyond} ORDER BY {order} LIMIT 1) "
        "AS following"
    )


def _texts(columns: Sequence[KeyColumn]) -> str:
    """Selects the values as text by the types' output functions. For some types a cast to text is another function."""
    return ", ".join(f"concat({column.sql})" for column in columns)


def _texts_query(keys: Sequence[KeyColumn], values: Sequence[pa.Array]) -> str:
    """Selects keys as `_texts` does, in their order."""
    arrays = ", ".join(array_literal(key_text(array)) for array in values)
    names = ", ".join(f"t{i}" for i in range(len(keys)))
    texts = ", ".join(
        f"concat({key_expression(array.type, f't{i}', key.type)})"
        for i, (key, array) in enumerate(zip(keys, values, strict=True))
    )
    return f"SELECT {texts} FROM unnest({arrays}) WITH ORDINALITY AS given({names}, n) ORDER BY n"


def _bound(key: TableKey, texts: Sequence[str], ordinal: int) -> Bound:
    if key.is_integer:
        return Bound(tuple(texts), encode_integer(int(texts[0]), unsigned=False).hex())
    return Bound(tuple(texts), (_ORDINAL.pack(ordinal) + json.dumps(texts).encode()).hex())


def _ordinal(bound: Bound) -> int:
    ordinal: int = _ORDINAL.unpack_from(bytes.fromhex(bound.encoded_key))[0]
    return ordinal


def _owners_query(keys: Sequence[KeyColumn], values: Sequence[pa.Array], boundaries: pa.LargeBinaryArray) -> str:
    """A key's split is the number of boundaries less than or equal to it. The window frame includes the peers of its row."""
    ends = zip(*(json.loads(boundary[_ORDINAL.size :]) for boundary in boundaries.to_pylist()), strict=True)
    key_sql = [
        key_expression(array.type, f"t{i}", key.type) for i, (key, array) in enumerate(zip(keys, values, strict=True))
    ]
    boundary_sql = [f"t{i}::{key.type}" for i, key in enumerate(keys)]
    values_sql = (
        f"{_values('false', key_sql, [key_text(array) for array in values])} UNION ALL "
        f"{_values('true', boundary_sql, [pa.array(texts, pa.large_string()) for texts in ends])}"
    )
    collated = [f"c{i} COLLATE {key.collation}" if key.collation else f"c{i}" for i, key in enumerate(keys)]
    return (
        "SELECT string_agg(split::text, ',' ORDER BY n) FILTER (WHERE NOT is_boundary) FROM ("
        f"SELECT is_boundary, n, count(*) FILTER (WHERE is_boundary) OVER (ORDER BY {', '.join(collated)}) AS split "
        f"FROM ({values_sql}) AS given) AS counted"
    )


def _values(is_boundary: str, expressions: Sequence[str], texts: Sequence[pa.LargeStringArray]) -> str:
    selected = ", ".join(f"{expression} AS c{i}" for i, expression in enumerate(expressions))
    arrays = ", ".join(map(array_literal, texts))
    names = ", ".join(f"t{i}" for i in range(len(texts)))
    return (
        f"SELECT {is_boundary} AS is_boundary, n, {selected} FROM unnest({arrays}) WITH ORDINALITY AS given({names}, n)"
    )
