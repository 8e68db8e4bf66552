"""A job file's settings for single tables, by the tables' names in the source."""

from collections.abc import Iterable

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName
from tidemark.state.table import TableId, TableSchema


def split_conditions(job: JobFile, schemas: Iterable[TableSchema]) -> dict[TableId, str]:
    """`snapshot.where` of those tables that have one."""
    conditions = {s.table: job.snapshot.condition(s.table.database, s.table.name) for s in schemas}
    return {table: condition for table, condition in conditions.items() if condition is not None}


def with_condition(job: JobFile, table: TableId, where: str) -> JobFile:
    """Returns the job file with one more condition on the rows of a table that are read (`snapshot.where`)."""
    name, known = TableName(table.database, table.name), job.snapshot.condition(table.database, table.name)
    both = where if known is None else f"(\n{known}\n) AND (\n{where}\n)"
    snapshot = job.snapshot.model_copy(update={"where": {**job.snapshot.where, name: both}})
    return job.model_copy(update={"snapshot": snapshot})


def ignored_targets(job: JobFile) -> frozenset[TableId]:
    """`log.ignore_statements_on`."""
    return frozenset(TableId(table.database, table.name) for table in job.log.ignore_statements_on)
