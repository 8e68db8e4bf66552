"""The interface of the compiled decoders: a code and a number per column, and error codes."""

from enum import IntEnum


class ColumnCode(IntEnum):
    """The form of a column's values; `meta` is a number that goes with some codes.

    Formats of row images: https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Table__map__event.html
    and of binary results: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_binary_resultset.html
    """

    # Row images and results: little-endian, of fixed width.
    INT8 = 1
    UINT8 = 2
    INT16 = 3
    UINT16 = 4
    INT24 = 5
    UINT24 = 6
    INT32 = 7
    UINT32 = 8
    INT64 = 9
    UINT64 = 10
    FLOAT = 11
    DOUBLE = 12
    # Row images only.
    DECIMAL = 20  # packed digits, at most 38; meta = precision << 8 | scale
    DECIMAL_WIDE = 21  # packed digits, more than 38, left in the buffer; meta as DECIMAL
    DATE = 22  # 3 bytes
    DATETIME2 = 23  # meta = fractional digits
    TIMESTAMP2 = 24  # meta = fractional digits
    TIME2 = 25  # meta = fractional digits
    YEAR = 26
    BIT = 27  # big-endian; meta = bits
    BYTES1 = 28  # after a length of 1, 2, 3 or 4 bytes; meta = maximum length
    BYTES2 = 29
    BYTES3 = 30
    BYTES4 = 31
    ORDINAL = 32  # ENUM and SET: little-endian, meta = bytes
    SKIP = 33  # meta bytes that are not needed
    # Results only.
    TEXT = 40  # after a length-encoded integer
    DECIMAL_TEXT = 41  # after a length-encoded integer, at most 38 digits; meta = precision << 8 | scale
    BIT_TEXT = 42  # after a length-encoded integer, big-endian; meta = bits
    DATE_FIELDS = 43
    DATETIME_FIELDS = 44
    TIME_FIELDS = 45


class ErrorCode(IntEnum):
    """Why a decoder stopped. It returns -(column << 8 | error code); column is 0 if the error has no column."""

    DAMAGED = 1  # a length or a value that the format does not allow
    UNKNOWN_CODE = 2
    PARTIAL_IMAGE = 3  # the event does not hold every column
    NO_ROOM = 4  # the column buffers are full: a bug of the caller
    WIDE_PACKET = 5  # a packet continues in the next one: the caller joins them


def error_code_of(answer: int) -> tuple[ErrorCode, int]:
    """The error code and the column's index in a negative answer."""
    return ErrorCode(-answer & 0xFF), -answer >> 8


ZERO_DATE = -(1 << 63)
"""In the buffer of a date or datetime: year, month or day is 0."""

IMPOSSIBLE_DATE = -(1 << 63) + 1
"""In the buffer of a date or datetime: a day that its month does not have (ALLOW_INVALID_DATES)."""
