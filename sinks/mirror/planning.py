"""Decides where a table's copy goes, and whether an existing table can take it. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemark.conf.tables import TableName, TableTemplate
from tidemark.sinks.mirror.target import Dialect, Owner, TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import ValueRange, holds
from tidemark.sinks.sink import Finding, JobIdentity, no_mark
from tidemark.state.remedies import START_OVER, START_OVER_NOW
from tidemark.state.table import Column, TableId, TableSchema, is_own_table

_LET_JOB_CREATE = "Drop that table and let the job create it, or change it so that it fits."


@dataclass(frozen=True, slots=True)
class Found:
    """The target as it was found: the table if it exists, whether it is empty, its owner, and whether the job has written it
    before."""

    table: TargetTable | None
    is_empty: bool
    owner: Owner | None
    was_written: bool = False


def target_of(table: TableId, template: TableTemplate, home: str) -> TargetName:
    """Returns the name of the table's copy. `home` is the schema if `template` names none."""
    schema, name = template.target(TableName(table.database, table.name))
    return TargetName(home if schema is None else schema, name)


def route_problems(targets: Sequence[tuple[TableSchema, TargetName]], dialect: Dialect) -> Iterator[Finding]:
    """Yields problems of names: tables with one name in the target, names that it does not allow; and tables without a key."""
    by_target: defaultdict[tuple[str, str], list[TableSchema]] = defaultdict(list)
    for schema, target in targets:
        if is_own_table(target.table):
            yield Finding(
                schema.table,
                f"{target} has the name of one of Tidemark's own tables.",
                "Choose another name by sink.table.",
            )
        by_target[dialect.same_name(target.schema), dialect.same_name(target.table)].append(schema)
        names = [target.schema, target.table, *(column.name for column in schema.captured)]
        for name in names:
            if not dialect.name_fits(name):
                yield Finding(
                    schema.table,
                    f"The target does not allow the name {name!r}: at most {dialect.name_limit}.",
                    "Choose shorter names by sink.table, or exclude the column (source.columns).",
                )
        if not schema.key:
            yield Finding(
                schema.table,
                "It has no key: a mirror can't tell its rows apart.",
                f"Name columns that are unique and NOT NULL: source.keys: {{{schema.table}: […]}}; or exclude the table.",
            )
    for group in by_target.values():
        if len(group) > 1:
            tables = " and ".join(sorted(str(schema.table) for schema in group))
            yield Finding(
                None, f"{tables} would be written into one table.", "Give them different names by sink.table."
            )


def policy_problems(
    schemas: Sequence[TableSchema], columns_of: Mapping[tuple[str, str], Iterable[str]]
) -> Iterator[Finding]:
    """Yields names in `sink.on_bad_value_in`, by (database, table), that the job does not copy."""
    known = {(schema.table.database, schema.table.name): schema for schema in schemas}
    for (database, name), columns in columns_of.items():
        schema = known.get((database, name))
        if schema is None:
            yield Finding(None, f"sink.on_bad_value_in names {database}.{name}, which the job does not copy")
            continue
        captured = {column.name for column in schema.captured}
        for column in columns:
            if column not in captured:
                yield Finding(
                    schema.table,
                    f"sink.on_bad_value_in names column {column}, which the job does not copy.",
                    f"Name one of: {', '.join(sorted(captured))}.",
                )


def ownership_findings(
    schema: TableSchema, target: TargetName, found: Found, job: JobIdentity | None
) -> Iterator[Finding]:
    """Yields whether the job may have the table, and what becomes of it."""
    owner = found.owner
    if owner is None and found.was_written:
        yield no_mark(schema.table, target, "sink.url")
    elif owner is not None and (job is None or owner.job.uuid != job.uuid):
        this = "this one has not started yet" if job is None else f"this is {job.name} ({job.uuid})"
        yield Finding(
            schema.table,
            f"{target} belongs to job {owner.job.name} ({owner.job.uuid}), table {owner.source_table}; {this}.",
            "Choose another name by sink.table; or drop that table and delete its row in tidemark_tables.",
        )
    elif owner is not None and owner.source_table != str(schema.table):
        yield Finding(
            schema.table,
            f"{target} is the copy of {owner.source_table}.",
            f"Undo the change of sink.table, or {START_OVER}.",
        )
    elif owner is not None and owner.created and found.table is None:
        yield Finding(
            schema.table,
            f"{target}, which this job wrote, is gone.",
            START_OVER_NOW,
        )
    elif owner is None and found.table is not None and not found.is_empty:
        yield Finding(
            schema.table,
            f"{target} has rows that this job did not write.",
            "Empty or drop that table, or choose another name by sink.table.",
        )
    elif found.table is None:
        yield Finding(schema.table, f"will be created as {target}")
    elif owner is None:
        yield Finding(schema.table, f"the empty table {target} will be used")


def type_findings(schema: TableSchema, dialect: Dialect) -> Iterator[Finding]:
    """Yields the columns that the target has no type for. For a table that the job will create."""
    for column in schema.captured:
        try:
            dialect.column_type(column, key=column.name in schema.key)
        except ValueError as exc:
            remedy = (
                f"Choose another key: source.keys: {{{schema.table}: […]}}."
                if column.name in schema.key
                else f"Exclude it: source.columns: {{{schema.table}: {{exclude: [{column.name}]}}}}."
            )
            yield Finding(schema.table, f"The target has no type for column {column.name}: {exc}.", remedy)


def table_findings(
    schema: TableSchema, target: TargetName, existing: TargetTable, dialect: Dialect
) -> Iterator[Finding]:
    """For a table that exists: everything that could change, refuse or lose a value."""
    table = schema.table
    if existing.engine_problem is not None:
        yield Finding(table, f"{target} can't be written: {existing.engine_problem}.", _LET_JOB_CREATE)
        return
    if sorted(map(dialect.same_column, existing.key)) != sorted(map(dialect.same_column, schema.key)):
        yield Finding(
            table,
            f"{target} has the primary key ({', '.join(existing.key) or 'none'}), the source ({', '.join(schema.key)}).",
            _LET_JOB_CREATE,
        )
    if existing.foreign_keys:
        yield Finding(
            table,
            f"{target} has foreign keys: {', '.join(existing.foreign_keys)}.",
            "Drop them: a mirror deletes rows and inserts them again, one table after the other.",
        )
    if existing.triggers:
        yield Finding(
            table,
            f"{target} has triggers or rules ({', '.join(existing.triggers)}): what they change makes the copy differ from the "
            "source",
        )
    if existing.unique_indexes:
        names = ", ".join(existing.unique_indexes)
        yield Finding(
            table, f"{target} has unique indexes besides its key ({names}): the first snapshot can violate them"
        )
    wanted = {dialect.same_column(column.name) for column in schema.captured}
    for extra in existing.columns:
        if dialect.same_column(extra.name) not in wanted and not extra.may_be_left_out:
            yield Finding(table, f"{target} has a column {extra.name} that must have a value.", _LET_JOB_CREATE)
    for column in schema.captured:
        found = next(
            (c for c in existing.columns if dialect.same_column(c.name) == dialect.same_column(column.name)), None
        )
        problem = "is missing" if found is None else _column_problem(schema, column, found, dialect)
        if problem is not None:
            yield Finding(table, f"{target}: column {column.name} {problem}.", _LET_JOB_CREATE)


def _column_problem(schema: TableSchema, column: Column, found: TargetColumn, dialect: Dialect) -> str | None:
    if found.generated:
        return "is generated"
    try:
        value_range: ValueRange = dialect.value_range(column)
    except ValueError as exc:
        return str(exc)
    if found.value_range is None or not holds(found.value_range, value_range):
        return f"is {found.type_name}, which can't hold every {column.source_type}"
    if column.nullable and column.name not in schema.key and not found.nullable:
        return "is NOT NULL, but the source's column may be null"
    return dialect.key_problem(column, found) if column.name in schema.key else None
