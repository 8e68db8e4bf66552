"""The progress of a job's copy, from its checkpoint alone. The job may run meanwhile."""

import time

from tidemark.conf.model import JobFile
from tidemark.conf.quantities import Every
from tidemark.jobs.monitoring.run_record import last_run, state_of
from tidemark.jobs.recovered_state import recover_state, required_state
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState
from tidemark.state.position import Position
from tidemark.state.table import TableId, TableSchema

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""How long the comparison waits while a job that runs commits nothing."""


class NotComparableError(Exception):
    """The table can't be compared, and why. `passes`: it may be comparable later."""

    def __init__(self, why: str, *, passes: bool = True) -> None:
        super().__init__(why)
        self.passes = passes


class CopyProgress:
    """`patience_seconds`: how long to wait while the job commits nothing. None: PATIENCE_SECONDS if it runs, or two
    intervals of its trigger if that is longer; else not at all."""

    def __init__(self, checkpoint: Checkpoint, job: JobFile, patience_seconds: float | None = None) -> None:
        self._checkpoint, self._job, self._patience = checkpoint, job, patience_seconds
        self._changed: dict[int, frozenset[TableId] | None] = {}

    def now(self) -> tuple[int, EnumeratorState]:
        """Returns the committed epoch, and the state after it or a later one. The copy has everything before its position."""
        committed = self._checkpoint.committed_epoch()
        state = required_state(self._checkpoint, self._job)
        return committed, recover_state(self._checkpoint, self._job, state, committed=committed)

    def require_complete(self, schema: TableSchema) -> None:
        """Raises NotComparableError unless all rows of the table were copied, and it is still the same table of the job."""
        state = required_state(self._checkpoint, self._job)
        if schema.table in state.left_tables:
            raise NotComparableError("it is not in the job any more: it was parked or excluded")
        if all((known.table, known.version) != (schema.table, schema.version) for known in state.schemas):
            raise NotComparableError("its rows are read again since the comparison began")
        if schema not in state.schemas:
            raise NotComparableError("it got new columns since the comparison began")
        _, now = self.now()
        copied = next((table for table in now.tables if table.table == schema.table), None)
        passed = copied is not None and copied.passed
        if schema.table in now.empties or not (passed or now.phase in {Phase.STREAM, Phase.DONE}):
            raise NotComparableError("its copy is not complete yet: rows are still being read")

    def wait_until(self, position: Position) -> bool:
        """Returns whether the copy has everything before `position`. Waits for a job that goes on."""
        epoch, since = -1, time.monotonic()
        while True:
            committed, now = self.now()
            if now.position.order >= position.order:
                return True
            if now.phase is Phase.DONE:
                return False
            if committed != epoch:
                epoch, since = committed, time.monotonic()
            if time.monotonic() - since >= self._seconds():
                return False
            time.sleep(POLL_SECONDS)

    def runs(self) -> bool:
        """Returns whether a driver runs the job."""
        run = last_run(self._checkpoint)
        return run is not None and not state_of(run, time.time_ns() // 1000).is_over

    def version_offset(self) -> int:
        """Returns what the job adds to positions of the log in `_commit_version`."""
        return required_state(self._checkpoint, self._job).version_offset()

    def committed(self) -> int:
        return self._checkpoint.committed_epoch()

    def had_no_change(self, table: TableId, since: int) -> bool:
        """Returns whether the log had no change of the table in the epochs after `since`, up to the committed one. False if
        that is not known any more."""
        for epoch in range(since + 1, self.committed() + 1):
            if epoch not in self._changed:
                self._changed[epoch] = self._tables_changed(epoch)
            tables = self._changed[epoch]
            if tables is None or table in tables:
                return False
        return True

    def _tables_changed(self, epoch: int) -> frozenset[TableId] | None:
        try:
            return frozenset(changes.table for changes in self._checkpoint.log_report(epoch).changes)
        except CheckpointError:  # it read splits, or its report was removed
            return None

    def _seconds(self) -> float:
        if self._patience is not None:
            return self._patience
        if not self.runs():
            return 0.0
        trigger = self._job.trigger
        return max(PATIENCE_SECONDS, 2 * trigger.interval_seconds) if isinstance(trigger, Every) else PATIENCE_SECONDS
