"""What the compiled loop over the log and Python share: why the loop stops, its state, and the arrays it reads and fills."""

from enum import IntEnum
from typing import NamedTuple

from readers.kernel import Bytes, Int32s, Int64s


class Reason(IntEnum):
    """Why the loop stopped. The packet or event at state[AT] is not consumed, but for STOP and INNER_END."""

    MORE = 0  # the packet at AT is not whole
    EVENT = 1  # an event for Python: [EVENT, EVENT_END), of the packet of EVENT_TOTAL bytes
    FULL = 2  # no room for rows or transactions
    STOP = 3  # a transaction boundary at or after STOP_POS: at LOG_POS
    PACKET = 4  # no event but an error or the end of the log
    WIDE = 5  # a packet that continues in the next one
    SOURCE = 6  # a GTID of a source that is not in Sources
    INNER_END = 7  # the end of a transaction inside a payload; consumed
    DAMAGED = 8  # lengths that contradict each other
    CHECKSUM = 9
    POSITION = 10  # the event says that it ends elsewhere
    GRAMMAR = 11  # an event that can't stand here
    UNMAPPED = 12  # rows without their table's TABLE_MAP in this transaction
    COLUMNS = 13  # rows with another number of columns than the table
    TOO_MANY = 15  # more rows in a transaction than _seq can count
    DECODER = 14  # a row image that the decoder refused: its answer is in FAULT, the table's slot in FAULT_SLOT


class Group(IntEnum):
    """Where in an event group the loop stands."""

    OUTSIDE = 0
    BEGIN = 1  # after a GTID: BEGIN or one statement follows
    OPEN = 2  # in a transaction
    ALONE = 3  # MariaDB: one statement follows and is all
    ENDED = 4  # inside a payload: after its transaction


# Indices of `state`.
AT = 0  # where in the buffer the next packet or event starts
LOG_POS = 1  # where in the log file it starts
FILE_BASE = 2  # the log file's number, as BinlogPosition.version has it
STOP_POS = 3  # stop at the first boundary at or after it; beyond any file where the range ends in a later one
BOUNDARY = 4  # the last transaction boundary
FRAMED = 5  # 1: packets, 0: bare events
CHECKSUM = 6  # bytes of checksum after each event
SEEKING = 7  # 1: the dump had to start before the range: no rows are wanted yet
BARE_BASE = 8  # where in the buffer the first of the bare events would stand
GROUP = 9
TX_AT = 10  # where in the buffer the open group's GTID starts
TX_START = 11  # the boundary before it
TX_ROW = 12  # the first of its rows
TX_SOURCE = 13
TX_NUMBER = 14
TX_TIME = 15  # microseconds
TX_SKIP = 16  # 1: its rows are not wanted
TX_INDEX = 17  # its place among the transactions
SEQ = 18  # rows of it so far
MARK = 19  # counts transactions: a TABLE_MAP is good for its own only
ROW = 20  # the next row
ROW_AT = 21  # where in a row event to go on, 0: at its first row
TX = 22  # the next transaction
KNOWN = 23  # 1: outcome and end of the open group are known; it has entry TX_INDEX already
DROP_SEQ = 24  # rows of the open group before this one were handed out before
SCAN = 25  # 1: look for the group's end only
TOUCHED = 26  # in a scan: 1 when a wanted table has rows
EVENT = 27
EVENT_END = 28
EVENT_TOTAL = 29
FAULT = 30
FAULT_SLOT = 31
SOURCES = 32  # how many
CUTS = 33  # how many
STATE_SIZE = 34

# Columns of `Rows.transactions`.
TX_VERSION = 0  # of its end
TX_TIMESTAMP = 1
TX_SOURCE_INDEX = 2  # -1: none
TX_GTID_NUMBER = 3
TX_BEGIN = 4  # version of the boundary before it
TX_DONE = 5  # 1: its end was seen
TX_FIELDS = 6

NO_STOP = 1 << 62
JOINED = 0xFFFFFE
"""The length in the header of a packet that was joined from several; it is right, or the event knows better."""
UNTAGGED, TAGGED, DOMAIN = 0, 1, 2
"""Kinds of `Sources`."""


class Tables(NamedTuple):
    """TABLE_MAPs that were seen, as a hash table by their id, and the plans of the wanted tables' rows, by slot.

    `slot` -1: a table that nobody wants. `mark`: the transaction it was last seen in. The event's bytes after the id
    are `bytes[start:start + size]`.
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
    key_count: Int32s
    key: Int32s


class Sources(NamedTuple):
    """Where GTIDs come from: 16 bytes, and the numbers whose transactions are not wanted, as half-open intervals.

    UNTAGGED: a server's uuid. TAGGED: known to Python only. DOMAIN: MariaDB's domain and server id.
    """

    id: Bytes
    kind: Int32s
    skip_from: Int64s
    skip_start: Int64s
    skip_after: Int64s


class Rows(NamedTuple):
    """What the loop fills: one entry a row (its table's slot, ChangeType, transaction, place in it; planes of all
    columns), the transactions, and planes of one row for images before an update. `cuts`: intervals of the log whose
    rows a savepoint took back."""

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
    cuts: Int64s
