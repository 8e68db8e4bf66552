"""Tables without a key, by the pages that their rows are in: how many there are, and the snapshots that are shared.

A session that exports its snapshot keeps it alive while its transaction is open, and with it the rows that the snapshot
sees; others take it over by SET TRANSACTION SNAPSHOT (https://www.postgresql.org/docs/current/functions-admin.html,
"Snapshot Synchronization Functions"). The session also keeps the lock that a SELECT takes: no TRUNCATE, VACUUM FULL or
rewriting ALTER TABLE comes before the last page is read.
"""

from collections.abc import Callable

import psycopg2

from readers.postgres.connect import Connection, quote_table
from readers.postgres.session import SqlSession, will_pass
from state.key_statistics import PageStatistics
from state.position import WalPosition
from state.split import SharedSnapshot
from state.table import TableId

# A partitioned table has no pages of its own. Another access method than heap may give places another meaning.
_PAGES = """
SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint, pg_table_size(c.oid), c.reltuples::bigint
FROM pg_class c JOIN pg_am a ON a.oid = c.relam
WHERE c.oid = to_regclass(%s) AND c.relkind = 'r' AND a.amname = 'heap' AND NOT pg_is_in_recovery()
"""
# The target list is evaluated after the snapshot was taken.
_EXPORT = """
SELECT pg_export_snapshot(), pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_relation_filenode(to_regclass(%s))::bigint
"""


def page_statistics(connection: Connection, table: TableId) -> PageStatistics | None:
    """None for a table whose rows can't be read by places."""
    with connection.cursor() as cursor:
        cursor.execute(_PAGES, (quote_table(table),))
        found = cursor.fetchone()
    if found is None:
        return None
    pages, data_bytes, rows = found
    return PageStatistics(pages, data_bytes, rows if rows >= 0 else None)


class SharedSnapshots:
    """The snapshots that this process exported, a connection of its own for each table."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._held: dict[TableId, tuple[SharedSnapshot, Connection]] = {}

    def share(self, table: TableId) -> SharedSnapshot:
        """Releases the table's one before. Raises SourceNotUsableError, SourceUnavailableError."""
        self.release(table)
        session = SqlSession(self._connect)
        shared = session.ask(lambda connection: _export(connection, table))
        self._held[table] = shared, session.connection
        return shared

    def holds(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        """Asks the server whether the session is still there."""
        held = self._held.get(table)
        if held is None or held[0] != snapshot:
            return False
        try:
            with held[1].cursor() as cursor:
                cursor.execute("SELECT")
        except psycopg2.Error:
            self.release(table)
            return False
        return True

    def release(self, table: TableId) -> None:
        held = self._held.pop(table, None)
        if held is not None:
            held[1].close()


def _export(connection: Connection, table: TableId) -> SharedSnapshot:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(f"LOCK TABLE {quote_table(table)} IN ACCESS SHARE MODE")
        cursor.execute(_EXPORT, (quote_table(table),))
        found = cursor.fetchone()
    assert found is not None
    name, snapshot, lsn, taken_at_us, filenode = found
    return SharedSnapshot(name, WalPosition(lsn, snapshot), taken_at_us, filenode)


def take_over(connection: Connection, table: TableId, shared: SharedSnapshot) -> bool:
    """In a transaction that has locked the table and asked nothing yet. False where the snapshot is gone.

    The server uses names again. Another snapshot of the same text sees the same rows, if they are in the same file.
    """
    with connection.cursor() as cursor:
        try:
            cursor.execute("SET TRANSACTION SNAPSHOT %s", (shared.name,))
        except psycopg2.Error as error:
            if will_pass(error, connection):
                raise
            return False
        cursor.execute(
            "SELECT pg_current_snapshot()::text, pg_relation_filenode(to_regclass(%s))::bigint", (quote_table(table),)
        )
        return cursor.fetchone() == (shared.high.snapshot, shared.filenode)
