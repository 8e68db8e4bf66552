"""The Delta sink on executors: turns change batches into rows that Spark writes.

A log part is one Spark partition, so the net effect of its changes is computed where they are unpacked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.conf.redaction import redact_exception
from tidemark.sinks.mirror.net_effect import NetEffect, PartialRows, net_effect
from tidemark.state.change_batch import (
    UNCHANGED_FIELD,
    ChangeBatch,
    ChangeType,
    batch_schema,
    from_transport,
    is_truncation,
)
from tidemark.state.errors import SinkError
from tidemark.state.remedies import START_OVER
from tidemark.state.table import TableSchema
from tidemark.state.typed_rows import typed_batches, typed_schema

Shape: TypeAlias = Literal["changes", "rows", "effect", "rest"]
"""`changes`: all changes, with the changelog columns. `rows`: rows of splits. `effect`: the input of a MERGE, see
`effect_schema`. `rest`: the rows after the last TRUNCATE of changes that have one."""
_OUTPUT_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Unpacking:
    """The function for mapInArrow: takes TRANSPORT rows of one table, yields rows of `schema_of`."""

    schema: TableSchema
    shape: Shape

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            items = (item for batch in batches for item in from_transport(batch))
            changes = (item for item in items if isinstance(item, ChangeBatch))
            yield from self._unpacked(changes)
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise

    def _unpacked(self, changes: Iterator[ChangeBatch]) -> Iterator[pa.RecordBatch]:
        match self.shape:
            case "changes":
                yield from typed_batches(changes)
            case "rows":
                names = self.schema.arrow_schema().names
                for change in changes:
                    if np.any(change.rows.column("_change_type").to_numpy() != ChangeType.INSERT):
                        raise ValueError(f"{change.part} of epoch {change.epoch} has changes, but is a split")
                    yield change.rows.select(names)
            case "effect":
                yield from _effect(self.schema, [change.rows for change in changes])
            case "rest":
                yield from _rest(self.schema, [change.rows for change in changes])


def schema_of(schema: TableSchema, shape: Shape) -> pa.Schema:
    match shape:
        case "changes":
            return typed_schema(schema)
        case "rows" | "rest":
            return schema.arrow_schema()
        case "effect":
            return effect_schema(schema)


def effect_schema(schema: TableSchema) -> pa.Schema:
    """Returns the schema of the net effect: a row for each changed and each new row of the target.

    `at`: the key under which the target has the row, null for a row to insert. `stays`: whether the row remains, as `new`.
    `missing`: the columns whose value the target's row keeps, null if there are none.
    """
    columns = schema.arrow_schema()
    return pa.schema(
        [
            pa.field("at", pa.struct([columns.field(name) for name in schema.key])),
            pa.field("stays", pa.bool_()),
            pa.field("missing", pa.list_(pa.string())),
            pa.field("new", pa.struct(list(columns))),
        ]
    )


def _rest(schema: TableSchema, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    last = max((i for i, batch in enumerate(batches) if is_truncation(batch)), default=-1)
    for effect, _ in _effects(schema, batches[last + 1 :]):
        if effect.partial is not None:
            raise SinkError(
                f"The log leaves values out of an update of {schema.table} whose row went with a TRUNCATE before.",
                f"Please report this, and {START_OVER}.",
            )
        yield effect.rows


def _effect(schema: TableSchema, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for effect, read in _effects(schema, batches):
        for rows in effect_rows(schema, effect, read):
            for start in range(0, rows.num_rows, _OUTPUT_ROWS):
                yield rows.slice(start, _OUTPUT_ROWS)


def _effects(schema: TableSchema, batches: list[pa.RecordBatch]) -> Iterator[tuple[NetEffect, pa.RecordBatch]]:
    """Yields a net effect, and the keys of the rows among the changes that were read from the table."""
    if not batches:
        return
    names = batch_schema(schema).names
    if schema.toastable and all(batch.column(UNCHANGED_FIELD.name).null_count == len(batch) for batch in batches):
        names.remove(UNCHANGED_FIELD.name)
    names.remove("_txn_id")  # its dictionaries differ from batch to batch
    table = pa.Table.from_batches([batch.select(names) for batch in batches])
    for changes in table.combine_chunks().to_batches():
        yield net_effect(schema, changes), changes.filter(changes.column("_is_snapshot")).select(list(schema.key))


def effect_rows(schema: TableSchema, effect: NetEffect, read: pa.RecordBatch | None = None) -> Iterator[pa.RecordBatch]:
    """Yields rows of `effect_schema`. Each `at` occurs once: a row that takes values from another key's row is an update of
    that row, and a new row under the old key is inserted. `read`: keys of rows that were read from the table. Such a row is
    inserted, too, in place of all rows that the target has of its key: somebody may have added another one."""
    kept = effect.rows.select(list(schema.key))
    others = [] if read is None or not read.num_rows else [read]
    origins = [] if effect.partial is None else [effect.partial.origins]
    if effect.partial is not None:
        missing = _missing_names(schema, effect.partial)
        yield _batch(schema, effect.partial.origins, effect.partial.rows, missing=missing)
    inserted = _are_among(kept, [*origins, *others]) if origins or others else np.zeros(kept.num_rows, np.bool_)
    updated = kept.filter(pa.array(~inserted))
    yield _batch(schema, updated, effect.rows.filter(pa.array(~inserted)))
    yield _batch(schema, None, effect.rows.filter(pa.array(inserted)))
    gone = effect.touched.filter(pa.array(~_are_among(effect.touched, [updated, *origins])))
    yield _batch(schema, gone, None)


def _batch(
    schema: TableSchema, at: pa.RecordBatch | None, new: pa.RecordBatch | None, *, missing: pa.Array | None = None
) -> pa.RecordBatch:
    kinds = effect_schema(schema)
    count = next(rows.num_rows for rows in (at, new) if rows is not None)
    arrays = [
        pa.nulls(count, kinds.field("at").type) if at is None else _struct(at, kinds.field("at").type),
        pa.array(np.full(count, new is not None)),
        pa.nulls(count, kinds.field("missing").type) if missing is None else missing,
        pa.nulls(count, kinds.field("new").type) if new is None else _struct(new, kinds.field("new").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


def _struct(rows: pa.RecordBatch, kind: pa.StructType) -> pa.Array:
    return pa.StructArray.from_arrays(rows.columns, fields=list(kind))


def _missing_names(schema: TableSchema, partial: PartialRows) -> pa.Array:
    names = np.array([column.name for column in schema.captured])
    rows, columns = np.nonzero(partial.missing)
    offsets = np.searchsorted(rows, np.arange(len(partial.missing) + 1))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names[columns], pa.string()))


def _are_among(keys: pa.RecordBatch, others: list[pa.RecordBatch]) -> npt.NDArray[np.bool_]:
    """Returns a mask of `keys`: whether one of `others`, which have the same columns, has the key."""
    names = keys.schema.names
    numbered = pa.table(
        [*keys.columns, pa.array(np.arange(keys.num_rows))], names=[*map(str, range(len(names))), "row"]
    )
    listed = pa.concat_tables([pa.table(other.columns, names=[*map(str, range(len(names)))]) for other in others])
    found = numbered.join(listed, listed.schema.names, join_type="left semi", use_threads=False)
    among = np.zeros(keys.num_rows, np.bool_)
    among[found.column("row").to_numpy()] = True
    return among
