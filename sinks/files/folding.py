"""Folds the files of a table into its state.

DuckDB reads the files. `refresh` takes in the files that were published since. They are taken in the order of their epochs,
because the log of PostgreSQL may leave values out of an update.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemark.sinks.files.hashing import ATTEMPTS, ChangesFile, FileHashing, vanishing
from tidemark.sinks.files.merging import log_files
from tidemark.sinks.files.part import Format
from tidemark.sinks.files.split_files import SplitFiles
from tidemark.sinks.folded.hashed_rows import HashedRows
from tidemark.sinks.folded.hashing import PLACE_KIND
from tidemark.sinks.folded.rows_by_key import RowsByKey, ValuesLeftOutError
from tidemark.sinks.folded.state import FoldedState
from tidemark.state.change_batch import ChangeType
from tidemark.state.errors import SinkError
from tidemark.state.integer_range import IntegerRange

FRESH_BYTES = 512 << 20
"""Files are read together until they have this size."""
FRESH_FILES = 1000
_EPOCH = re.compile(r"e(\d+)-")


@dataclass(slots=True)
class Folding:
    """`copy_folder`: the table's. `within`: only changes of these keys are taken in; None: all. `splits`: files that are not
    taken in, as long as the log leaves out no values; None: all are. `by_key`: takes all changes in place of the state, as long
    as the log leaves out no values; None: the state does."""

    state: FoldedState
    copy_folder: Path
    file_format: Format
    within: IntegerRange | None = None
    splits: SplitFiles | None = None
    by_key: RowsByKey | None = None
    read_keys: Callable[[tuple[Any, ...]], Iterable[pa.Table]] | None = None
    """Finds keys by tasks, if these have folded the files."""
    _taken: set[str] = field(default_factory=set)
    _log_epoch: int = 0
    """All log changes up to this epoch were taken in."""

    @property
    def hashing(self) -> FileHashing:
        return FileHashing(self.state.hashing, self.file_format)

    def stage(self, table: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Creates a table with the rows as the sink writes them. Returns their number."""
        count = 0
        self.state.create(table)
        for batch in batches:
            self.state.insert(table, self.hashing.expected(batch))
            count += batch.num_rows
        return count

    def take_splits(self) -> None:
        """Takes the files of splits in, too, from now on."""
        if self.splits is not None:
            paths = self.splits.paths
            self.splits = None
            for start in range(0, len(paths), FRESH_FILES):
                self._load_fresh(paths[start : start + FRESH_FILES])
                self.state.take_changes()

    def take_all(self) -> None:
        """Lets the state have all rows, from now on."""
        if self.by_key is not None:
            self.by_key = None
            self._taken.clear()
            self._log_epoch = 0
            self.refresh()
        self.take_splits()

    def refresh(self) -> None:
        """Takes in the files that were published since. Raises SinkError for a damaged file."""
        try:
            self._with_new_files(self._take)
            if self.by_key is not None:
                self.by_key.settle()
        except ValuesLeftOutError as error:
            if self.by_key is not None and self.by_key.only_known:
                table = self.state.schema.table
                message = f"A row of {table} got another key meanwhile, and its large values are not in the log."
                raise SinkError(message, "Compare again.", table) from error
            self.take_all()

    def to_fold(self) -> list[ChangesFile]:
        """Returns the files that the copy has now, none of which was taken in."""
        return self._new_files()

    def take_folded(self, files: Sequence[ChangesFile], rows: HashedRows) -> None:
        """Takes what others have folded of these files. Only the keys of `rows` count from now on."""
        self.splits = None
        self.by_key = RowsByKey(self.state.schema, self.state.seed, self.state.temporary, only_known=True)
        self.by_key.add_rows(rows)
        self.by_key.settle()
        self._note(files)

    def read_again(self, take: Callable[[pa.Table], None]) -> None:
        """Gives all changes to `take`, maybe some of them twice. Raises SinkError."""
        reading = Folding(self.state, self.copy_folder, self.file_format)

        def take_files(files: Sequence[ChangesFile]) -> None:
            for file in files:
                for changes in self.hashing.changes_in(file.path):
                    take(changes)
                reading._note([file])

        reading._with_new_files(take_files)

    def _with_new_files(self, take: Callable[[Sequence[ChangesFile]], None]) -> None:
        for attempt in range(ATTEMPTS):
            new = self._new_files()
            try:
                for group in self._groups(new):
                    take(group)
            except (SinkError, FileNotFoundError) as error:
                # A file that was merged meanwhile is gone: the next list has the merged one.
                if all(file.path.exists() for file in new) or attempt == ATTEMPTS - 1:
                    if isinstance(error, SinkError):
                        raise
                    raise vanishing(self.copy_folder, self.state.schema.table) from error
            else:
                return

    def _new_files(self) -> list[ChangesFile]:
        """Returns the files that were not taken in, in the order of their epochs, those of other names last."""
        found = []
        reached = self._log_epoch
        logs = log_files(self.copy_folder)
        for log in logs:
            if log.last > reached:
                if log.path.name not in self._taken:
                    found.append((log.first, ChangesFile(log.path, (log.first, log.last), log.first <= reached)))
                reached = log.last
        known = {log.path.name for log in logs} | self._taken
        for name in os.listdir(self.copy_folder):
            if not name.startswith((".", "_")) and name not in known and (self.copy_folder / name).is_file():
                match = _EPOCH.match(name)
                found.append((int(match[1]) if match else sys.maxsize, ChangesFile(self.copy_folder / name)))
        return [file for _, file in sorted(found, key=lambda pair: (pair[0], pair[1].path.name))]

    def _groups(self, files: Sequence[ChangesFile]) -> Iterator[list[ChangesFile]]:
        """Yields neighbouring files."""
        group: list[ChangesFile] = []
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

    def _take(self, files: Sequence[ChangesFile]) -> None:
        if self.by_key is not None:  # a change that is there twice is one
            for file in files:
                for changes in self.hashing.changes_in(file.path):
                    self.by_key.add(changes)
        else:
            self._fold(files)
        self._note(files)

    def _fold(self, files: Sequence[ChangesFile]) -> None:
        paths = [file.path for file in files]
        others = paths if self.splits is None else self.splits.add(paths)
        self._load_fresh(others)
        if self.splits is not None and self.state.leaves_values_out():
            # Such a value is that of the row before: it must be in the state.
            self.splits.forget(paths)
            self.take_splits()
            self._load_fresh(paths)
        if files[0].is_partly_known:
            self.state.execute(f"DELETE FROM fresh WHERE o <= CAST({self.state.log_place} AS {PLACE_KIND})")
        self.state.take_changes()

    def _note(self, files: Sequence[ChangesFile]) -> None:
        self._taken.update(file.path.name for file in files)
        self._log_epoch = max([self._log_epoch, *(file.epochs[1] for file in files if file.epochs is not None)])

    def _load_fresh(self, paths: Sequence[Path]) -> None:
        with self.state.transaction():
            self.state.create("fresh")
            self.load("fresh", paths)

    def load(self, table: str, paths: Sequence[Path]) -> None:
        """Adds the changes of files to a table (`change_kinds`)."""
        for path in paths:
            for changes in self.hashing.changes_in(path):
                self.state.insert(table, changes)
        if self.within is not None:
            wanted = f"kind = {ChangeType.TRUNCATE:d} OR ({self.within.condition(self.state.key_column)})"
            self.state.execute(f"DELETE FROM {table} WHERE ({wanted}) IS NOT TRUE")
