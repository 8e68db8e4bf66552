"""The kind of a change of a table's schema, and the job file's policy for it (`sink.on_schema_change`)."""

from collections.abc import Callable, Collection
from typing import TypeAlias, TypeVar

from tidemark.conf.model import JobFile
from tidemark.conf.schema_changes import KINDS, Kind
from tidemark.jobs.sources import find_source
from tidemark.readers.added_columns import new_columns, wider_columns
from tidemark.readers.source import FindsDrops, FindsPartitions, FoundSource, ProvesDropped
from tidemark.state.errors import (
    JobFileError,
    SchemaChangedError,
    SinkError,
    SourceNotUsableError,
    TableDroppedError,
    TidemarkError,
)
from tidemark.state.job_state import JobState
from tidemark.state.partitions import Partition, Partitions, WatchedTable
from tidemark.state.position import Position
from tidemark.state.table import TableId, TableSchema

Answer = TypeVar("Answer")
Without: TypeAlias = Callable[[Collection[TableId]], JobFile]
"""Returns the job file to look at the source with, without these tables."""


def kinds_between(known: TableSchema, now: TableSchema) -> frozenset[Kind]:
    """Returns the kinds of all changes that the copied columns of a table show. Where columns have no numbers, one that is gone
    may have another name. A column that was ignored, and is not any more, is one that was added."""
    kinds = set[Kind]()
    lost = [column for column in known.captured if all(column.name != other.name for other in now.present)]
    new = [column for column in now.captured if all(column.name != other.name for other in known.present)]
    if known.oid is not None:
        numbers = {column.number for column in lost} & {column.number for column in new}
        kinds |= {"rename_column"} if numbers else set()
        lost = [column for column in lost if column.number not in numbers]
        new = [column for column in new if column.number not in numbers]
    elif lost and new:
        kinds.add("rename_column")
    kinds |= {"drop_column"} if lost else set()
    copied = {column.name for column in known.captured}
    altered = [column for column in wider_columns(known, now) if column.captured]
    kinds |= {"add_column"} if new or any(column.name not in copied for column in altered) else set()
    kinds |= {"change_type"} if any(column.name in copied for column in altered) else set()
    return frozenset(kinds)


def dropped_columns(known: TableSchema, copied: TableSchema, now: TableSchema, output: TableSchema) -> list[str]:
    """Returns the columns of a copy that the source has dropped since `known`: not those that are excluded now, and none that
    the source never had. `copied`, `output`: the table as the sink gets it, then and now."""
    left = {column.name for column in (*now.present, *output.captured)}
    held = {column.name for column in copied.captured}
    return [column.name for column in known.captured if column.name in held and column.name not in left]


def lacks_dropped_column(error: TidemarkError, without: Without, state: JobState, known: TableSchema) -> bool:
    """True if the copy does not fit, and the source no longer has a column that the job copies: a driver may have died after it
    had dropped the column in the copy, and before it recorded that. Raises SourceUnavailableError."""
    if not isinstance(error, SinkError) or without(()).sink.on_schema_change.drop_column != "drop":
        return False
    now = _asked(without, state, lambda found: found.schemas_now([known.table]).get(known.table))
    present = {column.name for column in now.present} if now is not None else set()
    return now is not None and any(column.name not in present for column in known.captured)


def was_dropped(error: TidemarkError, without: Without, state: JobState, known: TableSchema, read: Position) -> bool:
    """True if the error is about a table that the source certainly has no more, or had no more for a while. `read`: how far the
    log was read. Raises SourceUnavailableError."""
    if isinstance(error, TableDroppedError):
        return True
    return isinstance(error, SourceNotUsableError) and _look(without, state, known, read)[0]


def is_to_stop(error: TidemarkError, without: Without, state: JobState, known: TableSchema, read: Position) -> bool:
    """True if the error is a change of a kind that the job file has as `stop`, or may be one. So is one that may have removed
    rows that the copy is to keep: reading the table again would remove them. Raises SourceUnavailableError."""
    changes = without(()).sink.on_schema_change
    is_of_rows = error.is_cured_by_reading and not isinstance(error, SchemaChangedError)
    if is_of_rows or not (changes.stops(*KINDS) or changes.truncate == "ignore"):
        return False
    is_dropped, now = (True, None) if isinstance(error, TableDroppedError) else _look(without, state, known, read)
    if is_dropped:
        return changes.stops("drop_table")
    if now is None or now.oid != known.oid:
        return True
    kinds = kinds_between(known, now)
    return changes.stops(*kinds) if kinds else not _differs(known, now)


def removed_partition(without: Without, state: JobState, before: WatchedTable | None) -> Partition | None:
    """Returns a partition that the table has lost since the last look, `before`. Perhaps only the copy still has its rows, and
    reading the table again would remove them. None also if the table is gone. Raises SourceUnavailableError."""
    if before is None or not before.partitions:
        return None

    def look(found: FoundSource) -> Partition | None:
        if not isinstance(found, FindsPartitions):
            return None
        there = {partition.oid for partition in found.watched_now(before).partitions}
        gone = (partition for partition in before.partitions if partition.filenode and partition.oid not in there)
        return next(gone, None)

    return _asked(without, state, look)


def altered_beyond(
    without: Without, state: JobState, tables: Collection[TableSchema], seen: Partitions | None
) -> list[TableSchema]:
    """Returns those of the tables whose columns were changed such that their rows must be read again. `seen`: as for
    `FoundSource.extended`. Raises SourceUnavailableError."""

    def look(found: FoundSource) -> list[TableSchema]:
        now = found.schemas_now([known.table for known in tables])
        there = [known for known in tables if known.table in now and now[known.table].oid == known.oid]
        altered = [known for known in there if _types(now[known.table]) != _types(known)]
        return [known for known in altered if found.extended(known, seen) is None]

    return _asked(without, state, look) or []


def _types(schema: TableSchema) -> dict[str, tuple[object, ...]]:
    """Returns what decides on the values of the columns that are copied, by their names. Without generated columns:
    PostgreSQL's log may leave them out, and then nothing of the table needs to be read again."""
    copied = [column for column in schema.captured if not column.generated]
    return {column.name: (column.number, column.source_type, column.charset, column.collation) for column in copied}


def _differs(known: TableSchema, now: TableSchema) -> bool:
    """True if the tables have other columns, copied or not."""
    return len(known.present) != len(now.present) or bool(new_columns(known, now) or wider_columns(known, now))


def _look(without: Without, state: JobState, known: TableSchema, read: Position) -> tuple[bool, TableSchema | None]:
    """Returns whether the table was certainly dropped, and as it is now, None if it can't be copied. If it was dropped, another
    one may have its name now."""

    def look(found: FoundSource) -> tuple[bool, TableSchema | None]:
        if isinstance(found, ProvesDropped) and found.was_dropped(known):
            return True, None
        joined = [joined.start for joined in state.joined if any(s.table == known.table for s in joined.schemas)]
        if isinstance(found, FindsDrops) and found.was_dropped_since(known, [read, *joined]):
            return True, None
        return False, found.schemas_now([known.table]).get(known.table)

    return _asked(without, state, look) or (False, None)


def _asked(without: Without, state: JobState, look: Callable[[FoundSource], Answer]) -> Answer | None:
    """Leaves out each table for which the source refuses the look, so that others which were dropped too are no hindrance. None
    if it refuses for another reason."""
    missing = set[TableId]()
    while True:
        try:
            with find_source(without(missing), state) as found:
                return look(found)
        except (SourceNotUsableError, JobFileError) as refused:
            if refused.table is None or refused.table in missing:
                return None
            missing.add(refused.table)
