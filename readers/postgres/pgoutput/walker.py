"""The compiled loop over the log: parses COPY's rows, which are messages of pgoutput, into rows of tables.

It walks over a flat buffer of rows of `COPY (SELECT data …) TO STDOUT (FORMAT binary)`. Each row is one message of pgoutput
(protocol version 1). It handles Begin, Insert, Update, Delete and Commit. At any other message it returns to Python, with a
Reason. It never reads beyond `end` or beyond a message's end.
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html

All state that outlives a call is in arrays: `state` (indices in arrays.py), `Tables`, `Rows`.
"""

import numpy as np

from tidemark.readers.postgres.pgoutput.arrays import (
    AT,
    DONE_COUNT,
    DONE_LSN,
    DONE_TIME,
    DROP_SEQ,
    LAST_LSN,
    MESSAGE,
    MESSAGE_END,
    OPEN,
    RELATION,
    RESUME_LSN,
    RESUME_SEQ,
    ROW,
    SEQ,
    STOP_LSN,
    TX,
    TX_FIELD_LSN,
    TX_FIELD_TIME,
    TX_FIELD_XID,
    TX_INDEX,
    TX_LSN,
    TX_TIME,
    TX_XID,
    UNWANTED,
    WANTED,
    Reason,
    Rows,
    Tables,
    Value,
)  # fmt: skip
from tidemark.readers.postgres.pgoutput.tuples import big, has_key, read_tuple, same_key
from tidemark.state.change_batch import ChangeType
from tidemark.state.kernel import Bytes, Int, Int64s, inner_kernel, kernel

# numba takes module-level integers for constants.
_MORE, _MESSAGE, _FULL, _END = int(Reason.MORE), int(Reason.MESSAGE), int(Reason.FULL), int(Reason.END)
_DAMAGED, _GRAMMAR, _ORDER = int(Reason.DAMAGED), int(Reason.GRAMMAR), int(Reason.ORDER)
_UNMAPPED, _IDENTITY = int(Reason.UNMAPPED), int(Reason.IDENTITY)
_KEY, _TOO_MANY = int(Reason.KEY), int(Reason.TOO_MANY)
_NEXT = -1
_NULL, _TEXT, _UNCHANGED = int(Value.NULL), int(Value.TEXT), int(Value.UNCHANGED)
_INSERTED, _UPDATED = int(ChangeType.INSERT), int(ChangeType.UPDATE_POSTIMAGE)
_DELETED = int(ChangeType.DELETE)
_MAX_SEQ = 0x7FFFFFFF - 2
_BEGIN_BYTES, _COMMIT_BYTES = 21, 26
_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE = ord("B"), ord("C"), ord("I"), ord("U"), ord("D")
_NEW, _OLD_KEY, _OLD_ROW = ord("N"), ord("K"), ord("O")
EPOCH_MICROSECONDS = 946_684_800_000_000
"""PostgreSQL counts from 2000-01-01."""


@kernel
def walk(buf: Bytes, end: Int, state: Int64s, tables: Tables, rows: Rows) -> Int:
    """Walks from state[AT] to `end` and returns a Reason."""
    if end > buf.shape[0] or state[AT] < 0:
        return _DAMAGED
    while True:
        at = state[AT]
        if at + 2 > end:
            return _MORE
        fields = big(buf, at, 2)
        if fields == 0xFFFF:
            return _END
        if fields != 1:
            return _DAMAGED
        if at + 6 > end:
            return _MORE
        size = big(buf, at + 2, 4)
        if size < 1 or size > 0x7FFFFFFF:
            return _DAMAGED
        start = at + 6
        stop = start + size
        if stop > end:
            return _MORE
        state[MESSAGE] = start
        state[MESSAGE_END] = stop
        kind = buf[start]
        if kind == _BEGIN:
            reason = _begin(buf, start, stop, state)
        elif kind == _COMMIT:
            reason = _commit(buf, start, stop, state)
        elif kind in (_INSERT, _UPDATE, _DELETE):
            reason = _change(buf, start, stop, kind, state, tables, rows)
        else:
            return _MESSAGE
        if reason != _NEXT:
            return reason
        state[AT] = stop


@kernel
def find_relation(tables: Tables, relation: Int) -> Int:
    """Returns the relation's index in the hash table, or -1 - (the index at which to insert it)."""
    mask = tables.id.shape[0] - 1
    index = (relation * 0x9E3779B1 >> 7) & mask
    while tables.id[index] != relation:
        if tables.id[index] == -1:
            return -1 - index
        index = (index + 1) & mask
    return np.int64(index)


@inner_kernel
def _begin(buf: Bytes, at: Int, stop: Int, state: Int64s) -> Int:
    if stop - at != _BEGIN_BYTES:
        return _DAMAGED
    if state[OPEN]:
        return _GRAMMAR
    lsn = big(buf, at + 1, 8)
    if lsn <= state[LAST_LSN]:
        return _ORDER
    state[OPEN] = 1
    state[LAST_LSN] = lsn
    state[TX_LSN] = lsn
    state[TX_TIME] = big(buf, at + 9, 8) + EPOCH_MICROSECONDS
    state[TX_XID] = big(buf, at + 17, 4)
    state[TX_INDEX] = -1
    state[SEQ] = 0
    state[WANTED] = 1 if state[RESUME_LSN] <= lsn and lsn < state[STOP_LSN] else 0
    state[DROP_SEQ] = state[RESUME_SEQ] if lsn == state[RESUME_LSN] else 0
    return _NEXT


@inner_kernel
def _commit(buf: Bytes, at: Int, stop: Int, state: Int64s) -> Int:
    if stop - at != _COMMIT_BYTES:
        return _DAMAGED
    if not state[OPEN]:
        return _GRAMMAR
    if big(buf, at + 2, 8) != state[TX_LSN] or state[SEQ] < state[DROP_SEQ]:
        return _ORDER
    state[OPEN] = 0
    if state[WANTED] and state[TX_LSN] > state[DONE_LSN]:
        state[DONE_LSN] = state[TX_LSN]
        state[DONE_TIME] = state[TX_TIME]
        state[DONE_COUNT] += 1
    return _NEXT


@inner_kernel
def _change(buf: Bytes, at: Int, stop: Int, kind: Int, state: Int64s, tables: Tables, rows: Rows) -> Int:
    if not state[OPEN]:
        return _GRAMMAR
    if not state[WANTED]:
        return _NEXT
    if stop - at < 8:
        return _DAMAGED
    relation = big(buf, at + 1, 4)
    state[RELATION] = relation
    found = find_relation(tables, relation)
    if found < 0:
        return _UNMAPPED
    slot = np.int64(tables.slot[found])
    if slot < 0:
        return _NEXT if slot == UNWANTED else _UNMAPPED
    if state[ROW] + 2 > rows.slot.shape[0] or (state[TX_INDEX] < 0 and state[TX] >= rows.transactions.shape[0]):
        return _FULL
    if state[SEQ] > _MAX_SEQ:
        return _TOO_MANY
    state[RELATION] = slot
    row = state[ROW]
    form = buf[at + 5]
    at += 6
    if kind == _INSERT:
        if form != _NEW:
            return _GRAMMAR
        at = read_tuple(buf, at, stop, slot, tables, rows.start, rows.size, rows.valid, row, True)
        if at != stop:
            return _DAMAGED if at >= 0 else -at
        return _add(state, tables, rows, slot, _INSERTED)
    if not tables.identified[slot]:
        return _IDENTITY
    if kind == _DELETE:
        if form != _OLD_KEY and form != _OLD_ROW:
            return _GRAMMAR
        at = read_tuple(buf, at, stop, slot, tables, rows.start, rows.size, rows.valid, row, False)
        if at != stop:
            return _DAMAGED if at >= 0 else -at
        for column in range(tables.buffer_count[slot]):
            if rows.valid[column, row] == _UNCHANGED:
                rows.valid[column, row] = _NULL
        return _add(state, tables, rows, slot, _DELETED)
    return _update(buf, at, stop, form, slot, state, tables, rows)


@inner_kernel
def _update(
    buf: Bytes, at: Int, stop: Int, form: Int, slot: Int, state: Int64s, tables: Tables, rows: Rows
) -> Int:  # fmt: skip
    row = state[ROW]
    old = form in (_OLD_KEY, _OLD_ROW)
    if old:
        at = read_tuple(buf, at, stop, slot, tables, rows.before_start, rows.before_size, rows.before_valid, 0, False)
        if at < 0:
            return -at
        if at >= stop:
            return _DAMAGED
        if buf[at] != _NEW:
            return _GRAMMAR
        at += 1
    elif form != _NEW:
        return _GRAMMAR
    at = read_tuple(buf, at, stop, slot, tables, rows.start, rows.size, rows.valid, row, False)
    if at != stop:
        return _DAMAGED if at >= 0 else -at
    buffers = tables.buffer_count[slot]
    if not old:
        return _IDENTITY if tables.key_count[slot] == 0 else _add(state, tables, rows, slot, _UPDATED)
    for column in range(buffers):
        if rows.valid[column, row] == _UNCHANGED:
            before = rows.before_valid[column, 0]
            # An old key has null in every other column.
            if before == _TEXT or (before == _NULL and form == _OLD_ROW):
                rows.valid[column, row] = before
                rows.start[column, row] = rows.before_start[column, 0]
                rows.size[column, row] = rows.before_size[column, 0]
    if tables.key_count[slot] > 0 and same_key(buf, slot, row, tables, rows):
        return _add(state, tables, rows, slot, _UPDATED)
    for column in range(buffers):
        rows.valid[column, row + 1] = rows.valid[column, row]
        rows.start[column, row + 1] = rows.start[column, row]
        rows.size[column, row + 1] = rows.size[column, row]
        before = rows.before_valid[column, 0]
        rows.valid[column, row] = _NULL if before == _UNCHANGED else before
        rows.start[column, row] = rows.before_start[column, 0]
        rows.size[column, row] = rows.before_size[column, 0]
    # Add both rows or neither: if the loop stops here, it starts again with this message.
    if not has_key(tables, rows, slot, row) or not has_key(tables, rows, slot, row + 1):
        return _KEY
    dropped = state[SEQ] < state[DROP_SEQ]
    reason = _add(state, tables, rows, slot, _DELETED)
    if reason != _NEXT:
        return reason
    if dropped and state[SEQ] >= state[DROP_SEQ]:
        return _ORDER
    return _add(state, tables, rows, slot, _INSERTED)


@inner_kernel
def _add(state: Int64s, tables: Tables, rows: Rows, slot: Int, kind: Int) -> Int:
    """Counts the row at ROW, and keeps it unless it was emitted before."""
    row = state[ROW]
    if not has_key(tables, rows, slot, row):
        return _KEY
    if state[SEQ] >= state[DROP_SEQ]:
        if state[TX_INDEX] < 0:
            index = state[TX]
            rows.transactions[index, TX_FIELD_LSN] = state[TX_LSN]
            rows.transactions[index, TX_FIELD_TIME] = state[TX_TIME]
            rows.transactions[index, TX_FIELD_XID] = state[TX_XID]
            state[TX_INDEX] = index
            state[TX] = index + 1
        rows.slot[row] = slot
        rows.kind[row] = kind
        rows.tx[row] = state[TX_INDEX]
        rows.seq[row] = state[SEQ]
        state[ROW] = row + 1
    state[SEQ] += 1
    return _NEXT
