"""Split keys of MySQL and MariaDB tables: their range, the split boundaries, and the encoded keys of changed rows.

The server orders, compares and prints all key values. key_columns.py says which columns a table can be split by. Nothing
here holds a transaction or a lock: every statement is independent, and is repeated if the connection is lost.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.mysql.connect import flavour_of, quote_table
from tidemark.readers.mysql.keys.collation_keys import CollationKeys
from tidemark.readers.mysql.keys.key_columns import (
    KeyColumn,
    KeyKind,
    after_condition,
    column_list,
    key_columns,
    null_key,
    range_condition,
    valid_dates,
)
from tidemark.readers.mysql.keys.key_encoding import EncodedKeys, encode_text, encoded_keys
from tidemark.readers.mysql.keys.key_text import encoder
from tidemark.readers.mysql.schema.catalog import table_statistics
from tidemark.readers.mysql.server import WatermarkMethod
from tidemark.readers.mysql.session import Row, SqlSession
from tidemark.readers.mysql.snapshot.watermark import snapshot_position
from tidemark.state.errors import SchemaChangedError, SourceNotUsableError
from tidemark.state.key_encoding import encode_composite
from tidemark.state.key_statistics import IntegerKey, KeyStatistics, TableSize
from tidemark.state.position import Position
from tidemark.state.remedies import LEAVE_OUT
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import TableId, TableSchema


class MySqlKeys:
    """The enumerator's KeySource, and the encoded keys of changed rows. `schemas`: those of the job's tables. `method`: how
    splits are read; only `sees` asks for it."""

    def __init__(
        self, session: SqlSession, schemas: Mapping[TableId, TableSchema], method: WatermarkMethod = "gtid"
    ) -> None:
        self._session = session
        self._method = method
        self._schemas = schemas
        self._cached_collation_keys: CollationKeys | None = None
        self._sizes: dict[TableId, TableSize] = {}

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        """See state/key_source.py. MySQL: always true, for a split's high is the log's end. A MariaDB snapshot may be a little
        behind the log."""
        if self._method != "consistent_snapshot":
            return True
        return self._session.ask(snapshot_position).order >= position.order

    def size(self, table: TableId) -> TableSize:
        """See state/key_source.py."""
        if table not in self._sizes:
            found = self._session.ask(lambda connection: table_statistics(connection, table))
            self._sizes[table] = TableSize(found.row_estimate, found.data_bytes)
        return self._sizes[table]

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        """See state/key_source.py."""
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
        """See state/key_source.py. One round trip per bound, which reads `rows` entries of the index only."""
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

    def bounds_of(self, table: TableId, columns: tuple[str, ...], rows: pa.RecordBatch) -> Sequence[Bound] | None:
        """`tidemark.readers.source.BoundsKeys`."""
        schema = self._schemas[table]
        keys = key_columns(schema, columns)
        texts = [_literals(key, rows.column(key.name)) for key in keys]
        literals = [column for column in texts if column is not None]
        if len(literals) < len(keys):
            return None
        encoded = self.encoded_keys(schema, columns, rows)
        as_hex = (
            [f"{number:016x}" for number in encoded.tolist()]
            if isinstance(encoded, np.ndarray)
            else [key.hex() for key in encoded.to_pylist()]
        )
        return [Bound(found, key) for found, key in zip(zip(*literals, strict=True), as_hex, strict=True)]

    def encoded_keys(self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch) -> EncodedKeys:
        """The encoded key of each row, comparable with the encoded keys of bounds. `rows` has the table's captured columns.
        Queries the server only for strings. A key with an invalid date, which is null, is before all others: only the sink
        can say what becomes of its row.
        """
        keys = key_columns(schema, columns)
        values = [rows.column(name) for name in columns]
        if not any(array.null_count for array in values):
            return encoded_keys(keys, values, self._on_server)
        known = np.logical_and.reduce([np.asarray(array.is_valid()) for array in values])
        found = encoded_keys(keys, [array.filter(pa.array(known)) for array in values], self._on_server)
        return pc.replace_with_mask(pa.array([b""] * len(known), pa.binary()), pa.array(known), found)

    @property
    def _collation_keys(self) -> CollationKeys:
        if self._cached_collation_keys is None:
            levels_apart = flavour_of(self._session.connection) == "mariadb"
            self._cached_collation_keys = CollationKeys(self._session.query, levels_apart=levels_apart)
        return self._cached_collation_keys

    def _on_server(self, column: KeyColumn, values: Sequence[str]) -> list[bytes]:
        return self._collation_keys.encoded_keys(column, values)

    def _next_bound(self, table: TableId, keys: Sequence[KeyColumn], within: KeyRange, rows: int) -> Bound | None:
        order = column_list(key.name for key in keys)
        found = self._select(table, keys, range_condition(keys, within), f"{order} LIMIT 2 OFFSET {rows - 1}")
        if len(found) < 2:
            return None
        last, following = found
        if last.encoded_key != following.encoded_key:
            return following
        beyond = after_condition(keys, following)
        if within.end is not None:
            beyond += f" AND {range_condition(keys, KeyRange(None, within.end))}"
        other = self._select(table, keys, beyond, f"{order} LIMIT 1")
        return other[0] if other else None

    def _first(self, table: TableId, keys: Sequence[KeyColumn], *, order: str) -> Bound | None:
        found = self._select(table, keys, "TRUE", f"{order} LIMIT 1")
        return found[0] if found else None

    def _select(self, table: TableId, keys: Sequence[KeyColumn], condition: str, order: str) -> list[Bound]:
        selected = [sql for key in keys for sql in self._selected(key)]
        rows = self._session.query(
            f"SELECT {', '.join(selected)} FROM {quote_table(table)} WHERE {condition} AND {valid_dates(keys)} "
            f"ORDER BY {order}"
        )
        return [self._bound(table, keys, row) for row in rows]

    def _selected(self, key: KeyColumn) -> list[str]:
        if key.kind is not KeyKind.TEXT:
            return [key.sql]
        name = column_list([key.name])
        return [key.sql, f"COLLATION({name})", *self._collation_keys.collation(key).sql(name)]

    def _bound(self, table: TableId, keys: Sequence[KeyColumn], row: Row) -> Bound:
        literals, parts, at = [], [], 0
        for key in keys:
            if row[at] is None:
                raise self._null_key(table, key)
            literals.append(key.literal(row[at]))
            at += 1
            if key.kind is KeyKind.TEXT:
                _check_collation(table, key, str(row[at]))
                at += 1
                collation = self._collation_keys.collation(key)
                parts.append(collation.encoded_key(row[at : at + len(collation.levels)]))
                at += len(collation.levels)
                continue
            try:
                parts.append(encode_text(key, row[at - 1]))
            except ValueError:
                raise self._null_key(table, key) from None
        return Bound(tuple(literals), encode_composite(parts).hex())

    def _null_key(self, table: TableId, key: KeyColumn) -> SourceNotUsableError:
        return null_key(table, self._schemas[table].column(key.name), stops=False)

    def _is_unique_integer(self, table: TableId, keys: Sequence[KeyColumn]) -> bool:
        return keys[0].kind is KeyKind.INTEGER and (keys[0].name,) == self._schemas[table].key == tuple(
            k.name for k in keys
        )


def _check_collation(table: TableId, key: KeyColumn, found: str) -> None:
    """Raises SchemaChangedError if the server now compares the column in another way: the boundaries of earlier splits are in
    the order of the old collation."""
    if _new_name(found) != _new_name(key.collation):
        raise SchemaChangedError(
            f"{table}.{key.name} has the collation {key.collation} in the job, and {found} in the table.",
            LEAVE_OUT,
            table,
        )


def _new_name(collation: str) -> str:
    """Returns the same text for both names of a collation of utf8mb3."""
    return collation.lower().replace("utf8_", "utf8mb3_")


def _literals(key: KeyColumn, values: pa.Array) -> list[str] | None:
    """Returns the values as SQL literals, None if some can't be written so."""
    if values.null_count:
        return None
    found: list[str]
    match key.kind:
        case KeyKind.INTEGER | KeyKind.DECIMAL:
            found = [key.literal(text) for text in values.cast(pa.string()).to_pylist()]
        case KeyKind.FLOAT:
            found = [key.literal(number) for number in values.to_pylist()]
        case KeyKind.ORDINAL:
            numbers = {text: number for number, text in enumerate(key.texts)}
            texts = values.to_pylist()
            if not numbers.keys() >= set(texts):
                return None
            found = [key.literal(numbers[text]) for text in texts]
        case KeyKind.DATE | KeyKind.TEMPORAL:
            found = [key.literal(text.removesuffix("Z")) for text in values.cast(pa.string()).to_pylist()]
        case KeyKind.UUID:
            found = [key.literal(text) for text in values.to_pylist()]
        case KeyKind.TEXT:
            encode = encoder(key.charset)
            if encode is None:
                return None
            try:
                found = [key.literal(encode(text).hex().upper()) for text in values.to_pylist()]
            except (KeyError, UnicodeEncodeError):
                return None
        case _:
            return None
    return found if all(map(key.is_literal, found)) else None
