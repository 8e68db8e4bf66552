"""Shared by Python and the compiled loop over the log: why the loop stops, its state, and the arrays it reads and fills."""

from enum import IntEnum
from typing import NamedTuple

from tidemark.state.kernel import Bytes, Int32s, Int64s


class Reason(IntEnum):
    """Why the loop stopped. The packet or event at state[AT] is not consumed, except for STOP and INNER_END."""

    MORE = 0  # the packet at AT is incomplete
    EVENT = 1  # an event for Python: [EVENT, EVENT_END), of the packet of EVENT_TOTAL bytes
    FULL = 2  # no room for rows or transactions
    STOP = 3  # a transaction boundary at or after STOP_POS: at LOG_POS
    PACKET = 4  # the packet is not an event: an error, or the end of the log
    WIDE = 5  # a packet that continues in the next one
    SOURCE = 6  # a GTID of a source that is not in Sources
    INNER_END = 7  # the end of a transaction inside a payload; consumed
    DAMAGED = 8  # lengths that contradict each other
    CHECKSUM = 9
    POSITION = 10  # the end position in the event's header is wrong
    GRAMMAR = 11  # an event that is not allowed here
    UNMAPPED = 12  # rows without their table's TABLE_MAP in this transaction
    COLUMNS = 13  # rows with a different number of columns than the table
    TOO_MANY = 15  # more rows in a transaction than _seq can count
    DECODER = 14  # the decoder refused a row image: its answer is in ERROR, the table's slot in ERROR_SLOT


class Group(IntEnum):
    """Where the loop is in an event group."""

    OUTSIDE = 0
    BEGIN = 1  # after a GTID: BEGIN or one statement follows
    OPEN = 2  # in a transaction
    ALONE = 3  # MariaDB: exactly one statement follows
    ENDED = 4  # inside a payload: after its transaction


# Indices of `state`.
AT = 0  # where in the buffer the next packet or event starts
LOG_POS = 1  # where in the log file it starts
FILE_BASE = 2  # the log file's number, as BinlogPosition.version has it
STOP_POS = 3  # stop at the first boundary at or after it; beyond any file where the range ends in a later one
BOUNDARY = 4  # the last transaction boundary
FRAMED = 5  # 1: packets, 0: bare events
CHECKSUM = 6  # bytes of checksum after each event
SEEKING = 7  # 1: the dump started before the range: no rows are wanted yet
BARE_BASE = 8  # where in the buffer the first bare event would start
GROUP = 9
TX_AT = 10  # where in the buffer the open group's GTID starts
TX_START = 11  # the boundary before it
TX_ROW = 12  # the first of its rows
TX_SOURCE = 13
TX_NUMBER = 14
TX_TIME = 15  # microseconds
TX_SKIP = 16  # 1: its rows are not wanted
TX_INDEX = 17  # its index in `Rows.transactions`
SEQ = 18  # its rows so far
MARK = 19  # counts transactions: a TABLE_MAP is valid only in its own
ROW = 20  # the next row
ROW_AT = 21  # where to continue in a row event, 0: at its first row
TX = 22  # the next transaction
DEFERRED = 23  # 1: the open group is the deferred transaction; its line TX_INDEX exists already
DROP_SEQ = 24  # rows of the open group before this one are already emitted
SCAN = 25  # 1: only look for the group's end
TOUCHED = 26  # in a scan: 1 if a wanted table has rows
EVENT = 27
EVENT_END = 28
EVENT_TOTAL = 29
ERROR = 30
ERROR_SLOT = 31
SOURCES = 32  # their count
ROLLED_BACK = 33  # the count of rolled-back ranges
TX_ORIGINAL = 34  # when the server on which it began has committed it, microseconds; 0: not known
STATE_SIZE = 35

# Columns of `Rows.transactions`.
TX_VERSION = 0  # version of its end
TX_TIMESTAMP = 1
TX_SOURCE_INDEX = 2  # -1: none
TX_GTID_NUMBER = 3
TX_BEGIN = 4  # version of the boundary before it
TX_DONE = 5  # 1: its end was seen
TX_ORIGINAL_TIMESTAMP = 6  # 0: not known
TX_FIELDS = 7

NO_STOP = 1 << 62
JOINED = 0xFFFFFE
"""The length in the header of a joined packet. If the real length differs, the event's header has it."""
UNTAGGED, TAGGED, DOMAIN = 0, 1, 2
"""Kinds of `Sources`."""


class Tables(NamedTuple):
    """The TABLE_MAPs that were seen, as a hash table by table id, and the column plans of wanted tables, by slot.

    `slot` -1: the table is not wanted. `mark`: the transaction the TABLE_MAP was last seen in. The event's bytes after
    the id are `bytes[start:start + size]`.
    """

    id: Int64s
    slot: Int32s
    mark: Int64s
    start: Int64s
    size: Int64s
    bytes: Bytes
    column_count: Int32s
    code: Int32s
    meta: Int32s
    wanted: Bytes
    key_count: Int32s
    key: Int32s


class Sources(NamedTuple):
    """The sources of GTIDs: 16 bytes each, and the numbers of the transactions to skip, as half-open intervals.

    UNTAGGED: a server's uuid. TAGGED: only Python handles it. DOMAIN: MariaDB's domain and server id.
    """

    id: Bytes
    kind: Int32s
    skip_from: Int64s
    skip_start: Int64s
    skip_after: Int64s


class Rows(NamedTuple):
    """The loop's output. Per row: its table's slot, ChangeType, transaction, number in the transaction, and the column
    buffers. Per transaction: a line of TX_FIELDS. `before_*`: column buffers of one row, for the image before an update.
    `rolled_back`: half-open log ranges whose rows were undone by ROLLBACK TO SAVEPOINT."""

    slot: Int32s
    kind: Bytes
    tx: Int32s
    seq: Int32s
    lo: Int64s
    hi: Int64s
    valid: Bytes
    transactions: Int64s
    before_lo: Int64s
    before_hi: Int64s
    before_valid: Bytes
    rolled_back: Int64s
