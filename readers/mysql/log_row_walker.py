"""The compiled loop's part for tables and their rows: TABLE_MAP and row events into planes.

Source of the formats: https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Rows__event.html
"""

import numpy as np

from readers.kernel import Bytes, Int, Int64s, inner_kernel, kernel
from readers.mysql.column_codes import ColumnCode
from readers.mysql.decode import decode_image
from readers.mysql.log_arrays import (
    AT,
    BARE_BASE,
    CHECKSUM,
    CUTS,
    DROP_SEQ,
    EVENT,
    EVENT_END,
    FAULT,
    FAULT_SLOT,
    FRAMED,
    GROUP,
    LOG_POS,
    MARK,
    ROW,
    ROW_AT,
    SCAN,
    SEQ,
    TOUCHED,
    TX_INDEX,
    TX_SKIP,
    Group,
    Reason,
    Rows,
    Tables,
)  # fmt: skip
from readers.mysql.log_crc import CrcTables, crc32
from readers.mysql.log_events import HEADER_BYTES, EventType
from state.change_batch import ChangeType

NEXT = -1
"""Instead of a Reason: the event is done with."""

GREATEST_SEQ = (1 << 31) - 2

# numba takes module-level integers for constants.
_EVENT, _FULL, _DAMAGED, _CHECKSUM = int(Reason.EVENT), int(Reason.FULL), int(Reason.DAMAGED), int(Reason.CHECKSUM)
_GRAMMAR, _UNMAPPED = int(Reason.GRAMMAR), int(Reason.UNMAPPED)
_COLUMNS, _DECODER, _TOO_MANY = int(Reason.COLUMNS), int(Reason.DECODER), int(Reason.TOO_MANY)
_OPEN = int(Group.OPEN)
_WRITE_V1, _UPDATE_V1 = int(EventType.WRITE_ROWS_V1), int(EventType.UPDATE_ROWS_V1)
_WRITE, _UPDATE = int(EventType.WRITE_ROWS), int(EventType.UPDATE_ROWS)
_BYTES1, _BYTES4 = int(ColumnCode.BYTES1), int(ColumnCode.BYTES4)
_DECIMAL_WIDE, _SKIP = int(ColumnCode.DECIMAL_WIDE), int(ColumnCode.SKIP)
_INSERTED, _UPDATED, _DELETED = int(ChangeType.INSERT), int(ChangeType.UPDATE_POSTIMAGE), int(ChangeType.DELETE)
_HEADER = HEADER_BYTES


@inner_kernel
def little(buf: Bytes, p: Int, size: Int) -> Int:
    """The little-endian integer in `size` bytes at `p`."""
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(buf[p + i]) << (8 * i)
    return value


@inner_kernel
def checksum_holds(buf: Bytes, state: Int64s, crc: CrcTables) -> bool:
    """Of the event at EVENT."""
    if state[CHECKSUM] == 0:
        return True
    stop = state[EVENT_END]
    return bool(crc32(buf, state[EVENT], stop, crc) == np.uint32(little(buf, stop, 4)))


@kernel
def find_table(tables: Tables, table_id: Int) -> Int:
    """Its place in the hash table, or -(free place) - 1."""
    mask = tables.id.shape[0] - 1
    i = table_id & mask
    while tables.id[i] != -1:
        if tables.id[i] == table_id:
            return i
        i = (i + 1) & mask
    return -i - 1


@inner_kernel
def known_table(buf: Bytes, state: Int64s, tables: Tables) -> Int:
    """A TABLE_MAP that is byte for byte the one seen before is noted; another goes to Python."""
    if state[GROUP] != _OPEN:
        return _GRAMMAR
    if state[TX_SKIP]:
        return NEXT
    body = state[EVENT] + _HEADER
    size = state[EVENT_END] - body - 6
    if size < 2:
        return _DAMAGED
    place = find_table(tables, little(buf, body, 6))
    if place < 0 or tables.size[place] != size:
        return _EVENT
    start = tables.start[place]
    different = np.uint8(0)
    for i in range(size):
        different |= tables.bytes[start + i] ^ buf[body + 6 + i]
    if different:
        return _EVENT
    tables.mark[place] = state[MARK]
    return NEXT


# Rows


@inner_kernel
def row_event(buf: Bytes, kind: Int, state: Int64s, crc: CrcTables, tables: Tables, rows: Rows) -> Int:
    """Table 6, flags 2, since v2 a length 2 and so many bytes more (with its own); column count, one bitmap of columns
    (two for updates), images."""
    if state[GROUP] != _OPEN:
        return _GRAMMAR
    if state[TX_SKIP] or _is_cut(state, rows):
        return NEXT
    body = state[EVENT] + _HEADER
    stop = state[EVENT_END]
    if stop - body < 10:
        return _DAMAGED
    place = find_table(tables, little(buf, body, 6))
    if place < 0 or tables.mark[place] != state[MARK]:
        return _UNMAPPED
    slot = tables.slot[place]
    if slot < 0:
        return NEXT
    if state[SCAN]:
        state[TOUCHED] = 1
        return NEXT
    if state[ROW_AT] == 0 and not checksum_holds(buf, state, crc):
        return _CHECKSUM
    p = body + 8
    if kind >= _WRITE:
        extra = little(buf, p, 2)
        if extra < 2:
            return _DAMAGED
        p += extra
    if p + 1 > stop:
        return _DAMAGED
    count = np.int64(buf[p])
    p += 1
    if count == 252:
        if p + 2 > stop:
            return _DAMAGED
        count = little(buf, p, 2)
        p += 2
    elif count > 250:
        return _DAMAGED
    state[FAULT_SLOT] = slot
    if count != tables.column_count[slot]:
        return _COLUMNS
    bitmap = (count + 7) >> 3
    first = p
    second = p
    p += bitmap
    updates = kind in (_UPDATE, _UPDATE_V1)
    if updates:
        second = p
        p += bitmap
    if p > stop or p < body:
        return _DAMAGED
    change = _INSERTED if kind in (_WRITE, _WRITE_V1) else _DELETED
    if state[ROW_AT]:
        p = state[ROW_AT]
    while p < stop:
        if state[ROW] + 2 > rows.slot.shape[0]:
            state[ROW_AT] = p
            return _FULL
        if state[SEQ] >= GREATEST_SEQ:
            return _TOO_MANY
        if updates:
            p = _update(buf, p, stop, first, second, slot, state, tables, rows)
        else:
            p = _image(buf, p, stop, first, slot, state[ROW], tables, rows)
            if p >= 0:
                _add_row(state, rows, slot, change)
        if p < 0:
            state[FAULT] = p
            return _DECODER
    state[ROW_AT] = 0
    return NEXT


@inner_kernel
def _is_cut(state: Int64s, rows: Rows) -> bool:
    """Was the event taken back by a ROLLBACK TO SAVEPOINT further on?"""
    place = state[LOG_POS] if state[FRAMED] else state[AT] - state[BARE_BASE]
    for i in range(state[CUTS]):  # noqa: SIM110 (numba has no any())
        if rows.cuts[i, 0] <= place < rows.cuts[i, 1]:
            return True
    return False


@inner_kernel
def _image(buf: Bytes, p: Int, stop: Int, present: Int, slot: Int, row: Int, tables: Tables, rows: Rows) -> Int:
    return decode_image(
        buf,
        p,
        stop,
        present,
        np.int64(tables.column_count[slot]),
        tables.code[slot],
        tables.meta[slot],
        rows.lo,
        rows.hi,
        rows.valid,
        row,
    )


@inner_kernel
def _update(
    buf: Bytes, p: Int, stop: Int, first: Int, second: Int, slot: Int, state: Int64s, tables: Tables, rows: Rows
) -> Int:
    """Two images. The row's key stays: one row; it changes: the old row deleted, the new one inserted."""
    columns = np.int64(tables.column_count[slot])
    p = decode_image(
        buf,
        p,
        stop,
        first,
        columns,
        tables.code[slot],
        tables.meta[slot],
        rows.before_lo,
        rows.before_hi,
        rows.before_valid,
        0,
    )
    if p < 0:
        return p
    row = state[ROW]
    p = _image(buf, p, stop, second, slot, row, tables, rows)
    if p < 0:
        return p
    if _same_key(buf, row, slot, tables, rows):
        _add_row(state, rows, slot, _UPDATED)
        return p
    for c in range(columns):
        rows.lo[c, row + 1] = rows.lo[c, row]
        rows.hi[c, row + 1] = rows.hi[c, row]
        rows.valid[c, row + 1] = rows.valid[c, row]
        rows.lo[c, row] = rows.before_lo[c, 0]
        rows.hi[c, row] = rows.before_hi[c, 0]
        rows.valid[c, row] = rows.before_valid[c, 0]
    _add_row(state, rows, slot, _DELETED)
    _add_row(state, rows, slot, _INSERTED)
    return p


@inner_kernel
def _add_row(state: Int64s, rows: Rows, slot: Int, kind: Int) -> None:
    seq = state[SEQ]
    state[SEQ] = seq + 1
    if seq < state[DROP_SEQ]:
        return
    row = state[ROW]
    rows.slot[row] = slot
    rows.kind[row] = kind
    rows.tx[row] = state[TX_INDEX]
    rows.seq[row] = seq
    state[ROW] = row + 1


@inner_kernel
def _same_key(buf: Bytes, row: Int, slot: Int, tables: Tables, rows: Rows) -> bool:
    """Compares by value; a table without a key has none that could stay the same."""
    count = tables.key_count[slot]
    for i in range(count):
        c = tables.key[slot, i]
        if rows.valid[c, row] != rows.before_valid[c, 0] or rows.hi[c, row] != rows.before_hi[c, 0]:
            return False
        code = tables.code[slot, c]
        if (_BYTES1 <= code <= _BYTES4) or code in (_DECIMAL_WIDE, _SKIP):
            now = rows.lo[c, row]
            then = rows.before_lo[c, 0]
            for j in range(rows.hi[c, row]):
                if buf[now + j] != buf[then + j]:
                    return False
        elif rows.lo[c, row] != rows.before_lo[c, 0]:
            return False
    return bool(count > 0)
