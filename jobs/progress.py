"""How far a job is, told from its checkpoint alone."""

import time
from dataclasses import dataclass

from enumerator.splitting import estimated_splits
from jobs.checkpoint import Checkpoint
from state.plan import AwaitedSplits, EnumeratorState, Exhausted, LogWork, TableState


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

    phase: str
    committed_epoch: int
    position: str
    lag_seconds: float | None
    changes: int
    caught_up: bool
    tables: tuple[TableProgress, ...]


def read_progress(
    checkpoint: Checkpoint, committed_epoch: int, *, changes: int = 0, caught_up: bool = False
) -> JobProgress | None:
    """After `committed_epoch`; None where no epoch is planned yet."""
    epochs = checkpoint.plan_epochs()
    if not epochs:
        return None
    record = checkpoint.plan(epochs[-1])
    state = record.state
    latest_is_committed = epochs[-1] <= committed_epoch
    position, committed_at_us = str(state.position), None
    for epoch in reversed([e for e in epochs if e <= committed_epoch]):
        plan = checkpoint.plan(epoch).plan
        if isinstance(plan.work, LogWork):
            report = checkpoint.log_report(epoch)
            position, committed_at_us = str(report.end), report.end_timestamp_us
        break
    return JobProgress(
        phase=state.phase.value,
        committed_epoch=committed_epoch,
        position=position,
        lag_seconds=None if committed_at_us is None else max(0.0, time.time() - committed_at_us / 1e6),
        changes=changes,
        caught_up=caught_up,
        tables=tuple(_of_table(table, state, committed=latest_is_committed) for table in state.tables),
    )


def _of_table(table: TableState, state: EnumeratorState, *, committed: bool) -> TableProgress:
    done = table.done_splits
    if committed and isinstance(state.awaited, AwaitedSplits):
        done = max(done, table.planned_splits)
    exhausted = isinstance(table.cursor, Exhausted)
    return TableProgress(
        table=str(table.table),
        splits_done=done,
        splits_total=table.planned_splits if exhausted else estimated_splits(table),
        rows=table.done_rows,
        estimated_rows=table.estimated_rows,
        complete=exhausted and done == table.planned_splits,
    )
