"""Tables that leave a job that has started, and come back to it: excluded, parked, paused, read again by a signal or by
themselves."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from tidemark.conf.model import JobFile
from tidemark.conf.quantities import Every
from tidemark.conf.schema_changes import KINDS
from tidemark.conf.tables import TableGlob, TableName, glob_of
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.recovered_state import recover_state
from tidemark.jobs.sinks import make_sink, sink_needs
from tidemark.jobs.tables.kinds_of_change import altered_beyond, is_to_stop, removed_partition, was_dropped
from tidemark.jobs.tables.partition_watch import partitions_of_plan
from tidemark.sinks.sink import JobIdentity, ProvesAbsence
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import (
    BadValueError,
    CopySetBackError,
    LogPositionLostError,
    LostCopyError,
    PartitionsChangedError,
    PausedError,
    RefusedValueError,
    SchemaChangedError,
    SinkError,
    SourceNotUsableError,
    TablesParkedError,
    TidemarkError,
    TruncatedError,
    WithheldLostError,
)
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Left
from tidemark.state.partitions import Partition, WatchedTable
from tidemark.state.phase import Phase
from tidemark.state.plan import Exhausted, LogWork
from tidemark.state.remedies import in_shell, read_again, reason, resnapshot_of, without_start_over
from tidemark.state.signals import NOT_PAUSED, UNSTEERED, Answer, Signal, SignalKind, steering_of
from tidemark.state.table import TableId, TableSchema

MAX_REASONS = 3
"""How many tables' reasons the error of parked tables has."""
MAX_HEALS = 5
"""How many times in a row a table may come back at once without its copy being complete in between. Also how many times in
one run with `trigger: once`. After that it waits."""
FIRST_WAIT_SECONDS = 600
LONGEST_WAIT_SECONDS = 6 * 3600
"""Each wait is twice as long as the one before, up to this."""
NOT_FOUND = "The source has no such table, or hides it from the account."
DROPPED = "The source has dropped it, and sink.on_schema_change leaves its copy as it is (drop_table: ignore)."
"""The reason of a table that was dropped and whose policy is `drop_table: ignore`. It is not an error of the job."""


def evolves(job: JobFile) -> bool:
    """True if tables whose schema was changed come back by themselves (`sink.on_schema_change`)."""
    return not job.sink.on_schema_change.stops_all and job.mode == "full+incremental"


def is_dropped(job: JobFile, left: Left) -> bool:
    """True for a table that left the job because it was dropped, which is to be ignored."""
    return left.why == DROPPED and job.sink.on_schema_change.drop_table == "ignore"


def unfinished_epoch(checkpoint: Checkpoint) -> int | None:
    """Returns the planned epoch of the log that was read, but is not committed: its content is fixed, and the sink may have
    it. No table of it can leave before it is committed. None if there is none; removes what attempts at an epoch that was not
    read to its end have left."""
    newest = max(checkpoint.plan_epochs(), default=0)
    if newest == checkpoint.committed_epoch() or not isinstance(checkpoint.plan(newest).plan.work, LogWork):
        return None
    if checkpoint.has_log_report(newest):
        return newest
    checkpoint.forget_log_attempt(newest)
    return None


def leaving_tables(job: JobFile, state: JobState, seen: Collection[int] | None) -> list[TableSchema]:
    """The tables of the job that are to leave it: `source.exclude_tables` names them, or a signal pauses them or has their rows
    read again. `seen`: the signals that count; None: all."""
    leaving = _leaving_by_signals(job, state, seen)
    return [schema for schema in state.schemas if is_excluded(job, schema.table) or schema.table in leaving]


def take_out(
    job: JobFile, state: JobState, leaving: Iterable[TableSchema], events: Events, seen: Collection[int]
) -> JobState:
    """Takes tables of `leaving_tables` out of the job, durably. Their copies stay as they are until the tables come back.

    Nothing of them is read any more. Splits that are not read yet are left out, and an epoch of the log that nobody has read to
    its end is read without them: a table that can't be read does not hold up the others.
    """
    tables = list(leaving)
    by_signals = _leaving_by_signals(job, state, seen)
    paused = {table for table, kind in by_signals.items() if kind == "pause"}
    for schema in tables:
        why = "It is in exclude_tables" if is_excluded(job, schema.table) else "A signal has paused it"
        if is_excluded(job, schema.table) or schema.table in paused:
            events.note("left", table=str(schema.table), text=f"{why}, and it leaves the job. Its copy stays as it is.")
    state = _leave(Checkpoint.at(job.checkpoint), state, tables, "", paused) if tables else state
    failpoint("signals.left")
    return state


def pause_left(job: JobFile, state: JobState, seen: Collection[int]) -> JobState:
    """Pauses tables that have left the job already, such as parked ones, if signals ask for it, durably."""
    checkpoint = Checkpoint.at(job.checkpoint)
    wanted = {table for table, kind in _newest_signals(checkpoint, seen).items() if kind == "pause"}
    leaving = tuple(
        replace(left, why="", at_us=present_us(), heals=0, paused=True)
        for left in state.left
        if left.table in wanted and not left.paused and job.mode == "full+incremental"
    )
    return checkpoint.create_left(state, leaving) if leaving else state


def take_out_all(job: JobFile, state: JobState) -> None:
    """Takes all tables out of the job, durably, so that they come back at once. The epoch that is not committed yet does
    not matter: all copies are emptied or replaced after it."""
    checkpoint, now = Checkpoint.at(job.checkpoint), present_us()
    before = _lost_in_a_row(checkpoint, job, state)
    left = [Left(schema.table, schema.version, "", now, 1 + before.get(schema.table, 0)) for schema in state.schemas]
    checkpoint.create_left(state, tuple(left))
    failpoint("log.lost")


def lost_in_a_row(checkpoint: Checkpoint, job: JobFile, state: JobState) -> int:
    """Returns how often at most a table of the job was to be read again with all others, without its copy having been complete
    in between."""
    return max(_lost_in_a_row(checkpoint, job, state).values(), default=0)


def _lost_in_a_row(checkpoint: Checkpoint, job: JobFile, state: JobState) -> Mapping[TableId, int]:
    last = {left.table: left for left in checkpoint.left_before()}
    times = {table: left.heals for table, left in last.items() if left.heals and not left.is_parked}
    if not times:
        return {}
    complete = _complete_tables(checkpoint, job, state)
    return {s.table: times[s.table] for s in state.schemas if s.table in times and s.table not in complete}


def leave_to_come_back(checkpoint: Checkpoint, state: JobState, tables: Collection[TableId]) -> None:
    """Takes tables out of the job, durably, so that they come back at once. What the planned epoch has of them does not
    matter: their copies are emptied or replaced after it."""
    _leave(checkpoint, state, [schema for schema in state.schemas if schema.table in tables], "")


def parks(
    error: TidemarkError, job: JobFile, state: JobState, events: Events, began_us: int, *, at_start: bool = False
) -> bool:
    """Takes the table that the error is about out of the job, durably. The job must be opened again. If reading the table
    again cures the error, it comes back then (`sink.on_schema_change`), else it is parked. Returns False if the error must
    stop the job: it is not about one table, or it is in an epoch that was read already. `began_us`: when the run began.
    `at_start`: a check before the start raised it."""
    checkpoint = Checkpoint.at(job.checkpoint)
    schema = next((schema for schema in state.schemas if schema.table == error.table), None)
    if schema is None or job.mode == "full":
        return False
    # What a check at the start has refused is checked again before the table joins.
    may_heal = error.is_cured_by_reading or (at_start and isinstance(error, SourceNotUsableError))
    without, read = partial(to_be_found, job, state), recover_state(checkpoint, job, state).position
    is_ignored = (
        may_heal
        and job.sink.on_schema_change.drop_table == "ignore"
        and was_dropped(error, without, state, schema, read)
    )
    heals_itself = may_heal and evolves(job) and not is_ignored and not is_to_stop(error, without, state, schema, read)
    watched = _watched(checkpoint, state, schema) if may_heal and not is_ignored else None
    gone = removed_partition(without, state, watched)
    if gone is not None:
        heals_itself, error = False, _with_removed(error, gone, job)
    heals = _heals(checkpoint, job, state, schema, error, began_us) if heals_itself else 0
    if not _may_leave(error, job, checkpoint, state, is_ignored=is_ignored, heals=heals):
        if gone is not None:
            raise error  # the remedy of the other error would have the table read again
        return False
    # Else a signal, or exclude_tables, has asked for it: the job file wants no table to be parked.
    parks_it = is_ignored or heals > 0 or job.source.on_table_error == "park"
    why = DROPPED if is_ignored else _why(error) if parks_it else ""
    checkpoint.create_left(state, (Left(schema.table, schema.version, why, present_us(), heals),))
    if is_ignored:
        text = f"{DROPPED} It has what the job had copied up to its last epoch."
        events.note("left", table=str(schema.table), text=text)
    if 0 < heals <= MAX_HEALS and error.is_cured_by_reading:
        text = f"{error.message} So it leaves the job, and comes back: its rows are read again (sink.on_schema_change)."
        events.note("left", table=str(schema.table), text=text)
    return True


def parks_altered_too(error: TidemarkError, job: JobFile, events: Events, began_us: int) -> None:
    """After `parks` took out a table that was altered: takes out the others whose rows must be read again because they were
    altered, too, by the source's catalog. Otherwise the log would be read up to each of these changes, one after the other, and
    the job opened again each time. Raises SourceUnavailableError."""
    changes = job.sink.on_schema_change
    if type(error) is not SchemaChangedError or changes.stops(*KINDS) or changes.truncate == "ignore":
        return
    checkpoint = Checkpoint.at(job.checkpoint)
    state = checkpoint.job_state()
    if state is None or not evolves(job) or unfinished_epoch(checkpoint) is not None:
        return
    seen = partitions_of_plan(checkpoint, state, max(checkpoint.plan_epochs(), default=0))
    partitioned = {table.oid for table in ([] if seen is None else seen.tables) if table.partitions}
    tables = [schema for schema in state.schemas if schema.oid not in partitioned]  # those may have lost some, too
    for known in altered_beyond(partial(to_be_found, job, state), state, tables, seen):
        message = f"The columns of {known.table} were changed, too, such that its rows must be read again."
        altered = SchemaChangedError(message, read_again(_name(known.table)), known.table)
        if (now := checkpoint.job_state()) is not None:
            parks(altered, job, now, events, began_us)


def _may_leave(
    error: TidemarkError, job: JobFile, checkpoint: Checkpoint, state: JobState, *, is_ignored: bool, heals: int
) -> bool:
    """False if the job file wants the error to stop the job, or an epoch that was read must be written first."""
    is_lost, is_set_back = isinstance(error, WithheldLostError), isinstance(error, CopySetBackError)
    if is_set_back and job.mode != "full+incremental":
        return False  # it could not come back
    # Somebody has set the copy back, perhaps on purpose. With `stop` a person decides.
    heals_itself = 0 < heals <= MAX_HEALS and error.is_cured_by_reading and not is_set_back
    leaves_anyway = is_ignored or heals_itself or job.source.on_table_error == "park"
    # What a signal or exclude_tables asks for comes before `stop`: the error's remedy may have named it.
    if not (leaves_anyway or error.table in {leaving.table for leaving in leaving_tables(job, state, None)}):
        return False
    # The epoch that emits what was withheld is finished without the table's changes. What it has of others is as it was.
    if is_lost or unfinished_epoch(checkpoint) is None:
        return True
    if not isinstance(error, SinkError):
        return False  # the epoch can be written, or was
    if sink_needs(job.sink).commits_tables:
        return job.mode == "full+incremental"  # its plans name all tables, and tell that one has left
    return not stays_unfinished(job, checkpoint, state) or _is_read_without_tables(job, checkpoint, state)


def _watched(checkpoint: Checkpoint, state: JobState, schema: TableSchema) -> WatchedTable | None:
    """The table as PostgreSQL's catalog had it at the last look."""
    seen = partitions_of_plan(checkpoint, state, max(checkpoint.plan_epochs(), default=0))
    tables = () if seen is None else seen.tables
    return next((table for table in tables if table.table == schema.table), None)


def _with_removed(error: TidemarkError, gone: Partition, job: JobFile) -> PartitionsChangedError:
    table = error.table
    assert table is not None
    message = (
        f"{error.message} Partition {gone.name} of {table} was detached or dropped, too: perhaps only the copy still has "
        "its rows, and would lose them if the table were read again."
    )
    is_cured = error.is_cured_by_reading and job.mode == "full+incremental"
    remedy = read_again(_name(table)) if is_cured else error.remedy
    remedy = f"{remedy} To leave the copy as it is, name the table in source.exclude_tables."
    return PartitionsChangedError(message, remedy, table)


def raise_with_way_back(error: TidemarkError, job: JobFile, state: JobState | None) -> NoReturn:
    """Raises the error that stops the job. If it stops because the job file wants no table to be parked, or if the table need
    only be read again, the remedy says how that is done."""
    known = () if state is None else state.schemas
    table = next((schema.table for schema in known if schema.table == error.table), None)
    if table is None or job.mode != "full+incremental":
        raise error
    again = read_again(_name(table))
    if error.is_cured_by_reading or isinstance(error, LogPositionLostError | LostCopyError | TruncatedError):
        loses = " Its copy loses the rows that were truncated." if isinstance(error, TruncatedError) else ""
        raise type(error)(error.message, f"{again}{loses} {error.remedy}", table) from error
    if job.source.on_table_error == "park" or again in error.remedy:
        raise error
    leave = "" if "exclude_tables" in error.remedy else " To leave its copy as it is, name it in source.exclude_tables."
    remedy = f"{without_start_over(error.remedy)} {again}{leave}"
    raise type(error)(error.message, remedy, table) from error


def _heals(
    checkpoint: Checkpoint, job: JobFile, state: JobState, schema: TableSchema, error: TidemarkError, began_us: int
) -> int:
    """Returns `Left.heals` of a table that leaves now. More than MAX_HEALS, so that it waits, if it came back without getting
    any further: it has the same trouble as before, or was altered again or has a new one for the MAX_HEALS-th time, and its
    copy was not complete in between. Likewise if a run that is to end has had it come back MAX_HEALS times: sessions may write
    forever what can't be followed."""
    before = [left for left in checkpoint.left_before() if left.table == schema.table and left.is_parked and left.heals]
    last = [left for left in before if left.version == schema.version - 1]
    if was_complete(checkpoint, job, state, schema):
        last = []
    times = last[-1].heals if last else 0
    is_same = not isinstance(error, SchemaChangedError) and any(left.why == _why(error) for left in last)
    came_back_in_run = sum(left.at_us >= began_us for left in before)
    if is_same or (not isinstance(job.trigger, Every) and came_back_in_run >= MAX_HEALS):
        times = max(times, MAX_HEALS)
    return times + 1


def comes_back_at_us(left: Left, now_us: int) -> int:
    """Returns when a parked table may come back by itself, microseconds since 1970. 0 if it need not wait, or if it has left
    so far in the future that the clock was set back since."""
    wait_us = _wait_us(left)
    return 0 if not wait_us or left.at_us > now_us + wait_us else left.at_us + wait_us


def _wait_us(left: Left) -> int:
    """Returns how long a parked table waits, 0 if it does not."""
    waits = left.heals - MAX_HEALS
    if not left.is_parked or waits <= 0:
        return 0
    return min(FIRST_WAIT_SECONDS << min(waits - 1, 16), LONGEST_WAIT_SECONDS) * 1_000_000


def waiting_tables(job: JobFile, state: JobState, now_us: int) -> tuple[Left, ...]:
    """The tables that come back by themselves later. `now_us`: when the start looked for tables. Those whose time had come wait
    for the next start: this one could not have them back."""
    return tuple(
        left for left in _stale(job, state) if _comes_back(job, left) and comes_back_at_us(left, now_us) > now_us
    )


def is_due(waiting: Iterable[Left], now_us: int) -> bool:
    """True if the time of one of these tables has come. To be asked again and again: the clock may be set back meanwhile."""
    return any(comes_back_at_us(left, now_us) <= now_us for left in waiting)


def was_complete(checkpoint: Checkpoint, job: JobFile, state: JobState, schema: TableSchema) -> bool:
    """True if the copy had all rows since the table joined, and the changes that waited for them."""
    return schema.table in _complete_tables(checkpoint, job, state)


def _complete_tables(checkpoint: Checkpoint, job: JobFile, state: JobState) -> frozenset[TableId]:
    now, newest = recover_state(checkpoint, job, state), max(checkpoint.plan_epochs(), default=0)
    work = checkpoint.plan(newest).plan.work if newest > checkpoint.committed_epoch() else None
    waiting = {backfill.table for backfill in work.backfills} if isinstance(work, LogWork) else set()
    return frozenset(
        table.table
        for table in now.tables
        if isinstance(table.cursor, Exhausted)
        and table.done_splits == table.planned_splits
        and table.withheld is None
        and table.table not in waiting
    )


def _why(error: TidemarkError) -> str:
    """The reason for which a table is parked, and what must be done about it before its rows are read again. A row that was
    corrected since is read as it is then."""
    if isinstance(error, BadValueError | RefusedValueError):
        return (
            f"{error.message} Correct the row in the source, or set sink.on_bad_value or on_bad_value_in, before the table is "
            "read again."
        )
    return reason(error.message, error.remedy)


def tell_parked(job: JobFile, state: JobState, events: Events) -> None:
    """Says at a start which tables are parked, and which are paused."""
    for left in _paused(job, state):
        events.note("paused", table=str(left.table), text=f"A signal has paused it. {way_back(job, left)}")
    for left in _stale(job, state):
        if left.is_parked and not is_dropped(job, left):
            text = f"{left.why} Nothing is written to its copy, and the other tables continue. {way_back(job, left)}"
            events.note("parked", table=str(left.table), text=text)


def require_none_parked(job: JobFile, state: JobState) -> None:
    """Raises TablesParkedError if a table that the job file selects is parked, or waits to come back. A table that was dropped,
    which is to be ignored, does not count."""
    stale = [left for left in _stale(job, state) if not is_dropped(job, left)]
    if stale:
        count = "1 table is parked" if len(stale) == 1 else f"{len(stale)} tables are parked"
        raise _parked_error(job, stale, f"All other tables are up to date, but {count}: the copies lack changes.")


def require_tables_left(job: JobFile, state: JobState) -> None:
    """Raises TablesParkedError if all tables of the job are parked, PausedError if they are paused. With `on_table_error:
    stop`, raises SourceNotUsableError if a table could not come back by itself."""
    stale = _stale(job, state)
    if not state.schemas and (stale or _paused(job, state)):
        raise all_parked(job, state)
    stuck = [left for left in stale if left.is_parked and left.heals and evolves(job)]
    if stuck and job.source.on_table_error == "stop":
        raise SourceNotUsableError(f"{stuck[0].table} can't be followed: {stuck[0].why}", way_back(job, stuck[0]))


def all_parked(job: JobFile, state: JobState) -> TablesParkedError | PausedError:
    """The error of a job without tables, some of which are parked or paused."""
    stale = _stale(job, state)
    if not stale:
        return PausedError(
            "All tables of the job are paused: nothing is copied.", way_back(job, _paused(job, state)[0])
        )
    count = "The job's only table is parked" if len(stale) == 1 else f"All {len(stale)} tables of the job are parked"
    return _parked_error(job, stale, f"{count}: nothing is copied.")


def _parked_error(job: JobFile, stale: Sequence[Left], message: str) -> TablesParkedError:
    reasons = [f"{left.table}: {left.why or 'It waits to come back.'}" for left in stale[:MAX_REASONS]]
    if len(stale) > MAX_REASONS:
        reasons.append(f"`tidemark tables JOB.yaml` has the reasons of all {len(stale)}.")
    message = " ".join([message, *reasons])
    parked = [left for left in stale if left.is_parked]
    wanted = [left for left in parked if not is_dropped(job, left)]
    if not parked:
        return TablesParkedError(message, "Run the job again.")
    if len(wanted) < 2 or job.mode != "full+incremental":
        return TablesParkedError(message, " ".join(way_back(job, left) for left in wanted or parked))
    again = resnapshot_of(_name(left.table) for left in wanted)
    return TablesParkedError(
        message, f"To read them again: {again}. To leave one as it is, name it in source.exclude_tables."
    )


def _stale(job: JobFile, state: JobState) -> list[Left]:
    """The tables that have left the job although the job file selects them, and nobody has paused them."""
    return [left for left in state.left if not left.paused and job.source.selects(left.table.database, left.table.name)]


def _paused(job: JobFile, state: JobState) -> list[Left]:
    return [left for left in state.left if left.paused and not is_excluded(job, left.table)]


def has_away(job: JobFile, state: JobState) -> bool:
    """True if a table that the job file selects is parked or paused."""
    return bool(_stale(job, state) or _paused(job, state))


def way_back(job: JobFile, left: Left) -> str:
    """The remedy for a parked or paused table."""
    if left.paused:
        return f"To read the table again: tidemark signal JOB.yaml resume --table {in_shell(_name(left.table))}."
    if job.mode != "full+incremental":
        return f"Name {left.table} in source.exclude_tables, and copy it by a job of its own."
    if is_dropped(job, left):
        again = read_again(_name(left.table))
        return f"None is needed. If there is such a table again: {again} Its copy then has only the new rows."
    by_itself = (
        f"It comes back by itself at a start that can read it{_from_when(left)}. "
        if left.heals and _comes_back(job, left)
        else ""
    )
    return f"{by_itself}{read_again(_name(left.table))} To leave it as it is, name it in source.exclude_tables."


def _from_when(left: Left) -> str:
    at_us = comes_back_at_us(left, present_us())
    return f", from {time_text(at_us)} UTC on" if at_us else ""


def to_be_found(
    job: JobFile,
    state: JobState | None,
    without: Collection[TableId] = (),
    seen: Collection[int] | None = None,
    now_us: int | None = None,
) -> JobFile:
    """Returns the job file without the tables that stay parked or are excluded, and those of `without`: their trouble must not
    stop the others. `seen`: the signals that count; None: all. `now_us`: the time that counts for tables that wait; None: the
    present one. Raises TablesParkedError if no table is left."""
    if state is None:
        return job
    at_us = present_us() if now_us is None else now_us
    parked = [left.table for left in state.left if not _may_come_back(job, left, seen, at_us)]
    hidden = dict.fromkeys((*parked, *without))
    found = without_tables(job, hidden)
    if not found.source.tables and not state.schemas and has_away(job, state):
        raise all_parked(job, state)
    return found if found.source.tables else _with_source(found, tables=job.source.tables)


def without_tables(job: JobFile, tables: Collection[TableId]) -> JobFile:
    """Returns the job file with these tables in exclude_tables, and without the names in `source.tables` that are excluded
    then, and without the settings of these tables: a name that matches nothing is an error."""
    excluded = (*job.source.exclude_tables, *(glob_of(_name(table)) for table in tables))
    named = [glob.only_table for glob in job.source.tables]
    gone = {name for name in named if name is not None and _any_of(excluded, TableId(name.database, name.name))}
    kept = tuple(glob for glob, name in zip(job.source.tables, named, strict=True) if name not in gone)
    names = {_name(table) for table in tables}
    columns, keys, transforms = (
        {name: value for name, value in settings.items() if name not in names}
        for settings in (job.source.columns, job.source.keys, job.transforms)
    )
    found = _with_source(job, tables=kept, exclude_tables=excluded, columns=columns, keys=keys)
    return found.model_copy(update={"transforms": transforms})


def _with_source(job: JobFile, **settings: Any) -> JobFile:
    return job.model_copy(update={"source": job.source.model_copy(update=settings)})


def _may_come_back(job: JobFile, left: Left, seen: Collection[int] | None, now_us: int) -> bool:
    return _is_wanted_back(job, left, now_us) or left.table in _to_read_again(job, seen)


def known_tables(job: JobFile, state: JobState, now_us: int) -> frozenset[TableId]:
    """The tables that are no news when they are seen in the source: all but those that come back by themselves. `now_us`: when
    the start looked for tables."""
    away = {left.table for left in state.left if not (left.is_parked and _is_wanted_back(job, left, now_us))}
    return frozenset(away | {schema.table for schema in state.schemas})


def can_t_come_back(error: TidemarkError, job: JobFile, state: JobState, seen: Collection[int], now_us: int) -> bool:
    """Notes that a table that has left the job can't come back because of the error, and answers its signals. The job must be
    opened again, without the table. Returns False if the error is not about such a table. `now_us`: when the start looked for
    tables."""
    left = next((left for left in state.left if left.table == error.table), None)
    if left is None:
        return False
    checkpoint, why = Checkpoint.at(job.checkpoint), reason(error.message, error.remedy)
    if left.paused or _is_wanted_back(job, left, now_us):
        still_parked(job, checkpoint, state, [left.table], why)
    for number, signal in _open_signals(checkpoint, seen).items():
        if signal.table == left.table:
            checkpoint.create_answer(number, Answer(False, why, present_us()))
    return True


def park_absent(
    job: JobFile, state: JobState, reasons: Mapping[TableId, str], found: Collection[TableId], now_us: int
) -> JobState:
    """Parks the tables that were to come back and are not in `found`, durably. `reasons`: why checks refused tables. `now_us`:
    when the start looked for tables. Those whose time has come since were not looked for. Without
    `sink.on_schema_change: evolve` they wait."""
    if not evolves(job):
        return state
    checkpoint = Checkpoint.at(job.checkpoint)
    for left in _stale(job, state):
        if left.table not in found and _is_wanted_back(job, left, now_us):
            state = still_parked(job, checkpoint, state, [left.table], reasons.get(left.table, NOT_FOUND))
    return state


def _is_wanted_back(job: JobFile, left: Left, now_us: int) -> bool:
    return _comes_back(job, left) and comes_back_at_us(left, now_us) <= now_us


def _comes_back(job: JobFile, left: Left) -> bool:
    """True for a table that comes back by itself, now or later."""
    return not left.paused and (not left.is_parked or bool(left.heals and evolves(job)))


def answer_signals(
    job: JobFile,
    state: JobState,
    reasons: Mapping[TableId, str],
    found: Collection[TableId],
    before: JobState,
    seen: Collection[int],
) -> JobState:
    """Answers the signals about tables, once they have left, or joined again, or not. A paused table that could not come back
    is parked. `reasons`, `found`: as for `park_absent`. `before`: the job before tables joined, which tells what a signal could
    be for. `seen`: the signals that were open when this start began; later ones wait for the next start."""
    checkpoint = Checkpoint.at(job.checkpoint)
    known = {schema.table for schema in before.schemas} | before.left_tables
    signals = _open_signals(checkpoint, seen)
    replaced = _replaced(list(signals.items()))
    steering = steering_of(checkpoint.signals().values()) if signals else UNSTEERED
    for number, signal in signals.items():
        table = signal.table
        if table is None:
            continue
        text, stopped = None, table in steering.stopped_tables
        left = next((left for left in state.left if left.table == table), None)
        if job.mode != "full+incremental" and not (signal.kind == "resume" and stopped):
            text = f"Mode {job.mode} can't read rows again."
        elif table not in known:
            text = "The job does not copy this table."
        elif number in replaced:
            text = "A later signal has replaced it."
        elif signal.kind == "pause":
            text = None if left is not None and left.paused else "The table could not leave the job."
        elif not job.source.selects(table.database, table.name):
            text = "The job file does not select this table."
        elif left is not None:
            absent = reasons.get(table, NOT_FOUND) if table not in found else ""
            text = absent or left.why or "It did not join the job."
            if left.paused:
                state = still_parked(job, checkpoint, state, [table], text)
        accepted = how_read_again(is_replaced=table in state.came_back and state.came_back[table].is_replaced)
        back = state.came_back.get(table)
        is_back = back is not None and back.at_us > signal.at_us  # because of it, if the run that took it died
        if signal.kind == "resume" and table not in before.left_tables and not is_back:
            accepted = "The reading of its rows continues." if stopped else NOT_PAUSED
        if signal.kind == "pause":
            accepted = "It has left the job, and its copy stays as it is."
        checkpoint.create_answer(number, Answer(text is None, accepted if text is None else text, present_us()))
    return state


def how_read_again(*, is_replaced: bool) -> str:
    """Returns what becomes of the copy of a table that came back, for people."""
    if is_replaced:
        return "Its rows are read again, and replace those of its copy, one range of keys after the other."
    return "Its copy is emptied, and its rows are read again."


def still_parked(
    job: JobFile, checkpoint: Checkpoint, state: JobState, tables: Iterable[TableId], why: str
) -> JobState:
    """Parks tables that could not come back, with another reason. They try it again at each start, if the job file says so."""
    wanted = frozenset(tables)
    leaving = tuple(
        replace(
            left,
            why=why,
            at_us=present_us(),
            heals=_after_a_try(left) if evolves(job) and _comes_back(job, left) else 0,
            paused=False,
        )
        for left in state.left
        if left.table in wanted and (left.why != why or _wait_us(left))
    )
    return checkpoint.create_left(state, leaving) if leaving else state


def _after_a_try(left: Left) -> int:
    """Returns `Left.heals` of a table that could not come back."""
    return left.heals + 1 if _wait_us(left) else max(left.heals, 1)


def open_signals(checkpoint: Checkpoint) -> frozenset[int]:
    """The numbers of the signals that are not answered yet."""
    if not checkpoint.has_open_signals():
        return frozenset()
    return frozenset(number for number, (_, answer) in checkpoint.signals().items() if answer is None)


def _open_signals(checkpoint: Checkpoint, seen: Collection[int] | None) -> dict[int, Signal]:
    """Those of `seen` (None: all) that are not answered yet, without those for which no table leaves: about parts of tables
    (`signals/repairs.py`), and about the reading of splits (`signals/steering.py`)."""
    if not checkpoint.has_open_signals():
        return {}
    found = checkpoint.signals().items()
    return {
        number: signal
        for number, (signal, answer) in found
        if answer is None
        and not signal.is_partial
        and signal.kind != "stop-snapshot"
        and (seen is None or number in seen)
    }


def _newest_signals(checkpoint: Checkpoint, seen: Collection[int] | None) -> dict[TableId, SignalKind]:
    """The kind of the newest open signal about each table."""
    return {
        signal.table: signal.kind for signal in _open_signals(checkpoint, seen).values() if signal.table is not None
    }


def _replaced(signals: Sequence[tuple[int, Signal]]) -> set[int]:
    """Returns the numbers of those signals instead of which later ones count. After a resume, rows are read that an earlier
    signal has asked for."""
    replaced, later = set[int](), defaultdict[TableId | None, list[SignalKind]](list)
    for number, signal in reversed(signals):
        kinds = later[signal.table]
        if kinds and (signal.kind != "resnapshot" or "resnapshot" in kinds or kinds[0] == "pause"):
            replaced.add(number)
        kinds.append(signal.kind)
    return replaced


def _to_read_again(job: JobFile, seen: Collection[int] | None) -> frozenset[TableId]:
    """The tables that are to come back, by signals that nobody has answered yet."""
    if job.mode != "full+incremental":
        return frozenset()
    newest = _newest_signals(Checkpoint.at(job.checkpoint), seen)
    wanted = {table for table, kind in newest.items() if kind in {"resnapshot", "resume"}}
    return frozenset(table for table in wanted if job.source.selects(table.database, table.name))


def _leaving_by_signals(job: JobFile, state: JobState, seen: Collection[int] | None) -> dict[TableId, SignalKind]:
    """The tables of the job that are to leave it by signals, with what these ask for."""
    if job.mode != "full+incremental":
        return {}
    came_back = state.came_back
    wanted, asked = dict[TableId, SignalKind](), set[TableId]()
    for signal in _open_signals(Checkpoint.at(job.checkpoint), seen).values():
        table = signal.table
        if table is None:
            continue
        wanted.pop(table, None)  # the newest signal counts
        # A signal that was taken before has no answer if the run that took it died.
        was_taken = table in came_back and came_back[table].at_us > signal.at_us
        if signal.kind == "resnapshot" and job.source.selects(table.database, table.name) and not was_taken:
            asked.add(table)
        if signal.kind == "pause":
            wanted[table] = signal.kind
        elif table in asked:  # also after a resume: only a pause takes it back
            wanted[table] = "resnapshot"
    return wanted


def stays_unfinished(job: JobFile, checkpoint: Checkpoint, state: JobState) -> bool:
    """True if there is an unfinished epoch, as `unfinished_epoch` finds it, and the sink has a part of it or may get it. If it
    provably has nothing of it and never will, the epoch will be read again. If it has all of it, only the mark was missing, and
    is made now."""
    epoch = unfinished_epoch(checkpoint)
    if epoch is None:
        return False
    sink = make_sink(job)
    if not isinstance(sink, ProvesAbsence):
        return True
    owner = checkpoint.take_owner(again=True)  # also what this driver's own tasks write late is refused then
    identity = JobIdentity(state.job_uuid, state.job_name, owner)
    if not sink.lacks(identity, epoch):
        written = sink.written(identity)
        if written is None or written.log_epoch != epoch:
            return True
        checkpoint.mark_committed(epoch)
        return False
    failpoint("parking.lacks")
    checkpoint.forget_log_report(epoch)
    return False


def may_be_half_written(job: JobFile, checkpoint: Checkpoint, state: JobState) -> bool:
    """True if the sink may have a part of an epoch of the log that was read, but is not committed. If a sink that proves
    absence has nothing of it, the epoch counts as not read from now on."""
    if not stays_unfinished(job, checkpoint, state):
        return False
    sink = make_sink(job)
    if not isinstance(sink, ProvesAbsence):
        return True
    written = sink.written(JobIdentity(state.job_uuid, state.job_name))
    return written is None or written.log_epoch < max(checkpoint.plan_epochs())


def _is_read_without_tables(job: JobFile, checkpoint: Checkpoint, state: JobState) -> bool:
    """True if the sink has only some tables of the unfinished epoch, and no earlier attempt can write any more
    (`stays_unfinished`). Then the epoch counts as not read: it is read without the tables that leave, and what the sink has of
    the others is left out when they are written. Not before phase stream: there a second reading may find other rows."""
    epoch = max(checkpoint.plan_epochs())
    sink = make_sink(job)
    if not isinstance(sink, ProvesAbsence) or checkpoint.plan(epoch).plan.phase is not Phase.STREAM:
        return False
    written = sink.written(JobIdentity(state.job_uuid, state.job_name))
    if written is None or written.log_epoch >= epoch:
        return False
    checkpoint.forget_log_report(epoch)
    return True


def _leave(
    checkpoint: Checkpoint,
    state: JobState,
    leaving: Iterable[TableSchema],
    why: str,
    paused: Collection[TableId] = (),
) -> JobState:
    now = present_us()
    left = tuple(Left(schema.table, schema.version, why, now, paused=schema.table in paused) for schema in leaving)
    return checkpoint.create_left(state, left)


def present_us() -> int:
    """The present time, microseconds since 1970."""
    return time.time_ns() // 1000


def _name(table: TableId) -> TableName:
    return TableName(table.database, table.name)


def is_excluded(job: JobFile, table: TableId) -> bool:
    return _any_of(job.source.exclude_tables, table)


def _any_of(globs: Iterable[TableGlob], table: TableId) -> bool:
    return any(glob.matches(table.database, table.name) for glob in globs)
