"""`tidemark run` with a table that is parked, `tidemark tables` and `tidemark signal`, as a user calls them."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import die_at, run_epochs
from tests.support.history import assert_copied, assert_history, read_history
from tests.support.jobs import BY_DRIVER, BY_SPARK, Process, run_to_end, running, source_of, write_job
from tests.support.remedies import run_command
from tests.support.servers import Database
from tests.support.workload import KEYS, POSTGRES_TABLES, TABLES, UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.jobs.tables.parking import FIRST_WAIT_SECONDS, MAX_HEALS
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import Left

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family, pytest.mark.servers_in_turn]

Printed = Callable[..., str]


@pytest.fixture
def printed(tidemark: CommandLine) -> Printed:
    """Runs a command and returns its words."""

    def run(job: Path, command: str, *arguments: str) -> str:
        ended = tidemark(command, job, *arguments)
        assert ended.code == 0, ended.err
        return " ".join(ended.out.split())

    return run


def has(process: Process, event: str) -> bool:
    return any(found["event"] == event for found in process.events())


def test_a_table_is_parked_while_the_job_runs_and_read_again_by_a_signal(
    any_source_database: Database, tidemark: CommandLine, printed: Printed, tmp_path: Path
) -> None:
    database = any_source_database
    customers = f"{database.schema}.customers"
    create_tables(database, rows=30, uids=Uids())
    job = write_job(
        tmp_path,
        source=source_of(database, on_table_error="park"),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job)
    with running(job, *BY_DRIVER, "--set", "trigger=100ms") as process:
        process.wait_until(lambda: has(process, "resumed"))
        database.execute("ALTER TABLE customers ADD COLUMN more INT", *UPDATE_ALL)
        process.wait_until(lambda: has(process, "parked"))
        assert f"{customers} parked since" in printed(job, "tables")
        printed(job, "signal", "resnapshot", "--table", customers)
        process.wait_until(lambda: has(process, "joined"))
        process.wait_until(lambda: f"resnapshot {customers} done" in printed(job, "signal", "list"))
        database.execute(*UPDATE_ALL)
        os.kill(process.popen.pid, signal.SIGTERM)
        assert process.wait() == 130
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    assert "parked" not in printed(job, "tables")
    database.execute("ALTER TABLE customers DROP COLUMN more", *UPDATE_ALL)
    ended = tidemark("run", job, *BY_DRIVER)
    assert (ended.code, ended.events()[-1]["exit_code"]) == (9, 9)
    last_line = ended.last_line
    assert "All other tables are up to date, but 1 table is parked: the copies lack changes." in last_line
    assert f"tidemark signal JOB.yaml resnapshot --table {customers}" in last_line
    assert "exit 9" in printed(job, "status")
    assert tidemark("signal", job, "resnapshot", "--table", "no.such").code == 2


def test_parked_tables_are_read_again_by_the_one_command_that_is_printed(
    mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    database = mysql_database
    create_tables(database, rows=10, uids=Uids())
    for n in range(3):
        database.execute(f"CREATE TABLE extra{n} (id INT PRIMARY KEY)", f"INSERT INTO extra{n} VALUES (1)")
    sink = {"type": "files", "path": str(tmp_path / "out")}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink)
    run_epochs(job)
    parked = [f"extra{n}" for n in range(3)] + ["customers"]
    for table in parked:
        database.execute(f"ALTER TABLE {table} ADD COLUMN more INT")
    database.execute(*UPDATE_ALL, *(f"INSERT INTO extra{n} VALUES (2, 2)" for n in range(3)))
    ended = tidemark("run", job, *BY_DRIVER)
    assert ended.code == 9
    assert "but 4 tables are parked" in ended.last_line
    assert "`tidemark tables JOB.yaml` has the reasons of all 4." in ended.last_line
    run_command(ended.last_line, job, tidemark, number=1)  # the first one lists the reasons
    assert tidemark("run", job, *BY_DRIVER).code == 0
    assert_copied(tmp_path / "out", database)
    for n in range(3):
        folder = tmp_path / "out" / f"{database.schema}.extra{n}"
        assert count_of(folder) >= 2


def test_a_paused_job_waits_although_an_epoch_is_planned(
    mysql_database: Database, printed: Printed, tmp_path: Path
) -> None:
    """The run before died in the log between the first load's splits, when what these have published was removed."""
    create_tables(mysql_database, rows=10, uids=Uids())
    job = write_job(tmp_path, source=source_of(mysql_database), sink={"type": "files", "path": str(tmp_path / "out")})
    run_epochs(job, at_most=1)
    mysql_database.execute(*UPDATE_ALL)
    die_at(job, "log.before_report")
    printed(job, "signal", "pause")
    with running(job, *BY_DRIVER, "--set", "trigger=100ms") as process:
        process.wait_until(lambda: has(process, "epoch"))
        printed(job, "signal", "resume")
        process.wait_until(lambda: any(event.get("caught_up") for event in process.events()))
        os.kill(process.popen.pid, signal.SIGTERM)
        assert process.wait() == 130
    assert_copied(tmp_path / "out", mysql_database)


def test_a_new_table_joins_while_the_job_runs(any_source_database: Database, tmp_path: Path) -> None:
    database = any_source_database
    create_tables(database, rows=10, uids=Uids())
    job = write_job(
        tmp_path,
        source=source_of(database, on_table_error="park", discover_seconds=0.5),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    with running(job, *BY_DRIVER, "--set", "trigger=100ms") as process:
        process.wait_until(lambda: any(event.get("caught_up") for event in process.events()))
        database.execute("CREATE TABLE fresh (id INT PRIMARY KEY)", "CREATE TABLE odd (id INT PRIMARY KEY, _seq INT)")
        database.execute("CREATE TABLE _orders_gho (id INT PRIMARY KEY)")
        database.execute("INSERT INTO fresh VALUES (1), (2)", *UPDATE_ALL)
        process.wait_until(lambda: has(process, "joined"))
        database.execute("INSERT INTO fresh VALUES (3)", *UPDATE_ALL)
        folder = tmp_path / "out" / f"{database.schema}.fresh"
        process.wait_until(lambda: count_of(folder) == 3)
        time.sleep(2)  # it looks again, and does not open the job for the odd table each time
        os.kill(process.popen.pid, signal.SIGTERM)
        assert process.wait() == 130
    assert len([event for event in process.events() if event["event"] == "resumed"]) <= 3
    joined = [event["table"].rpartition(".")[2] for event in process.events() if event["event"] == "joined"]
    assert joined == ["fresh"]
    run_epochs(job)
    assert_copied(tmp_path / "out", database)


@pytest.mark.every_server
def test_an_error_of_an_executor_parks_its_table_and_executors_replace_the_copy_of_another(
    mysql_database: Database, postgres_database: Database, printed: Printed, tmp_path: Path
) -> None:
    """By executors: test_copies_replaced.py has the same by a driver."""
    source, target = mysql_database, postgres_database
    create_tables(source, rows=10, uids=Uids())
    job = write_job(
        tmp_path,
        source=source_of(source, on_table_error="park"),
        snapshot={"split_rows": 4, "parallelism": 2},
        sink={"type": "mirror", "url": target.url, "table": "copy_{table}"},
    )
    run_epochs(job)
    target.execute("DELETE FROM copy_orders WHERE id = 2", "UPDATE copy_orders SET id = -7 WHERE id = 3")
    printed(job, "signal", "resnapshot", "--table", f"{source.schema}.orders")
    source.execute("ALTER TABLE customers ADD COLUMN more INT", *UPDATE_ALL)
    ended = run_to_end(job, *BY_SPARK, expect=9)
    assert {event["table"] for event in ended.events() if event["event"] == "parked"} == {f"{source.schema}.customers"}
    state = Checkpoint.at(load_job_file(job).checkpoint).job_state()
    assert state is not None
    assert [table.name for joined in state.joined for table in joined.replaced] == ["orders"]
    assert_same(source, target, "orders", "order_lines")
    printed(job, "signal", "resnapshot", "--table", f"{source.schema}.customers")
    run_epochs(job)
    assert_same(source, target, *KEYS)


def assert_same(source: Database, target: Database, *tables: str) -> None:
    for table in tables:
        query = f"SELECT {', '.join(KEYS[table])}, uid, version FROM %s ORDER BY uid"
        assert target.query(query % f"copy_{table}") == source.query(query % table), table


def count_of(folder: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


@pytest.mark.every_server
def test_changed_tables_come_back_by_themselves_while_the_job_runs(
    any_source_database: Database, tmp_path: Path
) -> None:
    """One is altered; one is dropped, and later there again."""
    database = any_source_database
    create_tables(database, rows=30, uids=Uids())
    job = write_job(
        tmp_path,
        source=source_of(database, on_table_error="park", discover_seconds=0.5),
        sink={"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"},
    )
    run_epochs(job)

    def count(process: Process, event: str, table: str) -> int:
        name = f"{database.schema}.{table}"
        return sum((found["event"], found.get("table")) == (event, name) for found in process.events())

    with running(job, *BY_DRIVER, "--set", "trigger=100ms") as process:
        process.wait_until(lambda: has(process, "resumed"))
        database.execute("ALTER TABLE customers ADD COLUMN more INT DEFAULT 5", *UPDATE_ALL)
        process.wait_until(lambda: count(process, "joined", "customers") == 1)
        assert count(process, "left", "customers") == 1
        assert count(process, "parked", "customers") == 0
        database.execute("DROP TABLE order_lines")
        process.wait_until(lambda: count(process, "parked", "order_lines") >= 1)
        columns = (POSTGRES_TABLES if database.kind == "postgres" else TABLES)["order_lines"]
        database.execute(f"CREATE TABLE order_lines ({columns})")
        database.execute(
            "INSERT INTO order_lines (order_id, line_no, uid, version) VALUES (1, 1, 8001, 1), (1, 2, 8002, 1)"
        )
        process.wait_until(lambda: count(process, "joined", "order_lines") == 1)
        database.execute(*UPDATE_ALL)
        os.kill(process.popen.pid, signal.SIGTERM)
        assert process.wait() == 130
    database.execute("ALTER TABLE customers DROP COLUMN more", *UPDATE_ALL)
    if database.kind == "mysql":
        run_epochs(job)
    else:  # once for each way to read: MariaDB's log is read as MySQL's is
        run_to_end(job, *BY_SPARK)
    assert_copied(tmp_path / "out", database)


def test_a_table_that_waits_comes_back_while_the_job_runs(any_source_database: Database, tmp_path: Path) -> None:
    database = any_source_database
    create_tables(database, rows=30, uids=Uids())
    job = write_job(
        tmp_path,
        source=source_of(database, on_table_error="park", discover_seconds=0),
        sink={"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"},
    )
    run_epochs(job)
    for seconds_left in (6, 20, 60):  # a start may take longer, and then the table does not wait
        leave_and_wait(job, "customers", seconds_left)
        with running(job, *BY_DRIVER, "--set", "trigger=100ms") as process:
            process.wait_until(lambda: has(process, "joined"))
            waited = has(process, "parked")
            database.execute(*UPDATE_ALL)
            os.kill(process.popen.pid, signal.SIGTERM)
            assert process.wait() == 130
        if waited:
            break
    assert waited
    run_epochs(job)
    assert_copied(tmp_path / "out", database)


def test_a_job_that_runs_on_and_whose_only_table_waits_takes_a_signal(
    any_source_database: Database, printed: Printed, tmp_path: Path
) -> None:
    """Nobody has to start it again. One that is to end does so, with exit code 9."""
    database = any_source_database
    create_tables(database, rows=30, uids=Uids())
    others = [f"{database.schema}.{table}" for table in KEYS if table != "customers"]
    job = write_job(
        tmp_path,
        source=source_of(database, on_table_error="park", exclude_tables=others),
        sink={"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"},
    )
    run_epochs(job)
    leave_and_wait(job, "customers", 300)
    run_to_end(job, *BY_DRIVER, expect=9)
    with running(job, *BY_DRIVER, "--set", "trigger=100ms") as process:
        process.wait_until(lambda: has(process, "waiting"))
        (text,) = [event["text"] for event in process.events() if event["event"] == "waiting"]
        assert "The job waits until" in text
        assert ("replication slot keeps the server's log" in text) == (database.kind == "postgres")
        status = printed(job, "status")
        assert "running since" in status
        assert ": waiting" in status
        printed(job, "signal", "resnapshot", "--table", f"{database.schema}.customers")
        process.wait_until(lambda: has(process, "joined"))
        process.wait_until(lambda: ": following" in printed(job, "status"))
        database.execute("UPDATE customers SET version = version + 1")
        os.kill(process.popen.pid, signal.SIGTERM)
        assert process.wait() == 130
    run_epochs(job)
    rows = database.query(f"SELECT uid, version, {', '.join(KEYS['customers'])} FROM customers")
    history = read_history(tmp_path / "out", database.schema, "customers")
    assert_history(history, {row[2:]: row[:2] for row in rows}, name="customers", key=KEYS["customers"])


def test_a_new_table_joins_while_the_only_other_one_waits(any_source_database: Database, tmp_path: Path) -> None:
    database = any_source_database
    create_tables(database, rows=30, uids=Uids())
    old = [f"{database.schema}.{table}" for table in KEYS if table != "customers"]
    job = write_job(
        tmp_path,
        source=source_of(database, on_table_error="park", exclude_tables=old, discover_seconds=1),
        sink={"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"},
    )
    run_epochs(job)
    leave_and_wait(job, "customers", 300)
    with running(job, *BY_DRIVER, "--set", "trigger=100ms") as process:
        process.wait_until(lambda: has(process, "waiting"))
        database.execute(
            "CREATE TABLE new_items (id INT PRIMARY KEY, uid BIGINT NOT NULL, version INT NOT NULL)",
            "INSERT INTO new_items VALUES (1, 1001, 1)",
        )
        process.wait_until(lambda: any(event.get("caught_up") for event in process.events()))
        database.execute("UPDATE new_items SET version = 2")
        os.kill(process.popen.pid, signal.SIGTERM)
        assert process.wait() == 130
    run_epochs(job)
    history = read_history(tmp_path / "out", database.schema, "new_items")
    assert_history(history, {(1,): (1001, 2)}, name="new_items", key=("id",))


def leave_and_wait(job: Path, table: str, seconds_left: int) -> None:
    """Parks the table as one that has come back too often, and waits for so long yet."""
    checkpoint = Checkpoint.at(load_job_file(job).checkpoint)
    state = checkpoint.job_state()
    assert state is not None
    schema = next(schema for schema in state.schemas if schema.table.name == table)
    since_us = time.time_ns() // 1000 - (FIRST_WAIT_SECONDS - seconds_left) * 1_000_000
    left = Left(schema.table, schema.version, "It was altered.", since_us, MAX_HEALS + 1)
    checkpoint.take_owner()
    checkpoint.create_left(state, (left,))


@pytest.mark.every_server
def test_a_paused_job_that_is_killed_stays_paused(
    any_source_database: Database, tidemark: CommandLine, printed: Printed, tmp_path: Path
) -> None:
    """A run with an interval waits and holds the job; one with `once` ends with exit code 10."""
    database = any_source_database
    create_tables(database, rows=30, uids=Uids())
    job = write_job(
        tmp_path, source=source_of(database), sink={"type": "files", "path": str(tmp_path / "out")}, metrics={"port": 0}
    )
    every = (*BY_DRIVER, "--set", "trigger=100ms")
    with running(job, *every) as process:
        process.wait_until(lambda: any(event.get("caught_up") for event in process.events()))
        printed(job, "signal", "pause")
        process.wait_until(lambda: has(process, "paused"))
        database.execute(*UPDATE_ALL)
        paused_epoch = json.loads(tidemark("status", job, "--json").out)["planned_epoch"]
        os.kill(process.popen.pid, signal.SIGKILL)
        process.wait()
    with running(job, *every, "--standby") as process:
        process.wait_until(lambda: has(process, "paused"))
        url = next(event["url"] for event in process.events() if event["event"] == "metrics")
        process.wait_until(lambda: b'tidemark_paused{job="test-job"} 1.0' in urllib.request.urlopen(url).read())
        assert tidemark("run", job, *BY_DRIVER).code == 6  # it holds the job
        facts = json.loads(tidemark("status", job, "--json").out)
        assert (facts["paused"], facts["run"]["state"], facts["planned_epoch"]) == (True, "paused", paused_epoch)
        printed(job, "signal", "resume")
        process.wait_until(lambda: any(event.get("caught_up") for event in process.events()))
        printed(job, "signal", "pause")
        process.wait_until(lambda: [event["event"] for event in process.events()].count("paused") == 2)
        os.kill(process.popen.pid, signal.SIGTERM)
        assert process.wait() == 130
    ended = tidemark("run", job, *BY_DRIVER)
    assert ended.code == 10
    assert "paused by a signal" in ended.last_line
    assert "exit 10" in printed(job, "status")
    printed(job, "signal", "set", "snapshot.parallelism=3")
    printed(job, "signal", "resume")
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    assert "set snapshot.parallelism=3 done" in printed(job, "signal", "list")
    assert tidemark("signal", job, "set", "snapshot.parallelism=0").code == 2
