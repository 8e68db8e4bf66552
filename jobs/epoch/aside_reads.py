"""Reads tables without a key beside the epochs, each by one task of its own (docs/adr/0084).

    the plan with the table's cursor `Aside` is durable → begin → the task reads and stages all rows → found → the next plans
    release the chunks, as those of pages

The task is no part of an epoch: epochs go on meanwhile. Nothing of it is durable but the chunks, whose names no other task has.
If the driver ends before, the table is read again.
"""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tidemark.conf.redaction import redact_exception
from tidemark.enumerator.pages import page_bound
from tidemark.enumerator.splitting import MAX_SPLIT_BYTES
from tidemark.jobs.epoch.read_parts import PartTask, SplitsTask, task_aside
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.sinks import published_format
from tidemark.readers.projection.settings import projector
from tidemark.readers.snapshot.publish import publish
from tidemark.state.checkpoint.layout import Checkpoint, staged_chunk_file
from tidemark.state.failpoints import failpoint
from tidemark.state.plan import Aside, EnumeratorState, PlanRecord, TableState
from tidemark.state.projection import outputs_of
from tidemark.state.split import AsideRead, KeyRange, ReleaseChunk
from tidemark.state.table import TableId

_Key: TypeAlias = tuple[int, TableId, int, tuple[int, ...]]
"""A read: attempt, table, version of its schema, order of its base. Once a job has gone back, a number may be given again."""


@dataclass
class _Read:
    """One read. `error` and `result` are set by its thread, before `is_done`. `lock`: for `is_done` and `is_needed`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    is_done: bool = False
    is_needed: bool = True
    result: AsideRead | None = None
    error: BaseException | None = None


def _here(task: PartTask) -> AsideRead:
    return next(read_aside([task]))


class AsideReads:
    """The reads of one run, also those that were begun before the job was opened again. `run` reads a task and blocks until
    that is done: on an executor, or, if it is not given, in this process. Called by one thread at a time."""

    def __init__(self, run: Callable[[PartTask], AsideRead] = _here) -> None:
        self._run = run
        self._reads: dict[_Key, _Read] = {}

    def begin(self, context: RunContext, record: PlanRecord) -> None:
        """Begins the reads that the plan, which is durable, has added. Those that an earlier plan has added were begun then, or
        have ended with their run."""
        for table in record.state.tables:
            cursor = table.cursor
            if isinstance(cursor, Aside) and _is_of(table, record) and _key(table, cursor) not in self._reads:
                read = self._reads[_key(table, cursor)] = _Read()
                task = task_aside(context, record, table, cursor)
                name = f"tidemark: rows of {table.table}"
                threading.Thread(target=self._into, args=(read, task), name=name, daemon=True).start()

    def found(self, state: EnumeratorState) -> Mapping[int, AsideRead | None]:
        """Returns the reads of the state's tables that this run has begun, as in `Observation.aside`. Forgets those of tables
        that are not read any more. Raises what a read has raised, and forgets that read."""
        needed = {
            _key(table, table.cursor): table.cursor.attempt for table in state.tables if isinstance(table.cursor, Aside)
        }
        for key in self._reads.keys() - needed.keys():
            read = self._reads.pop(key)
            with read.lock:
                read.is_needed = False
        results: dict[int, AsideRead | None] = {}
        for key, read in list(self._reads.items()):
            with read.lock:
                is_done = read.is_done
            if is_done and read.error is not None:
                del self._reads[key]
                raise read.error
            results[needed[key]] = read.result if is_done else None
        return results

    def _into(self, read: _Read, task: PartTask) -> None:
        try:
            read.result = self._run(task)
        except BaseException as error:  # noqa: BLE001 -- raised again by `found`
            read.error = error
        with read.lock:
            read.is_done = True
            is_needed = read.is_needed
        if not is_needed and read.result is not None:  # later than the planner looked for such files
            store = Checkpoint.at(task.job.checkpoint).store
            for number in range(read.result.chunk_count):
                store.delete(staged_chunk_file(_attempt(task), number, read.result.reader))


def read_aside(tasks: Iterable[PartTask]) -> Iterator[AsideRead]:
    """Reads the one split of each task and stages its rows in chunks. Pickled with a Spark job. Raises TidemarkError, without
    secrets in its text."""
    for task in tasks:
        try:
            yield _read(task)
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise


def _read(task: PartTask) -> AsideRead:
    assert isinstance(task.work, SplitsTask)
    (split,), (schema,) = task.work.splits, task.schemas
    checkpoint = Checkpoint.at(task.job.checkpoint)
    checkpoint.require_job(task.job_uuid)
    project = projector(task.job, task.schemas, task.projections)
    (output,) = outputs_of(task.schemas, task.projections)
    form, reader_name = published_format(task.job, output), uuid.uuid4().hex
    with task.server.split_reading(task.schemas, task.job_uuid) as reader:
        read = reader.read(split, schema, task.work.read_from)
    failpoint("aside.read")
    read, output = project.split(read.after(task.work.log_position).shifted(task.version_offset))
    rows_per_chunk = _rows_per_chunk(task, read.rows.nbytes, read.rows.num_rows)
    chunk_count = max(1, -(-read.rows.num_rows // rows_per_chunk))
    for number in range(chunk_count):
        rows = read.rows.slice(number * rows_per_chunk, rows_per_chunk)
        end = None if number + 1 == chunk_count else page_bound(number + 1)
        range_ = KeyRange(page_bound(number), end)
        chunk = replace(split, range=range_, pages=ReleaseChunk(split.id, reader_name))
        report = replace(read.report, row_count=rows.num_rows, kind="staged")
        publish(checkpoint.store, task.epoch, chunk, replace(read, rows=rows, report=report), output, form)
        failpoint("aside.staged")
    return AsideRead(reader_name, chunk_count, read.rows.num_rows)


def _attempt(task: PartTask) -> int:
    assert isinstance(task.work, SplitsTask)
    return task.work.splits[0].id


def _rows_per_chunk(task: PartTask, byte_count: int, row_count: int) -> int:
    return max(1, min(task.job.snapshot.split_rows, row_count * MAX_SPLIT_BYTES // max(1, byte_count)))


def _is_of(table: TableState, record: PlanRecord) -> bool:
    return table.withheld is not None and table.withheld.after_epoch == record.plan.epoch - 1


def _key(table: TableState, cursor: Aside) -> _Key:
    return cursor.attempt, table.table, table.schema_version, cursor.base.order
