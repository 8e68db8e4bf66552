"""The compiled loop that decodes bytea's text, `\\x` and hexadecimal digits, into the buffers of a binary array."""

import numpy as np

from tidemark.readers.gather import MAX_OFFSET
from tidemark.state.kernel import Bytes, Int, Int32s, Int64s, inner_kernel, kernel

_BACKSLASH, _X = ord("\\"), ord("x")


@kernel
def measure_hex(size: Int64s, valid: Bytes, rows: Int64s, offsets: Int32s) -> Int:
    """Measures as gather.measure does. Returns -2 if a text does not have that form. `valid` is 1 where there is a value."""
    at = np.int64(0)
    offsets[0] = 0
    for i in range(rows.shape[0]):
        length = size[rows[i]]
        if valid[rows[i]] == 1:
            if length < 2 or length & 1:
                return np.int64(-2)
            at += (length - 2) >> 1
        if at > MAX_OFFSET:
            return np.int64(-1)
        offsets[i + 1] = at
    return at


@kernel
def copy_hex(buf: Bytes, start: Int64s, valid: Bytes, rows: Int64s, offsets: Int32s, out: Bytes) -> Int:
    """Decodes the values to `out`. Call `measure_hex` first. Returns -2 if a text does not begin with `\\x` or a character is
    not a digit, else 0."""
    wrong = np.int64(0)
    for i in range(rows.shape[0]):
        source = start[rows[i]] + 2
        if valid[rows[i]] == 1 and (buf[source - 2] != _BACKSLASH or buf[source - 1] != _X):
            return np.int64(-2)
        for j in range(np.int64(offsets[i]), np.int64(offsets[i + 1])):
            high, low = _digit(buf[source]), _digit(buf[source + 1])
            wrong |= high | low
            out[j] = (high << 4 | low) & 0xFF
            source += 2
    return np.int64(-2) if wrong < 0 else np.int64(0)


@inner_kernel
def _digit(byte: Int) -> Int:
    """Returns the value of a lower-case hexadecimal digit; -1 for another byte."""
    value = np.int64(byte) - 48
    if 0 <= value <= 9:
        return value
    value -= 39
    return value if 10 <= value <= 15 else np.int64(-1)
