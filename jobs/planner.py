"""The driver's side of the data source: plans epochs and keeps the plans durable.

It runs in Spark's planner process. Spark calls it in this order, and restarts at any point after a crash:

    next_epoch(committed) → the plan of epoch committed + 1 is durable → Spark logs the offset → the epoch runs
    → Spark marks it as committed → next_epoch(committed + 1)

The outcome of an epoch enters the enumerator's state when the next epoch is planned. Its published files are removed when
that plan is durable: until then everything can be read again.
"""

import time

from tidemark.conf.model import JobFile
from tidemark.enumerator.enumerator import Observation, Outcome, SplitsRead, first_state, in_mode, plan_epoch
from tidemark.enumerator.pages import attempts
from tidemark.jobs.monitoring.history import EpochRecorder
from tidemark.jobs.partition_watch import PartitionWatch
from tidemark.jobs.recovered_state import read_outcome, settings_of
from tidemark.jobs.spark.planner_ipc import PlannerIpc
from tidemark.readers.log.finished_splits import write_segment
from tidemark.readers.source import PlannerAccess, RetainsLog
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState, PlanRecord, SnapshotWork
from tidemark.state.position import Position
from tidemark.state.remedies import RESTORE_CHECKPOINT


class Planner:
    """One per run. `folder`: the driver's requests; after a request to stop, no further epoch is planned."""

    def __init__(
        self,
        access: PlannerAccess,
        checkpoint: Checkpoint,
        job_state: JobState,
        job: JobFile,
        *,
        folder: PlannerIpc | None = None,
    ) -> None:
        self._access = access
        self._checkpoint = checkpoint
        self._job_state = job_state
        self._mode = job.mode
        self._settings = settings_of(job)
        self._folder = folder
        self._goal: Position | None = None
        self._absorbed: tuple[int, EnumeratorState] | None = None
        self._planned_at: tuple[int, float] | None = None
        self._partitions = PartitionWatch(access, checkpoint, job_state)
        self._recorder = EpochRecorder(checkpoint, len(job_state.schemas))

    def end_at_log_end(self) -> None:
        """From now on plans only up to the present end of the log (trigger `once`)."""
        self._goal = self._access.log_end()

    def next_epoch(self, committed: int) -> int:
        """Returns the number of the epoch after `committed`, whose plan is durable; `committed` if there is nothing to run.
        Raises CheckpointError, LogPositionLostError, SourceNotUsableError."""
        if self._folder is not None and self._folder.is_stop_asked():
            self._recorder.save(at_once=True)
            return committed
        latest = max(self._checkpoint.plan_epochs(), default=0)
        if latest == committed + 1:
            self._planned_at = None  # planned by an earlier run, which may not have removed the published files
            self._checkpoint.forget_published(committed)
            return latest
        if latest != committed:
            raise CheckpointError(
                f"Spark's part of the checkpoint is at epoch {committed}, the plans are at epoch {latest}: the parts of the "
                "folder are not of the same time.",
                RESTORE_CHECKPOINT,
            )
        state = self._state_after(committed)
        record, outcome = self._outcome(committed, state)
        observation = Observation(self._access.log_extent(), self._goal, outcome, self._job_state.joined)
        plan, state = plan_epoch(state, observation, self._access.keys, self._settings)
        if state.phase is not Phase.DONE:
            self._partitions.look(committed)
        if record is not None and outcome is not None:
            self._recorder.add(record, outcome, state)
        self._absorbed = (committed, state)
        if isinstance(self._access, RetainsLog):
            self._access.committed(state.position)
        if plan is None:
            self._recorder.save(at_once=self._goal is not None)
            return committed
        failpoint("planner.before_plan")
        partitions, warnings = self._partitions.kept(), self._partitions.warnings
        self._checkpoint.create_plan(PlanRecord(plan, state, time.time_ns() // 1000, partitions, warnings))
        failpoint("planner.after_plan")
        self._partitions.planned()
        self._absorbed = None
        self._planned_at = (plan.epoch, time.monotonic())
        self._checkpoint.forget_published(committed)
        self._checkpoint.forget_staged(attempts(plan, state))
        if plan.phase is Phase.STREAM:
            self._checkpoint.forget_finished_splits()
        self._checkpoint.forget_before(committed)
        self._recorder.save(at_once=False)
        return plan.epoch

    def _state_after(self, committed: int) -> EnumeratorState:
        if self._absorbed is not None and self._absorbed[0] == committed:
            return self._absorbed[1]
        if committed == 0:
            return in_mode(first_state(self._job_state, self._settings), self._mode)
        return in_mode(self._checkpoint.plan(committed).state, self._mode)

    def _outcome(self, epoch: int, state: EnumeratorState) -> tuple[PlanRecord, Outcome] | tuple[None, None]:
        """Returns the committed epoch and its outcome. Writes its finished splits for the gap filter."""
        if state.awaited is None:
            return None, None
        record = self._checkpoint.plan(epoch)
        outcome = read_outcome(self._checkpoint, record, seconds=self._seconds(epoch))
        if isinstance(outcome, SplitsRead):
            assert isinstance(record.plan.work, SnapshotWork)
            splits = [split for task in record.plan.work.tasks for split in task]
            write_segment(self._checkpoint.store, epoch, splits, outcome.reports)
            failpoint("planner.after_finished_splits")
        return record, outcome

    def _seconds(self, epoch: int) -> float | None:
        """The time from the plan until the epoch was written, in seconds. Until now if the driver has not told when it was
        written: that may include a trigger's interval. None if another run planned the epoch."""
        if self._planned_at is None or self._planned_at[0] != epoch:
            return None
        written_at = None if self._folder is None else self._folder.written_at(epoch)
        return (time.monotonic() if written_at is None else written_at) - self._planned_at[1]
