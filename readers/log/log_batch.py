"""The output of a log reader: batches of changes of one table, with their META_FIELDS."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType, batch_schema
from tidemark.state.kernel import Bytes, Int32s, Int64s
from tidemark.state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Changes of one table, in the log's order. `rows` has `batch_schema` of the table's schema."""

    table: TableId
    schema_version: int
    rows: pa.RecordBatch


def meta_arrays(
    kind: Bytes, version: Int64s, time_us: Int64s, seq: Int32s, transaction: pa.DictionaryArray
) -> list[pa.Array]:
    """Returns the columns META_FIELDS (state/change_batch.py) for changes from the log."""
    times = np.ascontiguousarray(time_us)
    return [
        pa.array(kind.astype(np.int8)),
        pa.array(version),
        pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(times), [None, pa.py_buffer(times)]),
        pa.array(seq),
        transaction,
        pa.Array.from_buffers(pa.bool_(), len(times), [None, pa.py_buffer(bytes((len(times) + 7) // 8))]),
    ]


def with_added(schema: TableSchema, logged: TableSchema, arrays: Sequence[pa.Array], row_count: int) -> list[pa.Array]:
    """Returns arrays of the captured columns of `schema`, given those of `logged`: the columns that were added later have their
    constants, or NULL."""
    found = {column.name: array for column, array in zip(logged.captured, arrays, strict=True)}
    return [found[column.name] if column.name in found else column.constants(row_count) for column in schema.captured]


def truncation(schema: TableSchema, *, version: int, time_us: int, seq: int, transaction: str) -> LogBatch:
    """Returns a TRUNCATE of the table, alone in its batch."""
    arrays = [pa.nulls(1, field.type) for field in schema.arrow_schema()]
    arrays += meta_arrays(
        np.array([ChangeType.TRUNCATE], np.uint8),
        np.array([version], np.int64),
        np.array([time_us], np.int64),
        np.array([seq], np.int32),
        pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([transaction])),
    )
    if schema.toastable:
        arrays.append(pa.nulls(1, UNCHANGED_FIELD.type))
    rows = pa.RecordBatch.from_arrays(arrays, schema=batch_schema(schema))
    return LogBatch(schema.table, schema.version, rows)


def runs(values: npt.NDArray[np.generic]) -> tuple[Int32s, npt.NDArray[np.bool_]]:
    """Returns, for each value, the number of its run of equal values, and whether it begins that run."""
    starts = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    return np.cumsum(starts, dtype=np.int32) - np.int32(1), starts
