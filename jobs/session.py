"""The Spark session that a job runs in."""

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import jobs
from conf.model import JobFile
from conf.sink import DeltaSink as DeltaSettings
from jobs.class_archive import archive_options
from sinks.delta.settings import delta_settings, how_to_have_delta
from state.errors import SinkError

_LOCAL_WITHOUT_RETRIES = re.compile(r"local(?:\[(?P<threads>\*|\d+)])?")
_TASK_ATTEMPTS = 4
WORKER_DAEMON = "jobs.worker_daemon"
_HOME = Path(jobs.__file__).resolve().parent.parent
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    # Rows pass the JVM as whole batches: code of the second compiler would never earn the time that it takes. That of the
    # first one has 48 MB without the second option, which Delta fills.
    _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
}
"""Of a session that we start; the job file's win."""


def debugging() -> bool:
    """TIDEMARK_DEBUG is set: show stack traces, ours and Spark's."""
    return bool(os.environ.get("TIDEMARK_DEBUG"))


def open_session(job: JobFile) -> SparkSession:
    """The running session under spark-submit, else a new one with the job file's settings.

    Settings given to spark-submit win over the job file's. In local mode tasks are retried as on a cluster.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(f"tidemark {job.job}")
    if not submitted:
        builder = builder.master(_with_retries(job.spark.master))
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    defaults = (
        {} if submitted else DEFAULTS | {_JAVA_OPTIONS: f"{DEFAULTS[_JAVA_OPTIONS]} {archive_options()}".rstrip()}
    )
    forking = not submitted and job.spark.master.startswith("local")
    if forking:  # only where the daemon finds our code when it starts: by the environment of the JVM that we start
        defaults = defaults | {"spark.python.daemon.module": WORKER_DAEMON}
    settings = defaults | job.spark.conf_with_secrets()
    if isinstance(job.sink, DeltaSettings):
        settings |= delta_settings(settings, submitted=submitted)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _home_in_environment() if forking else contextlib.nullcontext():
            session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() == "JAVA_GATEWAY_EXITED" and "spark.jars.packages" in settings:
            packages = settings["spark.jars.packages"]
            raise SinkError(
                f"Spark did not start; perhaps {packages} can't be downloaded.", how_to_have_delta()
            ) from error
        raise
    session.sparkContext.setLogLevel("ERROR" if debugging() else "FATAL")
    for name in (
        "SQLQueryContextLogger",
        "DataFrameQueryContextLogger",
    ):  # stack traces of errors that we raise, on stderr
        PySparkLogger.getLogger(name).disabled = not debugging()
    # A change batch is one row of several MiB: the JVM must hand them on one by one, not 10,000 at a time.
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    session.conf.set("spark.sql.streaming.stopTimeout", "60s")
    _let_workers_import_us(session.sparkContext)
    _leave_sigterm_to_us(session.sparkContext, submitted=submitted)
    return session


def _with_retries(master: str) -> str:
    """local[N] never retries a task; local[N,F] does."""
    match = _LOCAL_WITHOUT_RETRIES.fullmatch(master)
    return f"local[{match['threads'] or 1},{_TASK_ATTEMPTS}]" if match else master


@contextlib.contextmanager
def _home_in_environment() -> Iterator[None]:
    """What is started meanwhile finds our code."""
    before = os.environ.get("PYTHONPATH")
    if _HOME.is_dir():
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_HOME), before]))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


def _let_workers_import_us(context: SparkContext) -> None:
    """The planner of a Python stream source does not see --py-files in Spark 4.2: tell it where our code is."""
    paths = [str(path) for path in Path(SparkFiles.getRootDirectory()).glob("*.zip")]
    if _HOME.is_dir():
        paths.insert(0, str(_HOME))
    known = context.environment.get("PYTHONPATH", "")
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, known]))


class _HandedOn:
    """Called in the JVM's name: this process gets the signal that it got."""

    def handle(self, received: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        implements = ("sun.misc.SignalHandler",)


def _leave_sigterm_to_us(context: SparkContext, *, submitted: bool) -> None:
    """Else the JVM would end on SIGTERM before the epoch does.

    A JVM that we started gets it where somebody signals our whole process group, as schedulers and systemd do; it and the
    planner that it starts ignore it. That of spark-submit gets it in our stead and hands it on.
    """
    jvm: Any = context._jvm
    handler = jvm.sun.misc.SignalHandler.SIG_IGN
    if submitted:
        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
        handler = _HandedOn()
    jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal("TERM"), handler)


def start_workers(session: SparkSession) -> None:
    """Lets the workers' daemon start, and Spark plan and run a first task, while the query is being set up. Only where that
    daemon is ours."""
    if session.sparkContext.getConf().get("spark.python.daemon.module") == WORKER_DAEMON:
        threading.Thread(target=_start_workers, args=(session,), daemon=True).start()


def _start_workers(session: SparkSession) -> None:
    """If it fails, an epoch's tasks will too, and be heard; or the job is over."""
    with contextlib.suppress(Py4JError, PySparkException, ConnectionError):
        run_a_task(session)


def run_a_task(session: SparkSession) -> int:
    """Of one row, by a worker. Returns the number of rows."""
    return len(session.range(1, numPartitions=1).mapInArrow(_unchanged, "id long").collect())


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(batches)


def local_path(url: str) -> str:
    """A `file:` URL or plain path as a path."""
    return url2pathname(url.removeprefix("file:")) if url.startswith("file:") else url


def stop_quietly(session: SparkSession) -> None:
    """Stops the session; the JVM may already be gone."""
    with contextlib.suppress(ConnectionError):
        session.stop()
