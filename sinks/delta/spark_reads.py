"""Finds out whether Spark can read the checkpoint's bucket: by its own filesystem of Hadoop, with its own account."""

import queue
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidemark.sinks.delta.errors import root_cause
from tidemark.sinks.delta.staging_places import spark_url
from tidemark.state.checkpoint.layout import FOR_SPARK_FOLDER

if TYPE_CHECKING:  # most jobs need no fsspec
    from tidemark.state.checkpoint.object_store import S3Store

PROBE_SECONDS = 60.0
"""The time in which each executor reads one small file, once there is one. With wrong settings, Hadoop may try for a quarter of
an hour."""
STATUS_MILLISECONDS = 30_000
"""The time in which the driver notes how the tasks ended. With many events it is behind."""
MAX_TASKS = 32
"""Executors that are asked. Each is one more scan in the plan of one query."""
_SLOWER = "So rows go through its Python workers, which takes more processor time."
_LACKS_CLASSES = re.compile(
    r"ClassNotFound|NoClassDefFound|NoSuchMethodError|NoSuchFieldError|IncompatibleClassChange|AbstractMethodError"
    r"|No FileSystem for scheme|UnsupportedFileSystem"
)
"""Signs of jars that are not there, or of another version of Hadoop."""


@dataclass(slots=True)
class SparkReads:
    """Remembers whether Spark reads the bucket: it is asked once in a run. `driver`: a name of this run."""

    driver: str = field(default_factory=lambda: uuid.uuid4().hex)
    _reads_bucket: bool | None = None

    def bucket(self, session: Callable[[], SparkSession], store: "S3Store", tell: Callable[[str], None]) -> bool:
        """Returns whether the executors can read a file that this process has put into the checkpoint. If not, `tell` gets the
        reason and what would help. Waits for an executor, as the epoch that follows would."""
        if self._reads_bucket is None:
            why = self._why_not(session(), store)
            self._reads_bucket = why is None
            if why is not None:
                tell(why)
        return self._reads_bucket

    def _why_not(self, session: SparkSession, store: "S3Store") -> str | None:
        mark, name = uuid.uuid4().hex, f"{FOR_SPARK_FOLDER}/{self.driver}/probe.parquet"
        content = pa.BufferOutputStream()
        pq.write_table(pa.table({"mark": [mark]}), content)
        store.create(name, content.getvalue())
        count = None
        try:
            count = _executor_count(session)
            found = _in_time(session, lambda: _read(session, f"{spark_url(store)}/{name}", count))
        except (Py4JJavaError, PySparkException, TimeoutError) as error:
            why = root_cause(error)
            return _not_asked(store, why) if count is None else _explained(store, why, _hadoop_version(session))
        finally:
            store.delete(name)
        return None if set(found) == {mark} else _explained(store, "it finds another file", _hadoop_version(session))


def _executor_count(session: SparkSession) -> int:
    """Returns how many executors there are, at most MAX_TASKS. Waits for the first one, as long as Spark does."""
    context = session.sparkContext
    context.setJobDescription("tidemark: wait for an executor")
    session.range(1).collect()
    known = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # with the driver
    return min(max(known, 1), MAX_TASKS)


def _read(session: SparkSession, url: str, count: int) -> list[str]:
    """Lets `count` tasks read the file: Spark gives each free executor one. Raises PySparkException if one has failed, also if
    another executor could do it."""
    reader = session.read.schema("mark string").option("__globPaths__", "false")
    marks = [row.mark for row in reduce(DataFrame.unionAll, [reader.parquet(url)] * count).collect()]
    if (failure := _failure(session.sparkContext)) is not None:
        raise PySparkException(failure)
    return marks


def _failure(context: SparkContext) -> str | None:
    """Returns the error of a task of this thread's job group, None if none is known to have failed. A lost executor says
    nothing about the bucket, nor does a task that was killed because another attempt (spark.speculation) was first."""
    jvm = context._jsc.sc()
    try:
        jvm.listenerBus().waitUntilEmpty(STATUS_MILLISECONDS)  # the status is kept by a listener
    except Py4JJavaError as error:  # a busy driver is no reason: all rows have been read
        if error.java_exception.getClass().getName() != "java.util.concurrent.TimeoutException":
            raise
    tracker, store = context.statusTracker(), jvm.statusStore()
    for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id"))):
        for stage in () if job is None else job.stageIds:
            tasks = store.taskList(stage, 0, 10 * MAX_TASKS)
            failed = [task for task in map(tasks.apply, range(tasks.size())) if task.status() == "FAILED"]
            errors = [found.get() for task in failed if (found := task.errorMessage()).isDefined()]
            failure = next((error for error in errors if not error.startswith("ExecutorLostFailure")), None)
            if failure is not None:
                return str(failure)
    return None


def _in_time(session: SparkSession, read: Callable[[], list[str]]) -> list[str]:
    """Calls `read` in a thread of its own. Raises TimeoutError if it takes longer than PROBE_SECONDS, and lets it be:
    Hadoop's calls can't be interrupted."""
    group, ended = f"tidemark-probe-{uuid.uuid4()}", queue.SimpleQueue[list[str] | BaseException]()

    def run() -> None:
        try:
            session.sparkContext.setJobGroup(group, "tidemark: can Spark read the checkpoint?", interruptOnCancel=True)
            ended.put(read())
        except BaseException as error:  # noqa: BLE001 -- raised again below
            ended.put(error)

    threading.Thread(target=run, name="probe of the bucket", daemon=True).start()
    try:
        result = ended.get(timeout=PROBE_SECONDS)
    except queue.Empty:
        session.sparkContext.cancelJobGroup(group)
        raise TimeoutError(f"no answer within {PROBE_SECONDS:.0f} seconds") from None
    if isinstance(result, BaseException):
        raise result
    return result


def _hadoop_version(session: SparkSession) -> str:
    return str(session.sparkContext._jvm.org.apache.hadoop.util.VersionInfo.getVersion())  # type: ignore[union-attr]


def _not_asked(store: "S3Store", why: str) -> str:
    asked = f"It is not known whether Spark can read the checkpoint {store.url}: no executor could be asked"
    return f"{asked} ({why.rstrip('.')}). {_SLOWER}"


def _explained(store: "S3Store", why: str, hadoop_version: str) -> str:
    if _LACKS_CLASSES.search(why):
        helps = f"give Spark the jars of org.apache.hadoop:hadoop-aws:{hadoop_version}"
    else:
        helps = "give Spark the bucket's account, region and endpoint (spark.hadoop.fs.s3a.…)"
    why_not = f"Spark can't read the checkpoint {store.url} ({why.rstrip('.')})."
    return f"{why_not} {_SLOWER} If Spark shall read files instead, {helps}."
