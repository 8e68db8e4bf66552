"""A run dies when the target has all of an epoch, before the checkpoint says so. Then somebody breaks a copy."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.test_frozen_drivers import copied, job_into, mirror_into, rows_of_files
from tests.support.cli import CommandLine
from tests.support.epochs import Notes, before_the_next_epoch, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import remedy_of, run_command, what_is_told
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration


@pytest.mark.servers_in_turn("point", "break_copy")
@pytest.mark.parametrize("point", ["sink.after_commit", "driver.epoch_written"])
@pytest.mark.parametrize(
    "break_copy",
    [
        "ALTER TABLE copy_orders DROP COLUMN note",
        "DROP TABLE copy_orders",
        "ALTER TABLE copy_orders DROP CONSTRAINT copy_orders_pkey",
    ],
)
def test_only_the_table_of_the_broken_copy_is_parked(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, break_copy: str, point: str
) -> None:
    source, target = mysql_database, postgres_database
    for table in ("orders", "items"):
        source.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, note TEXT)", f"INSERT INTO {table} VALUES (1, 'first')"
        )
    job = job_into(tmp_path, source, mirror_into(target))
    run_epochs(job)
    change = "INSERT INTO {} SELECT max(id) + 1, 'next' FROM {}"
    for table in ("orders", "items"):
        source.execute(change.replace("{}", table))
    die_at(job, point)
    target.execute(break_copy)
    for table in ("orders", "items"):
        source.execute(change.replace("{}", table))
    run_epochs(job)
    assert copied(target, source, "items") == source.query("SELECT * FROM items ORDER BY id")
    state = Checkpoint.at(str(tmp_path / "checkpoint")).job_state()
    assert state is not None
    assert state.left_tables == {TableId(source.schema, "orders")}
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")])
    run_epochs(job)
    for table in ("orders", "items"):
        assert copied(target, source, table) == source.query(f"SELECT * FROM {table} ORDER BY id")


def test_the_printed_signal_helps_if_a_table_must_not_be_parked(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = mysql_database, postgres_database
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders VALUES (1, 'first')")
    job, stop = job_into(tmp_path, source, mirror_into(target)), "source.on_table_error=stop"
    run_epochs(job, stop)
    source.execute("INSERT INTO orders VALUES (2, 'second')")
    die_at(job, "sink.after_commit", stop)
    target.execute("DROP TABLE copy_orders")
    remedy = remedy_of(job, SinkError, stop)
    assert f"tidemark signal JOB.yaml resnapshot --table {source.schema}.orders" in remedy
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")])
    run_epochs(job, stop)
    assert copied(target, source, "orders") == source.query("SELECT * FROM orders ORDER BY id")


@pytest.mark.parametrize("policy", ["park", "stop"])
@pytest.mark.parametrize("written", ["nothing", "only files", "all"])
def test_a_folder_that_is_gone_is_the_trouble_of_its_table(
    mysql_database: Database, tmp_path: Path, tidemark: CommandLine, written: str, policy: str
) -> None:
    """A run dies before it writes an epoch, before it records its files, or before the checkpoint says that it is written."""
    source, out = mysql_database, tmp_path / "out"
    job = job_of_files(source, tmp_path, policy)
    die_at(job, "sink.before_commit" if written == "nothing" else "driver.epoch_written")
    if written == "only files":
        max(out.glob("_tidemark/*/e*-log.json")).unlink()
    shutil.rmtree(out / f"{source.schema}.orders")
    source.execute("INSERT INTO orders VALUES (3, 'third')", "INSERT INTO items VALUES (3, 'third')")
    told = what_is_told(job)
    assert told is not None
    assert "orders is not marked as written by this job" in told
    if policy == "park":
        assert rows_of_files(out / f"{source.schema}.items") == dict(source.query("SELECT * FROM items"))
    run_command(told, job, tidemark)
    for _ in range(2):
        assert what_is_told(job) is None
        for table in ("orders", "items"):
            assert rows_of_files(out / f"{source.schema}.{table}") == dict(source.query(f"SELECT * FROM {table}"))
        source.execute("UPDATE orders SET note = 'fourth'", "UPDATE items SET note = 'fourth'")


def test_a_signal_waits_for_an_epoch_of_the_only_table(mysql_database: Database, tmp_path: Path) -> None:
    """The files of the epoch are visible, and not recorded."""
    source, out = mysql_database, tmp_path / "out"
    job = job_of_files(source, tmp_path, "park", tables=("orders",))
    die_at(job, "driver.epoch_written")
    max(out.glob("_tidemark/*/e*-log.json")).unlink()
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")])
    run_epochs(job, notes=(notes := Notes()))
    assert [event for event, _ in notes.found if event in {"resumed", "joined"}] == ["resumed", "resumed", "joined"]
    assert rows_of_files(out / f"{source.schema}.orders") == dict(source.query("SELECT * FROM orders"))


@pytest.mark.parametrize("policy", ["park", pytest.param("stop", marks=pytest.mark.every_server)])
def test_a_folder_that_goes_while_the_job_runs_is_the_trouble_of_its_table(
    mysql_database: Database, tmp_path: Path, tidemark: CommandLine, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    source, out = mysql_database, tmp_path / "out"
    job = job_of_files(source, tmp_path, policy)
    with monkeypatch.context() as patch:
        before_the_next_epoch(patch, lambda: shutil.rmtree(out / f"{source.schema}.orders"))
        told = what_is_told(job)
    assert told is not None
    assert "orders is not marked as written by this job" in told
    if policy == "park":
        assert rows_of_files(out / f"{source.schema}.items") == dict(source.query("SELECT * FROM items"))
    run_command(told, job, tidemark)
    for _ in range(2):
        assert what_is_told(job) is None
        for table in ("orders", "items"):
            assert rows_of_files(out / f"{source.schema}.{table}") == dict(source.query(f"SELECT * FROM {table}"))
        source.execute("UPDATE orders SET note = 'third'", "UPDATE items SET note = 'third'")


def job_of_files(source: Database, folder: Path, policy: str, tables: Sequence[str] = ("orders", "items")) -> Path:
    """A job that has copied a row of each table. Another one is to be read from the log."""
    for table in tables:
        source.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, note TEXT)", f"INSERT INTO {table} VALUES (1, 'first')"
        )
    sink = {"type": "files", "path": str(folder / "out"), "on_schema_change": "evolve"}
    job = write_job(folder, source=source_of(source, on_table_error=policy), sink=sink)
    run_epochs(job)
    source.execute(*(f"INSERT INTO {table} VALUES (2, 'second')" for table in tables))
    return job
