"""The compiled loop over TABLE_MAP and row events: decodes rows into column buffers.

Source of the formats: https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Rows__event.html
"""

import numpy as np

from tidemark.readers.mysql.binlog.arrays import (
    AT,
    BARE_BASE,
    CHECKSUM,
    DROP_SEQ,
    ERROR,
    ERROR_SLOT,
    EVENT,
    EVENT_END,
    FRAMED,
    GROUP,
    LOG_POS,
    MARK,
    ROLLED_BACK,
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
from tidemark.readers.mysql.binlog.crc import CrcTables, crc32
from tidemark.readers.mysql.binlog.events import HEADER_BYTES, EventType
from tidemark.readers.mysql.decoding.column_codes import ColumnCode
from tidemark.readers.mysql.decoding.decode import decode_image
from tidemark.readers.mysql.decoding.integers import little
from tidemark.state.change_batch import ChangeType
from tidemark.state.kernel import Bytes, Int, Int64s, inner_kernel, kernel

NEXT = -1
"""Returned instead of a Reason: the event was processed."""

MAX_SEQ = (1 << 31) - 2

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
def checksum_holds(buf: Bytes, state: Int64s, crc: CrcTables) -> bool:
    """True if the checksum of the event at EVENT is right, or the log has none."""
    if state[CHECKSUM] == 0:
        return True
    stop = state[EVENT_END]
    return bool(crc32(buf, state[EVENT], stop, crc) == np.uint32(little(buf, stop, 4)))


@kernel
def find_table(tables: Tables, table_id: Int) -> Int:
    """The index of its bucket in the hash table, or -(free bucket) - 1."""
    mask = tables.id.shape[0] - 1
    i = table_id & mask
    while tables.id[i] != -1:
        if tables.id[i] == table_id:
            return i
        i = (i + 1) & mask
    return -i - 1


@inner_kernel
def known_table(buf: Bytes, state: Int64s, tables: Tables) -> Int:
    """Accepts a TABLE_MAP that is byte for byte the one seen before. Any other goes to Python."""
    if state[GROUP] != _OPEN:
        return _GRAMMAR
    if state[TX_SKIP]:
        return NEXT
    body = state[EVENT] + _HEADER
    size = state[EVENT_END] - body - 6
    if size < 2:
        return _DAMAGED
    bucket = find_table(tables, little(buf, body, 6))
    if bucket < 0 or tables.size[bucket] != size:
        return _EVENT
    start = tables.start[bucket]
    different = np.uint8(0)
    for i in range(size):
        different |= tables.bytes[start + i] ^ buf[body + 6 + i]
    if different:
        return _EVENT
    tables.mark[bucket] = state[MARK]
    return NEXT


# Rows


@inner_kernel
def row_event(buf: Bytes, kind: Int, state: Int64s, crc: CrcTables, tables: Tables, rows: Rows) -> Int:
    """Decodes a row event: table id (6 bytes), flags (2), since version 2 extra data (a length of 2 bytes that counts itself),
    column count, one bitmap of columns (two for updates), row images."""
    if state[GROUP] != _OPEN:
        return _GRAMMAR
    if state[TX_SKIP] or _is_rolled_back(state, rows):
        return NEXT
    body = state[EVENT] + _HEADER
    stop = state[EVENT_END]
    if stop - body < 10:
        return _DAMAGED
    bucket = find_table(tables, little(buf, body, 6))
    if bucket < 0 or tables.mark[bucket] != state[MARK]:
        return _UNMAPPED
    slot = tables.slot[bucket]
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
    state[ERROR_SLOT] = slot
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
        if state[SEQ] >= MAX_SEQ:
            return _TOO_MANY
        if updates:
            p = _update(buf, p, stop, first, second, slot, state, tables, rows)
        else:
            p = _image(buf, p, stop, first, slot, state[ROW], tables, rows)
            if p >= 0:
                _add_row(state, rows, slot, change)
        if p < 0:
            state[ERROR] = p
            return _DECODER
    state[ROW_AT] = 0
    return NEXT


@inner_kernel
def _is_rolled_back(state: Int64s, rows: Rows) -> bool:
    """True if a later ROLLBACK TO SAVEPOINT undid the event."""
    offset = state[LOG_POS] if state[FRAMED] else state[AT] - state[BARE_BASE]
    for i in range(state[ROLLED_BACK]):  # noqa: SIM110 (numba has no any())
        if rows.rolled_back[i, 0] <= offset < rows.rolled_back[i, 1]:
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
        tables.wanted[slot],
        rows.lo,
        rows.hi,
        rows.valid,
        row,
    )


@inner_kernel
def _update(
    buf: Bytes, p: Int, stop: Int, first: Int, second: Int, slot: Int, state: Int64s, tables: Tables, rows: Rows
) -> Int:
    """Decodes two images. If the key is unchanged they give one updated row; else a deleted and an inserted row."""
    columns = np.int64(tables.column_count[slot])
    p = decode_image(
        buf,
        p,
        stop,
        first,
        columns,
        tables.code[slot],
        tables.meta[slot],
        tables.wanted[slot],
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
    """True if the keys of both images have equal values. False for a table without a key."""
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
