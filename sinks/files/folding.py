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

from tidemark.sinks.files.merging import log_files
from tidemark.sinks.files.part import Format, open_table_file
from tidemark.sinks.files.reading import changes_in
from tidemark.sinks.files.split_files import SplitFiles
from tidemark.sinks.folded.hashing import key_kinds, key_names, key_text, literal, quoted
from tidemark.sinks.folded.state import TRUNCATE, FoldedState
from tidemark.state.errors import SinkError
from tidemark.state.integer_range import IntegerRange

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
    """`copy_folder`: the table's. `within`: only changes of these keys are taken in; None: all. `splits`: files that are not
    taken in, as long as the log leaves out no values; None: all are."""

    state: FoldedState
    copy_folder: Path
    file_format: Format
    within: IntegerRange | None = None
    splits: SplitFiles | None = None
    _taken: set[str] = field(default_factory=set)
    _log_epoch: int = 0
    """All log changes up to this epoch were taken in."""

    def stage(self, table: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Creates a table with the rows as the sink writes them. Returns their number. Parquet keeps Arrow's values as they
        are."""
        count = 0
        self.state.create(table)
        if self.file_format == "parquet":
            for batch in batches:
                self.state.insert(table, self.expected(batch))
                count += batch.num_rows
            return count
        path = self.state.temporary / f"{table}.{self.file_format}"
        path.unlink(missing_ok=True)
        file = open_table_file(self.file_format, path, self.state.schema)
        try:
            for batch in batches:
                file.write([batch])
                count += batch.num_rows
        finally:
            file.close()
        self.load(table, [path])
        path.unlink()
        return count

    def expected(self, batch: pa.RecordBatch) -> pa.Table:
        """Returns a change batch of expected rows as `RowHashing.changes` does. Parquet keeps Arrow's values as they are."""
        columns = {name: batch.column(name) for name in self.state.schema.arrow_schema().names}
        return self.state.hashing.changes(columns, batch.num_rows)

    def nothing(self) -> pa.Table:
        return self.state.hashing.changes({}, 0)

    def take_splits(self) -> None:
        """Takes the files of splits in, too, from now on."""
        if self.splits is not None:
            paths = self.splits.paths
            self.splits = None
            for start in range(0, len(paths), FRESH_FILES):
                self._load_fresh(paths[start : start + FRESH_FILES])
                self.state.take_changes()

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
        """Yields neighbouring files."""
        group: list[_NewFile] = []
        size = 0
        for file in files:
            is_full = size >= FRESH_BYTES or len(group) >= FRESH_FILES
            if group and (is_full or file.is_partly_known or group[-1].is_partly_known):
                yield group
                group, size = [], 0
            group.append(file)
            size += file.path.stat().st_size
        if group:
            yield group

    def _take(self, files: Sequence[_NewFile]) -> None:
        paths = [file.path for file in files]
        others = paths if self.splits is None else self.splits.add(paths)
        self._load_fresh(others)
        if self.splits is not None and self._leaves_values_out():
            # Such a value is that of the row before: it must be in the state.
            self.splits.forget(paths)
            self.take_splits()
            self._load_fresh(paths)
        if files[0].is_partly_known:
            self.state.execute(f"DELETE FROM fresh WHERE o <= {self.state.log_place}")
        self.state.take_changes()
        self._taken.update(file.path.name for file in files)
        self._log_epoch = max(self._log_epoch, *(file.log_epoch for file in files))

    def _load_fresh(self, paths: Sequence[Path]) -> None:
        self.state.create("fresh")
        self.load("fresh", paths)

    def _leaves_values_out(self) -> bool:
        flags = " OR ".join(f"u{i}" for i in range(len(self.state.schema.toastable)))
        return bool(flags and self.state.execute(f"SELECT 1 FROM fresh WHERE {flags} LIMIT 1"))

    def load(self, table: str, paths: Sequence[Path]) -> None:
        """Adds the changes of files to a table (`change_kinds`)."""
        if self.file_format == "parquet":
            for path in paths:
                self._add_parquet(table, path)
        else:
            self._add_json(table, paths)
        if self.within is not None:
            wanted = f"kind = {literal(TRUNCATE)} OR ({self.within.condition(self.state.key_column)})"
            self.state.execute(f"DELETE FROM {table} WHERE ({wanted}) IS NOT TRUE")

    def _add_parquet(self, table: str, path: Path) -> None:
        is_logged = _LOGGED.search(path.name) is not None
        for batch in changes_in(path, self.state.schema):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            self.state.insert(table, self.state.hashing.changes(columns, batch.num_rows, is_logged=is_logged))

    def _add_json(self, table: str, paths: Sequence[Path]) -> None:
        schema = self.state.schema
        kinds = {column.name: "JSON" for column in schema.captured} | _JSON_META
        typed = ", ".join(f"{literal(name)}: '{kind}'" for name, kind in kinds.items())
        listed = ", ".join(literal(_without_wildcards(path)) for path in paths)
        source = f"read_ndjson([{listed}], columns = {{{typed}}}, {_OPTIONS}, {_JSON_OPTIONS})"
        texts = {column.name: f"v{i}" for i, column in enumerate(schema.captured)}
        found = [f"nullif(CAST({quoted(name)} AS VARCHAR), 'null') AS {text}" for name, text in texts.items()]
        for name, key, kind in zip(key_names(schema), schema.key, key_kinds(schema), strict=True):
            text = key_text(quoted(key), "JSON", is_binary=schema.column(key).arrow_type == "binary")
            found.append(f"TRY_CAST({text} AS {kind}) AS {name}")
        found += [*_JSON_META, f"regexp_matches({_FILE}, {literal(_LOGGED.pattern)}) AS is_logged"]
        for rows in self.state.read(f"SELECT {', '.join(found)} FROM {source}"):
            self.state.insert(table, self.state.hashing.changes_of_texts(rows, texts))


_LOGGED = re.compile(r"-log[.][a-z]+$")
_FILE = "_tidemark_file"
_OPTIONS = f"hive_partitioning = false, filename = '{_FILE}'"
_JSON_OPTIONS = f"maximum_object_size = {32 << 20}"
_JSON_META = {"_change_type": "VARCHAR", "_commit_version": "BIGINT", "_seq": "INTEGER", "_unchanged": "VARCHAR[]"}


def _without_wildcards(path: Path) -> str:
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", str(path))
