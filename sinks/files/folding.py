"""Folds the files of a table into its state.

DuckDB reads the files. `refresh` takes in the files that were published since. They are taken in the order of their epochs,
because the log of PostgreSQL may leave values out of an update.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.conf.tables import TableName
from tidemark.sinks.files.merging import log_files
from tidemark.sinks.files.part import Format, open_table_file
from tidemark.sinks.folded.hashing import change_expressions, literal, quoted
from tidemark.sinks.folded.state import TRUNCATE, FoldedState
from tidemark.state.errors import SinkError
from tidemark.state.integer_range import IntegerRange
from tidemark.state.remedies import read_again
from tidemark.state.table import TableId

FRESH_BYTES = 512 << 20
"""Files are read together until they have this size."""
FRESH_FILES = 1000
_ATTEMPTS = 20
_EPOCH = re.compile(r"e(\d+)-")


@dataclass(frozen=True, slots=True)
class _NewFile:
    """`log_epoch`: the last epoch of a file of log changes. `is_partly_known`: a merged one whose first epochs were taken in
    before."""

    path: Path
    log_epoch: int = 0
    is_partly_known: bool = False


@dataclass(slots=True)
class Folding:
    """`copy_folder`: the table's. `within`: only changes of these keys are taken in; None: all."""

    state: FoldedState
    copy_folder: Path
    file_format: Format
    within: IntegerRange | None = None
    _taken: set[str] = field(default_factory=set)
    _log_epoch: int = 0
    """All log changes up to this epoch were taken in."""

    def stage(self, table: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Creates a table with the rows as the sink writes them. Returns their number."""
        path = self.state.temporary / f"{table}.{self.file_format}"
        path.unlink(missing_ok=True)
        file = open_table_file(self.file_format, path, self.state.schema)
        count = 0
        try:
            for batch in batches:
                file.write([batch])
                count += batch.num_rows
        finally:
            file.close()
        self.load(table, [path])
        path.unlink()
        return count

    def refresh(self) -> None:
        """Takes in the files that were published since. Raises SinkError for a damaged file."""
        for attempt in range(_ATTEMPTS):
            new = self._new_files()
            try:
                for group in self._groups(new):
                    self._take(group)
            except (SinkError, FileNotFoundError) as error:
                # A file that was merged meanwhile is gone: the next list has the merged one.
                if all(file.path.exists() for file in new) or attempt == _ATTEMPTS - 1:
                    if isinstance(error, SinkError):
                        raise
                    raise SinkError(f"Files vanish from {self.copy_folder}.", "Compare again.") from error
            else:
                return

    def _new_files(self) -> list[_NewFile]:
        """Returns the files that were not taken in, in the order of their epochs, those of other names last."""
        found = []
        reached = self._log_epoch
        logs = log_files(self.copy_folder)
        for log in logs:
            if log.last > reached:
                if log.path.name not in self._taken:
                    found.append((log.first, _NewFile(log.path, log.last, log.first <= reached)))
                reached = log.last
        known = {log.path.name for log in logs} | self._taken
        for name in os.listdir(self.copy_folder):
            if not name.startswith((".", "_")) and name not in known and (self.copy_folder / name).is_file():
                match = _EPOCH.match(name)
                found.append((int(match[1]) if match else sys.maxsize, _NewFile(self.copy_folder / name)))
        return [file for _, file in sorted(found, key=lambda pair: (pair[0], pair[1].path.name))]

    def _groups(self, files: Sequence[_NewFile]) -> Iterator[list[_NewFile]]:
        """Yields neighbouring files with the same columns."""
        group: list[_NewFile] = []
        size = 0
        columns: pa.Schema | None = None
        for file in files:
            of_file = _columns(file.path, self.state.schema.table) if self.file_format == "parquet" else None
            is_full = size >= FRESH_BYTES or len(group) >= FRESH_FILES
            if group and (is_full or file.is_partly_known or group[-1].is_partly_known or of_file != columns):
                yield group
                group, size = [], 0
            group.append(file)
            size += file.path.stat().st_size
            columns = of_file
        if group:
            yield group

    def _take(self, files: Sequence[_NewFile]) -> None:
        self.load("fresh", [file.path for file in files])
        if files[0].is_partly_known:
            self.state.execute(f"DELETE FROM fresh WHERE o <= {self.state.log_place}")
        self.state.take_changes()
        self._taken.update(file.path.name for file in files)
        self._log_epoch = max(self._log_epoch, *(file.log_epoch for file in files))

    def load(self, table: str, paths: Sequence[Path]) -> None:
        """Creates a table with the changes of files that have the same columns (`change_kinds`)."""
        listed = ", ".join(literal(_without_wildcards(path)) for path in paths)
        if self.file_format == "parquet":
            source = f"read_parquet([{listed}], {_OPTIONS})"
            first = literal(_without_wildcards(paths[0]))
            described = self.state.execute(f"DESCRIBE SELECT * FROM read_parquet({first}, hive_partitioning = false)")
            # By place: DuckDB gives names that differ only in case other names.
            names = _columns(paths[0], self.state.schema.table).names
            columns = {name: (quoted(d[0]), d[1]) for name, d in zip(names, described, strict=True)}
        else:
            kinds = {column.name: "JSON" for column in self.state.schema.captured} | _JSON_META
            typed = ", ".join(f"{literal(name)}: '{kind}'" for name, kind in kinds.items())
            source = f"read_ndjson([{listed}], columns = {{{typed}}}, {_OPTIONS}, {_JSON_OPTIONS})"
            columns = {name: (quoted(name), kind) for name, kind in kinds.items()}
        expressions = change_expressions(self.state.schema, columns, f"regexp_matches({_FILE}, '-log[.][a-z]+$')")
        selected = ", ".join(f"{expression} AS {name}" for name, expression in expressions.items())
        wanted = ""
        if self.within is not None:
            wanted = f" WHERE kind = {literal(TRUNCATE)} OR ({self.within.condition(self.state.key_column)})"
        query = f"SELECT * FROM (SELECT {selected} FROM {source}){wanted}"
        self.state.execute(f"CREATE OR REPLACE TABLE {table} AS {query}")


_FILE = "_tidemark_file"
_OPTIONS = f"hive_partitioning = false, filename = '{_FILE}'"
_JSON_OPTIONS = f"maximum_object_size = {32 << 20}"
_JSON_META = {"_change_type": "VARCHAR", "_commit_version": "BIGINT", "_seq": "INTEGER", "_unchanged": "VARCHAR[]"}


def _columns(path: Path, table: TableId) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except pa.ArrowInvalid as error:
        again = read_again(TableName(table.database, table.name))
        raise SinkError(f"{path} can't be read: {error}.", f"Restore it from a copy, or delete it. {again}") from error


def _without_wildcards(path: Path) -> str:
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", str(path))
