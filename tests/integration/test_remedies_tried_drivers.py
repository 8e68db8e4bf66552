"""Remedies for two drivers that run one job at the same time, done as they are printed: one of them goes on, and its copies are
those of the source."""

import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, before_the_next_epoch, run_epochs
from tests.support.frozen import end_lease
from tests.support.jobs import BY_DRIVER, running
from tests.support.leases import wait_until
from tests.support.remedy_ways import mirror_job, require_copies, told_by, told_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.startup import open_job
from tidemark.readers.lease import checkpoint_lock
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobHeldError

pytestmark = pytest.mark.integration

ONE_DRIVER = "Only one driver may run a job: stop the others, then start one."
TAKEN_OVER = "If the other driver runs, leave the job to it. If none runs, start the job again."
LEASE_LOST = "Check the connection to the source. Run the job again when no other driver runs it."


def a_job(folder: Path, source: Database, target: Database) -> Path:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    return mirror_job(folder, source, target)


def change(source: Database) -> None:
    source.execute(
        "INSERT INTO orders SELECT max(id) + 1, 'b' FROM orders", "UPDATE orders SET note = 'z' WHERE id = 1"
    )


def another_driver(source: Database, job: Path) -> None:
    end_lease(source, job)
    run_epochs(job)
    change(source)


def test_a_driver_that_plans_what_another_one_has_planned(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It froze before it wrote a plan, and goes on when the other one has ended."""
    source, target = mysql_database, postgres_database
    job = a_job(tmp_path, source, target)
    run_epochs(job)
    change(source)
    create_plan, others = Checkpoint.create_plan, [lambda: another_driver(source, job)]

    def frozen(checkpoint: Checkpoint, record: Any) -> None:
        if others:
            others.pop()()
        create_plan(checkpoint, record)

    monkeypatch.setattr(Checkpoint, "create_plan", frozen)
    told_of(job, ONE_DRIVER)
    assert told_by(job) is None
    require_copies(source, target)


def test_a_driver_that_writes_what_another_one_has_written(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It froze before it read an epoch."""
    source, target = mysql_database, postgres_database
    job = a_job(tmp_path, source, target)
    run_epochs(job)
    change(source)
    before_the_next_epoch(monkeypatch, lambda: another_driver(source, job))
    told_of(job, TAKEN_OVER)
    assert told_by(job) is None
    require_copies(source, target)


def test_a_checkpoint_that_has_forgotten_drivers(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """An older copy of it was put back. No epoch had run since."""
    source, target, checkpoint = mysql_database, postgres_database, tmp_path / "checkpoint"
    job = a_job(tmp_path, source, target)
    run_epochs(job)
    shutil.copytree(checkpoint, tmp_path / "saved")
    for _ in range(2):
        run_epochs(job)
    shutil.rmtree(checkpoint)
    (tmp_path / "saved").rename(checkpoint)
    change(source)
    told_of(job, TAKEN_OVER)
    assert told_by(job) is None
    require_copies(source, target)


@pytest.mark.every_server
def test_a_driver_that_has_lost_its_lease(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """Another one waits for it, as one with --standby does."""
    source, target = mysql_database, postgres_database
    job = a_job(tmp_path, source, target)
    run_epochs(job)
    lock = checkpoint_lock(load_job_file(job).checkpoint)
    with running(job, *BY_DRIVER, "--set", "trigger=1s") as process, closing(source.connect()) as connection:
        wait_until(lambda: source.query("SELECT IS_USED_LOCK(%s)", (lock,)) != [(None,)])
        cursor = connection.cursor()
        waiting = threading.Thread(target=cursor.execute, args=("SELECT GET_LOCK(%s, 60)", (lock,)))
        waiting.start()
        wait_until(lambda: source.query("SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"))
        end_lease(source, job)
        waiting.join()
        assert process.wait() == 6
        assert LEASE_LOST in process.error_text()
        change(source)
        with pytest.raises(JobHeldError), open_job(load_job_file(job), Notes()):
            pass
    assert told_by(job) is None
    require_copies(source, target)
