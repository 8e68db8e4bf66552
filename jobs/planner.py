"""The driver's side of the data source: plans epochs and keeps the plans durable.

It lives in Spark's planner process. Spark calls it in this order, and after a crash begins anew at any point:

    next_epoch(committed) → the plan of epoch committed + 1 is durable → Spark logs the offset → the epoch runs
    → Spark marks it as committed → next_epoch(committed + 1)

What an epoch brought is taken into the enumerator's state when the next one is planned, and only then its published
files are removed: until the next plan is durable, everything can be read again.
"""

import time

from conf.model import JobFile
from enumerator.enumerator import Observation, Outcome, SplitsRead, first_state, in_mode, plan_epoch
from enumerator.pages import generations
from jobs.checkpoint import Checkpoint
from jobs.history import EpochRecorder
from jobs.partition_watch import PartitionWatch
from jobs.routes import forget_routes, write_segment
from jobs.run_folder import RunFolder
from jobs.sources import PlannerAccess
from jobs.standing import read_outcome, settings_of
from readers.publish import forget_collected, forget_published
from state.errors import CheckpointError
from state.failpoints import failpoint
from state.job_state import JobState
from state.phase import Phase
from state.plan import EnumeratorState, PlanRecord, SnapshotWork
from state.position import Position


class Planner:
    """One per run. `folder`: once the driver asks there to stop, no further epoch is planned."""

    def __init__(
        self,
        access: PlannerAccess,
        checkpoint: Checkpoint,
        job_state: JobState,
        job: JobFile,
        *,
        folder: RunFolder | None = None,
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
        """From now on epochs are planned up to where the log ends at this moment (trigger `once`)."""
        self._goal = self._access.log_end()

    def next_epoch(self, committed: int) -> int:
        """The number of the epoch after `committed`, whose plan is durable, or `committed` where there is none to run."""
        if self._folder is not None and self._folder.is_stop_asked():
            self._recorder.save(at_once=True)
            return committed
        latest = max(self._checkpoint.plan_epochs(), default=0)
        if latest == committed + 1:
            self._planned_at = None  # planned by an earlier run, which may not have come to removing what is committed
            forget_published(self._checkpoint.store, committed)
            return latest
        if latest != committed:
            raise CheckpointError(
                f"Spark's part of the checkpoint stands at epoch {committed}, the plans at epoch {latest}.",
                "The parts of the checkpoint folder are not of one moment: restore all of it from one copy, or start "
                "over with an empty checkpoint and an empty target.",
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
        forget_published(self._checkpoint.store, committed)
        forget_collected(self._checkpoint.store, generations(plan, state))
        if plan.phase is Phase.STREAM:
            forget_routes(self._checkpoint.store)
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
        """The committed epoch and what it brought; its splits are made known to the gap filter."""
        if state.awaited is None:
            return None, None
        record = self._checkpoint.plan(epoch)
        outcome = read_outcome(self._checkpoint, record, seconds=self._seconds(epoch))
        if isinstance(outcome, SplitsRead):
            assert isinstance(record.plan.work, SnapshotWork)
            splits = [split for task in record.plan.work.tasks for split in task]
            write_segment(self._checkpoint.store, epoch, splits, outcome.reports)
            failpoint("planner.after_routes")
        return record, outcome

    def _seconds(self, epoch: int) -> float | None:
        """From planning to written; where nobody tells when that was, until now, which may be a trigger's interval."""
        if self._planned_at is None or self._planned_at[0] != epoch:
            return None
        written_at = None if self._folder is None else self._folder.written_at(epoch)
        return (time.monotonic() if written_at is None else written_at) - self._planned_at[1]
