"""Files that tasks have put into the checkpoint's bucket, which Spark reads by its own filesystem of S3."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.change_parts import DELETE, INSERT, ORDERS, SCHEMAS, UPDATE, log_part, snapshot_part
from tests.support.delta import published, rows_of_delta, write_epochs
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.s3 import s3_server
from tests.support.s3a import Faults, reads
from tests.support.servers import Database
from tidemark.jobs import engine
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.sinks.delta import spark_reads
from tidemark.sinks.delta.errors import TRY_AGAIN
from tidemark.sinks.delta.locations import FolderLake
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.delta.staging_places import BucketPlace
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.store import CheckpointStore, open_store
from tidemark.state.errors import SinkError

pytestmark = pytest.mark.integration

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000005", "objects")


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return number, customer, Decimal("1.50"), 0, None


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="module")
def bucket(s3a_session: SparkSession, faults: Faults) -> Iterator[str]:
    with s3_server(faults) as bucket, reads(s3a_session):
        yield bucket


@pytest.fixture
def delta(
    bucket: str, s3a_session: SparkSession, faults: Faults, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[[], DeltaSink]:
    """A prepared sink, as each run of a job has a new one."""
    faults.answer, faults.given = None, 0
    store = open_store(f"{bucket.replace('s3a', 's3')}/a b%20+ü/{request.node.name}")

    def opened() -> DeltaSink:
        sink = DeltaSink(FolderLake(f"{tmp_path}/lake"), "mirror", {}, store, lambda: s3a_session)
        sink.prepare(JOB, [ORDERS])
        return sink

    return opened


def left_in(store: CheckpointStore) -> list[str]:
    return [name for folder in store.list("for_spark") for name in store.list(folder)]


def test_spark_reads_what_tasks_put_into_the_bucket_through_errors_of_the_store_that_pass(
    delta: Callable[[], DeltaSink], faults: Faults
) -> None:
    """Published splits, splits that tasks stage, and the log."""
    sink = delta()
    first = published(sink.checkpoint, snapshot_part(1, 1, ORDERS, [order(1), order(2)]), ORDERS)
    write_epochs(sink, JOB, [*first, *snapshot_part(1, 2, ORDERS, [order(3)])], SCHEMAS, is_local=False)
    changes = [(UPDATE, order(1, "Grace")), (DELETE, order(2)), (INSERT, order(4))]
    faults.answer, faults.left = "503 Slow Down", 5
    write_epochs(sink, JOB, log_part(2, (ORDERS, changes)), SCHEMAS, is_local=False)
    assert faults.given == 5
    assert sorted(row[:2] for row in rows_of_delta(sink, ORDERS)) == [(1, "Grace"), (3, "Ada"), (4, "Ada")]
    assert left_in(sink.checkpoint) == []


@pytest.mark.parametrize("left", [0, *(pytest.param(other, marks=pytest.mark.every_server) for other in (None, 1))])
def test_a_published_object_that_lost_its_rows_is_an_error(delta: Callable[[], DeltaSink], left: int | None) -> None:
    sink = delta()
    store = sink.checkpoint
    whole = published(store, snapshot_part(1, 1, ORDERS, [order(1), order(2)]), ORDERS)
    published(store, snapshot_part(1, 2, ORDERS, [order(1)]), ORDERS)
    shorter = {0: b"", 1: store.read("published/e1-s2"), None: None}[left]
    store.delete("published/e1-s1")
    if shorter is not None:
        store.create("published/e1-s1", shorter)
    with pytest.raises(SinkError, match=r"e1-s1 (has 1 rows, but 2 were written|is damaged)") as caught:
        write_epochs(sink, JOB, whole, SCHEMAS, is_local=False)
    assert caught.value.remedy == TRY_AGAIN
    assert rows_of_delta(sink, ORDERS) == []


def test_access_that_is_lost_ends_a_run_and_the_next_one_goes_on_without_it(
    delta: Callable[[], DeltaSink], faults: Faults
) -> None:
    sink = delta()
    write_epochs(sink, JOB, snapshot_part(1, 1, ORDERS, [order(1)]), SCHEMAS, is_local=False)
    faults.answer, faults.left = "403 Forbidden", -1
    changes = log_part(2, (ORDERS, [(INSERT, order(2))]))
    with pytest.raises(SinkError, match=r"could not be written or read: .*s3a://.*403") as caught:
        write_epochs(sink, JOB, changes, SCHEMAS, is_local=False)
    assert caught.value.remedy == TRY_AGAIN
    assert caught.value.table is None
    told: list[str] = []
    next_run = delta()
    for _ in range(2):
        assert next_run.staging(JOB, is_local=False, tell=told.append) is None
    (text,) = told
    assert "403" in text
    assert text.endswith("give Spark the bucket's account, region and endpoint (spark.hadoop.fs.s3a.…).")
    write_epochs(next_run, JOB, changes, SCHEMAS, staged=False)
    assert sorted(row[0] for row in rows_of_delta(sink, ORDERS)) == [1, 2]
    assert left_in(sink.checkpoint) == []


def test_a_store_that_does_not_answer_spark_does_not_keep_the_run(
    delta: Callable[[], DeltaSink], faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_reads, "PROBE_SECONDS", 0.2)
    sink, told = delta(), list[str]()
    faults.answer, faults.left = "503 Slow Down", -1
    try:
        assert sink.staging(JOB, is_local=False, tell=told.append) is None
    finally:
        faults.answer = None
    assert "(no answer within 0 seconds)" in told[0]


@pytest.mark.parametrize("where", ["local mode", "cluster"])
def test_a_job_with_a_checkpoint_in_a_bucket(
    mysql_database: Database,
    bucket: str,
    s3a_session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """In local mode the driver reads the published rows itself, and stages them as temporary files."""
    database, checkpoint, notes = mysql_database, f"{bucket}/job-{where.split()[0]}", Notes()
    monkeypatch.setattr(SparkSessions, "open", lambda *_: s3a_session)
    urls = list[str]()
    if where == "cluster":
        monkeypatch.setattr(engine, "local_slots", lambda _: None)
    published_url, url = BucketPlace.published, "s3a://"
    monkeypatch.setattr(BucketPlace, "published", lambda *given: urls.append(published_url(*given)) or urls[-1])
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, d DECIMAL(9,2), at TIMESTAMP(6) NULL)",
        "CREATE TABLE odd (id INT PRIMARY KEY, _SEQ INT)",
        "INSERT INTO t VALUES (1, 1, 1.5, '2024-01-01'), (2, 2, NULL, NULL), (3, 3, -3, NULL)",
        "INSERT INTO odd VALUES (1, 7)",
    )
    sink = {"type": "delta", "path": "./lake"}
    job = write_job(tmp_path, source=source_of(database), sink=sink, checkpoint=checkpoint, snapshot={"split_rows": 2})
    run_epochs(job, notes=notes)
    database.execute("UPDATE t SET v = 9 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO odd VALUES (2, 8)")
    run_epochs(job, notes=notes)
    for table in ("t", "odd"):
        lake = s3a_session.read.format("delta").load(f"{tmp_path}/lake/{database.name}.{table}")
        columns = ["id", "v", "d"] if table == "t" else ["id", "_SEQ"]
        rows = database.query(f"SELECT {', '.join(columns)} FROM {table}")
        assert sorted(map(tuple, lake.select(columns).collect())) == sorted(rows)
    assert [notes for event, notes in notes.found if event == "spark"] == []
    assert (len(urls) > 1) == (where == "cluster")
    assert all(found.startswith(url) for found in urls)
    assert left_in(open_store(checkpoint)) == []
