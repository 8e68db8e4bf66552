"""Writes what a target lacks that was set back: restored from a backup, or failed over to a standby that lagged behind.

The target's own record tells the last epoch of the log that it has. If only the log was followed since, the job goes on from
the position that it had then: what the target lacks is read again from the source's log, with the same versions. If the
checkpoint no longer has that epoch, a mirror gets the log from an older cut on. Otherwise, or
if the source no longer has that log, all tables are read again (`source.on_log_lost`). So are tables of which signals had some
rows read again since: what these mended may be in no log; and tables that have joined the job or got columns since: the
target may lack these. In mode `incremental` no rows can be read, so the job stops then.
"""

import contextlib
import time

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.recovered_state import is_going_back, offset_from, reached_before, recover_state
from tidemark.jobs.recovery.readable_tables import find_readable
from tidemark.jobs.recovery.rollback import (
    Cut,
    cut_after,
    cut_before_all,
    forget_unwritten,
    require_no_moves,
    unwritten_log,
)
from tidemark.jobs.sinks import sink_identity, sink_needs
from tidemark.jobs.tables.parking import leave_to_come_back
from tidemark.readers.findings import raise_passing
from tidemark.readers.source import RegainsLog
from tidemark.sinks.sink import JobIdentity, ProvesAbsence, Sink, Written
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import (
    CheckpointError,
    LogPositionLostError,
    LostCopyError,
    SinkError,
    SourceNotUsableError,
    TargetSetBackError,
    TidemarkError,
)
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Joined, Left
from tidemark.state.log_range import LogRange
from tidemark.state.plan import AwaitedLog, AwaitedSplits, EnumeratorState
from tidemark.state.position import Position
from tidemark.state.reached import Reached
from tidemark.state.table import TableId

MAX_IN_A_ROW = 3
"""How often a job goes back without a new epoch in between: its target may be set back again before it has gone on."""


def goes_back(
    error: TidemarkError, job: JobFile, state: JobState, sink: Sink, events: Events, *, at_start: bool = False
) -> bool:
    """Makes the job ready to continue from what the target has, durably. The job must be opened again. Returns False if the
    error must stop the job, or park its table. `error`: also one of copies that are not as the job has left them, if that is
    because the target was set back to before they were. `at_start`: a check before the start raised it."""
    checkpoint = Checkpoint.at(job.checkpoint)
    is_of_copies = not isinstance(error, TargetSetBackError)
    if is_of_copies and not (isinstance(error, SinkError) and not sink_needs(job.sink).commits_tables):
        return False  # such as a Delta table, which is set back by itself
    if job.mode == "full" or (is_of_copies and _is_elsewhere(checkpoint, job)):
        return False
    is_again = is_going_back(checkpoint, state)
    if is_again and _times_in_a_row(checkpoint, state) >= MAX_IN_A_ROW:
        return False
    try:
        written = sink.written(JobIdentity(state.job_uuid, state.job_name))
    except (SinkError, OSError):
        if not is_of_copies:
            raise
        return False  # the target's record is gone, too: then `error` says what to do
    if is_of_copies and (written is None or written.last_epoch == 0):
        return False  # nothing of the job is there: an emptied or another place, not an older state
    committed, planned = checkpoint.committed_epoch(), max(checkpoint.plan_epochs(), default=0)
    if written is None or committed == 0 or written.last_epoch > planned or written.log_epoch > committed:
        return False  # the transaction of an epoch of the log saw all that came before
    known = reached_before(checkpoint, state, committed, planned)
    if known is None:
        return False
    if written.before(committed + 1) == known:
        # In a run, an error of a copy comes behind the fence, which names this driver: the target was not set back.
        return (
            (at_start or not is_of_copies) and not is_again and _reads_altered(error, job, state, sink, events, written)
        )
    unwritten = unwritten_log(checkpoint)
    now = recover_state(checkpoint, job, state, committed=committed)
    cut = _cut_of(checkpoint, job, state, now, written)
    rereads = set() if cut is None else _read_again_since(checkpoint, state, cut.epoch)  # such rows may be in no log
    again = rereads if cut is None else rereads | cut.joined | cut.altered
    if is_again and is_of_copies and cut is not None and error.table not in again:
        return False  # the older state has its copy as the job had left it: somebody has changed that
    if cut is None or len(again) == len(state.schemas):
        cut, again = None, {schema.table for schema in state.schemas}
    position = None if cut is None else cut.position
    if position is None or again:
        if job.mode != "full+incremental" or (is_of_copies and not job.source.reads_again_after_lost_log):
            return False
        if not job.source.reads_again_after_lost_log:
            remedy = f"{error.remedy} Or set source.on_log_lost: resnapshot, and run the job again: it reads all rows."
            raise TargetSetBackError(error.message, remedy) from error
    if position is None:
        with find_readable(job, state) as found:
            raise_passing(found.findings)
            start = found.joining_start((), goes_on=True)
        what = "So the rows of all tables are read again (source.on_log_lost)."
    else:
        start = position
        what = f"So the log is read again from {start} on."
    if position is not None and again:
        names = ", ".join(map(str, sorted(again)))
        why = (
            f"Signals had rows of {names} read again since then"
            if again <= rereads
            else f"{names} joined the job or got columns since then"
        )
        what += f" {why}, so all of their rows are read again."
    if job.mode == "incremental" and not _has_log(job, state, start):
        return False
    forget_unwritten(checkpoint, unwritten)  # before tables leave: the report is of an epoch with them
    if position is None or again:
        leave_to_come_back(checkpoint, state, again)
        failpoint("set_back.left")
    has_more = cut is not None and cut.epoch != written.log_epoch
    joined = Joined(
        start,
        (),
        (),
        left_files=checkpoint.left_count(),
        after_epoch=max(checkpoint.plan_epochs(), default=0),
        at_us=time.time_ns() // 1000,
        restarts=True,
        version_offset=None if cut is not None and not has_more else offset_from(job, state, start),
        rolled_back_from=now.position if has_more else None,
        rolled_back_log=now.known_log if has_more else None,
        reached=_reached(now, written.before(committed + 1)),
        start_log=None if cut is None else cut.known_log,
    )
    checkpoint.create_joined(state, joined)
    told = f"{error.message} The target was set back to an older state." if is_of_copies else error.message
    events.note("warning", text=f"{told} {what}")
    return True


def lacks_only_the_driver(error: TidemarkError, job: JobFile, state: JobState, sink: Sink) -> bool:
    """True if the target has all that the job has written: it was set back to before this driver has taken it over, and need
    only be taken over again. `error`: of a run that has refused to write to it."""
    if not isinstance(error, TargetSetBackError):
        return False
    checkpoint = Checkpoint.at(job.checkpoint)
    written = sink.written(JobIdentity(state.job_uuid, state.job_name))
    committed, planned = checkpoint.committed_epoch(), max(checkpoint.plan_epochs(), default=0)
    if written is None or committed == 0 or written.last_epoch > planned or written.log_epoch > committed:
        return False
    return written.before(committed + 1) == reached_before(checkpoint, state, committed, planned)


def _reads_altered(
    error: TidemarkError, job: JobFile, state: JobState, sink: Sink, events: Events, written: Written
) -> bool:
    """Has tables read again that were altered, or joined the job, after the last epoch that was written, durably: a target that
    has all epochs may have been set back to before that. Returns False if there are none, if `error` is of another table, or if
    an earlier driver has written the next epoch meanwhile."""
    checkpoint, epoch = Checkpoint.at(job.checkpoint), written.last_epoch
    if epoch > checkpoint.committed_epoch() or epoch not in checkpoint.plan_epochs():
        return False
    planned_at_us = checkpoint.plan(epoch).planned_at_us
    joined = [each for each in state.joined if each.after_epoch >= epoch]
    found = {each.schema.table for each in checkpoint.altered() if each.is_since(epoch, planned_at_us)}
    found |= {table for each in joined for table in each.back}
    if isinstance(error, TargetSetBackError | LostCopyError):  # others are of a new copy that can't be made
        found |= {schema.table for each in joined for schema in each.schemas}
    again = found & {schema.table for schema in state.schemas}
    times = max((sum(table in each.back for each in joined) for table in again), default=0)
    if not again or (error.table is not None and error.table not in again) or times >= MAX_IN_A_ROW:
        return False
    if job.mode != "full+incremental" or not job.source.reads_again_after_lost_log:
        return False
    unwritten = unwritten_log(checkpoint)
    if unwritten is not None and not _lacks(sink, checkpoint, state, unwritten):
        return False
    forget_unwritten(checkpoint, unwritten)
    leave_to_come_back(checkpoint, state, again)
    failpoint("set_back.left")
    names = ", ".join(map(str, sorted(again)))
    why = f"The target has all epochs. {names} joined the job or got columns since the last one"
    events.note("warning", text=f"{error.message} {why}, so all of their rows are read again.")
    return True


def _lacks(sink: Sink, checkpoint: Checkpoint, state: JobState, epoch: int) -> bool:
    """True if the sink has nothing of the epoch of the log and never will: what was read of it may be forgotten. What earlier
    drivers write from then on is refused, and so is what this one's tasks still write."""
    identity = JobIdentity(state.job_uuid, state.job_name, checkpoint.take_owner(again=True))
    if isinstance(sink, ProvesAbsence):
        return sink.lacks(identity, epoch)
    sink.prepare(identity, ())
    written = sink.written(identity)
    return written is not None and written.last_epoch < epoch


def _times_in_a_row(checkpoint: Checkpoint, state: JobState) -> int:
    """Returns how often the job has gone back since the newest epoch was planned."""
    newest = max(checkpoint.plan_epochs(), default=0)
    return sum(joined.reached is not None and joined.after_epoch == newest for joined in state.joined)


def _is_elsewhere(checkpoint: Checkpoint, job: JobFile) -> bool:
    known = checkpoint.sink_identity()
    return known is not None and known.relocation(sink_identity(job.sink)) is not None


def _cut_of(
    checkpoint: Checkpoint, job: JobFile, state: JobState, now: EnumeratorState, written: Written
) -> Cut | None:
    """Returns the newest cut with no more of the log than the target has, None if more than the log must be read again. Only
    mirrors get changes again that they have: in files these would be there twice."""
    if written.last_epoch != written.log_epoch:
        return None
    unwritten = _unwritten(checkpoint, now)
    direct = None
    with contextlib.suppress(CheckpointError):
        direct = cut_after(checkpoint, job, state, now, written.log_epoch)
    if direct is not None:
        if unwritten is not None and job.sink.type == "mirror" and _has_moves(job, state, direct, unwritten):
            return None
        return direct
    first = cut_before_all(checkpoint, state)
    if written.log_epoch == 0:
        return first
    keyless = any(not schema.key for schema in state.schemas)
    if job.sink.type != "mirror" or (keyless and sink_needs(job.sink).appends_keyless):
        return None
    older = [
        epoch for epoch in checkpoint.plan_epochs() if epoch < written.log_epoch and checkpoint.has_log_report(epoch)
    ]
    for epoch in reversed([0, *older]):
        try:
            cut = cut_after(checkpoint, job, state, now, epoch) if epoch else first
        except CheckpointError:
            return None
        if cut is None:
            return None
        if not _went_back(state, cut.position, epoch, written.log_epoch):
            return None if _has_moves(job, state, cut, unwritten or now.position) else cut
    return None


def _unwritten(checkpoint: Checkpoint, now: EnumeratorState) -> Position | None:
    """Returns up to where an epoch goes that was read and is not committed, None if there is none. The target has nothing of
    it. But another state of the target may have all of it, and be put back later: the epoch is passed over, and has its
    number."""
    match now.awaited:
        case AwaitedLog(log_range) if checkpoint.has_log_report(now.epoch):
            return log_range.stop
        case _:
            return None


def _has_moves(job: JobFile, state: JobState, cut: Cut, stop: Position) -> bool:
    """True if the log between the cut and `stop`, which the copies may have, can't be written again, or is gone."""
    again = cut.joined | cut.altered
    others = state.without([Left(s.table, s.version) for s in state.schemas if s.table in again])
    try:
        _require_no_moves_since(job, others, cut.position, stop)
    except (CheckpointError, LogPositionLostError):
        return True
    except SourceNotUsableError as error:
        if error.table is None:
            raise
        return True  # such as a table that was dropped: the next start says what is wrong with it
    return False


def _has_log(job: JobFile, state: JobState, start: Position) -> bool:
    """Returns whether the source has the log from `start` on."""
    with find_readable(job, state) as found:
        raise_passing(found.findings)
        if isinstance(found, RegainsLog):
            found.regain_log(state, start)
        try:
            found.require_same_log(state, [start])
        except LogPositionLostError:
            return False
        except SourceNotUsableError as error:
            if error.table is None:
                raise
            return False  # the next start says what is wrong with the table
    return True


def _went_back(state: JobState, position: Position, epoch: int, until: int) -> bool:
    """True if the job went on from before the position after `epoch`, and not later than after `until`: the target may lack
    the log up to the position."""
    restarts = [joined for joined in state.joined if joined.restarts and epoch <= joined.after_epoch <= until]
    return any(joined.start.order < position.order for joined in restarts)


def _require_no_moves_since(job: JobFile, state: JobState, start: Position, stop: Position) -> None:
    """Raises CheckpointError, LogPositionLostError."""
    with find_readable(job, state) as found:
        raise_passing(found.findings)
        if isinstance(found, RegainsLog):
            found.regain_log(state, start)
        require_no_moves(found.server(state), state, LogRange(start, stop))


def _read_again_since(checkpoint: Checkpoint, state: JobState, epoch: int) -> set[TableId]:
    """Returns the tables of the job of which rows were read again, and perhaps written, after the epoch."""
    then = None if epoch == 0 else checkpoint.plan(epoch).state
    later = state.joined if then is None else state.joined[then.joined :]
    rereads = [*(() if then is None else then.rereads), *(reread for joined in later for reread in joined.rereads)]
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
