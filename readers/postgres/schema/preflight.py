"""Preflight: finds everything that would make a job wrong or stop it later, each with its remedy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.schema.catalog import key_in_catalog
from tidemark.readers.postgres.schema.server_checks import (
    check_creation,
    check_money,
    check_role,
    check_settings,
    doubt_of_refusals,
)
from tidemark.readers.postgres.schema.table_checks import (
    Publishing,
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
from tidemark.readers.postgres.slot.publication import (
    check_publication,
    memberships,
    published_above,
    publishes_all,
)
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
    publishing = Publishing(
        demands.publication,
        publishes_all=publishes_all(connection, demands.publication),
        members=memberships(connection, demands.publication, tables).keys(),
        doubt=doubt_of_refusals(server),
    )
    above = published_above(connection, demands.publication, tables)
    unidentified = set[TableId]()
    for table, facts in tables.items():
        numbers = {column.name: column.number for column in facts.columns}
        used_key = demands.tables.used_keys.get(table, ())
        key = () if table in demands.tables.keys else key_in_catalog(facts, used_key)
        excluded, unclear = demands.tables.left_out(table, numbers, key, facts.oid)
        findings += unclear
        schema, problems = check_columns(
            facts,
            exclude_columns=excluded,
            key_override=demands.tables.keys.get(table),
            used_key=used_key,
            texts=demands.texts(table),
        )
        findings += [*check_rows(facts, tables), *problems]
        findings += check_arrays(facts, demands.tables.as_text.get(table, frozenset()))
        if schema is not None:
            schemas[table] = schema
            findings += check_select(facts, schema)
            # A table that is published as another one can't be copied, whatever its identity is.
            publishes = None if demands.checks_key(schema) else publishing
            found = [] if table in above else check_identity(facts, schema, publishes)
            findings += found
            unidentified |= {table for finding in found if finding.severity == "refuse"}
            findings += check_transform(facts, schema, demands.tables.transforms.get(table, frozenset()))
            findings += check_key(facts, schema) if demands.checks_key(schema) else []
    findings += check_money(connection, schemas.values())
    # It is for its owner to publish a table without a replica identity: no remedy asks for it in passing.
    others = {table: facts for table, facts in tables.items() if table not in unidentified}
    if publishing.publishes_all is not None:
        owned = [table for table, facts in others.items() if facts.owned and not server.in_recovery]
        partitioned = [table for table, facts in others.items() if facts.kind == "partitioned"]
        findings += check_publication(connection, demands.publication, others, partitioned=partitioned, addable=owned)
    elif others:
        findings += check_creation(connection, server, demands.publication, others)
    return Preflight(schemas, tuple(findings))
