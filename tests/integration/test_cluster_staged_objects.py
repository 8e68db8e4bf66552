"""A cluster whose checkpoint is in a bucket: its tasks put files for Spark there. Killed between staging and commit; and
without hadoop-aws, where rows go through Spark instead."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from devtools.job_process import Process
from tests.support.cluster import DAEMON, Cluster
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.kills import armed
from tests.support.s3 import account, s3_server
from tests.support.s3a import HADOOP, hadoop_settings, s3a_jars
from tests.support.servers import Database
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.sinks.delta.settings import delta_settings
from tidemark.state.checkpoint.store import open_store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800), pytest.mark.every_server]

STAGED = "delta.staged"
SECRET = "kU7-Zz71xQ.9"
"""Spark's key for the bucket. The server takes any."""


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the names of failpoints of the executors."""
    return tmp_path_factory.mktemp("failpoints")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as bucket:
        yield bucket


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, bare_python: Path, our_zip: Path, failpoints: Path, bucket: str
) -> Iterator[Cluster]:
    environment = {"TIDEMARK_FAILPOINTS": str(failpoints), **account(hadoop_settings()["fs.s3a.endpoint"])}
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), bare_python, our_zip, environment)
    with cluster.running(2):
        yield cluster


def _job(folder: Path, database: Database, checkpoint: str) -> Path:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))",
        f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(900))}",
    )
    sink, snapshot = {"type": "delta", "path": str(folder / "lake")}, {"split_rows": 300, "driver_rows": 0}
    return write_job(folder, source=source_of(database), sink=sink, checkpoint=checkpoint, snapshot=snapshot)


def _settings(*, with_s3a: bool) -> dict[str, str]:
    jars = {name: value for name, value in delta_settings({}, submitted=False).items() if ".jars." in name}
    if with_s3a:
        jars["spark.jars"] = ",".join(map(str, s3a_jars()))
    hadoop = hadoop_settings() | {"fs.s3a.secret.key": SECRET}
    return jars | {f"spark.hadoop.{name}": value for name, value in hadoop.items()}


def _change(database: Database) -> None:
    changes = (
        "UPDATE t SET v = 'new' WHERE id % 3 = 0",
        "DELETE FROM t WHERE id < 100",
        "INSERT INTO t VALUES (-1, NULL)",
    )
    database.execute("START TRANSACTION", *changes, "COMMIT")


def _rows(session: SparkSession, folder: Path, database: Database) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, session.read.format("delta").load(f"{folder}/lake/{database.name}.t").collect()))


def _copied(database: Database) -> list[tuple[Any, ...]]:
    return sorted(database.query("SELECT id, v FROM t"))


def _told(process: Process) -> list[str]:
    events = [json.loads(line) for line in process.out.read_text().splitlines()]
    return [event["text"] for event in events if event["event"] == "spark" and "can't read" in event["text"]]


def _left(checkpoint: str) -> list[str]:
    store = open_store(checkpoint)
    return [name for folder in store.list("for_spark") for name in store.list(folder)]


def test_kills_between_staging_and_commit_cost_no_row(
    cluster: Cluster,
    failpoints: Path,
    bucket: str,
    mysql_database: Database,
    delta_session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kills an executor's Python, whose task stages again. Then the driver, after whom the next one removes the files. The
    first and the last run are in local mode: it is the same job."""
    checkpoint, settings = f"{bucket}/killed", _settings(with_s3a=True)
    job = _job(tmp_path, mysql_database, checkpoint)
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)

    def run(*arguments: str, environment: dict[str, str] | None = None, expect: int = 0) -> None:
        process = cluster.submit(job, *arguments, settings=settings, environment=environment)
        assert process.wait() == expect, process.error_text()
        assert _told(process) == []
        assert SECRET not in process.out.read_text() + process.error_text()

    run_epochs(job)
    _change(mysql_database)
    (failpoints / STAGED).write_text(f"kill above {DAEMON}")
    run("--set", "log.driver_bytes=0")
    assert not (failpoints / STAGED).exists()
    assert _rows(delta_session, tmp_path, mysql_database) == (before := _copied(mysql_database))
    assert _left(checkpoint) == []
    mysql_database.execute("UPDATE t SET v = 'newer' WHERE id % 7 = 0")
    with armed(tmp_path, (STAGED,)) as environment:
        run(environment=environment, expect=128 + signal.SIGKILL)  # as spark-submit tells it
    assert [name.rpartition(".")[2] for name in _left(checkpoint)] == ["parquet"]
    assert _rows(delta_session, tmp_path, mysql_database) == before
    run_epochs(job)
    assert _rows(delta_session, tmp_path, mysql_database) == _copied(mysql_database)
    assert _left(checkpoint) == []


def test_without_hadoop_aws_rows_go_through_spark_and_the_reason_is_told(
    cluster: Cluster, bucket: str, mysql_database: Database, delta_session: SparkSession, tmp_path: Path
) -> None:
    """And with its jars, as the text says, Spark reads files."""
    job = _job(tmp_path, mysql_database, f"{bucket}/without")
    process = cluster.submit(job, settings=_settings(with_s3a=False))
    assert process.wait() == 0, process.error_text()
    (text,) = _told(process)
    assert text.endswith(f"give Spark the jars of org.apache.hadoop:hadoop-aws:{HADOOP}.")
    assert SECRET not in process.out.read_text() + process.error_text()
    assert _rows(delta_session, tmp_path, mysql_database) == _copied(mysql_database)
    _change(mysql_database)
    process = cluster.submit(job, settings=_settings(with_s3a=True))
    assert process.wait() == 0, process.error_text()
    assert _told(process) == []
    assert _rows(delta_session, tmp_path, mysql_database) == _copied(mysql_database)
