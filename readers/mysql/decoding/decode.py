"""The compiled loops that decode row images and binary results into column buffers.

The input is one flat, writable, C-contiguous uint8 buffer. The output are `ColumnBuffers`. Values of fixed width go into
`lo` (integers; days and microseconds since 1970; microseconds of a TIME; a float's bits) or `lo` and `hi` (decimals,
two's complement). Values of variable length stay in the input: `lo` is their offset, `hi` their size in bytes.
A null is 0, 0. Every length is checked against `end` before a byte is read.
"""

from dataclasses import dataclass

import numpy as np

from tidemark.readers.mysql.decoding.column_codes import ColumnCode, ErrorCode
from tidemark.readers.mysql.decoding.decimals import decimal_text, packed_decimal, packed_size
from tidemark.readers.mysql.decoding.integers import big, little
from tidemark.readers.mysql.decoding.temporal import (
    damaged,
    image_date,
    image_datetime,
    image_time,
    image_timestamp,
    result_date,
    result_datetime,
    result_time,
)
from tidemark.state.kernel import Bytes, Int, Int32s, Int64s, inner_kernel, kernel


@dataclass(frozen=True, slots=True)
class ColumnBuffers:
    """`lo[column, row]` and `hi[column, row]`: see above. `valid[column, row]`: 1 = not null."""

    lo: Int64s
    hi: Int64s
    valid: Bytes

    @classmethod
    def empty(cls, column_count: int, capacity: int) -> "ColumnBuffers":
        shape = (column_count, capacity)
        return cls(np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.uint8))


UNWANTED, WANTED, GENERATED = 0, 1, 2
"""`wanted` of `decode_image`: a column that is not copied, one that is, and one that is and that the server generates."""

# numba takes module-level integers for constants.
_WANTED, _GENERATED = WANTED, GENERATED
_DAMAGED = -int(ErrorCode.DAMAGED)
_UNKNOWN_CODE = -int(ErrorCode.UNKNOWN_CODE)
_PARTIAL_IMAGE = -int(ErrorCode.PARTIAL_IMAGE)
_NO_ROOM = -int(ErrorCode.NO_ROOM)
_WIDE_PACKET = -int(ErrorCode.WIDE_PACKET)

_INT8, _UINT8 = int(ColumnCode.INT8), int(ColumnCode.UINT8)
_INT16, _UINT16 = int(ColumnCode.INT16), int(ColumnCode.UINT16)
_INT24, _UINT24 = int(ColumnCode.INT24), int(ColumnCode.UINT24)
_INT32, _UINT32 = int(ColumnCode.INT32), int(ColumnCode.UINT32)
_INT64, _UINT64 = int(ColumnCode.INT64), int(ColumnCode.UINT64)
_FLOAT, _DOUBLE = int(ColumnCode.FLOAT), int(ColumnCode.DOUBLE)
_DECIMAL, _DECIMAL_WIDE = int(ColumnCode.DECIMAL), int(ColumnCode.DECIMAL_WIDE)
_DATE, _DATETIME2 = int(ColumnCode.DATE), int(ColumnCode.DATETIME2)
_TIMESTAMP2, _TIME2 = int(ColumnCode.TIMESTAMP2), int(ColumnCode.TIME2)
_YEAR, _BIT = int(ColumnCode.YEAR), int(ColumnCode.BIT)
_BYTES1, _BYTES2 = int(ColumnCode.BYTES1), int(ColumnCode.BYTES2)
_BYTES3, _BYTES4 = int(ColumnCode.BYTES3), int(ColumnCode.BYTES4)
_ORDINAL, _SKIP = int(ColumnCode.ORDINAL), int(ColumnCode.SKIP)
_TEXT, _DECIMAL_TEXT = int(ColumnCode.TEXT), int(ColumnCode.DECIMAL_TEXT)
_BIT_TEXT, _DATE_FIELDS = int(ColumnCode.BIT_TEXT), int(ColumnCode.DATE_FIELDS)
_DATETIME_FIELDS, _TIME_FIELDS = int(ColumnCode.DATETIME_FIELDS), int(ColumnCode.TIME_FIELDS)


@kernel
def decode_image(
    buf: Bytes,
    pos: Int,
    end: Int,
    present_pos: Int,
    ncol: Int,
    code: Int32s,
    meta: Int32s,
    wanted: Bytes,
    lo: Int64s,
    hi: Int64s,
    valid: Bytes,
    row: Int,
) -> Int:
    """Decodes one row image, which starts with its null bitmap at `pos`, into `row` of the column buffers.

    `present_pos`: the offset of the event's columns-present bitmap. `code`, `meta` and `wanted` have one entry per column of
    the table; an image may lack a column only if `wanted` is UNWANTED. Returns the offset after the image, or
    -(column << 8 | error code).
    """
    bitmap = (ncol + 7) >> 3
    if row < 0 or row >= lo.shape[1] or ncol > lo.shape[0] or ncol > code.shape[0]:
        return np.int64(_NO_ROOM)
    if pos < 0 or present_pos < 0 or present_pos + bitmap > end or end > buf.shape[0]:
        return np.int64(_DAMAGED)
    for i in range(ncol >> 3):
        if buf[present_pos + i] != 255:
            return _decode_partial(buf, pos, end, present_pos, ncol, code, meta, wanted, lo, hi, valid, row)
    if ncol & 7:
        mask = (1 << (ncol & 7)) - 1
        if np.int64(buf[present_pos + bitmap - 1]) & mask != mask:
            return _decode_partial(buf, pos, end, present_pos, ncol, code, meta, wanted, lo, hi, valid, row)
    p = np.int64(pos + bitmap)
    if p > end:
        return np.int64(_DAMAGED)
    for c in range(ncol):
        if (np.int64(buf[pos + (c >> 3)]) >> (c & 7)) & 1:
            valid[c, row] = 0
            lo[c, row] = 0
            hi[c, row] = 0
            continue
        p, low, high = _image_value(buf, p, end, code[c], meta[c])
        if p < 0:
            return p - (c << 8)
        valid[c, row] = 1
        lo[c, row] = low
        hi[c, row] = high
    return p


@inner_kernel
def _decode_partial(
    buf: Bytes,
    pos: Int,
    end: Int,
    present_pos: Int,
    ncol: Int,
    code: Int32s,
    meta: Int32s,
    wanted: Bytes,
    lo: Int64s,
    hi: Int64s,
    valid: Bytes,
    row: Int,
) -> Int:
    """Decodes an image without all columns. Its null bitmap has one bit for each column that it has. A wanted column that is
    missing is an error, which names a generated one only if no other is missing."""
    count = np.int64(0)
    missing = np.int64(-1)
    for c in range(ncol):
        if (np.int64(buf[present_pos + (c >> 3)]) >> (c & 7)) & 1:
            count += 1
        elif wanted[c] == _WANTED:
            return np.int64(_PARTIAL_IMAGE) - (c << 8)
        elif wanted[c] == _GENERATED and missing < 0:
            missing = np.int64(c)
    if missing >= 0:
        return np.int64(_PARTIAL_IMAGE) - (missing << 8)
    p = np.int64(pos + ((count + 7) >> 3))
    if p > end:
        return np.int64(_DAMAGED)
    bit = np.int64(0)
    for c in range(ncol):
        valid[c, row] = 0
        lo[c, row] = 0
        hi[c, row] = 0
        if not (np.int64(buf[present_pos + (c >> 3)]) >> (c & 7)) & 1:
            continue
        is_null = (np.int64(buf[pos + (bit >> 3)]) >> (bit & 7)) & 1
        bit += 1
        if is_null:
            continue
        p, low, high = _image_value(buf, p, end, code[c], meta[c])
        if p < 0:
            return p - (c << 8)
        valid[c, row] = 1
        lo[c, row] = low
        hi[c, row] = high
    return p


@kernel
def decode_results(
    buf: Bytes,
    pos: Int,
    end: Int,
    code: Int32s,
    meta: Int32s,
    lo: Int64s,
    hi: Int64s,
    valid: Bytes,
    row: Int,
    state: Int64s,
) -> Int:
    """Decodes row packets of a binary result into the column buffers from `row`, as long as packets are complete, are rows,
    and fit.

    Returns the row after the last one, or -(column << 8 | error code). Sets `state` int64[4]:
    - [0] the offset of the packet where it stopped.
    - [1] why: -1 the packet is incomplete, else its first byte (0: a row, but the buffers are full; 254: the end; 255: an
      error; other: damage).
    - [2] the row after the last one, also when an error is returned.
    - [3] the next sequence number. It is also an input.
    """
    p = np.int64(pos)
    r = np.int64(row)
    answer = np.int64(0)
    stopped_by = np.int64(-1)
    sequence = state[3]
    if end > buf.shape[0] or pos < 0 or row < 0 or code.shape[0] > lo.shape[0]:
        answer = np.int64(_NO_ROOM)
    while answer == 0 and p + 4 <= end:
        size = little(buf, p, 3)
        if buf[p + 3] != sequence:
            answer = np.int64(_DAMAGED)
            break
        if size == 0xFFFFFF:
            answer = np.int64(_WIDE_PACKET)
            break
        stop = p + 4 + size
        if stop > end:
            break
        if size == 0:
            answer = np.int64(_DAMAGED)
            break
        if buf[p + 4] != 0 or r >= lo.shape[1]:
            stopped_by = np.int64(buf[p + 4])
            break
        done = decode_result_row(buf, p + 4, stop, code, meta, lo, hi, valid, r)
        if done < 0:
            answer = done
            break
        sequence = (sequence + 1) & 255
        r += 1
        p = stop
    state[0] = p
    state[1] = stopped_by
    state[2] = r
    state[3] = sequence
    return answer if answer < 0 else r


@kernel
def decode_result_row(
    buf: Bytes, pos: Int, end: Int, code: Int32s, meta: Int32s, lo: Int64s, hi: Int64s, valid: Bytes, row: Int
) -> Int:
    """Decodes the payload [pos, end) of one row packet. Returns `end`, or -(column << 8 | error code)."""
    ncol = code.shape[0]
    if row < 0 or row >= lo.shape[1] or ncol > lo.shape[0]:
        return np.int64(_NO_ROOM)
    nulls = pos + 1
    p = np.int64(nulls + ((ncol + 9) >> 3))
    if pos < 0 or p > end or end > buf.shape[0] or buf[pos] != 0:
        return np.int64(_DAMAGED)
    for c in range(ncol):
        if (np.int64(buf[nulls + ((c + 2) >> 3)]) >> ((c + 2) & 7)) & 1:
            valid[c, row] = 0
            lo[c, row] = 0
            hi[c, row] = 0
            continue
        p, low, high = _result_value(buf, p, end, code[c], meta[c])
        if p < 0:
            return p - (c << 8)
        valid[c, row] = 1
        lo[c, row] = low
        hi[c, row] = high
    return p if p == end else np.int64(_DAMAGED)


@inner_kernel
def _image_value(buf: Bytes, p: Int, end: Int, code: Int, meta: Int) -> tuple[Int, Int, Int]:
    """Returns (offset after the value, lo, hi); a negative offset is an error code. So do all functions below."""
    if code <= _DOUBLE:
        return _plain_value(buf, p, end, code)
    if code == _BYTES1:
        return _prefixed(buf, p, end, 1, meta)
    if code == _BYTES2:
        return _prefixed(buf, p, end, 2, meta)
    if code == _DECIMAL:
        return packed_decimal(buf, p, end, meta >> 8, meta & 255)
    if code == _DATETIME2:
        return image_datetime(buf, p, end, meta)
    if code == _TIMESTAMP2:
        return image_timestamp(buf, p, end, meta)
    if code == _DATE:
        return image_date(buf, p, end)
    if code == _ORDINAL:
        if p + meta > end:
            return damaged()
        return p + meta, little(buf, p, meta), np.int64(0)
    if code == _TIME2:
        return image_time(buf, p, end, meta)
    if code == _YEAR:
        if p + 1 > end:
            return damaged()
        year = np.int64(buf[p])
        return p + 1, year + 1900 if year else np.int64(0), np.int64(0)
    if code == _BIT:
        return _bits(buf, p, (meta + 7) >> 3, end, meta)
    if code == _BYTES3:
        return _prefixed(buf, p, end, 3, meta)
    if code == _BYTES4:
        return _prefixed(buf, p, end, 4, meta)
    if code == _DECIMAL_WIDE:
        return _span(p, packed_size(meta >> 8, meta & 255), end)
    if code == _SKIP:
        return _span(p, np.int64(meta), end)
    return np.int64(_UNKNOWN_CODE), np.int64(0), np.int64(0)


@inner_kernel
def _result_value(buf: Bytes, p: Int, end: Int, code: Int, meta: Int) -> tuple[Int, Int, Int]:
    if code <= _DOUBLE:
        return _plain_value(buf, p, end, code)
    if code == _DATETIME_FIELDS:
        return result_datetime(buf, p, end)
    if code == _DATE_FIELDS:
        return result_date(buf, p, end)
    if code == _TIME_FIELDS:
        return result_time(buf, p, end)
    if p + 1 > end:
        return damaged()
    size = np.int64(buf[p])
    p += 1
    if size > 250:
        width = 2 if size == 252 else 3 if size == 253 else 8
        if size == 251 or size == 255 or p + width > end:
            return damaged()
        size = little(buf, p, width)
        p += width
    if size < 0 or size > end - p:
        return damaged()
    if code == _TEXT:
        return p + size, p, size
    if code == _DECIMAL_TEXT:
        return decimal_text(buf, p, p + size, meta >> 8, meta & 255)
    if code == _BIT_TEXT:
        return _bits(buf, p, size, end, meta)
    return np.int64(_UNKNOWN_CODE), np.int64(0), np.int64(0)


@inner_kernel
def _plain_value(buf: Bytes, p: Int, end: Int, code: Int) -> tuple[Int, Int, Int]:
    """Decodes little-endian numbers, which row images and results share."""
    if code in (_INT64, _UINT64, _DOUBLE):
        if p + 8 > end:
            return damaged()
        return p + 8, little(buf, p, 8), np.int64(0)
    if code in (_INT32, _UINT32, _FLOAT):
        if p + 4 > end:
            return damaged()
        value = little(buf, p, 4)
        return p + 4, (value ^ 0x80000000) - 0x80000000 if code == _INT32 else value, np.int64(0)
    if code in (_INT8, _UINT8):
        if p + 1 > end:
            return damaged()
        value = np.int64(buf[p])
        return p + 1, (value ^ 0x80) - 0x80 if code == _INT8 else value, np.int64(0)
    if code in (_INT16, _UINT16):
        if p + 2 > end:
            return damaged()
        value = little(buf, p, 2)
        return p + 2, (value ^ 0x8000) - 0x8000 if code == _INT16 else value, np.int64(0)
    if code in (_INT24, _UINT24):
        if p + 3 > end:
            return damaged()
        value = little(buf, p, 3)
        return p + 3, (value ^ 0x800000) - 0x800000 if code == _INT24 else value, np.int64(0)
    return np.int64(_UNKNOWN_CODE), np.int64(0), np.int64(0)


@inner_kernel
def _prefixed(buf: Bytes, p: Int, end: Int, width: Int, longest: Int) -> tuple[Int, Int, Int]:
    """Decodes bytes after their length of `width` bytes. `longest`: the maximum length, -1 for none."""
    if p + width > end:
        return damaged()
    size = little(buf, p, width)
    if longest >= 0 and size > longest:
        return damaged()
    return _span(p + width, size, end)


@inner_kernel
def _span(start: Int, size: Int, end: Int) -> tuple[Int, Int, Int]:
    if size < 0 or size > end - start:
        return damaged()
    return start + size, start, size


@inner_kernel
def _bits(buf: Bytes, p: Int, size: Int, end: Int, bits: Int) -> tuple[Int, Int, Int]:
    if size != (bits + 7) >> 3 or p + size > end:
        return damaged()
    value = big(buf, p, size)
    if bits < 64 and value >> bits:
        return damaged()
    return p + size, value, np.int64(0)
