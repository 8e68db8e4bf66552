"""Finds the tables that a job copies, and makes their schemas."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tidemark.conf.tables import TableGlob
from tidemark.readers.findings import Finding, own_table_refused
from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.schema.table_facts import TableFacts, UniqueIndex
from tidemark.readers.postgres.schema.types import canonical_type, is_toastable, list_type
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
from tidemark.state.errors import JobFileError, NothingSelectedError, SourceNotUsableError, UnsupportedTypeError
from tidemark.state.table import Column, TableId, TableSchema, is_own_table

_CANDIDATES = """
SELECT n.nspname, c.relname, c.relkind, c.oid,
       ARRAY(SELECT p.relid::oid FROM pg_partition_ancestors(c.oid) AS p(relid) WHERE p.relid <> c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'"""
_OTHER_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True, slots=True)
class Candidates:
    """`kinds`: the relkind of everything outside of the system schemas that has rows. `above`: the partitioned tables above
    each partition."""

    kinds: Mapping[TableId, str]
    above: Mapping[TableId, set[TableId]]


def find_tables(
    connection: Connection,
    include: Sequence[TableGlob],
    exclude: Sequence[TableGlob] = (),
    *,
    each_matches: bool = True,
) -> list[TableId]:
    """See `select_tables`."""
    return select_tables(read_candidates(connection), include, exclude, each_matches=each_matches)


def read_candidates(connection: Connection) -> Candidates:
    """Everything that could be named in `source.tables`."""
    with connection.cursor() as cursor:
        cursor.execute(_CANDIDATES)
        rows = cursor.fetchall()
    table_of = {oid: TableId(schema, name) for schema, name, _, oid, _ in rows}
    return Candidates(
        {TableId(schema, name): kind for schema, name, kind, _, _ in rows},
        {table_of[oid]: {table_of[a] for a in ancestors} for _, _, _, oid, ancestors in rows if ancestors},
    )


def select_tables(
    candidates: Candidates,
    include: Sequence[TableGlob],
    exclude: Sequence[TableGlob] = (),
    *,
    each_matches: bool = True,
) -> list[TableId]:
    """The tables that `include` matches and `exclude` does not, without Tidemark's own, sorted; entries are `schema.table`.

    A partitioned table includes its partitions. Wildcards match no partition; one that is named is a table of its own,
    unless a partitioned table above it is selected too. Raises SourceNotUsableError for all entries of `include` that name
    anything else (a view, a foreign table) or match nothing, or where nothing is left. `each_matches` False: wildcards may
    match nothing, if others match something.
    """
    kinds, above = candidates.kinds, candidates.above
    found = {glob: _matched(candidates, glob) for glob in include}
    selected = set[TableId]().union(*found.values())
    useless = [
        _nothing_found(glob, kinds)
        for glob, tables in found.items()
        if not tables and (each_matches or not selected or glob.only_table is not None)
    ]
    raise_useless(useless)
    kept = without_excluded(selected, exclude)
    chosen = frozenset(kept)
    return [table for table in kept if chosen.isdisjoint(above.get(table, ()))]


def _matched(candidates: Candidates, glob: TableGlob) -> set[TableId]:
    return {
        table
        for table, kind in candidates.kinds.items()
        if kind not in _OTHER_KINDS
        and not is_own_table(table.name)
        and glob.matches(table.database, table.name)
        and (table not in candidates.above or glob.only_table is not None)
    }


def wildcards_without_tables(candidates: Candidates, include: Sequence[TableGlob]) -> list[Finding]:
    """Warns of wildcards that match no table now."""
    return warnings_of_wildcards(glob for glob in include if not _matched(candidates, glob))


def views_left_out(
    candidates: Candidates, include: Sequence[TableGlob], exclude: Sequence[TableGlob] = ()
) -> list[Finding]:
    """Warns of views and foreign tables that `include` matches and `exclude` does not. They are not copied."""
    others = [table for table, kind in candidates.kinds.items() if kind in _OTHER_KINDS]
    return warnings_of_views(others, include, exclude)


def schema_of(
    facts: TableFacts,
    *,
    exclude_columns: Collection[str] = (),
    key_override: Sequence[str] | None = None,
    used_key: Sequence[str] = (),
    version: int = 1,
    texts: Collection[str] | None = None,
) -> TableSchema:
    """All columns in the server's order, and the key. Generated columns are not captured: the log lacks them. `texts`: the
    columns whose arrays are texts and not lists, None for all; those of the key always are.

    The key is the primary key, else the columns of the unique index that `key_override` names, in the index's order, else
    those of the index that is the replica identity, else, if that is FULL, `used_key` if it still is one, else ().

    Raises UnsupportedTypeError for the first captured column that can't be carried, JobFileError for excluded or key columns
    that are wrong.
    """
    problems = type_problems(facts, exclude_columns)
    if problems:
        raise problems[0][1]
    names = [column.name for column in facts.columns]
    require_excluded_columns(facts.table, names, exclude_columns)
    key = _key(facts, key_override, used_key)
    require_copied_key(facts.table, key, exclude_columns)
    require_logged_key(facts.table, key, [column.name for column in facts.columns if column.generated])
    columns = []
    for column in facts.columns:
        captured = column.name not in exclude_columns and not column.generated
        arrow_type = canonical_type(facts.table, column.name, column.source_type, column.base) if captured else ""
        if captured and texts is not None and column.name not in (*texts, *key):
            arrow_type = list_type(column.base) or arrow_type
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
                number=column.number,
                named_type=column.named_type if captured else None,
            )
        )
    if not any(column.captured for column in columns):
        raise JobFileError(f"{facts.table} has no column that could be copied.", "Exclude the table instead.")
    return TableSchema(facts.table, version, tuple(columns), key, facts.oid)


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


def _nothing_found(glob: TableGlob, kinds: Mapping[TableId, str]) -> SourceNotUsableError:
    named = glob.only_table
    if named is not None:
        if is_own_table(named.name):
            return own_table_refused(TableId(named.database, named.name))
        kind = kinds.get(TableId(named.database, named.name))
        if kind in _OTHER_KINDS:
            return SourceNotUsableError(
                f"{named} in source.tables is no table but {_OTHER_KINDS[kind]}, which has no rows in the log.",
                "Name the tables behind it instead.",
            )
    return NothingSelectedError(
        f"source.tables: {glob.text} matches no table of the database.",
        f"{spelling_hint(glob, kinds)}Tables are named schema.table, names are case-sensitive, and the database is the one "
        "in source.url. "
        f"Wildcards match no partitions: name the partitioned table. {BACK_AGAIN}",
        TableId(named.database, named.name) if named is not None and kinds else None,
    )


def key_in_catalog(facts: TableFacts, used_key: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the key as in `table_schema`, if the job file names none."""
    return _key(facts, None, used_key)


def _key(facts: TableFacts, key_override: Sequence[str] | None, used_key: Sequence[str]) -> tuple[str, ...]:
    primary = None if facts.primary_key is None else _columns(facts.primary_key)
    require_fitting_override(facts.table, [column.name for column in facts.columns], primary, key_override)
    if primary is not None:
        return primary
    if key_override is None:
        of_identity = [index for index in facts.keys if facts.identity == "index" and index.of_identity]
        used = [index for index in facts.keys if facts.identity == "full" and set(index.columns) == set(used_key)]
        return next((_columns(index) for index in (*of_identity, *used)), ())
    named = [index for index in facts.keys if set(index.columns) == set(key_override)]
    if named:
        return _columns(min(named, key=lambda index: not index.of_identity))
    fitting = "; ".join(f"({_listed(index)})" for index in facts.keys)
    raise JobFileError(
        f"source.keys names ({', '.join(key_override)}) for {facts.table}, which has no unique index of exactly these "
        "columns that is valid, not partial, not DEFERRABLE and on NOT NULL columns only.",
        f"These would do: {fitting}."
        if fitting
        else "The table has no such index: create one, or leave the table out: source.exclude_tables.",
    )


def _columns(index: UniqueIndex) -> tuple[str, ...]:
    return tuple(name for name in index.columns if name is not None)


def _listed(index: UniqueIndex) -> str:
    return ", ".join(_columns(index))
