"""Split keys of MySQL and MariaDB tables: their ends, where to cut them, and the ranks of changed rows.

The server orders, compares and writes all key values; see key_columns.py for which columns can be cut by.
Nothing here holds a transaction or a lock: every statement stands alone, and is asked again if the connection was lost.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from readers.mysql.catalog import table_statistics
from readers.mysql.connect import flavour_of, quote_table
from readers.mysql.key_columns import (
    KeyColumn,
    KeyKind,
    after_condition,
    column_list,
    key_columns,
    null_key,
    range_condition,
)
from readers.mysql.ranks import Ranks, rank_of_text, ranks
from readers.mysql.session import Row, SqlSession
from readers.mysql.weights import Weights
from state.key_statistics import IntegerKey, KeyStatistics, PageStatistics
from state.rank import composite_rank
from state.split import Bound, KeyRange, SharedSnapshot
from state.table import TableId, TableSchema


class MySqlKeys:
    """The enumerator's KeySource, and the ranks of changed rows. `schemas` are those of the job's tables."""

    def __init__(self, session: SqlSession, schemas: Mapping[TableId, TableSchema]) -> None:
        self._session = session
        self._schemas = schemas
        self._known_weights: Weights | None = None

    def pages(self, table: TableId) -> PageStatistics | None:
        """None: a row has no place that could be asked for."""
        return None

    def share_snapshot(self, table: TableId) -> SharedSnapshot:
        """Of a table with pages: of none."""
        raise ValueError(f"{table} has no pages")

    def is_shared(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        """See enumerator/source.py."""
        return False

    def release_snapshot(self, table: TableId) -> None:
        """See enumerator/source.py."""

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        """See enumerator/source.py."""
        keys = key_columns(self._schemas[table], columns)
        descending = self._first(table, keys, order=column_list(columns, " DESC"))
        statistics = self._session.ask(lambda connection: table_statistics(connection, table))
        integers = None
        if descending is not None and self._is_unique_integer(table, keys):
            least = self._first(table, keys, order=column_list(columns))
            if least is not None:
                first, last = int(least.literals[0]), int(descending.literals[0])
                integers = IntegerKey(first, max(first, last), keys[0].unsigned)
        return KeyStatistics(descending, integers, statistics.row_estimate, statistics.average_row_bytes)

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
        keys = key_columns(self._schemas[table], columns)
        bounds: list[Bound] = []
        while len(bounds) < count:
            bound = self._next_bound(table, keys, KeyRange(bounds[-1] if bounds else after, until), rows)
            if bound is None:
                break
            bounds.append(bound)
        return bounds

    def ranks(self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch) -> Ranks:
        """The rank of each row's key, comparable with the ranks of bounds. `rows` has the table's captured columns, as
        the readers deliver them. Asks the server for strings only.

        Raises SourceNotUsableError for a key that the copy can't hold.
        """
        keys = key_columns(schema, columns)
        values = [rows.column(name) for name in columns]
        for name, array in zip(columns, values, strict=True):
            if array.null_count:
                raise null_key(schema.table, name)
        return ranks(keys, values, self._asked)

    @property
    def _weights(self) -> Weights:
        if self._known_weights is None:
            levels_apart = flavour_of(self._session.connection) == "mariadb"
            self._known_weights = Weights(self._session.query, levels_apart=levels_apart)
        return self._known_weights

    def _asked(self, column: KeyColumn, values: Sequence[str]) -> list[bytes]:
        return self._weights.ranks(column, values)

    def _next_bound(self, table: TableId, keys: Sequence[KeyColumn], places: KeyRange, rows: int) -> Bound | None:
        columns = [key.name for key in keys]
        order = column_list(columns)
        found = self._select(table, keys, range_condition(columns, places), f"{order} LIMIT 2 OFFSET {rows - 1}")
        if len(found) < 2:
            return None
        last, following = found
        if last.rank != following.rank:
            return following
        beyond = after_condition(columns, following)
        if places.end is not None:
            beyond += f" AND {range_condition(columns, KeyRange(None, places.end))}"
        other = self._select(table, keys, beyond, f"{order} LIMIT 1")
        return other[0] if other else None

    def _first(self, table: TableId, keys: Sequence[KeyColumn], *, order: str) -> Bound | None:
        found = self._select(table, keys, "TRUE", f"{order} LIMIT 1")
        return found[0] if found else None

    def _select(self, table: TableId, keys: Sequence[KeyColumn], condition: str, order: str) -> list[Bound]:
        selected = [sql for key in keys for sql in self._selected(key)]
        rows = self._session.query(
            f"SELECT {', '.join(selected)} FROM {quote_table(table)} WHERE {condition} ORDER BY {order}"
        )
        return [self._bound(table, keys, row) for row in rows]

    def _selected(self, key: KeyColumn) -> list[str]:
        if key.kind is not KeyKind.TEXT:
            return [key.sql]
        return [key.sql, *self._weights.collation(key).sql(column_list([key.name]))]

    def _bound(self, table: TableId, keys: Sequence[KeyColumn], row: Row) -> Bound:
        literals, parts, at = [], [], 0
        for key in keys:
            literals.append(key.literal(row[at]))
            at += 1
            if key.kind is KeyKind.TEXT:
                collation = self._weights.collation(key)
                parts.append(collation.rank(row[at : at + len(collation.levels)]))
                at += len(collation.levels)
                continue
            try:
                parts.append(rank_of_text(key, row[at - 1]))
            except ValueError:
                raise null_key(table, key.name) from None
        return Bound(tuple(literals), composite_rank(parts).hex())

    def _is_unique_integer(self, table: TableId, keys: Sequence[KeyColumn]) -> bool:
        return keys[0].kind is KeyKind.INTEGER and (keys[0].name,) == self._schemas[table].key == tuple(
            k.name for k in keys
        )
