"""The tables of a job: those of its first start, and those that join at later starts."""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableGlob
from tidemark.jobs.monitoring.events import Events
from tidemark.readers.projection.settings import projections_of
from tidemark.readers.source import FindsPartitions, FoundSource, PublishesTables
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, SourceNotUsableError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Joined, Membership, SplitKey, TableCondition
from tidemark.state.partitions import Partitions
from tidemark.state.position import Position
from tidemark.state.projection import outputs_of
from tidemark.state.remedies import START_OVER
from tidemark.state.sink_identity import UNDO
from tidemark.state.table import TableId, TableSchema

Admit: TypeAlias = Callable[[JobState, Sequence[TableSchema]], None]
"""Called with the job before the tables join, and with all tables including the new ones. Raises TidemarkError if the target
can't take them."""


def first_job_state(job: JobFile, found: FoundSource) -> JobState:
    """Creates the state of a new job. The log is read from its start position, so that nothing committed later is missed."""
    partitions, start = _partitions_and_start(job, found, [schema.table for schema in found.schemas], found.first_start)
    return JobState(
        job_uuid=str(uuid.uuid4()),
        job_name=job.job,
        mode=job.mode,
        server_identity=found.identity(),
        start=start,
        prepared=(),
        created_at_us=time.time_ns() // 1000,
        schemas=found.schemas,
        memberships=_memberships(found),
        split_keys=_split_keys(job, found, found.schemas),
        projections=projections_of(job, found.schemas),
        partitions=partitions,
        conditions=_conditions(job, found.schemas),
    )


def with_later_tables(
    job: JobFile, found: FoundSource, state: JobState, events: Events, admit: Admit | None
) -> JobState:
    """Returns the job with the found tables that it did not have, durable. In mode `full`, and if `admit` is None, they do
    not join; a warning says so. Raises what `admit` raises; the job is unchanged then."""
    known = {schema.table for schema in state.schemas}
    later = tuple(schema for schema in found.schemas if schema.table not in known)
    if not later:
        return state
    if admit is None or job.mode == "full":
        for schema in later:
            _warn(events, schema.table, f"did not exist when the job started. It is not copied. {_remedy(admit)}")
        return state
    projections = projections_of(job, later)
    admit(state, (*state.outputs, *outputs_of(later, projections)))
    tables = [schema.table for schema in later]
    partitions, start = _partitions_and_start(job, found, tables, lambda: found.joining_start(tables))
    memberships = tuple(membership for membership in _memberships(found) if membership.table in tables)
    split_keys = _split_keys(job, found, later)
    joined = Joined(start, later, split_keys, memberships, projections, partitions, _conditions(job, later))
    failpoint("tables.before_joined")
    state = Checkpoint.at(job.checkpoint).create_joined(state, joined)
    failpoint("tables.after_joined")
    for table in tables:
        events.note("joined", table=str(table), start=str(start))
        if not job.has_snapshot:
            _warn(
                events,
                table,
                f"joins the job. In mode {job.mode} its changes from {start} on are copied, not its rows.",
            )
    return state


def require_tables(job: JobFile, found: FoundSource, state: JobState, events: Events) -> None:
    """Raises SourceNotUsableError if a table of the job is gone. Warns about tables that the job file no longer selects."""
    there = {schema.table for schema in found.schemas}
    missing = [schema.table for schema in state.schemas if schema.table not in there]
    gone = [table for table in missing if _is_selected(job, table)]
    if gone:
        raise SourceNotUsableError(
            f"The source no longer has {_named(gone)}, which the job copies: dropped, renamed, or hidden from the account.",
            f"Grant the account its rights again, or rename the table back. If it was dropped, {START_OVER}.",
        )
    for table in missing:
        _warn(events, table, "is no longer selected by source.tables. It is still copied: a job keeps its tables.")


def require_same_conditions(job: JobFile, state: JobState) -> None:
    """Raises CheckpointError if `snapshot.where` has changed for a table of the job: some of its rows were read with the old
    condition."""
    if not job.has_snapshot:
        return
    before = {condition.table: condition.where for condition in state.conditions}
    now = {condition.table: condition.where for condition in _conditions(job, state.schemas)}
    for table in dict.fromkeys((*before, *now)):
        if before.get(table) != now.get(table):
            texts = [f"({text})" if text else "none" for text in (before.get(table), now.get(table))]
            raise CheckpointError(
                f"{table} was started with snapshot.where: {texts[0]}, but now it is {texts[1]}.",
                f"{UNDO}, or {START_OVER}.",
            )


def _conditions(job: JobFile, schemas: Iterable[TableSchema]) -> tuple[TableCondition, ...]:
    if not job.has_snapshot:
        return ()
    found = [(schema.table, job.snapshot.condition(schema.table.database, schema.table.name)) for schema in schemas]
    return tuple(TableCondition(table, where.strip()) for table, where in found if where is not None)


def _partitions_and_start(
    job: JobFile, found: FoundSource, tables: Sequence[TableId], take_start: Callable[[], Position]
) -> tuple[Partitions | None, Position]:
    """With a snapshot the partitions are read after the start position: all splits see a change made in between, or none
    does. Without one they are read before it, so that such a change is not missed."""
    if not job.has_snapshot:
        partitions = _partitions(found, tables)
        return partitions, take_start()
    start = take_start()
    return _partitions(found, tables), start


def _partitions(found: FoundSource, tables: Sequence[TableId]) -> Partitions | None:
    return found.partitions(tables) if isinstance(found, FindsPartitions) else None


def _memberships(found: FoundSource) -> tuple[Membership, ...]:
    return found.memberships() if isinstance(found, PublishesTables) else ()


def _split_keys(job: JobFile, found: FoundSource, schemas: Iterable[TableSchema]) -> tuple[SplitKey, ...]:
    if not job.has_snapshot:
        return ()
    return tuple(SplitKey(schema.table, found.split_columns[schema.table]) for schema in schemas)


def _is_selected(job: JobFile, table: TableId) -> bool:
    def any_of(globs: Iterable[TableGlob]) -> bool:
        return any(glob.matches(table.database, table.name) for glob in globs)

    return any_of(job.source.tables) and not any_of(job.source.exclude_tables)


def _warn(events: Events, table: TableId, text: str) -> None:
    events.note("warning", table=str(table), text=text)


def _remedy(admit: Admit | None) -> str:
    return "Start another job for it." if admit is None else "Run the job in mode full+incremental: then it joins."


def _named(tables: Sequence[TableId]) -> str:
    more = f" and {len(tables) - 3} more" if len(tables) > 3 else ""
    return ", ".join(map(str, tables[:3])) + more
