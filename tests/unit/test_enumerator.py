"""The sequence of epochs: a scripted source, no database."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pytest

from devtools.key_source import SeesAll
from tidemark.enumerator.enumerator import (
    MAX_GROWTH,
    MAX_SPLITS_PER_TASK,
    MIN_BATCH_BYTES,
    LogRead,
    Observation,
    Outcome,
    Settings,
    SplitsRead,
    absorb,
    are_all_stopped,
    first_state,
    join,
    of_job,
    plan_epoch,
)
from tidemark.enumerator.splitting import MAX_SPLIT_BYTES, next_ranges
from tidemark.state.errors import CheckpointError, LogPositionLostError, SourceNotUsableError
from tidemark.state.job_state import JobState, Joined, Mode, SplitKey
from tidemark.state.key_encoding import encode_integer
from tidemark.state.key_statistics import IntegerKey, KeyStatistics, TableSize
from tidemark.state.log_extent import BinlogExtent, LogFile
from tidemark.state.log_range import LogReport, PreparedXa
from tidemark.state.phase import NEXT, Phase, move
from tidemark.state.plan import Aside, EnumeratorState, LogWork, Plan, Releasing, SnapshotWork, TableState, Walking
from tidemark.state.position import BinlogPosition, Position
from tidemark.state.split import AsideRead, Bound, KeyRange, Report
from tidemark.state.table import TableId, TableSchema

START = BinlogPosition("b.000001", 1000, "a:1-10")
FILES = (LogFile("b.000001", 5000), LogFile("b.000002", 9000))
SETTINGS = Settings(parallelism=2, split_rows=10, max_batch_bytes=3000, max_batch_seconds=10.0, interleave=False)
INTERLEAVED = replace(SETTINGS, interleave=True)


def table(name: str) -> TableId:
    return TableId("shop", name)


def bound(value: int) -> Bound:
    return Bound((str(value),), encode_integer(value, unsigned=False).hex())


@dataclass
class EvenTables(SeesAll):
    """A KeySource: the table `n<rows>` has the keys 0 … rows - 1."""

    average_row_bytes: int | None = None
    backwards: bool = False
    unseen: Collection[int] = ()

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        return not set(self.unseen).intersection(unseen)

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        rows = int(table.name[1:])
        if rows == 0:
            return KeyStatistics(None, None, 0, None)
        return KeyStatistics(bound(rows - 1), IntegerKey(0, rows - 1, False), None, self.average_row_bytes)

    def next_bounds(
        self,
        table: TableId,
        columns: tuple[str, ...],
        *,
        after: Bound | None,
        until: Bound | None,
        rows: int,
        count: int,
    ) -> Sequence[Bound]:
        first = 0 if after is None else int(after.literals[0])
        limit = int(table.name[1:]) if until is None else int(until.literals[0])
        places = range(first + rows, limit, rows)[:count]
        return [bound(place) for place in (reversed(places) if self.backwards else places)]


def job(*names: str, mode: Mode = "full+incremental", keyless: Sequence[str] = ()) -> JobState:
    tables = [table(name) for name in (*names, *keyless)]
    return JobState(
        job_uuid="u",
        job_name="j",
        mode=mode,
        server_identity="s",
        start=START,
        prepared=(),
        created_at_us=0,
        schemas=tuple(TableSchema(t, 3, (), ()) for t in tables),
        split_keys=tuple(SplitKey(t, () if t.name in keyless else ("id",)) for t in tables),
    )


def high(pos: int) -> BinlogPosition:
    return BinlogPosition("b.000001", pos, "a:1-11")


def splits_read(plan: Plan, *, pos: int = 2000, seconds: float | None = None) -> SplitsRead:
    assert isinstance(plan.work, SnapshotWork)
    splits = [split for task in plan.work.tasks for split in task]
    reports = tuple(Report(s.id, s.table, s.schema_version, high(pos + s.id), 10, 0) for s in splits)
    return SplitsRead(plan.epoch, reports, seconds)


def log_read(plan: Plan, end: BinlogPosition | None = None, seconds: float | None = None) -> LogRead:
    assert isinstance(plan.work, LogWork)
    log_range = plan.work.range
    reached = log_range.stop if end is None else end
    return LogRead(plan.epoch, LogReport(reached, (), 1, 1, 1, None), seconds)


def plan_next(
    state: EnumeratorState,
    outcome: Outcome | None = None,
    goal: BinlogPosition | None = None,
    *,
    files: tuple[LogFile, ...] = FILES,
    source: EvenTables | None = None,
    settings: Settings = SETTINGS,
    joined: tuple[Joined, ...] = (),
) -> tuple[Plan | None, EnumeratorState]:
    source = EvenTables() if source is None else source
    return plan_epoch(state, Observation(BinlogExtent(files), goal, outcome, joined), source, settings)


def planned(*args: object, **kwargs: object) -> tuple[Plan, EnumeratorState]:
    plan, state = plan_next(*args, **kwargs)  # type: ignore[arg-type]
    assert plan is not None
    return plan, state


def after_snapshot(job_state: JobState) -> EnumeratorState:
    """Every table in one epoch, all highs at b.000001:2000 and a little more."""
    settings = replace(SETTINGS, parallelism=1000)
    plan, state = planned(first_state(job_state, settings), settings=settings)
    return absorb(state, splits_read(plan), settings)


def test_tables_are_read_in_order_and_an_epoch_may_hold_several() -> None:
    settings = replace(SETTINGS, parallelism=3)
    plan, state = planned(first_state(job("n0", "n25", "n5", keyless=["log"]), settings), settings=settings)
    assert plan.epoch == 1
    assert plan.phase is Phase.SNAPSHOT
    assert isinstance(plan.work, SnapshotWork)
    assert plan.work.anchor == START
    found = [(s.id, s.table.name, s.schema_version, s.columns) for (s,) in plan.work.tasks]
    assert found == [(0, "n0", 3, ("id",)), (1, "n25", 3, ("id",)), (2, "n25", 3, ("id",))]
    tail, first = plan.work.tasks[1][0].range, plan.work.tasks[2][0].range
    assert tail == KeyRange(bound(24), None)
    assert first == KeyRange(None, bound(10))

    plan, state = planned(state, splits_read(plan), settings=settings)
    assert isinstance(plan.work, SnapshotWork)
    assert plan.work.anchor == high(2002)
    assert [(s.table.name, s.range) for (s,) in plan.work.tasks] == [
        ("n25", KeyRange(bound(10), bound(20))),
        ("n25", KeyRange(bound(20), bound(24))),
        ("n5", KeyRange(None, None)),
    ]
    plan, state = planned(state, splits_read(plan), settings=settings)
    assert isinstance(plan.work, SnapshotWork)
    assert [(s.id, s.columns, s.range) for (s,) in plan.work.tasks] == [(6, (), KeyRange(None, None))]
    assert [(t.table.name, t.done_splits, t.planned_splits, t.done_rows) for t in state.tables] == [
        ("n0", 1, 1, 10),
        ("n25", 4, 4, 40),
        ("n5", 1, 1, 10),
        ("log", 0, 1, 0),
    ]


def test_the_log_is_read_between_two_epochs_of_splits() -> None:
    plan, state = planned(first_state(job("n100"), INTERLEAVED), settings=INTERLEAVED)
    plan, state = planned(state, splits_read(plan, pos=1500), settings=INTERLEAVED)
    assert isinstance(plan.work, LogWork)
    assert (plan.phase, plan.work.range.start) == (Phase.SNAPSHOT, START)
    plan, state = planned(state, log_read(plan, high(4000)), settings=INTERLEAVED)
    assert isinstance(plan.work, SnapshotWork)
    assert plan.work.anchor == high(1501), "the greatest high"
    plan, state = planned(state, splits_read(plan, pos=4500), settings=INTERLEAVED)
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.start == high(4000)


def test_more_splits_are_read_at_once_if_the_log_has_nothing_new() -> None:
    plan, state = planned(first_state(job("n100"), INTERLEAVED), settings=INTERLEAVED)
    nothing_new = (LogFile("b.000001", 1000),)
    plan, state = planned(state, splits_read(plan, pos=900), settings=INTERLEAVED, files=nothing_new)
    assert isinstance(plan.work, SnapshotWork)


def test_splits_wait_until_the_commits_that_the_log_has_passed_are_visible() -> None:
    hidden = EvenTables(unseen={7})
    plan, state = planned(first_state(job("n100"), INTERLEAVED), settings=INTERLEAVED)
    plan, state = planned(state, splits_read(plan, pos=1500), settings=INTERLEAVED)
    outcome = log_read(plan, high(4000))
    outcome = replace(outcome, report=replace(outcome.report, unseen=(7, 8)))
    waiting = absorb(state, outcome, INTERLEAVED)
    nothing_new = (LogFile("b.000001", 4000),)
    assert plan_next(waiting, settings=INTERLEAVED, files=nothing_new, source=hidden) == (None, waiting)
    more, state = planned(waiting, settings=INTERLEAVED, source=hidden)
    assert isinstance(more.work, LogWork), "the log goes on meanwhile"
    assert absorb(state, log_read(more), INTERLEAVED).unseen == (7, 8)
    plan, state = planned(waiting, settings=INTERLEAVED, files=nothing_new)
    assert isinstance(plan.work, SnapshotWork)
    assert state.unseen == ()


def test_an_epoch_grows_until_it_lasts_long_enough_and_shrinks_when_it_lasts_too_long() -> None:
    state = first_state(job("n1000000"), SETTINGS)
    seen = []
    outcome = None
    for seconds in [5.1, 4.9, 2.5, 0.0, 20.0, 20.1, None, *[0.1] * 12]:
        plan, state = planned(state, outcome)
        assert isinstance(plan.work, SnapshotWork)
        assert {len(task) for task in plan.work.tasks} == {state.splits_per_task}
        assert len(plan.work.tasks) == SETTINGS.parallelism
        seen.append(state.splits_per_task)
        outcome = splits_read(plan, seconds=seconds)
    assert seen[:9] == [1, 1, 2, 8, 64, 64, 32, 32, 128]
    assert seen[-1] == MAX_SPLITS_PER_TASK


def test_splits_of_long_rows_are_small() -> None:
    for row_bytes, expected in [(None, 1000), (1, 1000), (MAX_SPLIT_BYTES // 100, 100), (MAX_SPLIT_BYTES * 2, 1)]:
        source = EvenTables(average_row_bytes=row_bytes)
        _, found = next_ranges(TableState(table("n5000"), 1, ("id",)), source, split_rows=1000, count=1)
        cursor = found.cursor
        assert (cursor.rows if isinstance(cursor, Walking) else cursor.step) == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(("split_rows", "expected"), [(9_999, 1), (10_000, MAX_GROWTH)])
def test_the_first_epoch_is_small_where_splits_are(split_rows: int, expected: int) -> None:
    settings = replace(SETTINGS, split_rows=split_rows)
    plan, _ = planned(first_state(job("n1000000"), settings), settings=settings)
    assert isinstance(plan.work, SnapshotWork)
    assert [len(task) for task in plan.work.tasks] == [expected, expected]


@pytest.mark.pitfall(14)
@pytest.mark.pitfall(126)
def test_ranks_that_do_not_rise_as_the_server_says_stop_the_job() -> None:
    state = TableState(table("n500"), 1, ("id",), Walking(None, bound(499), 10))
    with pytest.raises(SourceNotUsableError, match="orders the key id differently") as caught:
        next_ranges(state, EvenTables(backwards=True), split_rows=10, count=5)
    assert not re.search("[0-9]", caught.value.message.replace("n500", ""))


def test_catching_up_reads_the_log_from_the_start_of_the_job_and_then_streams() -> None:
    state = after_snapshot(job("n25"))
    assert state.phase is Phase.CATCH_UP
    assert state.last_high == high(2003)
    plan, state = planned(state)
    assert plan.phase is Phase.CATCH_UP
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.start == START
    assert (plan.work.range.stop.file, plan.work.range.stop.pos) == ("b.000001", 4000)
    end = BinlogPosition("b.000001", 4321)
    plan, state = planned(state, log_read(plan, end))
    assert plan.phase is Phase.STREAM
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.start == end
    assert (plan.work.range.stop.file, plan.work.range.stop.pos) == ("b.000002", 2325)


def test_catching_up_goes_on_until_the_greatest_high() -> None:
    settings = replace(SETTINGS, max_batch_bytes=1001)
    state = replace(after_snapshot(job("n25")), batch_bytes=1001)
    plan, state = planned(state, settings=settings)
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.stop.pos == 2001
    plan, state = planned(state, log_read(plan), settings=settings)
    assert plan.phase is Phase.CATCH_UP
    assert absorb(state, log_read(plan), settings).phase is Phase.STREAM


def test_catching_up_goes_on_until_rows_that_were_read_again_are_passed() -> None:
    state = after_snapshot(job("n25"))
    plan, state = planned(state)
    read = log_read(plan, high(4000))
    again = replace(read, report=replace(read.report, last_high=high(5000)))
    epoch = state.epoch
    plan, state = planned(state, again)
    assert (plan.phase, state.last_high) == (Phase.CATCH_UP, high(5000))
    assert state.key_rereads == (epoch,)
    passed = absorb(state, log_read(plan), SETTINGS)
    assert (passed.phase, passed.key_rereads) == (Phase.STREAM, ())


def test_mode_full_ends_at_the_greatest_high() -> None:
    state = after_snapshot(job("n25", mode="full"))
    plan, state = planned(state)
    assert isinstance(plan.work, LogWork)
    assert (plan.work.range.stop.file, plan.work.range.stop.pos) == ("b.000001", 2003)
    plan_after, state = plan_next(state, log_read(plan, high(2003)))
    assert plan_after is None
    assert state.phase is Phase.DONE
    assert plan_next(state) == (None, state)


@pytest.mark.pitfall(6)
@pytest.mark.parametrize(("mode", "phase"), [("full", Phase.DONE), ("full+incremental", Phase.STREAM)])
def test_an_idle_source_has_nothing_to_catch_up(mode: Mode, phase: Phase) -> None:
    plan, state = planned(first_state(job("n5", mode=mode), SETTINGS))
    assert isinstance(plan.work, SnapshotWork)
    (split,) = plan.work.tasks[0]
    files = (LogFile(START.file, START.pos),)
    report = Report(split.id, split.table, 3, START, 5, 0)
    after, state = plan_next(state, SplitsRead(1, (report,), None), files=files)
    assert after is None
    assert state.phase is phase


def test_a_job_without_tables_goes_straight_to_the_log() -> None:
    assert first_state(job(), SETTINGS).phase is Phase.STREAM
    assert first_state(job(mode="full"), SETTINGS).phase is Phase.DONE
    state = first_state(job(mode="incremental"), SETTINGS)
    assert state.phase is Phase.STREAM
    plan, _ = planned(state)
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.start == START


def test_a_run_with_a_goal_ends_there_but_not_before_the_greatest_high() -> None:
    settings = replace(SETTINGS, max_batch_bytes=10**6)
    for goal_pos, expected in [(1500, 2003), (2500, 2500)]:
        state = replace(after_snapshot(job("n25")), batch_bytes=10**6)
        goal = BinlogPosition("b.000001", goal_pos)
        plan, state = planned(state, None, goal, settings=settings)
        assert isinstance(plan.work, LogWork)
        assert (plan.work.range.stop.file, plan.work.range.stop.pos) == ("b.000001", expected)
        after, state = plan_next(state, log_read(plan), goal, settings=settings)
        assert after is None
        assert state.phase is Phase.STREAM
        plan, _ = planned(state, settings=settings)
        assert plan.epoch == 3


def test_batches_of_log_grow_when_quick_and_shrink_when_slow() -> None:
    settings = replace(SETTINGS, max_batch_bytes=1 << 30, max_batch_seconds=10.0)
    files = (LogFile("b.000001", 10**12),)
    state = replace(first_state(job(mode="incremental"), settings), batch_bytes=1 << 24)
    outcome, seen = None, []
    for seconds in [5.0, 6.0, 20.0, 400.0, None, *[0.1] * 16]:
        plan, state = planned(state, outcome, files=files, settings=settings)
        seen.append(state.batch_bytes)
        outcome = log_read(plan, seconds=seconds)
    assert seen[:6] == [1 << 24, 1 << 25, 1 << 25, 1 << 24, MIN_BATCH_BYTES, MIN_BATCH_BYTES]
    assert seen[-1] == 1 << 30


def test_a_short_range_says_nothing_about_the_size_of_a_batch() -> None:
    settings = replace(SETTINGS, max_batch_bytes=1 << 30)
    state = replace(first_state(job(mode="incremental"), settings), batch_bytes=1 << 24)
    plan, state = planned(state, files=(LogFile("b.000001", 1100),), settings=settings)
    assert absorb(state, log_read(plan, seconds=0.3), settings).batch_bytes == 1 << 24


def test_epochs_slow_by_themselves_do_not_make_batches_tiny() -> None:
    settings = replace(SETTINGS, max_batch_bytes=1 << 30)
    plan, state = planned(first_state(job(mode="incremental"), settings), settings=settings)
    assert absorb(state, log_read(plan, seconds=25.0), settings).batch_bytes == MIN_BATCH_BYTES >= 1 << 22


@pytest.mark.pitfall(113)
def test_open_xa_transactions_are_carried_to_the_next_range_also_when_their_part_of_the_log_is_gone() -> None:
    state = first_state(job(mode="incremental"), SETTINGS)
    plan, state = planned(state)
    open_xa = PreparedXa("x", BinlogPosition("b.000001", 3000), BinlogPosition("b.000001", 3500))
    outcome = log_read(plan)
    outcome = replace(outcome, report=replace(outcome.report, end=BinlogPosition("b.000002", 500), prepared=(open_xa,)))
    plan, _ = planned(state, outcome)
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.prepared == (open_xa,)
    plan, _ = plan_next(state, outcome, files=FILES[1:])  # it may be forgotten, or of other tables
    assert plan is not None
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.prepared == (open_xa,)


@pytest.mark.pitfall(46)
def test_a_log_that_lost_what_the_job_needs_stops_it_in_every_phase() -> None:
    first = first_state(job("n25"), SETTINGS)
    for state in (first, after_snapshot(job("n25"))):
        with pytest.raises(LogPositionLostError, match="no longer has"):
            plan_next(state, files=FILES[1:])
        with pytest.raises(LogPositionLostError, match="This is not the log that the job has read"):
            plan_next(state, files=(LogFile("b.000001", 999),))
    with pytest.raises(LogPositionLostError, match="This is not the log that the job has read"):
        plan_next(after_snapshot(job("n25")), files=(LogFile("b.000001", 1999),))


@pytest.mark.pitfall(8)
def test_an_outcome_that_is_not_the_awaited_one_is_an_error() -> None:
    plan, state = planned(first_state(job("n25"), SETTINGS))
    good = splits_read(plan)
    with pytest.raises(CheckpointError, match="does not contain the reports of epoch 1"):
        plan_next(state)
    for bad in (
        replace(good, reports=good.reports[1:]),
        replace(good, reports=(*good.reports, good.reports[0])),
        replace(good, epoch=2),
        LogRead(1, LogReport(START, (), 0, 0, 0, None), None),
    ):
        with pytest.raises(CheckpointError):
            plan_next(state, bad)
    with pytest.raises(CheckpointError):
        plan_next(absorb(state, good, SETTINGS), good)


def test_a_log_report_must_reach_its_stop() -> None:
    plan, state = planned(first_state(job(mode="incremental"), SETTINGS))
    with pytest.raises(CheckpointError, match="transaction boundary"):
        absorb(state, log_read(plan, BinlogPosition("b.000001", 3999)), SETTINGS)


def in_stream(job_state: JobState) -> EnumeratorState:
    """A state in phase stream: the log is read up to b.000001:2500."""
    plan, state = planned(after_snapshot(job_state), goal=high(2500))
    return absorb(state, log_read(plan, high(2500)), SETTINGS)


def test_tables_that_join_are_snapshotted_where_they_were_found_and_then_caught_up() -> None:
    """Without `snapshot.interleave`: the log is read to that position for the old tables alone, and no further while the new
    ones are read."""
    found_at = BinlogPosition("b.000001", 3500, "a:1-12")
    other = job("n5")
    joined = (Joined(found_at, other.schemas, other.split_keys),)
    state = in_stream(job("n25"))
    plan, state = planned(state, joined=joined)
    assert isinstance(plan.work, LogWork)
    assert (plan.work.range.stop.order, state.joined) == (found_at.order, 0)
    plan, state = planned(state, log_read(plan, found_at), joined=joined)
    assert plan.phase is Phase.SNAPSHOT
    assert isinstance(plan.work, SnapshotWork)
    assert {s.table for task in plan.work.tasks for s in task} == {table("n5")}
    assert (plan.work.anchor, state.position, state.joined) == (found_at, found_at, 1)
    assert [t.passed for t in state.tables] == [True, False]
    outcome = splits_read(plan, pos=3600)
    plan, state = planned(state, outcome, joined=joined)
    assert plan.phase is Phase.CATCH_UP
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.start == found_at
    plan, state = planned(state, log_read(plan), joined=joined)
    assert plan.phase is Phase.STREAM
    with pytest.raises(CheckpointError, match="0 files of tables that joined the job, but 1 were there"):
        plan_next(state, log_read(plan))


def test_the_log_goes_on_while_tables_that_joined_are_read() -> None:
    """With `snapshot.interleave`, as in the first load: changes of the other tables do not wait for the new one's rows."""
    found_at = BinlogPosition("b.000001", 3500, "a:1-12")
    other = job("n500")
    joined = (Joined(found_at, other.schemas, other.split_keys),)
    state = in_stream(job("n25"))
    plan, state = planned(state, joined=joined, settings=INTERLEAVED)
    plan, state = planned(state, log_read(plan, found_at), joined=joined, settings=INTERLEAVED)
    assert isinstance(plan.work, SnapshotWork)
    plan, state = planned(state, splits_read(plan, pos=3600), joined=joined, settings=INTERLEAVED)
    assert plan.phase is Phase.SNAPSHOT
    assert isinstance(plan.work, LogWork)
    assert plan.work.range.start == found_at
    plan, state = planned(state, log_read(plan), joined=joined, settings=INTERLEAVED)
    assert isinstance(plan.work, SnapshotWork)
    assert state.position.order > found_at.order


def test_the_only_tables_come_back_without_the_log_up_to_their_start() -> None:
    """It may be lost. Tables that waited for a position in it and have left since are passed over."""
    start, lost = BinlogPosition("b.000002", 400, "a:1-40"), BinlogPosition("b.000001", 4000, "a:1-20")
    before = in_stream(job("n25"))
    waited = Joined(lost, (), ())
    back = job("n25")
    schemas = tuple(replace(schema, version=4) for schema in back.schemas)
    again = Joined(start, schemas, back.split_keys, back=(table("n25"),), restarts=True)
    now = replace(job("n25"), schemas=schemas, joined=(waited, again))
    state = join(replace(of_job(before, now), prepared=(PreparedXa("x", START, START),), unseen=(7,)), now.joined)
    assert (state.joined, state.position, state.prepared, state.unseen) == (2, start, (), ())
    assert [t.schema_version for t in state.tables] == [4]
    files = (LogFile("b.000002", 9000),)
    plan, state = planned(state, files=files, joined=now.joined)
    assert isinstance(plan.work, LogWork)
    assert (plan.work.empties, plan.work.range.start, plan.work.range.stop) == ((table("n25"),), start, start)
    plan, state = planned(state, log_read(plan), files=files, joined=now.joined)
    assert isinstance(plan.work, SnapshotWork)
    assert plan.work.anchor == start


def test_splits_wait_while_the_log_is_read_where_they_take_turns() -> None:
    settings = replace(INTERLEAVED, max_rows_per_second=10)
    plan, state = planned(replace(first_state(job("n1000"), settings), splits_per_task=8), settings=settings)
    assert isinstance(plan.work, SnapshotWork)
    assert sum(map(len, plan.work.tasks)) == 3  # 10 rows a second, splits of 10 rows, epochs of 3 seconds
    state = absorb(state, splits_read(plan), settings)
    extent = BinlogExtent(FILES)
    for interleave, kinds in ((True, {"log"}), (False, set[str]())):
        found = set[str]()
        waiting, settings = state, replace(settings, interleave=interleave)
        for _ in range(20):
            next_plan, waiting = plan_epoch(waiting, Observation(extent, splits_wait=True), EvenTables(), settings)
            if next_plan is None:
                break
            found.add(next_plan.work.kind)
            waiting = absorb(waiting, log_read(next_plan), settings)
        assert (found, waiting.phase) == (kinds, Phase.SNAPSHOT)
    plan, _ = planned(state, settings=replace(settings, interleave=False))
    assert isinstance(plan.work, SnapshotWork)


@pytest.mark.parametrize("interleave", [True, False])
def test_stopped_tables_are_left_out_until_only_they_are_left(*, interleave: bool) -> None:
    settings = replace(INTERLEAVED, interleave=interleave)
    state, extent, stopped = (
        first_state(job("n90", "n40", "n50"), settings),
        BinlogExtent(FILES),
        frozenset({table("n40")}),
    )
    read, kinds = set[str](), list[str]()

    def run(observation: Observation, state: EnumeratorState) -> EnumeratorState:
        while True:
            plan, state = plan_epoch(state, observation, EvenTables(), settings)
            if plan is None or plan.phase is not Phase.SNAPSHOT:
                return state
            kinds.append(plan.work.kind)
            if isinstance(plan.work, SnapshotWork):
                read.update(split.table.name for task in plan.work.tasks for split in task)
                state = absorb(state, splits_read(plan), settings)
            else:
                state = absorb(state, log_read(plan), settings)

    state = run(Observation(extent, stopped=stopped), state)
    assert (read, state.phase) == ({"n90", "n50"}, Phase.SNAPSHOT)
    assert ("log" in kinds) == interleave
    assert are_all_stopped(state, stopped)
    assert not are_all_stopped(state, frozenset())
    state = run(Observation(extent), state)
    assert read == {"n90", "n40", "n50"}
    assert state.phase is not Phase.SNAPSHOT


def test_a_table_without_a_key_that_is_being_read_does_not_wait() -> None:
    """Its chunks see one snapshot, which the source must keep. An earlier version began with it, and withheld no changes: so
    the log is not read meanwhile."""
    state = first_state(job("n1000", "n900", keyless=["n40"]), INTERLEAVED)
    tables = tuple(replace(t, cursor=Releasing(7, 0, 20, 10)) if not t.columns else t for t in state.tables)
    waiting = Observation(BinlogExtent(FILES), splits_wait=True)
    plan, state = plan_epoch(replace(state, tables=tables), waiting, EvenTables(), INTERLEAVED)
    assert plan is not None
    assert isinstance(plan.work, SnapshotWork)
    assert {split.table.name for task in plan.work.tasks for split in task} == {"n40"}
    plan, _ = plan_epoch(absorb(state, splits_read(plan), INTERLEAVED), waiting, EvenTables(), INTERLEAVED)
    assert plan is not None
    assert isinstance(plan.work, LogWork)


class SizedTables(EvenTables):
    """The table `n<rows>` has so many rows, of 10 bytes each, by the server's estimate; `n0`: the server has counted none."""

    def size(self, table: TableId) -> TableSize:
        rows = int(table.name[1:])
        return TableSize(rows, rows * 10) if rows else TableSize(None, 1000)


def test_tables_without_a_key_are_read_beside_the_epochs_only_so_many_at_the_same_time() -> None:
    """A table that waits for its turn does not keep the log waiting, nor tables that are smaller than a split."""
    settings = replace(INTERLEAVED, parallelism=3)
    state, extent = first_state(job(keyless=["n900", "n0", "n800", "n5"]), settings), BinlogExtent(FILES)
    reads: dict[int, AsideRead | None] = {}
    events: list[str] = []
    outcome: SplitsRead | LogRead | None = None
    while len(events) < 50:
        plan, state = plan_epoch(state, Observation(extent, outcome=outcome, aside=reads), SizedTables(), settings)
        outcome = None
        for found in state.tables:
            if isinstance(found.cursor, Aside) and found.cursor.attempt not in reads:
                events.append(f"begin {found.table.name}")
                reads[found.cursor.attempt] = None
        being_read = [attempt for attempt, read in reads.items() if read is None]
        if plan is None and not being_read:
            break
        if plan is None:
            (attempt,) = being_read
            reads[attempt] = AsideRead("r", 1, 7)
            events.append("done")
        elif isinstance(plan.work, LogWork):
            events.append("log")
            outcome = log_read(plan)
        else:
            events.append(" ".join(sorted(split.table.name for task in plan.work.tasks for split in task)))
            outcome = splits_read(plan)
    seen = [event for i, event in enumerate(events) if event != "log" or events[i - 1] != "log"]
    assert seen == ["begin n900", "n0 n5", "log", "done", "begin n800", "n900", "done", "n800"]
    assert len(reads) == 2
    assert state.phase is Phase.STREAM


def test_tables_join_a_job_without_a_snapshot_by_the_log_alone() -> None:
    other = job("n5", mode="incremental")
    joined = (Joined(BinlogPosition("b.000001", 1200), other.schemas, ()),)
    plan, state = planned(first_state(job(mode="incremental"), SETTINGS), joined=joined)
    assert isinstance(plan.work, LogWork)
    assert (plan.work.range.stop.order, state.joined) == (joined[0].start.order, 0)
    plan, state = planned(state, log_read(plan, high(1200)), joined=joined)
    assert (plan.phase, state.joined, state.tables) == (Phase.STREAM, 1, ())


def test_the_same_input_gives_the_same_plan() -> None:
    state = first_state(job("n1000", "n25"), SETTINGS)
    assert planned(state) == planned(state)


def test_only_the_moves_of_the_table_are_possible() -> None:
    for now in Phase:
        for to in Phase:
            if to in NEXT[now]:
                assert move(now, to) is to
            else:
                with pytest.raises(ValueError, match="can't follow phase"):
                    move(now, to)
