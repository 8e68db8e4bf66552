"""Rows as MySQL's SQL literals, in statements of a bounded size.

The server must store exactly the value: strings and bytes are escaped, doubles have an exponent (without one the
server would convert them through DECIMAL), timestamps are in the session's time zone, which is UTC.
"""

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.tables import setting_of
from tidemark.sinks.mirror.ahead import ahead_if
from tidemark.sinks.mirror.bad_values import BadValueMask
from tidemark.sinks.mirror.completion import Completion, ExtraColumns, check_row_count
from tidemark.sinks.mirror.mysql.bad_values import bad_values
from tidemark.sinks.mirror.mysql.errors import too_long
from tidemark.sinks.mirror.mysql.types import MySqlDialect, full_name, quoted
from tidemark.sinks.mirror.net_effect import PartialRows
from tidemark.sinks.mirror.target import TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import Decimals, Duration, Text, Timestamps, ValueRange
from tidemark.sinks.rows.fields import Fields, Frame, Rows, interleave, variable
from tidemark.sinks.rows.text import (
    SQL_ESCAPES,
    cast_text,
    decimal_text,
    escaped,
    exact_float_text,
    float_list_bytes,
    hexadecimal,
)
from tidemark.state import marks
from tidemark.state.copied_range import CopiedRange, EncodedText, KeyValue
from tidemark.state.errors import RefusedRowsError, SinkError
from tidemark.state.remedies import START_OVER
from tidemark.state.table import Column, TableSchema

STATEMENT_BYTES = 1 << 18
"""Measured on MySQL 9: 7.7 µs of the server's time a row; with 1 MiB 10 µs, with 4 MiB 11 µs. MariaDB shows no difference."""
ROWS_AT_ONCE = 16384
_NEW = "tidemark_new"
_NUMBERS = itertools.count(1)
Form = Literal["row", "list", "condition"]
"""How a row is written: `(1,'a',NULL),` in an INSERT; `1,` in a list after IN, for one column; `OR(a=1 AND b='a') `."""
KEYS_PER_DELETE = 1000
"""Far below the number at which the optimizers of MySQL and MariaDB read the whole table instead of a list of ranges."""
TUPLES_PER_DELETE = 200
"""The same for keys of several columns. MariaDB counts each column of each key, up to 16,000, and takes longer per key the
more there are: 4,000 deletes took 0.36 s with 1,000 a statement, 0.13 s with 200."""


class Runner(Protocol):
    """Sends statements to the target."""

    max_statement_bytes: int

    def send(self, sql: bytes) -> int:
        """Returns the number of affected rows. Raises SinkError, also for a warning: it means that a value was changed."""

    def execute(self, sql: str, arguments: tuple[object, ...] = (), *, doing: str = "") -> int: ...
    def query(self, sql: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]: ...


class MySqlTableRows:
    """A `tidemark.sinks.mirror.target.TableRows`."""

    def __init__(
        self,
        runner: Runner,
        dialect: MySqlDialect,
        target: TargetName,
        schema: TableSchema,
        existing: TargetTable,
        removed: Sequence[Column] = (),
    ) -> None:
        self._runner, self._target, self._schema = runner, target, schema
        self._dialect, self._marked = dialect, dialect.source_kind == "postgresql"
        found = {dialect.same_column(column.name): column for column in existing.columns}
        held = {column.name: found[dialect.same_column(column.name)] for column in schema.captured}
        self._held = {name: column.value_range for name, column in held.items()}
        self._not_null = [name for name, column in held.items() if not column.nullable]
        self._value_ranges = {column.name: dialect.value_range(column) for column in schema.captured}
        extra = ExtraColumns.of(schema)
        self._value_ranges |= {
            origin: self._value_ranges[name] for origin, name in zip(extra.origins, schema.key, strict=True)
        }
        self._value_ranges[extra.missing] = Text()
        self._completion = Completion(self, schema, full_name(target), quoted, "STRAIGHT_JOIN", self._upsert)
        self.updates_in_place = existing.updated_in_place
        key = ", ".join(quoted(name) for name in schema.key)
        self._remove = f"DELETE FROM {full_name(target)} WHERE"
        self._is_there = f"{quoted(removed[0].name)} IS NOT TRUE" if removed else "TRUE"
        if removed:
            # A column of an existing copy may be ON UPDATE CURRENT_TIMESTAMP: it keeps its value only if it is set.
            times = [name for name, kind in self._held.items() if isinstance(kind, Timestamps)]
            values = {quoted(name): quoted(name) for name in times}
            values |= {quoted(column.name): dialect.constant(column) for column in removed}
            marks = ", ".join(f"{name} = {value}" for name, value in values.items())
            self._remove = f"UPDATE {full_name(target)} SET {marks} WHERE {self._is_there} AND"
        alone = len(schema.key) == 1
        self._delete = f"{self._remove} {f'{key} IN (' if alone else '(FALSE '}".encode()
        self._keys_per_delete = KEYS_PER_DELETE if alone else TUPLES_PER_DELETE

    def insert(self, rows: pa.RecordBatch) -> None:
        self._require_values(rows)
        self.load(full_name(self._target), rows)

    def load(self, table: str, rows: pa.RecordBatch) -> None:
        for count, affected in self._send(table, rows, b""):
            check_row_count(str(self._target), affected, count)

    def upsert(self, rows: pa.RecordBatch, new: npt.NDArray[np.bool_] | None = None) -> None:
        if not self.updates_in_place:
            self.insert(rows)
            return
        self._require_values(rows)
        alias = self._dialect.has_row_alias
        value = f"{_NEW}.{{0}}" if alias else "VALUES({0})"
        after = f"{f' AS {_NEW}' if alias else ''} ON DUPLICATE KEY UPDATE {self._assignments(value)}"
        for _ in self._send(full_name(self._target), rows, after.encode()):
            pass

    def _require_values(self, rows: pa.RecordBatch) -> None:
        """Raises RefusedRowsError for a NULL in a column that is NOT NULL. With explicit_defaults_for_timestamp = OFF the
        server would write the present time into a TIMESTAMP."""
        for name in self._not_null:
            if name in rows.schema.names and rows.column(name).null_count:
                raise RefusedRowsError(
                    f"{self._target}: a value of column {name} is null (perhaps a zero date), and the column is NOT NULL.",
                    "Let that column of the target be NULL.",
                )

    def _send(self, table: str, rows: pa.RecordBatch, after: bytes) -> Iterator[tuple[int, int]]:
        """Sends an INSERT with `after` at its end for each piece. Yields how many rows it has, and how many were affected."""
        columns = ", ".join(quoted(name) for name in rows.schema.names)
        insert = f"INSERT INTO {table} ({columns}) VALUES ".encode()
        longest = self._runner.max_statement_bytes - len(insert) - len(after)
        with closing(self._texts(rows, "row")) as pieces:
            for piece in pieces:
                for first, last, text in _cut(piece, min(STATEMENT_BYTES, longest), ROWS_AT_ONCE):
                    if len(text) > longest:
                        raise self._too_long(len(text))
                    yield last - first, self._runner.send(b"".join((insert, text, after)))

    def _assignments(self, value: str) -> str:
        """Returns the assignments of all columns. Those of the key are set, too, because a collation takes keys as equal that
        look different."""
        names = [quoted(column.name) for column in self._schema.captured]
        return ", ".join(f"{name} = {value.format(name)}" for name in names)

    def _upsert(self, table: str) -> str:
        columns = ", ".join(quoted(column.name) for column in self._schema.captured)
        update = f" ON DUPLICATE KEY UPDATE {self._assignments(f'{_NEW}.{{0}}')}" if self.updates_in_place else ""
        return (
            f"INSERT INTO {full_name(self._target)} ({columns}) SELECT {columns} FROM {table} {_NEW} WHERE TRUE{update}"
        )

    def check_written(self, affected: int, row_count: int) -> None:
        """An updated row counts as two, and as none if it is the same."""
        if not self.updates_in_place:
            check_row_count(str(self._target), affected, row_count)

    def delete(self, keys: pa.RecordBatch) -> None:
        """A key of several columns is compared column by column. By `(a, b) IN ((…), (…))` MariaDB 10.11 and 11.4 find no row
        if a column is in ucs2, utf16 or utf32, and they read the whole table for a list of one, or for an ENUM or SET."""
        limit = self._runner.max_statement_bytes - len(self._delete) - 1
        with closing(self._texts(keys, "list" if keys.num_columns == 1 else "condition")) as pieces:
            for piece in pieces:
                for _, _, text in _cut(piece, limit, self._keys_per_delete):
                    if len(text) > limit:
                        raise self._too_long(len(text))
                    self._runner.send(b"".join((self._delete, text, b")")))

    def empty(self) -> None:
        """Uses DELETE, because TRUNCATE would end the transaction."""
        self.run(f"{self._remove} TRUE")

    def delete_range(self, keys: CopiedRange) -> None:
        self.run(f"{self._remove} {keys.condition(quoted, key_literal)}")

    def count_range(self, keys: CopiedRange) -> int:
        condition = f"{self._is_there} AND {keys.condition(quoted, key_literal)}"
        ((count,),) = self._runner.query(f"SELECT COUNT(*) FROM {full_name(self._target)} WHERE {condition}")
        return int(count)

    def bad_values(self, column: str, values: pa.Array) -> BadValueMask | None:
        return bad_values(
            values,
            self._held[column],
            parses_json=self._dialect.flavour == "mysql",
            timestamps=self._dialect.timestamps,
            marked=self._marked,
        )

    def as_text(self, column: str, values: pa.Array) -> pa.Array | None:
        """MySQL's text holds every character, so only marks have another form."""
        if not isinstance(self._held[column], Text) or not pa.types.is_string(values.type):
            return None
        return marks.unmarked_texts(values) if self._marked else marks.decoded_texts(values)

    def present(self, keys: pa.RecordBatch, columns: Sequence[str]) -> list[dict[str, Any] | None]:
        names = ", ".join(quoted(name) for name in columns).replace("%", "%%")
        condition = " AND ".join(f"{quoted(name).replace('%', '%%')} = %s" for name in self._schema.key)
        sql = f"SELECT {names} FROM {full_name(self._target).replace('%', '%%')} WHERE {condition}"
        found = [self._runner.query(sql, tuple(key.values())) for key in keys.to_pylist()]
        return [dict(zip(columns, rows[0], strict=True)) if rows else None for rows in found]

    def complete(self, partial: PartialRows) -> None:
        self._completion.complete(partial)

    def upsert_completed(self) -> None:
        self._completion.write()

    def create_temporary(self, columns: str) -> str:
        """See `completion.Statements`. The outer join makes columns nullable; sql_require_primary_key requires the key."""
        # In the session it would hide a copy of the same name.
        own = self._target.table.lower()
        number = next(number for number in _NUMBERS if own != f"tidemark_{number}")
        name = full_name(TargetName(self._target.schema, f"tidemark_{number}"))
        self._runner.execute(
            f"CREATE TEMPORARY TABLE {name} (tidemark_row_{number} BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB "
            f"SELECT {columns} FROM (SELECT 1) one LEFT JOIN {full_name(self._target)} t ON FALSE WHERE FALSE",
            doing="creating a temporary table",
        )
        return name

    def drop_temporary(self, table: str) -> None:
        self._runner.execute(f"DROP TEMPORARY TABLE {table}")

    def run(self, sql: str) -> int:
        return self._runner.execute(sql, doing=f"writing to {self._target}")

    def _texts(self, rows: pa.RecordBatch, form: Form) -> Generator[Rows, None, None]:
        """Yields the texts of up to ROWS_AT_ONCE rows each."""
        slices = (rows.slice(start, ROWS_AT_ONCE) for start in range(0, rows.num_rows, ROWS_AT_ONCE))
        return ahead_if(rows.num_rows > ROWS_AT_ONCE, (self._sql_rows(some, form) for some in slices))

    def _sql_rows(self, batch: pa.RecordBatch, form: Form) -> Rows:
        """Returns a text per row, with one character at its end that the last row of a statement does not need."""
        last = batch.num_columns - 1
        columns: list[tuple[Fields, Frame]] = []
        for i, (name, array) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
            try:
                fields, opening, closing = sql_fields(array, self._value_ranges[name])
            except ValueError as exc:
                table = self._schema.table
                raise SinkError(
                    f"{table}: column {name} has {exc}, which the target can't store.",
                    f"Exclude it, {setting_of('source.columns', table, {'exclude': [name]})}, then {START_OVER}. "
                    "Please report this.",
                ) from exc
            before, after = _around(form, name, is_first=i == 0, is_last=i == last)
            frame = Frame((before + opening).encode(), (closing + after).encode(), f"{before}NULL{after}".encode())
            columns.append((fields, frame))
        return interleave(columns)

    def _too_long(self, byte_count: int) -> RefusedRowsError:
        return too_long(f"A row of {self._schema.table} takes", byte_count)


def _around(form: Form, column: str, *, is_first: bool, is_last: bool) -> tuple[str, str]:
    """Returns the texts before and after a value."""
    match form:
        case "row":
            return "(" if is_first else ",", ")," if is_last else ""
        case "list":
            return "", ","
        case "condition":
            return f"{'OR(' if is_first else ' AND '}{quoted(column)}=", ") " if is_last else ""


def _cut(rows: Rows, max_bytes: int, max_rows: int) -> Iterator[tuple[int, int, memoryview]]:
    """Yields (first row, row after the last, text without the last comma). A row longer than `max_bytes` is alone."""
    data = rows.data
    first, start, count = 0, 0, len(rows.ends)
    while first < count:
        last = int(np.searchsorted(rows.ends, start + max_bytes, side="right"))
        last = min(max(last, first + 1), first + max_rows)
        end = int(rows.ends[last - 1])
        yield first, last, data[start : end - 1]
        first, start = last, end


def key_literal(value: KeyValue) -> str:
    """Returns a literal that a column compares by its own collation and its index."""
    match value:
        case EncodedText(charset, data):
            return f"_{charset} x'{data.hex()}'"
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return f"'{value}'"
        case _:
            return format(value, "f") if isinstance(value, Decimal) else str(value)


def sql_fields(array: pa.Array, value_range: ValueRange) -> tuple[Fields, str, str]:
    """Returns the literals and the text before and after each. Raises ValueError for a value that has no literal."""
    kind = array.type
    if pa.types.is_string(kind) and isinstance(value_range, Decimals):
        # In quotes it would be compared as a double, and a DELETE would also delete similar keys.
        if pc.all(pc.match_substring_regex(array, r"^-?[0-9]+(\.[0-9]+)?$"), min_count=0).as_py() is False:
            raise ValueError("a text that is no decimal number")
        return variable(array), "", ""
    if pa.types.is_string(kind) and isinstance(value_range, Duration):
        return escaped(variable(array), SQL_ESCAPES), "TIME'", "'"
    if pa.types.is_boolean(kind):
        return cast_text(pc.cast(array, pa.int8())), "", ""
    if pa.types.is_integer(kind):
        return cast_text(array), "", ""
    if pa.types.is_floating(kind):
        if pc.all(pc.is_finite(array), min_count=0).as_py() is False:
            raise ValueError("a NaN or an infinity")
        return variable(exact_float_text(array)), "", ""
    if pa.types.is_decimal(kind):
        return decimal_text(array), "", ""
    if pa.types.is_string(kind):
        return escaped(variable(array), SQL_ESCAPES), "'", "'"
    if pa.types.is_binary(kind):
        # Hexadecimal digits would take twice the bytes, and a row must fit into max_allowed_packet.
        return escaped(variable(array), SQL_ESCAPES), "_binary'", "'"
    if pa.types.is_date(kind):
        return cast_text(array), "DATE'", "'"
    if pa.types.is_timestamp(kind):
        return cast_text(pc.cast(array, pa.timestamp("us"))), "TIMESTAMP'", "'"
    return hexadecimal(float_list_bytes(array)), "x'", "'"
