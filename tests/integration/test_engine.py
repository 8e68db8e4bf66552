"""Epochs in the driver's own process: those that end too early, threads that share one, and Spark that takes it over."""

import itertools
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import LocalEngine, Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, start_process, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.enumerator import enumerator
from tidemark.jobs.engine import Engine
from tidemark.jobs.epoch import write_parts
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.epoch.write_parts import GivenUpError, TaskWriting
from tidemark.jobs.loop import EpochLoop
from tidemark.jobs.monitoring import events
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.startup import open_job
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError

pytestmark = pytest.mark.integration
IDS = list(range(1, 8))


@pytest.fixture
def job(mysql_database: Database, tmp_path: Path) -> Path:
    """A job whose one task has several splits. No epoch of the log comes between: other tests write to the same server."""
    mysql_database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY)", f"INSERT INTO t VALUES {', '.join(f'({i})' for i in IDS)}"
    )
    return write_job(
        tmp_path,
        source=source_of(mysql_database),
        snapshot={"split_rows": 2, "parallelism": 1, "interleave": False},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )


def run_with(job: Path, monkeypatch: pytest.MonkeyPatch, *, forgets: bool = False) -> None:
    """Runs the job, whose second epoch has several parts, however slow the machine is. It is given up after the first of
    them or, if it `forgets`, its tasks just end there."""
    monkeypatch.setattr(enumerator, "TARGET_EPOCH_SECONDS", 3600)
    settings = load_job_file(job)
    with open_job(settings, Notes(), standby=True) as opened:
        told = events.Notes()
        context = RunContext(settings, opened.held.server, opened.held.state)
        engine = LocalEngine(context, opened.writing, SparkSessions(settings, told))
        engine.phases = []
        engine.threads = 1
        if forgets:
            whole = TaskWriting.write
            monkeypatch.setattr(TaskWriting, "write", lambda *given: iter([next(whole(*given))]))
        else:
            done = itertools.count(1)
            monkeypatch.setattr(
                write_parts, "failpoint", lambda name: "after" in name and next(done) == 2 and engine.give_up()
            )
        EpochLoop(context, opened.writing, engine, RunSummary(), told, interval_seconds=None).run()


@pytest.mark.parametrize(("forgets", "kind"), [(False, GivenUpError), (True, SinkError)])
def test_an_epoch_of_which_parts_are_missing_is_not_committed(
    forgets: bool,
    kind: type[Exception],
    job: Path,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(kind):
        run_with(job, monkeypatch, forgets=forgets)
    monkeypatch.undo()
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    assert (checkpoint.plan_epochs(), checkpoint.committed_epoch()) == ([1, 2], 1)
    run_epochs(job)
    assert sorted(read_history(tmp_path / "out", mysql_database.name, "t").column("id").to_pylist()) == IDS


@pytest.fixture
def wide_job(mysql_database: Database, tmp_path: Path) -> Path:
    """A job whose tasks have many splits."""
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)", f"INSERT INTO t VALUES {rows(range(300))}")
    return write_job(
        tmp_path,
        source=source_of(mysql_database),
        snapshot={"split_rows": 5, "parallelism": 3, "interleave": False},
        sink={"type": "files", "path": str(tmp_path / "out")},
        spark={"master": "local[3]"},
    )


def rows(ids: Iterable[int]) -> str:
    return ", ".join(f"({i})" for i in ids)


def run_by_threads(job: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    """Runs the job's epochs by the threads of this process. `write` replaces the writing of a task."""
    settings = load_job_file(job)
    monkeypatch.setattr(TaskWriting, "write", write)
    with open_job(settings, Notes(), standby=True) as opened:
        told = events.Notes()
        context = RunContext(settings, opened.held.server, opened.held.state)
        engine = Engine(context, opened.writing, SparkSessions(settings, told))
        EpochLoop(context, opened.writing, engine, RunSummary(), told, interval_seconds=None).run()


def test_threads_of_the_driver_read_the_splits_of_an_epoch_side_by_side(
    wide_job: Path, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, all_here, threads = TaskWriting.write, threading.Barrier(3), set[int]()

    def write(writing: TaskWriting, *given: Any) -> Any:
        if threading.get_ident() not in threads and len(threads) < 3:
            threads.add(threading.get_ident())
            all_here.wait(60)
        return whole(writing, *given)

    run_by_threads(wide_job, monkeypatch, write)
    assert len(threads) == 3
    assert sorted(read_history(tmp_path / "out", mysql_database.name, "t").column("id").to_pylist()) == list(range(300))


def test_an_error_of_one_thread_ends_the_epoch_and_what_the_others_wrote_is_kept(
    wide_job: Path, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = TaskWriting.write, itertools.count(1)

    def write(writing: TaskWriting, *given: Any) -> Any:
        if next(calls) == 4:
            raise SinkError("The disk is full.", "Make room.")
        return whole(writing, *given)

    with pytest.raises(SinkError, match="The disk is full"):
        run_by_threads(wide_job, monkeypatch, write)
    monkeypatch.undo()
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    assert (checkpoint.plan_epochs(), checkpoint.committed_epoch()) == ([1, 2], 1)
    mysql_database.execute("INSERT INTO t VALUES (1000)")
    run_epochs(wide_job)
    assert sorted(read_history(tmp_path / "out", mysql_database.name, "t").column("id").to_pylist()) == [
        *range(300),
        1000,
    ]


TAKEN_OVER = """
import json, sys
from tidemark.jobs import cli, engine
from tidemark.jobs.spark.sessions import SparkSessions

engine.SPLITS_AT_ONCE, engine.WORTH_SECONDS = 1, 0.0
counts = {"driver": 0, "spark": 0}
stays_here, write_tasks = engine.Engine._stays_here, SparkSessions.write_tasks

def stays(self, record, rows):
    stays = stays_here(self, record, rows)
    if rows and stays:
        self._sessions._starter.join()
        stays = stays_here(self, record, rows)
        counts["driver"] += not stays
    return stays

def write(self, tasks, writing):
    written = write_tasks(self, tasks, writing)
    counts["spark"] += len(written)
    return written

engine.Engine._stays_here, SparkSessions.write_tasks = stays, write
try:
    cli.main(["run", sys.argv[1]])
finally:
    print(json.dumps(counts))
"""


@pytest.mark.timeout(300)
def test_spark_takes_over_an_epoch_that_threads_have_begun(
    wide_job: Path, mysql_database: Database, tmp_path: Path
) -> None:
    process = start_process(tmp_path, sys.executable, "-c", TAKEN_OVER, str(wide_job))
    assert process.wait(240) == 0, process.error_text()
    counts = process.events()[-1]
    assert counts["driver"] >= 1
    assert counts["spark"] > 0
    assert sorted(read_history(tmp_path / "out", mysql_database.name, "t").column("id").to_pylist()) == list(range(300))
