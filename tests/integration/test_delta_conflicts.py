"""Somebody else writes into a Delta table of a job while the job does."""

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.delta import Held, wait_for
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.sinks.delta import epoch as delta_epoch
from tidemark.sinks.delta.epoch_rows import StagedRows
from tidemark.sinks.sink import SinkBusyError

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("attempts", [pytest.param(1, marks=pytest.mark.every_server), 2])
def test_a_commit_that_conflicts_is_tried_again(
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attempts: int,
) -> None:
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    monkeypatch.setattr(delta_epoch, "MAX_ATTEMPTS", attempts)
    database = mysql_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    job = write_job(tmp_path, source=source_of(database), sink={"type": "delta", "path": "./lake", "style": "mirror"})
    run_epochs(job)
    original = StagedRows.read

    def held(*given: Any) -> DataFrame:
        rows = original(*given)
        return rows.mapInArrow(Held(tmp_path), rows.schema)

    monkeypatch.setattr(StagedRows, "read", held)
    copy = f"delta.`{tmp_path / 'lake' / f'{database.schema}.t'}`"
    failures: list[BaseException] = []

    def write_meanwhile() -> None:
        try:
            wait_for(tmp_path / "reached")
            delta_session.newSession().sql(f"UPDATE {copy} SET v = v WHERE id = 2")
            (tmp_path / "written").touch()
        except BaseException as error:  # noqa: BLE001 -- raised again by the test
            failures.append(error)

    database.execute("UPDATE t SET v = 20 WHERE id = 2", "INSERT INTO t VALUES (3, 3)", "DELETE FROM t WHERE id = 1")
    other = threading.Thread(target=write_meanwhile)
    other.start()
    if attempts == 1:
        with pytest.raises(SinkBusyError, match="written by somebody else at the same time") as caught:
            run_epochs(job)
        assert caught.value.exit_code == 7
    run_epochs(job)
    other.join()
    assert not failures
    assert (tmp_path / "written").exists()
    rows = delta_session.read.format("delta").load(str(tmp_path / "lake" / f"{database.schema}.t")).orderBy("id")
    assert [tuple(row)[:2] for row in rows.select("id", "v").collect()] == [(2, 20), (3, 3)]
