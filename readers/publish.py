"""Publishing: a split's rows and its report become durable together, in one file that exactly one attempt creates.

`published/e{epoch}-s{split}.arrow` is an Arrow IPC file of the split's change batches. Its schema carries the report
and a CRC-32 of the file, taken with zeros in its own place. Whoever comes second finds the file there and emits it
instead of what it has read itself: a SELECT can't be repeated, a published split can.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from readers.split_read import SplitRead
from state.change_batch import ChangeType, batch_schema
from state.codec import Codec
from state.errors import CheckpointError
from state.failpoints import failpoint
from state.split import Report
from state.store import CheckpointStore
from state.table import TableSchema

MAX_BATCH_BYTES = 8 << 20

_REPORT: Codec[Report] = Codec("published_split", Report)
_REPORT_KEY = b"tidemark.report"
_CHECKSUM_KEY = b"tidemark.checksum"
_NO_CHECKSUM = b"tidemark-crc32=00000000"
_CHECKSUM = re.compile(rb"tidemark-crc32=([0-9a-f]{8})")
"""Stands twice: in the schema at the beginning and in the footer, before the first and after the last row."""

_FOOTER_END = struct.Struct("<i6s")
"""Its length and a magic word; https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format"""


@dataclass(frozen=True, slots=True)
class PublishedSplit:
    """What everybody emits for this split. `batches` have `batch_schema` of the table, and at most about
    MAX_BATCH_BYTES each; () for a split without rows."""

    report: Report
    batches: tuple[pa.RecordBatch, ...]


def published_name(epoch: int, split_id: int) -> str:
    return f"published/e{epoch}-s{split_id}.arrow"


def publish(store: CheckpointStore, epoch: int, read: SplitRead, schema: TableSchema) -> PublishedSplit:
    """Makes the rows (of the table's `schema`, exact at the report's high) the split's content in this epoch, unless it
    has one; gives the content that counts."""
    report = read.report
    if read.rows.num_rows != report.row_count:
        raise ValueError(f"{read.rows.num_rows} rows, but {report.row_count} in the report")
    batches = tuple(_change_batches(read, batch_schema(schema)))
    name = published_name(epoch, report.split_id)
    data = _write(report, batches, batch_schema(schema))
    failpoint("publish.before")
    created = store.create(name, data)
    failpoint("publish.after")
    if created:
        return PublishedSplit(report, batches)
    winner = read_published(store, epoch, report.split_id)
    if winner is None:
        raise CheckpointError(
            f"{name} was published by another attempt and removed since: its epoch is committed.",
            "Nothing is lost; if the job fails with this, start it again.",
        )
    return winner


def read_published(store: CheckpointStore, epoch: int, split_id: int) -> PublishedSplit | None:
    """None if nobody has published it yet. Raises CheckpointError for a damaged file or one of an unknown version."""
    name = published_name(epoch, split_id)
    data = store.read(name)
    if data is None:
        return None
    _check(data, name)
    try:
        reader = pa.ipc.open_file(data)
        metadata = reader.schema.metadata or {}
        batches = tuple(reader.get_batch(i).replace_schema_metadata(None) for i in range(reader.num_record_batches))
    except pa.ArrowException as exc:
        raise _damaged(name, "it is no Arrow IPC file") from exc
    report = _REPORT.decode(metadata.get(_REPORT_KEY, b""), name)
    if report.split_id != split_id or sum(batch.num_rows for batch in batches) != report.row_count:
        raise _damaged(name, "its rows are not what its report says")
    return PublishedSplit(report, batches)


def is_published(store: CheckpointStore, epoch: int, split_id: int) -> bool:
    return store.read(published_name(epoch, split_id)) is not None


def read_report(store: CheckpointStore, epoch: int, split_id: int) -> Report:
    """The report alone: of the file only its end is read. Raises CheckpointError where the split is not published."""
    name = published_name(epoch, split_id)
    data = store.read(name)
    if data is None:
        raise CheckpointError(
            f"The checkpoint has lost its file {name}, whose epoch is committed.",
            "Restore the checkpoint folder from a copy, or start over with an empty checkpoint and an empty target.",
        )
    try:
        metadata = pa.ipc.open_file(data).schema.metadata or {}
    except pa.ArrowException as exc:
        raise _damaged(name, "it is no Arrow IPC file") from exc
    return _REPORT.decode(metadata.get(_REPORT_KEY, b""), name)


def forget_published(store: CheckpointStore, epoch: int) -> None:
    """Removes what was published for an epoch, once it is committed and its reports are kept elsewhere."""
    for name in store.list("published"):
        if name.startswith(f"published/e{epoch}-"):
            store.delete(name)


def _change_batches(read: SplitRead, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = read.rows.combine_chunks() if read.rows.nbytes <= MAX_BATCH_BYTES else read.rows
    no_transaction = pa.array([], pa.string())
    version = read.report.high.version if read.commit_version is None else read.commit_version
    first = 0
    for batch in rows.to_batches():
        for piece in _cut(batch):
            count = piece.num_rows
            meta = [
                pa.array(np.full(count, ChangeType.INSERT, np.int8)),
                pa.array(np.full(count, version, np.int64)),
                pa.array(np.full(count, read.taken_at_us, np.int64)).cast(pa.timestamp("us", tz="UTC")),
                pa.array(np.arange(first, first + count, dtype=np.int32)),
                pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), no_transaction),
                pa.array(np.ones(count, np.bool_)),
            ]
            first += count
            columns = [*piece.columns, *meta]
            unchanged = [pa.nulls(count, field.type) for field in list(schema)[len(columns) :]]
            yield pa.RecordBatch.from_arrays([*columns, *unchanged], schema=schema)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """In pieces of at most MAX_BATCH_BYTES, and of one row at least; none for an empty batch."""
    if batch.num_rows > 1 and batch.nbytes > MAX_BATCH_BYTES:
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half))
        yield from _cut(batch.slice(half))
    elif batch.num_rows:
        yield batch


def _write(report: Report, batches: tuple[pa.RecordBatch, ...], schema: pa.Schema) -> pa.Buffer:
    marks = {_REPORT_KEY: _REPORT.encode(report), _CHECKSUM_KEY: _NO_CHECKSUM}
    file = pa.BufferOutputStream()
    with pa.ipc.new_file(file, schema.with_metadata(marks)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data = file.getvalue()
    view = memoryview(data).cast("B")
    checksum = b"%08x" % zlib.crc32(view)
    for start, end in _checksum_places(view):
        view[start:end] = checksum
    return data


def _check(data: pa.Buffer, name: str) -> None:
    view = memoryview(data).cast("B")
    places = _checksum_places(view)
    if len(places) != 2:
        raise _damaged(name, "it is cut off, or not such a file")
    checksum, at = 0, 0
    for start, end in places:
        checksum = zlib.crc32(b"00000000", zlib.crc32(view[at:start], checksum))
        at = end
    checksum = zlib.crc32(view[at:], checksum)
    if any(bytes(view[start:end]) != b"%08x" % checksum for start, end in places):
        raise _damaged(name, "its content does not have the checksum that it was written with")


def _checksum_places(view: memoryview) -> list[tuple[int, int]]:
    """In the schema and in the footer; what looks like one between them stands in the rows."""
    if len(view) < _FOOTER_END.size:
        return []
    footer_end = len(view) - _FOOTER_END.size
    length, _ = _FOOTER_END.unpack_from(view, footer_end)
    footer_start = footer_end - length
    if not 0 < footer_start <= footer_end:
        return []
    found = (_CHECKSUM.search(view, 0, footer_start), _CHECKSUM.search(view, footer_start, footer_end))
    return [match.span(1) for match in found if match is not None]


def _damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint file {name} is damaged: {reason}.",
        "Restore the checkpoint folder from a copy, or start over with an empty checkpoint and an empty target.",
    )
