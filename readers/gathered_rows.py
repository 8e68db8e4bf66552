"""The rows of one split while it is read: in memory, or in a temporary file where they are too many.

A split has a bounded number of rows, but they may be wide, and a table without a key is one split. The file is mapped, so
that its pages are the system's to drop; it has no name, so that it ends with its last user.
"""

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from state.errors import SourceNotUsableError

SPILL_BYTES = 256 << 20


class GatheredRows:
    """`add` batches of `schema`, then ask for the `table`, once. `in_memory`: however many they are, for their values must
    not be written."""

    def __init__(self, schema: pa.Schema, *, in_memory: bool = False) -> None:
        self._schema = schema
        self._in_memory = in_memory
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Raises SourceNotUsableError where the temporary folder has no room."""
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
            for batch in self._batches:
                self._writer.write_batch(batch)
        self._batches, self._bytes = [], 0


def scratch_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tidemark-split-")


def mapped(file: IO[bytes]) -> pa.Buffer:
    """The content of a scratch file that is not empty; the file is closed. What is written into the buffer stands in it."""
    with file:
        file.flush()
        return pa.py_buffer(mmap.mmap(file.fileno(), 0))


@contextmanager
def needing_room() -> Iterator[None]:
    """Around what is done with scratch files."""
    try:
        yield
    except OSError as exc:
        raise SourceNotUsableError(
            f"The rows of a split don't fit into {tempfile.gettempdir()}: {exc}.",
            "Make room there, or let TMPDIR name another folder on the executors. Smaller splits (snapshot.split_rows) need "
            "less; a table without a key is one split, unless source.keys names one.",
        ) from exc
