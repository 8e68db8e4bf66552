"""The net effect of a log part on a Delta table, as rows for a MERGE."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.sinks.mirror.net_effect import NetEffect, PartialRows, net_effect
from tidemark.state.change_batch import UNCHANGED_FIELD, batch_schema
from tidemark.state.errors import SinkError
from tidemark.state.remedies import START_OVER
from tidemark.state.table import TableSchema

LARGE_BYTES = 1 << 30
"""The size in Arrow from which on changes get Arrow's large types. A column of the others has at most 2 GiB of text."""
OUTPUT_BYTES = 32 << 20
_OUTPUT_ROWS = 1 << 16


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


def effects(
    schema: TableSchema, batches: list[pa.RecordBatch], *, with_deleted: bool = False
) -> Iterator[tuple[NetEffect, pa.RecordBatch]]:
    """Yields the net effect, if there are changes, and the keys of the rows among them that were read from the table. Both have
    Arrow's large types if there are many changes. See `fitting`."""
    if not batches:
        return
    names = batch_schema(schema).names
    if schema.toastable and all(batch.column(UNCHANGED_FIELD.name).null_count == len(batch) for batch in batches):
        names.remove(UNCHANGED_FIELD.name)
    if UNCHANGED_FIELD.name not in names:  # else an error may name the transaction
        names.remove("_txn_id")  # its dictionaries differ from batch to batch
    table = pa.Table.from_batches([batch.select(names) for batch in batches])
    if table.nbytes > LARGE_BYTES:  # else they would be cut into batches, each with a net effect of its own
        kinds = {name: _large(table.schema.field(name).type) for name in schema.arrow_schema().names}
        table = table.cast(pa.schema([pa.field(f.name, kinds.get(f.name, f.type), f.nullable) for f in table.schema]))
    for changes in table.combine_chunks().to_batches():
        read = changes.filter(changes.column("_is_snapshot")).select(list(schema.key))
        yield net_effect(schema, changes, with_deleted=with_deleted), read


def _large(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the same values without a limit to their size."""
    if pa.types.is_list(kind):
        return pa.large_list(_large(kind.value_type))
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def fitting(batches: Iterable[pa.RecordBatch], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches that Spark can take, with the types of `columns`, which may be large in `batches`."""
    for rows in batches:
        for start in range(0, rows.num_rows, _OUTPUT_ROWS):
            for piece in _pieces(rows.slice(start, _OUTPUT_ROWS)):
                yield piece if piece.schema == columns else _cast(piece, columns)


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if rows.num_rows > 1 and rows.nbytes > OUTPUT_BYTES:
        half = rows.num_rows // 2
        yield from _pieces(rows.slice(0, half))
        yield from _pieces(rows.slice(half))
    else:
        yield rows


def _cast(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    copied = rows.take(pa.array(np.arange(rows.num_rows)))  # Arrow does not cast a slice that lies beyond 2 GiB
    arrays = [array.cast(field.type) for array, field in zip(copied.columns, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def effect_rows(schema: TableSchema, effect: NetEffect, read: pa.RecordBatch | None = None) -> Iterator[pa.RecordBatch]:
    """Yields rows of `effect_schema`. Each `at` occurs once: a row that takes values from another key's row is an update of
    that row, and a new row under the old key is inserted. `read`: keys of rows that were read from the table. Such a row is
    inserted, too, in place of all rows that the target has of its key: somebody may have added another one."""
    kept = effect.rows.select(list(schema.key))
    others = [] if read is None or not read.num_rows else [read]
    origins = [] if effect.partial is None else [effect.partial.origins]
    if effect.partial is not None:
        missing = missing_names(schema, effect.partial)
        yield effect_batch(schema, effect.partial.origins, effect.partial.rows, missing=missing)
    inserted = are_among(kept, [*origins, *others]) if origins or others else np.zeros(kept.num_rows, np.bool_)
    updated = kept.filter(pa.array(~inserted))
    yield effect_batch(schema, updated, effect.rows.filter(pa.array(~inserted)))
    yield effect_batch(schema, None, effect.rows.filter(pa.array(inserted)))
    gone = effect.touched.filter(pa.array(~are_among(effect.touched, [updated, *origins])))
    yield effect_batch(schema, gone, None)


def went_with_truncation(schema: TableSchema) -> SinkError:
    return SinkError(
        f"The log leaves values out of an update of {schema.table} whose row went with a TRUNCATE before.",
        f"Please report this, and {START_OVER}.",
    )


def effect_batch(
    schema: TableSchema, at: pa.RecordBatch | None, new: pa.RecordBatch | None, *, missing: pa.Array | None = None
) -> pa.RecordBatch:
    """Returns rows of `effect_schema`, with large types where `at` and `new` have them. These have as many rows each; one of
    them may be None."""
    kinds = effect_schema(schema)
    count = next(rows.num_rows for rows in (at, new) if rows is not None)
    arrays = [
        struct_of(at, kinds.field("at").type, count),
        pa.array(np.full(count, new is not None)),
        pa.nulls(count, kinds.field("missing").type) if missing is None else missing,
        struct_of(new, kinds.field("new").type, count),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=kinds.names)


def struct_of(rows: pa.RecordBatch | None, kind: pa.StructType, count: int) -> pa.Array:
    """Returns the rows as one column, nulls for None."""
    if rows is None:
        return pa.nulls(count, kind)
    fields = [field.with_type(column.type) for field, column in zip(kind, rows.columns, strict=True)]
    return pa.StructArray.from_arrays(rows.columns, fields=fields)


def missing_names(schema: TableSchema, partial: PartialRows) -> pa.Array:
    """Returns for each row the columns that it lacks."""
    names = np.array([column.name for column in schema.captured])
    rows, columns = np.nonzero(partial.missing)
    offsets = np.searchsorted(rows, np.arange(len(partial.missing) + 1))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names[columns], pa.string()))


def are_among(keys: pa.RecordBatch, others: list[pa.RecordBatch]) -> npt.NDArray[np.bool_]:
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
