"""A table whose schema was changed comes back by itself (docs/adr/0027)."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import CommandLine
from tests.support.epochs import Notes, run_epochs
from tests.support.history import assert_copied, assert_history, read_history
from tests.support.jobs import source_of, write_job
from tests.support.remedies import run_command
from tests.support.servers import Database, fresh_database
from tests.support.workload import KEYS, POSTGRES_TABLES, TABLES, UPDATE_ALL, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.enumerator import enumerator
from tidemark.jobs import run, startup
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.epoch.planner import Planner
from tidemark.jobs.monitoring.progress import JobProgress
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.jobs.startup import open_job
from tidemark.jobs.tables import parking
from tidemark.jobs.tables.discovery import Discovery
from tidemark.jobs.tables.parking import MAX_HEALS, is_due, known_tables, require_none_parked, waiting_tables
from tidemark.readers.mysql.source import FoundMySql
from tidemark.readers.mysql.statements import classify
from tidemark.readers.postgres.source import FoundPostgres
from tidemark.readers.snapshot.split_reader import RetryingSplitReader
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SchemaChangedError, SourceNotUsableError, TablesParkedError
from tidemark.state.job_state import JobState, Left
from tidemark.state.plan import LogWork, SnapshotWork
from tidemark.state.table import TableId

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family, pytest.mark.servers_in_turn]


def job_of(source: Database, folder: Path, target: Database | None = None, **settings: Any) -> Path:
    """A job into files, or into a mirror with copies named `copy_…`."""
    sink = {"type": "files", "path": str(folder / "out")}
    if target is not None:
        sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    return write_job(
        folder,
        source=source_of(source, **({"on_table_error": "park"} | settings)),
        checkpoint=str(folder / "checkpoint"),
        snapshot={"split_rows": 20, "parallelism": 2},
        sink=sink | {"on_schema_change": "evolve"},
    )


def state_of(folder: Path) -> JobState:
    state = Checkpoint.at(str(folder / "checkpoint")).job_state()
    assert state is not None
    return state


def told(notes: Notes) -> list[tuple[str, str]]:
    """The events of tables: what happened, and the table's name."""
    kinds = {"left", "joined", "parked"}
    return [(event, facts["table"].rpartition(".")[2]) for event, facts in notes.found if event in kinds]


def assert_equal(folder: Path, database: Database, *tables: str) -> None:
    for table in tables:
        key = KEYS[table]
        rows = database.query(f"SELECT uid, version, {', '.join(key)} FROM {table}")
        history = read_history(folder / "out", database.schema, table)
        assert_history(history, {row[2:]: row[:2] for row in rows}, name=table, key=key)


def assert_mirrored(source: Database, target: Database, *more: str) -> None:
    """Compares all rows; `more`: the columns that `customers` has got."""
    for table, key in KEYS.items():
        columns = ", ".join((*key, "uid", "version", "note", *(more if table == "customers" else ())))
        query = f"SELECT {columns} FROM %s ORDER BY uid"
        assert target.query(query % f"copy_{table}") == source.query(query % table), table


def swapped(database: Database, table: str) -> list[str]:
    """Swaps the tables as gh-ost and pt-online-schema-change do, with another column."""
    like = f"(LIKE {table} INCLUDING ALL)" if database.kind == "postgres" else f"LIKE {table}"
    names = ", ".join(name for name in ("code", "uid", "version", "note"))
    made = [
        f"CREATE TABLE _{table}_gho {like}",
        f"ALTER TABLE _{table}_gho ADD COLUMN more INT DEFAULT 5",
        f"INSERT INTO _{table}_gho ({names}) SELECT {names} FROM {table}",
    ]
    if database.kind == "postgres":
        renames = [f"ALTER TABLE {table} RENAME TO _{table}_del", f"ALTER TABLE _{table}_gho RENAME TO {table}"]
    else:
        renames = [f"RENAME TABLE {table} TO _{table}_del, _{table}_gho TO {table}"]
    return [*made, *renames, f"DROP TABLE _{table}_del"]


def recreated(database: Database) -> list[str]:
    columns = (POSTGRES_TABLES if database.kind == "postgres" else TABLES)["customers"]
    return [
        "DROP TABLE customers",
        f"CREATE TABLE customers (more INT, {columns})",
        "INSERT INTO customers VALUES (1, 'a', 7001, 1, 'x'), (NULL, 'b', 7002, 1, NULL)",
    ]


def unknown(database: Database, value: int) -> str:
    """A default of which a job can't know what older rows have."""
    return f"({value} + (random() * 0)::INT)" if database.kind == "postgres" else f"({value} + 0)"


def altered(database: Database) -> list[str]:
    return [f"ALTER TABLE customers ADD COLUMN more INT NOT NULL DEFAULT {unknown(database, 5)}"]


@pytest.mark.pitfall(110)
@pytest.mark.parametrize("change", [altered, swapped, recreated])
@pytest.mark.parametrize("sink", ["files", "mirror"])
def test_a_changed_table_is_read_again_in_the_same_run(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path, sink: str, change: Any
) -> None:
    source = any_source_database
    target: Database | None = request.getfixturevalue(f"{source.kind}_database") if sink == "mirror" else None
    create_tables(source, rows=40, uids=Uids())
    job = job_of(source, tmp_path, target)
    run_epochs(job)
    changes = change(source, "customers") if change is swapped else change(source)
    source.execute(*UPDATE_ALL, *changes, *UPDATE_ALL)
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes) == [("left", "customers"), ("joined", "customers")]
    (text,) = [facts["text"] for event, facts in notes.found if event == "left"]
    assert "its rows are read again" in text
    for _ in range(2):
        if target is None:
            assert_copied(tmp_path / "out", source)
        else:
            assert_mirrored(source, target, "more")
        require_none_parked(load_job_file(job), state_of(tmp_path))
        source.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 3 = 0")
        run_epochs(job, notes=(notes := Notes()))
        assert told(notes) == []


@pytest.mark.pitfall(32)
@pytest.mark.pitfall(34)
@pytest.mark.parametrize(
    "setting", ["binlog_row_image = MINIMAL", "binlog_row_image = NOBLOB", "binlog_format = STATEMENT"]
)
def test_a_session_that_logs_no_whole_rows_has_only_that_table_read_again(
    source_database: Database, tmp_path: Path, setting: str
) -> None:
    source = source_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    source.execute(f"SET SESSION {setting}", "UPDATE customers SET version = version + 1")
    source.execute(*UPDATE_ALL)
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes) == [("left", "customers"), ("joined", "customers")]
    for _ in range(2):
        assert_equal(tmp_path, source, *KEYS)
        require_none_parked(load_job_file(job), state_of(tmp_path))
        source.execute(*UPDATE_ALL)
        run_epochs(job, notes=(notes := Notes()))
        assert told(notes) == []


class NotesOfWriting(Notes):
    """Has a session without whole rows write to `customers` each time that the table has come back, at most `count` times."""

    def __init__(self, source: Database, count: int) -> None:
        super().__init__()
        self.source, self.left = source, count

    def note(self, event: str, **facts: Any) -> None:
        super().note(event, **facts)
        if event == "joined" and self.left:
            self.left -= 1
            write_without_whole_rows(self.source)


def write_without_whole_rows(source: Database) -> None:
    source.execute("SET SESSION binlog_row_image = MINIMAL", "UPDATE customers SET version = version + 1")


def test_a_session_that_never_stops_to_log_no_whole_rows_lets_a_run_end(
    source_database: Database, tmp_path: Path, tidemark: CommandLine
) -> None:
    source = source_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    for is_second in (False, True):
        write_without_whole_rows(source)
        source.execute(UPDATE_ALL[0])
        run_epochs(job, notes=(notes := NotesOfWriting(source, count=2 * MAX_HEALS)))
        events = [event for event, table in told(notes) if table == "customers"]
        assert events == ["joined"] * is_second + ["left", "joined"] * MAX_HEALS + ["parked"]
        assert_equal(tmp_path, source, "orders")
        with pytest.raises(TablesParkedError) as caught:
            require_none_parked(load_job_file(job), state_of(tmp_path))
        assert "let no session set another value" in caught.value.message
        run_command(caught.value.remedy.partition(" UTC on. ")[2], job, tidemark)
    run_epochs(job)
    assert_equal(tmp_path, source, *KEYS)
    require_none_parked(load_job_file(job), state_of(tmp_path))


@pytest.mark.pitfall(34)
@pytest.mark.parametrize(
    "write",
    [
        "UPDATE customers c JOIN orders o ON o.id <= c.version SET c.version = c.version + 1, o.version = o.version + 1",
        "INSERT INTO customers (code, uid, version) SELECT CONCAT('new', id), 1000 + uid, 0 FROM orders WHERE id < 9",
        "UPDATE customers SET version = version + 1",
        "LOAD DATA INFILE '../{file}' INTO TABLE customers (code, uid, version)",
    ],
    ids=["tables", "select", "trigger", "load"],
)
def test_tables_that_a_write_in_statement_format_may_change_are_read_again(
    source_database: Database, tmp_path: Path, write: str
) -> None:
    source = source_database
    create_tables(source, rows=20, uids=Uids())
    trigger = (
        "CREATE TRIGGER counts BEFORE UPDATE ON customers FOR EACH ROW UPDATE order_lines SET version = version + 1"
    )
    source.execute(trigger, f"SELECT 'loaded', 5000, 1 INTO OUTFILE '../{source.name}.rows'")
    job = job_of(source, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    source.execute("SET SESSION binlog_format = STATEMENT", write.replace("{file}", f"{source.name}.rows"))
    source.execute(*UPDATE_ALL)
    run_epochs(job, notes=(notes := Notes()))
    assert sorted(told(notes)) == sorted((what, table) for what in ("joined", "left") for table in KEYS)
    for _ in range(2):
        assert_equal(tmp_path, source, *KEYS)
        require_none_parked(load_job_file(job), state_of(tmp_path))
        source.execute(*UPDATE_ALL)
        run_epochs(job, notes=(notes := Notes()))
        assert told(notes) == []


@pytest.mark.pitfall(34)
def test_tables_that_a_statement_of_an_unknown_kind_may_change_are_read_again(
    source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the server were newer than Tidemark, which does not know these objects."""
    monkeypatch.setattr(classify, "_OTHER_OBJECTS", classify._OTHER_OBJECTS - {"DEFINER", "PROCEDURE"})
    source = source_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    for statement, left in (
        ("CREATE PROCEDURE p (a INT) COMMENT 'topsecret' BEGIN END", []),
        ("CREATE PROCEDURE q (customers INT) COMMENT 'topsecret' BEGIN END", ["customers"]),
        ("DROP PROCEDURE q", sorted(KEYS)),
    ):
        source.execute(*UPDATE_ALL)
        source.execute(statement)
        source.execute(*UPDATE_ALL)
        run_epochs(job, notes=(notes := Notes()))
        assert sorted(told(notes)) == sorted((what, table) for what in ("joined", "left") for table in left)
        assert_equal(tmp_path, source, *KEYS)
        texts = [str(facts["text"]) for what, facts in notes.found if what == "left"]
        assert all(f": {statement.split()[0]} " in text and "topsecret" not in text for text in texts), texts
    require_none_parked(load_job_file(job), state_of(tmp_path))


def test_a_database_that_was_dropped_is_said_and_comes_back(any_source_database: Database, tmp_path: Path) -> None:
    source, uids = any_source_database, Uids()
    create_tables(source, rows=20, uids=uids)
    job = job_of(source, tmp_path)
    run_epochs(job)
    holder = source.server.connect(source.name if source.kind == "postgres" else None)
    what, settings = ("SCHEMA", "CASCADE") if source.kind == "postgres" else ("DATABASE", "")
    with contextlib.closing(holder), holder.cursor() as cursor:
        cursor.execute(f"DROP {what} {source.schema} {settings}")
        for _ in range(2):
            with pytest.raises(SourceNotUsableError, match="matches no table") as stopped:
                run_epochs(job)
            assert "continues once they are there again" in stopped.value.remedy
        cursor.execute(f"CREATE {what} {source.schema}")
    create_tables(source, rows=25, uids=uids)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    assert_equal(tmp_path, source, *KEYS)


@pytest.mark.pitfall(34)
def test_functions_that_fill_a_temporary_table_have_all_tables_read_again(
    mariadb_database: Database, tmp_path: Path
) -> None:
    """The function's DELETE is in no log."""
    source = mariadb_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    body = "RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN DELETE FROM customers WHERE uid % 5 = version % 5; RETURN 1; END"
    source.execute(f"CREATE FUNCTION writes() {body}")
    for binlog_format in ("STATEMENT", "MIXED"):
        source.execute(f"SET SESSION binlog_format = {binlog_format}", "CREATE TEMPORARY TABLE filled SELECT writes()")
        source.execute(*UPDATE_ALL)
        run_epochs(job, notes=(notes := Notes()))
        assert sorted(told(notes)) == sorted((what, table) for what in ("joined", "left") for table in KEYS)
        assert_equal(tmp_path, source, *KEYS)
    require_none_parked(load_job_file(job), state_of(tmp_path))


@pytest.mark.parametrize("policy", ["park", "stop"])
@pytest.mark.parametrize("change", [altered, recreated])
def test_the_only_table_of_a_job_heals(any_source_database: Database, tmp_path: Path, change: Any, policy: str) -> None:
    """In the middle of a run, and found by the checks of a start (PostgreSQL)."""
    source = any_source_database
    create_tables(source, rows=40, uids=Uids())
    customers = f"{source.schema}.customers"
    job = job_of(source, tmp_path, tables=[customers], on_table_error=policy)
    run_epochs(job)
    source.execute("UPDATE customers SET version = version + 1", *change(source))
    source.execute("UPDATE customers SET version = version + 1")
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes) == [("left", "customers"), ("joined", "customers")]
    for _ in range(2):
        assert_equal(tmp_path, source, "customers")
        require_none_parked(load_job_file(job), state_of(tmp_path))
        source.execute("UPDATE customers SET version = version + 1", "DELETE FROM customers WHERE code = 'a'")
        run_epochs(job)


@pytest.mark.parametrize("tables", ["all", "named", "only"])
def test_a_table_that_is_gone_heals_once_it_is_there_again(
    any_source_database: Database, tmp_path: Path, tables: str
) -> None:
    source = any_source_database
    create_tables(source, rows=20, uids=Uids())
    chosen = {"all": ["*"], "named": list(KEYS), "only": ["customers"]}[tables]
    others = [] if tables == "only" else ["orders", "order_lines"]
    job = job_of(source, tmp_path, tables=[f"{source.schema}.{name}" for name in chosen])
    run_epochs(job)
    drop, *create = recreated(source)
    source.execute(*UPDATE_ALL, drop)
    for _ in range(2):
        if others:
            run_epochs(job, notes=(notes := Notes()))
            assert ("parked", "customers") in told(notes)
            with pytest.raises(TablesParkedError, match=r"no such table|matches no table"):
                require_none_parked(load_job_file(job), state_of(tmp_path))
        else:
            with pytest.raises((TablesParkedError, SourceNotUsableError), match="customers") as caught:
                run_epochs(job)
            # MySQL: an account that sees no table at all may have lost its rights, so that no table is parked
            assert source.kind != "postgres" or "tidemark signal" in caught.value.remedy
        assert_equal(tmp_path, source, *others)
        source.execute("UPDATE orders SET version = version + 1")
    source.execute(*create)
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    assert_equal(tmp_path, source, "customers", *others)


def test_a_table_that_is_gone_before_the_first_plan_is_parked(any_source_database: Database, tmp_path: Path) -> None:
    """The run that started the job ended before it had planned an epoch."""
    source = any_source_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    assert run_epochs(job, at_most=0) == []
    drop, *create = recreated(source)
    source.execute(drop)
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes)[-1] == ("parked", "customers")
    assert_equal(tmp_path, source, "orders", "order_lines")
    source.execute(*create)
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    assert_equal(tmp_path, source, *KEYS)


def test_a_table_that_can_t_come_back_is_parked_and_tries_it_again_at_each_start(
    any_source_database: Database, tmp_path: Path
) -> None:
    """The files can't have a column `_seq`."""
    source = any_source_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    source.execute("ALTER TABLE customers ADD COLUMN _seq INT", *UPDATE_ALL)
    for _ in range(2):
        run_epochs(job, notes=(notes := Notes()))
        assert told(notes)[-1] == ("parked", "customers")
        with pytest.raises(TablesParkedError, match="_seq"):
            require_none_parked(load_job_file(job), state_of(tmp_path))
        assert_equal(tmp_path, source, "orders", "order_lines")
        source.execute("UPDATE orders SET version = version + 1")
    source.execute("ALTER TABLE customers DROP COLUMN _seq")
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    assert_copied(tmp_path / "out", source)


def test_a_condition_that_the_server_refuses_keeps_the_table_parked(
    any_source_database: Database, tmp_path: Path
) -> None:
    """Before its copy is emptied, and the signal's answer says so."""
    source = any_source_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    settings = yaml.safe_load(job.read_text())
    where = {"snapshot": settings["snapshot"] | {"where": {f"{source.schema}.customers": "no_such_column > 0"}}}
    resnapshot(load_job_file(job), [TableName(source.schema, "customers")])
    job.write_text(yaml.safe_dump(settings | where))
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes) == [("parked", "customers")]
    ((_, answer),) = Checkpoint.at(str(tmp_path / "checkpoint")).signals().values()
    assert answer is not None
    assert not answer.accepted
    assert "no_such_column" in answer.text
    assert_equal(tmp_path, source, *KEYS)
    job.write_text(yaml.safe_dump(settings))
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    assert_copied(tmp_path / "out", source)


def test_a_view_of_a_mirror_keeps_a_column_from_being_replaced(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = postgres18_database, postgres_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path, target)
    run_epochs(job)
    target.execute("CREATE VIEW readers_view AS SELECT code, version FROM copy_customers")
    source.execute("ALTER TABLE customers ALTER COLUMN version TYPE VARCHAR(20)", "DELETE FROM orders WHERE id = 1")
    for _ in range(2):
        run_epochs(job, notes=(notes := Notes()))
        assert told(notes)[-1] == ("parked", "customers")
        (text,) = [facts["text"] for event, facts in notes.found if event == "parked"]
        assert "view readers_view depends on column version" in text
        assert target.query("SELECT count(*) FROM readers_view") == [(20,)]
    target.execute("DROP VIEW readers_view")
    run_epochs(job)
    assert_mirrored(source, target)


def set_clock(patch: pytest.MonkeyPatch, clock: list[int]) -> None:
    """`clock` has the present time, in microseconds since 1970."""
    for module in (parking, startup, run):
        patch.setattr(module, "present_us", lambda: clock[0])


def test_a_table_that_gets_no_further_waits_and_comes_back_by_itself(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks do not see why, but each read of its rows fails alike. Each wait is longer than the one before."""
    source = any_source_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    original = RetryingSplitReader.read

    def read(self: Any, split: Any, schema: Any, anchor: Any) -> Any:
        if schema.table.name == "customers":
            raise SchemaChangedError("its rows can't be read.", "", schema.table)
        return original(self, split, schema, anchor)

    monkeypatch.setattr(RetryingSplitReader, "read", read)
    resnapshot(load_job_file(job), [TableName(source.schema, "customers")])
    now_us = time.time_ns() // 1000
    clock = [now_us]
    set_clock(monkeypatch, clock)
    times_left = MAX_HEALS + 2
    for wait_seconds, comes_back in [(0, True), (590, False), (20, True), (610, False), (600, True)]:
        clock[0] += wait_seconds * 1_000_000
        run_epochs(job, notes=(notes := Notes()))
        assert len(told(notes)) <= 2 * MAX_HEALS + 3
        assert told(notes)[-1] == ("parked", "customers")
        assert (("joined", "customers") in told(notes)) == comes_back
        times_left += comes_back and wait_seconds > 0
        assert len(Checkpoint.at(str(tmp_path / "checkpoint")).left_before()) == times_left
        assert_equal(tmp_path, source, "orders", "order_lines")
        source.execute("UPDATE orders SET version = version + 1")
        with pytest.raises(TablesParkedError, match=r"It comes back by itself at a start that can read it, from 2"):
            require_none_parked(load_job_file(job), state_of(tmp_path))
    monkeypatch.setattr(RetryingSplitReader, "read", original)
    clock[0] += parking.LONGEST_WAIT_SECONDS * 1_000_000
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    assert_copied(tmp_path / "out", source)


def test_the_time_of_a_table_that_waits_comes_within_a_start(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not looked for, so nobody says that it is gone. A job that runs on has it back at once."""
    source = mysql_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path, discover_seconds=0)
    run_epochs(job)
    checkpoint, clock = Checkpoint.at(str(tmp_path / "checkpoint")), [time.time_ns() // 1000]
    set_clock(monkeypatch, clock)
    customers = TableId(source.schema, "customers")
    since_us = clock[0] - (parking.FIRST_WAIT_SECONDS - 1) * 1_000_000
    checkpoint.create_left(state_of(tmp_path), (Left(customers, 1, "It was altered.", since_us, MAX_HEALS + 1),))
    joins = startup.with_later_tables

    def slow(*arguments: Any) -> JobState:
        clock[0] += 2_000_000
        return joins(*arguments)

    monkeypatch.setattr(startup, "with_later_tables", slow)
    source.execute("UPDATE customers SET version = version + 1")
    with open_job(load_job_file(job), Notes(), standby=True) as opened:
        held = opened.held
        (left,) = held.state.left
        assert (left.why, left.heals) == ("It was altered.", MAX_HEALS + 1)
        (waiting,) = waiting_tables(opened.job, held.state, held.looked_at_us)
        assert is_due([waiting], clock[0])
        assert not is_due([waiting], clock[0] - 1_000_001)
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


def test_a_job_that_runs_on_waits_until_its_only_table_comes_back(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = mysql_database
    create_tables(source, rows=20, uids=Uids())
    others = [f"{source.schema}.{table}" for table in KEYS if table != "customers"]
    job = job_of(source, tmp_path, exclude_tables=others)
    run_epochs(job)
    checkpoint, clock = Checkpoint.at(str(tmp_path / "checkpoint")), [time.time_ns() // 1000]
    left = Left(TableId(source.schema, "customers"), 1, "It was altered.", clock[0], MAX_HEALS + 1)
    checkpoint.create_left(state_of(tmp_path), (left,))
    source.execute("UPDATE customers SET version = version + 1")
    with pytest.raises(TablesParkedError, match="It comes back by itself"):
        run_epochs(job)

    def passing() -> int:
        clock[0] += 60_000_000
        return clock[0]

    monkeypatch.setattr(startup, "present_us", passing)
    monkeypatch.setattr(startup, "WAIT_SECONDS", 0.0)
    run_epochs(job, "trigger=1s", notes=(notes := Notes()))
    assert [event for event in told(notes) if event[0] != "left"] == [("parked", "customers"), ("joined", "customers")]
    assert_equal(tmp_path, source, "customers")


@pytest.mark.parametrize("ahead", ["less than it waits", "more than it waits"])
def test_the_clock_was_set_back_after_a_table_had_left(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: str
) -> None:
    """Nobody knows when it left. It does not wait until the clock is there again."""
    source = mysql_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    checkpoint, now_us = Checkpoint.at(str(tmp_path / "checkpoint")), time.time_ns() // 1000
    wait_us = parking.FIRST_WAIT_SECONDS * 1_000_000
    left_us = now_us + (wait_us // 2 if ahead.startswith("less") else 365 * 24 * 3_600_000_000)
    left = Left(TableId(source.schema, "customers"), 1, "It was altered.", left_us, MAX_HEALS + 1)
    checkpoint.create_left(state_of(tmp_path), (left,))
    source.execute("UPDATE customers SET version = version + 1")
    if ahead.startswith("less"):
        run_epochs(job)
        assert state_of(tmp_path).left
        set_clock(monkeypatch, [now_us + 2 * wait_us])
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


class ClockSetBack(Notes):
    """Sets the clock back as soon as a run says that the table is parked. Stops the run after the first epoch in which it has
    come back."""

    def __init__(self, clock: list[int]) -> None:
        super().__init__()
        self.clock, self.goes_on = clock, True

    def note(self, event: str, **facts: Any) -> None:
        if event == "parked" and "parked" not in dict(self.found):
            self.clock[0] -= 30 * 24 * 3_600_000_000
        super().note(event, **facts)

    def progress(self, progress: JobProgress) -> None:
        if self.goes_on and progress.caught_up and "joined" in dict(self.found):
            self.goes_on = False
            os.kill(os.getpid(), signal.SIGTERM)  # a run takes it while it shows its progress


@pytest.mark.parametrize("others", ["go on", "there are none"])
def test_the_clock_is_set_back_while_a_job_runs_on(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """A table had left while the clock was a month ahead. It does not wait for so long."""
    source = mysql_database
    create_tables(source, rows=20, uids=Uids())
    excluded = [f"{source.schema}.{table}" for table in KEYS if table != "customers"] if others != "go on" else []
    job = job_of(source, tmp_path, exclude_tables=excluded, discover_seconds=0)
    run_epochs(job)
    clock = [time.time_ns() // 1000 + 30 * 24 * 3_600_000_000]
    set_clock(monkeypatch, clock)
    left = Left(TableId(source.schema, "customers"), 1, "It was altered.", clock[0], MAX_HEALS + 1)
    Checkpoint.at(str(tmp_path / "checkpoint")).create_left(state_of(tmp_path), (left,))
    source.execute("UPDATE customers SET version = version + 1")
    every = load_job_file(job, ["trigger=100ms", "snapshot.split_rows=2000", "snapshot.parallelism=16"])
    notes, summary = ClockSetBack(clock), RunSummary()
    run.run_job(every, notes, summary, standby=True)
    assert summary.interrupted
    assert [event for event in told(notes) if event[0] != "left"] == [("parked", "customers"), ("joined", "customers")]
    assert_equal(tmp_path, source, "customers", *(["orders", "order_lines"] if others == "go on" else []))


def test_a_table_that_waits_and_is_gone_then_waits_for_longer(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = any_source_database
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path)
    run_epochs(job)
    checkpoint, clock = Checkpoint.at(str(tmp_path / "checkpoint")), [time.time_ns() // 1000]
    set_clock(monkeypatch, clock)
    state, customers = (
        state_of(tmp_path),
        TableId((source.kind == "postgres" and "public") or source.schema, "customers"),
    )
    checkpoint.create_left(state, (Left(customers, 1, "It was altered.", clock[0], MAX_HEALS + 1),))
    drop, *create = recreated(source)
    source.execute(drop)
    for waits in (2, 3):
        clock[0] += parking.LONGEST_WAIT_SECONDS * 1_000_000
        run_epochs(job)
        assert [left.heals for left in state_of(tmp_path).left] == [MAX_HEALS + waits]
    source.execute(*create)
    clock[0] += parking.LONGEST_WAIT_SECONDS * 1_000_000
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


@pytest.mark.parametrize("selects", ["nothing else", "others that are excluded"])
def test_the_only_table_of_a_wildcard_waits_and_is_gone_then_waits_for_longer(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selects: str
) -> None:
    source, schema = any_source_database, any_source_database.schema
    create_tables(source, rows=20, uids=Uids())
    excluded = [] if selects == "nothing else" else [f"{schema}.order*"]
    job = job_of(
        source, tmp_path, tables=[f"{schema}.cust*" if not excluded else f"{schema}.*"], exclude_tables=excluded
    )
    run_epochs(job)
    checkpoint, clock = Checkpoint.at(str(tmp_path / "checkpoint")), [time.time_ns() // 1000]
    set_clock(monkeypatch, clock)
    left = Left(TableId(schema, "customers"), 1, "It was altered.", clock[0], MAX_HEALS + 1)
    checkpoint.create_left(state_of(tmp_path), (left,))
    drop, *create = recreated(source)
    source.execute(drop)
    for heals in (1, 2, 3):
        with pytest.raises(TablesParkedError, match="only table is parked"):
            run_epochs(job)
        assert [left.heals for left in state_of(tmp_path).left] == [MAX_HEALS + heals]
        clock[0] += parking.LONGEST_WAIT_SECONDS * 1_000_000
    source.execute(*create)
    run_epochs(job)
    assert_equal(tmp_path, source, "customers")


def test_with_stop_a_changed_table_stops_the_job(any_source_database: Database, tmp_path: Path) -> None:
    source = any_source_database
    create_tables(source, rows=10, uids=Uids())
    job = job_of(source, tmp_path, on_table_error="stop")
    run_epochs(job)
    source.execute(*UPDATE_ALL, *altered(source), *UPDATE_ALL)
    for _ in range(2):
        with pytest.raises(SchemaChangedError):
            run_epochs(job, "sink.on_schema_change=stop")
    assert not state_of(tmp_path).left
    run_epochs(job)
    assert_copied(tmp_path / "out", source)
    source.execute("DROP TABLE customers")
    for _ in range(2):
        with pytest.raises(SourceNotUsableError, match="customers"):
            run_epochs(job)


@pytest.mark.parametrize("times", [1, 2])
def test_a_table_is_altered_while_it_comes_back(
    any_source_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
) -> None:
    """After the catalog was read, and before the log's position is taken: the log that is read later does not say so."""
    source = any_source_database
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path, target)
    run_epochs(job)
    source.execute(*altered(source), "UPDATE customers SET version = version + 1")
    kind = FoundPostgres if source.kind == "postgres" else FoundMySql
    original, numbers = kind.joining_start, iter(range(times))

    def joining_start(self: Any, tables: Any) -> Any:
        for number in numbers:
            source.execute(f"ALTER TABLE customers ADD COLUMN later{number} INT DEFAULT {unknown(source, 7)}")
            break
        return original(self, tables)

    monkeypatch.setattr(kind, "joining_start", joining_start)
    run_epochs(job)
    assert_mirrored(source, target, "more", *(f"later{number}" for number in range(times)))
    require_none_parked(load_job_file(job), state_of(tmp_path))


@pytest.mark.parametrize("seed", [1])
def test_tables_are_altered_under_writers(any_source_database: Database, tmp_path: Path, seed: int) -> None:
    """Also while their rows are being read again."""
    source, uids, generator = any_source_database, Uids(), random.Random(seed)
    create_tables(source, rows=150, uids=uids)
    job = job_of(source, tmp_path)
    with Writers(source, uids, count=2, seed=seed, pause_seconds=0.02):
        run_epochs(job, at_most=generator.randrange(1, 4))
        for number in range(6):
            table = generator.choice(list(KEYS))
            source.execute(f"ALTER TABLE {table} ADD COLUMN more{number} INT DEFAULT {unknown(source, number)}")
            run_epochs(job, at_most=generator.choice([1, 2, 3, None]))
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    assert_copied(tmp_path / "out", source)


@pytest.mark.parametrize("change", ["attached", "detached", "detached and refused"])
def test_a_partition_with_rows_is_read_and_one_that_is_gone_parks_its_table(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path, change: str
) -> None:
    """The copy may be the only place that has the rows of a removed partition."""
    source, target = postgres18_database, postgres_database
    source.execute(
        "CREATE TABLE visits (id INT NOT NULL, day INT NOT NULL, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE visits_2 PARTITION OF visits FOR VALUES FROM (10) TO (20)",
        "INSERT INTO visits VALUES (1, 1), (2, 11)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "CREATE TABLE visits_3 (id INT NOT NULL, day INT NOT NULL, PRIMARY KEY (id, day))",
        "INSERT INTO visits_3 VALUES (3, 21)",
    )
    job = job_of(source, tmp_path, target, tables=["public.visits", "public.other"])
    run_epochs(job)
    if change == "attached":
        source.execute("ALTER TABLE visits ATTACH PARTITION visits_3 FOR VALUES FROM (20) TO (30)")
    else:
        source.execute("ALTER TABLE visits DETACH PARTITION visits_1")
    source.execute("INSERT INTO visits VALUES (4, 12)", "INSERT INTO other VALUES (1)")
    if (
        change == "detached and refused"
    ):  # before anybody looks at partitions; without that, it would come back by itself
        source.execute("ALTER TABLE visits ADD COLUMN more REGCLASS")
        run_epochs(job)
        source.execute("ALTER TABLE visits DROP COLUMN more")
    run_epochs(job, notes=(notes := Notes()))
    copied = target.query("SELECT id FROM copy_visits ORDER BY id")
    assert target.query("SELECT id FROM copy_other") == [(1,)]
    if change == "attached":
        assert told(notes) == [("left", "visits"), ("joined", "visits")]
        assert copied == source.query("SELECT id FROM visits ORDER BY id") == [(1,), (2,), (3,), (4,)]
    else:
        assert told(notes) == [("parked", "visits")]
        assert "visits_1 of public.visits was detached" in next(
            facts["text"] for event, facts in notes.found if event == "parked"
        )
        assert (1,) in copied
        resnapshot(load_job_file(job), [TableName("public", "visits")])
        run_epochs(job)
        assert target.query("SELECT id FROM copy_visits ORDER BY id") == [(2,), (4,)]


@pytest.mark.parametrize("policy", ["evolve", "stop"])
def test_an_error_that_stops_the_job_says_that_a_partition_is_gone_too(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path, policy: str
) -> None:
    """The remedy of the other error would have the table read again: the copy would lose the rows."""
    source, target = postgres18_database, postgres_database
    source.execute(
        "CREATE TABLE visits (id INT, day INT, title TEXT, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE visits_2 PARTITION OF visits FOR VALUES FROM (10) TO (20)",
        "INSERT INTO visits VALUES (1, 1), (2, 11)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
    )
    job = job_of(source, tmp_path, target, tables=["public.visits", "public.other"], on_table_error="stop")
    settings = (f"sink.on_schema_change={policy}",)
    run_epochs(job, *settings)
    source.execute("ALTER TABLE visits DETACH PARTITION visits_1", "ALTER TABLE visits ADD COLUMN more REGCLASS")
    for _ in range(2):
        with pytest.raises(SourceNotUsableError, match=r"visits_1 of public.visits was detached") as stopped:
            run_epochs(job, *settings)
    assert "To leave the copy as it is, name the table in source.exclude_tables" in stopped.value.remedy
    source.execute("INSERT INTO other VALUES (1)")
    run_epochs(job, *settings, "source.exclude_tables=[public.visits]")
    assert target.query("SELECT id FROM copy_visits ORDER BY id") == [(1,), (2,)]
    assert target.query("SELECT id FROM copy_other") == [(1,)]


def test_discovery_sees_a_named_table_that_is_there_again(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = any_source_database
    create_tables(source, rows=10, uids=Uids())
    job = job_of(source, tmp_path, tables=[f"{source.schema}.{name}" for name in KEYS], discover_seconds=0.01)
    run_epochs(job)
    drop, *create = recreated(source)
    source.execute(drop)
    run_epochs(job)
    opened, known = load_job_file(job), known_tables(load_job_file(job), state_of(tmp_path), 0)
    assert TableId(source.schema, "customers") not in known
    discovery, answers = Discovery(opened), list[None]()
    ask = discovery._ask
    monkeypatch.setattr(discovery, "_ask", lambda: answers.append(ask()))

    def sees_it() -> bool:
        """Looks until an answer to a question that was asked from now on has been taken in: the one after it is there."""
        before = len(answers)
        while len(answers) < before + 3:
            if discovery.look(known):
                return True
            time.sleep(0.01)
        return False

    assert not sees_it()
    for _ in range(2):
        source.execute(*create)
        assert sees_it()
        assert not sees_it(), "it is told once"
        source.execute(drop)
        assert not sees_it()


def test_all_tables_of_a_wildcard_are_dropped_and_others_go_on(any_source_database: Database, tmp_path: Path) -> None:
    """One that names nothing is an error only before a job has started."""
    database = any_source_database
    wildcards = [f"{database.schema}.{name}_*" for name in ("new", "old")]
    for table in ("new_1", "old_1"):
        database.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    job = job_of(database, tmp_path, tables=wildcards)
    run_epochs(job)
    database.execute("DROP TABLE old_1", "INSERT INTO new_1 VALUES (2)")
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes) == [("left", "old_1"), ("parked", "old_1")] or told(notes) == [("parked", "old_1")]
    assert [
        facts["text"]
        for event, facts in notes.found
        if event == "warning" and ".old_* matches no table now" in facts["text"]
    ]
    with pytest.raises(TablesParkedError, match=r"old_1"):
        require_none_parked(load_job_file(job), state_of(tmp_path))
    discovery = Discovery(load_job_file(job))
    discovery._ask()
    assert discovery._found == (TableId(database.schema, "new_1"),)
    database.execute("CREATE TABLE old_1 (id INT PRIMARY KEY)", "INSERT INTO old_1 VALUES (3)")
    run_epochs(job)
    assert read_history(tmp_path / "out", database.schema, "new_1")["id"].to_pylist() == [1, 2]
    assert 3 in read_history(tmp_path / "out", database.schema, "old_1")["id"].to_pylist()
    require_none_parked(load_job_file(job), state_of(tmp_path))
    typo = job_of(database, tmp_path, tables=[*wildcards, f"{database.schema}.odl_*"])
    run_epochs(typo, notes=(notes := Notes()))
    assert [facts["text"] for event, facts in notes.found if ".odl_* matches no table now" in str(facts.get("text"))]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("ALTER TYPE kind RENAME VALUE 'b' TO 'bb'", "id"),
        ("ALTER TABLE t RENAME COLUMN id TO number", "number"),  # the copy gets the new key
    ],
)
def test_a_key_is_altered_after_a_range_of_the_log_was_planned(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, key: str
) -> None:
    """Splits of the table are left, so the source is asked to which of them the keys in the range belong."""
    source, next_epoch, planned, notes = postgres_database, Planner.next_epoch, list[int](), Notes()
    source.execute(
        "CREATE TYPE kind AS ENUM ('a', 'b', 'c')",
        "CREATE TABLE t (kind kind, id int, v int, PRIMARY KEY (kind, id))",
        "INSERT INTO t SELECT (ARRAY['a', 'b', 'c'])[n % 3 + 1]::kind, n, 0 FROM generate_series(1, 12) AS n",
        "CREATE TABLE other (id int PRIMARY KEY, v int)",
        "INSERT INTO other VALUES (1, 0)",
    )

    def plan(self: Planner, committed: int, **settings: Any) -> int:
        if not planned:
            source.execute("UPDATE t SET v = v + 1", "UPDATE other SET v = v + 1")
        epoch = next_epoch(self, committed, **settings)
        if epoch > committed and not planned:
            record = self.record(epoch)
            read = next(table.done_splits for table in record.state.tables if table.table.name == "t")
            if isinstance(record.plan.work, LogWork) and read >= 2:  # with different highs
                planned.append(epoch)
                source.execute(change)
        return epoch

    monkeypatch.setattr(Planner, "next_epoch", plan)
    with fresh_database(source.server) as target:
        job = job_of(source, tmp_path, target)
        run_epochs(job, "snapshot.split_rows=2", "snapshot.parallelism=1", notes=notes)
        assert planned
        assert told(notes) == [("left", "t"), ("joined", "t")]
        assert target.query("SELECT * FROM copy_other") == source.query("SELECT * FROM other")
        copied = target.query(f"SELECT kind, {key}, v FROM copy_t ORDER BY {key}")
        assert copied == source.query(f"SELECT kind::text, {key}, v FROM t ORDER BY {key}")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("utf8mb4_general_ci", "utf8mb4_bin"),
        ("utf8mb4_bin", "utf8mb4_general_ci"),
        ("utf8mb3_unicode_ci", "utf8mb3_bin"),
    ],
)
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_key_gets_another_collation_while_splits_are_left(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, before: str, now: str
) -> None:
    """In the new order, keys of the splits that are left may be before those that were read."""
    source, notes = request.getfixturevalue(f"{kind}_database"), Notes()
    charset = before.partition("_")[0]
    source.execute(
        f"CREATE TABLE t (id VARCHAR(9) CHARACTER SET {charset} COLLATE {before} PRIMARY KEY, v INT)",
        "INSERT INTO t VALUES ('a', 1), ('B', 2), ('c', 3), ('D', 4), ('e', 5), ('F', 6), ('_g', 7), ('-h', 8)",
    )
    with fresh_database(source.server) as target:
        job = job_of(source, tmp_path, target)
        small = ("snapshot.split_rows=2", "snapshot.parallelism=1")
        for _ in range(2):  # splits, and the log after them: the next epoch is one of splits
            run_epochs(job, *small, at_most=1)
        source.execute(
            f"ALTER TABLE t MODIFY id VARCHAR(9) CHARACTER SET {charset} COLLATE {now}",
            "UPDATE t SET v = 9 WHERE id = 'D'",
            "DELETE FROM t WHERE id = '_g'",
        )
        run_epochs(job, *small, notes=notes)
        assert told(notes) == [("left", "t"), ("joined", "t")]
        query = "SELECT HEX(id), v FROM %s ORDER BY v"
        assert target.query(query % "copy_t") == source.query(query % "t")


@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"])
def test_a_key_is_moved_while_splits_are_left(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a split have one key then, which the copy refuses. The key is the reason, not the copy's rows."""
    source, next_epoch, notes, moved = request.getfixturevalue(f"{kind}_database"), Planner.next_epoch, Notes(), [False]
    source.execute(
        "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, code INT NOT NULL, v INT)",
        f"INSERT INTO t VALUES {', '.join(f'({n}, {100 - n}, 0)' for n in range(1, 33))}",
        "CREATE TABLE other (id INT PRIMARY KEY)",
    )
    drop = "CONSTRAINT t_pkey" if kind == "postgres" else "PRIMARY KEY"

    def plan(self: Planner, committed: int, **settings: Any) -> int:
        epoch = next_epoch(self, committed, **settings)
        if epoch > committed and committed and isinstance(self.record(epoch).plan.work, SnapshotWork) and not moved[0]:
            moved[0] = True
            source.execute(
                f"ALTER TABLE t DROP {drop}, ADD PRIMARY KEY (code)",
                f"INSERT INTO t VALUES {', '.join(f'({n}, {300 + n}, 8)' for n in range(1, 33))}",
                "DELETE FROM t WHERE code = 95",
            )
        return epoch

    monkeypatch.setattr(Planner, "next_epoch", plan)
    monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 1)
    small = ("snapshot.split_rows=2", "snapshot.parallelism=1")
    with fresh_database(source.server) as target:
        job = job_of(source, tmp_path, target)
        run_epochs(job, *small, notes=notes)
        assert moved[0]
        assert told(notes)[0] == ("left", "t")
        assert "(id)" in next(facts["text"] for event, facts in notes.found if event == "left")
        query = "SELECT id, code, v FROM %s ORDER BY code"
        assert target.query(query % "copy_t") == source.query(query % "t")
        require_none_parked(load_job_file(job), state_of(tmp_path))


def test_a_key_of_a_type_without_order_parks_its_table_alone(postgres18_database: Database, tmp_path: Path) -> None:
    """hstore has a B-tree, so it may be a key, but its operators are not called < and >."""
    source, notes = postgres18_database, Notes()
    source.execute(
        "CREATE EXTENSION hstore",
        "CREATE TABLE h (id hstore PRIMARY KEY, v int)",
        "INSERT INTO h VALUES ('a=>1', 1), ('b=>2', 2)",
        "CREATE TABLE o (id int PRIMARY KEY, v int)",
        "INSERT INTO o VALUES (1, 1)",
    )
    with fresh_database(source.server) as target:
        job = job_of(source, tmp_path, target)
        run_epochs(job, "source.on_table_error=park", notes=notes)
        state = Checkpoint.at(load_job_file(job).checkpoint).job_state()
        assert state is not None
        (parked,) = state.left
        assert parked.table.name == "h"
        assert "has no operator <" in parked.why
        assert parked.why.endswith("Name the table in source.exclude_tables.")
        source.execute("INSERT INTO o VALUES (2, 2)")
        run_epochs(job, "source.exclude_tables=['public.h']", notes=notes)
        require_none_parked(load_job_file(job, ["source.exclude_tables=['public.h']"]), state_of(tmp_path))
        assert target.query("SELECT * FROM copy_o ORDER BY id") == [(1, 1), (2, 2)]
