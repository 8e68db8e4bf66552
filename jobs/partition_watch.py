"""Compares PostgreSQL's tables and partitions before each plan: renames, rewrites and changes of partitions are in no log."""

from tidemark.readers.source import PlannerAccess, WatchesPartitions
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState
from tidemark.state.partitions import KeptPartitions, Partitions, WatchedTable


class PartitionWatch:
    """Belongs to the planner. The last look becomes durable with the next plan. A restart before that compares with the
    plan before, with the same result."""

    def __init__(self, access: PlannerAccess, checkpoint: Checkpoint, job_state: JobState) -> None:
        self._access = access if isinstance(access, WatchesPartitions) else None
        self._checkpoint = checkpoint
        self._job_state = job_state
        self._known: Partitions | None = None
        self._kept: tuple[tuple[WatchedTable, ...], KeptPartitions] | None = None
        self._older_are_there = False
        self.warnings: tuple[str, ...] = ()

    def look(self, committed: int) -> None:
        """Compares with the last look, the first time with the plan of epoch `committed`. Raises PartitionsChangedError,
        SchemaChangedError."""
        if self._access is None:
            return
        if self._known is None:
            self._known = partitions_of_plan(self._checkpoint, self._job_state, committed)
            if self._known is None:
                return
        seen = self._access.look_at_partitions(self._known)
        self._known = seen.now
        self.warnings += seen.warnings

    def kept(self) -> KeptPartitions | None:
        """Makes the last look durable and returns its name. Writes only if something changed."""
        known = self._known
        if known is None:
            return None
        if self._kept is None or self._kept[0] != known.tables:
            self._kept = known.tables, self._checkpoint.keep_partitions(known)
            self._older_are_there = True
        return KeptPartitions(self._kept[1].name, known.ended_xid)

    def planned(self, epoch: int) -> None:
        """To be called when the plan of `epoch`, which names the last look, is durable."""
        self.warnings = ()
        if self._kept is not None and self._older_are_there:
            self._older_are_there = False
            if max(self._checkpoint.plan_epochs()) > epoch:
                return  # this driver was frozen, and another one goes on
            self._checkpoint.forget_partitions(self._kept[1])


def partitions_of_plan(checkpoint: Checkpoint, state: JobState, epoch: int) -> Partitions | None:
    """The partitions of a plan, with the tables that joined since and without those that left. None for other sources than
    PostgreSQL. `epoch`: 0 for those before the first plan."""
    kept = None if state.partitions is None or epoch == 0 else checkpoint.plan(epoch).partitions
    if kept is None or state.partitions is None:
        return state.partitions
    back = {table for joined in state.joined if epoch <= joined.after_epoch for table in joined.back}
    return checkpoint.partitions(kept).without(state.left_tables | back).plus(state.partitions)
