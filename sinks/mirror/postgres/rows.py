"""Rows for PostgreSQL: COPY in binary format, with fields in the format of the target's column types."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.tables import setting_of
from tidemark.sinks.mirror.ahead import ahead_if
from tidemark.sinks.mirror.bad_values import BadValueMask
from tidemark.sinks.mirror.completion import Completion, ExtraColumns, check_row_count
from tidemark.sinks.mirror.net_effect import PartialRows
from tidemark.sinks.mirror.postgres.bad_values import TEXTS, bad_values, without_nul
from tidemark.sinks.mirror.postgres.errors import is_duplicate_key
from tidemark.sinks.mirror.postgres.types import PostgresDialect, full_name, quoted, text_literal
from tidemark.sinks.mirror.target import TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import Citext, EnumOfPostgres, PostgresType
from tidemark.sinks.rows import postgres_binary as binary
from tidemark.sinks.rows.fields import Fields, Frame, interleave, variable
from tidemark.sinks.rows.postgres_numerics import decimals, numeric_texts
from tidemark.sinks.rows.postgres_times import dates, timestamps
from tidemark.sinks.rows.text import cast_text, float_list_bytes
from tidemark.state.copied_range import CopiedRange, EncodedText, KeyValue
from tidemark.state.errors import SinkError
from tidemark.state.remedies import START_OVER
from tidemark.state.table import Column, TableSchema

ROWS_AT_ONCE = 16384
MANY_ROWS = 10_000
"""From this number on, an upsert may take a savepoint and a second statement."""
MAX_SAVEPOINTS = 60
"""In one transaction. A server remembers up to 64 subtransactions of each session, released or not. While one has more, each
snapshot of all other sessions is slow."""
_SAVEPOINT = "tidemark_new"
_ENCODED = frozenset({"text", "varchar", "bpchar", "json", "jsonb", "numeric"})
"""The types that values of PostgreSQL's other types can be written to without a conversion by the server."""
_NULL_FIELD = b"\xff\xff\xff\xff"
_JSONB_VERSION = b"\x01"
_NUMBERS = itertools.count(1)

Encode = Callable[[pa.Array], Fields]


class Runner(Protocol):
    """`savepoints`: those that its transaction has had."""

    savepoints: int

    def copy(self, sql: str, data: "CopyStream") -> int:
        """Returns the number of rows. Raises SinkError."""

    def execute(self, sql: str, arguments: tuple[object, ...] = (), *, doing: str = "") -> int: ...
    def query(self, sql: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]: ...


class PostgresTableRows:
    """A `tidemark.sinks.mirror.target.TableRows` for an existing table."""

    def __init__(
        self,
        runner: Runner,
        dialect: PostgresDialect,
        target: TargetName,
        schema: TableSchema,
        existing: TargetTable,
        removed: Sequence[Column] = (),
        *,
        repeats: bool = False,
    ) -> None:
        self._runner, self._target, self._schema = runner, target, schema
        self._repeats = repeats
        self._marks = ", ".join(f"{quoted(column.name)} = {dialect.constant(column)}" for column in removed)
        self._is_there = f"t.{quoted(removed[0].name)} IS NOT TRUE" if removed else "TRUE"
        self._marked = dialect.source_kind == "postgresql"
        self._types = {column.name: _written_as(column) for column in existing.columns}
        self._kept = {
            column.name for column in schema.captured if isinstance(dialect.value_range(column), PostgresType)
        }
        self._kept |= {column.name for column in existing.columns if _is_named_array(column)}
        sql_types = {column.name: column.sql_type for column in existing.columns}
        self._casts = {name: sql_types[name] for name in self._kept if self._types[name] not in _ENCODED}
        extra = ExtraColumns.of(schema)
        for origin, name in zip(extra.origins, schema.key, strict=True):
            self._types[origin] = self._types[name]
            if name in self._casts:
                self._casts[origin] = self._casts[name]
        self._types[extra.missing] = "bpchar"
        self._completion = Completion(self, schema, full_name(target), quoted, "JOIN", self._upsert)
        self._stage: str | None = None
        self._row_stage: str | None = None
        self.updates_in_place = existing.updated_in_place
        # A copy that keeps deleted rows has a row for a key that comes back.
        self._is_new_right = not (repeats or removed)

    def insert(self, rows: pa.RecordBatch) -> None:
        self.load(full_name(self._target), rows)

    def upsert(self, rows: pa.RecordBatch, new: npt.NDArray[np.bool_] | None = None) -> None:
        """Updates rows that are not new by UPDATE, and copies new ones into the target, if there are many: that takes the
        server three quarters of the time of INSERT … ON CONFLICT."""
        if not self.updates_in_place:
            self.insert(rows)
        elif new is None or rows.num_rows < MANY_ROWS or not self._is_new_right:
            self._upsert_rows(rows)
        else:
            self._update_rows(rows.filter(pa.array(~new)))
            self._insert_rows(rows.filter(pa.array(new)))

    def _upsert_rows(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self.check_written(self.run(self._upsert(self._staged(rows))), rows.num_rows)

    def _update_rows(self, rows: pa.RecordBatch) -> None:
        """Updates rows. If the target lacks some of them, they are upserted."""
        if not rows.num_rows:
            return
        stage = self._staged(rows)
        values = ", ".join(f"{name} = k.{name}" for name in map(quoted, self._names))
        updated = self.run(f"UPDATE {full_name(self._target)} t SET {values} FROM {stage} k WHERE {self._same_key}")
        if updated != rows.num_rows:
            self._is_new_right = False
            self.check_written(self.run(self._upsert(stage)), rows.num_rows)

    def _insert_rows(self, rows: pa.RecordBatch) -> None:
        """Inserts rows. If the target has some of them, they are upserted."""
        if not rows.num_rows or not self._is_new_right or self._runner.savepoints >= MAX_SAVEPOINTS:
            self._upsert_rows(rows)
            return
        self._runner.savepoints += 1
        self._runner.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            self.insert(rows)
        except SinkError as error:
            if not is_duplicate_key(error):
                raise
            self._runner.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            self._is_new_right = False
            self._upsert_rows(rows)
        self._runner.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")

    def _staged(self, rows: pa.RecordBatch) -> str:
        """Returns a temporary table that has just these rows."""
        if self._row_stage is None:
            self._row_stage = self.create_temporary(", ".join(f"t.{quoted(name)}" for name in self._names))
        else:
            self._runner.execute(f"TRUNCATE {self._row_stage}")
        self.load(self._row_stage, rows)
        return self._row_stage

    @property
    def _same_key(self) -> str:
        return " AND ".join(f"t.{quoted(name)} = k.{quoted(name)}" for name in self._schema.key)

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self._schema.captured]

    def _upsert(self, table: str) -> str:
        """Returns the upsert of all columns. Those of the key are set, too, because keys can be equal that look different: 1.0
        and 1.00."""
        columns = ", ".join(map(quoted, self._names))
        key = ", ".join(map(quoted, self._schema.key))
        conflict = ""
        if self.updates_in_place:
            values = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(quoted, self._names))
            conflict = f" ON CONFLICT ({key}) DO UPDATE SET {values}"
        # The alias is for a table that is called `excluded` itself.
        into = f"{full_name(self._target)} AS t ({columns}) OVERRIDING SYSTEM VALUE"
        rows = f"SELECT {columns} FROM {table}"
        if self._repeats:
            rows = f"SELECT DISTINCT ON ({key}) {columns} FROM {table} ORDER BY {key}, ctid DESC"
        return f"INSERT INTO {into} {rows}{conflict}"

    def check_written(self, affected: int, row_count: int) -> None:
        if not self._repeats:
            check_row_count(str(self._target), affected, row_count)

    def delete(self, keys: pa.RecordBatch) -> None:
        if not keys.num_rows:
            return
        if self._stage is None:
            self._stage = self.create_temporary(", ".join(f"t.{quoted(name)}" for name in self._schema.key))
        else:
            self._runner.execute(f"TRUNCATE {self._stage}")
        self.load(self._stage, keys)
        table = f"{full_name(self._target)} t"
        delete = f"UPDATE {table} SET {self._marks} FROM" if self._marks else f"DELETE FROM {table} USING"
        self._runner.execute(
            f"{delete} {self._stage} k WHERE {self._same_key} AND {self._is_there}",
            doing=f"deleting from {self._target}",
        )

    def empty(self) -> None:
        """Uses DELETE, because TRUNCATE blocks readers and is refused if a foreign key refers to the table."""
        self._remove("TRUE")

    def delete_range(self, keys: CopiedRange) -> None:
        self._remove(self._condition(keys))

    def count_range(self, keys: CopiedRange) -> int:
        condition = f"{self._is_there} AND {self._condition(keys)}"
        ((count,),) = self._runner.query(f"SELECT count(*) FROM {full_name(self._target)} t WHERE {condition}")
        return int(count)

    @staticmethod
    def _condition(keys: CopiedRange) -> str:
        return keys.condition(lambda name: f"t.{quoted(name)}", key_literal, by_rows=True)

    def _remove(self, condition: str) -> None:
        table = f"{full_name(self._target)} t"
        delete = f"UPDATE {table} SET {self._marks}" if self._marks else f"DELETE FROM {table}"
        self.run(f"{delete} WHERE {self._is_there} AND {condition}")

    def bad_values(self, column: str, values: pa.Array) -> BadValueMask | None:
        type_name = "text" if column in self._kept else self._types[column]
        return bad_values(values, type_name, marked=self._marked)

    def as_text(self, column: str, values: pa.Array) -> pa.Array | None:
        return without_nul(values, marked=self._marked) if self._types[column] in TEXTS else None

    def present(self, keys: pa.RecordBatch, columns: Sequence[str]) -> list[dict[str, Any] | None]:
        """Texts are those of the types' output functions."""
        kinds = self._schema.arrow_schema()
        names = ", ".join(_value(quoted(name), kinds.field(name).type) for name in columns).replace("%", "%%")
        condition = " AND ".join(f"{quoted(name).replace('%', '%%')} = %s" for name in self._schema.key)
        sql = f"SELECT {names} FROM {full_name(self._target).replace('%', '%%')} WHERE {condition}"
        found = [self._runner.query(sql, tuple(key.values())) for key in keys.to_pylist()]
        return [dict(zip(columns, rows[0], strict=True)) if rows else None for rows in found]

    def complete(self, partial: PartialRows) -> None:
        self._completion.complete(partial)

    def upsert_completed(self) -> None:
        self._completion.write()

    def create_temporary(self, columns: str, table: str | None = None) -> str:
        """See `completion.Statements`. `table`: to take the columns from instead of the target's. The temporary table ends with
        the transaction. Its columns have the target's types and collations, and so the target's equality."""
        name = quoted(f"tidemark_{next(_NUMBERS)}")
        self._runner.execute(
            f"CREATE TEMPORARY TABLE {name} ON COMMIT DROP AS SELECT {columns} FROM {table or full_name(self._target)} t "
            "WITH NO DATA",
            doing="creating a temporary table",
        )
        return f"pg_temp.{name}"

    def drop_temporary(self, table: str) -> None:
        self._runner.execute(f"DROP TABLE {table}")

    def run(self, sql: str) -> int:
        return self._runner.execute(sql, doing=f"writing to {self._target}")

    def load(self, table: str, rows: pa.RecordBatch) -> None:
        """Values without a binary form here are copied as text into a temporary table, where the server converts them."""
        if rows.num_rows == 0:
            return
        names = rows.schema.names
        if self._casts.keys().isdisjoint(names):
            self._copy(table, rows)
            return
        columns = [f"CAST(NULL AS text) AS {quoted(n)}" if n in self._casts else f"t.{quoted(n)}" for n in names]
        stage = self.create_temporary(", ".join(columns), table)
        self._copy(stage, rows)
        values = [f"CAST({quoted(n)} AS {self._casts[n]})" if n in self._casts else quoted(n) for n in names]
        into = f"{table} ({', '.join(map(quoted, names))}) OVERRIDING SYSTEM VALUE"
        written = self.run(f"INSERT INTO {into} SELECT {', '.join(values)} FROM {stage}")
        self.check_written(written, rows.num_rows)
        self.drop_temporary(stage)

    def _copy(self, table: str, rows: pa.RecordBatch) -> None:
        columns = ", ".join(quoted(name) for name in rows.schema.names)
        with closing(ahead_if(rows.num_rows > ROWS_AT_ONCE, self._pieces(rows))) as pieces:
            copied = self._runner.copy(f"COPY {table} ({columns}) FROM STDIN (FORMAT binary)", CopyStream(pieces))
        check_row_count(str(self._target), copied, rows.num_rows)

    def _pieces(self, rows: pa.RecordBatch) -> Iterator[bytes | memoryview]:
        yield binary.COPY_HEADER
        for start in range(0, rows.num_rows, ROWS_AT_ONCE):
            yield self._encode(rows.slice(start, ROWS_AT_ONCE))
        yield binary.COPY_TRAILER

    def _encode(self, batch: pa.RecordBatch) -> memoryview:
        """Returns rows of COPY's binary format: the number of fields, then each field after its length."""
        count = batch.num_columns.to_bytes(2, "big")
        columns: list[tuple[Fields, Frame]] = []
        for i, (name, array) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
            lead = count if i == 0 else b""
            fields = self._fields(name, array)
            columns.append((fields, Frame(lead, b"", lead + _NULL_FIELD, sized=True)))
        return interleave(columns).data

    def _fields(self, name: str, array: pa.Array) -> Fields:
        type_name = "text" if name in self._casts else self._types[name]
        try:
            return encoder(array.type, type_name)(array)
        except binary.BadTextError as exc:
            raise self._refused(name, f"is not a {type_name}") from exc
        except ValueError as exc:
            raise self._refused(name, f"is {exc}") from exc

    def _refused(self, name: str, why: str) -> SinkError:
        table = self._schema.table
        return SinkError(
            f"{table}: a value of column {name} {why}.",
            f"Exclude the column, {setting_of('source.columns', table, {'exclude': [name]})}, then {START_OVER}. "
            "Please report this.",
        )


def _written_as(column: TargetColumn) -> str:
    """Returns the name of the type that has the binary form of the column's."""
    is_text = isinstance(column.value_range, EnumOfPostgres | Citext) and not column.value_range.in_array
    return "text" if is_text else column.type_name


def _is_named_array(column: TargetColumn) -> bool:
    return isinstance(column.value_range, EnumOfPostgres | Citext) and column.value_range.in_array


def key_literal(value: KeyValue) -> str:
    """Returns a literal of no type, which takes that of the column that it is compared with. A number has a type of its own: it
    may be beyond the column's."""
    match value:
        case EncodedText(_, data):
            return text_literal(data.decode())
        case bytes():
            return text_literal(f"\\x{value.hex()}")
        case str():
            return text_literal(value)
        case _:
            return format(value, "f") if isinstance(value, Decimal) else str(value)


def _value(name: str, kind: pa.DataType) -> str:
    return f"CASE num_nulls({name}) WHEN 0 THEN concat({name}) END" if pa.types.is_string(kind) else name


def encoder(kind: pa.DataType, type_name: str) -> Encode:
    """Returns the function that encodes a canonical Arrow type as a PostgreSQL type (its name in pg_type). Raises ValueError
    for an unknown pair."""
    match type_name:
        case "bool" if pa.types.is_boolean(kind):
            return lambda array: binary.integers(pc.cast(array, pa.int8()), 1)
        case "int2" | "int4" | "int8" if pa.types.is_boolean(kind):
            size = int(type_name[3:])
            return lambda array: binary.integers(pc.cast(array, pa.int8()), size)
        case "int2" | "int4" | "int8" if pa.types.is_integer(kind):
            width = int(type_name[3:])
            return lambda array: binary.integers(array, width)
        case "float4" | "float8" if pa.types.is_floating(kind):
            width = int(type_name[5:])
            return lambda array: binary.floats(array, width)
        case "numeric" if pa.types.is_decimal(kind):
            return decimals
        case "numeric" if pa.types.is_integer(kind):
            return lambda array: binary.numerics(cast_text(array))
        case "numeric" if pa.types.is_string(kind):
            return numeric_texts
        case "text" | "varchar" | "bpchar" | "json" if pa.types.is_string(kind):
            return variable
        case "jsonb" if pa.types.is_string(kind):
            return lambda array: variable(pc.binary_join_element_wise(_JSONB_VERSION.decode(), array, ""))
        case "uuid" if pa.types.is_string(kind):
            return lambda array: binary.uuids(variable(array))
        case "interval" if pa.types.is_string(kind):
            return lambda array: binary.intervals(variable(array))
        case "bytea" if pa.types.is_binary(kind):
            return variable
        case "bytea" if pa.types.is_list(kind):
            return float_list_bytes
        case "date" if pa.types.is_date(kind):
            return dates
        case "timestamp" | "timestamptz" if pa.types.is_timestamp(kind):
            return timestamps
        case "_float4" if pa.types.is_list(kind):
            return binary.float_arrays
    raise ValueError(f"not to be written as {type_name}")


class CopyStream:
    """The file that psycopg2 reads from. Its pieces are made when they are read.

    psycopg2 raises an error of `read` as one of the server's. `failure` keeps the original.
    """

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces = pieces
        self._current: bytes | memoryview = b""
        self.failure: SinkError | None = None

    def read(self, size: int = -1, /) -> bytes:
        while not len(self._current):
            try:
                self._current = memoryview(next(self._pieces))
            except StopIteration:
                return b""
            except SinkError as exc:
                self.failure = exc
                raise
        taken = self._current if size < 0 else self._current[:size]
        self._current = self._current[len(taken) :]
        return bytes(taken)

    def readline(self, size: int = -1, /) -> bytes:
        """psycopg2 requires this method, but never calls it."""
        raise NotImplementedError
