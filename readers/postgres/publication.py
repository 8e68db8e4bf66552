"""The job's publication: what pgoutput puts into the log for it. Made if it is missing, checked if it is there.

It must be older than the slot: a change is decoded with the catalog of its own time.
"""

from collections.abc import Collection, Mapping, Sequence

import psycopg2

from readers.findings import Finding, refusal, warning
from readers.postgres.connect import Connection, error_code, error_text, quote_identifier, quote_table
from readers.postgres.slot import wait_for_open_transactions
from state.errors import LogPositionLostError, SourceNotUsableError
from state.table import TableId

# to_jsonb: columns that came with 15 are null before. One row a table that is published for one of three reasons.
_PUBLICATION = """
SELECT p.oid::bigint, p.xmin::text, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.pubviaroot,
       p.puballtables
FROM pg_publication AS p WHERE p.pubname = %s
"""
_MEMBERS = """
SELECT n.nspname, c.relname, coalesce(r.oid::text, s.entry), to_jsonb(r) ->> 'prqual' IS NOT NULL,
       to_jsonb(r) ->> 'prattrs' IS NOT NULL
FROM unnest(%(schemas)s::name[], %(names)s::name[]) AS w(schema, name)
JOIN pg_namespace AS n ON n.nspname = w.schema
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.name
LEFT JOIN pg_publication_rel AS r ON r.prrelid = c.oid AND r.prpubid = %(publication)s
CROSS JOIN LATERAL (SELECT %(schema_entry)s) AS s(entry)
"""
_SCHEMA_ENTRY = """(SELECT 'schema ' || pn.oid::text FROM pg_publication_namespace AS pn
  WHERE pn.pnnspid = n.oid AND pn.pnpubid = %(publication)s)"""


def create_publication(connection: Connection, name: str, tables: Sequence[TableId]) -> bool:
    """For exactly these tables; False where it exists. Raises SourceNotUsableError."""
    if _head(connection, name) is not None:
        return False
    _write(
        connection,
        f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE {', '.join(map(quote_table, tables))} "
        "WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)",
    )
    return True


def add_tables(connection: Connection, name: str, tables: Sequence[TableId]) -> list[TableId]:
    """Publishes those that are not yet, and returns them: their splits may be read from now on. Raises
    SourceNotUsableError.

    What a transaction wrote to a table before that is not in the log, though it may commit later: so it is waited for.
    """
    missing = sorted(set(tables) - set(memberships(connection, name, tables)))
    if missing:
        named = ", ".join(map(quote_table, missing))
        _write(connection, f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {named}")
        wait_for_open_transactions(connection)
    return missing


def check_publication(
    connection: Connection, name: str, tables: Collection[TableId], *, addable: Collection[TableId] = ()
) -> list[Finding]:
    """Why the log would lack changes of the tables. `addable` are those that the role may publish."""
    head = _head(connection, name)
    if head is None:
        return [refusal(f"The publication {name} does not exist.", "Start a new job: it makes one.")]
    quoted = quote_identifier(name)
    _, _, publishes_all, via_root, _ = head
    found = []
    if not publishes_all:
        found.append(
            refusal(
                f"The publication {name} does not publish all of insert, update, delete and truncate.",
                f"ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate').",
            )
        )
    if not via_root:
        found.append(
            refusal(
                f"The publication {name} publishes partitions instead of the partitioned tables.",
                f"ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true).",
            )
        )
    members = {table: (filtered, listed) for table, _, filtered, listed in _members(connection, name, tables)}
    for table in sorted(tables):
        if table not in members and table in addable and _is_ours(connection, name):
            found.append(
                warning(
                    f"The publication {name} does not have {table}: the job's start adds it.",
                    "None is needed; to keep the table out of the job, name it in source.exclude_tables.",
                    table=table,
                )
            )
            continue
        if table not in members:
            message = f"The publication {name} does not have {table}."
            found.append(refusal(message, f"ALTER PUBLICATION {quoted} ADD TABLE {quote_table(table)}.", table=table))
            continue
        filtered, listed = members[table]
        if filtered or listed:
            found.append(
                refusal(
                    f"The publication {name} has {table} with a {'row filter' if filtered else 'column list'}: the log "
                    "lacks a part of it.",
                    f"ALTER PUBLICATION {quoted} DROP TABLE {quote_table(table)}; ALTER PUBLICATION {quoted} ADD TABLE "
                    f"{quote_table(table)}. Rows and columns are left out by snapshot.where and source.columns.",
                    table=table,
                )
            )
    return found


def memberships(connection: Connection, name: str, tables: Collection[TableId]) -> Mapping[TableId, str]:
    """For each of the tables that is published a text that stays the same as long as its changes have been published
    without a break: another one, or none, means that changes may be missing from the log."""
    head = _head(connection, name)
    if head is None:
        return {}
    oid, altered, _, _, _ = head
    return {table: f"{oid} {altered} {entry}" for table, entry, _, _ in _members(connection, name, tables)}


def require_memberships(connection: Connection, name: str, known: Mapping[TableId, str]) -> None:
    """Raises LogPositionLostError where a table was taken out of the publication, be it for a moment."""
    now = memberships(connection, name, known)
    changed = sorted(table for table, text in known.items() if now.get(table) != text)
    if changed:
        raise LogPositionLostError(
            f"The publication {name} was altered for {', '.join(map(str, changed))}, or made anew, or the table was dropped: "
            "changes in between are not in the log.",
            "Start the job anew with another checkpoint directory and an empty target, and leave its publication alone.",
        )


def publication_owner(connection: Connection, name: str) -> tuple[str, bool] | None:
    """Its owner, and whether the role may act as that owner; None where there is no such publication."""
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
    """False where there is none. Raises SourceNotUsableError."""
    if _head(connection, name) is None:
        return False
    _write(connection, f"DROP PUBLICATION {quote_identifier(name)}")
    return True


def _head(connection: Connection, name: str) -> tuple[int, str, bool, bool, bool] | None:
    """Oid, the transaction that last altered it, whether it publishes everything, via root, all tables."""
    with connection.cursor() as cursor:
        cursor.execute(_PUBLICATION, (name,))
        row = cursor.fetchone()
    return None if row is None else (int(row[0]), str(row[1]), bool(row[2]), bool(row[3]), bool(row[4]))


def _members(connection: Connection, name: str, tables: Collection[TableId]) -> list[tuple[TableId, str, bool, bool]]:
    """(table, what makes it a member, has a row filter, has a column list)"""
    head = _head(connection, name)
    if head is None:
        return []
    entry = "'all'" if head[4] else (_SCHEMA_ENTRY if connection.server_version >= 15_00_00 else "NULL::text")
    arguments = {"schemas": [t.database for t in tables], "names": [t.name for t in tables], "publication": head[0]}
    with connection.cursor() as cursor:
        cursor.execute(_MEMBERS.replace("%(schema_entry)s", entry), arguments)
        rows = cursor.fetchall()
    return [(TableId(row[0], row[1]), str(row[2]), bool(row[3]), bool(row[4])) for row in rows if row[2] is not None]


def _write(connection: Connection, statement: str) -> None:
    """In a transaction that may write."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"BEGIN READ WRITE; {statement}; COMMIT")
    except psycopg2.Error as exc:
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
        code = error_code(exc)
        remedy = {
            _DENIED: "Let the tables' owner make the publication, and name it: source.publication. Or GRANT CREATE ON "
            "DATABASE and own the tables.",
        }.get(code or "", "Correct what it says.")
        raise SourceNotUsableError(f"The source refuses the job's publication: {error_text(exc)}.", remedy) from exc


_DENIED = "42501"
