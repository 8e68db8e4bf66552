"""Goes on with the log that the source has kept for longer than the job needs it (`checkpoints.keep`).

PostgreSQL: the job's slot is gone, or beyond the position from which the job continues, because the target was set back or
somebody has used the slot. No row is read again if the server has another slot of the job that has the log.
"""

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.recovered_state import needed_log, recover_state
from tidemark.jobs.recovery.readable_tables import find_readable
from tidemark.readers.findings import raise_passing
from tidemark.readers.source import RegainsLog
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError, TidemarkError
from tidemark.state.job_state import JobState
from tidemark.state.phase import Phase


def regains_log(error: TidemarkError, job: JobFile, state: JobState, events: Events) -> bool:
    """Makes the log readable again that the error says is lost. The job must be opened again. Returns False if the source does
    not have it."""
    if not isinstance(error, LogPositionLostError) or error.table is not None or not state.schemas:
        return False
    checkpoint = Checkpoint.at(job.checkpoint)
    # An epoch that was read, but is not committed, may be read once more.
    now = recover_state(checkpoint, job, state, committed=checkpoint.committed_epoch())
    if now.phase is Phase.DONE:
        return False
    position = min(needed_log(now, state), key=lambda needed: needed.order)
    with find_readable(job, state) as found:
        raise_passing(found.findings)
        if not isinstance(found, RegainsLog) or not found.regain_log(state, position):
            return False
    text = (
        f"{error.message} The source has kept the log for longer (checkpoints.keep), so the job continues from {position}, and "
        "reads no rows again."
    )
    events.note("warning", text=text)
    return True
