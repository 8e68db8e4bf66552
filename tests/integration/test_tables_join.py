"""Tables that are there only after the job has started join it at a later start; tables that go stop it."""

import contextlib
import threading
from pathlib import Path

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import assert_copied, read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.workload import POSTGRES_TABLES, TABLES, Uids, Writers, connect_for_transactions, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.readers.mysql.binlog.positions import LogPositions
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError, SourceNotUsableError
from tidemark.state.failpoints import FailpointError
from tidemark.state.job_state import JobState
from tidemark.state.position import BinlogPosition

pytestmark = [pytest.mark.integration, pytest.mark.servers_in_turn(always="postgres18_server")]

LATE = "order_lines"
KILLS = (
    "tables.before_joined",
    "tables.after_joined",
    "planner.before_plan",
    "log.before_report",
    "snapshot.after_select",
    "planner.after_finished_splits",
    "planner.after_plan",
)


def job_of(folder: Path, database: Database, **changes: object) -> Path:
    return write_job(
        folder,
        source=source_of(database),
        snapshot={"split_rows": 100, "parallelism": 2},
        sink={"type": "files", "path": str(folder / "out")},
        **changes,
    )


def create_late_table(database: Database, rows: int = 0) -> None:
    """Creates a table whose log has DDL, and rows of a shape that the job never knows."""
    columns = (POSTGRES_TABLES if database.kind == "postgres" else TABLES)[LATE]
    database.execute(
        f"CREATE TABLE {LATE} ({columns.replace('quantity', 'amount')})",
        f"INSERT INTO {LATE} (order_id, line_no, uid, version) VALUES (-100, 0, -100, 1)",
        f"ALTER TABLE {LATE} RENAME COLUMN amount TO quantity",
        *[
            f"INSERT INTO {LATE} (order_id, line_no, uid, version) VALUES ({-200 - i}, 0, {-200 - i}, 1)"
            for i in range(rows)
        ],
    )


def state_of(job: Path) -> JobState:
    state = Checkpoint.at(load_job_file(job).checkpoint).job_state()
    assert state is not None
    return state


@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.every_server)])
def test_no_older_file_of_the_log_is_read_for_a_table_that_joins_and_for_rows_that_are_read_again(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The newest file has no transactions. Only a job that begins needs the time of the newest one, which an older file has."""
    database = request.getfixturevalue(f"{kind}_database")
    create_tables(database, rows=5, uids=Uids())
    database.execute(f"DROP TABLE {LATE}", "FLUSH BINARY LOGS")
    scan, files = LogPositions._scan, list[set[str]]()

    def noted(positions: LogPositions, start: BinlogPosition, end: BinlogPosition) -> object:
        files.append({start.file, end.file})
        return scan(positions, start, end)

    monkeypatch.setattr(LogPositions, "_scan", noted)
    job = job_of(tmp_path, database)
    run_epochs(job)
    assert max(map(len, files)) == 2
    start = state_of(job).start
    assert isinstance(start, BinlogPosition)
    assert start.times
    files.clear()
    create_late_table(database)
    database.execute("FLUSH BINARY LOGS")
    run_epochs(job)
    assert max(map(len, files)) == 1
    files.clear()
    resnapshot(load_job_file(job), [TableName(database.schema, "orders")], keys=["1..3"])
    database.execute("UPDATE orders SET version = version + 1", "FLUSH BINARY LOGS")
    run_epochs(job)
    assert max(map(len, files)) == 1
    (outcome,) = Checkpoint.at(load_job_file(job).checkpoint).outcomes().values()
    assert outcome.accepted, outcome.text
    assert_copied(tmp_path / "out", database)


@pytest.mark.pitfall(9)
def test_a_table_that_is_created_later_joins_exactly_through_crashes(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers change everything meanwhile, and the job breaks off again and again."""
    database, uids = any_source_database, Uids()
    create_tables(database, rows=300, uids=uids)
    database.execute(f"DROP TABLE {LATE}")
    job = job_of(tmp_path, database)
    assert run_epochs(job)[0] == "snapshot"
    create_late_table(database, rows=300)
    armed = tmp_path / "failpoints"
    armed.mkdir()
    for name in KILLS:
        (armed / name).write_text("raise")
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    with Writers(database, uids, count=2, seed=7, pause_seconds=0.02):
        for _ in KILLS:
            with pytest.raises(FailpointError):
                run_epochs(job)
        run_epochs(job)
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    state = state_of(job)
    assert [[schema.table.name for schema in joined.schemas] for joined in state.joined] == [[LATE]]
    rows = read_history(tmp_path / "out", database.schema, LATE)
    assert rows.num_rows > 300
    assert set(rows["_is_snapshot"].to_pylist()) == {True, False}


@pytest.mark.pitfall(64)
def test_a_transaction_that_is_open_while_a_table_joins_is_in_its_rows(
    postgres_source_database: Database, tmp_path: Path
) -> None:
    """The transaction wrote before the table was published, and after; servers before 2025 then forget that the table
    is published."""
    database = postgres_source_database
    create_tables(database, rows=5, uids=Uids())
    database.execute(f"DROP TABLE {LATE}")
    job = job_of(tmp_path, database)
    run_epochs(job)
    create_late_table(database)
    insert = f"INSERT INTO {LATE} (order_id, line_no, uid, version) VALUES (%s, 1, %s, 1)"
    with contextlib.closing(connect_for_transactions(database)) as connection, connection.cursor() as cursor:
        cursor.execute(insert, (1, 1))

        def go_on() -> None:
            cursor.execute(insert, (2, 2))
            connection.commit()

        timer = threading.Timer(1.0, go_on)
        timer.start()
        assert run_epochs(job, at_most=2) == ["stream", "snapshot"]
        timer.join()
    assert state_of(job).joined
    database.execute(f"UPDATE {LATE} SET version = 2 WHERE order_id = 1", f"DELETE FROM {LATE} WHERE order_id = 2")
    run_epochs(job)
    assert_copied(tmp_path / "out", database)
    assert "update_postimage" in read_history(tmp_path / "out", database.schema, LATE)["_change_type"].to_pylist()


def test_what_a_later_table_means_in_each_mode_and_for_the_target(
    any_source_database: Database, tmp_path: Path
) -> None:
    database, notes = any_source_database, Notes()
    create_tables(database, rows=5, uids=Uids())
    database.execute(f"DROP TABLE {LATE}")
    job = job_of(tmp_path, database)
    run_epochs(job, "mode=full")
    create_late_table(database)
    assert run_epochs(job, "mode=full", notes=notes) == []
    assert any(
        facts["text"].startswith("did not exist when the job started") for _, facts in notes.found if "text" in facts
    )
    foreign = tmp_path / "out" / f"{database.schema}.{LATE}"
    foreign.mkdir()
    (foreign / "x.parquet").touch()
    with pytest.raises(SinkError, match="files that no job wrote"):
        run_epochs(job, "mode=full+incremental")
    assert not state_of(job).joined
    (foreign / "x.parquet").unlink()
    run_epochs(job, "mode=full+incremental", f"source.exclude_tables=['{database.schema}.{LATE}']")
    database.execute(f"INSERT INTO {LATE} (order_id, line_no, uid, version) VALUES (1, 1, 1, 1)")
    run_epochs(job, "mode=incremental", notes=notes)
    assert notes.found[-1][0] == "warning"
    assert "not its rows" in notes.found[-1][1]["text"]
    database.execute(f"INSERT INTO {LATE} (order_id, line_no, uid, version) VALUES (2, 2, 2, 1)")
    run_epochs(job, "mode=incremental")
    assert read_history(tmp_path / "out", database.schema, LATE)["uid"].to_pylist() == [2]
    again = Notes()
    run_epochs(job, "mode=full+incremental", notes=again)
    (warning,) = [facts for event, facts in again.found if event == "warning" and facts["table"].endswith(f".{LATE}")]
    assert "only its changes since then are copied" in warning["text"]


def test_a_table_that_is_gone_stops_the_job_and_one_not_selected_is_warned_of(
    any_source_database: Database, tmp_path: Path
) -> None:
    database, notes = any_source_database, Notes()
    create_tables(database, rows=5, uids=Uids())
    job = job_of(tmp_path, database)
    run_epochs(job)
    run_epochs(job, f"source.tables=['{database.schema}.orders', '{database.schema}.customers']", notes=notes)
    assert "is still copied" in str(notes.found)
    database.execute(f"DROP TABLE {LATE}")
    with pytest.raises(SourceNotUsableError, match=rf"no longer has {database.schema}\.{LATE}, which"):
        run_epochs(job)


def test_a_table_that_replaces_all_of_the_job_is_copied(any_source_database: Database, tmp_path: Path) -> None:
    """Such as one per month: the old one is dropped, and the next one created, while the job is down."""
    database = any_source_database
    database.execute("CREATE TABLE january (id INT PRIMARY KEY)", "INSERT INTO january VALUES (1)")
    source = source_of(database, on_table_error="park")
    sink = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"}
    job = write_job(tmp_path, source=source, checkpoint=str(tmp_path / "checkpoint"), sink=sink)
    run_epochs(job)
    database.execute(
        "DROP TABLE january", "CREATE TABLE february (id INT PRIMARY KEY)", "INSERT INTO february VALUES (2)"
    )
    run_epochs(job, notes=(notes := Notes()))
    assert read_history(tmp_path / "out", database.schema, "february").column("id").to_pylist() == [2]
    parked = [facts["table"] for event, facts in notes.found if event == "parked"]
    assert set(parked) == {f"{database.schema}.january"}


REFUSED = {
    "postgres": ("CREATE UNLOGGED TABLE late (id INT PRIMARY KEY)", "ALTER TABLE late SET LOGGED"),
    "mysql": ("CREATE TABLE late (id INT PRIMARY KEY) ENGINE=MyISAM", "ALTER TABLE late ENGINE=InnoDB"),
}


@pytest.mark.parametrize("policy", ["park", "stop"])
def test_a_later_table_that_a_check_refuses_does_not_join_until_it_is_corrected(
    any_source_database: Database, tmp_path: Path, policy: str
) -> None:
    """Its copy would be wrong: the log does not have all its changes."""
    database = any_source_database
    create, correct = REFUSED["postgres" if database.kind == "postgres" else "mysql"]
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    job = write_job(
        tmp_path,
        source=source_of(database, on_table_error=policy),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job)
    database.execute(create, "INSERT INTO late VALUES (7), (8)")
    if policy == "stop":
        with pytest.raises(SourceNotUsableError, match="late"):
            run_epochs(job)
    else:
        notes = Notes()
        run_epochs(job, notes=notes)
        assert any("It does not join the job" in facts.get("text", "") for _, facts in notes.found)
    assert [schema.table.name for schema in state_of(job).schemas] == ["t"]
    database.execute(correct)
    run_epochs(job)
    assert sorted(read_history(tmp_path / "out", database.schema, "late")["id"].to_pylist()) == [7, 8]


def test_a_table_of_the_job_that_a_check_refuses_now_is_parked_until_it_is_corrected(
    any_source_database: Database, tmp_path: Path
) -> None:
    """PostgreSQL's server would refuse UPDATEs and DELETEs of a published table without a replica identity."""
    database = any_source_database
    refused, corrected, why = "ENGINE=MyISAM", "ENGINE=InnoDB", "MyISAM"
    if database.kind == "postgres":
        refused, corrected, why = "REPLICA IDENTITY NOTHING", "REPLICA IDENTITY DEFAULT", "is NOTHING"
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE late (id INT PRIMARY KEY)")
    sink = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink)
    run_epochs(job)
    database.execute(f"ALTER TABLE late {refused}")
    for _ in range(2):
        run_epochs(job)
        assert [schema.table.name for schema in state_of(job).schemas] == ["t"]
        (left,) = state_of(job).left
        assert left.is_parked
        assert why in left.why
    database.execute(f"ALTER TABLE late {corrected}", "INSERT INTO late VALUES (7)")
    run_epochs(job)
    assert sorted(schema.table.name for schema in state_of(job).schemas) == ["late", "t"]
    assert read_history(tmp_path / "out", database.schema, "late")["id"].to_pylist()[-1:] == [7]
