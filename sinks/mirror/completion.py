"""Completes rows with values that only the target has. It does so by SQL in the target: no value leaves the server.

It uses two temporary tables. The first one takes the incomplete rows, each with the key of the target's row that has the
missing values (its origin) and a list of what is missing. The second one takes the completed rows. They are inserted into the
target once the old rows are deleted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemark.sinks.mirror.net_effect import PartialRows
from tidemark.sinks.mirror.unchanged import missing_value_error
from tidemark.state.errors import RefusedRowsError
from tidemark.state.table import TableSchema


class Statements(Protocol):
    """The statements that `Completion` needs, run in the caller's transaction. Table names are full and quoted."""

    def create_temporary(self, columns: str) -> str:
        """Creates an empty table with these columns of the target's table `t`, all nullable. Returns its name."""

    def drop_temporary(self, table: str) -> None: ...
    def load(self, table: str, rows: pa.RecordBatch) -> None: ...
    def check_written(self, affected: int, row_count: int) -> None:
        """Raises SinkError if the number of affected rows shows that not all rows were written."""

    def run(self, sql: str) -> int:
        """Returns the number of affected rows."""


@dataclass(frozen=True, slots=True)
class ExtraColumns:
    """The first table's columns besides the target's: the origin's key, and a text with one digit per column, 1 if it is
    missing, else 0."""

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
    """`join`: the SQL join that makes the server read the first table and look up its rows in the second one. `upsert`: returns
    the statement that writes all rows of a temporary table, given its name, to the target."""

    statements: Statements
    schema: TableSchema
    target: str
    quoted: Callable[[str], str]
    join: str
    upsert: Callable[[str], str]
    _whole: str = ""
    _row_count: int = 0

    def complete(self, partial: PartialRows) -> None:
        """See `TableRows.complete`."""
        extra = ExtraColumns.of(self.schema)
        columns = ", ".join(f"t.{self.quoted(column.name)}" for column in self.schema.captured)
        pairs = [(self.quoted(n), self.quoted(o)) for n, o in zip(self.schema.key, extra.origins, strict=True)]
        origins = ", ".join(f"t.{name} AS {origin}" for name, origin in pairs)
        missing = f"CAST(NULL AS CHAR({partial.missing.shape[1]})) AS {self.quoted(extra.missing)}"
        first = self.statements.create_temporary(f"{columns}, {origins}, {missing}")
        self._whole = self.statements.create_temporary(columns)
        self._row_count = partial.rows.num_rows
        self.statements.load(first, extra.with_rows(partial))
        found = self.statements.run(
            f"INSERT INTO {self._whole} ({self._columns}) SELECT {self._values(extra)} FROM {first} p "
            f"{self.join} {self.target} t ON {' AND '.join(f't.{name} = p.{origin}' for name, origin in pairs)}"
        )
        self.statements.drop_temporary(first)
        if found != self._row_count:
            lost = self._row_count - found
            raise missing_value_error(
                self.schema, f"The log leaves values out of changes to {lost} rows that {self.target} does not have"
            )

    def write(self) -> None:
        """See `TableRows.upsert_completed`."""
        self.statements.check_written(self.statements.run(self.upsert(self._whole)), self._row_count)
        self.statements.drop_temporary(self._whole)

    @property
    def _columns(self) -> str:
        return ", ".join(self.quoted(column.name) for column in self.schema.captured)

    def _values(self, extra: ExtraColumns) -> str:
        values = []
        for number, column in enumerate(self.schema.captured, 1):
            name = self.quoted(column.name)
            is_missing = f"SUBSTR(p.{self.quoted(extra.missing)}, {number}, 1) = '1'"
            is_toastable = column.name in self.schema.toastable
            values.append(f"CASE WHEN {is_missing} THEN t.{name} ELSE p.{name} END" if is_toastable else f"p.{name}")
        return ", ".join(values)


def check_row_count(table: str, inserted: int, row_count: int) -> None:
    """Raises RefusedRowsError if the target has inserted another number of rows than it was given."""
    if inserted != row_count:
        raise RefusedRowsError(
            f"{table} has taken {inserted} of {row_count} rows.",
            "Remove the triggers and rules of that table that skip or redirect rows.",
        )
