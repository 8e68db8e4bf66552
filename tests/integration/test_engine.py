"""Epochs that end too early in the driver's own process."""

import itertools
from pathlib import Path

import pytest

from tests.support.epochs import LocalEngine, Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.enumerator import enumerator
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
