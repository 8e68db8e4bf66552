"""The bytes of a published split: its rows, its report and a checksum in one file.

The file is Arrow IPC for sinks that take rows, Parquet for a sink that takes the file itself. The metadata holds the report
and a CRC-32 of the file. The checksum is computed with zeros in its own position. Arrow stores the metadata twice, with both
copies of its schema; Parquet stores it in the footer.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.readers.snapshot.gathered_rows import mapped, needing_room, scratch_file
from tidemark.state.change_batch import CHANGE_TYPE_NAMES, batch_schema
from tidemark.state.checkpoint.codec import PUBLISHED_SPLIT
from tidemark.state.errors import CheckpointError
from tidemark.state.parquet_rows import ParquetRows
from tidemark.state.remedies import RESTORE_CHECKPOINT
from tidemark.state.split import Report
from tidemark.state.table import TableSchema

PublishedFormat: TypeAlias = Literal["arrow", "parquet"]

ROW_GROUP_BYTES = 32 << 20
"""The size of a row group as Arrow columns. In Parquet it takes a fraction of that."""

_REPORT_KEY = "tidemark.report"
_CHECKSUM_KEY = "tidemark.checksum"
_NO_CHECKSUM = "tidemark-crc32=00000000"
_CHECKSUM = re.compile(rb"tidemark-crc32=([0-9a-f]{8})")
_ARROW_END = struct.Struct("<i6s")
"""The footer's length and a magic word; https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format"""
_START_BYTES = 8
"""Readers of footers want room for the magic word that a file begins with."""
_PARQUET_MAGIC = b"PAR1"
_PARQUET_END = struct.Struct("<I4s")
"""The same in Parquet; https://parquet.apache.org/docs/file-format/"""


def write_file(
    form: PublishedFormat, report: Report, batches: Iterable[pa.RecordBatch], schema: TableSchema, *, in_memory: bool
) -> pa.Buffer:
    """Returns the file's bytes. `batches` have `batch_schema(schema)`. Without `in_memory` they are in a temporary file."""
    metadata = {_REPORT_KEY: PUBLISHED_SPLIT.encode(report).decode(), _CHECKSUM_KEY: _NO_CHECKSUM}
    if in_memory:
        memory = pa.BufferOutputStream()
        _write(memory, form, metadata, batches, schema)
        data = memory.getvalue()
    else:
        with needing_room():
            file = scratch_file()
            _write(file, form, metadata, batches, schema)
            data = mapped(file)
    view = memoryview(data).cast("B")
    checksum = b"%08x" % zlib.crc32(view)
    for start, end in _checksum_spans(view):
        view[start:end] = checksum
    return data


def _write(
    file: Any,
    form: PublishedFormat,
    metadata: Mapping[str, str],
    batches: Iterable[pa.RecordBatch],
    schema: TableSchema,
) -> None:
    if form == "parquet":
        rows = ParquetRows(file, schema)
        for group in _row_groups(batches):
            rows.write(group)
        rows.close(metadata)
    else:
        with pa.ipc.new_file(file, batch_schema(schema).with_metadata(metadata)) as writer:
            for batch in batches:
                writer.write_batch(batch)


def read_report(data: pa.Buffer, name: str) -> Report:
    """Returns the report. `data`: the file, or its end with the whole footer. `name` is for the message. Raises
    CheckpointError."""
    if bytes(memoryview(data)[-len(_PARQUET_MAGIC) :]) == _PARQUET_MAGIC:
        return _parquet_report(data, name)[0]
    try:
        metadata = pa.ipc.open_file(data).schema.metadata or {}
    except pa.ArrowException as exc:
        raise damaged(name, "it is not an Arrow IPC file") from exc
    return PUBLISHED_SPLIT.decode(metadata.get(_REPORT_KEY.encode(), b""), name)


def footer_size(end: pa.Buffer) -> int:
    """Returns how many bytes of a file's end `read_report` needs, as the end says."""
    view = memoryview(end).cast("B")
    form = _PARQUET_END if bytes(view[-len(_PARQUET_MAGIC) :]) == _PARQUET_MAGIC else _ARROW_END
    if len(view) < form.size:
        return len(view)
    length, _ = form.unpack_from(view, len(view) - form.size)
    return int(length) + form.size + _START_BYTES


def check_file(data: pa.Buffer, name: str) -> tuple[Report, tuple[pa.RecordBatch, ...]]:
    """Checks the file. Returns the report and the rows of an Arrow file; a Parquet file's rows are not decoded. Raises
    CheckpointError."""
    _check(data, name)
    batches = batches_of(data)
    if format_of(data) == "parquet":
        report, row_count = _parquet_report(data, name)
    else:
        report = read_report(data, name)
        row_count = sum(batch.num_rows for batch in batches)
    if row_count != report.row_count:
        raise damaged(name, "it has another number of rows than its report")
    return report, batches


def batches_of(data: pa.Buffer) -> tuple[pa.RecordBatch, ...]:
    """Returns the rows of an Arrow file without copying them; () for a Parquet file."""
    if format_of(data) == "parquet":
        return ()
    reader = pa.ipc.open_file(data)
    return tuple(reader.get_batch(i).replace_schema_metadata(None) for i in range(reader.num_record_batches))


def rows_of_parquet(data: pa.Buffer, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a Parquet file as batches of `batch_schema(schema)`."""
    wanted = batch_schema(schema)
    for batch in pq.ParquetFile(pa.BufferReader(data)).iter_batches():
        columns = {name: batch.column(name) for name in wanted.names}
        columns["_change_type"] = pc.index_in(columns["_change_type"], pa.array(CHANGE_TYPE_NAMES))
        columns["_txn_id"] = columns["_txn_id"].dictionary_encode()
        arrays = [columns[field.name].cast(field.type) for field in wanted]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def format_of(data: pa.Buffer) -> PublishedFormat:
    return "parquet" if bytes(memoryview(data)[:4]) == _PARQUET_MAGIC else "arrow"


def damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint file {name} is damaged: {reason}.",
        RESTORE_CHECKPOINT,
    )


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(member.nbytes for member in group) >= ROW_GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _parquet_report(data: pa.Buffer, name: str) -> tuple[Report, int]:
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as exc:
        raise damaged(name, "it is not a Parquet file") from exc
    metadata = footer.metadata or {}
    return PUBLISHED_SPLIT.decode(metadata.get(_REPORT_KEY.encode(), b""), name), footer.num_rows


def _check(data: pa.Buffer, name: str) -> None:
    view = memoryview(data).cast("B")
    spans = _checksum_spans(view)
    if len(spans) != (1 if format_of(data) == "parquet" else 2):
        raise damaged(name, "it is truncated, or not such a file")
    checksum, at = 0, 0
    for start, end in spans:
        checksum = zlib.crc32(b"00000000", zlib.crc32(view[at:start], checksum))
        at = end
    checksum = zlib.crc32(view[at:], checksum)
    if any(bytes(view[start:end]) != b"%08x" % checksum for start, end in spans):
        raise damaged(name, "its checksum is wrong")


def _checksum_spans(view: memoryview) -> list[tuple[int, int]]:
    """Returns where the checksum is stored. Only metadata is searched, at the start and the end of the file: rows could
    contain the same text.

    Parquet's footer also holds values, the minimum and maximum of each column. The metadata comes after them.
    """
    parquet = bytes(view[:4]) == _PARQUET_MAGIC
    end = _PARQUET_END if parquet else _ARROW_END
    if len(view) < end.size:
        return []
    footer_end = len(view) - end.size
    length, _ = end.unpack_from(view, footer_end)
    footer_start = footer_end - length
    if not 0 < footer_start <= footer_end:
        return []
    if parquet:
        return [match.span(1) for match in _CHECKSUM.finditer(view, footer_start, footer_end)][-1:]
    found = (_CHECKSUM.search(view, 0, footer_start), _CHECKSUM.search(view, footer_start, footer_end))
    return [match.span(1) for match in found if match is not None]
