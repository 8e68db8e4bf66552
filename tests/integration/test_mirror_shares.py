"""Several connections write one epoch of the log into a mirror: each table has it once, whoever dies where."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.support.change_parts import INSERT, ITEMS, ORDERS, SCHEMAS, UPDATE, log_part, snapshot_part
from tests.support.sink_state import MIRRORS, SinkCase, make_case, sorted_rows, target_name
from tidemark.sinks.fencing import require_same_time
from tidemark.sinks.mirror import shares
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import PartResult, SinkBusyError
from tidemark.state.change_batch import ChangeBatch, PartEnd, table_part
from tidemark.state.errors import CheckpointError, JobHeldError, RefusedRowsError, SinkError
from tidemark.state.failpoints import FailpointError
from tidemark.state.reached import Reached

pytestmark = pytest.mark.integration

TWO_KINDS = pytest.mark.parametrize("copy", ["mysql", "postgres"], indirect=True)


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return (number, customer, None, number, None)


FIRST = snapshot_part(1, 1, ORDERS, [order(1)])
SECOND = log_part(
    2,
    (ORDERS, [(UPDATE, order(1, "Grace"))]),
    (ITEMS, [(INSERT, (1, "pen", 1))]),
    (ORDERS, [(INSERT, order(2))]),
    after=Reached(0, 1),
)
THIRD = log_part(3, (ITEMS, [(INSERT, (1, "ink", 1))]), (ORDERS, [(UPDATE, order(2, "Mary"))]), after=Reached(2, 0))
AFTER_SECOND = ([order(1, "Grace"), order(2)], [(1, "pen", 1)])
AFTER_THIRD = ([order(1, "Grace"), order(2, "Mary")], [(1, "ink", 1), (1, "pen", 1)])


class Driver:
    """A driver of the job, which it takes over when it is made. Its epochs are divided, however small they are."""

    def __init__(self, case: SinkCase, number: int, parallelism: int = 2) -> None:
        assert isinstance(case.sink, MirrorSink)
        self.job = replace(case.job, owner=number)
        self.sink = replace(case.sink, parallelism=parallelism)
        self.sink.prepare(self.job, [ORDERS, ITEMS])

    def write(self, *parts: list[ChangeBatch | PartEnd]) -> list[PartResult]:
        return list(self.sink.writer(self.job).write((item for items in parts for item in items), SCHEMAS))


@pytest.fixture(params=MIRRORS)
def copy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SinkCase:
    monkeypatch.setattr(mirror_writer, "MIN_BYTES", 1)
    monkeypatch.setattr(mirror_writer, "LOCK_SECONDS", 1)
    return make_case(request.param, request)


def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without work are asked all the time."""
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    monkeypatch.setattr(shares, "ALIVE_SECONDS", 0.0)


def rows(case: SinkCase) -> tuple[list[Any], list[Any]]:
    return case.rows(ORDERS), case.rows(ITEMS)


def expected(of: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    return sorted_rows(ORDERS, of[0]), sorted_rows(ITEMS, of[1])


def die(driver: Driver, point: str, part: list[ChangeBatch | PartEnd]) -> None:
    def fail(name: str) -> None:
        if name == point:
            raise FailpointError(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "failpoint", fail)
        with pytest.raises(FailpointError):
            driver.write(part)


@pytest.mark.parametrize(("retried_by", "streamed"), [(0, True), (1, False), (1, True), (2, False)])
def test_a_death_between_two_commits(
    copy: SinkCase, retried_by: int, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares that were committed are not written again: a row that somebody has removed from it stays removed. `retried_by`:
    how many connections another driver has, 0 for the same driver."""
    if streamed:
        stream(monkeypatch)
    driver = Driver(copy, 1)
    driver.write(FIRST)
    die(driver, "shares.filled", SECOND)
    assert rows(copy) == expected(([order(1)], []))
    assert not driver.sink.written(driver.job).begun
    die(driver, "shares.committed", SECOND)
    assert rows(copy) == expected(([order(1)], AFTER_SECOND[1]))
    written = driver.sink.written(driver.job)
    assert (written.log_epoch, written.begun, written.before(2)) == (0, 2, Reached(0, 1))
    require_same_time(written, Reached(0, 1), committed=1, planned=2)
    with pytest.raises(CheckpointError, match="target has epoch 2"):  # a checkpoint that was set back
        require_same_time(written, Reached(0, 1), committed=1, planned=1)
    copy.place.execute(f"DELETE FROM {target_name(copy, ITEMS)}")
    if retried_by:
        driver = Driver(copy, 2, retried_by)
    assert [result.skipped for result in driver.write(SECOND)] == [False]
    assert rows(copy) == expected((AFTER_SECOND[0], []))
    assert [result.skipped for result in driver.write(SECOND)] == [True]
    copy.place.execute(f"INSERT INTO {target_name(copy, ITEMS)} VALUES (1, 'pen', 1)")
    driver.write(THIRD)
    assert rows(copy) == expected(AFTER_THIRD)
    assert copy.place.query("SELECT count(*) FROM tidemark_ledger WHERE epoch < 3 AND part LIKE 'log%'") == [(0,)]


@TWO_KINDS
def test_a_connection_is_lost_between_two_commits(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection writes the rest, at once."""
    driver = Driver(copy, 1)
    driver.write(FIRST)

    def lose(name: str) -> None:
        if name == "shares.committed":
            copy.place.execute(f"DELETE FROM {target_name(copy, ITEMS)}")
            raise SinkBusyError("The connection was lost.", "Wait.")

    monkeypatch.setattr(shares, "failpoint", lose)
    assert [result.skipped for result in driver.write(SECOND)] == [False]
    assert rows(copy) == expected((AFTER_SECOND[0], []))


@TWO_KINDS
def test_an_epoch_that_was_begun_must_be_read_as_it_was(copy: SinkCase) -> None:
    driver = Driver(copy, 1)
    driver.write(FIRST)
    die(driver, "shares.committed", SECOND)
    assert not driver.sink.lacks(driver.job, 2)
    other = log_part(2, (ITEMS, [(INSERT, (1, "pen", 1)), (INSERT, (2, "pen", 1))]), after=Reached(0, 1))
    with pytest.raises(SinkError, match=r"has 2 changes of shop\.items now, but had 1"):
        Driver(copy, 2, 1).write(other)


@TWO_KINDS
def test_an_error_in_one_table_leaves_nothing_of_the_epoch(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection tells it."""
    stream(monkeypatch)
    driver = Driver(copy, 1)
    driver.write(FIRST)
    copy.place.execute(f"ALTER TABLE {target_name(copy, ITEMS)} ADD CONSTRAINT few CHECK (quantity < 1)")
    with pytest.raises(SinkBusyError, match="Several connections could not write part log of epoch 2"):
        driver.write(SECOND)
    with pytest.raises(RefusedRowsError, match="few"):
        driver.write(SECOND)
    assert driver.sink.lacks(driver.job, 2)
    copy.place.execute(f"ALTER TABLE {target_name(copy, ITEMS)} DROP CONSTRAINT few")
    driver.write(SECOND)
    driver.write(THIRD)
    assert rows(copy) == expected(AFTER_THIRD)


@TWO_KINDS
def test_connections_that_wait_for_each_other(copy: SinkCase) -> None:
    """Triggers of the target let both tables change one row. The epoch is written by one connection then."""
    driver = Driver(copy, 1)
    driver.write(FIRST)
    copy.place.execute("CREATE TABLE touched (times INT)", "INSERT INTO touched VALUES (0)")
    for schema in (ORDERS, ITEMS):
        if copy.kind == "postgres":
            copy.place.execute(
                "CREATE OR REPLACE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN UPDATE touched SET times = times + 1; RETURN NULL; END $$",
                f"CREATE TRIGGER t_{schema.table.name} AFTER INSERT ON {target_name(copy, schema)} "
                "FOR EACH ROW EXECUTE FUNCTION touch()",
            )
        else:
            copy.place.execute(
                f"CREATE TRIGGER t_{schema.table.name} AFTER INSERT ON {target_name(copy, schema)} "
                "FOR EACH ROW UPDATE touched SET times = times + 1"
            )
    driver.write(SECOND)
    assert rows(copy) == expected(AFTER_SECOND)


@TWO_KINDS
@pytest.mark.pitfall(89)
def test_a_frozen_driver_commits_no_share_after_a_take_over(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """It froze between two commits. What it has committed is left as it is, and the other driver writes the rest."""
    first = Driver(copy, 1)
    first.write(FIRST)
    reached, thawed, gates = threading.Event(), threading.Event(), iter([True])

    def freeze(name: str) -> None:
        if name == "shares.committed" and next(gates, False):
            reached.set()
            assert thawed.wait(100)

    monkeypatch.setattr(shares, "failpoint", freeze)
    with ThreadPoolExecutor(1) as frozen:
        writing = frozen.submit(first.write, SECOND)
        try:
            assert reached.wait(100)
            second = Driver(copy, 2)
            second.write(SECOND, THIRD)
        finally:
            thawed.set()
        with pytest.raises(JobHeldError):
            writing.result()
    assert rows(copy) == expected(AFTER_THIRD)


@TWO_KINDS
@pytest.mark.pitfall(89)
def test_a_late_share_of_the_same_driver_is_refused(copy: SinkCase) -> None:
    """The ledger has forgotten the epoch."""
    driver = Driver(copy, 1)
    driver.write(FIRST, SECOND, THIRD)
    for epoch, after, text in ((2, Reached(0, 1), "Epoch 2 comes too late"), (5, Reached(4, 0), "was set back")):
        session = driver.sink.connect()
        session.begin_share(driver.job, epoch)
        session.claim_entries([table_part(ITEMS.table)])
        assert session.entries_written() == {}
        with pytest.raises(SinkError, match=text):
            session.commit_share(after)
        session.close()
    with pytest.raises(SinkError, match="Epoch 2 comes too late"):
        driver.write(SECOND)
    assert rows(copy) == expected(AFTER_THIRD)
