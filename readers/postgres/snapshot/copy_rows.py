"""Reads the result of a SELECT in COPY's binary form into an Arrow table.

psycopg2 writes the rows to a file, one call per row. They go through a BufferedWriter, so that Python is called once per
CHUNK_BYTES, and are decoded as they arrive.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.pgoutput.stream import CHUNK_BYTES, HEADER_BYTES, SIGNATURE
from tidemark.readers.postgres.snapshot.copy_values import CopiedColumn
from tidemark.readers.postgres.snapshot.copy_walker import AT, DAMAGED, END, FULL, MORE, ROW, STATE_SIZE, walk_rows
from tidemark.readers.snapshot.gathered_rows import GatheredRows
from tidemark.state.errors import DamagedLogError
from tidemark.state.table import TableSchema

BUFFER_BYTES = 8 << 20
_COLUMN_BUFFER_BYTES = 8 << 20
_MAX_BATCH_ROWS = 1 << 16
_BYTES_OF_A_VALUE = 17


def copy_rows(
    connection: Connection,
    query: str,
    schema: TableSchema,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    in_memory: bool = False,
    bad_values: BadValueRule = STOP,
) -> pa.Table:
    """Returns the rows of `query`, which selects the captured columns by `types.select_expression`. `in_memory`: see
    GatheredRows. `bad_values`: what becomes of values that their Arrow type can't hold.

    Raises psycopg2's errors; also DamagedLogError and SourceNotUsableError, after which the connection can't be used.
    """
    gathered = GatheredRows(schema.arrow_schema(), in_memory=in_memory)
    rows = CopiedRows(schema, buffer_bytes, gathered.add, bad_values=bad_values)
    _copy(connection, query, rows)
    return gathered.table()


def pass_rows_on(
    connection: Connection, query: str, schema: TableSchema, take: Callable[[pa.RecordBatch], None]
) -> None:
    """Gives the same rows to `take` as they arrive. Raises what `copy_rows` and `take` raise."""
    _copy(connection, query, CopiedRows(schema, BUFFER_BYTES, take))


def _copy(connection: Connection, query: str, rows: "CopiedRows") -> None:
    with connection.cursor() as cursor, io.BufferedWriter(rows, CHUNK_BYTES) as file:
        try:
            cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT binary)", file)
            file.flush()
        except BaseException:
            rows.abandoned = True  # the writer flushes its buffer when it is closed
            raise
    rows.finish()


class CopiedRows(io.RawIOBase):
    """The file that COPY writes to. Rows are given to `take`. The bytes that are not yet decoded are buf[state[AT]:end]."""

    def __init__(
        self,
        schema: TableSchema,
        buffer_bytes: int,
        take: Callable[[pa.RecordBatch], None],
        *,
        bad_values: BadValueRule = STOP,
    ) -> None:
        columns = len(schema.captured)
        capacity = max(1, min(_MAX_BATCH_ROWS, _COLUMN_BUFFER_BYTES // (_BYTES_OF_A_VALUE * columns)))
        self.abandoned = False
        self._schema, self._bad_values = schema, bad_values
        self._buf = np.empty(max(buffer_bytes, HEADER_BYTES), np.uint8)
        self._end = 0
        self._in_header = True
        self._reason = MORE
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._start = np.empty((columns, capacity), np.int64)
        self._size = np.empty((columns, capacity), np.int64)
        self._valid = np.empty((columns, capacity), np.uint8)
        self._take = take

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

    def finish(self) -> None:
        """Gives the last rows. Call it after the last write. Raises DamagedLogError if the end is missing."""
        self._decode()
        if self._reason != END or self._state[AT] != self._end:
            raise self._damaged()

    def _decode(self) -> None:
        """Decodes all complete rows."""
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
            self._flush()
            if self._reason != FULL:
                return

    def _flush(self) -> None:
        count = int(self._state[ROW])
        if not count:
            return
        schema, buf, rule = self._schema, self._buf, self._bad_values
        buffers = zip(schema.captured, self._start, self._size, self._valid, strict=True)
        arrays = [
            CopiedColumn(schema, column, buf, start[:count], size[:count], valid[:count], rule).array()
            for column, start, size, valid in buffers
        ]
        self._take(pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema()))
        self._state[ROW] = 0

    def _make_room(self, wanted: int) -> None:
        """Drops decoded bytes from the buffer. Enlarges it for a row that does not fit."""
        at = int(self._state[AT])
        rest = self._buf[at : self._end]
        buf = self._buf
        if len(rest) + wanted > len(buf):
            buf = np.empty(2 * (len(rest) + wanted), np.uint8)
        buf[: len(rest)] = rest.copy() if buf is self._buf else rest
        self._buf, self._end, self._state[AT] = buf, len(rest), 0

    def _damaged(self) -> DamagedLogError:
        return DamagedLogError(
            f"The rows of {self._schema.table} do not have COPY's binary form.",
            "Check proxies and poolers between the job and the source.",
        )
