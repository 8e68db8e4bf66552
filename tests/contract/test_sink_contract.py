"""The contract of sinks with state: parts are written completely and once, also if they are repeated, interrupted or written
twice at the same time."""

import dataclasses
import pickle
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.support.change_parts import (
    DELETE,
    INSERT,
    ITEMS,
    ORDERS,
    SCHEMAS,
    TRUNCATE,
    UPDATE,
    column,
    log_part,
    part,
    rows,
    snapshot_part,
)
from tests.support.sink_state import DELTA, SinkCase, any_sink, every_sink, sorted_rows  # noqa: F401  # fixtures
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.sink import JobIdentity, PartResult, SinkBusyError
from tidemark.state.change_batch import ChangeBatch, PartEnd
from tidemark.state.errors import SinkError
from tidemark.state.table import TableSchema

NEW_YEAR = 1_704_067_200_000_000


def order(number: int, customer: str = "Ada", amount: str = "10.00", note: str | None = None) -> tuple[Any, ...]:
    return (number, customer, Decimal(amount), NEW_YEAR + number, note)


@pytest.fixture
def sink(every_sink: SinkCase) -> SinkCase:  # noqa: F811
    every_sink.sink.prepare(every_sink.job, [ORDERS, ITEMS])
    return every_sink


@pytest.fixture
def part_sink(any_sink: SinkCase) -> SinkCase:  # noqa: F811
    """A sink that writes part by part, on executors."""
    any_sink.sink.prepare(any_sink.job, [ORDERS, ITEMS])
    return any_sink


def assert_holds(sink: SinkCase, schema: TableSchema, expected: list[tuple[Any, ...]]) -> None:
    assert sink.rows(schema) == sorted_rows(schema, expected)


def test_rows_of_a_snapshot_part_arrive(sink: SinkCase) -> None:
    results = sink.write(snapshot_part(1, 1, ORDERS, [order(1), order(2, "Grace", "-0.01", 'it\'s \\ "new"\n')]))
    assert results == [PartResult(1, "s1", 2, skipped=False)]
    assert_holds(sink, ORDERS, [order(1), order(2, "Grace", "-0.01", 'it\'s \\ "new"\n')])


def test_parts_of_one_partition_are_committed_one_by_one(part_sink: SinkCase) -> None:
    def items() -> Iterator[ChangeBatch | PartEnd]:
        yield from snapshot_part(1, 1, ORDERS, [order(1)])
        yield from snapshot_part(1, 2, ORDERS, [order(2)])
        raise ConnectionError("the reader is gone")

    results = part_sink.sink.writer(part_sink.job).write(items(), SCHEMAS)
    assert [next(results).part, next(results).part] == ["s1", "s2"]
    with pytest.raises(ConnectionError):
        next(results)
    assert_holds(part_sink, ORDERS, [order(1), order(2)])


@pytest.mark.pitfall(75)
@pytest.mark.pitfall(78)
def test_last_change_of_a_key_wins_within_and_across_batches(sink: SinkCase) -> None:
    sink.write(snapshot_part(1, 1, ORDERS, [order(n) for n in range(1, 7)]))
    sink.write(
        log_part(
            2,
            (ORDERS, [(UPDATE, order(1, "first")), (UPDATE, order(1, "second")), (DELETE, order(2))]),
            (
                ORDERS,
                [(INSERT, order(2, "again")), (INSERT, order(8)), (DELETE, order(8)), (UPDATE, order(3, "third"))],
            ),
            (
                ORDERS,
                [
                    (DELETE, order(3, "third")),
                    (DELETE, order(4)),
                    (INSERT, order(4, "anew")),
                    (DELETE, order(4, "anew")),
                ],
            ),
            (ORDERS, [(INSERT, order(9)), (UPDATE, order(9, "ninth"))]),
        )
    )
    expected = [order(1, "second"), order(2, "again"), order(5), order(6), order(9, "ninth")]
    assert_holds(sink, ORDERS, expected)


@pytest.mark.pitfall(76)
def test_chain_of_key_changes_leaves_every_row(sink: SinkCase) -> None:
    """`UPDATE … SET id = id + 1` in descending order, as the log brings it: delete and insert for each row."""
    sink.write(snapshot_part(1, 1, ORDERS, [order(n, f"c{n}") for n in range(1, 6)]))
    moved = [
        change
        for n in range(5, 0, -1)
        for change in ((DELETE, order(n, f"c{n}")), (INSERT, (n + 1, *order(n, f"c{n}")[1:])))
    ]
    sink.write(log_part(2, (ORDERS, moved)))
    assert_holds(sink, ORDERS, [(n + 1, *order(n, f"c{n}")[1:]) for n in range(1, 6)])


@pytest.mark.pitfall(41)
def test_a_truncation_takes_the_rows_before_it_and_none_after(sink: SinkCase) -> None:
    sink.write(snapshot_part(1, 1, ORDERS, [order(1), order(2)]), snapshot_part(1, 2, ITEMS, [(1, "pen", 2)]))
    gone = (ORDERS, [(TRUNCATE, [None] * 5)])
    epoch = log_part(
        2,
        (ORDERS, [(UPDATE, order(1, "before")), (INSERT, order(3))]),
        (ITEMS, [(INSERT, (2, "ink", 3))]),
        gone,
        (ORDERS, [(INSERT, order(5)), (INSERT, order(6))]),
        gone,
        (ORDERS, [(INSERT, order(1, "after")), (INSERT, order(4)), (DELETE, order(4)), (INSERT, order(7))]),
    )
    for _ in range(2):
        sink.write(epoch)
        assert_holds(sink, ORDERS, [order(1, "after"), order(7)])
        assert_holds(sink, ITEMS, [(1, "pen", 2), (2, "ink", 3)])
    sink.write(log_part(3, gone))
    assert_holds(sink, ORDERS, [])
    sink.write(log_part(4, (ORDERS, [(INSERT, order(8))])))
    assert_holds(sink, ORDERS, [order(8)])


def test_one_part_touches_several_tables(sink: SinkCase) -> None:
    sink.write(
        log_part(
            1,
            (ORDERS, [(INSERT, order(1))]),
            (ITEMS, [(INSERT, (1, "pen", 2)), (INSERT, (1, "Pen", 3))]),
            (ORDERS, [(INSERT, order(2))]),
            (ITEMS, [(DELETE, (1, "pen", 2)), (INSERT, (2, "ink", 4_294_967_295))]),
        )
    )
    assert_holds(sink, ORDERS, [order(1), order(2)])
    assert_holds(sink, ITEMS, [(1, "Pen", 3), (2, "ink", 4_294_967_295)])


def test_empty_part_and_empty_batch(sink: SinkCase) -> None:
    assert sink.write(part(1, "s1", [])) == [PartResult(1, "s1", 0, skipped=False)]
    assert sink.write(part(1, "s2", [(ORDERS, rows(ORDERS, []))])) == [PartResult(1, "s2", 0, skipped=False)]
    assert_holds(sink, ORDERS, [])


@pytest.mark.pitfall(74)
def test_replayed_parts_are_skipped(sink: SinkCase) -> None:
    first = snapshot_part(1, 1, ORDERS, [order(1), order(2)])
    second = log_part(2, (ORDERS, [(DELETE, order(1)), (UPDATE, order(2, "new"))]))
    sink.write(first, second)
    again = sink.write(first, second)
    assert sink.kind == DELTA or [result.skipped for result in again] == [True, True]
    assert_holds(sink, ORDERS, [order(2, "new")])


def test_replay_may_be_cut_into_other_batches(part_sink: SinkCase) -> None:
    changes = [(INSERT, order(1)), (UPDATE, order(1, "b")), (INSERT, order(2))]
    part_sink.write(part(3, "log", [(ORDERS, rows(ORDERS, changes, version=9))]))
    pieces = [(ORDERS, rows(ORDERS, [change], version=9)) for change in changes]
    assert part_sink.write(part(3, "log", pieces)) == [PartResult(3, "log", 3, skipped=True)]
    assert_holds(part_sink, ORDERS, [order(1, "b"), order(2)])


def test_replay_with_other_rows_is_refused(part_sink: SinkCase) -> None:
    part_sink.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    with pytest.raises(SinkError, match="2 rows now, but had 1 when it was written"):
        part_sink.write(snapshot_part(1, 1, ORDERS, [order(1), order(2)]))


def test_same_part_of_another_job_is_not_ours(sink: SinkCase) -> None:
    sink.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    with pytest.raises(SinkError, match="belongs to job contract"):
        sink.sink.prepare(JobIdentity("another", "other"), [ORDERS])


@pytest.mark.parametrize("chunk_bytes", [1, 32 << 20], ids=["streamed", "whole"])
def test_input_without_its_end_leaves_nothing(
    part_sink: SinkCase, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", chunk_bytes)
    items = log_part(1, (ORDERS, [(INSERT, order(1))]), (ORDERS, [(INSERT, order(2))]))
    with pytest.raises(SinkBusyError, match="ended before its last row"):
        part_sink.write(items[:-1])
    assert_holds(part_sink, ORDERS, [])
    part_sink.write(items)
    assert_holds(part_sink, ORDERS, [order(1), order(2)])


@pytest.mark.parametrize("chunk_bytes", [1, 32 << 20], ids=["streamed", "whole"])
def test_failing_reader_leaves_nothing(part_sink: SinkCase, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", chunk_bytes)
    items = log_part(1, *[(ORDERS, [(INSERT, order(n))]) for n in range(1, 6)])

    def broken() -> Iterator[ChangeBatch | PartEnd]:
        yield from items[:3]
        raise ConnectionError("the source is gone")

    with pytest.raises(ConnectionError):
        list(part_sink.sink.writer(part_sink.job).write(broken(), SCHEMAS))
    assert_holds(part_sink, ORDERS, [])
    part_sink.write(items)
    assert_holds(part_sink, ORDERS, [order(n) for n in range(1, 6)])


def test_wrong_sum_of_rows_is_refused(part_sink: SinkCase) -> None:
    items = snapshot_part(1, 1, ORDERS, [order(1), order(2)])
    with pytest.raises(SinkError, match="has 2 rows in 1 batches, its end says 3 rows in 1"):
        part_sink.write([*items[:-1], PartEnd(1, "s1", 1, 3)])
    assert_holds(part_sink, ORDERS, [])


def test_missing_and_repeated_batches_are_refused(part_sink: SinkCase) -> None:
    first, second, end = log_part(1, (ORDERS, [(INSERT, order(1))]), (ORDERS, [(INSERT, order(2))]))
    with pytest.raises(SinkError, match="its end says 2 rows in 2 batches"):
        part_sink.write([first, end])
    with pytest.raises(SinkError, match="comes after batch"):
        part_sink.write([first, first, end])
    with pytest.raises(SinkError, match="comes after batch"):
        part_sink.write([second, first, end])
    with pytest.raises(SinkError, match="is followed by s7 of epoch 1 without an end"):
        part_sink.write([first, *snapshot_part(1, 7, ORDERS, [])])
    assert_holds(part_sink, ORDERS, [])


class Gate:
    """Makes a reader wait between two items until the test opens it."""

    def __init__(self, items: list[ChangeBatch | PartEnd], *, fails: bool = False) -> None:
        self._items, self._fails = items, fails
        self.reached, self.opened = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[ChangeBatch | PartEnd]:
        yield from self._items[:-1]
        self.reached.set()
        assert self.opened.wait(60)
        if self._fails:
            raise ConnectionError("this attempt was killed")
        yield self._items[-1]


class Attempt(threading.Thread):
    def __init__(self, sink: SinkCase, items: Any) -> None:
        super().__init__(daemon=True)
        self._sink, self._items = sink, items
        self.results: list[PartResult] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.results = list(self._sink.sink.writer(self._sink.job).write(self._items, SCHEMAS))
        except (ConnectionError, SinkError) as exc:
            self.error = exc


@pytest.mark.pitfall(74)
@pytest.mark.parametrize("chunk_bytes", [1, 32 << 20], ids=["streamed", "whole"])
@pytest.mark.parametrize("first_fails", [False, True], ids=["first-wins", "first-is-killed"])
def test_of_two_attempts_at_a_part_one_takes_effect(
    part_sink: SinkCase, chunk_bytes: int, first_fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt has written rows but no end when the second one begins. If the sink has a lock, that one waits."""
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", chunk_bytes)
    part_sink.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    items = log_part(2, (ORDERS, [(DELETE, order(1))]), (ORDERS, [(INSERT, order(n)) for n in range(2, 50)]))
    first_input, second_input = Gate(items, fails=first_fails), Gate(items)
    first = Attempt(part_sink, first_input)
    assert first_input.reached.wait(60)
    second = Attempt(part_sink, second_input)
    second_input.opened.set()
    first_input.opened.set()
    first.join(60)
    second.join(60)
    assert isinstance(first.error, ConnectionError) == first_fails
    assert second.error is None
    assert len(second.results) == 1
    if part_sink.kind in {"mysql", "mariadb", "postgres"}:
        assert sorted(r.skipped for r in first.results + second.results) == ([False] if first_fails else [False, True])
    assert_holds(part_sink, ORDERS, [order(n) for n in range(2, 50)])
    assert part_sink.write(items) == [PartResult(2, "log", 49, skipped=True)]


def test_ledger_forgets_only_older_epochs(sink: SinkCase) -> None:
    parts = [log_part(epoch, (ORDERS, [(INSERT, order(epoch))])) for epoch in (1, 2, 3)]
    sink.write(*parts)
    sink.sink.committed_before(sink.job, 3)
    sink.sink.committed_before(sink.job, 3)
    again = sink.write(parts[2])
    assert sink.kind == DELTA or [result.skipped for result in again] == [True]
    assert_holds(sink, ORDERS, [order(1), order(2), order(3)])


def test_prepare_repeats_harmlessly_and_check_then_finds_no_problem(sink: SinkCase) -> None:
    sink.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    sink.sink.prepare(sink.job, [ORDERS, ITEMS])
    assert not [finding for finding in sink.sink.check([ORDERS, ITEMS], sink.job) if finding.is_problem]
    assert_holds(sink, ORDERS, [order(1)])


def test_check_writes_nothing(every_sink: SinkCase) -> None:  # noqa: F811
    findings = every_sink.sink.check([ORDERS, ITEMS])
    assert not [finding for finding in findings if finding.is_problem]
    assert {finding.table for finding in findings} >= {ORDERS.table, ITEMS.table}
    if every_sink.kind in {"parquet", "jsonl"}:
        assert not every_sink.place.exists()
    elif every_sink.kind == DELTA:
        assert not every_sink.sink.session().catalog.databaseExists(every_sink.place)
    else:
        listed = "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s"
        schema = "public" if every_sink.kind == "postgres" else every_sink.place.name
        assert every_sink.place.query(listed, (schema,)) == [(0,)]


@pytest.mark.parametrize("name", ["_change_type", "_seq", "_commit_version"])
def test_a_column_with_a_name_that_changes_have_is_refused(every_sink: SinkCase, name: str) -> None:  # noqa: F811
    schema = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, column(name, "int", "int32")))
    found = [finding for finding in every_sink.sink.check([schema, ITEMS]) if finding.is_problem]
    assert [finding.table for finding in found] == [ORDERS.table]
    assert f"column {name} has the name of a column that Tidemark adds" in found[0].text
    assert found[0].remedy == f"Exclude it: source.columns: {{shop.orders: {{exclude: [{name}]}}}}."


def test_sink_and_errors_cross_process_borders(any_sink: SinkCase) -> None:  # noqa: F811
    any_sink.sink.prepare(any_sink.job, [ORDERS])
    travelled = pickle.loads(pickle.dumps(any_sink.sink))
    assert travelled == any_sink.sink
    assert list(travelled.writer(any_sink.job).write(snapshot_part(1, 1, ORDERS, [order(1)]), SCHEMAS))
    error = pickle.loads(pickle.dumps(SinkBusyError("It waits.", "Wait too.")))
    assert (error.message, error.remedy) == ("It waits.", "Wait too.")
    assert_holds(any_sink, ORDERS, [order(1)])
