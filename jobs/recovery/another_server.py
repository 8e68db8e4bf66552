"""Lets a job go on at another server: the source failed over, or `source.url` was changed.

If the server's log has exactly what the job has read at one of its positions, the job goes on from there. Tables whose rows are
not all read leave, and come back: their watermarks belong to the other server. If there is no such position, but the server
is a copy of the other one, tables are read again (`source.on_log_lost`): if it only lacks the last transactions that the job
has read, the rows that these changed (lost_transactions.py), else all tables. All of these are entries of `joined`, so the
planned epoch of the other server's log that nobody has read is passed over (`Joined.restarts`).

A PostgreSQL server that was promoted has the same log up to some position. If all that the job has read is before it, nothing
changes but the server: a planned epoch is read there, and highs stay (docs/adr/0034). A standby whose primary was replaced by a
promoted one counts as another server, too (docs/adr/0083).

A PostgreSQL server with another system identifier is a stranger, unless a person says that it is the job's: upgraded, or
filled from a dump (`tidemark signal accept-server`). The job goes on with its log if pg_upgrade made it and nothing can be
missing, else all tables are read again (docs/adr/0070).
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from tidemark.conf.model import JobFile
from tidemark.enumerator.enumerator import join
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.recovered_state import highs_so_far, offset_from, recover_state, rolled_back_from
from tidemark.jobs.recovery.lost_transactions import LostRows, find_lost_rows, read_lost_rows, unwritten
from tidemark.jobs.recovery.proven_log import require_known_log
from tidemark.jobs.recovery.readable_tables import find_readable
from tidemark.jobs.recovery.server_upgrade import accept_command, after_upgrade, was_accepted
from tidemark.jobs.tables.parking import leave_to_come_back, may_be_half_written
from tidemark.jobs.tables.partition_watch import Look, look_before
from tidemark.readers.findings import raise_passing
from tidemark.readers.source import FindsPlace, FoundSource, OutlivesUpgrade, SharesLog
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError, TidemarkError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Joined, Membership
from tidemark.state.key_repair import KeyRepair
from tidemark.state.log_extent import KnownLog
from tidemark.state.partitions import Partitions
from tidemark.state.phase import Phase
from tidemark.state.plan import Aside, AwaitedLog, AwaitedSplits, EnumeratorState, Releasing, SnapshotWork, Staging
from tidemark.state.position import Position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.split import ReleaseChunk
from tidemark.state.table import TableId
from tidemark.state.upgrade_mark import Upgraded

_CHANGED = "it was altered, truncated or rewritten"
OFTEN = 3
OFTEN_SECONDS = 300.0
"""A job stops if it has moved to another server OFTEN times within this time."""
_RESNAPSHOT = "If it is the right server, set source.on_log_lost: resnapshot, and run the job again: it reads all rows."
_RESNAPSHOT_SOME = (
    "If it is the right server, set source.on_log_lost: resnapshot, and run the job again: it reads the rows again that "
    "these transactions changed."
)


def follows_another_server(error: TidemarkError, job: JobFile, state: JobState, events: Events) -> bool:
    """Makes the job ready to continue at the server that answers now, durably. The job must be opened again. Returns False
    if that is the same server as before. Raises the error with its reason if the job can't go on there."""
    if not isinstance(error, LogPositionLostError) or error.table is not None or job.mode == "full":
        return False
    with find_readable(job, state) as found:
        raise_passing(found.findings)  # a failover is under way
        if found.identity() == state.server_identity or not isinstance(found, FindsPlace) or _changes_often(state):
            return False
        _go_on_there(error, job, state, found, found, events)
    return True


def _changes_often(state: JobState) -> bool:
    """True if each connection may reach another server: a load balancer, rather than a failover."""
    recent = (time.time() - OFTEN_SECONDS) * 1_000_000
    return sum(bool(joined.server_identity) and joined.at_us > recent for joined in state.joined) >= OFTEN


@dataclass(frozen=True, slots=True)
class _Place:
    """How the job goes on at the other server. `leaving`: the tables that are read again. `goes_on`: positions of the two
    servers are the same. The others as in Joined."""

    start: Position
    text: str
    leaving: Collection[TableId] = ()
    restarts: bool = True
    partitions: Partitions | None = None
    memberships: tuple[Membership, ...] = ()
    goes_on: bool = False
    rereads: tuple[KeyRepair, ...] = ()
    rolled_back_from: Position | None = None
    rolled_back_log: KnownLog | None = None


def _go_on_there(
    error: LogPositionLostError,
    job: JobFile,
    state: JobState,
    found: FoundSource,
    places: FindsPlace,
    events: Events,
) -> None:
    checkpoint = Checkpoint.at(job.checkpoint)
    # Before the state: the epoch may count as not read then.
    is_half_written = may_be_half_written(job, checkpoint, state)
    now = recover_state(checkpoint, job, state)
    if state.restarts_after(now.joined):  # the planned epoch is passed over
        now = join(replace(now, awaited=None), state.joined)
    what = _change(state, found)
    other_system = found if isinstance(found, OutlivesUpgrade) and found.is_of_another_system(state) else None
    if other_system is not None:
        _require_accepted(checkpoint, state, other_system.system(), what)
    try:
        if other_system is not None:
            upgraded = after_upgrade(job, checkpoint, state, other_system)
            place = _at_upgraded(upgraded, _incomplete(now, state) | unwritten(checkpoint, state, now))
            _require_whole(job, now, place.leaving, is_half_written=is_half_written)
        else:
            place = _in_same_log(job, state, now, found, places, is_half_written=is_half_written)
    except LogPositionLostError as lost:
        is_copy = job.mode == "full+incremental" and (
            other_system is not None or places.is_related(state, now.position)
        )
        rows = None
        if is_copy and other_system is None:
            rows = _lost_rows(job, state, now, found, places, is_half_written=is_half_written)
        is_nothing = rows is not None and rows.is_nothing
        if not is_copy or not (is_nothing or job.source.reads_again_after_lost_log):
            remedy = error.remedy if lost.remedy == START_OVER_NOW else lost.remedy
            again = f"{_RESNAPSHOT} {remedy}" if rows is None else f"{_RESNAPSHOT_SOME} {remedy}"
            raise LogPositionLostError(f"{what} {lost.message}", again if is_copy else remedy) from lost
        if rows is not None:
            place = _without_lost(job, state, now, found, rows)
        else:
            text = f"{lost.message} So the rows of all tables are read again (source.on_log_lost)."
            place = _Place(found.joining_start((), goes_on=True), text, {schema.table for schema in state.schemas})
    if place.leaving:
        leave_to_come_back(checkpoint, state, place.leaving)
        failpoint("another_server.left")
    moved = Joined(
        place.start,
        (),
        (),
        left_files=checkpoint.left_count(),
        memberships=place.memberships,
        partitions=place.partitions,
        after_epoch=max(checkpoint.plan_epochs(), default=0),
        at_us=time.time_ns() // 1000,
        restarts=place.restarts,
        server_identity=found.identity(),
        version_offset=None if place.goes_on else offset_from(job, state, place.start),
        rereads=place.rereads,
        rolled_back_from=place.rolled_back_from,
        rolled_back_log=place.rolled_back_log,
    )
    named = {reread.file for joined in (*state.joined, moved) for reread in joined.rereads}
    unknown = set(checkpoint.repair_files()) - named if place.rereads else set()  # of attempts that died
    checkpoint.create_joined(state, moved)
    failpoint("another_server.moved")
    checkpoint.forget_repairs(unknown)  # not those of another driver, if this one was frozen
    events.note("moved", start=str(place.start), text=f"{what} {place.text}")


def _change(state: JobState, found: FoundSource) -> str:
    if isinstance(found, SharesLog) and found.is_standby():
        return f"The standby follows another primary: its log is {found.identity()} instead of {state.server_identity}."
    return f"Another server answers: {found.identity()} ({found.name}) instead of {state.server_identity}."


def _lost_rows(
    job: JobFile,
    state: JobState,
    now: EnumeratorState,
    found: FoundSource,
    places: FindsPlace,
    *,
    is_half_written: bool,
) -> LostRows | None:
    """Returns the rows that are to be read again if the server lacks transactions, None if all tables are."""
    if _copied(state, now):
        return None
    try:
        _require_whole(job, now, (), is_half_written=is_half_written)
        if isinstance(places, SharesLog):
            _proven_look(job, state, places.shared_until(state, now.known_log))
    except LogPositionLostError:
        return None
    return find_lost_rows(job, state, now, found, places)


def _without_lost(job: JobFile, state: JobState, now: EnumeratorState, found: FoundSource, rows: LostRows) -> _Place:
    """Reads the rows again that lost transactions changed. The job goes on from where the server's log leaves these out."""
    checkpoint = Checkpoint.at(job.checkpoint)
    leaving = _incomplete(now, state) | unwritten(checkpoint, state, now) | rows.whole.keys()
    look, changed = None, frozenset[TableId]()
    if isinstance(found, SharesLog):
        look = _proven_look(job, state, rows.place)
        leaving |= _unproven(checkpoint, state, look)
        changed = look.changed & leaving
    rereads, whole = read_lost_rows(job, state, found, rows, leaving)
    reasons = {**dict.fromkeys(leaving, "its rows were not all read"), **dict.fromkeys(changed, _CHANGED), **whole}
    rows = rows.with_whole(reasons)
    text = f"{rows.text()} The job continues from {rows.place}."
    partitions = None if look is None else Partitions(look.ended_xid, ())
    return _Place(rows.place, text, rows.whole.keys(), partitions=partitions, rereads=rereads)


def _in_same_log(
    job: JobFile,
    state: JobState,
    now: EnumeratorState,
    found: FoundSource,
    places: FindsPlace,
    *,
    is_half_written: bool,
) -> _Place:
    """Raises LogPositionLostError, with the reason, if the server's log is not known to have all that the job has read."""
    checkpoint = Checkpoint.at(job.checkpoint)
    leaving, restarts, look = _incomplete(now, state) | unwritten(checkpoint, state, now), True, None
    changed = frozenset[TableId]()
    if isinstance(places, SharesLog):
        until = places.shared_until(state, now.known_log)
        look = _proven_look(job, state, until)
        unproven = _unproven(checkpoint, state, look)
        restarts = bool(unproven) or _reaches_beyond(checkpoint, state, now, until)
        leaving = leaving | unproven if restarts else set()
        changed = look.changed & leaving
    _require_whole(job, now, leaving, is_half_written=is_half_written and restarts)
    copied = [_rolled_back_place(job, state, found, places, position, known) for position, known in _copied(state, now)]
    start = places.same_place(state, now.position)
    if start == now.position:  # of the same log
        require_known_log(found, state, start, now.known_log)
    rolled_back_from, rolled_back_log = max(copied, key=lambda place: place[0].order, default=(None, None))
    text = f"Its log has all that the job has read, and the job continues from {start}."
    if changed:
        names = ", ".join(map(str, sorted(changed)))
        text += f" Perhaps only at the former server, these were altered, truncated or rewritten: {names}. They are read again."
    return _Place(
        start,
        text,
        leaving,
        restarts,
        None if look is None else Partitions(look.ended_xid, ()),
        goes_on=isinstance(places, SharesLog) and start == now.position,  # else versions may become smaller
        rolled_back_from=rolled_back_from,
        rolled_back_log=rolled_back_log,
    )


def _copied(state: JobState, now: EnumeratorState) -> list[tuple[Position, KnownLog | None]]:
    """Returns the positions after the job's up to which the copies have the log, because a person has rolled the job back. With
    what the log before them is known by."""
    return [
        (position, known) for position, known in rolled_back_from(state, now) if position.order > now.position.order
    ]


def _rolled_back_place(
    job: JobFile, state: JobState, found: FoundSource, places: FindsPlace, position: Position, known: KnownLog | None
) -> tuple[Position, KnownLog | None]:
    """Returns the position at the server up to which the copies have the log, and what the log before it is known by. Raises
    LogPositionLostError if the server lacks what they have."""
    what = f"The job was rolled back, and its copies have the log up to {position}."
    if isinstance(places, SharesLog) and position.order > (until := places.shared_until(state)).order:
        raise LogPositionLostError(f"{what} The two servers' logs begin to differ at {until}.", START_OVER_NOW)
    try:
        place = places.same_place(state, position)
        require_known_log(found, state, place, known)
    except LogPositionLostError as lost:
        raise LogPositionLostError(f"{what} {lost.message}", lost.remedy) from lost
    return place, known


def _require_accepted(checkpoint: Checkpoint, state: JobState, system: str, what: str) -> None:
    """Raises LogPositionLostError unless a person has said that the server is the job's."""
    if was_accepted(checkpoint, state, system):
        return
    raise LogPositionLostError(
        f"{what} The job's positions do not belong to its log.",
        "If it is the job's server after pg_upgrade, or has the job's database in another way (from a dump, or as a replica "
        f"that took over): {accept_command(system)}, and run the job again. It reads again what it may have missed. Otherwise "
        "connect to the server that the job has read.",
    )


def _at_upgraded(upgraded: Upgraded, incomplete: Collection[TableId]) -> _Place:
    leaving = {*incomplete, *(table for table, _ in upgraded.unproven)}
    reasons = "".join(f" {table} is read again: {reason}" for table, reason in upgraded.unproven)
    return _Place(
        upgraded.start,
        f"pg_upgrade made it, and its log has all that followed: the job continues from {upgraded.start}.{reasons}",
        leaving,
        partitions=upgraded.partitions.without(leaving),
        memberships=tuple(member for member in upgraded.memberships if member.table not in leaving),
    )


def _proven_look(job: JobFile, state: JobState, until: Position) -> Look:
    """Returns a look at the tables that saw nothing but what the new server has, too. Raises LogPositionLostError if there is
    none, or if a later one saw more and tables may not be read again."""
    look = look_before(Checkpoint.at(job.checkpoint), state, until)
    if look is None or (look.changed and not job.source.reads_again_after_lost_log):
        raise LogPositionLostError(
            f"The job may have checked its tables and partitions after {until}, where the two servers' logs begin to differ.",
            START_OVER_NOW,
        )
    return look


def _unproven(checkpoint: Checkpoint, state: JobState, look: Look) -> set[TableId]:
    """Returns the tables of which the job has found something after that look: they joined it, have new columns, or are
    otherwise, such as after a TRUNCATE. Perhaps only the former server had that."""
    joined = {s.table for later in state.joined if later.after_epoch >= look.epoch for s in later.schemas}
    altered = {altered.schema.table for altered in checkpoint.altered() if altered.is_since(look.epoch, look.at_us)}
    return (joined | altered | look.changed) & {schema.table for schema in state.schemas}


def _reaches_beyond(checkpoint: Checkpoint, state: JobState, now: EnumeratorState, until: Position) -> bool:
    """True if the planned epoch, or the high of a split, a staged chunk or rows that were read again and not written yet, may
    be after `until`."""
    cursors = [table.cursor for table in now.tables]
    highs: list[Position] = [] if now.last_high is None else [now.last_high]
    rereads = [*now.rereads, *(reread for joined in state.joined[now.joined :] for reread in joined.rereads)]
    highs += [reread.high for reread in rereads]
    highs += [cursor.snapshot.high for cursor in cursors if isinstance(cursor, Staging)]
    match now.awaited:
        case AwaitedLog(log_range):
            highs.append(log_range.stop)
        case AwaitedSplits():
            if _releases(checkpoint, now.epoch):
                return True
            highs += highs_so_far(checkpoint, now.epoch)
        case None:
            pass
    if any(isinstance(cursor, (Aside, Releasing)) for cursor in cursors):
        return True  # the chunks' high is in their files only, or not known yet
    return any(position.order > until.order for position in highs)


def _releases(checkpoint: Checkpoint, epoch: int) -> bool:
    work = checkpoint.plan(epoch).plan.work
    splits = [split for task in work.tasks for split in task] if isinstance(work, SnapshotWork) else []
    return any(isinstance(split.pages, ReleaseChunk) for split in splits)


def _require_whole(job: JobFile, now: EnumeratorState, leaving: Collection[TableId], *, is_half_written: bool) -> None:
    """Raises LogPositionLostError if more than a position of the log is needed from the other server."""
    if is_half_written:
        raise LogPositionLostError(
            f"Epoch {now.epoch} was read from the other server's log, but perhaps not written.", START_OVER_NOW
        )
    if leaving and job.mode != "full+incremental":
        raise LogPositionLostError("Tables have joined the job, and are not followed yet.", START_OVER_NOW)


def _incomplete(now: EnumeratorState, state: JobState) -> set[TableId]:
    """Returns the tables that can't go on at another server: the log has not passed the watermarks of their splits."""
    waiting = {schema.table for schema in state.schemas} - {s.table for s in state.schemas_after(now.joined)}
    if now.phase is Phase.STREAM:
        return waiting
    known = {schema.table for schema in state.schemas}
    return waiting | {table.table for table in now.tables if not table.passed and table.table in known}
