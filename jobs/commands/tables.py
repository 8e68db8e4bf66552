"""`tidemark tables`: the state of every table, and what can be done about it."""

from collections.abc import Iterator

from rich.table import Table

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact
from tidemark.jobs.commands.drawing import console
from tidemark.jobs.monitoring.progress import JobProgress, TableProgress, read_progress
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.recovered_state import required_state
from tidemark.jobs.signals.steering import resume_of, steering_at
from tidemark.jobs.tables.parking import DROPPED, way_back
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState, Left
from tidemark.state.phase import Phase


def tables(job: JobFile) -> None:
    """Prints what the checkpoint says. Raises CheckpointError if the job was never started."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    steering = steering_at(checkpoint)
    progress = read_progress(checkpoint, job, state, checkpoint.committed_epoch())
    if progress is not None:
        progress = progress.steered(steering)
    drawn = Table(box=None, pad_edge=False)
    for heading in ("table", "state", ""):
        drawn.add_column(heading, overflow="fold")
    for row in _rows(job, state, progress):
        drawn.add_row(*map(redact, row))
    console().print(drawn)


def _rows(job: JobFile, state: JobState, progress: JobProgress | None) -> Iterator[tuple[str, str, str]]:
    ids = {str(schema.table): schema.table for schema in state.schemas}
    for table in () if progress is None else progress.tables:
        yield table.table, state_of(table, progress), resume_of(ids[table.table]) if table.stopped else ""
    if progress is None:
        for schema in state.schemas:
            yield str(schema.table), "waiting", ""
    for left in state.left:
        name, what = str(left.table), text_of(left)
        yield name, what, way_back(job, left) if left.is_parked or left.paused else ""


def state_of(table: TableProgress, progress: JobProgress | None) -> str:
    """`waiting`, `snapshot` with its splits, or `live`: changes of all its rows are followed."""
    if table.stopped:
        total = "?" if table.splits_total is None else table.splits_total
        return f"snapshot stopped by a signal, {table.splits_done} of {total} splits"
    if progress is None or (not table.complete and not table.splits_done):
        return "waiting"
    if not table.complete:
        return f"snapshot, {table.splits_done} of {'?' if table.splits_total is None else table.splits_total} splits"
    return "done" if progress.phase == Phase.DONE.value else "live"


def text_of(left: Left) -> str:
    """The state of a table that has left the job, for people."""
    since = f"since {time_text(left.at_us)}"
    if left.why == DROPPED:
        return f"dropped {since}: {left.why}"
    if left.paused:
        return f"paused {since}. Its copy stays as it is."
    return f"parked {since}: {left.why}" if left.is_parked else f"left {since}: excluded. Its copy stays as it is."
