"""The log that a stopped job has not read yet: whether it has changes of a table."""

import time
from collections.abc import Sequence

from tidemark.jobs.reconcile.copy_progress import POLL_SECONDS, CopyProgress
from tidemark.readers.source import PlannerAccess, SourceServer
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.log_range import LogRange
from tidemark.state.position import Position
from tidemark.state.table import TableId, TableSchema

MAX_UNREAD_BYTES = 256 << 20
"""The most log of a stopped job that the comparison reads. If there is more, the job must run first."""
FLUSHED_SECONDS = 10.0
"""How long PostgreSQL may take to flush what it has logged (asynchronous commits)."""


def may_have_changed(
    progress: CopyProgress,
    server: SourceServer,
    access: PlannerAccess,
    schemas: Sequence[TableSchema],
    *,
    table: TableId,
    until: Position,
) -> bool:
    """Returns False if the log has no change of the table after what the copy has, at least up to `until`. True if it has
    some, or if that can't be told. Reads no log while the job runs: a PostgreSQL slot has one reader."""
    _, now = progress.now()
    if progress.runs():
        return True
    try:
        extent, since = access.log_extent(), time.monotonic()
        while extent.end.order < until.order:
            if time.monotonic() - since > FLUSHED_SECONDS:
                return True
            time.sleep(POLL_SECONDS)
            extent = access.log_extent()
        if extent.bytes_between(now.position, extent.end) > MAX_UNREAD_BYTES:
            return True
        reading = server.log_reading(schemas)
        log_range = LogRange(now.position, extent.end, now.prepared)
        return any(batch.table == table and batch.rows.num_rows for batch in reading.read(log_range))
    except (LogPositionLostError, SourceNotUsableError):  # nobody can tell now what has changed: the job will say why
        return True
