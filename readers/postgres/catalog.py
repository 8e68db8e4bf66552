"""Which tables a job copies, and their columns and keys."""

from collections.abc import Collection, Sequence

from conf.tables import TableGlob
from readers.findings import SettingError, exclusion_of
from readers.postgres.connect import Connection
from readers.postgres.table_facts import TableFacts, UniqueIndex
from readers.postgres.types import canonical_type, is_toastable
from state.errors import JobFileError, SourceNotUsableError, UnsupportedTypeError
from state.table import Column, TableId, TableSchema

_CANDIDATES = """
SELECT n.nspname, c.relname, c.relkind, c.oid,
       ARRAY(SELECT p.relid::oid FROM pg_partition_ancestors(c.oid) AS p(relid) WHERE p.relid <> c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'"""
_OTHER_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


def find_tables(
    connection: Connection, include: Sequence[TableGlob], exclude: Sequence[TableGlob] = ()
) -> list[TableId]:
    """The tables that `include` matches and `exclude` does not, sorted; entries are `schema.table`.

    A partitioned table stands for its partitions. Wildcards match no partition; one that is named is a table of its own,
    unless a partitioned table above it is selected too. Raises SourceNotUsableError where an entry of `include` names
    anything else (a view, a foreign table) or matches nothing, or where nothing is left.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CANDIDATES)
        rows = cursor.fetchall()
    kinds = {TableId(schema, name): kind for schema, name, kind, _, _ in rows}
    table_of = {oid: TableId(schema, name) for schema, name, _, oid, _ in rows}
    above = {table_of[oid]: {table_of[a] for a in ancestors} for _, _, _, oid, ancestors in rows if ancestors}
    selected: set[TableId] = set()
    for glob in include:
        found = {
            table
            for table, kind in kinds.items()
            if kind not in _OTHER_KINDS
            and glob.matches(table.database, table.name)
            and (table not in above or glob.only_table is not None)
        }
        if not found:
            raise _nothing_found(glob, kinds)
        selected |= found
    kept = {t for t in selected if not any(glob.matches(t.database, t.name) for glob in exclude)}
    if not kept:
        raise SourceNotUsableError(
            "source.exclude_tables excludes every table that source.tables names.", "Correct one of the two."
        )
    return sorted(table for table in kept if not above.get(table, set()) & kept)


def schema_of(
    facts: TableFacts,
    *,
    exclude_columns: Collection[str] = (),
    key_override: Sequence[str] | None = None,
    version: int = 1,
) -> TableSchema:
    """All columns in the server's order, and the key. Generated columns are not captured: the log lacks them.

    The key is the primary key, else the columns of the unique index that `key_override` names, in the index's order,
    else (). Raises UnsupportedTypeError for the first captured column that can't be carried, JobFileError for excluded
    or key columns that are wrong.
    """
    problems = type_problems(facts, exclude_columns)
    if problems:
        raise problems[0][1]
    names = [column.name for column in facts.columns]
    for name in exclude_columns:
        if name not in names:
            raise SettingError(
                f"source.columns excludes {name} of {facts.table}, which has no such column.",
                f"Its columns are {', '.join(names)}.",
                exclusion_of(facts.table),
            )
    key = _key(facts, key_override)
    for name in key:
        if name in exclude_columns:
            raise SettingError(
                f"source.columns excludes {name} of {facts.table}, which its key needs.",
                "Copy the column, or name another unique key in source.keys.",
                exclusion_of(facts.table),
            )
        if facts.column(name).generated:
            raise JobFileError(
                f"Column {name} in the key of {facts.table} is generated, and the log lacks generated columns.",
                "Name another unique key in source.keys, or leave the table out.",
            )
    columns = []
    for column in facts.columns:
        captured = column.name not in exclude_columns and not column.generated
        arrow_type = canonical_type(facts.table, column.name, column.source_type, column.base) if captured else ""
        columns.append(
            Column(
                name=column.name,
                source_type=column.source_type,
                arrow_type=arrow_type,
                nullable=column.nullable,
                captured=captured,
                collation=column.collation,
                generated=column.generated,
                toastable=is_toastable(arrow_type),
            )
        )
    if not any(column.captured for column in columns):
        raise JobFileError(f"{facts.table} has no column that could be copied.", "Exclude the table instead.")
    return TableSchema(facts.table, version, tuple(columns), key)


def type_problems(facts: TableFacts, exclude_columns: Collection[str] = ()) -> list[tuple[str, UnsupportedTypeError]]:
    """(column, why) for every column that can't be carried."""
    problems = []
    for column in facts.columns:
        if column.name in exclude_columns or column.generated:
            continue
        try:
            canonical_type(facts.table, column.name, column.source_type, column.base)
        except UnsupportedTypeError as error:
            problems.append((column.name, error))
    return problems


def split_key(schema: TableSchema) -> tuple[str, ...]:
    """The columns to split the table by: its key, for every type with a unique index has an order; () without one."""
    return schema.key


def _nothing_found(glob: TableGlob, kinds: dict[TableId, str]) -> SourceNotUsableError:
    named = glob.only_table
    if named is not None:
        kind = kinds.get(TableId(named.database, named.name))
        if kind in _OTHER_KINDS:
            return SourceNotUsableError(
                f"{named} in source.tables is no table but {_OTHER_KINDS[kind]}, which has no rows in the log.",
                "Name the tables behind it instead.",
            )
    alike = [t for t in kinds if f"{t}".lower() == glob.text.lower()]
    hint = f"The server spells it {alike[0]}: write it so. " if alike else ""
    return SourceNotUsableError(
        f"source.tables: {glob.text} matches no table of the database.",
        f"{hint}Tables are named schema.table, letters match by case, and the database is the one in source.url. "
        "Wildcards match no partitions: name the partitioned table.",
    )


def _key(facts: TableFacts, key_override: Sequence[str] | None) -> tuple[str, ...]:
    primary = facts.primary_key
    if primary is not None:
        if key_override is not None and set(key_override) != set(primary.columns):
            raise JobFileError(
                f"source.keys names a key for {facts.table}, which has the primary key ({_listed(primary)}).",
                "Take the table out of source.keys.",
            )
        return _columns(primary)
    if key_override is None:
        return ()
    unknown = sorted(set(key_override) - {column.name for column in facts.columns})
    if unknown:
        raise JobFileError(
            f"source.keys names {', '.join(unknown)} for {facts.table}, which has no such column.",
            f"Its columns are {', '.join(column.name for column in facts.columns)}.",
        )
    named = [index for index in facts.keys if set(index.columns) == set(key_override)]
    if named:
        return _columns(min(named, key=lambda index: not index.of_identity))
    fitting = "; ".join(f"({_listed(index)})" for index in facts.keys)
    raise JobFileError(
        f"source.keys names ({', '.join(key_override)}) for {facts.table}, which has no unique index of exactly these "
        "columns that is valid, not partial, not DEFERRABLE and on NOT NULL columns only.",
        f"These would do: {fitting}."
        if fitting
        else "The table has no such index: create one, or leave the table out.",
    )


def _columns(index: UniqueIndex) -> tuple[str, ...]:
    return tuple(name for name in index.columns if name is not None)


def _listed(index: UniqueIndex) -> str:
    return ", ".join(_columns(index))
