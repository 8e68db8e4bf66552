"""Rolling back: a job reads the log again from an older consistent cut on (`tidemark checkpoints JOB.yaml rollback EPOCH`).

Epoch numbers, the fence and versions of changes only grow: what was read before is read again as later epochs.
"""

import time
from dataclasses import dataclass, replace

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName
from tidemark.enumerator.enumerator import absorb, in_mode, of_job
from tidemark.jobs.recovered_state import (
    needed_log,
    offset_from,
    read_outcome,
    recover_state,
    required_state,
    settings_of,
)
from tidemark.jobs.recovery.proven_log import require_known_log
from tidemark.jobs.sources import acquire_lease, find_source
from tidemark.jobs.tables.parking import to_be_found
from tidemark.readers.findings import raise_passing
from tidemark.readers.log.split_key_moves import key_update_inserts
from tidemark.readers.source import FoundSource, RegainsLog, SourceServer
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, JobHeldError, LogPositionLostError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Joined
from tidemark.state.log_extent import KnownLog
from tidemark.state.log_range import LogRange, LogReport
from tidemark.state.phase import Phase
from tidemark.state.plan import AwaitedLog, EnumeratorState, LogWork
from tidemark.state.position import Position
from tidemark.state.remedies import read_again
from tidemark.state.table import TableId

_LIST = "Choose another epoch: tidemark checkpoints JOB.yaml list shows those that are kept."


def roll_back(job: JobFile, epoch: int, *, standby: bool = False) -> Position:
    """Makes the next start of the job read the log again from the position that it had after `epoch`, durably. Returns the
    position. Raises CheckpointError if more than the log would have to be read again, or if a table has no key,
    LogPositionLostError if the source no longer has that log, JobHeldError if the job runs, unless `standby`: then waits for
    its end."""
    try:
        lease = acquire_lease(job, wait=standby)
    except JobHeldError as error:
        raise JobHeldError(error.message, "Stop the job first.") from error
    with lease:
        checkpoint = Checkpoint.at(job.checkpoint)
        if checkpoint.has_job():
            checkpoint.take_owner()
        state, unwritten = required_state(checkpoint, job), unwritten_log(checkpoint)
        if epoch > checkpoint.committed_epoch():
            raise CheckpointError(f"Epoch {epoch} is not committed.", _LIST)
        keyless = [schema.table for schema in state.schemas if not schema.key]
        if keyless:
            raise CheckpointError(
                f"{keyless[0]} has no key, so its copy would get changes twice.",
                "Let the job continue, and read single tables again: tidemark signal JOB.yaml resnapshot --table NAME.",
            )
        now = recover_state(checkpoint, job, state)
        cut = cut_after(checkpoint, job, state, now, epoch)
        if cut.joined:
            raise CheckpointError(f"Tables have joined the job after epoch {epoch}.", _LIST)
        if cut.altered:
            raise CheckpointError(f"A table has got or lost columns after epoch {epoch}.", _LIST)
        position = cut.position
        if position.order > needed_log(now, state)[0].order:
            raise CheckpointError(
                f"After epoch {epoch} the job was rolled back further, and the log up to there was not read again yet.",
                "Choose an older epoch, or let the job run until it has read the log to its end.",
            )
        with find_source(to_be_found(job, state), state) as found:
            raise_passing(found.findings)
            _require_log(found, state, now, position)
            require_no_moves(found.server(state), state, LogRange(position, now.position))
        forget_unwritten(checkpoint, unwritten)
        joined = Joined(
            position,
            (),
            (),
            left_files=checkpoint.left_count(),
            after_epoch=max(checkpoint.plan_epochs(), default=0),
            at_us=time.time_ns() // 1000,
            restarts=True,
            version_offset=offset_from(job, state, position),
            rolled_back_from=now.position,
            rolled_back_log=now.known_log,
            start_log=cut.known_log,
        )
        checkpoint.create_joined(state, joined)
    return position


def _require_log(found: FoundSource, state: JobState, now: EnumeratorState, position: Position) -> None:
    """Raises LogPositionLostError. If the source lacks what the job has read last, an older epoch is no way out."""
    if isinstance(found, RegainsLog):
        found.regain_log(state, position)
    found.require_same_log(state, [now.position])
    require_known_log(found, state, now.position, now.known_log)
    try:
        found.require_same_log(state, [position])
    except LogPositionLostError as error:
        remedy = (
            "Nothing was changed. Choose a newer epoch: tidemark checkpoints JOB.yaml list shows those that are kept."
        )
        raise LogPositionLostError(error.message, remedy) from error


def require_no_moves(server: SourceServer, state: JobState, log_range: LogRange) -> None:
    """Raises CheckpointError if the range, which the copies have already, gives a row another key and leaves values out. The
    copy must have these under the old key, which may be another row's by now."""
    schemas = {schema.table: schema for schema in state.schemas}
    if log_range.start.order >= log_range.stop.order or not any(schema.toastable for schema in state.schemas):
        return
    for batch in server.log_reading(state.schemas).read(log_range):
        if schemas[batch.table].toastable and key_update_inserts(batch.rows).any():
            raise CheckpointError(
                f"Since then a row of {batch.table} got another key, and the log leaves values of the row out. They can't be "
                "taken from the copy, which has other rows now.",
                f"{read_again(TableName(batch.table.database, batch.table.name))} Or choose a newer epoch: tidemark "
                "checkpoints JOB.yaml list shows those that are kept.",
            )


@dataclass(frozen=True, slots=True)
class Cut:
    """The log's position after an epoch. `known_log`: what the log before it is known by, None if nothing was noted. `joined`,
    `altered`: the tables of the job that have joined it, or whose columns were changed, since then."""

    epoch: int
    position: Position
    known_log: KnownLog | None
    joined: frozenset[TableId] = frozenset()
    altered: frozenset[TableId] = frozenset()


def cut_after(checkpoint: Checkpoint, job: JobFile, state: JobState, now: EnumeratorState, epoch: int) -> Cut:
    """Returns the cut after `epoch`. Raises CheckpointError unless only the log was followed since, at the same server."""
    if epoch not in checkpoint.plan_epochs() or not checkpoint.has_log_report(epoch):
        raise CheckpointError(f"Epoch {epoch} read no log, or the checkpoint no longer has what it read.", _LIST)
    record = checkpoint.plan(epoch)
    planned = in_mode(of_job(record.state, state), job.mode)
    if now.phase is not Phase.STREAM or not isinstance(planned.awaited, AwaitedLog):
        raise CheckpointError("The job's first load is not complete.", "Let the job run until it follows the log.")
    later, known = state.joined[planned.joined :], {schema.table for schema in state.schemas}
    if any(joined.server_identity for joined in later):
        raise CheckpointError(f"The job moved to another server after epoch {epoch}.", _LIST)
    joined = {schema.table for each in later for schema in each.schemas}
    altered = {each.schema.table for each in checkpoint.altered() if each.is_since(epoch, record.planned_at_us)}
    report = checkpoint.log_report(epoch)
    then = absorb(planned, read_outcome(checkpoint, record, state), settings_of(job))
    if _may_be_passed_over(state, epoch, report):
        starts = [(planned.position, planned.known_log), *_starts_instead_of(state, epoch)]
        position, known_log = min(starts, key=lambda start: start[0].order)
        then = replace(then, position=position, prepared=planned.prepared, known_log=known_log)
    if then.phase is not Phase.STREAM or then.prepared:
        raise CheckpointError(
            f"After epoch {epoch} the first load was not complete, or XA transactions were prepared.", _LIST
        )
    return Cut(epoch, then.position, then.known_log, frozenset(joined & known), frozenset(altered & known))


def cut_before_all(checkpoint: Checkpoint, state: JobState) -> Cut | None:
    """Returns the cut before the first epoch, None unless the job has read nothing but the log since it was started, of the
    same tables with the same columns."""
    is_same = not any(joined.schemas or joined.server_identity for joined in state.joined)
    if state.mode != "incremental" or state.prepared or not is_same or checkpoint.altered():
        return None
    return Cut(0, state.start, None)


def unwritten_log(checkpoint: Checkpoint) -> int | None:
    """Returns the planned epoch if it is of the log and not committed, None if there is none."""
    newest = max(checkpoint.plan_epochs(), default=0)
    is_unwritten = newest != checkpoint.committed_epoch() and isinstance(checkpoint.plan(newest).plan.work, LogWork)
    return newest if is_unwritten else None


def forget_unwritten(checkpoint: Checkpoint, epoch: int | None) -> None:
    """To be called before the job goes on from another position: the planned epoch of the log is passed over. If somebody has
    read it, its report goes, so that it is not taken for the report of an epoch that was written. `epoch`: what `unwritten_log`
    has returned when the caller began: later there may be another driver's. Raises JobHeldError if there is another driver."""
    if epoch is not None:
        failpoint("rollback.before_forgetting")
        checkpoint.forget_log_report(epoch)


def _may_be_passed_over(state: JobState, epoch: int, report: LogReport) -> bool:
    """True if the job went on from another position when this epoch was the newest planned one, and its report has nothing: it
    was passed over, or there was nothing to write."""
    was_newest = any(joined.restarts and joined.after_epoch == epoch for joined in state.joined)
    return was_newest and not (report.emitted_changes or report.filtered_changes or report.transactions)


def _starts_instead_of(state: JobState, epoch: int) -> list[tuple[Position, KnownLog | None]]:
    """Returns from where the job went on when it passed over this epoch because the target was set back: the target had no
    more of the log when it got the epoch. With what the log before is known by."""
    return [
        (joined.start, joined.start_log)
        for joined in state.joined
        if joined.after_epoch == epoch and joined.reached is not None and joined.reached.log_epoch == epoch
    ]
