"""Runs an epoch's tasks: a small log range in the driver's own process, everything else as a Spark job.

Both run the same function (`write_parts.TaskWriting`). A run that finds little to do never starts a JVM.
"""

import threading
from collections.abc import Iterator

from tidemark.jobs.read_parts import PartTask, tasks_of_plan
from tidemark.jobs.run_context import RunContext
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.write_parts import TaskWriting, Writing, Written
from tidemark.sinks.sink import EpochSink, SinkBusyError
from tidemark.state.errors import TidemarkError
from tidemark.state.plan import AwaitedLog, PlanRecord

MAX_ATTEMPTS = 4
"""Attempts at a task in the driver's process: as many as Spark makes by default."""


class Engine:
    """One per run. `run` is called by one thread; `give_up` by any."""

    def __init__(self, context: RunContext, writing: Writing, sessions: SparkSessions) -> None:
        self._context = context
        self._writing = writing
        self._sessions = sessions
        self._given_up = threading.Event()

    def run(self, record: PlanRecord) -> list[Written]:
        """Runs a planned epoch. Returns its parts once the sink has all of them. Raises TidemarkError."""
        tasks = tasks_of_plan(self._context, record)
        sink = self._writing.sink
        if isinstance(sink, EpochSink):
            return self._sessions.write_epoch(tasks, sink, self._writing)
        writing = TaskWriting(sink, self._writing.job, self._writing.schemas)
        if self.is_small(record):
            return [written for task in tasks for written in self._written_here(writing, task)]
        return self._sessions.write_tasks(tasks, writing)

    def give_up(self) -> None:
        """Lets no further part take effect. Does not wait for `run` to end."""
        self._given_up.set()

    def is_small(self, record: PlanRecord) -> bool:
        """True for a log range that is read sooner than Spark would start."""
        awaited = record.state.awaited
        return isinstance(awaited, AwaitedLog) and awaited.size_bytes <= self._context.job.log.driver_bytes

    def _written_here(self, writing: TaskWriting, task: PartTask) -> Iterator[Written]:
        """Tries again after an error that may pass: what is durable is skipped by the next attempt."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                yield from list(writing.write(task, self._given_up))
            except Exception as error:
                may_pass = not isinstance(error, TidemarkError) or isinstance(error, SinkBusyError)
                if attempt == MAX_ATTEMPTS or self._given_up.is_set() or not may_pass:
                    raise
            else:
                return
