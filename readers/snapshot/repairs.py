"""The file of rows that a signal has had read again: a DELETE for each key that the source lacks, then the rows that it has.

It is written before the log position is known from which it counts, so it is named by the signal and not by an epoch.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from tidemark.readers.snapshot.gathered_rows import SPILL_BYTES
from tidemark.readers.snapshot.publish import change_batches, lost_file
from tidemark.readers.snapshot.published_file import check_file, write_file
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.state.change_batch import ChangeType, batch_schema
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.table import TableSchema

KeyValues = tuple[object, ...]


def key_values(rows: pa.RecordBatch | pa.Table, key: Iterable[str]) -> list[KeyValues]:
    """Returns each row's key. Dates and times are numbers in it: Python has no infinite ones, and none before the year 1."""
    return list(zip(*(_numbers(rows.column(name)).to_pylist() for name in key), strict=True))


def _numbers(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if not pa.types.is_temporal(column.type):
        return column
    return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())


def write_repair(
    store: CheckpointStore, name: str, read: SplitRead, lacking: pa.RecordBatch, schema: TableSchema
) -> int:
    """Writes the file and returns the number of its changes. `read`: the rows, with the table's output `schema`. `lacking`: the
    keys of the DELETEs, with the key's columns."""
    absent = pa.table(
        {
            f.name: lacking.column(f.name) if f.name in schema.key else pa.nulls(lacking.num_rows, f.type)
            for f in _own(schema)
        }
    )
    fields = batch_schema(schema)
    batches = [
        *(_as_deletes(batch) for batch in change_batches(replace(read, rows=absent), fields)),
        *change_batches(read, fields),
    ]
    report = replace(read.report, row_count=sum(batch.num_rows for batch in batches))
    store.create(name, write_file("arrow", report, batches, schema, in_memory=read.rows.nbytes < SPILL_BYTES))
    return report.row_count


def read_repair(
    store: CheckpointStore,
    name: str,
    schema: TableSchema,
    *,
    but_rows: Collection[KeyValues] = (),
    but_deletes: Collection[KeyValues] = (),
) -> Iterator[pa.RecordBatch]:
    """Yields the file's changes, with the columns that the table has now, but without the rows of the keys `but_rows` and the
    DELETEs of `but_deletes`. Raises CheckpointError if the file is gone or damaged."""
    data = store.read(name)
    if data is None:
        raise lost_file(name)
    _, batches = check_file(data, name)
    for batch in batches:
        rows = batch
        if but_rows or but_deletes:
            deletes = batch.column("_change_type").to_numpy() == ChangeType.DELETE
            keys = zip(key_values(batch, schema.key), deletes.tolist(), strict=True)
            kept = [key not in (but_deletes if is_delete else but_rows) for key, is_delete in keys]
            rows = batch.filter(pa.array(kept, pa.bool_()))
        yield _with_columns_of(schema, rows)


def _own(schema: TableSchema) -> pa.Schema:
    return schema.arrow_schema()


def _as_deletes(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("_change_type")
    kinds = pa.array([int(ChangeType.DELETE)] * batch.num_rows, pa.int8())
    return batch.set_column(at, batch.schema.field(at), kinds)


def _with_columns_of(schema: TableSchema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """A table may have got and lost columns since the rows were read, and columns of wider types. Then the rows were older than
    the new columns."""
    fields = batch_schema(schema)
    if rows.schema.equals(fields):
        return rows
    added = {column.name: column.constants(rows.num_rows) for column in schema.captured if column.added}
    nothing = {field.name: pa.nulls(rows.num_rows, field.type) for field in fields}
    held = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns = nothing | added | held
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in fields], schema=fields)
