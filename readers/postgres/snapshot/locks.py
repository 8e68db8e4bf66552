"""Tables that another session keeps from being read: it has an ACCESS EXCLUSIVE lock, or waits for one. Who asks later waits
behind it."""

from collections.abc import Collection, Mapping, Sequence

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.replay import is_in_recovery
from tidemark.readers.postgres.slot.open_transactions import OpenTransaction, described
from tidemark.readers.session import FIND_LOCK, AskingSession
from tidemark.state.errors import TableLockedError
from tidemark.state.table import TableId

# LOCK TABLE locks partitions, too, and tables that inherit from the table.
_LOCKED = """
WITH RECURSIVE locked (oid, pid, xid, granted) AS (
    SELECT l.relation, l.pid, split_part(l.virtualtransaction, '/', 2), l.granted FROM pg_locks AS l
    WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    UNION
    SELECT i.inhparent, k.pid, k.xid, k.granted FROM locked AS k JOIN pg_inherits AS i ON i.inhrelid = k.oid)
SELECT n.nspname::text, c.relname::text, k.pid, a.usename::text, a.application_name, p.gid, p.database::text,
       date_trunc('second', coalesce(a.xact_start, p.prepared))::text
FROM locked AS k JOIN pg_class AS c ON c.oid = k.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_activity AS a ON a.pid = k.pid
LEFT JOIN pg_prepared_xacts AS p ON k.pid IS NULL AND p.transaction::text = k.xid
ORDER BY k.granted"""


def locked_tables(connection: Connection, tables: Collection[TableId]) -> Mapping[TableId, OpenTransaction]:
    """Returns who keeps each of the tables from being read: who has the lock, rather than who waits for it."""
    with connection.cursor() as cursor:
        cursor.execute(_LOCKED)
        rows = cursor.fetchall()
    keeper = _on_primary if rows and is_in_recovery(connection) else described
    found = {TableId(schema, name): keeper(*facts) for schema, name, *facts in rows}
    return {table: found[table] for table in tables if table in found}


def _on_primary(*_: object) -> OpenTransaction:
    """A standby's own sessions have no such lock: it replays that of a transaction of the primary."""
    return OpenTransaction(
        "a transaction on the primary",
        "End it there: SELECT pid, query FROM pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks WHERE "
        "mode = 'AccessExclusiveLock' AND locktype = 'relation')",
    )


def locked_error(session: AskingSession[Connection], tables: Sequence[TableId], text: str) -> TableLockedError:
    """Returns the error of the first of the tables that is locked. `text`: what the server said about one of them."""
    found = session.ask(lambda connection: kept_locked(connection, tables, text))
    session.close()
    return found


def kept_locked(connection: Connection, tables: Sequence[TableId], text: str) -> TableLockedError:
    """The same, on a connection."""
    found = locked_tables(connection, tables)
    for table in tables:
        if table in found:
            keeper = found[table]
            return TableLockedError(f"{keeper.text} keeps {table} locked: {text}.", f"{keeper.ending}.", table)
    return TableLockedError(f"Another session kept {tables[0]} locked: {text}.", FIND_LOCK, tables[0])
