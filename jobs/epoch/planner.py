"""Plans epochs and keeps the plans durable.

The driver calls it in this order, and restarts at any point after a crash:

    next_epoch(committed) → the plan of epoch committed + 1 is durable → the epoch runs → the sink has it
    → next_epoch(committed + 1)

The outcome of an epoch enters the enumerator's state once the epoch is committed. Its published files are removed when
the next plan is durable: until then everything can be read again.
"""

import time
from collections.abc import Collection, Mapping
from typing import Protocol

from tidemark.conf.model import JobFile
from tidemark.enumerator.enumerator import (
    Observation,
    Outcome,
    SplitsRead,
    absorb,
    are_all_stopped,
    first_state,
    in_mode,
    join,
    of_job,
    plan_epoch,
    reads_aside,
)
from tidemark.enumerator.pages import attempts
from tidemark.jobs.epoch.kept_cuts import KeptCuts
from tidemark.jobs.monitoring.history import EpochRecorder
from tidemark.jobs.recovered_state import read_outcome, settings_of, splits_of_job
from tidemark.jobs.tables.partition_watch import PartitionWatch
from tidemark.readers.log.finished_splits import write_segment
from tidemark.readers.source import FindsLocks, KnowsLabels, MeasuresReplicaLag, PlannerAccess, ProvesLog, RetainsLog
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState
from tidemark.state.key_repair import KeyRepair
from tidemark.state.log_extent import LogExtent
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState, Exhausted, LogWork, Plan, PlanRecord, SnapshotWork
from tidemark.state.position import Position
from tidemark.state.remedies import RESTORE_CHECKPOINT
from tidemark.state.signals import Answer
from tidemark.state.split import AsideRead
from tidemark.state.table import TableId

LEFT_BEFORE = "The table has left the job. If it comes back, all its rows are read."
"""The outcome of reading rows again of a table that has left the job since."""
NOT_WRITTEN = "The log was read from another position on, so these rows were not written."
"""The same if the job has passed over the epoch that had to write them."""


class FindsAsideReads(Protocol):
    def found(self, state: EnumeratorState) -> Mapping[int, AsideRead | None]:
        """Returns the reads beside the epochs that the run has begun of the state's tables, as in `Observation.aside`."""


class Planner:
    """One per run. It keeps the newest plan and the state after it in memory; what is in the checkpoint is the same."""

    def __init__(self, access: PlannerAccess, checkpoint: Checkpoint, job_state: JobState, job: JobFile) -> None:
        self._access = access
        self._checkpoint = checkpoint
        self._job_state = job_state
        self._mode = job.mode
        self._settings = settings_of(job)
        self._cuts = KeptCuts(checkpoint, job.checkpoints.keep.seconds)
        self._max_lag_seconds = job.snapshot.max_replica_lag_seconds
        self._goal: Position | None = None
        self._newest: PlanRecord | None = None
        self._absorbed: tuple[int, EnumeratorState] | None = None
        self._planned_at: tuple[int, float] | None = None
        self._written_at: tuple[int, float] | None = None
        self._partitions = PartitionWatch(access, checkpoint, job_state)
        self._recorder = EpochRecorder(checkpoint, len(job_state.schemas))
        self._has_withheld = True
        self._has_streamed = False
        """Whether this run has planned the epoch before in phase stream, where no task publishes anything: then nothing is left
        to be removed, and a bucket's owner pays for each listing."""
        self._known_start_us: int | None = None
        self.lag_seconds: float | None = None
        """How far the source, a replica, is behind, if splits wait for that (`snapshot.max_replica_lag_seconds`)."""
        self.locked: Mapping[TableId, str] = {}
        """The tables whose splits wait because another session keeps them locked, with that session."""

    def end_at_log_end(self) -> None:
        """From now on plans only up to the present end of the log (trigger `once`)."""
        self._goal = self._access.log_end()

    def record(self, epoch: int) -> PlanRecord:
        """The plan of an epoch. Raises CheckpointError if it is lost."""
        if self._newest is None or self._newest.plan.epoch != epoch:
            return self._checkpoint.plan(epoch)
        return self._newest

    def note_written(self, epoch: int) -> None:
        """Tells that the sink has all of the epoch now: the end of the time that the epoch took."""
        self._written_at = (epoch, time.monotonic())

    def labels(self, types: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Returns the labels of the source's enums, by schema and name: all that the log up to the newest plan's end has."""
        return self._access.labels(types) if isinstance(self._access, KnowsLabels) else {}

    def save_history(self) -> None:
        self._recorder.save(at_once=True)

    def is_planned(self, committed: int) -> bool:
        """True if the epoch after `committed` has a plan: an earlier run made it. What the committed one published may be gone
        then, and with it what `state_after` needs."""
        return max(self._checkpoint.plan_epochs(), default=0) > committed

    def state_after(self, committed: int) -> EnumeratorState:
        """The state after the committed epoch, with its outcome. Writes its finished splits for the gap filter.
        Raises CheckpointError if a part of the outcome is gone."""
        if self._absorbed is not None and self._absorbed[0] == committed:
            return self._absorbed[1]
        state = self._planned_state(committed)
        record, outcome = self._outcome(committed, state)
        if outcome is not None:
            state = absorb(state, outcome, self._settings)
        state = join(state, self._job_state.joined)
        if record is not None and outcome is not None:
            self._recorder.add(record, outcome, state)
        self._absorbed = (committed, state)
        return state

    def waits(self, committed: int) -> bool:
        """True if `next_epoch` has found nothing to run although splits are left: they wait, or a commit of the log is not
        visible yet. Also if rows that were read again wait for the end of the log."""
        state = self.state_after(committed)
        return state.phase is Phase.SNAPSHOT or bool(state.rereads)

    def has_splits_left(self, committed: int) -> bool:
        """True if `next_epoch` has found nothing to run although rows are to be copied."""
        state = self.state_after(committed)
        return state.phase is Phase.SNAPSHOT and any(not isinstance(t.cursor, Exhausted) for t in state.tables)

    def reads_aside(self, committed: int) -> bool:
        """True if `next_epoch` has found nothing to run, and a table is read beside the epochs."""
        return reads_aside(self.state_after(committed))

    def is_stopped(self, committed: int, stopped: Collection[TableId]) -> bool:
        """True if splits are left, but only of these tables."""
        return are_all_stopped(self.state_after(committed), stopped)

    def next_epoch(
        self,
        committed: int,
        *,
        splits_wait: bool = False,
        stopped: frozenset[TableId] = frozenset(),
        aside: FindsAsideReads | None = None,
    ) -> int:
        """Returns the number of the epoch after `committed`, whose plan is durable; `committed` if there is nothing to run now.
        `splits_wait`: no splits are planned now. `stopped`: none of these tables. `aside`: the reads beside the epochs of this
        run; None: it begins none.
        Raises CheckpointError, LogPositionLostError, SourceNotUsableError, and what a read beside the epochs has raised."""
        planned = self._checkpoint.plan_epochs()
        latest = max(planned, default=0)
        if latest == committed + 1:
            self._require_known_range(self.record(latest))
            self._planned_at = None  # planned by an earlier run, which may not have removed the published files
            self._forget_published(committed, self.record(committed) if committed else None)
            return latest
        if latest != committed:
            raise CheckpointError(
                f"Epoch {committed} is committed, but the newest plan is that of epoch {latest}: the parts of the checkpoint "
                "are not of the same time.",
                RESTORE_CHECKPOINT,
            )
        state = self.state_after(committed)
        self.lag_seconds = self._too_long_lag(state)
        splits_wait = splits_wait or self.lag_seconds is not None
        self.locked = self._locked(state)
        extent = self._known_extent(state)
        left_out = stopped.union(self.locked)
        reads = None if aside is None else aside.found(state)
        observation = Observation(extent, self._goal, None, self._job_state.joined, splits_wait, left_out, reads)
        plan, state = plan_epoch(state, observation, self._access.keys, self._settings)
        if state.phase is not Phase.DONE:
            self._partitions.look(committed)
        if isinstance(self._access, RetainsLog):
            self._access.committed(state.position)
        if plan is None:
            self._absorbed = (committed, state)  # a read beside the epochs may have ended
            self._recorder.save(at_once=self._goal is not None)
            return committed
        failpoint("planner.before_plan")
        partitions, warnings = self._partitions.kept(), self._partitions.warnings
        record = PlanRecord(plan, state, time.time_ns() // 1000, partitions, warnings)
        before = self.record(committed) if committed else None
        self._checkpoint.create_plan(record)
        failpoint("planner.after_plan")
        self._partitions.planned(plan.epoch)
        self._cuts.planned(plan.epoch, record.planned_at_us)
        self._newest, self._absorbed = record, None
        self._planned_at = (plan.epoch, time.monotonic())
        self._forget_published(committed, before)
        streams = plan.phase is Phase.STREAM
        if not (streams and self._has_streamed):
            self._checkpoint.forget_staged(attempts(plan, state), before=state.next_split_id)
        self._forget_withheld(plan, state, committed)
        if streams and not self._has_streamed:
            self._checkpoint.forget_finished_splits(committed)
        self._has_streamed = streams
        self._cuts.forget_before(committed, planned, record.planned_at_us)
        self._recorder.save(at_once=False)
        return plan.epoch

    def _known_extent(self, state: EnumeratorState) -> LogExtent:
        """The extent of the log, once it is known to be the log that the job has read."""
        extent, known = self._access.log_extent(), state.known_log
        started_us = extent.server_started_us
        if known is not None and started_us not in (known.server_started_us, self._known_start_us):
            extent.require(state.position)
            if isinstance(self._access, ProvesLog):
                ends = (state.position, state.last_high or state.position)
                reached = max(ends, key=lambda position: position.order)
                self._access.require_known_log(state.position, known, reached)
            self._known_start_us = started_us
            return self._known_extent(state)  # it may be another log by now, or another server
        return extent

    def _require_known_range(self, record: PlanRecord) -> None:
        """Looks at the log before an epoch is read that an earlier run has planned. Not if it is passed over, or was read."""
        passed = any(joined.restarts for joined in self._job_state.joined[record.state.joined :])
        if (
            isinstance(record.plan.work, LogWork)
            and not passed
            and not self._checkpoint.has_log_report(record.plan.epoch)
        ):
            self._known_extent(record.state)

    def _forget_published(self, committed: int, record: PlanRecord | None) -> None:
        if not self._has_streamed:
            self._checkpoint.forget_published(committed)
        work = None if record is None else record.plan.work
        if isinstance(work, LogWork):
            self._checkpoint.forget_repairs([reread.file for reread in work.rereads])

    def _forget_withheld(self, plan: Plan, state: EnumeratorState, committed: int) -> None:
        """Removes the changes that were withheld and that neither this plan nor a later one emits."""
        kept_after = {table.table: table.withheld.after_epoch for table in state.tables if table.withheld is not None}
        if isinstance(plan.work, LogWork):
            kept_after |= {backfill.table: backfill.withheld.after_epoch for backfill in plan.work.backfills}
        if kept_after or self._has_withheld:
            self._has_withheld = self._checkpoint.forget_withheld(kept_after, until=committed) or bool(kept_after)

    def _too_long_lag(self, state: EnumeratorState) -> float | None:
        if self._max_lag_seconds is None or state.phase is not Phase.SNAPSHOT:
            return None
        lag = self._access.replica_lag_seconds() if isinstance(self._access, MeasuresReplicaLag) else None
        return lag if lag is not None and lag > self._max_lag_seconds else None

    def _locked(self, state: EnumeratorState) -> Mapping[TableId, str]:
        unread = [table.table for table in state.tables if not isinstance(table.cursor, Exhausted)]
        return self._access.locked_tables(unread) if unread and isinstance(self._access, FindsLocks) else {}

    def _planned_state(self, committed: int) -> EnumeratorState:
        if committed == 0:
            return first_state(self._job_state, self._settings, self._mode)
        return in_mode(of_job(self.record(committed).state, self._job_state), self._mode)

    def _outcome(self, epoch: int, state: EnumeratorState) -> tuple[PlanRecord, Outcome] | tuple[None, None]:
        """Returns the committed epoch and its outcome. Writes its finished splits for the gap filter."""
        if state.awaited is None:
            return None, None
        record = self.record(epoch)
        outcome = read_outcome(self._checkpoint, record, self._job_state, seconds=self._seconds(epoch))
        if isinstance(outcome, SplitsRead):
            assert isinstance(record.plan.work, SnapshotWork)
            splits, _ = splits_of_job(record.plan.work.tasks, self._job_state)
            write_segment(self._checkpoint.store, epoch, splits, outcome.reports)
            failpoint("planner.after_finished_splits")
        if isinstance(record.plan.work, LogWork):
            for reread in record.plan.work.rereads:
                if reread.signal and reread.rest is None:  # else it goes on
                    self._checkpoint.create_outcome(reread.signal, self._answer(reread, record))
        return record, outcome

    def _answer(self, reread: KeyRepair, record: PlanRecord) -> Answer:
        """Returns the outcome for a signal whose last rows the epoch had to write."""
        versions = {schema.table: schema.version for schema in self._job_state.schemas}
        rows = self._job_state.reread_rows(reread.signal)
        accepted, text = True, f"{rows:,} {'row was' if rows == 1 else 'rows were'} read again and written."
        if versions.get(reread.table) != reread.version:
            accepted, text = False, LEFT_BEFORE
        elif self._job_state.restarts_after(
            record.state.joined
        ):  # the epoch was passed over, unless it was written before
            accepted, text = False, f"{NOT_WRITTEN} Compare again."
        return Answer(accepted, text, time.time_ns() // 1000)

    def _seconds(self, epoch: int) -> float | None:
        """The time from the plan until the epoch was written, in seconds; until now if nobody has told when it was. None if
        another run planned the epoch."""
        if self._planned_at is None or self._planned_at[0] != epoch:
            return None
        known = self._written_at is not None and self._written_at[0] == epoch
        written_at = self._written_at[1] if known and self._written_at is not None else time.monotonic()
        return written_at - self._planned_at[1]
