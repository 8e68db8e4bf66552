"""The job's publication: the tables whose changes pgoutput sends. Created if it is missing, checked if it exists.

It must be older than the slot: a change is decoded with the catalog as it was at that change.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import psycopg2

from tidemark.conf.tables import TableName
from tidemark.readers.findings import Finding, refusal, warning
from tidemark.readers.long_waits import LongWait
from tidemark.readers.postgres.connect import CORRECT, Connection, error_code, error_text, quote_identifier, quote_table
from tidemark.readers.postgres.schema.identity import is_gone
from tidemark.readers.postgres.schema.table_facts import read_tables
from tidemark.readers.postgres.slot.open_transactions import (
    SETTLE_SECONDS,
    OpenTransaction,
    described,
    wait_for_open_transactions,
)
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError, TableGoneError
from tidemark.state.remedies import START_OVER, resnapshot_of
from tidemark.state.table import TableId, TableSchema

# to_jsonb: columns that are new in 15 are null before it. A table is published by its name, its schema, or FOR ALL TABLES.
_PUBLICATION = """
SELECT p.oid::bigint, p.xmin::text, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.pubviaroot,
       p.puballtables
FROM pg_publication AS p WHERE p.pubname = %s
"""
_OIDS = """
SELECT n.nspname, c.relname, c.oid::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[]))"""
_MEMBERS = """
SELECT c.oid::bigint, coalesce(r.oid::text, s.entry), to_jsonb(r) ->> 'prqual' IS NOT NULL,
       to_jsonb(r) ->> 'prattrs' IS NOT NULL,
       (SELECT concat(c.relnamespace::regnamespace, '.', c.relname)
        FROM pg_partition_ancestors(w.oid) AS a(oid) JOIN pg_class AS c ON c.oid = a.oid
        LEFT JOIN pg_publication_rel AS r ON r.prrelid = c.oid AND r.prpubid = %(publication)s
        WHERE %(via_root)s AND a.oid <> w.oid AND coalesce(r.oid::text, %(schema_entry)s) IS NOT NULL LIMIT 1)
FROM unnest(%(oids)s::oid[]) AS w(oid) JOIN pg_class AS c ON c.oid = w.oid
LEFT JOIN pg_publication_rel AS r ON r.prrelid = c.oid AND r.prpubid = %(publication)s
CROSS JOIN LATERAL (SELECT %(schema_entry)s) AS s(entry)
"""
# pg_depend has the table's schema: ALTER TABLE SET SCHEMA writes that row, there and back.
_SCHEMA_ENTRY = """(SELECT 'schema ' || pn.oid::text || ' ' || coalesce(max(d.xmin::text), '')
  FROM pg_publication_namespace AS pn LEFT JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
  AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass
  WHERE pn.pnnspid = c.relnamespace AND pn.pnpubid = %(publication)s GROUP BY pn.oid)"""

# All that a slot decodes is decoded with catalogs in which every transaction below its catalog_xmin has ended.
_PUBLISHED_LATER = """
SELECT w.oid::bigint FROM unnest(%(oids)s::oid[]) AS w(oid) JOIN pg_class AS c ON c.oid = w.oid
WHERE NOT EXISTS (
    SELECT FROM pg_replication_slots AS s WHERE s.slot_name = %(slot)s AND age(s.catalog_xmin) < ALL (
        SELECT age(p.xmin) FROM pg_publication AS p WHERE p.oid = %(publication)s
        UNION ALL SELECT age(r.xmin) FROM pg_publication_rel AS r WHERE r.prrelid = w.oid AND r.prpubid = %(publication)s
        {and_schema}))"""
_SCHEMA_LATER = """UNION ALL SELECT age(unnest(ARRAY[pn.xmin, d.xmin])) FROM pg_publication_namespace AS pn
        JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
        AND d.refclassid = 'pg_namespace'::regclass WHERE pn.pnnspid = c.relnamespace AND pn.pnpubid = %(publication)s"""


def create_publication(connection: Connection, name: str, tables: Sequence[TableId]) -> bool:
    """Creates the publication for exactly these tables. Returns False if it exists. Raises SourceNotUsableError."""
    if _head(connection, name) is not None:
        return False
    _require_identities(connection, name, tables)
    _write(
        connection,
        f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE {', '.join(map(only_itself, tables))} "
        "WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)",
        tables,
    )
    return True


def add_tables(
    connection: Connection, name: str, tables: Sequence[TableId], *, seconds: float | None = None
) -> list[TableId]:
    """Adds the tables that are not yet published, and returns them. Their splits may be read from now on. Raises
    SourceNotUsableError. `seconds`: as for `wait_for_open_transactions`, and how long VACUUM, CREATE INDEX and ALTER TABLE are
    waited for.

    The log lacks what open transactions wrote to a table before, though they may commit later. So they are waited for.
    """
    missing = sorted(set(tables) - set(memberships(connection, name, tables)))
    if missing:
        _require_identities(connection, name, missing)
        named = ", ".join(map(only_itself, missing))
        _write(connection, f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {named}", missing, seconds=seconds)
        wait_for_open_transactions(connection, seconds=seconds)
    return missing


def without_identity(connection: Connection, tables: Sequence[TableId]) -> list[TableId]:
    """Returns those of the tables that have no replica identity. Raises TableGoneError. Partitions are not looked at."""
    found = read_tables(connection, tables)
    return [t for t, facts in found.items() if facts.kind == "table" and facts.identity_columns is None]


def _require_identities(connection: Connection, name: str, tables: Sequence[TableId]) -> None:
    """Raises SourceNotUsableError for a table that applications could no longer update or delete from once it is published.
    Only its owner may decide that."""
    without = without_identity(connection, tables)
    if without:
        raise SourceNotUsableError(
            f"{without[0]} has no replica identity, and the publication {name} does not have it: once it is published, the "
            "server refuses every UPDATE and DELETE on it.",
            "Run the job again. It says what the table needs.",
            without[0],
        )


def publishes_all(connection: Connection, name: str) -> bool | None:
    """Returns whether inserts, updates, deletes and truncates are published; None if there is no such publication."""
    head = _head(connection, name)
    return None if head is None else head[2]


def publish_all(name: str) -> str:
    """The remedy for a publication that does not publish all of them."""
    return (
        f"ALTER PUBLICATION {quote_identifier(name)} SET (publish = 'insert, update, delete, truncate'). From then on the "
        "server refuses every UPDATE and DELETE on published tables without a replica identity: give them one first, if they "
        "need it."
    )


def check_publication(
    connection: Connection,
    name: str,
    tables: Collection[TableId],
    *,
    partitioned: Collection[TableId],
    addable: Collection[TableId] = (),
) -> list[Finding]:
    """Returns the reasons why the log would lack changes of the tables. `partitioned`: those of the tables that have
    partitions. `addable`: those that the role may publish."""
    head = _head(connection, name)
    if head is None:
        return [refusal(f"The publication {name} does not exist.", "Run the job again.")]
    quoted = quote_identifier(name)
    _, _, whole, via_root, _ = head
    found = []
    if not whole:
        found.append(
            refusal(
                f"The publication {name} does not publish all of insert, update, delete and truncate.",
                publish_all(name),
            )
        )
    if partitioned and not via_root:
        found.append(
            refusal(
                f"The publication {name} publishes partitions instead of {', '.join(map(str, sorted(partitioned)))}.",
                f"ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true).",
            )
        )
    members = {member.table: member for member in _members(connection, name, _oids(connection, tables))}
    for table in sorted(tables):
        if table not in members and table in addable and _is_ours(connection, name):
            found.append(
                warning(
                    f"The publication {name} does not have {table}. The job's start adds it.",
                    "None is needed. To keep the table out of the job, name it in source.exclude_tables.",
                    table=table,
                )
            )
            continue
        if table not in members:
            message = f"The publication {name} does not have {table}."
            found.append(refusal(message, f"ALTER PUBLICATION {quoted} ADD TABLE {only_itself(table)}.", table=table))
            continue
        member = members[table]
        if member.above is not None:
            found.append(
                refusal(
                    f"The publication {name} publishes the changes of {table} as those of {member.above}, of which it is a "
                    "partition: none of them would come to its copy.",
                    f"Name {member.above} in source.tables instead of {table}; or name a publication in source.publication "
                    f"that has {table} and no table above it.",
                    table=table,
                )
            )
        if member.filtered or member.listed:
            found.append(
                refusal(
                    f"The publication {name} has {table} with a {'row filter' if member.filtered else 'column list'}: the log "
                    "lacks a part of the table.",
                    f"ALTER PUBLICATION {quoted} DROP TABLE {only_itself(table)}; ALTER PUBLICATION {quoted} ADD TABLE "
                    f"{only_itself(table)}. Rows and columns are left out by snapshot.where and source.columns.",
                    table=table,
                )
            )
    return found


def memberships(connection: Connection, name: str, tables: Collection[TableId]) -> Mapping[TableId, str]:
    """Returns a text for each published table. The text stays the same as long as the table's changes are published without
    a break. If it is different or missing, the log may lack changes."""
    return _memberships(connection, name, _oids(connection, tables))


def published_above(connection: Connection, name: str, tables: Collection[TableId]) -> frozenset[TableId]:
    """Returns the tables whose changes are published as those of a table of which they are a partition."""
    members = _members(connection, name, _oids(connection, tables))
    return frozenset(member.table for member in members if member.above is not None)


def require_memberships(
    connection: Connection, name: str, known: Mapping[TableId, str], oids: Mapping[TableId, int]
) -> None:
    """Raises LogPositionLostError if a table of `oids` was taken out of the publication, even for a moment; SchemaChangedError
    if it was dropped. `known`: the texts of `memberships` when the tables joined the job. The tables' names do not matter."""
    now = _memberships(connection, name, oids)
    changed = sorted(table for table in oids if table not in now or now[table] != known.get(table))
    if not changed:
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT oid::bigint FROM pg_class WHERE oid = ANY (%s::oid[])", ([oids[t] for t in changed],))
        there = {int(row[0]) for row in cursor.fetchall()}
    gone = [table for table in changed if oids[table] not in there]
    if gone:
        raise is_gone(gone[0])
    names = [TableName(table.database, table.name) for table in changed]
    raise LogPositionLostError(
        f"The publication {name} was altered for {', '.join(map(str, changed))}, or created again, or the table was "
        "dropped: changes in between are not in the log.",
        "If source.publication was changed, undo that and run the job again: nothing is lost. Otherwise let the job read the "
        f"tables again ({resnapshot_of(names)}), or {START_OVER}. Do not alter the publication.",
        changed[0] if len(changed) < len(oids) else None,  # else it is the publication's trouble, not a table's
    )


def published_later(connection: Connection, name: str, slot: str, tables: Collection[TableId]) -> list[TableId]:
    """Returns those of the tables for which it is not proven that the slot's log has all their changes: they were published,
    or the publication was altered, after the slot was created, or shortly before."""
    head, oids = _head(connection, name), _oids(connection, tables)
    if head is None:
        return sorted(tables)
    and_schema = _SCHEMA_LATER if connection.server_version >= 15_00_00 else ""
    with connection.cursor() as cursor:
        query = _PUBLISHED_LATER.format(and_schema=and_schema)
        cursor.execute(query, {"oids": list(oids.values()), "slot": slot, "publication": head[0]})
        later = {int(row[0]) for row in cursor.fetchall()}
    return sorted(table for table in tables if oids.get(table) is None or oids[table] in later)


def publication_owner(connection: Connection, name: str) -> tuple[str, bool] | None:
    """Returns its owner, and whether the role may act as that owner; None if there is no such publication."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_userbyid(pubowner), pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s",
            (name,),
        )
        row = cursor.fetchone()
    return None if row is None else (str(row[0]), bool(row[1]))


def _is_ours(connection: Connection, name: str) -> bool:
    owner = publication_owner(connection, name)
    return owner is not None and owner[1]


def drop_publication(connection: Connection, name: str) -> bool:
    """Drops the publication. Returns False if there is none. Raises SourceNotUsableError."""
    if _head(connection, name) is None:
        return False
    _write(connection, drop_statement(name))
    return True


def drop_statement(name: str) -> str:
    return f"DROP PUBLICATION {quote_identifier(name)}"


def _head(connection: Connection, name: str) -> tuple[int, str, bool, bool, bool] | None:
    """Returns its OID, the transaction that last altered it, and whether it publishes all operations, via root, all tables."""
    with connection.cursor() as cursor:
        cursor.execute(_PUBLICATION, (name,))
        row = cursor.fetchone()
    return None if row is None else (int(row[0]), str(row[1]), bool(row[2]), bool(row[3]), bool(row[4]))


def _oids(connection: Connection, tables: Collection[TableId]) -> dict[TableId, int]:
    """Returns the OIDs of the tables that exist."""
    with connection.cursor() as cursor:
        cursor.execute(_OIDS, ([t.database for t in tables], [t.name for t in tables]))
        return {TableId(row[0], row[1]): int(row[2]) for row in cursor.fetchall()}


def _memberships(connection: Connection, name: str, oids: Mapping[TableId, int]) -> dict[TableId, str]:
    head = _head(connection, name)
    if head is None:
        return {}
    oid, altered, _, _, _ = head
    members = _members(connection, name, oids)
    return {member.table: f"{oid} {altered} {member.entry}" for member in members if member.above is None}


@dataclass(frozen=True, slots=True)
class _Member:
    """A published table. `entry`: why it is published; None if only a table above it is. `filtered`, `listed`: it has a row
    filter, a column list. `above`: a published table of which it is a partition, and whose changes its changes are in the log;
    None unless the publication has publish_via_partition_root."""

    table: TableId
    entry: str | None
    filtered: bool
    listed: bool
    above: str | None


def _members(connection: Connection, name: str, oids: Mapping[TableId, int]) -> list[_Member]:
    head = _head(connection, name)
    if head is None:
        return []
    entry = "'all'" if head[4] else (_SCHEMA_ENTRY if connection.server_version >= 15_00_00 else "NULL::text")
    arguments = {"oids": list(oids.values()), "publication": head[0], "via_root": head[3]}
    with connection.cursor() as cursor:
        cursor.execute(_MEMBERS.replace("%(schema_entry)s", entry), arguments)
        rows = cursor.fetchall()
    tables = {oid: table for table, oid in oids.items()}
    return [_Member(tables[row[0]], *row[1:]) for row in rows if row[1] is not None or row[4] is not None]


def only_itself(table: TableId) -> str:
    """Names a table without those that inherit from it, which would be published, too: the server refuses changes of published
    tables without a replica identity. Partitions of a table are not left out."""
    return f"ONLY {quote_table(table)}"


def _write(
    connection: Connection, statement: str, tables: Collection[TableId] = (), *, seconds: float | None = None
) -> None:
    """Runs a statement in a transaction that may write. Raises SourceNotUsableError, also if it waits for a lock on `tables` of
    another session for longer than `seconds` (SETTLE_SECONDS). Says soon who has the lock.

    Who waits for the lock holds up neither who reads nor who writes, but VACUUM and DDL: so it is not asked for all the time.
    """
    wait, deadline = LongWait(), time.monotonic() + (SETTLE_SECONDS if seconds is None else seconds)
    while (error := _tried(connection, statement, left := deadline - time.monotonic())) is not None:
        if error_code(error) != _LOCKED or left <= ATTEMPT_SECONDS:
            raise _refused(connection, error, tables) from error
        wait.goes_on(partial(_waited_for, connection, tables))


def _tried(connection: Connection, statement: str, seconds: float) -> psycopg2.Error | None:
    """Tries to run the statement, for at most ATTEMPT_SECONDS. Returns the server's refusal."""
    wait_ms = max(1, int(1000 * min(seconds, ATTEMPT_SECONDS)))
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"BEGIN READ WRITE; SET LOCAL lock_timeout = {wait_ms}; {statement}; COMMIT")
    except psycopg2.Error as error:
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
        return error
    return None


ATTEMPT_SECONDS = 5.0
"""How long one attempt waits for locks. Longer than `deadlock_timeout`, after which the server ends an autovacuum for it."""


def _refused(connection: Connection, error: psycopg2.Error, tables: Collection[TableId]) -> SourceNotUsableError:
    code, message = error_code(error), f"The source refuses the job's publication: {error_text(error)}."
    if code in _GONE:
        return TableGoneError(message, "Run the job again.")
    if code == _LOCKED and (found := _keepers(connection, tables)):
        table, keeper = next(iter(found.items()))
        return SourceNotUsableError(
            f"{message} It waited for {keeper.text}, which keeps {table} locked.",
            f"{keeper.ending}. Then run the job again.",
        )
    return SourceNotUsableError(message, "Run the job again." if code == _LOCKED else CORRECT)


def _waited_for(connection: Connection, tables: Collection[TableId]) -> str:
    found = _keepers(connection, tables)
    named = [f"{keeper.text} keeps {table} locked. {keeper.ending}." for table, keeper in found.items()]
    return f"The job waits until it can publish its tables. {' '.join(named[:3]) or 'The lock has just been released.'}"


def _keepers(connection: Connection, tables: Collection[TableId]) -> dict[TableId, OpenTransaction]:
    """Returns who has, or waits for, a lock that keeps tables from being published: one for each such table."""
    found = dict[TableId, OpenTransaction]()
    with connection.cursor() as cursor:
        cursor.execute(_KEEPERS, ([table.database for table in tables], [table.name for table in tables]))
        for schema, name, *facts in cursor.fetchall():
            found.setdefault(TableId(schema, name), described(*facts))
    return found


_KEEPERS = """
SELECT n.nspname::text, c.relname::text, l.pid, a.usename::text, a.application_name, p.gid, p.database::text,
       date_trunc('second', coalesce(a.xact_start, p.prepared))::text
FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL AND p.transaction::text = split_part(l.virtualtransaction, '/', 2)
WHERE l.locktype = 'relation' AND l.pid IS DISTINCT FROM pg_backend_pid()
AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[]))
ORDER BY NOT l.granted, n.nspname, c.relname, l.pid"""
_LOCKED = "55P03"
_GONE = frozenset({"42P01", "3F000"})


def has_column_list(connection: Connection, publication: str, schema: TableSchema) -> bool:
    """Returns True if the publication publishes only some columns of the table."""
    with connection.cursor() as cursor:
        cursor.execute(_HAS_COLUMN_LIST, (publication, schema.oid))
        ((found,),) = cursor.fetchall()
    return bool(found)


# Servers before 15 have no prattrs.
_HAS_COLUMN_LIST = """
SELECT EXISTS (SELECT FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
               WHERE p.pubname = %s AND r.prrelid = %s::oid AND to_jsonb(r) ->> 'prattrs' IS NOT NULL)"""
