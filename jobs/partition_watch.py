"""Partitioned tables, looked at each time before an epoch is planned: what is done to a partition is in no log."""

from jobs.checkpoint import Checkpoint
from jobs.sources import PlannerAccess
from state.job_state import JobState
from state.partitions import KeptPartitions, PartitionedTable, Partitions


class PartitionWatch:
    """The planner's. What was looked at is durable with the next plan; until then a restart compares with the plan
    before, and comes to the same."""

    def __init__(self, access: PlannerAccess, checkpoint: Checkpoint, job_state: JobState) -> None:
        self._access = access
        self._checkpoint = checkpoint
        self._first = job_state.partitions
        self._known: Partitions | None = None
        self._kept: tuple[tuple[PartitionedTable, ...], KeptPartitions] | None = None
        self._older_are_there = False
        self.warnings: tuple[str, ...] = ()

    def look(self, committed: int) -> None:
        """Compares with the last look, the first time with the plan of epoch `committed`. Raises PartitionsChangedError."""
        if self._first is None:
            return
        if self._known is None:
            self._known = self._of_plan(committed, self._first)
        seen = self._access.look_at_partitions(self._known)
        self._known = seen.now
        self.warnings += seen.warnings

    def kept(self) -> KeptPartitions | None:
        """The last look, durable; written anew only where anything changed."""
        known = self._known
        if known is None:
            return None
        if self._kept is None or self._kept[0] != known.tables:
            self._kept = known.tables, self._checkpoint.keep_partitions(known)
            self._older_are_there = True
        return KeptPartitions(self._kept[1].name, known.ended_xid)

    def planned(self) -> None:
        """The plan with these is durable."""
        self.warnings = ()
        if self._kept is not None and self._older_are_there:
            self._older_are_there = False
            self._checkpoint.forget_partitions(self._kept[1])

    def _of_plan(self, committed: int, first: Partitions) -> Partitions:
        """With the tables that joined since."""
        kept = None if committed == 0 else self._checkpoint.plan(committed).partitions
        return first if kept is None else self._checkpoint.partitions(kept).plus(first)
