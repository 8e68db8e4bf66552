"""A job file's settings for single tables, by the tables' names in the source."""

from collections.abc import Iterable

from tidemark.conf.model import JobFile
from tidemark.state.table import TableId, TableSchema


def split_conditions(job: JobFile, schemas: Iterable[TableSchema]) -> dict[TableId, str]:
    """`snapshot.where` of those tables that have one."""
    conditions = {s.table: job.snapshot.condition(s.table.database, s.table.name) for s in schemas}
    return {table: condition for table, condition in conditions.items() if condition is not None}


def ignored_targets(job: JobFile) -> frozenset[TableId]:
    """`log.ignore_statements_on`."""
    return frozenset(TableId(table.database, table.name) for table in job.log.ignore_statements_on)
