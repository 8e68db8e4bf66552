"""SELECT results as COPY's binary form, from the connection into an Arrow table.

psycopg2 hands the rows to a file, one call a row: they go through a BufferedWriter, so that Python is called once per
CHUNK_BYTES, and are decoded as they come.
"""

import io
from typing import Any

import numpy as np
import pyarrow as pa

from readers.gathered_rows import GatheredRows
from readers.postgres.connect import Connection
from readers.postgres.copy_values import CopiedColumn
from readers.postgres.copy_walker import AT, DAMAGED, END, FULL, MORE, ROW, STATE_SIZE, walk_rows
from readers.postgres.log_stream import CHUNK_BYTES, HEADER_BYTES, SIGNATURE
from state.errors import DamagedLogError
from state.table import TableSchema

BUFFER_BYTES = 8 << 20
_PLANE_BYTES = 8 << 20
_GREATEST_BATCH_ROWS = 1 << 16
_BYTES_OF_A_VALUE = 17


def copy_rows(
    connection: Connection,
    query: str,
    schema: TableSchema,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    in_memory: bool = False,
) -> pa.Table:
    """The rows of `query`, whose columns are the captured ones by `types.select_expression`; `in_memory`: see GatheredRows.

    Raises psycopg2's errors; DamagedLogError and SourceNotUsableError, after which the connection is of no use.
    """
    rows = CopiedRows(schema, buffer_bytes, in_memory=in_memory)
    with connection.cursor() as cursor, io.BufferedWriter(rows, CHUNK_BYTES) as file:
        try:
            cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT binary)", file)
            file.flush()
        except BaseException:
            rows.abandoned = True  # what the writer still holds is flushed when it is closed
            raise
    return rows.finished()


class CopiedRows(io.RawIOBase):
    """The file that COPY writes to. What is not yet decoded is buf[state[AT]:end]."""

    def __init__(self, schema: TableSchema, buffer_bytes: int, *, in_memory: bool = False) -> None:
        columns = len(schema.captured)
        capacity = max(1, min(_GREATEST_BATCH_ROWS, _PLANE_BYTES // (_BYTES_OF_A_VALUE * columns)))
        self.abandoned = False
        self._schema = schema
        self._buf = np.empty(max(buffer_bytes, HEADER_BYTES), np.uint8)
        self._end = 0
        self._in_header = True
        self._reason = MORE
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._start = np.empty((columns, capacity), np.int64)
        self._size = np.empty((columns, capacity), np.int64)
        self._valid = np.empty((columns, capacity), np.uint8)
        self._gathered = GatheredRows(schema.arrow_schema(), in_memory=in_memory)

    def writable(self) -> bool:
        return True

    def write(self, chunk: Any, /) -> int:
        if self.abandoned:
            return len(chunk)
        received = np.frombuffer(chunk, np.uint8)
        if self._end + len(received) > len(self._buf):
            self._decode()
            self._make_room(len(received))
        self._buf[self._end : self._end + len(received)] = received
        self._end += len(received)
        return len(chunk)

    def finished(self) -> pa.Table:
        """Once all has been written. Raises DamagedLogError where the end is missing."""
        self._decode()
        if self._reason != END or self._state[AT] != self._end:
            raise self._damaged()
        return self._gathered.table()

    def _decode(self) -> None:
        """All whole rows that are there."""
        if self._in_header:
            if self._end < HEADER_BYTES:
                return
            if self._buf[:HEADER_BYTES].tobytes() != SIGNATURE:
                raise self._damaged()
            self._in_header = False
            self._state[AT] = HEADER_BYTES
        while True:
            self._reason = walk_rows(self._buf, self._end, self._state, self._start, self._size, self._valid)
            if self._reason == DAMAGED:
                raise self._damaged()
            self._hand_out()
            if self._reason != FULL:
                return

    def _hand_out(self) -> None:
        count = int(self._state[ROW])
        if not count:
            return
        planes = zip(self._schema.captured, self._start, self._size, self._valid, strict=True)
        arrays = [
            CopiedColumn(self._schema.table, column, self._buf, start[:count], size[:count], valid[:count]).array()
            for column, start, size, valid in planes
        ]
        self._gathered.add(pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow_schema()))
        self._state[ROW] = 0

    def _make_room(self, wanted: int) -> None:
        """For a row larger than the buffer it grows."""
        at = int(self._state[AT])
        rest = self._buf[at : self._end]
        buf = self._buf
        if len(rest) + wanted > len(buf):
            buf = np.empty(2 * (len(rest) + wanted), np.uint8)
        buf[: len(rest)] = rest.copy() if buf is self._buf else rest
        self._buf, self._end, self._state[AT] = buf, len(rest), 0

    def _damaged(self) -> DamagedLogError:
        return DamagedLogError(
            f"The rows of {self._schema.table} do not come as COPY's binary form prescribes.",
            "Check what stands between job and source.",
        )
