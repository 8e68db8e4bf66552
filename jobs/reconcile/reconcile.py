"""Compares a job's tables with their copies, without the job's lease: it may run meanwhile."""

from collections.abc import Callable, Collection, Iterator, Sequence

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName
from tidemark.jobs.reconcile import EXAMPLES
from tidemark.jobs.reconcile.copy_progress import CopyProgress, NotComparableError
from tidemark.jobs.reconcile.repair import repair_of
from tidemark.jobs.reconcile.table_comparison import Sides, TableComparison, TableResult, Watcher
from tidemark.jobs.reconcile.tasks import RunsFolding, RunsTasks
from tidemark.jobs.recovered_state import required_state
from tidemark.jobs.sinks import comparable_sink, sink_identity
from tidemark.jobs.sources import find_source
from tidemark.jobs.tables.job_tables import require_same_conditions
from tidemark.jobs.tables.parking import to_be_found
from tidemark.readers.findings import raise_refusals
from tidemark.readers.projection.settings import require_same_projections
from tidemark.sinks.sink import JobIdentity, raise_problems
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError, LogPositionLostError, SchemaChangedError, TidemarkError
from tidemark.state.job_state import JobState
from tidemark.state.table import TableId, TableSchema

RUN_FIRST = "Run the job (tidemark run JOB.yaml): it goes on, or says why it can't. Then compare again."

ALTERED = "it was altered or dropped since the comparison began"


def reconcile_tables(
    job: JobFile,
    tables: Sequence[TableName] = (),
    *,
    watch: Callable[[TableId], Watcher],
    examples: int = EXAMPLES,
    patience_seconds: float | None = None,
    repair: bool = False,
    tasks: RunsTasks | None = None,
    folding: RunsFolding | None = None,
) -> Iterator[TableResult]:
    """Yields the result of each table, or of those named. `patience_seconds`: see CopyProgress. `repair`: results have what is
    to be read again. `tasks`, `folding`: for large tables. Raises JobFileError for a sink or a mode that can't be compared,
    CheckpointError for a job that was never started, and what reading and comparing raise. If another server answers, such as
    after a failover, raises LogPositionLostError: only the job can go on there. An error that is about one table is in its
    result."""
    try:
        yield from _results(job, tables, watch, examples, patience_seconds, tasks, folding, repair=repair)
    except LogPositionLostError as error:
        raise LogPositionLostError(error.message, RUN_FIRST) from error


def _results(
    job: JobFile,
    tables: Sequence[TableName],
    watch: Callable[[TableId], Watcher],
    examples: int,
    patience_seconds: float | None,
    tasks: RunsTasks | None,
    folding: RunsFolding | None,
    *,
    repair: bool,
) -> Iterator[TableResult]:
    sink = comparable_sink(job)
    _require_existing_rows(job)
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    wanted = _wanted(state, tables)
    known = checkpoint.sink_identity()
    if known is not None:
        known.require_same(sink_identity(job.sink))
    require_same_conditions(job, state)
    require_same_projections(job, state.schemas, state.projections)
    progress = CopyProgress(checkpoint, job, patience_seconds)
    outputs = {schema.table: schema for schema in state.outputs if schema.table in wanted}
    identity = JobIdentity(state.job_uuid, state.job_name)
    findings = sink.check(state.outputs, identity, checkpoint.written_tables(state))
    raise_problems([finding for finding in findings if finding.table is None])
    with find_source(to_be_found(job, state), state) as found:
        found.require_same_log(state, ())
        raise_refusals(finding for finding in found.findings if finding.table is None or finding.table in wanted)
        now = {schema.table: schema for schema in found.schemas}
        server = found.server(state)
    sides = Sides(
        job=job,
        job_uuid=state.job_uuid,
        server=server,
        schemas=state.schemas,
        access=server.planner_access(state),
        sink=sink,
        progress=progress,
        projections=state.projections,
        examples=examples,
        tasks=tasks,
        folding=folding,
    )
    columns = {split_key.table: split_key.columns for split_key in state.split_keys}
    for schema in state.schemas:
        if schema.table in wanted:
            try:
                raise_problems([finding for finding in findings if finding.table == schema.table], wanted)
                _require_rows(schema, columns)
                _require_same_columns(schema, now.get(schema.table))
                of_table = outputs[schema.table], columns[schema.table], watch(schema.table)
                result = TableComparison(sides, schema, *of_table).run()
                if repair and result.differences:
                    result.repair = repair_of(sides.access, job, schema, columns[schema.table], result)
                yield result
            except NotComparableError as error:
                yield TableResult(outputs[schema.table], skipped=str(error), passes=error.passes)
            except TidemarkError as error:
                if error.table != schema.table:
                    raise
                if isinstance(error, SchemaChangedError):
                    yield TableResult(outputs[schema.table], skipped=ALTERED)
                else:
                    yield TableResult(outputs[schema.table], skipped=error.message.rstrip("."), error=error)


def _require_existing_rows(job: JobFile) -> None:
    if not job.has_snapshot:
        raise JobFileError(
            "Mode incremental copies no existing rows, so the copy need not equal the source.",
            "Compare a job of mode full+incremental.",
        )


def _wanted(state: JobState, tables: Sequence[TableName]) -> set[TableId]:
    known = {schema.table for schema in state.schemas}
    if not tables:
        return known
    wanted = {TableId(table.database, table.name) for table in tables}
    for table in sorted(wanted - known):
        if table in state.left_tables:
            raise JobFileError(
                f"{table} has left the job: its copy lacks changes.",
                "tidemark tables JOB.yaml says why, and how it comes back.",
            )
        raise JobFileError(f"The job does not copy {table}.", "tidemark tables JOB.yaml lists its tables.")
    return wanted


def _require_rows(schema: TableSchema, columns: Collection[TableId]) -> None:
    if not schema.key:
        raise NotComparableError("it has no key", passes=False)
    if schema.table not in columns:
        raise NotComparableError("it joined the job in mode incremental, so its rows were not copied", passes=False)


def _require_same_columns(schema: TableSchema, now: TableSchema | None) -> None:
    if now is None:
        raise NotComparableError("the source has it no longer, or the job file does not select it")
    if _columns(schema) != _columns(now):
        raise NotComparableError("its columns were changed, and the job has not taken the change in yet")


def _columns(schema: TableSchema) -> list[tuple[str, str, str]]:
    return [(column.name, column.source_type, column.arrow_type) for column in schema.captured]
