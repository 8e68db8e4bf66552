"""Runs a job from start to end: opens it, starts Spark's query, watches it and stops it.

lease → checks → checkpoint (job state durable) → sink prepared → query → epochs … → summary
"""

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemark.conf.model import JobFile
from tidemark.conf.quantities import Once
from tidemark.jobs.ending import INTERRUPTED, INTERRUPTION
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.monitoring.history import KeptEvents
from tidemark.jobs.monitoring.metrics import serve_metrics
from tidemark.jobs.monitoring.progress import JobProgress, RunSums, read_progress
from tidemark.jobs.monitoring.run_record import RunRecorder
from tidemark.jobs.monitoring.running_splits import RunningSplits
from tidemark.jobs.monitoring.spark_metrics import with_spark_metrics
from tidemark.jobs.run_summary import RunSummary
from tidemark.jobs.spark.executors import require_shared_checkpoint
from tidemark.jobs.spark.planner_ipc import PlannerIpc
from tidemark.jobs.spark.run_context import RunContext, save_context
from tidemark.jobs.spark.session import open_session, start_workers, stop_quietly
from tidemark.jobs.spark.source import TidemarkDataSource
from tidemark.jobs.startup import OpenedJob, open_job
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, from_text
from tidemark.state.failpoints import failpoint

POLL_SECONDS = 0.25


def run_job(job: JobFile, events: Events, summary: RunSummary, *, standby: bool = False) -> None:
    """Runs until the job is done or, with an interval as trigger, until SIGINT or SIGTERM: they let the running epoch
    finish. A second signal stops at once. Fills `summary`. Raises TidemarkError; everything committed is kept."""
    summary.job = job.job
    with serve_metrics(job, events) as served:
        _run_job(job, KeptEvents(served, Checkpoint.at(job.checkpoint).store), summary, standby=standby)


def _run_job(job: JobFile, events: KeptEvents, summary: RunSummary, *, standby: bool) -> None:
    started, recorder = time.monotonic(), RunRecorder(Checkpoint.at(job.checkpoint))
    with (
        open_job(job, events, standby=standby, recorder=recorder) as opened,
        events.failures(),
        _private_folder() as folder,
    ):
        held, planner_ipc = opened.held, PlannerIpc(folder)
        context = RunContext(job, held.server, held.state, planner_ipc)
        save_context(context, folder / "run")
        run = _Run(job, opened, events, planner_ipc, summary)
        session = open_session(job)
        with run.signals():
            try:
                start_workers(session)
                require_shared_checkpoint(session.sparkContext, context.checkpoint, held.state.job_uuid)
                run.follow(session, folder / "run")
            finally:
                stop_quietly(session)
        if summary.interrupted:
            recorder.ending, summary.exit_code = INTERRUPTION, INTERRUPTED
        summary.seconds = round(time.monotonic() - started, 3)
        events.note("finished", **summary.as_dict())


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that only this user can read: it contains the job with its secrets until the planner has read them."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(
        self, job: JobFile, opened: OpenedJob, events: Events, folder: PlannerIpc, summary: RunSummary
    ) -> None:
        self._job = job
        self._opened = opened
        self._events = events
        self._folder = folder
        self._checkpoint = Checkpoint.at(job.checkpoint)
        self._committed_epoch = self._checkpoint.committed_epoch()
        self._warned_epoch = self._committed_epoch
        self._shown: tuple[int, int, bool] | None = None
        self._progress: JobProgress | None = None
        self._running_splits = RunningSplits(self._checkpoint)
        self._published: dict[str, int] = {}
        self._signals = 0
        self._following = False
        self._epoch_seconds = 0.0
        self._lock = threading.Lock()
        self._summary = summary

    @contextmanager
    def signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._folder.ask_to_stop()
        if self._signals > 2 or not self._following:
            raise KeyboardInterrupt

    def follow(self, session: SparkSession, context_path: Path) -> None:
        self._following = True
        query = self._start(session, context_path)
        announced = False
        try:
            while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # takes fractions too
                if self._signals > 1:  # not raised in the handler: py4j would print it with its traceback
                    raise KeyboardInterrupt
                if self._signals and not announced:
                    announced = True
                    self._events.note("stopping", after_epoch=self._committed_epoch)
                if self._signals and self._is_idle(query):
                    break
                self._opened.held.require_lease()
                self._show(query)
        except StreamingQueryException as error:
            raise _cause_of(error) from None
        finally:
            if query.isActive:
                query.stop()
        self._summary.interrupted = self._signals > 0
        self._show(query, last=True)

    def _start(self, session: SparkSession, context_path: Path) -> StreamingQuery:
        session.dataSource.register(TidemarkDataSource)
        changes = session.readStream.format("tidemark").option("run", str(context_path)).load()
        writer = with_spark_metrics(changes).writeStream.queryName(self._job.job).foreachBatch(self._write_epoch)
        writer = writer.option("checkpointLocation", self._checkpoint.spark_folder())
        match self._job.trigger:
            case Once():
                writer = writer.trigger(availableNow=True)
            case every if self._job.mode == "full":
                writer = writer.trigger(availableNow=True)
            case every:
                writer = writer.trigger(processingTime=f"{round(every.interval_seconds * 1000)} milliseconds")
        return writer.start()

    def _write_epoch(self, batch: DataFrame, batch_id: int) -> None:
        """Writes an epoch. Spark calls this once per epoch, in a thread of the driver; the rows stay on the executors."""
        began, writing = time.monotonic(), self._opened.writing
        written = list(writing.write(batch))
        failpoint("driver.epoch_written")
        with self._lock:
            for epoch, rows, is_snapshot in written:
                self._committed_epoch = max(self._committed_epoch, epoch)
                if is_snapshot:
                    self._summary.rows += rows
                else:
                    self._summary.changes += rows
            self._summary.epochs += 1
            self._epoch_seconds += time.monotonic() - began
        self._folder.note_written(self._committed_epoch)
        # Spark commits one batch late: all epochs before this one are committed for certain.
        writing.sink.committed_before(writing.job, self._committed_epoch)

    def _is_idle(self, query: StreamingQuery) -> bool:
        status = query.status
        return not query.isActive or not (status["isTriggerActive"] or status["isDataAvailable"])

    def _show(self, query: StreamingQuery, *, last: bool = False) -> None:
        done = last and not self._summary.interrupted
        idle = done or (self._summary.epochs > 0 and self._is_idle(query))
        epochs = self._checkpoint.plan_epochs()
        latest = max(epochs, default=0)
        self._show_warnings(epochs)
        if not last and self._shown == (latest, self._committed_epoch, idle):
            self._show_running_splits(latest)
            return
        self._shown = (latest, self._committed_epoch, idle)
        progress = read_progress(
            self._checkpoint,
            self._job,
            self._opened.held.state,
            self._committed_epoch,
            RunSums(self._summary.epochs, self._epoch_seconds, self._summary.changes, idle),
        )
        self._progress, self._published = progress, {}
        if progress is None:
            return
        self._events.progress(progress)
        if last:
            self._summary.phase, self._summary.position = progress.phase, progress.position
            self._summary.tables = [asdict(table) for table in progress.tables]

    def _show_running_splits(self, latest: int) -> None:
        """Shows splits as they are read, for a snapshot's epoch may take minutes."""
        if self._progress is None or latest <= self._committed_epoch:
            return
        published = self._running_splits.count(latest)
        if published != self._published:
            self._published = published
            self._events.progress(self._progress.with_published(published))

    def _show_warnings(self, epochs: list[int]) -> None:
        """Shows the warnings about partitions, which are in plans."""
        for epoch in epochs if self._opened.held.state.partitions is not None else []:
            if epoch <= self._warned_epoch:
                continue
            try:
                warnings = self._checkpoint.plan(epoch).warnings
            except CheckpointError:
                if epoch in self._checkpoint.plan_epochs():
                    raise
                continue  # the planner removed the plan: it is old
            self._warned_epoch = epoch
            for text in warnings:
                self._events.note("warning", text=text)


def _cause_of(error: StreamingQueryException) -> Exception:
    """Returns the TidemarkError that a worker raised, or else the query's own error."""
    known = from_text(str(error))
    return error if known is None else known
