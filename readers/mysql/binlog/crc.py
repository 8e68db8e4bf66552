"""zlib's CRC-32, compiled: for most events a call from Python would cost more than the checksum itself."""

import numpy as np
import numpy.typing as npt

from tidemark.state.kernel import Bytes, Int, inner_kernel

CrcTables = npt.NDArray[np.uint32]


def _crc_tables() -> CrcTables:
    """CRC-32 over 16 bytes at a time: https://create.stephan-brumme.com/crc32/#slicing-by-16-overview"""
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0xEDB88320 if value & 1 else value >> 1
        tables[0, byte] = value
    for i in range(1, 16):
        tables[i] = (tables[i - 1] >> 8) ^ tables[0][tables[i - 1] & 255]
    return tables


CRC_TABLES = _crc_tables()


@inner_kernel
def crc32(buf: Bytes, start: Int, end: Int, tables: CrcTables) -> Int:
    """zlib's CRC-32 of buf[start:end]."""
    mask = np.uint32(255)
    value = np.uint32(0xFFFFFFFF)
    p = start
    while p + 16 <= end:
        value ^= np.uint32(
            np.uint32(buf[p])
            | np.uint32(buf[p + 1]) << np.uint32(8)
            | np.uint32(buf[p + 2]) << np.uint32(16)
            | np.uint32(buf[p + 3]) << np.uint32(24)
        )
        value = (
            tables[15, value & mask]
            ^ tables[14, (value >> np.uint32(8)) & mask]
            ^ tables[13, (value >> np.uint32(16)) & mask]
            ^ tables[12, value >> np.uint32(24)]
            ^ tables[11, buf[p + 4]]
            ^ tables[10, buf[p + 5]]
            ^ tables[9, buf[p + 6]]
            ^ tables[8, buf[p + 7]]
            ^ tables[7, buf[p + 8]]
            ^ tables[6, buf[p + 9]]
            ^ tables[5, buf[p + 10]]
            ^ tables[4, buf[p + 11]]
            ^ tables[3, buf[p + 12]]
            ^ tables[2, buf[p + 13]]
            ^ tables[1, buf[p + 14]]
            ^ tables[0, buf[p + 15]]
        )
        p += 16
    while p < end:
        value = (value >> np.uint32(8)) ^ tables[0, (value ^ np.uint32(buf[p])) & mask]
        p += 1
    return value ^ np.uint32(0xFFFFFFFF)
