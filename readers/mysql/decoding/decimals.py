"""Decodes decimals: packed digits of row images and text of results to 128 bits; longer packed digits to text.

Packed form: nine digits in four bytes, the remaining digits in as few bytes as they need, big-endian, from the decimal
point outwards. A negative number has every bit inverted. Then the first bit of every number is inverted.
https://dev.mysql.com/doc/dev/mysql-server/latest/namespaces.html (decimal2bin in strings/decimal.cc)
"""

from functools import partial

import numpy as np

from tidemark.readers.mysql.decoding.column_codes import ErrorCode
from tidemark.readers.mysql.decoding.integers import big
from tidemark.readers.mysql.decoding.temporal import damaged
from tidemark.state.kernel import Bytes, Int, inner_kernel, kernel

_DAMAGED = -int(ErrorCode.DAMAGED)
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@inner_kernel
def packed_size(precision: Int, scale: Int) -> Int:
    """Bytes of a packed DECIMAL(precision, scale)."""
    whole = precision - scale
    return (whole // 9 + scale // 9) * 4 + (whole % 9 + 1) // 2 + (scale % 9 + 1) // 2


@inner_kernel
def _power_of_ten(digits: Int) -> Int:
    power = np.int64(1)
    for _ in range(digits):
        power *= 10
    return power


@inner_kernel
def _group(buf: Bytes, p: Int, digits: Int, first: Int, inverted: Int) -> Int:
    """The value of at most nine digits, or -1 if the bytes hold more digits."""
    size = 4 if digits == 9 else (digits + 1) >> 1
    value = big(buf, p, size)
    if p == first:
        value ^= np.int64(0x80) << (8 * (size - 1))
    if inverted:
        value ^= (np.int64(1) << (8 * size)) - 1
    return value if value < _power_of_ten(digits) else np.int64(-1)


@inner_kernel
def _multiply_add(lo: Int, hi: Int, factor: Int, term: Int) -> tuple[Int, Int]:
    """(hi, lo) × factor + term on unsigned 128 bits; `factor` and `term` below 2^32."""
    factor = np.uint64(factor)
    bottom = (np.uint64(lo) & _LOW_32) * factor + np.uint64(term)
    top = (np.uint64(lo) >> _32) * factor + (bottom >> _32)
    low = (top << _32) | (bottom & _LOW_32)
    return np.int64(low), np.int64(np.uint64(hi) * factor + (top >> _32))


@inner_kernel
def _signed(p: Int, lo: Int, hi: Int, negative: Int) -> tuple[Int, Int, Int]:
    if negative:
        lo = -lo
        hi = ~hi + (1 if lo == 0 else 0)
    return p, lo, hi


@inner_kernel
def packed_decimal(buf: Bytes, p: Int, end: Int, precision: Int, scale: Int) -> tuple[Int, Int, Int]:
    """Decodes a packed DECIMAL of at most 38 digits."""
    size = packed_size(precision, scale)
    if size < 1 or p + size > end:
        return damaged()
    negative = buf[p] < 0x80
    first = p
    lo = np.int64(0)
    hi = np.int64(0)
    whole = precision - scale
    digits = whole % 9 if whole % 9 else 9
    left = whole
    for side in range(2):
        if side == 1:
            left = scale
            digits = 9 if scale >= 9 else scale
        while left > 0:
            value = _group(buf, p, digits, first, negative)
            if value < 0:
                return damaged()
            if precision <= 18:
                lo = lo * _power_of_ten(digits) + value
            else:
                lo, hi = _multiply_add(lo, hi, _power_of_ten(digits), value)
            p += 4 if digits == 9 else (digits + 1) >> 1
            left -= digits
            digits = 9 if left >= 9 else left
    return _signed(p, lo, hi, negative)


@inner_kernel
def decimal_text(buf: Bytes, p: Int, end: Int, precision: Int, scale: Int) -> tuple[Int, Int, Int]:
    """Decodes the text [p, end), which must have exactly `scale` digits after the point and at most 38 significant digits."""
    negative = p < end and buf[p] == 45  # "-"
    if negative:
        p += 1
    lo = np.int64(0)
    hi = np.int64(0)
    whole = 0
    point = np.int64(-1)
    significant = 0
    if end - p > 66:
        return damaged()
    for i in range(p, end):
        digit = np.int64(buf[i]) - 48
        if digit == -2 and point < 0:  # "."
            point = np.int64(i)
            continue
        if digit < 0 or digit > 9:
            return damaged()
        whole += 1
        if significant or digit:
            significant += 1
        if significant <= 18:
            lo = lo * 10 + digit
        else:
            lo, hi = _multiply_add(lo, hi, 10, digit)
    if point >= 0:
        if end - point - 1 != scale or scale == 0:
            return damaged()
    elif scale != 0:
        return damaged()
    if significant > precision or whole <= scale:
        return damaged()
    return _signed(end, lo, hi, negative)


@partial(kernel, makes_arrays=True)
def wide_decimal_text(buf: Bytes, starts: Int, precision: Int, scale: Int, offsets: Int, out: Bytes) -> Int:
    """The text of the packed decimals at `starts` (-1: null), as the server prints it without ZEROFILL.

    Fills `offsets` int32[n + 1] and `out`, which has (precision + 3) bytes per row. Returns the first damaged row, or -1.
    """
    digits = np.empty(90, np.uint8)
    at = 0
    whole = precision - scale
    for row in range(starts.shape[0]):
        offsets[row] = at
        p = starts[row]
        if p < 0:
            continue
        negative = buf[p] < 0x80
        first = p
        count = 0
        nonzero = np.int64(0)
        left = whole
        size = whole % 9 if whole % 9 else 9
        for side in range(2):
            if side == 1:
                left = scale
                size = 9 if scale >= 9 else scale
            while left > 0:
                value = _group(buf, p, size, first, negative)
                if value < 0:
                    return np.int64(row)
                nonzero |= value
                for i in range(size):
                    digits[count + size - 1 - i] = 48 + value % 10
                    value //= 10
                count += size
                p += 4 if size == 9 else (size + 1) >> 1
                left -= size
                size = 9 if left >= 9 else left
        if negative and nonzero:
            out[at] = 45
            at += 1
        start = 0
        while start < whole - 1 and digits[start] == 48:
            start += 1
        if whole == 0:
            out[at] = 48
            at += 1
        for i in range(start, count):
            if i == whole:
                out[at] = 46
                at += 1
            out[at] = digits[i]
            at += 1
    offsets[starts.shape[0]] = at
    return np.int64(-1)
