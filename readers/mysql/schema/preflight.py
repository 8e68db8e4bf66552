"""Finds everything that would make a job wrong or stop it later, before it starts, with a remedy for each."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemark.readers.mysql.connect import Connection
from tidemark.readers.mysql.schema.server_checks import (
    check_account,
    check_prepared_transactions,
    check_settings,
    find_log_status,
)
from tidemark.readers.mysql.schema.table_checks import (
    check_cascades,
    check_columns,
    check_key,
    check_logged,
    check_select,
    check_storage,
    check_virtual,
)
from tidemark.readers.mysql.schema.table_facts import TableFacts
from tidemark.readers.mysql.server import ServerInfo
from tidemark.readers.schema_checks import Preflight, TableSettings, check_settings_of_tables
from tidemark.state.table import TableId, TableSchema

Mode = Literal["full", "incremental", "full+incremental"]


@dataclass(frozen=True, slots=True)
class Demands:
    """The job's demands on its source. `needs_key`, `appends_keyless`: as in `tidemark.sinks.sink.SinkNeeds`."""

    mode: Mode
    needs_key: bool
    cascades: Literal["refuse", "warn"] = "refuse"
    tables: TableSettings = field(default_factory=TableSettings)
    appends_keyless: bool = False

    def checks_key(self, schema: TableSchema) -> bool:
        return self.needs_key and not (self.appends_keyless and not schema.key)

    @property
    def snapshots(self) -> bool:
        return self.mode != "incremental"


def preflight(
    connection: Connection,
    server: ServerInfo,
    tables: Mapping[TableId, TableFacts],
    demands: Demands,
    *,
    followed: Collection[TableId] = (),
) -> Preflight:
    """Runs all checks and returns the findings; `findings.raise_refusals` raises them.

    `connection`: with the job's own account and no open transaction. `followed`: the tables that may be locked now.
    """
    status, findings = find_log_status(connection, server)
    findings = [
        *check_settings(server),
        *check_account(connection, server, snapshots=demands.snapshots),
        *findings,
        *check_settings_of_tables(tables, demands.tables),
        *check_prepared_transactions(connection, server, snapshots=demands.snapshots),
    ]
    schemas: dict[TableId, TableSchema] = {}
    for table, facts in tables.items():
        primary = () if facts.primary_key is None else facts.primary_key.column_names
        names = dict.fromkeys(facts.column_names)
        excluded, unclear = demands.tables.left_out(table, names, [name for name in primary if name is not None])
        findings += unclear
        unreadable = check_select(connection, facts, exclude_columns=excluded, is_followed=table in followed)
        findings += unreadable
        findings += check_storage(facts, snapshots=demands.snapshots)
        findings += check_cascades(facts, server, demands.cascades)
        if status is not None:
            findings += check_logged(facts, status)
        if unreadable:
            continue
        findings += check_virtual(connection, facts, server, exclude_columns=excluded)
        schema, problems = check_columns(facts, exclude_columns=excluded, key_override=demands.tables.keys.get(table))
        findings += problems
        if schema is not None:
            schemas[table] = schema
            findings += check_key(facts, schema) if demands.checks_key(schema) else []
    return Preflight(schemas, tuple(findings))
