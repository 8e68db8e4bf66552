"""Integers in a buffer, for the compiled loops. Callers check that the bytes exist."""

import numpy as np

from tidemark.state.kernel import Bytes, Int, inner_kernel


@inner_kernel
def little(buf: Bytes, p: Int, size: Int) -> Int:
    """The little-endian integer in `size` bytes at `p`."""
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(buf[p + i]) << (8 * i)
    return value


@inner_kernel
def big(buf: Bytes, p: Int, size: Int) -> Int:
    """The big-endian integer in `size` bytes at `p`."""
    value = np.int64(0)
    for i in range(size):
        value = value << 8 | np.int64(buf[p + i])
    return value
