"""Writes what a target lacks that was set back: restored from a backup, or failed over to a standby that lagged behind.

The target's own record tells the last epoch of the log that it has. If only the log was followed since, the job goes on from
the position that it had then: what the target lacks is read again from the source's log, with the same versions. Otherwise, or
if the source no longer has that log, all tables are read again (`source.on_log_lost`). So are tables of which signals had some
rows read again since: what these mended may be in no log.
"""

import time

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.recovered_state import is_going_back, offset_from, recover_state
from tidemark.jobs.recovery.readable_tables import find_readable
from tidemark.jobs.recovery.rollback import forget_unwritten, position_of_cut
from tidemark.jobs.tables.parking import leave_to_come_back
from tidemark.readers.findings import raise_passing
from tidemark.sinks.sink import JobIdentity, Sink, Written
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, TargetSetBackError, TidemarkError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Joined
from tidemark.state.plan import AwaitedLog, AwaitedSplits, EnumeratorState
from tidemark.state.position import Position
from tidemark.state.reached import Reached
from tidemark.state.table import TableId


def goes_back(error: TidemarkError, job: JobFile, state: JobState, sink: Sink, events: Events) -> bool:
    """Makes the job ready to continue from what the target has, durably. The job must be opened again. Returns False if the
    error must stop the job."""
    checkpoint = Checkpoint.at(job.checkpoint)
    if not isinstance(error, TargetSetBackError) or job.mode == "full" or is_going_back(checkpoint, state):
        return False
    written = sink.written(JobIdentity(state.job_uuid, state.job_name, checkpoint.take_owner()))
    committed = checkpoint.committed_epoch()
    if written is None or committed == 0 or written.last_epoch > committed:
        return False
    known = checkpoint.plan(committed).state.reached
    if known is None or written.before(committed + 1) == known:
        return False
    now = recover_state(checkpoint, job, state, committed=committed)
    position = _position_then(checkpoint, job, state, now, written)
    again = {schema.table for schema in state.schemas}
    if position is not None:
        again = _read_again_since(checkpoint, state, written.log_epoch)  # such rows may be in no log
    if position is None or again:
        if job.mode != "full+incremental":
            return False
        if not job.source.reads_again_after_lost_log:
            remedy = f"{error.remedy} Or set source.on_log_lost: resnapshot, and run the job again: it reads all rows."
            raise TargetSetBackError(error.message, remedy) from error
    if position is None:
        with find_readable(job, state) as found:
            raise_passing(found.findings)
            start = found.joining_start(())
        what = "So the rows of all tables are read again (source.on_log_lost)."
    else:
        start = position
        what = f"So the log is read again from {start} on."
    if position is not None and again:
        names = ", ".join(map(str, sorted(again)))
        what += f" Signals had rows of {names} read again since then, so all of their rows are read again."
    forget_unwritten(checkpoint)  # before tables leave: the report is of an epoch with them
    if position is None or again:
        leave_to_come_back(checkpoint, state, again)
        failpoint("set_back.left")
    joined = Joined(
        start,
        (),
        (),
        left_files=checkpoint.left_count(),
        after_epoch=max(checkpoint.plan_epochs(), default=0),
        at_us=time.time_ns() // 1000,
        restarts=True,
        version_offset=None if position is not None else offset_from(job, state, start),
        reached=_reached(now, written.before(committed + 1)),
    )
    checkpoint.create_joined(state, joined)
    events.note("warning", text=f"{error.message} {what}")
    return True


def _position_then(
    checkpoint: Checkpoint, job: JobFile, state: JobState, now: EnumeratorState, written: Written
) -> Position | None:
    """Returns the position up to which the target has the log, None if more than the log must be read again."""
    if written.last_epoch != written.log_epoch:
        return None
    try:
        return position_of_cut(checkpoint, job, state, now, written.log_epoch)
    except CheckpointError:
        return None


def _read_again_since(checkpoint: Checkpoint, state: JobState, epoch: int) -> set[TableId]:
    """Returns the tables of the job of which rows were read again, and perhaps written, after the epoch."""
    then = checkpoint.plan(epoch).state
    rereads = [*then.rereads, *(reread for joined in state.joined[then.joined :] for reread in joined.rereads)]
    versions = {schema.table: schema.version for schema in state.schemas}
    return {reread.table for reread in rereads if versions.get(reread.table) == reread.version}


def _reached(now: EnumeratorState, found: Reached) -> Reached:
    """The ledger's state once the planned epoch, if there is one, is written without rows."""
    match now.awaited:
        case AwaitedLog():
            return Reached(now.epoch, 0)
        case AwaitedSplits(first_id, end_id):
            return Reached(found.log_epoch, found.splits + end_id - first_id)
        case None:
            return found
