"""Decides what the next epoch reads: (state, observation) → (plan, state). Uses no clock and no files, and no connection
but the KeySource.

Epochs are planned, read and committed one after the other. While splits are left, an epoch of the log follows each epoch of
splits (`snapshot.interleave`). It emits the changes of the splits read so far and leaves all other keys of their tables out:
splits that are read later contain these changes. The changes of a table whose rows must all be of one moment are withheld until
these are written. `absorb` takes the reports of an epoch into the state, `join`
the tables that joined the job, and `plan_epoch` decides the next epoch. The same state, observation and answers of the
source give the same plan. The caller must still use a plan that was written once, and not plan the epoch again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from tidemark.enumerator.pages import after_aside, begun_aside, is_read_aside, next_pages, staged, started
from tidemark.enumerator.splitting import next_ranges
from tidemark.state.errors import CheckpointError, concerning
from tidemark.state.job_state import JobState, Joined, Mode, SplitKey
from tidemark.state.key_source import KeySource
from tidemark.state.log_extent import KnownLog, LogExtent
from tidemark.state.log_range import LogRange, LogReport
from tidemark.state.phase import Phase, move
from tidemark.state.plan import (
    Aside,
    AwaitedLog,
    AwaitedSplits,
    Backfill,
    EnumeratorState,
    Exhausted,
    LogWork,
    Plan,
    Releasing,
    SnapshotWork,
    Staging,
    TableState,
    Withheld,
)
from tidemark.state.position import Position
from tidemark.state.reached import NOTHING_REACHED, Reached
from tidemark.state.remedies import RESTORE_CHECKPOINT
from tidemark.state.split import AsideRead, ReleaseChunk, Report, Split, StageChunk
from tidemark.state.table import TableId, TableSchema

TARGET_EPOCH_SECONDS = 10.0
"""How long a snapshot epoch should take: much longer than its own cost (0.3 s), and not long to repeat after a crash."""
INTERLEAVED_EPOCH_SECONDS = 3.0
"""The same if the log is read between two of them: so long do changes of the splits read so far wait."""

MAX_SPLITS_PER_TASK = 128
MAX_GROWTH = 8
"""The greatest growth of splits per task from one epoch to the next: small epochs cost as much as large ones. The tasks of
the first epoch have as many splits, some seconds of work, unless `split_rows` is small: that is chosen for long rows or a
slow source."""
SMALL_SPLIT_ROWS = 10_000
MIN_BATCH_BYTES = 4 << 20
"""The least log that an epoch reads. An epoch has fixed costs, several seconds if each of many tables is a commit. If these
alone exceed `max_batch_seconds`, smaller and smaller ranges would make the job slower, and it would never catch up."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the job file. They may change between two runs: only future plans depend on them."""

    parallelism: int
    split_rows: int
    max_batch_bytes: int
    max_batch_seconds: float
    interleave: bool = True
    max_rows_per_second: int | None = None

    @property
    def snapshot_epoch_seconds(self) -> float:
        """How long a snapshot epoch should take."""
        return INTERLEAVED_EPOCH_SECONDS if self.interleave else TARGET_EPOCH_SECONDS

    @property
    def max_splits(self) -> int | None:
        """How many splits an epoch may read, None if the rows per second are not limited."""
        if self.max_rows_per_second is None:
            return None
        return max(1, int(self.max_rows_per_second * self.snapshot_epoch_seconds) // self.split_rows)


@dataclass(frozen=True, slots=True)
class SplitsRead:
    """The outcome of a committed snapshot epoch: the reports of all its splits, in any order. `seconds` None: not measured.
    `left_out`: the ids of splits without a report, because their table has left the job."""

    epoch: int
    reports: tuple[Report, ...]
    seconds: float | None
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LogRead:
    """The outcome of a committed log epoch. `seconds` None: not measured."""

    epoch: int
    report: LogReport
    seconds: float | None


Outcome = SplitsRead | LogRead


@dataclass(frozen=True, slots=True)
class Observation:
    """The driver's observation before it plans.

    `log`: the extent of the source's log. `goal`: the position at which the run ends (trigger `once`: the log's end when the
    run started), None for a run that continues. `outcome`: of the epoch that the state awaits, None if it awaits none.
    `joined`: JobState.joined. `splits_wait`: no splits are to be read now, except those of a table without a key that is being
    read. `stopped`: the same for these tables only. `aside`: the reads beside the epochs that this run has begun, as for
    `after_aside`; None: this run begins none.
    """

    log: LogExtent
    goal: Position | None = None
    outcome: Outcome | None = None
    joined: tuple[Joined, ...] = ()
    splits_wait: bool = False
    stopped: frozenset[TableId] = frozenset()
    aside: Mapping[int, AsideRead | None] | None = None


def first_state(job: JobState, settings: Settings, mode: Mode | None = None) -> EnumeratorState:
    """Returns the state before epoch 1, and before any table joined. `mode`: as in `in_mode`, None: the job's first one."""
    schemas = job.schemas_after(0)
    state = EnumeratorState(
        mode=job.mode,
        phase=Phase.STREAM if job.mode == "incremental" else Phase.SNAPSHOT,
        epoch=0,
        tables=_untouched(schemas, job.split_keys),
        next_split_id=0,
        splits_per_task=1 if settings.split_rows < SMALL_SPLIT_ROWS else MAX_GROWTH,
        position=job.start,
        prepared=job.prepared,
        last_high=None,
        batch_bytes=settings.max_batch_bytes,
        awaited=None,
        reached=NOTHING_REACHED,
    )
    return _settled(state if mode is None else in_mode(state, mode))


def _untouched(schemas: Iterable[TableSchema], split_keys: Iterable[SplitKey]) -> tuple[TableState, ...]:
    versions = {schema.table: schema.version for schema in schemas}
    return tuple(TableState(k.table, versions[k.table], k.columns) for k in split_keys if k.table in versions)


def in_mode(state: EnumeratorState, mode: Mode) -> EnumeratorState:
    """Returns the state with which a later run in `mode` continues. A copy that was started in mode `full` follows the log
    if the new mode says so. The state's outcome must not be absorbed yet."""
    return replace(state, mode="full+incremental") if state.mode == "full" and mode != "full" else state


def of_job(state: EnumeratorState, job: JobState) -> EnumeratorState:
    """Returns a planned state as it is now that tables have left the job. A table that came back is another one."""
    versions = {schema.table: schema.version for schema in job.schemas}
    tables = tuple(table for table in state.tables if versions.get(table.table) == table.schema_version)
    if len(tables) == len(state.tables):
        return state
    kept = {table.table for table in tables}
    empties = tuple(table for table in state.empties if table in kept)
    rereads = tuple(reread for reread in state.rereads if versions.get(reread.table) == reread.version)
    return replace(state, tables=tables, empties=empties, rereads=rereads)


def plan_epoch(
    state: EnumeratorState, observation: Observation, source: KeySource, settings: Settings
) -> tuple[Plan | None, EnumeratorState]:
    """Returns the next epoch's plan and the state to store with it (as a PlanRecord), or None and the present state.

    None: mode `full` is DONE, the goal is reached, or the log has nothing new. In phase SNAPSHOT it means that splits wait,
    or a transaction of the log is not visible yet: the caller must ask again. Raises CheckpointError if the outcome is not
    the one that the state awaits, and LogPositionLostError if the source no longer has the log that the job needs.
    """
    if observation.outcome is not None:
        state = absorb(state, observation.outcome, settings)
    if state.awaited is not None:
        raise _inconsistent(f"The checkpoint does not contain the reports of epoch {state.epoch}.")
    state = join(state, observation.joined)
    if state.phase is Phase.DONE:
        return None, state
    aside = observation.aside
    state = replace(state, tables=tuple(after_aside(table, aside or {}) for table in state.tables))
    extent = observation.log
    if state.empties:
        return _plan_empties(state)
    if any(_is_due(table) for table in state.tables):
        return _plan_backfills(state)
    ends = [end for end in (state.last_high, observation.goal) if end and end.order > state.position.order]
    for position in (state.position, *ends):  # what is prepared is looked for only once it commits: it may be forgotten
        extent.require(position)
    state = replace(state, known_log=_known_log(state, extent))
    if state.rereads:
        return _plan_rereads(state, extent)
    behind = extent.bytes_between(state.position, extent.end)
    are_visible = state.phase is Phase.SNAPSHOT and _are_visible(state, source)
    if are_visible:
        state = replace(state, unseen=())
    splits_wait = observation.splits_wait or are_all_stopped(state, observation.stopped)
    awaited_join = observation.joined[state.joined].start if state.joined < len(observation.joined) else None
    limit = _limit(state, observation.goal, extent.end, awaited_join)
    plan: Plan | None = None
    if state.phase is not Phase.SNAPSHOT or _is_turn_of_log(
        state, settings, are_visible=are_visible, splits_wait=splits_wait
    ):
        plan, state = _plan_log(state, extent, limit)
    if plan is None and are_visible and (not splits_wait or _is_reading_pages(state)):
        left_out = {table.table for table in state.tables} if splits_wait else observation.stopped
        plan, state = _plan_splits(state, source, settings, left_out, can_begin=aside is not None)
        if plan is None and settings.interleave:  # all that is left is read beside the epochs
            plan, state = _plan_log(state, extent, limit)
    return None if plan is None else replace(plan, bytes_behind=behind), state


def _known_log(state: EnumeratorState, extent: LogExtent) -> KnownLog | None:
    """The caller has proven that the log is the one that the job has read."""
    started_us = extent.server_started_us
    if started_us is None:
        return None
    known = KnownLog(started_us, state.position) if state.known_log is None else state.known_log
    return replace(known, server_started_us=started_us)


def _are_visible(state: EnumeratorState, source: KeySource) -> bool:
    """True if every later SELECT sees the transactions up to the log's position. A split must contain them: its keys were
    left out when the log was read (spec/Lanes.tla, Seen)."""
    return source.sees(state.position, state.unseen)


def are_all_stopped(state: EnumeratorState, stopped: Collection[TableId]) -> bool:
    """True if splits are left, but only of tables of which none are to be read."""
    unread = [table.table for table in state.tables if not isinstance(table.cursor, (Exhausted, Aside))]
    return bool(unread) and all(table in stopped for table in unread)


def reads_aside(state: EnumeratorState) -> bool:
    """True if a table is being read beside the epochs."""
    return any(isinstance(table.cursor, Aside) for table in state.tables)


def _is_turn_of_log(state: EnumeratorState, settings: Settings, *, are_visible: bool, splits_wait: bool) -> bool:
    """True if the log is read before more splits are: after each epoch of splits, once, and while splits wait. Chunks of a
    table without a key do not wait: they hold a snapshot. The log does, if an earlier version began with them, which withheld
    no changes."""
    if any(isinstance(table.cursor, (Staging, Releasing)) and table.withheld is None for table in state.tables):
        return False
    if not are_visible:
        return True
    waits = splits_wait and not _is_reading_pages(state)
    return settings.interleave and (waits or (state.reached is not None and state.reached.splits > 0))


def _is_reading_pages(state: EnumeratorState) -> bool:
    return any(isinstance(table.cursor, (Staging, Releasing)) for table in state.tables)


def _is_due(table: TableState) -> bool:
    """True if all rows of the table are written, so that its withheld changes can be."""
    return table.withheld is not None and isinstance(table.cursor, Exhausted)


def _has_files(table: TableState) -> bool:
    return table.withheld is not None and table.withheld.files > 0


def join(state: EnumeratorState, joined: tuple[Joined, ...]) -> EnumeratorState:
    """Takes in the tables whose start position the log has reached: their splits are read next. If the job had no other
    tables, the position moves to their start.

    No range of the log goes beyond such a start position before the tables are taken in, so the tables of each epoch follow
    from its plan. Raises CheckpointError if `joined` has fewer entries than before.
    """
    if state.joined > len(joined):
        raise _inconsistent(
            f"The checkpoint has {len(joined)} files of tables that joined the job, but {state.joined} were there."
        )
    while (
        state.awaited is None
        and state.phase is not Phase.DONE
        and state.joined < len(joined)
        and (
            state.position.order >= joined[state.joined].start.order
            or any(later.restarts for later in joined[state.joined :])
        )
    ):
        state = _with_tables(state, joined[state.joined])
    return state


def _with_tables(state: EnumeratorState, joined: Joined) -> EnumeratorState:
    untouched = _untouched(joined.schemas, joined.split_keys)
    tables = tuple(replace(table, first_split=state.next_split_id) for table in untouched)
    state = replace(state, joined=state.joined + 1, empties=(*state.empties, *joined.emptied))
    if joined.restarts:
        # What was read before may be of another server, whose positions are others.
        state = replace(state, rereads=())
    state = replace(state, rereads=(*state.rereads, *joined.rereads))
    if joined.restarts:
        state = replace(
            state, position=joined.start, prepared=(), unseen=(), last_high=None, known_log=joined.start_log
        )
    if joined.reached is not None:
        state = replace(state, reached=joined.reached)
    if not tables:
        return state
    if state.phase is Phase.STREAM:
        state = replace(state, tables=tuple(replace(t, passed=True) for t in state.tables), last_high=None)
    phase = state.phase if state.phase is Phase.SNAPSHOT else move(state.phase, Phase.SNAPSHOT)
    return replace(state, phase=phase, tables=(*state.tables, *tables))


def absorb(state: EnumeratorState, outcome: Outcome, settings: Settings) -> EnumeratorState:
    """Returns the state after the planned epoch is committed. Raises CheckpointError if `outcome` is another epoch's or is
    incomplete."""
    awaited = state.awaited
    if outcome.epoch == state.epoch:
        match outcome, awaited:
            case SplitsRead(), AwaitedSplits():
                return _settled(_absorb_splits(state, awaited, outcome, settings))
            case LogRead(), AwaitedLog():
                return _settled(_absorb_log(state, awaited, outcome, settings))
            case _:
                pass
    raise _inconsistent(
        f"The plan of epoch {state.epoch} awaits {awaited}, "
        f"but the checkpoint contains the reports of epoch {outcome.epoch} ({type(outcome).__name__})."
    )


def _absorb_splits(
    state: EnumeratorState, awaited: AwaitedSplits, outcome: SplitsRead, settings: Settings
) -> EnumeratorState:
    found = sorted([*outcome.left_out, *(report.split_id for report in outcome.reports)])
    if found != list(range(awaited.first_id, awaited.end_id)):
        raise _inconsistent(
            f"Epoch {state.epoch} has the splits {awaited.first_id} to {awaited.end_id - 1}, "
            f"but the checkpoint has the reports of {found}."
        )
    highs = [report.high for report in outcome.reports if report.kind in {"read", "released"}]
    reports = defaultdict[TableId, list[Report]](list)
    for report in outcome.reports:
        reports[report.table].append(report)
    return replace(
        state,
        tables=tuple(_with_reports(t, reports[t.table]) if t.table in reports else t for t in state.tables),
        splits_per_task=_splits_per_task(state.splits_per_task, outcome.seconds, settings.snapshot_epoch_seconds),
        last_high=_greatest([state.last_high, *highs]),
        awaited=None,
    )


def _greatest(highs: Iterable[Position | None]) -> Position | None:
    return max((high for high in highs if high is not None), key=lambda high: high.order, default=None)


def _with_reports(table: TableState, reports: list[Report]) -> TableState:
    new = [report for report in reports if report.kind != "released"]
    done_rows = table.done_rows + sum(report.row_count for report in new)
    return staged(replace(table, done_splits=table.done_splits + len(new), done_rows=done_rows), reports)


def _absorb_log(state: EnumeratorState, awaited: AwaitedLog, outcome: LogRead, settings: Settings) -> EnumeratorState:
    end, stop = outcome.report.end, awaited.range.stop
    if end.order < stop.order:
        raise _inconsistent(
            f"Epoch {state.epoch} should have read the log up to {stop} or the next transaction boundary, "
            f"but its report ends at {end}."
        )
    withheld = set(outcome.report.withheld)
    return replace(
        state,
        tables=tuple(_with_file(t, awaited.size_bytes) if t.table in withheld else t for t in state.tables),
        position=end,
        last_high=_greatest([state.last_high, outcome.report.last_high]),
        key_rereads=(*state.key_rereads, *(() if outcome.report.last_high is None else (state.epoch,))),
        prepared=outcome.report.prepared,
        unseen=tuple(sorted({*state.unseen, *outcome.report.unseen})),
        batch_bytes=_batch_bytes(state.batch_bytes, awaited.size_bytes, outcome.seconds, settings),
        awaited=None,
        totals=state.totals.plus(outcome.report),
        known_log=_with_commit(state.known_log, outcome.report),
    )


def _with_commit(known: KnownLog | None, report: LogReport) -> KnownLog | None:
    if known is None or report.last_commit is None:
        return known
    return replace(known, commit=report.last_commit, commit_us=report.end_timestamp_us)


def _with_file(table: TableState, log_bytes: int) -> TableState:
    """Counts the withheld changes of one more epoch, of a range of so many bytes."""
    withheld = table.withheld
    if withheld is None:  # the table came back to the job
        return table
    return replace(table, withheld=Withheld(withheld.after_epoch, withheld.files + 1, withheld.log_bytes + log_bytes))


def _splits_per_task(now: int, seconds: float | None, target_seconds: float) -> int:
    if seconds is None:
        return now
    if seconds <= target_seconds / 2:
        growth = MAX_GROWTH if seconds * MAX_GROWTH <= target_seconds else int(target_seconds / seconds)
        return min(now * growth, MAX_SPLITS_PER_TASK)
    return max(now // 2, 1) if seconds > target_seconds * 2 else now


def _batch_bytes(now: int, read_bytes: int, seconds: float | None, settings: Settings) -> int:
    """Doubles after a full batch that was fast. After a slow one, shrinks to the size that would have been in time."""
    wanted = now
    if seconds is not None and seconds > settings.max_batch_seconds:
        wanted = min(now, int(read_bytes * settings.max_batch_seconds / seconds))
    elif seconds is not None and seconds <= settings.max_batch_seconds / 2 and read_bytes >= now:
        wanted = now * 2
    return min(max(wanted, MIN_BATCH_BYTES), settings.max_batch_bytes)


def _settled(state: EnumeratorState) -> EnumeratorState:
    """Moves the state to the phase that it has reached."""
    if any(_is_due(table) for table in state.tables):
        tables = (replace(t, withheld=None) if _is_due(t) and not _has_files(t) else t for t in state.tables)
        state = replace(state, tables=tuple(tables))
    if state.phase is Phase.SNAPSHOT and all(isinstance(t.cursor, Exhausted) and not t.withheld for t in state.tables):
        state = replace(state, phase=move(state.phase, Phase.CATCH_UP))
    if state.phase is Phase.CATCH_UP and (state.last_high is None or state.position.order >= state.last_high.order):
        state = replace(state, phase=move(state.phase, Phase.DONE if state.mode == "full" else Phase.STREAM))
    if state.phase is Phase.STREAM and state.key_rereads:
        state = replace(state, key_rereads=())  # their files are removed once the next epoch is planned
    return state


def _plan_splits(
    state: EnumeratorState,
    source: KeySource,
    settings: Settings,
    left_out: Collection[TableId],
    *,
    can_begin: bool,
) -> tuple[Plan | None, EnumeratorState]:
    """`left_out`: tables of which no splits are planned, except those without a key that are being read: all their chunks see
    one snapshot. `can_begin`: tables may be read beside the epochs. If there is nothing else to read, the plan that begins
    with one is that of an empty range of the log. None if all that is left is being read, or waits for that."""
    wanted = settings.parallelism * state.splits_per_task
    if settings.max_splits is not None:
        wanted = min(wanted, settings.max_splits)
    tables = list(state.tables)
    splits: list[Split] = []
    begun: list[int] = []
    may_begin = max(1, settings.parallelism // 2) - sum(isinstance(table.cursor, Aside) for table in tables)
    for i, table in enumerate(tables):
        if len(splits) == wanted:
            break
        waits = table.table in left_out and not isinstance(table.cursor, (Staging, Releasing))
        if isinstance(table.cursor, (Exhausted, Aside)) or waits:
            continue
        first_id, count = state.next_split_id + len(splits), wanted - len(splits)
        pages: StageChunk | ReleaseChunk | None = None
        with concerning(table.table):
            if not table.columns:
                at = state.position
                table = started(
                    table, source, split_rows=settings.split_rows, attempt=first_id, base=at, epoch=state.epoch
                )
                if can_begin and is_read_aside(table, source, split_rows=settings.split_rows):
                    if len(begun) < may_begin:
                        begun.append(i)
                    continue
            if isinstance(table.cursor, (Staging, Releasing)):
                ranges, pages, tables[i] = next_pages(table, count)
            else:
                ranges, tables[i] = next_ranges(table, source, split_rows=settings.split_rows, count=count)
        for split_id, key_range in enumerate(ranges, first_id):
            splits.append(Split(split_id, table.table, table.schema_version, table.columns, key_range, pages))
    end_id = state.next_split_id + len(splits)
    for attempt, i in enumerate(begun, end_id):
        tables[i] = begun_aside(tables[i], source, attempt=attempt, base=state.position, epoch=state.epoch)
    state = replace(state, tables=tuple(tables))
    if not splits and begun:
        return _plan_no_range(replace(state, next_split_id=end_id + len(begun)))
    if not splits:
        return None, state
    tasks = tuple(tuple(splits[i :: settings.parallelism]) for i in range(min(settings.parallelism, len(splits))))
    anchor = state.position if state.last_high is None else state.last_high
    plan = Plan(state.epoch + 1, state.phase, SnapshotWork(tasks, anchor))
    return plan, replace(
        state,
        epoch=plan.epoch,
        next_split_id=end_id + len(begun),
        awaited=AwaitedSplits(state.next_split_id, end_id),
        reached=state.reached and replace(state.reached, splits=state.reached.splits + len(splits)),
    )


def _plan_log(state: EnumeratorState, extent: LogExtent, limit: Position) -> tuple[Plan | None, EnumeratorState]:
    if min(limit.order, extent.end.order) <= state.position.order:
        return None, state
    stop = extent.stop_after(state.position, state.batch_bytes, limit=limit)
    log_range = LogRange(state.position, stop, state.prepared)
    plan = Plan(state.epoch + 1, state.phase, LogWork(log_range, after=state.reached))
    awaited = AwaitedLog(log_range, extent.bytes_between(state.position, stop))
    return plan, replace(state, epoch=plan.epoch, awaited=awaited, reached=Reached(plan.epoch, 0))


def _plan_no_range(
    state: EnumeratorState, *, empties: tuple[TableId, ...] = (), backfills: tuple[Backfill, ...] = ()
) -> tuple[Plan, EnumeratorState]:
    """Plans an epoch of the log, of no range. Its plan makes the state durable."""
    nothing = LogRange(state.position, state.position, state.prepared)
    work = LogWork(nothing, after=state.reached, empties=empties, backfills=backfills)
    plan = Plan(state.epoch + 1, state.phase, work)
    awaited = AwaitedLog(nothing, sum(backfill.withheld.log_bytes for backfill in backfills))
    return plan, replace(state, epoch=plan.epoch, awaited=awaited, reached=Reached(plan.epoch, 0))


def _plan_empties(state: EnumeratorState) -> tuple[Plan, EnumeratorState]:
    """Plans the emptying of copies whose rows are about to be read."""
    return _plan_no_range(replace(state, empties=()), empties=state.empties)


def _plan_backfills(state: EnumeratorState) -> tuple[Plan, EnumeratorState]:
    """Plans the emission of withheld changes."""
    due = tuple(Backfill(t.table, t.withheld) for t in state.tables if t.withheld is not None and _is_due(t))
    tables = tuple(replace(table, withheld=None) if _is_due(table) else table for table in state.tables)
    return _plan_no_range(replace(state, tables=tables), backfills=due)


def _plan_rereads(state: EnumeratorState, extent: LogExtent) -> tuple[Plan | None, EnumeratorState]:
    """Plans an epoch that writes rows which were read again, and then the log up to everything that they contain: a key that
    changed meanwhile gets its last state from the log. So the range is not divided."""
    stop = _greatest([state.position, *(reread.high for reread in state.rereads)])
    assert stop is not None
    if stop.order > extent.end.order:
        return None, state
    behind = extent.bytes_between(state.position, extent.end)
    size_bytes = extent.bytes_between(state.position, stop)
    stop = extent.stop_after(state.position, size_bytes, limit=stop)
    log_range = LogRange(state.position, stop, state.prepared)
    plan = Plan(
        state.epoch + 1,
        state.phase,
        LogWork(log_range, after=state.reached, rereads=state.rereads),
        bytes_behind=behind,
    )
    awaited = AwaitedLog(log_range, size_bytes)
    return plan, replace(state, epoch=plan.epoch, awaited=awaited, reached=Reached(plan.epoch, 0), rereads=())


def _inconsistent(message: str) -> CheckpointError:
    return CheckpointError(message, RESTORE_CHECKPOINT)


def _limit(state: EnumeratorState, goal: Position | None, end: Position, awaited_join: Position | None) -> Position:
    """Returns the position up to which the log may be read: the start position of the next tables to join, or the end of
    this run."""
    last = _end_of_run(state, goal, end)
    return last if awaited_join is None else min(last, awaited_join, key=lambda position: position.order)


def _end_of_run(state: EnumeratorState, goal: Position | None, end: Position) -> Position:
    """Mode `full` reads to the greatest high. A run with a goal reads to the goal, or to the greatest high if that is later."""
    if state.mode == "full":
        return end if state.last_high is None else state.last_high
    if goal is None or state.last_high is None:
        return end if goal is None else goal
    return max(goal, state.last_high, key=lambda position: position.order)
