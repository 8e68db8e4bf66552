"""A run asks once whether Spark can read the checkpoint's bucket. If not, it says why and what would help, and goes on."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.support.s3 import s3_server
from tidemark.sinks.delta import spark_reads
from tidemark.sinks.delta.spark_reads import SparkReads
from tidemark.state.checkpoint.object_store import S3Store

ACCOUNT = "give Spark the bucket's account, region and endpoint (spark.hadoop.fs.s3a.…)"
JARS = "give Spark the jars of org.apache.hadoop:hadoop-aws:9.9.9"


@pytest.fixture
def store() -> Iterator[S3Store]:
    with s3_server() as bucket:
        yield S3Store(f"{bucket}/job")


def asked(
    store: S3Store, patch: pytest.MonkeyPatch, read: Callable[[str], list[str]]
) -> tuple[bool, list[str], list[str]]:
    """Asks where Spark reads as `read` does. Returns the answer, what was told, and the files that were to be read."""
    urls, told = list[str](), list[str]()
    session: Any = SimpleNamespace(sparkContext=MagicMock(), range=MagicMock())
    session.sparkContext._jvm.org.apache.hadoop.util.VersionInfo.getVersion.return_value = "9.9.9"
    session.sparkContext._jsc.sc().getExecutorMemoryStatus().size.return_value = 2
    patch.setattr(spark_reads, "_read", lambda _, url, count: urls.extend([url] * count) or read(url))
    reads = SparkReads()
    found = {reads.bucket(lambda: session, store, told.append) for _ in range(3)}
    assert len(found) == 1
    assert len(urls) == 1
    assert store.list(f"for_spark/{reads.driver}") == []
    return found.pop(), told, urls


def test_nothing_is_told_if_it_can(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(url: str) -> list[str]:
        content = store.read(url.removeprefix(f"{store.url}/"))
        return pq.read_table(pa.BufferReader(content)).column("mark").to_pylist()

    assert asked(store, monkeypatch, read)[:2] == (True, [])


@pytest.mark.parametrize(
    ("error", "why", "helps"),
    [
        (PySparkException("java.lang.ClassNotFoundException: Class org.x.S3A not found\nmore"), "S3A not found", JARS),
        (PySparkException('No FileSystem for scheme "s3a"'), 'No FileSystem for scheme "s3a"', JARS),
        (PySparkException("java.lang.NoSuchMethodError: org.x.S3A.y()"), "S3A.y()", JARS),
        (PySparkException("(Service: S3, Status Code: 403)"), "(Service: S3, Status Code: 403)", ACCOUNT),
        (None, "it finds another file", ACCOUNT),
    ],
)
def test_why_it_can_not_is_told_once(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, error: Exception | None, why: str, helps: str
) -> None:
    def read(url: str) -> list[str]:
        if error is not None:
            raise error
        return ["of another server"]

    found, (text,), (url,) = asked(store, monkeypatch, read)
    assert not found
    assert url.startswith(f"{store.url}/for_spark/")
    assert text.startswith(f"Spark can't read the checkpoint {store.url} (")
    assert f"{why}). So rows go through" in text
    assert text.endswith(f"If Spark shall read files instead, {helps}.")


def test_the_innermost_cause_is_told(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    error = PySparkException("[FAILED_READ_FILE] Encountered error while reading file")
    error._stackTrace = "x\nCaused by: a.B: outer\n\tat x\nCaused by: c.D: no such account\n\tat y\n"  # type: ignore[attr-defined]

    def read(url: str) -> list[str]:
        raise error

    assert "(c.D: no such account)" in asked(store, monkeypatch, read)[1][0]


def test_an_error_while_it_waits_for_an_executor_is_told(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> int:
        raise PySparkException("Job aborted: no executors")

    monkeypatch.setattr(spark_reads, "_executor_count", fail)
    told, reads, session = list[str](), SparkReads(), MagicMock()
    session.sparkContext._jvm.org.apache.hadoop.util.VersionInfo.getVersion.return_value = "9.9.9"
    assert not reads.bucket(lambda: session, store, told.append)
    (text,) = told
    assert text.startswith(
        f"It is not known whether Spark can read the checkpoint {store.url}: no executor could be asked"
    )
    assert "(Job aborted: no executors). So rows go through" in text
    assert "If Spark shall" not in text
    assert store.list(f"for_spark/{reads.driver}") == []


@pytest.mark.parametrize(
    ("status", "error", "failure"),
    [
        ("SUCCESS", None, None),
        ("KILLED", "TaskKilled (another attempt succeeded)", None),
        ("FAILED", "ExecutorLostFailure (executor 1 exited)", None),
        ("FAILED", "java.io.IOException: 403", "java.io.IOException: 403"),
    ],
)
def test_only_a_task_that_has_failed_says_that_an_executor_can_not_read(
    status: str, error: str | None, failure: str | None
) -> None:
    assert spark_reads._failure(context_with(status, error)) == failure


def test_a_driver_that_is_behind_with_its_events_is_no_reason() -> None:
    context = context_with("SUCCESS", None)
    late = Py4JJavaError("The event queue is not empty", MagicMock(_target_id="o1"))
    late.java_exception.getClass().getName.return_value = "java.util.concurrent.TimeoutException"
    context._jsc.sc().listenerBus().waitUntilEmpty.side_effect = late
    assert spark_reads._failure(context) is None


def context_with(status: str, error: str | None) -> Any:
    """A SparkContext with one job of one task."""
    context = MagicMock()
    task = SimpleNamespace(
        status=lambda: status,
        errorMessage=lambda: SimpleNamespace(isDefined=lambda: error is not None, get=lambda: error),
    )
    context.statusTracker().getJobIdsForGroup.return_value = [1]
    context.statusTracker().getJobInfo.return_value = SimpleNamespace(stageIds=[1])
    context._jsc.sc().statusStore().taskList.return_value = SimpleNamespace(size=lambda: 1, apply=lambda _: task)
    return context
