"""Compares expected rows with the files of a copy.

Rows of JSON Lines go through the sink's own writing, and the lines are read as those of the copy are. Parquet keeps Arrow's
values as they are, so expected rows are hashed at once. So an expected value is exactly what the sink would have written.

If keys are of integers, the rows of splits stay in their files (`split_files.py`), and a range is compared with what these
files and the state have of it. Rows with other keys are looked up by hashes of these (`tidemark.sinks.folded.rows_by_key`).
Where neither can be, all is in the state.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.sinks.comparing import Comparisons, Key, Pair
from tidemark.sinks.files.folding import Folding
from tidemark.sinks.files.hashing import ChangesFile, FileHashing
from tidemark.sinks.files.part import Format
from tidemark.sinks.files.split_files import SplitFiles, has_integer_key
from tidemark.sinks.folded.comparing import FoldedComparison
from tidemark.sinks.folded.hashed_rows import (
    GREATEST,
    HashedRows,
    NoOrdinalError,
    differing,
    hashed_key,
    hashes_of_keys,
    integer_keys,
    ordinal,
    surplus,
    together,
    unexpected,
)
from tidemark.sinks.folded.hashing import with_key
from tidemark.sinks.folded.rows_by_key import KEY_COLUMNS, RowsByKey, SeenKeys
from tidemark.sinks.folded.state import FoldedState
from tidemark.state.copied_range import CopiedRange
from tidemark.state.errors import SinkError
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableSchema, arrow_type_of

MAX_ROWS_AT_ONCE = 4 << 20
Take: TypeAlias = Callable[[pa.Table], None]
Keys: TypeAlias = tuple[npt.NDArray[np.uint64], ...]
ReadsKeys: TypeAlias = Callable[[Keys], Iterable[pa.Table]]
"""Reads the keys with these hashes, which are in their order, from the copy's files (`RowHashing.changes`)."""


@contextlib.contextmanager
def comparable_files(folder: Path, schema: TableSchema, file_format: Format) -> Iterator[Comparisons]:
    """See `ComparableSink.comparable`. The files are folded once; later comparisons take new ones in."""
    with FoldedState.opened(schema, str(folder)) as state:
        folding = Folding(state, folder, file_format)
        if has_integer_key(schema):
            folding.splits = SplitFiles(state.hashing, folding.hashing.changes_in, state.temporary)
        else:
            folding.by_key = RowsByKey(schema, state.seed, state.temporary)
        numbers = itertools.count()

        def compared(
            keys: Collection[Key] | None = None,
        ) -> contextlib.AbstractContextManager[FilesComparison]:
            return contextlib.closing(FilesComparison(folding, next(numbers), keys))

        yield compared


class FilesComparison:
    """A `tidemark.sinks.comparing.CopyComparison`. `number`: several may be open at a time. `wanted`: as in `Comparisons`."""

    def __init__(self, folding: Folding, number: int, wanted: Collection[Key] | None) -> None:
        self._folding, self._state, self._wanted = folding, folding.state, wanted
        self._folded = FoldedComparison(folding.state, number, folding.stage, folding.refresh)
        self._hashed: list[pa.Table] = []
        self._expected: HashedRows | None = None
        """The staged rows, as long as the state does not have all. Otherwise `_folded` has them."""
        self._seen: SeenKeys | None = None
        """The kept keys, as long as rows are looked up by hashes of their keys. Otherwise `_folded` has them."""
        self.row_count = 0

    @property
    def hashing(self) -> FileHashing:
        return self._folding.hashing

    def to_fold(self) -> list[ChangesFile]:
        """Returns the files that the copy has now."""
        return Folding(self._state, self._folding.copy_folder, self._folding.file_format).to_fold()

    def take_folded(self, files: Sequence[ChangesFile], rows: HashedRows, read_keys: ReadsKeys) -> None:
        """Takes what tasks have folded of these files. From now on only rows with these keys are compared. `read_keys`: finds
        keys by tasks."""
        self._folding.take_folded(files, rows)
        self._folding.read_keys = read_keys

    def hashes_of(self, keys: Iterable[Key]) -> Keys:
        """Returns hashes of keys that pairs have named, in their order."""
        by_key = self._folding.by_key
        named = {} if by_key is None else {text: hashes for hashes, text in by_key.texts.items()}
        found = [tuple(map(int, named[key])) for key in keys if key in named]
        columns = np.array(found, np.uint64).reshape(-1, KEY_COLUMNS)
        order = np.lexsort((columns[:, 1], columns[:, 0]))
        return columns[order, 0], columns[order, 1]

    def stage(self, batches: Iterable[pa.RecordBatch]) -> None:
        folding = self._folding
        if folding.splits is None and folding.by_key is None:
            self._folded.stage(batches)
            self.row_count = self._folded.row_count
            return
        self._hashed = [folding.hashing.expected(batch) for batch in batches]
        self.row_count = sum(table.num_rows for table in self._hashed)
        folding.refresh()
        if folding.by_key is not None:
            self._expected = folding.by_key.expected(self._hashed)
        else:
            self._expected = self._by_integers()
        if self._expected is None:
            self._fold()

    def differing(self) -> list[Pair]:
        by_key = self._folding.by_key
        if self._expected is not None and len(self._expected) == 0:
            return []
        if self._expected is not None and by_key is not None:
            pairs = differing(self._expected, by_key.among(self._expected), hashed_key)
            return self._named(pairs, by_key, self._read_staged)
        if self._expected is not None:
            leading = self._expected.keys[0]
            held = self._held(int(leading[0]), int(leading[-1]))
            if held is not None:
                return differing(self._expected, held, integer_keys(self._state.schema))
        return self._folded.differing()

    def surplus(self, within: CopiedRange | None, limit: int) -> list[Pair]:
        by_key = self._folding.by_key
        if self._expected is not None and by_key is not None:
            if within is None:
                seen = SeenKeys(by_key)
                seen.add(self._expected.keys)
                return self._others(by_key, seen, limit)
            self._fold()
        if self._expected is not None:
            keys = None if within is None else within.integers
            held = self._held(*self._bounds(keys))
            if held is not None:
                held = held if keys is None else held.within(keys, self._state.schema)
                return surplus(self._expected, held, integer_keys(self._state.schema), limit)
        return self._folded.surplus(within, limit)

    def keep_keys(self) -> None:
        if self._expected is not None and self._folding.by_key is not None:
            if self._seen is None:
                self._seen = SeenKeys(self._folding.by_key)
            self._seen.add(self._expected.keys)
            return
        if self._expected is not None:
            self._folded.take(self._hashed)
        self._folded.keep_keys()

    def surplus_of_all(self, limit: int) -> list[Pair]:
        by_key = self._folding.by_key
        if by_key is not None:
            seen, self._seen = self._seen or SeenKeys(by_key), None
            if by_key.only_known and self._wanted is not None:
                seen.add_others(self.hashes_of(self._wanted))  # the source was read for wanted keys alone
            return self._others(by_key, seen, limit)
        self._folding.take_all()
        self._keep_seen()
        return self._folded.surplus_of_all(limit)

    def clear(self) -> None:
        self._hashed, self._expected = [], None
        self._folded.clear()

    def close(self) -> None:
        self.clear()
        self._seen = None
        self._folded.close()

    def _by_integers(self) -> HashedRows | None:
        """Returns the expected rows; None if the state has all rows now."""
        schema = self._state.schema
        if self._folding.splits is None:
            return None
        try:
            parts = [HashedRows.of(table, schema) for table in self._hashed or [self._folding.hashing.nothing()]]
        except NoOrdinalError:
            return None
        return together(parts).last()

    def _fold(self) -> None:
        """Lets the state have all rows, and `_folded` the staged ones."""
        self._folding.take_all()
        self._keep_seen()
        self._folded.take(self._hashed)
        self._expected = None

    def _keep_seen(self) -> None:
        """Gives the kept keys to `_folded`, as far as the copy has them."""
        seen, self._seen = self._seen, None
        if seen is not None:
            self._folding.read_again(lambda changes: self._folded.keep(seen.of(changes)))

    def _read_staged(self, take: Take) -> None:
        for table in self._hashed:
            take(table)

    def _others(self, by_key: RowsByKey, seen: SeenKeys, limit: int) -> list[Pair]:
        held = by_key.others(seen, limit)
        folding, pairs = self._folding, unexpected(held, np.arange(len(held)), hashed_key)
        read_keys = folding.read_keys
        if read_keys is None:
            return self._named(pairs, by_key, folding.read_again)
        lacking = held.taken(np.array([pair.key not in by_key.texts for pair in pairs], np.bool_)).newest().keys

        def read(take: Take) -> None:
            for keys in read_keys(lacking):
                take(keys)

        return self._named(pairs, by_key, read)

    def _named(self, pairs: list[Pair], by_key: RowsByKey, read: Callable[[Take], None]) -> list[Pair]:
        """Returns the pairs with the texts of their keys. `read`: gives keys, these among them, to a function."""
        lacking = np.array([int(pair.key[0]) for pair in pairs if pair.key not in by_key.texts], np.uint64)

        def find(changes: pa.Table) -> None:
            keys = with_key(changes, by_key.schema).select(self._state.keys)
            first, second = hashes_of_keys(keys, by_key.schema, by_key.seed)
            places = np.flatnonzero(np.isin(first, lacking))
            for place, text in zip(places.tolist(), self._state.key_texts(keys.take(places)), strict=True):
                by_key.texts[str(first[place]), str(second[place])] = text

        if len(lacking):
            read(find)
        if any(pair.key not in by_key.texts for pair in pairs):
            raise SinkError(f"Files in {self._folding.copy_folder} were changed meanwhile.", "Compare again.")
        return [replace(pair, key=by_key.texts[pair.key]) for pair in pairs]

    def _held(self, least: int, greatest: int) -> HashedRows | None:
        """Returns the rows that the copy has, where the leading column of the key is in this range (`ordinals`). None if the
        state has all rows now, because these would be too many for the memory."""
        splits, state = self._folding.splits, self._state
        groups = [] if splits is None else splits.between(least, greatest, state.truncated)
        if splits is not None and sum(group.row_count for group in groups) <= MAX_ROWS_AT_ONCE:
            try:
                parts = [*splits.rows(groups), *state.rows_between(least, greatest)]
            except NoOrdinalError:
                pass
            else:
                found = [part.between(least, greatest).after(state.truncated) for part in parts]
                return together([*found, self._no_rows()]).last()
        self._fold()
        return None

    def _no_rows(self) -> HashedRows:
        return HashedRows.of(self._folding.hashing.nothing(), self._state.schema)

    def _bounds(self, keys: IntegerRange | None) -> tuple[int, int]:
        """Returns the range of the leading column of the key, with its end."""
        key, bounds = self._state.schema.key[0], [0, GREATEST]
        if keys is not None and keys.columns[0] == key:
            kind = arrow_type_of(self._state.schema.column(key).arrow_type)
            for i, bound in enumerate((keys.start, keys.end)):
                if bound is not None:
                    bounds[i] = min(max(ordinal(bound[0], kind), 0), GREATEST)
        return bounds[0], bounds[1]


def keys_in_files(
    folder: Path, schema: TableSchema, file_format: Format, within: IntegerRange, limit: int
) -> list[Key]:
    """Returns the keys that the copy has in a range, at most `limit`. Reads the columns of the key, of all files. Raises
    SinkError."""
    key = replace(schema, columns=tuple(column for column in schema.columns if column.name in schema.key))
    with FoldedState.opened(key, str(folder)) as state:
        Folding(state, folder, file_format, within).refresh()
        texts = ", ".join(f"CAST({name} AS VARCHAR)" for name in state.keys)
        return state.execute(f"SELECT {texts} FROM ({state.rows('')}) LIMIT {limit}")
