"""Transactions in the log of a PostgreSQL server that nobody sees: their commits wait for a synchronous standby."""

import contextlib
import threading
import time
from collections.abc import Iterator

from tests.support.servers import Database


@contextlib.contextmanager
def invisible(database: Database, *statements: str) -> Iterator[int]:
    """Commits a transaction in the log that nobody sees inside the block. Yields its id."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("SET LOCAL synchronous_commit = on")
        for statement in statements:
            cursor.execute(statement)
        cursor.execute("SELECT pg_current_xact_id()::xid::text")
        (xid,) = cursor.fetchone()
        pid = connection.get_backend_pid()
        committing = threading.Thread(target=connection.commit)
        committing.start()
        try:
            wait_for(database, f"SELECT FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'")
            yield int(xid)
        finally:
            database.query(f"SELECT pg_cancel_backend({pid})")
            committing.join()


def wait_for(database: Database, query: str) -> None:
    """Waits until the query has a row."""
    while not database.query(query):
        time.sleep(0.01)
