"""How Spark's tasks compare a copy that is in files: as hashes, shuffled by key.

1. Tasks read ranges of the source, and files of the copy. Once the copy has followed the log up to there, others read the
   files that it got meanwhile. All hash rows in one form (`tidemark.sinks.files.hashing`).
2. Each hash goes into a bucket, by its key: so a bucket has all changes of a key, and the row that is expected.
3. For each bucket a task folds the changes to the last one of each key, and compares. What does not fit into its memory is in
   files (`tidemark.sinks.folded.rows_by_key`).

A row that the source has changed since its range was read is compared as it was then: an expected row comes with the
`_commit_version` up to which it contains the log, and changes tell theirs. No change counts as a later one that was there when
the comparison began (docs/adr/0096-files-are-folded-to-what-a-range-contains.md).

Only what may differ comes back: hashes of keys, and what the copy has of these.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.conf.redaction import redact_exception
from tidemark.jobs.reconcile.copy_hashing import Keys, among
from tidemark.jobs.reconcile.range_looks import Anchor, TableLook
from tidemark.jobs.reconcile.ranges import Range
from tidemark.sinks.files.hashing import ChangesFile, FileHashing
from tidemark.sinks.folded.hashed_rows import HashedRows, hashes_of_keys, together
from tidemark.sinks.folded.hashing import key_names, require_alike, with_key
from tidemark.sinks.folded.rows_by_key import Cuts, RowsByKey, ValuesLeftOutError, hashed_changes, places_of
from tidemark.state.table import TableSchema

ROWS_AT_ONCE = 1 << 20
"""A task hashes so many rows before it deals them out to buckets. 49 bytes each, and 8 for each column that may be left out."""
ROWS_OF_A_PORTION = 1 << 14
"""A task hashes fewer rows if there are few buckets: a worker of Spark collects some portions before it writes them."""
Work: TypeAlias = Sequence[Range] | Sequence[ChangesFile]
"""Ranges or files: a task reads them."""
_Numbers: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Portion:
    """The rows that a task has found for a bucket. `numbers`: of the ranges of expected rows, None for changes of the copy. An
    expected row's `version` is that up to which it contains the log. `truncated`: the place of a TRUNCATE, which counts for all
    buckets. `is_ahead`: a change that was there when the comparison began seems to be of a later time, which counts for all
    buckets, too. `rows`: None if the log left out a value of a row that got another key."""

    rows: HashedRows | None
    numbers: _Numbers | None = None
    truncated: int = -1
    is_ahead: bool = False


@dataclass(frozen=True, slots=True)
class FoldedBucket:
    """`row_count`: of expected rows. `numbers`, `keys`: of those that the copy may lack or have differently, by their ranges.
    `held`: what the copy has of their keys, and rows of keys that are not expected. `unlisted`: the number of other
    rows that may differ. `unlisted_surplus`: the least number of other rows that are not expected. `is_folded`: False if the
    bucket could not be compared."""

    row_count: int
    numbers: _Numbers
    keys: Keys
    held: HashedRows
    unlisted: int
    unlisted_surplus: int
    is_folded: bool = True


@dataclass(frozen=True, slots=True)
class HashingFiles:
    """Hashes both sides in tasks. Pickled with them. `probe`: what the command's process hashes
    (`tidemark.sinks.folded.hashing`). `since`: see `FoldingBuckets`. `version_offset`: as in `JobState`."""

    look: TableLook
    hashing: FileHashing
    probe: int
    buckets: int
    since: int
    version_offset: int

    def __call__(self, tasks: Iterable[Work]) -> Iterator[tuple[int, Portion]]:
        """Yields portions with the numbers of their buckets. Raises TidemarkError without secrets in its text."""
        with _redacted():
            require_alike(self.hashing.rows.seed, self.probe, self.look.output.table)
            for work in tasks:
                if work and isinstance(work[0], Range):
                    yield from self._dealt(self._expected([each for each in work if isinstance(each, Range)]))
                else:
                    yield from self._dealt(self._held([each for each in work if isinstance(each, ChangesFile)]))

    def _expected(self, ranges: Sequence[Range]) -> Iterator[Portion]:
        with self.look.in_task() as reader:
            anchor = Anchor(self.look.job)
            for each in ranges:
                expected, high = self.look.read(each, reader, anchor.position())
                version = high.version_before + self.version_offset
                for batch in expected.to_batches():
                    rows = self.hashing.by_key(self.hashing.expected(batch)).without_places()
                    rows = replace(rows, version=np.full(len(rows), version, np.int64))
                    yield Portion(rows, np.full(len(rows), each.number, np.int32))

    def _held(self, files: Sequence[ChangesFile]) -> Iterator[Portion]:
        early = {file.path for file in files if file.is_early}
        for path, changes in self.hashing.changes_of(files):
            try:
                truncated, rows = hashed_changes(changes, self.hashing.schema, self.hashing.rows.seed)
            except ValuesLeftOutError:
                yield Portion(None)
            else:
                is_ahead = path in early and bool((rows.version > self.since).any() or truncated >> 32 > self.since)
                yield Portion(rows, None, truncated, is_ahead)

    def _dealt(self, portions: Iterable[Portion]) -> Iterator[tuple[int, Portion]]:
        at_once = min(ROWS_AT_ONCE, ROWS_OF_A_PORTION * self.buckets)
        waiting, size = list[Portion](), 0
        for portion in portions:
            if portion.rows is None:
                yield 0, portion
                continue
            waiting.append(portion)
            size += len(portion.rows)
            if size >= at_once:
                yield from self._by_buckets(waiting)
                waiting, size = [], 0
        yield from self._by_buckets(waiting)

    def _by_buckets(self, portions: Sequence[Portion]) -> Iterator[tuple[int, Portion]]:
        if not portions:
            return
        truncated, is_ahead = max(each.truncated for each in portions), any(each.is_ahead for each in portions)
        rows = together([portion.rows for portion in portions if portion.rows is not None])
        numbers = [portion.numbers for portion in portions if portion.numbers is not None]
        # The first hash is what a bucket's rows are sorted and spilled by.
        of_rows = (rows.keys[1] % np.uint64(self.buckets)).astype(np.int64)
        order = np.argsort(of_rows, kind="stable")
        ends = np.searchsorted(of_rows[order], np.arange(self.buckets), "right").tolist()
        of_ranges = np.concatenate(numbers)[order] if numbers else None
        rows = rows.taken(order)
        for bucket, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if end > start or truncated >= 0 or is_ahead:
                part = None if of_ranges is None else of_ranges[start:end].copy()
                yield bucket, Portion(rows.part(start, end), part, truncated, is_ahead)


@dataclass(frozen=True, slots=True)
class FoldingBuckets:
    """Folds and compares buckets in tasks. Pickled with them. `max_rows`: of one kind that a bucket returns. `finds_surplus`:
    False if rows that are not expected are right. `since`: the greatest `_commit_version` that a change could have when the
    comparison began. A row that is not expected, and that the copy lacked then or at any time since, is right."""

    schema: TableSchema
    seed: int
    max_rows: int
    finds_surplus: bool
    since: int

    def __call__(self, portions: Iterable[tuple[int, Portion]]) -> Iterator[FoldedBucket]:
        """Yields one result for all portions. Raises SinkError if there is no space for them."""
        with _redacted(), closing(RowsByKey(self.schema, self.seed)) as held:
            expected, numbers, is_folded, is_ahead = list[HashedRows](), [np.zeros(0, np.int32)], True, False
            for _, portion in portions:
                held.truncated = max(held.truncated, portion.truncated)
                is_ahead |= portion.is_ahead
                if portion.rows is None:
                    is_folded = False
                elif portion.numbers is None:
                    held.add_rows(portion.rows)
                else:
                    expected.append(portion.rows)
                    numbers.append(portion.numbers)
            rows = together(expected or [held.nothing()])
            held.settle(None if is_ahead else Cuts.of(rows, self.since))
            yield replace(self._compared(rows, np.concatenate(numbers), held), is_folded=is_folded)

    def _compared(self, expected: HashedRows, numbers: _Numbers, held: RowsByKey) -> FoldedBucket:
        base, order = held.base, np.argsort(expected.keys[0])  # rows in this order are looked up in a third of the time
        places = np.full(len(expected), -1, np.int64)
        places[order] = places_of(tuple(column[order] for column in expected.keys), base.keys)
        others = np.flatnonzero(~_are_same(expected, base, places))
        rows = expected.taken(others)
        others = others[~_are_same(rows, held.before, places_of(rows.keys, held.before.keys))]
        listed = others[: self.max_rows]
        of_others = np.unique(places[listed])
        surplus = self._surplus(held, places) if self.finds_surplus else others[:0]
        return FoldedBucket(
            len(expected),
            numbers[listed],
            tuple(column[listed] for column in expected.keys),
            base.taken(np.concatenate([of_others[of_others >= 0], surplus[: self.max_rows]])),
            len(others) - len(listed),
            max(0, len(surplus) - self.max_rows),
        )

    def _surplus(self, held: RowsByKey, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns places of rows that are not expected, one more than `max_rows` at most."""
        base, others = held.base, ~held.base.gone
        others[places[places >= 0]] = False
        lacked = places_of(held.before.taken(held.before.gone).keys, base.keys)
        others[lacked[lacked >= 0]] = False
        return np.flatnonzero(others)[: self.max_rows + 1]


@dataclass(frozen=True, slots=True)
class NamingKeys:
    """Finds keys in files in tasks, by their hashes. Pickled with them. `wanted`: in their order. `hashing`: of the columns of
    the key alone."""

    look: TableLook
    hashing: FileHashing
    wanted: Keys

    def __call__(self, tasks: Iterable[Sequence[ChangesFile]]) -> Iterator[pa.Table]:
        """Yields keys with the names that `RowHashing.changes` gives them, those of one batch once."""
        names = key_names(self.hashing.schema)
        with _redacted():
            for files in tasks:
                for _, changes in self.hashing.changes_of(files):
                    keys = with_key(changes, self.hashing.schema).select(names)
                    hashes = hashes_of_keys(keys, self.hashing.schema, self.hashing.rows.seed)
                    found = np.flatnonzero(among(hashes, self.wanted))
                    _, first = np.unique(hashes[0][found], return_index=True)
                    if len(first):
                        yield keys.take(found[first])


def _are_same(expected: HashedRows, base: HashedRows, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns which rows are held with the same values. `places`: of their keys in `base`, -1 for none."""
    same = places >= 0
    rows = places[same]
    equal = ~base.gone[rows]
    for one, other in zip(expected.hashes, base.hashes, strict=True):
        equal &= one[same] == other[rows]
    same[same] = equal
    return same


@contextmanager
def _redacted() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
        raise
