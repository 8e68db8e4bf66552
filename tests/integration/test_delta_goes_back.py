"""Copies in Delta after a rollback, a failover, both, and a slot that somebody dropped."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.epochs import die_at, run_epochs
from tests.support.failover import await_replica, on, promote, replicated, stop_receiving
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STYLES = ["mirror", pytest.param("changelog", marks=pytest.mark.every_server)]
CHANGES = (
    "UPDATE a SET v = v + 1 WHERE id < 5",
    "DELETE FROM a WHERE id = (SELECT m FROM (SELECT max(id) AS m FROM a) AS newest)",
    "INSERT INTO b SELECT max(id) + 1, 0 FROM b",
    "UPDATE b SET id = id + 1000 WHERE id = 2",
)


@pytest.fixture(autouse=True)
def _session(delta_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs use the session of the tests."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)


class Lake:
    """A job that copies the tables a and b."""

    def __init__(self, session: SparkSession, folder: Path, style: str) -> None:
        self._session, self._folder, self._style = session, folder, style

    def run(self, source: Database, *overrides: str) -> list[str]:
        return run_epochs(self.job(source), *overrides)

    def job(self, source: Database) -> Path:
        sink = {"type": "delta", "path": "./lake", "style": self._style, "on_schema_change": "evolve"}
        return write_job(self._folder, source=source_of(source, on_log_lost="resnapshot"), sink=sink)

    def go_back(self, source: Database, epochs: int) -> None:
        committed = Checkpoint.at(str(self._folder / "checkpoint")).committed_epoch()
        roll_back(load_job_file(self.job(source)), committed - epochs, standby=True)

    def damage(self, source: Database) -> None:
        """Changes a copy, which is why somebody wants to go back."""
        if self._style == "mirror":
            self._session.newSession().sql(f"UPDATE delta.`{self._place(source, 'a')}` SET v = 77 WHERE id = 3")

    def assert_equal(self, source: Database) -> None:
        for table in ("a", "b"):
            rows = source.query(f"SELECT id, v FROM {table} ORDER BY id")
            assert self._rows(self._place(source, table)) == rows, table

    def _place(self, source: Database, table: str) -> Path:
        return self._folder / "lake" / f"{source.schema}.{table}"

    def _rows(self, place: Path) -> list[tuple[Any, ...]]:
        copy = self._session.newSession().read.format("delta").load(str(place))
        if self._style == "mirror":
            return sorted(map(tuple, copy.select("id", "v").collect()))
        found = copy.select("_commit_version", "_seq", "_change_type", "id", "v").collect()
        held: dict[int, int] = {}
        for _, _, kind, key, value in sorted(found, key=lambda row: (row[0], row[1])):
            if kind == "truncate":
                held.clear()
            elif kind == "delete":
                held.pop(key, None)
            else:
                held[key] = value
        return sorted(held.items())


def fill(source: Database) -> None:
    for table in ("a", "b"):
        values = ", ".join(f"({key}, 0)" for key in range(1, 31))
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES {values}")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("point", ["planner.after_plan", "sink.after_commit"])
def test_a_rollback(
    delta_session: SparkSession, mysql_database: Database, tmp_path: Path, style: str, point: str
) -> None:
    lake, source = Lake(delta_session, tmp_path, style), mysql_database
    fill(source)
    lake.run(source)
    for _ in range(3):
        source.execute(*CHANGES)
        lake.run(source)
    lake.damage(source)
    source.execute(*CHANGES)
    die_at(lake.job(source), point)
    lake.go_back(source, 2)
    source.execute("DELETE FROM b WHERE id = 5")
    assert set(lake.run(source)) == {"stream"}
    lake.assert_equal(source)
    source.execute(*CHANGES)
    assert lake.run(source) == ["stream"]
    lake.assert_equal(source)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.every_server)])
@pytest.mark.parametrize("goes_back", [False, True], ids=["failover", "rollback and failover"])
def test_a_replica_that_lacks_what_was_read(
    delta_session: SparkSession, tmp_path: Path, style: str, kind: str, *, goes_back: bool
) -> None:
    """Changes that only the dead primary had are in the copies."""
    with replicated(kind) as (primary, replica), fresh_database(primary) as source:
        lake = Lake(delta_session, tmp_path, style)
        fill(source)
        lake.run(source)
        source.execute(*CHANGES)
        lake.run(source)
        await_replica(primary, replica)
        stop_receiving(replica)
        source.execute(*CHANGES, "DELETE FROM a WHERE id < 9", "INSERT INTO a VALUES (500, 5)", *CHANGES)
        lake.run(source)
        if goes_back:
            lake.go_back(source, 1)
        promote(replica)
        there = on(replica, source)
        there.execute("UPDATE b SET v = v + 1 WHERE id = 11", "INSERT INTO a VALUES (600, 6)")
        lake.run(there)
        lake.assert_equal(there)
        there.execute(*CHANGES)
        assert lake.run(there) == ["stream"]
        lake.assert_equal(there)


@pytest.mark.parametrize("style", STYLES)
def test_a_slot_is_dropped(
    delta_session: SparkSession, postgres18_database: Database, tmp_path: Path, style: str
) -> None:
    """The kept log has what was not read. No row is read again."""
    lake, source = Lake(delta_session, tmp_path, style), postgres18_database
    fill(source)
    lake.run(source)
    for _ in range(2):
        source.execute(*CHANGES)
        lake.run(source)
    source.execute(*CHANGES)
    source.query("SELECT pg_drop_replication_slot(%s)", (source.name,))
    source.execute(*CHANGES)
    assert set(lake.run(source, "source.on_log_lost=stop")) == {"stream"}
    lake.assert_equal(source)
    lake.go_back(source, 2)
    assert set(lake.run(source, "source.on_log_lost=stop")) == {"stream"}
    lake.assert_equal(source)
