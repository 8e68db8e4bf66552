"""What the compiled loop over the log and Python share: why the loop stops, its state, and the arrays it reads and fills."""

from enum import IntEnum
from typing import NamedTuple

from readers.kernel import Bytes, Int32s, Int64s


class Reason(IntEnum):
    """Why the loop stopped. The message at state[AT] is not consumed."""

    MORE = 0  # the message at AT is not whole
    MESSAGE = 1  # a message for Python: [MESSAGE, MESSAGE_END)
    FULL = 2  # no room for rows or transactions
    END = 3  # of the COPY
    DAMAGED = 4  # lengths that contradict each other
    GRAMMAR = 5  # a message that can't stand here
    ORDER = 6  # a transaction that ends elsewhere than it says, or before the one before it
    UNMAPPED = 7  # rows of a relation that was not described, or is unfit; its id is in RELATION
    COLUMNS = 8  # rows with another number of columns than their relation; from here on RELATION is the slot
    FORM = 9  # a value that is not text
    IDENTITY = 10  # an update or delete whose old row can't be told from others
    KEY = 11  # a row with no value in a column of its key
    TOO_MANY = 12  # more rows in a transaction than _seq can count


class Value(IntEnum):
    """The codes in `Rows.valid`."""

    NULL = 0
    TEXT = 1
    UNCHANGED = 2  # a TOASTed value that the update left as it was and the log does not repeat


# Indices of `state`.
AT = 0  # where in the buffer the next message starts
OPEN = 1  # 1: inside a transaction
TX_LSN = 2  # of the open transaction: where its commit record starts
TX_TIME = 3  # microseconds since 1970
TX_XID = 4
TX_INDEX = 5  # its place among the transactions, -1: none yet
SEQ = 6  # rows of it so far
WANTED = 7  # 1: in the range, and not handed out
DROP_SEQ = 8  # rows of it before this one were handed out before
RESUME_LSN = 9  # transactions before it were handed out or precede the range
RESUME_SEQ = 10  # of the transaction at RESUME_LSN, as DROP_SEQ
STOP_LSN = 11  # transactions from here on are not in the range
LAST_LSN = 12  # of the last transaction that began, on this connection
DONE_LSN = 13  # of the last transaction of the range that ended, on any connection
DONE_TIME = 14
DONE_COUNT = 15
ROW = 16  # the next row
TX = 17  # the next transaction
MESSAGE = 18
MESSAGE_END = 19
RELATION = 20
STATE_SIZE = 21

# In `Tables.slot`, of relations without a slot.
UNWANTED = -1  # not a table of the job
UNFIT = -2  # one that has changed: its rows stop the loop

# Columns of `Rows.transactions`.
TX_FIELD_LSN = 0
TX_FIELD_TIME = 1
TX_FIELD_XID = 2
TX_FIELDS = 3


class Tables(NamedTuple):
    """The relations that the log described, as a hash table by id, and the columns of the wanted tables' rows, by slot.

    `place[slot, i]`: the plane of the log's column i, -1: not wanted. `key`: of
    planes. `identified`: an old row has the table's key, or, where there is none, is whole.
    """

    id: Int64s
    slot: Int32s
    column_count: Int32s
    place: Int32s
    plane_count: Int32s
    key_count: Int32s
    key: Int32s
    identified: Bytes


class Rows(NamedTuple):
    """What the loop fills: one entry a row (its table's slot, ChangeType, transaction, place in it), planes
    [column, row] of where each value's text stands in the buffer, and the transactions. `before_*`: an old row."""

    slot: Int32s
    kind: Bytes
    tx: Int32s
    seq: Int32s
    start: Int64s
    size: Int64s
    valid: Bytes
    transactions: Int64s
    before_start: Int64s
    before_size: Int64s
    before_valid: Bytes
