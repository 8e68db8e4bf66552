"""Hashes the rows of a copy's files, and those that it should have, in one form. The command does so, and Spark's tasks."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tidemark.sinks.files import reading
from tidemark.sinks.files.json_values import LineValues, values_of
from tidemark.sinks.files.merging import log_files
from tidemark.sinks.files.part import Format
from tidemark.sinks.folded.hashed_rows import HashedRows, together
from tidemark.sinks.folded.hashing import RowHashing, key_names, with_key
from tidemark.sinks.rows.json_lines import json_rows
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId, TableSchema

ROWS_AT_ONCE = 16384
ATTEMPTS = 20
_LOGGED = re.compile(r"-log[.][a-z]+$")


@dataclass(frozen=True, slots=True)
class ChangesFile:
    """`epochs`: the first and the last one of a file of log changes, None for any other file. `is_partly_known`: a merged one
    whose first epochs were taken in before. `is_early`: it was there when the comparison began."""

    path: Path
    epochs: tuple[int, int] | None = None
    is_partly_known: bool = False
    is_early: bool = False


def vanishing(folder: Path, table: TableId) -> SinkError:
    return SinkError(f"Files vanish from {folder}.", "Compare again.", table)


def _unshared(folder: Path, table: TableId) -> SinkError:
    return SinkError(
        f"Where Spark's tasks run there is no folder {folder}.",
        "Give a folder on a filesystem that the driver and all executors share.",
        table,
    )


@dataclass(frozen=True, slots=True)
class FileHashing:
    """Pickled with Spark's tasks."""

    rows: RowHashing
    file_format: Format

    @property
    def schema(self) -> TableSchema:
        return self.rows.schema

    def nothing(self) -> pa.Table:
        return self.rows.changes({}, 0)

    def expected(self, batch: pa.RecordBatch) -> pa.Table:
        """Returns a change batch of expected rows as `RowHashing.changes` does. Parquet keeps Arrow's values as they are. JSON
        Lines are written."""
        names = self.schema.arrow_schema().names
        if self.file_format == "parquet":
            columns = {name: batch.column(name) for name in names}
            return self.rows.changes(columns, batch.num_rows)
        values = batch.select(names)
        found = [self.nothing()]
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            for lines in values_of(json_rows(values.slice(start, ROWS_AT_ONCE)).data, self.schema):
                found.append(self._of_lines(lines, is_logged=False))
        return pa.concat_tables(found[1:] or found)

    def hashed(self, expected: pa.Table) -> HashedRows:
        """Returns expected rows by hashes of their keys, in their order. `expected`: change batches."""
        changes = [self.expected(batch) for batch in expected.to_batches()] or [self.nothing()]
        return together([HashedRows.by_hashes(each, self.schema, self.rows.seed) for each in changes])

    def by_key(self, changes: pa.Table) -> HashedRows:
        """Returns the changes that have a key, by hashes of their keys. `changes`: as `RowHashing.changes` returns them."""
        return HashedRows.by_hashes(with_key(changes, self.schema), self.schema, self.rows.seed)

    def changes_in(self, path: Path) -> Iterator[pa.Table]:
        """Yields the changes of a file as `RowHashing.changes` does. Raises SinkError for a damaged file, FileNotFoundError."""
        is_logged = _LOGGED.search(path.name) is not None
        if self.file_format == "parquet":
            for batch in reading.changes_in(path, self.schema):
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield self.rows.changes(columns, batch.num_rows, is_logged=is_logged)
        else:
            for lines in reading.lines_in(path, self.schema):
                yield self._of_lines(lines, is_logged=is_logged)

    def changes_of(self, files: Iterable[ChangesFile]) -> Iterator[tuple[Path, pa.Table]]:
        """Yields the changes of files, maybe some of them twice, and others: a file may have been merged meanwhile. Before
        them, the file that they were read from. Raises SinkError."""
        read = set[Path]()
        for file in files:
            paths: Sequence[Path] = [file.path]
            for attempt in range(ATTEMPTS):
                try:
                    for path in paths:
                        if path not in read:  # many of the files may have become one
                            for changes in self.changes_in(path):
                                yield path, changes
                            read.add(path)
                    break
                except (FileNotFoundError, SinkError) as error:
                    if isinstance(error, SinkError) and all(path.exists() for path in paths):
                        raise
                    if not file.path.parent.is_dir():
                        raise _unshared(file.path.parent, self.schema.table) from error
                    paths = _merged(file)
                    if not paths or attempt == ATTEMPTS - 1:
                        raise vanishing(file.path.parent, self.schema.table) from error

    def of_keys(self) -> "FileHashing":
        """Returns the same for the columns of the key alone."""
        columns = tuple(column for column in self.schema.columns if column.name in self.schema.key)
        return replace(self, rows=RowHashing(replace(self.schema, columns=columns), self.rows.seed))

    def _of_lines(self, lines: LineValues, *, is_logged: bool) -> pa.Table:
        schema = self.schema
        others = {k: lines.keys(schema, name) for k, name in zip(key_names(schema), schema.key, strict=True)}
        if "_change_type" in lines.names:
            others |= {"_change_type": lines.kinds()}
            others |= {name: lines.integers(name) for name in ("_commit_version", "_seq")}
        if "_unchanged" in lines.names:
            others["_unchanged"] = lines.unchanged()
        texts = {column.name: lines.column(column.name) for column in schema.captured}
        return self.rows.changes_of_texts(texts, others, len(lines), is_logged=is_logged)


def _merged(file: ChangesFile) -> list[Path]:
    """Returns the files that now have the changes of one that is gone."""
    if file.epochs is None:
        return []
    first, last = file.epochs
    return [log.path for log in log_files(file.path.parent) if log.first <= last and log.last >= first]
