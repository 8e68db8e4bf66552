"""Lets Spark's tasks read the ranges of a table whose copy orders keys in another way.

The hashes of the copy's rows are in this process (`tidemark.jobs.reconcile.hashed_copy`), and stay here. A range is read twice
at most:

1. A task returns hashes of all its rows, 24 bytes each. Here it is seen which of them the copy does not have in the same way.
2. If there are some, a task reads the range again, and returns the rows that now have these keys. They go to the copy's server.

So what is compared was read from the source in the second reading, before the copy's server is asked. A row that lost its key
in between is not compared: nothing has marked the copy's row of this key, nor was the key kept. So if the copy still has that
row, it is found as one that only the copy has.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.jobs.reconcile.copy_hashing import Flags, Keys, among
from tidemark.jobs.reconcile.folded_copy import FoldedCopy
from tidemark.jobs.reconcile.hashed_copy import MAX_NOTED, HashedCopy
from tidemark.jobs.reconcile.range_looks import Anchor, RangeLook, RangeLooks, TableLook
from tidemark.jobs.reconcile.ranges import Range
from tidemark.jobs.reconcile.tasks import RunsTasks, dealt
from tidemark.sinks.folded.hashed_rows import HashedRows

BYTES_OF_A_ROW = 24
MAX_BYTES_OF_TASKS = 64 << 20
"""Tasks that run at the same time return together not much more: each leaves ranges to later ones when its share is reached.
`spark.driver.maxResultSize` is 1 GiB by default."""
MAX_BYTES_OF_ROWS = 4 << 20
"""If rows that may differ take more in a range, this process reads the range itself."""


@dataclass(frozen=True, slots=True)
class HashedRange:
    """The work of a task. `wanted`: hashes of the keys of the rows to return, in their order; None: hashes of all rows.
    `row_count`: of the rows that need not be returned."""

    range: Range
    wanted: Keys | None = None
    row_count: int = 0


@dataclass(frozen=True, slots=True)
class RangeHashes:
    """The rows of a range, ordered by their keys' hashes. `values`: a hash of each row."""

    number: int
    keys: Keys
    values: npt.NDArray[np.uint64]

    @property
    def size(self) -> int:
        return BYTES_OF_A_ROW * len(self.values)


@dataclass(frozen=True, slots=True)
class RangeRows:
    """The wanted rows of a range, as change batches. None if there is a row that can't be hashed, or too many bytes."""

    number: int
    rows: pa.Table | None

    @property
    def size(self) -> int:
        return 0 if self.rows is None else self.rows.nbytes


class RowsHashing(Protocol):
    """Pickled with tasks."""

    def hashed(self, expected: pa.Table) -> HashedRows | None:
        """Returns rows, in their order. None if they can't be compared by hashes."""


@dataclass(frozen=True, slots=True)
class HashingTask:
    """Reads ranges in tasks. Pickled with them. `max_bytes`: a task that has returned more leaves its other ranges to later
    ones."""

    look: TableLook
    hashing: RowsHashing
    max_bytes: int

    def __call__(self, tasks: Iterable[Sequence[HashedRange]]) -> Iterator[RangeHashes | RangeRows]:
        """Yields the first ranges of each task. Raises TidemarkError without secrets in its text."""
        with self.look.in_task() as reader:
            anchor = Anchor(self.look.job)
            for ranges in tasks:
                size = 0
                for each in ranges:
                    found = self.read(each, self.look.expected(each.range, reader, anchor.position()))
                    yield found
                    size += found.size
                    if size > self.max_bytes:
                        break

    def read(self, each: HashedRange, expected: pa.Table) -> RangeHashes | RangeRows:
        number, hashed = each.range.number, self.hashing.hashed(expected)
        if hashed is None:
            return RangeRows(number, None)
        if each.wanted is None:
            order = np.lexsort(hashed.keys[::-1])
            return RangeHashes(number, tuple(column[order] for column in hashed.keys), hashed.hashes[0][order])
        rows = expected.filter(pa.array(among(hashed.keys, each.wanted)))
        return RangeRows(number, rows if rows.nbytes <= MAX_BYTES_OF_ROWS else None)


@dataclass(slots=True)
class HashedRanges:
    """Ranges that wait for tasks. `hashed`: it is useful. Of a folded copy it is known which keys are wanted.
    `keeps_keys`: for `RangeLooks.surplus_of_all`."""

    looks: RangeLooks
    hashed: HashedCopy | FoldedCopy
    run_tasks: RunsTasks
    keeps_keys: bool
    waiting: list[HashedRange] = field(default_factory=list)

    def add(self, each: Range) -> RangeLook | None:
        """Adds a range that is looked at as `looks` does: all of its rows, or those that may differ since the first look.
        Returns the look if no task has to read the range for it."""
        if isinstance(self.hashed, FoldedCopy):
            wanted = self.hashed.wanted(each.number, is_first=self.looks.is_first)
            if len(wanted[0]):
                self.waiting.append(HashedRange(each, wanted))
            return None
        noted = () if self.looks.is_first else self.hashed.noted_keys(each.number)
        if noted is None:
            return self.looks.at(each, keeps_keys=self.keeps_keys)
        if not noted and not self.looks.is_first and not self.keeps_keys:
            return RangeLook(each.number, 0, [])
        self.waiting.append(HashedRange(each, None if self.keeps_keys else noted or None))
        return None

    def looked(self) -> Generator[RangeLook]:
        """Lets tasks read ranges that wait. Yields the looks that this ends: a range with rows that may differ waits once
        more."""
        table = self.looks.table
        split_rows, parallelism = table.job.snapshot.split_rows, table.job.snapshot.parallelism
        count = min(parallelism, max(1, MAX_BYTES_OF_TASKS // (BYTES_OF_A_ROW * split_rows)))
        task = HashingTask(table, self.hashed.hashing, MAX_BYTES_OF_TASKS // count)
        ranges = {each.range.number: each for each in self.waiting}
        found = self.run_tasks(table, task, dealt(self.waiting, count))
        seen = {result.number for result in found}
        self.waiting = [each for each in self.waiting if each.range.number not in seen]
        for result in found:
            look = self._taken(ranges[result.number], result)
            if look is not None:
                yield look

    def _taken(self, each: HashedRange, result: RangeHashes | RangeRows) -> RangeLook | None:
        if isinstance(result, RangeRows):
            if result.rows is None:
                return self.looks.at(each.range, keeps_keys=self.keeps_keys)
            if not result.rows.num_rows:
                return RangeLook(result.number, each.row_count, [])
            look = self.looks.judged(each.range, result.rows, keeps_keys=self.keeps_keys)
            return replace(look, row_count=look.row_count + each.row_count)
        others = self._others(result)
        count = len(result.values) if others is None else np.count_nonzero(others)
        if others is None or count > MAX_NOTED:
            return self.looks.at(each.range, keeps_keys=self.keeps_keys)
        if not count:
            return RangeLook(result.number, len(others), [])
        wanted = tuple(column[others] for column in result.keys)
        self.waiting.append(HashedRange(each.range, wanted, len(others) - int(count)))
        return None

    def _others(self, result: RangeHashes) -> Flags | None:
        assert isinstance(self.hashed, HashedCopy), "only wanted rows were read"
        if self.looks.is_first:
            return self.hashed.others_of(result.keys, result.values)
        return self.hashed.noted_of(result.number, result.keys, with_surplus=self.keeps_keys)
