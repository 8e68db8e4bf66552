"""Preflight of the server: its settings, the role's attributes, open prepared transactions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemark.conf.tables import setting_of
from tidemark.readers.findings import Finding, refusal, warning
from tidemark.readers.postgres.connect import Connection, quote_identifier
from tidemark.readers.postgres.replay import stopped_replay
from tidemark.readers.postgres.schema.table_facts import TableFacts
from tidemark.readers.postgres.server import ServerInfo
from tidemark.readers.postgres.slot.log_source import let_replicate
from tidemark.readers.postgres.slot.publication import only_itself
from tidemark.readers.postgres.slot.slot import (
    FAILOVER_MAJOR,
    MAKE_ROOM_FOR_SLOT,
    SET_WAL_LEVEL,
    slot_exists,
    survives_failover,
)
from tidemark.state.table import TableId, TableSchema

_ROLE = """
SELECT rolname, rolsuper OR rolreplication OR EXISTS (
           SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(m.oid, 'USAGE'))
FROM pg_roles WHERE rolname = current_user"""
_ONE_IN_MONEY = "SELECT encode(cash_send('1'::money), 'hex')"
_ONE_HUNDRED = "0000000000000064"


STANDBY_MAJOR = 16
"""The first version whose standbys have logical slots of their own."""


def check_settings(connection: Connection, server: ServerInfo, slot: str, *, standby: bool = False) -> list[Finding]:
    """Checks the settings that creating and keeping a slot needs. `standby`: the server may be one (source.standby)."""
    found = _check_standby(connection, server, standby=standby) if server.in_recovery else []
    if not server.has_logical_log:
        found.append(
            refusal(
                f"wal_level is {server.wal_level}: the log does not hold rows.",
                SET_WAL_LEVEL,
            )
        )
    elif server.replication_slots >= server.max_replication_slots and not slot_exists(connection, slot):
        found.append(
            refusal(
                f"All {server.max_replication_slots} replication slots of the server are taken "
                "(max_replication_slots); the job needs one.",
                MAKE_ROOM_FOR_SLOT,
            )
        )
    return [*found, *_worth_knowing(connection, server), *_without_failover(connection, server, slot)]


def _check_standby(connection: Connection, server: ServerInfo, *, standby: bool) -> list[Finding]:
    if server.version[0] < STANDBY_MAJOR and standby:
        return [
            refusal(
                f"The server is a standby ({server.name}). Standbys have logical slots since PostgreSQL {STANDBY_MAJOR}.",
                "Name the primary in source.url.",
            )
        ]
    if not standby:
        read_it = f" To read from the standby, write source.standby: true (PostgreSQL {STANDBY_MAJOR} and later)."
        return [
            Finding(
                "refuse",
                f"The server is a standby ({server.name}).",
                f"Name the primary in source.url. If a failover is under way, run the job again after it.{read_it}",
                passes=True,
            )
        ]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('hot_standby_feedback')::boolean AND current_setting('primary_slot_name') <> ''"
        )
        ((keeps,),) = cursor.fetchall()
    found = []
    if not keeps:
        found.append(
            warning(
                "The primary may remove rows that the job still needs: the standby then ends queries, and invalidates the "
                "job's slot, after which all rows are read again (source.on_log_lost).",
                "On the standby: set hot_standby_feedback = on, and in primary_slot_name a physical slot of the primary.",
            )
        )
    stopped = stopped_replay(connection)
    if stopped is not None:
        found.append(warning("The standby does not replay its primary's log now.", stopped))
    return found


def after_failover(connection: Connection, server: ServerInfo, slot: str) -> str:
    """Returns what a job does after a standby of the server was promoted."""
    if server.in_recovery:
        return (
            "If this standby is promoted, or follows another one that was promoted, the job continues here. If it must be "
            "rebuilt for that, all rows are read again (source.on_log_lost)."
        )
    if server.version[0] < FAILOVER_MAJOR:
        return (
            f"{server.name} has no copies of logical slots on standbys: after a failover all rows are read again "
            f"(source.on_log_lost). PostgreSQL {FAILOVER_MAJOR} and later have them."
        )
    if survives_failover(connection, slot) is False:
        return (
            f"The slot {slot} is not copied to standbys: after a failover all rows are read again (source.on_log_lost)."
        )
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('synchronized_standby_slots')")
        row = cursor.fetchone()
    waits = row is not None and bool(row[0])
    after = (
        f"The job reads nothing that the standbys of {row[0]} lack (synchronized_standby_slots)."
        if waits and row is not None
        else "If the job has read what the standby lacks, the rows that this changed are read again; "
        "synchronized_standby_slots prevents it."
    )
    return f"The slot {slot} goes to standbys with sync_replication_slots = on: after a failover the job continues. {after}"


def _without_failover(connection: Connection, server: ServerInfo, slot: str) -> list[Finding]:
    if server.version[0] < FAILOVER_MAJOR or server.in_recovery or survives_failover(connection, slot) is not False:
        return []
    return [
        warning(
            f"The slot {slot} was created without failover: standbys keep no copy of it.",
            f'While no run reads from it, over a connection with replication=database: ALTER_REPLICATION_SLOT "{slot}" '
            "(FAILOVER true).",
        )
    ]


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the server may not refuse an UPDATE or DELETE on a published table without a replica identity. `why`: a clause."""

    why: str
    remedy: str


_MERGE_IS_CHECKED = {15: 15, 16: 11, 17: 7, 18: 1}
"""The first minor release of each version that refuses MERGE on such tables. PostgreSQL 14 has no MERGE. Older releases accept
INSERT … ON CONFLICT DO UPDATE, too, which is in the log as an update without its old row."""


def doubt_of_refusals(server: ServerInfo) -> Doubt | None:
    """Returns None if the server refuses every UPDATE and DELETE on a published table without a replica identity."""
    if server.in_recovery:
        return Doubt(
            "a statement that began before it was published may still run on the primary, and a standby does not show it",
            "Name the primary in source.url.",
        )
    major, minor = server.version
    checked_since = _MERGE_IS_CHECKED.get(major, 0)
    if minor >= checked_since:
        return None
    return Doubt(
        f"{server.name} accepts MERGE, and the log lacks the rows that it deletes",
        f"Update the server to PostgreSQL {major}.{checked_since} or newer.",
    )


def check_role(connection: Connection) -> list[Finding]:
    with connection.cursor() as cursor:
        cursor.execute(_ROLE)
        row = cursor.fetchone()
    assert row is not None
    role, may_replicate = row
    if may_replicate:
        return []
    return [refusal(f"The role {role} may not use replication slots.", let_replicate(role))]


def check_money(connection: Connection, schemas: Iterable[TableSchema]) -> list[Finding]:
    """Checks lc_monetary if a table has money: it sets the number of decimals, which the value itself does not have."""
    columns = [
        (schema.table, column.name)
        for schema in schemas
        for column in schema.captured
        if column.source_type in {"money", "money[]"}
    ]
    if not columns or _money_has_cents(connection):
        return []
    return [
        refusal(
            f"Column {column} of {table} is money, and under the server's lc_monetary an amount does not have two "
            "decimals.",
            f"Leave the column out: {setting_of('source.columns', table, {'exclude': [column]})}. Or change it to numeric.",
            table=table,
            column=column,
        )
        for table, column in columns
    ]


def check_creation(
    connection: Connection, server: ServerInfo, name: str, tables: Mapping[TableId, TableFacts]
) -> list[Finding]:
    """Checks that the role may create the missing publication."""
    create = (
        f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE {', '.join(map(only_itself, tables))} "
        "WITH (publish_via_partition_root = true)."
    )
    if server.in_recovery:
        return [
            refusal(
                f"There is no publication {name}, and a standby can't create it.",
                f"On the primary: {create} Then run the job again.",
            )
        ]
    with connection.cursor() as cursor:
        cursor.execute("SELECT has_database_privilege(current_database(), 'CREATE'), current_user")
        row = cursor.fetchone()
    assert row is not None
    may_create, role = row
    others = [str(table) for table, facts in tables.items() if not facts.owned]
    if may_create and not others:
        return []
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    why = f"does not own {others[0]}{more}" if may_create else "may not create one in this database"
    return [
        refusal(
            f"There is no publication {name}, and the role {role} {why}.",
            f"Let the owner of the tables create it, and name it in source.publication: {create}",
        )
    ]


def _worth_knowing(connection: Connection, server: ServerInfo) -> list[Finding]:
    found = []
    if server.encoding == "SQL_ASCII":
        found.append(
            warning(
                "The database has encoding SQL_ASCII: the server does not know the encoding of its texts. A job stops at the "
                "first text that is not UTF-8.",
                "Copy the data into a database with encoding UTF8.",
            )
        )
    if server.max_slot_wal_keep_size_mb >= 0:
        found.append(
            warning(
                f"The server invalidates a slot that holds more than {server.max_slot_wal_keep_size_mb} MB of log "
                "(max_slot_wal_keep_size): a job that pauses for longer can't continue.",
                "Set it to what the log grows by during the longest pause, or to -1.",
            )
        )
    if server.idle_replication_slot_timeout_seconds > 0:
        found.append(
            warning(
                f"The server invalidates a slot that nobody has read for {server.idle_replication_slot_timeout_seconds} "
                "seconds (idle_replication_slot_timeout).",
                "Set it to more than the longest pause of the job, or to 0.",
            )
        )
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
        row = cursor.fetchone()
    if row is not None and row[0]:
        found.append(
            warning(
                f"{row[0]} transaction(s) are prepared but not committed: a job's first start waits for them.",
                "Commit or roll them back (SELECT * FROM pg_prepared_xacts).",
            )
        )
    return found


def _money_has_cents(connection: Connection) -> bool:
    """True if money has two decimals under the default lc_monetary, not that of connect.SESSION."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute(
                "SELECT set_config('lc_monetary', (SELECT reset_val FROM pg_settings WHERE name = 'lc_monetary'), true)"
            )
            cursor.execute(_ONE_IN_MONEY)
            row = cursor.fetchone()
        finally:
            cursor.execute("ROLLBACK")
    return row is not None and row[0] == _ONE_HUNDRED
