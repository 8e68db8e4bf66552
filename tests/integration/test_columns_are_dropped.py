"""A table that loses columns is followed: its rows are not read again (docs/adr/0036)."""

from pathlib import Path

import pytest

from tests.support.altered_tables import POINTS, copied, create, folded, job_of, rows_of, told
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import source_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.commands.signal import resnapshot
from tidemark.state.errors import CheckpointError, DifferencesError, TidemarkError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]
WRITES_BEFORE = (
    "UPDATE t SET name = 'older', v = 7 WHERE id = 2",
    "DELETE FROM t WHERE id = 3",
    "INSERT INTO t (id, name, v) VALUES (8, 'h', 9)",
)
DROPS = "ALTER TABLE t DROP COLUMN v"
WRITES_AFTER = (
    "UPDATE t SET name = 'newer' WHERE id = 1",
    "DELETE FROM t WHERE id = 4",
    "INSERT INTO t (id, name) VALUES (9, 'i')",
)
TABLE = (
    "CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL, name VARCHAR(20))",
    "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'), (4, 4, 'd')",
)


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("point", [None, *POINTS])
def test_into_a_mirror_through_a_kill(
    any_source_database: Database,
    twin_database: Database,
    tmp_path: Path,
    point: str | None,
) -> None:
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target, table=TABLE)
    database.execute(*WRITES_BEFORE, DROPS, *WRITES_AFTER)
    if point is not None:
        die_at(job, point, notes=notes)
    run_epochs(job, notes=notes)
    assert told(notes) in ([], ["altered"])
    assert rows_of(target, "copy_t", "id", "name") == rows_of(database, "t", "id", "name")
    assert rows_of(target, "copy_t", "v") == [(1,), (2,), (None,), (None,)]


def test_into_files(any_source_database: Database, tmp_path: Path) -> None:
    database, notes = any_source_database, Notes()
    job = copied(database, tmp_path, table=TABLE)
    database.execute(*WRITES_BEFORE, DROPS, *WRITES_AFTER)
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    assert folded(tmp_path, database, "id", "name") == rows_of(database, "t", "id", "name")


def test_a_column_of_the_same_name_is_another_one(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """Also long after the first one was dropped, and if the job was followed since."""
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target, table=TABLE)
    database.execute(*WRITES_BEFORE, DROPS, *WRITES_AFTER)
    run_epochs(job, notes=notes)
    database.execute(
        "ALTER TABLE t ADD COLUMN more INT DEFAULT 3",
        "ALTER TABLE t ADD COLUMN v INT",
        "UPDATE t SET v = 70 WHERE id = 2",
    )
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered", "left", "joined"]
    assert rows_of(target, "copy_t", "id", "name", "v", "more") == rows_of(database, "t", "id", "name", "v", "more")


def test_an_added_column_that_is_dropped_again(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target, table=TABLE)
    for number in range(2):
        database.execute(f"ALTER TABLE t ADD COLUMN more{number} INT DEFAULT 5", "UPDATE t SET v = v + 1")
        run_epochs(job, notes=notes)
        database.execute("UPDATE t SET v = v + 1 WHERE id = 1", f"ALTER TABLE t DROP COLUMN more{number}")
        database.execute(f"INSERT INTO t (id, v) VALUES ({30 + number}, 1)")
        run_epochs(job, notes=notes)
    assert told(notes) == ["altered"] * 4
    assert rows_of(target, "copy_t", "id", "v", "name") == rows_of(database, "t", "id", "v", "name")


def test_a_mask_of_a_column_that_is_gone(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """The job file names it, so the table is parked."""
    database, target, notes = any_source_database, twin_database, Notes()
    columns = {f"{database.schema}.t": {"mask": {"name": "sha256"}}}
    source = source_of(database, on_table_error="park", columns=columns, mask_key="0123456789abcdef")
    job = copied(database, tmp_path, target, source=source, table=TABLE)
    database.execute("ALTER TABLE t DROP COLUMN name", "INSERT INTO t VALUES (20, 20)", "INSERT INTO other VALUES (1)")
    run_epochs(job, notes=notes)
    assert told(notes)[-1] == "parked"
    assert rows_of(target, "copy_other", "id") == [(1,)]


def test_a_mask_of_a_column_that_is_gone_is_taken_out(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """The log may have rows with the column. So the table is read again with the new settings, as the remedy says."""
    database, target, notes = any_source_database, twin_database, Notes()
    columns = {f"{database.schema}.t": {"mask": {"name": "redact"}}}
    job = copied(database, tmp_path, target, source=source_of(database, columns=columns), table=TABLE)
    database.execute("UPDATE t SET v = 8", "ALTER TABLE t DROP COLUMN name", "INSERT INTO t VALUES (20, 20)")
    with pytest.raises(TidemarkError):
        run_epochs(job)
    job = job_of(database, tmp_path, target, source=source_of(database))
    with pytest.raises(CheckpointError, match="mask differs") as caught:
        run_epochs(job)
    assert f"tidemark signal JOB.yaml resnapshot --table {database.schema}.t" in caught.value.remedy
    resnapshot(load_job_file(job), [TableName(database.schema, "t")])
    run_epochs(job, notes=notes)
    assert told(notes) == ["joined"]
    assert rows_of(target, "copy_t", "id", "v") == rows_of(database, "t", "id", "v")


def test_the_copy_needs_a_value(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    """Somebody made the copy's column NOT NULL: rows can't be written without it."""
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target, table=TABLE)
    required = "ALTER COLUMN v SET NOT NULL" if target.kind == "postgres" else "MODIFY v INT NOT NULL"
    target.execute(f"ALTER TABLE copy_t {required}")
    database.execute(DROPS, "INSERT INTO t (id) VALUES (20)")
    run_epochs(job, notes=notes)
    assert "altered" not in told(notes)
    assert told(notes)[-1] == "parked"


def test_a_rename_that_is_in_no_log_is_read_again(mysql_database: Database, tmp_path: Path) -> None:
    """It looks like a column that was dropped and another one that was added."""
    database, notes = mysql_database, Notes()
    job = copied(database, tmp_path, table=TABLE)
    database.execute("SET SESSION sql_log_bin = 0", "ALTER TABLE t CHANGE v w BIGINT")
    database.execute("INSERT INTO t (id, w) VALUES (20, 20)")
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "joined"]
    assert folded(tmp_path, database, "id", "w", "name") == rows_of(database, "t", "id", "w", "name")


def test_reconcile_compares_what_is_left(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    database, target = any_source_database, twin_database
    job = copied(database, tmp_path, target, table=TABLE)
    database.execute(*WRITES_BEFORE, "ALTER TABLE t ADD COLUMN more INT NOT NULL DEFAULT 5")
    run_epochs(job)
    database.execute(DROPS, "INSERT INTO t (id, name) VALUES (9, 'i')")
    run_epochs(job)
    reconcile(load_job_file(job), [], as_json=False, repair=False)
    target.execute("UPDATE copy_t SET more = 6 WHERE id = 1")
    with pytest.raises(DifferencesError):
        reconcile(load_job_file(job), [], as_json=False, repair=False)


def test_an_excluded_column_that_is_dropped(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """The job file names it, so the job stops. Once the name is taken out, the table is followed."""
    database, target, notes = any_source_database, twin_database, Notes()
    columns = {f"{database.schema}.t": {"exclude": ["v"]}}
    job = copied(database, tmp_path, target, source=source_of(database, columns=columns), table=TABLE)
    database.execute(*WRITES_BEFORE, DROPS, *WRITES_AFTER)
    for _ in range(2):
        with pytest.raises(TidemarkError) as caught:
            run_epochs(job)
    assert "If the column was dropped, take it out of source.columns." in caught.value.remedy
    run_epochs(job_of(database, tmp_path, target, source=source_of(database)), notes=notes)
    assert told(notes) == ([] if database.kind == "postgres" else ["altered"])
    assert rows_of(target, "copy_t", "id", "name") == rows_of(database, "t", "id", "name")


def test_an_excluded_column_that_is_renamed(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """It is copied under no name. Once the job file has the new one, the table is read again."""
    database, target, notes = any_source_database, twin_database, Notes()
    create(database, TABLE)

    def job(name: str) -> Path:
        columns = {f"{database.schema}.t": {"exclude": [name]}}
        return job_of(database, tmp_path, target, source=source_of(database, columns=columns))

    run_epochs(job("v"))
    database.execute(*WRITES_BEFORE, "ALTER TABLE t RENAME COLUMN v TO w", "INSERT INTO t (id, w) VALUES (20, 20)")
    with pytest.raises(TidemarkError):
        run_epochs(job("v"))
    run_epochs(job("w"), notes=notes)
    assert told(notes)[-2:] == ["left", "joined"]
    assert rows_of(target, "copy_t", "*") == rows_of(database, "t", "id", "name")
    with pytest.raises(CheckpointError, match="exclude differs from when the job was started"):
        run_epochs(job("name"))
    run_epochs(job("w"))


def test_a_new_column_that_is_excluded(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    database, target, notes = any_source_database, twin_database, Notes()
    create(database, TABLE)
    run_epochs(job_of(database, tmp_path, target))
    database.execute("ALTER TABLE t ADD COLUMN w INT DEFAULT 5", *WRITES_BEFORE)
    columns = {f"{database.schema}.t": {"exclude": ["w"]}}
    run_epochs(job_of(database, tmp_path, target, source=source_of(database, columns=columns)), notes=notes)
    assert told(notes) == ["altered"]
    assert rows_of(target, "copy_t", "*") == rows_of(database, "t", "id", "v", "name")
