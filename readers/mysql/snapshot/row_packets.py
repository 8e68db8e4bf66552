"""Reads the row packets of a result into one buffer and decodes them in batches."""

import io
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymysql
from pymysql.constants import CR

from tidemark.readers.mysql.connect import Connection
from tidemark.readers.mysql.decoding.arrow import decode_error
from tidemark.readers.mysql.decoding.column_codes import ErrorCode, error_code_of
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.decoding.decode import ColumnBuffers, decode_result_row, decode_results

_HEADER = 4
_FULL_PACKET = 0xFFFFFF
_END_OF_ROWS = 254
_ERROR = 255
_MAX_ROW_BYTES = 1 << 30  # the maximum of max_allowed_packet
_COLUMN_BUFFER_BYTES = 16 << 20
_MAX_BATCH_ROWS = 1 << 16
_MIN_READ_BYTES = 1 << 10


class RowPackets:
    """Reads rows after COM_STMT_EXECUTE and the column definitions. buf[pos:end] is not yet decoded.

    `buffers` point into `buf`, so the bytes in `buf` do not move while a batch is in use.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan, *, buffer_bytes: int) -> None:
        raw: Any = connection  # PyMySQL publishes no types for its protocol level
        self.socket: socket.socket = raw._sock
        self.plan = plan
        self.buffer_bytes = max(buffer_bytes, io.DEFAULT_BUFFER_SIZE)
        self.buf: Any = np.empty(self.buffer_bytes, np.uint8)
        self.pos = 0
        self.end = 0
        row_bytes = 17 * plan.column_count
        self.buffers = ColumnBuffers.empty(
            plan.column_count, max(1, min(_MAX_BATCH_ROWS, _COLUMN_BUFFER_BYTES // row_bytes))
        )
        self.row = 0
        self.state = np.zeros(4, np.int64)
        self.state[3] = raw._next_seq_id
        self.last = b""
        """The packet after the last row."""
        self._take_read_ahead(raw._rfile)

    def batches(self) -> Iterator[int]:
        """Yields row counts. The rows are in `buffers` until the next step."""
        while True:
            answer = self._decode()
            stopped_by = int(self.state[1])
            if answer < 0:
                if error_code_of(answer)[0] is not ErrorCode.WIDE_PACKET:
                    raise self._damaged(answer)
                yield from self._flush()
                self._decode_wide_row()
                yield from self._flush()
                self._make_room()
            elif stopped_by == -1:
                if self.end + (_MIN_READ_BYTES if self.pos else 0) >= len(self.buf):
                    yield from self._flush()
                    self._make_room()
                self._receive()
            elif stopped_by == 0:
                yield from self._flush()
            elif stopped_by in {_END_OF_ROWS, _ERROR}:
                yield from self._flush()
                size = self._packet_size(self.pos)
                self.last = self.buf[self.pos + _HEADER : self.pos + _HEADER + size].tobytes()
                if self.pos + _HEADER + size != self.end:
                    raise self._damaged(-int(ErrorCode.DAMAGED))
                return
            else:
                raise self._damaged(-int(ErrorCode.DAMAGED))

    def _decode(self) -> int:
        buffers, plan = self.buffers, self.plan
        answer = decode_results(
            self.buf,
            self.pos,
            self.end,
            plan.code,
            plan.meta,
            buffers.lo,
            buffers.hi,
            buffers.valid,
            self.row,
            self.state,
        )
        self.pos, self.row = int(self.state[0]), int(self.state[2])
        return int(answer)

    def _flush(self) -> Iterator[int]:
        if self.row:
            yield self.row
            self.row = 0

    def _packet_size(self, at: int) -> int:
        return int.from_bytes(self.buf[at : at + 3].tobytes(), "little")

    def _make_room(self) -> None:
        """Moves the remaining bytes to the start of a buffer of the usual size, or of the next row's size if that is larger."""
        left = self.end - self.pos
        row_bytes = _HEADER + self._packet_size(self.pos) if left >= _HEADER else 0
        self._move(max(self.buffer_bytes, row_bytes, left + _HEADER if left > self.buffer_bytes else 0))

    def _move(self, size: int) -> None:
        left = self.end - self.pos
        target = self.buf if size == len(self.buf) else np.empty(size, np.uint8)
        target[:left] = self.buf[self.pos : self.end]
        self.buf, self.pos, self.end = target, 0, left

    def _receive(self) -> None:
        """Blocks until bytes arrive, and receives those that are there."""
        try:
            received = self.socket.recv_into(memoryview(self.buf)[self.end :])
        except OSError as exc:
            raise _lost(f" ({exc})") from exc
        if not received:
            raise _lost("")
        self.end += received

    def _take_read_ahead(self, file: io.BufferedReader) -> None:
        """Takes the bytes that PyMySQL's buffered file has read beyond the column definitions. The rest is on the socket."""
        try:
            ahead = file.read1(io.DEFAULT_BUFFER_SIZE)
        except OSError as exc:
            raise _lost(f" ({exc})") from exc
        self.buf[: len(ahead)] = np.frombuffer(ahead, np.uint8)
        self.end = len(ahead)

    def _decode_wide_row(self) -> None:
        """Decodes a row of 16 MiB or more: joins its packets in the buffer, without their headers."""
        self._move(len(self.buf))
        source, joined = 0, _HEADER
        while True:
            while self.end < source + _HEADER:
                self._receive_for_wide(source + _HEADER)
            size = self._packet_size(source)
            if int(self.buf[source + 3]) != self.state[3] or joined + size > _MAX_ROW_BYTES:
                raise self._damaged(-int(ErrorCode.DAMAGED))
            self.state[3] = (self.state[3] + 1) & 255
            source += _HEADER
            while self.end < source + size:
                self._receive_for_wide(source + size)
            if source != joined:
                view = memoryview(self.buf)
                view[joined : joined + size] = view[source : source + size]  # memmove: they overlap
            joined += size
            source += size
            if size < _FULL_PACKET:
                break
        buffers, plan = self.buffers, self.plan
        answer = decode_result_row(
            self.buf,
            _HEADER,
            joined,
            plan.code,
            plan.meta,
            buffers.lo,
            buffers.hi,
            buffers.valid,
            0,
        )
        if answer < 0:
            raise self._damaged(int(answer))
        self.row, self.pos = 1, source

    def _receive_for_wide(self, needed: int) -> None:
        if needed > len(self.buf):
            self._move(max(needed, min(2 * len(self.buf), _MAX_ROW_BYTES + (1 << 20))))
        self._receive()

    def _damaged(self, answer: int) -> Exception:
        return decode_error(self.plan, answer, f"SELECT of {self.plan.table}")


def _lost(reason: str) -> pymysql.err.OperationalError:
    return pymysql.err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to the server during a SELECT{reason}")
