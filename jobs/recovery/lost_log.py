"""Reads all rows again if the source no longer has the log that the job needs (`source.on_log_lost`).

All tables leave the job. They come back with the log's present end as their start, from which the job then goes on: their
rows are read again. What was planned of the lost log is committed without reading it. So is
what a job without tables would read until they come back: `Joined.restarts`.
"""

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.recovery.readable_tables import find_readable
from tidemark.jobs.tables.parking import lost_in_a_row, take_out_all
from tidemark.readers.findings import raise_passing
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError, TidemarkError
from tidemark.state.job_state import JobState

ATTEMPTS = 3
"""How often in a row the rows of all tables are read again, if the log is lost each time before all are read."""


def reads_all_again(error: TidemarkError, job: JobFile, state: JobState, events: Events) -> bool:
    """Takes all tables out of the job, durably, because the log is lost. The job must be opened again, and they come back.
    Returns False if the error must stop the job. Raises it with another remedy if only `source.on_log_lost` is in the
    way."""
    if not isinstance(error, LogPositionLostError) or error.table is not None or job.mode != "full+incremental":
        return False
    checkpoint = Checkpoint.at(job.checkpoint)
    if not state.schemas or not checkpoint.plan_epochs() or lost_in_a_row(checkpoint, job, state) >= ATTEMPTS:
        return False
    with find_readable(job, state) as found:
        raise_passing(found.findings)  # a standby has no slot
        found.require_same_log(state, [])  # reading again does not help if this is another server
    if not job.source.reads_again_after_lost_log:
        remedy = (
            "If this is the right server, set source.on_log_lost: resnapshot, and run the job again: it reads all rows."
        )
        raise LogPositionLostError(error.message, f"{remedy} {error.remedy}") from error
    text = f"{error.message} So the rows of all tables are read again (source.on_log_lost)."
    events.note("warning", text=text)
    take_out_all(job, state)
    return True
