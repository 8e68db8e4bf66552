"""The log is read in between while splits are still being read (spec/Lanes.tla)."""

import threading
import time
from pathlib import Path

import pytest

from tests.integration.test_postgres_visibility import database, invisible
from tests.support.epochs import run_epochs
from tests.support.history import assert_copied, read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.phase import Phase
from tidemark.state.plan import LogWork, PlanRecord

__all__ = ["database"]

pytestmark = [pytest.mark.integration, pytest.mark.servers_in_turn(always="postgres18_server")]


def job_of(database: Database, folder: Path, **snapshot: object) -> Path:
    return write_job(
        folder,
        source=source_of(database),
        checkpoint=str(folder / "checkpoint"),
        snapshot={"split_rows": 20, "parallelism": 2, **snapshot},
        sink={"type": "files", "path": str(folder / "out")},
    )


def plans(folder: Path) -> list[PlanRecord]:
    checkpoint = Checkpoint.at(str(folder / "checkpoint"))
    return [checkpoint.plan(epoch) for epoch in checkpoint.plan_epochs()]


def followed(folder: Path) -> list[PlanRecord]:
    """The plans that read the log while splits were left."""
    return [r for r in plans(folder) if r.plan.phase is Phase.SNAPSHOT and isinstance(r.plan.work, LogWork)]


@pytest.mark.pitfall(4)
@pytest.mark.pitfall(87)
@pytest.mark.parametrize("sink", ["files", "mirror"])
def test_the_copy_is_right_with_writers_beside_it(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path, sink: str
) -> None:
    source, uids = any_source_database, Uids()
    create_tables(source, rows=240, uids=uids)
    job = job_of(source, tmp_path)
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    if sink == "mirror":
        job = write_job(
            tmp_path,
            source=source_of(source),
            checkpoint=str(tmp_path / "checkpoint"),
            snapshot={"split_rows": 20, "parallelism": 2},
            sink={"type": "mirror", "url": target.url, "table": "copy_{table}"},
        )
    with Writers(source, uids, count=2, seed=11, pause_seconds=0.02):
        for at_most in (1, 2, 3, None):  # each time another driver goes on
            run_epochs(job, at_most=at_most)
    run_epochs(job)
    assert len(followed(tmp_path)) > 3
    if sink == "files":
        assert_copied(tmp_path / "out", source)
        return
    for table, key in {"orders": "id", "customers": "code", "order_lines": "order_id, line_no"}.items():
        rows = f"SELECT {key}, uid, version FROM %s ORDER BY uid"
        assert target.query(rows % f"copy_{table}") == source.query(rows % table), table


@pytest.mark.parametrize("interleave", [True, False])
def test_rows_are_read_no_faster_than_allowed_and_the_log_is_followed_meanwhile(
    any_source_database: Database, tmp_path: Path, interleave: bool
) -> None:
    """600 rows at 300 a second take at least as long as the epochs before the last one: 300 rows and more."""
    source, uids = any_source_database, Uids()
    create_tables(source, rows=200, uids=uids)
    job = job_of(source, tmp_path, max_rows_per_second=300, interleave=interleave)
    began = time.monotonic()
    with Writers(source, uids, count=1, seed=12, pause_seconds=0.02):
        run_epochs(job)
    assert time.monotonic() - began >= 1
    run_epochs(job)
    assert_copied(tmp_path / "out", source)
    assert bool(followed(tmp_path)) == interleave


def test_changes_of_finished_splits_are_visible_before_the_last_split_is_read(
    any_source_database: Database, tmp_path: Path
) -> None:
    database = any_source_database
    create_tables(database, rows=200, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job, at_most=1)
    for place in (0, 100):  # the first split has been read, one in the middle has not
        (code,) = database.query(f"SELECT code FROM customers ORDER BY code LIMIT 1 OFFSET {place}")[0]
        database.execute(f"UPDATE customers SET version = 2 WHERE code = '{code}'")
    run_epochs(job, at_most=1)
    (record,) = followed(tmp_path)
    history = read_history(tmp_path / "out", database.schema, "customers")
    assert history["_change_type"].to_pylist().count("update_postimage") == 1, "that of the unread split is withheld"
    assert record.state.tables[0].done_splits < 10
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    later = next(r for r in plans(tmp_path) if r.plan.epoch == record.plan.epoch + 1)
    assert later.state.position.order > record.state.position.order, "the log before it is not needed any more"


def test_without_it_the_log_is_read_after_the_last_split(any_source_database: Database, tmp_path: Path) -> None:
    database, uids = any_source_database, Uids()
    create_tables(database, rows=100, uids=uids)
    job = job_of(database, tmp_path, interleave=False)
    with Writers(database, uids, count=1, seed=5, pause_seconds=0.01):
        run_epochs(job)
    assert not followed(tmp_path)
    run_epochs(job)
    assert_copied(tmp_path / "out", database)


@pytest.mark.pitfall(3)
def test_splits_wait_for_commits_that_the_log_has_passed_and_nobody_sees(database: Database, tmp_path: Path) -> None:
    create_tables(database, rows=200, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job, at_most=1)
    running = threading.Thread(target=run_epochs, args=(job,))
    with invisible(
        database,
        "UPDATE customers SET version = 2",
        "UPDATE orders SET version = 2",
        "DELETE FROM order_lines WHERE uid % 2 = 0",
    ):
        run_epochs(job, at_most=1)
        assert followed(tmp_path)[0].state.unseen == (), "known once the epoch was read"
        running.start()
        time.sleep(1.5)  # time to go wrong: nothing happens that could be waited for
        assert running.is_alive()
        assert all(isinstance(record.plan.work, LogWork) for record in plans(tmp_path)[1:])
    running.join(60)
    assert not running.is_alive()
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
