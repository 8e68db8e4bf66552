"""The values that columns of MySQL and MariaDB can't hold."""

import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.mirror.bad_values import BadValueMask, Mask
from tidemark.sinks.mirror.value_ranges import FormattedText, Labels, Timestamps, ValueRange
from tidemark.state import marks

_FIRST_DAY, _LAST_DAY = -719_468, 2_932_896
"""0000-03-01 (the server's year 0 has no 29 February) and 9999-12-31, in days since 1970."""
_DAY_MICROSECONDS = 86_400_000_000
LAST_TIMESTAMP = 2**31 * 1_000_000 - 1
LAST_TIMESTAMP_64 = 2**32 * 1_000_000 - 1
"""MariaDB since 11.5."""
_LONG_NUMBER = r"[0-9][0-9.]{15,}|[0-9.][eE][+-]?[0-9]{3,}"
"""Numbers that may be rounded: with many digits, or an exponent beyond a double's."""


def bad_values(
    array: pa.Array, value_range: ValueRange | None, *, parses_json: bool, timestamps: tuple[int, int], marked: bool
) -> BadValueMask | None:
    """Returns the values that a column with this value range can't hold; None if it can hold all. `parses_json`: the server
    makes doubles of a document's numbers. `timestamps`: the first and last TIMESTAMP, in microseconds since 1970. `marked`:
    the values come from PostgreSQL, with marks."""
    kind = array.type
    if pa.types.is_decimal(kind):
        nans = marks.not_numbers(array)
        return None if nans is None else BadValueMask(nans, "is a NaN")
    if pa.types.is_floating(kind):
        return _mask(pc.invert(pc.is_finite(array)), "is a NaN or an infinity")
    if pa.types.is_date(kind):
        return _outside(array.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)
    if pa.types.is_timestamp(kind):
        first, last = _FIRST_DAY * _DAY_MICROSECONDS, (_LAST_DAY + 1) * _DAY_MICROSECONDS - 1
        if isinstance(value_range, Timestamps) and value_range.zoned:
            first, last = timestamps
        return _outside(array.cast(pa.int64()), first, last)
    if not pa.types.is_string(kind):
        return None
    if (found := marks.not_utf8(array) if marked else marks.undecodable(array)) is not None:
        return BadValueMask(found, "has bytes that are not UTF-8" if marked else marks.NOT_IN_CHARSET)
    if isinstance(value_range, Labels) and not value_range.several and "" not in value_range.labels:
        return _mask(pc.equal(array, ""), "is none of its ENUM's labels")
    if parses_json and value_range == FormattedText("json"):
        return _rounded_numbers(array)
    return None


def _mask(rows: pa.BooleanArray, why: str) -> BadValueMask | None:
    if pc.any(rows).as_py() is not True:
        return None
    return BadValueMask(np.asarray(pc.fill_null(rows, False)), why)


def _outside(numbers: pa.Array, first: int, last: int) -> BadValueMask | None:
    return _mask(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), "is a time outside its type's range")


def _rounded_numbers(documents: pa.Array) -> BadValueMask | None:
    """Finds documents with a number that MySQL would round: it parses numbers as 64-bit integers or doubles. The source has
    them as DECIMAL."""
    suspects = np.flatnonzero(pc.fill_null(pc.match_substring_regex(documents, _LONG_NUMBER), False))
    rows: Mask = np.zeros(len(documents), bool)
    for row, text in zip(suspects, documents.take(pa.array(suspects)).to_pylist(), strict=True):
        rows[row] = not _keeps_numbers(text)
    return BadValueMask(rows, "has a number of more digits than a double") if rows.any() else None


def _keeps_numbers(text: str) -> bool:
    try:
        json.loads(text, parse_float=_check_number, parse_int=_check_number)
    except _RoundedError:
        return False
    return True


class _RoundedError(ValueError):
    """A number would be rounded."""


def _check_number(text: str) -> None:
    number = Decimal(text)
    is_integer = text.lstrip("-").isdigit() and -(2**63) <= number < 2**64
    if not is_integer and number != Decimal(repr(float(text))):
        raise _RoundedError
