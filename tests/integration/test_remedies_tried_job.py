"""Remedies for trouble with the checkpoint, the job file, files of a copy, and of commands, done as they are printed: the job
goes on, and its copy is that of the source."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import advice_of, commands_in, run_command, run_through, what_is_told
from tests.support.servers import Database
from tidemark.state.errors import CheckpointError
from tidemark.state.remedies import RESTORE_CHECKPOINT, START_OVER

pytestmark = pytest.mark.integration


def job_of(folder: Path, source: Database, target: Database, **changes: Any) -> Path:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    return write_job(folder, source=source_of(source), sink=sink, **changes)


def change(source: Database) -> None:
    source.execute(
        "INSERT INTO orders SELECT max(id) + 1, 'b' FROM orders", "UPDATE orders SET note = 'z' WHERE id = 1"
    )


def require_equal(source: Database, target: Database) -> None:
    held, wanted = (
        database.query(f"SELECT * FROM {name} ORDER BY id")
        for database, name in ((target, "copy_orders"), (source, "orders"))
    )
    assert held == wanted


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_checkpoint_is_restored_from_a_copy(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, harm: str
) -> None:
    """Whatever file is harmed: the next run needs none of it, or is right once the folder is restored."""
    source, target, checkpoint = mysql_database, postgres_database, tmp_path / "checkpoint"
    job = job_of(tmp_path, source, target)
    run_epochs(job)
    change(source)
    run_epochs(job)
    stopped = set()
    paths = sorted(path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file())
    for path in (*paths, None):
        path = path or Path("plans", max(os.listdir(checkpoint / "plans")))
        if not (checkpoint / path).exists():
            continue  # a run since has removed it
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        shutil.copytree(checkpoint, tmp_path / "saved")
        if harm == "lost":
            (checkpoint / path).unlink()
        else:
            (checkpoint / path).write_bytes(b"?" + (checkpoint / path).read_bytes()[1:-1])
        change(source)
        try:
            run_epochs(job)
        except CheckpointError as error:
            stopped.add(path.parts[0])
            told = error.remedy
        else:
            require_equal(source, target)
            continue
        assert RESTORE_CHECKPOINT in told or START_OVER in told, path
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / "saved", checkpoint)
        run_epochs(job)
        require_equal(source, target)
    assert {"job", "plans"} <= stopped


def test_a_copy_of_an_older_checkpoint_is_refused_until_the_job_starts_over(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target, checkpoint = mysql_database, postgres_database, tmp_path / "checkpoint"
    job = job_of(tmp_path, source, target)
    run_epochs(job)
    shutil.copytree(checkpoint, tmp_path / "saved")
    change(source)
    run_epochs(job)
    (checkpoint / "job").unlink()
    assert "that was made after the job's last run" in advice_of(job)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "saved", checkpoint)
    change(source)
    assert START_OVER in advice_of(job)
    shutil.rmtree(checkpoint)
    target.execute("DROP TABLE copy_orders", "DELETE FROM tidemark_tables")
    for _ in range(2):
        run_epochs(job)
        require_equal(source, target)
        change(source)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("sink.table=other_{table}", "Undo the change"),
        ("sink.rename=[{match: 'copy', to: 'other'}]", "Undo the change"),
        ("mode=full", "Write mode: full+incremental"),
        ("job=other", "a checkpoint folder of its own"),
        ("snapshot.where={SCHEMA.orders: id < 9}", "Undo the change"),
        ("source.columns={SCHEMA.orders: {exclude: [note]}}", "Undo the change"),
        ("transforms={SCHEMA.orders: 'SELECT id, upper(note) AS note FROM input'}", "Undo the change"),
    ],
)
def test_a_change_of_the_job_file_is_undone(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, changed: str, says: str
) -> None:
    job = job_of(tmp_path, mysql_database, postgres_database)
    run_epochs(job)
    change(mysql_database)
    assert says in advice_of(job, changed.replace("SCHEMA", mysql_database.schema))
    for _ in range(2):
        run_epochs(job)
        require_equal(mysql_database, postgres_database)
        change(mysql_database)


@pytest.mark.parametrize("number", [0, 1], ids=["repair", "resnapshot"])
def test_a_copy_that_differs_is_read_again(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, number: int
) -> None:
    job = job_of(tmp_path, mysql_database, postgres_database)
    run_epochs(job)
    change(mysql_database)
    run_epochs(job)
    postgres_database.execute("UPDATE copy_orders SET note = 'wrong'", "INSERT INTO copy_orders VALUES (77, 'surplus')")
    told = tidemark("reconcile", job)
    assert told.code == 8
    again = tidemark(*[job if word == "JOB.yaml" else word for word in commands_in(told.last_line)[number]])
    assert again.code == (8, 0)[number]
    run_through(job)
    require_equal(mysql_database, postgres_database)
    assert tidemark("reconcile", job).code == 0


@pytest.mark.parametrize("signal", [["pause"], ["pause", "--table", "SCHEMA.orders"], ["stop-snapshot"]], ids=" ".join)
def test_what_a_signal_has_stopped_is_resumed(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, signal: list[str]
) -> None:
    source, target = mysql_database, postgres_database
    job = job_of(tmp_path, source, target, snapshot={"split_rows": 1, "parallelism": 1})
    source.execute("INSERT INTO orders VALUES (2, 'b'), (3, 'c')", "CREATE TABLE others (id int PRIMARY KEY)")
    run_epochs(job, at_most=1)
    assert tidemark("signal", job, *[word.replace("SCHEMA", source.schema) for word in signal]).code == 0
    change(source)
    told: list[str] = []
    for _ in range(2):  # a paused table does not fail the run
        told.append(what_is_told(job) or tidemark("tables", job).out)
    assert commands_in(told[-1]), told
    run_command(told[-1], job, tidemark)
    run_through(job)
    require_equal(source, target)


def test_a_file_of_a_copy_that_is_damaged_needs_its_table_read_again(
    mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    source, out = mysql_database, tmp_path / "out"
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(out), "format": "parquet"})
    run_epochs(job)
    change(source)
    run_epochs(job)
    damaged = next((out / f"{source.name}.orders").glob("*.parquet"))
    damaged.write_bytes(b"?" * 100)
    told = tidemark("reconcile", job)
    assert told.code == 5
    assert str(damaged) in told.last_line
    assert "or delete it. To read the table again: " in told.last_line
    damaged.unlink()
    run_command(told.last_line, job, tidemark)
    run_through(job)
    assert tidemark("reconcile", job).code == 0


@pytest.mark.parametrize("harm", ["ledger", "checkpoint"])
def test_a_job_with_files_starts_over(
    mysql_database: Database, tidemark: CommandLine, tmp_path: Path, harm: str
) -> None:
    """As docs/changing-a-job.md says: the folders of the tables are deleted."""
    source, out, checkpoint = mysql_database, tmp_path / "out", tmp_path / "checkpoint"
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(out), "format": "parquet"})
    for _ in range(2):
        run_epochs(job)
        change(source)
    if harm == "checkpoint":
        shutil.rmtree(checkpoint)
        told = advice_of(job)
        assert "delete that folder" in told or START_OVER in told
    else:
        for path in (out / "_tidemark").rglob("*"):
            if path.is_file():
                path.write_bytes(b"?")
        assert START_OVER in advice_of(job)
        shutil.rmtree(checkpoint)
    for folder in out.iterdir():
        shutil.rmtree(folder)
    for _ in range(2):
        run_through(job)
        assert tidemark("reconcile", job).code == 0
        change(source)
