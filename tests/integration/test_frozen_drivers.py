"""A driver freezes while it heals its job. Another one takes the job over. The first one goes on, and harms nothing."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.epochs import die_at, run_epochs
from tests.support.frozen import end_lease, frozen_at, of_another_process
from tests.support.jobs import source_of, write_job
from tests.support.restoring import backups_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs import startup
from tidemark.jobs.commands.signal import set_settings
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.jobs.sources import acquire_lease
from tidemark.jobs.tables import parking
from tidemark.state.checkpoint.layout import Checkpoint, log_report_file
from tidemark.state.errors import JobHeldError, TablesParkedError
from tidemark.state.job_state import Left

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(89)]


@pytest.fixture
def source(mysql_database: Database) -> Database:
    mysql_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
        "CREATE TABLE items (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO orders VALUES (1, 'first'), (2, 'first')",
        "INSERT INTO items VALUES (1, 'first'), (2, 'first')",
    )
    return mysql_database


def job_into(folder: Path, source: Database, sink: dict[str, Any]) -> Path:
    given = source_of(source, on_table_error="park", on_log_lost="resnapshot")
    return write_job(folder, source=given, sink=sink | {"on_schema_change": "evolve"})


def mirror_into(target: Database) -> dict[str, Any]:
    url = target.url if target.kind == "postgres" else f"{target.server.url}{target.name}"
    return {"type": "mirror", "url": url, "table": "copy_{table}"}


def copied(target: Database, source: Database, table: str) -> list[tuple[Any, ...]]:
    columns = ", ".join(column for column, *_ in source.query(f"SHOW COLUMNS FROM {table}"))
    return target.query(f"SELECT {columns} FROM copy_{table} ORDER BY id")


def rows_of_files(folder: Path) -> dict[int, str]:
    """Returns the notes by id."""
    changes = [row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    found: dict[int, str] = {}
    for row in sorted(changes, key=lambda row: (row["_commit_version"], row["_seq"])):
        if row["_change_type"] == "truncate":
            found.clear()
        else:
            found[row["id"]] = row["note"]
    return found


@pytest.mark.parametrize("kind", ["postgres", pytest.param("mysql_nogtid", marks=pytest.mark.every_server), "files"])
def test_a_driver_that_was_frozen_does_not_write_an_epoch_whose_report_was_removed(
    source: Database, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """It has read an epoch, and freezes before it writes it. The next driver finds a copy that is older than its ALTER, removes
    what was read, so that the table may leave, and dies."""
    target = None if kind == "files" else request.getfixturevalue(f"{kind}_database")
    sink = {"type": "files", "path": str(tmp_path / "out")} if target is None else mirror_into(target)
    job = job_into(tmp_path, source, sink)
    run_epochs(job)
    source.execute("ALTER TABLE orders ADD COLUMN amount INT", "UPDATE items SET note = 'second' WHERE id = 1")
    another = of_another_process(job)
    with frozen_at(tmp_path, "log.after_report", lambda: run_epochs(job, another)) as frozen:
        if target is None:
            shutil.rmtree(tmp_path / "out" / f"{source.schema}.orders")
        else:
            target.execute("ALTER TABLE copy_orders DROP COLUMN amount")
        end_lease(source, job)
        die_at(job, "set_back.left")
        assert isinstance(frozen.thaw(), JobHeldError)
    source.execute("UPDATE orders SET amount = 5", "INSERT INTO items VALUES (3, 'third')")
    for _ in range(2):
        run_epochs(job)
        for table in ("orders", "items"):
            if target is None:
                expected = dict(source.query(f"SELECT id, note FROM {table}"))
                assert rows_of_files(tmp_path / "out" / f"{source.schema}.{table}") == expected
            else:
                assert copied(target, source, table) == source.query(f"SELECT * FROM {table} ORDER BY id")
        source.execute("UPDATE orders SET note = 'fourth' WHERE id = 1")


@pytest.mark.parametrize("ends", ["ends", "is killed"])
def test_a_driver_that_was_frozen_while_it_started_the_job_does_not_take_it_back(
    source: Database, postgres_database: Database, tmp_path: Path, ends: str
) -> None:
    """It has written the job's state, and has no number yet. The other one has planned since, and perhaps must be continued."""
    job = job_into(tmp_path, source, mirror_into(postgres_database))
    (tmp_path / "checkpoint").mkdir()
    another, checkpoint = of_another_process(job), Checkpoint.at(str(tmp_path / "checkpoint"))
    with frozen_at(tmp_path, "startup.created", lambda: run_epochs(job, another)) as frozen:
        end_lease(source, job)
        run_epochs(job) if ends == "ends" else die_at(job, "sink.before_commit")
        source.execute("UPDATE items SET note = 'second' WHERE id = 1")
        plans = checkpoint.plan_epochs()
        assert plans
        assert isinstance(frozen.thaw(), JobHeldError)
        assert (checkpoint.plan_epochs(), checkpoint.newest_owner()) == (plans, 1)
    run_epochs(job)
    for table in ("orders", "items"):
        assert copied(postgres_database, source, table) == source.query(f"SELECT * FROM {table} ORDER BY id")


@pytest.mark.parametrize("successor", ["has ended", "has begun"])
def test_a_driver_that_was_frozen_while_its_only_table_waits_answers_no_signal_of_its_successor(
    source: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, successor: str
) -> None:
    job = job_into(tmp_path, source, mirror_into(postgres_database))
    checkpoint, another = Checkpoint.at(str(tmp_path / "checkpoint")), of_another_process(job)
    only = EXCLUDED.format(schema=source.schema)
    run_epochs(job, only)
    state = checkpoint.job_state()
    assert state is not None
    (schema,) = state.schemas
    waits = Left(schema.table, schema.version, "It was altered.", parking.present_us(), parking.MAX_HEALS + 1)
    checkpoint.create_left(state, (waits,))
    monkeypatch.setattr(startup, "WAIT_SECONDS", 0.0)
    with frozen_at(tmp_path, "startup.waits", lambda: run_epochs(job, another, only, "trigger=1s")) as frozen:
        end_lease(source, job)
        if successor == "has ended":
            with pytest.raises(TablesParkedError):
                run_epochs(job, only)
        settings = load_job_file(job)
        with acquire_lease(settings, wait=True) if successor == "has begun" else contextlib.nullcontext():
            set_settings(settings, ["snapshot.parallelism=3"])
            assert isinstance(frozen.thaw(), JobHeldError)
            ((_, answer),) = checkpoint.signals().values()
            assert answer is None


EXCLUDED = 'source.exclude_tables=["{schema}.orders"]'


@pytest.mark.parametrize(
    "point",
    [
        "rollback.before_forgetting",
        "set_back",
        "late_report.lacks",
        "parking.lacks",
        "signals.joined",
        "checkpoint.again",
    ],
)
def test_a_driver_that_was_frozen_removes_no_report_of_its_successor(
    source: Database, postgres_database: Database, tmp_path: Path, point: str
) -> None:
    """It freezes just before it would remove a report, or between its look whether it is still the driver and that. The other
    driver has read that epoch, and a later one."""
    job = job_into(tmp_path, source, mirror_into(postgres_database))
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    another, excluded = of_another_process(job), EXCLUDED.format(schema=source.schema)
    with backups_of(postgres_database) as backups:
        run_epochs(job)
        source.execute("UPDATE items SET note = 'second' WHERE id = 1")
        run_epochs(job)
        put_back, committed = backups.take(), checkpoint.committed_epoch()
        source.execute("UPDATE items SET note = 'third'", "UPDATE orders SET note = 'third'")
        act: Callable[[], object] = lambda: run_epochs(job, another)  # noqa: E731
        match point:
            case "rollback.before_forgetting":
                die_at(job, "sink.before_commit")
                act = lambda: roll_back(load_job_file(job, [another]), committed, standby=True)  # noqa: E731
            case "set_back":
                run_epochs(job)
                source.execute("DELETE FROM items WHERE id = 2")
                die_at(job, "sink.before_commit")
                put_back()
            case "late_report.lacks":
                die_at(job, "sink.before_commit")
                report = tmp_path / "checkpoint" / log_report_file(committed + 1)
                late = report.read_bytes()
                report.unlink()
                die_at(job, "signals.left", excluded)
                report.write_bytes(late)
            case "parking.lacks" | "checkpoint.again":
                die_at(job, "sink.before_commit")
                act = lambda: run_epochs(job, another, excluded)  # noqa: E731
        at = "rollback.before_forgetting" if point == "set_back" else point
        with frozen_at(tmp_path, at, act) as frozen:
            end_lease(source, job)
            run_epochs(job)
            source.execute("INSERT INTO items VALUES (9, 'ninth')")
            die_at(job, "sink.before_commit")
            epochs = checkpoint.plan_epochs()
            reports = [epoch for epoch in epochs if checkpoint.has_log_report(epoch)]
            assert epochs[-1] in reports
            assert isinstance(frozen.thaw(), JobHeldError)
            assert [epoch for epoch in epochs if checkpoint.has_log_report(epoch)] == reports
        for _ in range(2):
            run_epochs(job)
            for table in ("orders", "items"):
                assert copied(postgres_database, source, table) == source.query(f"SELECT * FROM {table} ORDER BY id")
            source.execute("UPDATE orders SET note = 'last' WHERE id = 1")
