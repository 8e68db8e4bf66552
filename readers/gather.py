"""Compiled loops that copy values out of a receive buffer into the buffers of an Arrow array of variable length.

`start` and `size` are column buffers: where each value begins and its bytes. `rows` are the wanted rows, `offsets` is
int32[len(rows) + 1]. A null has size 0.
"""

import numpy as np

from tidemark.state.kernel import Bytes, Int, Int32s, Int64s, kernel

MAX_OFFSET = 0x7FFFFFFF


@kernel
def measure(size: Int64s, rows: Int64s, offsets: Int32s) -> Int:
    """Fills `offsets` and returns the number of bytes; -1 if they exceed 32-bit offsets."""
    at = np.int64(0)
    offsets[0] = 0
    for i in range(rows.shape[0]):
        at += size[rows[i]]
        if at > MAX_OFFSET:
            return np.int64(-1)
        offsets[i + 1] = at
    return at


@kernel
def copy(buf: Bytes, start: Int64s, rows: Int64s, offsets: Int32s, out: Bytes) -> None:
    """Copies the values to `out`. Call `measure` first. Decoding has checked the sizes against `buf`."""
    for i in range(rows.shape[0]):
        at = np.int64(offsets[i])
        source = start[rows[i]] - at
        for j in range(at, np.int64(offsets[i + 1])):
            out[j] = buf[source + j]
