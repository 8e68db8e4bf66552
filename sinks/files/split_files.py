"""The files of splits, whose rows are read where a range needs them, and not taken into the state.

The footers of Parquet files tell which integers the leading column of the key has. Files of JSON Lines are read once, and their
keys and hashes kept on disk. A split's file has a row for each key of a small range, so a range of the source needs one or two
of them. What the log changed is in the state, and overlays these rows.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.sinks.files.reading import changes_in, unreadable
from tidemark.sinks.folded.hashed_rows import HashedRows, NoOrdinalError, ordinals, together
from tidemark.sinks.folded.hashing import RowHashing, key_names
from tidemark.state.change_batch import ChangeType
from tidemark.state.errors import SinkError
from tidemark.state.table import TableSchema, arrow_type_of

MAX_GROUP_ROWS = 1 << 20
MAX_OVERLAPS = 8
"""A row group that shares its range of keys with more others is no part of one split."""
CACHED_ROWS = 4 << 20
KEPT = ".kept"
MAX_LINES_BYTES = 512 << 20
"""A larger file of JSON Lines is taken into the state, bit by bit."""
_SPLIT_FILE = re.compile(r"e\d+-s\d+\.(?:parquet|jsonl)")
_UNSIGNED = pa.decimal128(20, 0)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file, with the least and the greatest value of the key's leading column (`ordinals`), and the greatest
    `_commit_version`."""

    path: Path
    number: int
    row_count: int
    least: int
    greatest: int
    version: int


def has_integer_key(schema: TableSchema) -> bool:
    kinds = [arrow_type_of(schema.column(name).arrow_type) for name in schema.key]
    return bool(kinds) and all(pa.types.is_integer(kind) or kind == _UNSIGNED for kind in kinds)


@dataclass(slots=True)
class SplitFiles:
    """`lines`: reads a file of JSON Lines as `RowHashing.changes` returns its rows. `temporary`: a folder for what is kept of
    them."""

    hashing: RowHashing
    lines: Callable[[Path], Iterable[pa.Table]]
    temporary: Path
    _files: dict[Path, list[RowGroup]] = field(default_factory=dict)
    _groups: list[RowGroup] = field(default_factory=list)
    _least: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.uint64))
    _greatest: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.uint64))
    _cached: OrderedDict[tuple[Path, int], HashedRows] = field(default_factory=OrderedDict)

    @property
    def paths(self) -> Sequence[Path]:
        return tuple(self._files)

    def add(self, paths: Iterable[Path]) -> list[Path]:
        """Takes the files that are those of splits. Returns the others. Raises SinkError for a damaged file."""
        others, found = list[Path](), dict[Path, list[RowGroup]]()
        for path in paths:
            if path in self._files:
                continue
            groups = self._groups_of(path) if _SPLIT_FILE.fullmatch(path.name) else None
            if groups is None:
                others.append(path)
            else:
                found[path] = groups
        known = [*self._groups, *(group for groups in found.values() for group in groups)]
        least = np.sort(np.array([group.least for group in known], np.uint64))
        greatest = np.sort(np.array([group.greatest for group in known], np.uint64))
        for path, groups in found.items():
            if any(_overlaps(group, least, greatest) > MAX_OVERLAPS for group in groups):
                others.append(path)
            else:
                self._files[path] = groups
        self._place()
        return others

    def forget(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self._files.pop(path, None)
        self._place()

    def _place(self) -> None:
        self._groups = [group for groups in self._files.values() for group in groups]
        self._least = np.array([group.least for group in self._groups], np.uint64)
        self._greatest = np.array([group.greatest for group in self._groups], np.uint64)

    def between(self, least: int, greatest: int, after: int) -> list[RowGroup]:
        """Returns the row groups that may have rows whose place is after `after`, and whose key has a leading column in this
        range."""
        places = np.flatnonzero((self._least <= np.uint64(greatest)) & (self._greatest >= np.uint64(least)))
        groups = [self._groups[place] for place in places]
        return [group for group in groups if group.version >= after >> 32]

    def rows(self, groups: Iterable[RowGroup]) -> list[HashedRows]:
        """Returns all rows of the row groups. Raises SinkError, NoOrdinalError."""
        return [self._rows_of(group) for group in groups]

    def _rows_of(self, group: RowGroup) -> HashedRows:
        name = group.path, group.number
        rows = self._cached.pop(name, None)
        if rows is None:
            rows = self._read(group)
        self._cached[name] = rows
        while len(self._cached) > 1 and sum(map(len, self._cached.values())) > CACHED_ROWS:
            self._cached.popitem(last=False)
        return rows

    def _read(self, group: RowGroup) -> HashedRows:
        if group.path.suffix == KEPT:
            return HashedRows.loaded(group.path, self.hashing.schema)
        parts = []
        try:
            for batch in changes_in(group.path, self.hashing.schema, [group.number]):
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                parts.append(HashedRows.of(self.hashing.changes(columns, batch.num_rows), self.hashing.schema))
        except FileNotFoundError as error:
            raise SinkError(f"{group.path} has vanished.", "Compare again.") from error
        return together(parts)

    def _groups_of(self, path: Path) -> list[RowGroup] | None:
        """Returns the file's row groups; None if it may have other rows than those of one split."""
        if path.suffix == ".jsonl":
            return self._kept(path)
        schema = self.hashing.schema
        try:
            with pq.ParquetFile(path) as file:
                metadata, names = file.metadata, file.schema_arrow.names
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise unreadable(path, schema, error) from error
        wanted = (*schema.key, "_change_type", "_commit_version", "_seq")
        if not set(wanted) <= set(names):
            return None
        groups = []
        for number in range(metadata.num_row_groups):
            of_group = metadata.row_group(number)
            if of_group.num_rows == 0:
                continue
            columns = {of_group.column(i).path_in_schema: of_group.column(i) for i in range(of_group.num_columns)}
            bounds = {name: found for name in wanted if (found := _bounds(columns[name])) is not None}
            if of_group.num_rows > MAX_GROUP_ROWS or len(bounds) < len(wanted):
                return None
            kinds, keys, versions = (bounds[name] for name in ("_change_type", schema.key[0], "_commit_version"))
            least, greatest = map(_ordinal, keys)
            if kinds != ("insert", "insert") or least is None or greatest is None:
                return None
            groups.append(RowGroup(path, number, of_group.num_rows, least, greatest, versions[1]))
        return groups

    def _kept(self, path: Path) -> list[RowGroup] | None:
        """Keeps the rows of a file of JSON Lines as one row group. Returns None as `_groups_of` does."""
        if path.stat().st_size > MAX_LINES_BYTES:
            return None
        parts = []
        for changes in self.lines(path):
            kinds = changes.column("kind")
            if kinds.null_count or not pc.all(pc.equal(kinds, int(ChangeType.INSERT))).as_py():
                return None
            if any(changes.column(name).null_count for name in key_names(self.hashing.schema)):
                return None
            try:
                parts.append(HashedRows.of(changes, self.hashing.schema))
            except NoOrdinalError:
                return None
        if not parts:
            return []
        rows, kept = together(parts), self.temporary / f"{path.name}{KEPT}"
        rows.save(kept)
        least, greatest = int(rows.keys[0].min()), int(rows.keys[0].max())
        return [RowGroup(kept, 0, len(rows), least, greatest, int(rows.version.max()))]


def _overlaps(group: RowGroup, least: np.ndarray[Any, Any], greatest: np.ndarray[Any, Any]) -> int:
    """Returns how many other row groups have keys between those of this one. `least`, `greatest`: of all, each ascending."""
    begun = np.searchsorted(least, np.uint64(group.greatest), "right")
    return int(begun - np.searchsorted(greatest, np.uint64(group.least), "left")) - 1


def _bounds(column: Any) -> tuple[Any, Any] | None:
    """Returns the least and the greatest value of a column in a row group; None if it has NULLs or that is not known."""
    statistics = column.statistics if column.is_stats_set else None
    if statistics is None or not statistics.has_min_max or not statistics.has_null_count or statistics.null_count:
        return None
    return statistics.min, statistics.max


def _ordinal(value: Any) -> int | None:
    """Returns `ordinals` of an integer or a decimal; None for one that has none."""
    if isinstance(value, int):
        return int(ordinals(pa.array([value], pa.int64()))[0])
    number = int(value)
    return number if 0 <= number < 1 << 64 else None
