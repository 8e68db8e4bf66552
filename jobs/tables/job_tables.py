"""The tables of a job: those of its first start, and those that join at later starts."""

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableGlob, TableName
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.recovered_state import is_going_back, offset_from
from tidemark.jobs.sinks import sink_needs
from tidemark.jobs.tables.key_orders import copied_orders
from tidemark.jobs.tables.parking import how_read_again, still_parked
from tidemark.readers.projection.settings import projections_of
from tidemark.readers.source import ChecksConditions, FindsPartitions, FoundSource, PublishesTables
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import (
    CheckpointError,
    JobFileError,
    SchemaChangedError,
    SinkError,
    SourceNotUsableError,
    TableGoneError,
)
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Joined, Membership, SplitKey, TableCondition
from tidemark.state.partitions import Partitions
from tidemark.state.position import Position
from tidemark.state.projection import outputs_of
from tidemark.state.remedies import START_OVER, reason, resnapshot_of
from tidemark.state.sink_identity import UNDO
from tidemark.state.table import TableId, TableSchema

_OF_A_TOOL = re.compile(r"_.+_(gho|ghc|del|new|old)")


class Admit(Protocol):
    """The target's part when tables are to join the job."""

    def __call__(self, state: JobState | None, schemas: Sequence[TableSchema]) -> None:
        """Called with the job before the tables join, None at its first start, and with all tables including the new ones.
        Raises TidemarkError if the target can't take them."""

    def drop_columns(self, state: JobState, schema: TableSchema, output: TableSchema) -> None:
        """Drops columns of the copy of a table that comes back which the source has dropped, if the job file says so. `output`:
        the table as the sink gets it. Raises SinkError if the target refuses it. Called before the table is admitted."""

    def replaceable(
        self, state: JobState, schemas: Sequence[TableSchema], orders: Mapping[TableId, Mapping[str, str]]
    ) -> frozenset[TableId]:
        """As `tidemark.sinks.sink.ReplacesRanges`, for tables that come back. Called before they are admitted."""


class TablesAlteredError(SourceNotUsableError):
    """A table was altered while its start position was taken. The next attempt finds it as it is now."""


def first_job_state(job: JobFile, found: FoundSource) -> JobState:
    """Creates the state of a new job. The log is read from its start position, so that nothing committed later is missed.

    Raises JobFileError, before anything is created, if the server refuses a condition of `snapshot.where`."""
    for schema in found.schemas:
        _require_condition(job, found, schema.table)
    partitions, start = _partitions_and_start(job, found, found.schemas, found.first_start)
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
        lists=sink_needs(job.sink).takes_lists,
    )


def accepted(found: FoundSource) -> tuple[TableSchema, ...]:
    """Returns the found tables that no check refuses."""
    refused = {finding.table for finding in found.findings if finding.severity == "refuse"}
    return tuple(schema for schema in found.schemas if schema.table not in refused)


def with_later_tables(
    job: JobFile, found: FoundSource, state: JobState, events: Events, admit: Admit | None
) -> JobState:
    """Adds the found tables that the job does not have, durably: new ones, and those that have left and come back. Returns
    the job with them. In mode `full`, and if `admit` is None, they do not join; a warning says so. Raises what `admit`
    raises; the job is unchanged then. But a table that comes back and does not fit into its copy is parked, so that the
    others go on."""
    if job.has_snapshot:
        _warn_of_tables_without_rows(state, events)
    known = {schema.table for schema in state.schemas}
    left = {left.table: left for left in state.left}
    new = [schema for schema in accepted(found) if schema.table not in known]
    later = tuple(schema for schema in new if schema.table in left or not is_of_a_tool(job, schema.table))
    if not later:
        return state
    _require_rows_for_those_back(job, [schema.table for schema in later if schema.table in left])
    if admit is None or job.mode == "full":
        for schema in later:
            _warn(events, schema.table, f"did not exist when the job started. It is not copied. {_remedy(admit)}")
        return state
    later = _with_good_conditions(job, found, later, left, events)
    checkpoint = Checkpoint.at(job.checkpoint)
    back = [replace(s, version=left[s.table].version + 1) for s in later if s.table in left]
    unfit, replaced = set[TableId](), set[TableId]()
    # An epoch of the log must be the first one after a target was set back: only its fence tells how far the target is.
    may_replace = not is_going_back(checkpoint, state)
    for schema in back:
        try:
            _require_condition(job, found, schema.table)
            (output,) = outputs_of([schema], projections_of(job, [schema]))
            columns = found.split_columns[schema.table]
            orders = copied_orders(job, schema, output, columns, found) if may_replace else None
            if orders is not None:
                replaced |= admit.replaceable(state, [output], {schema.table: orders})
            admit.drop_columns(state, schema, output)
            admit(state, [output])
        except (SinkError, JobFileError) as error:
            unfit.add(schema.table)
            state = still_parked(job, checkpoint, state, [schema.table], reason(error.message, error.remedy))
            _warn(events, schema.table, f"can't come back to the job. {error}")
    later = tuple(
        replace(schema, version=left[schema.table].version + 1) if schema.table in left else schema
        for schema in later
        if schema.table not in unfit
    )
    return _joined(job, found, state, later, events, admit, replaced=replaced) if later else state


def _with_good_conditions(
    job: JobFile, found: FoundSource, later: tuple[TableSchema, ...], left: Collection[TableId], events: Events
) -> tuple[TableSchema, ...]:
    """Returns the tables without new ones whose condition the server refuses. Those that come back are checked with their
    copies."""
    fitting = []
    for schema in later:
        try:
            if schema.table not in left:
                _require_condition(job, found, schema.table)
        except JobFileError as error:
            _warn(events, schema.table, f"does not join the job. {error}")
        else:
            fitting.append(schema)
    return tuple(fitting)


def _require_condition(job: JobFile, found: FoundSource, table: TableId) -> None:
    """Raises JobFileError if the server refuses the table's `snapshot.where`: its rows could not be read."""
    where = job.snapshot.condition(table.database, table.name) if job.has_snapshot else None
    if where is not None and isinstance(found, ChecksConditions):
        problem = found.condition_problem(table, where)
        if problem is not None:
            raise JobFileError(f"snapshot.where of {table} is refused: {problem}.", "Correct it, or remove it.")


def is_of_a_tool(job: JobFile, table: TableId) -> bool:
    """True for a table that gh-ost or pt-online-schema-change has created and will rename or drop, by its name, unless the job
    file names it without a wildcard. Such a table does not join a job that has started."""
    named = any(glob.only_table == TableName(table.database, table.name) for glob in job.source.tables)
    return not named and _OF_A_TOOL.fullmatch(table.name) is not None


def _joined(
    job: JobFile,
    found: FoundSource,
    state: JobState,
    later: tuple[TableSchema, ...],
    events: Events,
    admit: Admit,
    *,
    replaced: Collection[TableId],
) -> JobState:
    """`replaced`: those of the tables that come back whose copies can be replaced range by range."""
    later = _admitted(job, state, later, events, admit)
    if not later:
        return state
    projections = projections_of(job, later)
    tables = [schema.table for schema in later]
    back = tuple(table for table in tables if table in state.left_tables)
    checkpoint = Checkpoint.at(job.checkpoint)
    restarts = job.has_snapshot and not state.schemas  # nothing needs the log before their start, which may be lost
    take_start = found.first_start if restarts else lambda: found.joining_start(tables)
    try:
        partitions, start = _partitions_and_start(job, found, later, take_start)
    except (TablesAlteredError, TableGoneError):
        raise
    except SourceNotUsableError as error:
        if job.source.on_table_error == "stop" or not checkpoint.plan_epochs():
            raise
        for table in tables:
            _warn(events, table, f"does not join the job now. {error}")
        return state
    joined = Joined(
        start=start,
        schemas=later,
        split_keys=_split_keys(job, found, later),
        memberships=tuple(membership for membership in _memberships(found) if membership.table in tables),
        projections=projections,
        partitions=partitions,
        conditions=_conditions(job, later),
        back=back,
        left_files=checkpoint.left_count(),
        after_epoch=max(checkpoint.plan_epochs(), default=0),
        at_us=time.time_ns() // 1000,
        restarts=restarts,
        version_offset=offset_from(job, state, start) if restarts else None,
        replaced=tuple(table for table in back if table in replaced),
    )
    failpoint("tables.before_joined")
    state = checkpoint.create_joined(state, joined)
    failpoint("tables.after_joined")
    for table in tables:
        if table in back:
            text = f"It comes back to the job. {how_read_again(is_replaced=table in joined.replaced)}"
            events.note("joined", table=str(table), start=str(start), text=text)
            continue
        events.note("joined", table=str(table), start=str(start))
        if not job.has_snapshot:
            _warn(
                events,
                table,
                f"joins the job. In mode {job.mode} its changes from {start} on are copied, not its rows.",
            )
    return state


def _admitted(
    job: JobFile, state: JobState, later: tuple[TableSchema, ...], events: Events, admit: Admit
) -> tuple[TableSchema, ...]:
    """Returns the tables that the target can take. The others are reported, and don't stop the job (`on_table_error`)."""
    try:
        admit(state, (*state.outputs, *outputs_of(later, projections_of(job, later))))
    except SinkError:
        if job.source.on_table_error == "stop" or not Checkpoint.at(job.checkpoint).plan_epochs():
            raise
    else:
        return later
    fitting: tuple[TableSchema, ...] = ()
    for schema in later:
        more = (*fitting, schema)
        try:
            admit(state, (*state.outputs, *outputs_of(more, projections_of(job, more))))
        except SinkError as error:
            _warn(events, schema.table, f"does not join the job. {error}")
        else:
            fitting = more
    return fitting


def _require_rows_for_those_back(job: JobFile, back: Sequence[TableId]) -> None:
    """Raises CheckpointError if tables that have left the job are selected again, but their rows can't be read."""
    if back and job.mode != "full+incremental":
        raise CheckpointError(
            f"{_named(back)} left the job when source.exclude_tables named it. Its copy lacks all changes since then, and mode "
            f"{job.mode} can't read its rows again.",
            "Name it in source.exclude_tables again, and copy it by a job of its own.",
        )


def _warn_of_tables_without_rows(state: JobState, events: Events) -> None:
    """Warns about tables that joined while the job ran in mode `incremental`."""
    read = {split_key.table for split_key in state.split_keys}
    for schema in state.schemas:
        if schema.table not in read:
            _warn(
                events,
                schema.table,
                "joined the job in mode incremental: only its changes since then are copied, not its rows. "
                "Start another job for it.",
            )


def require_tables(job: JobFile, found: FoundSource, state: JobState, events: Events) -> None:
    """Raises SourceNotUsableError if a table of the job is gone. Warns about tables that the job file no longer selects."""
    there = {schema.table for schema in found.schemas}
    missing = [schema.table for schema in state.schemas if schema.table not in there]
    gone = [table for table in missing if _is_selected(job, table)]
    if gone:
        raise SourceNotUsableError(
            f"The source no longer has {_named(gone)}, which the job copies: dropped, renamed, or hidden from the account.",
            f"Grant the account its rights again, or rename the table back{_after_rename(job, gone[0])}. If it was dropped, "
            f"name it in source.exclude_tables, or {START_OVER}.",
            gone[0] if there else None,  # else the account has lost its rights, rather
        )
    for table in missing:
        _warn(
            events,
            table,
            "is no longer selected by source.tables. It is still copied. To take it out of the job, name it in "
            "source.exclude_tables.",
        )


def _after_rename(job: JobFile, table: TableId) -> str:
    """Returns the rest of the remedy if a table was renamed back. PostgreSQL's log knows tables by their OID."""
    if job.source.url.kind == "postgresql" or job.mode != "full+incremental":
        return ""
    return f" and have it read again ({resnapshot_of([TableName(table.database, table.name)])})"


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
    job: JobFile, found: FoundSource, schemas: Sequence[TableSchema], take_start: Callable[[], Position]
) -> tuple[Partitions | None, Position]:
    """With a snapshot the partitions are read after the start position: all splits see a change made in between, or none
    does. Without one they are read before it, so that such a change is not missed.

    Raises TablesAlteredError if a table was altered before the start position, where the log is not read: nothing would tell
    that its schema is another one."""
    tables = [schema.table for schema in schemas]
    try:
        if not job.has_snapshot:
            partitions, start = _partitions(found, tables), take_start()
        else:
            start = take_start()
            partitions = _partitions(found, tables)
        now = found.schemas_now(tables)
    except SchemaChangedError as error:
        raise TablesAlteredError(
            f"{error.message} That was while the job took its start position.", "Run the job again.", error.table
        ) from error
    altered = [schema.table for schema in schemas if now.get(schema.table) != replace(schema, version=1)]
    if altered:
        raise TablesAlteredError(
            f"{_named(altered)} was altered while the job took its start position.",
            "Run the job again.",
            altered[0],
        )
    return partitions, start


def _partitions(found: FoundSource, tables: Sequence[TableId]) -> Partitions | None:
    return found.partitions(tables) if isinstance(found, FindsPartitions) else None


def _memberships(found: FoundSource) -> tuple[Membership, ...]:
    return found.memberships() if isinstance(found, PublishesTables) else ()


def _split_keys(job: JobFile, found: FoundSource, schemas: Iterable[TableSchema]) -> tuple[SplitKey, ...]:
    if not job.has_snapshot:
        return ()
    return tuple(SplitKey(schema.table, found.split_columns[schema.table]) for schema in schemas)


def _is_selected(job: JobFile, table: TableId) -> bool:
    return _any_of(job.source.tables, table) and not _any_of(job.source.exclude_tables, table)


def _any_of(globs: Iterable[TableGlob], table: TableId) -> bool:
    return any(glob.matches(table.database, table.name) for glob in globs)


def _warn(events: Events, table: TableId, text: str) -> None:
    events.note("warning", table=str(table), text=text)


def _remedy(admit: Admit | None) -> str:
    return "Start another job for it." if admit is None else "Run the job in mode full+incremental: then it joins."


def _named(tables: Sequence[TableId]) -> str:
    more = f" and {len(tables) - 3} more" if len(tables) > 3 else ""
    return ", ".join(map(str, tables[:3])) + more
