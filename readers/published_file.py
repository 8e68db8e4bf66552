"""The bytes of a published split: its rows, its report and a checksum in one file.

The file is Arrow IPC for sinks that take rows, Parquet for one that takes the file as it is. The report and a CRC-32 of the
file, taken with zeros in its own place, stand in the metadata: Arrow's schema, which is there twice, or Parquet's footer.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from readers.gathered_rows import mapped, needing_room, scratch_file
from state.change_batch import batch_schema
from state.codec import Codec
from state.errors import CheckpointError
from state.parquet_rows import ParquetRows
from state.split import Report
from state.table import TableSchema

PublishedFormat: TypeAlias = Literal["arrow", "parquet"]

ROW_GROUP_BYTES = 32 << 20
"""Of Arrow's columns; Parquet's are a fraction of it."""

_REPORT: Codec[Report] = Codec("published_split", Report)
_REPORT_KEY = "tidemark.report"
_CHECKSUM_KEY = "tidemark.checksum"
_NO_CHECKSUM = "tidemark-crc32=00000000"
_CHECKSUM = re.compile(rb"tidemark-crc32=([0-9a-f]{8})")
_ARROW_END = struct.Struct("<i6s")
"""The footer's length and a magic word; https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format"""
_PARQUET_MAGIC = b"PAR1"
_PARQUET_END = struct.Struct("<I4s")
"""Likewise; https://parquet.apache.org/docs/file-format/"""


def write_file(
    form: PublishedFormat, report: Report, batches: Iterable[pa.RecordBatch], schema: TableSchema, *, in_memory: bool
) -> pa.Buffer:
    """`batches` have `batch_schema(schema)`. Where not `in_memory`, the content stands in a temporary file."""
    marks = {_REPORT_KEY: _REPORT.encode(report).decode(), _CHECKSUM_KEY: _NO_CHECKSUM}
    if in_memory:
        memory = pa.BufferOutputStream()
        _write(memory, form, marks, batches, schema)
        data = memory.getvalue()
    else:
        with needing_room():
            file = scratch_file()
            _write(file, form, marks, batches, schema)
            data = mapped(file)
    view = memoryview(data).cast("B")
    checksum = b"%08x" % zlib.crc32(view)
    for start, end in _checksum_places(view):
        view[start:end] = checksum
    return data


def _write(
    file: Any, form: PublishedFormat, marks: Mapping[str, str], batches: Iterable[pa.RecordBatch], schema: TableSchema
) -> None:
    if form == "parquet":
        rows = ParquetRows(file, schema)
        for group in _row_groups(batches):
            rows.write(group)
        rows.close(marks)
    else:
        with pa.ipc.new_file(file, batch_schema(schema).with_metadata(marks)) as writer:
            for batch in batches:
                writer.write_batch(batch)


def read_report(data: pa.Buffer, name: str) -> Report:
    """Of the file only its end is read. `name` is for the message. Raises CheckpointError."""
    if format_of(data) == "parquet":
        return _parquet_report(data, name)[0]
    try:
        metadata = pa.ipc.open_file(data).schema.metadata or {}
    except pa.ArrowException as exc:
        raise damaged(name, "it is no Arrow IPC file") from exc
    return _REPORT.decode(metadata.get(_REPORT_KEY.encode(), b""), name)


def check_file(data: pa.Buffer, name: str) -> tuple[Report, tuple[pa.RecordBatch, ...]]:
    """The report, and the rows of an Arrow file; of a Parquet file none are decoded. Raises CheckpointError."""
    _check(data, name)
    batches = batches_of(data)
    if format_of(data) == "parquet":
        report, row_count = _parquet_report(data, name)
    else:
        report = read_report(data, name)
        row_count = sum(batch.num_rows for batch in batches)
    if row_count != report.row_count:
        raise damaged(name, "its rows are not what its report says")
    return report, batches


def batches_of(data: pa.Buffer) -> tuple[pa.RecordBatch, ...]:
    """The rows of an Arrow file, where they stand; () of a Parquet file."""
    if format_of(data) == "parquet":
        return ()
    reader = pa.ipc.open_file(data)
    return tuple(reader.get_batch(i).replace_schema_metadata(None) for i in range(reader.num_record_batches))


def format_of(data: pa.Buffer) -> PublishedFormat:
    return "parquet" if bytes(memoryview(data)[:4]) == _PARQUET_MAGIC else "arrow"


def damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint file {name} is damaged: {reason}.",
        "Restore the checkpoint folder from a copy, or start over with an empty checkpoint and an empty target.",
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
        raise damaged(name, "it is no Parquet file") from exc
    metadata = footer.metadata or {}
    return _REPORT.decode(metadata.get(_REPORT_KEY.encode(), b""), name), footer.num_rows


def _check(data: pa.Buffer, name: str) -> None:
    view = memoryview(data).cast("B")
    places = _checksum_places(view)
    if len(places) != (1 if format_of(data) == "parquet" else 2):
        raise damaged(name, "it is cut off, or not such a file")
    checksum, at = 0, 0
    for start, end in places:
        checksum = zlib.crc32(b"00000000", zlib.crc32(view[at:start], checksum))
        at = end
    checksum = zlib.crc32(view[at:], checksum)
    if any(bytes(view[start:end]) != b"%08x" % checksum for start, end in places):
        raise damaged(name, "its content does not have the checksum that it was written with")


def _checksum_places(view: memoryview) -> list[tuple[int, int]]:
    """In the metadata, which is the file's begin and end; what looks like one between them stands in the rows.

    Parquet's end holds values too, the least and greatest of each column. The metadata comes after them.
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
