"""Compiled loops from places in a buffer to the buffers of an Arrow array of variable length.

`start` and `size` are a column's planes, `rows` the rows that are wanted, `offsets` int32[len(rows) + 1]. A null has
size 0. What they return is the number of bytes, or -1 where it is beyond 32-bit offsets.
"""

import numpy as np

from readers.kernel import Bytes, Int, Int32s, Int64s, kernel

GREATEST_OFFSET = 0x7FFFFFFF


@kernel
def measure(size: Int64s, rows: Int64s, offsets: Int32s) -> Int:
    at = np.int64(0)
    offsets[0] = 0
    for i in range(rows.shape[0]):
        at += size[rows[i]]
        if at > GREATEST_OFFSET:
            return np.int64(-1)
        offsets[i + 1] = at
    return at


@kernel
def copy(buf: Bytes, start: Int64s, rows: Int64s, offsets: Int32s, out: Bytes) -> None:
    """After `measure`. Sizes were checked against the buffer when they were decoded."""
    for i in range(rows.shape[0]):
        at = np.int64(offsets[i])
        source = start[rows[i]] - at
        for j in range(at, np.int64(offsets[i + 1])):
            out[j] = buf[source + j]
