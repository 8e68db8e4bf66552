"""The compiled loop that prints binary JSON. jsonb.py is the plain version, and prints what this one hands back.

It hands back documents with opaque parts (decimals, dates, bytes), and with doubles of more than fifteen digits or far
from 1.
"""

from enum import IntEnum
from functools import partial

import numpy as np

from tidemark.readers.gather import MAX_OFFSET
from tidemark.readers.mysql.decoding.integers import little
from tidemark.readers.mysql.decoding.jsonb import MAX_DEPTH
from tidemark.state.kernel import Bytes, Int, Int32s, Int64s, inner_kernel, kernel


class JsonStop(IntEnum):
    """Why `print_documents` returned."""

    DONE = 0
    NO_ROOM = 1
    HAND_BACK = 2
    DAMAGED = 3
    TOO_LARGE = 4  # the text exceeds 32-bit offsets


_NO_ROOM, _HAND_BACK = int(JsonStop.NO_ROOM), int(JsonStop.HAND_BACK)
_DAMAGED, _TOO_LARGE = int(JsonStop.DAMAGED), int(JsonStop.TOO_LARGE)
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = (
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    15,
)
_MAX_SCALAR_TEXT = 32
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).copy()


@partial(kernel, makes_arrays=True)
def print_documents(
    buf: Bytes, start: Int64s, size: Int64s, valid: Bytes, rows: Int64s, offsets: Int32s, out: Bytes, state: Int64s
) -> Int:
    """Prints the documents at `rows`, from rows[state[0]], into out[state[1]:]. Updates `state`.

    Returns a JsonStop. Unless it is DONE, rows[state[0]] is the row where it stopped.
    """
    stack = np.empty((MAX_DEPTH + 1, 5), np.int64)
    i = state[0]
    at = state[1]
    offsets[i] = at
    while i < rows.shape[0]:
        row = rows[i]
        if valid[row]:
            if size[row] == 0:
                if at + 4 > out.shape[0]:
                    return _NO_ROOM
                at = _word(out, at, 0)
            else:
                reached = _print(buf, start[row], start[row] + size[row], out, at, stack)
                if reached < 0:
                    return -reached
                at = reached
        if at > MAX_OFFSET:
            return _TOO_LARGE
        i += 1
        offsets[i] = at
        state[0] = i
        state[1] = at
    return 0


@inner_kernel
def _print(buf: Bytes, start: Int, end: Int, out: Bytes, at: Int, stack: Int64s) -> Int:
    """Prints one document. Returns the end of its text, or -JsonStop.

    A line of `stack` is an open container: its start, its end, its type, its entry count, and the next entry.
    """
    budget = end - start
    depth = 0
    kind = np.int64(buf[start])
    base = start + 1  # the start of the value; a container's offsets count from here
    limit = end
    while True:
        # The value at `base` has type `kind`, in a container that ends at `limit`.
        budget -= 1
        if budget < 0:
            return -_DAMAGED
        if at + _MAX_SCALAR_TEXT > out.shape[0]:
            return -_NO_ROOM
        if kind <= 3:
            width = 4 if kind & 1 else 2
            if depth >= MAX_DEPTH or base + 2 * width > limit:
                return -_DAMAGED
            count = little(buf, base, width)
            bytes_ = little(buf, base + width, width)
            entry = (width + 2 if kind <= 1 else 0) + width + 1
            if bytes_ > limit - base or 2 * width + count * entry > bytes_:
                return -_DAMAGED
            stack[depth, 0] = base
            stack[depth, 1] = base + bytes_
            stack[depth, 2] = kind
            stack[depth, 3] = count
            stack[depth, 4] = 0
            depth += 1
            out[at] = 123 if kind <= 1 else 91
            at += 1
        elif kind == _STRING:
            content, bytes_ = _sized(buf, base, limit)
            if content < 0 or bytes_ > limit - content:
                return -_DAMAGED
            budget -= bytes_
            if budget < 0:
                return -_DAMAGED
            at = _quote(buf, content, bytes_, out, at)
            if at < 0:
                return at
        else:
            at = _scalar(buf, base, limit, kind, out, at)
            if at < 0:
                return at
        # Close complete containers, then go to the next entry.
        while depth and stack[depth - 1, 4] == stack[depth - 1, 3]:
            if at + 1 > out.shape[0]:
                return -_NO_ROOM
            depth -= 1
            out[at] = 125 if stack[depth, 2] <= 1 else 93
            at += 1
        if depth == 0:
            return at
        top = stack[depth - 1]
        base, limit = top[0], top[1]
        large = top[2] & 1
        width = 4 if large else 2
        index = top[4]
        top[4] = index + 1
        if at + _MAX_SCALAR_TEXT > out.shape[0]:
            return -_NO_ROOM
        if index:
            out[at] = 44
            out[at + 1] = 32
            at += 2
        entries = base + 2 * width
        if top[2] <= 1:
            key = entries + index * (width + 2)
            content = little(buf, key, width)
            bytes_ = little(buf, key + width, 2)
            budget -= bytes_
            if content + bytes_ > limit - base or budget < 0:
                return -_DAMAGED
            at = _quote(buf, base + content, bytes_, out, at)
            if at < 0:
                return at
            if at + 2 > out.shape[0]:
                return -_NO_ROOM
            out[at] = 58
            out[at + 1] = 32
            at += 2
            entries += top[3] * (width + 2)
        entry = entries + index * (width + 1)
        kind = np.int64(buf[entry])
        if _LITERAL <= kind <= _UINT16 or (large and kind in (_INT32, _UINT32)):
            base = entry + 1
        else:
            base = base + little(buf, entry + 1, width)
            if base > limit:
                return -_DAMAGED


@inner_kernel
def _sized(buf: Bytes, p: Int, end: Int) -> tuple[Int, Int]:
    """(start of the bytes, their count); start -1 if damaged. The length has seven bits per byte, the lowest first."""
    size = np.int64(0)
    for i in range(5):
        if p + i >= end:
            break
        byte = np.int64(buf[p + i])
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return p + i + 1, size
    return np.int64(-1), np.int64(0)


@inner_kernel
def _quote(buf: Bytes, p: Int, size: Int, out: Bytes, at: Int) -> Int:
    if at + 2 > out.shape[0]:
        return -_NO_ROOM
    out[at] = 34
    at += 1
    for i in range(size):
        if at + 7 > out.shape[0]:  # an escape and the closing quote
            return -_NO_ROOM
        byte = buf[p + i]
        if byte >= 32 and byte != 34 and byte != 92:
            out[at] = byte
            at += 1
            continue
        out[at] = 92
        short = np.uint8(0)
        if byte == 34 or byte == 92:
            short = byte
        elif byte == 8:
            short = np.uint8(98)
        elif byte == 9:
            short = np.uint8(116)
        elif byte == 10:
            short = np.uint8(110)
        elif byte == 12:
            short = np.uint8(102)
        elif byte == 13:
            short = np.uint8(114)
        if short:
            out[at + 1] = short
            at += 2
        else:
            out[at + 1] = 117
            out[at + 2] = 48
            out[at + 3] = 48
            out[at + 4] = _HEX[byte >> 4]
            out[at + 5] = _HEX[byte & 15]
            at += 6
    out[at] = 34
    return at + 1


@inner_kernel
def _word(out: Bytes, at: Int, code: Int) -> Int:
    text = b"null" if code == 0 else b"true" if code == 1 else b"fals"
    for i in range(4):
        out[at + i] = text[i]
    at += 4
    if code == 2:
        out[at] = 101
        at += 1
    return at


@inner_kernel
def _scalar(buf: Bytes, p: Int, end: Int, kind: Int, out: Bytes, at: Int) -> Int:
    """Prints a scalar. `out` has room for _MAX_SCALAR_TEXT bytes."""
    if kind == _OPAQUE:
        return np.int64(-_HAND_BACK)
    if kind == _LITERAL:
        if p >= end or buf[p] > 2:
            return np.int64(-_DAMAGED)
        return _word(out, at, buf[p])
    if kind < _INT16 or kind > _DOUBLE:
        return np.int64(-_DAMAGED)
    size = 2 if kind <= _UINT16 else 4 if kind <= _UINT32 else 8
    if p + size > end:
        return np.int64(-_DAMAGED)
    value = little(buf, p, size)
    if kind == _DOUBLE:
        return _double(value, out, at)
    if size < 8 and kind & 1:  # signed types have odd codes
        sign = np.int64(1) << (8 * size - 1)
        value = (value ^ sign) - sign
    magnitude = np.uint64(value)
    if kind & 1 and value < 0:
        out[at] = 45
        at += 1
        magnitude = np.uint64(0) - magnitude
    return _digits(magnitude, 1, out, at)


@inner_kernel
def _digits(value: Int, least: Int, out: Bytes, at: Int) -> Int:
    """Prints an unsigned number with at least `least` digits."""
    count = 1
    left = value // np.uint64(10)
    while left:
        count += 1
        left //= np.uint64(10)
    count = max(count, least)
    for i in range(count):
        out[at + count - 1 - i] = np.uint8(48) + np.uint8(value % np.uint64(10))
        value //= np.uint64(10)
    return at + count


@partial(inner_kernel, makes_arrays=True)
def _double(bits: Int, out: Bytes, at: Int) -> Int:
    """Prints a double in positional form, if at most fifteen digits read back as the same double. Else hands it back.

    m below 10^15 and 10^k up to 10^22 are exact doubles, so m / 10^k is the double nearest to the decimal m × 10^-k. No
    other decimal of at most fifteen digits reads back as it.
    """
    holder = np.empty(1, np.int64)
    holder[0] = bits
    value = holder.view(np.float64)[0]
    if not np.isfinite(value):
        return np.int64(-_DAMAGED)
    whole = abs(value)
    if bits < 0:
        out[at] = 45
        at += 1
    power = 1.0
    for k in range(15):
        scaled = np.rint(whole * power)
        if scaled >= 1e15:
            return np.int64(-_HAND_BACK)
        if scaled / power == whole:
            at = _digits(np.uint64(scaled), k + 1, out, at)
            # Insert the point, or append `.0`.
            if k == 0:
                out[at] = 46
                out[at + 1] = 48
                return at + 2
            for i in range(k):
                out[at - i] = out[at - i - 1]
            out[at - k] = 46
            return at + 1
        power *= 10.0
    return np.int64(-_HAND_BACK)
