"""Notes the keys of the rows that an epoch of the log touches.

If the source fails over to a server that lacks transactions of the epoch, only these rows are read again (docs/adr/0073). The
note is small, or it says that there were too many keys. No row becomes a Python object.
"""

import base64
from collections.abc import Iterable, Mapping

import pyarrow as pa

from tidemark.state.change_batch import is_truncation
from tidemark.state.log_range import TouchedKeys
from tidemark.state.table import TableId, TableSchema

MAX_KEYS = 10_000
"""The most keys that an epoch's note has, of all tables together."""
MAX_BYTES = 1 << 20
"""The same in bytes of Arrow."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class TouchedKeysNote:
    """The note of one reading of a range. `outputs`: the schemas of the changes that it gets."""

    def __init__(self, outputs: Iterable[TableSchema]) -> None:
        self._outputs: Mapping[TableId, TableSchema] = {schema.table: schema for schema in outputs}
        self._keys: dict[TableId, _Keys | None] = {}
        self._left = MAX_KEYS
        self._bytes_left = MAX_BYTES

    def take(self, table: TableId, rows: pa.RecordBatch) -> None:
        """Takes changes of a table, as the sink gets them."""
        if not rows.num_rows:
            return
        key = self._outputs[table].key
        if table not in self._keys and key:
            self._keys[table] = _Keys()
        keys = self._keys.get(table)
        if keys is None or not key or rows.num_rows > self._left or is_truncation(rows):
            self.give_up(table)
            return
        self._left -= rows.num_rows
        self._bytes_left -= keys.add(rows.select(list(key)))
        if self._bytes_left < 0:
            self.give_up(table)

    def give_up(self, table: TableId) -> None:
        """Says that the keys of a table can't all be noted."""
        self._keys[table] = None

    def touched(self) -> tuple[TouchedKeys, ...]:
        """Returns the note. To be called once, when all changes are taken."""
        return tuple(
            TouchedKeys(table, self._outputs[table].version, None if keys is None else keys.text())
            for table, keys in sorted(self._keys.items())
        )


class _Keys:
    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def add(self, keys: pa.RecordBatch) -> int:
        """Copies the keys, since a batch may share its memory with long values. Returns the number of bytes."""
        before = self._sink.tell()
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._sink, keys.schema, options=_COMPRESSED)
        self._writer.write_batch(keys)
        return int(self._sink.tell() - before)

    def text(self) -> str:
        assert self._writer is not None, "there are keys"
        self._writer.close()
        return base64.b64encode(self._sink.getvalue()).decode()


def keys_of_note(text: str) -> pa.Table:
    """Returns the keys of `TouchedKeys.keys`."""
    with pa.ipc.open_stream(base64.b64decode(text)) as reader:
        return reader.read_all()
