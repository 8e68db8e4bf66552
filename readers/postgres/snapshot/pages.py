"""Tables without a key, read by pages: page statistics and exported snapshots.

An exported snapshot lives as long as its session's transaction, and so do the rows that it sees. Other sessions import it by
SET TRANSACTION SNAPSHOT (https://www.postgresql.org/docs/current/functions-admin.html, "Snapshot Synchronization
Functions"). The exporting session also holds the lock that a SELECT takes: TRUNCATE, VACUUM FULL and a rewriting ALTER TABLE
wait until the last page is read.
"""

from collections.abc import Callable

import psycopg2

from tidemark.readers.postgres.connect import Connection, limit_lock_waits, quote_table
from tidemark.readers.postgres.session import SqlSession, will_pass
from tidemark.readers.postgres.snapshot.read_locks import locked
from tidemark.state.key_statistics import PageStatistics
from tidemark.state.position import WalPosition
from tidemark.state.split import SharedSnapshot
from tidemark.state.table import TableId, TableSchema

# A partitioned table has no pages of its own. In another access method than heap a ctid may mean something else.
_PAGES = """
SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint, pg_table_size(c.oid), c.reltuples::bigint
FROM pg_class c JOIN pg_am a ON a.oid = c.relam
WHERE c.oid = to_regclass(%s) AND c.relkind = 'r' AND a.amname = 'heap' AND NOT pg_is_in_recovery()
"""
# The server evaluates the target list after it takes the snapshot.
_EXPORT = """
SELECT pg_export_snapshot(), pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_relation_filenode(to_regclass(%s))::bigint
"""


def page_statistics(connection: Connection, table: TableId) -> PageStatistics | None:
    """Returns None for a table whose rows can't be read by pages."""
    with connection.cursor() as cursor:
        cursor.execute(_PAGES, (quote_table(table),))
        found = cursor.fetchone()
    if found is None:
        return None
    pages, data_bytes, rows = found
    return PageStatistics(pages, data_bytes, rows if rows >= 0 else None)


class SharedSnapshots:
    """The snapshots that this process exports. Each table has its own connection."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._held: dict[TableId, tuple[SharedSnapshot, Connection]] = {}

    def share(self, schema: TableSchema) -> SharedSnapshot:
        """Exports a snapshot for the table and releases its former one. Raises SourceNotUsableError, SourceUnavailableError."""
        self.release(schema.table)
        session = SqlSession(self._connect)
        shared = session.ask(lambda connection: _export(connection, session.another, schema))
        self._held[schema.table] = shared, session.connection
        return shared

    def holds(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        """True if the snapshot is this process's and its session is alive. Queries the server."""
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


def _export(connection: Connection, another: Callable[[], Connection], schema: TableSchema) -> SharedSnapshot:
    limit_lock_waits(connection)  # the planner waits meanwhile, and with it all other tables
    with locked(connection, another, [schema]), connection.cursor() as cursor:
        cursor.execute(_EXPORT, (quote_table(schema.table),))
        found = cursor.fetchone()
    assert found is not None
    name, snapshot, lsn, taken_at_us, filenode = found
    return SharedSnapshot(name, WalPosition(lsn, snapshot), taken_at_us, filenode)


class SnapshotGoneError(Exception):
    """Another session exported the snapshot, and has ended."""


def import_snapshot(connection: Connection, table: TableId, shared: SharedSnapshot) -> None:
    """Imports the snapshot into a transaction that has run no query, while the table is locked. Raises SnapshotGoneError.

    PostgreSQL reuses exported snapshot names. Another snapshot with the same text sees the same rows if the table's storage
    file is the same.
    """
    with connection.cursor() as cursor:
        try:
            cursor.execute("SET TRANSACTION SNAPSHOT %s", (shared.name,))
        except psycopg2.Error as error:
            if will_pass(error, connection):
                raise
            raise SnapshotGoneError from error
        cursor.execute(
            "SELECT pg_current_snapshot()::text, pg_relation_filenode(to_regclass(%s))::bigint", (quote_table(table),)
        )
        if cursor.fetchone() != (shared.high.snapshot, shared.filenode):
            raise SnapshotGoneError
