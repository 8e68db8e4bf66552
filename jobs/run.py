"""Runs a job from start to end: opens it, lets the epochs run in a thread, watches them and stops them.

lease → checks → checkpoint (job state durable) → sink prepared → epochs … → summary
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType

from tidemark.conf.model import JobFile
from tidemark.conf.quantities import Every
from tidemark.jobs.engine import Engine
from tidemark.jobs.epoch.aside_reads import AsideReads
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.loop import EpochLoop
from tidemark.jobs.monitoring.ending import INTERRUPTED, INTERRUPTION
from tidemark.jobs.monitoring.events import Events, Notes, told_outages
from tidemark.jobs.monitoring.history import KeptEvents
from tidemark.jobs.monitoring.metrics import serve_metrics
from tidemark.jobs.monitoring.progress import JobProgress
from tidemark.jobs.monitoring.run_record import RecordedEvents, RunRecorder
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.jobs.monitoring.running_splits import RunningSplits
from tidemark.jobs.monitoring.webhook import notifying
from tidemark.jobs.recovered_state import recover_state
from tidemark.jobs.recovery.server_upgrade import (
    ATTEMPTS,
    leave_mark,
    log_end_of,
    require_outlives_upgrade,
    still_written,
)
from tidemark.jobs.signals.repairs import require_parts_read
from tidemark.jobs.signals.steering import steering_at
from tidemark.jobs.sinks import make_sink, sink_needs
from tidemark.jobs.spark.sessions import SparkSessions, has_session
from tidemark.jobs.spark.submitted import local_slots, was_submitted
from tidemark.jobs.startup import OpenedJob, open_job, require_another_startup
from tidemark.jobs.tables.parking import is_due, known_tables, present_us, require_none_parked, waiting_tables
from tidemark.sinks.sink import JobIdentity, KnowsCopies
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import TidemarkError
from tidemark.state.phase import Phase
from tidemark.state.plan import Exhausted, Untouched

POLL_SECONDS = 0.25
SIGNALS_SECONDS = 2.0
"""The time between two looks for signals."""


def run_job(
    job: JobFile, events: Events, summary: RunSummary, *, standby: bool = False, before_upgrade: bool = False
) -> None:
    """Runs until the job is done or, with an interval as trigger, until SIGINT or SIGTERM: they let the running epoch
    finish. A second signal stops at once. Fills `summary`. Raises TidemarkError; everything committed is kept.
    `before_upgrade`: `trigger` is once, and after the run the source's server is upgraded (jobs/recovery/server_upgrade.py)."""
    if before_upgrade:
        require_outlives_upgrade(job)
    summary.job = job.job
    notes = Notes()
    recorder = RunRecorder(Checkpoint.at(job.checkpoint))
    with notifying(job, events, notes, summary) as told, serve_metrics(job, told) as served:
        kept = KeptEvents(RecordedEvents(served, recorder), Checkpoint.at(job.checkpoint).store)
        try:
            with told_outages(notes):
                _run_job(job, kept, recorder, notes, summary, standby=standby, before_upgrade=before_upgrade)
        finally:
            notes.pass_on(served)


def _run_job(
    job: JobFile,
    events: KeptEvents,
    recorder: RunRecorder,
    notes: Notes,
    summary: RunSummary,
    *,
    standby: bool,
    before_upgrade: bool,
) -> None:
    started = time.monotonic()
    sessions = SparkSessions(job, notes)
    aside = AsideReads() if local_slots(job) is not None else AsideReads(sessions.read_aside)
    needs_spark = _needs_spark(job)
    try:
        if needs_spark and not standby:
            sessions.start_early()
        with open_job(job, events, standby=standby, recorder=recorder) as opened, events.failures():
            for text in job.clear_text_warnings():
                events.note("warning", text=text)
            if needs_spark or (sink_needs(job.sink).spark is not None and has_session()):
                sessions.open(opened.held.state.job_uuid)
            for attempts_left in reversed(range(ATTEMPTS if before_upgrade else 1)):
                before = log_end_of(job, opened.held.state) if before_upgrade else None
                while not _ran_to_end(job, opened, sessions, aside, events, notes, summary):
                    opened = opened.again()
                opened.held.require_lease()
                if before is None or summary.interrupted or leave_mark(job, opened.held.state, before, events):
                    break
                if not attempts_left:
                    raise still_written()
                opened = opened.again()
            if summary.interrupted:
                recorder.ending, summary.exit_code = INTERRUPTION, INTERRUPTED
            else:
                require_none_parked(job, opened.held.state)
                require_parts_read(Checkpoint.at(job.checkpoint), opened.held.state, opened.held.steering)
            summary.seconds = round(time.monotonic() - started, 3)
            events.note("finished", **summary.as_dict())
    finally:
        sessions.stop()


def _ran_to_end(
    job: JobFile,
    opened: OpenedJob,
    sessions: SparkSessions,
    aside: AsideReads,
    events: Events,
    notes: Notes,
    summary: RunSummary,
) -> bool:
    """Runs epochs. Returns False if the job must be opened again: a table was parked, a signal was given or goes on, or a new
    table was found."""
    context = RunContext(opened.job, opened.held.server, opened.held.state)
    run = _Run(context, opened, sessions, aside, events, notes, summary)
    try:
        with run.signals():
            run.follow()
    except TidemarkError as error:
        notes.pass_on(events)
        require_another_startup(error, job, opened, events)
        summary.interrupted = run.is_interrupted
        return summary.interrupted
    return summary.interrupted or not (run.must_open_again or run.reads_on or opened.finishes)


def _needs_spark(job: JobFile) -> bool:
    """True if this run surely needs Spark, which then starts while the source is being checked. A first start does not know
    yet how many rows there are, and in local mode the driver begins without Spark. Under spark-submit always: a cluster manager
    takes a driver without a session for one that failed. A sink that Spark writes needs it unless perhaps nothing is new."""
    if was_submitted():
        return True
    if sink_needs(job.sink).spark is not None:
        return not _may_write_nothing(job)
    if local_slots(job) is not None and job.snapshot.driver_rows is None:
        return False
    checkpoint = Checkpoint.at(job.checkpoint)
    try:
        state = checkpoint.job_state()
        if state is None or steering_at(checkpoint).paused_us is not None:
            return False
        return any(
            not isinstance(table.cursor, Untouched | Exhausted)
            for table in recover_state(checkpoint, job, state).tables
        )
    except (TidemarkError, OSError):
        return False  # the job will not start


def _may_write_nothing(job: JobFile) -> bool:
    """True if this run ends once it has followed the log to its end, and the sink knows that its copies are as the job has left
    them. If changes are to be written after all, Spark starts then. A run that goes on and on starts it at once, so that the
    first change does not wait for it."""
    if isinstance(job.trigger, Every) and job.mode != "full":
        return False
    checkpoint = Checkpoint.at(job.checkpoint)
    try:
        state = checkpoint.job_state()
        if state is None or checkpoint.committed_epoch() < max(checkpoint.plan_epochs(), default=0):
            return False
        if recover_state(checkpoint, job, state).phase not in {Phase.STREAM, Phase.DONE}:
            return False
        sink = make_sink(job)
        identity = JobIdentity(state.job_uuid, state.job_name)
        return isinstance(sink, KnowsCopies) and sink.are_as_left(identity, state.outputs)
    except (TidemarkError, OSError):
        return False  # the start says what is wrong


class _Run:
    """The driver's main thread: signals, lease, display. The epochs run in another thread."""

    def __init__(
        self,
        context: RunContext,
        opened: OpenedJob,
        sessions: SparkSessions,
        aside: AsideReads,
        events: Events,
        notes: Notes,
        summary: RunSummary,
    ) -> None:
        self._discovery = opened.discovery
        self._rows = opened.rows
        self._known = known_tables(context.job, context.state, opened.held.looked_at_us)
        self._waiting = waiting_tables(context.job, context.state, opened.held.looked_at_us)
        self._max_epochs = summary.epochs + 1 if opened.finishes else None
        self._held = opened.held
        self._checkpoint = context.checkpoint
        self._events = events
        self._notes = notes
        self._summary = summary
        self._engine = Engine(context, opened.writing, sessions)
        every = context.job.trigger
        # Mode `full` ends by itself, whatever the trigger.
        interval_seconds = every.interval_seconds if isinstance(every, Every) and context.job.mode != "full" else None
        steering = opened.held.steering
        self._loop = EpochLoop(
            context,
            opened.writing,
            self._engine,
            summary,
            notes,
            interval_seconds=interval_seconds,
            steering=steering,
            aside=aside,
        )
        self._running_splits = RunningSplits(context.checkpoint)
        self._shown: JobProgress | None = None
        self._published: dict[str, int] = {}
        self._signals = 0
        self._is_stop_announced = False
        self._looked_at = time.monotonic()
        self._looks_for_tables = interval_seconds is not None and steering.paused_us is None
        self.must_open_again = False
        """`tidemark signal` has asked for something, or there is a new table. The running epoch was the last one."""
        self._failure: BaseException | None = None
        self._ended = threading.Event()

    @contextmanager
    def signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @property
    def is_interrupted(self) -> bool:
        return self._signals > 0

    @property
    def reads_on(self) -> bool:
        """True if the run has ended so that the next batch of a part of a table is read."""
        return self._loop.must_open_again

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._loop.stop()
        if self._signals > 2:
            raise KeyboardInterrupt

    def follow(self) -> None:
        threading.Thread(target=self._run_epochs, name="tidemark epochs", daemon=True).start()
        try:
            while not self._ended.wait(POLL_SECONDS):
                if self._signals > 1:
                    raise KeyboardInterrupt
                self._announce_stop()
                self._held.require_lease()
                self._look_for_work()
                self._show()
        finally:
            self._engine.give_up()
        self._announce_stop()  # the running epoch may have ended before the next look
        self._show()
        if self._failure is not None:
            self._held.require_lease()  # without it, another driver may be the cause
            raise self._failure
        self._summary.interrupted = self.is_interrupted
        progress = self._loop.progress
        if progress is not None:
            self._summary.phase, self._summary.position = progress.phase, progress.position
            self._summary.tables = [asdict(table) for table in progress.tables]

    def _announce_stop(self) -> None:
        if self._signals and not self._is_stop_announced:
            self._is_stop_announced = True
            self._events.note("stopping", after_epoch=self._loop.committed)

    def _look_for_work(self) -> None:
        """Ends the run after the running epoch if there is something that needs the job to be opened again."""
        if self.must_open_again:
            return
        if self._looks_for_tables and self._discovery.look(self._known):
            self.must_open_again = True
        if self._looks_for_tables and is_due(self._waiting, present_us()):
            self.must_open_again = True
        if self._rows is not None:
            self._rows.look(self._events)
        if time.monotonic() >= self._looked_at + SIGNALS_SECONDS:
            self._looked_at = time.monotonic()
            self.must_open_again |= self._checkpoint.has_open_signals()
        if self.must_open_again:
            self._loop.stop()

    def _run_epochs(self) -> None:
        try:
            self._loop.run(max_epochs=self._max_epochs)
        except BaseException as error:  # noqa: BLE001 -- raised again by the main thread
            self._failure = error
        finally:
            self._ended.set()

    def _show(self) -> None:
        self._notes.pass_on(self._events)
        progress, running = self._loop.progress, self._loop.running
        if progress is None:
            return
        if progress is not self._shown:
            self._shown, self._published = progress, {}
            self._events.progress(progress)
        elif running is not None:
            # A snapshot's epoch may take minutes: its splits are shown as they are read.
            published = self._running_splits.count(running.plan.epoch)
            if published != self._published:
                self._published = published
                self._events.progress(progress.with_published(published))
