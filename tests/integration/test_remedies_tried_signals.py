"""Remedies for trouble with signals, modes, tables that left a job, and the comparison of copies, done as they are printed."""

import json
import socket
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.copy_troubles import CREATE, WRITE
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import run_command, state_of
from tests.support.remedy_ways import in_source, mirror_job, require_copies, told_by, told_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.signals import repairs
from tidemark.jobs.spark.stream_source import job_of_options, table_schema
from tidemark.readers.mysql.keys.split_keys import MySqlKeys
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import TidemarkError

pytestmark = pytest.mark.integration

OTHERS = ("CREATE TABLE others (id int PRIMARY KEY)", "INSERT INTO others VALUES (1)")


@pytest.fixture
def source(mysql_database: Database) -> Database:
    mysql_database.execute(*CREATE)
    return mysql_database


@pytest.fixture
def target(postgres_database: Database) -> Database:
    return postgres_database


def go_on(job: Path, source: Database, target: Database, *settings: str, left: str | None = None) -> None:
    source.execute("UPDATE orders SET note = 'z'", "INSERT INTO orders VALUES (9, 'n')")
    assert told_by(job, *settings) is None
    require_copies(source, target, left=left)


def test_a_job_of_mode_incremental_reads_no_rows(
    source: Database, target: Database, tmp_path: Path, tidemark: CommandLine
) -> None:
    source.execute(*OTHERS)
    job = mirror_job(tmp_path, source, target)
    mode = "mode=incremental"
    assert told_by(job, mode) is None
    refused = tidemark("signal", job, "resnapshot", "--table", f"{source.name}.orders", "--set", mode)
    assert "Start another job for these tables." in refused.last_line
    assert "Compare a job of mode full+incremental." in tidemark("reconcile", job, "--set", mode).last_line
    without = f"source.exclude_tables=[{source.name}.orders]"
    assert told_by(job, mode, without) is None
    told_of(job, "Name it in source.exclude_tables again, and copy it by a job of its own.", mode)
    assert told_by(job, mode, without) is None
    (tmp_path / "other").mkdir()
    only = f"source.tables=[{source.name}.orders]"
    other = mirror_job(tmp_path / "other", source, target, sink={"table": "other_{table}"})
    assert told_by(other, only) is None
    assert tidemark("reconcile", other, "--set", only).code == 0
    source.execute(WRITE)
    assert told_by(other, only) is None
    assert target.query("SELECT * FROM other_orders ORDER BY id") == source.query("SELECT * FROM orders ORDER BY id")


def test_a_mode_that_needs_a_complete_copy(source: Database, target: Database, tmp_path: Path) -> None:
    job = mirror_job(tmp_path, source, target)
    run_epochs(job, "snapshot.split_rows=1", "snapshot.parallelism=1", at_most=1)
    told_of(job, "Run the job in mode full+incremental until its copy is complete.", "mode=incremental")
    assert told_by(job, "mode=full+incremental") is None
    source.execute(WRITE)
    run_epochs(job, "mode=incremental")
    require_copies(source, target)


def test_a_dropped_table_that_is_there_again(
    source: Database, target: Database, tmp_path: Path, tidemark: CommandLine
) -> None:
    source.execute(*OTHERS)
    sink = {"on_schema_change": {"drop_table": "ignore"}}
    tables = [f"{source.name}.orders", f"{source.name}.others"]
    job = mirror_job(tmp_path, source, target, sink=sink, tables=tables)
    assert told_by(job) is None
    source.execute("DROP TABLE orders")
    assert told_by(job) is None
    without = f"source.exclude_tables=[{source.name}.others]"
    told = told_of(job, "None is needed. If there is such a table again", without)
    in_source(source, CREATE)
    run_command(told, job, tidemark)
    assert told_by(job, without) is None
    go_on(job, source, target, without)


def test_tables_that_were_paused(source: Database, target: Database, tmp_path: Path, tidemark: CommandLine) -> None:
    source.execute(*OTHERS)
    job = mirror_job(tmp_path, source, target)
    assert told_by(job) is None
    for table in ("orders", "others"):
        assert tidemark("signal", job, "pause", "--table", f"{source.name}.{table}").code == 0
    told = told_of(job, "To read the table again: tidemark signal JOB.yaml resume --table")
    run_command(told, job, tidemark)
    source.execute(WRITE)
    assert told_by(job) is None
    paused = tidemark("reconcile", job, "--table", f"{source.name}.others")
    assert "tidemark tables JOB.yaml says why, and how it comes back." in paused.last_line
    command = tidemark("tables", job).out
    run_command(command[command.index("tidemark signal") :], job, tidemark)
    assert told_by(job) is None
    assert tidemark("reconcile", job, "--table", f"{source.name}.others").code == 0
    go_on(job, source, target)


def test_the_rows_of_a_table_that_were_stopped(
    source: Database, target: Database, tmp_path: Path, tidemark: CommandLine
) -> None:
    job = mirror_job(tmp_path, source, target)
    few = ("snapshot.split_rows=1", "snapshot.parallelism=1")
    run_epochs(job, *few, at_most=1)
    assert tidemark("signal", job, "stop-snapshot", "--table", f"{source.name}.orders").code == 0
    told = told_of(job, ", then run the job again.", *few)
    run_command(told, job, tidemark)
    assert told_by(job, *few) is None
    go_on(job, source, target)


def test_a_sink_that_can_not_be_compared(
    source: Database, target: Database, tmp_path: Path, tidemark: CommandLine
) -> None:
    job = write_job(tmp_path, source=source_of(source), sink={"type": "console"})
    run_epochs(job)
    assert "Compare a job with another sink." in tidemark("reconcile", job).last_line
    (tmp_path / "other").mkdir()
    other = mirror_job(tmp_path / "other", source, target)
    assert told_by(other) is None
    assert tidemark("reconcile", other).code == 0


def test_rows_that_are_no_signals(source: Database, target: Database, tmp_path: Path, tidemark: CommandLine) -> None:
    job = mirror_job(tmp_path, source, target)
    signals = f"{source.name}.tidemark_signals"
    table = (f"signals.table={signals}", f"source.exclude_tables=[{signals}]")
    source.execute("CREATE TABLE tidemark_signals (id VARCHAR(36), kind VARCHAR(40))")
    told_of(job, "Make it a table with the columns id, type and data", *table)
    source.execute("ALTER TABLE tidemark_signals CHANGE kind type VARCHAR(40), ADD COLUMN data TEXT")
    assert told_by(job, *table) is None
    source.execute("INSERT INTO tidemark_signals VALUES ('1', 'pauze', NULL)")
    assert told_by(job, *table) is None
    (answer,) = [answer for _, answer in Checkpoint.at(load_job_file(job).checkpoint).signals().values()]
    assert answer is not None
    assert answer.text.endswith("Insert another row.")
    data = json.dumps({"table": f"{source.name}.orders"})
    source.execute(f"INSERT INTO tidemark_signals VALUES ('2', 'resnapshot', '{data}')")
    assert told_by(job, *table) is None
    assert [table.name for table in state_of(job).came_back] == ["orders"]
    go_on(job, source, target, *table)


def test_a_run_says_where_it_can_not_write_or_listen(
    source: Database, target: Database, tmp_path: Path, tidemark: CommandLine
) -> None:
    job = mirror_job(tmp_path, source, target)
    summary = tmp_path / "reports" / "run.json"
    assert "Create it, or name another file." in tidemark("run", job, "--summary", summary).last_line
    summary.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = f"metrics.port={other.getsockname()[1]}"
        told = tidemark("run", job, "--summary", summary, "--set", port).last_line
        assert "Set another metrics.port (0: any free one)" in told
    assert tidemark("run", job, "--summary", summary, "--set", "metrics.port=0").code == 0
    assert summary.is_file()
    go_on(job, source, target)


def test_a_command_that_is_not_there(tidemark: CommandLine) -> None:
    assert "see tidemark --help." in tidemark("go").last_line
    assert tidemark("--help").code == 0


def test_options_of_a_stream(source: Database, tmp_path: Path) -> None:
    source.execute(*OTHERS)
    options = {"url": source.server.url, "table": f"{source.name}.*", "trigger": "once"}

    def refusal() -> str:
        with pytest.raises(TidemarkError) as refused:
            table_schema(options)
        return refused.value.remedy

    assert refusal().startswith("Set url, table (database.table) and checkpoint.")
    options["checkpoint"] = str(tmp_path / "one")
    assert refusal() == "Name the source by url and table. Set trigger, sink and session in the query."
    del options["trigger"]
    assert refusal() == "Name one: database.table."
    options["table"] = f"{source.name}.orders"
    assert table_schema(options).table.name == "orders"
    assert job_of_options(options).source.tables
    run_epochs(
        write_job(tmp_path, source=source_of(source, tables=[f"{source.name}.orders"]), sink={"type": "console"})
    )
    options |= {"checkpoint": str(tmp_path / "checkpoint"), "table": f"{source.name}.others"}
    assert refusal() == "Give each stream a checkpoint folder of its own."
    options["checkpoint"] = str(tmp_path / "another")
    assert table_schema(options).table.name == "others"


def test_rows_of_a_signal_whose_snapshots_lag_behind_the_log(
    mariadb_database: Database,
    target: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal is refused, so it must be given again."""
    source = mariadb_database
    source.execute(*CREATE)
    job = mirror_job(tmp_path, source, target)
    assert told_by(job) is None
    target.execute("UPDATE copy_orders SET note = 'wrong' WHERE id = 1")
    again = ("signal", job, "resnapshot", "--table", f"{source.name}.orders", "--keys", "1..2")
    assert tidemark(*again).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(repairs, "VISIBLE_SECONDS", 0.1)
        patch.setattr(MySqlKeys, "sees", lambda *_: False)
        assert told_by(job) is None
    (why,) = [outcome.text for outcome in Checkpoint.at(load_job_file(job).checkpoint).outcomes().values()]
    assert why.endswith(
        "Look for transactions whose COMMIT does not end. Then give the signal again, or compare again."
    )
    assert tidemark(*again).code == 0
    go_on(job, source, target)
