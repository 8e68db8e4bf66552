"""What a log reader hands out: batches of changes of one table, with their META_FIELDS."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from readers.kernel import Bytes, Int32s, Int64s
from state.table import TableId


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Rows of one table in the log's order; `rows` has `batch_schema` of the table's schema."""

    table: TableId
    schema_version: int
    rows: pa.RecordBatch


def meta_arrays(
    kind: Bytes, version: Int64s, time_us: Int64s, seq: Int32s, transaction: pa.DictionaryArray
) -> list[pa.Array]:
    """META_FIELDS of state/change_batch.py, of changes from the log."""
    times = np.ascontiguousarray(time_us)
    return [
        pa.array(kind.astype(np.int8)),
        pa.array(version),
        pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(times), [None, pa.py_buffer(times)]),
        pa.array(seq),
        transaction,
        pa.Array.from_buffers(pa.bool_(), len(times), [None, pa.py_buffer(bytes((len(times) + 7) // 8))]),
    ]


def runs(values: npt.NDArray[np.generic]) -> tuple[Int32s, npt.NDArray[np.bool_]]:
    """For each value the number of the run of equal ones that it is in, and whether it begins that run."""
    starts = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    return np.cumsum(starts, dtype=np.int32) - np.int32(1), starts
