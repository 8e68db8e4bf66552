"""The contract of sinks with a fence: who comes late writes nothing, and a target that was set back takes nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.support.change_parts import INSERT, ITEMS, ORDERS, SCHEMAS, UPDATE, log_part, snapshot_part
from tests.support.delta import commits_of, read_delta
from tests.support.sink_state import (  # noqa: F401  # fixtures
    DELTA,
    FILE_SINKS,
    SinkCase,
    any_sink,
    make_case,
    mirror,
    sink_params,
    sorted_rows,
)
from tidemark.sinks.delta import epoch as delta_epoch
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.fencing import require_same_time
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.sink import JobIdentity, PartResult, SinkBusyError, Written
from tidemark.state.change_batch import ChangeBatch, PartEnd
from tidemark.state.errors import CheckpointError, JobHeldError, SinkError, TidemarkError
from tidemark.state.reached import Reached

Items = list[ChangeBatch | PartEnd]
START = Reached(0, 0)


def order(number: int, note: str = "") -> tuple[Any, ...]:
    return (number, "Ada", Decimal("1.00"), 1_704_067_200_000_000, note)


class Driver:
    """A driver of the job, which it takes over when it is made."""

    def __init__(self, case: SinkCase, number: int) -> None:
        self.case, self.job = case, replace(case.job, owner=number)
        case.sink.prepare(self.job, [ORDERS, ITEMS])

    def write(self, *parts: Items) -> list[PartResult]:
        return list(self.writing([item for items in parts for item in items]))

    def writing(self, items: Any) -> Iterator[PartResult]:
        assert hasattr(self.case.sink, "writer")
        return self.case.sink.writer(self.job).write(items, SCHEMAS)


class Frozen(threading.Thread):
    """A writer whose input stops before its item `place` until it is thawed."""

    def __init__(self, driver: Driver, items: Items, place: int = -1) -> None:
        super().__init__(daemon=True)
        self._driver, self._items, self._place = driver, items, place
        self._reached, self._thawed = threading.Event(), threading.Event()
        self.results: list[PartResult] = []
        self.error: BaseException | None = None
        self.start()
        assert self._reached.wait(60)

    def run(self) -> None:
        try:
            self.results = list(self._driver.writing(self._input()))
        except (TidemarkError, AssertionError) as error:
            self.error = error

    def _input(self) -> Iterator[ChangeBatch | PartEnd]:
        yield from self._items[: self._place]
        self._reached.set()
        assert self._thawed.wait(60)
        yield from self._items[self._place :]

    def thaw(self) -> BaseException | None:
        self._thawed.set()
        self.join(60)
        assert not self.is_alive()
        return self.error


def assert_holds(case: SinkCase, *expected: tuple[Any, ...]) -> None:
    assert case.rows(ORDERS) == sorted_rows(ORDERS, expected)


LATE_PARTS = {
    "the split it was writing": snapshot_part(1, 1, ORDERS, [order(1)]),
    "the log epoch it was writing": log_part(2, (ORDERS, [(UPDATE, order(1, "two"))]), after=Reached(0, 1)),
    "a split that nobody wrote": snapshot_part(3, 9, ORDERS, [order(9)]),
}


@pytest.mark.pitfall(89)
@pytest.mark.parametrize("late", LATE_PARTS.values(), ids=list(LATE_PARTS))
def test_a_frozen_driver_writes_nothing_after_a_take_over(any_sink: SinkCase, late: Items) -> None:  # noqa: F811
    first = Driver(any_sink, 1)
    if late[0].epoch > 1:
        first.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    frozen = Frozen(first, late)
    second = Driver(any_sink, 2)
    second.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    second.write(log_part(2, (ORDERS, [(UPDATE, order(1, "two"))]), after=Reached(0, 1)))
    second.write(log_part(3, (ORDERS, [(UPDATE, order(1, "three"))]), after=Reached(2, 0)))
    any_sink.sink.committed_before(second.job, 3)
    assert isinstance(frozen.thaw(), JobHeldError)
    assert_holds(any_sink, order(1, "three"))
    assert second.write(log_part(3, (ORDERS, [(UPDATE, order(1, "three"))]), after=Reached(2, 0)))[0].skipped


@pytest.mark.pitfall(89)
def test_a_driver_that_froze_before_it_prepared_the_sink_is_refused(any_sink: SinkCase) -> None:  # noqa: F811
    second = Driver(any_sink, 2)
    second.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    with pytest.raises(JobHeldError, match="names driver 2, and this one is driver 1"):
        Driver(any_sink, 1)
    second.write(snapshot_part(1, 2, ORDERS, [order(2)]))
    assert_holds(any_sink, order(1), order(2))


@pytest.mark.pitfall(89)
def test_a_take_over_waits_for_a_transaction_that_runs(
    mirror: SinkCase,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first driver is in the middle of a part when the second one comes: it has written rows and will commit them."""
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    first = Driver(mirror, 1)
    items = log_part(1, (ORDERS, [(INSERT, order(1))]), (ORDERS, [(INSERT, order(2))]), after=START)
    frozen = Frozen(first, items)
    taken = threading.Event()
    found: list[Driver] = []

    def take_over() -> None:
        found.append(Driver(mirror, 2))
        taken.set()

    thread = threading.Thread(target=take_over, daemon=True)
    thread.start()
    assert not taken.wait(1)
    assert frozen.thaw() is None
    thread.join(60)
    assert found[0].write(items)[0].skipped
    with pytest.raises(JobHeldError):
        first.write(log_part(2, (ORDERS, [(INSERT, order(3))]), after=Reached(1, 0)))
    assert_holds(mirror, order(1), order(2))


@pytest.mark.pitfall(89)
@pytest.mark.integration
@pytest.mark.parametrize("mirror", ["mysql", "postgres"], indirect=True)
def test_a_take_over_ends_a_transaction_that_does_not_end(
    mirror: SinkCase,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first driver froze in the middle of a part. MariaDB names no sessions by default, so a take-over waits there."""
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    first = Driver(mirror, 1)
    items = log_part(1, (ORDERS, [(INSERT, order(1))]), (ORDERS, [(INSERT, order(2))]), after=START)
    frozen = Frozen(first, items)
    began = time.monotonic()
    second = Driver(mirror, 2)
    assert time.monotonic() - began < 30  # instead of ten minutes
    assert not second.write(items)[0].skipped
    assert isinstance(frozen.thaw(), SinkBusyError | JobHeldError)
    with pytest.raises(JobHeldError):
        first.write(items)
    assert_holds(mirror, order(1), order(2))


@pytest.mark.pitfall(89)
def test_a_late_task_of_the_same_driver_writes_nothing(any_sink: SinkCase) -> None:  # noqa: F811
    """Executors that were cut off go on with an epoch that another attempt has written."""
    driver = Driver(any_sink, 1)
    split = snapshot_part(1, 1, ORDERS, [order(1)])
    log = log_part(2, (ORDERS, [(UPDATE, order(1, "two"))]), after=Reached(0, 1))
    frozen_split, frozen_log = Frozen(driver, split), Frozen(driver, log)
    driver.write(split)
    driver.write(log)
    for epoch in (3, 4, 5):
        driver.write(log_part(epoch, (ORDERS, [(UPDATE, order(1, f"{epoch}"))]), after=Reached(epoch - 1, 0)))
        any_sink.sink.committed_before(driver.job, epoch)
    before = places(any_sink)
    frozen_split.thaw()
    assert frozen_split.error is not None or frozen_split.results[0].skipped
    assert isinstance(frozen_log.thaw(), SinkError)
    assert "comes too late" in str(frozen_log.error)
    assert places(any_sink) == before
    assert_holds(any_sink, order(1, "5"))


@pytest.mark.pitfall(89)
@pytest.mark.parametrize("kind", sink_params((DELTA,)))
def test_a_frozen_driver_commits_nothing_old(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta compares the epoch with the last one that the table has of the job, whichever driver comes."""
    case = make_case(kind, request)
    assert isinstance(case.sink, DeltaSink)
    case.sink.prepare(case.job, [ORDERS])
    case.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    late = log_part(2, (ORDERS, [(UPDATE, order(1, "two"))]))
    gates, reached, thawed = iter([True]), threading.Event(), threading.Event()

    def freeze(name: str) -> None:
        if name == "sink.before_commit" and next(gates, False):
            reached.set()
            assert thawed.wait(200)

    monkeypatch.setattr(delta_epoch, "failpoint", freeze)
    with ThreadPoolExecutor(1) as frozen:
        writing = frozen.submit(case.write, late)
        assert reached.wait(100)
        monkeypatch.setattr(delta_epoch, "_EPOCH_VIEW", "another_driver")  # which would have a Spark of its own
        case.write(late, log_part(3, (ORDERS, [(UPDATE, order(1, "three"))])))
        before = commits_of(case.sink, ORDERS)
        thawed.set()
        writing.result()
    case.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    assert commits_of(case.sink, ORDERS) == before
    assert read_delta(case.sink, ORDERS).column("note").to_pylist() == ["three"]


def places(case: SinkCase) -> list[tuple[str, int]]:
    """The sink's visible files with their time of change, for mirrors nothing."""
    if case.kind not in FILE_SINKS:
        return []
    return sorted((str(path), path.stat().st_mtime_ns) for path in case.place.glob("[!_]*/[!_.]*"))


@pytest.mark.pitfall(90)
def test_a_log_epoch_that_is_not_the_next_one_is_refused(any_sink: SinkCase) -> None:  # noqa: F811
    driver = Driver(any_sink, 1)
    driver.write(snapshot_part(1, 1, ORDERS, [order(1)]), snapshot_part(1, 2, ORDERS, [order(2)]))
    for after in (Reached(0, 1), Reached(0, 3), Reached(1, 0)):
        with pytest.raises(SinkError, match="was set back or exchanged: epoch 2 of the log needs log epoch"):
            driver.write(log_part(2, (ORDERS, [(INSERT, order(3))]), after=after))
    driver.write(log_part(2, (ORDERS, [(INSERT, order(3))]), after=Reached(0, 2)))
    with pytest.raises(
        SinkError, match=r"needs log epoch 3 and 0 splits after it, but .* has log epoch 2 and 0 splits"
    ):
        driver.write(log_part(4, (ORDERS, [(INSERT, order(4))]), after=Reached(3, 0)))
    assert_holds(any_sink, order(1), order(2), order(3))


def history(driver: Driver) -> list[Callable[[], list[PartResult]]]:
    """The writes of a job: four splits, then the log, then splits of tables that joined, then the log."""
    return [
        lambda: driver.write(snapshot_part(1, 1, ORDERS, [order(1)]), snapshot_part(1, 2, ORDERS, [order(2)])),
        lambda: driver.write(snapshot_part(2, 3, ORDERS, [order(3)]), snapshot_part(2, 4, ORDERS, [order(4)])),
        lambda: driver.write(log_part(3, (ORDERS, [(UPDATE, order(1, "3"))]), after=Reached(0, 4))),
        lambda: driver.write(log_part(4, (ORDERS, [(UPDATE, order(1, "4"))]), after=Reached(3, 0))),
        lambda: driver.write(snapshot_part(5, 5, ITEMS, [(1, "pen", 1)])),
        lambda: driver.write(log_part(6, (ORDERS, [(UPDATE, order(1, "6"))]), after=Reached(4, 1))),
    ]


REACHED = [START, Reached(0, 2), Reached(0, 4), Reached(3, 0), Reached(4, 0), Reached(4, 1), Reached(6, 0)]
"""The target's progress after each of these writes."""


@pytest.mark.pitfall(90)
@pytest.mark.parametrize("takes_over", [False, True], ids=["the same driver", "another driver"])
def test_a_target_that_was_set_back_takes_nothing(any_sink: SinkCase, takes_over: bool) -> None:  # noqa: F811
    """Wherever the backup is from, the next log epoch is refused, and so is the next start."""
    driver = Driver(any_sink, 1)
    backups = [any_sink.back_up()]
    for epoch, write in enumerate(history(driver), 1):
        write()
        any_sink.sink.committed_before(driver.job, epoch)
        backups.append(any_sink.back_up())
    for epoch, put_back in enumerate(backups[:-1]):
        put_back()
        later = Driver(any_sink, 2 + epoch) if takes_over else driver
        with pytest.raises(SinkError, match="was set back or exchanged"):
            later.write(log_part(7, (ORDERS, [(INSERT, order(7))]), after=REACHED[-1]))
        with pytest.raises(SinkError, match="the checkpoint says that it had log epoch 6 and 0 splits"):
            require_same_time(any_sink.sink.written(later.job), REACHED[-1], committed=6, planned=6)
    backups[-1]()
    later = Driver(any_sink, 20) if takes_over else driver
    require_same_time(any_sink.sink.written(later.job), REACHED[-1], committed=6, planned=6)
    later.write(log_part(7, (ORDERS, [(INSERT, order(7))]), after=REACHED[-1]))


@pytest.mark.pitfall(90)
def test_a_target_set_back_to_another_driver_takes_nothing_at_once(any_sink: SinkCase) -> None:  # noqa: F811
    Driver(any_sink, 1)
    put_back = any_sink.back_up()
    second = Driver(any_sink, 2)
    second.write(snapshot_part(1, 1, ORDERS, [order(1)]))
    put_back()
    with pytest.raises(SinkError, match="set back or exchanged"):
        second.write(snapshot_part(1, 2, ORDERS, [order(2)]))
    assert_holds(any_sink)


@pytest.mark.pitfall(90)
def test_what_the_target_has_is_known_at_each_point_of_a_job(any_sink: SinkCase) -> None:  # noqa: F811
    """Also between the parts of an epoch, and after each driver's end."""
    for epoch, write in enumerate(history(driver := Driver(any_sink, 1))):
        job = Driver(any_sink, 1).job
        require_same_time(any_sink.sink.written(job), REACHED[epoch], committed=epoch, planned=epoch)
        require_same_time(any_sink.sink.written(job), REACHED[epoch], committed=epoch, planned=epoch + 1)
        write()
        require_same_time(any_sink.sink.written(job), REACHED[epoch], committed=epoch, planned=epoch + 1)
        any_sink.sink.committed_before(driver.job, epoch + 1)
        with pytest.raises(CheckpointError, match="the checkpoint was set back, or lost files"):
            require_same_time(any_sink.sink.written(job), REACHED[epoch], committed=epoch, planned=epoch)


def test_what_is_known_of_a_target_by_its_epochs() -> None:
    written = Written(4, {5: 2, 6: 3})
    assert [written.before(epoch) for epoch in (5, 6, 7)] == [Reached(4, 0), Reached(4, 2), Reached(4, 5)]
    assert (written.last_epoch, Written().last_epoch, Written(3).last_epoch) == (6, 0, 3)
    assert JobIdentity("uuid", "name").owner == 0
