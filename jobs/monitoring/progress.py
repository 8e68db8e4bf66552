"""A job's progress, computed from its checkpoint alone."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidemark.conf.model import JobFile
from tidemark.enumerator.splitting import estimated_splits
from tidemark.jobs.monitoring.times import iso_time
from tidemark.jobs.recovered_state import recover_state
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState
from tidemark.state.log_range import TableChanges
from tidemark.state.phase import Phase
from tidemark.state.plan import AwaitedLog, EnumeratorState, Exhausted, PlanRecord, TableState
from tidemark.state.signals import Steering
from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class TableProgress:
    """`splits_total` is an estimate until the table's last split is planned, None before its first; 0 if only the log is
    read. `splits_published`: splits of the running epoch that are read, but not yet committed. `inserts`, `updates`,
    `deletes`: from the log, since the job's first start. `stopped`: by a signal, no more splits of it are read now."""

    table: str
    splits_done: int
    splits_total: int | None
    rows: int
    estimated_rows: int | None
    complete: bool
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    splits_published: int = 0
    stopped: bool = False

    @property
    def share(self) -> float:
        """The share of splits that are read, 0 to 1; 0 if the number of splits is not known."""
        if self.splits_total:
            return min(1.0, (self.splits_done + self.splits_published) / self.splits_total)
        return 0.0


@dataclass(frozen=True, slots=True)
class RunSums:
    """The work of this run so far. `epoch_seconds`: the time that its epochs took to be read and written. `idle`: the
    planner found nothing more to read."""

    epochs: int = 0
    epoch_seconds: float = 0.0
    changes: int = 0
    idle: bool = False


@dataclass(frozen=True, slots=True)
class JobProgress:
    """`position`: up to where the log was read. `lag_seconds`: time since the newest transaction read was committed, by the
    clocks of the source and of this machine; None before the first. `lag_bytes`: log after the position, as of the newest
    plan. `epochs`, `epoch_seconds`, `changes` and `caught_up` are those of a run; `transactions`, `filtered_changes`
    (which splits contain, or will when they are read) and `reconnects` of the log are counted since the job's first start.
    `caught_up`: everything was read that the log held when this run planned its newest epoch. `as_of`: when the newest epoch
    was planned, as ISO 8601 in UTC. `paused`, `snapshot_stopped`: by a signal."""

    mode: str
    phase: str
    committed_epoch: int
    position: str
    lag_seconds: float | None
    lag_bytes: int | None
    epochs: int
    epoch_seconds: float
    changes: int
    transactions: int
    filtered_changes: int
    reconnects: int
    caught_up: bool
    tables: tuple[TableProgress, ...]
    as_of: str = ""
    paused: bool = False
    snapshot_stopped: bool = False

    def steered(self, steering: Steering) -> "JobProgress":
        """Returns the progress with `paused`, and with what is stopped. A paused job does not know whether it has read all."""
        paused, is_done = steering.paused_us is not None, self.phase == Phase.DONE.value
        stopped = {str(table) for table in steering.stopped_tables}
        return replace(
            self,
            paused=paused,
            snapshot_stopped=steering.stopped_us is not None,
            caught_up=self.caught_up and (is_done or not paused),
            tables=tuple(
                replace(table, stopped=not table.complete and table.table in stopped) for table in self.tables
            ),
        )

    def with_published(self, counts: Mapping[str, int]) -> "JobProgress":
        """Returns the progress with `splits_published` of each table."""
        tables = tuple(replace(table, splits_published=counts.get(table.table, 0)) for table in self.tables)
        return replace(self, tables=tables)


def read_progress(
    checkpoint: Checkpoint,
    job: JobFile,
    state: JobState,
    committed_epoch: int,
    run: RunSums = RunSums(),
) -> JobProgress | None:
    """Returns the progress after `committed_epoch`, from the checkpoint; None if no epoch is planned yet."""
    epochs = checkpoint.plan_epochs()
    if not epochs:
        return None
    now = recover_state(checkpoint, job, state, committed=committed_epoch)
    return progress_of(state, now, checkpoint.plan(max(epochs)), committed_epoch, run)


def progress_of(
    job_state: JobState, now: EnumeratorState, newest: PlanRecord | None, committed_epoch: int, run: RunSums
) -> JobProgress:
    """Returns the progress in the state `now`. `newest`: the newest plan, None before the first."""
    newest_us = now.totals.newest_commit_us
    copied = {
        key.table: TableState(key.table, 0, key.columns) for key in job_state.split_keys
    }  # some may not have joined yet
    copied |= {table.table: table for table in now.tables}
    followed = {sums.table: sums for sums in now.totals.changes}
    lag_bytes = None if newest is None else _lag_bytes(newest, committed_epoch)
    ran_to_now = run.epochs > 0 and now.phase is Phase.STREAM
    return JobProgress(
        mode=now.mode,
        phase=now.phase.value,
        committed_epoch=committed_epoch,
        position=str(now.position),
        lag_seconds=None if newest_us is None else round(max(0.0, time.time() - newest_us / 1e6), 3),
        lag_bytes=lag_bytes,
        epochs=run.epochs,
        epoch_seconds=round(run.epoch_seconds, 3),
        changes=run.changes,
        transactions=now.totals.transactions,
        filtered_changes=now.totals.filtered_changes,
        reconnects=now.totals.reconnects,
        caught_up=run.idle or now.phase is Phase.DONE or (ran_to_now and lag_bytes == 0),
        tables=tuple(
            _of_table(schema.table, copied.get(schema.table), followed.get(schema.table))
            for schema in job_state.schemas
        ),
        as_of=iso_time(time.time_ns() // 1000 if newest is None else newest.planned_at_us),
    )


def _lag_bytes(newest: PlanRecord, committed_epoch: int) -> int | None:
    behind, awaited = newest.plan.bytes_behind, newest.state.awaited
    if behind is None or newest.plan.epoch > committed_epoch or not isinstance(awaited, AwaitedLog):
        return behind
    return max(0, behind - awaited.size_bytes)


def _of_table(table: TableId, copied: TableState | None, followed: TableChanges | None) -> TableProgress:
    changes = TableChanges(table, 0, 0, 0) if followed is None else followed
    exhausted = copied is None or isinstance(copied.cursor, Exhausted)
    planned = 0 if copied is None else copied.planned_splits
    done = 0 if copied is None else copied.done_splits
    return TableProgress(
        table=str(table),
        splits_done=done,
        splits_total=planned if copied is None or exhausted else estimated_splits(copied),
        rows=0 if copied is None else copied.done_rows,
        estimated_rows=None if copied is None else copied.estimated_rows,
        complete=exhausted and done == planned,
        inserts=changes.inserts,
        updates=changes.updates,
        deletes=changes.deletes,
    )
