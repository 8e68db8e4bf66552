"""Inner loops over one tuple of pgoutput: reading its values into column buffers, and comparing keys."""

import numpy as np

from tidemark.readers.postgres.pgoutput.arrays import Reason, Rows, Tables, Value
from tidemark.state.kernel import Bytes, Int, Int64s, inner_kernel

# numba takes module-level integers for constants.
_DAMAGED, _COLUMNS, _FORM = int(Reason.DAMAGED), int(Reason.COLUMNS), int(Reason.FORM)
_NULL, _TEXT, _UNCHANGED = int(Value.NULL), int(Value.TEXT), int(Value.UNCHANGED)
_IS_NULL, _IS_UNCHANGED, _IS_TEXT = ord("n"), ord("u"), ord("t")


@inner_kernel
def big(buf: Bytes, at: Int, size: Int) -> Int:
    """Reads an unsigned big-endian integer."""
    value = np.int64(0)
    for i in range(at, at + size):
        value = value << 8 | np.int64(buf[i])
    return value


@inner_kernel
def read_tuple(
    buf: Bytes,
    at: Int,
    stop: Int,
    slot: Int,
    tables: Tables,
    start: Int64s,
    size: Int64s,
    valid: Bytes,
    row: Int,
    whole: bool,
) -> Int:
    """Reads a tuple into `row` of the column buffers. Returns the offset after it, or -Reason. `whole`: no value may be left
    out."""
    if at + 2 > stop:
        return np.int64(-_DAMAGED)
    count = tables.column_count[slot]
    if big(buf, at, 2) != count:
        return np.int64(-_COLUMNS)
    at += 2
    for i in range(count):
        if at >= stop:
            return np.int64(-_DAMAGED)
        kind = buf[at]
        at += 1
        length = np.int64(0)
        code = _NULL
        if kind == _IS_TEXT:
            if at + 4 > stop:
                return np.int64(-_DAMAGED)
            length = big(buf, at, 4)
            at += 4
            if length > stop - at:
                return np.int64(-_DAMAGED)
            code = _TEXT
        elif kind == _IS_UNCHANGED and not whole:
            code = _UNCHANGED
        elif kind != _IS_NULL:
            return np.int64(-_FORM)
        column = tables.buffer[slot, i]
        if column >= 0:
            start[column, row] = at
            size[column, row] = length
            valid[column, row] = code
        at += length
    return at


@inner_kernel
def same_key(buf: Bytes, slot: Int, row: Int, tables: Tables, rows: Rows) -> bool:
    """True if the keys of `row` and of the old row are equal, byte for byte."""
    for i in range(tables.key_count[slot]):
        column = tables.key[slot, i]
        length = rows.size[column, row]
        if rows.valid[column, row] != rows.before_valid[column, 0] or length != rows.before_size[column, 0]:
            return False
        new, old = rows.start[column, row], rows.before_start[column, 0]
        for j in range(length):
            if buf[new + j] != buf[old + j]:
                return False
    return True


@inner_kernel
def has_key(tables: Tables, rows: Rows, slot: Int, row: Int) -> bool:
    """True if no column of the row's key is null."""
    empty = 0
    for i in range(tables.key_count[slot]):
        empty += rows.valid[tables.key[slot, i], row] != _TEXT
    return empty == 0
