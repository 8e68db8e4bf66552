"""Compiled loops from column buffers to the buffers of Arrow arrays, for MySQL's own forms.

The other forms are in readers/gather.py, which also defines `offsets` and the return values.
"""

import numpy as np

from tidemark.readers.gather import MAX_OFFSET
from tidemark.state.kernel import Bytes, Int, Int32s, Int64s, kernel


@kernel
def copy_padded(buf: Bytes, start: Int64s, size: Int64s, rows: Int64s, offsets: Int32s, out: Bytes) -> None:
    """Copies values into `out`, which holds zeros, at the given `offsets`."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(size[row]):
            out[offsets[i] + j] = buf[start[row] + j]


@kernel
def measure_characters(buf: Bytes, start: Int64s, size: Int64s, rows: Int64s, width: Bytes, offsets: Int32s) -> Int:
    """Measures the UTF-8 of text in a single-byte character set. `width[byte]`: bytes of the character in UTF-8, 0 for none.

    Fills `offsets`. Returns the total, -1 if it is too large, or -2 - (index in rows) for a byte without a character."""
    at = np.int64(0)
    offsets[0] = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(start[row], start[row] + size[row]):
            wide = width[buf[j]]
            if wide == 0:
                return np.int64(-2 - i)
            at += wide
        if at > MAX_OFFSET:
            return np.int64(-1)
        offsets[i + 1] = at
    return at


@kernel
def copy_characters(
    buf: Bytes, start: Int64s, size: Int64s, rows: Int64s, width: Bytes, utf8: Bytes, out: Bytes
) -> None:
    """Copies text as UTF-8, after `measure_characters`. `utf8[byte, :width[byte]]` is the character."""
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
    """Prints microseconds as the server prints a TIME. `out` has 17 bytes per row."""
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
