"""Runs a job from its start to its end: source checked, sink prepared, Spark's query started, watched and stopped.

lease → checks → checkpoint (job state durable) → sink prepared → query → epochs … → summary
"""

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from conf.model import JobFile
from conf.quantities import Once
from jobs.checkpoint import Checkpoint
from jobs.context import RunContext, save_context
from jobs.events import Events
from jobs.executors import require_shared_checkpoint
from jobs.history import KeptEvents
from jobs.metrics import serve_metrics
from jobs.observed import observed
from jobs.opening import Opened, open_job
from jobs.progress import RunSums, read_progress
from jobs.run_folder import RunFolder
from jobs.session import open_session, start_workers, stop_quietly
from jobs.source import TidemarkDataSource
from state.errors import CheckpointError, from_text
from state.failpoints import failpoint

POLL_SECONDS = 0.25


@dataclass(slots=True)
class Finished:
    """What a run did. `rows` are a snapshot's, `changes` the log's, as the sink took them in this run."""

    job: str
    interrupted: bool = False
    phase: str = ""
    epochs: int = 0
    rows: int = 0
    changes: int = 0
    seconds: float = 0.0
    position: str = ""
    tables: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_job(job: JobFile, events: Events, *, standby: bool = False) -> Finished:
    """Runs until the job is done, or, with an interval as trigger, until SIGINT or SIGTERM: they let the running epoch
    finish. A second signal stops at once. Raises TidemarkError; whatever was committed stays."""
    with serve_metrics(job, events) as served:
        return _run_job(job, KeptEvents(served, Checkpoint.at(job.checkpoint).store), standby=standby)


def _run_job(job: JobFile, events: KeptEvents, *, standby: bool) -> Finished:
    started = time.monotonic()
    with open_job(job, events, standby=standby) as opened, events.failures(), _private_folder() as folder:
        held, run_folder = opened.held, RunFolder(folder)
        context = RunContext(job, held.server, held.state, run_folder)
        save_context(context, folder / "run")
        run = _Run(job, opened, events, run_folder)
        session = open_session(job)
        with run.signals():
            try:
                start_workers(session)
                require_shared_checkpoint(session.sparkContext, context.checkpoint, held.state.job_uuid)
                run.follow(session, folder / "run")
            finally:
                stop_quietly(session)
        run.finished.seconds = round(time.monotonic() - started, 3)
        events.note("finished", **run.finished.as_dict())
        return run.finished


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Readable by this user alone, for it holds the job with its secrets while the job runs."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(self, job: JobFile, opened: Opened, events: Events, folder: RunFolder) -> None:
        self._job = job
        self._opened = opened
        self._events = events
        self._folder = folder
        self._checkpoint = Checkpoint.at(job.checkpoint)
        self._committed_epoch = self._checkpoint.committed_epoch()
        self._warned_epoch = self._committed_epoch
        self._shown: tuple[int, int, bool] | None = None
        self._signals = 0
        self._following = False
        self._epoch_seconds = 0.0
        self._lock = threading.Lock()
        self.finished = Finished(job.job)

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
                if self._signals > 1:  # not raised where it comes: py4j would show it, with its traceback
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
        self.finished.interrupted = self._signals > 0
        self._show(query, last=True)

    def _start(self, session: SparkSession, context_path: Path) -> StreamingQuery:
        session.dataSource.register(TidemarkDataSource)
        changes = session.readStream.format("tidemark").option("run", str(context_path)).load()
        writer = observed(changes).writeStream.queryName(self._job.job).foreachBatch(self._write_epoch)
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
        """Spark calls this in a thread of the driver, once an epoch; the rows stay on the executors."""
        began, writing = time.monotonic(), self._opened.writing
        written = list(writing.write(batch))
        failpoint("driver.epoch_written")
        with self._lock:
            for epoch, rows, is_snapshot in written:
                self._committed_epoch = max(self._committed_epoch, epoch)
                if is_snapshot:
                    self.finished.rows += rows
                else:
                    self.finished.changes += rows
            self.finished.epochs += 1
            self._epoch_seconds += time.monotonic() - began
        self._folder.note_written(self._committed_epoch)
        # Spark commits one batch late; what lies before this epoch is committed for certain.
        writing.sink.committed_before(writing.job, self._committed_epoch)

    def _is_idle(self, query: StreamingQuery) -> bool:
        status = query.status
        return not query.isActive or not (status["isTriggerActive"] or status["isDataAvailable"])

    def _show(self, query: StreamingQuery, *, last: bool = False) -> None:
        done = last and not self.finished.interrupted
        caught_up = done or (self.finished.epochs > 0 and self._is_idle(query))
        epochs = self._checkpoint.plan_epochs()
        latest = max(epochs, default=0)
        self._show_warnings(epochs)
        if not last and self._shown == (latest, self._committed_epoch, caught_up):
            return
        self._shown = (latest, self._committed_epoch, caught_up)
        progress = read_progress(
            self._checkpoint,
            self._job,
            self._opened.held.state,
            self._committed_epoch,
            RunSums(self.finished.epochs, self._epoch_seconds, self.finished.changes, caught_up),
        )
        if progress is None:
            return
        self._events.progress(progress)
        if last:
            self.finished.phase, self.finished.position = progress.phase, progress.position
            self.finished.tables = [asdict(table) for table in progress.tables]

    def _show_warnings(self, epochs: list[int]) -> None:
        """Those of partitions, which plans have."""
        for epoch in epochs if self._opened.held.state.partitions is not None else []:
            if epoch <= self._warned_epoch:
                continue
            try:
                warnings = self._checkpoint.plan(epoch).warnings
            except CheckpointError:
                if epoch in self._checkpoint.plan_epochs():
                    raise
                continue  # two epochs later it is not needed any more
            self._warned_epoch = epoch
            for text in warnings:
                self._events.note("warning", text=text)


def _cause_of(error: StreamingQueryException) -> Exception:
    """The TidemarkError that a worker raised, or the query's own error."""
    known = from_text(str(error))
    return error if known is None else known
