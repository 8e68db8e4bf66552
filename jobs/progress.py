"""How far a job is, told from its checkpoint alone."""

import time
from dataclasses import dataclass

from conf.model import JobFile
from enumerator.splitting import estimated_splits
from jobs.checkpoint import Checkpoint
from jobs.standing import standing
from state.job_state import JobState
from state.log_range import TableChanges
from state.plan import AwaitedLog, Exhausted, PlanRecord, TableState
from state.table import TableId


@dataclass(frozen=True, slots=True)
class TableProgress:
    """`splits_total` is an estimate until the table's last split is planned, None before its first; 0 where only the
    log is read. `inserts`, `updates`, `deletes`: from the log, since the job's first start."""

    table: str
    splits_done: int
    splits_total: int | None
    rows: int
    estimated_rows: int | None
    complete: bool
    inserts: int = 0
    updates: int = 0
    deletes: int = 0

    @property
    def share(self) -> float:
        """0 to 1, of splits if their number is known, else of estimated rows."""
        if self.splits_total:
            return min(1.0, self.splits_done / self.splits_total)
        return 0.0


@dataclass(frozen=True, slots=True)
class RunSums:
    """What this run has done so far. `epoch_seconds`: the time that its epochs took to be read and written."""

    epochs: int = 0
    epoch_seconds: float = 0.0
    changes: int = 0
    caught_up: bool = False


@dataclass(frozen=True, slots=True)
class JobProgress:
    """`position` is where the log has been read to. `lag_seconds`: since the newest transaction taken was committed, by
    the clocks of the source and of this machine; None before the first. `lag_bytes`: log after the position, as the
    newest plan saw it. `epochs`, `epoch_seconds` and `changes` are those of this run; `transactions`, `filtered_changes`
    (which the splits contain already) and `reconnects` of the log are counted since the job's first start."""

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


def read_progress(
    checkpoint: Checkpoint,
    job: JobFile,
    state: JobState,
    committed_epoch: int,
    run: RunSums = RunSums(),
) -> JobProgress | None:
    """After `committed_epoch`; None where no epoch is planned yet."""
    epochs = checkpoint.plan_epochs()
    if not epochs:
        return None
    now = standing(checkpoint, job, state, committed=committed_epoch)
    newest_us = now.totals.newest_commit_us
    copied = {
        key.table: TableState(key.table, 0, key.columns) for key in state.split_keys
    }  # some may not have joined yet
    copied |= {table.table: table for table in now.tables}
    followed = {sums.table: sums for sums in now.totals.changes}
    return JobProgress(
        mode=now.mode,
        phase=now.phase.value,
        committed_epoch=committed_epoch,
        position=str(now.position),
        lag_seconds=None if newest_us is None else max(0.0, time.time() - newest_us / 1e6),
        lag_bytes=_lag_bytes(checkpoint.plan(max(epochs)), committed_epoch),
        epochs=run.epochs,
        epoch_seconds=round(run.epoch_seconds, 3),
        changes=run.changes,
        transactions=now.totals.transactions,
        filtered_changes=now.totals.filtered_changes,
        reconnects=now.totals.reconnects,
        caught_up=run.caught_up,
        tables=tuple(
            _of_table(schema.table, copied.get(schema.table), followed.get(schema.table)) for schema in state.schemas
        ),
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
