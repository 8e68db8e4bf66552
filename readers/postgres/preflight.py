"""Everything that would make a job wrong or stop it later, found before it starts, each with its remedy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from readers.findings import Finding, refusal
from readers.postgres.connect import Connection
from readers.postgres.publication import check_publication
from readers.postgres.server import ServerInfo
from readers.postgres.server_checks import check_creation, check_money, check_role, check_settings, publication_exists
from readers.postgres.table_checks import (
    check_columns,
    check_identity,
    check_key,
    check_rows,
    check_select,
    check_transform,
)
from readers.postgres.table_facts import TableFacts
from state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Demands:
    """What the job asks of its source. `transforms`: what those of its tables are computed from, in lower case."""

    needs_key: bool
    slot: str
    publication: str
    exclude_columns: Mapping[TableId, frozenset[str]] = field(default_factory=dict)
    keys: Mapping[TableId, tuple[str, ...]] = field(default_factory=dict)
    transforms: Mapping[TableId, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preflight:
    """`schemas` holds the tables that have one: all, unless something is refused."""

    schemas: dict[TableId, TableSchema]
    findings: tuple[Finding, ...]


def preflight(
    connection: Connection, server: ServerInfo, tables: Mapping[TableId, TableFacts], demands: Demands
) -> Preflight:
    """Looks at everything and raises nothing for what it finds: see `findings.raise_refusals`.

    `connection` is the job's own role, with no transaction open.
    """
    findings = [
        *check_settings(connection, server, demands.slot),
        *check_role(connection),
        *check_names(tables, demands),
    ]
    schemas: dict[TableId, TableSchema] = {}
    for table, facts in tables.items():
        excluded = demands.exclude_columns.get(table, frozenset())
        schema, problems = check_columns(facts, exclude_columns=excluded, key_override=demands.keys.get(table))
        findings += [*check_rows(facts), *problems]
        if schema is not None:
            schemas[table] = schema
            findings += check_select(facts, schema)
            findings += check_identity(facts, schema)
            findings += check_transform(facts, schema, demands.transforms.get(table, frozenset()))
            findings += check_key(facts, schema) if demands.needs_key else []
    findings += check_money(connection, schemas.values())
    if publication_exists(connection, demands.publication):
        owned = [table for table, facts in tables.items() if facts.owned]
        findings += check_publication(connection, demands.publication, tables, addable=owned)
    else:
        findings += check_creation(connection, demands.publication, tables)
    return Preflight(schemas, tuple(findings))


def check_names(tables: Mapping[TableId, TableFacts], demands: Demands) -> list[Finding]:
    """A setting for a table that is not copied is a misspelt name, and the column it should hide would be copied."""
    return [
        refusal(
            f"{section} names {table}, which source.tables does not select.",
            "Correct the name: letters match by case.",
            table=table,
        )
        for section, named in (
            ("source.columns", demands.exclude_columns),
            ("source.keys", demands.keys),
            ("transforms", demands.transforms),
        )
        for table in named
        if table not in tables
    ]
