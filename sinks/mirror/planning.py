"""Decides where a table's copy goes, and whether an existing table can take it. Pure."""

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.conf.tables import TableName, TableTemplate
from tidemark.sinks.mirror.target import Dialect, Owner, TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import Decimals, Integers, Labels, ValueRange, holds
from tidemark.sinks.sink import Finding, JobIdentity, no_mark, without_column
from tidemark.state.errors import SinkError
from tidemark.state.remedies import ANOTHER_KEY, NEEDS_KEY, ONE_NAME, START_OVER, read_again
from tidemark.state.table import Column, TableId, TableSchema, is_own_table

_LET_JOB_CREATE = "Drop that table and let the job create it, or change it so that it fits."


@dataclass(frozen=True, slots=True)
class Found:
    """The target as it was found: the table if it exists, whether it is empty, its owner, and whether the job has written it
    before. `was_emptied`: it is another one than the job saw last, and has no rows."""

    table: TargetTable | None
    is_empty: bool
    owner: Owner | None
    was_written: bool = False
    was_emptied: bool = False


def target_of(table: TableId, template: TableTemplate, home: str) -> TargetName:
    """Returns the name of the table's copy. `home` is the schema if `template` names none."""
    schema, name = template.target(TableName(table.database, table.name))
    return TargetName(home if schema is None else schema, name)


def route_problems(
    targets: Sequence[tuple[TableSchema, TargetName]], dialect: Dialect, *, appends_keyless: bool
) -> Iterator[Finding]:
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
        for name, remedy in _names(target):
            if not dialect.name_fits(name):
                yield Finding(schema.table, _misnamed(name, dialect), remedy)
        yield from _same_columns(schema, dialect)
        if len(schema.key) > dialect.max_key_columns:
            yield Finding(
                schema.table,
                f"Its key has {len(schema.key)} columns, and the target finds rows by at most {dialect.max_key_columns}.",
                ANOTHER_KEY,
            )
        if not schema.key and not appends_keyless:
            yield Finding(
                schema.table,
                "It has no key: a mirror can't tell its rows apart.",
                NEEDS_KEY,
            )
    for group in by_target.values():
        if len(group) > 1:
            tables = " and ".join(sorted(str(schema.table) for schema in group))
            yield Finding(
                None,
                f"{tables} would be written into one table.",
                ONE_NAME,
            )


def _names(target: TargetName) -> Iterator[tuple[str, str]]:
    """Yields the names of the copy, and what is to be done if the target does not allow them."""
    yield target.schema, "Choose another schema by sink.table."
    yield target.table, "Choose another name by sink.rename."


def _misnamed(name: str, dialect: Dialect) -> str:
    return f"The target does not allow the name {name!r}: at most {dialect.name_limit}."


def _same_columns(schema: TableSchema, dialect: Dialect) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for column in schema.captured:
        other = seen.setdefault(dialect.same_column(column.name), column.name)
        if other != column.name:
            text = f"The target takes the names of its columns {other} and {column.name} for one."
            yield Finding(
                schema.table, text, without_column(schema, other if column.name in schema.key else column.name)
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
            "Leave it out: source.exclude_tables. A job of its own can copy it under another name.",
        )
    elif owner is not None and owner.created and found.table is None:
        yield Finding(
            schema.table,
            f"{target}, which this job wrote, is gone.",
            f"{_reading_again(schema.table)} In other modes than full+incremental, {START_OVER}.",
        )
    elif owner is not None and found.was_written and found.was_emptied:
        yield emptied(schema.table, target)
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


def was_replaced(table: TargetTable | None, owner: Owner | None) -> bool:
    """True if the table is another one than the job saw last, or was rewritten."""
    if table is None or owner is None or None in (table.incarnation, owner.incarnation):
        return False
    return table.incarnation != owner.incarnation


def emptied(table: TableId, target: TargetName) -> Finding:
    """The finding for a copy that lost its rows."""
    return Finding(
        table,
        f"{target} was emptied or created again by somebody else: it has no rows, and is another table than the job wrote "
        "last.",
        f"{_reading_again(table)} In other modes than full+incremental, put its rows back, or {START_OVER}.",
    )


def type_findings(schema: TableSchema, dialect: Dialect) -> Iterator[Finding]:
    """Yields the columns that no table of the target can have. For a table that the job will create."""
    for column in schema.captured:
        if (problem := _no_column(schema, column, dialect)) is not None:
            yield Finding(schema.table, problem, without_column(schema, column.name))


def _no_column(schema: TableSchema, column: Column, dialect: Dialect) -> str | None:
    """Returns why no table of the target can have the column, None if one can."""
    if not dialect.name_fits(column.name):
        return _misnamed(column.name, dialect)
    try:
        dialect.column_type(column, key=column.name in schema.key)
    except ValueError as exc:
        return f"The target has no type for column {column.name}: {exc}."
    return None


def adapting_clauses(schema: TableSchema, existing: TargetTable, dialect: Dialect) -> list[str]:
    """Returns clauses of ALTER TABLE that let a table take the source's rows: missing columns are added, and those that can't
    hold every value are replaced. For a table that is emptied before it is written again. A column of the key is not replaced,
    but gets a type that is wider than its own. Columns that the target can't have stay as they are."""
    clauses = []
    if not _key_may_stay(schema, existing, dialect) or any(_same_columns(schema, dialect)):
        return []  # the copy stays whole
    for column in schema.captured:
        found = find_column(existing, column, dialect)
        if found is not None and _misfit(schema, column, found, dialect) is None:
            continue
        if column.name in schema.key:
            clauses += _widened_key(column, found, dialect)
            continue
        if _no_column(schema, column, dialect) is not None:
            continue
        clauses += [] if found is None else [dialect.drop_column(found.name)]
        clauses.append(f"ADD COLUMN {dialect.column_definition(column, key=False)}")
    return clauses


def compares_otherwise(schema: TableSchema, existing: TargetTable, dialect: Dialect) -> bool:
    """True if rows that the copy has may have keys that are equal once `adapting_clauses` have changed how the key compares."""
    found = [(column, find_column(existing, column, dialect)) for column in map(schema.column, schema.key)]
    return any(held is not None and dialect.key_problem(column, held) is not None for column, held in found)


def columns_to_make(schema: TableSchema, existing: TargetTable, dialect: Dialect) -> list[Column]:
    """Returns the columns that a table lacks, or has of a type that does not fit."""
    found = [(column, find_column(existing, column, dialect)) for column in schema.captured]
    return [column for column, held in found if held is None or _misfit(schema, column, held, dialect) is not None]


def key_clauses(schema: TableSchema, existing: TargetTable, dialect: Dialect) -> list[str]:
    """Returns clauses of ALTER TABLE that give an empty table the source's key, and columns that take the source's rows. None
    if it has that key already, perhaps after `adapting_clauses`, or could not be written then: the copy stays whole.

    Columns of the earlier key that the source has no more are dropped, and unique indexes with them: with fewer columns they
    would refuse rows that differ in those only. A key of numbers that the copy gives its rows stays."""
    if not schema.key or existing.engine_problem is not None or existing.foreign_keys:
        return []
    if _key_may_stay(schema, existing, dialect) or len(schema.key) > dialect.max_key_columns:
        return []
    if any(_same_columns(schema, dialect)):
        return []
    same = dialect.same_column
    old_key, captured = set(map(same, existing.key)), {same(column.name) for column in schema.captured}
    gone: list[str] = []
    for extra in existing.columns:
        if same(extra.name) in captured:
            continue
        if same(extra.name) in old_key and not extra.may_be_left_out:
            gone.append(extra.name)
        elif same(extra.name) in old_key or not extra.may_be_left_out:
            return []
    columns = [*dialect.drop_indexes(existing, gone), *map(dialect.drop_column, gone)]
    for column in schema.captured:
        found, is_key = find_column(existing, column, dialect), column.name in schema.key
        if found is None and not dialect.name_fits(column.name):
            return []
        try:
            if found is None:
                columns.append(f"ADD COLUMN {dialect.column_definition(column, key=is_key)}")
                continue
            fits = _misfit(schema, column, replace(found, nullable=True), dialect) is None
            if not fits or is_key or same(column.name) in old_key or not found.nullable:
                columns += dialect.retype_empty(column, found, key=is_key, fits=fits)
        except ValueError:
            return []
    return [*dialect.drop_key(existing), *columns, dialect.add_key(schema.key)]


def is_replaceable(schema: TableSchema, existing: TargetTable, dialect: Dialect, columns: Collection[str]) -> bool:
    """True if rows of the source can take the place of the copy's rows, one range of `columns` after the other, unless the copy
    orders these otherwise than the source (`orders_alike`).

    Its key must begin with them, so that a range is found by it. It has no other unique index: a row that is still there could
    have the value of a new one. It may lack columns of the source, which are added. A column of another type would be
    replaced, and rows that are still there would lose its values."""
    if existing.engine_problem is not None or not existing.updated_in_place or existing.foreign_keys:
        return False
    if not _has_key(schema, existing, dialect):
        return False
    leading = existing.key[: len(columns)]
    if list(map(dialect.same_column, leading)) != list(map(dialect.same_column, columns)):
        return False
    found = [(column, find_column(existing, column, dialect)) for column in schema.captured]
    return all(held is None or _misfit(schema, column, held, dialect) is None for column, held in found)


def has_independent_rows(schema: TableSchema, existing: TargetTable, dialect: Dialect) -> bool:
    """True if the server lets rows of different keys be written by several transactions in any order. The key is made of
    integers in the source."""
    return (
        existing.engine_problem is None
        and existing.updated_in_place
        and not existing.triggers
        and not existing.foreign_keys
        and _has_key(schema, existing, dialect)
        and holds_integers(schema, existing, dialect, schema.key)
    )


def holds_integers(schema: TableSchema, existing: TargetTable, dialect: Dialect, columns: Collection[str]) -> bool:
    """True if these columns are numbers in the target, ordered as such."""
    found = [find_column(existing, schema.column(name), dialect) for name in columns]
    return all(column is not None and isinstance(column.value_range, (Integers, Decimals)) for column in found)


def _key_may_stay(schema: TableSchema, existing: TargetTable, dialect: Dialect) -> bool:
    """True if the table has the source's key, and its columns hold all values, or can be widened for that."""
    if not _has_key(schema, existing, dialect):
        return False
    for column in (schema.column(name) for name in schema.key):
        found = find_column(existing, column, dialect)
        fits = found is not None and _misfit(schema, column, found, dialect) is None
        if not fits and not _widened_key(column, found, dialect):
            return False
    return True


def _widened_key(column: Column, found: TargetColumn | None, dialect: Dialect) -> list[str]:
    if found is None or found.generated or found.value_range is None:
        return []
    try:
        is_wider = holds(dialect.value_range(column), found.value_range)
        return [dialect.widen_column(column, key=True)] if is_wider else []
    except ValueError:
        return []


def added_columns(schema: TableSchema, existing: TargetTable, dialect: Dialect, names: Collection[str]) -> list[str]:
    """Returns clauses of ALTER TABLE that add those of the columns that a table lacks, with their constants as defaults. Raises
    SinkError for a column that the target can't have."""
    clauses = []
    for column in schema.captured:
        if column.name in names and find_column(existing, column, dialect) is None:
            if (problem := _no_column(schema, column, dialect)) is not None:
                raise SinkError(f"{schema.table}: {problem}", without_column(schema, column.name))
            try:
                default = "" if column.constant is None else f" DEFAULT {dialect.constant(column)}"
            except ValueError as exc:
                problem = f"{schema.table}: The target has no default for column {column.name}: {exc}."
                raise SinkError(problem, without_column(schema, column.name)) from exc
            clauses.append(f"ADD COLUMN {dialect.column_definition(column, key=False)}{default}")
    return clauses


def widened_columns(schema: TableSchema, existing: TargetTable, dialect: Dialect, names: Collection[str]) -> list[str]:
    """Returns clauses of ALTER TABLE that let those of the columns hold every value that can't. A column that is NOT NULL, and
    one that the target has no type for, stay as they are."""
    clauses = []
    for column in schema.captured:
        found = find_column(existing, column, dialect) if column.name in names else None
        if found is None or found.generated or not found.nullable or _misfit(schema, column, found, dialect) is None:
            continue
        with contextlib.suppress(ValueError):
            clauses.append(dialect.widen_column(column, key=False))
    return clauses


def columns_to_drop(schema: TableSchema, existing: TargetTable, dialect: Dialect, names: Collection[str]) -> list[str]:
    """Returns the names of those of the columns that a table has. Not those that it needs: it may take two names for one, and
    a key goes by `key_clauses` only."""
    needed = {dialect.same_column(column.name) for column in schema.captured} | set(
        map(dialect.same_column, existing.key)
    )
    gone = set(map(dialect.same_column, names)) - needed
    return [column.name for column in existing.columns if dialect.same_column(column.name) in gone]


def without_defaults(schema: TableSchema, dialect: Dialect, names: Collection[str]) -> list[str]:
    """Returns clauses of ALTER TABLE that take the constants away as defaults: a row that is written without the column,
    because the source dropped it, has NULL there."""
    columns = [column for column in schema.captured if column.name in names and column.constant is not None]
    return [dialect.drop_default(column) for column in columns]


def _reading_again(table: TableId) -> str:
    return read_again(TableName(table.database, table.name))


def table_findings(
    schema: TableSchema,
    target: TargetName,
    existing: TargetTable,
    dialect: Dialect,
    *,
    is_owned: bool = False,
    is_new: bool = False,
) -> Iterator[Finding]:
    """Yields everything in an existing table that could change, refuse or lose a value. `is_owned`: it is the job's copy.
    `is_new`: no job has written it. A copy that has been written, and lacks characters, goes on until one of them comes, which
    the server refuses: perhaps none does."""
    table = schema.table
    let_job_create = _LET_JOB_CREATE
    if is_owned:
        let_job_create = f"Drop that table, or change it so that it fits. {_reading_again(table)}"
    if existing.engine_problem is not None:
        yield Finding(table, f"{target} can't be written: {existing.engine_problem}.", let_job_create)
        return
    if not _has_key(schema, existing, dialect):
        held, needed = (", ".join(key) or "none" for key in (existing.key, schema.key))
        yield Finding(
            table,
            f"{target} has the primary key ({held}), the source ({needed}).",
            let_job_create,
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
            yield Finding(table, f"{target} has a column {extra.name} that must have a value.", let_job_create)
    for column in schema.captured:
        found = find_column(existing, column, dialect)
        if found is None and (never := _no_column(schema, column, dialect)) is not None:
            yield Finding(table, never, without_column(schema, column.name))
            continue
        look = _misfit if is_new else _column_problem
        problem = "is missing" if found is None else look(schema, column, found, dialect)
        if problem is None:
            continue
        if is_owned and _is_adapted(schema, column, existing, dialect):
            yield Finding(
                table,
                f"{target}: column {column.name} {problem}.",
                f"{_reading_again(table)} It changes the copy so that it fits.",
            )
        else:
            yield Finding(table, f"{target}: column {column.name} {problem}.", let_job_create)


def _is_adapted(schema: TableSchema, column: Column, existing: TargetTable, dialect: Dialect) -> bool:
    """True if `adapting_clauses` lets the copy take the column's values."""
    if column.name in schema.key or not _key_may_stay(schema, existing, dialect) or any(_same_columns(schema, dialect)):
        return False
    return _no_column(schema, column, dialect) is None


def _has_key(schema: TableSchema, existing: TargetTable, dialect: Dialect) -> bool:
    """The copy of a table without a key may have a key of columns that only the copy has: numbers of its rows."""
    if not schema.key:
        captured = {dialect.same_column(column.name) for column in schema.captured}
        return captured.isdisjoint(map(dialect.same_column, existing.key))
    return sorted(map(dialect.same_column, existing.key)) == sorted(map(dialect.same_column, schema.key))


def find_column(existing: TargetTable, column: Column, dialect: Dialect) -> TargetColumn | None:
    name = dialect.same_column(column.name)
    return next((found for found in existing.columns if dialect.same_column(found.name) == name), None)


def _misfit(schema: TableSchema, column: Column, found: TargetColumn, dialect: Dialect) -> str | None:
    """Returns why a column is not as it must be in a table that the job begins to write, None if it is."""
    return _column_problem(schema, column, found, dialect) or dialect.charset_problem(column, found)


def _column_problem(schema: TableSchema, column: Column, found: TargetColumn, dialect: Dialect) -> str | None:
    if found.generated:
        return "is generated"
    try:
        value_range: ValueRange = dialect.value_range(column)
    except ValueError as exc:
        return str(exc)
    if found.value_range is None or not holds(found.value_range, value_range):
        return f"is {found.type_name}, which can't hold every {column.source_type}"
    if isinstance(found.value_range, Labels) and found.value_range.meet(found.collation):
        return f"is {found.type_name}, and its collation {found.collation} takes some of these labels for one"
    if column.nullable and column.name not in schema.key and not found.nullable:
        return "is NOT NULL, but the source's column may be null"
    return dialect.key_problem(column, found) if column.name in schema.key else None
