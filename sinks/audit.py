"""The audit columns of copies (`sink.audit_columns`): when a row was written, and whether the source has deleted it.

They are columns of a copy that the source does not have. Their values are the same for all rows that one transaction writes,
and for all that it marks as deleted: constants of a `Column`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from tidemark.conf.sink import AuditColumns as AuditSettings
from tidemark.conf.tables import setting_of
from tidemark.sinks.sink import Finding
from tidemark.state.sink_identity import SinkSetting
from tidemark.state.table import Column, TableSchema


class Clock(Protocol):
    def now(self) -> str:
        """Returns the time in UTC, as `Column.constant` has it."""


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

    @classmethod
    def of(cls, settings: AuditSettings) -> "AuditColumns":
        return cls(settings.synced_at, settings.deleted)

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

    def name_findings(self, schema: TableSchema, same: Callable[[str], str]) -> Iterator[Finding]:
        """Yields the columns of a source table that have the names of audit columns. `same`: equal for names that the target
        takes as equal."""
        names = {same(column.name) for column in self._columns()}
        for column in schema.captured:
            if same(column.name) in names:
                yield Finding(
                    schema.table,
                    f"Its column {column.name} has the name of a column in sink.audit_columns.",
                    f"Exclude it: {setting_of('source.columns', schema.table, {'exclude': [column.name]})}; or start the "
                    "job with another name in sink.audit_columns.",
                )


NO_AUDIT = AuditColumns()


def audit_settings(settings: AuditSettings) -> tuple[SinkSetting, ...]:
    """Returns the part of a sink's identity that `sink.audit_columns` is. Without columns it is not in it."""
    names = settings.model_dump(exclude_none=True)
    text = ", ".join(f"{key}: {name}" for key, name in names.items())
    return (SinkSetting("sink.audit_columns", text),) if names else ()
