"""The audit columns of a mirror's copies: which copies can't have them, and rows with their values."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidemark.sinks.audit import AuditColumns
from tidemark.sinks.mirror.net_effect import PartialRows
from tidemark.sinks.mirror.target import Dialect, TargetTable
from tidemark.sinks.sink import Finding
from tidemark.state.table import Column, TableSchema


def audit_findings(
    audit: AuditColumns, schema: TableSchema, existing: TargetTable | None, dialect: Dialect
) -> Iterator[Finding]:
    """Yields why a source table's copy can't have the columns."""
    yield from audit.name_findings(schema, dialect.same_column)
    if audit.keeps_deleted and schema.key and existing is not None and not existing.updated_in_place:
        yield Finding(
            schema.table,
            "Its copy can't keep deleted rows: it has another unique index, rules, a deferrable primary key or an identity "
            "that is always generated.",
            "Drop that from the copy, or start the job without sink.audit_columns.deleted.",
        )


def marked(rows: pa.RecordBatch, columns: tuple[Column, ...]) -> pa.RecordBatch:
    """Returns the rows with the columns' constants."""
    for column in columns:
        rows = rows.append_column(column.name, column.constants(rows.num_rows))
    return rows


def marked_partial(partial: PartialRows, columns: tuple[Column, ...]) -> PartialRows:
    return PartialRows(
        marked(partial.rows, columns), partial.origins, np.pad(partial.missing, ((0, 0), (0, len(columns))))
    )
