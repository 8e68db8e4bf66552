"""Nothing is lost, repeated or taken back: the enumerator, the gap filter and the checkpoint's formats on a model
database, in any interleaving of writes, splits, log ranges and crashes.

Rules have the names of the actions of the design's TLA+ model (Tidemark.tla); PlanAgain (re-snapshots) is not built
yet, and Join is not in it: a place in the log, to which the job comes exactly, is the start of the tables that join. Its
Source = "replay" is MySQL: transactions become visible in any order. "exact" is MariaDB, where they become visible in the
log's order and a SELECT knows which prefix of the log it sees, and PostgreSQL, where a SELECT knows which set of
transactions it sees.
"""

import contextlib
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.property.model_database import (
    FIRST_XID,
    PAGE_COUNT,
    TABLES,
    Key,
    ModelDatabase,
    ModelTable,
    State,
    WalDatabase,
    in_range,
    on_pages,
    page_of,
    xid_of,
)
from tests.property.model_job import Driver, Job, Reading, splits_of
from tests.support.examples import examples
from tidemark.enumerator.enumerator import Settings
from tidemark.jobs.recovered_state import splits_of_job
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState, LogWork, SnapshotWork
from tidemark.state.position import Position, WalPosition
from tidemark.state.split import ReleaseChunk, Split, StageChunk
from tidemark.state.table import TableId

wishes = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 36), st.integers(0, 3), st.integers(0, 36)), min_size=1, max_size=4
)
seconds = st.sampled_from([None, 0.01, 9.0, 100.0])
how_many = st.sampled_from([1, 2, 100])


def keys_of(table: ModelTable) -> st.SearchStrategy[Any]:
    """Few keys, many keys, and for integers a long even range, which is divided by arithmetic."""
    some = st.lists(st.sampled_from(table.value_range), max_size=2 * len(table.value_range), unique=True)
    even = (
        st.integers(17, len(table.value_range)).map(lambda n: table.value_range[1 : 1 + n])
        if table.is_integer
        else some
    )
    return st.one_of(some, even)


class TidemarkModel(RuleBasedStateMachine):
    reading: Reading = "replay"
    filtered = True
    bounded = True
    shared = True
    hasty = False
    withholds = True

    @property
    def is_wal(self) -> bool:
        return self.reading in {"snapshot", "lsn"}

    @initialize(
        rows=st.tuples(*(keys_of(table) for table in TABLES)),
        mode=st.sampled_from(["full", "full+incremental", "full+incremental", "incremental"]),
        parallelism=st.integers(1, 3),
        split_rows=st.sampled_from([1, 1, 2, 4]),
        batch_bytes=st.integers(1, 900),
        before=st.lists(wishes, max_size=2),
        absent=st.sets(st.integers(0, 4), max_size=4),
        follows=st.booleans(),
        interleave=st.booleans(),
        reads_aside=st.booleans(),
    )
    def init(
        self,
        rows: Any,
        mode: Any,
        parallelism: int,
        split_rows: int,
        batch_bytes: int,
        before: Any,
        absent: Any = (),
        follows: bool = False,
        interleave: bool = True,
        reads_aside: bool = False,
    ) -> None:
        """`absent` tables are found by a later start; if the job `follows` the log, it has copied the others
        already."""
        initial = {}
        for table, keys in zip(TABLES, rows, strict=True):
            for key in keys:
                initial.setdefault((table, table.unique(key)), (table, key))
        self.database = (WalDatabase if self.is_wal else ModelDatabase)(frozenset(initial.values()))
        if isinstance(self.database, WalDatabase):
            self.database.has_pages = not reads_aside
        for some in before:
            self.database.write(some, 100, rotate=False)
        self.database.is_exact = self.reading == "prefix" and not self.hasty
        self.job = Job(
            self.database,
            Settings(parallelism, split_rows, batch_bytes + 300 * self.is_wal, 10.0, interleave),
            reading=self.reading,
            filtered=self.filtered,
            bounded=self.bounded,
            shared=self.shared,
            hasty=self.hasty,
            withholds=self.withholds,
            reads_aside=reads_aside,
        )
        self.absent = [TABLES[i] for i in sorted(absent)]
        # Reads need no SELECT of what was before; a slot's start has waited for all transactions before it.
        if mode == "incremental" or self.reading != "replay":
            self.show_all()
        self.job.create(mode, [table for table in TABLES if table not in self.absent])
        self.driver = Driver(self.job, None)
        self.seen: Any = None
        self.highs_of_epochs: dict[int, list[tuple[Split, set[int]]]] = {}
        while follows and absent and self.driver.settled_state().phase in {Phase.SNAPSHOT, Phase.CATCH_UP}:
            self.show_all()
            self.driver.plan(9.0, crash_before_offset=False)
            if self.driver.unread_aside():
                self.read_aside([])
            if self.driver.running is not None:
                self.read_and_commit([(0, 0, 0, 0), (2, 1, 0, 0)], crash=False)

    # --- the source

    @rule(
        several=st.lists(wishes, min_size=1, max_size=4),
        size_bytes=st.integers(30, 400),
        rotate=st.sampled_from([False, False, False, True]),
    )
    def write(self, several: Any, size_bytes: int, rotate: bool) -> None:
        for some in several:
            self.database.write(some, size_bytes, rotate=rotate)

    @precondition(lambda self: self.hidden())
    @rule(which=st.integers(0, 5))
    def show(self, which: int) -> None:
        hidden = self.hidden()
        self.database.visible.add(hidden[0 if self.reading == "prefix" else which % len(hidden)])

    def hidden(self) -> list[int]:
        return [t.number for t in self.database.log if t.number not in self.database.visible]

    def show_all(self) -> None:
        self.database.visible.update(self.hidden())

    # --- the job

    @precondition(lambda self: self.driver.running is None)
    @rule(seconds=seconds, crash=st.sampled_from([False, False, False, True]))
    def plan(self, seconds: float | None, crash: bool) -> None:
        self.driver.plan(seconds, crash_before_offset=crash)
        if crash:
            self.crash(with_goal=False)

    @precondition(lambda self: self.unpublished() or self.driver.splits())
    @rule(how_many=how_many, speculative=st.booleans())
    def low(self, how_many: int, speculative: bool) -> None:
        candidates = self.driver.splits() if speculative else self.unpublished()
        for split in [s for s in candidates if s.id not in self.driver.attempts][:how_many]:
            self.driver.low(split)

    @precondition(lambda self: self.waiting(selected=False))
    @rule(how_many=how_many)
    def select(self, how_many: int) -> None:
        for attempt in self.waiting(selected=False)[:how_many]:
            self.driver.select(attempt)

    @precondition(lambda self: self.waiting(selected=True))
    @rule(how_many=how_many)
    def publish(self, how_many: int) -> None:
        for attempt in self.waiting(selected=True)[:how_many]:
            self.driver.publish(attempt)

    def unpublished(self) -> list[Split]:
        return [s for s in self.driver.splits() if not self.driver.is_published(s)]

    def waiting(self, *, selected: bool) -> list[Any]:
        return [a for a in self.driver.attempts.values() if (a.rows is not None) == selected]

    @precondition(lambda self: self.driver.running is not None and isinstance(self.driver.running.work, LogWork))
    @rule()
    def read_log(self) -> None:
        self.driver.read_log()

    @precondition(lambda self: self.driver.unread_aside())
    @rule(also=wishes)
    def read_aside(self, also: Any) -> None:
        """A table is read beside the epochs, with a Write after the SELECT."""
        table = self.driver.unread_aside()[0]
        self.driver.read_aside(table, lambda: self.database.write(also, 50, rotate=False))

    @precondition(lambda self: isinstance(self.database, WalDatabase) and self.database.exported)
    @rule()
    def end_sessions(self) -> None:
        """Ends the sessions that hold snapshots."""
        assert isinstance(self.database, WalDatabase)
        self.database.exported.clear()

    @precondition(lambda self: self.driver.can_commit())
    @rule(crash=st.booleans())
    def commit(self, crash: bool) -> None:
        self.driver.commit(crash_after_sink=crash)
        if crash:
            self.crash(with_goal=False)

    @precondition(lambda self: self.driver.running is not None)
    @rule(also=wishes, crash=st.sampled_from([False, False, False, True]))
    def read_and_commit(self, also: Any, crash: bool) -> None:
        """Runs Low, Select, Publish, ReadLog and Commit for the rest of the epoch, with a Write in between."""
        if any(not self.driver.low(split) for split in self.unpublished() if split.id not in self.driver.attempts):
            return
        for attempt in self.waiting(selected=False):
            self.driver.select(attempt)
        self.database.write(also, 50, rotate=False)
        for attempt in self.waiting(selected=True):
            self.driver.publish(attempt)
        if isinstance(self.driver.running.work, LogWork):
            self.driver.read_log()
        self.commit(crash)

    @rule(with_goal=st.booleans())
    def crash(self, with_goal: bool) -> None:
        self.driver = Driver(self.job, self.database.log_end() if with_goal else None)

    @precondition(lambda self: self.job.mode == "full")
    @rule(with_goal=st.booleans())
    def follow(self, with_goal: bool) -> None:
        """Starts the job again in another mode than its first one."""
        self.job.mode = "full+incremental"
        self.crash(with_goal)

    @precondition(lambda self: self.absent and self.job.mode != "full")
    @rule(how_many=st.integers(1, 2), with_goal=st.booleans())
    def join(self, how_many: int, with_goal: bool) -> None:
        """Starts the job again, when there are tables that it does not know."""
        tables, self.absent = self.absent[:how_many], self.absent[how_many:]
        self.job.join(tables)
        if self.is_wal:
            self.show_all()  # it waits for them
        self.crash(with_goal)

    @precondition(
        lambda self: self.job.mode == "full+incremental" and not self.job.is_bound() and len(self.tables()) > 1
    )
    @rule(which=st.integers(0, 4), with_goal=st.booleans())
    def leave(self, which: int, with_goal: bool) -> None:
        """A table is excluded or parked, or its rows are to be read again."""
        tables = self.tables()
        self.job.leave(tables[which % len(tables)])
        self.crash(with_goal)

    @precondition(lambda self: self.job.mode == "full+incremental" and self.job.job_state().left)
    @rule(with_goal=st.booleans(), is_replaced=st.booleans())
    def come_back(self, with_goal: bool, is_replaced: bool) -> None:
        self.job.come_back(is_replaced=is_replaced)
        if self.is_wal:
            self.show_all()  # as for tables that join
        self.crash(with_goal)

    def tables(self) -> list[TableId]:
        return [schema.table for schema in self.job.job_state().schemas]

    # --- what must hold

    @invariant()
    def nothing_lost(self) -> None:
        """Checked whenever the sink or the log position changed."""
        state = self.driver.settled_state()
        job = self.job.job_state()
        seen = (len(self.job.sink.ledger), state.position.order, state.phase, state.joined, job.left, len(job.joined))
        if seen == self.seen:
            return
        self.seen = seen
        reached = self.database.prefix(state.position)
        if state.mode == "incremental":
            starts = self.starts(state)
            for (table, key), history in self.histories().items():
                start = starts.get(table.id, reached)
                expected = [(s, d) for s, d in history if start < s[0] <= reached]
                assert self.in_sink(table, key) == expected, "hole, repeat or step back"
            return
        highs, stale = self.committed_highs(), self.stale()
        for (table, key), history in self.histories().items():
            if table.id in stale:
                continue
            owners = [high for s, high in highs[table.id] if self.has(s, high, table, key)]
            assert len(owners) <= 1, "splits overlap"
            self.check_key(table, key, history, None if table.id in self.withheld_tables(state) else reached, owners)
        if state.phase in {Phase.STREAM, Phase.DONE}:
            tables = {table.table for table in state.tables}
            rows = self.database.rows_at(range(1, reached + 1)).items()
            stale |= {schema.table for schema in job.schemas} - tables  # they have not come back yet
            copied = {place: row for place, row in self.job.sink.rows().items() if place[0] not in stale}
            assert copied == {place: row for place, row in rows if place[0] in tables}, "source != sink"

    def stale(self) -> set[TableId]:
        """The tables whose copies lack changes: they have left the job, or came back and were not emptied yet."""
        job = self.job.job_state()
        waiting = {s.table for s in job.schemas if s.version > 1 and self.job.sink.emptied.get(s.table) != s.version}
        return waiting - self.replaced() | job.left_tables

    def withheld_tables(self, state: EnumeratorState) -> set[TableId]:
        """The tables whose changes are withheld."""
        waiting = {table.table for table in state.tables if table.withheld is not None}
        newest = max(self.job.plan_epochs(), default=0)
        if newest and newest not in self.job.sink.ledger:
            work = self.job.record(newest).plan.work
            waiting |= {backfill.table for backfill in (work.backfills if isinstance(work, LogWork) else ())}
        return waiting

    def replaced(self) -> set[TableId]:
        """The tables that came back and keep what they have until each split replaces its range."""
        return {table for table, back in self.job.job_state().came_back.items() if back.is_replaced}

    def starts(self, state: Any) -> dict[TableId, int]:
        """For each table of the job, the number of transactions before the position from which its log is read."""
        job = self.job.job_state()
        starts = {schema.table: self.database.prefix(job.start) for schema in job.schemas_after(0)}
        for joined in job.joined[: state.joined]:
            starts |= {schema.table: self.database.prefix(joined.start) for schema in joined.schemas}
        return starts

    def histories(self) -> dict[tuple[ModelTable, Key], list[tuple[State, bool]]]:
        """The history of each key: (state, is it a delete?) in the log's order, after the initial state."""
        found = {
            (table, key): [((0, 0), (table, key) not in self.database.initial)]
            for table in TABLES
            for key in table.value_range
        }
        for transaction in self.database.log:
            for change in transaction.changes:
                found[change.table, change.key].append((change.state, change.is_delete))
        return found

    def in_sink(self, table: ModelTable, key: Key) -> list[tuple[State, bool]]:
        return [(e.state, e.is_delete) for e in self.job.sink.entries.get((table.id, key), [])]

    def has(self, split: Split, high: set[int], table: ModelTable, key: Key) -> bool:
        if not isinstance(split.pages, ReleaseChunk):
            return in_range(table, key, split.range)
        if split.pages.reader:
            keys = self.job.aside_keys[split.pages.reader, split.range]
            others = [k for (r, _), some in self.job.aside_keys.items() if r == split.pages.reader for k in some]
            return key in keys or (split.range.start is None and key not in others)
        state = self.database.rows_at(high - {0}).get((table.id, key))
        return on_pages(0 if state is None else page_of(key, state), split.range)

    def committed_highs(self) -> dict[TableId, list[tuple[Split, set[int]]]]:
        """Each table's committed splits, and which transactions the high of each contains."""
        for epoch in self.job.sink.ledger - self.highs_of_epochs.keys():
            work = self.job.record(epoch).plan.work
            splits = splits_of_job(work.tasks, self.job.job_state())[0] if isinstance(work, SnapshotWork) else []
            self.highs_of_epochs[epoch] = [
                (split, self.contained(self.high_of(split)))
                for split in splits
                if not isinstance(split.pages, StageChunk)
            ]
        found = defaultdict(list)
        versions = {schema.table: schema.version for schema in self.job.job_state().schemas}
        for pairs in self.highs_of_epochs.values():
            for split, high in pairs:
                if versions.get(split.table) == split.schema_version:
                    found[split.table].append((split, high))
        return found

    def high_of(self, split: Split) -> Position:
        """The high of a split. The files of emitted splits may be gone, but not the plans that had them staged."""
        if not isinstance(split.pages, ReleaseChunk):
            return self.driver.published(split)[0].high
        if split.pages.reader:
            return self.job.aside_highs[split.pages.reader]
        works = [self.job.record(epoch).plan.work for epoch in self.job.sink.ledger]
        planned = [s for work in works if isinstance(work, SnapshotWork) for s in splits_of(work)]
        (high,) = {
            s.pages.snapshot.high
            for s in planned
            if isinstance(s.pages, StageChunk) and s.pages.attempt == split.pages.attempt
        }
        return high

    def contained(self, high: Position) -> set[int]:
        """The transactions that the high contains. 0 means the initial rows."""
        numbers = range(len(self.database.log) + 1)
        if not isinstance(high, WalPosition) or high.snapshot is None:
            return set(numbers[: self.database.prefix(high) + 1])
        _xmin, xmax, running = high.snapshot.split(":")
        xids = {number: FIRST_XID - 1 if number == 0 else xid_of(number) for number in numbers}
        return {n for n, xid in xids.items() if xid < int(xmax) and str(xid) not in running.split(",")}

    def check_key(
        self,
        table: ModelTable,
        key: Key,
        history: list[tuple[State, bool]],
        reached: int | None,
        owners: list[set[int]],
    ) -> None:
        """The sink holds one state of the key, then each later one once, in order, up to the log position. `owners`:
        the transactions that the committed split with the key contains, if there is one. `reached`: None if changes of the
        table are withheld."""
        entries = self.job.sink.entries.get((table.id, key), [])
        if not owners:
            old = self.job.sink.old.get((table.id, key), []) if table.id in self.replaced() else []
            assert entries == old, "rows of a split that is not done"
            return
        if entries and entries[0].is_snapshot:
            first = history.index((entries[0].state, False))
        else:  # it was not there at the split's high
            first = sum(state[0] in owners[0] for state, _ in history)
            assert history[first - 1][1], "a row is missing in its split"
        assert not any(e.is_snapshot for e in entries[1:]), "repeat: two splits had the key"
        if reached is None:
            assert len(entries) <= 1, "a change that is to wait"
            assert not entries or entries[0].is_snapshot, "a change that is to wait"
        read = sum(state[0] <= (0 if reached is None else reached) for state, _ in history)
        expected = history[first : max(read, first + len(entries))]
        assert self.in_sink(table, key) == expected, "hole, repeat or step back"

    def teardown(self) -> None:
        """Makes everything visible and reads it: source == sink."""
        if not hasattr(self, "driver"):
            return
        self.show_all()
        self.driver = Driver(self.job, self.database.log_end())
        while True:
            if self.driver.running is None:
                self.driver.plan(None, crash_before_offset=False)
                if self.driver.running is None and self.driver.unread_aside():
                    self.read_aside([])
                    continue
                if self.driver.running is None:
                    break
            for split in self.unpublished():
                assert self.driver.low(split), "the anchor is visible"
                self.driver.select(self.driver.attempts[split.id])
                self.driver.publish(self.driver.attempts[split.id])
            if isinstance(self.driver.running.work, LogWork):
                self.driver.read_log()
            self.driver.commit(crash_after_sink=False)
            self.nothing_lost()
        state = self.driver.settled_state()
        self.nothing_lost()
        if state.mode == "full":
            assert state.phase is Phase.DONE
        else:
            assert state.phase is Phase.STREAM
            assert state.position.order == self.database.log_end().order
            assert state.joined == len(self.job.job_state().joined)


class PrefixModel(TidemarkModel):
    reading: Reading = "prefix"


class SnapshotModel(TidemarkModel):
    reading: Reading = "snapshot"


class LsnModel(TidemarkModel):
    """The position where the log ended decides what a split contains (pitfall 3)."""

    reading: Reading = "lsn"


class OwnSnapshotsModel(TidemarkModel):
    """Splits by pages are read under snapshots of their own."""

    reading: Reading = "snapshot"
    shared = False


class ForgetfulModel(TidemarkModel):
    """The log goes on while pages are read, and leaves the table's changes out."""

    reading: Reading = "snapshot"
    withholds = False


class HastyModel(TidemarkModel):
    """Splits are planned while a transaction that the log lane has passed is not visible yet: the SELECT misses it, and the log
    has left it out."""

    reading: Reading = "snapshot"
    hasty = True


class HastyPrefixModel(HastyModel):
    reading: Reading = "prefix"


class NaiveModel(TidemarkModel):
    """The low is the log's end (pitfall 1): changes that are in the log but not yet visible are in neither the rows nor
    the replay."""

    reading: Reading = "naive"


class UnboundedModel(TidemarkModel):
    """The log is read beyond the position at which tables join."""

    bounded = False


class UnfilteredModel(TidemarkModel):
    """The log emits changes again that a split already contains."""

    filtered = False


LOST = r"hole, repeat or step back|row is missing|rows of a split that is not done|source != sink"
COMMON = settings(deadline=None, stateful_step_count=60, suppress_health_check=list(HealthCheck), print_blob=False)
TestReplay = TidemarkModel.TestCase
TestReplay.settings = settings(COMMON, max_examples=examples(25, 700))
TestReplay.pytestmark = [
    pytest.mark.pitfall(4),
    pytest.mark.pitfall(9),
    pytest.mark.pitfall(13),
    pytest.mark.pitfall(20),
    pytest.mark.pitfall(70),
    pytest.mark.pitfall(74),
]
TestPrefix = PrefixModel.TestCase
TestPrefix.settings = settings(COMMON, max_examples=examples(20, 400))
TestSnapshot = SnapshotModel.TestCase
TestSnapshot.settings = settings(COMMON, max_examples=examples(20, 600))


@pytest.mark.pitfall(74)
@pytest.mark.parametrize("first_wins", [True, False])
def test_a_split_that_is_read_again_after_the_sink_took_it_keeps_its_first_rows(first_wins: bool) -> None:
    """The driver dies between the sink's commit and Spark's; the row changes; the split is read again, with a later
    high."""
    model = TidemarkModel()
    model.init(((), [("a",)], (), (), ()), "full", 9, 1, 100, [])
    if not first_wins:
        model.job.store.create = lambda name, data: bool(model.job.store.files.update({name: bytes(data)})) or True
    for crash in (True, False):
        if crash:
            model.plan(None, False)
        model.low(100, speculative=True)
        model.select(100)
        model.publish(100)
        model.commit(crash)
        model.write([[(1, 4, 3, 4)]], 100, False)  # updates it
        model.show_all()
    if first_wins:
        model.teardown()
    else:
        with pytest.raises(AssertionError, match="hole, repeat or step back"):
            model.teardown()


@pytest.mark.pitfall(1)
@pytest.mark.parametrize(("kind", "loses"), [(TidemarkModel, False), (NaiveModel, True)])
def test_a_naive_low_watermark_loses_a_change(kind: type[TidemarkModel], loses: bool) -> None:
    read_a_split_before_a_change_is_visible(kind, loses)


@pytest.mark.pitfall(3)
@pytest.mark.parametrize(("kind", "loses"), [(SnapshotModel, False), (LsnModel, True)])
def test_a_decision_by_lsn_loses_a_change(kind: type[TidemarkModel], loses: bool) -> None:
    read_a_split_before_a_change_is_visible(kind, loses)


def read_a_split_before_a_change_is_visible(kind: type[TidemarkModel], loses: bool) -> None:
    """Reads a split while an update of its row is in the log, but not visible yet."""
    model = kind()
    model.init(([(1,)], (), (), (), ()), "full+incremental", 1, 100, 900, [])
    with pytest.raises(AssertionError, match=LOST) if loses else contextlib.nullcontext():
        model.plan(None, False)
        model.write([[(0, 0, 3, 0)]], 50, rotate=False)
        model.low(100, speculative=False)
        model.select(100)
        model.publish(100)
        model.commit(False)
        model.teardown()


@pytest.mark.pitfall(3)
@pytest.mark.parametrize(
    ("kind", "loses"), [(SnapshotModel, False), (HastyModel, True), (PrefixModel, False), (HastyPrefixModel, True)]
)
def test_a_split_waits_for_what_the_log_has_passed_or_loses_a_change(kind: type[TidemarkModel], loses: bool) -> None:
    """The log passes updates of all rows, and leaves out those of rows that are not read yet, before SELECTs see them."""
    model = kind()
    model.init(([(n,) for n in range(1, 9)], (), (), (), ()), "full+incremental", 1, 1, 900, [])
    with pytest.raises(AssertionError, match="hole, repeat or step back") if loses else contextlib.nullcontext():
        for _ in range(30):
            if model.driver.running is None:
                model.plan(None, False)
            if model.driver.running is None:
                model.show_all()  # it waits
                continue
            reads_log = isinstance(model.driver.running.work, LogWork)
            if reads_log:
                model.read_log()
            for read in (
                lambda: model.low(100, speculative=True),
                lambda: model.select(100),
                lambda: model.publish(100),
            ):
                read()
            model.commit(False)
            if not reads_log:
                model.write([[(0, key, 3, 0)] for key in range(9)], 50, rotate=False)
        model.teardown()


@pytest.mark.parametrize("model", [SnapshotModel, OwnSnapshotsModel, ForgetfulModel])
def test_pages_are_read_under_one_snapshot_and_changes_wait_or_rows_are_lost_and_repeated(
    model: type[TidemarkModel],
) -> None:
    is_right = model is SnapshotModel
    model = model()
    model.init(((), (), (), (), [(f"r{n}",) for n in range(9)]), "full+incremental", 1, 1, 900, [])
    logs_in_between = 0
    with contextlib.nullcontext() if is_right else pytest.raises(AssertionError, match=r"repeat|row is missing"):
        for row in range(24):
            if model.driver.running is None:
                model.plan(None, False)
            waits = any(table.withheld is not None for table in model.driver.state.tables)
            logs_in_between += waits and isinstance(model.driver.running.work, LogWork)
            model.read_and_commit([(4, row, 3, 0), (4, row + 1, 3, 0)], False)
            model.show_all()
        model.teardown()
    assert logs_in_between > PAGE_COUNT or not is_right
    works = [model.job.record(epoch).plan.work for epoch in model.job.sink.ledger]
    splits = [split for work in works if isinstance(work, SnapshotWork) for split in splits_of(work)]
    assert sum(isinstance(split.pages, StageChunk) for split in splits) == PAGE_COUNT


def test_without_the_gap_filter_changes_are_repeated() -> None:
    expect_failure(UnfilteredModel)


@pytest.mark.parametrize("bounded", [True, False])
def test_tables_join_where_they_were_found_or_lose_a_change(bounded: bool) -> None:
    model = TidemarkModel() if bounded else UnboundedModel()
    model.init(([(1,)], [], (), (), ()), "incremental", 1, 1, 900, [], absent={1})
    for table in (0, 1, 0):
        if table == 1:
            model.join(1, with_goal=False)
        model.write([[(table, 0, 3, 0)]], 100, rotate=False)
    if bounded:
        model.teardown()
    else:
        with pytest.raises(AssertionError, match="hole, repeat or step back"):
            model.teardown()


def expect_failure(model: type[TidemarkModel]) -> None:
    quick = settings(
        COMMON,
        max_examples=2000,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[HypothesisPhase.generate],
    )
    with pytest.raises(AssertionError, match=LOST):
        run_state_machine_as_test(model, settings=quick)
