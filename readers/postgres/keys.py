"""Split keys of PostgreSQL tables: their ends, where to cut them, and the splits that changed rows belong to.

A key of one integer column has the ranks of state/rank.py. Any other is ordered by the server alone, by the collation
or the type's own rule: the rank of such a bound is its place among the table's bounds, eight bytes, then its literals
as JSON, with which the server is asked again where a changed key belongs.
"""

import json
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from readers.gap_filter import TableRoutes
from readers.postgres.key_columns import KeyColumn, TableKey, column_list, compared, range_condition, read_key
from readers.postgres.key_text import array_literal, key_expression, key_text
from readers.postgres.pages import SharedSnapshots, page_statistics
from readers.postgres.session import SqlSession
from readers.postgres.statistics import table_statistics
from state.errors import SourceNotUsableError
from state.key_statistics import IntegerKey, KeyStatistics, PageStatistics
from state.rank import integer_rank
from state.split import Bound, KeyRange, SharedSnapshot
from state.table import TableId, TableSchema

_ORDINAL = struct.Struct(">Q")
_GREATEST_ORDINAL = (1 << 64) - 1
"""Of the greatest key, which begins a table's open range: behind all that are found by walking up to it."""

_SIGN = 1 << 63


class PostgresKeys:
    """The enumerator's KeySource, and the owners of changed rows. `schemas` are those of the job's tables."""

    def __init__(self, session: SqlSession, schemas: Mapping[TableId, TableSchema]) -> None:
        self._session = session
        self._schemas = schemas
        self._shared = SharedSnapshots(session.another)
        self._known: dict[tuple[TableId, tuple[str, ...]], TableKey] = {}

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        """See enumerator/source.py."""
        key = self.key(table, columns)
        greatest = self._end(key, " DESC")
        statistics = self._session.ask(lambda connection: table_statistics(connection, table))
        integers = None
        if greatest is not None and key.is_integer and self._schemas[table].key == columns:
            least = self._end(key, "")
            if least is not None:
                first, last = int(least[0]), int(greatest[0])
                integers = IntegerKey(first, max(first, last), unsigned=False)
        bound = None if greatest is None else _bound(key, greatest, _GREATEST_ORDINAL)
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
        """See enumerator/source.py. One round trip for a bound; reads the index only, `rows` entries for each."""
        if rows < 1:
            raise ValueError(f"{rows} rows between two bounds")
        key = self.key(table, columns)
        bounds: list[Bound] = []
        ordinal = 0 if after is None or key.is_integer else _ordinal(after) + 1
        while len(bounds) < count:
            texts = self._next(key, KeyRange(bounds[-1] if bounds else after, until), rows)
            if texts is None:
                break
            bounds.append(_bound(key, texts, ordinal + len(bounds)))
        return bounds

    def pages(self, table: TableId) -> PageStatistics | None:
        """See enumerator/source.py."""
        return self._session.ask(lambda connection: page_statistics(connection, table))

    def share_snapshot(self, table: TableId) -> SharedSnapshot:
        """See enumerator/source.py."""
        return self._shared.share(table)

    def is_shared(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        """See enumerator/source.py."""
        return self._shared.holds(table, snapshot)

    def release_snapshot(self, table: TableId) -> None:
        """See enumerator/source.py."""
        self._shared.release(table)

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, routes: TableRoutes
    ) -> npt.NDArray[np.int64]:
        """The piece of `routes` that each row's key lies in. `rows` has the table's captured columns, as the readers
        deliver them. Asks the server unless the key is one integer: sorts keys and cuts once, in one query."""
        values = [rows.column(name) for name in columns]
        for name, array in zip(columns, values, strict=True):
            if array.null_count:
                raise null_key(schema.table, name)
        if not len(routes.cuts) or not rows.num_rows:
            return np.zeros(rows.num_rows, np.int64)
        key = self.key(schema.table, columns)
        if key.is_integer:
            numbers = values[0].cast(pa.int64()).to_numpy(zero_copy_only=False)
            return routes.owners(numbers.view(np.uint64) ^ np.uint64(_SIGN))
        sql = _owners_query(key.columns, values, routes.cuts)
        answer: str = self._session.query(sql)[0][0]
        return np.fromstring(answer, np.int64, sep=",")

    def key(self, table: TableId, columns: tuple[str, ...]) -> TableKey:
        """Asked for once."""
        known = self._known.get((table, columns))
        if known is None:
            known = self._session.ask(lambda connection: read_key(connection, table, columns))
            self._known[table, columns] = known
        return known

    def _end(self, key: TableKey, direction: str) -> list[str] | None:
        order = column_list(key.columns, direction)
        found = self._session.query(f"SELECT {_texts(key.columns)} FROM {key.relation} ORDER BY {order} LIMIT 1")
        return list(found[0]) if found else None

    def _next(self, key: TableKey, places: KeyRange, rows: int) -> list[str] | None:
        """The first key behind the `rows`th one from places.start on."""
        found = self._session.query(next_bound_query(key, places, rows))
        return list(found[0]) if found else None


def next_bound_query(key: TableKey, places: KeyRange, rows: int) -> str:
    order = column_list(key.columns)
    last = [f"last.c{i}" for i in range(len(key.columns))]
    aliased = ", ".join(f"{column.sql} AS c{i}" for i, column in enumerate(key.columns))
    beyond = f"{compared(key.columns, '>', last)} AND {range_condition(key.columns, KeyRange(None, places.end))}"
    return (
        f"SELECT following.* FROM (SELECT {aliased} FROM {key.relation} "
        f"WHERE {range_condition(key.columns, places)} ORDER BY {order} LIMIT 1 OFFSET {rows - 1}) AS last, "
        f"LATERAL (SELECT {_texts(key.columns)} FROM {key.relation} WHERE {beyond} ORDER BY {order} LIMIT 1) "
        "AS following"
    )


def null_key(table: TableId, name: str) -> SourceNotUsableError:
    """A NOT NULL key column may still be null in the copy: a date that Arrow has no place for."""
    return SourceNotUsableError(
        f"{table} has a key in {name} that the copy can't hold.",
        "Correct the row, name another key in source.keys, or leave the table out.",
    )


def _texts(columns: Sequence[KeyColumn]) -> str:
    """By the types' own output functions; a cast to text is another function for some."""
    return ", ".join(f"concat({column.sql})" for column in columns)


def _bound(key: TableKey, texts: Sequence[str], ordinal: int) -> Bound:
    if key.is_integer:
        return Bound(tuple(texts), integer_rank(int(texts[0]), unsigned=False).hex())
    return Bound(tuple(texts), (_ORDINAL.pack(ordinal) + json.dumps(texts).encode()).hex())


def _ordinal(bound: Bound) -> int:
    ordinal: int = _ORDINAL.unpack_from(bytes.fromhex(bound.rank))[0]
    return ordinal


def _owners_query(keys: Sequence[KeyColumn], values: Sequence[pa.Array], cuts: pa.LargeBinaryArray) -> str:
    """A key's piece is the number of cuts at or before it: a window's frame ends with the equals of its row."""
    ends = zip(*(json.loads(cut[_ORDINAL.size :]) for cut in cuts.to_pylist()), strict=True)
    key_sql = [
        key_expression(array.type, f"t{i}", key.type) for i, (key, array) in enumerate(zip(keys, values, strict=True))
    ]
    cut_sql = [f"t{i}::{key.type}" for i, key in enumerate(keys)]
    places = (
        f"{_places('false', key_sql, [key_text(array) for array in values])} UNION ALL "
        f"{_places('true', cut_sql, [pa.array(texts, pa.large_string()) for texts in ends])}"
    )
    collated = [f"c{i} COLLATE {key.collation}" if key.collation else f"c{i}" for i, key in enumerate(keys)]
    return (
        "SELECT string_agg(piece::text, ',' ORDER BY n) FILTER (WHERE NOT cut) FROM ("
        f"SELECT cut, n, count(*) FILTER (WHERE cut) OVER (ORDER BY {', '.join(collated)}) AS piece "
        f"FROM ({places}) AS places) AS counted"
    )


def _places(cut: str, expressions: Sequence[str], texts: Sequence[pa.LargeStringArray]) -> str:
    selected = ", ".join(f"{expression} AS c{i}" for i, expression in enumerate(expressions))
    arrays = ", ".join(map(array_literal, texts))
    names = ", ".join(f"t{i}" for i in range(len(texts)))
    return f"SELECT {cut} AS cut, n, {selected} FROM unnest({arrays}) WITH ORDINALITY AS given({names}, n)"
