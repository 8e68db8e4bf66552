"""Runs the tasks of an epoch: each one reads its parts and writes them to the sink, in one process."""

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemark.conf.redaction import redact_exception
from tidemark.jobs.epoch.read_parts import PartTask, read_part
from tidemark.sinks.sink import BadValues, EpochSink, JobIdentity, PartSink, PartWriter, Schemas
from tidemark.sinks.staging import PartStager, StagedTask
from tidemark.state.change_batch import LOG_PART, PartEnd, PartItem, to_transport
from tidemark.state.failpoints import failpoint

MAX_ITEMS_AHEAD = 4
"""Items that are read while an earlier one is being written. An item has a few MiB at most."""


class GivenUpError(Exception):
    """The run ended while a task was still running."""


@dataclass(frozen=True, slots=True)
class Written:
    """A part that the sink has, and the values in it that its target can't hold."""

    part: str
    row_count: int
    bad_values: tuple[BadValues, ...] = ()

    @property
    def is_snapshot(self) -> bool:
        return self.part != LOG_PART


@dataclass(frozen=True, slots=True)
class Writing:
    """The sink of a run. `schemas`: those of the tables as the sink receives them."""

    sink: PartSink | EpochSink
    job: JobIdentity
    schemas: Schemas


class CollectsOutages(Protocol):
    def collected(self) -> AbstractContextManager[None]:
        """Collects the outages that this process sees, for the driver."""


@dataclass(frozen=True, slots=True)
class TaskWriting:
    """Reads and writes tasks. Pickled with each Spark job. `writer`: the one that the driver's process
    keeps from one epoch to the next; None: each task gets a new one."""

    sink: PartSink
    job: JobIdentity
    schemas: Schemas
    writer: PartWriter | None = None

    def __call__(self, tasks: Iterable[PartTask]) -> Iterator[Written]:
        """Yields each part once it is durable. Raises TidemarkError without secrets in its text."""
        for task in tasks:
            yield from self.write(task)

    def write(self, task: PartTask, given_up: threading.Event | None = None) -> Iterator[Written]:
        """Writes the parts of one task, and yields what was written. Raises GivenUpError once `given_up` is set: no further
        part takes effect."""
        writer = self.sink.writer(self.job) if self.writer is None else self.writer
        try:
            with _Ahead(read_part(task), given_up) as items:
                for result in writer.write(map(_telling_ends, items), self.schemas):
                    failpoint("sink.after_commit")
                    yield Written(result.part, result.row_count, result.bad_values)
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise


def _telling_ends(item: PartItem) -> PartItem:
    if isinstance(item, PartEnd):
        failpoint("sink.before_commit")
    return item


@dataclass(frozen=True, slots=True)
class TaskStaging:
    """Reads tasks and stages their rows as files that Spark reads. Pickled with each Spark job."""

    stager: PartStager
    schemas: Schemas

    def __call__(self, tasks: Iterable[PartTask]) -> Iterator[StagedTask]:
        """Raises TidemarkError without secrets in its text."""
        for task in tasks:
            yield self.stage(task)

    def stage(self, task: PartTask, given_up: threading.Event | None = None) -> StagedTask:
        """Raises GivenUpError once `given_up` is set."""
        try:
            with _Ahead(read_part(task, takes_files=self.stager.takes_files), given_up) as items:
                return self.stager.stage(items, self.schemas)
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise


@dataclass(frozen=True, slots=True)
class TaskReading:
    """The function for mapInArrow: takes the indices of tasks, yields their parts as batches of TRANSPORT."""

    tasks: Sequence[PartTask]
    outages: CollectsOutages

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self.outages.collected():
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    for item in read_part(self.tasks[index], takes_files=False):
                        yield to_transport(item)


class _Ahead:
    """Iterates over items that a thread reads meanwhile. Reading and writing overlap: decoding and Arrow release the GIL.

    The thread ends with the `with` block. What the reader raises is raised here. Once `given_up` is set, the next item raises
    GivenUpError. The items must not just end: between two parts that would look like a task that is done.
    """

    def __init__(self, items: Iterator[PartItem], given_up: threading.Event | None) -> None:
        self._items = items
        self._given_up = threading.Event() if given_up is None else given_up
        self._closed = threading.Event()
        self._read: queue.Queue[PartItem | BaseException | None] = queue.Queue(MAX_ITEMS_AHEAD)
        self._thread = threading.Thread(target=self._run, name="tidemark reader", daemon=True)

    def __enter__(self) -> Iterator[PartItem]:
        self._thread.start()
        return self._taken()

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        while self._thread.is_alive():  # it may wait for room in the queue
            self._drop_all()
            self._thread.join(0.01)

    def _run(self) -> None:
        try:
            for item in self._items:
                self._read.put(item)
                if self._closed.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 -- raised again by the thread that writes
            self._read.put(error)
        else:
            self._read.put(None)
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()

    def _taken(self) -> Iterator[PartItem]:
        while True:
            item = self._read.get()
            if self._given_up.is_set():
                raise GivenUpError
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def _drop_all(self) -> None:
        try:
            while True:
                self._read.get_nowait()
        except queue.Empty:
            return
