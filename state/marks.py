"""Marks: values of a source that a column's Arrow type has no place for, carried as values that no source has.

| Arrow type | mark | means |
|---|---|---|
| date32 | the least and the greatest number | -infinity, infinity |
| timestamp | the least and the greatest number | -infinity, infinity |
| timestamp | the greatest number but one | a time after the year 294246: 64 bits can't count its microseconds |
| decimal | the least number of 128 bits, which has more digits than any precision | NaN |
| string | of PostgreSQL: the character NUL, then the text with escapes | bytes that are not UTF-8 |
| string | of MySQL: `UNDECODABLE`, then the text with escapes | bytes that encode no character of the column's charset |

Readers write marks only for a sink that understands them (`tidemark.readers.bad_values`). Equal values have equal marks, and
different values different ones, except for times after the year 294246. A text of PostgreSQL can't have a NUL. A text of MySQL
that begins with `UNDECODABLE` is taken for a mark: `sink.on_bad_value` applies to it too.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]

_LIMITS = {32: (-(1 << 31), (1 << 31) - 1), 64: (-(1 << 63), (1 << 63) - 1)}
MINUS_INFINITE_DATE, INFINITE_DATE = _LIMITS[32]
MINUS_INFINITE_TIME, INFINITE_TIME = _LIMITS[64]
TOO_LATE = INFINITE_TIME - 1
_NAN_LOW, _NAN_HIGH = 0, -(1 << 63)
NOT_UTF8 = "\0"
UNDECODABLE = "\0not in its charset\0"
NOT_IN_CHARSET = "has bytes that are not valid in its column's charset"


def marked_text(text: bytes) -> str:
    """Returns the mark of bytes that are not UTF-8. Each of those is written as \\xNN, and a backslash as two."""
    return NOT_UTF8 + text.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def with_nan_marks(decimals: pa.Array, are_nan: Mask) -> pa.Array:
    """Returns the decimals with marks where `are_nan`."""
    halves = _halves(decimals).copy()
    halves[are_nan] = _NAN_LOW, _NAN_HIGH
    present = np.asarray(decimals.is_valid()) | are_nan
    nulls = len(present) - int(np.count_nonzero(present))
    mask = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(decimals.type, len(present), [mask, pa.py_buffer(halves)], nulls)


def infinite(array: pa.Array) -> Mask | None:
    """Returns which dates or timestamps are infinite; None for none."""
    return _equal(array, _LIMITS[array.type.bit_width])


def too_late(array: pa.Array) -> Mask | None:
    """Returns which timestamps are after the year 294246; None for none."""
    return _equal(array, (TOO_LATE,))


def not_numbers(array: pa.Array) -> Mask | None:
    """Returns which decimals are NaN; None for none."""
    rows: Mask = _halves(array)[:, 1] == _NAN_HIGH
    if rows.any() and array.null_count:
        rows &= np.asarray(array.is_valid())
    return rows if rows.any() else None


def not_utf8(array: pa.Array) -> Mask | None:
    """Returns which texts of PostgreSQL are not UTF-8; None for none."""
    rows = np.asarray(pc.fill_null(pc.starts_with(array, NOT_UTF8), False))
    return rows if rows.any() else None


def words(array: pa.Array) -> tuple[Mask, pa.Array] | None:
    """Returns which dates, timestamps or decimals are marks, and the word for each of them; None if none is."""
    if pa.types.is_decimal(array.type):
        nans = not_numbers(array)
        return None if nans is None else (nans, pa.array(["NaN"] * len(array)))
    numbers = _numbers(array)
    least, greatest = _LIMITS[array.type.bit_width]
    found = {least: "-infinity", greatest: "infinity"}
    if pa.types.is_timestamp(array.type):
        found[TOO_LATE] = "after the year 294246"
    rows = _equal(array, tuple(found))
    if rows is None:
        return None
    return rows, pa.array([found.get(number) for number in numbers.tolist()], pa.string())


def undecodable(array: pa.Array) -> Mask | None:
    """Returns which texts of MySQL are not in their column's charset; None for none."""
    rows = np.asarray(pc.fill_null(pc.starts_with(array, UNDECODABLE), False))
    return rows if rows.any() else None


def unmarked_texts(array: pa.Array) -> pa.Array:
    """Returns texts of PostgreSQL in which a mark is only its text with escapes."""
    return pc.replace_substring_regex(array, r"^\x00", "")


def decoded_texts(array: pa.Array) -> pa.Array:
    """Returns texts of MySQL in which a mark is only its text with escapes."""
    return pc.replace_substring_regex(array, r"^\x00not in its charset\x00", "")


def _equal(array: pa.Array, marks: Sequence[int]) -> Mask | None:
    numbers = _numbers(array)
    rows: Mask = np.zeros(len(numbers), np.bool_)
    for mark in marks:
        rows |= numbers == mark
    if rows.any() and array.null_count:
        rows &= np.asarray(array.is_valid())
    return rows if rows.any() else None


def _numbers(array: pa.Array) -> npt.NDArray[np.signedinteger]:
    data = array.buffers()[1]
    width = array.type.bit_width // 8
    if data is None:
        return np.zeros(len(array), f"i{width}")
    found: npt.NDArray[np.signedinteger] = np.frombuffer(data, f"i{width}")[array.offset : array.offset + len(array)]
    return found


def _halves(decimals: pa.Array) -> npt.NDArray[np.int64]:
    """The low and the high 64 bits of each decimal."""
    data = decimals.buffers()[1]
    if data is None:
        return np.zeros((len(decimals), 2), np.int64)
    return np.frombuffer(data, np.int64).reshape(-1, 2)[decimals.offset : decimals.offset + len(decimals)]
