"""The open files of one part. Memory and the number of open files are bounded, however many tables the part has."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa

from tidemark.sinks.files.ledger import sync_folder
from tidemark.sinks.files.parquet_file import ParquetFile
from tidemark.sinks.rows.json_lines import JsonLinesFile
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.errors import SinkError
from tidemark.state.remedies import LATE, START_OVER
from tidemark.state.table import TableSchema

Format: TypeAlias = Literal["parquet", "jsonl"]

FLUSH_BYTES = 32 << 20
"""Buffer of one table. A row group of this size in Arrow compresses to a few MB, so several readers can share a file."""
MAX_BUFFERED_BYTES = 96 << 20
MAX_OPEN_FILES = 64
"""Further tables are flushed to spill files, which are open only during a write."""


class TableFile(Protocol):
    """A file of one table's rows in the sink's format. `close` makes it durable. `abandon` only closes it."""

    def write(self, batches: list[pa.RecordBatch]) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


def open_table_file(file_format: Format, path: Path, schema: TableSchema) -> TableFile:
    """Creates the file. Raises OSError."""
    return (ParquetFile if file_format == "parquet" else JsonLinesFile)(path, schema)


@dataclass(slots=True)
class _OpenTable:
    folder: Path
    schema: TableSchema
    temporary: Path
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    file: TableFile | None = None
    spill: Path | None = None


class FilesPart:
    """One part's files. `add` rows or `add_file`, then `complete`, then `publish`. Leaving the context without that removes all
    files. `staged` names a new file of the staging folder."""

    def __init__(self, staged: Callable[[], Path], file_name: str, file_format: Format) -> None:
        self._staged, self._file_name, self._format = staged, file_name, file_format
        self._tables: dict[Path, _OpenTable] = {}
        self._published: dict[Path, Path] = {}
        self._buffered_bytes = 0

    def __enter__(self) -> "FilesPart":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for table in self._tables.values():
            if table.file is not None:
                with contextlib.suppress(OSError):  # it tries once more to write what a full filesystem did not take
                    table.file.abandon()
            table.temporary.unlink(missing_ok=True)
            if table.spill is not None:
                table.spill.unlink(missing_ok=True)
        for temporary in self._published.values():  # os.replace keeps it if both names are links to one file
            temporary.unlink(missing_ok=True)

    def add(self, folder: Path, schema: TableSchema, rows: pa.RecordBatch) -> None:
        """`folder` must exist. The rows are buffered or written."""
        if rows.num_rows == 0:
            return
        table = self._tables.get(folder)
        if folder in self._published:
            raise SinkError(
                f"{folder} would get two files of one part.", "This is a bug of Tidemark: please report it."
            )
        if table is None:
            table = self._tables[folder] = _OpenTable(folder, schema, self._staged())
        elif table.schema.arrow_schema() != schema.arrow_schema():
            raise SinkError(
                f"The columns of {schema.table} change inside one part.", f"Please report this, and {START_OVER}."
            )
        table.buffered.append(rows)
        table.buffered_bytes += rows.nbytes
        self._buffered_bytes += rows.nbytes
        if table.buffered_bytes >= FLUSH_BYTES:
            self._flush(table)
        while self._buffered_bytes >= MAX_BUFFERED_BYTES:
            self._flush(max(self._tables.values(), key=lambda t: t.buffered_bytes))

    def add_file(self, folder: Path, published: CheckpointStore, name: str) -> None:
        """Adds a published file with all of the part's rows of one table. Raises SinkError if it is gone."""
        temporary = self._staged()
        if folder in self._tables or folder in self._published:
            raise SinkError(
                f"{folder} would get two files of one part.", "This is a bug of Tidemark: please report it."
            )
        self._published[folder] = temporary
        if not published.copy_to(name, temporary):
            raise SinkError(
                f"{name} was removed from the checkpoint: its epoch is committed.",
                LATE,
            )

    def complete(self) -> None:
        """Closes every file. All of them are durable in the staging folder then."""
        for table in self._tables.values():
            self._complete(table)

    @property
    def folders(self) -> list[Path]:
        """The folders that get files."""
        return [*self._tables, *self._published]

    def publish(self) -> None:
        """Renames the files to their visible names."""
        complete = {table.folder: table.temporary for table in self._tables.values()} | self._published
        for folder, temporary in complete.items():
            os.replace(temporary, folder / self._file_name)
        for folder in complete:
            sync_folder(folder)

    def _flush(self, table: _OpenTable) -> None:
        """Writes the table's buffer and frees its memory."""
        may_open = table.file is not None or sum(t.file is not None for t in self._tables.values()) < MAX_OPEN_FILES
        if table.spill is not None or not may_open:
            self._write_spill(table)
        else:
            self._file(table).write(table.buffered)
        self._buffered_bytes -= table.buffered_bytes
        table.buffered, table.buffered_bytes = [], 0

    def _file(self, table: _OpenTable) -> TableFile:
        if table.file is None:
            table.file = open_table_file(self._format, table.temporary, table.schema)
        return table.file

    def _write_spill(self, table: _OpenTable) -> None:
        if table.spill is None:
            table.spill = self._staged()
        with table.spill.open("ab") as file, pa.ipc.new_stream(file, table.buffered[0].schema) as writer:
            for batch in table.buffered:
                writer.write_batch(batch)

    def _complete(self, table: _OpenTable) -> None:
        if table.spill is not None:
            for chunk in _spilled(table.spill):
                self._file(table).write(chunk)
            table.spill.unlink()
        if table.buffered:
            self._file(table).write(table.buffered)
            self._buffered_bytes -= table.buffered_bytes
            table.buffered, table.buffered_bytes = [], 0
        self._file(table).close()


def _spilled(path: Path) -> Iterator[list[pa.RecordBatch]]:
    """Yields what `_write_spill` has written, in chunks of about FLUSH_BYTES. The file is a sequence of Arrow streams."""
    with path.open("rb") as file:
        end = path.stat().st_size
        chunk: list[pa.RecordBatch] = []
        while file.tell() < end:
            for batch in pa.ipc.open_stream(file):
                chunk.append(batch)
                if sum(b.nbytes for b in chunk) >= FLUSH_BYTES:
                    yield chunk
                    chunk = []
        if chunk:
            yield chunk
