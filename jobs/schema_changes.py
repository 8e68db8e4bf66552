"""Follows changes of a table's schema without reading its rows again: columns that were added."""

import time

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.parking import to_be_found, unfinished_epoch
from tidemark.jobs.partition_watch import partitions_of_plan
from tidemark.jobs.recovered_state import recover_state
from tidemark.jobs.sources import find_source
from tidemark.readers.added_columns import new_columns
from tidemark.readers.findings import raise_passing
from tidemark.readers.projection.settings import projections_of
from tidemark.sinks.sink import Adapts, JobIdentity, Sink, raise_problems
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError, SchemaChangedError, SinkError, SourceNotUsableError, TidemarkError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import Altered, JobState
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState
from tidemark.state.projection import outputs_of
from tidemark.state.table import TableId


def adds_columns(error: TidemarkError, job: JobFile, state: JobState, sink: Sink, events: Events) -> bool:
    """Gives the table that the error is about its new columns, in the copy and in the job, durable; the job must be opened
    again. Returns False if there are none, or if they may have values that the copy would lack (docs/adr/0029).

    Raises SourceUnavailableError, SinkUnavailableError."""
    checkpoint = Checkpoint.at(job.checkpoint)
    known = next((schema for schema in state.schemas if schema.table == error.table), None)
    if known is None or not isinstance(error, SchemaChangedError) or not checkpoint.plan_epochs():
        return False
    if job.sink.on_schema_change != "evolve" or unfinished_epoch(checkpoint) is not None:
        return False
    table = known.table
    is_computed = job.transform(table.database, table.name) is not None
    if is_computed or not _is_live(recover_state(checkpoint, job, state), state, table):
        return False
    try:
        with find_source(to_be_found(job, state)) as found:
            raise_passing(found.findings)
            schema = found.extended(known, partitions_of_plan(checkpoint, state, max(checkpoint.plan_epochs())))
    except (SourceNotUsableError, JobFileError):  # it is gone, or more is wrong: the next check says what
        return False
    if schema is None:
        return False
    names = [column.name for column in new_columns(known, schema) if column.captured]
    projections = projections_of(job, [schema])
    (output,) = outputs_of([schema], projections)
    identity = JobIdentity(state.job_uuid, state.job_name)
    try:
        if names and isinstance(sink, Adapts):
            sink.add_columns(identity, output, names)
        raise_problems(sink.check([output], identity, checkpoint.written_tables(state)))
    except SinkError as refused:
        text = f"The copy can't get the new columns ({', '.join(names)}) as they are. {refused.message}"
        events.note("warning", table=str(table), text=text)
        return False
    failpoint("schema.before_altered")
    projection = projections[0] if projections else None
    checkpoint.create_altered(state, Altered(schema, projection, time.time_ns() // 1000))
    failpoint("schema.after_altered")
    text = f"It has new columns ({', '.join(names)})." if names else "It has new columns, which are not copied."
    events.note("altered", table=str(table), text=text)
    return True


def _is_live(now: EnumeratorState, state: JobState, table: TableId) -> bool:
    """True if the log's position has passed all of the table's splits: all of its rows were read before the change."""
    if table in now.empties or all(schema.table != table for schema in state.schemas_after(now.joined)):
        return False
    return now.phase is Phase.STREAM or any(found.table == table and found.passed for found in now.tables)
