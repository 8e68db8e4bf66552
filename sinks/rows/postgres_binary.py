"""Fields in PostgreSQL's binary formats for COPY … (FORMAT binary). All numbers are big-endian.

Formats: https://www.postgresql.org/docs/current/sql-copy.html and the `…_recv` functions of src/backend/utils/adt
(numeric.c, timestamp.c, date.c, arrayfuncs.c, jsonb.c, uuid.c).
"""

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.sinks.rows.fields import Fields, fixed, validity, values
from tidemark.sinks.rows.text import float_list_bytes
from tidemark.state.kernel import kernel

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"

_FLOAT4_OID = 700
_NUMERIC_HEADER = 8
_INTERVAL_BYTES = 16
_NO_BAD_ROW = -1


class BadTextError(ValueError):
    """The text in row `row` does not have the form that its column's type requires."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def integers(array: pa.Array, width: int) -> Fields:
    """Returns int2, int4 or int8 fields of `width` bytes. The values must fit; the caller has compared the value ranges."""
    numbers = values(array, f"<i{array.type.bit_width // 8}")
    return fixed(numbers.astype(f">i{width}"), validity(array))


def floats(array: pa.Array, width: int) -> Fields:
    numbers = values(array, f"<f{array.type.bit_width // 8}")
    return fixed(numbers.astype(f">f{width}"), validity(array))


def numerics(text: Fields) -> Fields:
    """Returns numeric fields of decimal texts without an exponent (`-12.30`). Raises BadTextError."""
    offsets = np.zeros(len(text.valid) + 1, np.int64)
    lengths = np.where(text.valid, text.lengths, 0)
    out = np.empty(int(np.sum(lengths)) + len(lengths) * (_NUMERIC_HEADER + 4), np.uint8)
    _check(_numerics(text.offsets, text.data, text.valid, offsets, out))
    return Fields(offsets, out, text.valid)


@kernel
def _numerics(offsets: Any, data: Any, valid: Any, out_offsets: Any, out: Any) -> int:
    """Writes base-10000 digits. n decimal digits take at most (n + 6) / 4 groups of two bytes, so `out` is large enough.
    Returns the first row with another text, or _NO_BAD_ROW."""
    at = 0
    for row in range(len(valid)):
        if valid[row]:
            start = offsets[row]
            end = offsets[row + 1]
            negative = start < end and data[start] == 45
            if negative:
                start += 1
            point = end
            for i in range(start, end):
                if data[i] == 46:
                    if point != end:
                        return row
                    point = i
                elif data[i] < 48 or data[i] > 57:
                    return row
            whole = point - start
            scale = max(end - point - 1, 0)
            if whole == 0 or whole > 131072 or scale > 16383:  # what the server's numeric can hold
                return row
            groups_before = (whole + 3) // 4
            groups = groups_before + (scale + 3) // 4
            body = at + 8
            first = -1
            last = -1
            for group in range(groups):
                value = 0
                for k in range(4):
                    place = (group - groups_before) * 4 + k  # digits right of the point count from 0
                    value *= 10
                    if place < 0:
                        i = point + place
                        if i >= start:
                            value += data[i] - 48
                    elif place < scale:
                        value += data[point + 1 + place] - 48
                if value != 0:
                    if first < 0:
                        first = group
                    last = group
                if first >= 0:
                    out[body + 2 * (group - first)] = value >> 8
                    out[body + 2 * (group - first) + 1] = value & 255
            count = last - first + 1 if first >= 0 else 0
            weight = groups_before - 1 - first if first >= 0 else 0
            out[at] = count >> 8
            out[at + 1] = count & 255
            out[at + 2] = (weight >> 8) & 255
            out[at + 3] = weight & 255
            out[at + 4] = 0x40 if negative and count else 0
            out[at + 5] = 0
            out[at + 6] = scale >> 8
            out[at + 7] = scale & 255
            at = body + 2 * count
        out_offsets[row + 1] = at
    return _NO_BAD_ROW


def intervals(text: Fields) -> Fields:
    """Returns interval fields of MySQL's TIME texts, such as `-838:59:59.000000`. Raises BadTextError."""
    microseconds = np.zeros(len(text.valid), np.int64)
    _check(_time_microseconds(text.offsets, text.data, text.valid, microseconds))
    out = np.zeros((len(text.valid), _INTERVAL_BYTES), np.uint8)
    out[:, :8] = microseconds.astype(">i8").view(np.uint8).reshape(-1, 8)
    return fixed(out, text.valid)


@kernel
def _time_microseconds(offsets: Any, data: Any, valid: Any, out: Any) -> int:
    """Returns the first row with another text, or _NO_BAD_ROW."""
    for row in range(len(valid)):
        if not valid[row]:
            continue
        at = offsets[row]
        end = offsets[row + 1]
        negative = at < end and data[at] == 45
        if negative:
            at += 1
        total = 0
        for part in range(3):
            number = 0
            first = at
            while at < end and 48 <= data[at] <= 57:
                number = number * 10 + data[at] - 48
                at += 1
            if at - first < 2 or at - first > 3 or (part > 0 and number > 59):
                return row
            total = total * 60 + number
            if part < 2:
                if at >= end or data[at] != 58:
                    return row
                at += 1
        fraction = 0
        if at < end:
            if data[at] != 46 or end - at > 7 or end - at < 2:
                return row
            digits = end - at - 1
            for i in range(at + 1, end):
                if data[i] < 48 or data[i] > 57:
                    return row
                fraction = fraction * 10 + data[i] - 48
            for _ in range(6 - digits):
                fraction *= 10
        total = total * 1000000 + fraction
        out[row] = -total if negative else total
    return _NO_BAD_ROW


def uuids(text: Fields) -> Fields:
    """Returns uuid fields of texts of 36 characters. Raises BadTextError."""
    out = np.zeros((len(text.valid), 16), np.uint8)
    _check(_uuids(text.offsets, text.data, text.valid, out))
    return fixed(out, text.valid)


@kernel
def _uuids(offsets: Any, data: Any, valid: Any, out: Any) -> int:
    """Returns the first row with another text, or _NO_BAD_ROW."""
    for row in range(len(valid)):
        if not valid[row]:
            continue
        start = offsets[row]
        if offsets[row + 1] - start != 36:
            return row
        count = 0
        for i in range(36):
            byte = data[start + i]
            if i in (8, 13, 18, 23):
                if byte != 45:
                    return row
                continue
            if 48 <= byte <= 57:
                digit = byte - 48
            elif 97 <= (byte | 32) <= 102:
                digit = (byte | 32) - 87
            else:
                return row
            out[row, count >> 1] |= digit << (0 if count & 1 else 4)
            count += 1
    return _NO_BAD_ROW


def float_arrays(array: pa.Array) -> Fields:
    """Returns float4[] fields of a list<float32> array: of one dimension, or of none for an empty list."""
    lists = float_list_bytes(array)
    counts = np.where(lists.valid, lists.lengths // 4, 0)
    offsets = np.concatenate(([0], np.cumsum(np.where(counts > 0, 20 + 8 * counts, 12))))
    out = np.zeros(int(offsets[-1]), np.uint8)
    _float_arrays(lists.offsets, lists.data, counts, offsets, out)
    return Fields(offsets, out, lists.valid)


@kernel
def _float_arrays(offsets: Any, data: Any, counts: Any, out_offsets: Any, out: Any) -> None:
    for row in range(len(counts)):
        at = out_offsets[row]
        count = counts[row]
        out[at + 3] = 1 if count else 0
        out[at + 10] = _FLOAT4_OID >> 8
        out[at + 11] = _FLOAT4_OID & 255
        if count == 0:
            continue
        for k in range(4):
            out[at + 12 + k] = (count >> (24 - 8 * k)) & 255
        out[at + 19] = 1  # the lower bound
        at += 20
        for i in range(count):
            out[at + 3] = 4
            for k in range(4):
                out[at + 4 + k] = data[offsets[row] + 4 * i + 3 - k]
            at += 8


def _check(bad_row: int) -> None:
    if bad_row != _NO_BAD_ROW:
        raise BadTextError(bad_row)
