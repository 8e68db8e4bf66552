"""`tidemark checkpoints JOB.yaml rollback EPOCH`: the log is read again from an older cut on."""

import re
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import die_at, run_epochs
from tests.support.history import assert_copied, assert_mirrored, read_history
from tests.support.jobs import source_of, write_job
from tests.support.keyless import assert_keyless_copied
from tests.support.lost_logs import lose_log
from tests.support.servers import Database
from tests.support.workload import UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.readers.postgres.slot import held_back
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, LogPositionLostError

pytestmark = pytest.mark.integration


@pytest.fixture(params=["mysql_database", "mariadb_database"])
def source(request: pytest.FixtureRequest) -> Database:
    database: Database = request.getfixturevalue(request.param)
    create_tables(database, rows=60, uids=Uids())
    return database


def mirror_of(source: Database, target: Database, folder: Path) -> Path:
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    return write_job(folder, source=source_of(source), sink=sink)


def go_back(job: Path, epoch: int) -> None:
    roll_back(
        load_job_file(job), epoch, standby=True
    )  # the server may still be ending the connection of the run before


def committed(folder: Path) -> int:
    return Checkpoint.at(str(folder / "checkpoint")).committed_epoch()


@pytest.mark.servers_in_turn("source")
@pytest.mark.parametrize("point", ["", "planner.after_plan", "sink.before_commit", "driver.epoch_written"])
def test_rows_that_were_damaged_since_are_right_again(
    source: Database, postgres_database: Database, tmp_path: Path, point: str
) -> None:
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    epoch = committed(tmp_path)
    for _ in range(2):
        source.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id = 7")
        run_epochs(job)
    if point:
        source.execute(*UPDATE_ALL)
        die_at(job, point)
    postgres_database.execute("UPDATE copy_orders SET version = 77", "DELETE FROM copy_customers")
    source.execute("DELETE FROM orders WHERE id = 8")
    go_back(job, epoch)
    assert set(run_epochs(job)) == {"stream"}
    assert_mirrored(source, postgres_database)
    source.execute(*UPDATE_ALL)
    assert run_epochs(job) == ["stream"]
    assert_mirrored(source, postgres_database)


@pytest.mark.servers_in_turn("source")
@pytest.mark.parametrize("point", ["", "planner.after_plan"])
def test_a_second_rollback_before_a_run_goes_further_back_only(
    source: Database, postgres_database: Database, tmp_path: Path, point: str
) -> None:
    """Else what the first one wants to be read would be left out. Also if an epoch is planned."""
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    for _ in range(3):
        source.execute(*UPDATE_ALL)
        run_epochs(job)
    epoch = committed(tmp_path)
    source.execute(*UPDATE_ALL)
    if point:
        die_at(job, point)
    go_back(job, epoch - 1)
    with pytest.raises(CheckpointError, match="rolled back further"):
        go_back(job, epoch)
    go_back(job, epoch - 2)
    postgres_database.execute("UPDATE copy_orders SET version = 77")
    assert set(run_epochs(job)) == {"stream"}
    assert_mirrored(source, postgres_database)


def test_the_command(source: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path) -> None:
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    epoch = committed(tmp_path)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    told = tidemark("checkpoints", job, "rollback", epoch)
    assert told.code == 0
    assert f"where epoch {epoch} ended" in " ".join(told.out.split())
    assert run_epochs(job) == ["stream"]
    assert_mirrored(source, postgres_database)
    assert tidemark("checkpoints", job, "rollback").code == 2
    refused = tidemark("checkpoints", job, "rollback", 999)
    assert (refused.code, "is not committed" in refused.last_line) == (1, True)


def test_cuts_of_the_first_load_are_refused(source: Database, tmp_path: Path) -> None:
    job = write_job(
        tmp_path,
        source=source_of(source),
        snapshot={"split_rows": 20, "parallelism": 2},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job, at_most=2)
    with pytest.raises(CheckpointError):
        go_back(job, 1)
    run_epochs(job)
    with pytest.raises(CheckpointError):
        go_back(job, 1)
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


def test_versions_in_files_ascend(source: Database, tmp_path: Path) -> None:
    """The changes come a second time, as later ones: the newest version of each key is the right one."""
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(tmp_path / "out")})
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    epoch = committed(tmp_path)
    source.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id = 7")
    run_epochs(job)
    go_back(job, epoch)
    run_epochs(job)
    assert newest(tmp_path / "out", source, "orders") == dict(source.query("SELECT id, version FROM orders"))


def test_a_slot_keeps_nothing(postgres_source_database: Database, postgres_database: Database, tmp_path: Path) -> None:
    """Without `checkpoints.keep`."""
    create_tables(postgres_source_database, rows=20, uids=Uids())
    sink = {"type": "mirror", "url": postgres_database.url, "table": "copy_{table}"}
    job = write_job(tmp_path, source=source_of(postgres_source_database), sink=sink, checkpoints={"keep": 0})
    run_epochs(job)
    postgres_source_database.execute(*UPDATE_ALL)
    run_epochs(job)
    epoch = committed(tmp_path)
    for _ in range(3):
        postgres_source_database.execute(*UPDATE_ALL)
        run_epochs(job)
    with pytest.raises(LogPositionLostError) as refused:
        go_back(job, epoch)
    assert refused.value.remedy.startswith("Nothing was changed. Choose a newer epoch")
    postgres_database.execute("UPDATE copy_orders SET version = 77")
    postgres_source_database.execute(*UPDATE_ALL)
    go_back(job, committed(tmp_path))
    run_epochs(job)
    assert_mirrored(postgres_source_database, postgres_database)


@pytest.mark.servers_in_turn("source")
def test_a_log_that_is_gone_as_a_whole_is_told_as_by_a_run(source: Database, tmp_path: Path) -> None:
    """No newer epoch would help."""
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(tmp_path / "out")})
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    lose_log(source)
    with pytest.raises(LogPositionLostError) as refused:
        go_back(job, committed(tmp_path))
    assert "Choose a newer epoch" not in refused.value.remedy
    with pytest.raises(LogPositionLostError) as ended:
        run_epochs(job, "source.on_log_lost=stop")
    assert refused.value.message == ended.value.message
    run_epochs(job, "source.on_log_lost=resnapshot")
    rows = newest(tmp_path / "out", source, "orders")
    rows.pop(None, None)  # that the copy was emptied
    assert rows == dict(source.query("SELECT id, version FROM orders"))


def test_changes_that_are_not_read_again_yet_are_not_left_out(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """A second rollback, while the log is read again, to an epoch from before the first one."""
    source = mysql_database
    source.execute("CREATE TABLE notes (id INT PRIMARY KEY, note LONGTEXT)", "INSERT INTO notes VALUES (1, 'a')")
    sink = {"type": "mirror", "url": postgres_database.url, "table": "copy_{table}"}
    job = write_job(tmp_path, source=source_of(source), sink=sink, log={"max_batch_bytes": "1MiB"})
    run_epochs(job)
    epochs = []
    for letter in "bcd":  # more than an epoch may read
        source.execute(f"UPDATE notes SET note = repeat('{letter}', 1500000)")
        run_epochs(job)
        epochs.append(committed(tmp_path))
    go_back(job, epochs[0])
    assert run_epochs(job, at_most=1) == ["stream"]
    with pytest.raises(CheckpointError, match="not read again") as refused:
        go_back(job, epochs[2])
    older, until_then = refused.value.remedy.rstrip(".").split(", or ")
    assert older == "Choose an older epoch"
    go_back(job, epochs[0])
    assert until_then == "let the job run until it has read the log to its end"
    run_epochs(job)
    assert postgres_database.query("SELECT left(note, 3) FROM copy_notes") == [("ddd",)]
    source.execute("UPDATE notes SET note = 'e'")
    run_epochs(job)
    postgres_database.execute("UPDATE copy_notes SET note = 'damaged'")
    go_back(job, epochs[2])
    run_epochs(job)
    assert postgres_database.query("SELECT note FROM copy_notes") == [("e",)]


def test_values_that_the_log_leaves_out_are_not_taken_from_other_rows(
    postgres_source_database: Database,
    postgres_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The row with the old key of a moved row is another one since. The remedies are tried as they are printed."""
    monkeypatch.setattr(
        held_back, "ADVANCE_SECONDS", 3600.0
    )  # the slot keeps the log of each run, however long that takes
    source = postgres_source_database
    source.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, version int, note text)",
        "ALTER TABLE notes ALTER note SET STORAGE EXTERNAL",
        "INSERT INTO notes SELECT i, 0, repeat(i::text, 5000) FROM generate_series(1, 3) i",
    )
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    source.execute("UPDATE notes SET version = 1")
    run_epochs(job)
    epoch = committed(tmp_path)
    source.execute("UPDATE notes SET id = 10 WHERE id = 1", "INSERT INTO notes VALUES (1, 0, repeat('n', 5000))")
    run_epochs(job)
    with pytest.raises(CheckpointError, match="got another key") as refused:
        go_back(job, epoch)
    again, _, other = refused.value.remedy.partition(" Or ")
    assert other.startswith("choose a newer epoch")
    newer = committed(tmp_path)
    source.execute("UPDATE notes SET version = 2", "DELETE FROM notes WHERE id = 2")
    run_epochs(job)
    postgres_database.execute("UPDATE copy_notes SET version = 77")
    go_back(job, newer)
    assert run_epochs(job) == ["stream"]
    assert_same_notes(source, postgres_database)
    postgres_database.execute("UPDATE copy_notes SET version = 77")
    command = re.search(r"tidemark (signal) JOB\.yaml (resnapshot) --table (\S+?)\.?$", again)
    assert command is not None, again
    name, *arguments, table = command.groups()
    assert tidemark(name, job, *arguments, "--table", table).code == 0
    run_epochs(job)
    assert_same_notes(source, postgres_database)


@pytest.mark.servers_in_turn("source")
@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_changes_of_a_table_without_a_key_do_not_come_twice(
    source: Database, tmp_path: Path, tidemark: CommandLine, format_: str
) -> None:
    """No reader of the files could tell them from other rows that are alike."""
    source.execute("CREATE TABLE t (uid int, version int, note text)", "INSERT INTO t VALUES (1, 1, 'a'), (1, 1, 'a')")
    sink = {"type": "files", "path": "./out", "format": format_}
    job = write_job(tmp_path, source=source_of(source), sink=sink)
    run_epochs(job)
    for _ in range(2):
        source.execute("INSERT INTO t VALUES (1, 1, 'a')", *UPDATE_ALL)
        run_epochs(job)
    told = tidemark("checkpoints", job, "rollback", committed(tmp_path) - 1)
    assert told.code == 1
    assert "t has no key, so its copy would get changes twice" in told.last_line
    source.execute("DELETE FROM t WHERE uid = 1 LIMIT 1")
    run_epochs(job)
    assert_keyless_copied(tmp_path, source, format_)


def assert_same_notes(source: Database, target: Database) -> None:
    rows = "SELECT id, version, note FROM {} ORDER BY id"
    assert target.query(rows.format("copy_notes")) == source.query(rows.format("notes"))


def newest(root: Path, source: Database, table: str) -> dict[int, int]:
    """The version of each row, by its id, in the order of `_commit_version` and `_seq`."""
    found: dict[int, int] = {}
    for row in read_history(root, source.schema, table).to_pylist():
        if row["_change_type"] == "delete":
            found.pop(row["id"], None)
        else:
            found[row["id"]] = row["version"]
    return found
