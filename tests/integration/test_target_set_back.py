"""A target that was set back gets what it lacks. A checkpoint that was stops the job before it writes, and the printed remedies
work."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from devtools.servers import start_server
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.lost_logs import purge_log
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import SinkCase
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.state.checkpoint.layout import PLANS_FOLDER, Checkpoint, plan_file
from tidemark.state.errors import CheckpointError, JobHeldError, SinkError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(90)]

START_OVER = "start over with an empty checkpoint and an empty target"


@pytest.fixture
def source(mysql_database: Database) -> Database:
    create_orders(mysql_database)
    return mysql_database


def create_orders(database: Database) -> None:
    database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO orders VALUES " + ", ".join(f"({number}, 'first')" for number in range(1, 41)),
    )


@pytest.fixture(params=["mysql", "postgres", "parquet"])
def target(request: pytest.FixtureRequest, source: Database, tmp_path: Path) -> Iterator[SinkCase]:
    if request.param == "parquet":
        yield SinkCase("parquet", None, tmp_path / "out")  # type: ignore[arg-type]
    elif request.param == "postgres":
        yield SinkCase("postgres", None, request.getfixturevalue("postgres_database"))  # type: ignore[arg-type]
    else:
        with fresh_database(source.server) as database:
            yield SinkCase("mysql", None, database)  # type: ignore[arg-type]


@pytest.fixture
def job(source: Database, target: SinkCase, tmp_path: Path) -> Path:
    is_files = target.kind == "parquet"
    sink = {"type": "files", "path": "./out"} if is_files else {"type": "mirror", "url": target.place.url}
    return write_job(tmp_path, source=source_of(source), sink=sink, snapshot={"split_rows": 5, "parallelism": 2})


def warnings(notes: Notes) -> list[str]:
    return [facts["text"] for event, facts in notes.found if event == "warning"]


def changes_in_files(folder: Path) -> list[dict[str, Any]]:
    """The rows of a table's Parquet files in the order of their commits, each with the columns of its file."""
    rows = [row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    return sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"]))


def assert_complete(target: SinkCase, source: Database, job: Path) -> None:
    """The copy has the last note of each row."""
    expected = dict(source.query("SELECT id, note FROM orders"))
    if target.kind == "parquet":
        found: dict[int, str] = {}
        for row in changes_in_files(job.parent / "out" / f"{source.name}.orders"):
            if row["_change_type"] == "truncate":
                found.clear()
            elif row["_change_type"] == "delete":
                found.pop(row["id"], None)
            else:
                found[row["id"]] = row["note"]
        assert found == expected
    else:
        assert dict(target.place.query(f"SELECT id, note FROM {source.name}_orders")) == expected


def test_a_target_from_a_backup_gets_what_it_lacks_from_the_log(job: Path, source: Database, target: SinkCase) -> None:
    """Each time with another epoch under way."""
    run_epochs(job)
    backups = [target.back_up()]
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}' WHERE id % 7 = 1", "DELETE FROM orders WHERE id = 39")
        assert run_epochs(job) == ["stream"]
        backups.append(target.back_up())
    source.execute("UPDATE orders SET note = 'fourth' WHERE id = 40")
    assert run_epochs(job) == ["stream"]
    # The first one has no epoch of the log: see the next test.
    for number, put_back in enumerate(backups[1:]):
        put_back()
        notes = Notes()
        assert set(run_epochs(job, notes=notes)) == {"stream"}
        assert [text for text in warnings(notes) if "the log is read again from" in text]
        assert_complete(target, source, job)
        source.execute(f"UPDATE orders SET note = 'after {number}' WHERE id < 5")
        assert run_epochs(job) == ["stream"]
        assert_complete(target, source, job)


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize(
    "point", ["planner.after_plan", "sink.before_commit", "tables.after_joined", "driver.epoch_committed"]
)
def test_a_target_is_set_back_while_an_epoch_is_not_committed(
    job: Path, source: Database, target: SinkCase, point: str
) -> None:
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second' WHERE id % 7 = 1")
    run_epochs(job)
    put_back = target.back_up()
    source.execute("UPDATE orders SET note = 'third' WHERE id % 3 = 1")
    run_epochs(job)
    if point != "tables.after_joined":
        source.execute("DELETE FROM orders WHERE id = 39")
        die_at(job, point)
    put_back()
    source.execute("UPDATE orders SET note = 'fourth' WHERE id = 40")
    if point == "tables.after_joined":
        die_at(job, "planner.before_plan")
        put_back()
    for _ in range(2):
        assert set(run_epochs(job)) == {"stream"}
        assert_complete(target, source, job)
        source.execute("UPDATE orders SET note = 'fifth' WHERE id = 2")


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize("point", ["planner.after_plan", "sink.before_commit"])
def test_an_epoch_that_was_passed_over_is_not_taken_for_one_that_was_written(
    job: Path, source: Database, target: SinkCase, point: str
) -> None:
    """The backup is of the moment after an epoch that was planned and not written, because the job was rolled back before."""
    run_epochs(job)
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}' WHERE id % 7 = 1")
        run_epochs(job)
    committed = Checkpoint.at(str(job.parent / "checkpoint")).committed_epoch()
    source.execute("UPDATE orders SET note = 'fourth' WHERE id = 40")
    die_at(job, point)
    roll_back(load_job_file(job), committed, standby=True)
    assert run_epochs(job, at_most=1) == ["stream"]
    put_back = target.back_up()
    run_epochs(job)
    assert_complete(target, source, job)
    put_back()
    source.execute("UPDATE orders SET note = 'fifth' WHERE id = 39")
    run_epochs(job)
    assert_complete(target, source, job)


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize("point", ["planner.after_plan", "sink.before_commit"])
def test_an_epoch_is_passed_over_because_the_target_was_set_back(
    job: Path, source: Database, target: SinkCase, point: str
) -> None:
    """The second backup is of the moment after that epoch: it has no more of the log than the first one."""
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second' WHERE id % 7 = 1")
    run_epochs(job)
    put_back = target.back_up()
    source.execute("DELETE FROM orders WHERE id = 3")
    run_epochs(job)
    source.execute("DELETE FROM orders WHERE id = 4")
    die_at(job, point)
    put_back()
    assert run_epochs(job, at_most=1) == ["stream"]
    put_back = target.back_up()
    run_epochs(job)
    assert_complete(target, source, job)
    put_back()
    assert set(run_epochs(job)) == {"stream"}
    assert_complete(target, source, job)


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize("target", ["mysql", "postgres"], indirect=True)
@pytest.mark.parametrize("point", ["", "set_back.left", "tables.after_joined"])
def test_a_table_whose_rows_were_read_again_since_is_read_again(
    job: Path, source: Database, target: SinkCase, point: str
) -> None:
    """The backup lacks rows that are in no log, and that a signal had read again after it."""
    source.execute(
        "CREATE TABLE customers (id INT PRIMARY KEY, note TEXT)", "INSERT INTO customers VALUES (1, 'first')"
    )
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second' WHERE id = 1")
    run_epochs(job)
    put_back = target.back_up()
    source.execute("SET sql_log_bin = 0", "UPDATE orders SET note = 'in no log' WHERE id < 5", "SET sql_log_bin = 1")
    source.execute("UPDATE customers SET note = 'second'")
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")], keys=["1", "2", "3", "4"])
    run_epochs(job)
    assert_complete(target, source, job)
    put_back()
    with pytest.raises(SinkError, match="The target was set back") as caught:
        run_epochs(job)
    assert "set source.on_log_lost: resnapshot" in caught.value.remedy
    if point:
        die_at(job, point, "source.on_log_lost=resnapshot")
    notes = Notes()
    run_epochs(job, "source.on_log_lost=resnapshot", notes=notes)
    assert_complete(target, source, job)
    assert target.place.query(f"SELECT note FROM {source.name}_customers") == [("second",)]
    if not point:
        assert [facts["table"] for event, facts in notes.found if event == "joined"] == [f"{source.schema}.orders"]


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize("target", ["mysql", "postgres"], indirect=True)
def test_a_job_dies_while_it_goes_back_and_the_target_is_put_back_to_its_newest_state(
    job: Path, source: Database, target: SinkCase
) -> None:
    """An epoch was read and not written. The table that leaves is in it."""
    source.execute(
        "CREATE TABLE customers (id INT PRIMARY KEY, note TEXT)", "INSERT INTO customers VALUES (1, 'first')"
    )
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second' WHERE id = 1")
    run_epochs(job)
    older = target.back_up()
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")], keys=["1"])
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'third' WHERE id < 5", "UPDATE customers SET note = 'second'")
    die_at(job, "sink.before_commit")
    newest = target.back_up()
    older()
    die_at(job, "set_back.left", "source.on_log_lost=resnapshot")
    newest()
    for _ in range(2):
        run_epochs(job)
        assert_complete(target, source, job)
        found = target.place.query(f"SELECT note FROM {source.name}_customers")
        assert found == source.query("SELECT note FROM customers")
        source.execute("UPDATE orders SET note = 'fourth'", "UPDATE customers SET note = 'third'")


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize(
    "point", ["", "set_back.left", "tables.before_joined", "sink.before_commit", "sink.after_commit"]
)
def test_a_target_from_a_backup_of_the_first_load_gets_all_rows_again(
    job: Path, source: Database, target: SinkCase, point: str
) -> None:
    run_epochs(job, at_most=1)
    put_back = target.back_up()
    run_epochs(job)
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}' WHERE id % 7 = 1")
        assert run_epochs(job) == ["stream"]
    put_back()
    source.execute("DELETE FROM orders WHERE id > 38")
    with pytest.raises(SinkError, match="The target was set back or exchanged: the checkpoint says") as caught:
        run_epochs(job)
    assert caught.value.exit_code == 5
    assert "set source.on_log_lost: resnapshot" in caught.value.remedy
    assert START_OVER in caught.value.remedy
    if point:
        die_at(job, point, "source.on_log_lost=resnapshot")
    assert "snapshot" in run_epochs(job, "source.on_log_lost=resnapshot")
    assert_complete(target, source, job)
    source.execute("UPDATE orders SET note = 'fourth' WHERE id < 5")
    assert run_epochs(job) == ["stream"]
    assert_complete(target, source, job)


AGAIN = "source.on_log_lost=resnapshot"


@pytest.fixture(params=["mysql", "mariadb", "postgres", "parquet"])
def any_target(request: pytest.FixtureRequest, source: Database, tmp_path: Path) -> Iterator[SinkCase]:
    if request.param == "parquet":
        yield SinkCase("parquet", None, tmp_path / "out")  # type: ignore[arg-type]
    elif request.param == "mysql":
        with fresh_database(source.server) as database:
            yield SinkCase("mysql", None, database)  # type: ignore[arg-type]
    else:
        database = request.getfixturevalue(f"{request.param}_database")
        yield SinkCase("postgres" if request.param == "postgres" else "mysql", None, database)  # type: ignore[arg-type]


def job_with_copies(source: Database, target: SinkCase, folder: Path) -> Path:
    sink = (
        {"type": "files", "path": "./out"} if target.kind == "parquet" else {"type": "mirror", "url": target.place.url}
    )
    return write_job(folder, source=source_of(source), sink=sink | {"on_schema_change": "evolve"})


def alter_source(source: Database) -> None:
    source.execute(
        "ALTER TABLE orders ADD COLUMN extra INT",
        "UPDATE orders SET extra = id WHERE id % 3 = 1",
        "CREATE TABLE later (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO later VALUES (1, 'first'), (2, 'first')",
    )


def alter_copies_back(source: Database, target: SinkCase) -> None:
    """As the backup had them. A backup of files has all."""
    if target.kind != "parquet":
        target.place.execute(f"ALTER TABLE {source.name}_orders DROP COLUMN extra")
        target.place.execute(f"DROP TABLE IF EXISTS {source.name}_later")


def copy_of(source: Database, target: SinkCase, name: str) -> list[tuple[object, ...]]:
    columns = [column for column, *_ in source.query(f"SHOW COLUMNS FROM {name}")]
    if target.kind != "parquet":
        return target.place.query(f"SELECT {', '.join(columns)} FROM {source.name}_{name} ORDER BY id")
    found: dict[int, tuple[object, ...]] = {}
    for row in changes_in_files(target.place / f"{source.name}.{name}"):
        if row["_change_type"] == "truncate":
            found.clear()
        elif row["_change_type"] == "delete":
            found.pop(row["id"], None)
        else:
            found[row["id"]] = tuple(row.get(column) for column in columns)
    return [found[key] for key in sorted(found)]


def assert_all_copied(source: Database, target: SinkCase, *names: str) -> None:
    for name in names:
        assert copy_of(source, target, name) == source.query(f"SELECT * FROM {name} ORDER BY id"), name


def test_tables_that_joined_or_got_columns_since_are_read_again_and_no_others(
    source: Database, any_target: SinkCase, tmp_path: Path
) -> None:
    """The others get what they lack from the log."""
    source.execute(
        "CREATE TABLE customers (id INT PRIMARY KEY, note TEXT)", "INSERT INTO customers VALUES (1, 'first')"
    )
    job = job_with_copies(source, any_target, tmp_path)
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second'", "UPDATE customers SET note = 'second'")
    run_epochs(job)
    put_back = any_target.back_up()
    alter_source(source)
    for note in ("third", "fourth"):
        source.execute(
            f"UPDATE orders SET note = '{note}' WHERE id < 9", f"INSERT INTO customers VALUES ({len(note)}, 'x')"
        )
        run_epochs(job)
    alter_copies_back(source, any_target)
    put_back()
    source.execute("UPDATE orders SET note = 'fifth' WHERE id = 2", "INSERT INTO customers VALUES (100, 'x')")
    notes = Notes()
    run_epochs(job, AGAIN, notes=notes)
    assert_all_copied(source, any_target, "orders", "customers", "later")
    assert not [facts for event, facts in notes.found if event == "parked"]
    joined = sorted(facts["table"] for event, facts in notes.found if event == "joined")
    assert joined == [f"{source.schema}.later", f"{source.schema}.orders"]
    source.execute(
        "UPDATE orders SET extra = 5", "UPDATE customers SET note = 'last'", "DELETE FROM later WHERE id = 1"
    )
    assert run_epochs(job) == ["stream"]
    assert_all_copied(source, any_target, "orders", "customers", "later")


@pytest.mark.servers_in_turn("any_target")
@pytest.mark.parametrize("point", ["", "set_back.left", "tables.before_joined", "sink.before_commit"])
def test_all_tables_have_joined_or_got_columns_since(
    source: Database, any_target: SinkCase, tmp_path: Path, point: str
) -> None:
    job = job_with_copies(source, any_target, tmp_path)
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second'")
    run_epochs(job)
    put_back = any_target.back_up()
    alter_source(source)
    run_epochs(job)
    alter_copies_back(source, any_target)
    put_back()
    source.execute("UPDATE orders SET note = 'fifth' WHERE id = 2")
    if point:
        die_at(job, point, AGAIN)
    run_epochs(job, AGAIN)
    assert_all_copied(source, any_target, "orders", "later")
    source.execute("UPDATE orders SET extra = 5", "DELETE FROM later WHERE id = 1")
    assert run_epochs(job) == ["stream"]
    assert_all_copied(source, any_target, "orders", "later")


@pytest.mark.parametrize("any_target", ["postgres"], indirect=True)
def test_a_table_that_got_columns_since_is_parked_if_no_rows_are_to_be_read_again(
    source: Database, any_target: SinkCase, tmp_path: Path
) -> None:
    """`on_log_lost` is stop, MariaDB's default. The other table gets what it lacks. The signal heals the parked one."""
    source.execute(
        "CREATE TABLE customers (id INT PRIMARY KEY, note TEXT)", "INSERT INTO customers VALUES (1, 'first')"
    )
    job = job_with_copies(source, any_target, tmp_path)
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second'", "UPDATE customers SET note = 'second'")
    run_epochs(job)
    put_back = any_target.back_up()
    source.execute(
        "ALTER TABLE orders ADD COLUMN extra INT",
        "UPDATE orders SET extra = 3",
        "INSERT INTO customers VALUES (2, 'x')",
    )
    run_epochs(job)
    alter_copies_back(source, any_target)
    put_back()
    notes = Notes()
    run_epochs(job, "source.on_table_error=park", notes=notes)
    assert {facts["table"] for event, facts in notes.found if event == "parked"} == {f"{source.schema}.orders"}
    assert_all_copied(source, any_target, "customers")
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")])
    run_epochs(job, "source.on_table_error=park")
    assert_all_copied(source, any_target, "orders", "customers")


@pytest.mark.parametrize("any_target", ["postgres"], indirect=True)
def test_a_table_that_got_columns_since_is_known_whatever_the_clock_of_the_driver_said(
    source: Database, any_target: SinkCase, tmp_path: Path
) -> None:
    """The clock of the driver that followed the ALTER is an hour behind that of the one before."""
    source.execute(
        "CREATE TABLE customers (id INT PRIMARY KEY, note TEXT)", "INSERT INTO customers VALUES (1, 'first')"
    )
    job = job_with_copies(source, any_target, tmp_path)
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second'", "UPDATE customers SET note = 'second'")
    run_epochs(job)
    put_back = any_target.back_up()
    source.execute(
        "ALTER TABLE orders ADD COLUMN extra INT",
        "UPDATE orders SET extra = 3",
        "INSERT INTO customers VALUES (2, 'x')",
    )
    now = time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
        run_epochs(job)
    alter_copies_back(source, any_target)
    put_back()
    notes = Notes()
    run_epochs(job, AGAIN, notes=notes)
    assert not [facts for event, facts in notes.found if event == "parked"]
    assert [facts["table"] for event, facts in notes.found if event == "joined"] == [f"{source.schema}.orders"]
    assert_all_copied(source, any_target, "orders", "customers")


INCREMENTAL = "mode=incremental"


def test_a_target_from_before_the_first_epoch_gets_all_of_the_log(
    job: Path, source: Database, target: SinkCase
) -> None:
    """Mode incremental: no rows can be read again, and the source's log has all."""
    run_epochs(job, INCREMENTAL)
    put_back = target.back_up()
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}'", "DELETE FROM orders WHERE id = 39")
        assert run_epochs(job, INCREMENTAL) == ["stream"]
    put_back()
    source.execute("DELETE FROM orders WHERE id = 38")
    notes = Notes()
    assert set(run_epochs(job, INCREMENTAL, notes=notes)) == {"stream"}
    assert [text for text in warnings(notes) if "the log is read again from" in text]
    assert_complete(target, source, job)
    source.execute("UPDATE orders SET note = 'fourth' WHERE id < 5")
    assert run_epochs(job, INCREMENTAL) == ["stream"]
    assert_complete(target, source, job)


@pytest.mark.parametrize("has", ["nothing", "an epoch"])
def test_a_job_of_mode_incremental_does_not_go_back_if_the_log_is_purged(tmp_path: Path, has: str) -> None:
    """It goes on as soon as the target's newest state is put back, as the error says."""
    target = SinkCase("parquet", None, tmp_path / "out")  # type: ignore[arg-type]
    with start_server("mysql") as server, fresh_database(server) as source:
        create_orders(source)
        job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": "./out"}, mode="incremental")
        run_epochs(job)
        if has == "an epoch":
            source.execute("UPDATE orders SET note = 'second'")
            run_epochs(job)
        put_back = target.back_up()
        source.execute("UPDATE orders SET note = 'third'", "FLUSH BINARY LOGS")
        run_epochs(job)
        newest = target.back_up()
        put_back()
        purge_log(source)
        with pytest.raises(SinkError, match="The target was set back") as caught:
            run_epochs(job)
        assert caught.value.exit_code == 5
        assert "Put back the newest state of the target" in caught.value.remedy
        newest()
        source.execute("DELETE FROM orders WHERE id = 38")
        assert run_epochs(job) == ["stream"]
        assert_complete(target, source, job)


def test_slots_that_keep_older_log_have_all_that_a_target_from_before_the_first_epoch_lacks(
    tmp_path: Path, postgres_source_database: Database, postgres_database: Database
) -> None:
    source = postgres_source_database
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders VALUES (1, 'first')")
    sink = {"type": "mirror", "url": postgres_database.url, "table": "copy_{table}"}
    job = write_job(tmp_path, mode="incremental", source=source_of(source), sink=sink)
    target = SinkCase("postgres", None, postgres_database)  # type: ignore[arg-type]
    run_epochs(job)
    put_back = target.back_up()
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}'", "INSERT INTO orders SELECT max(id) + 1 FROM orders")
        run_epochs(job)
    put_back()
    source.execute("UPDATE orders SET note = 'fourth' WHERE id = 2")
    for note in ("fifth", "sixth"):
        assert run_epochs(job) == ["stream"]
        found = postgres_database.query("SELECT id, note FROM copy_orders ORDER BY id")
        assert found == source.query("SELECT id, note FROM orders ORDER BY id")
        source.execute(f"UPDATE orders SET note = '{note}'")


def test_a_log_that_is_purged_meanwhile(
    tmp_path: Path, postgres_source_database: Database, postgres_database: Database
) -> None:
    """PostgreSQL's slot keeps nothing that the target had."""
    source = postgres_source_database
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders VALUES (1, 'first')")
    sink = {"type": "mirror", "url": postgres_database.url, "table": "copy_{table}"}
    job = write_job(tmp_path, source=source_of(source, on_log_lost="resnapshot"), sink=sink)
    target = SinkCase("postgres", None, postgres_database)  # type: ignore[arg-type]
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second'")
    run_epochs(job)
    put_back = target.back_up()
    source.execute("INSERT INTO orders VALUES (2, 'third')")
    run_epochs(job)
    put_back()
    source.execute("UPDATE orders SET note = 'fourth'")
    for _ in range(2):
        run_epochs(job)
        found = postgres_database.query("SELECT id, note FROM copy_orders ORDER BY id")
        assert found == source.query("SELECT id, note FROM orders ORDER BY id")
        source.execute("UPDATE orders SET note = 'fifth'")


def test_starting_over_after_a_target_was_set_back_copies_everything(
    job: Path, source: Database, target: SinkCase
) -> None:
    run_epochs(job, at_most=1)
    put_back = target.back_up()
    run_epochs(job)
    put_back()
    with pytest.raises(SinkError, match="was set back"):  # all rows would have to be read again
        run_epochs(job)
    shutil.rmtree(job.parent / "checkpoint")
    if target.kind == "parquet":
        shutil.rmtree(target.place)
    else:
        own = [f"{source.name}_orders", "tidemark_ledger", "tidemark_tables", "tidemark_fence"]
        target.place.execute(*(f"DROP TABLE {name}" for name in own))
    assert run_epochs(job)
    assert_complete(target, source, job)


def test_a_checkpoint_that_was_set_back_stops_the_job_until_its_newest_files_are_back(
    job: Path, source: Database, target: SinkCase
) -> None:
    """The first starts have smaller numbers than the target's owner. They are told to start again, until the epochs tell."""
    run_epochs(job)
    checkpoint, newest = job.parent / "checkpoint", job.parent / "newest"
    shutil.copytree(checkpoint, job.parent / "old")
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}'")
        assert run_epochs(job) == ["stream"]
    shutil.move(checkpoint, newest)
    shutil.copytree(job.parent / "old", checkpoint)
    with pytest.raises(JobHeldError, match="names driver 3, and this one is driver 2") as held:
        run_epochs(job)
    assert "start the job again. If that does not help, the checkpoint was set back" in held.value.remedy
    with pytest.raises(CheckpointError, match="the checkpoint was set back, or lost files"):
        run_epochs(job)
    shutil.rmtree(checkpoint)
    shutil.move(newest, checkpoint)
    source.execute("UPDATE orders SET note = 'fourth'")
    assert run_epochs(job) == ["stream"]
    assert_complete(target, source, job)


@pytest.mark.pitfall(96)
def test_a_power_cut_while_a_plan_is_written_loses_nothing(job: Path, source: Database, target: SinkCase) -> None:
    run_epochs(job)
    notes = Notes()
    newest = max(Checkpoint.at(str(job.parent / "checkpoint")).plan_epochs())
    (job.parent / "checkpoint" / plan_file(newest + 1)).write_bytes(b"")
    source.execute("UPDATE orders SET note = 'second'")
    assert run_epochs(job, notes=notes) == ["stream"]
    assert [facts["text"] for event, facts in notes.found if event == "warning"][-1].startswith("A power cut")
    assert_complete(target, source, job)
    planned_again = max((job.parent / "checkpoint" / PLANS_FOLDER).iterdir())
    planned_again.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{planned_again.name} is damaged"):
        run_epochs(job)
