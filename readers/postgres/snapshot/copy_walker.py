"""Compiled loops over COPY's binary form: they find the values and decode numbers.

https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS (Binary Format)
numeric: numeric_send in src/backend/utils/adt/numeric.c
"""

import numpy as np

from tidemark.state.kernel import Bytes, Int, Int64s, inner_kernel, kernel

AT = 0  # where in the buffer the next row starts
ROW = 1  # the number of rows in the column buffers
STATE_SIZE = 2

MORE = 0  # the row at AT is incomplete
FULL = 1  # no room in the column buffers
END = 2  # after the trailer
DAMAGED = 3

NOT_A_NUMBER = 1
INFINITE = 2
NO_NUMERIC = 3

_TRAILER = -1
_NULL = -1
_BASE = 10_000
_NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_DIGITS_AT = 8
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_SIGN = np.uint64(1 << 63)


@kernel
def walk_rows(buf: Bytes, end: Int, state: Int64s, start: Int64s, size: Int64s, valid: Bytes) -> Int:
    """Fills the column buffers [column, row]. Returns why it stopped. A null has size 0."""
    columns, capacity = start.shape
    while True:
        at = state[AT]
        if at + 2 > end:
            return np.int64(MORE)
        count = _signed(buf, at, 2)
        if count == _TRAILER:
            state[AT] = at + 2
            return np.int64(END)
        if count != columns:
            return np.int64(DAMAGED)
        row = state[ROW]
        if row == capacity:
            return np.int64(FULL)
        at += 2
        for i in range(columns):
            if at + 4 > end:
                return np.int64(MORE)
            length = _signed(buf, at, 4)
            at += 4
            if length < _NULL:
                return np.int64(DAMAGED)
            valid[i, row] = length != _NULL
            start[i, row] = at
            size[i, row] = max(length, 0)
            at += max(length, 0)
        if at > end:
            return np.int64(MORE)
        state[AT] = at
        state[ROW] = row + 1


@kernel
def read_integers(buf: Bytes, start: Int64s, size: Int64s, valid: Bytes, width: Int, out: Int64s) -> Int:
    """Decodes integers of `width` bytes; a null becomes 0. Returns 0 or DAMAGED."""
    for i in range(out.shape[0]):
        out[i] = 0
        if valid[i]:
            if size[i] != width:
                return np.int64(DAMAGED)
            out[i] = _signed(buf, start[i], width)
    return np.int64(0)


@kernel
def read_numerics(buf: Bytes, start: Int64s, size: Int64s, valid: Bytes, scale: Int, out: Int64s) -> Int:
    """Decodes numerics: `out[row]` is the low and the high 64 bits of value × 10^scale. Returns 0, or why a value does not
    fit: NOT_A_NUMBER, INFINITE, NO_NUMERIC."""
    for i in range(out.shape[0]):
        out[i, 0] = out[i, 1] = 0
        if valid[i]:
            error_code = _numeric(buf, start[i], size[i], scale, out[i])
            if error_code:
                return error_code
    return np.int64(0)


@inner_kernel
def _numeric(buf: Bytes, at: Int, size: Int, scale: Int, out: Int64s) -> Int:
    """Decodes one numeric: digits of base 10000, the first one times 10000^weight. Zeros at either end are left out."""
    if size < _DIGITS_AT:
        return np.int64(NO_NUMERIC)
    count, weight, sign = _signed(buf, at, 2), _signed(buf, at + 2, 2), _signed(buf, at + 4, 2) & 0xFFFF
    if sign == _NAN:
        return np.int64(NOT_A_NUMBER)
    if sign in (_INFINITY, _MINUS_INFINITY):
        return np.int64(INFINITE)
    last = -((scale + 3) >> 2)  # the weight of the digit with the last decimal place
    if count < 0 or size != _DIGITS_AT + 2 * count or (count and (weight > 9 or weight - count + 1 < last)):
        return np.int64(NO_NUMERIC)
    low = high = np.uint64(0)
    for exponent in range(weight if count else last - 1, last - 1, -1):
        index = weight - exponent
        digit = np.int64(0)
        if index < count:
            digit = _signed(buf, at + _DIGITS_AT + 2 * index, 2)
        if digit < 0 or digit >= _BASE:
            return np.int64(NO_NUMERIC)
        factor = np.int64(_BASE)
        if exponent == last:
            for _ in range(-4 * last - scale):
                if digit % 10:
                    return np.int64(NO_NUMERIC)
                digit //= 10
                factor //= 10
        if high and high >= _SIGN // np.uint64(factor):
            return np.int64(NO_NUMERIC)
        bottom = (low & _LOW_32) * np.uint64(factor) + np.uint64(digit)
        top = (low >> _32) * np.uint64(factor) + (bottom >> _32)
        low = (top << _32) | (bottom & _LOW_32)
        high = high * np.uint64(factor) + (top >> _32)
    out[0], out[1] = np.int64(low), np.int64(high)
    if sign == _NEGATIVE:
        out[0] = -out[0]
        out[1] = ~out[1] + (1 if out[0] == 0 else 0)
    return np.int64(0)


@inner_kernel
def _signed(buf: Bytes, at: Int, width: Int) -> Int:
    """Reads a signed big-endian integer."""
    value = np.int64(0)
    for i in range(width):
        value = value << 8 | np.int64(buf[at + i])
    unused = 64 - 8 * width
    return value << unused >> unused
