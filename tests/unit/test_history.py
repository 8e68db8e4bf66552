"""The history kept for people: bounded, sums right, and never in a job's way."""

import logging
import random
from pathlib import Path

import pytest

from tests.support.epochs import Notes
from tidemark.enumerator.enumerator import LogRead
from tidemark.jobs.monitoring.history import EpochRecorder, Kept, KeptEvents
from tidemark.state.checkpoint.codec import EPOCHS, EVENTS, SPLITS
from tidemark.state.checkpoint.history import (
    MAX_EVENTS,
    MAX_SPLIT_STRETCHES,
    MAX_STRETCHES,
    MAX_TABLES,
    RECENT_EPOCHS,
    EpochHistory,
    EpochStretch,
    EventHistory,
    JobEvent,
    SplitHistory,
    TableSplits,
)
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import JobHeldError, SinkError
from tidemark.state.log_range import LogRange, LogReport, LogTotals, TableChanges
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState, LogWork, Plan, PlanRecord
from tidemark.state.position import BinlogPosition
from tidemark.state.split import Bound, KeyRange, Report, Split
from tidemark.state.table import TableId

ORDERS = TableId("shop", "orders")
HIGH = BinlogPosition("b.000001", 100)


def log_epoch(number: int) -> PlanRecord:
    """The plan of a log epoch; each epoch before it brought one insert and nine deletes."""
    before = number - 1
    totals = LogTotals((TableChanges(ORDERS, before, 0, 9 * before),), 0, before, 0, 2_000_000)
    state = EnumeratorState(
        "full+incremental", Phase.STREAM, number, (), 0, 1, HIGH, (), None, 1 << 26, None, totals=totals
    )
    plan = Plan(number, Phase.STREAM, LogWork(LogRange(HIGH, HIGH)), bytes_behind=9)
    return PlanRecord(plan, state, planned_at_us=3_000_000)


def epoch(number: int, **amounts: float) -> EpochStretch:
    return EpochStretch(number, number, "stream", number * 1_000_000, number * 1_000_000 + 5, **amounts)  # type: ignore[arg-type]


def test_a_year_of_epochs_is_kept_in_few_stretches_whose_sums_are_right() -> None:
    history, count = EpochHistory(), 60_000
    for number in range(1, count + 1):
        history = history.plus(epoch(number, changes=number, lag_seconds=float(number % 777)))
    assert [one.first_epoch for one in history.recent] == list(range(count - RECENT_EPOCHS + 1, count + 1))
    assert MAX_STRETCHES / 2 <= len(history.whole) <= MAX_STRETCHES
    assert sum(stretch.changes for stretch in history.whole) == count * (count + 1) // 2
    firsts = [stretch.first_epoch for stretch in history.whole]
    assert firsts == [1, *(stretch.last_epoch + 1 for stretch in history.whole[:-1])]
    assert max(stretch.lag_seconds or 0 for stretch in history.whole) == 776
    assert len(EPOCHS.encode(history)) < 300_000


def splits_of(table: TableId, first_id: int, keys: range, step: int) -> list[tuple[Split, Report]]:
    found = []
    for i, key in enumerate(keys[::step]):
        start, end = (Bound((str(k),), f"{k:016x}") for k in (key, key + step))
        split = Split(first_id + i, table, 1, ("id",), KeyRange(start, end))
        low, high = BinlogPosition("b.000001", 100 + key), BinlogPosition("b.000001", 150 + key)
        found.append((split, Report(split.id, table, 1, high, 10, 1, low)))
    return found


def test_many_splits_are_drawn_together_with_their_neighbours_only() -> None:
    history, count, each = SplitHistory(), 20_000, 512
    tail = Split(0, ORDERS, 1, ("id",), KeyRange(Bound((str(count),), "ff"), None))
    read = [(tail, Report(0, ORDERS, 1, BinlogPosition("b.000001", 90), 3, 0))]
    for number, first in enumerate(range(0, count, each)):
        read += splits_of(ORDERS, 1 + first, range(first, min(first + each, count)), 1)
        history, read = history.plus(number + 1, random.Random(number).sample(read, len(read)), 1), []
    (table,) = history.tables
    assert len(table.stretches) <= MAX_SPLIT_STRETCHES
    assert sum(stretch.splits for stretch in table.stretches) == count + 1
    assert sum(stretch.rows for stretch in table.stretches) == count * 10 + 3
    tail_stretch, *others = table.stretches
    assert (tail_stretch.end, tail_stretch.splits, tail_stretch.low) == (None, 1, None)
    assert [stretch.start for stretch in others[1:]] == [stretch.end for stretch in others[:-1]]
    assert all(stretch.low < stretch.least_high <= stretch.high for stretch in others if stretch.low)


@pytest.mark.pitfall(126)
def test_the_history_holds_no_keys_of_rows() -> None:
    bounds = [
        Bound((f"_utf8mb4 x'{text.encode().hex()}'",), f"{text.encode().hex()}00") for text in ("ann@shop", "bob@shop")
    ]
    split = Split(1, ORDERS, 1, ("email",), KeyRange(*bounds))
    history = SplitHistory().plus(1, [(split, Report(1, ORDERS, 1, BinlogPosition("b.000001", 90), 3, 0))], 1)
    ((stretch,),) = (table.stretches for table in history.tables)
    assert stretch.start is not None
    assert stretch.start != stretch.end
    kept = SPLITS.encode(history)
    assert [text for text in (b"ann", b"bob", b"ann".hex().encode(), b"bob".hex().encode()) if text in kept] == []


def test_of_many_tables_the_first_are_kept_with_a_few_stretches_each() -> None:
    history = SplitHistory()
    for i in range(MAX_TABLES + 50):
        history = history.plus(i + 1, splits_of(TableId("shop", f"t{i}"), i * 100, range(100), 1), 3000)
    assert len(history.tables) == MAX_TABLES
    assert all(isinstance(t, TableSplits) and 4 <= len(t.stretches) <= 8 for t in history.tables)


def test_events_are_few_and_the_first_stays() -> None:
    history = EventHistory()
    for i in range(MAX_EVENTS * 2):
        history = history.plus(JobEvent(i, "warning", (("text", "x" * 10_000),)))
    assert history.first is not None
    assert (history.first.at_us, len(history.events), history.events[-1].at_us) == (0, MAX_EVENTS, 2 * MAX_EVENTS - 1)
    assert len(EVENTS.encode(history)) < 120_000


def test_the_newest_file_counts_and_the_ones_before_it_go(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    kept = Kept(store, EPOCHS)
    assert kept.load() is None
    for number in range(1, 4):
        kept.save(EpochHistory().plus(epoch(number)))
    assert store.list("history") == ["history/epochs-0000000003"]
    again = Kept(store, EPOCHS)
    assert again.load() == EpochHistory().plus(epoch(3))
    again.save(EpochHistory())
    with pytest.raises(JobHeldError, match="Another driver"):
        kept.save(EpochHistory())


def run_that_fails(events: KeptEvents, store: LocalStore) -> None:
    with events.failures():
        events.note("warning", text="early")
        assert store.list("history")[-1] == "history/events-0000000009"  # not ours before the job is held
        events.note("started", job="shop", tables=[1])
        raise SinkError("The disk is full.", "Make room.")


NEWER = EVENTS.encode(EventHistory()).replace(b'"version":1,', b'"version":999,')


@pytest.mark.pitfall(127)
@pytest.mark.parametrize(("content", "reason"), [(b"nonsense", "damaged"), (NEWER, "has version 999")])
def test_an_unreadable_history_starts_again_and_holds_what_ended_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    store = LocalStore(str(tmp_path))
    store.create("history/events-0000000009", content)
    with caplog.at_level(logging.WARNING), pytest.raises(SinkError):
        run_that_fails(KeptEvents(Notes(), store), store)
    assert "the job's history starts again: " in caplog.text
    assert reason in caplog.text
    assert "Restore" not in caplog.text  # it would lose the job's progress
    found = Kept(store, EVENTS).load()
    assert found is not None
    assert [(one.name, one.facts) for one in found.events] == [
        ("warning", (("text", "early"),)),
        ("started", (("job", "shop"),)),
        ("error", (("text", "The disk is full. Remedy: Make room."),)),
    ]


def test_storage_that_fails_does_not_hurt_and_what_was_not_saved_is_told_by_the_plans(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "history").write_text("no folder")
    checkpoint = Checkpoint.at(str(tmp_path))
    for number in (4, 5, 6):
        checkpoint.create_plan(log_epoch(number))
    recorder, report = EpochRecorder(checkpoint, 1), LogReport(HIGH, (), 1, 0, 1, 2_000_000)
    with caplog.at_level(logging.WARNING):
        recorder.add(log_epoch(4), LogRead(4, report, 0.5), log_epoch(5).state)
        recorder.save(at_once=True)
    assert caplog.text.count("is not kept") == 3
    (tmp_path / "history").unlink()
    recorder.add(log_epoch(4), LogRead(4, report, 0.5), log_epoch(5).state)
    recorder.save(at_once=True)
    assert Kept(checkpoint.store, EPOCHS).load() is None  # epoch 4 is known already
    recorder.add(log_epoch(5), LogRead(5, report, 0.25), log_epoch(6).state)
    recorder.save(at_once=False)
    assert Kept(checkpoint.store, EPOCHS).load() is None  # something was saved a moment ago
    recorder.save(at_once=True)
    found = Kept(checkpoint.store, EPOCHS).load()
    assert found is not None
    told = [(one.first_epoch, one.changes, one.transactions, one.seconds, one.lag_seconds) for one in found.recent]
    assert told == [(4, 10, 1, 0.5, 1.5), (5, 10, 1, 0.25, 1.25)]
    another = EpochRecorder(checkpoint, 1)
    (tmp_path / "history" / "epochs-0000000001").unlink()
    another.add(log_epoch(6), LogRead(6, report, 0.5), log_epoch(7).state)
    another.save(at_once=True)
    found = Kept(checkpoint.store, EPOCHS).load()
    assert found is not None
    assert [(one.first_epoch, one.changes, one.measured) for one in found.recent] == [
        (4, 10, 0),
        (5, 10, 0),
        (6, 10, 1),
    ]
