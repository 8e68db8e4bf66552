"""A job's state, recovered from its checkpoint alone."""

from collections.abc import Iterable, Sequence

from tidemark.conf.model import JobFile
from tidemark.enumerator.enumerator import (
    LogRead,
    Outcome,
    Settings,
    SplitsRead,
    absorb,
    first_state,
    in_mode,
    join,
    of_job,
)
from tidemark.readers.snapshot.publish import is_published, read_report
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError
from tidemark.state.job_state import JobState
from tidemark.state.log_extent import KnownLog
from tidemark.state.plan import AwaitedLog, AwaitedSplits, EnumeratorState, LogWork, PlanRecord, SnapshotWork
from tidemark.state.position import Position, WalPosition
from tidemark.state.reached import NOTHING_REACHED, Reached
from tidemark.state.remedies import RESTORE_CHECKPOINT
from tidemark.state.split import Split


def required_state(checkpoint: Checkpoint, job: JobFile) -> JobState:
    """The job's stored state. Raises CheckpointError if the job was never started."""
    state = checkpoint.job_state()
    if state is None:
        raise CheckpointError(
            f"Job {job.job} has no checkpoint in {job.checkpoint}.", "Start it: tidemark run JOB.yaml."
        )
    return state


def require_known_tables(checkpoint: Checkpoint, state: JobState) -> None:
    """Raises CheckpointError if the newest plan lacks a table of the job. It had left, and the file that said so is lost: the
    log was read without it. Only for the lease's holder: else a table may leave, and a plan be made, meanwhile."""
    newest = max(checkpoint.plan_epochs(), default=0)
    if newest == 0:
        return
    planned = checkpoint.plan(newest).state
    known, read = {table.table for table in planned.tables}, {split_key.table for split_key in state.split_keys}
    for schema in state.schemas_after(planned.joined):
        if schema.table in read - known:
            raise CheckpointError(
                f"{schema.table} had left the job before epoch {newest}, but the checkpoint {checkpoint.url} has no file of "
                "that any more.",
                RESTORE_CHECKPOINT,
            )


def settings_of(job: JobFile) -> Settings:
    return Settings(
        parallelism=job.snapshot.parallelism,
        split_rows=job.snapshot.split_rows,
        max_batch_bytes=job.log.max_batch_bytes,
        max_batch_seconds=job.log.max_batch_seconds,
        interleave=job.snapshot.interleave,
        max_rows_per_second=job.snapshot.max_rows_per_second,
    )


def read_outcome(
    checkpoint: Checkpoint, record: PlanRecord, state: JobState, *, seconds: float | None = None
) -> Outcome:
    """The outcome of a committed epoch. Raises CheckpointError if a part of it is gone."""
    epoch = record.plan.epoch
    match record.plan.work:
        case LogWork():
            return LogRead(epoch, checkpoint.log_report(epoch), seconds)
        case SnapshotWork(tasks):
            kept, left_out = splits_of_job(tasks, state)
            reports = tuple(read_report(checkpoint.store, epoch, split) for split in kept)
            return SplitsRead(epoch, reports, seconds, tuple(split.id for split in left_out))


def splits_of_job(tasks: Iterable[Sequence[Split]], state: JobState) -> tuple[list[Split], list[Split]]:
    """Returns the splits of the tasks, and apart from them those whose table has left the job."""
    versions = {schema.table: schema.version for schema in state.schemas}
    kept, left_out = list[Split](), list[Split]()
    for task in tasks:
        for split in task:
            (kept if versions.get(split.table) == split.schema_version else left_out).append(split)
    return kept, left_out


def was_read(checkpoint: Checkpoint, record: PlanRecord, state: JobState) -> bool:
    """True if all reports of the epoch exist."""
    epoch = record.plan.epoch
    match record.plan.work:
        case LogWork():
            return checkpoint.has_log_report(epoch)
        case SnapshotWork(tasks):
            return all(is_published(checkpoint.store, epoch, split) for split in splits_of_job(tasks, state)[0])


def recover_state(
    checkpoint: Checkpoint, job: JobFile, state: JobState, *, committed: int | None = None
) -> EnumeratorState:
    """The state after the last planned epoch, with its outcome if the epoch is committed. `committed` None: if the epoch
    was read. Another process may be running the job. Raises CheckpointError."""
    settings = settings_of(job)
    while True:
        epoch = max(checkpoint.plan_epochs(), default=0)
        if epoch == 0:
            return join(first_state(state, settings, job.mode), state.joined)
        try:
            record = checkpoint.plan(epoch)
            planned = in_mode(of_job(record.state, state), job.mode)
            done = was_read(checkpoint, record, state) if committed is None else epoch <= committed
            if not done:
                return planned
            return join(absorb(planned, read_outcome(checkpoint, record, state), settings), state.joined)
        except CheckpointError:
            if (
                max(checkpoint.plan_epochs(), default=0) == epoch
            ):  # else the running job has removed the epoch's reports
                raise


def highs_so_far(checkpoint: Checkpoint, epoch: int) -> list[Position]:
    """Returns the highs of the splits of a planned epoch that are published."""
    work = checkpoint.plan(epoch).plan.work
    splits = [split for task in work.tasks for split in task] if isinstance(work, SnapshotWork) else []
    published = [split for split in splits if is_published(checkpoint.store, epoch, split)]
    return [read_report(checkpoint.store, epoch, split).high for split in published]


def rolled_back_from(state: JobState, now: EnumeratorState) -> list[tuple[Position, KnownLog | None]]:
    """Returns the positions up to which the copies have the log, if a person has rolled the job back, and it has not read the
    log further again. With what the log before them is known by."""
    found, here = list[tuple[Position, KnownLog | None]](), needed_log(now, state)[0]
    for joined in state.joined:
        is_read_again = joined.restarts and joined.reached is None and joined.rolled_back_from is None  # all tables
        if joined.server_identity or is_read_again:
            found = []
        if joined.rolled_back_from is not None:
            found.append((joined.rolled_back_from, joined.rolled_back_log))
    return [(position, known) for position, known in found if position.order >= here.order]


def needed_log(now: EnumeratorState, state: JobState) -> list[Position]:
    """Returns the positions that the source's log must have. The job needs it from the first of them on."""
    restarts = [joined.start for joined in state.joined[now.joined :] if joined.restarts]
    return restarts[-1:] or _reached(now)


def _reached(now: EnumeratorState) -> list[Position]:
    """The positions up to which the job has read."""
    if now.last_high is not None and now.last_high.order > now.position.order:
        return [now.position, now.last_high]
    return [now.position]


def source_reached(checkpoint: Checkpoint, state: JobState) -> Position:
    """Returns how far the source's log was, at least, when the job has last looked at its tables. After it went on from another
    position, the log may be another one: only what was seen since counts."""
    restarts = max((count for count, joined in enumerate(state.joined, 1) if joined.restarts), default=0)
    later = state.joined[max(restarts - 1, 0) :]
    positions = [joined.start for joined in later] if restarts else [state.start, *(joined.start for joined in later)]
    record = _newest_plan(checkpoint)
    if record is not None and record.state.joined >= restarts:
        positions.append(_end_when_planned(record))
    return max(positions, key=lambda position: position.order)


def _newest_plan(checkpoint: Checkpoint) -> PlanRecord | None:
    """Returns the newest plan, while another process may run the job."""
    while newest := max(checkpoint.plan_epochs(), default=0):
        try:
            return checkpoint.plan(newest)
        except CheckpointError:
            if max(checkpoint.plan_epochs(), default=0) == newest:
                raise
    return None


def _end_when_planned(record: PlanRecord) -> Position:
    """Returns where the source's log ended when an epoch was planned; where the job was if the plan does not tell."""
    position, behind = record.state.position, record.plan.bytes_behind
    return WalPosition(position.lsn + (behind or 0)) if isinstance(position, WalPosition) else position


def offset_from(job: JobFile, state: JobState, start: Position) -> int | None:
    """Returns Joined.version_offset for a job that goes on from `start`: its versions must not become smaller, though the
    log began again, or is another server's."""
    checkpoint = Checkpoint.at(job.checkpoint)
    now = recover_state(checkpoint, job, state)
    reached = [*_reached(now), *needed_log(now, state)]
    match now.awaited:
        case AwaitedLog(log_range):
            reached.append(log_range.stop)
        case AwaitedSplits():
            reached += highs_so_far(checkpoint, now.epoch)
        case None:
            pass
    before = state.version_offset()
    greatest = max(position.version for position in reached) + before
    offset = max(0, greatest - start.version_before)
    return None if offset == before else offset


def reached_before(checkpoint: Checkpoint, state: JobState, committed: int, planned: int) -> Reached | None:
    """Returns what the target had when epoch `committed` was. If the job went back then, and the epoch `planned` is the first
    one since: what the older target had. None if the job was started by an older version."""
    record = checkpoint.plan(committed) if committed else None
    taken_in = 0 if record is None else record.state.joined
    went_back = [
        joined.reached
        for joined in state.joined[taken_in : checkpoint.plan(planned).state.joined if planned else 0]
        if joined.reached is not None
    ]
    return went_back[-1] if went_back else NOTHING_REACHED if record is None else record.state.reached


def is_going_back(checkpoint: Checkpoint, state: JobState) -> bool:
    """True if the target was set back, and no epoch was planned since then."""
    newest = max(checkpoint.plan_epochs(), default=0)
    taken_in = checkpoint.plan(newest).state.joined if newest else 0
    return any(joined.reached is not None for joined in state.joined[taken_in:])
