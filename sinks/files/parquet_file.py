"""A Parquet file with one table's rows of one part."""

import os
from pathlib import Path

import pyarrow as pa

from tidemark.state.parquet_rows import ParquetRows
from tidemark.state.table import TableSchema


class ParquetFile:
    """A `TableFile` of Parquet. Each `write` makes a row group."""

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
