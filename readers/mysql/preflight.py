"""Everything that would make a job wrong or stop it later, found before it starts, each with its remedy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from readers.findings import Finding, refusal
from readers.mysql.connect import Connection
from readers.mysql.server import ServerInfo
from readers.mysql.server_checks import check_account, check_prepared_transactions, check_settings, find_log_status
from readers.mysql.table_checks import (
    check_cascades,
    check_columns,
    check_key,
    check_logged,
    check_select,
    check_storage,
    check_vectors,
)
from readers.mysql.table_facts import TableFacts
from state.table import TableId, TableSchema

Mode = Literal["full", "incremental", "full+incremental"]


@dataclass(frozen=True, slots=True)
class Demands:
    """What the job asks of its source. `server_id_count` is the size of source.server_ids; `transforms`: what those of
    its tables are computed from, in lower case."""

    mode: Mode
    needs_key: bool
    parallelism: int
    server_id_count: int
    exclude_columns: Mapping[TableId, frozenset[str]] = field(default_factory=dict)
    keys: Mapping[TableId, tuple[str, ...]] = field(default_factory=dict)
    transforms: Mapping[TableId, frozenset[str]] = field(default_factory=dict)

    @property
    def snapshots(self) -> bool:
        return self.mode != "incremental"


@dataclass(frozen=True, slots=True)
class Preflight:
    """`schemas` holds the tables that have one: all, unless something is refused."""

    schemas: dict[TableId, TableSchema]
    findings: tuple[Finding, ...]


def preflight(
    connection: Connection, server: ServerInfo, tables: Mapping[TableId, TableFacts], demands: Demands
) -> Preflight:
    """Looks at everything and raises nothing for what it finds: see `findings.raise_refusals`.

    `connection` is the job's own account, with no transaction open.
    """
    status, findings = find_log_status(connection, server)
    findings = [
        *check_settings(server),
        *check_account(connection, server, snapshots=demands.snapshots),
        *findings,
        *check_server_ids(demands),
        *check_names(tables, demands),
        *check_prepared_transactions(connection),
    ]
    schemas: dict[TableId, TableSchema] = {}
    for table, facts in tables.items():
        unreadable = check_select(connection, facts)
        findings += unreadable
        findings += check_storage(facts, snapshots=demands.snapshots)
        findings += check_cascades(facts, server)
        if status is not None:
            findings += check_logged(facts, status)
        if unreadable:
            continue
        excluded = demands.exclude_columns.get(table, frozenset())
        findings += check_vectors(facts, server, exclude_columns=excluded)
        schema, problems = check_columns(facts, exclude_columns=excluded, key_override=demands.keys.get(table))
        findings += problems
        if schema is not None:
            schemas[table] = schema
            findings += check_key(facts, schema) if demands.needs_key else []
    return Preflight(schemas, tuple(findings))


def check_server_ids(demands: Demands) -> list[Finding]:
    """Each split being read and the log reader take one at a time; a retry takes another while the old one dies."""
    needed = (demands.parallelism if demands.snapshots else 1) + 1
    if demands.server_id_count >= needed:
        return []
    return [
        refusal(
            f"source.server_ids has {demands.server_id_count} ids; the job needs at least {needed}: one for each split "
            "that is read at the same time (snapshot.parallelism), and one for the log.",
            "Give a wider range: twice as many leave room for retries.",
        )
    ]


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
