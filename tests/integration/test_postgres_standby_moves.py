"""The source is a standby. Another standby is promoted, and that of the job follows it, or is rebuilt from it
(docs/adr/0083)."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_postgres_lost_transactions import AFTERWARDS, LOST
from tests.support.epochs import LocalEngine, Notes, before_the_next_epoch, run_epochs
from tests.support.history import assert_copied, assert_newest_rows, read_history
from tests.support.jobs import source_of, write_workload_job
from tests.support.keyless import CREATE, assert_keyless_copied
from tests.support.postgres_standby import Standbys, primary_logs, two_standbys
from tests.support.workload import KEYS, UPDATE_ALL, Uids, create_tables
from tidemark.jobs.epoch.aside_reads import AsideReads, read_aside
from tidemark.jobs.epoch.read_parts import PartTask
from tidemark.state.errors import LogPositionLostError
from tidemark.state.phase import Phase
from tidemark.state.plan import Aside, LogWork, PlanRecord
from tidemark.state.split import AsideRead

pytestmark = pytest.mark.integration


@pytest.fixture(params=[pytest.param("16", marks=pytest.mark.every_server), "18"])
def servers(request: pytest.FixtureRequest) -> Iterator[Standbys]:
    with two_standbys("shop", request.param) as found:
        create_tables(found.pair.database, rows=60, uids=Uids())
        tables = ", ".join(KEYS)
        found.pair.database.execute(
            f"CREATE PUBLICATION shop FOR TABLE {tables} WITH (publish_via_partition_root = true)"
        )
        found.pair.await_standby()
        yield found


class Copy:
    """A job with a slot of its own on the standby."""

    def __init__(self, servers: Standbys, folder: Path) -> None:
        self.servers, self.folder, self.notes = servers, folder, Notes()
        folder.mkdir()
        source = source_of(
            servers.pair.promoted, standby=True, on_log_lost="stop", slot=folder.name, publication="shop"
        )
        self.job = write_workload_job(folder, source, None, job=folder.name)

    def run(self, *overrides: str, at_most: int | None = None) -> list[str]:
        return run_epochs(self.job, *overrides, notes=self.notes, at_most=at_most)

    def start(self, *overrides: str, at_most: int | None = None) -> list[str]:
        with primary_logs(self.servers.pair):
            return self.run(*overrides, at_most=at_most)

    @property
    def moved(self) -> list[str]:
        return [str(facts["text"]) for event, facts in self.notes.found if event == "moved"]

    @property
    def emptied(self) -> list[str]:
        """The tables whose copies were emptied to be read again."""
        return [
            t for t in KEYS if "truncate" in read_history(self.folder / "out", "public", t)["_change_type"].to_pylist()
        ]


def follow(servers: Standbys) -> None:
    """Nothing is lost: the other standby has all that the one of the jobs has."""
    servers.await_other()
    servers.fail_over()
    servers.follow()
    servers.promoted.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
    servers.await_standby()


def test_a_job_goes_on_when_its_standby_follows_another_primary(servers: Standbys, tmp_path: Path) -> None:
    """Also when that one is promoted itself later, which has a third timeline then."""
    running, between = (Copy(servers, tmp_path / name) for name in ("running", "between"))
    for copy in (running, between):
        copy.start()
    servers.pair.database.execute(*UPDATE_ALL)
    servers.pair.await_standby()
    between.run()
    with pytest.MonkeyPatch.context() as patch:
        before_the_next_epoch(patch, lambda: follow(servers))
        assert set(running.run()) == {"stream"}
    for copy in (running, between):
        assert set(copy.run()) <= {"stream"}
        assert ["The standby follows another primary" in text for text in copy.moved] == [True]
        assert_copied(copy.folder / "out", servers.promoted)
    servers.promoted.execute(*UPDATE_ALL)
    servers.await_standby()
    running.run()
    servers.pair.promote()
    servers.pair.promoted.execute(*UPDATE_ALL)
    for copy in (running, between):
        assert set(copy.run()) == {"stream"}
        assert_copied(copy.folder / "out", servers.pair.promoted)
        assert (len(copy.moved), copy.emptied) == (2, [])


def test_a_first_load_goes_on(servers: Standbys, tmp_path: Path) -> None:
    """Its splits have rows of after the switch: the standby only follows if it has nothing else. Also if it is restarted."""
    copies = [Copy(servers, tmp_path / name) for name in ("up", "restarted")]
    for copy in copies:
        copy.start("snapshot.interleave=false", "snapshot.split_rows=5", at_most=2)
    up = copies[0]
    with pytest.MonkeyPatch.context() as patch:
        before_the_next_epoch(patch, lambda: follow(servers))
        assert "snapshot" in up.run("snapshot.interleave=false", "snapshot.split_rows=5", at_most=3)
    servers.pair.standby.stop()
    servers.pair.standby.start()
    servers.promoted.execute(*UPDATE_ALL)
    servers.await_standby()
    for copy in copies:
        copy.run()
        assert_copied(copy.folder / "out", servers.promoted)
        assert (len(copy.moved), copy.emptied) == (1, [])


def lose(servers: Standbys, copies: list[Copy], kept: Path) -> None:
    """The jobs read what the promoted standby never gets."""
    for copy in copies:
        copy.start()
    for _ in range(2):
        servers.pair.database.execute(*UPDATE_ALL)
        servers.pair.await_standby()
        for copy in copies:
            copy.run()
    servers.await_other()
    servers.keep_slots(kept)
    servers.other.stop()
    servers.pair.database.execute(*LOST)
    servers.pair.await_standby()
    for copy in copies:
        copy.run()
    servers.fail_over()
    servers.promoted.execute(*AFTERWARDS)


def test_a_standby_that_is_made_anew_and_has_lost_the_slot(servers: Standbys, tmp_path: Path) -> None:
    copy = Copy(servers, tmp_path / "job")
    lose(servers, [copy], tmp_path / "slots")
    servers.rebuild()
    servers.await_standby()
    with pytest.raises(LogPositionLostError, match="The standby follows another primary") as caught:
        copy.run()
    assert "source.on_log_lost: resnapshot" in caught.value.remedy
    again(servers, copy)
    assert copy.emptied == list(KEYS)


def test_a_standby_that_is_made_anew_with_its_slots(servers: Standbys, tmp_path: Path) -> None:
    """As after a crash, if its archive has the new primary's log."""
    copy = Copy(servers, tmp_path / "job")
    lose(servers, [copy], tmp_path / "slots")
    servers.rebuild(tmp_path / "slots")
    servers.await_standby()
    with pytest.raises(LogPositionLostError, match="The standby follows another primary"):
        copy.run()
    again(servers, copy)
    assert "6 keys of public.orders" in copy.moved[-1]


def again(servers: Standbys, copy: Copy) -> None:
    with primary_logs(servers.now):
        copy.run("source.on_log_lost=resnapshot")
    assert_newest_rows(copy.folder / "out", servers.promoted)
    servers.promoted.execute(*UPDATE_ALL)
    servers.await_standby()
    assert copy.run() == ["stream"]
    assert_newest_rows(copy.folder / "out", servers.promoted)


def test_splits_that_have_rows_of_lost_transactions_are_read_again(servers: Standbys, tmp_path: Path) -> None:
    """The new primary gives the ids of lost transactions to others: the splits' snapshots contain these."""
    copy, one_by_one = Copy(servers, tmp_path / "job"), ("snapshot.interleave=false", "snapshot.split_rows=5")
    copy.start(*one_by_one, at_most=2)
    servers.pair.database.execute(*UPDATE_ALL)
    servers.pair.await_standby()
    servers.await_other()
    servers.keep_slots(tmp_path / "slots")
    servers.other.stop()
    servers.pair.database.execute(*(f"UPDATE {table} SET version = 900" for table in KEYS))
    servers.pair.await_standby()
    assert copy.run(*one_by_one, at_most=1) == ["snapshot"]
    servers.fail_over()
    servers.promoted.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
    servers.rebuild(tmp_path / "slots")
    servers.await_standby()
    with primary_logs(servers.now):
        copy.run(*one_by_one)
    assert_copied(copy.folder / "out", servers.promoted)
    assert copy.emptied != []


class LoadedError(Exception):
    """The first load is complete."""


def test_a_table_that_was_read_beside_the_epochs_is_read_again(servers: Standbys, tmp_path: Path, monkeypatch) -> None:
    """The read is done, but its chunks are not released yet. It has rows of transactions that the new primary lacks."""
    database, copy, kept = servers.pair.database, Copy(servers, tmp_path / "job"), tmp_path / "slots"
    database.execute(*CREATE, "ALTER PUBLICATION shop ADD TABLE t")
    servers.pair.await_standby()
    copy.start(at_most=1)
    may_read, is_read = threading.Event(), threading.Event()
    reads: list[AsideRead] = []

    def reading(task: PartTask) -> AsideRead:
        assert may_read.wait(60)
        try:
            reads.append(next(read_aside([task])))
        finally:
            is_read.set()
        return reads[-1]

    is_small = LocalEngine.is_small

    def acting(engine: LocalEngine, record: PlanRecord) -> bool:
        is_aside = any(isinstance(table.cursor, Aside) for table in record.state.tables)
        if record.plan.phase is Phase.STREAM:
            raise LoadedError
        if is_aside and isinstance(record.plan.work, LogWork) and not may_read.is_set():
            servers.await_other()
            servers.keep_slots(kept)
            servers.other.stop()
            database.execute("INSERT INTO t VALUES (1, 900, 'lost')", "DELETE FROM t WHERE uid = 2")
            servers.pair.await_standby()
            with primary_logs(servers.pair):
                may_read.set()
                assert is_read.wait(60)
            servers.fail_over()
            servers.promoted.execute(*UPDATE_ALL, "DELETE FROM t WHERE uid = 3")
            servers.rebuild(kept)
            servers.await_standby()
        elif may_read.is_set():
            servers.promoted.execute("UPDATE orders SET version = version + 1 WHERE id = 1")
        return is_small(engine, record)

    monkeypatch.setattr(LocalEngine, "is_small", acting)
    with pytest.raises(LoadedError):
        run_epochs(copy.job, notes=copy.notes, interval_seconds=0.01, aside=AsideReads(reading))
    monkeypatch.setattr(LocalEngine, "is_small", is_small)
    servers.await_standby()
    copy.run()
    assert len(copy.moved) == 1
    assert_keyless_copied(copy.folder, servers.promoted)
    assert len(reads) == 2
