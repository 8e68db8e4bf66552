"""Selects the tables of a job, and describes their columns and keys as the log's row images have them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tidemark.conf.tables import TableGlob
from tidemark.readers.findings import Finding, own_table_refused
from tidemark.readers.mysql.connect import Connection
from tidemark.readers.mysql.schema.table_facts import FEW_TABLES, TABLE_KINDS, Index, TableFacts, read_tables
from tidemark.readers.mysql.schema.types import canonical_type, check_logged_form, parse_source_type
from tidemark.readers.schema_checks import (
    BACK_AGAIN,
    raise_useless,
    require_copied_key,
    require_excluded_columns,
    require_fitting_override,
    require_logged_key,
    spelling_hint,
    warnings_of_views,
    warnings_of_wildcards,
    without_excluded,
)
from tidemark.readers.statistics import TableStatistics
from tidemark.state.errors import (
    JobFileError,
    NothingSelectedError,
    SchemaChangedError,
    SourceNotUsableError,
    UnsupportedTypeError,
)
from tidemark.state.source_types import SPATIAL_TYPES
from tidemark.state.table import Column, TableId, TableSchema, is_own_table

SYSTEM_DATABASES = frozenset({"information_schema", "performance_schema", "mysql", "sys", "ndbinfo"})

_INEXACT_TYPES = frozenset({"float", "double"})
"""Types whose values do not compare equal to the text that the server prints for them."""

_UNKEYED_TYPES = _INEXACT_TYPES | SPATIAL_TYPES | {"json", "vector"}


def find_tables(
    connection: Connection,
    include: Sequence[TableGlob],
    exclude: Sequence[TableGlob] = (),
    *,
    each_matches: bool = True,
) -> list[TableId]:
    """See `select_tables`."""
    return select_tables(visible_kinds(connection, include), include, exclude, each_matches=each_matches)


def select_tables(
    kinds: Mapping[TableId, str],
    include: Sequence[TableGlob],
    exclude: Sequence[TableGlob] = (),
    *,
    each_matches: bool = True,
) -> list[TableId]:
    """The tables that `include` matches and `exclude` does not, without Tidemark's own, sorted. `kinds`: see `visible_kinds`.

    Globs match base tables outside of the system databases. Raises SourceNotUsableError for all entries of `include` that name
    anything else (a view, a system table) or match nothing that the account may see, or if no table is left. `each_matches`
    False: wildcards may match nothing, if others match something.
    """
    found = {glob: _matched(kinds, glob) for glob in include}
    selected = set[TableId]().union(*found.values())
    useless = [
        _nothing_found(glob, kinds)
        for glob, tables in found.items()
        if not tables and (each_matches or not selected or glob.only_table is not None)
    ]
    raise_useless(useless)
    return without_excluded(selected, exclude)


def _matched(kinds: Mapping[TableId, str], glob: TableGlob) -> set[TableId]:
    return {
        table
        for table, kind in kinds.items()
        if kind in TABLE_KINDS
        and table.database.lower() not in SYSTEM_DATABASES
        and not is_own_table(table.name)
        and glob.matches(table.database, table.name)
    }


def wildcards_without_tables(kinds: Mapping[TableId, str], include: Sequence[TableGlob]) -> list[Finding]:
    """Warns of wildcards that match no table now."""
    return warnings_of_wildcards(glob for glob in include if not _matched(kinds, glob))


def views_left_out(
    kinds: Mapping[TableId, str], include: Sequence[TableGlob], exclude: Sequence[TableGlob] = ()
) -> list[Finding]:
    """Warns of views that `include` matches and `exclude` does not. They are not copied."""
    views = [t for t, kind in kinds.items() if kind == "VIEW" and t.database.lower() not in SYSTEM_DATABASES]
    return warnings_of_views(views, include, exclude)


def load_schema(
    connection: Connection,
    table: TableId,
    *,
    exclude_columns: Collection[str] = (),
    key_override: Sequence[str] | None = None,
    version: int = 1,
) -> TableSchema:
    """The current schema of one table; see `schema_of`. For many tables call `read_tables`, then `schema_of` for each."""
    facts = read_tables(connection, [table])[table]
    return schema_of(facts, exclude_columns=exclude_columns, key_override=key_override, version=version)


def schema_of(
    facts: TableFacts,
    *,
    exclude_columns: Collection[str] = (),
    key_override: Sequence[str] | None = None,
    version: int = 1,
) -> TableSchema:
    """The table's schema: all columns in the order of the log's row images, including hidden ones, and the key. Columns that
    the server leaves out of its log are not captured.

    The key is the primary key, else the columns of the UNIQUE index that `key_override` names, in the index's order,
    else (). Raises UnsupportedTypeError for the first captured column that is not supported, JobFileError for wrong
    excluded or key columns.
    """
    problems = type_problems(facts, exclude_columns)
    if problems:
        raise problems[0][1]
    require_excluded_columns(facts.table, facts.column_names, exclude_columns)
    key = _key(facts, key_override)
    require_copied_key(facts.table, key, exclude_columns)
    require_logged_key(facts.table, key, facts.unlogged)
    left_out = facts.unlogged.union(exclude_columns)
    columns = [
        Column(
            name=column.name,
            source_type=column.source_type,
            arrow_type=""
            if column.name in left_out
            else canonical_type(facts.table, column.name, column.source_type, column.charset),
            nullable=column.nullable,
            captured=column.name not in left_out,
            charset=column.charset,
            collation=column.collation,
            generated=column.generated,
        )
        for column in facts.columns
    ]
    columns += [_hidden_hash(number) for number in range(1, facts.hidden_hashes + 1)]
    if not any(column.captured for column in columns):
        raise JobFileError(f"source.columns excludes every column of {facts.table}.", "Exclude the table instead.")
    return TableSchema(facts.table, version, tuple(columns), key)


def type_problems(facts: TableFacts, exclude_columns: Collection[str] = ()) -> list[tuple[str, UnsupportedTypeError]]:
    """(column, error) for every captured column that is not supported, and every excluded one that the log can't skip."""
    problems = []
    for column in facts.columns:
        try:
            if column.name in exclude_columns or column.name in facts.unlogged:
                check_logged_form(facts.table, column.name, column.source_type)
            else:
                canonical_type(facts.table, column.name, column.source_type, column.charset)
        except UnsupportedTypeError as error:
            problems.append((column.name, error))
    return problems


MAX_SPLIT_COLUMNS = 31
"""MariaDB 10.11 and 11.4 end with signal 11 when they look for a range of 32 columns, the most that a key may have."""


_ONLY_WHERE_NEEDED = frozenset({"enum", "set", "float", "double", "uuid"})
"""Types that a split key only has if its first column is of one of them: copies order them differently, and a copy is replaced
range by range only if it has the split key's order (docs/adr/0066)."""


def split_key(
    facts: TableFacts, schema: TableSchema, usable: Callable[[Column], bool] | None = None
) -> tuple[str, ...]:
    """The columns to split the table by: the longest prefix of the key's index, up to MAX_SPLIT_COLUMNS, in which every column
    is `usable` and fully indexed. () if there is none: the table is one split.

    A prefix of a unique key need not be unique: a split has all rows of a value. `usable` None: `is_orderable`.
    """
    fits = usable or is_orderable
    index = _index_of(facts, schema.key)
    if index is None or index.kind != "BTREE":
        return ()
    columns: list[str] = []
    for part in index.columns[:MAX_SPLIT_COLUMNS]:
        if part.name is None or part.prefix_length is not None or not fits(schema.column(part.name)):
            break
        columns.append(part.name)
    rare = [parse_source_type(schema.column(name).source_type).base in _ONLY_WHERE_NEEDED for name in columns]
    return tuple(columns if not any(rare) or rare[0] else columns[: rare.index(True)])


def is_orderable(column: Column) -> bool:
    """True if the server can compare the column's values with literals, exactly and in the order of an index."""
    return column.captured and parse_source_type(column.source_type).base not in _UNKEYED_TYPES


def is_exact_key(column: Column) -> bool:
    """True if equal values of the column are equal in a copy, so that it may be part of a key."""
    return parse_source_type(column.source_type).base not in _UNKEYED_TYPES


def table_statistics(connection: Connection, table: TableId) -> TableStatistics:
    """The statistics of a table, without the server's cache, which `connect` turns off."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_rows, avg_row_length, data_length FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = %s",
            (table.database, table.name),
        )
        row = cursor.fetchone()
    if row is None:
        raise SchemaChangedError(
            f"{table} does not exist any more, or the account may no longer read it.",
            "If it was dropped, name it in source.exclude_tables; else GRANT SELECT on it to the account.",
            table,
        )
    rows, average, data = (None if value is None else int(value) for value in row)
    return TableStatistics(rows, average, data)


def visible_kinds(connection: Connection, include: Sequence[TableGlob]) -> dict[TableId, str]:
    """The table_type of everything that could match, in few queries: for each, MariaDB lists the files of a database. Of a
    table that is named and not there, also what differs only by case."""
    names = [glob.only_table for glob in include]
    query = "SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_schema"
    with connection.cursor() as cursor:
        cursor.execute("SELECT schema_name FROM information_schema.schemata")
        databases = [str(row[0]) for row in cursor.fetchall()]
        rows: list[tuple[str, str, str]] = []
        if len(names) <= FEW_TABLES and all(names):
            for name in filter(None, names):
                cursor.execute(f"{query} = %s AND table_name = %s", (name.database, name.name))
                found = cursor.fetchall()
                if not found:
                    alike = f"{query} IN %s AND LOWER(table_name) = LOWER(%s)"
                    spellings = [d for d in databases if d.lower() == name.database.lower()]
                    cursor.execute(alike, (spellings or [name.database], name.name))
                    found = cursor.fetchall()
                rows += found
        else:
            for database in databases:
                if any(glob.matches_database(database) for glob in include):
                    cursor.execute(f"{query} = %s", (database,))
                    rows += cursor.fetchall()
    return {TableId(database, name): kind for database, name, kind in rows}


def _nothing_found(glob: TableGlob, kinds: Mapping[TableId, str]) -> SourceNotUsableError:
    named = glob.only_table
    if named is not None:
        table = TableId(named.database, named.name)
        if table.database.lower() in SYSTEM_DATABASES:
            return SourceNotUsableError(
                f"{table} in source.tables belongs to the server itself.", "Remove it from source.tables."
            )
        if is_own_table(table.name):
            return own_table_refused(table)
        if table in kinds:
            return SourceNotUsableError(
                f"{table} in source.tables is not a table but a {kinds[table].lower()}, which has no rows in the log.",
                "Name the tables behind it instead.",
            )
    return NothingSelectedError(
        f"source.tables: {glob.text} matches no table that the account may read.",
        f"{spelling_hint(glob, kinds)}Check the spelling (names are case-sensitive), and GRANT SELECT on the tables to the "
        f"account. {BACK_AGAIN}",
        TableId(named.database, named.name) if named is not None and kinds else None,
    )


def _key(facts: TableFacts, key_override: Sequence[str] | None) -> tuple[str, ...]:
    primary = None if facts.primary_key is None else names_of(facts.primary_key)
    require_fitting_override(facts.table, facts.column_names, primary, key_override)
    if primary is not None:
        return primary
    if key_override is None:
        return ()
    fitting = [index for index in facts.indexes if index.unique and set(index.column_names) == set(key_override)]
    whole = [i for i in fitting if all(c.prefix_length is None and not c.nullable for c in i.columns)]
    if whole:
        return names_of(min(whole, key=lambda index: index.kind != "BTREE"))
    wrong = (
        "which may be NULL or indexes only the beginning of a value"
        if fitting
        else "but has no UNIQUE index of exactly these columns"
    )
    raise JobFileError(
        f"source.keys names ({', '.join(key_override)}) for {facts.table}, {wrong}.",
        f"{_unique_keys(facts)} A key's columns must be NOT NULL and have a UNIQUE index of their own.",
    )


def _unique_keys(facts: TableFacts) -> str:
    named = [f"({', '.join(names_of(index))})" for index in candidate_keys(facts)]
    return f"These would do: {'; '.join(named)}." if named else "The table has no such key."


def candidate_keys(facts: TableFacts) -> list[Index]:
    """The indexes that `source.keys` may name: UNIQUE, every column NOT NULL and indexed whole."""
    return [
        index
        for index in facts.indexes
        if index.unique
        and all(c.name is not None and c.prefix_length is None and not c.nullable for c in index.columns)
    ]


def names_of(index: Index) -> tuple[str, ...]:
    return tuple(column.name for column in index.columns if column.name is not None)


def _index_of(facts: TableFacts, key: Iterable[str]) -> Index | None:
    wanted = tuple(key)
    if not wanted:
        return None
    matching = [index for index in facts.indexes if index.unique and index.column_names == wanted]
    return min(matching, key=lambda index: (index.name != "PRIMARY", index.kind != "BTREE"), default=None)


def _hidden_hash(number: int) -> Column:
    return Column(f"DB_ROW_HASH_{number}", "bigint(20) unsigned", "", nullable=True, captured=False, generated=True)
