"""Runs an epoch's tasks: few rows and little log in the driver's own process, everything else as a Spark job.

Both run the same function (`epoch/write_parts.py`, `TaskWriting`). A run that finds little to do never starts a JVM.
In local mode the driver's process is as good as a Spark task. So it reads all of the log, which is one task, and splits while
Spark starts.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from tidemark.conf.model import JobFile
from tidemark.jobs.epoch.read_parts import PartTask, SplitsTask, tasks_of_plan
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.epoch.write_parts import TaskWriting, Writing, Written
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.spark.submitted import is_local
from tidemark.sinks.sink import EpochSink, KeepsConnection, PartSink, PartWriter, SinkBusyError
from tidemark.state.change_batch import LOG_PART, split_part
from tidemark.state.errors import SinkError, TidemarkError
from tidemark.state.plan import (
    AwaitedLog,
    AwaitedSplits,
    EnumeratorState,
    Exhausted,
    LogWork,
    PlanRecord,
    SnapshotWork,
    TableState,
)

MAX_SPLITS_HERE = 16
"""Splits that the driver reads itself. A split has at most about `snapshot.split_rows` rows, whatever the server estimates."""
SPLITS_AT_ONCE = 4
"""Splits that the driver reads on one connection before it looks whether Spark has started."""
DRIVER_BYTES = 16 << 20
"""The default of `log.driver_bytes` on a cluster."""
MAX_ATTEMPTS = 4
"""Attempts at a task in the driver's process: as many as Spark makes by default."""


class Engine:
    """One per run. `run` and `close` are called by one thread; `give_up` by any."""

    def __init__(self, context: RunContext, writing: Writing, sessions: SparkSessions) -> None:
        self._context = context
        self._writing = writing
        self._sessions = sessions
        self._given_up = threading.Event()
        self._kept: KeepsConnection | None = None

    def run(self, record: PlanRecord) -> list[Written]:
        """Runs a planned epoch. Returns its parts once the sink has all of them. Raises TidemarkError, and GivenUpError after
        `give_up`."""
        written = self._run(record)
        _require_all(record, written)
        return written

    def _run(self, record: PlanRecord) -> list[Written]:
        tasks = tasks_of_plan(self._context, record)
        sink = self._writing.sink
        if isinstance(sink, EpochSink):
            return self._sessions.write_epoch(tasks, sink, self._writing)
        writing = TaskWriting(sink, self._writing.job, self._writing.schemas)
        if self.is_small(record):
            here = replace(writing, writer=self._writer_here(sink))
            return [written for task in tasks for written in self._written_here(here, task)]
        if not is_local(self._context.job) or not self._context.job.snapshot.driver_rows:
            return self._sessions.write_tasks(tasks, writing)
        written, left = self._until_spark_runs(sink, writing, tasks)
        return [*written, *self._sessions.write_tasks(left, writing)] if left else written

    def _until_spark_runs(
        self, sink: PartSink, writing: TaskWriting, tasks: Sequence[PartTask]
    ) -> tuple[list[Written], list[PartTask]]:
        """Runs tasks while Spark starts. Returns what was written, and the tasks that are left. Tables without a key are left:
        nobody knows how large their splits are."""
        self._sessions.start_early()
        few, others = _in_few_splits(tasks)
        here = replace(writing, writer=self._writer_here(sink))
        written: list[Written] = []
        while few and self._sessions.is_starting:
            written += self._written_here(here, few.popleft())
        return written, [*others, *few]

    def _writer_here(self, sink: PartSink) -> PartWriter:
        """Returns the writer of this process. It keeps its connection to the target from one epoch to the next."""
        if self._kept is None:
            writer = sink.writer(self._writing.job)
            if not isinstance(writer, KeepsConnection):
                return writer
            self._kept = writer.keeping()
        return self._kept

    def close(self) -> None:
        """Closes what is open between epochs. Called by the thread that calls `run`."""
        if self._kept is not None:
            self._kept.close()

    def give_up(self) -> None:
        """Lets no further part take effect. Does not wait for `run` to end."""
        self._given_up.set()

    def is_small(self, record: PlanRecord) -> bool:
        """True for an epoch that this process runs."""
        return is_small(record.state, self._context.job)

    def _written_here(self, writing: TaskWriting, task: PartTask) -> Iterator[Written]:
        """Tries again after an error that may pass: what is durable is skipped by the next attempt."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                yield from list(writing.write(task, self._given_up))
            except Exception as error:
                may_pass = not isinstance(error, TidemarkError) or isinstance(error, SinkBusyError)
                if attempt == MAX_ATTEMPTS or self._given_up.is_set() or not may_pass:
                    raise
            else:
                return


def _in_few_splits(tasks: Sequence[PartTask]) -> tuple[deque[PartTask], list[PartTask]]:
    """Divides tasks into those of a few splits of tables with a key, and all others."""
    few, others = deque[PartTask](), list[PartTask]()
    for task in tasks:
        if not isinstance(task.work, SplitsTask):
            others.append(task)
            continue
        splits = task.work.splits
        for first in range(0, len(splits), SPLITS_AT_ONCE):
            part = splits[first : first + SPLITS_AT_ONCE]
            divided = replace(task, work=replace(task.work, splits=part))
            (few if all(split.columns for split in part) else others).append(divided)
    return few, others


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
            limit = job.log.driver_bytes
            return (limit is None and is_local(job)) or size_bytes <= (DRIVER_BYTES if limit is None else limit)
        case AwaitedSplits(first_id, end_id):
            few = end_id - first_id <= MAX_SPLITS_HERE
            return few and _rows_to_read(state.tables, job.snapshot.split_rows) <= job.snapshot.driver_rows
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
