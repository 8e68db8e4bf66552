"""The rows of one split while it is read: in memory, or in a temporary file if they are too many.

A split has a bounded number of rows, but rows may be wide, and a table without a key can be one split. The file is memory
mapped, so the system can drop its pages. It has no name, so it disappears with its last user.
"""

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from tidemark.state.errors import NoRoomError

SPILL_BYTES = 256 << 20


class GatheredRows:
    """Call `add` for each batch of `schema`, then `table` once. `in_memory`: never writes a file, because the values must not
    be stored unmasked."""

    def __init__(self, schema: pa.Schema, *, in_memory: bool = False) -> None:
        self._schema = schema
        self._in_memory = in_memory
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds a batch. Raises NoRoomError if the temporary folder is full."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= SPILL_BYTES and not self._in_memory:
            self._spill()

    def table(self) -> pa.Table:
        if self._file is None:
            return pa.Table.from_batches(self._batches, self._schema)
        self._spill()
        with needing_room():
            self._writer.close()
            return pa.ipc.open_stream(mapped(self._file)).read_all()

    def _spill(self) -> None:
        with needing_room():
            if self._file is None:
                self._file = scratch_file()
                self._writer = pa.ipc.new_stream(self._file, self._schema)
            try:
                for batch in self._batches:
                    self._writer.write_batch(batch)
            except OSError:
                self._file.close()
                raise
        self._batches, self._bytes = [], 0


def scratch_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tidemark-split-")


def mapped(file: IO[bytes]) -> pa.Buffer:
    """Maps the content of a scratch file, which must not be empty, and closes the file. The buffer is writable."""
    with file:
        file.flush()
        return pa.py_buffer(mmap.mmap(file.fileno(), 0))


@contextmanager
def needing_room() -> Iterator[None]:
    """Turns an OSError of a scratch file into NoRoomError."""
    try:
        yield
    except OSError as exc:
        raise NoRoomError(
            f"The rows of a split don't fit into {tempfile.gettempdir()}: {exc}.",
            "Free space there, or let TMPDIR name another folder on the executors. Then run the job again.",
        ) from exc
