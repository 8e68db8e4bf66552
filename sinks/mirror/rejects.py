"""The table of rejects: rows of the source that the target can't hold, in the target's schema of the ledger.

A row is here as long as the source has it in a form that the target can't hold. Then it is not in the copy. Both change in one
transaction. An entry has the row as JSON, in the form of the files sink. A row whose key is not known (a zero date in it
is null) can't be found again: each of its changes is an entry of its own, which stays until the table is read again.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.mirror.bad_values import RejectedRows
from tidemark.sinks.mirror.net_effect import NetEffect, PartialRows
from tidemark.sinks.rows.json_lines import json_rows
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableId, TableSchema

ROWS_PER_STATEMENT = 100
CHARACTERS_PER_STATEMENT = 1 << 18
_INSERTED = "insert"


class RejectStatements(Protocol):
    """The part of a `Session` that `Rejects` needs. Each statement runs in the session's transaction. In SQL, `%s` marks the
    place of an argument."""

    @property
    def rejects(self) -> str:
        """The table's full name, with percent signs doubled."""

    def execute(self, sql: str, arguments: tuple[Any, ...] = (), *, doing: str = "being asked") -> int: ...
    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...


@dataclass(slots=True)
class Rejects:
    """The rejects of one part's transaction. `job_uuid`, `epoch`, `part`: whose they are."""

    session: RejectStatements
    job_uuid: str
    epoch: int
    part: str
    _tables: set[TableId] | None = None
    _keys: dict[TableId, set[str]] = field(default_factory=dict)
    _unkeyed: int = 0

    def keys(self, table: TableId) -> set[str]:
        """Returns the keys of the table's rejected rows, as `key_texts`. Without any, it costs one query for each part."""
        if self._tables is None:
            sql = f"SELECT DISTINCT source_database, source_table FROM {self.session.rejects} WHERE job_uuid = %s"
            self._tables = {TableId(database, name) for database, name in self.session.query(sql, (self.job_uuid,))}
        if table not in self._keys:
            sql = f"SELECT row_key FROM {self.session.rejects} WHERE {_OF_TABLE} AND has_key"
            found = self.session.query(sql, self._of(table)) if table in self._tables else []
            self._keys[table] = {key for (key,) in found}
        return self._keys[table]

    def _of(self, table: TableId) -> tuple[str, str, str]:
        return self.job_uuid, table.database, table.name

    def add(self, schema: TableSchema, rejected: RejectedRows, change_types: Sequence[str] | None = None) -> None:
        """Adds rows. `change_types`: None if they are the rows' states after the part."""
        table = schema.table
        keys = key_texts(schema, rejected.rows).to_pylist()
        has_keys = [np.full(len(keys), bool(schema.key))]
        has_keys += [np.asarray(rejected.rows.column(name).is_valid()) for name in schema.key]
        known = np.logical_and.reduce(has_keys).tolist()
        self._remove(table, [key for key, has_key in zip(keys, known, strict=True) if has_key])
        kinds = [_INSERTED] * len(keys) if change_types is None else change_types
        entries, lines = [], _lines(rejected.rows)
        for key, has_key, kind, columns, line in zip(keys, known, kinds, rejected.columns, lines, strict=True):
            self._unkeyed += not has_key
            digest = _digest(key if has_key else f"{self.epoch} {self.part} {self._unkeyed}")
            entries.append((*self._of(table), digest, has_key, key, kind, columns, line, self.epoch, self.part))
        for some in _pieces(entries, [len(key) + len(line) for key, line in zip(keys, lines, strict=True)]):
            values = ", ".join([f"({', '.join(['%s'] * len(some[0]))})"] * len(some))
            self.session.execute(
                f"INSERT INTO {self.session.rejects} (job_uuid, source_database, source_table, row_digest, has_key, row_key, "
                f"change_type, bad_columns, row_data, epoch, part) VALUES {values}",
                tuple(value for entry in some for value in entry),
                doing=f"keeping rejected rows of {table}",
            )
        self.keys(table).update(key for key, has_key in zip(keys, known, strict=True) if has_key)

    def forget(self, schema: TableSchema, touched: pa.RecordBatch) -> None:
        """Removes the rows with these keys: they were changed or deleted."""
        found = self._among(schema, touched)
        if found is not None:
            self._remove(schema.table, key_texts(schema, touched.filter(pa.array(found))).to_pylist())

    def forget_all(self, table: TableId) -> None:
        """Removes all rows of a table that was emptied."""
        self.session.execute(f"DELETE FROM {self.session.rejects} WHERE {_OF_TABLE}", self._of(table))
        self._keys[table] = set()

    def forget_range(self, table: TableId, keys: IntegerRange) -> None:
        """Removes the rows with keys of the range, which are about to be written again, and those that no range has: the table
        had another key then. Also rows whose key is not known, by what is known of it."""
        self._remove(table, [key for key in self.keys(table) if _is_in(keys, key)])
        if self._tables is not None and table in self._tables:
            sql = f"SELECT row_digest, row_key FROM {self.session.rejects} WHERE {_OF_TABLE} AND NOT has_key"
            unkeyed = self.session.query(sql, self._of(table))
            self._delete(table, [digest for digest, key in unkeyed if _is_in(keys, key)])

    def forget_until(self, table: TableId, epoch: int) -> None:
        """Removes the rows of a table that were rejected in this epoch or before."""
        self.keys(table)
        if self._tables is not None and table in self._tables:
            condition = f"{_OF_TABLE} AND epoch <= %s"
            self.session.execute(f"DELETE FROM {self.session.rejects} WHERE {condition}", (*self._of(table), epoch))
            del self._keys[table]

    def _remove(self, table: TableId, keys: Sequence[str]) -> None:
        known = self.keys(table)
        self._delete(table, [_digest(key) for key in keys if key in known])
        known.difference_update(keys)

    def _delete(self, table: TableId, digests: Iterable[str]) -> None:
        """In their order, because two splits may delete the same rows."""
        ordered = sorted(digests)
        for some in _pieces(ordered, map(len, ordered)):
            self.session.execute(
                f"DELETE FROM {self.session.rejects} WHERE {_OF_TABLE} AND row_digest IN ({', '.join(['%s'] * len(some))})",
                (*self._of(table), *some),
                doing=f"removing rejected rows of {table}",
            )

    def _among(self, schema: TableSchema, keys: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """A mask of the keys that rejected rows have; None for none."""
        known = self.keys(schema.table)
        if not known or not keys.num_rows:
            return None
        found: npt.NDArray[np.bool_] = pc.is_in(key_texts(schema, keys), pa.array(list(known), pa.string())).to_numpy(
            False
        )
        return found if found.any() else None

    def completed(self, schema: TableSchema, effect: NetEffect) -> NetEffect:
        """Returns the effect with missing values taken from rejected rows. The target has the others' values."""
        partial = effect.partial
        found = None if partial is None else self._among(schema, partial.origins)
        if partial is None or found is None:
            return effect
        here, taken = pa.array(found), np.flatnonzero(found)
        keys = key_texts(schema, partial.origins.filter(here)).to_pylist()
        values = {key: self._values(schema, key) for key in dict.fromkeys(keys)}
        whole = filled(partial.rows.filter(here), partial.missing[taken], [values[key] for key in keys])
        rest = None
        if not found.all():
            others = pa.array(~found)
            rest = PartialRows(partial.rows.filter(others), partial.origins.filter(others), partial.missing[~found])
        return replace(effect, rows=joined(effect.rows, whole), partial=rest)

    def _values(self, schema: TableSchema, key: str) -> dict[str, Any]:
        """Returns a rejected row's values that the log may leave out."""
        sql = f"SELECT row_data FROM {self.session.rejects} WHERE {_OF_TABLE} AND row_digest = %s"
        ((line,),) = self.session.query(sql, (*self._of(schema.table), _digest(key)))
        row = json.loads(line)
        kinds = schema.arrow_schema()
        found = {name: row.get(name) for name in schema.toastable}  # the table may have got columns since
        return {name: None if v is None else _reader(kinds.field(name).type)(v) for name, v in found.items()}


_OF_TABLE = "job_uuid = %s AND source_database = %s AND source_table = %s"


def key_texts(schema: TableSchema, rows: pa.RecordBatch) -> pa.Array:
    """Returns each row's key as a JSON object: equal for equal values. Empty for a table without a key."""
    if not schema.key:
        return pa.array(["{}"] * rows.num_rows, pa.string())
    return pa.array(_lines(rows.select(list(schema.key))), pa.string())


def _is_in(keys: IntegerRange, key: str) -> bool:
    """True if a key, one of `key_texts`, is in the range, or has not its columns as integers."""
    row = json.loads(key)
    try:
        values = tuple(int(row[column]) for column in keys.columns)
    except (KeyError, TypeError, ValueError, OverflowError):
        return True
    return keys.contains(values)


def _lines(rows: pa.RecordBatch) -> list[str]:
    """Returns each row as a JSON object."""
    return bytes(json_rows(rows).data).decode().split("\n")[:-1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _pieces(items: Sequence[Any], sizes: Iterable[int]) -> Iterator[list[Any]]:
    """Yields the items in pieces of up to ROWS_PER_STATEMENT and about CHARACTERS_PER_STATEMENT: a statement must not be longer
    than a server takes."""
    piece: list[Any] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if piece and (len(piece) == ROWS_PER_STATEMENT or total + size > CHARACTERS_PER_STATEMENT):
            yield piece
            piece, total = [], 0
        piece.append(item)
        total += size
    if piece:
        yield piece


def joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches([first, second]).combine_chunks().to_batches() or [first]
    return batch


def filled(rows: pa.RecordBatch, missing: npt.NDArray[np.bool_], given: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Replaces missing values by those of `given`, which has a mapping for each row."""
    columns = []
    for i, (column, array) in enumerate(zip(rows.schema, rows.columns, strict=True)):
        values = array
        if missing[:, i].any():
            values = pa.array([row.get(column.name) for row in given], array.type)
            values = pc.if_else(pa.array(missing[:, i]), values, array)
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _reader(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_binary(kind):
        return base64.b64decode
    return Decimal if pa.types.is_decimal(kind) else str
