"""The data that the compiled loop over the log shares with Python: stop reasons, state, and the arrays it reads and fills."""

from enum import IntEnum
from typing import NamedTuple

from tidemark.state.kernel import Bytes, Int32s, Int64s


class Reason(IntEnum):
    """Why the loop stopped. The message at state[AT] is not consumed."""

    MORE = 0  # the message at AT is incomplete
    MESSAGE = 1  # a message that Python handles: [MESSAGE, MESSAGE_END)
    FULL = 2  # no room for rows or transactions
    END = 3  # the end of the COPY
    DAMAGED = 4  # lengths that contradict each other
    GRAMMAR = 5  # a message that is not allowed here
    ORDER = 6  # a transaction that ends at another LSN than announced, or does not follow the one before
    UNMAPPED = 7  # rows of a relation that was not described, or does not fit the job; RELATION is its id
    COLUMNS = 8  # rows with another number of columns than their relation; from here on RELATION is the table's slot
    FORM = 9  # a value that is not text
    IDENTITY = 10  # an update or delete whose old row can't be identified
    KEY = 11  # a row with a null in its key
    TOO_MANY = 12  # more rows in a transaction than _seq can count


class Value(IntEnum):
    """The codes in `Rows.valid`."""

    NULL = 0
    TEXT = 1
    UNCHANGED = 2  # a TOASTed value that the update did not change and the log does not repeat


# Indices of `state`.
AT = 0  # where in the buffer the next message starts
OPEN = 1  # 1: inside a transaction
TX_LSN = 2  # of the open transaction: where its commit record starts
TX_TIME = 3  # microseconds since 1970
TX_XID = 4
TX_INDEX = 5  # its index among the transactions, -1: none yet
SEQ = 6  # its rows so far
WANTED = 7  # 1: in the range, and not emitted before
DROP_SEQ = 8  # its rows before this one were emitted before
RESUME_LSN = 9  # transactions before it were emitted or precede the range
RESUME_SEQ = 10  # DROP_SEQ of the transaction at RESUME_LSN
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

# Values in `Tables.slot` for relations without a slot.
UNWANTED = -1  # not a table of the job
UNFIT = -2  # a table of the job that has changed: its rows stop the loop

# Columns of `Rows.transactions`.
TX_FIELD_LSN = 0
TX_FIELD_TIME = 1
TX_FIELD_XID = 2
TX_FIELDS = 3


class Tables(NamedTuple):
    """The relations that the log described, as a hash table by id, and the columns of the wanted tables' rows, by slot.

    `buffer[slot, i]`: the column buffer of the log's column i, -1: not wanted. `key`: the column buffers of the key.
    `identified`: old rows have the table's key, or, if it has no key, all columns.
    """

    id: Int64s
    slot: Int32s
    column_count: Int32s
    buffer: Int32s
    buffer_count: Int32s
    key_count: Int32s
    key: Int32s
    identified: Bytes


class Rows(NamedTuple):
    """The loop's output. One entry per row: its table's slot, ChangeType, transaction, and number in the transaction. Column
    buffers [column, row]: start and size of each value's text in the receive buffer. `transactions`: one row each.
    `before_*`: one old row."""

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
