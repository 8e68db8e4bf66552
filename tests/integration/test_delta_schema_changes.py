"""Tables that are altered while a job copies them into Delta: their copies get the columns, or are read again. So are all
tables after the source has lost its log, and one that RESTORE has set back."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.lost_logs import lose_log
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.sinks.delta.epoch import EpochWriter
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError

pytestmark = pytest.mark.integration


@pytest.fixture
def read(delta_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Reads columns of a copy. Jobs use the session of the tests."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)

    def rows(database: Database, *columns: str, table: str = "t") -> list[Any]:
        copy = delta_session.read.format("delta").load(str(tmp_path / "lake" / f"{database.schema}.{table}"))
        return [tuple(row) for row in copy.select(*columns).orderBy("id").collect()]

    return rows


CHANGES = {
    "added": ("ADD COLUMN more INT", ("id", "name", "more"), ["altered"]),
    "with_default": ("ADD COLUMN more INT DEFAULT 5", ("id", "name", "more"), ["left", "joined"]),
    "with_features": (
        "ADD COLUMN more INT, ADD COLUMN at DATETIME, ADD COLUMN `b c` INT",
        ("id", "name", "more", "at", "`b c`"),
        ["altered"],
    ),
    "and_dropped": ("ADD COLUMN more INT, DROP COLUMN name", ("id", "more"), ["left", "joined"]),
}
"""By table: the change, the columns after it, and what is told of it. `at` and `b c` need features that Delta does not turn on
by itself for a table that is there."""


def rows_of(database: Database, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return database.query(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")


def test_mirrors_get_new_columns(read: Callable[..., list[Any]], mysql_database: Database, tmp_path: Path) -> None:
    database, notes = mysql_database, Notes()
    for table in CHANGES:
        database.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, name VARCHAR(20))",
            f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        )
    sink = {"type": "delta", "path": "./lake", "style": "mirror", "on_schema_change": "evolve"}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink)
    run_epochs(job)
    for table, (change, _, _) in CHANGES.items():
        database.execute(
            f"DELETE FROM {table} WHERE id = 3",
            f"ALTER TABLE {table} {change}",
            f"UPDATE {table} SET more = 7 WHERE id = 2",
            f"INSERT INTO {table} (id, more) VALUES (4, 9)",
        )
    run_epochs(job, notes=notes)
    for table, (_, columns, outcome) in CHANGES.items():
        told = [event for event, facts in notes.found if facts.get("table") == f"{database.schema}.{table}"]
        assert [event for event in told if event in {"altered", "parked", "left", "joined"}][-len(outcome) :] == outcome
        assert read(database, *columns, table=table) == rows_of(database, table, columns)
        database.execute(f"UPDATE {table} SET more = more + 1")
    run_epochs(job)
    for table, (_, columns, _) in CHANGES.items():
        assert read(database, *columns, table=table) == rows_of(database, table, columns)


@pytest.mark.every_server
@pytest.mark.parametrize("style", ["mirror", "changelog"])
def test_all_rows_are_read_again_after_the_log_was_lost(
    read: Callable[..., list[Any]], postgres18_database: Database, tmp_path: Path, style: str
) -> None:
    database = postgres18_database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    )
    sink = {"type": "delta", "path": "./lake", "style": style}
    job = write_job(tmp_path, source=source_of(database, on_log_lost="resnapshot"), sink=sink)
    run_epochs(job)
    database.execute("DELETE FROM t WHERE id = 3", "UPDATE t SET name = 'd' WHERE id = 2")
    lose_log(database)
    database.execute("INSERT INTO t VALUES (4, 'e')")
    run_epochs(job)
    changes = {"insert": 6, "truncate": 1}
    for _ in range(2):
        if style == "mirror":
            assert read(database, "id", "name") == database.query("SELECT id, name FROM t ORDER BY id")
        else:
            assert Counter(kind for _, kind in read(database, "id", "_change_type")) == changes
        database.execute("UPDATE t SET name = 'f'")
        run_epochs(job)
        changes = {"insert": 6, "truncate": 1, "update_postimage": 3}


@pytest.mark.every_server
@pytest.mark.pitfall(90)
@pytest.mark.parametrize(
    "is_late", [pytest.param(False, marks=pytest.mark.every_server), True], ids=["restored", "resnapshot"]
)
def test_a_table_that_was_set_back_is_put_back_as_the_remedy_says(
    read: Callable[..., list[Any]],
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
) -> None:
    """`is_late`: it is set back between the look at it and the commit of an epoch, so that no version of it has all epochs. The
    driver dies before its second look."""
    database = mysql_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    job = write_job(tmp_path, source=source_of(database), sink={"type": "delta", "path": "./lake", "style": "mirror"})
    run_epochs(job)
    database.execute("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3, 'c')")
    run_epochs(job)
    whole = read(database, "id", "name")
    database.execute("INSERT INTO t VALUES (4, 'd')")
    commit = EpochWriter._commit

    def set_back(*given: Any) -> None:
        delta_session.sql(f"RESTORE TABLE delta.`{tmp_path}/lake/{database.schema}.t` TO VERSION AS OF 1")
        assert read(database, "id", "name") != whole
        if given:
            commit(*given)

    if is_late:
        with monkeypatch.context() as patch:
            patch.setattr(EpochWriter, "_commit", set_back)
            patch.setattr(EpochWriter, "_look_back", lambda *_: None)
            run_epochs(job)
    else:
        set_back()
    with pytest.raises(SinkError, match="was set back by RESTORE") as caught:
        run_epochs(job)
    if is_late:
        assert f"tidemark signal JOB.yaml resnapshot --table {database.schema}.t" in caught.value.remedy
        resnapshot(load_job_file(job), [TableName(database.schema, "t")])
        run_epochs(job)
        state = Checkpoint.at(str(tmp_path / "checkpoint")).job_state()
        assert state is not None
        assert [joined.replaced for joined in state.joined] == [()], (
            "only a commit of all rows tells that none is missing"
        )
    else:
        _, restore, rest = caught.value.remedy.partition("RESTORE TABLE")
        delta_session.sql(restore + rest.partition(", and start the job again")[0])
    for _ in range(2):
        run_epochs(job)
        assert read(database, "id", "name") == database.query("SELECT id, name FROM t ORDER BY id")
        database.execute("UPDATE t SET name = 'f'")
