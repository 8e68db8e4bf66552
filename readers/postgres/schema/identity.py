"""Checks that a table is still the one that the job started with: by its OID, its columns' numbers and its key.

Names do not identify tables: another table may have the name now.
"""

from collections.abc import Collection, Iterable, Mapping

from tidemark.readers.postgres.connect import quote_table
from tidemark.readers.postgres.schema.table_facts import TableFacts
from tidemark.readers.postgres.schema.widening import is_wider
from tidemark.state.errors import SchemaChangedError, TableDroppedError
from tidemark.state.partitions import WatchedTable
from tidemark.state.remedies import LEAVE_OUT, START_OVER, START_OVER_NOW
from tidemark.state.table import TableId, TableSchema


def oids_of(schemas: Iterable[TableSchema]) -> dict[TableId, int]:
    """Returns the tables' OIDs. Every schema that was read from PostgreSQL has one."""
    return {schema.table: schema.oid for schema in schemas if schema.oid is not None}


def require_same_tables(found: Iterable[TableSchema], known: Iterable[TableSchema]) -> None:
    """Raises SchemaChangedError if a table that was found, or a column of one, is another one than the job's of that name, or
    if the key changed."""
    now = {schema.table: schema for schema in found}
    for schema in known:
        if schema.table in now:
            if now[schema.table].oid != schema.oid:
                raise is_another_table(schema.table)
            _require_same_columns(schema, {column.name: column.number for column in now[schema.table].columns})
            _require_same_key(schema, now[schema.table].key)


def require_same_shape(schema: TableSchema, facts: TableFacts, *, all_logged: bool) -> None:
    """Raises SchemaChangedError if a captured column is gone, or its name is another column's, if there is a new column, or if
    the job's key is no longer the table's. `all_logged` False: the publication lists columns, so the log has no new ones."""
    _require_same_columns(schema, {column.name: column.number for column in facts.columns})
    known = {column.name for column in schema.present if not column.generated}
    new = [column.name for column in facts.columns if not column.generated and column.name not in known]
    if new and all_logged:
        raise SchemaChangedError(
            f"{schema.table} has a new column ({', '.join(new)}), which the copy lacks.",
            f"If no row of the table was written since, drop the column and run the job again. {LEAVE_OUT}",
            schema.table,
        )
    keys = facts.keys if facts.primary_key is None else (facts.primary_key,)
    names = [tuple(filter(None, index.columns)) for index in keys]
    same = next((key for key in names if set(key) == set(schema.key)), None)
    _require_same_key(schema, same or next(iter(names), ()))


def _require_same_key(schema: TableSchema, key: tuple[str, ...]) -> None:
    """A copy merges rows by the job's key, so it must identify them. A table without a key may get one."""
    if schema.key and set(key) != set(schema.key):
        now = f"({', '.join(key)})" if key else "missing"
        raise SchemaChangedError(
            f"The key of {schema.table} is {now} now, but the job finds its rows by ({', '.join(schema.key)}).",
            f"Undo the change and run the job again, or {START_OVER}.",
            schema.table,
        )


def _require_same_columns(schema: TableSchema, numbers: Mapping[str, int | None]) -> None:
    changed = [column.name for column in schema.captured if numbers.get(column.name) != column.number]
    if changed:
        many = len(changed) > 1
        raise SchemaChangedError(
            f"{', '.join(changed)} of {schema.table} {'are other columns' if many else 'is another column'} now, or gone: "
            "columns were renamed or dropped, and the log does not have the values of others that have their names.",
            f"If columns were renamed, give them back their names and run the job again. Otherwise {START_OVER}.",
            schema.table,
        )


def require_same_types(schema: TableSchema, before: WatchedTable, now: WatchedTable) -> None:
    """Raises SchemaChangedError if the text of values that were copied is another one now, or was for a while: the log has the
    text of the moment. A new label of an enum is no such change."""
    parts, numbers = dict(now.type_parts), [column.number for column in schema.captured]
    changed = {int(name.split()[0]) for name, text in before.type_parts if parts.get(name, text) != text}
    altered = changed.intersection(numbers)
    if altered:
        raise types_altered(schema, altered)


def require_same_values(schema: TableSchema, facts: TableFacts) -> None:
    """Raises SchemaChangedError if a captured column has another type, unless each value is the same in both. ALTER COLUMN …
    TYPE writes no row if the stored bytes stay: `timestamp` to `timestamptz` in UTC, `cidr` to `inet`, `integer` to `oid`. They
    may mean another value."""
    now = {column.name: column.source_type for column in facts.columns}
    for column in schema.captured:
        if not is_wider(column.source_type, now[column.name]):
            raise SchemaChangedError(
                f"{schema.table} has {column.name} as {now[column.name]}, which was {column.source_type}.",
                LEAVE_OUT,
                schema.table,
            )


def types_altered(schema: TableSchema, numbers: Collection[int]) -> SchemaChangedError:
    names = [column.name for column in schema.captured if column.number in numbers]
    return SchemaChangedError(
        f"The type of {', '.join(names)} of {schema.table} was altered: a label of an enum was renamed, or an attribute of "
        "a composite type was added, dropped or altered. Values that were copied have another text now, or had one in between.",
        LEAVE_OUT,
        schema.table,
    )


def is_another_table(table: TableId) -> SchemaChangedError:
    return SchemaChangedError(
        f"{table} is another table now: the job's table of that name was renamed, swapped, or dropped and created again.",
        "If the job's table still exists, give it back its name and run the job again: nothing is lost. Otherwise "
        f"{START_OVER}.",
        table,
    )


def was_renamed(table: TableId, name: TableId) -> SchemaChangedError:
    return SchemaChangedError(
        f"{table} is called {name} now.",
        "Give it back its name and run the job again: nothing is lost. To copy it under its new name, write that in "
        "source.tables, and the old one in source.exclude_tables.",
        table,
    )


def is_gone(table: TableId) -> TableDroppedError:
    return TableDroppedError(
        f"{table} was dropped, and its rows with it, which is not in the log.",
        LEAVE_OUT,
        table,
    )


def is_unlogged(table: TableId) -> SchemaChangedError:
    return SchemaChangedError(
        f"{table} is unlogged now: its changes are not in the log.",
        f"ALTER TABLE {quote_table(table)} SET LOGGED, then {START_OVER}.",
        table,
    )


def was_rewritten(table: TableId) -> SchemaChangedError:
    return SchemaChangedError(
        f"All rows of {table} were rewritten, and the log does not have their values: by ALTER TABLE (a column's TYPE, SET "
        "LOGGED), by VACUUM FULL, CLUSTER or pg_repack when every row is new since the job's last epoch, or by TRUNCATE with "
        "another DDL after it.",
        f"{START_OVER_NOW} If the publication has the table by its name (FOR TABLE), VACUUM FULL, CLUSTER, pg_repack and "
        "TRUNCATE do not stop a job.",
        table,
    )
