"""Files that tasks have staged for Spark: where they are, and what kills leave of them."""

import signal
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.change_parts import INSERT, ORDERS, SCHEMAS, log_part, snapshot_part
from tests.support.delta import jars_of, published, rows_of_delta, write_epochs
from tests.support.epochs import run_epochs
from tests.support.jobs import BY_SPARK, SPARK, running, source_of, write_job
from tests.support.kills import armed
from tests.support.servers import Database
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.sinks.delta.errors import TRY_AGAIN
from tidemark.sinks.delta.locations import FolderLake
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import SinkError

pytestmark = pytest.mark.integration

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000004", "files")
STAGED = "delta.staged"


def order(number: int) -> tuple[Any, ...]:
    return number, "Ada", Decimal("1.50"), 0, None


def test_the_checkpoints_folder_may_have_any_name(delta_session: SparkSession, tmp_path: Path) -> None:
    """Spark takes some characters of a path for patterns."""
    store = LocalStore(str(tmp_path / "a b[1]{x,y}%20#*?c:d ü"))
    sink = DeltaSink(FolderLake(f"{tmp_path}/lake"), "mirror", {}, store, lambda: delta_session)
    sink.prepare(JOB, [ORDERS])
    write_epochs(sink, JOB, published(store, snapshot_part(1, 1, ORDERS, [order(1)]), ORDERS), SCHEMAS)
    write_epochs(sink, JOB, log_part(2, (ORDERS, [(INSERT, order(2))])), SCHEMAS)
    assert sorted(row[0] for row in rows_of_delta(sink, ORDERS)) == [1, 2]


@pytest.mark.parametrize("left", [0, 1])
def test_a_published_file_that_lost_its_rows_is_an_error(
    delta_session: SparkSession, tmp_path: Path, left: int
) -> None:
    """Spark passes over an empty file. So it does over rows that are not there."""
    store = LocalStore(str(tmp_path / "checkpoint"))
    sink = DeltaSink(FolderLake(f"{tmp_path}/lake"), "mirror", {}, store, lambda: delta_session)
    sink.prepare(JOB, [ORDERS])
    items = published(store, snapshot_part(1, 1, ORDERS, [order(1), order(2)]), ORDERS)
    shorter = published(store, snapshot_part(1, 2, ORDERS, [order(1)]), ORDERS)
    files = [Path(store.root, part[0].name) for part in (items, shorter)]  # type: ignore[union-attr]
    files[0].unlink()
    files[0].write_bytes(files[1].read_bytes() if left else b"")
    with pytest.raises(SinkError, match=r"e1-s1 (has 1 rows, but 2 were written|is damaged)") as caught:
        write_epochs(sink, JOB, items, SCHEMAS)
    assert caught.value.remedy == TRY_AGAIN
    assert rows_of_delta(sink, ORDERS) == []


def _job(folder: Path, database: Database, session: SparkSession) -> Path:
    spark = SPARK | {"conf": SPARK["conf"] | jars_of(session)}
    sink = {"type": "delta", "path": "./lake"}
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    return write_job(folder, source=source_of(database), sink=sink, spark=spark, snapshot={"split_rows": 2})


def _rows(session: SparkSession, folder: Path, database: Database) -> list[tuple[int, int]]:
    return sorted(map(tuple, session.read.format("delta").load(f"{folder}/lake/{database.name}.t").collect()))


def _left(folder: Path) -> Sequence[Path]:
    return list((folder / "checkpoint" / "for_spark").glob("*"))


def test_a_driver_that_was_killed_after_staging_leaves_nothing_that_counts(
    mysql_database: Database, delta_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next driver stages the same changes again, and removes the files."""
    job = _job(tmp_path, mysql_database, delta_session)
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    run_epochs(job)
    mysql_database.execute("UPDATE t SET v = 9 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    with armed(tmp_path, (STAGED,)) as environment, running(job, environment=environment) as process:
        assert process.wait() == -signal.SIGKILL
    (left,) = _left(tmp_path)
    assert [file.suffix for file in left.iterdir()] == [".parquet"]
    assert _rows(delta_session, tmp_path, mysql_database) == [(1, 1), (2, 2), (3, 3)]
    run_epochs(job)
    assert _rows(delta_session, tmp_path, mysql_database) == [(1, 9), (3, 3)]
    assert _left(tmp_path) == []


@pytest.mark.every_server
def test_a_task_that_was_killed_after_staging_is_tried_again(
    mysql_database: Database, delta_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first attempt has staged the changes, too. They are not written twice."""
    job = _job(tmp_path, mysql_database, delta_session)
    with monkeypatch.context() as patch:
        patch.setattr(SparkSessions, "open", lambda *_: delta_session)
        run_epochs(job)
    mysql_database.execute("UPDATE t SET v = 9 WHERE id = 1", "INSERT INTO t VALUES (4, 4)")
    with armed(tmp_path, (STAGED,)) as environment, running(job, *BY_SPARK, environment=environment) as process:
        assert process.wait() == 0, process.error_text()
    assert _rows(delta_session, tmp_path, mysql_database) == [(1, 9), (2, 2), (3, 3), (4, 4)]
    assert _left(tmp_path) == []
