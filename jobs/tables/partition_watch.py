"""Compares PostgreSQL's tables and partitions before each plan: renames, rewrites and changes of partitions are in no log."""

from dataclasses import dataclass, replace
from itertools import pairwise

from tidemark.readers.source import PlannerAccess, WatchesPartitions
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState
from tidemark.state.partitions import KeptPartitions, Partitions, WatchedTable
from tidemark.state.plan import PlanRecord
from tidemark.state.position import Position, wal_position
from tidemark.state.table import TableId


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
            self._checkpoint.forget_partitions()


def partitions_of_plan(checkpoint: Checkpoint, state: JobState, epoch: int) -> Partitions | None:
    """The partitions of a plan, with the tables that joined since and without those that left. None for other sources than
    PostgreSQL. `epoch`: 0 for those before the first plan."""
    kept = None if state.partitions is None or epoch == 0 else checkpoint.plan(epoch).partitions
    if kept is None or state.partitions is None:
        return state.partitions
    later = [joined for joined in state.joined if epoch <= joined.after_epoch]
    back = {table for joined in later for table in (*joined.back, *joined.watched_again)}
    # After a move to another server, ids from the end of the former one may be those of other transactions.
    moved = [
        joined.partitions.ended_xid for joined in later if joined.server_identity and joined.partitions is not None
    ]
    kept = replace(kept, ended_xid=min(kept.ended_xid, *moved)) if moved else kept
    return checkpoint.partitions(kept).without(state.left_tables | back).plus(state.partitions)


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the tables of the job: that of the plan of `epoch`, or the first one (0). `ended_xid`: as in Partitions.
    `at_us`: it was made before, microseconds since 1970. `changed`: the tables that the newest look found otherwise."""

    epoch: int
    ended_xid: int
    at_us: int
    changed: frozenset[TableId]


def look_before(checkpoint: Checkpoint, state: JobState, until: Position) -> Look | None:
    """Returns the newest look that was surely made before the server's log reached `until`: the next plan was made at a log end
    that is not later. None if there is none, or if the checkpoint does not have it any more."""
    epochs = checkpoint.plan_epochs()
    newest = checkpoint.plan(epochs[-1]).partitions if epochs else None
    if newest is None or state.partitions is None:
        return None
    moved = [joined for joined in state.joined if joined.server_identity]
    since = moved[-1].after_epoch if moved else 0
    for epoch, after in reversed(list(pairwise(epoch for epoch in epochs if epoch > since))):
        if _was_made_before(checkpoint.plan(after), until):
            record = checkpoint.plan(epoch)
            changed = None if record.partitions is None else _changed(checkpoint, record.partitions, newest)
            if record.partitions is None or changed is None:
                return None
            return Look(epoch, record.partitions.ended_xid, record.planned_at_us, changed)
    if moved:
        proven, kept = moved[-1].partitions, checkpoint.plan(since).partitions if since in epochs else None
        changed = None if kept is None else _changed(checkpoint, kept, newest)
        if proven is None or changed is None or moved[-1].watched_again:
            return None
        return Look(since, proven.ended_xid, moved[-1].at_us, changed)  # it was proven for the server before
    if epochs[0] != 1 or not _was_made_before(checkpoint.plan(1), until):
        return None
    changed = _differing(state.partitions, checkpoint.partitions(newest))
    return Look(0, state.partitions.ended_xid, state.created_at_us, changed)


def _changed(checkpoint: Checkpoint, kept: KeptPartitions, newest: KeptPartitions) -> frozenset[TableId] | None:
    """Returns the tables that differ; None if the checkpoint no longer has the older look."""
    if kept.name == newest.name:
        return frozenset()
    if not checkpoint.has_partitions(kept):  # it was removed by an earlier version
        return None
    return _differing(checkpoint.partitions(kept), checkpoint.partitions(newest))


def _differing(before: Partitions, now: Partitions) -> frozenset[TableId]:
    """Returns the tables of `now` that are not the same in `before`: their files, columns, keys, partitions and types."""
    known = set(before.tables)
    return frozenset(table.table for table in now.tables if table not in known)


def _was_made_before(record: PlanRecord, until: Position) -> bool:
    """True if the log's end, when the plan was made, was not after `until`."""
    behind = record.plan.bytes_behind
    return behind is not None and wal_position(record.state.position).lsn + behind <= wal_position(until).lsn
