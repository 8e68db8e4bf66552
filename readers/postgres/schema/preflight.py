"""Preflight: finds everything that would make a job wrong or stop it later, each with its remedy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.schema.server_checks import (
    check_creation,
    check_money,
    check_role,
    check_settings,
    publication_exists,
)
from tidemark.readers.postgres.schema.table_checks import (
    check_arrays,
    check_columns,
    check_identity,
    check_key,
    check_rows,
    check_select,
    check_transform,
)
from tidemark.readers.postgres.schema.table_facts import TableFacts
from tidemark.readers.postgres.server import ServerInfo
from tidemark.readers.postgres.slot.publication import check_publication
from tidemark.readers.schema_checks import Preflight, TableSettings, check_settings_of_tables
from tidemark.state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Demands:
    """The job's requirements of its source. `needs_key`, `appends_keyless`: as in `tidemark.sinks.sink.SinkNeeds`. `lists`: the
    sink takes arrays as lists. `standby`: the server may be one (source.standby)."""

    needs_key: bool
    slot: str
    publication: str
    tables: TableSettings = field(default_factory=TableSettings)
    lists: bool = False
    appends_keyless: bool = False
    standby: bool = False

    def checks_key(self, schema: TableSchema) -> bool:
        return self.needs_key and not (self.appends_keyless and not schema.key)

    def texts(self, table: TableId) -> frozenset[str] | None:
        """The columns whose arrays stay text; None for all. The text of a hashed column is hashed."""
        nothing: frozenset[str] = frozenset()
        settings = self.tables
        return settings.as_text.get(table, nothing) | settings.hashed.get(table, nothing) if self.lists else None


def preflight(
    connection: Connection, server: ServerInfo, tables: Mapping[TableId, TableFacts], demands: Demands
) -> Preflight:
    """Runs all checks. Problems are returned, not raised: see `findings.raise_refusals`.

    `connection` is the job's own role, with no transaction open. A standby may be the source: see `find_postgres`.
    """
    findings = [
        *check_settings(connection, server, demands.slot, standby=demands.standby),
        *check_role(connection),
        *check_settings_of_tables(tables, demands.tables),
    ]
    schemas: dict[TableId, TableSchema] = {}
    for table, facts in tables.items():
        primary = () if facts.primary_key is None else facts.primary_key.columns
        numbers = {column.name: column.number for column in facts.columns}
        key = [name for name in primary if name is not None]
        excluded, unclear = demands.tables.left_out(table, numbers, key, facts.oid)
        findings += unclear
        schema, problems = check_columns(
            facts,
            exclude_columns=excluded,
            key_override=demands.tables.keys.get(table),
            texts=demands.texts(table),
        )
        findings += [*check_rows(facts), *problems]
        findings += check_arrays(facts, demands.tables.as_text.get(table, frozenset()))
        if schema is not None:
            schemas[table] = schema
            findings += check_select(facts, schema)
            findings += check_identity(facts, schema)
            findings += check_transform(facts, schema, demands.tables.transforms.get(table, frozenset()))
            findings += check_key(facts, schema) if demands.checks_key(schema) else []
    findings += check_money(connection, schemas.values())
    if publication_exists(connection, demands.publication):
        owned = [table for table, facts in tables.items() if facts.owned and not server.in_recovery]
        partitioned = [table for table, facts in tables.items() if facts.kind == "partitioned"]
        findings += check_publication(connection, demands.publication, tables, partitioned=partitioned, addable=owned)
    else:
        findings += check_creation(connection, server, demands.publication, tables)
    return Preflight(schemas, tuple(findings))
