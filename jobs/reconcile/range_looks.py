"""One look at ranges of a table: at the source's rows, as they should be in the copy, then at the copy's."""

import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact_exception
from tidemark.jobs.reconcile.copy_progress import CopyProgress
from tidemark.jobs.reconcile.copy_reading import CopyReading, copy_reading
from tidemark.jobs.reconcile.hashed_copy import HashedCopy
from tidemark.jobs.reconcile.ranges import Range
from tidemark.readers.projection.settings import projector
from tidemark.readers.snapshot.publish import change_batches
from tidemark.readers.source import SourceServer, SplitReading
from tidemark.sinks.comparing import ComparableSink, ComparesTable, Comparisons, CopyComparison, Key, Pair
from tidemark.state.change_batch import batch_schema
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import NoRoomError
from tidemark.state.position import Position
from tidemark.state.projection import TableProjection
from tidemark.state.table import TableSchema

MAX_SURPLUS = 100_000
"""The most rows of the copy without a row in the source that one statement looks at."""
ANCHOR_SECONDS = 5.0
MAKE_ROOM = "Free space there, or let TMPDIR name another folder, also on the executors. Then compare again."
MAX_PAIRS_OF_A_TASK = 10_000
"""A task that has found more pairs leaves its other ranges to later tasks."""


@dataclass(frozen=True, slots=True)
class RangeLook:
    """The result of one look at a range. `row_count`: of the rows that the copy should have. `all_listed`: `pairs` has all
    surplus rows."""

    number: int
    row_count: int
    pairs: list[Pair]
    all_listed: bool = True


@dataclass(frozen=True, slots=True)
class TableLook:
    """Looks at ranges of one table. Pickled with Spark's tasks, if the sink can be. `schema`: as the source has the table,
    `output`: as the copy does. `projections`: of all tables of the job. `is_folded`: only keys that may differ are known of the
    copy, and not in which ranges they are."""

    job: JobFile
    job_uuid: str
    server: SourceServer
    schema: TableSchema
    output: TableSchema
    projections: tuple[TableProjection, ...]
    sink: ComparableSink
    is_folded: bool = False

    def __call__(self, tasks: Iterable[Sequence[Range]]) -> Iterator[RangeLook]:
        """Yields the looks at the first ranges of each task. Raises TidemarkError without secrets in its text."""
        with (
            self.in_task() as reader,
            self.sink.comparable(self.output) as comparisons,
            self.opened(reader, comparisons) as looks,
        ):
            for ranges in tasks:
                pairs = 0
                for each in ranges:
                    look = looks.at(each)
                    yield look
                    pairs += len(look.pairs)
                    if pairs > MAX_PAIRS_OF_A_TASK:
                        break

    @contextmanager
    def in_task(self) -> Iterator[SplitReading]:
        """Opens the source in a task. Raises a TidemarkError of the `with` block without secrets in its text."""
        try:
            with self.server.split_reading([self.schema], self.job_uuid) as reader:
                yield reader
        except BaseException as error:
            redact_exception(error)
            raise

    @contextmanager
    def opened(
        self,
        reader: SplitReading,
        comparisons: Comparisons,
        keys: Collection[Key] | None = None,
        hashed: HashedCopy | None = None,
    ) -> Iterator["RangeLooks"]:
        """`keys`: as in `Comparisons`. `hashed`: for ranges that the copy may order differently."""
        with comparisons(keys) as copy, copy_reading(copy, self.output) as reading:
            yield RangeLooks(self, reader, copy, reading, Anchor(self.job), hashed, is_first=keys is None)

    @property
    def has_condition(self) -> bool:
        return self.job.snapshot.condition(self.schema.table.database, self.schema.table.name) is not None

    def has_own_surplus(self, each: Range) -> bool:
        """True if surplus rows can be found from the range alone. With `snapshot.where` the copy may have rows that the
        condition leaves out: they changed later."""
        return not self.has_condition and not self.is_folded and (each.in_copy is not None or each.is_whole)

    def expected(self, each: Range, reader: SplitReading, anchor: Position) -> pa.Table:
        """Returns the source's rows of a range as they should be in the copy, as change batches. `anchor`: for the reader."""
        rows, _ = self.read(each, reader, anchor)
        return rows

    def read(self, each: Range, reader: SplitReading, anchor: Position) -> tuple[pa.Table, Position]:
        """Returns the same, and the position that the rows are of (`Report.high`)."""
        try:
            read = reader.read(each.split, self.schema, anchor)
        except NoRoomError as error:  # other tables may need less
            raise NoRoomError(error.message, MAKE_ROOM, self.schema.table) from error
        read, _ = projector(self.job, [self.schema], self.projections).split(read)
        schema = batch_schema(self.output)
        return pa.Table.from_batches(change_batches(read, schema), schema), read.report.high


@dataclass(slots=True)
class Anchor:
    """The position that the job's copy has reached, as of some seconds ago: the checkpoint has many files."""

    job: JobFile
    _position: Position | None = None
    _due: float = 0.0

    def position(self) -> Position:
        if self._position is None or time.monotonic() >= self._due:
            _, now = CopyProgress(Checkpoint.at(self.job.checkpoint), self.job).now()
            self._position = now.position
            self._due = time.monotonic() + ANCHOR_SECONDS
        return self._position


@dataclass(frozen=True, slots=True)
class RangeLooks:
    """Both sides of a table, open. `is_first`: False if suspects are looked at again."""

    table: TableLook
    reader: SplitReading
    copy: CopyComparison
    reading: CopyReading | None
    anchor: Anchor
    hashed: HashedCopy | None = None
    is_first: bool = True
    _ahead: deque[tuple[Range, "Future[pa.Table]"]] = field(default_factory=deque)

    def at(self, each: Range, *, keeps_keys: bool = False) -> RangeLook:
        """`keeps_keys`: for `surplus_of_all`."""
        return self.compared(each, self.expected(each), keeps_keys=keeps_keys)

    def expected(self, each: Range) -> pa.Table:
        return self.table.expected(each, self.reader, self.anchor.position())

    def with_expected(self, ranges: Iterable[Range]) -> Generator[tuple[Range, pa.Table]]:
        """Yields ranges with their expected rows. A thread reads those of the next range meanwhile: call `wait` before
        the reader is used otherwise, and close the generator."""
        ahead = self._ahead
        with ThreadPoolExecutor(1, thread_name_prefix="source") as thread:
            try:
                for each in ranges:
                    ahead.append((each, thread.submit(self.expected, each)))
                    if len(ahead) > 1:
                        yield _read(ahead)
                while ahead:
                    yield _read(ahead)
            finally:
                ahead.clear()

    def wait(self) -> None:
        """Returns when no thread uses the reader."""
        wait(rows for _, rows in self._ahead)

    def compared(self, each: Range, expected: pa.Table, *, keeps_keys: bool = False) -> RangeLook:
        others = self._others(each, expected, with_surplus=keeps_keys)
        if others is not None and not others.any():
            return RangeLook(each.number, expected.num_rows, [])
        staged = expected if others is None else expected.filter(pa.array(others))
        look = self.judged(each, staged, is_all=others is None, keeps_keys=keeps_keys)
        return replace(look, row_count=look.row_count + expected.num_rows - staged.num_rows)

    def judged(self, each: Range, rows: pa.Table, *, is_all: bool = False, keeps_keys: bool = False) -> RangeLook:
        """Lets the copy's server compare rows of a range. `is_all`: they are all that the source has there."""
        copy = self.copy
        copy.stage(rows.to_batches())
        row_count, pairs, all_listed = copy.row_count, copy.differing(), True
        if self.hashed is not None and self.is_first:
            self.hashed.note(each.number, rows, pairs)
        if is_all and self.table.has_own_surplus(each):
            surplus = copy.surplus(each.in_copy, MAX_SURPLUS)
            pairs, all_listed = [*pairs, *surplus], len(surplus) < MAX_SURPLUS
        if keeps_keys:
            copy.keep_keys()
        copy.clear()
        return RangeLook(each.number, row_count, pairs, all_listed)

    def surplus_of_all(self, limit: int) -> tuple[list[Pair], bool] | None:
        """Returns rows of the copy whose keys are in none of the ranges, and whether these are all: at the first look at most
        `limit`. None if all ranges are to be looked at again first."""
        hashed, is_again = self.hashed, not self.is_first
        if hashed is None or not hashed.is_useful:
            pairs: list[Pair] | None = self.copy.surplus_of_all(limit)
        elif is_again and isinstance(self.copy, ComparesTable):
            pairs = hashed.surplus_again(self.copy)
            return None if pairs is None else (pairs, True)
        else:
            assert self.reading is not None, "hashes are of no use without"
            pairs = hashed.surplus(self.reading, limit)
        return None if pairs is None else (pairs, len(pairs) < limit)

    def _others(self, each: Range, expected: pa.Table, *, with_surplus: bool) -> npt.NDArray[np.bool_] | None:
        """Returns which of the expected rows the copy's server is to compare. None: all, and it is to find rows that only the
        copy has."""
        if self.table.has_own_surplus(each):
            found = None if self.reading is None else self.reading.others(expected, each.in_copy)
            return None if found is None else found.rows
        if self.hashed is None:
            return None
        if self.is_first:
            return self.hashed.others(expected, self.reading)
        return self.hashed.noted(each.number, expected, with_surplus=with_surplus)


def _read(ahead: deque[tuple[Range, "Future[pa.Table]"]]) -> tuple[Range, pa.Table]:
    each, rows = ahead.popleft()
    return each, rows.result()
