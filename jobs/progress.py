"""How far a job is, told from its checkpoint alone."""

import time
from dataclasses import dataclass

from conf.model import JobFile
from enumerator.splitting import estimated_splits
from jobs.checkpoint import Checkpoint
from jobs.standing import standing
from state.job_state import JobState
from state.plan import Exhausted, LogWork, TableState


@dataclass(frozen=True, slots=True)
class TableProgress:
    """`splits_total` is an estimate until the table's last split is planned, None before its first."""

    table: str
    splits_done: int
    splits_total: int | None
    rows: int
    estimated_rows: int | None
    complete: bool

    @property
    def share(self) -> float:
        """0 to 1, of splits if their number is known, else of estimated rows."""
        if self.splits_total:
            return min(1.0, self.splits_done / self.splits_total)
        return 0.0


@dataclass(frozen=True, slots=True)
class JobProgress:
    """`position` is where the log has been read to. `lag_seconds`: since the newest transaction taken was committed, by
    the clocks of the source and of this machine; None before the first. `changes` are those of this run."""

    mode: str
    phase: str
    committed_epoch: int
    position: str
    lag_seconds: float | None
    changes: int
    caught_up: bool
    tables: tuple[TableProgress, ...]


def read_progress(
    checkpoint: Checkpoint,
    job: JobFile,
    state: JobState,
    committed_epoch: int,
    *,
    changes: int = 0,
    caught_up: bool = False,
) -> JobProgress | None:
    """After `committed_epoch`; None where no epoch is planned yet."""
    epochs = checkpoint.plan_epochs()
    if not epochs:
        return None
    now = standing(checkpoint, job, state, committed=committed_epoch)
    committed_at_us = None
    if committed_epoch and isinstance(checkpoint.plan(committed_epoch).plan.work, LogWork):
        committed_at_us = checkpoint.log_report(committed_epoch).end_timestamp_us
    return JobProgress(
        mode=now.mode,
        phase=now.phase.value,
        committed_epoch=committed_epoch,
        position=str(now.position),
        lag_seconds=None if committed_at_us is None else max(0.0, time.time() - committed_at_us / 1e6),
        changes=changes,
        caught_up=caught_up,
        tables=tuple(map(_of_table, now.tables)),
    )


def _of_table(table: TableState) -> TableProgress:
    exhausted = isinstance(table.cursor, Exhausted)
    return TableProgress(
        table=str(table.table),
        splits_done=table.done_splits,
        splits_total=table.planned_splits if exhausted else estimated_splits(table),
        rows=table.done_rows,
        estimated_rows=table.estimated_rows,
        complete=exhausted and table.done_splits == table.planned_splits,
    )
