"""The Delta sink on executors: turns change batches into rows that Spark writes.

A log part is one Spark partition, so the net effect of its changes is computed where they are unpacked.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.redaction import redact_exception
from tidemark.sinks.delta.effect import effect_rows, effect_schema, effects, fitting, went_with_truncation
from tidemark.sinks.delta.errors import OTHER_PARTITIONS
from tidemark.sinks.delta.keeping import kept_effect, kept_schema, replacing_rows
from tidemark.state.change_batch import ChangeBatch, ChangeType, PartItem, PublishedFile, from_transport, is_truncation
from tidemark.state.errors import SinkError
from tidemark.state.table import TableSchema
from tidemark.state.typed_rows import typed_batches, typed_schema

Shape: TypeAlias = Literal["changes", "rows", "effect", "rest", "kept effect", "kept rows"]
"""`changes`: all changes, with the changelog columns. `rows`: rows of splits. `effect`: the input of a MERGE, see
`effect_schema`. `rest`: the rows after the last TRUNCATE of changes that have one. `kept effect`, `kept rows`: the input of a
MERGE into a table that keeps deleted rows, see `kept_schema`, from changes and from rows of splits."""
_YEAR_1 = -62_135_596_800_000_000
"""The first microsecond of it, since 1970."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The value of a partition by which Spark means NULL."""


@dataclass(frozen=True, slots=True)
class Unpacking:
    """The function for mapInArrow: takes TRANSPORT rows of one table, yields rows of `schema_of`. `partitioned_by`: the columns
    by which the Delta table has partitions."""

    schema: TableSchema
    shape: Shape
    partitioned_by: tuple[str, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.unpacked(_changes(item for batch in batches for item in from_transport(batch)))
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise

    def unpacked(self, changes: Iterator[ChangeBatch]) -> Iterator[pa.RecordBatch]:
        changes, columns = map(self._checked, changes), schema_of(self.schema, self.shape)
        match self.shape:
            case "changes":
                yield from typed_batches(changes)
            case "rows":
                yield from self._rows(changes)
            case "effect":
                for effect, read in effects(self.schema, [change.rows for change in changes]):
                    yield from fitting(effect_rows(self.schema, effect, read), columns)
            case "rest":
                yield from fitting(_rest(self.schema, [change.rows for change in changes]), columns)
            case "kept effect":
                yield from fitting(kept_effect(self.schema, [change.rows for change in changes]), columns)
            case "kept rows":
                for rows in self._rows(changes):
                    yield from fitting(replacing_rows(self.schema, rows), columns)

    def _checked(self, change: ChangeBatch) -> ChangeBatch:
        """Raises SinkError for a value that is another one in the Delta table, except for NULL in a column that is not in a
        mirror's key."""
        for _, why in unfit_columns(self.schema, change.rows, self.partitioned_by, self.shape):
            raise unfit(self.schema, why)
        return change

    def _rows(self, changes: Iterator[ChangeBatch]) -> Iterator[pa.RecordBatch]:
        names = self.schema.arrow_schema().names
        for change in changes:
            if np.any(change.rows.column("_change_type").to_numpy() != ChangeType.INSERT):
                raise ValueError(f"{change.part} of epoch {change.epoch} has changes, but is a split")
            yield change.rows.select(names)


def _changes(items: Iterable[PartItem]) -> Iterator[ChangeBatch]:
    for item in items:
        if isinstance(item, PublishedFile):
            raise TypeError(f"{item.part} is the file {item.name}, which was not staged")
        if isinstance(item, ChangeBatch):
            yield item


def unfit_columns(
    schema: TableSchema, rows: pa.RecordBatch, names: Collection[str], shape: Shape
) -> Iterator[tuple[str, str]]:
    """Yields those of the columns with a value that would be another one in a column by which a Delta table is partitioned,
    each with the reason."""
    for column in (column for column in schema.captured if column.name in names):
        values = rows.column(column.name)
        is_key = column.name in schema.key and shape != "changes"
        if column.arrow_type == "timestamptz" and pc.any(pc.less(values.cast(pa.int64()), _YEAR_1)).as_py():
            why = "is before the year 1: Delta leaves out which era it is in a"
        elif is_key and column.arrow_type == "string" and pc.any(pc.equal(values, NULL_PARTITION)).as_py():
            why = (
                f"is {NULL_PARTITION}. The column is part of the key, and Delta has NULL for this text, as for an empty "
                "one, in a"
            )
        else:
            continue
        yield column.name, f"column {column.name} of a row {why}"


def unfit(schema: TableSchema, why: str) -> SinkError:
    text = f"{schema.table}: {why} column that partitions a table."
    return SinkError(text, OTHER_PARTITIONS, schema.table)


def schema_of(schema: TableSchema, shape: Shape) -> pa.Schema:
    match shape:
        case "changes":
            return typed_schema(schema)
        case "rows" | "rest":
            return schema.arrow_schema()
        case "effect":
            return effect_schema(schema)
        case "kept effect" | "kept rows":
            return kept_schema(schema)


def _rest(schema: TableSchema, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    last = max((i for i, batch in enumerate(batches) if is_truncation(batch)), default=-1)
    for effect, _ in effects(schema, batches[last + 1 :]):
        if effect.partial is not None:
            raise went_with_truncation(schema)
        yield effect.rows
