"""How rows get values that only the target has: by its own SQL, so that no value leaves the server.

Two temporary tables: the first takes the rows, with the key of the row that each one takes its missing values from, and
which those are; the second the rows with these values. They are inserted when the rows that they were made of are deleted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from sinks.mirror.net_effect import PartialRows
from sinks.mirror.unchanged import lacking
from state.errors import SinkError
from state.table import TableSchema


class Tables(Protocol):
    """What the writer of a table's rows lends, inside of its transaction. Names of tables are full and quoted."""

    def create_temporary(self, columns: str) -> str:
        """An empty table of these columns of the target's table `t`, all of which may be null; its name."""

    def drop_temporary(self, table: str) -> None: ...
    def load(self, table: str, rows: pa.RecordBatch) -> None: ...
    def run(self, sql: str) -> int:
        """The number of rows affected."""


@dataclass(frozen=True, slots=True)
class ExtraColumns:
    """Of the first table, besides the target's own: the key of the row's origin, and a text with a 1 for each column that
    is missing and a 0 for each other."""

    origins: tuple[str, ...]
    missing: str

    @classmethod
    def of(cls, schema: TableSchema) -> "ExtraColumns":
        prefix = "tidemark_"
        while any(column.name.lower().startswith(prefix) for column in schema.captured):
            prefix += "_"
        return cls(tuple(f"{prefix}origin_{i}" for i in range(len(schema.key))), f"{prefix}missing")

    def with_rows(self, partial: PartialRows) -> pa.RecordBatch:
        count, width = partial.missing.shape
        digits = np.where(partial.missing, ord("1"), ord("0")).astype(np.uint8)
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
        missing = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
        names = [*partial.rows.schema.names, *self.origins, self.missing]
        return pa.RecordBatch.from_arrays([*partial.rows.columns, *partial.origins.columns, missing], names=names)


@dataclass(slots=True)
class Completion:
    """`join`: the words between two tables that make the server look up in the second what it finds in the first."""

    tables: Tables
    schema: TableSchema
    target: str
    quoted: Callable[[str], str]
    join: str
    _whole: str = ""
    _row_count: int = 0

    def complete(self, partial: PartialRows) -> None:
        """`TableRows.complete`"""
        extra = ExtraColumns.of(self.schema)
        columns = ", ".join(f"t.{self.quoted(column.name)}" for column in self.schema.captured)
        pairs = [(self.quoted(n), self.quoted(o)) for n, o in zip(self.schema.key, extra.origins, strict=True)]
        origins = ", ".join(f"t.{name} AS {origin}" for name, origin in pairs)
        missing = f"CAST(NULL AS CHAR({partial.missing.shape[1]})) AS {self.quoted(extra.missing)}"
        first = self.tables.create_temporary(f"{columns}, {origins}, {missing}")
        self._whole = self.tables.create_temporary(columns)
        self._row_count = partial.rows.num_rows
        self.tables.load(first, extra.with_rows(partial))
        found = self.tables.run(
            f"INSERT INTO {self._whole} ({self._columns}) SELECT {self._values(extra)} FROM {first} p "
            f"{self.join} {self.target} t ON {' AND '.join(f't.{name} = p.{origin}' for name, origin in pairs)}"
        )
        self.tables.drop_temporary(first)
        if found != self._row_count:
            lost = self._row_count - found
            raise lacking(self.schema, f"The log leaves values out of changes to {lost} rows that {self.target} lacks")

    def insert(self) -> None:
        """`TableRows.insert_completed`"""
        taken = self.tables.run(
            f"INSERT INTO {self.target} ({self._columns}) SELECT {self._columns} FROM {self._whole}"
        )
        check_taken(self.target, taken, self._row_count)
        self.tables.drop_temporary(self._whole)

    @property
    def _columns(self) -> str:
        return ", ".join(self.quoted(column.name) for column in self.schema.captured)

    def _values(self, extra: ExtraColumns) -> str:
        values = []
        for place, column in enumerate(self.schema.captured, 1):
            name = self.quoted(column.name)
            is_missing = f"SUBSTR(p.{self.quoted(extra.missing)}, {place}, 1) = '1'"
            is_toastable = column.name in self.schema.toastable
            values.append(f"CASE WHEN {is_missing} THEN t.{name} ELSE p.{name} END" if is_toastable else f"p.{name}")
        return ", ".join(values)


def check_taken(table: str, taken: int, row_count: int) -> None:
    """Raises SinkError where the target took fewer rows than it was given."""
    if taken != row_count:
        raise SinkError(
            f"{table} took {taken} of {row_count} rows.",
            "Remove triggers and rules that keep rows from being inserted there.",
        )
