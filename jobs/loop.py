"""The loop of a run: plans epochs, has them run, and commits them, one after the other.

    next_epoch → the plan is durable → the engine runs it → the sink has it → marked as committed → next_epoch …

The mark is durable before the next epoch is planned, because planning lets the source drop the log of this one.
"""

import math
import threading
import time
from collections.abc import Collection

from tidemark.enumerator.enumerator import in_mode, of_job
from tidemark.jobs.engine import Engine
from tidemark.jobs.epoch.aside_reads import AsideReads
from tidemark.jobs.epoch.label_watch import LabelWatch
from tidemark.jobs.epoch.planner import Planner
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.epoch.write_parts import Writing, Written
from tidemark.jobs.monitoring.events import Notes
from tidemark.jobs.monitoring.progress import JobProgress, RunSums, progress_of
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.jobs.recovered_state import recover_state
from tidemark.jobs.signals.repairs import goes_on, unfinished
from tidemark.jobs.signals.steering import RESUME, resume_of
from tidemark.sinks.sink import KnowsCopies, added_up
from tidemark.state.errors import PausedError, TableLockedError, TidemarkError
from tidemark.state.failpoints import failpoint
from tidemark.state.phase import Phase
from tidemark.state.plan import AwaitedLog, EnumeratorState, Exhausted, PlanRecord, SnapshotWork
from tidemark.state.signals import UNSTEERED, Steering
from tidemark.state.table import TableId

WAIT_SECONDS = 0.1
"""The time between two looks whether commits of the log have become visible."""
MAX_PAUSE_SECONDS = 1.0
"""The longest time between two looks at the log while splits wait (`snapshot.max_rows_per_second`)."""
WARN_SECONDS = 10.0
"""How long a run waits for commits of the log to become visible before it says so."""
LOCKED_SECONDS = 600.0
"""How long a run that ends by itself waits for a table that another session keeps locked."""
FORGET_SECONDS = 10.0
"""The least time between two calls that let the sink's ledger drop old entries."""


class EpochLoop:
    """One per run. `run` blocks until the run is done; another thread may call `stop` and read the attributes.

    `interval_seconds`: the trigger's interval, None to end at the log's present end. `steering`: what signals have set.
    `aside`: reads tables beside the epochs; None: tables without a key are one split each.
    `running`: the plan of the epoch in
    work. `progress`: after the newest committed epoch, None before the first plan.
    """

    def __init__(
        self,
        context: RunContext,
        writing: Writing,
        engine: Engine,
        summary: RunSummary,
        notes: Notes,
        *,
        interval_seconds: float | None,
        steering: Steering = UNSTEERED,
        aside: AsideReads | None = None,
    ) -> None:
        self._context = context
        self._writing = writing
        self._engine = engine
        self._summary = summary
        self._notes = notes
        self._interval_seconds = interval_seconds
        self._steering = steering
        self._aside = aside
        self._labels = LabelWatch(writing)
        self._stop = threading.Event()
        self._epoch_seconds = 0.0
        self._forget_at = 0.0
        self._splits_at = 0.0
        self._idle_after: int | None = None
        self._waits = 0
        self._is_lag_told = False
        self._locked_at = dict[TableId, float]()
        self._locked_told = set[TableId]()
        self._has_parts = bool(unfinished(context.checkpoint, context.state))
        self.must_open_again = False
        """The next batch of a part of a table is to be read. The running epoch was the last one."""
        self.committed = self._marked = context.checkpoint.committed_epoch()
        self._last_mark: int | None = None
        self.running: PlanRecord | None = None
        self.progress: JobProgress | None = None

    def stop(self) -> None:
        """Lets the epoch in work finish; no further one is planned."""
        self._stop.set()

    def run(self, *, max_epochs: int | None = None) -> None:
        """Raises TidemarkError; everything committed is kept. While the job is paused, no epoch runs. One exception: tables
        can leave only once the planned epoch is committed (`max_epochs`)."""
        planner = self._context.planner()
        if self._steering.paused_us is not None and max_epochs is None:
            self._show_paused(planner)
            self._stop.wait()
            return
        if self._interval_seconds is None:
            planner.end_at_log_end()
        try:
            while not self._stop.is_set() and (max_epochs is None or self._summary.epochs < max_epochs):
                if max_epochs is None and self._reads_on(planner):
                    self.must_open_again = True
                    return
                self._look_at_locked(planner)
                began = time.monotonic()
                waits_until = self._splits_at
                stopped = self._steering.stopped_us is not None
                tables = frozenset(self._steering.stopped_tables)
                wait = stopped or began < waits_until
                epoch = planner.next_epoch(self.committed, splits_wait=wait, stopped=tables, aside=self._aside)
                if epoch > self.committed:
                    record = planner.record(epoch)
                    if self._aside is not None:
                        self._aside.begin(self._context, record)
                    self._labels.look(planner)
                    self._run(planner, record)
                    self._mark()
                    if self._interval_seconds is None or self._has_parts or not _reads_all(record):
                        continue
                elif (
                    planner.has_splits_left(self.committed)
                    and (stopped or planner.is_stopped(self.committed, tables))
                    and not planner.reads_aside(self.committed)
                ):
                    if self._interval_seconds is None:
                        raise _snapshot_stopped(planner.state_after(self.committed), tables, of_job=stopped)
                elif planner.waits(self.committed):
                    if planner.lag_seconds is not None:
                        self._wait_for_replica(planner.lag_seconds)
                    elif planner.locked:
                        self._wait_for_tables(planner)
                    elif planner.reads_aside(self.committed):
                        self._stop.wait(min(MAX_PAUSE_SECONDS, self._interval_seconds or WAIT_SECONDS))
                    elif began < waits_until:
                        self._stop.wait(min(MAX_PAUSE_SECONDS, waits_until - began))
                    else:
                        self._wait_for_commits()
                    continue
                else:
                    if self._idle_after != self.committed:
                        self._show(planner, idle=True)
                        self._idle_after = self.committed
                    if self._interval_seconds is None:
                        return
                self._stop.wait(max(0.0, began + self._interval_seconds - time.monotonic()))
        finally:
            self._engine.close()
            self._mark()
            self._keep_seen()
            planner.save_history()

    def _keep_seen(self) -> None:
        """Without it, the next start takes longer."""
        if isinstance(self._writing.sink, KnowsCopies):
            try:
                self._writing.sink.keep_seen()
            except (OSError, TidemarkError) as error:
                text = (
                    f"The next start asks Spark about all copies: what this run has seen of them can't be kept: {error}"
                )
                self._notes.add("warning", text=text)

    def _reads_on(self, planner: Planner) -> bool:
        """True if the next batch of a part of a table can be read now. An epoch that is planned already comes first."""
        if not self._has_parts or self._steering.stopped_us is not None or planner.is_planned(self.committed):
            return False
        return goes_on(planner.state_after(self.committed), self._context.state)

    def _wait_for_replica(self, lag_seconds: float) -> None:
        """Waits a little. Says once that splits wait."""
        if not self._is_lag_told:
            self._is_lag_told = True
            lag = (
                "does not follow its own source"
                if math.isinf(lag_seconds)
                else f"is {lag_seconds:,.0f} s behind its own"
            )
            text = f"No splits are read now: the source is a replica that {lag} (snapshot.max_replica_lag_seconds)."
            self._notes.add("warning", text=text)
        self._stop.wait(MAX_PAUSE_SECONDS)

    def _look_at_locked(self, planner: Planner) -> None:
        """Says once which session keeps a table locked, if it does for long."""
        now = time.monotonic()
        self._locked_at = {table: self._locked_at.get(table, now) for table in planner.locked}
        for table, began in self._locked_at.items():
            if now - began >= WARN_SECONDS and table not in self._locked_told:
                self._locked_told.add(table)
                text = f"No rows of it are read now: {planner.locked[table]} The log is followed."
                self._notes.add("warning", table=str(table), text=text)

    def _wait_for_tables(self, planner: Planner) -> None:
        """Waits a little. A run that ends by itself raises TableLockedError after LOCKED_SECONDS."""
        for table, began in self._locked_at.items():
            if self._interval_seconds is None and time.monotonic() - began >= LOCKED_SECONDS:
                text = f"No rows of {table} could be read for {LOCKED_SECONDS:.0f} s: {planner.locked[table]}"
                raise TableLockedError(text, "Then run the job again.", table)
        self._stop.wait(MAX_PAUSE_SECONDS)

    def _wait_for_commits(self) -> None:
        """Waits a little. Says once that the run waits, if it does for long."""
        self._waits += 1
        if self._waits == int(WARN_SECONDS / WAIT_SECONDS):
            text = (
                "More splits are read once all transactions that the log has are visible. Some have not been for "
                f"{WARN_SECONDS:.0f} s: perhaps their commits wait for a synchronous standby (pg_stat_activity shows SyncRep)."
            )
            self._notes.add("warning", text=text)
        self._stop.wait(WAIT_SECONDS)

    def _run(self, planner: Planner, record: PlanRecord) -> None:
        """Runs an epoch to its end."""
        began, epoch, writing = time.monotonic(), record.plan.epoch, self._writing
        self._waits = 0
        for text in record.warnings:
            self._notes.add("warning", text=text)
        self.running = record
        now = in_mode(of_job(record.state, self._context.state), self._context.job.mode)
        self.progress = self._progress(now, record)
        written = self._engine.run(record)
        failpoint("driver.epoch_written")
        planner.note_written(epoch)
        self.running, self.committed = None, epoch
        self._epoch_seconds += time.monotonic() - began
        self._count(written)
        max_rows = self._context.job.snapshot.max_rows_per_second
        if max_rows is not None and not _reads_pages(record):
            rows = sum(part.row_count for part in written if part.is_snapshot)
            self._splits_at = max(self._splits_at, began + rows / max_rows)
        self._show(planner)
        if time.monotonic() >= self._forget_at:
            writing.sink.committed_before(writing.job, epoch)
            self._forget_at = time.monotonic() + FORGET_SECONDS

    def _mark(self) -> None:
        """Marks the newest epoch that this run has written as committed."""
        if self.committed != self._marked:
            self._context.checkpoint.mark_committed(self.committed, self._last_mark)
            self._marked = self._last_mark = self.committed
            failpoint("driver.epoch_committed")

    def _count(self, written: list[Written]) -> None:
        self._summary.epochs += 1
        self._summary.rows += sum(part.row_count for part in written if part.is_snapshot)
        self._summary.changes += sum(part.row_count for part in written if not part.is_snapshot)
        for bad in added_up(value for part in written for value in part.bad_values):
            self._summary.bad_values += bad.count
            facts = {"table": str(bad.table), "column": bad.column, "policy": bad.policy, "values": bad.count}
            self._notes.add("warning", **facts, text=str(bad))

    def _show(self, planner: Planner, *, idle: bool = False) -> None:
        """Shows the state after the newest epoch, which is committed."""
        newest = planner.record(self.committed) if self.committed else None
        self.progress = self._progress(planner.state_after(self.committed), newest, idle=idle)

    def _show_paused(self, planner: Planner) -> None:
        """The same before the first epoch of this run. An earlier run may have planned the next one: then the planner can't
        tell the state after the committed one any more."""
        context = self._context
        newest = planner.record(self.committed) if self.committed else None
        now = recover_state(context.checkpoint, context.job, context.state, committed=self.committed)
        self.progress = self._progress(now, newest)

    def _progress(self, state: EnumeratorState, newest: PlanRecord | None, *, idle: bool = False) -> JobProgress:
        sums = RunSums(self._summary.epochs, self._epoch_seconds, self._summary.changes, idle)
        return progress_of(self._context.state, state, newest, self.committed, sums).steered(self._steering)


def _reads_pages(record: PlanRecord) -> bool:
    """True if the epoch reads chunks of a table without a key, all of which see one snapshot: to wait would only keep it."""
    work = record.plan.work
    return isinstance(work, SnapshotWork) and any(split.pages is not None for task in work.tasks for split in task)


def _reads_all(record: PlanRecord) -> bool:
    """True if the epoch reads the log up to the end that it had when the epoch was planned."""
    awaited = record.state.awaited
    is_last = isinstance(awaited, AwaitedLog) and (record.plan.bytes_behind or 0) <= awaited.size_bytes
    return is_last and record.plan.phase is Phase.STREAM


def _snapshot_stopped(state: EnumeratorState, tables: Collection[TableId], *, of_job: bool) -> PausedError:
    unread = [str(table.table) for table in state.tables if not isinstance(table.cursor, Exhausted)]
    resumes = [RESUME] if of_job else []
    resumes += [resume_of(table) for table in sorted(tables)]
    more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
    return PausedError(
        f"A signal has stopped the reading of rows: {', '.join(unread[:3])}{more} is not copied completely. "
        "The log was followed.",
        f"{', '.join(resumes)}, then run the job again.",
    )
