"""Runs an epoch's tasks: few rows and little log in the driver's own process, everything else as a Spark job.

Both run the same function (`epoch/write_parts.py`, `TaskWriting`). A run that finds little to do never starts a JVM. If Spark
itself writes the sink, the tasks stage their rows as files (`TaskStaging`), which Spark reads without Python workers.

In local mode a Spark task is one more process of this machine, which has to be started first. So there the driver reads all
of the log, which is one task, and splits by threads, as many as Spark would run tasks: kernels and Arrow release the GIL. It
starts Spark in the background if that pays, and leaves the splits to it once it runs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TypeVar

from tidemark.conf.model import JobFile
from tidemark.jobs.epoch.read_parts import PartTask, SplitsTask, tasks_of_plan
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.epoch.write_parts import TaskStaging, TaskWriting, Writing, Written
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.spark.submitted import local_slots
from tidemark.sinks.sink import EpochSink, KeepsConnection, PartSink, PartWriter, SinkBusyError
from tidemark.sinks.staging import StagedTask, StagesParts
from tidemark.state.change_batch import LOG_PART, split_part
from tidemark.state.errors import SinkError, TidemarkError
from tidemark.state.plan import (
    Aside,
    AwaitedLog,
    AwaitedSplits,
    EnumeratorState,
    Exhausted,
    LogWork,
    PlanRecord,
    SnapshotWork,
    TableState,
)

T = TypeVar("T")

MAX_SPLITS_HERE = 16
"""Splits that the driver reads itself. A split has at most about `snapshot.split_rows` rows, whatever the server estimates."""
SPLITS_AT_ONCE = 4
"""Splits that a thread of the driver reads on one connection before it looks whether Spark has started."""
DRIVER_ROWS = 50_000
"""The default of `snapshot.driver_rows` on a cluster."""
DRIVER_BYTES = 16 << 20
"""The default of `log.driver_bytes` on a cluster."""
WORTH_SECONDS = 20.0
"""In local mode Spark is started if the driver would need longer for the rows that are left. Measured with two cores, 5,000,000
rows: Spark's start takes 4 s and 8 s of processor time, as much as 3,000,000 rows."""
ASSUMED_ROWS_PER_SECOND = 500_000.0
"""The assumed speed until the driver has read for a second."""
MAX_ATTEMPTS = 4
"""Attempts at a task in the driver's process: as many as Spark makes by default."""


class Engine:
    """One per run. `run` and `close` are called by one thread; `give_up` by any. `threads`: how many tasks of an epoch run in
    this process at the same time."""

    def __init__(self, context: RunContext, writing: Writing, sessions: SparkSessions) -> None:
        self._context = context
        self._writing = writing
        self._sessions = sessions
        self._given_up = threading.Event()
        self._kept: dict[int, KeepsConnection] = {}
        self._rows, self._seconds = 0, 0.0
        self.threads = local_slots(context.job) or 1

    def run(self, record: PlanRecord) -> list[Written]:
        """Runs a planned epoch. Returns its parts once the sink has all of them. Raises TidemarkError, and GivenUpError after
        `give_up`."""
        written = self._run(record)
        _require_all(record, written)
        return written

    def _run(self, record: PlanRecord) -> list[Written]:
        tasks = tasks_of_plan(self._context, record)
        sink, job = self._writing.sink, self._context.job
        if isinstance(sink, EpochSink):
            is_local = local_slots(job) is not None
            if isinstance(sink, StagesParts):
                staging = sink.staging(self._writing.job, is_local=is_local, tell=self._sessions.tell)
                if staging is not None:
                    with staging as stager:
                        staged = self._staged(record, tasks, TaskStaging(stager, self._writing.schemas))
                        return self._sessions.write_staged(tasks, staged, sink, self._writing)
            return self._sessions.write_epoch(tasks, sink, self._writing)
        writing = TaskWriting(sink, self._writing.job, self._writing.schemas)
        if self.is_small(record):
            return self._written_here(writing, deque(tasks), lambda _: True)
        if local_slots(job) is None or job.snapshot.driver_rows is not None:
            return self._sessions.write_tasks(tasks, writing)
        left = deque(_in_few_splits(tasks))
        written = self._written_here(writing, left, lambda rows: self._stays_here(record, rows))
        return [*written, *self._sessions.write_tasks(left, writing)] if left else written

    def _staged(self, record: PlanRecord, tasks: Sequence[PartTask], staging: TaskStaging) -> list[StagedTask]:
        """Lets tasks stage their rows for a sink that Spark writes: here, or by Spark. In local mode the driver reads splits if
        it does not take long, although Spark runs: no Python worker has to be started."""
        job = self._context.job
        of_splits = isinstance(record.plan.work, SnapshotWork) and local_slots(job) is not None
        reads_splits = of_splits and job.snapshot.driver_rows is None and not self._takes_long(record, 0)
        if self.is_small(record) or reads_splits:
            left = deque(_in_few_splits(tasks))
            return self._by_threads(left, lambda _: partial(self._staged_here, staging), lambda _: True)
        return self._sessions.stage_tasks(tasks, staging)

    def _staged_here(self, staging: TaskStaging, task: PartTask) -> list[StagedTask]:
        return [self._tried(lambda: staging.stage(task, self._given_up))]

    def _stays_here(self, record: PlanRecord, rows_of_epoch: int) -> bool:
        """False once Spark runs. Starts it if the driver would need long for all rows that are left."""
        if self._takes_long(record, rows_of_epoch):
            self._sessions.start_early()
        return not self._sessions.is_started

    def _takes_long(self, record: PlanRecord, rows_of_epoch: int) -> bool:
        left = _rows_left(record.state.tables, self._context.job.snapshot.split_rows) - rows_of_epoch
        rows_per_second = self._rows / self._seconds if self._seconds >= 1 else ASSUMED_ROWS_PER_SECOND
        return left > WORTH_SECONDS * rows_per_second

    def _written_here(
        self, writing: TaskWriting, tasks: deque[PartTask], goes_on: Callable[[int], bool]
    ) -> list[Written]:
        """Takes tasks and writes them here while `goes_on`, which is told how many rows were written."""
        began = time.monotonic()

        def writing_of(number: int) -> Callable[[PartTask], list[Written]]:
            return partial(self._written, replace(writing, writer=self._writer_of(number, writing.sink)))

        written = self._by_threads(tasks, writing_of, lambda parts: goes_on(sum(part.row_count for part in parts)))
        self._rows += sum(part.row_count for part in written)
        self._seconds += time.monotonic() - began
        return written

    def _by_threads(
        self,
        tasks: deque[PartTask],
        run_of: Callable[[int], Callable[[PartTask], list[T]]],
        goes_on: Callable[[list[T]], bool],
    ) -> list[T]:
        """Takes tasks and runs them by threads of this process while `goes_on`. It is asked before each task and told the
        results so far. `run_of` gives what runs a task in the thread of a number. Raises what a task raises, when no thread is
        at work any more."""
        results: list[T] = []
        errors: list[BaseException] = []
        asking = threading.Lock()

        def taken() -> PartTask | None:
            with asking:
                return tasks.popleft() if tasks and not errors and goes_on(results) else None

        def work(number: int) -> None:
            try:
                run = run_of(number)
                while (task := taken()) is not None:
                    results.extend(run(task))
            except BaseException as error:  # noqa: BLE001 -- raised again below
                errors.append(error)

        count = min(self.threads, self._context.job.snapshot.parallelism, len(tasks))
        threads = [
            threading.Thread(target=work, args=(number,), name=f"task {number}", daemon=True)
            for number in range(1, count)
        ]
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def _writer_of(self, number: int, sink: PartSink) -> PartWriter:
        """Returns the writer of a thread. It keeps its connection to the target from one epoch to the next."""
        if number not in self._kept:
            writer = sink.writer(self._writing.job)
            if not isinstance(writer, KeepsConnection):
                return writer
            self._kept[number] = writer.keeping()
        return self._kept[number]

    def close(self) -> None:
        """Closes what is open between epochs. Called by the thread that calls `run`."""
        for writer in self._kept.values():
            writer.close()

    def give_up(self) -> None:
        """Lets no further part take effect. Does not wait for `run` to end."""
        self._given_up.set()

    def is_small(self, record: PlanRecord) -> bool:
        """True for an epoch that this process runs."""
        return is_small(record.state, self._context.job)

    def _written(self, writing: TaskWriting, task: PartTask) -> list[Written]:
        """Writes the task. The next attempt skips what is durable."""
        return self._tried(lambda: list(writing.write(task, self._given_up)))

    def _tried(self, attempt: Callable[[], T]) -> T:
        """Calls `attempt` again after an error that may pass."""
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return attempt()
            except Exception as error:
                may_pass = not isinstance(error, TidemarkError) or isinstance(error, SinkBusyError)
                if self._given_up.is_set() or not may_pass:
                    raise
        return attempt()


def _in_few_splits(tasks: Sequence[PartTask]) -> Iterator[PartTask]:
    """Divides tasks, so that Spark or another thread may soon take the next one."""
    for task in tasks:
        if not isinstance(task.work, SplitsTask):
            yield task
            continue
        splits = task.work.splits
        for first in range(0, len(splits), SPLITS_AT_ONCE):
            yield replace(task, work=replace(task.work, splits=splits[first : first + SPLITS_AT_ONCE]))


def _require_all(record: PlanRecord, written: list[Written]) -> None:
    """Raises SinkError unless the sink has written, or already had, every part of the plan. Otherwise the epoch would be
    marked as committed without them."""
    match record.plan.work:
        case LogWork():
            planned = {LOG_PART}
        case SnapshotWork(tasks):
            planned = {split_part(split.id) for task in tasks for split in task}
    found = {part.part for part in written}
    if found != planned:
        raise SinkError(
            f"Epoch {record.plan.epoch} has the parts {sorted(planned)}, but {sorted(found)} were written.",
            "Start the job again: it writes what is missing. Please report this, it is a bug of Tidemark.",
        )


def is_small(state: EnumeratorState, job: JobFile) -> bool:
    """True if the planned epoch is read sooner than Spark would start."""
    match state.awaited:
        case AwaitedLog(size_bytes=size_bytes):
            if job.log.driver_bytes is not None:
                return size_bytes <= job.log.driver_bytes
            return size_bytes <= DRIVER_BYTES or local_slots(job) is not None
        case AwaitedSplits(first_id, end_id):
            few = end_id - first_id <= MAX_SPLITS_HERE
            limit = DRIVER_ROWS if job.snapshot.driver_rows is None else job.snapshot.driver_rows
            return few and _rows_to_read(state.tables, job.snapshot.split_rows) <= limit
        case None:
            return False


def _rows_to_read(tables: Sequence[TableState], split_rows: int) -> float:
    """Estimates the rows of all tables that the snapshot has not read before this epoch. Infinite if the epoch leaves some for
    later ones, or if nothing is known about a table."""
    if not all(isinstance(table.cursor, Exhausted) for table in tables):
        return inf
    return sum(_rows_of(table, split_rows) for table in tables if table.done_splits < table.planned_splits)


def _rows_of(table: TableState, split_rows: int) -> float:
    if not table.columns:
        return inf  # its one split may be of any size
    return table.planned_splits * split_rows if table.estimated_rows is None else table.estimated_rows


def _rows_left(tables: Sequence[TableState], split_rows: int) -> float:
    """Estimates the rows that epochs have not read before this one. Infinite if nothing is known about a table."""
    left = 0.0
    for table in tables:
        if isinstance(table.cursor, Aside):  # its rows are staged by a task beside the epochs
            continue
        if table.done_splits < table.planned_splits or not isinstance(table.cursor, Exhausted):
            estimated = _rows_of(table, split_rows) if table.estimated_rows is None else table.estimated_rows
            left += max(estimated - table.done_rows, 0)
    return left
