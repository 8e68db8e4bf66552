"""Preflight checks of tables: changes missing in the log, unsupported types, missing keys."""

import contextlib
import re
from collections.abc import Collection
from typing import Literal

import pymysql

from tidemark.conf.tables import setting_of
from tidemark.readers.findings import Finding, refusal, warning
from tidemark.readers.mysql.connect import Connection, error_code, error_text, quote_identifier, quote_table
from tidemark.readers.mysql.schema.catalog import candidate_keys, is_exact_key, names_of, schema_of, type_problems
from tidemark.readers.mysql.schema.table_facts import SYSTEM_VERSIONED, TableFacts
from tidemark.readers.mysql.server import ACCESS_DENIED, LogStatus, ServerInfo
from tidemark.readers.mysql.session import SqlSession
from tidemark.readers.schema_checks import check_mirror_key, schema_or_findings, warnings_of_unlogged
from tidemark.readers.session import FIND_LOCK
from tidemark.state.table import TableId, TableSchema

TRANSACTIONAL_ENGINES = frozenset({"INNODB"})
_CHANGES_CHILDREN = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})
_SESSION_FUNCTIONS = frozenset({"date_format", "dayname", "from_unixtime", "monthname", "unix_timestamp", "week"})
"""Functions whose value depends on the session's time zone, language or first week of the year."""
_WORD = re.compile(r"`(?:[^`]|``)+`|[\w$]+")
_TRIGGER_BEFORE_UPDATE = (
    "SELECT 1 FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table = %s "
    "AND event_manipulation = 'UPDATE' AND action_timing = 'BEFORE' LIMIT 1"
)


def check_columns(
    facts: TableFacts, *, exclude_columns: Collection[str], key_override: tuple[str, ...] | None
) -> tuple[TableSchema | None, list[Finding]]:
    """The table's schema, or None with the reasons; and which columns the log lacks."""
    schema, problems = schema_or_findings(
        facts.table,
        type_problems(facts, exclude_columns),
        lambda: schema_of(facts, exclude_columns=exclude_columns, key_override=key_override),
    )
    if schema is None:
        return None, problems
    unlogged = [column.name for column in facts.columns if not column.logged and column.name not in exclude_columns]
    return schema, warnings_of_unlogged(facts.table, unlogged)


def check_virtual(
    connection: Connection, facts: TableFacts, server: ServerInfo, *, exclude_columns: Collection[str]
) -> list[Finding]:
    """Warns of virtual columns whose values in the log may be others than those that a SELECT shows."""
    virtual = [column.name for column in facts.columns if column.virtual is not None and column.logged]
    copied = [name for name in virtual if name not in exclude_columns]
    unsteady, found = _session_columns(facts), []
    if named := [name for name in copied if name in unsteady]:
        why = (
            "their values depend on the time zone or the language of a session. In rows that are read they are those of a "
            "session in UTC, in changes those of the session that made them"
        )
        found.append(_virtual_warning(facts, named, why))
    if copied and server.flavour == "mariadb" and _has_trigger(connection, facts.table):
        why = (
            "the table has a trigger BEFORE UPDATE. After an UPDATE of several tables MariaDB may log values that they had "
            "before the trigger"
        )
        found.append(_virtual_warning(facts, copied, why))
    return found


def _has_trigger(connection: Connection, table: TableId) -> bool:
    """True for one BEFORE UPDATE that the account may see."""
    with connection.cursor() as cursor:
        cursor.execute(_TRIGGER_BEFORE_UPDATE, (table.database, table.name))
        return cursor.fetchone() is not None


def _session_columns(facts: TableFacts) -> set[str]:
    """The virtual columns whose values depend on the session: by a function, by a TIMESTAMP, or by another such column."""
    unsteady, reads = (
        set[str](),
        {c.name.lower() for c in facts.columns if c.source_type.lower().startswith("timestamp")},
    )
    for column in facts.columns:  # a virtual column reads only generated columns before it
        if column.virtual is None:
            continue
        words = {word.lower().strip("`").replace("``", "`") for word in _WORD.findall(column.virtual)}
        if words & (reads | _SESSION_FUNCTIONS):
            unsteady.add(column.name)
            reads.add(column.name.lower())
    return unsteady


def _virtual_warning(facts: TableFacts, names: list[str], why: str) -> Finding:
    listed = ", ".join(names)
    return warning(
        f"Virtual columns of {facts.table} ({listed}): {why}.",
        "Drop them and add them again as STORED where the server allows that, or leave them out: "
        f"{setting_of('source.columns', facts.table, {'exclude': names})}.",
        table=facts.table,
    )


def check_key(facts: TableFacts, schema: TableSchema) -> list[Finding]:
    """Checks the key for sinks that find rows by it."""
    return check_mirror_key(schema, [names_of(index) for index in candidate_keys(facts)], is_exact_key)


def check_storage(facts: TableFacts, *, snapshots: bool) -> list[Finding]:
    """Checks engine and kind of a table. An engine without transactions has no state that belongs to a log position."""
    found, quoted = [], quote_table(facts.table)
    if facts.kind == SYSTEM_VERSIONED:
        found.append(
            refusal(
                f"{facts.table} is system-versioned: its log mixes current rows with history rows, and has deletes as updates.",
                "Leave the table out: source.exclude_tables.",
                table=facts.table,
            )
        )
    if facts.engine.upper() not in TRANSACTIONAL_ENGINES:
        if snapshots:
            found.append(
                refusal(
                    f"{facts.table} has engine {facts.engine or 'unknown'}, which has no consistent snapshot.",
                    f"ALTER TABLE {quoted} ENGINE=InnoDB, or leave it out: source.exclude_tables.",
                    table=facts.table,
                )
            )
        else:
            found.append(
                warning(
                    f"{facts.table} has engine {facts.engine or 'unknown'}: what a failed statement or a ROLLBACK leaves in it "
                    "may be missing in the copy.",
                    f"ALTER TABLE {quoted} ENGINE=InnoDB.",
                    table=facts.table,
                )
            )
    return found


def check_cascades(
    facts: TableFacts, server: ServerInfo, policy: Literal["refuse", "warn"] = "refuse"
) -> list[Finding]:
    """Refuses, or warns of, foreign keys with CASCADE or SET NULL if InnoDB changes the child rows itself: such changes are not
    logged. Seen on MariaDB 10.11 and 11.4. MySQL 9.7 logs them unless innodb_native_foreign_keys is ON; older MySQL never does.
    """
    if server.logs_cascades:
        return []
    names = [k.name for k in facts.foreign_keys if {k.on_delete, k.on_update} & _CHANGES_CHILDREN]
    if not names:
        return []
    newer = " MySQL since 9.6 logs such changes (innodb_native_foreign_keys=OFF)." if server.flavour == "mysql" else ""
    text = (
        f"{facts.table} is changed by foreign keys with CASCADE or SET NULL ({', '.join(names)}): {server.name} "
        "does not log these changes."
    )
    remedy = f"Make them RESTRICT or NO ACTION and let the application do the change, or leave the table out.{newer}"
    if policy == "warn":
        text = f"{text} Its copy keeps the rows and values that they delete or change (source.cascades: warn)."
        return [warning(text, f"Compare at times: tidemark reconcile JOB.yaml. {remedy}", table=facts.table)]
    anyway = "To copy it without these changes: source.cascades: warn."
    return [refusal(text, f"{remedy} {anyway}", table=facts.table)]


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
            "Restart the server without binlog_do_db and binlog_ignore_db, or leave the table out: source.exclude_tables.",
            table=facts.table,
        )
    ]


def check_select(
    connection: Connection,
    facts: TableFacts,
    *,
    exclude_columns: Collection[str] = frozenset(),
    is_followed: bool = False,
) -> list[Finding]:
    """Checks SELECT on the columns that are copied, and that the catalog shows the others, which the log has. It hides columns
    on which the account has no privilege at all, unless it has one on the table. SHOW CREATE TABLE tells that. `is_followed`:
    the job has the table already. Then it is not refused because another session keeps it locked: its changes can be read."""
    table = quote_table(facts.table)
    error = _refused(connection, f"SELECT * FROM {table} LIMIT 0")
    if error is None or (is_followed and SqlSession.is_locked(error)):
        return []
    if error_code(error) not in ACCESS_DENIED:
        return [
            refusal(
                f"{facts.table} can't be read: {error_text(error)}.",
                FIND_LOCK
                if SqlSession.is_locked(error)
                else "Repair the table, or leave it out: source.exclude_tables.",
                table=facts.table,
            )
        ]
    copied = [name for name in facts.column_names if name not in exclude_columns]
    columns = ", ".join(map(quote_identifier, copied))
    if exclude_columns and copied:
        error = _refused(connection, f"SELECT {columns} FROM {table} LIMIT 0")
        if error is None:
            error = _refused(connection, f"SHOW CREATE TABLE {table}")
        if error is None:
            return []
    instead = (
        f"GRANT SELECT ({columns}), REFERENCES ON {table} TO <account>: with REFERENCES the catalog shows the names and types "
        "of all columns, and no value."
        if exclude_columns
        else f"GRANT SELECT ON {table} TO <account>; columns that must not be copied are named in source.columns."
    )
    return [
        refusal(
            f"The account may not read every column of {facts.table}, only {', '.join(facts.column_names)}: "
            f"{error_text(error)}.",
            instead,
            table=facts.table,
        )
    ]


def _refused(connection: Connection, statement: str) -> pymysql.MySQLError | None:
    """The error that the statement ends with."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    except pymysql.MySQLError as error:
        return error
    return None


def wait_for_alter(connection: Connection, table: TableId) -> None:
    """Waits until no ALTER TABLE of the table is being committed. A SELECT needs a lock that such a statement holds until the
    catalog has the change. An error is left to the checks that follow."""
    with contextlib.suppress(pymysql.MySQLError), connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {quote_table(table)} LIMIT 0")
