"""A table leaves a job by source.exclude_tables. Its copy stays, and the other tables go on."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.history import assert_history, read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.workload import KEYS, UPDATE_ALL, Uids, Writers, create_tables
from tidemark.state.checkpoint.layout import Checkpoint, log_report_file
from tidemark.state.errors import CheckpointError, TidemarkError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]


def job_of(
    database: Database, folder: Path, *excluded: str, sink: dict[str, Any] | None = None, **snapshot: Any
) -> Path:
    source = source_of(database)
    return write_job(
        folder,
        source=source | {"exclude_tables": [f"{database.schema}.{table}" for table in excluded]},
        checkpoint=str(folder / "checkpoint"),
        snapshot=snapshot,
        sink=sink or {"type": "files", "path": str(folder / "out")},
    )


def assert_equal(folder: Path, database: Database, *tables: str) -> None:
    for table in tables:
        key = KEYS[table]
        rows = database.query(f"SELECT uid, version, {', '.join(key)} FROM {table}")
        history = read_history(folder / "out", database.schema, table)
        assert_history(history, {row[2:]: row[:2] for row in rows}, name=table, key=key)


@pytest.mark.parametrize("change", ["ALTER TABLE customers ADD COLUMN more INT", "DROP TABLE customers"])
def test_a_table_that_stops_the_job_is_left_out_and_the_others_go_on(
    any_source_database: Database, tmp_path: Path, change: str
) -> None:
    database = any_source_database
    create_tables(database, rows=40, uids=Uids())
    run_epochs(job_of(database, tmp_path))
    count = read_history(tmp_path / "out", database.schema, "customers").num_rows
    database.execute(*UPDATE_ALL, change)
    if not change.startswith("DROP"):
        database.execute("UPDATE customers SET version = version + 1")
    with pytest.raises(TidemarkError) as caught:
        run_epochs(job_of(database, tmp_path))
    assert caught.value.exit_code in {3, 4}
    if not change.startswith("DROP"):
        assert "name it in source.exclude_tables" in caught.value.remedy
    job = job_of(database, tmp_path, "customers")
    run_epochs(job, notes=(notes := Notes()))
    assert [facts["table"] for event, facts in notes.found if event == "left"] == [f"{database.schema}.customers"]
    assert_equal(tmp_path, database, "orders", "order_lines")
    database.execute("UPDATE orders SET version = version + 1", "DELETE FROM order_lines WHERE line_no = 1")
    run_epochs(job, notes=(again := Notes()))
    assert "left" not in [event for event, _ in again.found]
    assert_equal(tmp_path, database, "orders", "order_lines")
    assert read_history(tmp_path / "out", database.schema, "customers").num_rows == count, "its copy stays as it is"


def test_a_table_is_not_taken_for_one_that_never_left_if_the_checkpoint_loses_the_file(
    mysql_database: Database, tmp_path: Path
) -> None:
    database = mysql_database
    create_tables(database, rows=20, uids=Uids())
    run_epochs(job_of(database, tmp_path))
    run_epochs(job_of(database, tmp_path, "customers"))
    database.execute(*UPDATE_ALL)
    run_epochs(job_of(database, tmp_path, "customers"))
    (left,) = (tmp_path / "checkpoint" / "left").iterdir()
    kept = left.read_bytes()
    left.unlink()
    with pytest.raises(CheckpointError, match="has lost its file `left/0000000001`"):
        run_epochs(job_of(database, tmp_path))
    (tmp_path / "checkpoint" / "cuts").rename(tmp_path / "cuts")
    with pytest.raises(CheckpointError, match=r"customers had left the job before epoch"):
        run_epochs(job_of(database, tmp_path))
    shutil.rmtree(tmp_path / "checkpoint" / "cuts")
    (tmp_path / "cuts").rename(tmp_path / "checkpoint" / "cuts")
    left.write_bytes(kept)
    run_epochs(job_of(database, tmp_path))
    assert_equal(tmp_path, database, "customers")
    left.unlink()  # the table came back since
    with pytest.raises(CheckpointError, match="has lost its file `left/0000000001`"):
        run_epochs(job_of(database, tmp_path))


def test_a_table_leaves_while_rows_are_copied(any_source_database: Database, tmp_path: Path) -> None:
    """With its splits half read, with changes beside it, and each time with another driver."""
    database, uids = any_source_database, Uids()
    create_tables(database, rows=200, uids=uids)
    sizes = {"split_rows": 20, "parallelism": 2}
    with Writers(database, uids, count=1, seed=7, pause_seconds=0.02):
        run_epochs(job_of(database, tmp_path, **sizes), at_most=3)
        for at_most in (2, 1, None):
            run_epochs(job_of(database, tmp_path, "customers", **sizes), at_most=at_most)
    run_epochs(job_of(database, tmp_path, "customers", **sizes))
    assert_equal(tmp_path, database, "orders", "order_lines")


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("sink", ["files", "mirror"])
def test_a_report_of_a_driver_that_was_frozen_comes_late(
    any_source_database: Database, postgres_database: Database, tmp_path: Path, sink: str
) -> None:
    """The next driver reads the epoch without a table that has left meanwhile."""
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    mirror = {"type": "mirror", "url": postgres_database.url, "table": "{table}"}
    into = mirror if sink == "mirror" else None
    run_epochs(job_of(database, tmp_path, sink=into))
    database.execute(*UPDATE_ALL)
    die_at(job_of(database, tmp_path, sink=into), "sink.before_commit")
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    report = tmp_path / "checkpoint" / log_report_file(max(checkpoint.plan_epochs()))
    late = report.read_bytes()
    report.unlink()  # it is not written yet
    job = job_of(database, tmp_path, "customers", sink=into)
    die_at(job, "signals.left")
    report.write_bytes(late)
    run_epochs(job)
    for table in ("orders", "order_lines"):
        if sink == "files":
            assert_equal(tmp_path, database, table)
        else:
            rows = f"SELECT uid, version FROM {table} ORDER BY uid"
            assert postgres_database.query(rows) == database.query(rows)


@pytest.mark.servers_in_turn
@pytest.mark.parametrize(
    "point", ["log.before_report", "sink.before_commit", "sink.after_commit", "driver.epoch_written"]
)
def test_an_epoch_that_was_read_keeps_its_content(any_source_database: Database, tmp_path: Path, point: str) -> None:
    """The run dies in an epoch of the log; then the table is excluded. An epoch that the target has keeps the table's changes.
    One that it provably lacks is read again, without the table."""
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    run_epochs(job_of(database, tmp_path))
    before = read_history(tmp_path / "out", database.schema, "customers")
    database.execute(*UPDATE_ALL)
    die_at(job_of(database, tmp_path), point)
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    was_read = checkpoint.has_log_report(max(checkpoint.plan_epochs()))
    assert was_read == (point != "log.before_report")
    was_written = point in {"sink.after_commit", "driver.epoch_written"}
    job = job_of(database, tmp_path, "customers")
    run_epochs(job, notes=(notes := Notes()))
    assert [event for event, _ in notes.found if event in {"left", "resumed"}][-2:] == ["left", "resumed"]
    assert_equal(tmp_path, database, "orders", "order_lines")
    if was_written:
        assert_equal(tmp_path, database, "customers")
    else:
        assert read_history(tmp_path / "out", database.schema, "customers").equals(before)
    run_epochs(job)
    database.execute(*UPDATE_ALL)
    run_epochs(job)
    assert_equal(tmp_path, database, "orders", "order_lines")
