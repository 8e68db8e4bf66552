"""The source is a standby that was restarted, and has replayed less than the job knows (docs/adr/0058)."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, before_the_next_epoch, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.postgres_standby import Pair, own_database, primary_and_standby, primary_logs
from tidemark.jobs.epoch.planner import Planner

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with primary_and_standby("shop", "18", max_prepared_transactions=10) as servers:
        yield servers


@pytest.fixture
def pair(shared: Pair, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with own_database(shared, f"d{abs(hash(request.node.name)) % 10**9}") as own:
        yield own


def flush(pair: Pair) -> None:
    """The standby does not go back behind this when it restarts."""
    pair.database.query("SELECT 1 FROM (SELECT pg_switch_wal()) AS s")
    pair.database.execute("CHECKPOINT")
    pair.await_standby()
    pair.promoted.execute("CHECKPOINT")


def fall_back(pair: Pair, *, release_after: float) -> threading.Timer:
    """Restarts the standby, which replays no commit since the last `flush` before it is released."""
    pair.promoted.execute("ALTER SYSTEM SET recovery_min_apply_delay = '1h'")
    pair.standby.kill()
    pair.standby.start()

    def release() -> None:
        pair.promoted.execute("ALTER SYSTEM RESET recovery_min_apply_delay")
        pair.promoted.query("SELECT pg_reload_conf()")

    timer = threading.Timer(release_after, release)
    timer.start()
    return timer


@contextmanager
def fallen_back(pair: Pair, *, release_after: float = 3) -> Iterator[None]:
    timer = fall_back(pair, release_after=release_after)
    try:
        yield
    finally:
        timer.join()


def job_of(pair: Pair, folder: Path, **source: Any) -> Path:
    return write_job(
        folder,
        source=source_of(
            pair.promoted, standby=True, tables=["public.*"], on_log_lost="stop", on_table_error="park", **source
        ),
        sink={"type": "files", "path": str(folder / "out"), "on_schema_change": "evolve"},
    )


def told(notes: Notes) -> list[str]:
    """How the job lists its tables."""
    return [f"{event} {facts.get('text')}" for event, facts in notes.found if facts.get("table")]


def live(pair: Pair, job: Path) -> None:
    """The job has read a change of `t`, and is in phase stream."""
    pair.database.execute("UPDATE t SET a = 5 WHERE id = 1")
    pair.await_standby()
    assert run_epochs(job)[-1] in ("catch_up", "stream")


def publish_all(pair: Pair) -> None:
    pair.database.execute(f"CREATE PUBLICATION {pair.database.name} FOR ALL TABLES")
    pair.await_standby()


def test_a_column_that_the_job_has_is_not_missed_at_a_start(pair: Pair, tmp_path: Path) -> None:
    pair.database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    publish_all(pair)
    job = job_of(pair, tmp_path)
    with primary_logs(pair):
        run_epochs(job)
    live(pair, job)
    flush(pair)
    pair.database.execute("ALTER TABLE t ADD COLUMN b int", "INSERT INTO t VALUES (2, 2, 2)")
    pair.await_standby()
    run_epochs(job)
    with fallen_back(pair):
        notes = Notes()
        run_epochs(job, notes=notes)
    assert told(notes) == []
    pair.database.execute("INSERT INTO t VALUES (3, 3, 3)")
    pair.await_standby()
    run_epochs(job, notes=notes)
    assert told(notes) == []
    assert sorted(read_history(tmp_path / "out", "public", "t")["id"].to_pylist()) == [1, 1, 2, 3]


def test_a_table_that_the_job_has_is_not_missed_at_a_start(pair: Pair, tmp_path: Path) -> None:
    pair.database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    publish_all(pair)
    job = job_of(pair, tmp_path)
    with primary_logs(pair):
        run_epochs(job)
    live(pair, job)
    flush(pair)
    pair.database.execute("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (7)")
    pair.await_standby()
    run_epochs(job)
    with fallen_back(pair):
        notes = Notes()
        run_epochs(job, notes=notes)
    assert told(notes) == []
    assert read_history(tmp_path / "out", "public", "u")["id"].to_pylist() == [7]


def test_a_partition_that_the_job_has_seen_is_not_missed_while_it_runs(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "INSERT INTO t VALUES (1, 1)",
        f"CREATE PUBLICATION {pair.database.name} FOR TABLE t WITH (publish_via_partition_root = true)",
    )
    pair.await_standby()
    job = job_of(pair, tmp_path)
    with primary_logs(pair):
        run_epochs(job)
    live(pair, job)
    flush(pair)
    pair.database.execute(
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (100) TO (200)", "INSERT INTO t VALUES (101, 1)"
    )
    pair.await_standby()
    next_epoch, calls, timers = Planner.next_epoch, [], []

    def acting(planner: Planner, committed: int, **settings: Any) -> int:
        calls.append(committed)
        if len(calls) == 2:
            timers.append(fall_back(pair, release_after=3))
        return next_epoch(planner, committed, **settings)

    monkeypatch.setattr(Planner, "next_epoch", acting)
    notes = Notes()
    run_epochs(job, notes=notes)
    timers[0].join()
    assert told(notes) == []
    assert sorted(read_history(tmp_path / "out", "public", "t")["id"].to_pylist()) == [1, 1, 101]


def test_what_a_split_has_is_waited_for_while_it_runs(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The split was read after the last look at the log."""
    pair.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t SELECT i, i FROM generate_series(1, 9) i"
    )
    publish_all(pair)
    job = job_of(pair, tmp_path)
    with primary_logs(pair):
        run_epochs(job, at_most=0)
    flush(pair)
    next_epoch, calls, timers = Planner.next_epoch, [], []

    def acting(planner: Planner, committed: int, **settings: Any) -> int:
        calls.append(committed)
        if len(calls) == 2:
            timers.append(fall_back(pair, release_after=3))
        return next_epoch(planner, committed, **settings)

    def write() -> None:
        pair.database.execute("INSERT INTO t VALUES (100, 1)")
        pair.await_standby()

    monkeypatch.setattr(Planner, "next_epoch", acting)
    before_the_next_epoch(monkeypatch, write)
    run_epochs(job, "snapshot.interleave=false", "snapshot.split_rows=3", "snapshot.parallelism=1")
    timers[0].join()
    assert sorted(read_history(tmp_path / "out", "public", "t")["id"].to_pylist()) == [*range(1, 10), 100]
