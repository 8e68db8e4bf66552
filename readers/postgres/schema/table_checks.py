"""Preflight of tables: rows that the log or the role lacks, unsupported types, missing keys and replica identities."""

from collections.abc import Collection
from dataclasses import dataclass

from tidemark.conf.tables import TableName, setting_of
from tidemark.readers.findings import Finding, refusal, warning
from tidemark.readers.postgres.connect import quote_identifier, quote_table
from tidemark.readers.postgres.schema.catalog import schema_of, type_problems
from tidemark.readers.postgres.schema.server_checks import Doubt
from tidemark.readers.postgres.schema.table_facts import TableFacts
from tidemark.readers.postgres.schema.types import list_type
from tidemark.readers.postgres.slot.publication import only_itself, publish_all
from tidemark.readers.schema_checks import check_mirror_key, schema_or_findings, warnings_of_unlogged
from tidemark.state.table import TableId, TableSchema


def check_columns(
    facts: TableFacts,
    *,
    exclude_columns: Collection[str],
    key_override: tuple[str, ...] | None,
    used_key: tuple[str, ...] = (),
    texts: Collection[str] | None = None,
) -> tuple[TableSchema | None, list[Finding]]:
    """The table's schema, or why it has none; and which columns the log lacks."""
    schema, problems = schema_or_findings(
        facts.table,
        type_problems(facts, exclude_columns),
        lambda: schema_of(
            facts, exclude_columns=exclude_columns, key_override=key_override, used_key=used_key, texts=texts
        ),
    )
    if schema is None:
        return None, problems
    generated = [c.name for c in facts.columns if c.generated and c.name not in exclude_columns]
    return schema, warnings_of_unlogged(facts.table, generated)


def check_arrays(facts: TableFacts, as_text: Collection[str]) -> list[Finding]:
    """Refuses `as_text` for columns that are text anyway, and for misspelt ones."""
    arrays = {column.name for column in facts.columns if list_type(column.base) is not None}
    return [
        refusal(
            f"source.columns names {name} of {facts.table} in as_text, but no copy has it as lists.",
            f"Columns with lists are {', '.join(sorted(arrays)) or 'none'}. Correct as_text.",
            table=facts.table,
            setting=("source", "columns", str(TableName(facts.table.database, facts.table.name)), "as_text"),
        )
        for name in sorted(as_text)
        if name not in arrays
    ]


def check_rows(facts: TableFacts, selected: Collection[TableId]) -> list[Finding]:
    """Checks for rows that a SELECT or the log would leave out. `selected`: the tables that the job copies."""
    table, found = facts.table, []
    unlogged = [p.table for p in facts.partitions if p.unlogged]
    foreign = [p.table for p in facts.partitions if p.foreign]
    if facts.unlogged or unlogged:
        what = f"Partitions of {table} are" if unlogged else f"{table} is"
        names = f" ({', '.join(map(str, unlogged))})" if unlogged else ""
        logged = "; ".join(f"ALTER TABLE {quote_table(t)} SET LOGGED" for t in unlogged or [table])
        found.append(
            refusal(
                f"{what} unlogged{names}: changes are not in the log.",
                f"{logged}. Or leave {table} out: source.exclude_tables.",
                table=table,
            )
        )
    if foreign:
        found.append(
            refusal(
                f"Partitions of {table} are foreign tables ({', '.join(map(str, foreign))}): their changes are not in "
                "the log.",
                "Detach them, or leave the table out: source.exclude_tables.",
                table=table,
            )
        )
    if facts.rows_hidden:
        found.append(
            refusal(
                f"Row-level security of {table} hides rows from the role, while the log has all of them.",
                "Let the role of source.url bypass it: ALTER ROLE <role> BYPASSRLS.",
                table=table,
            )
        )
    if facts.hypertable:
        found.append(
            refusal(
                f"{table} is a hypertable of TimescaleDB: its rows are in other tables, and so are its changes in the log.",
                "Leave it out: source.exclude_tables.",
                table=table,
            )
        )
    elif children := [child for child in facts.children if child not in selected]:
        found.append(
            warning(
                f"Other tables inherit from {table} ({', '.join(map(str, children))}): only its own rows are copied with it.",
                "Name those tables in source.tables too.",
                table=table,
            )
        )
    return found


def check_select(facts: TableFacts, schema: TableSchema) -> list[Finding]:
    """Checks the privilege SELECT on all that is read of the table."""
    table = facts.table
    if not facts.schema_usable:
        return [
            refusal(
                f"The role may not use schema {table.database}.",
                f"GRANT USAGE ON SCHEMA {quote_identifier(table.database)} TO the role of source.url.",
                table=table,
            )
        ]
    unreadable = [column.name for column in schema.captured if not facts.column(column.name).readable]
    if unreadable:
        without = f"; or leave them out: {setting_of('source.columns', table, {'exclude': unreadable})}"
        grant = f"GRANT SELECT ON {quote_table(table)} TO the role of source.url"
        reads_others = len(unreadable) < len(schema.captured)
        return [
            refusal(
                f"The role may not read {', '.join(unreadable)} of {table}.",
                f"{grant}{without if reads_others else ''}.",
                table=table,
            )
        ]
    return _check_system_columns(facts, schema)


def _check_system_columns(facts: TableFacts, schema: TableSchema) -> list[Finding]:
    """Checks what is read besides the table's own columns. Who may SELECT from the whole table may read it, too."""
    if facts.kind == "partitioned":
        wanted, why = (
            ["tableoid", "xmin", "cmin"],
            "The job looks by them into partitions that are attached or rewritten",
        )
    elif not schema.key:
        wanted, why = ["ctid"], "A table without a key is read by it"
    else:
        return []
    missing = ", ".join(name for name in wanted if name in facts.unreadable_system_columns)
    if not missing:
        return []
    return [
        refusal(
            f"The role may SELECT columns of {facts.table} only, and not {missing}. {why}.",
            f"GRANT SELECT ({missing}) ON {quote_table(facts.table)} TO the role of source.url.",
            table=facts.table,
        )
    ]


@dataclass(frozen=True, slots=True)
class Publishing:
    """The job's publication. `publishes_all`: as `publishes_all` returns it. `members`: the tables that it has. `doubt`: as
    `doubt_of_refusals` returns it."""

    name: str
    publishes_all: bool | None
    members: Collection[TableId]
    doubt: Doubt | None


def check_identity(facts: TableFacts, schema: TableSchema, publishing: Publishing | None) -> list[Finding]:
    """Checks that the log identifies updated and deleted rows, or that the server refuses every UPDATE and DELETE.
    `publishing`: None if the sink needs a key."""
    if facts.kind == "partitioned":
        return _partitioned_identity(facts)
    if facts.identity_columns is None and not schema.key and publishing is not None:
        return [_only_inserted(facts, schema, publishing)]
    table, covered = facts.table, facts.identity_columns
    if covered is None:
        why = (
            "is NOTHING"
            if facts.identity == "nothing"
            else "has no index"
            if facts.identity == "index"
            else "is its primary key, which it does not have (or only a DEFERRABLE one)"
        )
        return [
            refusal(
                f"The replica identity of {table} {why}: once the table is published, the server refuses every UPDATE and "
                "DELETE on it.",
                _identity_remedy(facts, schema),
                table=table,
            )
        ]
    if facts.identity == "index" and not schema.key and publishing is not None:
        return [_index_with_nulls(facts)]
    missing = [name for name in schema.key if name not in covered]
    if not missing:
        return []
    return [
        refusal(
            f"The replica identity of {table} lacks {', '.join(missing)}, of the key that the job finds its rows by.",
            _identity_remedy(facts, schema),
            table=table,
        )
    ]


def _index_with_nulls(facts: TableFacts) -> Finding:
    """Refuses a table whose replica identity is an index that is no key, because NOT NULL of its columns is NOT VALID (18)."""
    table = quote_table(facts.table)
    names = sorted(name for name in facts.identity_columns or () if facts.column(name).nullable)
    alter = ", ".join(f"ALTER COLUMN {quote_identifier(name)} SET NOT NULL" for name in names)
    return refusal(
        f"The replica identity of {facts.table} is an index, and older rows may have NULL in {', '.join(names)}: NOT NULL is "
        "not valid for them. So the index is no key, and the log has no whole old row of an UPDATE or DELETE.",
        f"Give rows with NULL a value, then: ALTER TABLE {table} {alter}. Or: ALTER TABLE {table} REPLICA IDENTITY FULL.",
        table=facts.table,
    )


def _only_inserted(facts: TableFacts, schema: TableSchema, publishing: Publishing) -> Finding:
    """Accepts a table without a key and without a replica identity if it is published, which is for its owner to decide. The
    server refuses UPDATE and DELETE also to its owner, to superusers, and with any session_replication_role."""
    table, to_change_rows = facts.table, _identity_remedy(facts, schema)
    if facts.table not in publishing.members:
        name, only = quote_identifier(publishing.name), only_itself(table)
        publish = (
            f"CREATE PUBLICATION {name} FOR TABLE {only} WITH (publish_via_partition_root = true)"
            if publishing.publishes_all is None
            else f"ALTER PUBLICATION {name} ADD TABLE {only}"
        )
        return refusal(
            f"{table} has no key and no replica identity, and the publication {publishing.name} does not have it. Once it is "
            "published, the server refuses every UPDATE and DELETE on it, so the job does not publish it.",
            f"{to_change_rows} Or, if no application updates or deletes its rows: {publish}.",
            table=table,
        )
    if not publishing.publishes_all:
        return refusal(
            f"{table} has no key and no replica identity, and the publication {publishing.name} does not publish all of "
            "insert, update, delete and truncate: the server accepts what the log then lacks.",
            publish_all(publishing.name),
            table=table,
        )
    if publishing.doubt is not None:
        return refusal(
            f"{table} has no key and no replica identity, and it is not certain that the server refuses every UPDATE and "
            f"DELETE on it: {publishing.doubt.why}.",
            f"{publishing.doubt.remedy} Or: {to_change_rows}",
            table=table,
        )
    return warning(
        f"{table} has no key and no replica identity. While the publication {publishing.name} has it, the server refuses every "
        "UPDATE and DELETE on it.",
        f"If its rows are only inserted, none is needed. Otherwise: {to_change_rows}",
        table=table,
    )


def check_transform(facts: TableFacts, schema: TableSchema, reads: frozenset[str]) -> list[Finding]:
    """Refuses transforms that read long values: the log leaves them out of updates that do not change them."""
    columns = [name for name in schema.toastable if name.lower() in reads]
    if not columns or (facts.identity == "full" and not facts.partitions):
        return []
    change = "" if facts.partitions else f"ALTER TABLE {quote_table(facts.table)} REPLICA IDENTITY FULL; or o"
    return [
        refusal(
            f"The transform of {facts.table} computes from {', '.join(columns)}, which the log may leave out: such values "
            "can be stored outside of their rows (TOAST), and the table's replica identity is not FULL.",
            f"{change or 'O'}nly pass the column on, as it is.",
            table=facts.table,
            setting=("transforms", str(TableName(facts.table.database, facts.table.name))),
        )
    ]


def check_key(facts: TableFacts, schema: TableSchema) -> list[Finding]:
    """Checks the key for sinks that find rows by it."""
    candidates = [tuple(filter(None, index.columns)) for index in facts.keys]
    return check_mirror_key(schema, candidates, lambda column: not column.arrow_type.startswith("float"))


def _identity_remedy(facts: TableFacts, schema: TableSchema) -> str:
    alter = f"ALTER TABLE {quote_table(facts.table)} REPLICA IDENTITY"
    if facts.primary_key is not None:
        return f"{alter} DEFAULT."
    index = next((index for index in facts.keys if index.columns == schema.key), None)
    if index is not None:
        return f"{alter} USING INDEX {quote_identifier(index.name)}."
    return f"Give it a primary key, or: {alter} FULL."


def _partitioned_identity(facts: TableFacts) -> list[Finding]:
    """Checks a partitioned table. New partitions get the identity DEFAULT, whatever the table's is, so only DEFAULT is safe."""
    table = facts.table
    if facts.primary_key is None:
        return [
            refusal(
                f"{table} is partitioned and has no primary key: new partitions would have no replica identity.",
                "Give it a primary key, or leave it out.",
                table=table,
            )
        ]
    if facts.identity != "default":
        return [
            refusal(
                f"The replica identity of {table} is {facts.identity.upper()}, which new partitions do not inherit.",
                f"ALTER TABLE {quote_table(table)} REPLICA IDENTITY DEFAULT.",
                table=table,
            )
        ]
    return [
        refusal(
            f"Partition {partition.table} of {table} has replica identity {partition.identity.upper()}.",
            f"ALTER TABLE {quote_table(partition.table)} REPLICA IDENTITY DEFAULT.",
            table=table,
        )
        for partition in facts.partitions
        if partition.identity not in {"default", "full"} and not partition.foreign
    ]
