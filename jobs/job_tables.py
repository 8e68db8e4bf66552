"""Which tables a job has: those of its first start, and those that later starts find."""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from conf.model import JobFile
from conf.tables import TableGlob
from jobs.checkpoint import Checkpoint
from jobs.events import Events
from jobs.projections import projections_of
from jobs.sources import FoundSource
from sinks.sink import JobIdentity
from state.errors import SourceNotUsableError
from state.failpoints import failpoint
from state.job_state import JobState, Joined, SplitKey
from state.partitions import Partitions
from state.position import Position
from state.projection import outputs_of
from state.table import TableId, TableSchema

Admit: TypeAlias = Callable[[JobIdentity, Sequence[TableSchema]], None]
"""Raises TidemarkError where the target can't have these tables."""


def first_job_state(job: JobFile, found: FoundSource) -> JobState:
    """Its start is durable before the first row is read: what is committed from here on comes by the log."""
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
        memberships=found.memberships(),
        split_keys=_split_keys(job, found, found.schemas),
        projections=projections_of(job, found.schemas),
        partitions=partitions,
    )


def with_later_tables(
    job: JobFile, found: FoundSource, state: JobState, events: Events, admit: Admit | None
) -> JobState:
    """The job with the tables that were found and that it does not have yet, durable; without them, and with a warning, in
    mode `full` and where `admit` is None. Raises what `admit` raises: then the job is as it was."""
    known = {schema.table for schema in state.schemas}
    later = tuple(schema for schema in found.schemas if schema.table not in known)
    if not later:
        return state
    if admit is None or job.mode == "full":
        for schema in later:
            _warn(events, schema.table, f"was not there when the job started: it is not copied. {_remedy(admit)}")
        return state
    projections = projections_of(job, later)
    admit(
        JobIdentity(state.job_uuid, state.job_name),
        (*state.outputs, *outputs_of(later, projections)),
    )
    tables = [schema.table for schema in later]
    partitions, start = _partitions_and_start(job, found, tables, lambda: found.joining_start(tables))
    memberships = tuple(membership for membership in found.memberships() if membership.table in tables)
    joined = Joined(start, later, _split_keys(job, found, later), memberships, projections, partitions)
    failpoint("tables.before_joined")
    state = Checkpoint.at(job.checkpoint).create_joined(state, joined)
    failpoint("tables.after_joined")
    for table in tables:
        events.note("joined", table=str(table), start=str(start))
        if not job.has_snapshot:
            _warn(
                events, table, f"is new to the job: in mode {job.mode} it is copied from {start} on, without its rows."
            )
    return state


def require_tables(job: JobFile, found: FoundSource, state: JobState, events: Events) -> None:
    """Raises SourceNotUsableError where a table of the job is gone; warns of one that the job file leaves out."""
    there = {schema.table for schema in found.schemas}
    missing = [schema.table for schema in state.schemas if schema.table not in there]
    gone = [table for table in missing if _is_selected(job, table)]
    if gone:
        raise SourceNotUsableError(
            f"The source has no {_named(gone)} any more, which the job copies: dropped, renamed, or hidden from the account.",
            "Give the account its rights back, or rename the table back. If it was dropped, start the job over with an empty "
            "checkpoint and an empty target.",
        )
    for table in missing:
        _warn(events, table, "is left out by source.tables now, but was not when the job started: it is still copied.")


def _partitions_and_start(
    job: JobFile, found: FoundSource, tables: Sequence[TableId], take_start: Callable[[], Position]
) -> tuple[Partitions | None, Position]:
    """What becomes of partitions between the two is in all splits or in none; without splits it must not be passed over."""
    if not job.has_snapshot:
        partitions = found.partitions(tables)
        return partitions, take_start()
    start = take_start()
    return found.partitions(tables), start


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
    return "Start a job of its own for it." if admit is None else "Mode full+incremental takes it in."


def _named(tables: Sequence[TableId]) -> str:
    more = f" and {len(tables) - 3} more" if len(tables) > 3 else ""
    return ", ".join(map(str, tables[:3])) + more
