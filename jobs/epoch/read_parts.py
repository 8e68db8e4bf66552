"""From an epoch's plan to change batches: the tasks of an epoch, and the reading of a task's parts.

The part of a split is its published file, which the first task attempt created. The part of the log is read from the log by
each task attempt: the plan fixes the range, and every read of it gives the same changes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact_exception
from tidemark.enumerator.enumerator import of_job
from tidemark.jobs.epoch.moves_during_reads import MovesDuringReads
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.sinks import published_format, sink_needs
from tidemark.jobs.tables.key_orders import orders_now
from tidemark.readers.log.finished_splits import load_gap_filter
from tidemark.readers.log.gap import Gap, OnTruncate
from tidemark.readers.log.gap_filter import GapFilter
from tidemark.readers.log.key_rereads import KeyRereads
from tidemark.readers.log.log_batch import truncation
from tidemark.readers.log.placed_rereads import PlacedRereads
from tidemark.readers.log.touched_keys import TouchedKeysNote
from tidemark.readers.log.withheld import WithheldChanges, read_withheld
from tidemark.readers.projection.projector import Projector
from tidemark.readers.projection.settings import projector
from tidemark.readers.snapshot.publish import PublishedSplit, lost_file, publish, published_name, read_published
from tidemark.readers.snapshot.repairs import read_repair
from tidemark.readers.snapshot.split_read import emptying_seq
from tidemark.readers.source import KeyReading, RereadsKeys, RoutesByTransaction, SourceServer
from tidemark.state.change_batch import (
    LOG_PART,
    ChangeBatch,
    ChangeType,
    PartEnd,
    PartItem,
    PublishedFile,
    ReplacedRange,
    split_part,
)
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.copied_range import CopiedRange
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import CameBack, Joined
from tidemark.state.key_repair import KeyRepair
from tidemark.state.log_range import LogRange, LogReport, TableChanges
from tidemark.state.phase import Phase
from tidemark.state.plan import Aside, Backfill, Exhausted, LogWork, PlanRecord, SnapshotWork, TableState
from tidemark.state.position import Position, WalPosition, is_known_elsewhere
from tidemark.state.projection import TableProjection, outputs_of
from tidemark.state.reached import Reached
from tidemark.state.split import KeyRange, ReleaseChunk, Split, StageChunk
from tidemark.state.table import TableId, TableSchema

_FILTERED = frozenset({Phase.SNAPSHOT, Phase.CATCH_UP})
"""The phases in which the log goes through the gap filter."""


@dataclass(frozen=True, slots=True)
class SplitsTask:
    """The splits that one task reads, one after the other, on one connection. `log_position`: up to where the log had been read
    when they were planned."""

    splits: tuple[Split, ...]
    anchor: Position
    log_position: Position

    @property
    def read_from(self) -> Position:
        """The position up to which a split must contain the log, or from which it is replayed. PostgreSQL has no anchors."""
        return self.log_position if isinstance(self.log_position, WalPosition) else self.anchor


@dataclass(frozen=True, slots=True)
class LogTask:
    """`split_columns`: for the tables whose changes go through the gap filter. Empty once the log has passed all highs.
    `unfinished`: those of them of which splits are left, and how many are finished. `first_splits`: as for `load_gap_filter`.
    `empties`: the tables whose copies the epoch empties, None for an epoch that reads the log. `is_passed_over`: all
    tables have left the job, and it goes on behind the range. `rereads`, `backfills`: as in LogWork, of tables that are in
    the job. `has_left`: the epoch may have been read with a table that has left since. `withheld`: the tables whose changes are
    withheld. `parts`: the signals of which a part of a table is still to be
    read, with the table, but none of those that `rereads` has. `key_rereads`: as in EnumeratorState."""

    range: LogRange
    split_columns: dict[TableId, tuple[str, ...]]
    unfinished: dict[TableId, int]
    first_splits: dict[TableId, int]
    empties: tuple[TableId, ...] | None = None
    after: Reached | None = None
    is_passed_over: bool = False
    rereads: tuple[KeyRepair, ...] = ()
    backfills: tuple[Backfill, ...] = ()
    has_left: bool = False
    withheld: tuple[TableId, ...] = ()
    parts: tuple[tuple[int, TableId], ...] = ()
    key_rereads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PartTask:
    """Everything that a task needs. `schemas` and `projections`: those of the task's tables; a log task has all tables of
    its plan. `came_back`: those of its tables that came back to the job. `version_offset`: as in Joined. `attempts`: as
    `Checkpoint.attempts` had them for the driver."""

    epoch: int
    job: JobFile
    job_uuid: str
    server: SourceServer
    schemas: tuple[TableSchema, ...]
    projections: tuple[TableProjection, ...]
    work: SplitsTask | LogTask
    came_back: dict[TableId, CameBack]
    version_offset: int = 0
    attempts: Mapping[int, int] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.at(self.job.checkpoint).with_attempts(self.attempts)


def tasks_of(context: RunContext, epoch: int) -> list[PartTask]:
    """The tasks of a planned epoch."""
    return tasks_of_plan(context, context.checkpoint.plan(epoch))


def tasks_of_plan(context: RunContext, record: PlanRecord) -> list[PartTask]:
    """The tasks of an epoch. A task reads and writes its parts one after the other."""
    plan, schemas = record.plan, context.state.schemas_after(record.state.joined)
    match plan.work:
        case SnapshotWork(tasks, anchor):
            at = record.state.position
            return [
                _task(context, record, _schemas_of(splits, schemas), SplitsTask(splits, anchor, at)) for splits in tasks
            ]
        case LogWork(log_range, after=after, empties=empties, rereads=rereads, backfills=backfills):
            state = of_job(record.state, context.state)
            filtered = state.tables if plan.phase in _FILTERED else ()
            withheld = tuple(table.table for table in state.tables if table.withheld is not None)
            filtered = tuple(table for table in filtered if table.withheld is None)
            columns = {table.table: table.columns for table in filtered if not table.passed}
            unfinished = {t.table: t.done_splits for t in filtered if not isinstance(t.cursor, Exhausted)}
            first_splits = {table.table: table.first_split for table in filtered if table.first_split}
            emptied = tuple(schema.table for schema in schemas if schema.table in empties) if empties else None
            is_passed_over = context.state.restarts_after(record.state.joined)
            after = None if is_passed_over else after  # it writes nothing, and the target may have been set back
            versions = {schema.table: schema.version for schema in schemas}
            known = tuple(reread for reread in rereads if versions.get(reread.table) == reread.version)
            tables = {table.table for table in state.tables}
            due = tuple(backfill for backfill in backfills if backfill.table in tables)
            may_leave = sink_needs(context.job.sink).commits_tables
            has_left = len(due) < len(backfills) or (may_leave and len(state.tables) < len(record.state.tables))
            parts = _unfinished_parts(context.state.joined[: record.state.joined], rereads)
            work = LogTask(
                log_range,
                columns,
                unfinished,
                first_splits,
                emptied,
                after,
                is_passed_over,
                known,
                due,
                has_left,
                withheld,
                parts,
                record.state.key_rereads,
            )
            return [_task(context, record, schemas, work)]


def _unfinished_parts(joined: Sequence[Joined], written_now: Sequence[KeyRepair]) -> tuple[tuple[int, TableId], ...]:
    newest = {reread.signal: reread for each in joined for reread in each.rereads}
    now = {reread.signal for reread in written_now}
    return tuple((n, reread.table) for n, reread in newest.items() if reread.rest is not None and n not in now)


def _task(
    context: RunContext, record: PlanRecord, schemas: tuple[TableSchema, ...], work: SplitsTask | LogTask
) -> PartTask:
    tables = {schema.table for schema in schemas}
    return PartTask(
        epoch=record.plan.epoch,
        job=context.job,
        job_uuid=context.state.job_uuid,
        server=context.server,
        schemas=schemas,
        projections=tuple(p for p in context.state.projections if p.output.table in tables),
        work=work,
        came_back={table: back for table, back in context.state.came_back.items() if table in tables},
        version_offset=context.state.version_offset(record.state.joined),
        attempts=context.checkpoint.attempts(),
    )


def task_aside(context: RunContext, record: PlanRecord, table: TableState, cursor: Aside) -> PartTask:
    """The task that reads a whole table beside the epochs. Its split is numbered by its attempt."""
    state = record.state
    split = Split(cursor.attempt, table.table, table.schema_version, (), KeyRange(None, None))
    anchor = state.position if state.last_high is None else state.last_high
    schemas = _schemas_of([split], context.state.schemas_after(state.joined))
    return _task(context, record, schemas, SplitsTask((split,), anchor, cursor.base))


def _schemas_of(splits: Iterable[Split], schemas: Iterable[TableSchema]) -> tuple[TableSchema, ...]:
    tables = {split.table for split in splits}
    return tuple(schema for schema in schemas if schema.table in tables)


def read_part(task: PartTask, *, takes_files: bool = True) -> Iterator[PartItem]:
    """The task's parts, each closed by its PartEnd. `takes_files`: splits that were published as Parquet come as PublishedFile.
    Raises TidemarkError, without secrets in its text."""
    try:
        Checkpoint.at(task.job.checkpoint).require_job(task.job_uuid)
        match task.work:
            case SplitsTask():
                yield from _read_splits(task, task.work, takes_files=takes_files)
            case LogTask(is_passed_over=True):
                yield from _pass_over(task, task.work)
            case LogTask(empties=tables) if tables is not None:
                yield from _empty_copies(task, task.work, tables)
            case LogTask():
                yield from _read_log(task, task.work)
    except Exception as error:
        redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
        raise


def _read_splits(task: PartTask, work: SplitsTask, *, takes_files: bool) -> Iterator[PartItem]:
    schemas = {schema.table: schema for schema in task.schemas}
    project = projector(task.job, task.schemas, task.projections)
    store = Checkpoint.at(task.job.checkpoint).store
    outputs = {schema.table: schema for schema in outputs_of(task.schemas, task.projections)}
    forms = {table: published_format(task.job, output) for table, output in outputs.items()}
    takes_both = sink_needs(task.job.sink).spark is not None
    with task.server.split_reading(task.schemas, task.job_uuid) as reader:
        for split in work.splits:
            if split.table not in schemas:
                yield PartEnd(task.epoch, split_part(split.id), 0, 0, has_left=True)
                continue
            form = forms[split.table]
            published = read_published(store, task.epoch, split, None if takes_both else form)
            if published is None and isinstance(split.pages, ReleaseChunk):
                raise lost_file(published_name(task.epoch, split))
            if published is None:
                read = reader.read(split, schemas[split.table], work.read_from)
                base = split.pages.base if isinstance(split.pages, StageChunk) else None
                read = read.after(base or work.log_position).shifted(task.version_offset)
                published = publish(store, task.epoch, split, *project.split(read), form)
            part = _Part(task, split_part(split.id))
            if isinstance(split.pages, StageChunk):
                yield part.end()
                continue
            if split.table in task.came_back and task.came_back[split.table].is_replaced:
                orders = orders_now(task.job, schemas[split.table], split.columns, reader)
                yield part.replace(split, orders, task.came_back[split.table].after_epoch)
            if takes_files and published.parquet is not None:
                yield from part.add_file(split.table, published)
            else:
                for rows in published.rows(outputs[split.table]):
                    yield from part.add(split.table, rows)
            yield part.end()


class _Part:
    """Numbers a part's batches and counts its rows. Adds `version_offset` to their `_commit_version`."""

    def __init__(self, task: PartTask, name: str, version_offset: int = 0) -> None:
        self._epoch = task.epoch
        self._name = name
        self._versions = {schema.table: schema.version for schema in task.schemas}
        self._source_kind = task.job.source.url.kind
        self._seq = 0
        self._version_offset = version_offset
        self.row_count = 0

    def add(self, table: TableId, rows: pa.RecordBatch) -> Iterator[ChangeBatch]:
        if rows.num_rows:
            if self._version_offset:
                rows = _shifted(rows, self._version_offset)
            yield ChangeBatch(self._epoch, self._name, self._seq, table, self._versions[table], rows)
            self._seq += 1
            self.row_count += rows.num_rows

    def replace(self, split: Split, orders: tuple[str | None, ...], after_epoch: int) -> ReplacedRange:
        """Returns the item that makes room for the split's rows. To be called before rows are added."""
        replaced = CopiedRange.of(split.columns, orders, split.range, self._source_kind)
        version, seq, self._seq = self._versions[split.table], self._seq, self._seq + 1
        return ReplacedRange(self._epoch, self._name, seq, split.table, version, replaced, after_epoch)

    def add_file(self, table: TableId, published: PublishedSplit) -> Iterator[PublishedFile]:
        row_count = published.report.row_count
        if row_count:
            version = self._versions[table]
            yield PublishedFile(self._epoch, self._name, self._seq, table, version, row_count, published.name)
            self._seq += 1
            self.row_count += row_count

    def end(self, after: Reached | None = None) -> PartEnd:
        return PartEnd(self._epoch, self._name, self._seq, self.row_count, after)


def _shifted(rows: pa.RecordBatch, version_offset: int) -> pa.RecordBatch:
    column = rows.schema.get_field_index("_commit_version")
    versions = pc.add_checked(rows.column(column), version_offset)
    return rows.set_column(column, rows.schema.field(column), versions)


def _read_log(task: PartTask, work: LogTask) -> Iterator[PartItem]:
    checkpoint = task.checkpoint
    reader = task.server.log_reading(task.schemas)
    schemas = {schema.table: schema for schema in task.schemas}
    project = projector(task.job, task.schemas, task.projections)
    part = _Part(task, LOG_PART, task.version_offset)
    read_count, emitted, counts = 0, 0, _Counts()
    keeps_changes = sink_needs(task.job.sink).holds == "changes"
    placed = _placed_rereads(task, work if keeps_changes else None)
    moves = MovesDuringReads(
        checkpoint, outputs_of(task.schemas, task.projections), work.rereads, work.parts, under_any_key=keeps_changes
    )
    if not keeps_changes:
        _look_ahead(task, work, project, moves)
        yield from _rereads(task, work, part, moves)
    failpoint("repairs.emitted")
    toastable = [schemas[table] for table in work.split_columns if schemas[table].toastable]
    with task.server.key_routing(task.schemas) as routing, _key_reading(task.server, toastable) as reading:
        key_rereads = None
        if reading is not None:
            known = checkpoint.key_rereads_before(task.epoch, work.key_rereads)
            key_rereads = KeyRereads(
                checkpoint.store, task.epoch, reading, project, known, task.attempts.get(task.epoch, 0)
            )
        gap_filter = GapFilter.empty()
        if work.split_columns:
            gap_filter = load_gap_filter(checkpoint.store, work.split_columns, work.unfinished, work.first_splits)
        on_truncate = partial(_on_truncate, task, checkpoint)
        gap = Gap(gap_filter, work.split_columns, routing, key_rereads, project, on_truncate=on_truncate)
        has_splits_left = bool(work.unfinished or work.withheld)
        commits = routing if has_splits_left and isinstance(routing, RoutesByTransaction) else None
        withheld = WithheldChanges(checkpoint.store, task.epoch)
        waited = ((b.table, rows) for b in work.backfills for rows in read_withheld(checkpoint.store, b, task.epoch))
        for table, rows in waited:
            read_count += rows.num_rows
            for left in gap.emitted(schemas[table], rows):
                counts.add(table, left)
                emitted += left.num_rows
                yield from part.add(table, left)
        transactions: list[npt.NDArray[np.int64]] = []
        note = TouchedKeysNote(outputs_of(task.schemas, task.projections)) if _may_fail_over(task, work) else None
        for batch in () if _is_empty(work.range) else reader.read(work.range):
            if commits is not None:
                transactions.append(np.unique(commits.transactions(batch.rows)))
            if batch.table in work.withheld:
                withheld.add(batch.table, batch.rows)
                if note is not None:
                    note.give_up(batch.table)
                continue
            if note is not None and batch.table in work.split_columns:
                note.give_up(batch.table)
            read_count += batch.rows.num_rows
            for rows in gap.emitted(schemas[batch.table], batch.rows):
                counts.add(batch.table, rows)
                placed.take(batch.table, rows)
                moves.take(batch.table, rows)
                if note is not None:
                    note.take(batch.table, rows)
                emitted += rows.num_rows
                yield from part.add(batch.table, rows)
        unseen = commits.unseen(np.concatenate(transactions)) if commits is not None and transactions else ()
    for table, rows in placed.placed():
        yield from part.add(table, rows)
    rereads = () if key_rereads is None else key_rereads.found
    was_read = work.has_left and checkpoint.has_log_report(task.epoch)  # with the table, and the sink may have it so
    if rereads and not was_read:
        failpoint("log.before_rereads")
        checkpoint.create_key_rereads(task.epoch, rereads)
    waiting = withheld.keep()
    moves.end_signals()
    failpoint("log.before_report")
    filtered = read_count - emitted
    last_high = max((WalPosition(reading.high.lsn) for reading in rereads), key=lambda high: high.lsn, default=None)
    nothing = LogReport(work.range.start, work.range.prepared, 0, 0, 0, None)
    report = replace(
        nothing if _is_empty(work.range) else reader.report,
        emitted_changes=emitted,
        filtered_changes=filtered,
        changes=counts.by_table(),
        last_high=last_high,
        unseen=unseen,
        withheld=waiting,
        touched=None if note is None else note.touched(),
    )
    if not was_read:
        checkpoint.create_log_report(task.epoch, report)
    failpoint("log.after_report")
    yield replace(part.end(work.after), has_left=work.has_left)


def _may_fail_over(task: PartTask, work: LogTask) -> bool:
    """True if another server's log may have the range, as far as the position tells, and rows can be read again by key."""
    return task.job.mode == "full+incremental" and is_known_elsewhere(work.range.start)


def _on_truncate(task: PartTask, checkpoint: Checkpoint) -> OnTruncate:
    """Returns what the job file wants. If the range was read before, what it wanted then: every read gives the same. The report
    tells that, because it counts a TRUNCATE among the emitted changes, but with none of the table's."""
    if not checkpoint.has_log_report(task.epoch):
        return task.job.sink.on_schema_change.truncate
    report = checkpoint.log_report(task.epoch)
    of_rows = sum(table.inserts + table.updates + table.deletes for table in report.changes)
    return "evolve" if report.emitted_changes > of_rows else "ignore"


def _placed_rereads(task: PartTask, work: LogTask | None) -> PlacedRereads:
    """The rows that were read again, for a copy that keeps all changes. None of them if `work` is None."""
    outputs = {schema.table: schema for schema in outputs_of(task.schemas, task.projections)}
    store = Checkpoint.at(task.job.checkpoint).store
    found: dict[TableId, tuple[TableSchema, list[pa.RecordBatch]]] = {}
    for reread in () if work is None else work.rereads:
        schema = outputs[reread.table]
        found.setdefault(reread.table, (schema, []))[1].extend(read_repair(store, reread.file, schema))
    return PlacedRereads(found)


def _look_ahead(task: PartTask, work: LogTask, project: Projector, moves: MovesDuringReads) -> None:
    """Reads the range, in which keys may be removed whose rows were read again."""
    if not moves.tables or _is_empty(work.range):
        return
    for batch in task.server.log_reading(task.schemas).read(work.range):
        if batch.table in moves.tables:
            moves.look_ahead(batch.table, project.changes(batch.table, batch.rows))


def _rereads(task: PartTask, work: LogTask, part: "_Part", moves: MovesDuringReads) -> Iterator[ChangeBatch]:
    """The rows that were read again, for a copy that has one row for each key. The changes of the range come after them: the
    last one of a key decides.

    In tables whose log may leave values out, an update that gives a row another key may take them from the copy's row, under
    the old key and as it was before the range. So if the range removes a key, its row is written only if no other row can have
    been read there, and its DELETE is left to the log."""
    outputs = {schema.table: schema for schema in outputs_of(task.schemas, task.projections)}
    store = Checkpoint.at(task.job.checkpoint).store
    for reread in work.rereads:
        removed, reused = moves.keys_of(reread.table)
        for rows in read_repair(store, reread.file, outputs[reread.table], but_rows=reused, but_deletes=removed):
            yield from part.add(reread.table, rows)


def _is_empty(log_range: LogRange) -> bool:
    return log_range.start.order >= log_range.stop.order


def _empty_copies(task: PartTask, work: LogTask, tables: Sequence[TableId]) -> Iterator[PartItem]:
    """Empties the copies of tables that came back to the job, by a TRUNCATE that the source did not have. Reads no log."""
    part = _Part(task, LOG_PART)
    outputs = {schema.table: schema for schema in outputs_of(task.schemas, task.projections)}
    for table in tables:
        back = task.came_back[table]
        output, version = outputs[table], back.version
        seq = emptying_seq(output.version)
        emptied = truncation(output, version=version, time_us=back.at_us, seq=seq, transaction="")
        yield from part.add(table, emptied.rows)
    checkpoint = task.checkpoint
    if not (work.has_left and checkpoint.has_log_report(task.epoch)):
        report = LogReport(work.range.start, work.range.prepared, part.row_count, 0, 0, None)
        checkpoint.create_log_report(task.epoch, report)
    yield replace(part.end(work.after), has_left=work.has_left)


def _pass_over(task: PartTask, work: LogTask) -> Iterator[PartItem]:
    """Ends an epoch without reading its log, which may be lost. The sink may have it already: its tables are read again."""
    checkpoint = task.checkpoint
    if not checkpoint.has_log_report(task.epoch):  # else it was read while the log was still there
        checkpoint.create_log_report(task.epoch, LogReport(work.range.stop, work.range.prepared, 0, 0, 0, None))
    yield PartEnd(task.epoch, LOG_PART, 0, 0, work.after, has_left=True)


def _key_reading(server: SourceServer, toastable: Sequence[TableSchema]) -> AbstractContextManager[KeyReading | None]:
    """None if the log has whole rows of all these tables."""
    if toastable and isinstance(server, RereadsKeys):
        return server.key_reading(toastable)
    return nullcontext()


class _Counts:
    """Counts emitted changes by table and kind."""

    def __init__(self) -> None:
        self._counts: dict[TableId, npt.NDArray[np.int64]] = {}

    def add(self, table: TableId, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            kinds = np.bincount(rows.column("_change_type").to_numpy(), minlength=len(ChangeType))
            self._counts[table] = self._counts[table] + kinds if table in self._counts else kinds

    def by_table(self) -> tuple[TableChanges, ...]:
        return tuple(
            TableChanges(
                table,
                int(kinds[ChangeType.INSERT]),
                int(kinds[ChangeType.UPDATE_POSTIMAGE]),
                int(kinds[ChangeType.DELETE]),
            )
            for table, kinds in sorted(self._counts.items())
        )
