"""A copy in Delta that RESTORE has set back leaves the job and is read again, and the other tables go on. One that is gone is
parked."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.delta import newest_version
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.engine import Engine
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.sinks.delta.epoch import EpochWriter
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError, TablesParkedError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(90), pytest.mark.timeout(900)]


EVOLVING = {"type": "delta", "path": "./lake", "on_schema_change": "evolve"}


class Copied:
    """A job that has copied the tables a and b, and then changes of both in one epoch."""

    def __init__(self, session: SparkSession, source: Database, folder: Path, **sink: str) -> None:
        self.session, self.source, self.folder = session, source, folder
        for table in ("a", "b"):
            source.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 0), (2, 0)"
            )
        self.path = write_job(folder, source=source_of(source, on_table_error="park"), sink=EVOLVING | sink)
        self.added = 2
        assert self.run() == []
        self.change()
        assert self.run() == []

    def change(self, *tables: str) -> None:
        """One new row and one change of each table, or of these."""
        self.added += 1
        for table in tables or ("a", "b"):
            sql = f"INSERT INTO {table} VALUES ({self.added}, 0)", f"UPDATE {table} SET v = v + 1 WHERE id = 1"
            self.source.execute(*sql)

    def run(self, *overrides: str) -> list[str]:
        """Returns which tables left and came back."""
        run_epochs(self.path, *overrides, notes=(notes := Notes()))
        state = Checkpoint.at(str(self.folder / "checkpoint")).job_state()
        assert state is not None
        require_none_parked(load_job_file(self.path), state)
        return [
            f"{facts['table'].split('.')[1]} {event}" for event, facts in notes.found if event in {"left", "joined"}
        ]

    def place(self, table: str) -> Path:
        return self.folder / "lake" / f"{self.source.schema}.{table}"

    def restore(self, *tables: str, before: int = 1) -> None:
        """Sets copies back to so many versions before the newest one."""
        for table in tables or ("a",):
            version = newest_version(self.place(table)) - before
            self.session.newSession().sql(f"RESTORE TABLE delta.`{self.place(table)}` TO VERSION AS OF {version}")

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        copy = self.session.read.format("delta").load(str(self.place(table))).select("id", "v")
        return sorted(map(tuple, copy.collect()))

    def changes(self, table: str) -> Counter[str]:
        copy = self.session.read.format("delta").load(str(self.place(table)))
        return Counter(row[0] for row in copy.select("_change_type").collect())

    def folded(self, table: str) -> list[tuple[Any, ...]]:
        """The rows that a reader of the changelog has."""
        copy = self.session.read.format("delta").load(str(self.place(table)))
        found = copy.select("_commit_version", "_seq", "_change_type", "id", "v").collect()
        held: dict[int, int] = {}
        for _, _, kind, key, value in sorted(found, key=lambda row: (row[0], row[1])):
            if kind == "truncate":
                held.clear()
            else:
                held[key] = value
        return sorted(held.items())

    def assert_equal(self) -> None:
        for table in ("a", "b"):
            assert self.rows(table) == self.of_source(table)

    def of_source(self, table: str) -> list[tuple[Any, ...]]:
        return self.source.query(f"SELECT id, v FROM {table} ORDER BY id")


@pytest.fixture
def copied(
    delta_session: SparkSession, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Copied]:
    """Jobs use the session of the tests."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    return lambda style="mirror": Copied(delta_session, mysql_database, tmp_path, style=style)


def before_an_epoch(act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Acts once: after a run was opened, before its next epoch."""
    left, run = [1], Engine.run

    def acted(engine: Engine, *arguments: Any) -> Any:
        if left.pop() if left else 0:
            act()
        return run(engine, *arguments)

    patch.setattr(Engine, "run", acted)


def before_a_commit(act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Acts once: after the last look at table a, before its commit."""
    left, commit = [1], EpochWriter._commit

    def acted(writer: EpochWriter, rows: Any, schema: Any, *arguments: Any) -> None:
        if schema.table.name == "a" and left:
            left.pop()
            act()
        commit(writer, rows, schema, *arguments)

    patch.setattr(EpochWriter, "_commit", acted)


@pytest.mark.every_server
def test_tables_that_were_set_back_are_read_again(
    copied: Callable[..., Copied], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between runs, all of them; before an epoch, which the other table gets nevertheless; between the look and the commit."""
    job = copied()
    job.restore("a", "b")
    job.change()
    assert job.run() == ["a left", "a joined", "b left", "b joined"]
    job.assert_equal()
    for when in (before_an_epoch, before_a_commit):
        job.change()
        with monkeypatch.context() as patch:
            when(job.restore, patch)
            assert job.run() == ["a left", "a joined"]
        job.assert_equal()
        job.change("a")
        assert job.run() == []
        job.assert_equal()


@pytest.mark.every_server
def test_a_changelog_that_was_set_back_gets_all_rows_again(
    copied: Callable[..., Copied], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes that it lacks stay missing. The other table gets each change once, though its epoch is read again."""
    job = copied("changelog")
    job.change()
    before_an_epoch(job.restore, monkeypatch)
    assert job.run() == ["a left", "a joined"]
    for _ in range(2):
        assert [job.folded(table) for table in ("a", "b")] == [job.of_source(table) for table in ("a", "b")]
        job.change()
        assert job.run() == []
    added, changed = job.added, job.added - 2
    assert job.changes("b") == {"insert": added, "update_postimage": changed}
    assert job.changes("a") == {"insert": 2 + 4 + 2, "update_postimage": 2, "truncate": 1}


@pytest.mark.every_server
def test_a_run_dies_while_a_table_that_was_set_back_comes_back(copied: Callable[..., Copied]) -> None:
    job = copied()
    job.change()
    die_at(job.path, "sink.before_commit")  # the epoch was read
    job.restore()
    for point in ("tables.before_joined", "tables.after_joined"):
        die_at(job.path, point)
        job.change("a")
    for point in (
        "sink.after_commit",
        "planner.after_plan",
        "sink.before_commit",
        "sink.after_commit",
        "driver.epoch_written",
    ):
        die_at(job.path, point)
    job.restore()  # while its rows are read
    job.run()
    job.assert_equal()
    job.change("a")
    assert job.run() == []
    job.assert_equal()


@pytest.mark.every_server
@pytest.mark.parametrize("when", ["between runs", "before an epoch"])
def test_a_copy_that_is_gone_parks_its_table(
    copied: Callable[..., Copied], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    job = copied()
    job.change()
    with monkeypatch.context() as patch:
        if when == "between runs":
            shutil.rmtree(job.place("a"))
        else:
            before_an_epoch(lambda: shutil.rmtree(job.place("a")), patch)
        with pytest.raises(TablesParkedError, match="gone"):
            job.run()
    assert job.rows("b") == job.of_source("b")
    resnapshot(load_job_file(job.path), [TableName(job.source.schema, "a")])
    assert job.run() == ["a joined"]
    job.assert_equal()
    job.change("a")
    assert job.run() == []
    job.assert_equal()


@pytest.mark.every_server
def test_with_stop_a_table_that_was_set_back_stops_the_job(copied: Callable[..., Copied]) -> None:
    """Also if an epoch was read, but is not written."""
    job = copied()
    job.change()
    die_at(job.path, "sink.before_commit")
    job.restore()
    with pytest.raises(SinkError, match="was set back by RESTORE") as caught:
        job.run("source.on_table_error=stop")
    name = TableName(job.source.schema, "a")
    assert f"tidemark signal JOB.yaml resnapshot --table {name}. RESTORE TABLE delta." in caught.value.remedy
    resnapshot(load_job_file(job.path), [name])
    assert job.run("source.on_table_error=stop") == ["a joined"]
    job.assert_equal()
    job.change()
    assert job.run("source.on_table_error=stop") == []
    job.assert_equal()


@pytest.mark.parametrize(
    "as_noted", [True, pytest.param(False, marks=pytest.mark.every_server)], ids=["as noted", "not as noted"]
)
def test_a_copy_whose_files_were_set_back_is_read_again(copied: Callable[..., Copied], *, as_noted: bool) -> None:
    """Delta's log goes back with them. An epoch without an effect is in it, too. `as_noted`: the later run was killed before it
    noted what it had seen of the copy. So Spark is not asked."""
    job = copied()
    noted = job.folder / "checkpoint" / "seen_copies"
    shutil.copytree(job.place("a"), job.folder / "backup")
    shutil.copytree(noted, job.folder / "noted")
    job.source.execute("INSERT INTO a VALUES (99, 0)", "DELETE FROM a WHERE id = 99")
    assert job.run() == []
    assert job.run() == []
    if as_noted:
        shutil.rmtree(noted)
        (job.folder / "noted").rename(noted)
    shutil.rmtree(job.place("a"))
    shutil.copytree(job.folder / "backup", job.place("a"))
    jvm: Any = job.session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    job.change()
    assert job.run() == ["a left", "a joined"]
    job.assert_equal()
    job.change("a")
    assert job.run() == []
    job.assert_equal()


@pytest.mark.every_server
def test_a_copy_whose_files_are_set_back_while_a_run_writes_is_read_again(
    copied: Callable[..., Copied], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later start could notice it: the older files get the newest epoch."""
    job = copied()
    shutil.copytree(job.place("a"), job.folder / "backup")
    job.change()
    assert job.run() == []
    job.change()

    def set_back() -> None:
        shutil.rmtree(job.place("a"))
        shutil.copytree(job.folder / "backup", job.place("a"))

    before_an_epoch(set_back, monkeypatch)
    assert job.run() == ["a left", "a joined"]
    job.assert_equal()
    job.change("a")
    assert job.run() == []
    job.assert_equal()


@pytest.mark.every_server
def test_a_copy_whose_files_are_those_before_its_first_rows_is_read_again(
    delta_session: SparkSession, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No change was written to it since the splits."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    for table in ("a", "b"):
        mysql_database.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2), (3)"
        )
    job = write_job(tmp_path, source=source_of(mysql_database, on_table_error="park"), sink=EVOLVING)
    place = tmp_path / "lake" / f"{mysql_database.schema}.a"
    die_at(job, "planner.after_plan")
    shutil.copytree(place, tmp_path / "backup")
    run_epochs(job)
    mysql_database.execute("INSERT INTO b VALUES (4)")
    run_epochs(job)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    jvm: Any = delta_session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    run_epochs(job, notes=(notes := Notes()))
    (left,) = (facts["text"] for event, facts in notes.found if event == "left")
    assert "has no epoch, but the job has written epoch 1 to it" in left
    copy = delta_session.read.format("delta").load(str(place)).select("id")
    assert sorted(map(tuple, copy.collect())) == mysql_database.query("SELECT id FROM a ORDER BY id")
