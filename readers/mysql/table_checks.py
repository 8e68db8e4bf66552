"""Preflight of tables: what the log does not hold, what can't be carried, what can't be told apart."""

from collections.abc import Collection

import pymysql

from readers.findings import Finding, of_error, refusal, warning
from readers.mysql.catalog import candidate_keys, is_exact_key, schema_of, type_problems
from readers.mysql.connect import Connection, error_code, error_text, quote_table
from readers.mysql.server import ACCESS_DENIED, LogStatus, ServerInfo
from readers.mysql.table_facts import SYSTEM_VERSIONED, TableFacts
from state.errors import JobFileError
from state.table import TableSchema

TRANSACTIONAL_ENGINES = frozenset({"INNODB"})
_CHANGES_CHILDREN = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})


def check_columns(
    facts: TableFacts, *, exclude_columns: Collection[str], key_override: tuple[str, ...] | None
) -> tuple[TableSchema | None, list[Finding]]:
    """The table's schema, or why it has none."""
    problems = type_problems(facts, exclude_columns)
    if problems:
        return None, [of_error(error, table=facts.table, column=column) for column, error in problems]
    try:
        return schema_of(facts, exclude_columns=exclude_columns, key_override=key_override), []
    except JobFileError as error:
        return None, [of_error(error, table=facts.table)]


def check_vectors(facts: TableFacts, server: ServerInfo, *, exclude_columns: Collection[str]) -> list[Finding]:
    """MariaDB has VECTOR since 11.7, by the name that MySQL gives it, and logs it as bytes."""
    if server.flavour != "mariadb":
        return []
    return [
        refusal(
            f"Column {column.name} of {facts.table}, {column.source_type}, is not supported on MariaDB.",
            f"Leave the column out: source.columns: {{{facts.table}: {{exclude: [{column.name}]}}}}.",
            table=facts.table,
            column=column.name,
        )
        for column in facts.columns
        if column.source_type.lower().startswith("vector") and column.name not in exclude_columns
    ]


def check_key(facts: TableFacts, schema: TableSchema) -> list[Finding]:
    """For sinks that find rows again."""
    if not schema.key:
        candidates = [", ".join(filter(None, index.column_names)) for index in candidate_keys(facts)]
        remedy = (
            f"Name one of its unique keys: source.keys: {{{facts.table}: [{candidates[0]}]}}."
            if candidates
            else "Give it a primary key (or a UNIQUE index of NOT NULL columns, named in source.keys), or leave it out."
        )
        return [
            refusal(f"{facts.table} has no primary key: a mirror can't tell its rows apart.", remedy, table=facts.table)
        ]
    return [
        refusal(
            f"Column {name} in the key of {facts.table} is {schema.column(name).source_type}: equal values need not be "
            "equal in a copy.",
            "Name another unique key in source.keys, or leave the table out.",
            table=facts.table,
            column=name,
        )
        for name in schema.key
        if not is_exact_key(schema.column(name))
    ]


def check_storage(facts: TableFacts, *, snapshots: bool) -> list[Finding]:
    """Engines without transactions have no state that a SELECT and a position could agree on."""
    found = []
    if facts.kind == SYSTEM_VERSIONED:
        found.append(
            refusal(
                f"{facts.table} is system-versioned: its log mixes current rows with their history, and has deletes as "
                "updates.",
                "Leave the table out: source.exclude_tables.",
                table=facts.table,
            )
        )
    if facts.engine.upper() not in TRANSACTIONAL_ENGINES:
        if snapshots:
            found.append(
                refusal(
                    f"{facts.table} has engine {facts.engine or 'unknown'}, of which no consistent state can be read.",
                    "ALTER TABLE … ENGINE=InnoDB, or leave it out: source.exclude_tables.",
                    table=facts.table,
                )
            )
        else:
            found.append(
                warning(
                    f"{facts.table} has engine {facts.engine or 'unknown'}: a statement that fails half-way stays in "
                    "the log as far as it got.",
                    "ALTER TABLE … ENGINE=InnoDB.",
                    table=facts.table,
                )
            )
    return found


def check_cascades(facts: TableFacts, server: ServerInfo) -> list[Finding]:
    """Rows that InnoDB itself changes along a foreign key are in no log (seen on MariaDB 10.11 and 11.4; MySQL 9.7 logs
    them unless innodb_native_foreign_keys is ON; older MySQL never does)."""
    if server.logs_cascades:
        return []
    names = [k.name for k in facts.foreign_keys if {k.on_delete, k.on_update} & _CHANGES_CHILDREN]
    if not names:
        return []
    newer = " MySQL since 9.6 logs such changes (innodb_native_foreign_keys=OFF)." if server.flavour == "mysql" else ""
    return [
        refusal(
            f"{facts.table} is changed by foreign keys with CASCADE or SET NULL ({', '.join(names)}): {server.name} "
            "does not log these changes.",
            f"Make them RESTRICT or NO ACTION and let the application do the change, or leave the table out.{newer}",
            table=facts.table,
        )
    ]


def check_logged(facts: TableFacts, status: LogStatus) -> list[Finding]:
    database = facts.table.database
    if database in status.ignored_databases:
        setting = "binlog_ignore_db names it"
    elif status.only_databases and database not in status.only_databases:
        setting = "binlog_do_db names others only"
    else:
        return []
    return [
        refusal(
            f"Changes of {facts.table} are not logged: {setting}.",
            "Restart the server without binlog_do_db and binlog_ignore_db, or leave the table out.",
            table=facts.table,
        )
    ]


def check_select(connection: Connection, facts: TableFacts) -> list[Finding]:
    """SELECT on the whole table: with a grant on some columns the catalog hides the others, which the log has still."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {quote_table(facts.table)} LIMIT 0")
    except pymysql.MySQLError as error:
        if error_code(error) not in ACCESS_DENIED:
            return [
                refusal(
                    f"{facts.table} can't be read: {error_text(error)}.",
                    "Repair the table, or leave it out.",
                    table=facts.table,
                )
            ]
        return [
            refusal(
                f"The account may not read every column of {facts.table}: {error_text(error)}.",
                f"GRANT SELECT ON {quote_table(facts.table)} TO <account>; columns that must not be copied are named "
                "in source.columns.",
                table=facts.table,
            )
        ]
    return []
