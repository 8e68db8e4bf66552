"""A job on the model database: the real enumerator, gap filter, codecs and file names, with model readers and sink.

`Job` is what survives a crash, `Driver` what doesn't. The sink appends, so that a hole, a repeat and a step back stay
visible.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from tests.property.model_database import (
    SERVER_UUID,
    TABLES,
    Change,
    Key,
    ModelDatabase,
    ModelTable,
    State,
    Transaction,
    WalDatabase,
    in_range,
    on_pages,
    page_of,
)
from tests.support.gap_filter import keep
from tidemark.enumerator.enumerator import (
    LogRead,
    Observation,
    Outcome,
    Settings,
    SplitsRead,
    absorb,
    first_state,
    in_mode,
    join,
    of_job,
    plan_epoch,
)
from tidemark.enumerator.pages import attempts, page_bound
from tidemark.jobs.recovered_state import splits_of_job
from tidemark.readers.log.gap_filter import GapFilter, merge_segments, segment_of
from tidemark.readers.snapshot.publish import published_name
from tidemark.state.checkpoint import codec
from tidemark.state.checkpoint.layout import Checkpoint, withheld_file, withheld_files
from tidemark.state.gtid import GtidSet
from tidemark.state.job_state import JobState, Joined, Left, Mode, SplitKey
from tidemark.state.log_range import LogReport
from tidemark.state.phase import Phase
from tidemark.state.plan import (
    Aside,
    Backfill,
    EnumeratorState,
    Exhausted,
    LogWork,
    Plan,
    PlanRecord,
    SnapshotWork,
    TableState,
    Withheld,
)
from tidemark.state.position import Position, WalPosition, binlog_position
from tidemark.state.split import AsideRead, KeyRange, ReleaseChunk, Report, Split, StageChunk
from tidemark.state.table import TableId, TableSchema

SOURCE = (SERVER_UUID, "")
REPORT = codec.PUBLISHED_SPLIT


class MemoryStore:
    """tidemark.state.checkpoint.store.CheckpointStore without files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def create(self, name: str, data: pa.Buffer | bytes) -> bool:
        if name in self.files:
            return False
        self.files[name] = bytes(data)
        return True

    def read(self, name: str) -> pa.Buffer | None:
        return pa.py_buffer(self.files[name]) if name in self.files else None

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(prefix + "/"))

    def delete(self, name: str) -> None:
        self.files.pop(name, None)


@dataclass(frozen=True)
class Entry:
    """One row in the sink."""

    table: TableId
    key: Key
    state: State
    is_delete: bool
    is_snapshot: bool


@dataclass
class Sink:
    """Takes an epoch's entries and its ledger entry at once; an epoch that it holds is skipped."""

    ledger: set[int] = field(default_factory=set)
    entries: dict[tuple[TableId, Key], list[Entry]] = field(default_factory=lambda: defaultdict(list))
    emptied: dict[TableId, int] = field(default_factory=dict)
    """The version of the schema for which a table was emptied last."""
    old: dict[tuple[TableId, Key], list[Entry]] = field(default_factory=dict)
    """The rows that a table had when it came back without being emptied."""

    def keep(self, tables: Sequence[TableId]) -> None:
        """Tables come back whose copies are replaced range by range."""
        self.old = {place: entries for place, entries in self.old.items() if place[0] not in tables}
        self.old |= {place: list(entries) for place, entries in self.entries.items() if place[0] in tables}

    def commit(
        self, epoch: int, entries: list[Entry], empties: Mapping[TableId, int], replaced: Sequence[Split] = ()
    ) -> None:
        if epoch in self.ledger:
            return
        self.ledger.add(epoch)
        self.emptied |= empties
        gone = [place for place in self.entries if place[0] in empties]
        for split in replaced:
            table = _table(split.table)
            gone += [(t, k) for t, k in self.entries if t == split.table and in_range(table, k, split.range)]
        for place in gone:
            del self.entries[place]
        for entry in entries:
            self.entries[entry.table, entry.key].append(entry)

    def rows(self) -> dict[tuple[TableId, Key], State]:
        lasts = {key: entries[-1] for key, entries in self.entries.items()}
        return {key: last.state for key, last in lasts.items() if not last.is_delete}


Reading = Literal["replay", "naive", "prefix", "snapshot", "lsn"]
"""How a split is read. replay: low, SELECT, high, and the log between (MySQL); naive: the same, but low is the log's end.
prefix: the SELECT is of a known prefix of the log (MariaDB). snapshot: of a known set of transactions (PostgreSQL); lsn:
the same, but decided by where the log ended."""


@dataclass
class Job:
    """The parts of a job that survive a crash. `filtered`: False leaves the gap filter out. `shared`: False reads each
    split by pages without the shared snapshot. `bounded`: False lets the log be read beyond the position where tables
    join. `hasty`: True plans splits though the log has been read beyond what is visible. `withholds`: False forgets the changes
    of tables that are read by pages. `mode`: the job file's, now.
    `reads_aside`: whether tables without a key that have no pages are read beside the epochs.
    `logged_epoch`: Spark's offset log. `marked_epoch`: the last epoch that Spark has certainly marked as committed."""

    database: ModelDatabase
    settings: Settings
    reading: Reading = "replay"
    filtered: bool = True
    bounded: bool = True
    shared: bool = True
    hasty: bool = False
    withholds: bool = True
    store: MemoryStore = field(default_factory=MemoryStore)
    sink: Sink = field(default_factory=Sink)
    mode: Mode = "full+incremental"
    logged_epoch: int = 0
    marked_epoch: int = 0
    reads_aside: bool = False
    aside_highs: dict[str, Position] = field(default_factory=dict)
    """The high of each read beside the epochs, by its reader."""
    aside_keys: dict[tuple[str, KeyRange], set[Key]] = field(default_factory=dict)
    """The keys in each of its chunks."""

    def create(self, mode: Mode, tables: Sequence[ModelTable] = TABLES) -> None:
        self.mode = mode
        self.store.create(
            "job",
            codec.JOB.encode(
                JobState(
                    job_uuid="model",
                    job_name="model",
                    mode=mode,
                    server_identity=SERVER_UUID,
                    start=self.database.log_end(),
                    prepared=(),
                    created_at_us=0,
                    schemas=_schemas(tables),
                    split_keys=self._split_keys(tables),
                )
            ),
        )

    def join(self, tables: Sequence[ModelTable]) -> None:
        self._join(Joined(self.database.log_end(), _schemas(tables), self._split_keys(tables)))

    def _join(self, joined: Joined) -> None:
        checkpoint = Checkpoint("model", self.store)
        checkpoint.create_joined(self.job_state(), replace(joined, left_files=checkpoint.left_count()))

    def is_bound(self) -> bool:
        """True if the planned epoch of the log was read, but is not marked as committed."""
        is_read = self.store.read(f"logs/{self.logged_epoch:08}") is not None
        return self.marked_epoch < self.logged_epoch and is_read

    def leave(self, table: TableId) -> None:
        state = self.job_state()
        version = next(schema.version for schema in state.schemas if schema.table == table)
        Checkpoint("model", self.store).create_left(state, (Left(table, version),))

    def come_back(self, *, is_replaced: bool) -> None:
        """All tables that have left. `is_replaced`: the copies of those with a key are not emptied."""
        left = {left.table: left.version for left in self.job_state().left}
        tables = [table for table in TABLES if table.id in left]
        schemas = tuple(replace(s, version=left[s.table] + 1) for s in _schemas(tables))
        back = tuple(table.id for table in tables)
        replaced = tuple(table.id for table in tables if is_replaced and table.split_columns)
        self._join(Joined(self.database.log_end(), schemas, self._split_keys(tables), back=back, replaced=replaced))
        self.sink.keep(replaced)

    def _split_keys(self, tables: Sequence[ModelTable]) -> tuple[SplitKey, ...]:
        return () if self.mode == "incremental" else tuple(SplitKey(t.id, t.split_columns) for t in tables)

    def file(self, name: str) -> bytes:
        data = self.store.read(name)
        assert data is not None, name
        return bytes(data)

    def job_state(self) -> JobState:
        state = Checkpoint("model", self.store).job_state()
        assert state is not None
        return state

    def joined(self, state: EnumeratorState) -> tuple[Joined, ...]:
        every = self.job_state().joined
        return every if self.bounded else tuple(j for j in every if j.start.order <= state.position.order)

    def record(self, epoch: int) -> PlanRecord:
        return codec.PLAN.decode(self.file(f"plans/{epoch:08}"), "plan")

    def plan_epochs(self) -> list[int]:
        return [int(name.removeprefix("plans/")) for name in self.store.list("plans")]


@dataclass
class Attempt:
    """A split on its way from low to publish. A speculative one may outlive its epoch."""

    split: Split
    anchor: Position
    low: set[int]
    rows: dict[Key, State] | None = None
    selected_at: Position | None = None
    is_expired: bool = False


class Driver:
    """One run of the job. `running` is the epoch that was planned and is not committed."""

    def __init__(self, job: Job, goal: Position | None) -> None:
        self.job = job
        self.goal = goal
        self.attempts: dict[int, Attempt] = {}
        self.output: list[Entry] | None = None
        self.running: Plan | None = None
        self.aside: dict[int, AsideRead | None] = {}
        if isinstance(job.database, WalDatabase):
            job.database.exported.clear()
        if job.logged_epoch == 0:
            self.state = first_state(job.job_state(), job.settings, job.mode)
        else:
            record = job.record(job.logged_epoch)
            self.state = in_mode(of_job(record.state, job.job_state()), job.mode)
            if job.marked_epoch < job.logged_epoch:
                self.running = record.plan
                self._begin_aside(record)

    # --- Plan

    def plan(self, seconds: float | None, *, crash_before_offset: bool) -> None:
        job, epoch = self.job, self.job.logged_epoch + 1
        job.marked_epoch = job.logged_epoch
        name = f"plans/{epoch:08}"
        if job.store.read(name) is None:
            outcome = self._outcome(seconds)
            after = self.state if outcome is None else absorb(self.state, outcome, job.settings)
            cursors = [table.cursor for table in after.tables]
            reads = {
                c.attempt: self.aside[c.attempt] for c in cursors if isinstance(c, Aside) and c.attempt in self.aside
            }
            observation = Observation(
                job.database.extent(), self.goal, outcome, job.joined(after), aside=reads if job.reads_aside else None
            )
            plan, state = plan_epoch(self.state, observation, job.database, job.settings)
            job.database.committed(state.position)
            if plan is None:
                self.state = state
                return
            assert job.store.create(name, codec.PLAN.encode(PlanRecord(plan, state)))
            Checkpoint("model", job.store).forget_staged(attempts(plan, state), before=state.next_split_id)
            kept_after = {t.table: t.withheld.after_epoch for t in state.tables if t.withheld is not None}
            due = plan.work.backfills if isinstance(plan.work, LogWork) else ()
            kept_after |= {backfill.table: backfill.withheld.after_epoch for backfill in due}
            Checkpoint("model", job.store).forget_withheld(kept_after, until=epoch - 1)
            if plan.phase is Phase.STREAM:
                for segment in job.store.list("finished")[: None if epoch % 3 else 1]:  # a crash may leave some
                    job.store.delete(segment)
        if crash_before_offset:
            return
        record = job.record(epoch)
        job.logged_epoch = epoch
        self.running, self.state = record.plan, in_mode(of_job(record.state, job.job_state()), job.mode)
        self.attempts, self.output = {}, None
        self._begin_aside(record)

    # --- Aside

    def _begin_aside(self, record: PlanRecord) -> None:
        for table in record.state.tables:
            is_new = table.withheld is not None and table.withheld.after_epoch == record.plan.epoch - 1
            if isinstance(table.cursor, Aside) and is_new:
                self.aside.setdefault(table.cursor.attempt, None)

    def unread_aside(self) -> list[TableState]:
        """The tables whose read beside the epochs was begun and is not done."""
        cursors = [(table, table.cursor) for table in self.state.tables]
        return [table for table, c in cursors if isinstance(c, Aside) and self.aside.get(c.attempt, c) is None]

    def read_aside(self, table: TableState, meanwhile: Callable[[], None]) -> None:
        """Reads the table, or does nothing if the anchor is not visible yet. `meanwhile` happens after the SELECT."""
        assert isinstance(table.cursor, Aside)
        job, state, number = self.job, self.state, table.cursor.attempt
        split = Split(number, table.table, table.schema_version, (), KeyRange(None, None))
        attempt = self._low(split, state.position if state.last_high is None else state.last_high)
        if attempt is None:
            return
        self.select(attempt)
        meanwhile()
        report, rows = self._at_high(attempt)
        reader, keys = f"r{len(job.aside_highs)}", sorted(rows)
        half = len(keys) // 2
        job.aside_highs[reader] = report.high
        for place, some in enumerate((keys[:half], keys[half:])):
            key_range = KeyRange(page_bound(place), None if place else page_bound(1))
            chunk = replace(split, range=key_range, pages=ReleaseChunk(number, reader))
            job.aside_keys[reader, key_range] = set(some)
            of_chunk = replace(report, kind="staged", row_count=len(some))
            entries = json.dumps([[list(key), list(rows[key])] for key in some])
            assert job.store.create(_name(chunk), REPORT.encode(of_chunk) + entries.encode())
        self.aside[number] = AsideRead(reader, 2, len(keys))

    def _outcome(self, seconds: float | None) -> Outcome | None:
        if self.state.awaited is None:
            return None
        epoch = self.state.epoch
        match self.job.record(epoch).plan.work:
            case SnapshotWork() as work:
                kept, left_out = splits_of_job(work.tasks, self.job.job_state())
                reports = tuple(self.published(split)[0] for split in kept)
                return SplitsRead(epoch, reports, seconds, tuple(split.id for split in left_out))
            case LogWork():
                return LogRead(epoch, codec.LOG_REPORT.decode(self.job.file(f"logs/{epoch:08}"), "log"), seconds)

    def settled_state(self) -> EnumeratorState:
        """The state with the results of the last epoch, if the sink has it. Once the next one is planned, they may be
        removed."""
        following = self.job.logged_epoch + 1
        if self.job.store.read(f"plans/{following:08}") is not None:
            return in_mode(of_job(self.job.record(following).state, self.job.job_state()), self.job.mode)
        if self.running is not None and self.running.epoch not in self.job.sink.ledger:
            return self.state
        outcome = self._outcome(None)
        state = self.state if outcome is None else absorb(self.state, outcome, self.job.settings)
        return join(state, self.job.joined(state))

    # --- Low, Select, Publish

    def splits(self) -> list[Split]:
        if self.running is None or not isinstance(self.running.work, SnapshotWork):
            return []
        return splits_of_job(self.running.work.tasks, self.job.job_state())[0]

    def low(self, split: Split) -> bool:
        """Takes the split's low. False if the anchor is not visible yet: the reader waits."""
        assert self.running is not None
        assert isinstance(self.running.work, SnapshotWork)
        if isinstance(split.pages, ReleaseChunk):
            return True
        attempt = self._low(split, self.running.work.anchor)
        if attempt is not None:
            self.attempts[split.id] = attempt
        return attempt is not None

    def _low(self, split: Split, anchor: Position) -> Attempt | None:
        database = self.job.database
        if self.job.reading in {"prefix", "snapshot", "lsn"}:
            low: set[int] = set()
        elif self.job.reading == "naive":
            low = set(range(1, len(database.log) + 1))
        else:
            low = set(database.visible)
            gtids = binlog_position(anchor).gtid_set()
            if not GtidSet({}).union(GtidSet({SOURCE: tuple((n, n + 1) for n in low)})).contains_all(gtids):
                return None
        if self.job.reading == "prefix" and database.prefix(anchor) > len(database.visible):
            return None
        return Attempt(split, anchor, low)

    def select(self, attempt: Attempt) -> None:
        table = _table(attempt.split.table)
        if isinstance(attempt.split.pages, StageChunk):
            self._select_pages(attempt, attempt.split.pages)
            return
        attempt.selected_at = self._seen_by_select()
        rows = self.job.database.rows_at(self.job.database.visible)
        attempt.rows = {
            key: state
            for (t, key), state in rows.items()
            if t == table.id and in_range(table, key, attempt.split.range)
        }

    def _select_pages(self, attempt: Attempt, pages: StageChunk) -> None:
        database, split = self.job.database, attempt.split
        assert isinstance(database, WalDatabase)
        attempt.is_expired = not database.is_shared(split.table, pages.snapshot)
        attempt.selected_at, attempt.rows = pages.snapshot.high, {}
        if not attempt.is_expired:
            contained = database.exported[split.table][1] if self.job.shared else database.visible
            attempt.rows = {
                key: state
                for (table, key), state in database.rows_at(contained).items()
                if table == split.table and on_pages(page_of(key, state), split.range)
            }

    def _seen_by_select(self) -> Position:
        database = self.job.database
        match self.job.reading:
            case "prefix":
                number = len(database.visible)
                return database.log[number - 1].end if number else self.job.job_state().start
            case "snapshot":
                assert isinstance(database, WalDatabase)
                return WalPosition(database.log_end().version, database.snapshot())
            case _:
                return database.log_end()

    def publish(self, attempt: Attempt) -> None:
        """Publishes the split. An attempt that loses the race leaves the winner's file as it is."""
        split = attempt.split
        report, found = self._at_high(attempt)
        if isinstance(split.pages, StageChunk):
            report = replace(report, kind="expired" if attempt.is_expired else "staged")
        rows = json.dumps([[list(key), list(state)] for key, state in found.items()])
        self.job.store.create(_name(split), REPORT.encode(report) + rows.encode())
        del self.attempts[split.id]

    def _at_high(self, attempt: Attempt) -> tuple[Report, dict[Key, State]]:
        database, split = self.job.database, attempt.split
        assert attempt.rows is not None
        assert attempt.selected_at is not None
        replayed = 0
        high = attempt.selected_at
        if self.job.reading in {"replay", "naive"}:
            high = database.log_end()
            for transaction in database.log[database.prefix(attempt.anchor) :]:
                if transaction.number in attempt.low:
                    continue
                for change in transaction.changes:
                    if change.table.id == split.table and in_range(change.table, change.key, split.range):
                        replayed += 1
                        attempt.rows.pop(change.key, None)
                        if not change.is_delete:
                            attempt.rows[change.key] = change.state
        report = Report(split.id, split.table, split.schema_version, high, len(attempt.rows), replayed)
        return report, attempt.rows

    def published(self, split: Split) -> tuple[Report, list[Entry]]:
        """The published split's report, and the entries that the sink gets of it."""
        data = self.job.file(_name(split))
        head, body, rows = data.split(b"\n", 2)
        report = REPORT.decode(head + b"\n" + body + b"\n", "split")
        if isinstance(split.pages, StageChunk):
            return report, []
        if isinstance(split.pages, ReleaseChunk):
            assert report.kind == "staged"
            report = replace(report, split_id=split.id, kind="released")
        return report, [
            Entry(split.table, tuple(key), tuple(state), is_delete=False, is_snapshot=True)
            for key, state in json.loads(rows)
        ]

    def is_published(self, split: Split) -> bool:
        return self.job.store.read(_name(split)) is not None

    # --- ReadLog

    def read_log(self) -> None:
        job, database = self.job, self.job.database
        assert self.running is not None
        assert isinstance(self.running.work, LogWork)
        log_range, epoch = self.running.work.range, self.running.epoch
        if self.running.work.empties:
            self.output = []
            job.store.create(f"logs/{epoch:08}", codec.LOG_REPORT.encode(LogReport(log_range.start, (), 0, 0, 0, None)))
            return
        transactions, end = database.transactions(log_range)
        wanted = {s.table for s in job.job_state().schemas_after(job.record(epoch).state.joined)}
        waiting = self._withheld_tables(self.running)
        changes = [
            (c, transaction)
            for transaction in transactions
            for c in transaction.changes
            if c.table.id in wanted - waiting.keys()
        ]
        numbers = [number for backfill in self._backfills(self.running) for number in self._withheld(backfill, epoch)]
        changes = [
            (change, database.log[number - 1])
            for number, table in numbers
            for change in database.log[number - 1].changes
            if change.table.id == table
        ] + changes
        withheld = []
        for table in sorted(waiting):
            held = [t.number for t in transactions if any(change.table.id == table for change in t.changes)]
            if held and job.withholds:
                withheld.append(table)
                job.store.create(withheld_file(epoch, table), json.dumps(held).encode())
        first = min([log_range.start.version, *(database.log[number - 1].version for number, _ in numbers)])
        kept = self._gap_filter(self.running).passed(first) if job.filtered else GapFilter.empty()
        masks = {table.id: iter(_keep(kept, table, changes)) for table in TABLES}
        self.output = [
            Entry(change.table.id, change.key, change.state, change.is_delete, is_snapshot=False)
            for change, _ in changes
            if next(masks[change.table.id])
        ]
        hidden = [t.xid % 2**32 for t in transactions if t.number not in database.visible]
        unseen = tuple(hidden) if job.reading == "snapshot" and not job.hasty else ()
        filtered = len(changes) - len(self.output)
        report = LogReport(end, (), len(self.output), filtered, 0, None, unseen=unseen, withheld=tuple(withheld))
        data = codec.LOG_REPORT.encode(report)
        job.store.create(f"logs/{epoch:08}", data)
        written = codec.LOG_REPORT.decode(job.file(f"logs/{epoch:08}"), "log")
        assert written == report, "every reading of a range gives the same"

    def _withheld_tables(self, plan: Plan) -> dict[TableId, Withheld]:
        state = of_job(self.job.record(plan.epoch).state, self.job.job_state())
        return {t.table: t.withheld for t in state.tables if t.withheld is not None}

    def _backfills(self, plan: Plan) -> list[Backfill]:
        assert isinstance(plan.work, LogWork)
        state = of_job(self.job.record(plan.epoch).state, self.job.job_state())
        return [backfill for backfill in plan.work.backfills if backfill.table in {t.table for t in state.tables}]

    def _withheld(self, backfill: Backfill, epoch: int) -> list[tuple[int, TableId]]:
        """The numbers of the transactions of which changes were withheld."""
        withheld = backfill.withheld
        names = withheld_files(self.job.store, backfill.table, after_epoch=withheld.after_epoch, before_epoch=epoch)
        assert len(names) == withheld.files
        return [(number, backfill.table) for name in names for number in json.loads(self.job.file(name))]

    def _gap_filter(self, plan: Plan) -> GapFilter:
        if plan.phase not in {Phase.SNAPSHOT, Phase.CATCH_UP}:
            return GapFilter.empty()
        segments = [self.job.file(name) for name in self.job.store.list("finished")]
        if plan.epoch % 2:
            segments = [merge_segments(segments, "finished")]
        state = of_job(self.job.record(plan.epoch).state, self.job.job_state())
        tables = [t for t in state.tables if not t.passed and t.withheld is None]
        unfinished = {t.table: t.done_splits for t in tables if not isinstance(t.cursor, Exhausted)}
        first_splits = {t.table: t.first_split for t in tables if t.first_split}
        return GapFilter.from_segments(segments, [t.table for t in tables], "finished", unfinished, first_splits)

    # --- Commit

    def can_commit(self) -> bool:
        if self.running is None:
            return False
        if isinstance(self.running.work, LogWork):
            return self.output is not None
        return all(map(self.is_published, self.splits()))

    def commit(self, *, crash_after_sink: bool) -> None:
        assert self.running is not None
        empties: dict[TableId, int] = {}
        replaced: list[Split] = []
        match self.running.work:
            case LogWork(empties=tables):
                assert self.output is not None
                entries = self.output
                job = self.job.job_state()
                known = job.schemas_after(self.job.record(self.running.epoch).state.joined)
                empties = {schema.table: schema.version for schema in known if schema.table in tables}
            case SnapshotWork():
                entries = [entry for split in self.splits() for entry in self.published(split)[1]]
                back = self.job.job_state().came_back
                replaced = [s for s in self.splits() if s.table in back and back[s.table].is_replaced]
        self.job.sink.commit(self.running.epoch, entries, empties, replaced)
        if crash_after_sink:
            return
        if isinstance(self.running.work, SnapshotWork):
            reports = [self.published(split)[0] for split in self.splits()]
            self.job.store.create(f"finished/{self.running.epoch:08}", segment_of(self.splits(), reports))
        self.running, self.output = None, None


def _schemas(tables: Sequence[ModelTable]) -> tuple[TableSchema, ...]:
    return tuple(TableSchema(t.id, 1, (), ()) for t in tables)


def splits_of(work: SnapshotWork) -> list[Split]:
    return [split for task in work.tasks for split in task]


def _name(split: Split) -> str:
    return f"splits/{split.id:08}" if split.pages is None else published_name(0, split)


def _table(table: TableId) -> ModelTable:
    return next(t for t in TABLES if t.id == table)


def _keep(gap_filter: GapFilter, table: ModelTable, changes: list[tuple[Change, Transaction]]) -> list[bool]:
    mine = [(change, transaction) for change, transaction in changes if change.table is table]
    encoded_keys = [table.encoded_key(change.key) for change, _ in mine]
    versions = np.array([transaction.version for _, transaction in mine], np.int64)
    xids = np.array([transaction.xid % 2**32 for _, transaction in mine], np.int64)
    if table.is_integer:
        numbers = np.array([int.from_bytes(encoded_key, "big") for encoded_key in encoded_keys], np.uint64)
        return keep(gap_filter, table.id, numbers, versions, xids).tolist()
    return keep(gap_filter, table.id, pa.array(encoded_keys, pa.binary()), versions, xids).tolist()
