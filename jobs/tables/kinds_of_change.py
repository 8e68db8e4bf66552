"""The kind of a change of a table's schema, and what the job file wants then (`sink.on_schema_change`)."""

import contextlib
from collections.abc import Sequence

from tidemark.conf.model import JobFile
from tidemark.conf.schema_changes import KINDS, Kind
from tidemark.jobs.sources import find_source
from tidemark.readers.added_columns import new_columns, wider_columns
from tidemark.readers.source import ProvesDropped
from tidemark.state.errors import (
    JobFileError,
    SchemaChangedError,
    SourceNotUsableError,
    TableDroppedError,
    TidemarkError,
)
from tidemark.state.job_state import JobState
from tidemark.state.table import TableSchema


def kinds_between(known: TableSchema, now: TableSchema) -> frozenset[Kind]:
    """Returns the kinds of all changes that the copied columns of a table show. Where columns have no numbers, one that is gone
    may have another name."""
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
    kinds |= {"add_column"} if new else set()
    kinds |= {"change_type"} if any(column.captured for column in wider_columns(known, now)) else set()
    return frozenset(kinds)


def was_dropped(error: TidemarkError, looks: Sequence[JobFile], state: JobState, known: TableSchema) -> bool:
    """True if the error is about a table that the source certainly has no more, or had no more for a while. `looks`: job files
    to look at the source with, the second one if the source refuses the first. Raises SourceUnavailableError."""
    if isinstance(error, TableDroppedError):
        return True
    return isinstance(error, SourceNotUsableError) and _look(looks, state, known)[0]


def is_to_stop(error: TidemarkError, looks: Sequence[JobFile], state: JobState, known: TableSchema) -> bool:
    """True if the error is a change of a kind that the job file has as `stop`, or may be one. So is one that may have removed
    rows that the copy is to keep: reading the table again would remove them. `looks`: as for `was_dropped`. Raises
    SourceUnavailableError."""
    changes = looks[0].sink.on_schema_change
    is_of_rows = error.is_cured_by_reading and not isinstance(error, SchemaChangedError)
    if is_of_rows or not (changes.stops(*KINDS) or changes.truncate == "ignore"):
        return False
    is_dropped, now = (True, None) if isinstance(error, TableDroppedError) else _look(looks, state, known)
    if is_dropped:
        return changes.stops("drop_table")
    if now is None or now.oid != known.oid:
        return True
    kinds = kinds_between(known, now)
    return changes.stops(*kinds) if kinds else not _differs(known, now)


def _differs(known: TableSchema, now: TableSchema) -> bool:
    """True if the tables have other columns, copied or not."""
    return len(known.present) != len(now.present) or bool(new_columns(known, now) or wider_columns(known, now))


def _look(looks: Sequence[JobFile], state: JobState, known: TableSchema) -> tuple[bool, TableSchema | None]:
    """Returns whether the table was certainly dropped, and as it is now, None if it can't be copied."""
    for job in looks:
        with contextlib.suppress(SourceNotUsableError, JobFileError), find_source(job, state) as found:
            if isinstance(found, ProvesDropped) and found.was_dropped(known):
                return True, None
            return False, found.schemas_now([known.table]).get(known.table)
    return False, None
