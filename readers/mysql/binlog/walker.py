"""The compiled loop from packets to events to rows.

It walks over a flat buffer of packets (inside a decompressed transaction: of bare events) and processes whole
transactions by itself: GTID, BEGIN, known TABLE_MAPs, row events, XID. It returns to Python at anything new or rare, with
the reason. It never reads beyond `end` or beyond an event's own end, and it checks every event's checksum and end
position before it uses the event.

All state between calls is in the arrays of `arrays.py`: `state`, `Tables`, `Sources`, `Rows`.
"""

import numpy as np

from tidemark.readers.mysql.binlog.arrays import (
    AT,
    BOUNDARY,
    CHECKSUM,
    DEFERRED,
    DOMAIN,
    EVENT,
    EVENT_END,
    EVENT_TOTAL,
    FILE_BASE,
    FRAMED,
    GROUP,
    JOINED,
    LOG_POS,
    MARK,
    ROLLED_BACK,
    ROW,
    ROW_AT,
    SCAN,
    SEEKING,
    SEQ,
    SOURCES,
    STOP_POS,
    TX,
    TX_AT,
    TX_BEGIN,
    TX_DONE,
    TX_GTID_NUMBER,
    TX_INDEX,
    TX_NUMBER,
    TX_ORIGINAL,
    TX_ORIGINAL_TIMESTAMP,
    TX_ROW,
    TX_SKIP,
    TX_SOURCE,
    TX_SOURCE_INDEX,
    TX_START,
    TX_TIME,
    TX_TIMESTAMP,
    TX_VERSION,
    UNTAGGED,
    Group,
    Reason,
    Rows,
    Sources,
    Tables,
)  # fmt: skip
from tidemark.readers.mysql.binlog.crc import CrcTables
from tidemark.readers.mysql.binlog.events import HEADER_BYTES, EventType
from tidemark.readers.mysql.binlog.row_walker import NEXT, checksum_holds, known_table, row_event
from tidemark.readers.mysql.decoding.integers import little
from tidemark.state.kernel import Bytes, Int, Int64s, inner_kernel, kernel

# numba takes module-level integers for constants.
_MORE, _EVENT, _FULL, _STOP = int(Reason.MORE), int(Reason.EVENT), int(Reason.FULL), int(Reason.STOP)
_PACKET, _WIDE, _SOURCE = int(Reason.PACKET), int(Reason.WIDE), int(Reason.SOURCE)
_INNER_END, _DAMAGED, _CHECKSUM = int(Reason.INNER_END), int(Reason.DAMAGED), int(Reason.CHECKSUM)
_POSITION, _GRAMMAR = int(Reason.POSITION), int(Reason.GRAMMAR)
_OUTSIDE, _BEGIN, _OPEN = int(Group.OUTSIDE), int(Group.BEGIN), int(Group.OPEN)
_ALONE, _ENDED = int(Group.ALONE), int(Group.ENDED)
_QUERY, _XID, _TABLE_MAP = int(EventType.QUERY), int(EventType.XID), int(EventType.TABLE_MAP)
_WRITE_V1, _DELETE_V1 = int(EventType.WRITE_ROWS_V1), int(EventType.DELETE_ROWS_V1)
_WRITE, _DELETE = int(EventType.WRITE_ROWS), int(EventType.DELETE_ROWS)
_GTID, _ANONYMOUS, _MARIADB_GTID = int(EventType.GTID), int(EventType.ANONYMOUS_GTID), int(EventType.MARIADB_GTID)
_ROWS_QUERY, _ANNOTATE = int(EventType.ROWS_QUERY), int(EventType.MARIADB_ANNOTATE_ROWS)
_HEADER = HEADER_BYTES
_MICROSECONDS = 1_000_000
_GTID_BYTES = 42
_GTID_WITH_TIME = 49
_TIME_BYTES = 7
_TIME_MASK = (1 << 55) - 1
_HAS_ORIGINAL = 1 << 55
_STANDALONE, _XA_FLAGS = 1, 64 | 128


@kernel
def walk(buf: Bytes, end: Int, state: Int64s, crc: CrcTables, tables: Tables, sources: Sources, rows: Rows) -> Int:
    """Walks from state[AT] to `end` and returns a Reason."""
    if end > buf.shape[0] or state[AT] < 0:
        return _DAMAGED
    while True:
        total = _packet(buf, state, end)
        if total <= 0:
            return -total
        at = state[AT]
        framing = 5 if state[FRAMED] else 0
        event = at + framing
        size = total - framing
        if size < _HEADER + state[CHECKSUM] or little(buf, event + 9, 4) != size:
            return _DAMAGED
        stop = event + size - state[CHECKSUM]
        kind = buf[event + 4]
        state[EVENT] = event
        state[EVENT_END] = stop
        state[EVENT_TOTAL] = total
        if not _is_known(kind):
            return _EVENT
        if state[FRAMED] and not _end_is_right(buf, event, size, state):
            return _POSITION
        reason = _event(buf, kind, state, crc, tables, sources, rows)
        if reason != NEXT:
            return reason
        state[AT] = at + total
        if state[FRAMED]:
            state[LOG_POS] += size
            if state[GROUP] == _OUTSIDE:
                state[BOUNDARY] = state[LOG_POS]
                if state[LOG_POS] >= state[STOP_POS]:
                    return _STOP
        elif state[GROUP] == _ENDED:
            return _INNER_END


@inner_kernel
def _packet(buf: Bytes, state: Int64s, end: Int) -> Int:
    """Bytes of the packet or bare event at AT, or -Reason."""
    at = state[AT]
    if not state[FRAMED]:
        if at + _HEADER > end:
            return -_MORE
        size = little(buf, at + 9, 4)
        if size < _HEADER:
            return -_DAMAGED
        return size if at + size <= end else np.int64(-_MORE)
    if at + 4 > end:
        return -_MORE
    size = little(buf, at, 3)
    if size == 0xFFFFFF:
        return -_WIDE
    if size == JOINED and at + 5 + _HEADER <= end:
        size = little(buf, at + 14, 4) + 1
    total = 4 + size
    if at + total > end:
        return -_MORE
    if size == 0:
        return -_DAMAGED
    if buf[at + 4] != 0:
        return -_PACKET
    return total


@inner_kernel
def _end_is_right(buf: Bytes, event: Int, size: Int, state: Int64s) -> bool:
    """True if the end position in the header is right. Since 11.4 MariaDB writes 0 for all events of a transaction except the
    last one (binlog_legacy_event_pos=OFF)."""
    end_pos = little(buf, event + 13, 4)
    return bool(end_pos == (state[LOG_POS] + size) & 0xFFFFFFFF or (end_pos == 0 and state[GROUP] != _OUTSIDE))


@inner_kernel
def _is_known(kind: Int) -> bool:
    return bool(
        kind in (_QUERY, _XID, _TABLE_MAP, _ANNOTATE, _MARIADB_GTID)
        or _WRITE_V1 <= kind <= _DELETE_V1
        or _ROWS_QUERY <= kind <= _ANONYMOUS
    )


@inner_kernel
def _event(buf: Bytes, kind: Int, state: Int64s, crc: CrcTables, tables: Tables, sources: Sources, rows: Rows) -> Int:
    """Processes the event at EVENT. Returns NEXT or a Reason."""
    if kind in (_ROWS_QUERY, _ANNOTATE):
        return NEXT if state[GROUP] == _OPEN else _GRAMMAR
    if (_WRITE <= kind <= _DELETE) or (_WRITE_V1 <= kind <= _DELETE_V1):
        return row_event(buf, kind, state, crc, tables, rows)
    if kind == _TABLE_MAP:  # compared byte for byte with one whose checksum was right
        return known_table(buf, state, tables)
    if not checksum_holds(buf, state, crc):
        return _CHECKSUM
    if kind == _XID:
        if state[GROUP] != _OPEN:
            return _GRAMMAR
        return _commit(state, rows)
    if kind == _QUERY:
        return _known_query(buf, state, rows)
    if state[GROUP] != _OUTSIDE or not state[FRAMED]:
        return _GRAMMAR
    if state[TX] >= rows.transactions.shape[0]:
        return _FULL
    if kind == _MARIADB_GTID:
        return _mariadb_gtid(buf, state, sources)
    return _gtid(buf, kind, state, sources)


# Transactions


@inner_kernel
def _gtid(buf: Bytes, kind: Int, state: Int64s, sources: Sources) -> Int:
    """Body: flags (1 byte), uuid (16), number (8), logical clocks; since MySQL 8.0.1 the commit time (7), and the one of the
    server on which the transaction began (7), if that is another one."""
    body = state[EVENT] + _HEADER
    size = state[EVENT_END] - body
    if size < _GTID_BYTES:
        return _DAMAGED
    source = np.int64(-1)
    number = np.int64(0)
    if kind == _GTID:
        number = little(buf, body + 17, 8)
        source = _source(buf, body + 1, 16, UNTAGGED, state, sources)
        if source < 0:
            return _SOURCE
        if number <= 0:
            return _DAMAGED
    time = little(buf, state[EVENT], 4) * _MICROSECONDS
    original = np.int64(0)
    if size >= _GTID_WITH_TIME:
        at = body + _GTID_BYTES
        time = original = little(buf, at, _TIME_BYTES)
        if time & _HAS_ORIGINAL:
            if size < _GTID_WITH_TIME + _TIME_BYTES:
                return _DAMAGED
            time &= _TIME_MASK
            original = little(buf, at + _TIME_BYTES, _TIME_BYTES)
    open_group(state, source, number, time, _skipped(sources, source, number))
    state[TX_ORIGINAL] = original
    state[GROUP] = _BEGIN
    return NEXT


@inner_kernel
def _mariadb_gtid(buf: Bytes, state: Int64s, sources: Sources) -> Int:
    """Body: number (8 bytes), domain (4), flags (1). Python handles those of XA transactions."""
    body = state[EVENT] + _HEADER
    if state[EVENT_END] - body < 13:
        return _DAMAGED
    flags = buf[body + 12]
    if flags & _XA_FLAGS:
        return _EVENT
    number = little(buf, body, 8)
    domain = little(buf, body + 8, 4)
    server = little(buf, state[EVENT] + 5, 4)
    source = _domain(domain, server, state, sources)
    if source < 0:
        return _SOURCE
    time = little(buf, state[EVENT], 4) * _MICROSECONDS
    open_group(state, source, number, time, _skipped(sources, source, number))
    state[TX_ORIGINAL] = time
    state[GROUP] = _ALONE if flags & _STANDALONE else _OPEN
    return NEXT


@inner_kernel
def _source(buf: Bytes, p: Int, size: Int, kind: Int, state: Int64s, sources: Sources) -> Int:
    for i in range(state[SOURCES]):
        if sources.kind[i] == kind:
            same = True
            for j in range(size):
                if sources.id[i, j] != buf[p + j]:
                    same = False
                    break
            if same:
                return np.int64(i)
    return np.int64(-1)


@inner_kernel
def _domain(domain: Int, server: Int, state: Int64s, sources: Sources) -> Int:
    for i in range(state[SOURCES]):
        if (
            sources.kind[i] == DOMAIN
            and little(sources.id[i], 0, 4) == domain
            and little(sources.id[i], 4, 4) == server
        ):
            return np.int64(i)
    return np.int64(-1)


@inner_kernel
def _skipped(sources: Sources, source: Int, number: Int) -> Int:
    if source < 0:
        return 0
    for i in range(sources.skip_from[source], sources.skip_from[source + 1]):
        if sources.skip_start[i] <= number < sources.skip_after[i]:
            return 1
    return 0


@kernel
def open_group(state: Int64s, source: Int, number: Int, time: Int, skip: Int) -> None:
    """Starts a transaction at the event at AT."""
    state[TX_AT] = state[AT]
    state[TX_START] = state[LOG_POS]
    state[TX_SOURCE] = source
    state[TX_NUMBER] = number
    state[TX_TIME] = time
    state[TX_SKIP] = (skip or state[SEEKING]) if not state[DEFERRED] else 0
    state[MARK] += 1
    state[ROW_AT] = 0
    if not state[DEFERRED]:
        state[ROLLED_BACK] = 0
        state[TX_ROW] = state[ROW]
        state[TX_INDEX] = state[TX]
        state[SEQ] = 0


@inner_kernel
def _commit(state: Int64s, rows: Rows) -> Int:
    """Ends the transaction with the event at EVENT."""
    if not state[FRAMED]:
        state[GROUP] = _ENDED
        return NEXT
    if state[DEFERRED] or state[SCAN]:
        return _EVENT  # Python takes over
    close_group(state, rows, state[LOG_POS] + state[EVENT_END] + state[CHECKSUM] - state[EVENT])
    return NEXT


@kernel
def close_group(state: Int64s, rows: Rows, end_pos: Int) -> None:
    """Ends the open transaction at `end_pos` of the file."""
    i = state[TX]
    rows.transactions[i, TX_VERSION] = state[FILE_BASE] | end_pos
    rows.transactions[i, TX_TIMESTAMP] = state[TX_TIME]
    rows.transactions[i, TX_ORIGINAL_TIMESTAMP] = state[TX_ORIGINAL]
    rows.transactions[i, TX_SOURCE_INDEX] = state[TX_SOURCE]
    rows.transactions[i, TX_GTID_NUMBER] = state[TX_NUMBER]
    rows.transactions[i, TX_BEGIN] = state[FILE_BASE] | state[TX_START]
    rows.transactions[i, TX_DONE] = 1
    state[TX] = i + 1
    state[GROUP] = _OUTSIDE


@inner_kernel
def _known_query(buf: Bytes, state: Int64s, rows: Rows) -> Int:
    """Processes BEGIN and COMMIT. Body: thread (4 bytes), seconds (4), length of the database name (1), error (2), length of
    the status (2), status, database name, a zero byte, text."""
    body = state[EVENT] + _HEADER
    stop = state[EVENT_END]
    if stop - body < 13:
        return _DAMAGED
    text = body + 13 + little(buf, body + 11, 2) + np.int64(buf[body + 8]) + 1
    if text > stop:
        return _DAMAGED
    size = stop - text
    if size == 5 and _is_begin(buf, text) and (state[GROUP] == _BEGIN):
        state[GROUP] = _OPEN
        return NEXT
    if size == 6 and _is_commit(buf, text) and state[GROUP] == _OPEN:
        return _commit(state, rows)
    return _EVENT


@inner_kernel
def _is_begin(buf: Bytes, p: Int) -> bool:
    return bool(buf[p] == 66 and buf[p + 1] == 69 and buf[p + 2] == 71 and buf[p + 3] == 73 and buf[p + 4] == 78)


@inner_kernel
def _is_commit(buf: Bytes, p: Int) -> bool:
    return bool(
        buf[p] == 67
        and buf[p + 1] == 79
        and buf[p + 2] == 77
        and buf[p + 3] == 77
        and buf[p + 4] == 73
        and buf[p + 5] == 84
    )
