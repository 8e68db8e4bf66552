"""Compiled loops from planes to the buffers of Arrow arrays, of MySQL's own forms: see readers/gather.py for the rest.

`offsets` and what is returned are as there.
"""

import numpy as np

from readers.gather import GREATEST_OFFSET
from readers.kernel import Bytes, Int, Int32s, Int64s, kernel


@kernel
def copy_padded(buf: Bytes, start: Int64s, size: Int64s, rows: Int64s, offsets: Int32s, out: Bytes) -> None:
    """Into `out`, which holds zeros; `offsets` are given."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(size[row]):
            out[offsets[i] + j] = buf[start[row] + j]


@kernel
def measure_characters(buf: Bytes, start: Int64s, size: Int64s, rows: Int64s, width: Bytes, offsets: Int32s) -> Int:
    """Of text in a character set of one byte a character. `width[byte]`: bytes of that character in UTF-8, 0 where
    there is none: then the answer is -2 - (index in rows)."""
    at = np.int64(0)
    offsets[0] = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(start[row], start[row] + size[row]):
            wide = width[buf[j]]
            if wide == 0:
                return np.int64(-2 - i)
            at += wide
        if at > GREATEST_OFFSET:
            return np.int64(-1)
        offsets[i + 1] = at
    return at


@kernel
def copy_characters(
    buf: Bytes, start: Int64s, size: Int64s, rows: Int64s, width: Bytes, utf8: Bytes, out: Bytes
) -> None:
    """After `measure_characters`. `utf8[byte, :width[byte]]` is the character."""
    at = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(start[row], start[row] + size[row]):
            byte = buf[j]
            for k in range(width[byte]):
                out[at] = utf8[byte, k]
                at += 1


@kernel
def time_text(value: Int64s, valid: Bytes, rows: Int64s, digits: Int, offsets: Int32s, out: Bytes) -> Int:
    """Microseconds as the server's text of a TIME; `out` has 17 bytes a row."""
    at = 0
    offsets[0] = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        if valid[row]:
            left = value[row]
            if left < 0:
                left = -left
                out[at] = 45
                at += 1
            micros = left % 1_000_000
            seconds = left // 1_000_000
            hours = seconds // 3600
            if hours > 99:
                out[at] = 48 + hours // 100
                at += 1
            minutes = seconds // 60 % 60
            for part in (hours % 100, minutes, seconds % 60):
                out[at] = 48 + part // 10
                out[at + 1] = 48 + part % 10
                out[at + 2] = 58
                at += 3
            at -= 1
            if digits:
                out[at] = 46
                at += 1
                unit = 100_000
                for _ in range(digits):
                    out[at] = 48 + micros // unit % 10
                    unit //= 10
                    at += 1
        offsets[i + 1] = at
    return np.int64(at)
