"""Follows changes of a table's schema without reading its rows again: columns that were dropped, columns that were added if
is known what they are in all rows that the table had, and columns of wider types."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.recovered_state import recover_state
from tidemark.jobs.sources import find_source
from tidemark.jobs.tables.kinds_of_change import dropped_columns, kinds_between, lacks_dropped_column
from tidemark.jobs.tables.parking import to_be_found, unfinished_epoch
from tidemark.jobs.tables.partition_watch import partitions_of_plan
from tidemark.readers.added_columns import new_columns, wider_columns
from tidemark.readers.findings import raise_passing
from tidemark.readers.projection.settings import projections_of
from tidemark.sinks.sink import Adapts, AddsConstants, DropsColumns, JobIdentity, Sink, Widens, raise_problems
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError, SchemaChangedError, SinkError, SourceNotUsableError, TidemarkError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import Altered, JobState
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState
from tidemark.state.projection import outputs_of
from tidemark.state.remedies import read_again
from tidemark.state.table import TableId, TableSchema


def changes_columns(error: TidemarkError, job: JobFile, state: JobState, sink: Sink, events: Events) -> bool:
    """Gives the table that the error is about its new columns, in the copy and in the job, and does without those that it lost,
    durable; the job must be opened again. The same for columns of wider types. Returns False if there are none, if anything
    else changed, or if new columns may have values that the copy would lack (docs/adr/0029, docs/adr/0033, docs/adr/0044).

    Raises SourceUnavailableError, SinkUnavailableError."""
    checkpoint = Checkpoint.at(job.checkpoint)
    known = next((schema for schema in state.schemas if schema.table == error.table), None)
    if known is None or not isinstance(error, SchemaChangedError) or not checkpoint.plan_epochs():
        return False
    if job.sink.on_schema_change.stops_all or unfinished_epoch(checkpoint) is not None:
        return False
    table = known.table
    if not _is_live(recover_state(checkpoint, job, state), state, table):
        return False
    try:
        with find_source(to_be_found(job, state), state) as found:
            raise_passing(found.findings)
            schema = found.extended(known, partitions_of_plan(checkpoint, state, max(checkpoint.plan_epochs())))
        projections = () if schema is None else projections_of(job, [schema])
    except (SourceNotUsableError, JobFileError):  # it is gone, or more is wrong: the next check says what
        return False
    if schema is None or job.sink.on_schema_change.stops(*kinds_between(known, schema)):
        return False
    if job.transform(table.database, table.name) is not None and schema.captured != known.captured:
        return False
    new = [column for column in new_columns(known, schema) if column.captured]
    names, constants = [column.name for column in new], [column.name for column in new if column.constant is not None]
    wider = [column.name for column in wider_columns(known, schema)]
    retyped = [name for name in wider if schema.column(name).arrow_type != known.column(name).arrow_type]
    (output,) = outputs_of([schema], projections)
    if constants and not (isinstance(sink, AddsConstants) and _keeps_constants(output, constants)):
        return False
    if retyped and not (isinstance(sink, Widens) and _are_copied_as_they_are(output, retyped)):
        return False
    dropped = dropped_columns(known, next(out for out in state.outputs if out.table == table), schema, output)
    drops = job.sink.on_schema_change.drop_column == "drop" and isinstance(sink, DropsColumns)
    identity = JobIdentity(state.job_uuid, state.job_name)
    try:
        if constants and isinstance(sink, AddsConstants):
            sink.add_constants(identity, output, names)
        elif names and isinstance(sink, Adapts):
            sink.add_columns(identity, output, names)
        if wider and isinstance(sink, Widens):
            sink.widen_columns(identity, output, wider)
        if dropped and drops and isinstance(sink, DropsColumns):
            sink.drop_columns(replace(identity, owner=checkpoint.driver), output, dropped)
        raise_problems(sink.check([output], identity, checkpoint.written_tables(state)))
    except SinkError as refused:
        what = f"get the new columns ({', '.join(names)}) as they are" if names else "do without columns"
        what = f"get the wider columns ({', '.join(wider)})" if wider else what
        text = f"The copy can't {what}. {refused.message}"
        events.note("warning", table=str(table), text=text)
        return False
    failpoint("schema.before_altered")
    projection = projections[0] if projections else None
    checkpoint.create_altered(state, Altered(schema, projection, time.time_ns() // 1000, max(checkpoint.plan_epochs())))
    failpoint("schema.after_altered")
    events.note("altered", table=str(table), text=_told(known, schema, job, dropped if drops else ()))
    return True


def as_schema_change(error: TidemarkError, job: JobFile, state: JobState, sink: Sink) -> TidemarkError:
    """Returns the error of a start, or, if the copy lacks a column because the source has dropped it, what the log would say
    about that later. Raises SourceUnavailableError, SinkUnavailableError."""
    known = next((schema for schema in state.schemas if schema.table == error.table), None)
    if known is None:
        return error
    if lacks_dropped_column(error, partial(to_be_found, job, state), state, known):
        message = f"{known.table} has lost columns, and so has its copy. {error.message}"
    elif _lost_columns_that_are_back(error, job, state, sink):
        message = f"The copy of {known.table} has lost columns that the source has, perhaps again. {error.message}"
    else:
        return error
    return SchemaChangedError(message, read_again(TableName(known.table.database, known.table.name)), known.table)


def _lost_columns_that_are_back(error: TidemarkError, job: JobFile, state: JobState, sink: Sink) -> bool:
    """True if the copy lacks a column that the job copies: a driver may have died after it had dropped the column in the copy,
    and before it recorded that. Without numbers of columns, one that the source got since then looks like the dropped one. Its
    values are not in the copy, whoever dropped it."""
    if not isinstance(error, SinkError) or job.sink.on_schema_change.drop_column != "drop":
        return False
    output = next(output for output in state.outputs if output.table == error.table)
    identity = JobIdentity(state.job_uuid, state.job_name)
    return isinstance(sink, DropsColumns) and sink.lacks_columns(identity, output)


def _told(known: TableSchema, schema: TableSchema, job: JobFile, dropped: Collection[str]) -> str:
    """Returns what changed, for people. `dropped`: columns that the copy has lost, too."""
    excluded = job.source.excluded_columns(known.table.database, known.table.name)
    ignored = [column.name for column in new_columns(known, schema) if not (column.captured or column.name in excluded)]
    new = [column.name for column in new_columns(known, schema) if column.captured]
    present = {column.name for column in schema.present}
    gone = [column.name for column in known.captured if column.name not in present]
    kept = [name for name in gone if name not in dropped]
    texts = [f"It has new columns ({', '.join(new)})."] if new else []
    if ignored and job.sink.on_schema_change.add_column == "ignore":
        texts.append(f"It has new columns that are not copied ({', '.join(ignored)}), as sink.on_schema_change wants.")
    texts += [f"It lost columns ({', '.join(kept)}). The copy keeps them."] if kept else []
    texts += [f"It lost columns ({', '.join(dropped)}). The copy lost them, too."] if dropped else []
    wider = [column.name for column in wider_columns(known, schema)]
    texts += [f"Columns have wider types or allow NULL ({', '.join(wider)})."] if wider else []
    return " ".join(texts) or "It got or lost columns that are not copied."


def _keeps_constants(output: TableSchema, names: Sequence[str]) -> bool:
    """False if the sink gets other values of these columns than the source has: they are masked."""
    has_constants = all(column.constant is not None for column in output.captured if column.name in names)
    return has_constants and _are_copied_as_they_are(output, names)


def _are_copied_as_they_are(output: TableSchema, names: Sequence[str]) -> bool:
    """False if the sink gets something else of these columns than the source has: they are masked."""
    return not any(column.made for column in output.captured if column.name in names)


def _is_live(now: EnumeratorState, state: JobState, table: TableId) -> bool:
    """True if the log's position has passed all of the table's splits: all of its rows were read before the change."""
    if table in now.empties or all(schema.table != table for schema in state.schemas_after(now.joined)):
        return False
    return now.phase is Phase.STREAM or any(found.table == table and found.passed for found in now.tables)
