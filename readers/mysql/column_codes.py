"""What the compiled decoders are driven by: one code and one number a column, and what they answer."""

from enum import IntEnum


class ColumnCode(IntEnum):
    """How a value stands in the bytes; `meta` is the number beside it.

    Formats of row images: https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Table__map__event.html
    and of binary results: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_binary_resultset.html
    """

    # Both: little-endian, of fixed width.
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
    DECIMAL_WIDE = 21  # packed digits, more than 38: left where they are; meta likewise
    DATE = 22  # 3 bytes
    DATETIME2 = 23  # meta = fractional digits
    TIMESTAMP2 = 24  # likewise
    TIME2 = 25  # likewise
    YEAR = 26
    BIT = 27  # big-endian; meta = bits
    BYTES1 = 28  # after a length of 1, 2, 3 or 4 bytes; meta = greatest length
    BYTES2 = 29
    BYTES3 = 30
    BYTES4 = 31
    ORDINAL = 32  # ENUM and SET: little-endian, meta = bytes
    SKIP = 33  # meta bytes that nobody wants
    # Results only.
    TEXT = 40  # after a length-encoded integer
    DECIMAL_TEXT = 41  # likewise, at most 38 digits; meta = precision << 8 | scale
    BIT_TEXT = 42  # likewise, big-endian; meta = bits
    DATE_FIELDS = 43
    DATETIME_FIELDS = 44
    TIME_FIELDS = 45


class Fault(IntEnum):
    """Why a decoder stopped. It answers -(column << 8 | fault); column is 0 where no column is to blame."""

    DAMAGED = 1  # a length or a value that the format does not allow
    UNKNOWN_CODE = 2
    PARTIAL_IMAGE = 3  # the event does not hold every column
    NO_ROOM = 4  # the planes are full: a mistake of the caller
    WIDE_PACKET = 5  # a packet continues in the next one: the caller joins them


def fault_of(answer: int) -> tuple[Fault, int]:
    """The fault and the column's index in a negative answer."""
    return Fault(-answer & 0xFF), -answer >> 8


ZERO_DATE = -(1 << 63)
"""In the plane of a date or datetime: year, month or day is 0."""

IMPOSSIBLE_DATE = -(1 << 63) + 1
"""Likewise: a day that its month does not have (ALLOW_INVALID_DATES)."""
