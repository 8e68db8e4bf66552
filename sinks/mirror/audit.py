"""The audit columns of a mirror (`sink.audit_columns`): when a row was written, and whether the source has deleted it.

They are columns of the copy that the source does not have. Their values are the same for all rows of a transaction that are
written, and for all that are marked as deleted: constants of a `Column`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemark.conf.tables import setting_of
from tidemark.sinks.mirror.net_effect import PartialRows
from tidemark.sinks.mirror.target import Dialect, TargetTable
from tidemark.sinks.sink import Finding
from tidemark.state.table import Column, TableSchema


class Clock(Protocol):
    def now(self) -> str:
        """Returns the target's time in UTC, as `Column.constant` has it."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The audit columns with their values in one transaction. `kept`: of rows that are written. `removed`: of rows that the
    source has deleted, () if these are deleted in the copy, too."""

    kept: tuple[Column, ...] = ()
    removed: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditColumns:
    """The names of the columns; None for a column that the copies don't have."""

    synced_at: str | None = None
    deleted: str | None = None

    @property
    def keeps_deleted(self) -> bool:
        return self.deleted is not None

    def extended(self, schema: TableSchema) -> TableSchema:
        """Returns the schema of the table's copy."""
        return replace(schema, columns=schema.columns + self._columns())

    def marks(self, clock: Clock) -> Marks:
        now = None if self.synced_at is None else clock.now()
        return Marks(self._columns("false", now), self._columns("true", now) if self.keeps_deleted else ())

    def _columns(self, deleted: str | None = None, at: str | None = None) -> tuple[Column, ...]:
        columns = []
        if self.deleted is not None:
            columns.append(Column(self.deleted, "boolean", "bool", nullable=True, made=True, constant=deleted))
        if self.synced_at is not None:
            kind = "timestamp with time zone"
            columns.append(Column(self.synced_at, kind, "timestamptz", nullable=True, made=True, constant=at))
        return tuple(columns)

    def problems(self, schema: TableSchema, existing: TargetTable | None, dialect: Dialect) -> Iterator[Finding]:
        """Yields why a source table's copy can't have the columns."""
        names = {dialect.same_column(column.name) for column in self._columns()}
        for column in schema.captured:
            if dialect.same_column(column.name) in names:
                yield Finding(
                    schema.table,
                    f"Its column {column.name} has the name of a column in sink.audit_columns.",
                    f"Exclude it: {setting_of('source.columns', schema.table, {'exclude': [column.name]})}; or start the "
                    "job with another name in sink.audit_columns.",
                )
        if self.keeps_deleted and schema.key and existing is not None and not existing.updated_in_place:
            yield Finding(
                schema.table,
                "Its copy can't keep deleted rows: it has another unique index, rules, a deferrable primary key or an identity "
                "that is always generated.",
                "Drop that from the copy, or start the job without sink.audit_columns.deleted.",
            )


NO_AUDIT = AuditColumns()


def marked(rows: pa.RecordBatch, columns: tuple[Column, ...]) -> pa.RecordBatch:
    """Returns the rows with the columns' constants."""
    for column in columns:
        rows = rows.append_column(column.name, column.constants(rows.num_rows))
    return rows


def marked_partial(partial: PartialRows, columns: tuple[Column, ...]) -> PartialRows:
    return PartialRows(
        marked(partial.rows, columns), partial.origins, np.pad(partial.missing, ((0, 0), (0, len(columns))))
    )
