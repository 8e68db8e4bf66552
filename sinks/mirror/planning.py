"""What a table's copy needs in the target: where it goes, how it is created, what an existing one lacks. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conf.tables import TableName, TableTemplate
from sinks.mirror.domains import Domain, holds
from sinks.mirror.target import Dialect, Owner, Place, TargetColumn, TargetTable
from sinks.sink import Finding, JobIdentity
from state.table import Column, TableId, TableSchema

_CREATE_ANEW = "Drop that table and let the job create it, or change it so that it fits."


@dataclass(frozen=True, slots=True)
class Found:
    """What stands at a table's place: the table if there is one, whether it has rows, and whose it is."""

    table: TargetTable | None
    is_empty: bool
    owner: Owner | None


def place_of(table: TableId, template: TableTemplate, home: str) -> Place:
    schema, name = template.target(TableName(table.database, table.name))
    return Place(home if schema is None else schema, name)


def route_problems(places: Sequence[tuple[TableSchema, Place]], dialect: Dialect) -> Iterator[Finding]:
    """Tables that can't be told apart in the target, names it does not take, and tables without a key."""
    by_place: defaultdict[tuple[str, str], list[TableSchema]] = defaultdict(list)
    for schema, place in places:
        by_place[dialect.same_name(place.schema), dialect.same_name(place.table)].append(schema)
        names = [place.schema, place.table, *(column.name for column in schema.captured)]
        for name in names:
            if not dialect.name_fits(name):
                yield Finding(
                    schema.table,
                    f"The target takes no name {name!r}: at most {dialect.name_limit}.",
                    "Choose shorter names by sink.table, or exclude the column (source.columns).",
                )
        if not schema.key:
            yield Finding(
                schema.table,
                "It has no key, so that its rows can't be told apart in a mirror.",
                f"Name columns that are unique and NOT NULL: source.keys: {{{schema.table}: […]}}; or exclude the table.",
            )
    for group in by_place.values():
        if len(group) > 1:
            tables = " and ".join(sorted(str(schema.table) for schema in group))
            yield Finding(None, f"{tables} would be written into one table.", "Tell them apart in sink.table.")


def ownership_findings(schema: TableSchema, place: Place, found: Found, job: JobIdentity | None) -> Iterator[Finding]:
    owner = found.owner
    if owner is not None and (job is None or owner.job.uuid != job.uuid):
        this = "this one has not started yet" if job is None else f"this is {job.name} ({job.uuid})"
        yield Finding(
            schema.table,
            f"{place} belongs to job {owner.job.name} ({owner.job.uuid}), table {owner.source_table}; {this}.",
            "Choose another place by sink.table; or, to begin anew, drop that table and delete its row in tidemark_tables.",
        )
    elif owner is not None and owner.source_table != str(schema.table):
        yield Finding(
            schema.table,
            f"{place} holds the copy of {owner.source_table}.",
            "Undo the change of sink.table, or begin anew with a new checkpoint.",
        )
    elif owner is not None and owner.created and found.table is None:
        yield Finding(
            schema.table,
            f"{place}, which this job wrote, is gone.",
            "Begin anew: a new checkpoint, the other copies dropped, this job's rows in tidemark_tables deleted.",
        )
    elif owner is None and found.table is not None and not found.is_empty:
        yield Finding(
            schema.table,
            f"{place} holds rows that this job did not write.",
            "Empty or drop that table, or choose another place by sink.table.",
        )
    elif found.table is None:
        yield Finding(schema.table, f"will be created as {place}")
    elif owner is None:
        yield Finding(schema.table, f"the empty table {place} will be used")


def type_findings(schema: TableSchema, dialect: Dialect) -> Iterator[Finding]:
    """For a table that is to be created."""
    for column in schema.captured:
        try:
            dialect.column_type(column, key=column.name in schema.key)
        except ValueError as exc:
            remedy = (
                f"Choose another key: source.keys: {{{schema.table}: […]}}."
                if column.name in schema.key
                else f"Exclude it: source.columns: {{{schema.table}: {{exclude: [{column.name}]}}}}."
            )
            yield Finding(schema.table, f"Column {column.name} has no place in the target: {exc}.", remedy)


def table_findings(schema: TableSchema, place: Place, existing: TargetTable, dialect: Dialect) -> Iterator[Finding]:
    """For a table that exists: everything that could change, refuse or lose a value."""
    table = schema.table
    if existing.engine_problem is not None:
        yield Finding(table, f"{place} can't be written: {existing.engine_problem}.", _CREATE_ANEW)
        return
    if sorted(map(dialect.same_column, existing.key)) != sorted(map(dialect.same_column, schema.key)):
        yield Finding(
            table,
            f"{place} has the primary key ({', '.join(existing.key) or 'none'}), the source ({', '.join(schema.key)}).",
            _CREATE_ANEW,
        )
    if existing.foreign_keys:
        yield Finding(
            table,
            f"{place} has foreign keys: {', '.join(existing.foreign_keys)}.",
            "Drop them: a mirror deletes and inserts rows anew, table after table.",
        )
    if existing.unique_indexes:
        names = ", ".join(existing.unique_indexes)
        yield Finding(
            table, f"{place} has unique indexes besides its key ({names}): the first snapshot may violate them"
        )
    wanted = {dialect.same_column(column.name) for column in schema.captured}
    for extra in existing.columns:
        if dialect.same_column(extra.name) not in wanted and not extra.may_be_left_out:
            yield Finding(table, f"{place} has a column {extra.name} that must have a value.", _CREATE_ANEW)
    for column in schema.captured:
        found = next(
            (c for c in existing.columns if dialect.same_column(c.name) == dialect.same_column(column.name)), None
        )
        problem = "is missing" if found is None else _column_problem(schema, column, found, dialect)
        if problem is not None:
            yield Finding(table, f"{place}: column {column.name} {problem}.", _CREATE_ANEW)


def _column_problem(schema: TableSchema, column: Column, found: TargetColumn, dialect: Dialect) -> str | None:
    if found.generated:
        return "is generated"
    try:
        domain: Domain = dialect.domain(column)
    except ValueError as exc:
        return str(exc)
    if found.domain is None or not holds(found.domain, domain):
        return f"is {found.type_name}, which does not hold every {column.source_type}"
    if column.nullable and column.name not in schema.key and not found.nullable:
        return "is NOT NULL, the source's may be null"
    return dialect.key_problem(column, found) if column.name in schema.key else None
