"""Time and memory that the driver needs to plan a table of a million splits, and epochs of 10,000 tables.

The source computes its answers, so time and memory are the enumerator's own. They include the plans as they are written, the
reports as they come back, and the segments of finished splits that the gap filter loads. Peak memory is that of Python
(tracemalloc) and Arrow.
"""

import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.report import Cell, print_table
from devtools.key_source import SeesAll
from tidemark.enumerator.enumerator import LogRead, Observation, Outcome, Settings, SplitsRead, first_state, plan_epoch
from tidemark.readers.log.gap_filter import GapFilter, merge_segments, segment_of
from tidemark.state.checkpoint.codec import PLAN
from tidemark.state.job_state import JobState, SplitKey
from tidemark.state.key_encoding import encode_integer
from tidemark.state.key_statistics import IntegerKey, KeyStatistics
from tidemark.state.log_extent import BinlogExtent, LogFile
from tidemark.state.log_range import LogReport, TableChanges
from tidemark.state.plan import PlanRecord, SnapshotWork
from tidemark.state.position import BinlogPosition
from tidemark.state.split import Bound, Report
from tidemark.state.table import TableId, TableSchema

TABLE = TableId("shop", "orders")
SPLIT_ROWS = 50_000
PARALLELISM = 4
SEGMENTS_MERGED_AT = 256
TABLE_COUNT = 10_000
LOG_EPOCHS = 20
LOG_EPOCH_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class EvenKey(SeesAll):
    """A KeySource with one table whose keys are every `gap`-th integer.

    With a gap of 1 split boundaries are computed. With a large gap they are looked up in the source.
    """

    row_count: int
    gap: int

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        last = (self.row_count - 1) * self.gap
        return KeyStatistics(self._bound(last), IntegerKey(0, last, unsigned=False), self.row_count, 100)

    def next_bounds(
        self,
        table: TableId,
        columns: tuple[str, ...],
        *,
        after: Bound | None,
        until: Bound | None,
        rows: int,
        count: int,
    ) -> Sequence[Bound]:
        first = 0 if after is None else -(-int(after.literals[0]) // self.gap)
        limit = self.row_count if until is None else -(-int(until.literals[0]) // self.gap)
        return [self._bound(row * self.gap) for row in range(first + rows, limit, rows)[:count]]

    def _bound(self, value: int) -> Bound:
        return Bound((str(value),), encode_integer(value, unsigned=False).hex())


@dataclass(frozen=True, slots=True)
class Cost:
    split_count: int
    epoch_count: int
    seconds: float
    peak_python_bytes: int
    largest_plan_bytes: int
    segment_bytes: int
    finished_splits_bytes: int
    """Memory of the gap filter's finished splits."""


def measure(split_count: int, gap: int, *, trace: bool = True) -> Cost:
    """Plans a whole table and loads its finished splits. `trace` False: quicker, and without the peak of memory."""
    if trace:
        tracemalloc.start()
    began = time.perf_counter()
    largest, segments, epochs = 0, list[pa.Buffer](), 0
    for record, segment in _epochs(EvenKey((split_count - 1) * SPLIT_ROWS, gap)):
        epochs += 1
        largest = max(largest, record)
        segments.append(segment)
        if len(segments) == SEGMENTS_MERGED_AT:
            segments = [merge_segments(segments, "finished")]
    seconds = time.perf_counter() - began
    peak = tracemalloc.get_traced_memory()[1] if trace else 0
    if trace:
        tracemalloc.stop()
    finished_splits = GapFilter.from_segments(segments, [TABLE], "finished").finished_splits[TABLE]
    numbers = 0 if finished_splits.integer_boundaries is None else finished_splits.integer_boundaries.nbytes
    size = finished_splits.boundaries.nbytes + finished_splits.highs.nbytes + numbers
    return Cost(len(finished_splits.highs), epochs, seconds, peak, largest, sum(s.size for s in segments), size)


def _epochs(source: EvenKey) -> Iterator[tuple[int, pa.Buffer]]:
    """Yields for each epoch the size of its plan file, and the segment of the splits that it finished."""
    start = BinlogPosition("binlog.000001", 4, "00000000-0000-0000-0000-00000000000a:1-1000000")
    settings = Settings(PARALLELISM, SPLIT_ROWS, max_batch_bytes=64 << 20, max_batch_seconds=10.0)
    job = JobState(
        job_uuid="",
        job_name="planning",
        mode="full",
        server_identity="",
        start=start,
        prepared=(),
        created_at_us=0,
        schemas=(TableSchema(TABLE, 1, (), ()),),
        split_keys=(SplitKey(TABLE, ("id",)),),
    )
    state, outcome = first_state(job, settings), _no_outcome()
    files = (LogFile("binlog.000001", 4),)
    while True:
        plan, state = plan_epoch(state, Observation(BinlogExtent(files), None, outcome), source, settings)
        if plan is None:
            return
        assert isinstance(plan.work, SnapshotWork)
        written = PLAN.encode(PlanRecord(plan, state))
        splits = [split for task in plan.work.tasks for split in task]
        reports = tuple(Report(split.id, TABLE, 1, start, SPLIT_ROWS, 0) for split in splits)
        # Each split has its own high, as it has under writes. The state has none, so there is no log to plan.
        highs = [replace(r, high=BinlogPosition(start.file, start.pos + r.split_id)) for r in reports]
        yield len(written), segment_of(splits, highs)
        outcome = SplitsRead(plan.epoch, reports, seconds=1.0)


def _no_outcome() -> Outcome | None:
    return None


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The epochs of one kind: their number, the longest time to plan one, and the size of the largest plan."""

    epoch_count: int
    longest_seconds: float
    largest_plan_bytes: int


def measure_tables(table_count: int) -> dict[str, EpochCost]:
    """Plans epochs of a job with so many tables of one split each: the first load, and then LOG_EPOCHS of the log, in each of
    which one table has changes. The time includes that the plan is encoded as it is stored. Keys: "splits", "log"."""
    tables = [TableId("shop", f"orders_{number}") for number in range(table_count)]
    start = BinlogPosition("binlog.000001", 4, "00000000-0000-0000-0000-00000000000a:1-1000000")
    settings = Settings(PARALLELISM, SPLIT_ROWS, max_batch_bytes=64 << 20, max_batch_seconds=10.0, interleave=False)
    job = JobState(
        job_uuid="",
        job_name="planning",
        mode="full+incremental",
        server_identity="",
        start=start,
        prepared=(),
        created_at_us=0,
        schemas=tuple(TableSchema(table, 1, (), ()) for table in tables),
        split_keys=tuple(SplitKey(table, ("id",)) for table in tables),
    )
    state, source, outcome, end = first_state(job, settings), EvenKey(100, 1), _no_outcome(), 4
    found: dict[str, list[tuple[float, int]]] = {"splits": [], "log": []}
    while len(found["log"]) < LOG_EPOCHS:
        began = time.perf_counter()
        extent = BinlogExtent((LogFile("binlog.000001", end),))
        plan, state = plan_epoch(state, Observation(extent, None, outcome), source, settings)
        if plan is None:  # the log has nothing new
            end, outcome = end + LOG_EPOCH_BYTES, None
            continue
        written = len(PLAN.encode(PlanRecord(plan, state)))
        seconds = time.perf_counter() - began
        if isinstance(plan.work, SnapshotWork):
            found["splits"].append((seconds, written))
            splits = [split for task in plan.work.tasks for split in task]
            reports = tuple(Report(split.id, split.table, 1, start, 100, 0) for split in splits)
            outcome = SplitsRead(plan.epoch, reports, seconds=1.0)
        else:
            found["log"].append((seconds, written))
            changes = (TableChanges(tables[0], 1_000, 0, 0),)
            report = LogReport(BinlogPosition("binlog.000001", end, start.gtids), (), 1_000, 0, 1, 0, changes)
            outcome = LogRead(plan.epoch, report, seconds=1.0)
    return {
        name: EpochCost(len(costs), max(seconds for seconds, _ in costs), max(size for _, size in costs))
        for name, costs in found.items()
    }


def run(bench: Bench) -> None:
    measure(2_000, 1)  # loads code that is loaded once
    split_count, rows = max(bench.rows // 5, 2), list[list[Cell]]()
    for name, gap in (("cut by arithmetic", 1), ("walked", 1000)):
        cost, untraced = measure(split_count, gap), measure(split_count, gap, trace=False)
        sizes = (cost.peak_python_bytes, cost.largest_plan_bytes, cost.segment_bytes, cost.finished_splits_bytes)
        per_split = untraced.seconds / cost.split_count * 1e6
        rows.append([name, cost.epoch_count, untraced.seconds, per_split, *(size / 2**20 for size in sizes)])
    print_table(
        f"Planning of {split_count:,} splits",
        ["", "epochs", "s", "µs a split", "MiB: peak of Python", "largest plan", "reports kept", "gap filter"],
        rows,
    )
    epochs = measure_tables(TABLE_COUNT)
    print_table(
        f"Planning of epochs of {TABLE_COUNT:,} tables",
        ["", "epochs", "longest, s", "MiB: largest plan"],
        [
            [name, cost.epoch_count, cost.longest_seconds, cost.largest_plan_bytes / 2**20]
            for name, cost in epochs.items()
        ],
    )
