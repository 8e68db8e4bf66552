"""Fields as text: escaped strings, hexadecimal, base64, numbers, dates and timestamps.

Numbers and timestamps use Arrow's casts. The exceptions are decimals, whose cast writes small values in scientific notation
(to MySQL a float literal), and strings, which must be escaped. The loops count bytes first and then write them.
"""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.rows.fields import NO_BYTES, Bytes, Fields, validity, values, variable
from tidemark.state.kernel import kernel

_CONTROL = 1
"""In a table of escapes: the byte becomes \\u00XX. 0: the byte stays. Another value: a backslash and this letter."""

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_CHUNK_DIGITS = 9
_CHUNK = 10**_CHUNK_DIGITS
MAX_DECIMAL_TEXT = 41
"""38 digits, a sign, a point, and a zero before the point."""
_FIRST_LATE_DAY = 11_248_738
"""32768-01-01 in days since 1970: the first day for which Arrow's cast has no text. PostgreSQL's dates end in 5874897."""
_DAY_MICROSECONDS = 86_400_000_000


def _sql_escapes() -> Bytes:
    table = np.zeros(256, np.uint8)
    for byte, letter in ((0, "0"), (ord("'"), "'"), (ord("\\"), "\\")):
        table[byte] = ord(letter)
    return table


def _json_escapes() -> Bytes:
    table = np.zeros(256, np.uint8)
    table[:32] = _CONTROL
    for byte, letter in (("\n", "n"), ("\r", "r"), ("\t", "t"), ("\b", "b"), ("\f", "f"), ('"', '"'), ("\\", "\\")):
        table[ord(byte)] = ord(letter)
    return table


SQL_ESCAPES = _sql_escapes()
"""For MySQL's string literals, without the SQL mode NO_BACKSLASH_ESCAPES.
https://dev.mysql.com/doc/refman/8.4/en/string-literals.html"""
JSON_ESCAPES = _json_escapes()
"""RFC 8259, section 7."""


def escaped(fields: Fields, escapes: Bytes) -> Fields:
    """Returns `fields` itself if nothing has to be escaped."""
    offsets = _escaped_offsets(fields.offsets, fields.data, fields.valid, escapes)
    if offsets[-1] == _bytes_of_valid(fields):
        return fields
    out = np.empty(int(offsets[-1]), np.uint8)
    _escape(fields.offsets, fields.data, fields.valid, escapes, offsets, out)
    return Fields(offsets, out, fields.valid)


def _bytes_of_valid(fields: Fields) -> int:
    return int(np.sum(fields.lengths, where=fields.valid))


@partial(kernel, makes_arrays=True)
def _escaped_offsets(offsets: Any, data: Any, valid: Any, escapes: Any) -> Any:
    out = np.zeros(len(valid) + 1, np.int64)
    total = 0
    for row in range(len(valid)):
        if valid[row]:
            for i in range(offsets[row], offsets[row + 1]):
                letter = escapes[data[i]]
                total += 1 if letter == 0 else (6 if letter == 1 else 2)
        out[row + 1] = total
    return out


@kernel
def _escape(offsets: Any, data: Any, valid: Any, escapes: Any, out_offsets: Any, out: Any) -> None:
    for row in range(len(valid)):
        if not valid[row]:
            continue
        at = out_offsets[row]
        for i in range(offsets[row], offsets[row + 1]):
            byte = data[i]
            letter = escapes[byte]
            if letter == 0:
                out[at] = byte
                at += 1
                continue
            out[at] = 92
            if letter != 1:
                out[at + 1] = letter
                at += 2
                continue
            out[at + 1] = 117
            out[at + 2] = 48
            out[at + 3] = 48
            out[at + 4] = _HEX[byte >> 4]
            out[at + 5] = _HEX[byte & 15]
            at += 6


def hexadecimal(fields: Fields) -> Fields:
    lengths = np.where(fields.valid, fields.lengths, 0)
    offsets = np.concatenate(([0], np.cumsum(lengths * 2)))
    out = np.empty(int(offsets[-1]), np.uint8)
    _hexadecimal(fields.offsets, fields.data, fields.valid, offsets, out)
    return Fields(offsets, out, fields.valid)


@kernel
def _hexadecimal(offsets: Any, data: Any, valid: Any, out_offsets: Any, out: Any) -> None:
    for row in range(len(valid)):
        if valid[row]:
            at = out_offsets[row]
            for i in range(offsets[row], offsets[row + 1]):
                out[at] = _HEX[data[i] >> 4]
                out[at + 1] = _HEX[data[i] & 15]
                at += 2


def base64(fields: Fields) -> Fields:
    """RFC 4648, section 4, with padding."""
    lengths = np.where(fields.valid, fields.lengths, 0)
    offsets = np.concatenate(([0], np.cumsum((lengths + 2) // 3 * 4)))
    out = np.empty(int(offsets[-1]), np.uint8)
    _base64(fields.offsets, fields.data, fields.valid, offsets, out)
    return Fields(offsets, out, fields.valid)


@kernel
def _base64(offsets: Any, data: Any, valid: Any, out_offsets: Any, out: Any) -> None:
    for row in range(len(valid)):
        if not valid[row]:
            continue
        at = out_offsets[row]
        end = offsets[row + 1]
        for i in range(offsets[row], end, 3):
            bits = np.int64(data[i]) << 16
            if i + 1 < end:
                bits |= np.int64(data[i + 1]) << 8
            if i + 2 < end:
                bits |= np.int64(data[i + 2])
            out[at] = _BASE64[bits >> 18]
            out[at + 1] = _BASE64[(bits >> 12) & 63]
            out[at + 2] = _BASE64[(bits >> 6) & 63] if i + 1 < end else 61
            out[at + 3] = _BASE64[bits & 63] if i + 2 < end else 61
            at += 4


def decimal_text(array: pa.Array) -> Fields:
    """Returns the texts of a decimal128 array, without an exponent, with the type's number of fractional digits."""
    words = _words(array)
    valid = validity(array)
    offsets = np.zeros(len(array) + 1, np.int64)
    out = np.empty(len(array) * MAX_DECIMAL_TEXT, np.uint8)
    _decimal_text(words, valid, array.type.scale, offsets, out)
    return Fields(offsets, out, valid)


def _words(array: pa.Array) -> npt.NDArray[np.int64]:
    data = array.buffers()[1]
    if data is None:
        return np.zeros(2 * len(array), np.int64)
    return np.frombuffer(data, np.int64)[array.offset * 2 : (array.offset + len(array)) * 2]


@partial(kernel, makes_arrays=True)
def _decimal_text(words: Any, valid: Any, scale: int, offsets: Any, out: Any) -> None:
    digits = np.empty(40, np.uint8)
    limbs = np.empty(4, np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    at = 0
    for row in range(len(valid)):
        if valid[row]:
            low = words[2 * row]
            high = words[2 * row + 1]
            negative = high < 0
            if negative:
                low = -low
                high = ~high + (1 if low == 0 else 0)
            count = 0
            if high == 0 and low >= 0:
                rest = low
                while rest > 0:
                    digits[count] = 48 + rest % 10
                    rest //= 10
                    count += 1
            else:
                limbs[0] = np.uint64(high) >> np.uint64(32)
                limbs[1] = np.uint64(high) & mask
                limbs[2] = np.uint64(low) >> np.uint64(32)
                limbs[3] = np.uint64(low) & mask
                while limbs[0] | limbs[1] | limbs[2] | limbs[3]:
                    remainder = np.uint64(0)
                    for i in range(4):
                        part = (remainder << np.uint64(32)) | limbs[i]
                        limbs[i] = part // np.uint64(_CHUNK)
                        remainder = part % np.uint64(_CHUNK)
                    rest = np.int64(remainder)
                    for _ in range(_CHUNK_DIGITS):
                        if count < 40:
                            digits[count] = 48 + rest % 10
                            count += 1
                        rest //= 10
                while count > 0 and digits[count - 1] == 48:
                    count -= 1
            while count <= scale:  # at least one digit before the point
                digits[count] = 48
                count += 1
            if negative:
                out[at] = 45
                at += 1
            for i in range(count - 1, -1, -1):
                out[at] = digits[i]
                at += 1
                if i == scale and scale > 0:
                    out[at] = 46
                    at += 1
        offsets[row + 1] = at


def cast_text(array: pa.Array) -> Fields:
    """Returns integers, dates (`2024-02-29`) and timestamps without a zone (`2024-02-29 12:00:00.000000`) as Arrow formats
    them. Years from 32768 on, for which Arrow has no text but an error's, have the same form."""
    texts = pc.cast(array, pa.string())
    if pa.types.is_temporal(array.type):
        texts = _with_late_years(array, texts)
    return variable(texts)


def _with_late_years(array: pa.Array, texts: pa.Array) -> pa.Array:
    is_date = pa.types.is_date(array.type)
    numbers = values(array, "<i4" if is_date else "<i8").astype(np.int64)
    late = validity(array) & (numbers >= _FIRST_LATE_DAY * (1 if is_date else _DAY_MICROSECONDS))
    if not late.any():
        return texts
    written = np.datetime_as_string(numbers[late].astype("datetime64[D]" if is_date else "datetime64[us]")).tolist()
    return pc.replace_with_mask(texts, pa.array(late), pa.array([text.replace("T", " ") for text in written]))


def exact_float_text(array: pa.Array) -> pa.Array:
    """Returns the shortest decimal text that parses to the same double, always with an exponent: `0.1e0`, `-0e0`, `1e-7`.

    A float32 is written as the double that it equals, so a server that parses a double and then narrows it rounds only once.
    """
    text = pc.cast(pc.cast(array, pa.float64()), pa.string())
    with_exponent = pc.binary_join_element_wise(text, "e0", "")
    return pc.if_else(pc.match_substring(text, "e"), text, with_exponent)


def float_list_bytes(array: pa.Array) -> Fields:
    """Returns each list of a list<float32> array as its floats' little-endian bytes. Raises ValueError for a null element."""
    _, offsets, *_ = array.buffers()
    floats = array.values
    if len(array) == 0 or offsets is None:
        return Fields(np.zeros(len(array) + 1, np.int64), NO_BYTES, validity(array))
    starts = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if floats.null_count and array.flatten().null_count:
        raise ValueError("a vector with a null element")
    data = floats.buffers()[1]
    content = NO_BYTES if data is None else np.frombuffer(data, np.uint8)[4 * floats.offset :]
    return Fields(starts * 4, content, validity(array))
