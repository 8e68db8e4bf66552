"""Parquet files with one table's rows."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.state.errors import SinkError
from tidemark.state.parquet_rows import ParquetRows, parquet_writer, repetitive_columns
from tidemark.state.table import TableSchema

_ROW_GROUP_BYTES = 32 << 20


class ParquetFile:
    """A `TableFile` of Parquet, with rows of one part. Each `write` makes a row group."""

    def __init__(self, path: Path, schema: TableSchema) -> None:
        self._file = path.open("xb")
        self._rows = ParquetRows(self._file, schema)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        self._rows.write(batches)

    def close(self) -> None:
        self._rows.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


def parquet_columns(path: Path) -> pa.Schema:
    """Returns the columns that a file has. Raises SinkError if it is damaged."""
    with _opened(path) as file:
        return file.schema_arrow


def merge_parquet(paths: Sequence[Path], target: BinaryIO) -> None:
    """Writes the rows of files that have the same columns into one, in their order. Raises SinkError for a damaged file."""
    columns = parquet_columns(paths[0])
    writer = None
    for rows in _row_groups(paths, columns):
        if writer is None:
            writer = parquet_writer(target, columns, repetitive_columns(rows))
        writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
    (writer or parquet_writer(target, columns, [])).close()


def _row_groups(paths: Sequence[Path], columns: pa.Schema) -> Iterator[pa.Table]:
    batches: list[pa.RecordBatch] = []
    size = 0
    for path in paths:
        with _opened(path) as file:
            for batch in file.iter_batches():
                batches.append(batch)
                size += batch.nbytes
                if size >= _ROW_GROUP_BYTES:
                    yield pa.Table.from_batches(batches, columns)
                    batches, size = [], 0
    if batches:
        yield pa.Table.from_batches(batches, columns)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except pa.ArrowInvalid as exc:
        raise SinkError(
            f"{path} can't be read to be merged: {exc}.",
            "Restore it from a copy, or set sink.merge_small_files: false.",
        ) from exc
