"""Decodes temporal values of row images and binary results. Used inside the compiled decoders.

Each function returns (offset after the value, the value, 0); a negative offset is an error code.
Packed forms: my_time.cc of the server; https://dev.mysql.com/doc/dev/mysql-server/latest/field__types_8h.html
Binary results: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_binary_resultset.html
"""

import numpy as np

from tidemark.readers.mysql.decoding.column_codes import IMPOSSIBLE_DATE, ZERO_DATE, ErrorCode
from tidemark.readers.mysql.decoding.integers import big, little
from tidemark.state.kernel import Bytes, Int, inner_kernel

_DAMAGED = -int(ErrorCode.DAMAGED)
_DAMAGED_DATE = IMPOSSIBLE_DATE + 1
_DAY_US = 86_400_000_000
_MAX_HOUR = 838


@inner_kernel
def damaged() -> tuple[Int, Int, Int]:
    return np.int64(_DAMAGED), np.int64(0), np.int64(0)


@inner_kernel
def days_since_1970(year: Int, month: Int, day: Int) -> Int:
    """Days since 1970 in the proleptic Gregorian calendar, or ZERO_DATE, IMPOSSIBLE_DATE, _DAMAGED_DATE.

    Counts by eras of 400 years: https://howardhinnant.github.io/date_algorithms.html
    """
    if year > 9999 or month > 12 or day > 31:
        return np.int64(_DAMAGED_DATE)
    if year == 0 or month == 0 or day == 0:
        return np.int64(ZERO_DATE)
    if day > 28:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        last = 30 + ((month + (month >> 3)) & 1)
        if month == 2:
            last = 29 if leap else 28
        if day > last:
            return np.int64(IMPOSSIBLE_DATE)
    y = year - 1 if month <= 2 else year
    era = y // 400
    year_of_era = y - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


@inner_kernel
def _datetime(p: Int, days: Int, seconds: Int, micros: Int) -> tuple[Int, Int, Int]:
    """`seconds`: of the day, -1 if damaged."""
    if days == _DAMAGED_DATE or seconds < 0 or micros > 999_999:
        return damaged()
    if days <= IMPOSSIBLE_DATE:
        return p, days, np.int64(0)
    return p, days * _DAY_US + seconds * 1_000_000 + micros, np.int64(0)


@inner_kernel
def _seconds(hour: Int, minute: Int, second: Int) -> Int:
    if hour > 23 or minute > 59 or second > 59:
        return np.int64(-1)
    return (hour * 60 + minute) * 60 + second


@inner_kernel
def _fraction(buf: Bytes, p: Int, digits: Int) -> Int:
    """The microseconds in (digits + 1) // 2 bytes, which hold an even number of decimal digits."""
    if digits == 0:
        return np.int64(0)
    if digits <= 2:
        return np.int64(buf[p]) * 10_000
    if digits <= 4:
        return big(buf, p, 2) * 100
    return big(buf, p, 3)


@inner_kernel
def image_date(buf: Bytes, p: Int, end: Int) -> tuple[Int, Int, Int]:
    if p + 3 > end:
        return damaged()
    packed = little(buf, p, 3)
    days = days_since_1970(packed >> 9, (packed >> 5) & 15, packed & 31)
    if days == _DAMAGED_DATE:
        return damaged()
    return p + 3, days, np.int64(0)


@inner_kernel
def image_datetime(buf: Bytes, p: Int, end: Int, digits: Int) -> tuple[Int, Int, Int]:
    after = p + 5 + ((digits + 1) >> 1)
    if after > end:
        return damaged()
    packed = big(buf, p, 5) - 0x8000000000
    if packed < 0:
        return damaged()
    months = packed >> 22
    days = days_since_1970(months // 13, months % 13, (packed >> 17) & 31)
    seconds = _seconds((packed >> 12) & 31, (packed >> 6) & 63, packed & 63)
    return _datetime(after, days, seconds, _fraction(buf, p + 5, digits))


@inner_kernel
def image_timestamp(buf: Bytes, p: Int, end: Int, digits: Int) -> tuple[Int, Int, Int]:
    after = p + 4 + ((digits + 1) >> 1)
    if after > end:
        return damaged()
    seconds = big(buf, p, 4)
    micros = _fraction(buf, p + 4, digits)
    if micros > 999_999:
        return damaged()
    if seconds == 0 and micros == 0:
        return after, np.int64(ZERO_DATE), np.int64(0)
    return after, seconds * 1_000_000 + micros, np.int64(0)


@inner_kernel
def image_time(buf: Bytes, p: Int, end: Int, digits: Int) -> tuple[Int, Int, Int]:
    """Decodes a TIME to microseconds. A negative time is the two's complement of the whole and the fraction together."""
    size = (digits + 1) >> 1
    if p + 3 + size > end:
        return damaged()
    packed = big(buf, p, 3 + size) - (np.int64(0x800000) << (8 * size))
    negative = packed < 0
    if negative:
        packed = -packed
    clock = packed >> (8 * size)
    part = packed & ((np.int64(1) << (8 * size)) - 1)
    micros = part if size == 3 else part * 100 if size == 2 else part * 10_000
    minute, second = (clock >> 6) & 63, clock & 63
    if minute > 59 or second > 59:
        return damaged()
    return _duration(p + 3 + size, negative, clock >> 12, minute * 60 + second, micros)


@inner_kernel
def _duration(p: Int, negative: Int, hour: Int, second_of_hour: Int, micros: Int) -> tuple[Int, Int, Int]:
    if hour > _MAX_HOUR or second_of_hour >= 3600 or micros > 999_999:
        return damaged()
    value = (hour * 3600 + second_of_hour) * 1_000_000 + micros
    return p, -value if negative else value, np.int64(0)


@inner_kernel
def result_date(buf: Bytes, p: Int, end: Int) -> tuple[Int, Int, Int]:
    if p + 1 > end:
        return damaged()
    size = np.int64(buf[p])
    if size > end - p - 1 or (size != 0 and size != 4):
        return damaged()
    if size == 0:
        return p + 1, np.int64(ZERO_DATE), np.int64(0)
    days = days_since_1970(little(buf, p + 1, 2), np.int64(buf[p + 3]), np.int64(buf[p + 4]))
    if days == _DAMAGED_DATE:
        return damaged()
    return p + 5, days, np.int64(0)


@inner_kernel
def result_datetime(buf: Bytes, p: Int, end: Int) -> tuple[Int, Int, Int]:
    if p + 1 > end:
        return damaged()
    size = np.int64(buf[p])
    if size > end - p - 1 or (size != 0 and size != 4 and size != 7 and size != 11):
        return damaged()
    if size == 0:
        return p + 1, np.int64(ZERO_DATE), np.int64(0)
    days = days_since_1970(little(buf, p + 1, 2), np.int64(buf[p + 3]), np.int64(buf[p + 4]))
    seconds = np.int64(0)
    micros = np.int64(0)
    if size >= 7:
        seconds = _seconds(np.int64(buf[p + 5]), np.int64(buf[p + 6]), np.int64(buf[p + 7]))
    if size == 11:
        micros = little(buf, p + 8, 4)
    return _datetime(p + 1 + size, days, seconds, micros)


@inner_kernel
def result_time(buf: Bytes, p: Int, end: Int) -> tuple[Int, Int, Int]:
    if p + 1 > end:
        return damaged()
    size = np.int64(buf[p])
    if size > end - p - 1 or (size != 0 and size != 8 and size != 12):
        return damaged()
    if size == 0:
        return p + 1, np.int64(0), np.int64(0)
    hour = little(buf, p + 2, 4) * 24 + np.int64(buf[p + 6])
    minute, second = np.int64(buf[p + 7]), np.int64(buf[p + 8])
    micros = np.int64(0)
    if size == 12:
        micros = little(buf, p + 9, 4)
    if buf[p + 1] > 1 or buf[p + 6] > 23 or minute > 59 or second > 59:
        return damaged()
    return _duration(p + 1 + size, buf[p + 1] == 1, hour, minute * 60 + second, micros)
