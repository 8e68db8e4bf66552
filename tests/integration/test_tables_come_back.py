"""A table that can't be followed any more is parked, and the others go on. Parked and excluded tables come back: their copies
are emptied or replaced range by range, and their rows are read again (docs/adr/0026, docs/adr/0052)."""

import contextlib
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.history import assert_copied, assert_history, read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.workload import KEYS, POSTGRES_TABLES, TABLES, UPDATE_ALL, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.enumerator import enumerator
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.startup import open_job
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.readers.postgres import source as postgres_source
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, JobFileError, TablesParkedError, TidemarkError
from tidemark.state.failpoints import FailpointError
from tidemark.state.job_state import JobState, Left
from tidemark.state.table import TableId

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family, pytest.mark.servers_in_turn]


def job_of(
    database: Database,
    folder: Path,
    *excluded: str,
    target: Database | None = None,
    keeps_deleted: bool = False,
    **changes: Any,
) -> Path:
    sink: dict[str, Any] = {"type": "files", "path": str(folder / "out")}
    if target is not None:
        sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
        if keeps_deleted:
            sink["audit_columns"] = {"deleted": "_deleted", "synced_at": "_synced_at"}
    names = [f"{database.schema}.{table}" for table in excluded]
    job = {
        "source": source_of(database, exclude_tables=names, on_table_error="park"),
        "checkpoint": str(folder / "checkpoint"),
        "snapshot": {"split_rows": 20, "parallelism": 2},
        "sink": sink,
    }
    return write_job(folder, **(job | changes))


def state_of(folder: Path) -> JobState:
    state = Checkpoint.at(str(folder / "checkpoint")).job_state()
    assert state is not None
    return state


def read_again(job: Path, database: Database, *tables: str) -> None:
    resnapshot(load_job_file(job), [TableName(database.schema, table) for table in tables])


def assert_equal(folder: Path, database: Database, *tables: str) -> None:
    for table in tables:
        key = KEYS[table]
        rows = database.query(f"SELECT uid, version, {', '.join(key)} FROM {table}")
        history = read_history(folder / "out", database.schema, table)
        assert_history(history, {row[2:]: row[:2] for row in rows}, name=table, key=key)


def assert_mirrored(source: Database, target: Database, *more: str, condition: str = "TRUE") -> None:
    columns = ", ".join(("uid", "version", *more))
    for table, key in KEYS.items():
        names = f"{', '.join(key)}, {columns if table == 'customers' else 'uid, version'}"
        query = f"SELECT {names} FROM %s ORDER BY uid"
        assert target.query(query % f"copy_{table} WHERE {condition}") == source.query(query % table), table


@pytest.mark.pitfall(110)
@pytest.mark.parametrize("change", ["ALTER TABLE customers ADD COLUMN more INT", "DROP TABLE customers"])
def test_a_table_is_parked_and_the_others_go_on(any_source_database: Database, tmp_path: Path, change: str) -> None:
    database = any_source_database
    create_tables(database, rows=40, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job)
    is_dropped = change.startswith("DROP")
    database.execute(*UPDATE_ALL, change)
    if not is_dropped:
        database.execute("UPDATE customers SET version = version + 1")
    for _ in range(2):  # also when the job is started again
        run_epochs(job, notes=(notes := Notes()))
        told = [facts for event, facts in notes.found if event == "parked"]
        assert [facts["table"] for facts in told] == [f"{database.schema}.customers"]
        assert "tidemark signal JOB.yaml resnapshot --table" in told[0]["text"]
        assert_equal(tmp_path, database, "orders", "order_lines")
        database.execute("UPDATE orders SET version = version + 1")
    with pytest.raises(TablesParkedError, match="1 table is parked: the copies lack changes") as caught:
        require_none_parked(load_job_file(job), state_of(tmp_path))
    assert caught.value.exit_code == 9
    if is_dropped:
        return
    read_again(job, database, "customers")
    run_epochs(job, notes=(notes := Notes()))
    assert "parked" not in [event for event, _ in notes.found]
    assert_copied(tmp_path / "out", database)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    database.execute(
        "UPDATE customers SET version = version + 1, more = 7", "DELETE FROM customers WHERE code LIKE '%1'"
    )
    run_epochs(job)
    assert_copied(tmp_path / "out", database)


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ("ALTER TABLE customers ADD COLUMN more VARCHAR(20) DEFAULT 'x'", ("more",)),
        ("ALTER TABLE customers ADD COLUMN more INT NOT NULL DEFAULT 5", ("more",)),
        ("ALTER TABLE customers ADD COLUMN later INT", ()),
    ],
)
def test_a_mirror_gets_the_columns_of_a_table_that_comes_back(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path, change: str, more: tuple[str, ...]
) -> None:
    source = any_source_database
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    create_tables(source, rows=40, uids=Uids())
    job = job_of(source, tmp_path, target=target)
    run_epochs(job)
    source.execute(change, *UPDATE_ALL)
    run_epochs(job)
    assert state_of(tmp_path).left, "it is parked"
    read_again(job, source, "customers")
    run_epochs(job)
    source.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 3 = 0")
    run_epochs(job)
    assert_mirrored(source, target, *more)


def test_a_mirror_gets_another_type_and_a_copy_that_was_dropped(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = any_source_database
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    source.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE b (id INT PRIMARY KEY, v INT)")
    source.execute("INSERT INTO a VALUES (1, 1), (2, 2)", "INSERT INTO b VALUES (1, 1)")
    job = job_of(source, tmp_path, target=target, keeps_deleted=True)
    run_epochs(job)
    changed = (
        "ALTER TABLE a ALTER COLUMN v TYPE VARCHAR(30)"
        if source.kind == "postgres"
        else "ALTER TABLE a MODIFY v VARCHAR(30)"
    )
    source.execute(changed, "UPDATE a SET v = 'one' WHERE id = 1", "INSERT INTO b VALUES (2, 2)")
    run_epochs(job)
    assert [left.table.name for left in state_of(tmp_path).left] == ["a"]
    read_again(job, source, "a")
    run_epochs(job)
    everything = "SELECT id, v FROM %s ORDER BY id"
    copied = "SELECT id, v FROM copy_a WHERE NOT _deleted ORDER BY id"
    assert target.query(copied) == source.query(everything % "a") == [(1, "one"), (2, "2")]
    key = "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (v)"
    if source.kind != "postgres":
        key = "ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (v)"
    source.execute("ALTER TABLE a ALTER COLUMN v SET NOT NULL" if source.kind == "postgres" else "SELECT 1", key)
    source.execute("INSERT INTO a VALUES (3, 'three')", "INSERT INTO b VALUES (3, 3)")
    run_epochs(job)
    assert [left.table.name for left in state_of(tmp_path).left] == ["a"]
    read_again(job, source, "a")
    run_epochs(job, notes=(notes := Notes()))
    warnings = [facts["text"] for event, facts in notes.found if event == "warning" and facts.get("table")]
    assert any("has the primary key" in text and "Drop that table" in text for text in warnings)
    assert target.query(everything % "copy_b") == source.query(everything % "b")
    target.execute("DROP TABLE copy_a")  # the remedy
    read_again(job, source, "a")
    run_epochs(job)
    source.execute("INSERT INTO a VALUES (4, 'four')", "DELETE FROM a WHERE id = 1")
    run_epochs(job)
    assert target.query(copied) == source.query(everything % "a")
    answers = [answer for _, answer in Checkpoint.at(str(tmp_path / "checkpoint")).signals().values()]
    assert [answer is not None and answer.accepted for answer in answers] == [True, False, True]


def test_a_table_that_is_named_and_gone_is_parked_and_a_signal_for_it_fails(
    any_source_database: Database, tmp_path: Path
) -> None:
    """A name in source.tables that matches nothing is an error of that table alone once the job runs."""
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    named = source_of(database, on_table_error="park", tables=[f"{database.schema}.{table}" for table in KEYS])
    job = job_of(database, tmp_path, source=named)
    run_epochs(job)
    database.execute("DROP TABLE customers", "UPDATE orders SET version = version + 1")
    run_epochs(job)
    read_again(job, database, "customers")
    for _ in range(2):
        run_epochs(job)
        assert [left.table.name for left in state_of(tmp_path).left] == ["customers"]
        assert_equal(tmp_path, database, "orders", "order_lines")
    (answer,) = [answer for _, answer in Checkpoint.at(str(tmp_path / "checkpoint")).signals().values()]
    assert answer is not None
    assert not answer.accepted
    assert "customers" in answer.text
    columns = (POSTGRES_TABLES if database.kind == "postgres" else TABLES)["customers"]
    row = "INSERT INTO customers (code, uid, version, note) VALUES ('new', 9999, 1, 'x')"
    database.execute(f"CREATE TABLE customers ({columns})", row)
    read_again(job, database, "customers")
    run_epochs(job)
    assert_copied(tmp_path / "out", database)


@pytest.mark.parametrize("policy", ["park", "stop"])
def test_the_remedy_to_exclude_works_for_a_table_that_is_named_everywhere(
    any_source_database: Database, tmp_path: Path, policy: str
) -> None:
    """In source.tables and in source.columns, and dropped."""
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    customers = f"{database.schema}.customers"
    settings = {
        "tables": [f"{database.schema}.{table}" for table in KEYS],
        "columns": {customers: {"exclude": ["note"]}},
        "on_table_error": policy,
    }
    run_epochs(job_of(database, tmp_path, source=source_of(database, **settings)))
    database.execute("DROP TABLE customers", "UPDATE orders SET version = version + 1")
    job = job_of(database, tmp_path, source=source_of(database, **settings, exclude_tables=[customers]))
    for _ in range(2):
        run_epochs(job)
        assert_equal(tmp_path, database, "orders", "order_lines")
        require_none_parked(load_job_file(job), state_of(tmp_path))
        database.execute("UPDATE orders SET version = version + 1")


def test_a_table_with_the_name_of_a_tools_table_comes_back(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE _a_old (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    mysql_database.execute("INSERT INTO _a_old VALUES (1), (2)")
    job = job_of(mysql_database, tmp_path)
    run_epochs(job)
    read_again(job, mysql_database, "_a_old")
    mysql_database.execute("DELETE FROM _a_old WHERE id = 1")
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    kinds = read_history(tmp_path / "out", mysql_database.schema, "%5Fa_old").column("_change_type").to_pylist()
    assert kinds == ["insert", "insert", "truncate", "insert"]


def test_a_new_table_that_does_not_fit_does_not_stop_a_running_job(mysql_database: Database, tmp_path: Path) -> None:
    create_tables(mysql_database, rows=10, uids=Uids())
    job = job_of(mysql_database, tmp_path)
    run_epochs(job)
    mysql_database.execute("CREATE TABLE odd (id INT PRIMARY KEY, _seq INT)", "CREATE TABLE fine (id INT PRIMARY KEY)")
    mysql_database.execute("INSERT INTO fine VALUES (1)", *UPDATE_ALL)
    for _ in range(2):
        run_epochs(job, notes=(notes := Notes()))
        told = [facts for event, facts in notes.found if event == "warning" and facts.get("table", "").endswith("odd")]
        assert "does not join the job" in told[0]["text"]
    assert read_history(tmp_path / "out", mysql_database.schema, "fine").num_rows == 1
    assert_copied(tmp_path / "out", mysql_database)


def test_a_table_that_left_comes_back(any_source_database: Database, tmp_path: Path) -> None:
    database = any_source_database
    create_tables(database, rows=30, uids=Uids())
    run_epochs(job_of(database, tmp_path))
    run_epochs(job_of(database, tmp_path, "customers"))
    database.execute(*UPDATE_ALL, "DELETE FROM customers WHERE code LIKE '%2'")
    run_epochs(job_of(database, tmp_path, "customers"))
    assert_equal(tmp_path, database, "orders", "order_lines")
    run_epochs(job_of(database, tmp_path))
    assert_copied(tmp_path / "out", database)
    database.execute(*UPDATE_ALL)
    run_epochs(job_of(database, tmp_path))
    assert_copied(tmp_path / "out", database)


def test_no_write_between_leaving_and_coming_back(any_source_database: Database, tmp_path: Path) -> None:
    """Then the log's position is the same. The TRUNCATE of the copy must still come after the changes before, and before the
    rows."""
    database = any_source_database
    create_tables(database, rows=30, uids=Uids())
    run_epochs(job_of(database, tmp_path))
    database.execute(*UPDATE_ALL)
    run_epochs(job_of(database, tmp_path))
    for _ in range(3):
        run_epochs(job_of(database, tmp_path, "customers"))
        run_epochs(job_of(database, tmp_path))
        assert_copied(tmp_path / "out", database)
    database.execute(*UPDATE_ALL)
    run_epochs(job_of(database, tmp_path))
    assert_copied(tmp_path / "out", database)


def test_in_mode_incremental_it_does_not_come_back(any_source_database: Database, tmp_path: Path) -> None:
    database = any_source_database
    create_tables(database, rows=10, uids=Uids())
    run_epochs(job_of(database, tmp_path, mode="incremental"))
    run_epochs(job_of(database, tmp_path, "customers", mode="incremental"))
    with pytest.raises(CheckpointError, match=r"customers left the job .* can't read its rows again"):
        run_epochs(job_of(database, tmp_path, mode="incremental"))
    with pytest.raises(JobFileError, match="Mode incremental can't read rows again"):
        read_again(job_of(database, tmp_path, mode="incremental"), database, "orders")
    database.execute("UPDATE orders SET version = version + 1")
    run_epochs(job_of(database, tmp_path, "customers", mode="incremental"))


def test_signals_that_can_t_be_followed_are_refused(mysql_database: Database, tmp_path: Path) -> None:
    create_tables(mysql_database, rows=10, uids=Uids())
    job = job_of(mysql_database, tmp_path, "customers")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        read_again(job, mysql_database, "orders")
    run_epochs(job)
    with pytest.raises(JobFileError, match=r"does not copy .*nothing"):
        read_again(job, mysql_database, "orders", "nothing")
    with pytest.raises(JobFileError, match="needs a table"):
        read_again(job, mysql_database)
    assert not Checkpoint.at(str(tmp_path / "checkpoint")).signals()


@pytest.mark.servers_in_turn("any_source_database", "nth")  # each point at one of the two moments
@pytest.mark.parametrize(
    "point",
    [
        "signals.left",
        "tables.before_joined",
        "tables.after_joined",
        "signals.joined",
        "planner.before_plan",
        "planner.after_plan",
        "log.before_report",
        "sink.before_commit",
        "sink.after_commit",
        "driver.epoch_written",
        "driver.epoch_committed",
        "snapshot.after_low",
        "planner.after_finished_splits",
    ],
)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_run_dies_while_a_table_comes_back(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    database = any_source_database
    create_tables(database, rows=60, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job)
    database.execute(*UPDATE_ALL, "DELETE FROM customers WHERE code LIKE '%3'")
    read_again(job, database, "customers")
    armed = tmp_path / "armed"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    if nth > 1:
        run_epochs(job, at_most=nth)
        database.execute("UPDATE customers SET version = version + 1")
        read_again(job, database, "customers")
    (armed / point).write_text("raise")
    try:
        run_epochs(job)
    except FailpointError:
        database.execute(*UPDATE_ALL)
    (armed / point).unlink(missing_ok=True)
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    database.execute(*UPDATE_ALL)
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    assert not Checkpoint.at(str(tmp_path / "checkpoint")).has_open_signals()


@pytest.mark.servers_in_turn
@pytest.mark.parametrize(("sink", "seed"), [("files", 1), ("mirror", 2), ("keeping mirror", 1)])
def test_tables_come_and_go_under_writers(
    any_source_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    is_long: bool,
    sink: str,
    seed: int,
) -> None:
    """Also in the middle of the first load, of another table's return, and of its own."""
    source, uids, generator = any_source_database, Uids(), random.Random(seed)
    target: Database | None = None if sink == "files" else request.getfixturevalue(f"{source.kind}_database")
    settings: dict[str, Any] = {"target": target, "keeps_deleted": sink == "keeping mirror"}
    create_tables(source, rows=150, uids=uids)
    excluded: set[str] = set()
    with Writers(source, uids, count=2, seed=seed, pause_seconds=0.02):
        run_epochs(job_of(source, tmp_path, **settings), at_most=generator.randrange(1, 4))
        for _ in range(8 if is_long else 5):
            match generator.randrange(4):
                case 0:
                    excluded ^= {generator.choice(list(KEYS))}
                case 1 if len(excluded) < len(KEYS):
                    read_again(
                        job_of(source, tmp_path, *excluded, **settings),
                        source,
                        generator.choice(sorted(set(KEYS) - excluded)),
                    )
                case _:
                    time.sleep(0.05)
            if len(excluded) == len(KEYS):
                excluded.clear()
            run_epochs(job_of(source, tmp_path, *excluded, **settings), at_most=generator.choice([1, 2, 3, 5, None]))
    job = job_of(source, tmp_path, **settings)
    run_epochs(job)
    if target is None:
        assert_copied(tmp_path / "out", source)
    else:
        assert_mirrored(source, target, condition="_deleted IS FALSE" if settings["keeps_deleted"] else "TRUE")


def test_a_postgres_table_that_waits_for_an_open_transaction_joins_later(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres_database
    create_tables(database, rows=10, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job)
    monkeypatch.setattr(postgres_source, "JOINING_WAIT_SECONDS", 0.5)
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("UPDATE orders SET note = note WHERE id = 1")
        database.execute("CREATE TABLE fresh (id INT PRIMARY KEY)", "INSERT INTO fresh VALUES (1)")
        database.execute("UPDATE customers SET version = version + 1")
        read_again(job, database, "order_lines")
        run_epochs(job, notes=(notes := Notes()))
        texts = [facts["text"] for event, facts in notes.found if event == "warning"]
        told = [text for text in texts if "does not join the job now" in text]
        assert len(told) == 2
        assert_equal(tmp_path, database, "orders", "customers")
        with pytest.raises(TablesParkedError, match=r"order_lines.*waits to come back"):
            require_none_parked(load_job_file(job), state_of(tmp_path))
        (remedy,) = {re.search(r"End it, or (SELECT pg_terminate_backend\(\d+\))\.", text)[1] for text in told}
        database.execute(remedy)
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    assert_copied(tmp_path / "out", database)
    assert read_history(tmp_path / "out", database.schema, "fresh").num_rows == 1


def test_a_postgres_table_that_somebody_vacuums_joins_later(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To publish a table needs the lock that VACUUM and CREATE INDEX CONCURRENTLY have, perhaps for hours."""
    database = postgres_database
    create_tables(database, rows=10, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job)
    monkeypatch.setattr(postgres_source, "JOINING_WAIT_SECONDS", 0.5)
    database.execute("CREATE TABLE fresh (id INT PRIMARY KEY)", "INSERT INTO fresh VALUES (1)", *UPDATE_ALL)
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = '20s'; BEGIN")
        cursor.execute("LOCK TABLE fresh IN SHARE UPDATE EXCLUSIVE MODE")
        run_epochs(job, notes=(notes := Notes()))
        assert_equal(tmp_path, database, "orders", "customers", "order_lines")
        texts = [facts["text"] for event, facts in notes.found if event == "warning"]
        assert [
            text
            for text in texts
            if "does not join the job now" in text and f"keeps {database.schema}.fresh locked" in text
        ]
        cursor.execute("ROLLBACK")
    run_epochs(job)
    assert read_history(tmp_path / "out", database.schema, "fresh").num_rows == 1


def test_an_epoch_is_planned_by_a_driver_that_does_not_know_that_a_table_has_left(
    any_source_database: Database, tmp_path: Path
) -> None:
    """It was frozen while another driver took the table out."""
    database = any_source_database
    create_tables(database, rows=60, uids=Uids())
    job = job_of(database, tmp_path)
    with open_job(load_job_file(job), Notes(), standby=True) as opened:
        context = RunContext(load_job_file(job), opened.held.server, opened.held.state)
        planner = context.planner()
        customers = TableId(database.schema, "customers")
        context.checkpoint.create_left(context.state, (Left(customers, 1),))
        assert planner.next_epoch(0) == 1
    run_epochs(job_of(database, tmp_path, "customers"))
    assert_equal(tmp_path, database, "orders", "order_lines")
    run_epochs(job)
    database.execute(*UPDATE_ALL)
    run_epochs(job_of(database, tmp_path))
    assert_copied(tmp_path / "out", database)


def told(notes: Notes) -> list[tuple[str, str]]:
    """The events about tables: the event, and the table's name."""
    kinds = {"left", "joined", "parked"}
    return [(event, facts["table"].rpartition(".")[2]) for event, facts in notes.found if event in kinds]


def dies_in_an_epoch_that_was_read(job: Path, folder: Path, point: str) -> None:
    die_at(job, point)
    checkpoint = Checkpoint.at(str(folder / "checkpoint"))
    newest = max(checkpoint.plan_epochs())
    assert checkpoint.has_log_report(newest)
    assert checkpoint.committed_epoch() == newest - 1


def created_again(database: Database) -> list[str]:
    columns = (POSTGRES_TABLES if database.kind == "postgres" else TABLES)["customers"]
    row = "INSERT INTO customers (code, uid, version, note) VALUES ('new', 9999, 1, 'x')"
    return ["DROP TABLE customers", f"CREATE TABLE customers ({columns})", row]


@pytest.mark.parametrize("on_schema_change", ["stop", "evolve"])
@pytest.mark.parametrize("is_created_again", [True, False])
@pytest.mark.parametrize("point", ["sink.before_commit", "driver.epoch_written"])
def test_a_table_is_gone_after_its_changes_were_read(
    any_source_database: Database,
    tmp_path: Path,
    point: str,
    is_created_again: bool,
    on_schema_change: str,
) -> None:
    """The run dies before the epoch is committed. The next one commits it first, and then the table leaves."""
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job)
    database.execute(*UPDATE_ALL)
    dies_in_an_epoch_that_was_read(job, tmp_path, point)
    database.execute(*created_again(database)[: 3 if is_created_again else 1])
    database.execute("UPDATE orders SET version = version + 1")
    run_epochs(job, f"sink.on_schema_change={on_schema_change}", notes=(notes := Notes()))
    assert_equal(tmp_path, database, "orders", "order_lines")
    copied = read_history(tmp_path / "out", database.schema, "customers")
    assert 2 in copied.column("version").to_pylist(), "the epoch was committed with the table"
    if is_created_again and on_schema_change == "stop":
        assert told(notes) == [("parked", "customers")]
        read_again(job, database, "customers")
        run_epochs(job)
    if is_created_again:
        assert_copied(tmp_path / "out", database)
    else:
        assert told(notes)[-1] == ("parked", "customers")


def test_a_signal_is_taken_once_the_epoch_that_was_read_is_committed(
    any_source_database: Database, tmp_path: Path
) -> None:
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job)
    database.execute(*UPDATE_ALL)
    dies_in_an_epoch_that_was_read(job, tmp_path, "sink.after_commit")
    read_again(job, database, "customers")
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes) == [("joined", "customers")]
    assert not Checkpoint.at(str(tmp_path / "checkpoint")).has_open_signals()
    assert_copied(tmp_path / "out", database)


def test_a_table_is_dropped_before_its_splits_are_planned(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    original = enumerator.next_ranges

    def next_ranges(table: Any, *arguments: Any, **settings: Any) -> Any:
        if table.table.name == "orders" and database.query("SELECT 1 FROM orders LIMIT 1"):
            monkeypatch.setattr(enumerator, "next_ranges", original)
            database.execute("DROP TABLE orders")
        return original(table, *arguments, **settings)

    monkeypatch.setattr(enumerator, "next_ranges", next_ranges)
    job = job_of(database, tmp_path)
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes) == [("parked", "orders")]
    assert_equal(tmp_path, database, "customers", "order_lines")


def test_a_table_is_dropped_while_the_log_is_read(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres_database
    create_tables(database, rows=20, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job)
    original = postgres_source.PostgresLog.read

    def read(self: Any, log_range: Any) -> Any:
        monkeypatch.setattr(postgres_source.PostgresLog, "read", original)
        database.execute("DROP TABLE customers")
        yield from original(self, log_range)

    monkeypatch.setattr(postgres_source.PostgresLog, "read", read)
    database.execute(*UPDATE_ALL)
    run_epochs(job, notes=(notes := Notes()))
    assert told(notes) == [("parked", "customers")]
    assert_equal(tmp_path, database, "orders", "order_lines")


@pytest.mark.parametrize("on_schema_change", ["stop", "evolve"])
@pytest.mark.parametrize("at_start", [True, False])
def test_a_table_is_taken_out_of_the_publication(
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_start: bool,
    on_schema_change: str,
) -> None:
    """Somebody wanted that, so the table waits for a signal. Then the job adds it to its publication again."""
    database = postgres_database
    create_tables(database, rows=20, uids=Uids())
    job, override = job_of(database, tmp_path), f"sink.on_schema_change={on_schema_change}"
    run_epochs(job)
    drop = f"ALTER PUBLICATION {database.name} DROP TABLE customers"
    original = postgres_source.PostgresLog.read

    def read(self: Any, log_range: Any) -> Any:
        monkeypatch.setattr(postgres_source.PostgresLog, "read", original)
        database.execute(drop)
        yield from original(self, log_range)

    if at_start:
        database.execute(drop)
    else:
        monkeypatch.setattr(postgres_source.PostgresLog, "read", read)
    database.execute(*UPDATE_ALL)
    for _ in range(2):
        run_epochs(job, override, notes=(notes := Notes()))
        assert told(notes) == [("parked", "customers")]
        assert_equal(tmp_path, database, "orders", "order_lines")
    read_again(job, database, "customers")
    run_epochs(job, override)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    database.execute(*UPDATE_ALL)
    run_epochs(job, override)
    assert_copied(tmp_path / "out", database)


@pytest.mark.parametrize("policy", ["park", "stop"])
def test_a_signal_for_a_table_that_the_checks_refuse(
    any_source_database: Database, tmp_path: Path, policy: str
) -> None:
    """PostgreSQL finds out at the start that the table is another one."""
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    settings = source_of(database, on_table_error=policy, tables=[f"{database.schema}.customers"])
    job = job_of(database, tmp_path, source=settings)
    run_epochs(job)
    database.execute(*created_again(database))
    for _ in range(2):
        with pytest.raises(TidemarkError) as caught:
            run_epochs(job)
        assert "tidemark signal JOB.yaml resnapshot --table" in caught.value.remedy
        assert caught.value.exit_code == (9 if policy == "park" else 3)
    read_again(job, database, "customers")
    run_epochs(job)
    assert_equal(tmp_path, database, "customers")


def test_all_tables_are_altered_at_once(any_source_database: Database, tmp_path: Path) -> None:
    database = any_source_database
    create_tables(database, rows=20, uids=Uids())
    job = job_of(database, tmp_path)
    run_epochs(job)
    database.execute(*UPDATE_ALL, *(f"ALTER TABLE {table} ADD COLUMN more INT" for table in KEYS), *UPDATE_ALL)
    for _ in range(2):
        with pytest.raises(TablesParkedError, match="All 3 tables of the job are parked") as caught:
            run_epochs(job)
        assert "tidemark signal JOB.yaml resnapshot --table" in caught.value.remedy
    read_again(job, database, "orders")
    run_epochs(job)
    assert_equal(tmp_path, database, "orders")
    read_again(job, database, "customers", "order_lines")
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(tmp_path))
    assert_copied(tmp_path / "out", database)


@pytest.mark.parametrize("change", ["ALTER TABLE copy_customers DROP COLUMN note", "DROP TABLE copy_customers"])
def test_a_signal_mends_a_copy_that_does_not_fit(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path, change: str
) -> None:
    """As the remedy says. The other tables go on."""
    source = any_source_database
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    create_tables(source, rows=20, uids=Uids())
    job = job_of(source, tmp_path, target=target)
    run_epochs(job)
    target.execute(change)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    with pytest.raises(TablesParkedError) as caught:
        require_none_parked(load_job_file(job), state_of(tmp_path))
    assert f"tidemark signal JOB.yaml resnapshot --table {source.schema}.customers" in caught.value.remedy
    read_again(job, source, "customers")
    run_epochs(job)
    assert_mirrored(source, target, "note")


def test_a_table_that_a_check_refuses_stays_parked_until_it_is_corrected(
    postgres18_database: Database, tmp_path: Path
) -> None:
    """It is not read again at each start meanwhile."""
    database = postgres18_database
    create_tables(database, rows=20, uids=Uids())
    job = job_of(
        database, tmp_path, sink={"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"}
    )
    run_epochs(job)
    database.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    for _ in range(2):
        notes = Notes()
        run_epochs(job, notes=notes)
        assert "joined" not in [event for event, _ in notes.found]
        parked = [facts["text"] for event, facts in notes.found if event == "parked"]
        assert len(parked) == 1
        assert "replica identity of public.orders is NOTHING" in parked[0]
    database.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT", *UPDATE_ALL)
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
