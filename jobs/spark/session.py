"""The Spark session that a job runs in."""

import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

import tidemark
from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.ending import debugging
from tidemark.jobs.spark.class_data_sharing import archive_options
from tidemark.jobs.spark.jvm import JAVA_OPTIONS, environment, protection, start_jvm
from tidemark.jobs.spark.submitted import was_submitted
from tidemark.sinks.sink import SparkNeeds
from tidemark.state.errors import SinkError

_LOCAL_WITHOUT_RETRIES = re.compile(r"local(?:\[(?P<threads>\*|\d+)])?")
_TASK_ATTEMPTS = 4
WORKER_DAEMON = "tidemark.jobs.spark.worker_daemon"
_HOME = Path(tidemark.__file__).resolve().parent.parent
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties").resolve()
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
}
"""Settings of a session that we start. The job file's settings win."""
_PACKAGES_REMEDY = (
    "Give Spark those packages' jars by spark.jars in place of spark.jars.packages, or a repository that has them by "
    "spark.jars.repositories."
)


def open_session(job: JobFile, needs: SparkNeeds | None) -> SparkSession:
    """Returns the running session under spark-submit, else a new one with the job file's settings.

    Under spark-submit its master wins; of the other settings the job file's win, as settings in code do in Spark. In local mode
    tasks are retried as on a cluster. `needs`: those of the sink, as in `SinkNeeds.spark`.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = was_submitted()
    builder = SparkSession.builder.appName(f"tidemark {job.job}")
    defaults = {} if submitted else DEFAULTS
    forking = not submitted and job.spark.master.startswith("local")
    if forking:  # only then does the daemon find our code: by the environment of the JVM that we start
        defaults = defaults | {"spark.python.daemon.module": WORKER_DAEMON}
    settings = defaults | job.spark.conf_with_secrets()
    if not submitted:
        settings[JAVA_OPTIONS] = _java_options(job.spark.conf_with_secrets().get(JAVA_OPTIONS, ""))
    if needs is not None:
        settings |= needs.settings(settings, submitted=submitted)
    if not submitted:
        settings["spark.master"] = _with_retries(job.spark.master)
    try:
        with environment({"PYTHONPATH": _path_with_home()} if forking else {}):
            if submitted:
                SparkContext._ensure_initialized()
            else:
                start_jvm(settings)
            settings |= protection(SparkConf())
            for name, value in settings.items():
                builder = builder.config(name, value)
            session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" in str(error) and "spark.jars.packages" in settings:
            packages = settings["spark.jars.packages"]
            remedy = _PACKAGES_REMEDY if needs is None else needs.missing_packages_remedy
            raise SinkError(f"Spark did not start; perhaps {packages} can't be downloaded.", remedy) from error
        raise
    session.sparkContext.setLogLevel("ERROR" if debugging() else "FATAL")
    _silence_spark_loggers()
    # A change batch is one row of several MiB: the JVM must pass rows on one by one, not 10,000 at a time.
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    _let_workers_import_us(session.sparkContext)
    _leave_sigterm_to_us(session.sparkContext, submitted=submitted)
    return session


def _java_options(given: str) -> str:
    """Adds our options to those of the job file, which come last and so win."""
    # No rows pass the JVM, so the second compiler costs more time than it saves. The second option is needed because the
    # first compiler's code has only 48 MB by default, which Delta fills.
    options = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", archive_options()]
    if _LOG_SETTINGS.is_file() and "log4j" not in given and " " not in str(_LOG_SETTINGS):
        options.append(f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}")
    return " ".join(filter(None, [*options, given]))


def _silence_spark_loggers() -> None:
    """They print stack traces of errors that we raise on stderr. Spark before 4.0 has no loggers of query contexts."""
    # py4j logs by the root logger and by its own ones, among others if a second signal comes while it waits for the JVM.
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").propagate = debugging()
    if find_spec("pyspark.logger") is None:
        return
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = not debugging()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return debugging() or record.module not in ("java_gateway", "clientserver")


def _with_retries(master: str) -> str:
    """Replaces local[N], which never retries a task, by local[N,F], which does."""
    match = _LOCAL_WITHOUT_RETRIES.fullmatch(master)
    return f"local[{match['threads'] or 1},{_TASK_ATTEMPTS}]" if match else master


def _path_with_home() -> str:
    """PYTHONPATH for processes that must find our code."""
    return os.pathsep.join(filter(None, [str(_HOME) if _HOME.is_dir() else "", os.environ.get("PYTHONPATH")]))


def _let_workers_import_us(context: SparkContext) -> None:
    """Tells the planner of the stream source where our code is: in Spark 4.2 it does not see --py-files."""
    paths = [str(path) for path in Path(SparkFiles.getRootDirectory()).glob("*.zip")]
    if _HOME.is_dir():
        paths.insert(0, str(_HOME))
    # Another value would let Spark start another daemon: a session may be opened again.
    known = context.environment.get("PYTHONPATH", "").split(os.pathsep)
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys([*paths, *known])))


class _HandedOn:
    """A signal handler in the JVM that passes the signal on to this process."""

    def handle(self, received: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        implements = ("sun.misc.SignalHandler",)


def _leave_sigterm_to_us(context: SparkContext, *, submitted: bool) -> None:
    """Keeps the JVM from ending on SIGTERM before the epoch does.

    Schedulers and systemd signal the whole process group. A JVM that we started, and the planner that it starts, ignore the
    signal. The JVM of spark-submit gets the signal instead of us and passes it on.
    """
    jvm: Any = context._jvm
    handler = jvm.sun.misc.SignalHandler.SIG_IGN
    if submitted:
        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
        handler = _HandedOn()
    jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal("TERM"), handler)


def start_workers(session: SparkSession) -> threading.Thread | None:
    """Starts the workers' daemon and runs a first task while the job starts. Only if the daemon is ours. Returns the thread."""
    if session.sparkContext.getConf().get("spark.python.daemon.module") != WORKER_DAEMON:
        return None
    thread = threading.Thread(target=_start_workers, args=(session,), daemon=True)
    thread.start()
    return thread


def _start_workers(session: SparkSession) -> None:
    """Ignores errors: if there is a problem, the tasks of an epoch meet it, too, and report it. The session may also be
    stopped meanwhile."""
    with contextlib.suppress(Exception):
        run_a_task(session)


def run_a_task(session: SparkSession) -> int:
    """Runs a task in a Python worker, without Spark SQL, whose first query takes two seconds. Returns the number of rows."""
    return len(session.sparkContext.parallelize([0], 1).mapPartitions(_unchanged).collect())


def _unchanged(rows: Iterable[int]) -> Iterator[int]:
    return iter(rows)


def stop_quietly(session: SparkSession) -> None:
    """Stops the session; the JVM may already be gone."""
    with contextlib.suppress(ConnectionError):
        session.stop()
