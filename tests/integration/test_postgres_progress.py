"""The job's slot follows its checkpoint: never ahead of what sink and checkpoint hold, and not far behind."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs import loop as jobs_loop
from tidemark.jobs.engine import Engine
from tidemark.jobs.epoch import planner
from tidemark.jobs.epoch.read_parts import read_part, tasks_of
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.loop import EpochLoop
from tidemark.jobs.monitoring import events
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.startup import open_job
from tidemark.readers.postgres.slot import held_back, slot
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.failpoints import FailpointError
from tidemark.state.plan import LogWork
from tidemark.state.position import wal_position

pytestmark = [pytest.mark.integration, pytest.mark.servers_in_turn("postgres_source_server")]


@pytest.fixture
def job(postgres_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of table `t`, which it has copied. Its slot is advanced as often as allowed."""
    monkeypatch.setattr(held_back, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(held_back, "WORK_SHARE", 0)
    postgres_source_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, uid int, version int)", "CREATE TABLE other (id int)"
    )
    source = source_of(postgres_source_database, tables=["public.t"])
    path = write_job(tmp_path, source=source, sink={"type": "files", "path": str(tmp_path / "out")})
    run_epochs(path)
    return path


def confirmed(database: Database) -> int:
    ((lsn,),) = database.query(
        "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", (database.name,)
    )
    return int(lsn)


@pytest.mark.pitfall(114)
def test_a_connection_that_is_lost_while_the_slot_is_advanced_is_opened_again(
    job: Path, postgres_source_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, one, left = postgres_source_database, slot._one, [1]

    def ended(connection: Any, sql: str, *arguments: object) -> tuple[Any, ...]:
        if "pg_replication_slot_advance" in sql and left[0]:
            left[0] -= 1
            database.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)")
        return one(connection, sql, *arguments)

    monkeypatch.setattr(slot, "_one", ended)
    before = confirmed(database)
    database.execute("INSERT INTO t VALUES (1, 1, 1)")
    run_epochs(job)
    database.execute("INSERT INTO t VALUES (2, 1, 1)")
    run_epochs(job)
    assert left == [0]
    assert confirmed(database) > before


@pytest.mark.pitfall(54, 55)
def test_what_no_sink_has_taken_is_not_given_up(job: Path, postgres_source_database: Database, tmp_path: Path) -> None:
    database, settings = postgres_source_database, load_job_file(job)
    checkpoint = Checkpoint.at(settings.checkpoint)
    database.execute("INSERT INTO t VALUES (1, 1, 1)")
    with open_job(settings, Notes()) as opened:
        context = RunContext(settings, opened.held.server, opened.held.state)
        for _ in range(2):  # a start that reads the epoch, and is killed before the sink has it
            planning = context.planner()
            planning.end_at_log_end()
            epoch = planning.next_epoch(checkpoint.committed_epoch())
            assert epoch == checkpoint.committed_epoch() + 1
            (task,) = tasks_of(context, epoch)
            assert sum(1 for _ in read_part(task)) == 2  # the row, and the part's end
            work = checkpoint.plan(epoch).plan.work
            assert isinstance(work, LogWork)
            assert confirmed(database) <= wal_position(work.range.start).lsn
    run_epochs(job)
    assert read_history(tmp_path / "out", "public", "t").column("id").to_pylist() == [1]
    run_epochs(job)
    assert confirmed(database) > wal_position(work.range.start).lsn


@pytest.mark.pitfall(54)
def test_a_run_that_dies_after_it_gave_log_up_goes_on(
    job: Path, postgres_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning lets the server drop the log of the epoch before. The run dies there, before the new plan is durable."""
    database, settings, plans = postgres_source_database, load_job_file(job), itertools.count(1)

    def die(name: str) -> None:
        if name == "planner.before_plan" and next(plans) == 2:
            monkeypatch.setattr(Checkpoint, "mark_committed", lambda *_: None)  # what is dead marks nothing
            raise FailpointError(name)

    def insert(name: str) -> None:
        if name == "driver.epoch_written":
            database.execute("INSERT INTO t VALUES (2, 2, 2)")

    monkeypatch.setattr(planner, "failpoint", die)
    monkeypatch.setattr(jobs_loop, "failpoint", insert)
    database.execute("INSERT INTO t VALUES (1, 1, 1)")
    with open_job(settings, Notes()) as opened:
        context, told = RunContext(settings, opened.held.server, opened.held.state), events.Notes()
        engine = Engine(context, opened.writing, SparkSessions(settings, told))
        loop = EpochLoop(context, opened.writing, engine, RunSummary(), told, interval_seconds=0.01)
        with pytest.raises(FailpointError):
            loop.run()
    monkeypatch.undo()
    run_epochs(job)
    assert sorted(read_history(tmp_path / "out", "public", "t").column("id").to_pylist()) == [1, 2]


@pytest.mark.pitfall(60)
def test_an_idle_table_does_not_hold_the_log_back(job: Path, postgres_source_database: Database) -> None:
    database = postgres_source_database
    for _ in range(2):
        before = confirmed(database)
        database.execute("INSERT INTO other SELECT generate_series(1, 20000)")
        ((end,),) = database.query("SELECT pg_current_wal_flush_lsn() - '0/0'")
        run_epochs(job)
        assert end - before > 1_000_000
        assert end - confirmed(database) < 100_000
