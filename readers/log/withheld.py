"""The changes of tables whose rows are still being read and must all be of one moment (docs/adr/0062).

They wait in the checkpoint: one file for each table and epoch, which the first attempt at the epoch creates. Every attempt has
the same changes. A file has a header like that of finished splits, then an Arrow IPC stream of the changes as they were read
from the log.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa

from tidemark.readers.snapshot.gathered_rows import mapped, needing_room, scratch_file
from tidemark.state.checkpoint.layout import withheld_file, withheld_files
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.errors import WithheldLostError
from tidemark.state.failpoints import failpoint
from tidemark.state.plan import Backfill
from tidemark.state.remedies import RESTORE_CHECKPOINT
from tidemark.state.table import TableId

_MAGIC = b"TMCHANGE"
_VERSION = 1
_HEADER = struct.Struct("<8sII")
"""Magic, format version, CRC-32 of the stream."""


class WithheldChanges:
    """Gathers an epoch's withheld changes in temporary files, whatever their number. Call `add` for each batch, in the order of
    the log, then `keep` once."""

    def __init__(self, store: CheckpointStore, epoch: int) -> None:
        self._store, self._epoch = store, epoch
        self._files: dict[TableId, tuple[IO[bytes], Any]] = {}

    def add(self, table: TableId, rows: pa.RecordBatch) -> None:
        """Raises SourceNotUsableError if the temporary folder is full."""
        if not rows.num_rows:
            return
        with needing_room():
            if table not in self._files:
                file = scratch_file()
                file.write(bytes(_HEADER.size))
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._files[table] = file, pa.ipc.new_stream(file, rows.schema, options=options)
            self._files[table][1].write_batch(rows)

    def keep(self) -> tuple[TableId, ...]:
        """Makes the changes durable. Returns their tables, sorted."""
        for table in sorted(self._files):
            file, writer = self._files[table]
            with needing_room():
                writer.close()
                data = mapped(file)
            _HEADER.pack_into(data, 0, _MAGIC, _VERSION, zlib.crc32(memoryview(data)[_HEADER.size :]))
            failpoint("withheld.before")
            self._store.create(withheld_file(self._epoch, table), data)
            failpoint("withheld.after")
        return tuple(sorted(self._files))


def read_withheld(store: CheckpointStore, backfill: Backfill, epoch: int) -> Iterator[pa.RecordBatch]:
    """Yields a table's withheld changes of the epochs before `epoch`, in the order of the log. Raises WithheldLostError if a
    file is lost or damaged."""
    table, withheld = backfill.table, backfill.withheld
    names = withheld_files(store, table, after_epoch=withheld.after_epoch, before_epoch=epoch)
    if len(names) != withheld.files:
        raise _lost(table, f"{withheld.files} epochs have withheld some, but there are {len(names)} files")
    for name in names:
        data = store.read(name)
        if data is None or data.size < _HEADER.size:
            raise _lost(table, f"{name} is cut off")
        magic, version, checksum = _HEADER.unpack(data.slice(0, _HEADER.size))
        body = data.slice(_HEADER.size)
        if (magic, version) != (_MAGIC, _VERSION) or zlib.crc32(body) != checksum:
            raise _lost(table, f"{name} does not have the checksum in its header")
        with pa.ipc.open_stream(body) as reader:
            yield from reader


def _lost(table: TableId, reason: str) -> WithheldLostError:
    return WithheldLostError(
        f"The checkpoint has lost changes of {table} that waited for its rows: {reason}.", RESTORE_CHECKPOINT, table
    )
