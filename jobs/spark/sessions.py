"""The Spark session of a run: started when it is first needed, or early in the background, and the jobs that run in it."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tidemark.conf.model import JobFile
from tidemark.jobs.epoch.aside_reads import read_aside
from tidemark.jobs.epoch.read_parts import LogTask, PartTask
from tidemark.jobs.epoch.write_parts import TaskReading, TaskStaging, TaskWriting, Writing, Written
from tidemark.jobs.monitoring.events import Notes, tell_outage
from tidemark.jobs.sinks import sink_needs
from tidemark.sinks.sink import EpochSink
from tidemark.sinks.staging import StagedTask, StagesParts
from tidemark.state.change_batch import TRANSPORT
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import from_text
from tidemark.state.split import AsideRead
from tidemark.state.table import TableId

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from tidemark.jobs.spark.outages import TaskOutages, ToldByTasks

_Task = TypeVar("_Task")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# A run that needs no Spark does not import it: pyspark is imported where it is used.


class SparkSessions:
    """One per run, for one session."""

    def __init__(self, job: JobFile, notes: Notes) -> None:
        self._job = job
        self._notes = notes
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._starter: threading.Thread | None = None
        self._session: SparkSession | None = None
        self._workers: threading.Thread | None = None
        self._is_shared = False
        self._task_outages: TaskOutages | None = None

    def start_early(self) -> None:
        """Starts Spark in the background, if nobody has done so. An error is raised again where the session is needed."""
        if self._starter is None and self._session is None:
            self._starter = threading.Thread(target=self._try_to_start, name="tidemark Spark start", daemon=True)
            self._starter.start()

    @property
    def is_started(self) -> bool:
        """True if Spark has run its first Python task, and also if a start in the background has failed: `open` tells why."""
        return self._session is not None if self._starter is None else not self._starter.is_alive()

    def open(self, job_uuid: str) -> "SparkSession":
        """Starts Spark if it does not run, and checks once that executors share the job's checkpoint. Raises what
        `open_session` raises, CheckpointError."""
        from tidemark.jobs.spark.executors import require_shared_checkpoint

        session = self._started()
        if not self._is_shared:
            require_shared_checkpoint(session.sparkContext, Checkpoint.at(self._job.checkpoint), job_uuid)
            self._is_shared = True
        return session

    def _started(self) -> "SparkSession":
        from tidemark.jobs.spark.session import open_session, start_workers

        with self._lock:
            if self._session is None:
                self._notes.add("spark", text="starting Spark")
                needs = sink_needs(self._job.sink).spark
                self._session = open_session(self._job, needs)
                if needs is None:  # else Spark writes, and perhaps reads nothing
                    self._workers = start_workers(self._session)
            return self._session

    def tell(self, text: str) -> None:
        """Reports something about Spark to the user."""
        self._notes.add("spark", text=text)

    def stop(self) -> None:
        """Does not wait for a start that is still under way: that JVM ends with this process."""
        if self._lock.acquire(blocking=False):
            try:
                if self._session is not None:
                    from tidemark.jobs.spark.session import stop_quietly

                    stop_quietly(self._session)
                    self._session = None
            finally:
                self._lock.release()

    def write_tasks(self, tasks: Sequence[PartTask], writing: TaskWriting) -> list[Written]:
        """Runs each task on an executor. Only reports come back."""
        return self.run(tasks, writing, tasks[0].job_uuid, _description(tasks[0]))

    def run(
        self, tasks: Sequence[_Task], function: Callable[[Iterable[_Task]], Iterable[_Result]], job_uuid: str, name: str
    ) -> list[_Result]:
        """Runs each task on an executor, and returns what the function yields for them. Raises the TidemarkError of a task."""
        from tidemark.jobs.spark.outages import Collecting

        context = self.open(job_uuid).sparkContext
        context.setJobDescription(name)
        with _causes(), self._outages(context) as outages:
            collecting = Collecting(function, outages)
            return list(context.parallelize(tasks, len(tasks)).mapPartitions(collecting).collect())

    def run_by_buckets(
        self,
        tasks: Sequence[_Task],
        later: Callable[[], Sequence[_Task]],
        function: Callable[[Iterable[_Task]], Iterable[tuple[int, _Item]]],
        buckets: int,
        of_bucket: Callable[[Iterable[tuple[int, _Item]]], Iterable[_Result]],
        job_uuid: str,
        name: str,
    ) -> list[_Result]:
        """Runs each task on an executor, then those of `later`, then `of_bucket` on what the function yields for each number
        below `buckets`. What it yields for the first ones is on the executors' disks meanwhile; if one is lost, they run again.
        Raises the TidemarkError of a task."""
        from pyspark import StorageLevel

        from tidemark.jobs.spark.outages import Collecting

        context = self.open(job_uuid).sparkContext
        context.setJobDescription(name)
        with _causes(), self._outages(context) as outages:
            collecting = Collecting(function, outages)
            first = context.parallelize(tasks, len(tasks)).mapPartitions(collecting).persist(StorageLevel.DISK_ONLY)
            try:
                context.runJob(first, _nothing)
                more = later()
                every = first.union(context.parallelize(more, max(len(more), 1)).mapPartitions(collecting))
                of_buckets = every.partitionBy(buckets, int).mapPartitions(Collecting(of_bucket, outages))
                return list(of_buckets.collect())
            finally:
                first.unpersist()

    def write_epoch(self, tasks: Sequence[PartTask], sink: EpochSink, writing: Writing) -> list[Written]:
        """Lets the sink write an epoch that Spark's tasks read."""
        from pyspark.sql.pandas.types import from_arrow_schema

        session = self.open(tasks[0].job_uuid)
        session.sparkContext.setJobDescription(_description(tasks[0]))
        indices = session.range(0, len(tasks), 1, len(tasks))
        with _causes(), self._outages(session.sparkContext) as outages:
            batch = indices.mapInArrow(TaskReading(tasks, outages), from_arrow_schema(TRANSPORT))
            ends = sink.write_epoch(batch, writing.job, writing.schemas, _emptied(tasks))
        return [Written(end.part, end.row_count) for end in ends]

    def stage_tasks(self, tasks: Sequence[PartTask], staging: TaskStaging) -> list[StagedTask]:
        """Runs each task on an executor, where it stages its rows. Only reports come back."""
        return self.run(tasks, staging, tasks[0].job_uuid, _description(tasks[0]))

    def read_aside(self, task: PartTask) -> AsideRead:
        """Reads a table beside the epochs, on an executor. The thread that runs them goes on meanwhile."""
        name = f"tidemark {task.job.job}: {task.schemas[0].table} beside the epochs"
        return self.run([task], read_aside, task.job_uuid, name)[0]

    def write_staged(
        self, tasks: Sequence[PartTask], staged: Sequence[StagedTask], sink: StagesParts, writing: Writing
    ) -> list[Written]:
        """Lets the sink write an epoch whose rows its tasks have staged. Spark starts if there are any."""
        if any(report.has_rows for report in staged):
            session = self.open(tasks[0].job_uuid)
            session.sparkContext.setJobDescription(_description(tasks[0]))
        with _causes():
            ends = sink.write_staged(staged, writing.job, writing.schemas, _emptied(tasks))
        return [Written(end.part, end.row_count) for end in ends]

    @contextmanager
    def _outages(self, context: "SparkContext") -> Iterator["ToldByTasks"]:
        """Tells at the end which servers were out of reach of executors."""
        from tidemark.jobs.spark.outages import TaskOutages

        with self._telling:
            if self._task_outages is None:
                self._task_outages = TaskOutages(context)
        try:
            yield self._task_outages.told_by_tasks
        finally:
            with self._telling:
                self._task_outages.tell(partial(tell_outage, self._notes))

    def _try_to_start(self) -> None:
        try:
            self._started()
        except Exception:  # noqa: BLE001 -- whoever needs the session tries again, and meets the error
            return
        if self._workers is not None:
            self._workers.join()


def has_session() -> bool:
    """True if this process has started Spark."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _nothing(_: Iterable[object]) -> Iterable[object]:
    return ()


def _emptied(tasks: Sequence[PartTask]) -> list[TableId]:
    return [table for task in tasks if isinstance(task.work, LogTask) for table in task.work.empties or ()]


def _description(task: PartTask) -> str:
    return f"tidemark {task.job.job}: epoch {task.epoch}"


@contextmanager
def _causes() -> Iterator[None]:
    """Raises the TidemarkError that a worker raised instead of Spark's error that quotes it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        known = from_text(str(error))
        raise error if known is None else known from None
