"""Makes Arrow batches of the column buffers that the compiled loop fills."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.gather import copy, measure
from tidemark.readers.log.log_batch import LogBatch, meta_arrays, runs, with_added
from tidemark.readers.postgres.array_texts import ArrayTexts, lists
from tidemark.readers.postgres.pgoutput.arrays import TX_FIELD_LSN, TX_FIELD_TIME, TX_FIELD_XID, TX_FIELDS, Rows, Value
from tidemark.readers.postgres.pgoutput.hex_bytes import copy_hex, measure_hex
from tidemark.readers.postgres.pgoutput.messages import damaged
from tidemark.readers.postgres.pgoutput.tables import Slot
from tidemark.readers.postgres.pgoutput.text_values import text_array
from tidemark.state.change_batch import UNCHANGED_FIELD, batch_schema
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.kernel import Bytes, Int32s, Int64s
from tidemark.state.remedies import START_OVER
from tidemark.state.table import Column, TableSchema, arrow_type_of, is_list

COLUMN_BUFFER_BYTES = 48 << 20
MAX_ROWS = 1 << 17
MIN_ROWS = 16
TRANSACTIONS = 1 << 17


def empty_rows(width: int, *, column_buffer_bytes: int = COLUMN_BUFFER_BYTES, transactions: int = TRANSACTIONS) -> Rows:
    """Allocates buffers for rows of `width` columns."""
    capacity = max(MIN_ROWS, min(MAX_ROWS, column_buffer_bytes // (17 * width)))
    return Rows(
        np.empty(capacity, np.int32),
        np.empty(capacity, np.uint8),
        np.empty(capacity, np.int32),
        np.empty(capacity, np.int32),
        np.empty((width, capacity), np.int64),
        np.empty((width, capacity), np.int64),
        np.empty((width, capacity), np.uint8),
        np.zeros((transactions, TX_FIELDS), np.int64),
        np.empty((width, 1), np.int64),
        np.empty((width, 1), np.int64),
        np.empty((width, 1), np.uint8),
    )


def batches(rows: Rows, count: int, buf: Bytes, slots: Sequence[Slot], rule: BadValueRule = STOP) -> list[LogBatch]:
    """Returns the first `count` rows: one batch per slot, in the order of slots. Raises SourceNotUsableError."""
    made = []
    present = rows.slot[:count]
    for number in np.unique(present).tolist():
        schema, whole = slots[number].logged, slots[number].schema
        chosen = np.flatnonzero(present == number)
        arrays = [
            _column(schema, column, buf, _Found(rows.start[i], rows.size[i], rows.valid[i], chosen), rule)
            for i, column in enumerate(schema.captured)
        ]
        arrays = with_added(whole, schema, arrays, len(chosen))
        arrays += _meta(rows, chosen)
        unchanged = _unchanged(schema, rows.valid[: len(schema.captured), :count], chosen)
        if whole.toastable:
            arrays.append(unchanged)
        batch = pa.RecordBatch.from_arrays(arrays, schema=batch_schema(whole))
        made.append(LogBatch(whole.table, whole.version, batch))
    return made


@dataclass(frozen=True, slots=True)
class _Found:
    """One column of `Rows`, and the rows that are wanted."""

    start: Int64s
    size: Int64s
    valid: Bytes
    chosen: Int64s


def _column(schema: TableSchema, column: Column, buf: Bytes, found: _Found, rule: BadValueRule) -> pa.Array:
    start, size, valid, chosen = found.start, found.size, found.valid, found.chosen
    kind = pa.string() if is_list(column.arrow_type) else arrow_type_of(column.arrow_type)
    offsets = np.empty(len(chosen) + 1, np.int32)
    hexadecimal = pa.types.is_binary(kind)
    total = measure_hex(size, valid, chosen, offsets) if hexadecimal else measure(size, chosen, offsets)
    data = np.empty(max(total, 0), np.uint8)
    if hexadecimal and total >= 0:
        total = copy_hex(buf, start, valid, chosen, offsets, data)
    elif total >= 0:
        copy(buf, start, chosen, offsets, data)
    if total == -1:
        raise SourceNotUsableError(
            f"{schema.table}.{column.name} has more than 2 GiB in one batch.",
            f"Exclude the column (source.columns), then {START_OVER}.",
        )
    if total < 0:
        raise damaged(f"{schema.table}.{column.name} has a value that is not bytea")
    present = valid[chosen] == Value.TEXT
    if is_list(column.arrow_type):
        return lists(schema, column, ArrayTexts(offsets, data, present.astype(np.uint8)), rule)
    values = _array(kind if hexadecimal else pa.string(), offsets, data, present)
    return values if hexadecimal else text_array(schema, column, values, rule)


def _array(kind: pa.DataType, offsets: Int32s, data: Bytes, present: npt.NDArray[np.bool_]) -> pa.Array:
    nulls = len(present) - int(np.count_nonzero(present))
    mask = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(kind, len(present), [mask, pa.py_buffer(offsets), pa.py_buffer(data)], nulls)


def _meta(rows: Rows, chosen: Int64s) -> list[pa.Array]:
    tx = rows.tx[chosen]
    indices, starts = runs(tx)
    ids = pc.cast(pa.array(rows.transactions[tx[starts], TX_FIELD_XID]), pa.string())
    transactions = rows.transactions[tx]
    return meta_arrays(
        rows.kind[chosen],
        np.ascontiguousarray(transactions[:, TX_FIELD_LSN]),
        transactions[:, TX_FIELD_TIME],
        rows.seq[chosen],
        pa.DictionaryArray.from_arrays(pa.array(indices), ids),
    )


def _unchanged(schema: TableSchema, valid: Bytes, chosen: Int64s) -> pa.Array:
    unchanged = valid[:, chosen] == Value.UNCHANGED
    counts = unchanged.sum(axis=0)
    if not counts.any():
        return pa.nulls(len(chosen), UNCHANGED_FIELD.type)
    offsets = np.zeros(len(chosen) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    names = pa.array([column.name for column in schema.captured]).take(pa.array(np.nonzero(unchanged.T)[1]))
    if foreign := sorted(set(pc.unique(names).to_pylist()) - set(schema.toastable)):
        raise damaged(f"{schema.table} has no value of {', '.join(foreign)}, which can't be TOASTed")
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(counts == 0))
